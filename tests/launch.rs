//! `verbcast launch` as a user meets it, with ordinary programs as ranks.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use job::{expect_gone, launch_shell, pids, run, start, verbcast};

#[test]
fn every_rank_knows_its_place_and_its_lines_carry_its_number() {
    let outcome = run(launch_shell(
        3,
        "echo $VERBCAST_RANK $VERBCAST_LOCAL_RANK of $VERBCAST_SIZE; echo oops >&2",
    ))
    .expect_code(0);
    for rank in 0..3 {
        assert_eq!(outcome.of_rank(rank), [format!("{rank} {rank} of 3")]);
        assert!(outcome.stderr.contains(&format!("[{rank}] oops\n")), "{}", outcome.stderr);
    }
    assert_eq!((outcome.stdout.lines().count(), outcome.stderr.lines().count()), (3, 3));
}

#[test]
fn the_fabric_is_passed_on() {
    let arguments =
        ["launch", "-n", "1", "--fabric", "shm", "--", "sh", "-c", "echo $VERBCAST_FABRIC"];
    assert_eq!(run(verbcast(arguments)).expect_code(0).of_rank(0), ["shm"]);
}

#[test]
fn lines_of_different_ranks_never_mix() {
    // Each rank writes in pieces that end in the middle of lines, lines longer than any buffer among
    // them, and no line feed at the end.
    let script = r#"
        letter=$(printf abcdef | cut -c $((VERBCAST_RANK + 1)))
        long=$(head -c 70000 /dev/zero | tr '\0' $letter)
        for i in 1 2 3 4 5 6 7 8 9 10; do
            printf '%s\n%s' $letter$letter$letter $letter; printf '%s%s\n' $long $letter
        done
        printf $letter
    "#;
    let outcome = run(launch_shell(6, script)).expect_code(0);
    for (rank, letter) in "abcdef".chars().enumerate() {
        let prefix = format!("[{rank}] ");
        let lines: Vec<&str> =
            outcome.stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        assert!(lines.iter().all(|line| line.trim_end_matches('…').chars().all(|c| c == letter)));
        let letters: usize = lines.iter().map(|line| line.matches(letter).count()).sum();
        assert_eq!(letters, 10 * (3 + 1 + 70000 + 1) + 1, "rank {rank}");
    }
}

#[test]
fn standard_input_goes_to_rank_0() {
    let mut command = launch_shell(2, "cat");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "[0] one\n[0] two\n");
}

#[test]
fn more_ranks_than_cores_are_normal() {
    let outcome = run(launch_shell(64, "echo here")).expect_code(0);
    assert_eq!(outcome.stdout.matches("here").count(), 64);
}

#[test]
fn one_failure_ends_the_job_with_its_status() {
    let script = "echo pid $$; test $VERBCAST_RANK = 1 && exit 7; exec sleep 600";
    let outcome = run(launch_shell(3, script))
        .expect_code(7)
        .expect_error("rank 1 (pid ")
        .expect_error("exited with status 7")
        .expect_error("sending SIGTERM to rank(s) 0, 2");
    expect_gone(&pids(&outcome.stdout.lines().map(str::to_owned).collect::<Vec<_>>()));
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    run(launch_shell(3, "test $VERBCAST_RANK = 2 && kill -9 $$; exec sleep 600"))
        .expect_code(128 + 9)
        .expect_error("rank 2 (pid ")
        .expect_error("was killed by signal 9 (SIGKILL)");
}

/// What the others say of a failure may come sooner than its status.
#[test]
fn the_cause_is_told_from_those_who_were_told_of_it() {
    let script = "case $VERBCAST_RANK in 1) sleep 0.01; exit 7;; *) exit 1;; esac";
    run(launch_shell(3, script)).expect_code(7).expect_error("rank 1 (pid ");
    let script = "case $VERBCAST_RANK in 2) sleep 0.01; kill -9 $$;; *) exit 9;; esac";
    run(launch_shell(3, script)).expect_code(128 + 9).expect_error("SIGKILL");
}

#[test]
fn the_others_have_time_to_say_why_they_end() {
    let script = "test $VERBCAST_RANK = 0 && exit 3; sleep 0.3; echo rank 0 failed me; exit 1";
    let outcome = run(launch_shell(2, script)).expect_code(3);
    assert_eq!(outcome.of_rank(1), ["rank 0 failed me"]);
    assert!(!outcome.stderr.contains("SIGTERM"), "{}", outcome.stderr);
}

#[test]
fn a_rank_that_does_not_end_is_killed_with_all_it_started() {
    // SIGTERM is ignored, a grandchild is in the background, one rank is stopped.
    let script = r#"
        trap '' TERM
        sleep 600 & echo pid $!; echo pid $$
        case $VERBCAST_RANK in
            0) sleep 0.3; exit 5;;
            1) kill -STOP $$;;
        esac
        while :; do sleep 600; done
    "#;
    let outcome =
        run(launch_shell(3, script)).expect_code(5).expect_error("sending SIGKILL to rank(s) 1, 2");
    let lines: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 6);
    expect_gone(&pids(&lines));
}

#[test]
fn what_a_rank_leaves_in_the_background_ends_with_it() {
    let outcome = run(launch_shell(2, "sleep 600 & echo pid $!")).expect_code(0);
    expect_gone(&pids(&outcome.stdout.lines().map(str::to_owned).collect::<Vec<_>>()));
}

