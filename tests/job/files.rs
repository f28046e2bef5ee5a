//! Files and the processes of a job that moves them.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Running, expect_gone, signal, start, verbcast};

/// An empty folder of this test.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME")).join(name);
    let _absent = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Bytes that differ everywhere, by a seed.
pub fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| word().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

/// `verbcast broadcast`, `scatter` or `gather` on `ranks` ranks over a fabric.
pub fn moving(
    operation: &str,
    fabric: &str,
    ranks: u32,
    [from, to]: [&Path; 2],
    options: &[&str],
) -> Command {
    let ranks = ranks.to_string();
    let program = env!("CARGO_BIN_EXE_verbcast");
    let mut command = verbcast(["launch", "-n", &ranks, "--fabric", fabric, "--grace", "10", "--"]);
    command.args([program, operation]).args(options).arg(from).arg(to);
    command
}

/// The processes of a job, by rank.
pub fn ranks_of(launch: u32) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)?.parse().ok());
        if parent != Some(launch) {
            continue;
        }
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        let rank = environ.split(|byte| *byte == 0).find_map(|variable| {
            String::from_utf8_lossy(variable).strip_prefix("VERBCAST_RANK=")?.parse().ok()
        });
        found.extend(rank.map(|rank: u32| (rank, pid)));
    }
    found.sort_unstable();
    found
}

pub fn number_in(path: String, key: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Names in a folder, sorted; a temporary file that was left behind would be among them.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Waits until each rank of a job has moved more than 4 MiB, and gives the ranks' processes; `counter`
/// is the one of `/proc/PID/io` that tells.
pub fn begun(job: &mut Running, ranks: usize, counter: &str) -> Vec<u32> {
    let launch = job.pid();
    job.until("bytes moved by every rank", |_, _| {
        let found = ranks_of(launch);
        let moved = |pid| number_in(format!("/proc/{pid}/io"), counter);
        let begun = found.len() == ranks && found.iter().all(|(_, pid)| moved(*pid) > 4 << 20);
        begun.then(|| found.iter().map(|(_, pid)| *pid).collect())
    })
}

/// Kills `victim` of four ranks in the middle of a transfer: every other one names it, and no process
/// is left.
pub fn kill_midway(command: Command, counter: &str, victim: u32) {
    let mut job = start(command);
    let pids = begun(&mut job, 4, counter);
    signal(pids[victim as usize], "KILL");
    let killed = Instant::now();
    let outcome = job.finish();
    assert!(killed.elapsed() < Duration::from_secs(30), "{:?}", killed.elapsed());
    assert_eq!(outcome.code(), 128 + 9, "{}", outcome.stderr);
    for rank in (0..4).filter(|rank| *rank != victim) {
        let prefix = format!("[{rank}]");
        let name = format!("rank {victim}");
        let said = |line: &str| line.starts_with(&prefix) && line.contains(&name);
        assert!(outcome.stderr.lines().any(said), "rank {rank}: {}", outcome.stderr);
    }
    expect_gone(&pids);
}

/// Fails unless a folder comes to have just these names. Where a filesystem has no unnamed files,
/// another process takes a dead one's file away.
pub fn expect_names(folder: &Path, expected: &[&str]) {
    let started = Instant::now();
    while names(folder) != expected && started.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(names(folder), expected);
}

/// Kills `victim` of four ranks in the middle of a broadcast or scatter from `root`: every other one
/// names it, old files are whole, and nothing is left.
pub fn death(operation: &str, fabric: &str, file_bytes: usize, victim: u32, root: u32) {
    let folder = folder(&format!("death-{operation}-{victim}-{root}"));
    let (file, copies) = (folder.join("file"), folder.join("copies"));
    fs::create_dir(&copies).unwrap();
    fs::write(&file, bytes(file_bytes, 9)).unwrap();
    for rank in 0..4 {
        fs::write(copies.join(format!("copy.{rank}")), "old").unwrap();
    }
    let before = names(Path::new("/dev/shm"));
    let options = ["--memory", "8M", "--root", &root.to_string()];
    let dest = copies.join("copy.{rank}");
    kill_midway(moving(operation, fabric, 4, [&file, &dest], &options), "wchar:", victim);
    expect_names(&copies, &["copy.0", "copy.1", "copy.2", "copy.3"]);
    for rank in 0..4 {
        assert_eq!(fs::read_to_string(copies.join(format!("copy.{rank}"))).unwrap(), "old");
    }
    assert_eq!(names(Path::new("/dev/shm")), before);
    fs::remove_dir_all(&folder).unwrap();
}

/// Runs a job to its end and gives the most memory that each rank had, in KiB.
pub fn peaks(command: Command, ranks: usize) -> Vec<u64> {
    let peaks = vec![Cell::new(0); ranks];
    let mut job = start(command);
    let launch = job.pid();
    job.until("a report", |stdout, _| {
        for (rank, pid) in ranks_of(launch) {
            let seen = &peaks[rank as usize];
            seen.set(number_in(format!("/proc/{pid}/status"), "VmHWM:").max(seen.get()));
        }
        stdout.contains("blake3").then_some(())
    });
    job.finish().expect_code(0);
    peaks.into_iter().map(Cell::into_inner).collect()
}

/// `job` in a mount namespace of its own, in which `folder` is a file system of 2 MiB; what that holds
/// at the end is listed on standard output.
pub fn on_small_disk(folder: &Path, job: &Command) -> Command {
    let script = "mount -t tmpfs -o size=2m tmpfs \"$1\" && shift && \"$@\"; \
                  status=$?; ls -A \"$SMALL\"; exit $status";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "--user", "sh", "-c", script, "sh"]);
    command.arg(folder).env("SMALL", folder);
    command.arg(job.get_program()).args(job.get_args());
    for (name, value) in job.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}
