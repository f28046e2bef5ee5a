//! Errors of the transport, grouped by who must act.

use crate::wire::{Rank, Signature};

/// An error of the transport.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- the caller ----
    /// An argument that cannot be.
    #[error("invalid argument: {0}")]
    Invalid(String),

    // ---- the environment ----
    /// The environment variables or the configuration are unusable.
    #[error("configuration: {0}")]
    Config(String),
    /// The job could not be brought together.
    #[error(transparent)]
    Bootstrap(#[from] crate::bootstrap::BootstrapError),
    /// The verbs layer.
    #[error(transparent)]
    Verbs(#[from] crate::verbs::error::VerbsError),
    /// A system call.
    #[error("rank {rank}: {what}")]
    System {
        /// This rank.
        rank: Rank,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },

    // ---- a peer or the network ----
    /// The control plane.
    #[error(transparent)]
    Control(#[from] crate::control::ControlError),
    /// The job (or this communicator) was aborted; every rank gets the same cause.
    #[error("aborted: {0}")]
    Aborted(crate::control::AbortCause),
    /// A deadline passed.
    #[error(
        "rank {rank}: deadline passed after {after_ms} ms in {call}; still waiting for rank(s) {missing}"
    )]
    Deadline {
        /// This rank.
        rank: Rank,
        /// Milliseconds since the call.
        after_ms: u64,
        /// The call.
        call: Signature,
        /// Whom it was waiting for.
        missing: String,
    },
    /// No link to a peer can be made, or it broke.
    #[error("rank {rank}: link to rank {peer}: {reason}")]
    Link {
        /// This rank.
        rank: Rank,
        /// The peer.
        peer: Rank,
        /// What happened, and what to do.
        reason: String,
    },
    /// A peer takes no more blocks into a buffer that it had granted: its operation has ended.
    #[error("rank {rank}: rank {peer} has withdrawn the buffer that it granted")]
    Withdrawn {
        /// This rank.
        rank: Rank,
        /// The peer.
        peer: Rank,
    },
    /// A peer broke the protocol.
    #[error("rank {rank}: rank {peer} broke the protocol: {what}")]
    Protocol {
        /// This rank.
        rank: Rank,
        /// The peer.
        peer: Rank,
        /// How.
        what: String,
    },
}
