//! Why a job or a communicator was aborted; the same on every rank.

use serde::{Deserialize, Serialize};

use crate::wire::{Rank, Signature};

/// What an abort ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortScope {
    /// Every communicator of the job.
    Job,
    /// One communicator; the others go on.
    Communicator(u64),
}

/// An abort as every rank learns of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortCause {
    /// What it ends.
    pub scope: AbortScope,
    /// The rank that noticed.
    pub origin: Rank,
    /// What it noticed.
    pub kind: AbortKind,
}

/// What led to an abort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AbortKind {
    /// A rank's process is gone (its connection closed without a goodbye).
    RankDied {
        /// Which.
        rank: Rank,
        /// On which host.
        host: String,
    },
    /// Two ranks called different things under one operation number.
    Mismatch {
        /// One rank.
        first: Rank,
        /// What it called.
        first_call: Signature,
        /// The other.
        second: Rank,
        /// What that called.
        second_call: Signature,
    },
    /// A deadline passed at the origin.
    Deadline {
        /// The call.
        call: Signature,
        /// For how long it had waited.
        after_ms: u64,
        /// For whom.
        missing: Vec<Rank>,
    },
    /// The link between the origin and this peer broke.
    Link {
        /// The peer.
        peer: Rank,
        /// What happened.
        reason: String,
    },
    /// The application on the origin gave up, and says why.
    Application {
        /// Its words.
        reason: String,
    },
}

/// Bytes of a text, and ranks of a list, that an abort carries: it has to fit into a frame.
const TEXT_BYTES_MAX: usize = 4096;
const RANKS_MAX: usize = 1024;

impl AbortCause {
    /// The same, with what is too long for a frame cut off.
    pub(crate) fn bounded(mut self) -> Self {
        match &mut self.kind {
            AbortKind::RankDied { host: text, .. }
            | AbortKind::Link { reason: text, .. }
            | AbortKind::Application { reason: text } => {
                *text = truncate(std::mem::take(text), TEXT_BYTES_MAX);
            }
            AbortKind::Deadline { missing, .. } => missing.truncate(RANKS_MAX),
            AbortKind::Mismatch { .. } => {}
        }
        self
    }
}

/// `text` cut to at most `limit` bytes, at a character's boundary.
pub(crate) fn truncate(mut text: String, limit: usize) -> String {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

impl std::fmt::Display for AbortCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let origin = self.origin;
        match &self.kind {
            AbortKind::RankDied { rank, host } => {
                write!(f, "rank {rank} on {host} died (noticed by rank {origin})")
            }
            AbortKind::Mismatch { first, first_call, second, second_call } => write!(
                f,
                "mismatched calls: rank {first} called {first_call}, rank {second} called \
                 {second_call}"
            ),
            AbortKind::Deadline { call, after_ms, missing } => write!(
                f,
                "rank {origin} gave up {call} after {after_ms} ms, waiting for rank(s) {missing:?}"
            ),
            AbortKind::Link { peer, reason } => {
                write!(f, "the link between rank {origin} and rank {peer} broke: {reason}")
            }
            AbortKind::Application { reason } => write!(f, "rank {origin}: {reason}"),
        }
    }
}
