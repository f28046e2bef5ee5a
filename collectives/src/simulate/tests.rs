//! The simulator against closed forms, against itself under faults, and against bad input.

use super::*;
use crate::schedule::{ceil_log2, rounds};
use crate::test_seed;

mod bad_input;
mod faults;
mod hosts;

/// L = 1.5 us, g = 0.2 us, 50 GB/s.
const FAST: Path = Path::from_ns(1_500, 200, 50_000_000_000);

fn loggp(path: Path) -> Simulation {
    Simulation::new(Model::Loggp(Loggp::new(path)))
}

fn run(
    simulation: &Simulation,
    algorithm: Algorithm,
    ranks: u32,
    bytes: u64,
    block_bytes: u64,
) -> Outcome {
    let blocks = Blocks::new(bytes, block_bytes).unwrap();
    let shape = Shape::new(ranks, 0, blocks.count()).unwrap();
    simulation.run(algorithm, shape, blocks).unwrap()
}

/// Line rate of the fast path over the simulated time, for 16 MiB in the best of some block sizes.
fn best_rate(algorithm: Algorithm, ranks: u32) -> f64 {
    let bytes = 16 << 20;
    let times = (12..=16).map(|bits| run(&loggp(FAST), algorithm, ranks, bytes, 1 << bits).time_ps);
    FAST.transfer_ps(bytes) as f64 / times.min().unwrap() as f64
}

/// The broadcasts whose messages have one block each.
fn one_block_messages() -> impl Iterator<Item = Algorithm> {
    let all = Algorithm::BROADCAST.into_iter();
    all.filter(|&algorithm| algorithm != Algorithm::ScatterAllgather)
}

#[test]
fn paced_telephone_time_is_the_closed_form_in_integers() {
    let mut rng = test_seed::rng("paced_telephone_time_is_the_closed_form_in_integers");
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    for ranks in 1..=128 {
        let q = ceil_log2(ranks).max(1);
        for root in [0, 1 % ranks, ranks / 2, ranks - 1] {
            for k in [1, 2, 3, q, 17] {
                if !full && rng.u32(0..20) > 0 {
                    continue;
                }
                let block_bytes = rng.u64(1..=1 << 20);
                let blocks = Blocks::new(block_bytes * u64::from(k), block_bytes).unwrap();
                let shape = Shape::new(ranks, root, k).unwrap();
                let alpha_ns = rng.u64(0..5000);
                let bytes_per_second = rng.u64(1_000_000..100_000_000_000);
                let formula = crate::model::Telephone { alpha_ns, bytes_per_second };
                let model = Telephone { alpha_ps: alpha_ns * 1000, bytes_per_second };
                for algorithm in one_block_messages() {
                    let simulation = Simulation::new(Model::Telephone(model));
                    let outcome = simulation.run(algorithm, shape, blocks).unwrap();
                    assert!(outcome.is_complete(), "{algorithm} {shape:?}");
                    let expected = formula.time_ps(algorithm, shape, blocks.bytes());
                    assert_eq!(outcome.time_ps, expected, "{algorithm} {shape:?}");
                    assert_eq!(outcome.rounds, rounds(algorithm, shape), "{algorithm} {shape:?}");
                    let count = count_rounds(algorithm, shape, blocks, model, 0..ranks).unwrap();
                    assert_eq!(count.time_ps, expected, "{algorithm} {shape:?}");
                    assert_eq!(count.rounds, outcome.rounds);
                    assert_eq!(count.transfers, outcome.transfers);
                }
            }
        }
    }
}

#[test]
fn chain_takes_the_stated_time_exactly() {
    for ranks in [2, 3, 9, 64] {
        for (block_bytes, k) in [(1, 1), (8, 5), (16384, 33), (1 << 20, 7)] {
            let outcome =
                run(&loggp(FAST), Algorithm::PipelinedChain, ranks, block_bytes * k, block_bytes);
            let transfer_ps = FAST.transfer_ps(block_bytes);
            let expected = u64::from(ranks - 1) * (FAST.latency_ps + transfer_ps)
                + (k - 1) * transfer_ps.max(FAST.gap_ps);
            assert_eq!(outcome.time_ps, expected);
            assert_eq!(outcome.transfers, u64::from(ranks - 1) * k);
        }
    }
}

