//! Broadcasts over real verbs: Soft-RoCE in a guest with eight nodes.
//!
//! `cargo verify` builds this on the host and runs it inside (`rxe-setup vm run --nodes 8`). A
//! device that is missing there is a failure.

mod job;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

/// Emulated guests are some twenty times slower than a machine.
const LIMIT: Duration = Duration::from_secs(400);

const SIZES: [u64; 6] = [0, 1, 7, 4096, 65537, (1 << 20) + 3];

/// Counters of `rxe{node}`; fails if the device is not there.
fn counters(node: u32) -> BTreeMap<String, u64> {
    let folder = format!("/sys/class/infiniband/rxe{node}/ports/1/hw_counters");
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("the device rxe{node} is missing: {folder}: {error}"));
    let counter = |entry: fs::DirEntry| {
        let value = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), value))
    };
    entries.filter_map(|entry| counter(entry.ok()?)).collect()
}

fn total(nodes: u32) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for node in 0..nodes {
        for (name, value) in counters(node) {
            *sum.entry(name).or_default() += value;
        }
    }
    sum
}

/// Bytes of the path MTU of the devices, as the command tells it.
fn mtu_bytes() -> u64 {
    let outcome = job::run(job::verbcast(["devices", "--json"])).expect_code(0);
    let line = outcome.stdout.lines().next().expect("a line for each port");
    let port: Value = serde_json::from_str(line).expect("JSON");
    let mtu = port["active_mtu_bytes"].as_u64().expect("a number");
    assert!((256..=4096).contains(&mtu), "{line}");
    mtu
}

/// `verbcast launch` of the self-test over verbs; each rank on its own device if `nodes` > 1.
fn selftest(ranks: u32, nodes: u32, lanes: u32, arguments: &[&str]) -> Command {
    let ranks = ranks.to_string();
    let program = env!("CARGO_BIN_EXE_verbcast");
    let launch = ["launch", "-n", &ranks, "--fabric", "verbs", "--", program, "selftest"];
    let mut command = job::verbcast(launch.iter().chain(arguments));
    command.env("VERBCAST_LANES", lanes.to_string());
    command.env("VERBCAST_DEVICE", if nodes > 1 { "rxe{rank}" } else { "rxe0" });
    command
}

/// What every rank printed.
fn summaries(command: Command, ranks: u32) -> Vec<Value> {
    let outcome = job::start(command).finish_within(LIMIT).expect_code(0);
    let parse = |rank| {
        let lines = outcome.of_rank(rank);
        let line = lines.last().unwrap_or_else(|| panic!("rank {rank} printed nothing"));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    (0..ranks).map(parse).collect()
}

/// Every algorithm, root and size with d = 1 and d = 4: the self-test compares the contents; here
/// the device's counters and the lanes are looked at.
fn matrix(ranks: u32, nodes: u32) {
    for lanes in [1, 4] {
        let before = total(nodes);
        let sizes = SIZES.map(|size| size.to_string()).join(",");
        let mut arguments = vec!["--sizes", &sizes];
        // Every algorithm at every root and size only in the full form.
        if std::env::var_os("VERBCAST_FULL").is_none() {
            arguments.extend(["--algorithms", "binomial,pipelined-chain,pipelined-tree"]);
        }
        let all = summaries(selftest(ranks, nodes, lanes, &arguments), ranks);
        let after = total(nodes);
        let rise = |name: &str| {
            let (Some(before), Some(after)) = (before.get(name), after.get(name)) else {
                panic!("the device has no counter {name}: {after:?}")
            };
            after - before
        };
        for name in ["rcvd_rnr_err", "send_rnr_err", "retry_exceeded_err", "retry_rnr_exceeded_err"]
        {
            assert_eq!(rise(name), 0, "{name} with {lanes} lanes");
        }
        let bytes: u64 = u64::from(ranks - 1) * all[0]["bytes"].as_u64().unwrap_or(0);
        let sent = rise("sent_pkts");
        assert!(sent >= bytes / mtu_bytes(), "{sent} packets for {bytes} bytes");
        println!("{ranks} ranks, {lanes} lanes: {bytes} bytes, {sent} packets");
    }
    // Many small blocks, so that 10 % of a lane's share is more than one of them.
    let arguments = [
        "--sizes",
        "1048579",
        "--block-bytes",
        "4096",
        "--algorithms",
        "binomial,pipelined-chain,pipelined-tree",
    ];
    for summary in &summaries(selftest(ranks, nodes, 4, &arguments), ranks) {
        check_lanes(summary, 4);
    }
}

/// Each lane of a link carried its share of the blocks within 10 %.
fn check_lanes(summary: &Value, lanes: u32) {
    let rank = &summary["rank"];
    let mut by_peer: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for lane in summary["lanes"].as_array().expect("a list of lanes") {
        let count = |name: &str| lane[name].as_u64().expect("a number");
        by_peer.entry(count("peer")).or_default().push(count("whole_blocks") + count("parts"));
    }
    assert!(!by_peer.is_empty(), "rank {rank} has no verbs link");
    for (peer, blocks) in by_peer {
        assert_eq!(blocks.len(), lanes as usize, "lanes from rank {rank} to rank {peer}");
        let share = blocks.iter().sum::<u64>() as f64 / f64::from(lanes);
        for count in &blocks {
            let off = (*count as f64 - share).abs();
            assert!(
                off <= (share * 0.1).max(1.0),
                "rank {rank} to rank {peer}: blocks by lane {blocks:?}"
            );
        }
    }
}

#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn four_processes_on_one_device() {
    matrix(4, 1);
}

