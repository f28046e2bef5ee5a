//! What a broadcast costs, and from that the choice of algorithm and block size.
//!
//! Symbols: N ranks, q = ceil(log2 N), M bytes, k blocks of m = ceil(M / k) bytes, alpha the time
//! to start a block, beta the bytes per second of a port, L the latency of a link, g the gap: the
//! time a port or processor needs for one more block when others are under way.
//!
//! Two costs are computed, under different names, and never mixed:
//!
//! - [`Telephone`]: one round per block, a port busy alpha + m / beta in each. T = R (alpha +
//!   m / beta) with the R of [`schedule::rounds`]. It is exact for a run paced by rounds with equal
//!   blocks, and gives the textbook block counts.
//! - [`select`] compares h L + R (g + m / beta), plus one more L where the receiver has to grant its
//!   buffer first: h hops on the longest way (q, or N - 1 in the chain), and a port that is busy
//!   g + m / beta for each block, since several blocks are under way at once. The sum is what holds
//!   where one processor both starts a block and moves it (shared memory, Soft-RoCE); for an
//!   adapter, busy max(g, m / beta), it is an upper bound.
//!
//! Everything is computed in integers, so all ranks that are given the same [`FabricProfile`] choose
//! alike, on any machine.
//!
//! # Examples
//!
//! ```
//! use verbcast_collectives::model::{Demand, FabricProfile, select};
//! use verbcast_collectives::schedule::Algorithm;
//!
//! let small = select(64, 8, &FabricProfile::VERBS, Demand::default())?;
//! assert_eq!((small.algorithm, small.blocks), (Algorithm::Binomial, 1));
//!
//! let large = select(64, 1 << 30, &FabricProfile::VERBS, Demand::default())?;
//! assert_eq!(large.algorithm, Algorithm::PipelinedTree);
//! # Ok::<(), verbcast_collectives::model::ModelError>(())
//! ```

mod telephone;

pub use telephone::Telephone;

use verbcast_transport::wire::{BLOCK_BYTES_MAX, BLOCKS_MAX, MESSAGE_PAYLOAD_MAX};

use crate::schedule::{self, Algorithm, MAX_BLOCKS, MAX_RANKS, Shape, ceil_log2};

const _: () = assert!(MAX_BLOCKS == BLOCKS_MAX, "a schedule has the block numbers of the wire");

/// The largest message, in bytes.
pub const MAX_MESSAGE_BYTES: u64 = BLOCK_BYTES_MAX * MAX_BLOCKS as u64;

const PS_PER_NS: u64 = 1_000;
const PS_PER_S: u64 = 1_000_000_000_000;

/// What the links between the ranks do; the same on every rank of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct FabricProfile {
    /// L: from the start of a short transfer to its notification at the receiver, in ns.
    pub latency_ns: u64,
    /// g: what one more block costs when others are under way, in ns.
    pub gap_ns: u64,
    /// beta: bytes per second of one rank's port; 0 counts as 1.
    pub bytes_per_second: u64,
    /// The largest message that needs no grant, in bytes.
    pub eager_limit_bytes: u64,
}

impl FabricProfile {
    /// Assumed of RDMA adapters until they are measured: the order of a 100 Gb/s adapter, with the
    /// latency of a write that is not inline (`ib_write_lat` 1.3 us) and about 5 million work
    /// requests per second from one processor.
    pub const VERBS: Self = Self {
        latency_ns: 1_500,
        gap_ns: 200,
        bytes_per_second: 12_500_000_000,
        eager_limit_bytes: MESSAGE_PAYLOAD_MAX as u64,
    };

    /// Assumed of shared memory until it is measured: a notification between two processors 1 us,
    /// a system call and an acknowledgement per block 1 us, and one processor copying 5 GB/s.
    pub const SHM: Self = Self {
        latency_ns: 1_000,
        gap_ns: 1_000,
        bytes_per_second: 5_000_000_000,
        eager_limit_bytes: MESSAGE_PAYLOAD_MAX as u64,
    };
}

/// What the caller has fixed of the choice; what is `None` is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Demand {
    /// The algorithm to use.
    pub algorithm: Option<Algorithm>,
    /// The bytes of a block, 1 to [`BLOCK_BYTES_MAX`].
    pub block_bytes: Option<u64>,
}

