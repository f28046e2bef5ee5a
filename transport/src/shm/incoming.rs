//! The receiving half of a link.

use std::sync::atomic::Ordering;

use zerocopy::FromBytes;

use super::bell::Published;
use super::descriptor::Descriptor;
use super::error::BreakError;
use super::pull::Source;
use super::segment::{Direction, Segment, Transfer, advanced, stale_stamp, stamped};
use crate::link::{Event, Events, Receive, ReceiveTable, Slot};
use crate::wire::{MESSAGE_HEADER_BYTES, MESSAGE_PAYLOAD_MAX, MESSAGE_SLOTS, MessageHeader, Rank};

/// The most that one system call pulls, in bytes.
const PULL_MAX: u64 = 1 << 20;

/// A message, copied out of the segment: what a peer writes there later changes nothing.
struct Held {
    header: MessageHeader,
    payload_bytes: usize,
    payload: [u8; MESSAGE_PAYLOAD_MAX],
}

/// The block at the head of the ring, as far as it has come.
#[derive(Debug)]
struct Current {
    descriptor: Descriptor,
    /// Bytes that have come.
    bytes: u64,
    /// Nobody waits for it (any more): it is passed over.
    void: bool,
}

/// What a step with the block at the head of the ring led to.
enum Step {
    /// There is none, or its bytes are not there yet.
    Nothing,
    /// Bytes came.
    Partly,
    /// It is through, into the buffer of its receive or passed over.
    Whole,
}

pub(super) struct Incoming {
    direction: Direction,
    /// Where to pull from, where that is permitted.
    source: Option<Source>,
    /// Running number of the link's first message: numbers of links to one peer do not repeat.
    first: u64,
    /// Messages taken, and of these given back in order; a bit for each given back out of order.
    taken: u64,
    released: u64,
    released_after: u32,
    credit: bool,
    held: Box<[Held]>,
    /// Blocks finished.
    done: u64,
    current: Option<Current>,
    /// Chunks emptied, and filled by the sender, as last seen.
    emptied: u64,
    filled: u64,
}

const _: () = assert!(MESSAGE_SLOTS <= u32::BITS);

impl Incoming {
    /// `first` is the running number of its first message.
    pub(super) fn new(segment: &Segment, source: Option<Source>, first: u64) -> Self {
        let empty = || Held {
            header: MessageHeader::read_from_bytes(&[0; MESSAGE_HEADER_BYTES])
                .expect("the array has a header's size"),
            payload_bytes: 0,
            payload: [0; MESSAGE_PAYLOAD_MAX],
        };
        Self {
            direction: segment.incoming(),
            source,
            first,
            taken: 0,
            released: 0,
            released_after: 0,
            credit: false,
            held: std::iter::repeat_with(empty).take(MESSAGE_SLOTS as usize).collect(),
            done: 0,
            current: None,
            emptied: 0,
            filled: 0,
        }
    }

    /// The running number of the next message.
    pub(super) fn next_sequence(&self) -> u64 {
        self.first + self.taken
    }

    /// Whether nothing new is there, by a look at two words.
    pub(super) fn is_quiet(&self, segment: &Segment) -> bool {
        let Direction { descriptors, .. } = self.direction;
        let slot = segment.mapping.word(self.direction.slot(self.taken));
        let descriptor = segment.mapping.word(self.direction.descriptor(self.done, 0));
        self.current.is_none()
            && slot.load(Ordering::Relaxed) == stale_stamp(self.taken, MESSAGE_SLOTS.into())
            && descriptor.load(Ordering::Relaxed) == stale_stamp(self.done, descriptors)
    }

    /// Takes messages that have come; says whether there were any.
    pub(super) fn poll_messages(
        &mut self,
        segment: &Segment,
        peer: Rank,
        events: &mut Events,
    ) -> Result<bool, BreakError> {
        let slots = u64::from(MESSAGE_SLOTS);
        let begun = self.taken;
        while events.room() > 0 && self.taken - self.released < slots {
            let stamp = segment.mapping.word(self.direction.slot(self.taken));
            if !stamped(stamp, "a message's stamp", self.taken, slots)? {
                break;
            }
            self.take_message(segment)?;
            events.push(Event::Message { slot: Slot { peer, sequence: self.first + self.taken } });
            self.taken += 1;
        }
        Ok(self.taken != begun)
    }

