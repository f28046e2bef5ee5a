//! Jobs of several processes over shared memory: contents, order of blocks, civil waiting, a
//! stopped sender, a machine without libibverbs.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use std::process::Command;
use std::time::Duration;

use job::{run, start, verbcast};
use serde_json::Value;
use verbcast::schedule::{self, Algorithm, Direction, Shape};

/// The full form through the segment, 33 ranks on two cores, takes minutes.
const LIMIT: Duration = Duration::from_secs(900);

fn selftest(ranks: u32, arguments: &[&str]) -> Command {
    let ranks = ranks.to_string();
    let program = env!("CARGO_BIN_EXE_verbcast");
    let launch = ["launch", "-n", &ranks, "--fabric", "shm", "--", program, "selftest"];
    verbcast(launch.iter().chain(arguments))
}

fn summaries(command: Command, ranks: u32) -> Vec<Value> {
    let outcome = start(command).finish_within(LIMIT).expect_code(0);
    let last = |rank| {
        let lines = outcome.of_rank(rank);
        serde_json::from_str(lines.last().expect("a summary")).expect("JSON")
    };
    (0..ranks).map(last).collect()
}

fn matrix(cma: &str) {
    for ranks in [1, 2, 3, 4, 5, 8] {
        let mut command = selftest(ranks, &[]);
        command.env("VERBCAST_CMA", cma);
        for summary in summaries(command, ranks) {
            assert_eq!(summary["broadcasts"], Algorithm::BROADCAST.len() as u32 * 6 * ranks);
        }
    }
    // 33 ranks on few cores: every root only in the full form.
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let roots = if full {
        vec![]
    } else {
        vec!["--roots", "0,17,32", "--algorithms", "two-tree,pipelined-tree,scatter-allgather"]
    };
    let mut command = selftest(33, &roots);
    command.env("VERBCAST_CMA", cma);
    assert_eq!(summaries(command, 33).len(), 33);
}

#[test]
fn every_algorithm_root_and_size_by_pull() {
    matrix("1");
}

#[test]
fn every_algorithm_root_and_size_through_the_segment() {
    matrix("0");
}

