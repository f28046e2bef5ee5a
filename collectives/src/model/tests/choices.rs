//! What a choice must never do.

use super::super::select::tests_access::{COUNTS_COMPARED, LEAST, least_ns};
use super::*;
use verbcast_transport::wire::BLOCK_BYTES_MAX;

fn choose(ranks: u32, bytes: u64, profile: &FabricProfile) -> Choice {
    select(ranks, bytes, profile, Demand::default()).unwrap()
}

/// Message sizes around every power of two up to 64 GiB.
fn sizes() -> Vec<u64> {
    let around = |power: u32| {
        let size = 1_u64 << power;
        [size - 1, size, size + 1, size + size / 3]
    };
    let mut sizes: Vec<u64> = (0..=36).flat_map(around).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[test]
fn choice_covers_the_message_within_the_limits() {
    for profile in PROFILES {
        for ranks in [1, 2, 3, 4, 5, 8, 33, 64, 1000, MAX_RANKS] {
            for bytes in sizes().into_iter().chain([MAX_MESSAGE_BYTES]) {
                let choice = choose(ranks, bytes, &profile);
                let Choice { block_bytes, blocks, .. } = choice;
                assert!((1..=BLOCK_BYTES_MAX).contains(&block_bytes), "{choice:?}");
                assert!((1..=MAX_BLOCKS).contains(&blocks), "{choice:?}");
                let before_last = block_bytes * (u64::from(blocks) - 1);
                assert!(before_last < bytes.max(1), "an empty block: {choice:?}");
                assert!(bytes - before_last <= block_bytes, "{choice:?} for {bytes}");
                let may_be_eager = bytes <= profile.path().eager_limit_bytes;
                assert!(may_be_eager && blocks == 1 || !choice.is_eager, "{choice:?}");
            }
        }
    }
}

#[test]
fn predicted_time_is_the_stated_formula() {
    // L = 1000 ns, o = 10 ns, 1 byte per ns.
    let path = PathProfile {
        overhead_ns: 10,
        eager_limit_bytes: 100,
        ..PathProfile::adapter(1000, 0, 1_000_000_000)
    };
    let profile = FabricProfile { network: Some(path), ..FabricProfile::default() };
    let time = |algorithm, bytes, block_bytes| {
        let block_bytes = Some(block_bytes);
        let demand = Demand { algorithm: Some(algorithm), block_bytes, ..Demand::default() };
        select(9, bytes, &profile, demand).unwrap().predicted_ns
    };
    // Up to the limit without a grant, above it with one more latency and overhead. Rank 7 is three hops away,
    // rank 8 one, after three turns.
    assert_eq!(time(Algorithm::Binomial, 100, 4096), 3 * (1000 + 110) + 110);
    assert_eq!(time(Algorithm::Binomial, 101, 4096), 1010 + 3 * (1000 + 111) + 111);
    assert_eq!(time(Algorithm::PipelinedChain, 5000, 500), 1010 + 8 * 1510 + 9 * 510);
    assert_eq!(time(Algorithm::Flat, 5000, 500), 1010 + 1510 + 79 * 510);
}

#[test]
fn predicted_time_never_falls_much_and_never_jumps() {
    for profile in PROFILES {
        for ranks in [2, 3, 4, 7, 8, 9, 33, 64, 127, 128, 512, 65_536] {
            let mut before = 0;
            for bytes in sizes() {
                let time = choose(ranks, bytes, &profile).predicted_ns;
                // A form that is right within five per cent may fall by as much; and there may be
                // two blocks from a size on.
                let floor = before - before / 10;
                assert!(time >= floor, "N = {ranks}: {bytes} bytes take {time}, fewer {before}");
                before = time;
                let twice = choose(ranks, 2 * bytes, &profile).predicted_ns;
                let ratio = twice as f64 / time as f64;
                assert!(ratio <= 2.3, "N = {ranks}: {bytes} bytes doubled take {ratio} times");
            }
        }
    }
}

#[test]
fn choice_is_the_best_of_all_demands() {
    let mut rng = test_seed::rng("choice_is_the_best_of_all_demands");
    for _ in 0..1000 {
        let (ranks, bits) = (rng.u32(2..=300), rng.u32(1..36));
        let bytes = rng.u64(0..1 << bits);
        let profile = PROFILES[rng.usize(0..PROFILES.len())];
        let free = choose(ranks, bytes, &profile);
        for algorithm in Algorithm::BROADCAST {
            let demand = Demand { algorithm: Some(algorithm), ..Demand::default() };
            let fixed = select(ranks, bytes, &profile, demand).unwrap();
            assert_eq!(fixed.algorithm, algorithm);
            assert!(fixed.why.demanded && !free.why.demanded);
            let slack = free.predicted_ns / 63 + 1;
            assert!(free.predicted_ns <= fixed.predicted_ns + slack, "{free:?} {fixed:?}");
            // No other block size above the least gains more than three per cent; 15 where there are
            // few blocks to choose from, or where they are dealt to ranks more or less evenly.
            let least = bytes.div_ceil(u64::from(MAX_BLOCKS)).max(LEAST);
            let block_bytes = rng.u64(least..=BLOCK_BYTES_MAX.min(bytes.max(least)));
            let demand = Demand { block_bytes: Some(block_bytes), ..demand };
            let other = select(ranks, bytes, &profile, demand).unwrap();
            assert_eq!(other.block_bytes, block_bytes);
            let ratio = other.predicted_ns as f64 / fixed.predicted_ns as f64;
            let is_coarse = algorithm == Algorithm::ScatterAllgather || bytes < 64 * LEAST;
            let least = if is_coarse { 0.85 } else { 0.97 };
            assert!(ratio > least, "{other:?} beats {fixed:?}: {ratio}");
        }
    }
}

#[test]
fn large_messages_take_the_circulant_tree_and_small_ones_one_block() {
    for profile in PROFILES {
        for ranks in [4, 8, 9, 33, 64, 1000] {
            let large = choose(ranks, 64 << 20, &profile);
            if profile.path().pulled && ranks > 64 {
                // A root's turns for so many take longer than a tree.
            } else if profile.path().pulled {
                // Everybody pulls from the root at once.
                assert_eq!(large.algorithm, Algorithm::Flat, "N = {ranks}: {large:?}");
            } else {
                assert_eq!(large.algorithm, Algorithm::PipelinedTree, "N = {ranks}: {large:?}");
                assert!(large.blocks > ceil_log2(ranks), "{large:?}");
            }
            assert_eq!(large.why.limit, Limit::Bandwidth, "{large:?}");
            let small = choose(ranks, 8, &profile);
            assert_eq!(small.blocks, 1);
            assert!(small.is_eager);
        }
    }
    // theory.md: the best radix grows with L / g; flat for N <= 8.
    let small = |ranks| choose(ranks, 8, &FabricProfile::VERBS_400G);
    assert_eq!(small(8).algorithm, Algorithm::Flat);
    assert_eq!(small(64).algorithm, Algorithm::Knomial);
    assert!((4..=8).contains(&small(64).radix), "{:?}", small(64));
    assert_eq!(small(64).why.limit, Limit::Latency);
    let (other, ns) = small(64).why.runner_up.unwrap();
    assert!(other != Algorithm::Knomial && ns >= small(64).predicted_ns);
    assert_eq!(choose(1, 8, &FabricProfile::SHM).why.limit, Limit::Alone);
}

#[test]
fn links_that_are_not_there_cost_their_set_up() {
    let profile = FabricProfile::VERBS_400G;
    let setup_ns = profile.path().link_setup_ns;
    let with = |links, algorithm| {
        let demand = Demand { links, algorithm, ..Demand::default() };
        select(8, 8, &profile, demand).unwrap()
    };
    let flat = with(Links::All, Some(Algorithm::Flat));
    let cold = with(Links::None, Some(Algorithm::Flat));
    assert_eq!(cold.predicted_ns, flat.predicted_ns + 7 * setup_ns);
    assert_eq!(cold.why.limit, Limit::Links);
    // The chain has two links only, and the flat tree none to make if it was used before.
    let fewest = with(Links::None, None);
    assert!(matches!(fewest.algorithm, Algorithm::PipelinedChain | Algorithm::BidirectionalRing));
    assert_eq!(with(Links::Of(Algorithm::Flat), None).algorithm, Algorithm::Flat);
    assert_eq!(with(Links::All, None).algorithm, Algorithm::Flat);
    // A fabric with few links per rank excludes what needs more.
    let few = PathProfile { links_max: 3, ..profile.path() };
    let few = FabricProfile { network: Some(few), ..profile };
    let choice = choose(64, 8, &few);
    let shape = choice.shape(&broadcast(64, 8), 0).unwrap();
    assert!(links(choice.algorithm, shape) <= 3, "{choice:?}");
    let none =
        FabricProfile { network: Some(PathProfile { links_max: 1, ..profile.path() }), ..profile };
    assert!(select(64, 8, &none, Demand::default()).is_ok(), "something has to be tried");
}

#[test]
fn links_are_those_of_the_schedules() {
    for operation in Operation::ALL {
        for &algorithm in Algorithm::of(operation) {
            for ranks in (1..=40).chain([64, 65]) {
                if algorithm == Algorithm::RecursiveDoubling && !u32::is_power_of_two(ranks) {
                    continue;
                }
                let shape = Shape::new(ranks, 0, 20).unwrap().with_operation(operation).unwrap();
                let shape = shape.with_radix(4).unwrap();
                let of = |rank| {
                    let schedule = schedule::schedule(algorithm, shape, rank).unwrap();
                    let peers = schedule.send_peers().iter().chain(schedule.recv_peers());
                    peers.collect::<std::collections::BTreeSet<_>>().len() as u64
                };
                let most = (0..ranks).map(of).max().unwrap();
                let stated = links(algorithm, shape);
                assert!(most <= stated, "{algorithm} N = {ranks}: {most}, stated {stated}");
                assert!(stated <= most + 2, "{algorithm} N = {ranks}: {most}, stated {stated}");
            }
        }
    }
}

#[test]
fn other_operations_follow_the_theory() {
    let choose = |operation, ranks, bytes| {
        let task = Task { operation, ranks, bytes, ports: 1 };
        select_for(&FabricProfile::VERBS_400G, task, Demand::default()).unwrap()
    };
    for ranks in [8, 33, 64] {
        // From g beta up flat wins at every N; with a gap for each block, below it as well.
        for operation in [Operation::Scatter, Operation::Gather] {
            assert_eq!(choose(operation, ranks, 64 << 10).algorithm, Algorithm::Flat);
            assert_eq!(choose(operation, ranks, 8).algorithm, Algorithm::Flat);
        }
    }
    let large = choose(Operation::Allgather, 64, 1 << 20);
    assert!(large.predicted_ns < 64 * 22_000, "{large:?}");
    assert_ne!(choose(Operation::Allgather, 64, 8).algorithm, Algorithm::Ring);
    let by_time = compare(
        &FabricProfile::SHM,
        Task { operation: Operation::Allgather, ranks: 6, bytes: 100, ports: 1 },
        Demand::default(),
    );
    let by_time = by_time.unwrap();
    assert_eq!(by_time.len(), 3, "recursive doubling is not made for six ranks");
    assert!(by_time.is_sorted_by_key(|choice| choice.predicted_ns));
}

#[test]
fn more_ports_take_less_time() {
    for profile in PROFILES {
        for bytes in [8, 1 << 16, 1 << 26] {
            let time = |ports| {
                let task = Task { ports, ..broadcast(33, bytes) };
                select_for(&profile, task, Demand::default()).unwrap().predicted_ns
            };
            let times: Vec<u64> = (1..=4).map(time).collect();
            assert!(times.is_sorted_by(|a, b| a >= b), "{bytes}: {times:?}");
            // Who pulls has one port for one sender.
            if bytes > 1 << 20 && !profile.path().pulled {
                assert!(times[1] < times[0] * 52 / 100, "{bytes}: {times:?}");
            }
        }
    }
}

#[test]
fn demands_outside_the_limits_are_errors() {
    let select = |ranks, bytes, block_bytes| {
        let demand = Demand { block_bytes, ..Demand::default() };
        select(ranks, bytes, &FabricProfile::VERBS, demand)
    };
    assert_eq!(select(0, 1, None), Err(ModelError::RankCount { ranks: 0 }));
    let ranks = MAX_RANKS + 1;
    assert_eq!(select(ranks, 1, None), Err(ModelError::RankCount { ranks }));
    for bytes in [MAX_MESSAGE_BYTES + 1, 1 << 63, u64::MAX] {
        assert_eq!(select(4, bytes, None), Err(ModelError::MessageBytes { bytes }));
    }
    assert!(select(4, MAX_MESSAGE_BYTES, None).is_ok());
    let bytes = 1 << 33;
    let least = bytes / u64::from(MAX_BLOCKS);
    for block_bytes in [0, least - 1, BLOCK_BYTES_MAX + 1] {
        let error = ModelError::BlockBytes { block_bytes, bytes, least };
        assert_eq!(select(4, bytes, Some(block_bytes)), Err(error));
    }
    for block_bytes in [least, BLOCK_BYTES_MAX] {
        assert!(select(4, bytes, Some(block_bytes)).is_ok());
    }
    for ports in [0, MAX_PORTS + 1] {
        let task = Task { ports, ..broadcast(4, 8) };
        let error = select_for(&FabricProfile::SHM, task, Demand::default());
        assert_eq!(error, Err(ModelError::PortCount { ports }));
    }
    let algorithm = Algorithm::Ring;
    let demand = Demand { algorithm: Some(algorithm), ..Demand::default() };
    let error = select_for(&FabricProfile::SHM, broadcast(4, 8), demand).unwrap_err();
    assert_eq!(error, ModelError::NotFor { algorithm, task: broadcast(4, 8) });
    assert!(error.to_string().contains("no broadcast by ring among 4 ranks"), "{error}");
}

#[test]
fn block_counts_are_at_most_an_eighth_apart() {
    assert!(COUNTS_COMPARED[..16].iter().copied().eq(1..=16));
    for pair in COUNTS_COMPARED[15..].windows(2) {
        assert!(pair[1] > pair[0] && 8 * pair[1] <= 9 * pair[0], "{pair:?}");
    }
}

#[test]
fn least_time_that_ends_the_comparison_is_no_more_than_any() {
    let mut rng = test_seed::rng("least_time_that_ends_the_comparison_is_no_more_than_any");
    for _ in 0..4_000 {
        let operation = Operation::ALL[rng.usize(0..4)];
        let (ranks, bits) = (rng.u32(1..=300), rng.u32(1..30));
        let bytes = rng.u64(1..1 << bits);
        let profile = PROFILES[rng.usize(0..4)];
        let task = Task { operation, ranks, bytes, ports: rng.u16(1..=3) };
        let block_bytes = rng.u64(bytes.div_ceil(1 << 11)..=bytes).min(BLOCK_BYTES_MAX);
        let demand = Demand { block_bytes: Some(block_bytes), ..Demand::default() };
        for choice in compare(&profile, task, demand).unwrap() {
            let least = least_ns(&profile, task, choice.blocks);
            assert!(least <= choice.predicted_ns, "{least}: {choice:?} {task:?}");
        }
    }
}
