//! `bruck`: an allgather of q rounds for any number of ranks.
//!
//! Reference: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for
//! all-to-all communications in multiport message-passing systems", IEEE TPDS 8(11), 1997, DOI
//! 10.1109/71.642949.
//!
//! Symbols: N ranks; q = ceil(log2 N); c bytes of each; k blocks of each.
//!
//! In round j, for j = 0 .. q - 1, with D = 2^j, rank r has the parts of the D ranks r .. r + D - 1, mod N.
//! It sends the first min(D, N - D) of them to rank r - D and receives as many, those from rank r + D on,
//! from rank r + D. The parts lie where they belong from the start, so there is no rotation at the end.
//!
//! # Example: N = 3
//!
//! | round | 0 | 1 |
//! |---|---|---|
//! | edges | 0 > 2: 0, 1 > 0: 1, 2 > 1: 2 | 0 > 1: 0, 1 > 2: 1, 2 > 0: 2 |
//!
//! # Cost
//!
//! q rounds, q alpha + (N - 1) c / beta in the telephone model; N (N - 1) c bytes on the wire.
//!
//! # Conditions
//!
//! 1. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step, ceil_log2};

/// q.
pub(super) fn rounds(shape: Shape) -> u64 {
    ceil_log2(shape.ranks()).into()
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let n = shape.ranks();
    for round in 0..ceil_log2(n) {
        let distance = 1_u32 << round;
        let count = distance.min(n - distance);
        let (to, from) = ((rank + n - distance) % n, (rank + distance) % n);
        for (side, peer, first) in [(Direction::Send, to, rank), (Direction::Recv, from, from)] {
            let parts = (0..count).flat_map(|index| shape.part((first + index) % n));
            steps.extend(parts.map(|block| Step::new(round, side, peer, block, 0)));
        }
    }
}
