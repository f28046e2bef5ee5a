//! The telephone model against brute force, the simulator and the table of its source.

use super::*;
use crate::simulate::{self, count_rounds};

#[test]
fn paced_time_is_the_closed_form_for_every_operation() {
    let mut rng = test_seed::rng("paced_time_is_the_closed_form_for_every_operation");
    let most_ranks = if is_full() { 128 } else { 48 };
    for operation in Operation::ALL {
        for &algorithm in Algorithm::of(operation) {
            for ranks in 1..=most_ranks as u32 {
                if algorithm == Algorithm::RecursiveDoubling && !ranks.is_power_of_two() {
                    continue;
                }
                for k in [1, 2, 3, ceil_log2(ranks).max(1), 17] {
                    for ports in 1..=4 {
                        let mut roots = vec![0, 1 % ranks, ranks / 2, ranks - 1];
                        roots.sort_unstable();
                        roots.dedup();
                        // An allgather has no root.
                        if operation == Operation::Allgather {
                            roots.truncate(1);
                        }
                        for root in roots {
                            if !is_full() && rng.u32(0..240) > 0 {
                                continue;
                            }
                            let shape = Shape::new(ranks, root, k).unwrap();
                            let shape = shape.with_operation(operation).unwrap();
                            let shape = shape.with_ports(ports).unwrap();
                            let shape = shape.with_radix(rng.u32(2..=6)).unwrap();
                            compare_with_simulator(algorithm, shape, &mut rng);
                        }
                    }
                }
            }
        }
    }
}

fn compare_with_simulator(algorithm: Algorithm, shape: Shape, rng: &mut fastrand::Rng) {
    let block_bytes = rng.u64(1..=1 << 20);
    let bytes = block_bytes * u64::from(shape.blocks());
    let blocks = Blocks::new(bytes, block_bytes).unwrap();
    let (alpha_ns, bytes_per_second) = (rng.u64(1..5000), rng.u64(1_000_000..100_000_000_000));
    let formula = Telephone { alpha_ns, bytes_per_second };
    let model = simulate::Telephone { alpha_ps: alpha_ns * 1000, bytes_per_second };
    let outcome = Simulation::new(Model::Telephone(model)).run(algorithm, shape, blocks).unwrap();
    assert!(outcome.is_complete(), "{algorithm} {shape:?}");
    let expected = formula.time_ps(algorithm, shape, bytes);
    assert_eq!(outcome.time_ps, expected, "{algorithm} {shape:?}");
    let count = count_rounds(algorithm, shape, blocks, model, 0..shape.ranks()).unwrap();
    assert_eq!(count.time_ps, expected, "{algorithm} {shape:?}");
    assert_eq!(count.rounds, super::super::rounds(algorithm, shape).count, "{algorithm} {shape:?}");
    assert!(expected >= formula.lower_bound_ps(shape, bytes), "{algorithm} {shape:?}");
    let has_one_block_messages = algorithm != Algorithm::ScatterAllgather;
    if shape.operation() == Operation::Broadcast && has_one_block_messages {
        assert!(schedule::rounds(algorithm, shape) >= least_rounds(shape), "{algorithm} {shape:?}");
    }
}

