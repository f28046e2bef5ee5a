//! `scatter-allgather`: the root scatters the message down a binomial tree, and a ring gathers it on
//! every rank.
//!
//! Reference: M. Barnett, L. Shuler, R. van de Geijn et al., "Interprocessor collective communication
//! library (InterCom)", SHPCC 1994, DOI 10.1109/SHPCC.1994.296665.
//!
//! Symbols: N ranks, numbered relative to the root; q = ceil(log2 N); k blocks, dealt to the ranks in
//! runs: rank u has the blocks ceil(u k / N) to before ceil((u + 1) k / N), so block b is in run
//! floor(b N / k). Where k < N some runs are empty; the root's never is.
//!
//! Scatter: in round i, for i = 0 .. q - 1, with D = 2^(q-1-i), every rank r that is a multiple of 2 D
//! sends the runs of r + D .. r + 2 D - 1 to rank r + D, where there are such ranks. Ring: in round
//! q + t, for t = 0 .. N - 2, rank r sends run (r - t) mod N to rank r + 1, unless that is the root or
//! got the run in the scatter, of which the inner ranks of its tree keep what they passed on.
//!
//! # Example: N = 4, k = 4
//!
//! | round | 0 | 1 | 2 | 3 | 4 |
//! |---|---|---|---|---|---|
//! | edges | 0 > 2: 2 3 | 0 > 1: 1, 2 > 3: 3 | 0 > 1: 0, 1 > 2: 1, 2 > 3: 2 | 0 > 1: 3, 1 > 2: 0, 2 > 3: 1 | 0 > 1: 2, 2 > 3: 0 |
//!
//! # Cost
//!
//! q + N - 1 rounds, of messages of several blocks: the last round brings the root's run, which is never
//! empty, to rank N - 1. If N divides k and c = M / N, round i of the scatter carries min(D, N - D) c
//! bytes, in all (N - 1) c, and each round of the ring c: time q alpha + (N - 1) alpha + 2 (N - 1) c /
//! beta in the telephone model. On the wire (N - 1) M bytes, since nobody gets a block twice.
//!
//! # Conditions
//!
//! 1. `scatter_allgather_deals_all_blocks`: the runs are 0 .. k - 1 in order.
//! 2. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step, ceil_log2};

/// q + N - 1; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    u64::from(ceil_log2(shape.ranks())) + u64::from(shape.ranks()) - 1
}

/// The first block of run u, for u <= N.
fn run_start(shape: Shape, u: u32) -> u32 {
    let (n, k) = (u64::from(shape.ranks()), u64::from(shape.blocks()));
    // At most k.
    (u64::from(u) * k).div_ceil(n) as u32
}

/// The run that block b is in.
fn run_of(shape: Shape, block: u32) -> u32 {
    let (n, k) = (u64::from(shape.ranks()), u64::from(shape.blocks()));
    // Below N, since b < k.
    (u64::from(block) * n / k) as u32
}

/// The ranks whose runs rank r > 0 gets in the scatter: from itself to before this one.
fn subtree_end(shape: Shape, r: u32) -> u32 {
    shape.ranks().min(r + (1 << r.trailing_zeros()))
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let (n, r) = (shape.ranks(), shape.relative(rank));
    let q = ceil_log2(n);
    for round in 0..q {
        let distance = 1_u32 << (q - 1 - round);
        let (side, child, peer) = match r & (2 * distance - 1) {
            0 if r + distance < n => (Direction::Send, r + distance, r + distance),
            low if low == distance => (Direction::Recv, r, r - distance),
            _ => continue,
        };
        let peer = shape.absolute(peer);
        let runs = run_start(shape, child)..run_start(shape, n.min(child + distance));
        steps.extend(runs.map(|block| Step::new(round, side, peer, block, 0)));
    }
    let ring = steps.len();
    if r + 1 < n {
        push_ring(shape, Direction::Send, r, r + 1, steps);
    }
    if r > 0 {
        push_ring(shape, Direction::Recv, r - 1, r, steps);
    }
    steps[ring..].sort_unstable_by_key(|step| (step.round, step.direction, step.block));
}

/// What rank `from` sends to rank `to` = `from` + 1 in the ring, on one of both sides.
fn push_ring(shape: Shape, side: Direction, from: u32, to: u32, steps: &mut Vec<Step>) {
    let (n, k, q) = (shape.ranks(), shape.blocks(), ceil_log2(shape.ranks()));
    let peer = shape.absolute(if side == Direction::Send { to } else { from });
    let end = subtree_end(shape, to);
    // From the last block of the runs up to `from`, downwards and around: only runs that are not empty.
    let newest = run_start(shape, from + 1) - 1;
    for back in 0..k {
        let block = if back <= newest { newest - back } else { newest + k - back };
        let run = run_of(shape, block);
        let turn = if run <= from { from - run } else { from + n - run };
        if !(to..end).contains(&run) {
            steps.push(Step::new(q + turn, side, peer, block, 0));
        }
    }
}
