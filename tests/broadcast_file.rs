//! `verbcast broadcast FILE DEST` as processes: contents, memory, deaths in the middle, bad input.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use job::files::{begun, bytes, death, folder, moving, names, on_small_disk, peaks};
use job::{expect_failure, expect_gone, run, signal, start, verbcast};

fn broadcast_shm(ranks: u32, file: &Path, dest: &Path, options: &[&str]) -> Command {
    moving("broadcast", "shm", ranks, [file, dest], options)
}

#[test]
fn every_rank_gets_the_file_whatever_its_size_and_an_old_one_is_replaced() {
    let folder = folder("sizes");
    let file = folder.join("file");
    for (size, ranks, root) in
        [(0, 3, 0), (1, 2, 1), (4097, 5, 4), ((5 << 20) + 3, 4, 2), (100_003, 1, 0)]
    {
        let content = bytes(size, size as u64);
        fs::write(&file, &content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let options = ["--root", &root.to_string(), "--memory", "2M"];
        run(broadcast_shm(ranks, &file, &folder.join("copy.{rank}"), &options)).expect_code(0);
        for rank in 0..ranks {
            let copy = folder.join(format!("copy.{rank}"));
            assert!(fs::read(&copy).unwrap() == content, "{size} bytes, rank {rank}");
            assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o777, 0o640);
        }
    }
    assert_eq!(names(&folder), ["copy.0", "copy.1", "copy.2", "copy.3", "copy.4", "file"]);
}

