//! `binomial` and `pipelined-binomial`: a binomial tree, the whole message or block by block.
//!
//! Reference: the binomial broadcast tree is folklore; see R. Thakur, R. Rabenseifner and W. Gropp,
//! "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005, DOI
//! 10.1177/1094342005051521.
//!
//! Symbols: N ranks, numbered relative to the root; q = ceil(log2 N); k blocks, numbered from 0.
//!
//! Stage i, for i = 0 .. q - 1, has the distance D = 2^(q-1-i): every rank r that is a multiple of
//! 2 D sends the message to rank r + D, where there is such a rank. So rank r > 0 receives from r
//! without its lowest set bit, in the stage whose D is that bit, and sends in the stages after it,
//! to its largest subtree first. The algorithm is meant unsegmented, k = 1. Where a message exceeds
//! the largest block, k > 1: a stage is then k rounds, in which the edge carries the blocks one
//! after another, and a rank begins to send only in the stage after the one in which it received.
//!
//! # Example: N = 8, k = 1
//!
//! | round | 0 | 1 | 2 |
//! |---|---|---|---|
//! | edges | 0 > 4 | 0 > 2, 4 > 6 | 0 > 1, 2 > 3, 4 > 5, 6 > 7 |
//!
//! # Cost
//!
//! q k rounds, exactly: q for the unsegmented tree. The root sends q M bytes, every other rank
//! receives M: (N - 1) M bytes on the wire. Run without pacing, blocks follow one another down the
//! tree and it is done sooner than q k rounds, since the second child's blocks need not wait for
//! the last of the first; the root's own q k sends remain the bound.
//!
//! `pipelined-binomial` has the same edges in another order: stage i carries block c in round
//! c q + i, so that a block is all the way down before the next one starts. That is q k rounds as
//! well, since the root sends every block q times: pipelining a binomial tree gains nothing. It is
//! here so that one can see it.
//!
//! # Conditions
//!
//! 1. `binomial_has_the_printed_edges`: the edges are those of the example for N = 8.
//! 2. `binomial_receives_from_rank_without_lowest_bit`: one source, r without its lowest set bit.
//! 3. `pipelined_binomial_has_the_same_edges`: in another order.
//! 4. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step, ceil_log2};

/// q k for both; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    u64::from(ceil_log2(shape.ranks())) * u64::from(shape.blocks())
}

/// Appends the steps of `rank` in `binomial`.
pub(super) fn push_plain(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let k = shape.blocks();
    for (stage, direction, peer) in edges(shape, rank) {
        steps.reserve(k as usize);
        steps.extend((0..k).map(|block| Step::new(stage * k + block, direction, peer, block, 0)));
    }
}

/// Appends the steps of `rank` in `pipelined-binomial`.
pub(super) fn push_pipelined(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let q = ceil_log2(shape.ranks());
    steps.reserve(shape.blocks() as usize * edges(shape, rank).count());
    for block in 0..shape.blocks() {
        let step =
            |(stage, direction, peer)| Step::new(block * q + stage, direction, peer, block, 0);
        steps.extend(edges(shape, rank).map(step));
    }
}

/// The stages in which `rank` has an edge, in order, with the direction and the other end.
fn edges(shape: Shape, rank: Rank) -> impl Iterator<Item = (u32, Direction, Rank)> {
    let (n, r) = (shape.ranks(), shape.relative(rank));
    let q = ceil_log2(n);
    (0..q).filter_map(move |stage| {
        let distance = 1_u32 << (q - 1 - stage);
        match r & (2 * distance - 1) {
            0 if r + distance < n => Some((stage, Direction::Send, shape.absolute(r + distance))),
            low if low == distance => Some((stage, Direction::Recv, shape.absolute(r - distance))),
            _ => None,
        }
    })
}
