//! `pipelined-chain`: each rank passes each block on to its successor.
//!
//! Reference: the linear pipeline is folklore; its cost in the telephone model is analysed, for
//! example, by S. L. Johnsson and C.-T. Ho, "Optimum broadcasting and personalized communication in
//! hypercubes", IEEE Transactions on Computers 38(9), 1989, DOI 10.1109/12.29465.
//!
//! Symbols: N ranks, numbered relative to the root; k blocks, numbered from 0.
//!
//! Rank r receives block c from rank r - 1 in round r - 1 + c and sends it to rank r + 1 in round
//! r + c. The root, r = 0, only sends; the last rank, r = N - 1, only receives.
//!
//! # Example: N = 4, k = 3
//!
//! | round | 0 | 1 | 2 | 3 | 4 |
//! |---|---|---|---|---|---|
//! | 0 > 1 | 0 | 1 | 2 | | |
//! | 1 > 2 | | 0 | 1 | 2 | |
//! | 2 > 3 | | | 0 | 1 | 2 |
//!
//! # Cost
//!
//! N + k - 2 rounds for N >= 2, none for N = 1. Every rank but the last sends M bytes, every rank
//! but the root receives M: (N - 1) M bytes on the wire.
//!
//! # Conditions
//!
//! 1. `chain_receives_each_block_once`: every rank but the root receives each block exactly once.
//! 2. `chain_sends_a_round_after_receiving`: an inner rank sends a block in the round after it came.
//! 3. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step};

/// N + k - 2; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    u64::from(shape.ranks()) + u64::from(shape.blocks()) - 2
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let (n, k, r) = (shape.ranks(), shape.blocks(), shape.relative(rank));
    let source = (r > 0).then(|| shape.absolute(r - 1));
    let target = (r + 1 < n).then(|| shape.absolute(r + 1));
    let directions = usize::from(source.is_some()) + usize::from(target.is_some());
    steps.reserve(directions * k as usize);
    // Round r + c sends block c, and receives block c + 1, if there is one.
    if let Some(peer) = source {
        steps.push(Step { round: r - 1, direction: Direction::Recv, peer, block: 0, port: 0 });
    }
    for c in 0..k {
        let round = r + c;
        if let Some(peer) = target {
            steps.push(Step { round, direction: Direction::Send, peer, block: c, port: 0 });
        }
        if let (Some(peer), true) = (source, c + 1 < k) {
            steps.push(Step { round, direction: Direction::Recv, peer, block: c + 1, port: 0 });
        }
    }
}