#[test]
fn late_comers_wait_at_the_in_port() {
    // Two senders, one receiver: both blocks arrive together, the second waits for the first.
    use crate::schedule::{Direction, Step};
    let shape = Shape::new(4, 0, 2).unwrap();
    let step = |round, direction, peer, block| Step { round, direction, peer, block, port: 0 };
    let steps = [
        vec![step(0, Direction::Send, 1, 0), step(1, Direction::Send, 2, 1)],
        vec![step(0, Direction::Recv, 0, 0), step(1, Direction::Send, 3, 0)],
        vec![step(1, Direction::Recv, 0, 1), step(2, Direction::Send, 3, 1)],
        vec![step(1, Direction::Recv, 1, 0), step(2, Direction::Recv, 2, 1)],
    ];
    let schedules: Vec<_> = (0..)
        .zip(steps)
        .map(|(rank, steps)| RankSchedule::from_steps(shape, rank, 3, steps).unwrap())
        .collect();
    // A block takes 1000 ps at a port. The first link is 1000 ps longer than the second.
    let path = Path { latency_ps: 100, ..Path::from_ns(0, 0, 1_000_000_000) };
    let mut model = Loggp::new(path);
    model.links.insert((0, 1), Path { latency_ps: 1100, ..path });
    let simulation = Simulation::new(Model::Loggp(model)).trace(true);
    let outcome = simulation.run_given(&schedules, Blocks::new(2, 1).unwrap()).unwrap();
    // Both blocks are whole at their second senders at 2100, and would be at rank 3 at 3200.
    assert_eq!(outcome.time_ps, 3200 + 1000);
    let at_three = outcome.spans.iter().filter(|s| s.rank == 3 && s.kind == SpanKind::Recv);
    let times: Vec<_> = at_three.map(|span| (span.start_ps, span.end_ps)).collect();
    assert_eq!(times, [(2200, 3200), (3200, 4200)]);
}

#[test]
fn circulant_tree_reaches_line_rate_and_the_chain_its_own() {
    for (ranks, least, expected) in
        [(8, 0.97, 0.978), (9, 0.97, 0.977), (33, 0.95, 0.960), (64, 0.95, 0.954)]
    {
        let rate = best_rate(Algorithm::PipelinedTree, ranks);
        println!("pipelined-tree N = {ranks}: {rate:.4}");
        assert!(rate >= least, "N = {ranks}: {rate}");
        assert!((rate - expected).abs() < 0.01, "N = {ranks}: {rate}, independent {expected}");
    }
    let rate = best_rate(Algorithm::PipelinedChain, 64);
    assert!((rate - 0.745).abs() <= 0.02, "chain: {rate}");
}

#[test]
fn a_run_is_the_same_for_the_same_seed_only() {
    let faults = Faults { jitter_ps: 1_000_000, loss_ppm: 10_000, ..Faults::default() };
    let with = |seed| {
        let simulation = loggp(FAST).faults(faults.clone()).seed(seed).trace(true);
        run(&simulation, Algorithm::PipelinedTree, 13, 1 << 20, 1 << 14)
    };
    assert_eq!(with(7), with(7));
    assert_ne!(with(7), with(8));
}

#[test]
fn spans_of_a_port_never_overlap_and_account_for_every_block() {
    for algorithm in one_block_messages() {
        for model in [
            Model::Loggp(Loggp::new(FAST)),
            Model::Telephone(Telephone { alpha_ps: 1000, bytes_per_second: 1_000_000_000 }),
        ] {
            let simulation = Simulation::new(model).trace(true);
            let outcome = run(&simulation, algorithm, 19, 100_000, 9_999);
            assert_eq!(outcome.spans.len() as u64, 2 * outcome.transfers);
            assert_eq!(outcome.transfers, 18 * 11);
            let mut spans = outcome.spans.clone();
            spans.sort_by_key(|span| (span.rank, span.kind as u8, span.start_ps));
            for pair in spans.windows(2) {
                if (pair[0].rank, pair[0].kind) == (pair[1].rank, pair[1].kind) {
                    assert!(pair[0].end_ps <= pair[1].start_ps, "{algorithm}: {pair:?}");
                }
            }
        }
    }
}

#[test]
fn grants_take_one_latency_more() {
    for algorithm in Algorithm::BROADCAST {
        let without = run(&loggp(FAST), algorithm, 9, 1 << 16, 1 << 13).time_ps;
        let with = run(&loggp(FAST).grants(true), algorithm, 9, 1 << 16, 1 << 13).time_ps;
        assert_eq!(with, without + FAST.latency_ps, "{algorithm}");
    }
}

/// Debug builds take a smaller N; the full size is for `VERBCAST_FULL=1` and a release build.
#[test]
fn many_ranks_run_in_bounded_memory() {
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let ranks = if full { 65_536 } else { 2048 };
    let outcome = run(&loggp(FAST), Algorithm::PipelinedTree, ranks, 64 << 14, 1 << 14);
    assert!(outcome.is_complete());
    assert_eq!(outcome.transfers, u64::from(ranks - 1) * 64);
    let paced = Simulation::new(Model::Telephone(Telephone {
        alpha_ps: 1_500_000,
        bytes_per_second: 50_000_000_000,
    }));
    let outcome = run(&paced, Algorithm::PipelinedTree, ranks, 64 << 14, 1 << 14);
    assert_eq!(outcome.rounds, u64::from(ceil_log2(ranks)) + 63);
}