#[test]
fn memory_stays_within_its_limit() {
    let folder = folder("memory");
    let file = folder.join("file");
    fs::write(&file, bytes(96 << 20, 5)).unwrap();
    let options = ["--memory", "64M"];
    let job = broadcast_shm(4, &file, &folder.join("copy.{rank}"), &options);
    for (rank, kib) in peaks(job, 4).into_iter().enumerate() {
        assert!(kib > 0, "rank {rank} was never seen");
        assert!(kib <= (64 + 64) << 10, "rank {rank} had {kib} KiB");
    }
    for rank in 0..4 {
        assert!(fs::read(folder.join(format!("copy.{rank}"))).unwrap() == bytes(96 << 20, 5));
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// Every one of four ranks, rank 0 and the root too; every pair of victim and root in the full form.
#[test]
fn a_rank_that_is_killed_ends_the_job_and_leaves_nothing() {
    let all = (0..4).flat_map(|victim| (0..4).map(move |root| (victim, root)));
    let some = [(0, 1), (1, 1), (2, 0), (3, 0)];
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    for (victim, root) in if full { all.collect() } else { some.to_vec() } {
        death("broadcast", "shm", 256 << 20, victim, root);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_on_every_rank() {
    let folder = folder("unreadable");
    let dest = folder.join("copy.{rank}");
    let missing = folder.join("missing");
    expect_failure(run(broadcast_shm(3, &missing, &dest, &[])), 3, "No such file");
    expect_failure(run(broadcast_shm(3, &folder, &dest, &[])), 3, "directory");
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_destination_that_one_rank_cannot_write_is_an_error_on_every_rank() {
    let folder = folder("unwritable");
    let file = folder.join("file");
    fs::write(&file, bytes(1 << 20, 1)).unwrap();
    for rank in [0, 1, 3] {
        fs::create_dir(folder.join(rank.to_string())).unwrap();
    }
    let outcome = run(broadcast_shm(4, &file, &folder.join("{rank}").join("copy"), &[]));
    expect_failure(outcome, 4, "rank 2");
    for rank in [0, 1, 3] {
        assert_eq!(names(&folder.join(rank.to_string())), [""; 0]);
    }
}

#[test]
fn a_full_disk_is_an_error_on_every_rank_and_leaves_nothing() {
    let folder = folder("full");
    let file = folder.join("file");
    fs::write(&file, bytes(8 << 20, 1)).unwrap();
    for rank in ["0", "1"] {
        fs::create_dir(folder.join(rank)).unwrap();
    }
    fs::write(folder.join("0/copy"), "old").unwrap();
    let job = broadcast_shm(2, &file, &folder.join("{rank}/copy"), &[]);
    let outcome = run(on_small_disk(&folder.join("1"), &job));
    assert_eq!(outcome.stdout, "", "something is left on the small disk");
    expect_failure(outcome, 2, "no room for 8388608 bytes (2097152 are free there)");
    assert_eq!(names(&folder.join("0")), ["copy"]);
    assert_eq!(fs::read_to_string(folder.join("0/copy")).unwrap(), "old");
}

/// A rank that is stopped is not dead: without a deadline the others wait, with one all end.
#[test]
fn a_deadline_ends_a_job_that_stands_still_and_leaves_nothing() {
    let folder = folder("deadline");
    let (file, copies) = (folder.join("file"), folder.join("copies"));
    fs::create_dir(&copies).unwrap();
    fs::write(&file, bytes(256 << 20, 3)).unwrap();
    fs::write(copies.join("copy.0"), "old").unwrap();
    let options = ["--memory", "8M", "--deadline", "2"];
    let mut job = start(broadcast_shm(3, &file, &copies.join("copy.{rank}"), &options));
    let pids = begun(&mut job, 3, "wchar:");
    signal(pids[1], "STOP");
    let outcome = job.finish().expect_code(1);
    for rank in [0, 2] {
        let prefix = format!("[{rank}]");
        let said = |line: &str| line.starts_with(&prefix) && line.contains("deadline of 2s");
        assert!(outcome.stderr.lines().any(said), "rank {rank}: {}", outcome.stderr);
    }
    expect_gone(&pids);
    assert_eq!(names(&copies), ["copy.0"]);
    assert_eq!(fs::read_to_string(copies.join("copy.0")).unwrap(), "old");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn arguments_that_differ_or_collide_are_errors() {
    let folder = folder("arguments");
    let file = folder.join("file");
    fs::write(&file, "content").unwrap();
    let same = folder.join("copy");
    expect_failure(run(broadcast_shm(2, &file, &same, &[])), 2, "put {rank} into it");
    let dest = folder.join("copy.{rank}");
    expect_failure(run(broadcast_shm(2, &file, &dest, &["--root", "2"])), 2, "--root 2 is no rank");
    let script = "exec \"$0\" broadcast --root $VERBCAST_RANK \"$1\" \"$2\"";
    let mut command = verbcast(["launch", "-n", "2", "--fabric", "shm", "--", "sh", "-c", script]);
    command.arg(env!("CARGO_BIN_EXE_verbcast")).arg(&file).arg(&dest);
    expect_failure(run(command), 2, "different --root");
    assert_eq!(names(&folder), ["file"]);
}

fn alone(variables: &[(&str, &str)]) -> Command {
    let mut command = verbcast(["broadcast", "/dev/null", "/dev/null/nothing"]);
    command.env("VERBCAST_JOB_SECRET", "0123456789abcdef0123456789abcdef");
    command.env("VERBCAST_CONNECT_DEADLINE_S", "3");
    command.envs(variables.iter().copied());
    command
}

#[test]
fn a_rendezvous_that_nobody_answers_is_an_error_with_its_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    drop(taken);
    let variables =
        [("VERBCAST_RANK", "1"), ("VERBCAST_SIZE", "2"), ("VERBCAST_RENDEZVOUS", &*address)];
    run(alone(&variables)).expect_code(1).expect_error(&address);
}

#[test]
fn ranks_that_do_not_fit_together_all_learn_of_it() {
    let start_rank = |address: &str, rank: &str| {
        start(alone(&[
            ("VERBCAST_RANK", rank),
            ("VERBCAST_SIZE", "2"),
            ("VERBCAST_RENDEZVOUS", address),
        ]))
    };
    for (ranks, text) in [(["0", "0"], "rank 0"), (["0", "7"], "rank 7")] {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let jobs: Vec<_> = ranks.iter().map(|rank| start_rank(&address, rank)).collect();
        for job in jobs {
            job.finish().expect_code(1).expect_error(text);
        }
    }
}

#[test]
fn no_ranks_is_wrong_usage() {
    run(verbcast(["launch", "-n", "0", "--", "true"])).expect_code(2);
}
