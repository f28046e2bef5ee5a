//! `verbcast simulate`: the model's times where nothing goes wrong, the survivors' where it does.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use job::{Outcome, run, verbcast};
use serde_json::Value;

fn outcome(arguments: &str) -> Outcome {
    run(verbcast(["simulate"].into_iter().chain(arguments.split_whitespace())))
}

/// The lines of `--json`.
#[track_caller]
fn rows(arguments: &str) -> Vec<Value> {
    let text = outcome(&format!("{arguments} --json")).expect_code(0).stdout;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn row(arguments: &str) -> Value {
    let mut rows = rows(arguments);
    assert_eq!(rows.len(), 1, "{arguments}");
    rows.remove(0)
}

#[test]
fn without_faults_every_rank_has_everything() {
    for arguments in ["-n 2", "-n 7", "-n 33 --root 5 --bytes 1M", "-n 9 --bytes 0", "-n 1"] {
        let rows = rows(arguments);
        assert!(rows.len() >= 3, "{arguments}");
        for row in rows {
            assert_eq!(row["complete"], true, "{arguments}: {row}");
            // Each rank but the root gets the message once, and nothing is lost.
            let (ranks, bytes) = (row["ranks"].as_u64().unwrap(), row["bytes"].as_u64().unwrap());
            assert!(row["bytes_sent"].as_u64().unwrap() >= (ranks - 1) * bytes, "{row}");
            assert_eq!(row["retransmissions"], 0);
        }
    }
}

#[test]
fn the_paced_time_is_the_formula_exactly() {
    // alpha 1.5 us and 12.5 GB/s of the profile verbs: a block of 1 MiB / 16 takes 5242.88 ns.
    let row = row("-n 33 --algorithm pipelined-tree --bytes 1M --blocks 16 --model telephone");
    assert_eq!(row["rounds"], 6 + 16 - 1);
    assert_eq!(row["time_ps"], (6 + 16 - 1) * (1_500_000 + 5_242_880_u64));
    let predicted = row["predicted_ns"].as_f64().unwrap() * 1e3;
    assert!((predicted - row["time_ps"].as_f64().unwrap()).abs() < 1.0, "{row}");
}

#[test]
fn what_is_too_large_to_run_is_counted() {
    let row = row("-n 70000 --algorithm pipelined-tree --blocks 1000 --model telephone");
    assert_eq!(
        (&row["counted"], &row["rounds"]),
        (&Value::from(true), &Value::from(17 + 1000 - 1))
    );
    let predicted = row["predicted_ns"].as_f64().unwrap() * 1e3;
    assert!((predicted - row["time_ps"].as_f64().unwrap()).abs() < 1000.0, "{row}");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let arguments = "-n 16 --algorithm pipelined-tree --loss 1 --jitter 5us --seed";
    let first = row(&format!("{arguments} 7"));
    assert_eq!(first, row(&format!("{arguments} 7")));
    let other = row(&format!("{arguments} 8"));
    assert_ne!(first["time_ps"], other["time_ps"]);
    assert!(first["retransmissions"].as_u64().unwrap() > 0 && first["complete"] == true, "{first}");
}

#[test]
fn a_dead_rank_ends_the_run_and_the_others_are_named() {
    // In a chain everybody behind rank 3 goes without.
    let row = row("-n 8 --algorithm pipelined-chain --bytes 1M --dead 3");
    assert_eq!((&row["complete"], &row["dead"]), (&Value::from(false), &Value::from(vec![3])));
    let missing = |rank: &&Value| rank["blocks_missing"].as_u64().unwrap() > 0;
    let without = row["incomplete"].as_array().unwrap().iter().filter(missing);
    let ranks: Vec<u64> = without.map(|rank| rank["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [4, 5, 6, 7]);
    let text =
        outcome("-n 8 --algorithm pipelined-chain --bytes 1M --dead 3 --explain").expect_code(0);
    assert!(text.stdout.contains("4 of 8 ranks go without, 1 dead"), "{}", text.stdout);
    assert!(text.stdout.contains("rank 4 lacks") && text.stdout.contains("waits for 3"));
}

#[test]
fn a_slow_rank_slows_a_chain_by_its_factor() {
    let usual = row("-n 8 --algorithm pipelined-chain");
    let slow = row("-n 8 --algorithm pipelined-chain --slow 3:4");
    let ratio = slow["time_ps"].as_f64().unwrap() / usual["time_ps"].as_f64().unwrap();
    assert!((3.0..=4.0).contains(&ratio), "{ratio}");
}

#[test]
fn the_picture_shows_what_is_lost_and_who_is_dead() {
    let folder = std::env::temp_dir().join(format!("verbcast-simulate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("p.svg");
    let arguments = "-n 8 --algorithm pipelined-tree --dead 2:300us --loss 3 --seed 1";
    outcome(&format!("{arguments} --picture {}", path.display())).expect_code(0);
    let picture = std::fs::read_to_string(&path).unwrap();
    for word in ["time", "sends", "receives", "lost", "dead", "root 0", "</svg>"] {
        assert!(picture.contains(word), "no {word:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn wrong_usage_is_told_in_a_line() {
    for (arguments, words) in [
        ("-n 0", "0 ranks"),
        ("-n 4 --blocks 0", "0 blocks"),
        ("-n 4 --loss 101", "0 to 100"),
        ("-n 4 --loss NaN", "0 to 100"),
        ("-n 4 --jitter -1us", "unexpected argument"),
        ("-n 4 --jitter=-1us", "not negative"),
        ("-n 4 --jitter 5", "ns, us, ms or s"),
        ("-n 4 --slow 9:2", "rank 9"),
        ("-n 4 --slow 1:0", "factor"),
        ("-n 4 --slow 1:2 --slow 1:3", "twice"),
        ("-n 4 --dead 4", "rank 4"),
        ("-n 4 --retries 101", "101 retries"),
        ("-n 4 --ranks-per-host 0", "0 ranks per host"),
        ("-n 4 --model telephone --loss 1", "use loggp"),
        ("-n 1000000000 --algorithm pipelined-tree", "at most"),
    ] {
        let outcome = outcome(arguments).expect_code(2).expect_error(words);
        assert!(!outcome.stderr.contains("panicked"), "{arguments}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "", "{arguments}");
    }
}