/// How a broadcast is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The bytes of every block but the last, which has the rest; at least 1.
    pub block_bytes: u64,
    /// The number of blocks, at least 1: a message of 0 bytes has one, which is empty.
    pub blocks: u32,
    /// Whether the message goes without a grant, into slots that the receiver keeps ready.
    pub is_eager: bool,
    /// The time that the model expects, in ns, rounded up; it may count a few more blocks than
    /// there are, where blocks were rounded up to whole cache lines.
    pub predicted_ns: u64,
}

/// A broadcast that cannot be done within the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The number of ranks is 0 or too large.
    #[error("{ranks} ranks: a communicator has 1 to {MAX_RANKS}")]
    RankCount {
        /// The number given.
        ranks: u32,
    },
    /// The message does not fit into the largest number of the largest blocks.
    #[error("{bytes} bytes are more than one broadcast can carry ({MAX_MESSAGE_BYTES}); split it")]
    MessageBytes {
        /// The bytes of the message.
        bytes: u64,
    },
    /// The block size asked for is 0, too large, or too small for the message.
    #[error(
        "blocks of {block_bytes} bytes: for a message of {bytes} bytes a block has {least} to \
         {BLOCK_BYTES_MAX}"
    )]
    BlockBytes {
        /// The block size asked for.
        block_bytes: u64,
        /// The bytes of the message.
        bytes: u64,
        /// The least size that keeps the number of blocks within its limit.
        least: u64,
    },
}

/// Chooses algorithm and block size of a broadcast of `bytes` bytes to `ranks` ranks.
///
/// The same arguments give the same choice on every rank, and the predicted time never falls when
/// `bytes` rises.
///
/// # Errors
///
/// Numbers outside their limits.
pub fn select(
    ranks: u32,
    bytes: u64,
    profile: &FabricProfile,
    demand: Demand,
) -> Result<Choice, ModelError> {
    if !(1..=MAX_RANKS).contains(&ranks) {
        return Err(ModelError::RankCount { ranks });
    }
    if bytes > MAX_MESSAGE_BYTES {
        return Err(ModelError::MessageBytes { bytes });
    }
    let least = bytes.div_ceil(u64::from(MAX_BLOCKS)).max(1);
    if let Some(block_bytes) = demand.block_bytes
        && !(least..=BLOCK_BYTES_MAX).contains(&block_bytes)
    {
        return Err(ModelError::BlockBytes { block_bytes, bytes, least });
    }
    let cost = Cost { ranks, bytes, profile };
    let mut best: Option<Choice> = None;
    let wanted = demand.algorithm.as_ref().map(std::slice::from_ref);
    for &algorithm in wanted.unwrap_or(&PREFERENCE) {
        let choice = match demand.block_bytes {
            Some(block_bytes) => {
                let blocks = bytes.div_ceil(block_bytes).max(1) as u32;
                cost.choice(algorithm, blocks, block_bytes)
            }
            None => cost.best_blocks(algorithm),
        };
        if best.is_none_or(|best| choice.predicted_ns < best.predicted_ns) {
            best = Some(choice);
        }
    }
    Ok(best.expect("an algorithm is in the order of preference"))
}

/// The algorithms in the order in which one is preferred at equal times.
///
/// With one block the binomial tree has the rounds of the circulant one and fewer neighbours.
const PREFERENCE: [Algorithm; 3] =
    [Algorithm::Binomial, Algorithm::PipelinedTree, Algorithm::PipelinedChain];

/// Where a message has several blocks they are no smaller than this, in bytes: the largest MTU, so
/// that a block is at least a packet.
const LEAST_BLOCK_BYTES: u64 = 4096;

/// Where a message has several blocks they are multiples of this, in bytes: a cache line, so that
/// in an aligned buffer no line belongs to two blocks.
const BLOCK_UNIT_BYTES: u64 = 64;

/// Numbers of blocks 1 to 16, then eight from each power of two to the next, to [`MAX_BLOCKS`].
const COUNTS: usize = 16 + 8 * 16;

/// The numbers of blocks compared, ascending.
///
/// Near the best number the time is flat: one wrong by a sixteenth costs less than a per cent. For
/// a fixed number of blocks the time rises with the message; so does therefore the least over this
/// list. (The exact best number for each message, rounded to whole units, would not promise that.)
const BLOCK_COUNTS: [u32; COUNTS] = block_counts();

const fn block_counts() -> [u32; COUNTS] {
    let mut counts = [0; COUNTS];
    let (mut index, mut count, mut step) = (0, 1, 1);
    while index < COUNTS {
        counts[index] = count;
        if count == 16 * step {
            step *= 2;
        }
        count += step;
        index += 1;
    }
    assert!(counts[COUNTS - 1] == MAX_BLOCKS);
    counts
}

