//! Properties of the schedules of all algorithms, verified by the independent checker.

use super::*;
use crate::check::{Claim, check};
use crate::test_seed;

fn all_ranks(algorithm: Algorithm, shape: Shape) -> Vec<RankSchedule> {
    (0..shape.ranks()).map(|rank| schedule(algorithm, shape, rank).unwrap()).collect()
}

/// The formulas that theory has, written once more than in the algorithms' files; for the others the
/// checker's own count is what there is to compare.
fn expected_rounds(algorithm: Algorithm, shape: Shape) -> Option<u64> {
    let (n, ports) = (u64::from(shape.ranks()), u64::from(shape.ports()));
    let (whole, k) = (u64::from(shape.blocks()), u64::from(shape.blocks()).div_ceil(ports));
    let q = f64::from(shape.ranks()).log2().ceil() as u64;
    let has_parts = shape.operation().has_parts();
    Some(match algorithm {
        _ if n == 1 => 0,
        Algorithm::Flat if has_parts => (n - 1).div_ceil(ports),
        Algorithm::Flat => (n - 1).div_ceil(ports) * whole,
        Algorithm::Chain => (n - 1) * k,
        Algorithm::PipelinedChain => n + k - 2,
        Algorithm::Binomial if has_parts => q,
        Algorithm::Binomial | Algorithm::PipelinedBinomial => q * k,
        Algorithm::PipelinedBinary if n == 2 => k,
        Algorithm::PipelinedBinary if n.is_power_of_two() => 2 * k + 2 * q - 4,
        Algorithm::PipelinedTree | Algorithm::Circulant => q + k - 1,
        Algorithm::ScatterAllgather => q + n - 1,
        Algorithm::BidirectionalRing if ports > 1 => {
            n.div_ceil(2).max(n / 2) - u64::from(n % 2 == 1) + whole.div_ceil(ports / 2) - 1
        }
        Algorithm::Ring => n - 1,
        Algorithm::RecursiveDoubling | Algorithm::Bruck => q,
        // m (R - 1) at N = R^m with one port; ceil(log_{d+1} N) with d = R - 1.
        Algorithm::Knomial if ports == 1 => {
            let radix = u64::from(shape.radix());
            let m = (0..).find(|&m| radix.pow(m) >= n).filter(|&m| radix.pow(m) == n)?;
            u64::from(m) * (radix - 1) * if has_parts { 1 } else { whole }
        }
        Algorithm::Knomial if ports + 1 == u64::from(shape.radix()) => {
            let levels = (0..).find(|&m| (ports + 1).pow(m) >= n)?;
            u64::from(levels) * if has_parts { 1 } else { whole }
        }
        _ => return None,
    })
}

/// Makes the schedules of all ranks and has them checked; nothing where the algorithm does not go with
/// the number of ranks.
fn assert_checked(algorithm: Algorithm, shape: Shape) {
    let (operation, ranks) = (shape.operation(), shape.ranks());
    if algorithm == Algorithm::RecursiveDoubling && !ranks.is_power_of_two() {
        let error = schedule(algorithm, shape, 0).unwrap_err();
        assert_eq!(error, ScheduleError::NotPowerOfTwo { algorithm, ranks });
        return;
    }
    let claimed = rounds(algorithm, shape);
    if let Some(expected) = expected_rounds(algorithm, shape) {
        assert_eq!(claimed, expected, "{algorithm} {shape:?}");
    }
    let schedules = all_ranks(algorithm, shape);
    assert!(schedules.iter().all(|schedule| u64::from(schedule.rounds()) == claimed));
    let many = operation.has_parts() || algorithm == Algorithm::ScatterAllgather;
    let message_blocks = if many { u32::MAX } else { 1 };
    let claim = Claim { message_blocks, ..Claim::new(shape, claimed) };
    let report =
        check(&claim, &schedules).unwrap_or_else(|error| panic!("{algorithm} {shape:?}: {error}"));
    let others = u64::from(ranks - 1);
    let received = u64::from(shape.blocks()) * others;
    match operation {
        Operation::Broadcast => assert_eq!(report.transfers, received, "{algorithm} {shape:?}"),
        Operation::Allgather => {
            assert_eq!(report.transfers, received * u64::from(ranks), "{algorithm} {shape:?}");
        }
        // Inner ranks get others' blocks as well.
        Operation::Scatter | Operation::Gather => assert!(report.transfers >= received),
    }
    let most_steps = generate::most_steps(algorithm, shape);
    for schedule in &schedules {
        assert!(schedule.steps().len() as u64 <= most_steps, "{algorithm} {shape:?}");
    }
    let most = schedules.iter().map(|schedule| schedule.send_peers().len()).max();
    assert_eq!(most, Some(report.most_send_peers as usize), "{algorithm} {shape:?}");
    let most = schedules.iter().map(|schedule| schedule.recv_peers().len()).max();
    assert_eq!(most, Some(report.most_recv_peers as usize), "{algorithm} {shape:?}");
}

