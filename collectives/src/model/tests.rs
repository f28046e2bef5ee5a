//! The closed forms against brute force, and the choices against what a choice must never do.

use super::*;
use crate::test_seed;

const PROFILES: [FabricProfile; 2] = [FabricProfile::VERBS, FabricProfile::SHM];

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
fn best_blocks_equal_brute_force() {
    let mut rng = test_seed::rng("best_blocks_equal_brute_force");
    for _ in 0..2000 {
        let ranks = rng.u32(1..=200);
        // The time without the rounding of blocks, times k beta: (c + k) (k alpha beta + M).
        let model = Telephone { alpha_ns: rng.u64(1..=5000), bytes_per_second: 1_000_000_000 };
        let bytes = rng.u64(1..=3_000_000);
        for algorithm in super::PREFERENCE {
            let time_times_k = |k: u32| {
                let shape = Shape::new(ranks, 0, k).unwrap();
                let rounds = u128::from(schedule::rounds(algorithm, shape));
                // One byte takes one ns, so alpha beta is alpha_ns bytes.
                rounds * u128::from(u64::from(k) * model.alpha_ns + bytes)
            };
            // time(a) < time(b) with time(k) = time_times_k(k) / k.
            let is_faster =
                |a: u32, b: u32| time_times_k(a) * u128::from(b) < time_times_k(b) * u128::from(a);
            let most = bytes.min(2000) as u32;
            let brute = (1..=most).fold(1, |best, k| if is_faster(k, best) { k } else { best });
            let best = model.best_blocks(algorithm, ranks, bytes);
            if brute < 2000 {
                assert_eq!(best, brute, "{algorithm}, N = {ranks}, M = {bytes}, {model:?}");
            } else {
                assert!(best >= brute, "{algorithm}, N = {ranks}, M = {bytes}, {model:?}");
            }
        }
    }
}

#[test]
fn of_equally_good_block_counts_the_smallest_is_best() {
    // Four ranks in a chain, so c = 2, and alpha beta = 1 byte. The time (c + k) (k + M) / k ns of
    // M = 3 is 4 * 5 / 2 for k = 2 and 5 * 6 / 3 for k = 3.
    let model = Telephone { alpha_ns: 1, bytes_per_second: 1_000_000_000 };
    assert_eq!(model.best_blocks(Algorithm::PipelinedChain, 4, 3), 2);
}

#[test]
fn time_at_the_best_block_count_is_the_closed_form() {
    let model = Telephone { alpha_ns: 1_500, bytes_per_second: 12_500_000_000 };
    for ranks in [4_u32, 8, 9, 33, 64, 1000] {
        for bytes in [1_u64 << 22, 1 << 26, 1 << 32] {
            for (algorithm, extra) in [
                (Algorithm::PipelinedTree, f64::from(ceil_log2(ranks) - 1)),
                (Algorithm::PipelinedChain, f64::from(ranks - 2)),
            ] {
                let blocks = model.best_blocks(algorithm, ranks, bytes);
                let shape = Shape::new(ranks, 0, blocks).unwrap();
                let time_s = model.time_ps(algorithm, shape, bytes) as f64 * 1e-12;
                let least_s = ((extra * 1.5e-6).sqrt() + (bytes as f64 / 12.5e9).sqrt()).powi(2);
                let ratio = time_s / least_s;
                assert!((0.9999..1.01).contains(&ratio), "{algorithm} {shape:?}: {ratio}");
            }
        }
    }
}

#[test]
fn best_blocks_stay_within_their_limits() {
    let free = Telephone { alpha_ns: 0, bytes_per_second: 1 };
    assert_eq!(free.best_blocks(Algorithm::PipelinedTree, 64, 10), 10);
    assert_eq!(free.best_blocks(Algorithm::PipelinedTree, 64, 1 << 40), MAX_BLOCKS);
    let dear = Telephone { alpha_ns: u64::MAX, bytes_per_second: u64::MAX };
    for algorithm in super::PREFERENCE {
        for ranks in [1, 2, 3, MAX_RANKS] {
            assert_eq!(dear.best_blocks(algorithm, ranks, u64::MAX), 1);
            assert_eq!(free.best_blocks(algorithm, ranks, 0), 1);
        }
        assert_eq!(free.best_blocks(algorithm, 2, 1 << 30), 1, "N = 2 means k = 1");
        let shape = Shape::new(MAX_RANKS, 0, MAX_BLOCKS).unwrap();
        assert_eq!(dear.time_ps(algorithm, shape, u64::MAX), u64::MAX);
    }
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
                let may_be_eager = bytes <= profile.eager_limit_bytes;
                assert!(may_be_eager && blocks == 1 || !choice.is_eager, "{choice:?}");
            }
        }
    }
}

#[test]
fn predicted_time_is_the_stated_formula() {
    // L = 1000 ns, g = 10 ns, 1 byte per ns.
    let profile = FabricProfile {
        latency_ns: 1000,
        gap_ns: 10,
        bytes_per_second: 1_000_000_000,
        eager_limit_bytes: 100,
    };
    let time = |algorithm, bytes, block_bytes| {
        let demand = Demand { algorithm: Some(algorithm), block_bytes: Some(block_bytes) };
        select(9, bytes, &profile, demand).unwrap().predicted_ns
    };
    // q = 4; up to the limit without a grant, above it with one more latency.
    assert_eq!(time(Algorithm::Binomial, 100, 4096), 4 * 1000 + 4 * (10 + 100));
    assert_eq!(time(Algorithm::Binomial, 101, 4096), 5 * 1000 + 4 * (10 + 101));
    assert_eq!(time(Algorithm::Binomial, 100, 50), 5 * 1000 + 4 * 2 * (10 + 50));
    assert_eq!(time(Algorithm::PipelinedTree, 5000, 500), 5 * 1000 + (4 + 10 - 1) * (10 + 500));
    assert_eq!(time(Algorithm::PipelinedChain, 5000, 500), 9 * 1000 + (9 + 10 - 2) * (10 + 500));
}

