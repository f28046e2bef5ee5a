//! All shared-memory links of a rank, as the endpoint drives them.

use std::sync::Arc;

use super::bell::Published;
use super::connector::{Arrival, End, Local};
use super::error::{BreakError, chain};
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::error::Error;
use crate::link::{BlockSend, Event, Events, Fabric, Posting, ReceiveTable, Slot};
use crate::wire::{MESSAGE_PAYLOAD_MAX, MessageHeader, Rank};

/// About how many bytes of blocks one `poll` or `flush` moves, so that its caller looks at other
/// things (aborts, deadlines, blocks to pass on) every few hundred microseconds.
const BYTES_PER_CALL: u64 = 1 << 20;

/// A link that is up, or whose set-up lacks only the peer's confirmation, or that broke.
struct Link {
    incoming: Incoming,
    /// From the confirmation on.
    outgoing: Option<Outgoing>,
    broken: bool,
    /// Something was published that the peer may sleep for.
    wake: bool,
    /// Dropped last: tells the peer that this end is closed.
    end: Box<End>,
}

impl Link {
    fn new(mut end: Box<End>, first: u64) -> Result<Self, (Box<End>, BreakError)> {
        let incoming = Incoming::new(&end.segment, end.source, first);
        let confirmed = std::mem::take(&mut end.confirmed);
        let mut link = Self { incoming, outgoing: None, broken: false, wake: false, end };
        match if confirmed { link.confirm() } else { Ok(()) } {
            Ok(()) => Ok(link),
            Err(error) => Err((link.end, error)),
        }
    }

    fn confirm(&mut self) -> Result<(), BreakError> {
        let transfer = self.end.segment.peer_transfer()?;
        self.outgoing = Some(Outgoing::new(&self.end.segment, transfer));
        Ok(())
    }

    fn poll(
        &mut self,
        receives: &ReceiveTable,
        events: &mut Events,
        budget: &mut u64,
    ) -> Result<bool, BreakError> {
        let End { segment, bell, peer, .. } = &*self.end;
        let wake = || bell.ring(&Published::now());
        // Looked at first: whatever the peer sent before it closed is there afterwards.
        let closed = segment.peer_is_closed();
        let outgoing_is_quiet = self.outgoing.as_ref().is_none_or(Outgoing::is_quiet);
        if !closed && outgoing_is_quiet && self.incoming.is_quiet(segment) {
            return Ok(false);
        }
        let mut moved = self.incoming.poll_messages(segment, *peer, events)?;
        if let Some(outgoing) = &mut self.outgoing {
            moved |= outgoing.poll(segment, *peer, events)?;
            let copied = outgoing.copy(segment, budget, wake)?;
            self.wake |= copied;
            moved |= copied;
        }
        let pulled = self.incoming.poll_blocks(segment, *peer, receives, events, budget, wake)?;
        self.wake |= pulled;
        moved |= pulled;
        if closed && !moved && events.room() > 0 && *budget > 0 {
            return Err(BreakError::Closed);
        }
        Ok(moved)
    }
}

/// A peer that has or had a link.
struct Peer {
    rank: Rank,
    link: Option<Link>,
    /// A new end, to be used as soon as the endpoint knows that the link before it broke.
    next: Option<Box<End>>,
    /// Running number of the first message on the next link.
    first: u64,
    /// An event [`Event::Broken`] is due.
    report: bool,
    reason: Option<String>,
}

impl Peer {
    fn new(rank: Rank) -> Self {
        Self { rank, link: None, next: None, first: 0, report: false, reason: None }
    }

    fn live(&mut self) -> Option<&mut Link> {
        self.link.as_mut().filter(|link| !link.broken)
    }

    fn is_up(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.broken && link.outgoing.is_some())
    }

    fn fail(&mut self, error: &BreakError) {
        let reason = chain(error);
        tracing::debug!(peer = self.rank, reason, "shared-memory link broke");
        self.reason = Some(reason);
        self.report = true;
        if let Some(link) = &mut self.link {
            link.broken = true;
        }
    }

    /// Closes the link, if there is one; messages on it are gone.
    fn close(&mut self) {
        if let Some(link) = self.link.take() {
            self.first = link.incoming.next_sequence();
        }
    }

    /// Puts the next end to use, if the endpoint knows of the end of the last one.
    fn renew(&mut self) {
        let known = self.link.as_ref().is_none_or(|link| link.broken && !self.report);
        let Some(end) = self.next.take_if(|_| known) else { return };
        self.close();
        self.report = false;
        match Link::new(end, self.first) {
            Ok(link) => {
                self.link = Some(link);
                self.reason = None;
            }
            Err((_, error)) => self.fail(&error),
        }
    }

    fn confirm(&mut self, cookie: [u64; 2]) {
        if let Some(end) = self.next.as_mut().filter(|end| end.segment.cookie == cookie) {
            end.confirmed = true;
            return;
        }
        let due = |link: &&mut Link| link.end.segment.cookie == cookie && link.outgoing.is_none();
        let Some(link) = self.live().filter(due) else { return };
        if let Err(error) = link.confirm() {
            self.fail(&error);
        }
    }

    fn poll(&mut self, receives: &ReceiveTable, events: &mut Events, budget: &mut u64) -> bool {
        let Some(link) = self.live() else { return self.report(events) };
        match link.poll(receives, events, budget) {
            Ok(moved) => moved,
            Err(error) => {
                self.fail(&error);
                self.report(events);
                true
            }
        }
    }

    fn report(&mut self, events: &mut Events) -> bool {
        let due = self.report && events.room() > 0;
        if due {
            events.push(Event::Broken { peer: self.rank });
            self.report = false;
        }
        due
    }
}