#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn eight_processes_on_eight_devices() {
    matrix(8, 8);
}

/// Every algorithm there is, with few and many blocks.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn every_algorithm_runs_over_verbs() {
    let arguments = ["--sizes", "0,7,65537,300000", "--roots", "0,4", "--block-bytes", "16384"];
    for summary in summaries(selftest(5, 5, 2, &arguments), 5) {
        assert_eq!(summary["broadcasts"], 11 * 4 * 2);
    }
}

#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn a_device_that_is_not_there_is_an_error_on_every_rank() {
    counters(0);
    let mut command = selftest(2, 1, 1, &[]);
    command.env("VERBCAST_DEVICE", "rxe77");
    let outcome = job::start(command).finish_within(LIMIT);
    job::expect_failure(outcome, 2, "no RDMA device named rxe77");
}

#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn a_gid_index_that_is_not_there_is_an_error() {
    counters(0);
    let mut command = selftest(2, 1, 1, &[]);
    command.env("VERBCAST_GID_INDEX", "200");
    let outcome = job::start(command).finish_within(LIMIT);
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("rxe0") && outcome.stderr.contains("200"),
        "{}",
        outcome.stderr
    );
}

/// Over real verbs too a death ends the job: the survivors name the dead, old files are whole.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn a_rank_that_is_killed_ends_the_job_and_leaves_nothing() {
    counters(0);
    for (victim, root) in [(2, 0), (0, 1), (1, 1)] {
        job::files::death("broadcast", "verbs", 64 << 20, victim, root);
    }
    job::files::death("scatter", "verbs", 128 << 20, 2, 0);
}

/// A file goes out in parts, and comes back as it was.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn a_file_is_scattered_and_gathered() {
    counters(0);
    let folder = job::files::folder("scattered");
    let (file, part, again) = (folder.join("file"), folder.join("{rank}"), folder.join("again"));
    let content = job::files::bytes((5 << 20) + 3, 3);
    fs::write(&file, &content).expect("a file");
    for (operation, paths) in [("scatter", [&*file, &*part]), ("gather", [&*part, &*again])] {
        let mut command = job::files::moving(operation, "verbs", 4, paths, &["--root", "1"]);
        command.env("VERBCAST_DEVICE", "rxe0");
        job::start(command).finish_within(LIMIT).expect_code(0);
    }
    let parts = (0..4).flat_map(|rank| fs::read(folder.join(rank.to_string())).expect("a part"));
    assert!(parts.collect::<Vec<u8>>() == content, "the parts are not the file's");
    assert!(fs::read(&again).expect("a file") == content, "what was gathered is not the file");
}

/// The links are kept full: of four blocks that may be outstanding per link, the median is at
/// least three on every busy link after the fill.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn blocks_overlap_on_every_busy_link() {
    let arguments = [
        "--algorithms",
        "pipelined-tree",
        "--sizes",
        "4194304",
        "--roots",
        "0",
        "--block-bytes",
        "32768",
        "--trace",
    ];
    let all = summaries(selftest(4, 4, 1, &arguments), 4);
    let mut busy = 0;
    for summary in &all {
        for link in summary["outstanding"].as_array().expect("a list of links") {
            let counts: Vec<u64> =
                link[1].as_array().expect("counts").iter().filter_map(Value::as_u64).collect();
            // A busy link carries a good part of the 128 blocks; the fill is its first window.
            if counts.len() < 16 {
                continue;
            }
            busy += 1;
            let mut rest = counts[8..].to_vec();
            rest.sort_unstable();
            let median = rest[rest.len() / 2];
            println!("rank {} to {}: median {median} outstanding", summary["rank"], link[0]);
            assert!(median >= 3, "rank {} to {}: {counts:?}", summary["rank"], link[0]);
        }
    }
    assert!(busy >= 4, "only {busy} busy links");
}