    fn take_message(&mut self, segment: &Segment) -> Result<(), BreakError> {
        let at = self.direction.message(self.taken);
        let held = &mut self.held[(self.taken % u64::from(MESSAGE_SLOTS)) as usize];
        let mut header = [0; MESSAGE_HEADER_BYTES];
        // SAFETY: the stamp says that the slot is the receiver's until it is released; should a
        // peer write nevertheless, these are bytes of no particular meaning, copied once.
        unsafe { segment.mapping.read(at, header.as_mut_ptr(), header.len()) };
        held.header =
            MessageHeader::read_from_bytes(&header).expect("the array has a header's size");
        held.payload_bytes = held
            .header
            .payload_bytes()
            .map_err(|source| BreakError::Message { sequence: self.taken, source })?;
        let to = held.payload.as_mut_ptr();
        // SAFETY: as above; the length was checked against the array's.
        unsafe { segment.mapping.read(at + MESSAGE_HEADER_BYTES, to, held.payload_bytes) };
        Ok(())
    }

    /// The message with this running number, unless it was given back or never came.
    pub(super) fn message(&self, sequence: u64) -> Option<(MessageHeader, &[u8])> {
        let number = self.held_number(sequence)?;
        let held = &self.held[(number % u64::from(MESSAGE_SLOTS)) as usize];
        Some((held.header, &held.payload[..held.payload_bytes]))
    }

    /// The number on this link of a message that is held, from its running number.
    fn held_number(&self, sequence: u64) -> Option<u64> {
        let number = sequence.checked_sub(self.first)?;
        let held = (self.released..self.taken).contains(&number)
            && self.released_after >> (number - self.released) & 1 == 0;
        held.then_some(number)
    }

    /// Gives a message's slot back; the credit goes out in order of the slots.
    pub(super) fn release(&mut self, segment: &Segment, sequence: u64) {
        let Some(number) = self.held_number(sequence) else { return };
        self.released_after |= 1 << (number - self.released);
        let in_order = self.released_after.trailing_ones();
        if in_order == 0 {
            return;
        }
        self.released_after = self.released_after.checked_shr(in_order).unwrap_or(0);
        self.released += u64::from(in_order);
        segment.mapping.word(self.direction.released()).store(self.released, Ordering::Release);
        self.credit = true;
    }

    /// Whether slots were given back since the last [`Self::credit_is_due`].
    pub(super) fn has_credit(&self) -> bool {
        self.credit
    }

    /// Whether the sender waits for the slots that were given back before the fence (see
    /// `Outgoing::wait_for_slots`).
    pub(super) fn credit_is_due(&mut self, segment: &Segment, _: &Published) -> bool {
        if !std::mem::take(&mut self.credit) {
            return false;
        }
        let starved = segment.mapping.word(self.direction.starved());
        let due = starved.load(Ordering::Relaxed) != 0;
        if due {
            starved.store(0, Ordering::Relaxed);
        }
        due
    }

    /// Whether a block has come in part.
    pub(super) fn is_amid_block(&self) -> bool {
        self.current.is_some()
    }

    /// Brings blocks in, at most about `budget` bytes, which it reduces. Says whether anything
    /// moved. `wake` is called when the sender should go on meanwhile.
    pub(super) fn poll_blocks(
        &mut self,
        segment: &Segment,
        peer: Rank,
        receives: &ReceiveTable,
        events: &mut Events,
        budget: &mut u64,
        mut wake: impl FnMut(),
    ) -> Result<bool, BreakError> {
        let mut moved = false;
        while *budget > 0 && events.room() > 0 {
            match self.step(segment, receives, budget, &mut wake)? {
                Step::Nothing => break,
                Step::Partly => moved = true,
                Step::Whole => {
                    moved = true;
                    self.finish(segment, peer, events)?;
                }
            }
        }
        Ok(moved)
    }

    fn step(
        &mut self,
        segment: &Segment,
        receives: &ReceiveTable,
        budget: &mut u64,
        wake: &mut impl FnMut(),
    ) -> Result<Step, BreakError> {
        if self.current.is_none() {
            let Some(descriptor) = Descriptor::read(segment, &self.direction, self.done)? else {
                return Ok(Step::Nothing);
            };
            self.current = Some(Current { descriptor, bytes: 0, void: false });
        }
        let Some(current) = self.current.as_mut() else { return Ok(Step::Nothing) };
        // Looked up at every step: the receive may have been closed since the last.
        let target = target(receives, &current.descriptor)?;
        current.void |= target.is_none();
        let target = target.filter(|_| !current.void);
        match current.descriptor.transfer {
            Transfer::Pull => self.pull(segment, target, budget),
            Transfer::Bounce => self.copy(segment, target, budget, wake),
        }
    }

