//! Message slots of a link: the ring that the peer writes into, and the staging ring that own
//! messages are written from.
//!
//! Slot numbers run on without end; slot s lies at index s modulo [`MESSAGE_SLOTS`]. Messages come
//! in order (lane 0 only), are released in any order, and are given back in order.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use zerocopy::{FromBytes, IntoBytes};

use super::driver::{Access, Device, MemoryRegion};
use super::error::VerbsError;
use crate::wire::{
    MESSAGE_HEADER_BYTES, MESSAGE_SLOT_BYTES, MESSAGE_SLOTS, MalformedMessage, MessageHeader,
};

const SLOTS: usize = MESSAGE_SLOTS as usize;

/// Bytes of a ring.
pub(crate) const RING_BYTES: usize = SLOTS * MESSAGE_SLOT_BYTES;

const PAGE_BYTES: usize = 4096;

const fn index(sequence: u64) -> usize {
    (sequence % MESSAGE_SLOTS as u64) as usize
}

/// Registered, page-aligned memory of [`RING_BYTES`].
struct RingMemory {
    // Dropped first: the device forgets the memory before it is freed.
    region: Box<dyn MemoryRegion>,
    pages: Pages,
}

struct Pages(NonNull<u8>);

// SAFETY: the pages are owned memory, like a `Box<[u8]>`.
unsafe impl Send for Pages {}
// SAFETY: shared use only reads.
unsafe impl Sync for Pages {}

impl Pages {
    const LAYOUT: Layout = match Layout::from_size_align(RING_BYTES, PAGE_BYTES) {
        Ok(layout) => layout,
        Err(_) => panic!("a ring's size and alignment make a layout"),
    };

    fn new() -> Self {
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(Self::LAYOUT) };
        Self(NonNull::new(start).unwrap_or_else(|| handle_alloc_error(Self::LAYOUT)))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout, and nobody else frees it.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}

impl RingMemory {
    fn new(device: &dyn Device, access: Access) -> Result<Self, VerbsError> {
        let pages = Pages::new();
        pages.0.as_ptr().expose_provenance();
        // SAFETY: the pages are mapped, readable and writable, and the struct drops the region
        // before them; what the device writes is read only in slots that it has reported.
        let region = unsafe { device.register(pages.0.as_ptr(), RING_BYTES, access) }?;
        Ok(Self { region, pages })
    }

    fn address(&self) -> usize {
        self.pages.0.as_ptr().addr()
    }

    fn slot(&self, sequence: u64) -> NonNull<u8> {
        // SAFETY: the index is below SLOTS, so that the slot lies inside the pages.
        unsafe { self.pages.0.add(index(sequence) * MESSAGE_SLOT_BYTES) }
    }
}

/// Why an immediate does not fit the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    #[error("a message in slot {got}, where slot {expected} comes next")]
    Order { got: u32, expected: u32 },
    #[error("a message in slot {0} that was not given back")]
    NotFree(u32),
    #[error("a message of {0} bytes")]
    Length(u32),
    #[error("it gave back {0} message slots more than it was sent")]
    TooManyReturned(u32),
}

/// Messages from the peer.
pub(crate) struct Inbox {
    memory: RingMemory,
    /// The next message's number.
    next: u64,
    /// Every slot below this was given back.
    returned: u64,
    /// Bytes that were written to the slot; 0 if it holds no message.
    bytes: [u32; SLOTS],
    /// Slots below `returned` that the peer was not told of yet.
    to_return: u32,
}

impl Inbox {
    pub(crate) fn new(device: &dyn Device) -> Result<Self, VerbsError> {
        let memory = RingMemory::new(device, Access::RemoteWrite)?;
        Ok(Self { memory, next: 0, returned: 0, bytes: [0; SLOTS], to_return: 0 })
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.address() as u64
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.memory.region.rkey()
    }