/// Root may lock as much memory as it likes; without that privilege the limit is named.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn a_memlock_limit_that_is_too_low_is_an_error_with_its_remedy() {
    counters(0);
    let job = selftest(2, 1, 1, &["--sizes", "4194304", "--roots", "0"]);
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"]);
    command.args(["sh", "-c", "ulimit -l 64; exec \"$@\"", "sh"]);
    command.arg(job.get_program()).args(job.get_args());
    for (name, value) in job.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let outcome = job::start(command).finish_within(LIMIT);
    job::expect_failure(outcome, 2, "ulimit -l");
}

/// 4 MiB to 4 nodes: the circulant tree beside the other two, alternated. The slowest rank counts.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn the_circulant_tree_is_no_slower_than_the_other_algorithms() {
    let arguments = [
        "--algorithms",
        "binomial,pipelined-chain,pipelined-tree",
        "--sizes",
        "4194304",
        "--roots",
        "0",
        "--rounds",
        "9",
        "--warm-up",
        "1",
        "--region",
    ];
    let all = summaries(selftest(4, 4, 1, &arguments), 4);
    let mut medians = BTreeMap::new();
    for (index, entry) in all[0]["times_us"].as_array().expect("times").iter().enumerate() {
        let slowest = |round: usize| {
            let time = |summary: &Value| summary["times_us"][index][1][round].as_f64();
            all.iter().filter_map(time).fold(0.0, f64::max)
        };
        let mut times: Vec<f64> = (0..9).map(slowest).collect();
        times.sort_by(f64::total_cmp);
        println!("{}: median {:.0} us of {:.0} to {:.0}", entry[0], times[4], times[0], times[8]);
        medians.insert(entry[0].as_str().expect("a name").to_owned(), times[4]);
    }
    let ratio = medians["pipelined-tree"] / medians["binomial"].min(medians["pipelined-chain"]);
    println!("pipelined-tree: {ratio:.2} of the better of the other two");
    // A comparison of times needs a quiet machine: it is a condition only where it was asked for.
    if std::env::var_os("VERBCAST_FULL").is_some() {
        assert!(ratio <= 1.10, "{medians:?}");
    }
}

/// Random operations of all kinds among four processes on four devices; 20,000 in the full form.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn mixed_operations_keep_their_contents() {
    let turns = if std::env::var_os("VERBCAST_FULL").is_some() { "20000" } else { "300" };
    let seed =
        std::env::var("VERBCAST_TEST_SEED").unwrap_or_else(|_| fastrand::u64(..).to_string());
    println!("replay with VERBCAST_TEST_SEED={seed}");
    for lanes in [1, 4] {
        let arguments = ["--mixed", turns, "--seed", &seed];
        for summary in summaries(selftest(4, 4, lanes, &arguments), 4) {
            assert_eq!(summary["operations"].to_string(), turns);
        }
    }
}

/// Within its budget times what an emulated guest is slower; each number with its bounds.
#[test]
#[ignore = "needs Soft-RoCE devices; cargo verify runs it in a guest"]
fn a_fabric_is_measured_and_planned_with() {
    let program = env!("CARGO_BIN_EXE_verbcast");
    let path = std::env::temp_dir().join(format!("verbcast-fabric-{}.toml", std::process::id()));
    let name = path.to_str().expect("a path in UTF-8");
    let launch = ["launch", "-n", "2", "--fabric", "verbs", "--", program];
    let tune = ["tune", "--json", "--within", "3", "--output", name];
    let mut command = job::verbcast(launch.iter().chain(&tune));
    command.env("VERBCAST_DEVICE", "rxe{rank}");
    let began = std::time::Instant::now();
    let outcome = job::start(command).finish_within(LIMIT).expect_code(0);
    println!("measured in {:.1} s", began.elapsed().as_secs_f64());
    for line in outcome.of_rank(0) {
        println!("{line}");
        let line: Value = serde_json::from_str(line).expect("JSON");
        let number = |key: &str| line[key].as_f64().expect("a number");
        assert!(number("low") <= number("value") && number("value") <= number("high"), "{line}");
    }
    let profile = verbcast::model::FabricProfile::read(&path).expect("a profile");
    std::fs::remove_file(&path).expect("the file is there");
    let network = profile.network.expect("a path between the devices");
    assert!(profile.local.is_none() && !network.pulled);
    assert!(network.latency_ns > 0 && network.bounds.is_some(), "{network:?}");
    // No emulated adapter moves a gigabyte per second.
    assert!((1_000_000..1_000_000_000).contains(&network.bytes_per_second), "{network:?}");
}