/// Random operations of all kinds among five ranks; a million in the full form.
#[test]
fn mixed_operations_keep_their_contents_and_their_memory() {
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let turns = if full { 1_000_000_u64 } else { 10_000 };
    let seed = std::env::var("VERBCAST_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..)).to_string();
    println!("replay with VERBCAST_TEST_SEED={seed}");
    for cma in ["1", "0"] {
        let turns = turns.to_string();
        let mut command = selftest(5, &["--mixed", &turns, "--seed", &seed]);
        command.env("VERBCAST_CMA", cma);
        for summary in summaries(command, 5) {
            assert_eq!(summary["operations"].to_string(), turns);
            let resident = |place: usize| summary["resident_kb"][place].as_u64().unwrap();
            let (settled, end) = (resident(0), resident(1));
            assert!(settled > 0 && end <= settled + settled / 4 + 2048, "{summary}");
        }
    }
}

/// Kept to its schedule, every rank of 33 sends and receives what the schedule prints.
#[test]
fn the_traced_blocks_of_33_ranks_are_the_schedules() {
    let (ranks, root, blocks) = (33, 5, 17);
    let bytes = (blocks * 4096).to_string();
    let arguments = [
        "--algorithms",
        "pipelined-tree",
        "--sizes",
        &bytes,
        "--roots",
        "5",
        "--block-bytes",
        "4096",
        "--paced",
        "--trace",
    ];
    let shape = Shape::new(ranks, root, blocks).unwrap();
    for summary in summaries(selftest(ranks, &arguments), ranks) {
        let rank = summary["rank"].as_u64().unwrap() as u32;
        let plan = schedule::broadcast(Algorithm::PipelinedTree, shape, rank).unwrap();
        let traced: Vec<(String, u32, u32)> =
            serde_json::from_value(summary["trace"].clone()).unwrap();
        let of = |kind: &str| -> Vec<(u32, u32)> {
            let these = traced.iter().filter(|(name, ..)| name == kind);
            these.map(|(_, peer, block)| (*peer, *block)).collect()
        };
        let planned = |direction| -> Vec<(u32, u32)> {
            let these = plan.steps().iter().filter(|step| step.direction == direction);
            these.map(|step| (step.peer, step.block)).collect()
        };
        assert_eq!(of("send"), planned(Direction::Send), "rank {rank} sends");
        // Blocks of different peers may overtake each other on their way, those of one may not.
        let (received, expected) = (of("recv"), planned(Direction::Recv));
        assert_eq!(received.len(), expected.len(), "rank {rank} receives");
        for peer in 0..ranks {
            let from = |list: &[(u32, u32)]| -> Vec<u32> {
                list.iter().filter(|(from, _)| *from == peer).map(|(_, block)| *block).collect()
            };
            assert_eq!(from(&received), from(&expected), "rank {rank} from {peer}");
        }
    }
}

/// Seven ranks wait two seconds for the root: that costs each next to no processor time.
#[test]
fn waiting_is_civil() {
    let program = env!("CARGO_BIN_EXE_verbcast");
    let script = format!(
        "exec {} selftest --algorithms pipelined-tree --sizes 1048576 --roots 0 --late-root-ms 2000",
        program
    );
    // `times` of bash prints the children's user and system time in its second line.
    let shell = format!("({script}) >/dev/null; status=$?; times; exit $status");
    let command = verbcast(["launch", "-n", "8", "--fabric", "shm", "--", "bash", "-c", &shell]);
    let outcome = run(command).expect_code(0);
    for rank in 0..8 {
        let lines = outcome.of_rank(rank);
        let children = lines.last().expect("two lines of times");
        let seconds: f64 = children.split_whitespace().map(seconds).sum();
        assert!(seconds <= 0.1, "rank {rank} used {children}");
    }
}

/// `0m0.012s` in seconds.
fn seconds(text: &str) -> f64 {
    let (minutes, rest) = text.split_once('m').expect("minutes");
    let seconds: f64 = rest.trim_end_matches('s').parse().expect("seconds");
    minutes.parse::<f64>().expect("minutes") * 60.0 + seconds
}

/// With libibverbs out of reach, the same binary starts and moves data by shared memory.
#[test]
fn a_machine_without_libibverbs_is_served_by_shared_memory() {
    let hide = "for f in $(ldconfig -p | sed -n 's/.*=> //p' | grep libibverbs); do \
                mount --bind /dev/null \"$f\"; done; exec \"$@\"";
    let hidden = |job: Command| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "--user", "sh", "-c", hide, "sh"]);
        command.arg(job.get_program()).args(job.get_args());
        command
    };
    let devices = run(hidden(verbcast(["devices"]))).expect_code(0);
    let said = format!("{}{}", devices.stdout, devices.stderr);
    if cfg!(feature = "verbs") {
        assert!(said.contains("no verbs here"), "{said}");
    }
    let arguments = ["--sizes", "0,8,1048579"];
    let outcome = run(hidden(selftest(3, &arguments))).expect_code(0);
    for rank in 0..3 {
        assert!(outcome.of_rank(rank)[0].contains("\"broadcasts\":99"));
    }
}

/// A root is stopped in the middle, the others give up, it goes on: nothing is written any more.
#[test]
fn a_stopped_sender_that_goes_on_changes_no_buffer() {
    for cma in ["1", "0"] {
        let program = env!("CARGO_BIN_EXE_verbcast");
        let mut command = verbcast(["launch", "-n", "3", "--fabric", "shm", "--grace", "60", "--"]);
        command.args([program, "selftest", "--stop-root", "--sizes", "134217728"]);
        command.args(["--deadline", "2"]).env("VERBCAST_CMA", cma);
        let mut job = start(command);
        let pids = job::pids(&job.lines(3, "pid "));
        let root = job.lines(1, "[0] pid ")[0].rsplit(' ').next().unwrap().parse().unwrap();
        assert!(pids.contains(&root));
        for line in job.lines(2, "gave up with") {
            let arrived = line.split(' ').nth(4).unwrap();
            assert!(arrived != "0" && !line.contains("134217728 of"), "{line}");
        }
        job::signal(root, "CONT");
        job.lines(1, "[0] continued");
        let outcome = job.finish().expect_code(0);
        for rank in [1, 2] {
            assert_eq!(outcome.of_rank(rank).last(), Some(&"unchanged"), "{}", outcome.stdout);
        }
    }
}