#[test]
fn signals_reach_every_rank() {
    for name in ["INT", "TERM", "HUP", "USR1"] {
        let script = format!(
            "trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut running = start(launch_shell(3, &script));
        running.lines(3, "ready");
        running.signal(name);
        let outcome = running.finish().expect_code(0);
        assert_eq!(outcome.stdout.matches("got").count(), 3, "{name}: {}", outcome.stdout);
    }
}

#[test]
fn a_rank_that_a_passed_on_signal_kills_gives_the_status() {
    let mut running = start(launch_shell(2, "echo ready; exec sleep 600"));
    running.lines(2, "ready");
    running.signal("INT");
    running.finish().expect_code(128 + 2);
}

/// As `nohup` and scripts that put a job into the background have it.
#[test]
fn signals_that_were_ignored_at_the_start_stay_so() {
    let script = "echo ready; sleep 1; echo done";
    let mut command = std::process::Command::new("env");
    command.args(["--ignore-signal=HUP,INT", env!("CARGO_BIN_EXE_verbcast")]);
    command.args(["launch", "-n", "2", "--", "sh", "-c", script]);
    let mut running = start(command);
    running.lines(2, "ready");
    running.signal("HUP");
    running.signal("INT");
    running.signal("INT");
    let outcome = running.finish().expect_code(0);
    assert_eq!(outcome.stdout.matches("done").count(), 2, "{}", outcome.stderr);
}

#[test]
fn the_second_interrupt_kills() {
    let script = "trap '' INT; echo pid $$; while :; do sleep 600; done";
    let mut running =
        start(verbcast(["launch", "-n", "2", "--grace", "600", "--", "sh", "-c", script]));
    let ranks = pids(&running.lines(2, "pid"));
    running.signal("INT");
    std::thread::sleep(Duration::from_millis(200));
    assert!(ranks.iter().all(|rank| job::is_running(*rank)));
    running.signal("INT");
    running.finish().expect_code(128 + 9);
    expect_gone(&ranks);
}

#[test]
fn ranks_die_with_their_launcher() {
    let mut running = start(launch_shell(3, "trap '' TERM HUP INT; echo pid $$; exec sleep 600"));
    let ranks = pids(&running.lines(3, "pid"));
    running.signal("KILL");
    running.finish().expect_code(128 + 9);
    expect_gone(&ranks);
}

#[test]
fn a_time_limit_ends_the_job() {
    let outcome = run(verbcast(["launch", "-n", "2", "--timeout", "0.5", "--", "sleep", "600"]));
    outcome.expect_code(124).expect_error("longer than its limit");
}

/// Strangers come to the rendezvous before the ranks do: each is dropped with one line, and the job
/// goes on.
#[test]
fn strangers_at_the_rendezvous_do_not_disturb_the_job() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let script = "echo ready; while ! [ -e \"$GO\" ]; do sleep 0.05; done; exec \"$BIN\" selftest";
    let go = Path::new(env!("CARGO_TARGET_TMPDIR")).join("strangers-go");
    let _absent = std::fs::remove_file(&go);
    let mut command =
        verbcast(["launch", "-n", "2", "--rendezvous", &address, "--", "sh", "-c", script]);
    command.env("GO", &go).env("BIN", env!("CARGO_BIN_EXE_verbcast"));
    let mut job = start(command);
    job.lines(2, "ready");

    let speak = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let garbage = [0xa5; 32];
    let four_gib = [&u32::MAX.to_le_bytes()[..], &[7; 60]].concat();
    let silent = TcpStream::connect(&address).unwrap();
    let talkers = [speak(&garbage), speak(&four_gib), speak(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")];
    let mut wrong = verbcast(["selftest"]);
    wrong.envs([("VERBCAST_RANK", "1"), ("VERBCAST_SIZE", "2"), ("VERBCAST_RENDEZVOUS", &address)]);
    wrong.env("VERBCAST_JOB_SECRET", "00112233445566778899aabbccddeeff");
    run(wrong).expect_code(1).expect_error("secret");

    std::fs::write(&go, "").unwrap();
    let outcome = job.finish().expect_code(0);
    drop((silent, talkers));
    for rank in 0..2 {
        assert!(outcome.of_rank(rank).last().unwrap().contains("\"broadcasts\":132"));
    }
    let dropped = outcome.stderr.lines().filter(|line| line.contains("connection dropped")).count();
    // The one that is silent may still have been waited for when all ranks were there.
    assert!((4..=5).contains(&dropped), "{}", outcome.stderr);
}

#[test]
fn ranks_learn_that_nobody_reads_their_output() {
    let binary = env!("CARGO_BIN_EXE_verbcast");
    let started = Instant::now();
    let pipeline = format!("{binary} launch -n 2 -- yes | head -n 1");
    let outcome = Command::new("sh").args(["-c", &pipeline]).output().unwrap();
    assert!(outcome.stdout.ends_with(b"] y\n") && outcome.stdout.len() == 6);
    assert!(started.elapsed() < job::LIMIT);
}

#[test]
fn wrong_usage_is_status_2_and_a_program_that_cannot_run_127_or_126() {
    for arguments in [
        &["launch", "-n", "0", "--", "true"][..],
        &["launch", "-n", "-1", "--", "true"],
        &["launch", "-n", "100000000000", "--", "true"],
        &["launch", "--", "true"],
        &["launch", "-n", "2"],
        &["launch", "-n", "2", "--"],
        &["launch", "-n", "2", "--fabric", "carrier-pigeon", "--", "true"],
        &["launch", "-n", "2", "--timeout", "0", "--", "true"],
        &["no-such-command"],
        &[],
    ] {
        let outcome = run(verbcast(arguments));
        assert_eq!(outcome.code(), 2, "{arguments:?}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains("Usage") || outcome.stderr.contains("--help"),
            "{arguments:?}"
        );
    }
    let missing = run(verbcast(["launch", "-n", "8", "--", "no-such-program"])).expect_code(127);
    assert_eq!(missing.stderr.lines().count(), 1, "{}", missing.stderr);
    run(verbcast(["launch", "-n", "8", "--", "/etc/passwd"])).expect_code(126);
}
