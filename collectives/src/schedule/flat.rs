//! `flat`: the root sends to each rank itself.
//!
//! Reference: folklore; the baseline of every comparison of collectives, for example R. Thakur, R.
//! Rabenseifner and W. Gropp, IJHPCA 19(1), 2005, DOI 10.1177/1094342005051521.
//!
//! Symbols: N ranks, numbered relative to the root; d ports; k blocks, of the message in a
//! broadcast, of each rank's part in a scatter.
//!
//! The root serves d ranks at a time, in order: rank r > 0 in group g = (r - 1) div d on port
//! (r - 1) mod d. In a broadcast a group takes k rounds, a block each; in a scatter it takes one,
//! in which each rank's k blocks are one message. A gather is the scatter with every arrow and the
//! order of rounds reversed.
//!
//! # Example: N = 4, k = 2, d = 1
//!
//! | round | 0 | 1 | 2 | 3 | 4 | 5 |
//! |---|---|---|---|---|---|---|
//! | broadcast | 0 > 1: 0 | 0 > 1: 1 | 0 > 2: 0 | 0 > 2: 1 | 0 > 3: 0 | 0 > 3: 1 |
//! | scatter | 0 > 1: 2, 3 | 0 > 2: 4, 5 | 0 > 3: 6, 7 | | | |
//!
//! # Cost
//!
//! ceil((N - 1) / d) k rounds for a broadcast, ceil((N - 1) / d) for scatter and gather. On the wire
//! (N - 1) M bytes for a broadcast of M, (N - 1) c for parts of c: no schedule of a scatter sends
//! less.
//!
//! # Conditions
//!
//! 1. `only_the_root_sends_in_flat`: no other rank sends in a broadcast or scatter.
//! 2. The checker passes, with the rounds above.

use super::{Direction, Operation, Rank, Shape, Step};

/// ceil((N - 1) / d), times k for a broadcast; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    let groups = u64::from(shape.ranks() - 1).div_ceil(u64::from(shape.ports()));
    groups * rounds_of_group(shape)
}

fn rounds_of_group(shape: Shape) -> u64 {
    match shape.operation() {
        Operation::Broadcast => shape.blocks().into(),
        _ => 1,
    }
}

/// Appends the steps of `rank` in a broadcast or a scatter.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let (n, d, r) = (shape.ranks(), u32::from(shape.ports()), shape.relative(rank));
    let per_group = rounds_of_group(shape) as u32;
    let mut group = |children: std::ops::Range<u32>, side: Direction| {
        let first = (children.start - 1) / d * per_group;
        if shape.operation() == Operation::Broadcast {
            for block in 0..shape.blocks() {
                for child in children.clone() {
                    let peer = shape.absolute(if side == Direction::Send { child } else { 0 });
                    steps.push(Step::new(first + block, side, peer, block, (child - 1) % d));
                }
            }
        } else {
            for child in children {
                let peer = shape.absolute(if side == Direction::Send { child } else { 0 });
                for block in shape.part(shape.absolute(child)) {
                    steps.push(Step::new(first, side, peer, block, (child - 1) % d));
                }
            }
        }
    };
    if r > 0 {
        return group(r..r + 1, Direction::Recv);
    }
    let mut child = 1;
    while child < n {
        // Below N + d, and both are far below 2^31.
        let end = (child + d).min(n);
        group(child..end, Direction::Send);
        child = end;
    }
}
