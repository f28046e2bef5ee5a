//! The segment that two ranks share: its layout, and the words both sides agree on.
//!
//! ```text
//! 0     magic, version, cookie
//! 128   side 0: closed, transfer      (the initiator, the lower rank)
//! 256   side 1: closed, transfer      (the acceptor)
//! 4096  direction from side 0 to side 1:
//!         +0    starved    sender: it waits for message slots
//!         +128  released   receiver: messages given back
//!         +136  done       receiver: blocks pulled or given up
//!         +256  filled     sender: chunks with bytes
//!         +384  emptied    receiver: chunks that are free again
//!         +512  block descriptors, 64 bytes each
//!         ...   message slots: stamp, header, payload
//! ...   direction from side 1 to side 0
//! ...   chunks of both directions (touched only where pulling is not permitted)
//! ```
//!
//! Every ring has one producer and one consumer. Counts only grow and never wrap (64 bits); entry
//! `n` of a ring of `r` lies at place `n % r`. Slots and descriptors carry a stamp, `n + 1`, which
//! is written last (release) and read first (acquire): a receiver looks at one cache line to see
//! whether something came, and an 8-byte message is all in that line.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use serde::{Deserialize, Serialize};

use super::error::{BreakError, SetupError};
use super::files::{self, Foreign};
use super::mapping::Mapping;
use crate::wire::{MESSAGE_SLOT_BYTES, MESSAGE_SLOTS};

/// Version of this layout and of the set-up bytes.
pub(super) const LAYOUT_VERSION: u32 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"verbcast");
const PAGE: usize = 4096;
/// Two cache lines: adapters of adjacent lines are prefetched in pairs.
const LINE: usize = 128;
const STAMP_BYTES: usize = 8;
const SLOT_STRIDE: usize = (STAMP_BYTES + MESSAGE_SLOT_BYTES).next_multiple_of(64);
const DESCRIPTOR_BYTES: usize = 64;
const CONTROL_BYTES: usize = 4 * LINE;

const DESCRIPTORS_MAX: u32 = 1024;
const CHUNKS_MAX: u32 = 64;
const CHUNK_BYTES_MAX: u32 = 4 << 20;

/// Which end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Initiator,
    Acceptor,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }
}

/// How the bytes of blocks cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// The receiver reads them from the sender's memory.
    Pull,
    /// Through chunks of the segment: the sender copies in, the receiver out.
    Bounce,
}

impl Transfer {
    pub(super) const fn code(self) -> u64 {
        match self {
            Self::Pull => 1,
            Self::Bounce => 2,
        }
    }

    pub(super) const fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Pull),
            2 => Some(Self::Bounce),
            _ => None,
        }
    }
}

/// Numbers of things in a segment; the initiator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sizes {
    pub(super) descriptors: u32,
    pub(super) chunks: u32,
    pub(super) chunk_bytes: u32,
}

/// Where everything lies, for checked sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) sizes: Sizes,
    direction_bytes: usize,
    fixed_bytes: usize,
    total_bytes: NonZeroUsize,
}

impl Layout {
    pub(super) fn new(sizes: Sizes) -> Result<Self, SetupError> {
        let Sizes { descriptors, chunks, chunk_bytes } = sizes;
        let good = (1..=DESCRIPTORS_MAX).contains(&descriptors)
            && descriptors.is_power_of_two()
            && (1..=CHUNKS_MAX).contains(&chunks)
            && (1..=CHUNK_BYTES_MAX).contains(&chunk_bytes)
            && chunk_bytes.is_multiple_of(PAGE as u32);
        if !good {
            return Err(SetupError::Sizes { descriptors, chunks, chunk_bytes });
        }
        let rings = descriptors as usize * DESCRIPTOR_BYTES + MESSAGE_SLOTS as usize * SLOT_STRIDE;
        let direction_bytes = (CONTROL_BYTES + rings).next_multiple_of(PAGE);
        let fixed_bytes = PAGE + 2 * direction_bytes;
        let data_bytes = 2 * chunks as usize * chunk_bytes as usize;
        let total_bytes = NonZeroUsize::MIN.saturating_add(fixed_bytes + data_bytes - 1);
        Ok(Self { sizes, direction_bytes, fixed_bytes, total_bytes })
    }

    /// Offsets of the direction that `from` sends in.
    pub(super) fn direction(&self, from: Side) -> Direction {
        let Sizes { descriptors, chunks, chunk_bytes } = self.sizes;
        let index = usize::from(from == Side::Acceptor);
        let data_bytes = chunks as usize * chunk_bytes as usize;
        Direction {
            base: PAGE + index * self.direction_bytes,
            data: self.fixed_bytes + index * data_bytes,
            descriptors: u64::from(descriptors),
            chunks: u64::from(chunks),
            chunk_bytes: chunk_bytes as usize,
        }
    }
}

/// Offsets of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direction {
    base: usize,
    data: usize,
    pub(super) descriptors: u64,
    pub(super) chunks: u64,
    pub(super) chunk_bytes: usize,
}