/// The costs of one message, whose numbers are within their limits.
struct Cost<'a> {
    ranks: u32,
    bytes: u64,
    profile: &'a FabricProfile,
}

impl Cost<'_> {
    fn best_blocks(&self, algorithm: Algorithm) -> Choice {
        let fewest = self.bytes.div_ceil(BLOCK_BYTES_MAX).max(1);
        let most = self.bytes.div_ceil(LEAST_BLOCK_BYTES);
        let mut best: Option<Choice> = None;
        for count in BLOCK_COUNTS.into_iter().filter(|&count| u64::from(count) >= fewest) {
            if best.is_some_and(|best| best.predicted_ns <= self.least_ns(count)) {
                break;
            }
            let share = self.bytes.div_ceil(count.into());
            let block_bytes = match count {
                1 => share.max(1),
                _ => share.next_multiple_of(BLOCK_UNIT_BYTES).max(LEAST_BLOCK_BYTES),
            };
            let choice = self.choice(algorithm, count, block_bytes);
            if best.is_none_or(|best| choice.predicted_ns < best.predicted_ns) {
                best = Some(choice);
            }
            if u64::from(count) >= most {
                // Blocks are as small as they can be: a larger number only adds rounds.
                break;
            }
        }
        best.expect("the largest number of the largest blocks holds any message within the limit")
    }

    /// The cost of `blocks` blocks, or of as many as the message fills.
    fn choice(&self, algorithm: Algorithm, blocks: u32, block_bytes: u64) -> Choice {
        let filled = self.bytes.div_ceil(block_bytes).max(1) as u32;
        let is_eager = blocks == 1 && self.bytes <= self.profile.eager_limit_bytes;
        let shape = Shape::new(self.ranks, 0, blocks).expect("select keeps to the limits");
        let rounds = u128::from(schedule::rounds(algorithm, shape));
        let hops = match algorithm {
            _ if self.ranks == 1 => 0,
            Algorithm::PipelinedChain => self.ranks - 1,
            Algorithm::Binomial | Algorithm::PipelinedTree => ceil_log2(self.ranks),
            // No way is longer than the rounds of one block.
            other => Shape::new(self.ranks, 0, 1)
                .map_or(0, |shape| schedule::rounds(other, shape))
                .try_into()
                .unwrap_or(u32::MAX - 1),
        };
        let grants = u32::from(!is_eager && self.ranks > 1);
        let latency_ns = u128::from(hops + grants) * u128::from(self.profile.latency_ns);
        let ports_ps = match algorithm {
            // Its rounds carry many blocks: each rank passes on nearly the whole message, twice.
            Algorithm::ScatterAllgather => {
                let others = self.bytes - self.bytes / u64::from(self.ranks);
                rounds * self.gap_ps() + 2 * self.transfer_ps(others)
            }
            _ => rounds * (self.gap_ps() + self.transfer_ps(block_bytes.min(self.bytes))),
        };
        let total_ns = latency_ns + ports_ps.div_ceil(PS_PER_NS.into());
        let predicted_ns = u64::try_from(total_ns).unwrap_or(u64::MAX);
        Choice { algorithm, block_bytes, blocks: filled, is_eager, predicted_ns }
    }

    /// What any algorithm takes at least with this many blocks or more: the root sends each.
    fn least_ns(&self, blocks: u32) -> u64 {
        if self.ranks == 1 {
            return 0;
        }
        let least_ps = u128::from(blocks) * self.gap_ps() + self.transfer_ps(self.bytes);
        u64::try_from(least_ps / u128::from(PS_PER_NS)).unwrap_or(u64::MAX)
    }

    fn gap_ps(&self) -> u128 {
        u128::from(self.profile.gap_ns) * u128::from(PS_PER_NS)
    }

    fn transfer_ps(&self, bytes: u64) -> u128 {
        let bytes_per_second = self.profile.bytes_per_second.max(1);
        match bytes.checked_mul(PS_PER_S) {
            // A division of 64 bits where that is enough, as for every block: it is much faster.
            Some(product) => product.div_ceil(bytes_per_second).into(),
            None => {
                let product = u128::from(bytes) * u128::from(PS_PER_S);
                product.div_ceil(bytes_per_second.into())
            }
        }
    }
}

#[cfg(test)]
mod tests;
