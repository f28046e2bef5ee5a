//! The contract between the endpoint and the links of a fabric (verbs, shared memory).
//!
//! A *fabric* owns all links of one kind. The endpoint asks it to move messages and blocks, polls
//! it for events, and hands it the table of open receives; link set-up runs in the control thread
//! through a [`Connector`].

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::layout::Layout;
use crate::stripe::ArrivedParts;
use crate::wire::{BLOCKS_MAX, Grant, HANDLE_BITS, MessageHeader, Rank};

/// What a rank tells the others of itself at the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its rank.
    pub rank: Rank,
    /// Where its control plane listens (`host:port`, several if it has several addresses).
    pub addresses: Vec<String>,
    /// Host name, for messages to people only.
    pub host: String,
    /// Process id in its own namespace.
    pub pid: u32,
    /// Boot id of its kernel: a hint that shared memory may work, never a proof.
    pub boot_id: String,
    /// Inode of its pid namespace, a hint likewise.
    pub pid_namespace: u64,
    /// User id.
    pub uid: u32,
}

/// Link set-up of a fabric, called by the control thread (so `Send + Sync`), concurrently with the
/// endpoint's use of other links. Bytes are opaque to the control plane, at most 32 KiB.
///
/// Order: `offer` at the lower rank, `accept` at the higher (its end can receive from then on),
/// `complete` at the lower (its end can send and receive from then on), `confirm` at the higher
/// (its end can send from then on).
pub trait Connector: Send + Sync {
    /// Makes this rank's end and describes it. `attempt` counts from 0: after a refusal the
    /// initiator is asked again for another kind of link.
    ///
    /// # Errors
    /// If there is no (further) way to that peer.
    fn offer(&self, peer: &PeerInfo, attempt: u32) -> Result<Vec<u8>, Error>;

    /// Makes this rank's end to match `offer` and describes it, or says why it refuses.
    ///
    /// # Errors
    /// If the offer is malformed or no end can be made: the control plane sends a refusal.
    fn accept(&self, peer: &PeerInfo, offer: &[u8]) -> Result<Vec<u8>, Error>;

    /// The peer's end is there.
    ///
    /// # Errors
    /// If the answer is malformed or the link does not come up.
    fn complete(&self, peer: &PeerInfo, answer: &[u8]) -> Result<(), Error>;

    /// The peer has completed.
    ///
    /// # Errors
    /// If there is no such link.
    fn confirm(&self, peer: &PeerInfo) -> Result<(), Error>;

    /// No link to this peer will come: `reason` says why. Whatever was made is dropped.
    fn failed(&self, peer: &PeerInfo, reason: &str);

    /// The peer has closed its end of the link that stood. The fabric is to report
    /// [`Event::Broken`], once it has reported what came before, and the endpoint then closes this
    /// end; no other link to this peer is offered or accepted until it has. Nothing has to be done
    /// where the fabric notices it by itself.
    fn closed(&self, peer: &PeerInfo) {
        let _ = peer;
    }
}

/// Wakes the data path of this rank, wherever it sleeps; called by the control thread.
pub trait Bell: Send + Sync {
    /// Wakes it.
    fn ring(&self);
}

/// Whether something was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posting {
    /// It is on its way (or queued in the link; `flush` sends it).
    Posted,
    /// No credit, slot or window now: try again after the next poll.
    Full,
}

/// Where a message lies until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Who sent it.
    pub peer: Rank,
    /// Its running number on that link (not modulo anything).
    pub sequence: u64,
}

/// What a fabric tells the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message waits in `slot`: read it with `message`, give it back with `release`.
    Message {
        /// Where.
        slot: Slot,
    },
    /// All parts of a block are in this rank's buffer.
    Block {
        /// Who sent it.
        peer: Rank,
        /// Handle of the open receive.
        handle: u16,
        /// Block number.
        block: u32,
    },
    /// The bytes of a block sent to `peer` are not needed any more.
    Sent {
        /// To whom.
        peer: Rank,
        /// The token given to `send_block`.
        token: u64,
    },
    /// A link broke: nothing more comes from or goes to this peer on it.
    Broken {
        /// The peer.
        peer: Rank,
    },
}

