//! Errors of the control plane that are not an abort.

use crate::wire::Rank;

/// An error of the control plane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// An agreement did not finish in time.
    #[error(
        "rank {rank}: the ranks did not agree within {after_ms} ms; nothing was heard from \
         rank(s) {missing}, which may themselves wait for others"
    )]
    AgreeDeadline {
        /// This rank.
        rank: Rank,
        /// Milliseconds since the call.
        after_ms: u64,
        /// The neighbours that were not heard from, as ranges.
        missing: String,
    },
    /// The control plane was shut down before.
    #[error("rank {rank}: the job was left already (shutdown was called)")]
    Left {
        /// This rank.
        rank: Rank,
    },
}
