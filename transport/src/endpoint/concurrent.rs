//! What several operations on one endpoint have to know of each other.

use super::Endpoint;
use super::buffers::BufferId;
use crate::error::Error;
use crate::wire::{HANDLE_BITS, MESSAGE_WINDOW, Rank};

impl Endpoint {
    /// Whether a buffer can be used by an operation now.
    ///
    /// # Errors
    /// If it is not open, or the application [holds](Endpoint::hold) it.
    pub fn check_free(&self, buffer: BufferId) -> Result<(), Error> {
        self.buffers.span(buffer).map(|_| ())
    }

    /// How many more receives can be open at once.
    #[must_use]
    pub fn receives_free(&self) -> usize {
        (1 << HANDLE_BITS) - self.receives.open_receives()
    }

    /// Whether less than half of the communicator's messages to `peer` are on their way: an
    /// operation that others do not wait for sends only then, so that the one that they wait for
    /// always can.
    pub fn has_spare_window(&mut self, peer: Rank, communicator: u64) -> bool {
        self.flows.on_their_way(peer, communicator) < MESSAGE_WINDOW / 2
    }
}
