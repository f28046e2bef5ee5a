//! Files and the processes of a job that broadcasts them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{expect_gone, signal, start, verbcast};

/// An empty folder of this test.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("broadcast-file-{name}"));
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

/// `verbcast broadcast` of a file on `ranks` ranks over a fabric.
pub fn broadcast(fabric: &str, ranks: u32, file: &Path, dest: &Path, options: &[&str]) -> Command {
    let ranks = ranks.to_string();
    let program = env!("CARGO_BIN_EXE_verbcast");
    let mut command = verbcast(["launch", "-n", &ranks, "--fabric", fabric, "--grace", "10", "--"]);
    command.args([program, "broadcast"]).args(options).arg(file).arg(dest);
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

/// Kills `victim` of four ranks in the middle of a transfer from `root`: every other one names it, old
/// files are whole, and nothing is left.
pub fn death(fabric: &str, file_bytes: usize, victim: u32, root: u32) {
    let folder = folder(&format!("death-{victim}-{root}"));
    let (file, copies) = (folder.join("file"), folder.join("copies"));
    fs::create_dir(&copies).unwrap();
    fs::write(&file, bytes(file_bytes, 9)).unwrap();
    for rank in 0..4 {
        fs::write(copies.join(format!("copy.{rank}")), "old").unwrap();
    }
    let before = names(Path::new("/dev/shm"));
    let options = ["--memory", "8M", "--root", &root.to_string()];
    let mut job = start(broadcast(fabric, 4, &file, &copies.join("copy.{rank}"), &options));
    let launch = job.pid();
    let ranks = job.until("bytes written by every rank", |_, _| {
        let ranks = ranks_of(launch);
        let written = |pid| number_in(format!("/proc/{pid}/io"), "wchar:");
        let begun = ranks.len() == 4 && ranks.iter().all(|(_, pid)| written(*pid) > 4 << 20);
        begun.then_some(ranks)
    });
    let pids: Vec<u32> = ranks.iter().map(|(_, pid)| *pid).collect();
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
    let clean = || names(&copies) == ["copy.0", "copy.1", "copy.2", "copy.3"];
    // Where a filesystem has no unnamed files, another process takes a dead one's file away.
    while !clean() && killed.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(clean(), "left: {:?}", names(&copies));
    for rank in 0..4 {
        assert_eq!(fs::read_to_string(copies.join(format!("copy.{rank}"))).unwrap(), "old");
    }
    assert_eq!(names(Path::new("/dev/shm")), before);
    fs::remove_dir_all(&folder).unwrap();
}