/// The shared-memory links of one rank.
///
/// Call `flush` after sends and releases, and before sleeping on the bell; `poll` wakes those peers
/// itself for whom it did something.
pub struct ShmFabric {
    local: Arc<Local>,
    /// In order of rank.
    peers: Vec<Peer>,
    /// Where the next poll begins.
    start: usize,
    /// How many peers have an end waiting to be used.
    renewals: usize,
    /// Something was published since the last wake-ups.
    published: bool,
}

impl ShmFabric {
    pub(super) fn new(local: Arc<Local>) -> Self {
        Self { local, peers: Vec::new(), start: 0, renewals: 0, published: false }
    }

    fn take_arrivals(&mut self) {
        for arrival in self.local.take_arrivals() {
            match arrival {
                Arrival::End(end) => {
                    let peer = self.peer_or_new(end.peer);
                    if peer.live().is_some() {
                        peer.fail(&BreakError::Replaced);
                    }
                    peer.next = Some(end);
                }
                Arrival::Confirmed { peer, cookie } => self.peer_or_new(peer).confirm(cookie),
                Arrival::Failed { peer, reason } => {
                    let peer = self.peer_or_new(peer);
                    peer.next = None;
                    if peer.live().is_some_and(|link| link.outgoing.is_none()) {
                        peer.fail(&BreakError::Failed(reason));
                    } else if peer.live().is_none() {
                        peer.reason = Some(reason);
                    }
                }
            }
            self.renewals = self.peers.len();
        }
        if self.renewals > 0 {
            self.renewals = 0;
            for peer in &mut self.peers {
                peer.renew();
                self.renewals += usize::from(peer.next.is_some());
            }
        }
    }

    fn find(&self, rank: Rank) -> Option<&Peer> {
        let place = self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()?;
        self.peers.get(place)
    }

    fn find_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        let place = self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()?;
        self.peers.get_mut(place)
    }

    fn peer_or_new(&mut self, rank: Rank) -> &mut Peer {
        let place = match self.peers.binary_search_by_key(&rank, |peer| peer.rank) {
            Ok(place) => place,
            Err(place) => {
                self.peers.insert(place, Peer::new(rank));
                place
            }
        };
        &mut self.peers[place]
    }

    /// Sends by `send` on the link to `rank`, if that is up.
    fn send(
        &mut self,
        rank: Rank,
        send: impl FnOnce(&mut Outgoing, &End) -> Result<Posting, BreakError>,
    ) -> Result<Posting, Error> {
        self.published = true;
        let own_rank = self.local.rank;
        let no_link = |reason: Option<&str>| Error::Link {
            rank: own_rank,
            peer: rank,
            reason: format!("shared memory: {}", reason.unwrap_or("there is no link (yet)")),
        };
        let Some(peer) = self.find_mut(rank) else { return Err(no_link(None)) };
        let sent = match peer.live() {
            Some(Link { outgoing: Some(outgoing), end, wake, .. }) => {
                *wake = true;
                send(outgoing, end)
            }
            _ => return Err(no_link(peer.reason.as_deref())),
        };
        sent.map_err(|error| {
            peer.fail(&error);
            no_link(peer.reason.as_deref())
        })
    }

    /// Takes back blocks that were sent to `peer`, by their tokens: when this returns, their memory
    /// may be used otherwise, whatever the peer does.
    pub(crate) fn recall(&mut self, peer: Rank, is_meant: impl Fn(u64) -> bool) {
        // On a broken link too: the peer may read until this end is closed.
        let link = self.find_mut(peer).and_then(|peer| peer.link.as_mut());
        if let Some(Link { outgoing: Some(outgoing), end, .. }) = link {
            outgoing.recall(&end.segment, is_meant);
        }
    }

    /// Wakes the peers for whom something was published, by one fence for all.
    fn wake(&mut self) {
        if !std::mem::take(&mut self.published) {
            return;
        }
        let mut published = None;
        for link in self.peers.iter_mut().filter_map(Peer::live) {
            if !link.incoming.has_credit() && !link.wake {
                continue;
            }
            let published = published.get_or_insert_with(Published::now);
            let due = link.incoming.credit_is_due(&link.end.segment, published);
            if std::mem::take(&mut link.wake) || due {
                link.end.bell.ring(published);
            }
        }
    }
}