/// Events of one poll, in order of arrival; its capacity is fixed and a fabric stops polling when
/// it is full.
#[derive(Debug)]
pub struct Events {
    events: std::collections::VecDeque<Event>,
    capacity: usize,
}

impl Events {
    /// Room for `capacity` events.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { events: std::collections::VecDeque::with_capacity(capacity), capacity }
    }

    /// How many more it takes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity - self.events.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Adds one.
    ///
    /// # Panics
    /// If it is full: the fabric has to ask for [`Events::room`] first.
    pub fn push(&mut self, event: Event) {
        assert!(self.room() > 0, "a fabric pushed more events than there is room for");
        self.events.push_back(event);
    }

    /// Drops those of a peer whose link has ended.
    pub(crate) fn forget(&mut self, gone: Rank) {
        self.events.retain(|event| match event {
            Event::Message { slot } => slot.peer != gone,
            Event::Block { peer, .. } | Event::Sent { peer, .. } | Event::Broken { peer } => {
                *peer != gone
            }
        });
    }

    /// Drops those of a receive that is closed while blocks are missing.
    pub(crate) fn forget_blocks(&mut self, closed: u16) {
        let of_it =
            |event: &Event| matches!(event, Event::Block { handle, .. } if *handle == closed);
        self.events.retain(|event| !of_it(event));
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// A range of this process's memory that an operation uses, and its keys.
///
/// Made by the endpoint only, which keeps the memory borrowed or owned for as long as any link may
/// touch it.
#[derive(Debug)]
pub struct Span {
    /// Address of the first byte (provenance exposed; only links turn it back into a pointer).
    pub(crate) address: usize,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Whether it may be written.
    pub(crate) writable: bool,
    /// Local and remote keys, one pair per rail; empty where verbs is not in use.
    pub(crate) keys: Vec<(u32, u32)>,
}

/// A block to send: `range` of `span` into the peer's granted buffer at `offset`.
#[derive(Debug)]
pub struct BlockSend<'a> {
    /// To whom.
    pub peer: Rank,
    /// The peer's buffer.
    pub grant: &'a Grant,
    /// Own memory; `range` lies inside it (checked by the endpoint).
    pub span: &'a Span,
    /// Which bytes of it, not empty.
    pub range: Range<u64>,
    /// Where in the peer's buffer; `offset + range.len() <= grant.bytes` (checked by the endpoint).
    pub offset: u64,
    /// Block number, below `BLOCKS_MAX`.
    pub block: u32,
    /// Comes back in [`Event::Sent`].
    pub token: u64,
}

/// An open receive: where the blocks of one operation go.
#[derive(Debug)]
pub struct Receive {
    /// Address of the buffer (provenance exposed).
    pub(crate) address: usize,
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// Where its blocks lie.
    pub(crate) layout: Layout,
    /// Epoch of this use of the handle.
    pub(crate) epoch: u32,
    /// No block of it is wanted any more: what this rank brings in itself, it leaves.
    pub(crate) withdrawn: bool,
    /// Which parts of its blocks have come over lanes that have no order among each other.
    pub(crate) arrived: ArrivedParts,
}

impl Receive {
    /// Range of `block` in the buffer, or `None` if there is no such block.
    #[must_use]
    pub fn block_range(&self, block: u32) -> Option<Range<u64>> {
        self.layout.block_range(block).filter(|range| range.end <= self.bytes)
    }
}

/// The open receives of an endpoint, by handle.
#[derive(Debug, Default)]
pub struct ReceiveTable {
    entries: Vec<Option<Receive>>,
    next_epoch: u32,
    /// Storage of closed receives, to be used again.
    spare: Vec<ArrivedParts>,
}

impl ReceiveTable {
    /// The receive under this handle, if it is open.
    #[must_use]
    pub fn find(&self, handle: u16) -> Option<&Receive> {
        self.entries.get(usize::from(handle))?.as_ref()
    }