    /// A message of `bytes` bytes has come into `slot`; gives its running number.
    pub(crate) fn arrived(&mut self, slot: u32, bytes: u32) -> Result<u64, RingError> {
        let expected = index(self.next) as u32;
        if slot != expected {
            return Err(RingError::Order { got: slot, expected });
        }
        if self.next - self.returned >= u64::from(MESSAGE_SLOTS) {
            return Err(RingError::NotFree(slot));
        }
        if !(MESSAGE_HEADER_BYTES..=MESSAGE_SLOT_BYTES).contains(&(bytes as usize)) {
            return Err(RingError::Length(bytes));
        }
        self.bytes[slot as usize] = bytes;
        self.next += 1;
        Ok(self.next - 1)
    }

    /// The message with this number: `None` if there is none (any more).
    pub(crate) fn message(
        &self,
        sequence: u64,
    ) -> Option<Result<(MessageHeader, &[u8]), MalformedMessage>> {
        if !(self.returned..self.next).contains(&sequence) {
            return None;
        }
        let bytes = self.bytes[index(sequence)] as usize;
        if bytes == 0 {
            return None;
        }
        // SAFETY: the slot is initialised memory of at least `bytes` bytes (checked on arrival)
        // that lives as long as `self`. The write to it has completed, and the peer does not write
        // to it again before `release`, which needs `&mut self`, has given it back: every peer
        // proved at the rendezvous that it belongs to this job and follows the protocol.
        let written = unsafe {
            std::slice::from_raw_parts(self.memory.slot(sequence).as_ptr().cast_const(), bytes)
        };
        Some(read(written))
    }

    /// Gives a slot back; anything but a message that is there is ignored.
    pub(crate) fn release(&mut self, sequence: u64) {
        if !(self.returned..self.next).contains(&sequence) {
            return;
        }
        self.bytes[index(sequence)] = 0;
        while self.returned < self.next && self.bytes[index(self.returned)] == 0 {
            self.returned += 1;
            self.to_return += 1;
        }
    }

    /// Slots that the peer is to be told of.
    pub(crate) fn to_return(&self) -> u32 {
        self.to_return
    }

    /// The peer was told of all of them.
    pub(crate) fn told(&mut self) {
        self.to_return = 0;
    }
}

fn read(written: &[u8]) -> Result<(MessageHeader, &[u8]), MalformedMessage> {
    let (header, rest) =
        MessageHeader::read_from_prefix(written).map_err(|_| MalformedMessage::PayloadLength(0))?;
    if header.withdrawal_kind().is_none() {
        header.kind()?;
    }
    let bytes = header.payload_bytes()?;
    let payload = rest.get(..bytes).ok_or(MalformedMessage::PayloadLength(bytes as u16))?;
    Ok((header, payload))
}

/// Messages to the peer.
pub(crate) struct Outbox {
    memory: RingMemory,
    /// The next message's number.
    next: u64,
    /// Slots at the peer that are free.
    free: u32,
    /// Lane 0's work request that last wrote from this slot, plus one; 0 if there was none.
    written_by: [u64; SLOTS],
}

impl Outbox {
    pub(crate) fn new(device: &dyn Device) -> Result<Self, VerbsError> {
        let memory = RingMemory::new(device, Access::LocalRead)?;
        Ok(Self { memory, next: 0, free: MESSAGE_SLOTS, written_by: [0; SLOTS] })
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.memory.region.lkey()
    }

    /// Whether the next slot may be written: the peer has given it back, and this end's write from
    /// it is known to have completed. `completed` counts lane 0's completed work requests.
    pub(crate) fn has_room(&self, completed: u64) -> bool {
        self.free > 0 && self.written_by[index(self.next)] <= completed
    }

    /// Copies a message into the next slot: its address here, its bytes, its index, and its offset
    /// in the peer's ring.
    ///
    /// The caller has asked [`Outbox::has_room`] first, and then says [`Outbox::sent`].
    pub(crate) fn stage(&mut self, header: &MessageHeader, payload: &[u8]) -> Staged {
        let bytes = MESSAGE_HEADER_BYTES + payload.len();
        assert!(bytes <= MESSAGE_SLOT_BYTES, "payload does not fit a message slot");
        let slot = self.memory.slot(self.next);
        // SAFETY: the slot lies inside the pages, and no write from it is outstanding
        // (`has_room`), so that nobody reads it meanwhile.
        let target = unsafe { std::slice::from_raw_parts_mut(slot.as_ptr(), bytes) };
        target[..MESSAGE_HEADER_BYTES].copy_from_slice(header.as_bytes());
        target[MESSAGE_HEADER_BYTES..].copy_from_slice(payload);
        let index = index(self.next);
        Staged {
            address: slot.as_ptr().addr(),
            bytes: bytes as u32,
            slot: index as u32,
            offset: (index * MESSAGE_SLOT_BYTES) as u64,
        }
    }

