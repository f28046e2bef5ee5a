//! `verbcast scatter FILE DEST` and `verbcast gather SRC FILE` as processes: contents, memory, deaths in
//! the middle, bad input.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use job::files::{
    begun, bytes, death, expect_names, folder, kill_midway, moving, names, on_small_disk, peaks,
};
use job::{expect_failure, expect_gone, run, signal, start, verbcast};
use serde_json::Value;

fn scatter(ranks: u32, file: &Path, dest: &Path, options: &[&str]) -> Command {
    moving("scatter", "shm", ranks, [file, dest], options)
}

fn gather(ranks: u32, source: &Path, file: &Path, options: &[&str]) -> Command {
    moving("gather", "shm", ranks, [source, file], options)
}

fn is_full() -> bool {
    std::env::var_os("VERBCAST_FULL").is_some()
}

/// Cuts `content` into `parts` parts between things that are never split, by dealing out a share at a
/// time: `things` are their lengths, `by_bytes` says what a share is counted in.
fn cut_by_hand(content: &[u8], parts: usize, things: &[usize], by_bytes: bool) -> Vec<Vec<u8>> {
    let total = if by_bytes { content.len() } else { things.len() };
    let share = |part| total / parts + usize::from(part < total % parts);
    let (mut things, mut rest, mut all) = (things.iter(), content, Vec::new());
    let (mut wanted, mut had) = (0, 0);
    for part in 0..parts {
        wanted += share(part);
        let mut own = Vec::new();
        while had < wanted {
            let length = *things.next().unwrap();
            own.extend_from_slice(&rest[..length]);
            rest = &rest[length..];
            had += if by_bytes { length } else { 1 };
        }
        all.push(own);
    }
    assert!(rest.is_empty());
    all
}

/// Scatters `content`, looks at every part, and gathers them to another root.
fn there_and_back(
    folder: &Path,
    content: &[u8],
    options: &[&str],
    things: &[usize],
    by_bytes: bool,
    [ranks, root, back]: [u32; 3],
) {
    let (file, again) = (folder.join("file"), folder.join("again"));
    fs::write(&file, content).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let part = folder.join("part.{rank}");
    let [root, back] = [root, back].map(|rank| rank.to_string());
    let options = [options, &["--root", &root, "--memory", "1M"]].concat();
    let what = format!("{} bytes to {ranks} ranks with {options:?}", content.len());
    run(scatter(ranks, &file, &part, &options)).expect_code(0);
    let parts = cut_by_hand(content, ranks as usize, things, by_bytes);
    let mut present = vec!["file".to_owned()];
    for (rank, expected) in parts.iter().enumerate() {
        let path = folder.join(format!("part.{rank}"));
        assert!(fs::read(&path).unwrap() == *expected, "{what}, rank {rank}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        present.push(format!("part.{rank}"));
    }
    assert_eq!(names(folder), present);
    fs::write(&again, "old").unwrap();
    run(gather(ranks, &part, &again, &["--root", &back, "--memory", "1M"])).expect_code(0);
    assert!(fs::read(&again).unwrap() == content, "{what}, gathered");
    assert_eq!(fs::metadata(&again).unwrap().mode() & 0o777, 0o640);
    for name in names(folder) {
        fs::remove_file(folder.join(name)).unwrap();
    }
}

/// Lengths of lines, each with its end.
fn lines_of(content: &[u8]) -> Vec<usize> {
    content.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::len).collect()
}