    pub(crate) fn open_receives(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    /// Opens one of as many bytes as the layout has; `None` if all handles are in use.
    pub(crate) fn open(&mut self, address: usize, layout: Layout) -> Option<(u16, u32)> {
        let free = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if free >= 1 << HANDLE_BITS {
            return None;
        }
        if free == self.entries.len() {
            self.entries.push(None);
        }
        self.next_epoch = self.next_epoch.wrapping_add(1);
        let epoch = self.next_epoch;
        let mut arrived = self.spare.pop().unwrap_or_default();
        arrived.reset(layout.numbers().min(BLOCKS_MAX).into());
        let bytes = layout.bytes();
        self.entries[free] =
            Some(Receive { address, bytes, layout, epoch, withdrawn: false, arrived });
        Some((free as u16, epoch))
    }

    /// Lets the blocks of one come once more, under the same handle and epoch: all have come, and
    /// no peer sends another one before it hears that it may.
    pub(crate) fn reopen(&mut self, handle: u16) {
        if let Some(Some(receive)) = self.entries.get_mut(usize::from(handle)) {
            receive.arrived.clear();
        }
    }

    /// Wants no more blocks of one, which stays open for those that a peer writes.
    pub(crate) fn withdraw(&mut self, handle: u16) {
        if let Some(Some(receive)) = self.entries.get_mut(usize::from(handle)) {
            receive.withdrawn = true;
        }
    }

    /// Closes one.
    pub(crate) fn close(&mut self, handle: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(handle))
            && let Some(receive) = entry.take()
        {
            self.spare.push(receive.arrived);
        }
    }
}

/// All links of one kind, as the endpoint drives them.
pub trait Fabric: Send {
    /// Whether the link to `peer` is up and can send.
    fn is_up(&mut self, peer: Rank) -> bool;

    /// Copies a message into the peer's next slot (queued until `flush`).
    ///
    /// # Errors
    /// If there is no link to `peer` or it is broken.
    fn send_message(
        &mut self,
        peer: Rank,
        header: &MessageHeader,
        payload: &[u8],
    ) -> Result<Posting, Error>;

    /// Sends a block into the peer's granted buffer (queued until `flush`).
    ///
    /// # Errors
    /// If there is no link to `peer` or it is broken.
    fn send_block(&mut self, block: &BlockSend<'_>) -> Result<Posting, Error>;

    /// Sends what is queued: doorbells, wake-ups.
    ///
    /// # Errors
    /// If a link breaks.
    fn flush(&mut self) -> Result<(), Error>;

    /// Whether everything that was taken is on its way without further calls: nothing waits in the
    /// link for room in a queue.
    fn is_flushed(&self) -> bool {
        true
    }

    /// Makes progress and reports events, at most `events.room()` of them; says whether anything
    /// moved (also without an event).
    ///
    /// # Errors
    /// If the fabric as a whole is broken; one broken link is an [`Event::Broken`].
    fn poll(&mut self, receives: &ReceiveTable, events: &mut Events) -> Result<bool, Error>;

    /// The message in `slot`: its header and payload.
    ///
    /// # Errors
    /// If the slot holds no message, or a malformed one.
    fn message(&self, slot: Slot) -> Result<(MessageHeader, &[u8]), Error>;

    /// Gives a slot back; its credit returns to the sender in order of the slots.
    fn release(&mut self, slot: Slot);

    /// Makes sure that after this call no peer, late or stopped, can write into this rank's memory
    /// or holds on to it through the link to `peer`: queue pair to ERR and drained, descriptors
    /// revoked. The link is broken afterwards and must be set up again.
    fn quiesce(&mut self, peer: Rank);

    /// Which peers have sends outstanding that use local memory.
    fn has_outstanding(&self, peer: Rank) -> bool;

    /// What broke the link to `peer`, for the error message.
    fn break_reason(&self, peer: Rank) -> Option<String>;
}

/// A link's ends that the control thread has made, on their way to the endpoint.
pub type Arrivals<L> = Arc<std::sync::Mutex<Vec<L>>>;
