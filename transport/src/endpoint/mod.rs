//! A rank's end of all its links: memory, grants, messages, blocks and waiting.
//!
//! The methods fall into four groups, in the order in which an operation uses them:
//! [`connect`](Endpoint::connect) asks for links; [`scope`](Endpoint::scope) makes a caller's
//! memory usable and ends every use before it returns, [`open_owned`](Endpoint::open_owned) and
//! [`lend`] do so for operations that outlive a call, until [`close`](Endpoint::close), which those
//! that give up [withdraw](Endpoint::withdraw) before;
//! [`open_receive`](Endpoint::open_receive), [`send_grant`](Endpoint::send_grant),
//! [`send_message`](Endpoint::send_message) and [`send_block`](Endpoint::send_block) move data;
//! [`poll`](Endpoint::poll), [`next_event`](Endpoint::next_event) and [`idle`](Endpoint::idle)
//! drive it. All of them are sound in any order with any arguments.

mod buffers;
mod concurrent;
mod connectors;
mod flows;
mod idle;
mod memory;
mod receives;
#[cfg(test)]
mod tests;
mod withdrawals;

use std::ops::Range;
use std::sync::{Arc, Weak};

pub use buffers::BufferId;
pub use connectors::{Connectors, FabricKind};
pub use idle::{Idle, WaitPolicy};
pub use memory::{Lending, NotOpened, lend};

use self::buffers::{Buffers, Token};
use self::flows::{Flows, is_kept};
use self::withdrawals::Withdrawals;
use crate::control::Control;
use crate::error::Error;
use crate::link::{BlockSend, Event, Events, Fabric, Posting, ReceiveTable, Slot};
use crate::memory::{RegionInner, bytes_at, copy_in};
use crate::shm::{ShmBell, ShmFabric};
use crate::verbs::fabric::{LaneStatistics, VerbsFabric};
use crate::wire::{
    BLOCKS_MAX, Grant, MESSAGE_PAYLOAD_MAX, MessageHeader, MessageKind, Rank, Signature,
    WithdrawalBody,
};

/// Events that one poll may deliver.
const EVENTS_PER_POLL: usize = 256;

/// A rank's end of all its links.
pub struct Endpoint {
    rank: Rank,
    size: u32,
    control: Control,
    connectors: Arc<Connectors>,
    // The fabrics are dropped before the buffers: no link can touch memory that goes with them.
    shm: Option<ShmFabric>,
    verbs: Option<VerbsFabric>,
    bell: Arc<ShmBell>,
    paths: Vec<Option<FabricKind>>,
    wanted: Vec<bool>,
    receives: ReceiveTable,
    buffers: Buffers,
    regions: Vec<Weak<RegionInner>>,
    /// By fabric: what was polled and not yet taken.
    shm_events: Events,
    verbs_events: Events,
    flows: Flows,
    withdrawals: Withdrawals,
    /// Peers whose link this rank has closed although operations use it, which have to be told.
    broken: Vec<Rank>,
    /// By peer: which fabric its last message came over, which it may do before the link can send.
    sources: Vec<Option<FabricKind>>,
    policy: WaitPolicy,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("rank", &self.rank).field("size", &self.size).finish()
    }
}

/// What [`Endpoint::next_event`] tells the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message waits: [`Endpoint::message`], then [`Endpoint::release`].
    Message {
        /// Where it lies, and from whom.
        slot: Slot,
    },
    /// A block is whole in the buffer of an open receive, for the first time.
    Block {
        /// From whom.
        peer: Rank,
        /// The receive.
        handle: u16,
        /// Its number.
        block: u32,
    },
    /// A block was sent; its memory is free as far as this send goes.
    Sent {
        /// To whom.
        peer: Rank,
        /// Of which buffer: tells operations apart.
        buffer: BufferId,
        /// As given to [`Endpoint::send_block`].
        token: u32,
    },
    /// The link to this peer has ended. Operations that have anything to do with this peer cannot
    /// go on; later ones get another link.
    Broken {
        /// The peer.
        peer: Rank,
    },
}

