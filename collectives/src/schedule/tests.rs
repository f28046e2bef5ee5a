//! Properties of the schedules of all algorithms, verified by the independent checker.

use super::*;
use crate::check::{Claim, check};
use crate::test_seed;

fn all_ranks(algorithm: Algorithm, shape: Shape) -> Vec<RankSchedule> {
    (0..shape.ranks()).map(|rank| broadcast(algorithm, shape, rank).unwrap()).collect()
}

/// The formulas, written once more than in the algorithms' files.
fn expected_rounds(algorithm: Algorithm, n: u32, k: u32) -> u64 {
    let (n, k, q) = (u64::from(n), u64::from(k), f64::from(n).log2().ceil() as u64);
    match algorithm {
        _ if n == 1 => 0,
        Algorithm::Binomial => q * k,
        Algorithm::PipelinedChain => n + k - 2,
        Algorithm::PipelinedTree => q + k - 1,
    }
}

fn assert_checked(algorithm: Algorithm, ranks: u32, root: Rank, blocks: u32) {
    let shape = Shape::new(ranks, root, blocks).unwrap();
    let claimed = expected_rounds(algorithm, ranks, blocks);
    assert_eq!(rounds(algorithm, shape), claimed, "{algorithm} {shape:?}");
    let schedules = all_ranks(algorithm, shape);
    assert!(schedules.iter().all(|schedule| u64::from(schedule.rounds()) == claimed));
    let claim = Claim { ranks, root, blocks, ports: 1, rounds: claimed };
    let report = check(&claim, &schedules).unwrap_or_else(|error| panic!("{algorithm}: {error}"));
    assert_eq!(report.transfers, u64::from(ranks - 1) * u64::from(blocks), "{algorithm} {shape:?}");
    let most = schedules.iter().map(|schedule| schedule.send_peers().len()).max();
    assert_eq!(most, Some(report.most_send_peers as usize), "{algorithm} {shape:?}");
    let most = schedules.iter().map(|schedule| schedule.recv_peers().len()).max();
    assert_eq!(most, Some(report.most_recv_peers as usize), "{algorithm} {shape:?}");
}

#[test]
fn checker_passes_for_every_algorithm() {
    for ranks in 1..=128 {
        let q = ceil_log2(ranks).max(1);
        let mut roots = [0, 1, ranks / 2, ranks - 1].map(|root| root.min(ranks - 1)).to_vec();
        roots.sort_unstable();
        roots.dedup();
        for algorithm in Algorithm::ALL {
            for &root in &roots {
                for blocks in [1, 2, 3, q, 17] {
                    assert_checked(algorithm, ranks, root, blocks);
                }
            }
        }
    }
}

#[test]
fn checker_passes_for_random_shapes() {
    let mut rng = test_seed::rng("checker_passes_for_random_shapes");
    for _ in 0..30 {
        let ranks = rng.u32(2..=3000);
        let root = rng.u32(0..ranks);
        for algorithm in Algorithm::ALL {
            assert_checked(algorithm, ranks, root, rng.u32(1..=40));
        }
    }
    let ranks = rng.u32(50_000..=100_000);
    for algorithm in Algorithm::ALL {
        assert_checked(algorithm, ranks, rng.u32(0..ranks), rng.u32(1..=4));
    }
}

#[test]
fn one_rank_has_no_steps() {
    for algorithm in Algorithm::ALL {
        for blocks in [1, 2, 1000] {
            let schedule = broadcast(algorithm, Shape::new(1, 0, blocks).unwrap(), 0).unwrap();
            assert_eq!(schedule.steps(), []);
            assert_eq!(schedule.rounds(), 0);
        }
    }
}

#[test]
fn most_blocks_are_within_the_limits() {
    for algorithm in Algorithm::ALL {
        let shape = Shape::new(3, 1, MAX_BLOCKS).unwrap();
        let schedule = broadcast(algorithm, shape, 0).unwrap();
        let received = schedule.steps().iter().filter(|step| step.direction == Direction::Recv);
        let mut blocks: Vec<u32> = received.map(|step| step.block).collect();
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..MAX_BLOCKS), "{algorithm}");
        let shape = Shape::new(MAX_RANKS, 0, MAX_BLOCKS).unwrap();
        assert!(u32::try_from(rounds(algorithm, shape)).is_ok(), "{algorithm}");
    }
}

#[test]
fn steps_are_in_order_of_rounds_and_rebuildable() {
    for algorithm in Algorithm::ALL {
        let shape = Shape::new(21, 3, 6).unwrap();
        for schedule in all_ranks(algorithm, shape) {
            let steps = schedule.steps().to_vec();
            let rounds = schedule.rounds();
            let again = RankSchedule::from_steps(shape, schedule.rank(), rounds, steps).unwrap();
            assert_eq!(again, schedule);
        }
    }
}

#[test]
fn filling_again_keeps_the_memory() {
    let mut schedule = RankSchedule::default();
    let shape = Shape::new(64, 0, 100).unwrap();
    schedule.fill(Algorithm::PipelinedTree, shape, 1).unwrap();
    let (steps, capacity) = (schedule.steps.as_ptr(), schedule.steps.capacity());
    for rank in 0..64 {
        schedule.fill(Algorithm::PipelinedTree, shape, rank).unwrap();
        assert_eq!(schedule, broadcast(Algorithm::PipelinedTree, shape, rank).unwrap());
    }
    assert_eq!((schedule.steps.as_ptr(), schedule.steps.capacity()), (steps, capacity));
}

