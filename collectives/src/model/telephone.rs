//! The telephone model: one round per block, a port busy alpha + m / beta in each.
//!
//! | algorithm | time, k blocks of M / k | best k |
//! |---|---|---|
//! | `binomial` | q k (alpha + M / (k beta)) | 1 |
//! | `pipelined-chain` | (N + k - 2) (alpha + M / (k beta)) | sqrt((N - 2) M / (alpha beta)) |
//! | `pipelined-tree` | (q + k - 1) (alpha + M / (k beta)) | sqrt((q - 1) M / (alpha beta)) |
//!
//! At the best k a pipeline of c extra rounds (N - 2, or q - 1) takes (sqrt(c alpha) +
//! sqrt(M / beta))^2. Of two neighbouring integers k and k + 1 the smaller is at least as good if
//! and only if c M / (k (k + 1)) <= alpha beta, which is exact in integers: the best is the
//! smallest such k. That is the comparison of floor and ceiling of the root above.
//!
//! Source: for the pipelines any textbook on collective communication, by setting the derivative
//! of the time in k to zero; for the circulant one also J. L. Träff, arXiv 2312.11236.

use super::{PS_PER_NS, PS_PER_S};
use crate::schedule::{self, Algorithm, MAX_BLOCKS, Shape, ceil_log2};

const NS_PER_S: u128 = 1_000_000_000;

/// The parameters of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Telephone {
    /// alpha: the time to start a block, in ns.
    pub alpha_ns: u64,
    /// beta: the bytes per second of a port; 0 counts as 1.
    pub bytes_per_second: u64,
}

impl Telephone {
    /// The time of a broadcast of `bytes` bytes in the blocks of the shape, in ps.
    ///
    /// Blocks are taken as equal, of ceil(`bytes` / k) bytes. For `scatter-allgather`, whose messages have
    /// many blocks, it is exact where N divides k, and else counts the largest share for all. The largest `u64` stands for all
    /// times above it (213 days).
    pub fn time_ps(&self, algorithm: Algorithm, shape: Shape, bytes: u64) -> u64 {
        let block_bytes = bytes.div_ceil(u64::from(shape.blocks()));
        let message_ps = |blocks: u64| {
            let transfer_ps = u128::from(block_bytes) * u128::from(blocks) * u128::from(PS_PER_S);
            let transfer_ps = transfer_ps.div_ceil(u128::from(self.bytes_per_second.max(1)));
            u128::from(self.alpha_ns) * u128::from(PS_PER_NS) + transfer_ps
        };
        let total_ps = match algorithm {
            Algorithm::ScatterAllgather if shape.ranks() > 1 => {
                // The share of a run, and of the ranks below 2^j in the scatter.
                let (ranks, blocks) = (u64::from(shape.ranks()), u64::from(shape.blocks()));
                let share = |count: u64| message_ps((count * blocks).div_ceil(ranks));
                let scatter: u128 = (0..ceil_log2(shape.ranks()))
                    .map(|j| share((1 << j).min(ranks - (1 << j))))
                    .sum();
                share(1).checked_mul(u128::from(ranks - 1)).map(|ring| ring + scatter)
            }
            _ => message_ps(1).checked_mul(schedule::rounds(algorithm, shape).into()),
        };
        total_ps.and_then(|total| u64::try_from(total).ok()).unwrap_or(u64::MAX)
    }

    /// The number of blocks, 1 to [`MAX_BLOCKS`] and not above `bytes`, that takes the least time
    /// if the message divides evenly; the smallest such number.
    pub fn best_blocks(&self, algorithm: Algorithm, ranks: u32, bytes: u64) -> u32 {
        // Rounds are a + s k in every pipeline: a extra rounds, and s for each block.
        let rounds = |blocks| {
            Shape::new(ranks, 0, blocks).map_or(0, |shape| schedule::rounds(algorithm, shape))
        };
        let (one, two) = (rounds(1), rounds(2));
        let (extra_rounds, slope) = ((2 * one).saturating_sub(two), two.saturating_sub(one).max(1));
        let most = u64::from(MAX_BLOCKS).min(bytes).max(1) as u32;
        // The best is the smallest k with k (k + 1) unit >= work; both sides are alpha beta and
        // c M, times 10^9.
        let unit = u128::from(self.alpha_ns) * u128::from(self.bytes_per_second.max(1));
        let unit = unit.saturating_mul(slope.into());
        let work = u128::from(extra_rounds) * u128::from(bytes) * NS_PER_S;
        if work == 0 {
            return 1;
        }
        let is_enough = |k: u32| {
            let pairs = u128::from(k) * u128::from(k + 1);
            pairs.checked_mul(unit).is_none_or(|product| product >= work)
        };
        let (mut low, mut high) = (1, most);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_enough(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}