/// The parts that an endpoint is made of.
pub struct Parts {
    /// The control plane.
    pub control: Control,
    /// Link set-up, shared with the control thread.
    pub connectors: Arc<Connectors>,
    /// Shared-memory links.
    pub shm: Option<ShmFabric>,
    /// Verbs links.
    pub verbs: Option<VerbsFabric>,
    /// What wakes this rank.
    pub bell: Arc<ShmBell>,
    /// How it waits.
    pub policy: WaitPolicy,
}

impl Endpoint {
    /// Puts the parts together.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let size = parts.control.size();
        Self {
            rank: parts.control.rank(),
            size,
            control: parts.control,
            connectors: parts.connectors,
            shm: parts.shm,
            verbs: parts.verbs,
            bell: parts.bell,
            paths: vec![None; size as usize],
            wanted: vec![false; size as usize],
            receives: ReceiveTable::default(),
            buffers: Buffers::default(),
            regions: Vec::new(),
            shm_events: Events::with_capacity(EVENTS_PER_POLL),
            verbs_events: Events::with_capacity(EVENTS_PER_POLL),
            flows: Flows::new(size),
            withdrawals: Withdrawals::new(size),
            broken: Vec::new(),
            sources: vec![None; size as usize],
            policy: parts.policy,
        }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The control plane.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Asks for a link to `peer`; it comes up while the endpoint is polled. Asking again is free.
    ///
    /// # Errors
    /// If `peer` is this rank or outside the job, or its link failed for good.
    pub fn connect(&mut self, peer: Rank) -> Result<(), Error> {
        if peer >= self.size || peer == self.rank {
            return Err(Error::Invalid(format!(
                "rank {} asked for a link to rank {peer} in a job of {}",
                self.rank, self.size
            )));
        }
        if !self.wanted[peer as usize] {
            self.wanted[peer as usize] = true;
            self.control.want_link(peer);
        }
        Ok(())
    }

    /// Whether the link to `peer` is up and may send.
    pub fn is_up(&mut self, peer: Rank) -> bool {
        self.path(peer).is_some()
    }

    /// Why there will be no link to `peer`, if set-up failed for good.
    #[must_use]
    pub fn link_failure(&self, peer: Rank) -> Option<String> {
        self.connectors.failure(peer)
    }

    fn path(&mut self, peer: Rank) -> Option<FabricKind> {
        let index = peer as usize;
        if let Some(kind) = *self.paths.get(index)? {
            return Some(kind);
        }
        let up = |fabric: &mut dyn Fabric| fabric.is_up(peer);
        let kind = if self.shm.as_mut().is_some_and(|fabric| up(fabric)) {
            FabricKind::SharedMemory
        } else if self.verbs.as_mut().is_some_and(|fabric| up(fabric)) {
            FabricKind::Verbs
        } else {
            return None;
        };
        self.paths[index] = Some(kind);
        Some(kind)
    }

    /// The fabric whose link to `peer` can send.
    fn fabric(&mut self, peer: Rank) -> Result<&mut dyn Fabric, Error> {
        let kind = self.path(peer);
        self.fabric_of(kind, peer)
    }

    /// The fabric over which the last message of `peer` came.
    fn source(&mut self, peer: Rank) -> Result<&mut dyn Fabric, Error> {
        let kind = self.sources.get(peer as usize).copied().flatten();
        self.fabric_of(kind, peer)
    }

    fn fabric_of(
        &mut self,
        kind: Option<FabricKind>,
        peer: Rank,
    ) -> Result<&mut dyn Fabric, Error> {
        let fabric = choose(&mut self.shm, &mut self.verbs, kind);
        let rank = self.rank;
        fabric.ok_or_else(|| Error::Link { rank, peer, reason: "the link is not up".into() })
    }