/// 0, 1, N / 2 and N - 1, each once.
fn roots(ranks: u32) -> Vec<Rank> {
    let mut roots = [0, 1, ranks / 2, ranks - 1].map(|root| root.min(ranks - 1)).to_vec();
    roots.sort_unstable();
    roots.dedup();
    roots
}

fn shape_of(
    operation: Operation,
    ranks: u32,
    root: Rank,
    blocks: u32,
    ports: u16,
    radix: u32,
) -> Shape {
    let shape = Shape::new(ranks, root, blocks).unwrap().with_operation(operation).unwrap();
    shape.with_ports(ports).unwrap().with_radix(radix).unwrap()
}

/// Every algorithm, N to 128, roots, numbers of blocks, ports, radices: one choice of the last four for
/// each of the first two, by seed, or all with VERBCAST_FULL.
#[test]
fn checker_passes_for_every_algorithm() {
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let mut rng = test_seed::rng("checker_passes_for_every_algorithm");
    let mut checked = 0;
    for operation in Operation::ALL {
        for &algorithm in Algorithm::of(operation) {
            for ranks in 1..=128 {
                let q = ceil_log2(ranks).max(1);
                let mut shapes = Vec::new();
                // An allgather has no root.
                let roots = if operation == Operation::Allgather { vec![0] } else { roots(ranks) };
                for root in roots {
                    for blocks in [1, 2, 3, q, 17] {
                        for ports in 1..=4 {
                            let radices: &[u32] = match algorithm {
                                Algorithm::Knomial => &[2, 3, 4, 5, 8, 200],
                                _ => &[2],
                            };
                            shapes.extend(radices.iter().map(|&radix| {
                                shape_of(operation, ranks, root, blocks, ports, radix)
                            }));
                        }
                    }
                }
                if !full {
                    rng.shuffle(&mut shapes);
                    shapes.truncate(if operation == Operation::Allgather { 1 } else { 3 });
                }
                for shape in shapes {
                    assert_checked(algorithm, shape);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 5000, "{checked}");
}

/// The circulant schedule for N to 2048, one port and several.
#[test]
fn checker_passes_for_the_circulant_tree_of_up_to_2048_ranks() {
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let mut rng = test_seed::rng("checker_passes_for_the_circulant_tree");
    for ranks in 129..=2048_u32 {
        if !full && rng.u32(0..40) > 0 {
            continue;
        }
        for root in roots(ranks) {
            for blocks in [1, 2, 3, ceil_log2(ranks), 17] {
                if full || rng.u32(0..4) == 0 {
                    let ports = rng.u16(1..=4);
                    let shape = shape_of(Operation::Broadcast, ranks, root, blocks, ports, 2);
                    assert_checked(Algorithm::PipelinedTree, shape);
                }
            }
        }
    }
}

#[test]
fn checker_passes_for_random_shapes() {
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let mut rng = test_seed::rng("checker_passes_for_random_shapes");
    for _ in 0..if full { 50 } else { 5 } {
        let ranks = rng.u32(2..=3000);
        for algorithm in Algorithm::BROADCAST {
            let (root, blocks) = (rng.u32(0..ranks), rng.u32(1..=40));
            let shape = shape_of(Operation::Broadcast, ranks, root, blocks, 1, rng.u32(2..=9));
            assert_checked(algorithm, shape.with_ports(rng.u16(1..=4)).unwrap());
        }
    }
    // A few of the algorithms, or all, for very many ranks.
    let ranks = rng.u32(50_000..=100_000);
    let mut cases: Vec<_> = Algorithm::BROADCAST
        .into_iter()
        .map(|algorithm| (Operation::Broadcast, algorithm))
        .collect();
    for &algorithm in Algorithm::of(Operation::Scatter) {
        cases.extend([Operation::Scatter, Operation::Gather].map(|other| (other, algorithm)));
    }
    rng.shuffle(&mut cases);
    cases.truncate(if full { usize::MAX } else { 3 });
    cases.push((Operation::Broadcast, Algorithm::PipelinedTree));
    for (operation, algorithm) in cases {
        let blocks = if operation == Operation::Broadcast { rng.u32(1..=4) } else { 1 };
        let shape = shape_of(operation, ranks, rng.u32(0..ranks), blocks, 1, 5);
        assert_checked(algorithm, shape);
    }
}

#[test]
fn one_rank_has_no_steps() {
    for algorithm in Algorithm::BROADCAST {
        for blocks in [1, 2, 1000] {
            let schedule = broadcast(algorithm, Shape::new(1, 0, blocks).unwrap(), 0).unwrap();
            assert_eq!(schedule.steps(), []);
            assert_eq!(schedule.rounds(), 0);
        }
    }
}

#[test]
fn most_blocks_are_within_the_limits() {
    for algorithm in Algorithm::BROADCAST {
        let shape = Shape::new(3, 1, MAX_BLOCKS).unwrap();
        let schedule = broadcast(algorithm, shape, 0).unwrap();
        let received = schedule.steps().iter().filter(|step| step.direction == Direction::Recv);
        let mut blocks: Vec<u32> = received.map(|step| step.block).collect();
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..MAX_BLOCKS), "{algorithm}");
    }
    // What exceeds 32-bit rounds, or memory, is an error before anything is made.
    let shape = Shape::new(MAX_RANKS, 0, MAX_BLOCKS).unwrap();
    for algorithm in [Algorithm::Flat, Algorithm::Chain, Algorithm::Knomial] {
        let error = broadcast(algorithm, shape.with_radix(MAX_RADIX).unwrap(), 0).unwrap_err();
        assert!(matches!(error, ScheduleError::TooLarge { .. }), "{algorithm}: {error}");
    }
    let error = Shape::new(MAX_RANKS, 0, 4).unwrap().with_operation(Operation::Scatter);
    assert_eq!(error, Err(ScheduleError::TotalBlocks { ranks: MAX_RANKS, blocks: 4 }));
}

#[test]
fn an_algorithm_of_another_operation_is_an_error() {
    for operation in Operation::ALL {
        let shape = shape_of(operation, 8, 3, 2, 1, 2);
        for algorithm in Operation::ALL.into_iter().flat_map(|other| Algorithm::of(other)) {
            let result = schedule(*algorithm, shape, 1);
            let belongs = Algorithm::of(operation).contains(algorithm);
            assert_eq!(result.is_ok(), belongs, "{algorithm} {operation}");
        }
    }
}

#[test]
fn only_the_root_sends_in_flat() {
    for operation in [Operation::Broadcast, Operation::Scatter] {
        let shape = shape_of(operation, 9, 3, 2, 2, 2);
        for schedule in all_ranks(Algorithm::Flat, shape) {
            assert_eq!(schedule.send_peers().is_empty(), schedule.rank() != 3);
        }
    }
}

#[test]
fn knomial_of_radix_2_is_binomial() {
    for ranks in 2..=70 {
        let shape = Shape::new(ranks, ranks / 2, 3).unwrap();
        for rank in 0..ranks {
            let [knomial, binomial] = [Algorithm::Knomial, Algorithm::Binomial]
                .map(|algorithm| broadcast(algorithm, shape, rank).unwrap());
            assert_eq!(knomial.steps(), binomial.steps());
        }
    }
}

#[test]
fn knomial_is_served_on_its_lowest_digit() {
    for (ranks, radix) in [(9, 3), (100, 4), (128, 5), (77, 8)] {
        let shape = shape_of(Operation::Broadcast, ranks, 0, 1, 1, radix);
        for rank in 1..ranks {
            let mut power = 1;
            while rank / power % radix == 0 {
                power *= radix;
            }
            let source = rank - rank / power % radix * power;
            let schedule = broadcast(Algorithm::Knomial, shape, rank).unwrap();
            assert_eq!(schedule.recv_peers(), [source], "N = {ranks}, rank {rank}");
        }
    }
}

#[test]
fn pipelined_binomial_has_the_same_edges() {
    let shape = Shape::new(21, 4, 3).unwrap();
    for rank in 0..21 {
        let [plain, pipelined] = [Algorithm::Binomial, Algorithm::PipelinedBinomial]
            .map(|algorithm| broadcast(algorithm, shape, rank).unwrap());
        assert_eq!(plain.send_peers(), pipelined.send_peers());
        assert_eq!(plain.recv_peers(), pipelined.recv_peers());
    }
}

#[test]
fn binary_takes_the_counted_rounds() {
    for (ranks, blocks, counted) in [(8, 16, 34), (64, 64, 136), (2, 9, 9)] {
        let shape = Shape::new(ranks, 0, blocks).unwrap();
        assert_eq!(rounds(Algorithm::PipelinedBinary, shape), counted);
    }
}

#[test]
fn a_rank_is_an_inner_node_of_one_tree() {
    for ranks in 3..=200_u32 {
        let shape = Shape::new(ranks, 0, 2).unwrap();
        for schedule in all_ranks(Algorithm::TwoTree, shape) {
            let steps = schedule.steps().iter();
            let mut sent: Vec<u32> = steps
                .filter(|step| step.direction == Direction::Send)
                .map(|step| step.block)
                .collect();
            sent.dedup();
            // Block 0 goes down one tree and block 1 down the other.
            assert!(sent.len() <= 1 || schedule.rank() == 0, "N = {ranks}: {sent:?}");
        }
    }
}

#[test]
fn two_tree_is_within_2q_of_k() {
    for ranks in 2..=5000 {
        let shape = Shape::new(ranks, 0, 10).unwrap();
        let most = 10 + 2 * u64::from(ceil_log2(ranks));
        assert!(rounds(Algorithm::TwoTree, shape) <= most, "N = {ranks}");
    }
}

#[test]
fn scatter_allgather_deals_all_blocks() {
    for (ranks, blocks) in [(4, 4), (5, 3), (7, 100), (64, 1)] {
        let shape = Shape::new(ranks, 0, blocks).unwrap();
        // What a leaf of the scatter gets there, and what the root sends, are the runs.
        let schedule = broadcast(Algorithm::ScatterAllgather, shape, 0).unwrap();
        let q = ceil_log2(ranks);
        let scattered = schedule.steps().iter().filter(|step| step.round < q);
        let mut scattered: Vec<u32> = scattered.map(|step| step.block).collect();
        scattered.sort_unstable();
        let own = blocks.div_ceil(ranks);
        assert!(scattered.into_iter().eq(own..blocks), "N = {ranks}, k = {blocks}");
    }
}

#[test]
fn bidirectional_ring_of_four_takes_two_rounds() {
    let shape = shape_of(Operation::Broadcast, 4, 0, 1, 2, 2);
    assert_eq!(rounds(Algorithm::BidirectionalRing, shape), 2);
    let root = schedule(Algorithm::BidirectionalRing, shape, 0).unwrap();
    let sends: Vec<_> =
        root.steps().iter().map(|step| (step.round, step.peer, step.port)).collect();
    assert_eq!(sends, [(0, 1, 0), (0, 3, 1)]);
}

#[test]
fn recursive_doubling_needs_a_power_of_two() {
    for ranks in 1..=64_u32 {
        let shape = shape_of(Operation::Allgather, ranks, 0, 1, 1, 2);
        let made = schedule(Algorithm::RecursiveDoubling, shape, 0).is_ok();
        assert_eq!(made, ranks.is_power_of_two());
    }
}

#[test]
fn steps_are_in_order_of_rounds_and_rebuildable() {
    for algorithm in Algorithm::BROADCAST {
        let shape = Shape::new(21, 3, 6).unwrap();
        for schedule in all_ranks(algorithm, shape) {
            assert!(schedule.steps().is_sorted_by_key(|step| step.round), "{algorithm}");
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
    let names = Algorithm::BROADCAST.map(|algorithm| algorithm.to_string());
    let fixed = "flat chain pipelined-chain binomial knomial pipelined-binary pipelined-binomial \
                 two-tree pipelined-tree scatter-allgather bidirectional-ring";
    assert_eq!(names.join(" "), fixed);
    let all: Vec<Algorithm> =
        (0..=255).filter_map(|code| Algorithm::from_code(code).ok()).collect();
    assert_eq!(all.len(), 15);
    for algorithm in all {
        assert_eq!(algorithm.name().parse::<Algorithm>().unwrap(), algorithm);
        assert_eq!(Algorithm::from_code(algorithm.code()).unwrap(), algorithm);
        assert_ne!(algorithm.code(), 0);
        assert!(Operation::ALL.iter().any(|&op| Algorithm::of(op).contains(&algorithm)));
    }
    let error = "Binomial".parse::<Algorithm>().unwrap_err().to_string();
    assert!(error.contains("\"Binomial\"") && error.contains("pipelined-tree"), "{error}");
    for operation in Operation::ALL {
        assert_eq!(operation.name().parse::<Operation>().unwrap(), operation);
    }
    assert!("reduce".parse::<Operation>().unwrap_err().to_string().contains("allgather"));
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
    assert_eq!(shape.with_ports(0), Err(ScheduleError::PortCount { ports: 0 }));
    let ports = MAX_PORTS + 1;
    assert_eq!(shape.with_ports(ports), Err(ScheduleError::PortCount { ports }));
    for radix in [0, 1, MAX_RADIX + 1] {
        assert_eq!(shape.with_radix(radix), Err(ScheduleError::Radix { radix }));
    }
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
