//! Errors of the collectives, grouped by who must act.

use std::fmt;

use verbcast_transport::error::Error as TransportError;
use verbcast_transport::wire::Signature;

use crate::executor::ExecutorError;
use crate::model::ModelError;
use crate::schedule::{Rank, ScheduleError};

/// An error of a collective operation.
///
/// Its `Debug` form is for people as well, since that is what a `main` that returns it prints: the
/// message, and what it follows from.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- the caller ----
    /// The root, the algorithm or the number of blocks cannot be.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The message or the block size is outside the limits.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// The ranks were not given the same profile.
    #[error(
        "ranks {one} and {other} were given different profiles: VERBCAST_PROFILE has to name the same \
         contents on every rank, or nothing on every rank"
    )]
    Profiles {
        /// The lowest rank that was given one of them.
        one: Rank,
        /// The lowest rank that was given another one, or none.
        other: Rank,
    },

    /// Buffers, counts or displacements that do not go together, on this rank.
    #[error("{operation}: {what}")]
    Arguments {
        /// The operation's name.
        operation: &'static str,
        /// What is wrong, with the numbers.
        what: String,
    },
    /// A rank and its peer have different counts for what goes from one to the other.
    #[error(
        "different counts in {call}: {ours} bytes on rank {rank}, {theirs} bytes on rank {peer}; both \
         sides of a part must give the same count"
    )]
    OtherCount {
        /// The call.
        call: Signature,
        /// This rank.
        rank: Rank,
        /// What it has, in bytes.
        ours: u64,
        /// The other one.
        peer: Rank,
        /// What that has, in bytes.
        theirs: u64,
    },

    /// An operation cannot be started, waited for or looked into as it stands.
    #[error("this operation was not started: {reason}")]
    NotStarted {
        /// Why.
        reason: &'static str,
    },
    /// A request was tested or waited for although it is known to have ended.
    #[error(
        "this request has ended, which was told before; there is nothing to test or to wait for"
    )]
    RequestOver,
    /// A request was dropped before its operation had ended.
    #[error("rank {rank} dropped the request of {call} before it had ended")]
    Abandoned {
        /// The operation.
        call: Signature,
        /// This rank of the job.
        rank: Rank,
    },
    /// A rank has no numbers left for communicators.
    #[error("rank {rank} has made 2^32 communicators and cannot name another one")]
    Communicators {
        /// Which, in the job.
        rank: Rank,
    },

    // ---- a peer or the network ----
    /// A peer sent what the schedule does not have.
    #[error("a peer did not keep to the schedule")]
    Executor(#[from] ExecutorError),
    /// The transport.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A rank could not take part, so no rank goes on.
    #[error("rank {rank} cannot go on: {reason}")]
    RankFailed {
        /// Which.
        rank: Rank,
        /// Its words.
        reason: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            write!(f, ": {source}")?;
            next = source.source();
        }
        Ok(())
    }
}