    /// Closes this end of a link that broke, so that another one can be set up; one that cannot be
    /// set up at all is left as it is.
    fn link_broke(&mut self, peer: Rank) {
        if self.connectors.failure(peer).is_none() {
            self.quiesce(peer);
        } else {
            self.paths[peer as usize] = None;
            self.flows.link_gone(peer);
            self.withdrawals.link_gone(peer);
        }
    }

    /// That the operation on `buffer` may use the link to `peer`: the one that it began with.
    fn check_link(&mut self, peer: Rank, buffer: BufferId) -> Result<(), Error> {
        let losses = self.buffers.losses(buffer)?;
        self.flows.check_link(self.rank, peer, losses)
    }

    fn quiesce(&mut self, peer: Rank) {
        if let Some(shm) = &mut self.shm {
            shm.quiesce(peer);
        }
        if let Some(verbs) = &mut self.verbs {
            verbs.quiesce(peer);
        }
        // An old event must not be taken for one of a later use of its handle or slot.
        self.shm_events.forget(peer);
        self.verbs_events.forget(peer);
        self.buffers.link_gone(peer);
        self.flows.link_gone(peer);
        self.withdrawals.link_gone(peer);
        self.paths[peer as usize] = None;
        self.sources[peer as usize] = None;
        self.wanted[peer as usize] = false;
        self.control.forget_link(peer);
    }

    // ---- messages ----

    /// Copies the payload of the message in `slot` to `offset` of `buffer`.
    ///
    /// # Errors
    /// If the buffer is not open or not writable, the payload does not fit, or the slot holds no
    /// message.
    pub fn copy_message(&mut self, slot: Slot, buffer: BufferId, offset: u64) -> Result<(), Error> {
        let rank = self.rank;
        let span = self.buffers.span(buffer)?;
        let (address, bytes, writable) = (span.address, span.bytes, span.writable);
        let (_, payload) = self.message(slot)?;
        let end = offset.checked_add(payload.len() as u64);
        if !writable || end.is_none_or(|end| end > bytes) {
            return Err(Error::Protocol {
                rank,
                peer: slot.peer,
                what: format!(
                    "{} bytes at offset {offset} do not fit a buffer of {bytes}",
                    payload.len()
                ),
            });
        }
        // SAFETY: the buffer is open, writable and not held by the application, so its memory is
        // owned here or borrowed mutably; the range was checked; the payload lies in a link's own
        // memory.
        unsafe { copy_in(address + offset as usize, payload) };
        Ok(())
    }