impl Direction {
    pub(super) const fn starved(&self) -> usize {
        self.base
    }

    pub(super) const fn released(&self) -> usize {
        self.base + LINE
    }

    pub(super) const fn done(&self) -> usize {
        self.base + LINE + 8
    }

    pub(super) const fn filled(&self) -> usize {
        self.base + 2 * LINE
    }

    pub(super) const fn emptied(&self) -> usize {
        self.base + 3 * LINE
    }

    /// Place of descriptor `sequence` in its ring, whose size is a power of two: polling an idle link
    /// costs no division.
    pub(super) const fn descriptor_place(&self, sequence: u64) -> usize {
        (sequence & (self.descriptors - 1)) as usize
    }

    /// Word `word` (0 is the stamp) of descriptor `sequence`.
    pub(super) const fn descriptor(&self, sequence: u64, word: usize) -> usize {
        let place = self.descriptor_place(sequence);
        self.base + CONTROL_BYTES + place * DESCRIPTOR_BYTES + word * 8
    }

    /// The stamp of message slot `sequence`.
    pub(super) const fn slot(&self, sequence: u64) -> usize {
        let place = (sequence % MESSAGE_SLOTS as u64) as usize;
        self.base
            + CONTROL_BYTES
            + self.descriptors as usize * DESCRIPTOR_BYTES
            + place * SLOT_STRIDE
    }

    /// The header in message slot `sequence`; the payload follows it.
    pub(super) const fn message(&self, sequence: u64) -> usize {
        self.slot(sequence) + STAMP_BYTES
    }

    pub(super) const fn chunk(&self, sequence: u64) -> usize {
        self.data + (sequence % self.chunks) as usize * self.chunk_bytes
    }
}

/// One end of a mapped segment.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) mapping: Mapping,
    pub(super) layout: Layout,
    pub(super) side: Side,
    pub(super) cookie: [u64; 2],
}

impl Segment {
    /// Makes one; the file is kept open until the peer has opened it.
    pub(super) fn create(layout: Layout, cookie: [u64; 2]) -> Result<(Self, OwnedFd), SetupError> {
        let file = files::create_memfd("verbcast-link", layout.total_bytes, layout.fixed_bytes)?;
        let mapping = Mapping::new(file.as_fd(), layout.total_bytes)
            .map_err(SetupError::system("mapping the segment"))?;
        for (offset, value) in Self::identification(cookie) {
            mapping.word(offset).store(value, Ordering::Release);
        }
        Ok((Self { mapping, layout, side: Side::Initiator, cookie }, file))
    }

    /// Opens and maps the segment that a peer offered, if it is the one with this cookie.
    pub(super) fn attach(
        foreign: Foreign,
        layout: Layout,
        cookie: [u64; 2],
    ) -> Result<Self, SetupError> {
        let file = files::open_memfd(foreign, layout.total_bytes)?;
        let mapping = Mapping::new(file.as_fd(), layout.total_bytes)
            .map_err(SetupError::system("mapping the segment"))?;
        let matches = Self::identification(cookie)
            .into_iter()
            .all(|(offset, value)| mapping.word(offset).load(Ordering::Acquire) == value);
        if !matches {
            return Err(SetupError::Cookie { pid: foreign.pid, fd: foreign.fd });
        }
        Ok(Self { mapping, layout, side: Side::Acceptor, cookie })
    }

    const fn identification(cookie: [u64; 2]) -> [(usize, u64); 4] {
        [(0, MAGIC), (8, LAYOUT_VERSION as u64), (16, cookie[0]), (24, cookie[1])]
    }

    /// The direction this side sends in.
    pub(super) fn outgoing(&self) -> Direction {
        self.layout.direction(self.side)
    }

    /// The direction this side receives from.
    pub(super) fn incoming(&self) -> Direction {
        self.layout.direction(self.side.other())
    }

    /// Says how this side can receive blocks.
    pub(super) fn set_transfer(&self, transfer: Transfer) {
        self.transfer_word(self.side).store(transfer.code(), Ordering::Release);
    }

    /// How the peer can receive blocks.
    pub(super) fn peer_transfer(&self) -> Result<Transfer, BreakError> {
        let found = self.transfer_word(self.side.other()).load(Ordering::Acquire);
        let expected = Transfer::Bounce.code();
        let what = "the way to receive blocks";
        Transfer::from_code(found).ok_or(BreakError::Word { what, found, expected })
    }

