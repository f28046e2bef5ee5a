//! Receives: opening them, granting them to peers, and opening them again for the next start of a
//! persistent operation.

use zerocopy::IntoBytes;

use super::buffers::{BufferId, not_open};
use super::{Endpoint, FabricKind};
use crate::error::Error;
use crate::link::Posting;
use crate::wire::{
    BLOCKS_MAX, Grant, GrantBody, MessageHeader, MessageKind, RAILS_MAX, Rank, Ready, ReadyBody,
    Signature,
};

impl Endpoint {
    /// Opens a receive of the whole `buffer` in blocks of `block_bytes` and gives its handle.
    ///
    /// # Errors
    /// If the buffer is not open or not writable, has no bytes or too many blocks, or all handles
    /// are in use.
    pub fn open_receive(&mut self, buffer: BufferId, block_bytes: u64) -> Result<u16, Error> {
        let span = self.buffers.span(buffer)?;
        let blocks = span
            .bytes
            .checked_div(block_bytes)
            .map_or(u64::MAX, |whole| whole + u64::from(!span.bytes.is_multiple_of(block_bytes)));
        if !span.writable || blocks == 0 || blocks > u64::from(BLOCKS_MAX) {
            return Err(Error::Invalid(format!(
                "a receive of {} bytes in blocks of {block_bytes} bytes",
                span.bytes
            )));
        }
        let (address, bytes) = (span.address, span.bytes);
        let Some((handle, _epoch)) = self.receives.open(address, bytes, block_bytes) else {
            return Err(Error::Invalid("too many receives are open at once".into()));
        };
        self.buffers.receive_opened(buffer, handle, blocks as u32, block_bytes);
        Ok(handle)
    }

    /// Tells `peer` that it may write into the receive under `handle`.
    ///
    /// # Errors
    /// If the receive is not open, or the link is down.
    pub fn send_grant(
        &mut self,
        peer: Rank,
        signature: &Signature,
        handle: u16,
    ) -> Result<Posting, Error> {
        let receive = self.receives.find(handle).ok_or_else(|| not_open(handle))?;
        let mut grant = Grant {
            handle,
            epoch: receive.epoch,
            address: receive.address as u64,
            bytes: receive.bytes,
            rkeys: [0; RAILS_MAX],
            rails: 0,
        };
        if self.path(peer) == Some(FabricKind::Verbs) {
            let keys = self.buffers.keys_of_receive(handle)?;
            grant.rails = keys.len() as u16;
            for (slot, (_, rkey)) in grant.rkeys.iter_mut().zip(keys) {
                *slot = *rkey;
            }
        }
        let body = GrantBody::from(&grant);
        let payload = body.as_bytes();
        let header = MessageHeader::new(MessageKind::Grant, signature, 0, payload.len(), 0);
        let posting = self.post(peer, header, payload)?;
        if posting == Posting::Posted {
            self.buffers.granted(handle, peer);
        }
        Ok(posting)
    }

    /// Lets all blocks of a receive come once more, into the same memory under the same handle and
    /// grants: the next start of a persistent operation. Each peer may write again once it was
    /// told so by [`send_ready`](Endpoint::send_ready). Nothing is allocated.
    ///
    /// # Errors
    /// If the receive is not open, blocks of the start before are missing, its buffer is still
    /// being sent from, or the application [holds](Endpoint::hold) it.
    pub fn reopen(&mut self, handle: u16) -> Result<(), Error> {
        self.buffers.reopen(handle)?;
        self.receives.reopen(handle);
        Ok(())
    }

    /// Tells `peer`, which has a grant of the receive under `handle`, that it may write for the
    /// start that [`reopen`](Endpoint::reopen) began. Since all blocks of the start before had come
    /// by then, none of them can be taken for one of this.
    ///
    /// # Errors
    /// If the receive is not open, the peer has no grant, was told of this start or cannot be
    /// needed for it, the application [holds](Endpoint::hold) the buffer, or the link is down.
    pub fn send_ready(
        &mut self,
        peer: Rank,
        signature: &Signature,
        handle: u16,
    ) -> Result<Posting, Error> {
        let start = self.buffers.start_to_tell(handle, peer)?;
        let receive = self.receives.find(handle).ok_or_else(|| not_open(handle))?;
        let body = ReadyBody::from(&Ready { handle, epoch: receive.epoch, start });
        let payload = body.as_bytes();
        let header = MessageHeader::new(MessageKind::Ready, signature, 0, payload.len(), 0);
        let posting = self.post(peer, header, payload)?;
        if posting == Posting::Posted {
            self.buffers.granted(handle, peer);
        }
        Ok(posting)
    }
}
