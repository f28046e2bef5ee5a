//! `verbcast plan`: what it prints, and its schedules against a checker that shares no code with it.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use job::{Outcome, run, verbcast};
use serde_json::{Value, json};
use verbcast::Algorithm;
use verbcast::schedule::{self, Operation, Shape};

/// Runs `verbcast plan` with these arguments, which must succeed, and gives its output.
#[track_caller]
fn plan(arguments: &str) -> String {
    outcome(arguments).expect_code(0).stdout
}

fn outcome(arguments: &str) -> Outcome {
    run(verbcast(["plan"].into_iter().chain(arguments.split_whitespace())))
}

/// The lines of `--json`.
#[track_caller]
fn rows(arguments: &str) -> Vec<Value> {
    let text = plan(&format!("{arguments} --json"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn row(arguments: &str, algorithm: &str) -> Value {
    let row = rows(arguments).into_iter().find(|row| row["algorithm"] == algorithm);
    row.unwrap_or_else(|| panic!("no {algorithm} in plan {arguments}"))
}

/// A schedule to be checked.
#[derive(Clone, Debug)]
struct Case {
    operation: Operation,
    algorithm: Algorithm,
    ranks: u32,
    root: u32,
    blocks: u32,
    ports: u16,
    radix: u32,
}

impl Case {
    fn broadcast(algorithm: Algorithm, ranks: u32, root: u32, blocks: u32) -> Self {
        Self { operation: Operation::Broadcast, algorithm, ranks, root, blocks, ports: 1, radix: 2 }
    }

    fn arguments(&self) -> String {
        let Self { operation, algorithm, ranks, root, blocks, ports, radix } = self;
        format!(
            "--op {operation} -n {ranks} --root {root} --blocks {blocks} --ports {ports} \
             --radix {radix} --algorithm {algorithm}"
        )
    }

    /// What `tests/check_schedule.py` reads: the claim, then the steps.
    fn text(&self) -> String {
        let shape = Shape::new(self.ranks, self.root, self.blocks)
            .and_then(|shape| shape.with_operation(self.operation))
            .and_then(|shape| shape.with_ports(self.ports))
            .and_then(|shape| shape.with_radix(self.radix));
        let claim = json!({
            "op": self.operation.name(), "algorithm": self.algorithm.name(), "ranks": self.ranks,
            "root": self.root, "blocks": self.blocks, "ports": self.ports, "radix": self.radix,
            "rounds": schedule::rounds(self.algorithm, shape.unwrap()),
        });
        format!("{claim}\n{}", plan(&format!("{} --schedule", self.arguments())))
    }
}

/// What the checker says of this input: whether all is right, and its words.
fn check(inputs: impl Iterator<Item = String>) -> (bool, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check_schedule.py");
    let mut child = Command::new("python3")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there (`cargo run -p rxe-setup -- deps` installs it)");
    let mut stdin = child.stdin.take().unwrap();
    for input in inputs {
        // It stops reading at the first fault, which its output tells.
        if stdin.write_all(input.as_bytes()).is_err() {
            break;
        }
    }
    drop(stdin);
    let mut words = String::new();
    child.stdout.take().unwrap().read_to_string(&mut words).unwrap();
    (child.wait().unwrap().success(), words.trim().to_owned())
}

fn rng() -> fastrand::Rng {
    let given = std::env::var("VERBCAST_TEST_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("replay with VERBCAST_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Every algorithm of every operation, N in 2..=64, roots 0, 1, N/2, N - 1, k in {1, 2, 3, q, 17} and
/// up to four ports; without VERBCAST_FULL some of these, by a seed.
fn cases() -> Vec<Case> {
    let mut rng = rng();
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let mut cases = Vec::new();
    for ranks in 2..=64_u32 {
        let mut roots = vec![0, 1, ranks / 2, ranks - 1];
        let mut counts = vec![1, 2, 3, schedule::ceil_log2(ranks), 17];
        for list in [&mut roots, &mut counts] {
            list.sort_unstable();
            list.dedup();
        }
        for operation in Operation::ALL {
            for &algorithm in Algorithm::of(operation) {
                if algorithm == Algorithm::RecursiveDoubling && !ranks.is_power_of_two() {
                    continue;
                }
                let case = Case::broadcast(algorithm, ranks, 0, 1);
                let radix = rng.u32(2..=9);
                if !full {
                    // Every algorithm is tried with many N, every N with many algorithms.
                    if rng.u32(0..5) > 0 {
                        continue;
                    }
                    let (root, blocks) =
                        (*rng.choice(&roots).unwrap(), *rng.choice(&counts).unwrap());
                    let ports = if rng.bool() { 1 } else { rng.u16(2..=4) };
                    cases.push(Case { operation, root, blocks, ports, radix, ..case });
                    continue;
                }
                // An allgather has no root.
                let roots = if operation == Operation::Allgather { &roots[..1] } else { &roots };
                for &root in roots {
                    for &blocks in &counts {
                        for ports in 1..=4 {
                            cases.push(Case {
                                operation,
                                root,
                                blocks,
                                ports,
                                radix,
                                ..case.clone()
                            });
                        }
                    }
                }
            }
        }
    }
    cases
}

#[test]
fn printed_schedules_pass_a_checker_of_other_origin() {
    let cases = cases();
    let (right, words) = check(cases.iter().map(Case::text));
    assert!(right, "{words}");
    assert_eq!(words, format!("right: {}", cases.len()));
}

#[test]
fn the_other_checker_rejects_what_is_wrong() {
    let case = Case::broadcast(Algorithm::PipelinedTree, 9, 2, 5);
    let text = case.text();
    let lines: Vec<&str> = text.lines().collect();
    let mut rng = rng();
    let place = rng.usize(1..lines.len());
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut step: Value = serde_json::from_str(lines[place]).unwrap();
        change(&mut step);
        step.to_string()
    };
    let number = |step: &Value, name: &str| step[name].as_u64().unwrap();
    let replaced = |line: String| {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        lines[place] = line;
        lines.join("\n")
    };
    let without: Vec<&str> =
        lines.iter().enumerate().filter(|(at, _)| *at != place).map(|(_, line)| *line).collect();
    let mut twice = lines.clone();
    twice.insert(place, lines[place]);
    for (what, wrong) in [
        ("nothing", String::new()),
        ("a step is left out", without.join("\n")),
        ("a step is there twice", twice.join("\n")),
        (
            "another peer",
            replaced(changed(&|step| step["peer"] = json!((number(step, "peer") + 1) % 9))),
        ),
        (
            "another block",
            replaced(changed(&|step| step["block"] = json!((number(step, "block") + 1) % 5))),
        ),
        (
            "a later round",
            replaced(changed(&|step| step["round"] = json!(number(step, "round") + 1))),
        ),
        ("a block that is none", replaced(changed(&|step| step["block"] = json!(5)))),
        ("a rank that is none", replaced(changed(&|step| step["rank"] = json!(9)))),
        ("cut short", text[..text.len() - 9].to_owned()),
        ("a wrong claim", text.replacen("\"rounds\":8", "\"rounds\":9", 1)),
    ] {
        let (right, words) = check([wrong].into_iter());
        assert!(!right && words.starts_with("wrong: "), "{what} (line {place}): {words:?}");
    }
    assert!(check([text].into_iter()).0);
}

/// `verbcast plan --check -` with this on its standard input.
fn own_check(arguments: &str, input: &str) -> std::process::Output {
    let mut child =
        verbcast(["plan", "--check", "-"].into_iter().chain(arguments.split_whitespace()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    // It stops reading at the first fault.
    let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn own_schedules_are_checked_with_the_place_of_a_fault() {
    let arguments = "-n 9 --root 2 --blocks 5";
    let text = plan(&format!("{arguments} --algorithm pipelined-tree --schedule"));
    let lines: Vec<&str> = text.lines().collect();
    let without_a_line = [&lines[..20], &lines[21..]].concat().join("\n");
    let twice = format!("{text}{}\n", lines[0]);
    let claimed = |rounds: u32| {
        let claim =
            json!({"op": "broadcast", "ranks": 9, "root": 2, "blocks": 5, "rounds": rounds});
        format!("{claim}\n{text}")
    };
    for (arguments, input, status, words) in [
        (arguments, text.as_str(), 0, "right: broadcast with root 2"),
        (&format!("{arguments} --rounds 8"), &text, 0, "8 rounds"),
        (&format!("{arguments} --rounds 7"), &text, 1, "take 8 rounds, 7 are claimed"),
        ("", &claimed(8), 0, "8 rounds"),
        ("", &claimed(9), 1, "take 8 rounds, 9 are claimed"),
        ("", &text, 1, "the first line must say"),
        (arguments, &without_a_line, 1, "has no such step"),
        (arguments, &text[..text.len() - 9], 1, &format!("line {}", lines.len())),
        (arguments, &twice, 1, "rank 0 had its steps before"),
        (arguments, "{\"rank\":0}", 1, "line 1"),
        ("-n 0", &text, 2, "0 ranks"),
    ] {
        let output = own_check(arguments, input);
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8(all).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments}: {all}");
        assert!(all.contains(words) && !all.contains("panicked"), "no {words:?} in {all}");
    }
    let output = own_check(&format!("{arguments} --json"), &text);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["right"], &line["transfers"]), (&json!(true), &json!(8 * 5)));
    let output = own_check(&format!("{arguments} --json"), &without_a_line);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["right"], json!(false));
}

#[test]
fn the_pipelined_tree_takes_the_fewest_rounds_at_every_n() {
    let mut rng = rng();
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let few = [1, 2, 3, 31, 32, 33, 1000, 65_536, 1_000_000].into_iter();
    let many = 1..if full { 2049 } else { 1 };
    for ranks in few.chain(many) {
        let blocks = rng.u32(1..500);
        let row = row(&format!("-n {ranks} --blocks {blocks}"), "pipelined-tree");
        let mut q = 0;
        while 1_u64 << q < ranks {
            q += 1;
        }
        let rounds = if ranks == 1 { 0 } else { q + blocks - 1 };
        assert_eq!(row["rounds"], rounds, "{ranks} ranks, {blocks} blocks");
    }
}

#[test]
fn one_algorithm_is_chosen_with_its_reason() {
    for (arguments, chosen) in [
        ("-n 64", ""),
        ("-n 64 --bytes 8 --op scatter --ports 2", ""),
        ("-n 64 --model telephone", "pipelined-tree"),
        ("-n 64 --algorithm pipelined-chain", "pipelined-chain"),
        ("-n 1", ""),
    ] {
        let rows = rows(arguments);
        let is_chosen = |row: &&Value| row["chosen"] == true;
        let all: Vec<&Value> = rows.iter().filter(is_chosen).collect();
        assert_eq!(all.len(), 1, "{arguments}");
        assert!(chosen.is_empty() || all[0]["algorithm"] == chosen, "{arguments}: {}", all[0]);
        assert!(all[0]["why"].as_str().unwrap().len() > 10, "{arguments}");
        if !arguments.contains("--algorithm") {
            let time = |row: &Value| row["time_ns"].as_f64().unwrap();
            // A gain of up to one part in 64 is none.
            let least = time(all[0]) * (1.0 - 1.0 / 64.0);
            assert!(rows.iter().all(|row| time(row) >= least), "{arguments}: {}", all[0]);
        }
        for row in &rows {
            assert!(row["ratio"].as_f64().unwrap() >= 0.999, "faster than the bound: {row}");
        }
    }
    let text = plan("-n 33 --explain");
    for word in ["lower bound", "q + k - 1", "from ", "times the lower bound"] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
}

#[test]
fn what_cannot_be_is_left_out_with_the_reason() {
    let text = plan("-n 65536");
    assert!(text.contains("flat needs 65535 links of a rank"), "{text}");
    // Whoever asks for it gets it.
    assert_eq!(row("-n 65536 --algorithm flat", "flat")["chosen"], true);
    assert!(rows("-n 7 --op allgather").iter().all(|row| row["algorithm"] != "recursive-doubling"));
}

#[test]
fn steps_are_json_lines_of_absolute_ranks() {
    let text = plan("--algorithm pipelined-tree -n 33 --root 5 --blocks 17 --schedule");
    let steps: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Each of 32 ranks gets each of 17 blocks, which both ends print.
    assert_eq!(steps.len(), 2 * 32 * 17);
    let first = steps.iter().find(|step| step["round"] == 0 && step["op"] == "send").unwrap();
    assert_eq!((&first["rank"], &first["block"]), (&json!(5), &json!(0)));
    assert!(first.get("port").is_none());
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    for arguments in ["-n 1000000 --blocks 64 --schedule", "-n 64", "-n 64 --json"] {
        let mut child = verbcast(["plan"].into_iter().chain(arguments.split(' ')))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments}: {:?}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments}");
    }
}

#[test]
fn pictures_are_well_formed_and_hold_every_step() {
    let folder = tempfile();
    for (arguments, ranks, blocks) in [("-n 8 --blocks 12", 8, 12), ("-n 64", 64, 16)] {
        let path = folder.join(format!("{ranks}.svg"));
        plan(&format!("{arguments} --algorithm pipelined-tree --picture {}", path.display()));
        let picture = std::fs::read_to_string(&path).unwrap();
        well_formed(&picture);
        for word in ["round", "sends", "receives", "lower bound", "bytes of the message"] {
            assert!(picture.contains(word), "no {word:?} in {}", path.display());
        }
        let arrows = picture.matches(['→', '←']).count();
        assert!(arrows >= 2 * (ranks - 1) * blocks, "{arrows} arrows");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

fn tempfile() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("verbcast-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Fails unless a parser of other origin reads it as XML without anything from elsewhere.
fn well_formed(picture: &str) {
    let read = "import sys, xml.etree.ElementTree as e\n\
                for x in e.fromstring(sys.stdin.buffer.read()).iter():\n\
                \x20assert not any('href' in k or 'url(' in v for k, v in x.attrib.items()), x.attrib";
    let mut child =
        Command::new("python3").args(["-c", read]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(picture.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "not well formed");
}

#[test]
fn wrong_usage_is_told_in_a_line() {
    for (arguments, words) in [
        ("-n 0", "0 ranks"),
        ("-n -1", "unexpected argument"),
        ("-n 4294967296", "4294967296"),
        ("", "-n N"),
        ("-n 4 --root 4", "root 4 is not one of the 4 ranks"),
        ("-n 4 --blocks 0", "0 blocks"),
        ("-n 4 --blocks 1048577", "1048577 blocks"),
        ("-n 4 --bytes 10 --blocks 11", "at most 10"),
        ("-n 4 --bytes 9223372036854775808", "too much"),
        ("-n 4 --bytes -3", "-3"),
        ("-n 4 --bytes NaN", "NaN"),
        ("-n 4 --algorithm no-such", "no-such"),
        ("-n 4 --profile no-such", "no-such"),
        ("-n 4 --schedule --json", "cannot be used with"),
    ] {
        let outcome = outcome(arguments).expect_code(2).expect_error(words);
        assert!(!outcome.stderr.contains("panicked"), "{arguments}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "", "{arguments}");
    }
    outcome("-n 4 --picture /nowhere/p.svg").expect_code(1).expect_error("/nowhere/p.svg");
}