#[test]
fn scatter_and_gather_give_the_file_back_however_it_is_cut() {
    let given = std::env::var("VERBCAST_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("VERBCAST_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = folder("there-and-back");
    let rounds = if is_full() { 60 } else { 9 };
    for round in 0..rounds {
        let ranks = random.u32(1..7);
        let roots = [ranks, random.u32(..ranks), random.u32(..ranks)];
        // Less than one byte each, one window, many windows.
        let size = random.usize(..[9, 70_000, 5_000_000][round / 3 % 3]);
        let mut content = bytes(size, seed ^ round as u64);
        match round % 3 {
            0 => there_and_back(&folder, &content, &[], &vec![1; size], true, roots),
            1 => {
                let record = random.usize(1..2 * size / ranks as usize + 2);
                let mut records = vec![record; size / record];
                records.extend(Some(size % record).filter(|rest| *rest > 0));
                let record = record.to_string();
                let options = ["--record-bytes", &record, "--short-record"];
                there_and_back(&folder, &content, &options, &records, false, roots);
            }
            _ => {
                let every = random.u8(2..);
                let newline = |byte: &mut u8| {
                    if byte.is_multiple_of(every) {
                        *byte = b'\n';
                    }
                };
                // Short lines at first, then one that is longer than a share.
                let (short, long) = content.split_at_mut(size / 2);
                short.iter_mut().for_each(newline);
                long.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
                let lines = lines_of(&content);
                there_and_back(&folder, &content, &["--lines"], &lines, true, roots);
            }
        }
    }
}

#[test]
fn few_lines_to_many_ranks_and_a_missing_last_newline() {
    let folder = folder("few-lines");
    for content in
        ["", "\n", "x", "one\ntwo\nthree", "one\ntwo\n", "\n\n\n", "a very long line\nb\n"]
    {
        let lines = lines_of(content.as_bytes());
        there_and_back(&folder, content.as_bytes(), &["--lines"], &lines, true, [5, 1, 4]);
    }
}

#[test]
fn files_of_any_size_are_put_together_in_the_order_of_the_ranks() {
    let folder = folder("any-size");
    let sizes = [0, 300_001, 1, 0, (2 << 20) + 7, 4096, 0];
    let mut all = Vec::new();
    for (rank, size) in sizes.into_iter().enumerate() {
        let content = bytes(size, rank as u64 + 1);
        fs::write(folder.join(format!("part.{rank}")), &content).unwrap();
        all.extend(content);
    }
    let (part, file) = (folder.join("part.{rank}"), folder.join("file"));
    for root in ["0", "4"] {
        let options = ["--root", root, "--memory", "2M", "--block-size", "10000"];
        run(gather(7, &part, &file, &options)).expect_code(0);
        assert!(fs::read(&file).unwrap() == all);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn the_report_names_each_part_with_its_checksum() {
    let folder = folder("report");
    let (file, part) = (folder.join("file"), folder.join("part.{rank}"));
    let content = bytes(1_000_001, 4);
    fs::write(&file, &content).unwrap();
    let check = |command, operation: &str| {
        let outcome = run(command).expect_code(0);
        let lines = outcome.of_rank(0);
        let lines: Vec<Value> =
            lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0]["op"], operation);
        assert_eq!((&lines[0]["bytes"], &lines[0]["ranks"]), (&1_000_001.into(), &3.into()));
        for (rank, offset) in [0, 333_334, 666_668].into_iter().enumerate() {
            let part = fs::read(folder.join(format!("part.{rank}"))).unwrap();
            let line = &lines[rank + 1];
            assert_eq!((&line["rank"], &line["offset"]), (&rank.into(), &offset.into()));
            assert_eq!(line["bytes"], part.len());
            assert_eq!(line["blake3"], blake3::hash(&part).to_string());
        }
    };
    check(scatter(3, &file, &part, &["--json"]), "scatter");
    check(gather(3, &part, &file, &["--json"]), "gather");
    assert!(fs::read(&file).unwrap() == content);
    let said = run(scatter(3, &file, &part, &[])).expect_code(0).stdout;
    assert!(said.contains("parts of 333333 to 333334 bytes"), "{said}");
    let quiet = run(gather(3, &part, &file, &["--quiet"])).expect_code(0);
    assert_eq!((&*quiet.stdout, &*quiet.stderr), ("", ""));
}

#[test]
fn memory_stays_within_its_limit_at_the_root_too() {
    let folder = folder("memory");
    let (file, part) = (folder.join("file"), folder.join("part.{rank}"));
    fs::write(&file, bytes(256 << 20, 5)).unwrap();
    let jobs = [
        scatter(4, &file, &part, &["--memory", "32M"]),
        gather(4, &part, &folder.join("again"), &["--memory", "32M", "--root", "2"]),
    ];
    for job in jobs {
        for (rank, kib) in peaks(job, 4).into_iter().enumerate() {
            assert!(kib > 0, "rank {rank} was never seen");
            assert!(kib <= (32 + 64) << 10, "rank {rank} had {kib} KiB");
        }
    }
    assert!(fs::read(folder.join("again")).unwrap() == bytes(256 << 20, 5));
    fs::remove_dir_all(&folder).unwrap();
}

/// Victim and root, some of four ranks; all pairs in the full form.
fn victims() -> Vec<(u32, u32)> {
    let all = (0..4).flat_map(|victim| (0..4).map(move |root| (victim, root)));
    if is_full() { all.collect() } else { vec![(1, 1), (3, 0)] }
}

#[test]
fn a_rank_that_is_killed_in_a_scatter_ends_the_job_and_leaves_nothing() {
    for (victim, root) in victims() {
        death("scatter", "shm", 512 << 20, victim, root);
    }
}

/// Four parts of 64 MiB, and a folder with an old file for the whole.
fn parts_to_gather(name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let folder = folder(name);
    let whole = folder.join("whole");
    fs::create_dir(&whole).unwrap();
    fs::write(whole.join("file"), "old").unwrap();
    for rank in 0..4 {
        fs::write(folder.join(format!("part.{rank}")), bytes(128 << 20, rank)).unwrap();
    }
    let part = folder.join("part.{rank}");
    (folder, part, whole)
}

fn expect_old(whole: &Path) {
    expect_names(whole, &["file"]);
    assert_eq!(fs::read_to_string(whole.join("file")).unwrap(), "old");
}

#[test]
fn a_rank_that_is_killed_in_a_gather_ends_the_job_and_leaves_nothing() {
    let (folder, part, whole) = parts_to_gather("death-gather");
    let before = names(Path::new("/dev/shm"));
    for (victim, root) in victims() {
        let options = ["--memory", "8M", "--root", &root.to_string()];
        kill_midway(gather(4, &part, &whole.join("file"), &options), "rchar:", victim);
        expect_old(&whole);
        assert_eq!(names(Path::new("/dev/shm")), before);
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_interrupt_and_a_deadline_end_the_job_and_leave_nothing() {
    let (folder, part, whole) = parts_to_gather("interrupt");
    let file = whole.join("file");
    let mut job = start(gather(4, &part, &file, &["--memory", "8M"]));
    let pids = begun(&mut job, 4, "rchar:");
    job.signal("INT");
    assert_ne!(job.finish().code(), 0);
    expect_gone(&pids);
    expect_old(&whole);
    let mut job = start(gather(4, &part, &file, &["--memory", "8M", "--deadline", "2"]));
    let pids = begun(&mut job, 4, "rchar:");
    signal(pids[1], "STOP");
    let outcome = job.finish().expect_code(1);
    for rank in [0, 2, 3] {
        let prefix = format!("[{rank}]");
        let said = |line: &str| line.starts_with(&prefix) && line.contains("deadline of 2s");
        assert!(outcome.stderr.lines().any(said), "rank {rank}: {}", outcome.stderr);
    }
    expect_gone(&pids);
    expect_old(&whole);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_one_rank_cannot_read_or_write_is_an_error_on_every_rank() {
    let folder = folder("cannot");
    let file = folder.join("file");
    let missing = folder.join("missing");
    let dest = folder.join("{rank}").join("part");
    for rank in ["0", "1", "3"] {
        fs::create_dir(folder.join(rank)).unwrap();
        fs::write(folder.join(rank).join("part"), "old").unwrap();
    }
    expect_failure(run(scatter(3, &missing, &dest, &[])), 3, "No such file");
    expect_failure(run(scatter(3, &folder, &dest, &[])), 3, "directory");
    let stdin = Path::new("-");
    expect_failure(run(scatter(3, stdin, &dest, &[])), 3, "FILE - (standard input)");
    expect_failure(run(gather(4, &dest, &file, &[])), 4, "rank 2 cannot go on: SRC");
    let nowhere = folder.join("nowhere/file");
    expect_failure(run(gather(2, &dest, &nowhere, &[])), 2, "there is no directory");
    fs::write(&file, bytes(1 << 20, 1)).unwrap();
    expect_failure(run(scatter(4, &file, &dest, &[])), 4, "rank 2 cannot go on: DEST");
    for rank in ["0", "1", "3"] {
        assert_eq!(names(&folder.join(rank)), ["part"]);
        assert_eq!(fs::read_to_string(folder.join(rank).join("part")).unwrap(), "old");
    }
    assert_eq!(names(&folder), ["0", "1", "3", "file"]);
}

#[test]
fn a_full_disk_is_an_error_on_every_rank_and_leaves_nothing() {
    let folder = folder("full");
    let file = folder.join("file");
    fs::write(&file, bytes(8 << 20, 1)).unwrap();
    for rank in ["0", "1"] {
        fs::create_dir(folder.join(rank)).unwrap();
        fs::write(folder.join(rank).join("part"), bytes(2 << 20, 1)).unwrap();
    }
    let job = scatter(2, &file, &folder.join("{rank}/part"), &[]);
    let outcome = run(on_small_disk(&folder.join("1"), &job));
    assert_eq!(outcome.stdout, "", "something is left on the small disk");
    expect_failure(outcome, 2, "no room for 4194304 bytes (2097152 are free there)");
    assert_eq!(names(&folder.join("0")), ["part"]);
    fs::create_dir(folder.join("small")).unwrap();
    let job = gather(2, &folder.join("{rank}/part"), &folder.join("small/file"), &[]);
    let outcome = run(on_small_disk(&folder.join("small"), &job));
    assert_eq!(outcome.stdout, "", "something is left on the small disk");
    expect_failure(outcome, 2, "no room for 4194304 bytes (2097152 are free there)");
    // A part that is all hole, far larger than the disk.
    fs::File::create(folder.join("1/part")).unwrap().set_len(1 << 43).unwrap();
    let job = gather(2, &folder.join("{rank}/part"), &folder.join("whole"), &[]);
    expect_failure(run(job), 2, "no room for 8796095119360 bytes");
    assert_eq!(names(&folder), ["0", "1", "file", "small"]);
}

#[test]
fn names_that_are_one_file_are_errors() {
    let folder = folder("same");
    let (file, part) = (folder.join("file"), folder.join("part.{rank}"));
    fs::write(&file, "content").unwrap();
    expect_failure(run(scatter(2, &file, &folder.join("part"), &[])), 2, "put {rank} into it");
    expect_failure(run(gather(2, &file, &folder.join("whole"), &[])), 2, "put {rank} into it");
    // By a link, DEST of rank 1 is FILE; then that of rank 0.
    symlink("file", folder.join("part.1")).unwrap();
    expect_failure(run(scatter(2, &file, &part, &[])), 2, "is also FILE");
    fs::remove_file(folder.join("part.1")).unwrap();
    fs::write(folder.join("part.0"), "old").unwrap();
    symlink("part.0", folder.join("part.1")).unwrap();
    expect_failure(run(scatter(2, &file, &part, &[])), 2, "is also DEST of rank 0");
    expect_failure(run(gather(2, &part, &file, &[])), 2, "is also SRC of rank 0");
    fs::remove_file(folder.join("part.1")).unwrap();
    fs::write(folder.join("part.1"), "old").unwrap();
    expect_failure(run(gather(2, &part, &folder.join("part.1"), &[])), 2, "is also SRC of rank 1");
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    assert_eq!(names(&folder), ["file", "part.0", "part.1"]);
}

#[test]
fn arguments_that_differ_or_make_no_sense_are_errors() {
    let folder = folder("arguments");
    let (file, part) = (folder.join("file"), folder.join("part.{rank}"));
    fs::write(&file, "content").unwrap();
    expect_failure(run(scatter(2, &file, &part, &["--root", "2"])), 2, "--root 2 is no rank");
    expect_failure(run(gather(2, &part, &file, &["--root", "7"])), 2, "--root 7 is no rank");
    let little = ["--memory", "64K"];
    expect_failure(run(scatter(2, &file, &part, &little)), 2, "--memory 64 KiB is too little");
    let records = ["--record-bytes", "2"];
    expect_failure(run(scatter(2, &file, &part, &records)), 2, "7 bytes, which is no multiple");
    let scripts = [
        "exec \"$0\" scatter --record-bytes $((VERBCAST_RANK + 1)) \"$1\" \"$2\"",
        "exec \"$0\" scatter --root $VERBCAST_RANK \"$1\" \"$2\"",
        "[ $VERBCAST_RANK = 0 ] || what=--lines; exec \"$0\" scatter $what \"$1\" \"$2\"",
        "[ $VERBCAST_RANK = 0 ] && what=scatter || what=broadcast; exec \"$0\" $what \"$1\" \"$2\"",
        "exec \"$0\" gather --root $VERBCAST_RANK \"$1\" \"$2\"",
    ];
    for script in scripts {
        let launch = ["launch", "-n", "2", "--fabric", "shm", "--", "sh", "-c", script];
        let mut command = verbcast(launch);
        command.arg(env!("CARGO_BIN_EXE_verbcast")).arg(&file).arg(&part);
        expect_failure(run(command), 2, "ranks were given different");
    }
    for options in [
        &["--lines", "--record-bytes", "2"][..],
        &["--short-record"],
        &["--record-bytes", "0"],
        &["--json", "--quiet"],
    ] {
        run(verbcast(["scatter"].iter().chain(options).chain(&["a", "b"]))).expect_code(2);
    }
    assert_eq!(names(&folder), ["file"]);
}