#[cfg(test)]
impl ShmFabric {
    /// The segment of the link to `peer`, to write into it what a faulty peer might.
    pub(super) fn segment(&self, peer: Rank) -> Option<&super::segment::Segment> {
        Some(&self.find(peer)?.link.as_ref()?.end.segment)
    }
}

impl Fabric for ShmFabric {
    fn is_up(&mut self, peer: Rank) -> bool {
        self.take_arrivals();
        self.find(peer).is_some_and(Peer::is_up)
    }

    fn send_message(
        &mut self,
        peer: Rank,
        header: &MessageHeader,
        payload: &[u8],
    ) -> Result<Posting, Error> {
        if payload.len() > MESSAGE_PAYLOAD_MAX || header.payload_bytes() != Ok(payload.len()) {
            return Err(Error::Invalid(format!(
                "a message of {} bytes whose header does not say so",
                payload.len()
            )));
        }
        tracing::trace!(rank = self.local.rank, peer, bytes = payload.len(), "send message");
        self.send(peer, |outgoing, end| outgoing.send_message(&end.segment, header, payload))
    }

    fn send_block(&mut self, block: &BlockSend<'_>) -> Result<Posting, Error> {
        let range = &block.range;
        if range.start >= range.end || range.end > block.span.bytes {
            return Err(Error::Invalid(format!(
                "block {} is bytes {range:?} of a span of {}",
                block.block, block.span.bytes
            )));
        }
        tracing::trace!(rank = self.local.rank, peer = block.peer, block.block, "send block");
        self.send(block.peer, |outgoing, end| outgoing.send_block(&end.segment, block))
    }

    fn flush(&mut self) -> Result<(), Error> {
        let mut budget = BYTES_PER_CALL;
        for peer in &mut self.peers {
            let Some(Link { outgoing: Some(outgoing), end, wake, .. }) = peer.live() else {
                continue;
            };
            if !outgoing.has_copies() {
                continue;
            }
            let ring = || end.bell.ring(&Published::now());
            match outgoing.copy(&end.segment, &mut budget, ring) {
                Ok(copied) => {
                    *wake |= copied;
                    self.published |= copied;
                }
                Err(error) => peer.fail(&error),
            }
        }
        self.wake();
        Ok(())
    }

    fn poll(&mut self, receives: &ReceiveTable, events: &mut Events) -> Result<bool, Error> {
        self.take_arrivals();
        let mut budget = BYTES_PER_CALL;
        let mut moved = false;
        let count = self.peers.len();
        let start = if self.start < count { self.start } else { 0 };
        for place in (start..count).chain(0..start) {
            if events.room() == 0 {
                // Whoever was not looked at comes first next time.
                self.start = place;
                break;
            }
            let had_budget = budget > 0;
            let peer = &mut self.peers[place];
            moved |= peer.poll(receives, events, &mut budget);
            if had_budget && budget == 0 {
                // A block that has begun is finished first; then it is the next peer's turn.
                let amid = peer.live().is_some_and(|link| link.incoming.is_amid_block());
                self.start = if amid { place } else { place + 1 };
            }
        }
        self.published |= moved;
        self.wake();
        Ok(moved)
    }

    fn message(&self, slot: Slot) -> Result<(MessageHeader, &[u8]), Error> {
        self.find(slot.peer)
            .and_then(|peer| peer.link.as_ref()?.incoming.message(slot.sequence))
            .ok_or_else(|| Error::Invalid(format!("{slot:?} holds no message")))
    }

    fn release(&mut self, slot: Slot) {
        self.published = true;
        if let Some(link) = self.find_mut(slot.peer).and_then(|peer| peer.link.as_mut()) {
            link.incoming.release(&link.end.segment, slot.sequence);
        }
    }

    fn quiesce(&mut self, peer: Rank) {
        let Some(peer) = self.find_mut(peer) else { return };
        peer.report = false;
        if peer.link.is_some() {
            peer.reason.get_or_insert_with(|| "this rank closed it".to_owned());
        }
        // Blocks come in only within `poll`, by this rank's own hand, so after this nothing writes
        // here; what the peer has not pulled yet is void (`Segment::close`).
        peer.close();
    }

    fn has_outstanding(&self, peer: Rank) -> bool {
        self.find(peer)
            .and_then(|peer| peer.link.as_ref()?.outgoing.as_ref())
            .is_some_and(Outgoing::has_outstanding)
    }

    fn break_reason(&self, peer: Rank) -> Option<String> {
        self.find(peer)?.reason.clone()
    }
}