    fn pull(
        &mut self,
        segment: &Segment,
        target: Option<*mut u8>,
        budget: &mut u64,
    ) -> Result<Step, BreakError> {
        let (Some(target), Some(current)) = (target, self.current.as_mut()) else {
            return Ok(Step::Whole);
        };
        let Some(source) = self.source else {
            let (what, found) = ("the way of transfer", Transfer::Pull.code());
            return Err(BreakError::Descriptor { sequence: self.done, what, found });
        };
        let Descriptor { address, bytes, .. } = current.descriptor;
        let part = (bytes - current.bytes).min(PULL_MAX);
        let to = target.wrapping_add(current.bytes as usize);
        // SAFETY: `target` is the start of the block in the buffer of an open receive, in which it
        // lies whole; the endpoint keeps that buffer valid and to itself while the receive is open.
        let read = unsafe { source.pull(address + current.bytes, to, part as usize) };
        // What a sender has taken back need not be there any more.
        if read.is_err() && Descriptor::is_recalled(segment, &self.direction, self.done) {
            return Ok(Step::Whole);
        }
        let read = read?;
        current.bytes += read as u64;
        *budget = budget.saturating_sub(read as u64);
        Ok(if current.bytes == bytes { Step::Whole } else { Step::Partly })
    }

    fn copy(
        &mut self,
        segment: &Segment,
        target: Option<*mut u8>,
        budget: &mut u64,
        wake: &mut impl FnMut(),
    ) -> Result<Step, BreakError> {
        let Some(current) = self.current.as_mut() else { return Ok(Step::Nothing) };
        if self.filled == self.emptied {
            let word = segment.mapping.word(self.direction.filled());
            let most = self.emptied + self.direction.chunks;
            self.filled = advanced(word, "the count of filled chunks", self.filled, most)?;
            if self.filled == self.emptied {
                return Ok(Step::Nothing);
            }
        }
        let bytes = current.descriptor.bytes;
        let part = (bytes - current.bytes).min(self.direction.chunk_bytes as u64);
        if let Some(target) = target {
            let to = target.wrapping_add(current.bytes as usize);
            let chunk = self.direction.chunk(self.emptied);
            // SAFETY: `target` as in `pull`. `filled` says that the chunk is the receiver's until
            // `emptied` is stored below; should a peer write nevertheless, they are only bytes.
            unsafe { segment.mapping.read(chunk, to, part as usize) };
        }
        current.bytes += part;
        *budget = budget.saturating_sub(part);
        self.emptied += 1;
        segment.mapping.word(self.direction.emptied()).store(self.emptied, Ordering::Release);
        if self.emptied.is_multiple_of(self.direction.chunks.div_ceil(2)) {
            wake();
        }
        Ok(if current.bytes == bytes { Step::Whole } else { Step::Partly })
    }

    /// Acknowledges the block at the head of the ring and reports it, unless its sender gave it, or
    /// the link, up meanwhile: then what was read may be torn.
    fn finish(
        &mut self,
        segment: &Segment,
        peer: Rank,
        events: &mut Events,
    ) -> Result<(), BreakError> {
        let Some(Current { descriptor, void, .. }) = self.current.take() else { return Ok(()) };
        if descriptor.transfer == Transfer::Pull && segment.peer_is_closed() {
            return Err(BreakError::Closed);
        }
        let void = void || Descriptor::is_recalled(segment, &self.direction, self.done);
        self.done += 1;
        segment.mapping.word(self.direction.done()).store(self.done, Ordering::Release);
        if !void {
            let Descriptor { handle, block, .. } = descriptor;
            events.push(Event::Block { peer, handle, block });
        }
        Ok(())
    }
}

/// Where the block goes, or `None` if its receive is not open (any more) or wants none.
fn target(receives: &ReceiveTable, descriptor: &Descriptor) -> Result<Option<*mut u8>, BreakError> {
    let Descriptor { handle, block, epoch, offset, bytes, .. } = *descriptor;
    let Some(receive) = receives.find(handle).filter(|receive| receive.epoch == epoch) else {
        return Ok(None);
    };
    if receive.withdrawn {
        return Ok(None);
    }
    let Receive { address, bytes: buffer_bytes, .. } = *receive;
    if receive.block_range(block) != Some(offset..offset + bytes) {
        return Err(BreakError::BlockRange { handle, block, offset, bytes, buffer_bytes });
    }
    Ok(Some(std::ptr::with_exposed_provenance_mut(address + offset as usize)))
}
