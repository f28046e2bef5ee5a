//! The sending half of a link.

use std::sync::atomic::{Ordering, fence};

use zerocopy::IntoBytes;

use super::descriptor::Descriptor;
use super::error::BreakError;
use super::segment::{Direction, Segment, Transfer, advanced};
use crate::link::{BlockSend, Event, Events, Posting};
use crate::wire::{MESSAGE_HEADER_BYTES, MESSAGE_SLOTS, MessageHeader, Rank};

/// A block that was posted.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    token: u64,
    address: usize,
    bytes: u64,
    /// Its memory is not to be read any more.
    recalled: bool,
}

/// Counts of what was sent; each is at most the one before it in its line.
#[derive(Debug)]
pub(super) struct Outgoing {
    direction: Direction,
    transfer: Transfer,
    /// Messages sent, and of these released by the receiver, as last seen.
    messages: u64,
    released: u64,
    /// Whether a message was turned away since `released` last moved.
    starved: bool,
    /// Blocks posted, of these copied into chunks (bounce only), and done at the receiver.
    blocks: u64,
    copied: u64,
    done: u64,
    /// Blocks whose `Sent` was reported.
    reported: u64,
    posted: Box<[Posted]>,
    /// Bytes of block `copied` that are in chunks.
    cursor: u64,
    /// Chunks filled, and of these emptied by the receiver, as last seen.
    filled: u64,
    emptied: u64,
}

impl Outgoing {
    pub(super) fn new(segment: &Segment, transfer: Transfer) -> Self {
        let direction = segment.outgoing();
        let posted = vec![Posted::default(); direction.descriptors as usize].into_boxed_slice();
        Self {
            direction,
            transfer,
            messages: 0,
            released: 0,
            starved: false,
            blocks: 0,
            copied: 0,
            done: 0,
            reported: 0,
            posted,
            cursor: 0,
            filled: 0,
            emptied: 0,
        }
    }

    /// Copies a message into the next slot, if one is free.
    pub(super) fn send_message(
        &mut self,
        segment: &Segment,
        header: &MessageHeader,
        payload: &[u8],
    ) -> Result<Posting, BreakError> {
        if self.window_is_full() && !self.wait_for_slots(segment)? {
            return Ok(Posting::Full);
        }
        let at = self.direction.message(self.messages);
        let header = header.as_bytes();
        // SAFETY: the slot is this sender's until its stamp is stored below: the receiver has
        // released the message before in it. The source is a slice of that length.
        unsafe { segment.mapping.write(at, header.as_ptr(), header.len()) };
        let at = at + MESSAGE_HEADER_BYTES;
        // SAFETY: as above; the header's length field was checked against the payload's.
        unsafe { segment.mapping.write(at, payload.as_ptr(), payload.len()) };
        let stamp = segment.mapping.word(self.direction.slot(self.messages));
        self.messages += 1;
        stamp.store(self.messages, Ordering::Release);
        Ok(Posting::Posted)
    }

    fn window_is_full(&self) -> bool {
        self.messages - self.released == u64::from(MESSAGE_SLOTS)
    }

    /// Looks for released slots; if there are none, asks to be woken when there are.
    fn wait_for_slots(&mut self, segment: &Segment) -> Result<bool, BreakError> {
        let mut freed = self.refresh_released(segment)?;
        if !freed {
            // Either this side sees the release below, or the receiver, which stores the release
            // before a fence and loads this word after it, sees the word
            // (`Incoming::credit_is_due`).
            segment.mapping.word(self.direction.starved()).store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            freed = self.refresh_released(segment)?;
        }
        self.starved = !freed;
        Ok(freed)
    }

    fn refresh_released(&mut self, segment: &Segment) -> Result<bool, BreakError> {
        let word = segment.mapping.word(self.direction.released());
        let released =
            advanced(word, "the count of released messages", self.released, self.messages)?;
        let moved = released != self.released;
        self.released = released;
        Ok(moved)
    }

    /// Posts a descriptor, if there is room. The block lies inside its span.
    pub(super) fn send_block(
        &mut self,
        segment: &Segment,
        block: &BlockSend<'_>,
    ) -> Result<Posting, BreakError> {
        if self.blocks - self.done.min(self.reported) == self.direction.descriptors {
            self.refresh_done(segment)?;
            if self.blocks - self.done.min(self.reported) == self.direction.descriptors {
                return Ok(Posting::Full);
            }
        }
        let address = block.span.address + block.range.start as usize;
        let bytes = block.range.end - block.range.start;
        let descriptor = Descriptor {
            handle: block.grant.handle,
            transfer: self.transfer,
            block: block.block,
            epoch: block.grant.epoch,
            address: address as u64,
            bytes,
            offset: block.offset,
        };
        let place = self.direction.descriptor_place(self.blocks);
        self.posted[place] = Posted { token: block.token, address, bytes, recalled: false };
        descriptor.write(segment, &self.direction, self.blocks);
        self.blocks += 1;
        Ok(Posting::Posted)
    }

