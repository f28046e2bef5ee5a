//! `ring`: an allgather in which each rank passes each part on to its successor.
//!
//! Reference: R. Thakur, R. Rabenseifner and W. Gropp, IJHPCA 19(1), 2005, DOI 10.1177/1094342005051521.
//!
//! Symbols: N ranks; c bytes of each; k blocks of each.
//!
//! In round t, for t = 0 .. N - 2, rank r sends the part of rank (r - t) mod N to rank r + 1, mod N, and
//! receives that of rank (r - 1 - t) mod N from rank r - 1. The k blocks of a part are one message.
//!
//! # Example: N = 3
//!
//! | round | 0 | 1 |
//! |---|---|---|
//! | edges | 0 > 1: 0, 1 > 2: 1, 2 > 0: 2 | 0 > 1: 2, 1 > 2: 0, 2 > 0: 1 |
//!
//! # Cost
//!
//! N - 1 rounds, (N - 1)(alpha + c / beta) in the telephone model; N (N - 1) c bytes on the wire.
//!
//! # Conditions
//!
//! 1. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step};

/// N - 1.
pub(super) fn rounds(shape: Shape) -> u64 {
    u64::from(shape.ranks()) - 1
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let n = shape.ranks();
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    for round in 0..n - 1 {
        let part = |end: Rank| shape.part((end + n - round) % n);
        steps.extend(part(rank).map(|block| Step::new(round, Direction::Send, next, block, 0)));
        let receive = |block| Step::new(round, Direction::Recv, previous, block, 0);
        steps.extend(part(previous).map(receive));
    }
}
