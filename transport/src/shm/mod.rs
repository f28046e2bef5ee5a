//! Shared-memory links between ranks of one host.
//!
//! Two ranks share a segment (`segment`): rings of message slots and of block descriptors in both
//! directions. Messages are copied through it. The bytes of a block are *pulled*: the receiver
//! reads them from the sender's memory (`pull`), or, where the kernel does not permit that, from
//! chunks of the segment that the sender fills. Nobody ever writes into another process's user
//! memory, so a sender that was stopped and goes on late can do no harm; and what a receiver reads
//! from a sender that gave up meanwhile is discarded (`Segment::close`).
//!
//! All files are memfds and pipes without a name: nothing is left behind, however a process ends.
//! Set-up runs in the control thread (`connector`), the data path in the application's (`fabric`,
//! with the halves `outgoing` and `incoming` of a link); it sleeps on the rank's [`bell`].
//!
//! Whatever is read from a segment is read once, then checked, then used: a faulty peer breaks its
//! own links and nothing else.

use std::sync::Arc;

pub mod bell;
mod connector;
mod descriptor;
mod error;
mod fabric;
mod files;
mod host;
mod incoming;
mod mapping;
pub mod measure;
mod outgoing;
mod pull;
mod segment;
#[cfg(test)]
mod tests;

pub use bell::ShmBell;
pub use connector::ShmConnector;
pub use fabric::ShmFabric;

use crate::error::Error;
use crate::wire::Rank;
use error::{SetupError, chain};
use segment::{Layout, Sizes};

/// How the shared-memory links of a rank are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmSettings {
    /// This rank.
    pub rank: Rank,
    /// Whether blocks may be pulled by cross-memory attach, where the kernel permits it; without,
    /// they go through the segment.
    pub cma: bool,
    /// Blocks per link and direction that can be posted and not yet finished: a power of two,
    /// at most 1024.
    pub descriptors: u32,
    /// Chunks per link and direction for blocks that are not pulled, 1 to 64.
    pub chunks: u32,
    /// Bytes of a chunk, a multiple of 4096, at most 4 MiB.
    pub chunk_bytes: u32,
}

impl ShmSettings {
    /// The usual settings: 64 blocks, 8 chunks of 64 KiB (half a megabyte stays in the cache of the
    /// core that copies).
    #[must_use]
    pub const fn new(rank: Rank) -> Self {
        Self { rank, cma: true, descriptors: 64, chunks: 8, chunk_bytes: 64 << 10 }
    }
}

/// Whether this process may be read by others of its user, and read them, as far as it can find out
/// alone; whether it can read a certain peer shows when their link is made.
#[must_use]
pub fn may_pull(settings: ShmSettings) -> bool {
    settings.cma && host::allows_pull()
}

/// Makes the shared-memory fabric of a rank, its connector for the control thread and its bell.
///
/// # Errors
/// If the settings are out of range, or the system gives no memory, descriptors or random bytes.
pub fn open(settings: ShmSettings) -> Result<(ShmFabric, Arc<ShmConnector>, Arc<ShmBell>), Error> {
    let ShmSettings { rank, cma, descriptors, chunks, chunk_bytes } = settings;
    let layout = Layout::new(Sizes { descriptors, chunks, chunk_bytes })
        .map_err(|error| Error::Invalid(format!("shared memory: {error}")))?;
    if cma {
        host::permit_pull();
    }
    let system = |error: SetupError| Error::System {
        rank,
        what: "opening shared memory",
        source: std::io::Error::other(chain(&error)),
    };
    let bell = Arc::new(ShmBell::new().map_err(system)?);
    let local = connector::Local::new(rank, layout, cma, Arc::clone(&bell)).map_err(system)?;
    let local = Arc::new(local);
    let connector = Arc::new(ShmConnector::new(Arc::clone(&local)));
    Ok((ShmFabric::new(local), connector, bell))
}