    /// Copies `range` of one buffer to `offset` of another one.
    ///
    /// # Errors
    /// If a buffer is not open or held, they are the same, the second is not writable, the range
    /// lies outside, or a receive may still write there.
    pub fn copy(
        &mut self,
        from: BufferId,
        range: Range<u64>,
        to: BufferId,
        offset: u64,
    ) -> Result<(), Error> {
        let source = self.buffers.span(from)?;
        let target = self.buffers.span(to)?;
        let length = checked_length(&range, source.bytes, u64::MAX)?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= target.bytes);
        if from == to || !target.writable || !fits {
            return Err(Error::Invalid(format!(
                "{length} bytes cannot be copied to offset {offset} of a buffer of {} bytes",
                target.bytes
            )));
        }
        self.check_held(from, &range)?;
        let (from, to) = (source.address + range.start as usize, target.address + offset as usize);
        // SAFETY: the range lies in an open buffer that the application does not hold; its memory
        // is owned here or borrowed, no writable buffer shares memory with another one, and no
        // open receive writes there.
        let bytes = unsafe { bytes_at(from, length as usize) };
        // SAFETY: likewise, and the buffer is writable; another open receive into the same place
        // would be the caller's own.
        unsafe { copy_in(to, bytes) };
        Ok(())
    }

    /// The header and payload of the message in `slot`.
    ///
    /// # Errors
    /// If it holds none, or a malformed one.
    pub fn message(&mut self, slot: Slot) -> Result<(MessageHeader, &[u8]), Error> {
        if is_kept(slot) {
            return self.flows.message(self.rank, slot);
        }
        let fabric: &dyn Fabric = self.source(slot.peer)?;
        fabric.message(slot)
    }

    /// Moves a message that cannot be used yet out of its link, whose slots all communicators
    /// share; gives the slot where it is from now on. It stays there when the link ends.
    ///
    /// # Errors
    /// If the slot holds no message, or a malformed one, or the peer has sent more of this
    /// communicator than it may.
    pub fn keep(&mut self, slot: Slot) -> Result<Slot, Error> {
        if is_kept(slot) {
            return Ok(slot);
        }
        let (rank, peer) = (self.rank, slot.peer);
        let kind = self.sources.get(peer as usize).copied().flatten();
        let fabric = choose(&mut self.shm, &mut self.verbs, kind).ok_or_else(|| Error::Link {
            rank,
            peer,
            reason: "the link is not up".into(),
        })?;
        let (header, payload) = fabric.message(slot)?;
        let kept = self.flows.keep(rank, peer, header, payload)?;
        fabric.release(slot);
        Ok(kept)
    }

    /// Gives a message's slot back: it was used.
    pub fn release(&mut self, slot: Slot) {
        if is_kept(slot) {
            return self.flows.release(slot);
        }
        let Ok(fabric) = self.source(slot.peer) else { return };
        let header = fabric.message(slot).map(|(header, _)| header);
        fabric.release(slot);
        if let Ok(header) = header {
            self.flows.used(slot.peer, header.signature().communicator);
        }
    }

    /// Forgets the message accounts of a communicator, and what is [kept](Endpoint::keep) of it.
    /// To be called when the communicator has ended on every rank.
    pub fn forget_communicator(&mut self, communicator: u64) {
        self.flows.forget(communicator);
    }

    /// Takes what the message in `slot` returns, and all of it if it is the endpoint's own.
    fn take_own(&mut self, slot: Slot) -> bool {
        let Ok(fabric) = self.source(slot.peer) else { return false };
        let Ok((header, payload)) = fabric.message(slot) else { return false };
        if let Some(kind) = header.withdrawal_kind() {
            // What is malformed is left to whoever takes messages: it is no operation's either.
            let Ok(body) = WithdrawalBody::read(payload) else { return false };
            fabric.release(slot);
            self.take_withdrawal(slot.peer, kind, body);
            return true;
        }
        let is_all = header.kind() == Ok(MessageKind::Credit);
        if is_all {
            fabric.release(slot);
        }
        if header.returned() > 0 {
            let communicator = header.signature().communicator;
            self.flows.returned(slot.peer, communicator, header.returned());
        }
        is_all
    }

    /// Returns the credit that is due, as far as the links have room for it. The rest is sent when
    /// they have; who waits for it is going to send what this rank still has to call for.
    fn return_credits(&mut self) {
        let mut nth = 0;
        while let Some((peer, due)) = self.flows.due(nth) {
            let Some(communicator) = due else {
                self.flows.settled(nth);
                continue;
            };
            let header = MessageHeader::credit(communicator);
            // A broken link is reported by its event.
            if !matches!(self.send_returning(peer, header, &[]), Ok(Posting::Posted)) {
                nth += 1;
            }
        }
    }

    /// Sends a message, if its communicator may have another one on its way.
    fn post(
        &mut self,
        peer: Rank,
        header: MessageHeader,
        payload: &[u8],
    ) -> Result<Posting, Error> {
        let communicator = header.signature().communicator;
        self.fabric(peer)?;
        if !self.flows.may_send(peer, communicator) {
            return Ok(Posting::Full);
        }
        let posting = self.send_returning(peer, header, payload)?;
        if posting == Posting::Posted {
            self.flows.sent(peer, communicator);
        }
        Ok(posting)
    }

    /// Sends a message, and with it the credit of its communicator.
    fn send_returning(
        &mut self,
        peer: Rank,
        header: MessageHeader,
        payload: &[u8],
    ) -> Result<Posting, Error> {
        let communicator = header.signature().communicator;
        let header = header.returning(self.flows.unreturned(peer, communicator));
        let posting = self.fabric(peer)?.send_message(peer, &header, payload)?;
        if posting == Posting::Posted {
            self.flows.told(peer, communicator);
        }
        Ok(posting)
    }

    // ---- sending ----

    /// Sends `range` of `buffer` as an eager message of `block`; the memory is free at return.
    ///
    /// # Errors
    /// If the buffer is not open, the range lies outside or is longer than
    /// [`MESSAGE_PAYLOAD_MAX`], or the link is down.
    pub fn send_message(
        &mut self,
        peer: Rank,
        signature: &Signature,
        block: u32,
        buffer: BufferId,
        range: Range<u64>,
    ) -> Result<Posting, Error> {
        self.check_link(peer, buffer)?;
        let span = self.buffers.span(buffer)?;
        let length = checked_length(&range, span.bytes, MESSAGE_PAYLOAD_MAX as u64)?;
        let address = span.address + range.start as usize;
        self.check_held(buffer, &range)?;
        // SAFETY: the range lies in an open buffer, and no open receive may still write there.
        let payload = unsafe { bytes_at(address, length as usize) };
        let header = MessageHeader::new(MessageKind::Eager, signature, block, payload.len());
        self.post(peer, header, payload)
    }

    /// Sends `range` of `buffer` as `block` into the peer's granted buffer at `offset`; the memory
    /// is free at [`Notice::Sent`] with this `token`.
    ///
    /// # Errors
    /// If the buffer is not open, a range lies outside its buffer, or the link is down;
    /// [`Error::Withdrawn`] if the peer does not want its blocks any more.
    #[allow(clippy::too_many_arguments)]
    pub fn send_block(
        &mut self,
        peer: Rank,
        grant: &Grant,
        block: u32,
        buffer: BufferId,
        range: Range<u64>,
        offset: u64,
        token: u32,
    ) -> Result<Posting, Error> {
        self.path(peer);
        self.check_link(peer, buffer)?;
        self.withdrawals.check(self.rank, peer, grant)?;
        let span = self.buffers.span(buffer)?;
        let length = checked_length(&range, span.bytes, crate::wire::BLOCK_BYTES_MAX)?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= grant.bytes);
        if length == 0 || !fits || block >= BLOCKS_MAX {
            return Err(Error::Invalid(format!(
                "block {block} of {length} bytes at offset {offset} of a grant of {} bytes",
                grant.bytes
            )));
        }
        self.check_held(buffer, &range)?;
        let token = Token { buffer, value: token }.encode();
        let send = BlockSend { peer, grant, span, range, offset, block, token };
        let posting = match self.paths[peer as usize] {
            Some(FabricKind::SharedMemory) => self.shm.as_mut().map(|shm| shm.send_block(&send)),
            Some(FabricKind::Verbs) => self.verbs.as_mut().map(|verbs| verbs.send_block(&send)),
            None => None,
        };
        let rank = self.rank;
        let posting = posting.unwrap_or_else(|| {
            Err(Error::Link { rank, peer, reason: "the link is not up".into() })
        })?;
        if posting == Posting::Posted {
            self.buffers.send_posted(buffer, peer);
        }
        Ok(posting)
    }

    fn check_held(&self, buffer: BufferId, range: &Range<u64>) -> Result<(), Error> {
        if self.buffers.holds(buffer, range) {
            return Ok(());
        }
        let Range { start, end } = range;
        Err(Error::Invalid(format!("bytes {start}..{end} were to be sent before they arrived")))
    }

    /// Sends what is queued in the links.
    ///
    /// # Errors
    /// If a fabric breaks.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.return_credits();
        self.send_withdrawals();
        if let Some(shm) = &mut self.shm {
            shm.flush()?;
        }
        if let Some(verbs) = &mut self.verbs {
            verbs.flush()?;
        }
        Ok(())
    }

    /// Whether nothing waits in a link for room: an operation may end only then, since nobody
    /// drives the links between calls.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.shm.as_ref().is_none_or(Fabric::is_flushed)
            && self.verbs.as_ref().is_none_or(Fabric::is_flushed)
    }

    // ---- progress ----

    /// Makes progress and collects notices; says whether anything moved.
    ///
    /// # Errors
    /// If a fabric as a whole is broken.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        if let Some(shm) = &mut self.shm {
            moved |= shm.poll(&self.receives, &mut self.shm_events)?;
        }
        if let Some(verbs) = &mut self.verbs {
            moved |= verbs.poll(&self.receives, &mut self.verbs_events)?;
            self.settle_withdrawals();
        }
        Ok(moved || !self.shm_events.is_empty() || !self.verbs_events.is_empty())
    }

    /// The next thing that happened, oldest first.
    pub fn next_event(&mut self) -> Option<Notice> {
        if let Some(peer) = self.broken.pop() {
            return Some(Notice::Broken { peer });
        }
        loop {
            let (event, source) = match self.shm_events.pop() {
                Some(event) => (event, FabricKind::SharedMemory),
                None => (self.verbs_events.pop()?, FabricKind::Verbs),
            };
            match event {
                Event::Message { slot } => {
                    *self.sources.get_mut(slot.peer as usize)? = Some(source);
                    if !self.take_own(slot) {
                        return Some(Notice::Message { slot });
                    }
                }
                Event::Block { peer, handle, block } => {
                    if self.buffers.block_arrived(handle, block) {
                        return Some(Notice::Block { peer, handle, block });
                    }
                }
                Event::Sent { peer, token } => {
                    let token = Token::decode(token);
                    if self.buffers.send_done(token.buffer, peer) {
                        let Token { buffer, value: token } = token;
                        return Some(Notice::Sent { peer, buffer, token });
                    }
                }
                Event::Broken { peer } => {
                    self.link_broke(peer);
                    return Some(Notice::Broken { peer });
                }
            }
        }
    }

    /// What each verbs lane to `peer` has carried; empty where the link is not verbs.
    #[must_use]
    pub fn lane_statistics(&self, peer: Rank) -> Vec<LaneStatistics> {
        self.verbs.as_ref().map(|verbs| verbs.lane_statistics(peer)).unwrap_or_default()
    }

    /// What broke the link to `peer`.
    #[must_use]
    pub fn break_reason(&self, peer: Rank) -> String {
        let shm = self.shm.as_ref().and_then(|shm| shm.break_reason(peer));
        let verbs = self.verbs.as_ref().and_then(|verbs| verbs.break_reason(peer));
        verbs.or(shm).unwrap_or_else(|| "the peer closed it".into())
    }

    /// Waits a little longer each time it is called in a row without progress: spin, yield, then
    /// sleep until something comes or `until` is reached. Call [`Endpoint::poll`] between calls.
    ///
    /// # Errors
    /// If a completion channel is broken.
    pub fn idle(&mut self, idle: &mut Idle, until: std::time::Instant) -> Result<(), Error> {
        idle.step(self.policy, &self.bell, self.verbs.as_ref(), until, self.rank)
    }

    /// Ends a wait: to be called when there was progress.
    pub fn busy(&self, idle: &mut Idle) {
        idle.reset(&self.bell);
    }
}

fn choose<'a>(
    shm: &'a mut Option<ShmFabric>,
    verbs: &'a mut Option<VerbsFabric>,
    kind: Option<FabricKind>,
) -> Option<&'a mut dyn Fabric> {
    match kind? {
        FabricKind::SharedMemory => shm.as_mut().map(|shm| shm as &mut dyn Fabric),
        FabricKind::Verbs => verbs.as_mut().map(|verbs| verbs as &mut dyn Fabric),
    }
}

fn checked_length(range: &Range<u64>, bytes: u64, most: u64) -> Result<u64, Error> {
    let length = range.end.checked_sub(range.start);
    match length {
        Some(length) if range.end <= bytes && length <= most => Ok(length),
        _ => Err(Error::Invalid(format!(
            "range {}..{} of a buffer of {bytes} bytes (at most {most} at once)",
            range.start, range.end
        ))),
    }
}
