//! `verbcast tune`: a job measures what its links do.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use job::{run, verbcast};
use serde_json::Value;

#[test]
fn a_job_measures_itself_with_bounds() {
    for ranks in ["2", "3"] {
        let program = env!("CARGO_BIN_EXE_verbcast");
        let command = ["launch", "-n", ranks, "--", program, "tune", "--json", "--within", "0.5"];
        let outcome = run(verbcast(command)).expect_code(0);
        let lines: Vec<Value> =
            outcome.of_rank(0).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
        for name in ["L", "g", "beta", "eager limit", "link set-up", "wake"] {
            assert!(names.contains(&name), "no {name:?} in {names:?}");
        }
        for line in &lines {
            let number = |name: &str| line[name].as_f64().unwrap();
            assert!(
                number("low") <= number("value") && number("value") <= number("high"),
                "{line}"
            );
            assert!(number("samples") >= 1.0, "{line}");
        }
        let value = |name: &str| {
            let line = lines.iter().find(|line| line["name"] == name).unwrap();
            line["value"].as_f64().unwrap()
        };
        assert!(value("L") > 0.0 && value("beta") > 0.0);
        // Only rank 0 speaks.
        assert!(outcome.of_rank(1).is_empty());
    }
}

#[test]
fn one_rank_has_nothing_to_measure() {
    run(verbcast(["tune"])).expect_code(2).expect_error("verbcast launch -n 4");
}