#[test]
fn best_blocks_equal_brute_force() {
    let mut rng = test_seed::rng("best_blocks_equal_brute_force");
    for _ in 0..1000 {
        let ranks = rng.u32(1..=200);
        // The time without the rounding of blocks, times k beta: R (k alpha beta + M).
        let model = Telephone { alpha_ns: rng.u64(1..=5000), bytes_per_second: 1_000_000_000 };
        let bytes = rng.u64(1..=3_000_000);
        for algorithm in Algorithm::BROADCAST {
            if algorithm == Algorithm::ScatterAllgather {
                continue;
            }
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
fn blocks_are_dealt_to_all_ports() {
    let model = Telephone { alpha_ns: 1000, bytes_per_second: 1_000_000_000 };
    let shape = Shape::new(33, 0, 1).unwrap();
    for ports in 1..=4 {
        let shape = shape.with_ports(ports).unwrap();
        let bytes = 60_000_000;
        let best = model.best_blocks_of(Algorithm::PipelinedTree, shape, bytes);
        assert_eq!(best % u32::from(ports), 0);
        let time = |k: u32| model.time_ps(Algorithm::PipelinedTree, with_blocks(shape, k), bytes);
        let step = u32::from(ports);
        // Blocks are rounded up to whole bytes, which is two parts in 100,000 here.
        assert!(time(best) <= time(best - step) + time(best) / 50_000);
        assert!(time(best) <= time(best + step) + time(best) / 50_000);
        assert_eq!(model.best_blocks_of(Algorithm::Binomial, shape, bytes), step);
        assert_eq!(model.best_blocks_of(Algorithm::Flat, shape, bytes), 1);
    }
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
    for algorithm in Algorithm::BROADCAST {
        if algorithm == Algorithm::ScatterAllgather {
            continue;
        }
        for ranks in [1, 2, 3, MAX_RANKS] {
            assert_eq!(dear.best_blocks(algorithm, ranks, u64::MAX), 1, "{algorithm}, {ranks}");
            assert_eq!(free.best_blocks(algorithm, ranks, 0), 1);
        }
        assert_eq!(free.best_blocks(algorithm, 2, 1 << 30), 1, "N = 2 means k = 1");
        let shape = Shape::new(MAX_RANKS, 0, MAX_BLOCKS).unwrap();
        assert_eq!(dear.time_ps(algorithm, shape, u64::MAX), u64::MAX);
    }
}

/// In units of alpha beta, against the binomial tree: theory by hand.
#[test]
fn switch_points_are_those_of_the_theory() {
    // alpha beta = 1,000,000 bytes, so that whole bytes are fine enough.
    let model = Telephone { alpha_ns: 1_000_000, bytes_per_second: 1_000_000_000 };
    let unit = 1e6;
    let switch = |to, ranks| {
        let shape = Shape::new(ranks, 0, 1).unwrap();
        model.switch_bytes(Algorithm::Binomial, to, shape).unwrap() as f64 / unit
    };
    for (ranks, q) in [(8, 3.0), (64, 6.0), (512, 9.0)] {
        let tree = switch(Algorithm::PipelinedTree, ranks);
        assert!((tree - 2.0 / (q - 1.0)).abs() < 0.001, "N = {ranks}: {tree}");
    }
    let scatter = |ranks| switch(Algorithm::ScatterAllgather, ranks);
    assert!((scatter(8) - 5.6).abs() < 0.05, "{}", scatter(8));
    assert!((scatter(64) - 15.6).abs() < 0.1, "{}", scatter(64));
    let chain = |ranks| switch(Algorithm::PipelinedChain, ranks);
    assert!((chain(8) - 8.75).abs() < 0.1, "{}", chain(8));
    assert!((chain(64) - 27.8).abs() < 0.3, "{}", chain(64));
    let shape = Shape::new(2, 0, 1).unwrap();
    assert_eq!(model.switch_bytes(Algorithm::Binomial, Algorithm::PipelinedTree, shape), None);
    // Ten times alpha, ten times the size.
    let shape = Shape::new(64, 0, 1).unwrap();
    let slow = Telephone { alpha_ns: 10 * model.alpha_ns, ..model };
    for to in [Algorithm::PipelinedTree, Algorithm::PipelinedChain, Algorithm::TwoTree] {
        let [few, many] = [model, slow].map(|m| m.switch_bytes(Algorithm::Binomial, to, shape));
        let ratio = many.unwrap() as f64 / few.unwrap() as f64;
        assert!((ratio - 10.0).abs() < 0.01, "{to}: {ratio}");
    }
}

#[test]
fn lower_bounds_are_those_of_the_theory() {
    let model = Telephone { alpha_ns: 1000, bytes_per_second: 1_000_000_000 };
    let shape = |ranks, k, ports| Shape::new(ranks, 0, k).unwrap().with_ports(ports).unwrap();
    assert_eq!(least_rounds(shape(1, 5, 1)), 0);
    assert_eq!(least_rounds(shape(33, 17, 1)), 6 + 17 - 1);
    assert_eq!(least_rounds(shape(27, 4, 2)), 3 + 2 - 1);
    assert_eq!(model.lower_bound_ps(shape(33, 1, 1), 10), 6_000_000);
    assert_eq!(model.lower_bound_ps(shape(33, 1, 1), 1_000_000), 1_000_000_000);
    assert_eq!(model.lower_bound_ps(shape(33, 1, 2), 1_000_000), 500_000_000);
    let scatter = shape(33, 1, 1).with_operation(Operation::Scatter).unwrap();
    assert_eq!(model.lower_bound_ps(scatter, 1_000_000), 32_000_000_000);
    assert_eq!(model.lower_bound_ps(shape(1, 1, 1), 1_000_000), 0);
}
