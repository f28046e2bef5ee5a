//! What an operation costs, and from that the choice of algorithm, block size and radix.
//!
//! Symbols: N ranks, q = ceil(log2 N), M bytes, k blocks of m = ceil(M / k) bytes, d ports, alpha the
//! time to start a message, beta the bytes per second of a port, L the latency of a link, g the gap: the
//! time a port needs for one more block when others are under way, o the overhead: what a block costs
//! a processor beside its bytes.
//!
//! Two costs are computed, under different names, and never mixed:
//!
//! - [`Telephone`]: one round per message, a port busy alpha + m / beta in each. It is exact for a run
//!   paced by rounds with equal blocks, and gives the textbook block counts, bounds and switch points.
//! - [`Path::time_ps`], the loggp forms: without rounds, a port busy max(g, o + m / beta) for a block that
//!   is at the next rank L later. [`select`](fn@select) compares them, with one more L where the receivers have
//!   to grant their buffers and with the cost of links that are not there yet.
//!
//! Both are compared with [`crate::simulate`] by tests. Everything is computed in integers, so all
//! ranks that are given the same [`FabricProfile`] choose alike, on any machine.
//!
//! # Examples
//!
//! ```
//! use verbcast_collectives::model::{Demand, FabricProfile, select};
//! use verbcast_collectives::schedule::Algorithm;
//!
//! let small = select(64, 8, &FabricProfile::VERBS_100G, Demand::default())?;
//! assert_eq!((small.algorithm, small.blocks), (Algorithm::Knomial, 1));
//!
//! let large = select(64, 1 << 30, &FabricProfile::VERBS_100G, Demand::default())?;
//! assert_eq!(large.algorithm, Algorithm::PipelinedTree);
//! # Ok::<(), verbcast_collectives::model::ModelError>(())
//! ```

mod loggp;
mod profile;
mod select;
mod telephone;

pub use loggp::Path;
pub use profile::{Bounds, FabricProfile, HostProfile, PROFILE_VERSION, PathProfile, ProfileError};
pub use select::{
    CallTime, Choice, Demand, Limit, Links, Task, Why, compare, links, select, select_for,
};
pub use telephone::{Rounds, Telephone, least_rounds, rounds};

use verbcast_transport::wire::{BLOCK_BYTES_MAX, BLOCKS_MAX};

use crate::schedule::{Algorithm, MAX_BLOCKS, MAX_PORTS, MAX_RANKS};

const _: () = assert!(MAX_BLOCKS == BLOCKS_MAX, "a schedule has the block numbers of the wire");

/// The largest message, in bytes.
pub const MAX_MESSAGE_BYTES: u64 = BLOCK_BYTES_MAX * MAX_BLOCKS as u64;

const PS_PER_NS: u64 = 1_000;
const PS_PER_S: u64 = 1_000_000_000_000;

/// An operation that cannot be done within the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The number of ranks is 0 or too large.
    #[error("{ranks} ranks: a communicator has 1 to {MAX_RANKS}")]
    RankCount {
        /// The number given.
        ranks: u32,
    },
    /// The number of ports is 0 or too large.
    #[error("{ports} ports: a rank has 1 to {MAX_PORTS}")]
    PortCount {
        /// The number given.
        ports: u16,
    },
    /// The message does not fit into the largest number of the largest blocks.
    #[error("{bytes} bytes are more than one operation can carry ({MAX_MESSAGE_BYTES}); split it")]
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
    /// The algorithm asked for is none of the operation, or not made for this number of ranks.
    #[error("no {} by {algorithm} among {} ranks; choose another algorithm", task.operation, task.ranks)]
    NotFor {
        /// The algorithm asked for.
        algorithm: Algorithm,
        /// What was to be done.
        task: Task,
    },
    /// The parts have more blocks together than a schedule can number.
    #[error("no schedule for {task:?}: too many ranks or bytes")]
    Nothing {
        /// What was to be done.
        task: Task,
    },
}

#[cfg(test)]
mod tests;