#[test]
fn chain_receives_each_block_once() {
    for rank in 0..7 {
        let shape = Shape::new(7, 2, 5).unwrap();
        let schedule = broadcast(Algorithm::PipelinedChain, shape, rank).unwrap();
        let steps = schedule.steps().iter();
        let received = steps.filter(|step| step.direction == Direction::Recv);
        let expected = if rank == 2 { 0..0 } else { 0..5 };
        assert!(received.map(|step| step.block).eq(expected), "rank {rank}");
    }
}

#[test]
fn chain_sends_a_round_after_receiving() {
    let shape = Shape::new(7, 2, 5).unwrap();
    for schedule in all_ranks(Algorithm::PipelinedChain, shape) {
        let of = |direction| schedule.steps().iter().filter(move |s| s.direction == direction);
        for recv in of(Direction::Recv) {
            for send in of(Direction::Send).filter(|send| send.block == recv.block) {
                assert_eq!(send.round, recv.round + 1);
            }
        }
    }
}

#[test]
fn binomial_has_the_printed_edges() {
    let shape = Shape::new(8, 0, 1).unwrap();
    let mut edges = Vec::new();
    for schedule in all_ranks(Algorithm::Binomial, shape) {
        let steps = schedule.steps().iter();
        let sends = steps.filter(|step| step.direction == Direction::Send);
        edges.extend(sends.map(|step| (step.round, schedule.rank(), step.peer)));
    }
    edges.sort_unstable();
    let printed = [(0, 0, 4), (1, 0, 2), (1, 4, 6), (2, 0, 1), (2, 2, 3), (2, 4, 5), (2, 6, 7)];
    assert_eq!(edges, printed);
}

#[test]
fn binomial_receives_from_rank_without_lowest_bit() {
    for ranks in 2..=300 {
        let shape = Shape::new(ranks, ranks / 3, 2).unwrap();
        for relative in 1..ranks {
            let rank = (relative + shape.root()) % ranks;
            let source = ((relative & (relative - 1)) + shape.root()) % ranks;
            let schedule = broadcast(Algorithm::Binomial, shape, rank).unwrap();
            assert_eq!(schedule.recv_peers(), [source], "N = {ranks}, relative {relative}");
        }
    }
}

#[test]
fn names_and_codes_come_back() {
    let names = Algorithm::ALL.map(|algorithm| algorithm.to_string());
    assert_eq!(names, ["binomial", "pipelined-chain", "pipelined-tree"]);
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse::<Algorithm>().unwrap(), algorithm);
        assert_eq!(Algorithm::from_code(algorithm.code()).unwrap(), algorithm);
        assert_ne!(algorithm.code(), 0);
    }
    let known: Vec<u8> = (0..=255).filter(|&code| Algorithm::from_code(code).is_ok()).collect();
    assert_eq!(known.len(), Algorithm::ALL.len());
    let error = "Binomial".parse::<Algorithm>().unwrap_err().to_string();
    assert!(error.contains("\"Binomial\"") && error.contains("pipelined-tree"), "{error}");
}

#[test]
fn shapes_outside_the_limits_are_errors() {
    let error = |ranks, root, blocks| Shape::new(ranks, root, blocks).unwrap_err();
    assert_eq!(error(0, 0, 1), ScheduleError::RankCount { ranks: 0 });
    let ranks = MAX_RANKS + 1;
    assert_eq!(error(ranks, 0, 1), ScheduleError::RankCount { ranks });
    assert_eq!(error(4, 4, 1), ScheduleError::RootOutside { root: 4, ranks: 4 });
    assert_eq!(error(4, 0, 0), ScheduleError::BlockCount { blocks: 0 });
    let blocks = MAX_BLOCKS + 1;
    assert_eq!(error(4, 0, blocks), ScheduleError::BlockCount { blocks });
    let shape = Shape::new(4, 3, 1).unwrap();
    let outside = broadcast(Algorithm::Binomial, shape, 4);
    assert_eq!(outside, Err(ScheduleError::RankOutside { rank: 4, ranks: 4 }));
}

#[test]
fn steps_made_elsewhere_are_validated() {
    let shape = Shape::new(4, 0, 2).unwrap();
    let good = Step { round: 1, direction: Direction::Send, peer: 1, block: 1, port: 0 };
    let make = |steps: &[Step]| RankSchedule::from_steps(shape, 0, 3, steps.to_vec());
    assert!(make(&[good]).is_ok());
    for bad in [
        Step { peer: 4, ..good },
        Step { peer: 0, ..good },
        Step { block: 2, ..good },
        Step { round: 3, ..good },
    ] {
        let error = make(&[good, bad]);
        assert!(matches!(error, Err(ScheduleError::StepOutside { index: 1, .. })), "{error:?}");
    }
    let error = make(&[good, Step { round: 0, ..good }]);
    assert!(matches!(error, Err(ScheduleError::StepOrder { index: 1, .. })), "{error:?}");
}

#[test]
fn ceil_log2_is_the_least_power_that_suffices() {
    for ranks in 1..=5000_u32 {
        let q = (0..32).find(|&q| 1_u32 << q >= ranks);
        assert_eq!(Some(ceil_log2(ranks)), q, "N = {ranks}");
    }
}
