//! A block descriptor in the ring: eight words, the first of them the stamp, the seventh the sender's
//! word that it has taken the block back.

use std::sync::atomic::{Ordering, fence};

use super::error::BreakError;
use super::segment::{Direction, Segment, Transfer, stamped};
use crate::wire::{BLOCKS_MAX, HANDLE_BITS};

/// The word that holds the stamp too once the block was taken back.
const RECALLED: usize = 6;

/// A block that a sender offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Handle of the receive, from the grant.
    pub(super) handle: u16,
    /// How the bytes come.
    pub(super) transfer: Transfer,
    /// Block number.
    pub(super) block: u32,
    /// Epoch of the receive, from the grant.
    pub(super) epoch: u32,
    /// Where the bytes are in the sender's memory.
    pub(super) address: u64,
    /// How many.
    pub(super) bytes: u64,
    /// Where they go in the receiver's buffer.
    pub(super) offset: u64,
}

impl Descriptor {
    /// Writes it as number `sequence`; the place is free.
    pub(super) fn write(&self, segment: &Segment, to: &Direction, sequence: u64) {
        let head =
            u64::from(self.handle) | self.transfer.code() << 16 | u64::from(self.block) << 32;
        let words = [head, self.epoch.into(), self.address, self.bytes, self.offset];
        for (place, value) in words.into_iter().enumerate() {
            let offset = to.descriptor(sequence, 1 + place);
            segment.mapping.word(offset).store(value, Ordering::Relaxed);
        }
        let stamp = segment.mapping.word(to.descriptor(sequence, 0));
        stamp.store(sequence + 1, Ordering::Release);
    }

    /// Takes number `sequence` back: its memory may be used otherwise after this call. A receiver
    /// that reads that memory late finds this word when it looks afterwards, by the same order of
    /// stores, fences and loads as in [`Segment::close`].
    pub(super) fn recall(segment: &Segment, to: &Direction, sequence: u64) {
        let word = segment.mapping.word(to.descriptor(sequence, RECALLED));
        word.store(sequence + 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether the sender has taken number `sequence` back; ordered after all earlier reads.
    pub(super) fn is_recalled(segment: &Segment, from: &Direction, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        let word = segment.mapping.word(from.descriptor(sequence, RECALLED));
        word.load(Ordering::Acquire) == sequence + 1
    }

    /// Reads number `sequence`, if it is there. Each word is read once, then checked.
    pub(super) fn read(
        segment: &Segment,
        from: &Direction,
        sequence: u64,
    ) -> Result<Option<Self>, BreakError> {
        let word = |place| segment.mapping.word(from.descriptor(sequence, place));
        if !stamped(word(0), "a descriptor's stamp", sequence, from.descriptors)? {
            return Ok(None);
        }
        let [head, epoch, address, bytes, offset] =
            [1, 2, 3, 4, 5].map(|place| word(place).load(Ordering::Relaxed));
        let wrong = |what, found| BreakError::Descriptor { sequence, what, found };
        let handle = head as u16;
        if handle >= 1 << HANDLE_BITS {
            return Err(wrong("the handle", handle.into()));
        }
        let transfer = head >> 16 & 0xffff;
        let transfer =
            Transfer::from_code(transfer).ok_or_else(|| wrong("the way of transfer", transfer))?;
        let block = (head >> 32) as u32;
        if block >= BLOCKS_MAX {
            return Err(wrong("the block number", block.into()));
        }
        let epoch = u32::try_from(epoch).map_err(|_| wrong("the epoch", epoch))?;
        if bytes == 0 || offset.checked_add(bytes).is_none() {
            return Err(wrong("the length", bytes));
        }
        if address.checked_add(bytes).is_none() {
            return Err(wrong("the address", address));
        }
        Ok(Some(Self { handle, transfer, block, epoch, address, bytes, offset }))
    }
}