    /// Closes this side: nothing is sent any more, and what the peer has not pulled yet is void.
    ///
    /// The memory of blocks may be reused after this call. A peer that reads it late finds this
    /// side closed when it looks afterwards ([`Self::peer_is_closed`]) and discards what it read:
    /// the fence orders this store before any later store to that memory, the peer's fence orders
    /// its reads of the memory before its load, so whoever read a newer byte sees the newer word
    /// (the reader's side of a sequence lock).
    pub(super) fn close(&self) {
        self.closed_word(self.side).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether the peer has closed its side; ordered after all earlier reads.
    pub(super) fn peer_is_closed(&self) -> bool {
        fence(Ordering::Acquire);
        self.closed_word(self.side.other()).load(Ordering::Acquire) != 0
    }

    fn closed_word(&self, side: Side) -> &AtomicU64 {
        self.mapping.word(Self::side_line(side))
    }

    fn transfer_word(&self, side: Side) -> &AtomicU64 {
        self.mapping.word(Self::side_line(side) + 8)
    }

    const fn side_line(side: Side) -> usize {
        match side {
            Side::Initiator => LINE,
            Side::Acceptor => 2 * LINE,
        }
    }
}

#[cfg(test)]
impl Segment {
    pub(super) fn set_transfer_code(&self, code: u64) {
        self.transfer_word(self.side).store(code, Ordering::Release);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.close();
    }
}

/// The next value of a count that the peer advances, between `last` seen and `most` possible.
pub(super) fn advanced(
    word: &AtomicU64,
    what: &'static str,
    last: u64,
    most: u64,
) -> Result<u64, BreakError> {
    let found = word.load(Ordering::Acquire);
    if (last..=most).contains(&found) {
        Ok(found)
    } else {
        Err(BreakError::Word { what, found, expected: most })
    }
}

/// Whether entry `sequence` of a ring of `entries` is there, by its stamp.
pub(super) fn stamped(
    word: &AtomicU64,
    what: &'static str,
    sequence: u64,
    entries: u64,
) -> Result<bool, BreakError> {
    let expected = sequence + 1;
    match word.load(Ordering::Acquire) {
        found if found == expected => Ok(true),
        found if found == stale_stamp(sequence, entries) => Ok(false),
        found => Err(BreakError::Word { what, found, expected }),
    }
}

/// The stamp at the place of entry `sequence` as long as that is not there.
pub(super) const fn stale_stamp(sequence: u64, entries: u64) -> u64 {
    (sequence + 1).saturating_sub(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(layout: &Layout, side: Side) -> Vec<std::ops::Range<usize>> {
        let d = layout.direction(side);
        let words = [d.starved(), d.released(), d.done(), d.filled(), d.emptied()];
        let mut all: Vec<_> = words.into_iter().map(|at| at..at + 8).collect();
        all.extend((0..d.descriptors).map(|n| d.descriptor(n, 0)..d.descriptor(n, 0) + 64));
        let slot_bytes = STAMP_BYTES + MESSAGE_SLOT_BYTES;
        all.extend((0..u64::from(MESSAGE_SLOTS)).map(|n| d.slot(n)..d.slot(n) + slot_bytes));
        all.extend((0..d.chunks).map(|n| d.chunk(n)..d.chunk(n) + d.chunk_bytes));
        all
    }

    #[test]
    fn nothing_overlaps_and_all_lies_inside() {
        for (descriptors, chunks, chunk_bytes) in [(1, 1, 4096), (64, 8, 65536), (8, 3, 8192)] {
            let layout = Layout::new(Sizes { descriptors, chunks, chunk_bytes }).unwrap();
            let mut all = ranges(&layout, Side::Initiator);
            all.extend(ranges(&layout, Side::Acceptor));
            all.push(0..32);
            all.extend([LINE..LINE + 16, 2 * LINE..2 * LINE + 16]);
            all.sort_by_key(|range| range.start);
            assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(all.last().unwrap().end <= layout.total_bytes.get());
            let chunk_start = layout.direction(Side::Initiator).chunk(0);
            assert_eq!(chunk_start, layout.fixed_bytes);
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_errors() {
        for (descriptors, chunks, chunk_bytes) in [
            (0, 8, 65536),
            (48, 8, 65536), // not a power of two
            (DESCRIPTORS_MAX + 1, 8, 65536),
            (64, 0, 65536),
            (64, CHUNKS_MAX + 1, 65536),
            (64, 8, 0),
            (64, 8, 4097),
            (64, 8, CHUNK_BYTES_MAX + 4096),
            (u32::MAX, u32::MAX, u32::MAX),
        ] {
            let sizes = Sizes { descriptors, chunks, chunk_bytes };
            assert!(matches!(Layout::new(sizes), Err(SetupError::Sizes { .. })), "{sizes:?}");
        }
    }

    #[test]
    fn stamps_tell_fresh_from_stale_from_wrong() {
        for (sequence, stale) in [(0, 0), (15, 0), (16, 1), (1000, 985)] {
            let word = AtomicU64::new(stale);
            assert!(!stamped(&word, "stamp", sequence, 16).unwrap());
            word.store(sequence + 1, Ordering::Relaxed);
            assert!(stamped(&word, "stamp", sequence, 16).unwrap());
            word.store(sequence + 2, Ordering::Relaxed);
            assert!(stamped(&word, "stamp", sequence, 16).is_err());
        }
    }
}
