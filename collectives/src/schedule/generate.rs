//! From an algorithm and a shape to steps: stripes for several ports, gathers from scatters.

use super::{
    Algorithm, Direction, Operation, Rank, Shape, Step, bidirectional_ring, binary, binomial,
    bruck, ceil_log2, chain, circulant, circulant_allgather, flat, knomial, recursive_doubling,
    ring, scatter_allgather, two_tree,
};

/// Whether the algorithm has its own use for several ports; the others are striped.
fn uses_ports(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Flat | Algorithm::Knomial | Algorithm::BidirectionalRing)
}

/// The rounds of the algorithm; the caller has set N = 1 aside.
pub(super) fn rounds(algorithm: Algorithm, shape: Shape) -> u64 {
    // The first stripe has the most blocks; there always is one.
    let shape = if uses_ports(algorithm) { shape } else { shape.stripe(0).unwrap_or(shape) };
    match algorithm {
        Algorithm::Flat => flat::rounds(shape),
        Algorithm::Chain => chain::plain_rounds(shape),
        Algorithm::PipelinedChain => chain::pipelined_rounds(shape),
        Algorithm::Binomial if shape.operation().has_parts() => knomial::rounds(shape, 2),
        Algorithm::Binomial | Algorithm::PipelinedBinomial => binomial::rounds(shape),
        Algorithm::Knomial => knomial::rounds(shape, shape.radix()),
        Algorithm::PipelinedBinary => binary::rounds(shape),
        Algorithm::TwoTree => two_tree::rounds(shape),
        Algorithm::PipelinedTree => circulant::rounds(shape),
        Algorithm::ScatterAllgather => scatter_allgather::rounds(shape),
        Algorithm::BidirectionalRing => bidirectional_ring::rounds(shape),
        Algorithm::Ring => ring::rounds(shape),
        Algorithm::RecursiveDoubling => recursive_doubling::rounds(shape),
        Algorithm::Bruck => bruck::rounds(shape),
        Algorithm::Circulant => circulant_allgather::rounds(shape),
    }
}

/// No rank has more steps than this.
pub(super) fn most_steps(algorithm: Algorithm, shape: Shape) -> u64 {
    let (ranks, blocks) = (u64::from(shape.ranks()), u64::from(shape.blocks()));
    let q = u64::from(ceil_log2(shape.ranks()));
    match (shape.operation(), algorithm) {
        (Operation::Broadcast, Algorithm::Flat) => ranks * blocks,
        // A radix above N makes a flat tree.
        (Operation::Broadcast, Algorithm::Knomial) => {
            blocks + blocks * ranks.min((q + 1) * u64::from(shape.radix()))
        }
        (Operation::Broadcast, _) => (q + 3) * blocks,
        (Operation::Scatter | Operation::Gather, _) => 2 * ranks * blocks,
        (Operation::Allgather, _) => (q + 2) * ranks * blocks,
    }
}

/// Appends the steps of `rank`, which is below N, to the empty list; N is above 1, and the algorithm is
/// one of the shape's operation.
pub(super) fn push_steps(
    algorithm: Algorithm,
    shape: Shape,
    rank: Rank,
    rounds: u32,
    steps: &mut Vec<Step>,
) {
    if shape.ports() == 1 || uses_ports(algorithm) {
        push_unstriped(algorithm, shape, rank, steps);
    } else {
        push_stripes(algorithm, shape, rank, steps);
    }
    if shape.operation() == Operation::Gather {
        // They were those of a scatter so far.
        steps.reverse();
        for step in steps {
            step.round = rounds - 1 - step.round;
            step.direction = match step.direction {
                Direction::Send => Direction::Recv,
                Direction::Recv => Direction::Send,
            };
        }
    }
}

fn push_stripes(algorithm: Algorithm, shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let ports = u32::from(shape.ports());
    for port in 0..shape.ports() {
        let Some(stripe) = shape.stripe(port) else { break };
        let first = steps.len();
        push_unstriped(algorithm, stripe, rank, steps);
        for step in &mut steps[first..] {
            let (part, block) = (step.block / stripe.blocks(), step.block % stripe.blocks());
            step.block = part * shape.blocks() + block * ports + u32::from(port);
            step.port = port;
        }
    }
    // Stable: within a round each stripe keeps its order.
    steps.sort_by_key(|step| step.round);
}

fn push_unstriped(algorithm: Algorithm, shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    match algorithm {
        Algorithm::Flat => flat::push_steps(shape, rank, steps),
        Algorithm::Chain => chain::push_plain(shape, rank, steps),
        Algorithm::PipelinedChain => chain::push_pipelined(shape, rank, steps),
        Algorithm::Binomial if shape.operation().has_parts() => {
            knomial::push_steps(shape, 2, rank, steps);
        }
        Algorithm::Binomial => binomial::push_plain(shape, rank, steps),
        Algorithm::Knomial => knomial::push_steps(shape, shape.radix(), rank, steps),
        Algorithm::PipelinedBinary => binary::push_steps(shape, rank, steps),
        Algorithm::PipelinedBinomial => binomial::push_pipelined(shape, rank, steps),
        Algorithm::TwoTree => two_tree::push_steps(shape, rank, steps),
        Algorithm::PipelinedTree => circulant::push_steps(shape, rank, steps),
        Algorithm::ScatterAllgather => scatter_allgather::push_steps(shape, rank, steps),
        Algorithm::BidirectionalRing => bidirectional_ring::push_steps(shape, rank, steps),
        Algorithm::Ring => ring::push_steps(shape, rank, steps),
        Algorithm::RecursiveDoubling => recursive_doubling::push_steps(shape, rank, steps),
        Algorithm::Bruck => bruck::push_steps(shape, rank, steps),
        Algorithm::Circulant => circulant_allgather::push_steps(shape, rank, steps),
    }
}
