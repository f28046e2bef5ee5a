//! `pipelined-binary`: a complete binary tree, block by block.
//!
//! Reference: folklore; "chunked binary tree" in MPI and deep-learning libraries, see J. Pjesivac-Grbovic
//! et al., "Performance analysis of MPI collective operations", Cluster Computing 10, 2007, DOI
//! 10.1007/s10586-007-0012-0.
//!
//! Symbols: N ranks, numbered relative to the root; k blocks; d(r) = floor(log2 (r + 1)) the depth of
//! rank r.
//!
//! Rank r has the children 2 r + 1, its left one, and 2 r + 2, as in a binary heap. A rank that gets a
//! block in round i sends it to the left child in round i + 1 and to the right one in round i + 2, by
//! which time the next block has come; the root starts a block every two rounds. So rank r gets block
//! c in round w(r) - 1 + 2 c, where w counts 1 for each step to the left on its way from the root and
//! 2 for each step to the right. With two ranks there is one child, and a block every round.
//!
//! # Example: N = 5, k = 2
//!
//! | round | 0 | 1 | 2 | 3 | 4 |
//! |---|---|---|---|---|---|
//! | 0 > 1 | 0 | | 1 | | |
//! | 0 > 2 | | 0 | | 1 | |
//! | 1 > 3 | | 0 | | 1 | |
//! | 1 > 4 | | | 0 | | 1 |
//!
//! # Cost
//!
//! k rounds at N = 2, else 2 (k - 1) + W with W the largest w. The way to rank r is written in the
//! binary digits of r + 1 after the first, so w(r) = d(r) + (ones among them). With D = d(N - 1), the
//! level above the last is full and gives 2 (D - 1); the last holds the r + 1 = 2^D + x for
//! x = 0 .. X = N - 2^D, so it gives D + the most ones of any x <= X, which is the larger of the ones
//! of X and floor(log2 (X + 1)). W is the larger of both. At N = 2^m it is 2 m - 2 (m >= 2): 2 k + 2 m - 4
//! rounds. Every block passes the root's port twice: half the bandwidth of the circulant tree. On the
//! wire (N - 1) M bytes.
//!
//! # Conditions
//!
//! 1. `binary_takes_the_counted_rounds`: 34 at N = 8, k = 16; 136 at N = 64, k = 64.
//! 2. The checker passes, with the rounds above.

use super::{Direction, Rank, Shape, Step};

/// k at N = 2, else 2 (k - 1) + W; the caller has set N = 1 aside.
pub(super) fn rounds(shape: Shape) -> u64 {
    let blocks = u64::from(shape.blocks());
    match shape.ranks() {
        2 => blocks,
        ranks => 2 * (blocks - 1) + u64::from(longest_way(ranks)),
    }
}

/// W, for N >= 3.
fn longest_way(ranks: u32) -> u32 {
    let depth = ranks.ilog2();
    let last = ranks - (1 << depth);
    let ones = last.count_ones().max((last + 1).ilog2());
    (2 * (depth - 1)).max(depth + ones)
}

/// w(r).
fn way(r: u32) -> u32 {
    let depth = (r + 1).ilog2();
    depth + (r + 1).count_ones() - 1
}

/// Appends the steps of `rank`, which is below N.
pub(super) fn push_steps(shape: Shape, rank: Rank, steps: &mut Vec<Step>) {
    let (n, k, r) = (shape.ranks(), shape.blocks(), shape.relative(rank));
    let period = if n == 2 { 1 } else { 2 };
    let way = way(r);
    let parent = (r > 0).then(|| shape.absolute((r - 1) / 2));
    let children = [2 * r + 1, 2 * r + 2].map(|child| (child < n).then(|| shape.absolute(child)));
    let ends = usize::from(parent.is_some()) + children.iter().flatten().count();
    steps.reserve(ends * k as usize);
    let receive = |block: u32| {
        parent.map(|peer| Step::new(way - 1 + period * block, Direction::Recv, peer, block, 0))
    };
    steps.extend(receive(0));
    for block in 0..k {
        for (turn, peer) in (0..).zip(children) {
            let round = way + turn + period * block;
            steps.extend(peer.map(|peer| Step::new(round, Direction::Send, peer, block, 0)));
        }
        if block + 1 < k {
            steps.extend(receive(block + 1));
        }
    }
}