#[test]
fn predicted_time_never_falls_and_never_jumps() {
    for profile in PROFILES {
        for ranks in [2, 3, 4, 7, 8, 9, 33, 64, 127, 128, 512, 65_536] {
            let mut before = 0;
            for bytes in sizes() {
                let time = choose(ranks, bytes, &profile).predicted_ns;
                assert!(time >= before, "N = {ranks}: {bytes} bytes take less than fewer bytes");
                before = time;
                let twice = choose(ranks, 2 * bytes, &profile).predicted_ns;
                let ratio = twice as f64 / time as f64;
                assert!(ratio <= 2.3, "N = {ranks}: {bytes} bytes doubled take {ratio} times");
            }
        }
    }
}

#[test]
fn predicted_time_never_falls_with_ranks() {
    for profile in PROFILES {
        for bytes in sizes() {
            let times = (2..=300).map(|ranks| choose(ranks, bytes, &profile).predicted_ns);
            assert!(times.is_sorted(), "{bytes} bytes");
        }
    }
}

#[test]
fn choice_is_the_best_of_all_demands() {
    let mut rng = test_seed::rng("choice_is_the_best_of_all_demands");
    for _ in 0..3000 {
        let (ranks, bits) = (rng.u32(2..=300), rng.u32(1..36));
        let bytes = rng.u64(0..1 << bits);
        let profile = PROFILES[rng.usize(0..2)];
        let free = choose(ranks, bytes, &profile);
        for algorithm in super::PREFERENCE {
            let demand = Demand { algorithm: Some(algorithm), block_bytes: None };
            let fixed = select(ranks, bytes, &profile, demand).unwrap();
            assert_eq!(fixed.algorithm, algorithm);
            assert!(free.predicted_ns <= fixed.predicted_ns, "{free:?} {fixed:?}");
            // No other block size above the least gains more than two per cent.
            let least = bytes.div_ceil(u64::from(MAX_BLOCKS)).max(LEAST_BLOCK_BYTES);
            let block_bytes = rng.u64(least..=BLOCK_BYTES_MAX.min(bytes.max(least)));
            let demand = Demand { algorithm: Some(algorithm), block_bytes: Some(block_bytes) };
            let other = select(ranks, bytes, &profile, demand).unwrap();
            assert_eq!(other.block_bytes, block_bytes);
            let ratio = other.predicted_ns as f64 / fixed.predicted_ns as f64;
            assert!(ratio > 0.98, "{other:?} beats {fixed:?}: {ratio}");
        }
    }
}

#[test]
fn large_messages_take_the_circulant_tree_and_small_ones_one_block() {
    for profile in PROFILES {
        for ranks in [4, 8, 9, 33, 64, 1000] {
            let large = choose(ranks, 64 << 20, &profile);
            assert_eq!(large.algorithm, Algorithm::PipelinedTree, "N = {ranks}");
            assert!(large.blocks > ceil_log2(ranks), "{large:?}");
            let small = choose(ranks, 8, &profile);
            assert_eq!((small.algorithm, small.blocks), (Algorithm::Binomial, 1));
            assert!(small.is_eager);
        }
        let two = choose(2, 1 << 20, &profile);
        assert_eq!(two.blocks, 1, "with two ranks there is nothing to pipeline");
    }
}

#[test]
fn demands_outside_the_limits_are_errors() {
    let select = |ranks, bytes, block_bytes| {
        let demand = Demand { algorithm: None, block_bytes };
        select(ranks, bytes, &FabricProfile::VERBS, demand)
    };
    assert_eq!(select(0, 1, None), Err(ModelError::RankCount { ranks: 0 }));
    let bytes = MAX_MESSAGE_BYTES + 1;
    assert_eq!(select(4, bytes, None), Err(ModelError::MessageBytes { bytes }));
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
}

#[test]
fn block_counts_are_at_most_an_eighth_apart() {
    assert!(BLOCK_COUNTS[..16].iter().copied().eq(1..=16));
    for pair in BLOCK_COUNTS[15..].windows(2) {
        assert!(pair[1] > pair[0] && 8 * pair[1] <= 9 * pair[0], "{pair:?}");
    }
}

#[test]
fn least_time_that_ends_the_comparison_is_no_more_than_any() {
    let mut rng = test_seed::rng("least_time_that_ends_the_comparison_is_no_more_than_any");
    for _ in 0..20_000 {
        let (ranks, bytes) = (rng.u32(1..=300), rng.u64(0..1 << 33));
        let profile = PROFILES[rng.usize(0..2)];
        let cost = Cost { ranks, bytes, profile: &profile };
        let blocks = rng.u32(1..=1 << 16);
        let block_bytes = bytes.div_ceil(blocks.into()).max(1);
        for algorithm in super::PREFERENCE {
            let choice = cost.choice(algorithm, blocks, block_bytes);
            assert!(cost.least_ns(blocks) <= choice.predicted_ns, "{choice:?}");
        }
    }
}
