//! `recursive-doubling`: an allgather of exchanges over the distances 1, 2, 4, ...
//!
//! Reference: R. Thakur, R. Rabenseifner and W. Gropp, IJHPCA 19(1), 2005, DOI 10.1177/1094342005051521.
//!
//! Symbols: N = 2^q ranks; c bytes of each; k blocks of each.
//!
//! In round j, for j = 0 .. q - 1, the ranks r and r xor 2^j exchange all they have: the parts of the
//! 2^j ranks that differ from each in the lowest j bits only.
//!
//! # Example: N = 4
//!
//! | round | 0 | 1 |
//! |---|---|---|
//! | exchanges | 0 - 1: 0 for 1, 2 - 3: 2 for 3 | 0 - 2 and 1 - 3: 0 1 for 2 3 |
//!
//! # Cost
//!
//! q rounds, q alpha + (N - 1) c / beta in the telephone model; N (N - 1) c bytes on the wire. Other N
//! than powers of two are an error: `bruck` is the same for those.
//!
//! # Conditions
//!
//! 1. `recursive_doubling_needs_a_power_of_two`: anything else is an error.
//! 2. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step, ceil_log2};

/// q.
pub(super) fn rounds(shape: Shape) -> u64 {
    ceil_log2(shape.ranks()).into()
}

/// Appends the steps of `rank`, which is below N, a power of two.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    for round in 0..ceil_log2(shape.ranks()) {
        let distance = 1_u32 << round;
        let peer = rank ^ distance;
        for (side, owner) in [(Direction::Send, rank), (Direction::Recv, peer)] {
            let first = owner & !(distance - 1);
            let blocks = (first..first + distance).flat_map(|part| shape.part(part));
            steps.extend(blocks.map(|block| Step::new(round, side, peer, block, 0)));
        }
    }
}