    /// The staged message is queued as lane 0's work request `sequence`.
    pub(crate) fn sent(&mut self, sequence: u64) {
        self.written_by[index(self.next)] = sequence + 1;
        self.next += 1;
        self.free = self.free.saturating_sub(1);
    }

    /// The peer gave slots back.
    pub(crate) fn returned(&mut self, slots: u32) -> Result<(), RingError> {
        let free = self.free.saturating_add(slots);
        if free > MESSAGE_SLOTS {
            return Err(RingError::TooManyReturned(free - MESSAGE_SLOTS));
        }
        self.free = free;
        Ok(())
    }
}

/// A message that is ready to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub(crate) address: usize,
    pub(crate) bytes: u32,
    pub(crate) slot: u32,
    pub(crate) offset: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: u32 = MESSAGE_HEADER_BYTES as u32;

    struct NoRegion;

    impl MemoryRegion for NoRegion {
        fn lkey(&self) -> u32 {
            1
        }
        fn rkey(&self) -> u32 {
            2
        }
    }

    fn memory() -> RingMemory {
        RingMemory { region: Box::new(NoRegion), pages: Pages::new() }
    }

    fn inbox() -> Inbox {
        let memory = memory();
        Inbox { memory, next: 0, returned: 0, bytes: [0; SLOTS], to_return: 0 }
    }

    #[test]
    fn slots_are_released_in_any_order_and_given_back_in_order() {
        let mut inbox = inbox();
        for number in 0..u64::from(MESSAGE_SLOTS) {
            assert_eq!(inbox.arrived(number as u32, HEADER), Ok(number));
        }
        assert_eq!(inbox.arrived(0, HEADER), Err(RingError::NotFree(0)));
        inbox.release(2);
        inbox.release(1);
        inbox.release(1);
        inbox.release(99);
        assert_eq!(inbox.to_return(), 0);
        inbox.release(0);
        assert_eq!(inbox.to_return(), 3);
        assert!(inbox.message(2).is_none() && inbox.message(3).is_some());
        inbox.told();
        assert_eq!(inbox.arrived(0, HEADER), Ok(16));
        assert_eq!(inbox.arrived(2, HEADER), Err(RingError::Order { got: 2, expected: 1 }));
        assert_eq!(inbox.arrived(1, HEADER - 1), Err(RingError::Length(HEADER - 1)));
        assert_eq!(inbox.arrived(1, 1 << 20), Err(RingError::Length(1 << 20)));
        // Nothing but zeros was written: no message, and no panic.
        assert_eq!(inbox.message(16).map(|read| read.err()), Some(Some(MalformedMessage::Kind(0))));
    }

    #[test]
    fn a_staging_slot_needs_both_its_completion_and_its_return() {
        let mut outbox =
            Outbox { memory: memory(), next: 0, free: MESSAGE_SLOTS, written_by: [0; SLOTS] };
        let header = MessageHeader::read_from_bytes(&[0; MESSAGE_HEADER_BYTES]).expect("its size");
        for number in 0..u64::from(MESSAGE_SLOTS) {
            assert!(outbox.has_room(0));
            let staged = outbox.stage(&header, b"abc");
            assert_eq!((staged.bytes, staged.slot), (HEADER + 3, number as u32));
            outbox.sent(number);
        }
        assert!(!outbox.has_room(100), "the peer has given nothing back");
        assert_eq!(outbox.returned(1), Ok(()));
        assert!(!outbox.has_room(0), "the write from the slot has not completed");
        assert!(outbox.has_room(1));
        assert_eq!(outbox.returned(16), Err(RingError::TooManyReturned(1)));
    }
}
