//! Receives: opening them, granting them to peers, and opening them again for the next start of a
//! persistent operation.

use zerocopy::IntoBytes;

use super::buffers::{BufferId, not_open};
use super::{Endpoint, FabricKind};
use crate::error::Error;
use crate::layout::Layout;
use crate::link::Posting;
use crate::wire::{
    BLOCKS_MAX, CountBody, Grant, GrantBody, MessageHeader, MessageKind, RAILS_MAX, Rank, Ready,
    ReadyBody, Signature,
};

impl Endpoint {
    /// Opens a receive of blocks that lie in `buffer` from `offset` on as `layout` has them, and gives
    /// its handle.
    ///
    /// # Errors
    /// If the buffer is not open or not writable, the layout does not fit into it, has no bytes or too
    /// many blocks, or all handles are in use.
    pub fn open_receive(
        &mut self,
        buffer: BufferId,
        offset: u64,
        layout: &Layout,
    ) -> Result<u16, Error> {
        let span = self.buffers.span(buffer)?;
        let (bytes, numbers) = (layout.bytes(), layout.numbers());
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= span.bytes);
        if !span.writable || !fits || bytes == 0 || numbers > BLOCKS_MAX {
            return Err(Error::Invalid(format!(
                "a receive of {bytes} bytes in {numbers} blocks at offset {offset} of {} bytes",
                span.bytes
            )));
        }
        let address = span.address + offset as usize;
        let Some((handle, _epoch)) = self.receives.open(address, layout.clone()) else {
            return Err(Error::Invalid("too many receives are open at once".into()));
        };
        self.buffers.receive_opened(buffer, handle, offset, layout.clone());
        Ok(handle)
    }

    /// Tells `peer` that it may write into the receive under `handle`, whose parts are those of the
    /// operation from `first_part` on.
    ///
    /// # Errors
    /// If the receive is not open, or the link is down.
    pub fn send_grant(
        &mut self,
        peer: Rank,
        signature: &Signature,
        handle: u16,
        first_part: u32,
    ) -> Result<Posting, Error> {
        let buffer = self.buffers.of_receive(handle)?;
        self.check_link(peer, buffer)?;
        let receive = self.receives.find(handle).ok_or_else(|| not_open(handle))?;
        let mut grant = Grant {
            handle,
            epoch: receive.epoch,
            address: receive.address as u64,
            bytes: receive.bytes,
            first_part,
            parts: receive.layout.parts(),
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
        let header = MessageHeader::new(MessageKind::Grant, signature, 0, payload.len());
        let posting = self.post(peer, header, payload)?;
        if posting == Posting::Posted {
            self.buffers.granted(handle, peer);
        }
        Ok(posting)
    }

    /// Tells `peer` how long this rank takes a part of the operation to be.
    ///
    /// # Errors
    /// If the link is down.
    pub fn send_count(
        &mut self,
        peer: Rank,
        signature: &Signature,
        part: u32,
        bytes: u64,
    ) -> Result<Posting, Error> {
        let body = CountBody::new(part, bytes);
        let payload = body.as_bytes();
        let header = MessageHeader::new(MessageKind::Count, signature, 0, payload.len());
        self.post(peer, header, payload)
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
        let buffer = self.buffers.of_receive(handle)?;
        self.check_link(peer, buffer)?;
        let start = self.buffers.start_to_tell(handle, peer)?;
        let receive = self.receives.find(handle).ok_or_else(|| not_open(handle))?;
        let body = ReadyBody::from(&Ready { handle, epoch: receive.epoch, start });
        let payload = body.as_bytes();
        let header = MessageHeader::new(MessageKind::Ready, signature, 0, payload.len());
        let posting = self.post(peer, header, payload)?;
        if posting == Posting::Posted {
            self.buffers.granted(handle, peer);
        }
        Ok(posting)
    }
}
