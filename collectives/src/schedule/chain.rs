//! `chain` and `pipelined-chain`: each rank passes the message on to its successor, whole or block by
//! block.
//!
//! Reference: the linear pipeline is folklore; its cost in the telephone model is analysed, for
//! example, by S. L. Johnsson and C.-T. Ho, "Optimum broadcasting and personalized communication in
//! hypercubes", IEEE Transactions on Computers 38(9), 1989, DOI 10.1109/12.29465.
//!
//! Symbols: N ranks, numbered relative to the root; k blocks, numbered from 0.
//!
//! Pipelined, rank r receives block c from rank r - 1 in round r - 1 + c and sends it to rank r + 1 in
//! round r + c. The root, r = 0, only sends; the last rank, r = N - 1, only receives. In the plain
//! chain a rank passes on only what it has whole: block c comes in round (r - 1) k + c. That is meant
//! unsegmented, k = 1, where both are the same.
//!
//! # Example: `pipelined-chain`, N = 4, k = 3
//!
//! | round | 0 | 1 | 2 | 3 | 4 |
//! |---|---|---|---|---|---|
//! | 0 > 1 | 0 | 1 | 2 | | |
//! | 1 > 2 | | 0 | 1 | 2 | |
//! | 2 > 3 | | | 0 | 1 | 2 |
//!
//! # Cost
//!
//! Pipelined N + k - 2 rounds for N >= 2, plain (N - 1) k; none for N = 1. Every rank but the last sends M bytes, every rank
//! but the root receives M: (N - 1) M bytes on the wire.
//!
//! # Conditions
//!
//! 1. `chain_receives_each_block_once`: every rank but the root receives each block exactly once.
//! 2. `chain_sends_a_round_after_receiving`: an inner rank sends a block in the round after it came.
//! 3. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step};

/// N + k - 2; the caller has set N = 1 aside.
pub(super) fn pipelined_rounds(shape: Shape) -> u64 {
    u64::from(shape.ranks()) + u64::from(shape.blocks()) - 2
}

/// (N - 1) k; the caller has set N = 1 aside.
pub(super) fn plain_rounds(shape: Shape) -> u64 {
    u64::from(shape.ranks() - 1) * u64::from(shape.blocks())
}

/// Appends the steps of `rank` in `pipelined-chain`.
pub(super) fn push_pipelined(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    push_steps(shape, rank, 1, steps);
}

/// Appends the steps of `rank` in `chain`.
pub(super) fn push_plain(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    push_steps(shape, rank, shape.blocks(), steps);
}

/// Each link begins `lag` rounds after the one before it.
fn push_steps(shape: Shape, rank: Rank, lag: u32, steps: &mut Vec<Step>) {
    let (n, k, r) = (shape.ranks(), shape.blocks(), shape.relative(rank));
    let source = (r > 0).then(|| shape.absolute(r - 1));
    let target = (r + 1 < n).then(|| shape.absolute(r + 1));
    let directions = usize::from(source.is_some()) + usize::from(target.is_some());
    steps.reserve(directions * k as usize);
    // The first `lag` blocks come before any goes out; then each round sends one and receives one.
    let ahead = if source.is_some() { lag.min(k) } else { 0 };
    let receive = |block: u32| {
        source.map(|peer| Step::new((r - 1) * lag + block, Direction::Recv, peer, block, 0))
    };
    steps.extend((0..ahead).filter_map(receive));
    for block in 0..k {
        if let Some(peer) = target {
            steps.push(Step::new(r * lag + block, Direction::Send, peer, block, 0));
        }
        if ahead + block < k {
            steps.extend(receive(ahead + block));
        }
    }
}