    fn refresh_done(&mut self, segment: &Segment) -> Result<bool, BreakError> {
        let most = match self.transfer {
            Transfer::Pull => self.blocks,
            Transfer::Bounce => self.copied,
        };
        let word = segment.mapping.word(self.direction.done());
        let done = advanced(word, "the count of finished blocks", self.done, most)?;
        let moved = done != self.done;
        self.done = done;
        Ok(moved)
    }

    /// Whether nothing is expected back.
    pub(super) fn is_quiet(&self) -> bool {
        !self.starved && self.done == self.blocks && self.reported == self.blocks
    }

    /// Takes in what the receiver has given back, and reports blocks whose bytes are not needed
    /// any more; says whether anything moved.
    pub(super) fn poll(
        &mut self,
        segment: &Segment,
        peer: Rank,
        events: &mut Events,
    ) -> Result<bool, BreakError> {
        let mut moved = false;
        if self.starved && self.refresh_released(segment)? {
            self.starved = false;
            moved = true;
        }
        if self.done < self.blocks {
            moved |= self.refresh_done(segment)?;
        }
        let free = match self.transfer {
            Transfer::Pull => self.done,
            Transfer::Bounce => self.copied,
        };
        while self.reported < free && events.room() > 0 {
            let place = self.direction.descriptor_place(self.reported);
            events.push(Event::Sent { peer, token: self.posted[place].token });
            self.reported += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Whether blocks wait to be copied into chunks.
    pub(super) fn has_copies(&self) -> bool {
        self.transfer == Transfer::Bounce && self.copied < self.blocks
    }

    /// Copies posted blocks into free chunks, at most about `budget` bytes, which it reduces. Says
    /// whether anything was copied. `wake` is called when the receiver should start.
    pub(super) fn copy(
        &mut self,
        segment: &Segment,
        budget: &mut u64,
        mut wake: impl FnMut(),
    ) -> Result<bool, BreakError> {
        let begun = self.filled;
        while self.has_copies() && *budget > 0 && self.chunk_is_free(segment)? {
            let place = self.direction.descriptor_place(self.copied);
            let Posted { address, bytes, recalled, .. } = self.posted[place];
            let part = (bytes - self.cursor).min(self.direction.chunk_bytes as u64);
            let from: *const u8 = std::ptr::with_exposed_provenance(address + self.cursor as usize);
            let chunk = self.direction.chunk(self.filled);
            // The receiver counts on the chunks of a block that was taken back, whatever they hold.
            if !recalled {
                // SAFETY: the endpoint keeps the block's memory valid and unwritten until `Sent` is
                // reported, the block is recalled or the link is quiesced, and exposed its
                // provenance. The chunk is this sender's until `filled` is stored below: the
                // receiver has emptied it.
                unsafe { segment.mapping.write(chunk, from, part as usize) };
            }
            self.filled += 1;
            segment.mapping.word(self.direction.filled()).store(self.filled, Ordering::Release);
            self.cursor += part;
            *budget = budget.saturating_sub(part);
            if self.cursor == bytes {
                self.copied += 1;
                self.cursor = 0;
            }
            if (self.filled - begun).is_multiple_of(self.direction.chunks.div_ceil(2)) {
                wake();
            }
        }
        Ok(self.filled != begun)
    }

    fn chunk_is_free(&mut self, segment: &Segment) -> Result<bool, BreakError> {
        if self.filled - self.emptied == self.direction.chunks {
            let word = segment.mapping.word(self.direction.emptied());
            self.emptied =
                advanced(word, "the count of emptied chunks", self.emptied, self.filled)?;
        }
        Ok(self.filled - self.emptied < self.direction.chunks)
    }

    /// Takes blocks back by their tokens: neither this link nor the peer reads their memory any more,
    /// but for what the peer finds void when it has read it. Blocks that are through stay so.
    pub(super) fn recall(&mut self, segment: &Segment, is_meant: impl Fn(u64) -> bool) {
        let first = match self.transfer {
            Transfer::Pull => self.done,
            Transfer::Bounce => self.copied,
        };
        for sequence in first..self.blocks {
            let posted = &mut self.posted[self.direction.descriptor_place(sequence)];
            if is_meant(posted.token) {
                posted.recalled = true;
                Descriptor::recall(segment, &self.direction, sequence);
            }
        }
    }

    /// Whether the peer or this link may still read the memory of a block that was posted.
    pub(super) fn has_outstanding(&self) -> bool {
        match self.transfer {
            Transfer::Pull => self.done < self.blocks,
            Transfer::Bounce => self.copied < self.blocks,
        }
    }
}
