//! What a rank and the rendezvous tell each other after their handshake, as heads of frames.

use serde::{Deserialize, Serialize};

use super::error::Refusal;
use crate::link::PeerInfo;

/// The longest frame of a rank, in bytes.
pub(crate) const REGISTER_BYTES_MAX: usize = 4 << 10;

/// From a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Register {
    pub(crate) peer: PeerInfo,
    /// Ranks of the job, as this rank was told.
    pub(crate) size: u32,
    /// For how long it will wait for the others, in milliseconds.
    pub(crate) patience_ms: u64,
}

/// From the rendezvous.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The rank is registered; the book follows when all are there.
    Registered,
    /// The next page of the address book; complete with as many peers as there are ranks.
    Book {
        /// Tells this job from others with the same secret.
        job: [u8; 16],
        /// Peers in the order of their ranks.
        peers: Vec<PeerInfo>,
    },
    /// The job does not come together.
    Refused(Refusal),
}
