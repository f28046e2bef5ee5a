//! All verbs links of a rank: polling, routing of completions, and the end of links.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::{Access, Completion, Driver};
use super::error::VerbsError;
use super::lane::{Lane, WorkId};
use super::link::Link;
use super::rail::Rail;
use super::routes::{NumberMap, Route};
use super::setup::{Arrival, SetUp};
use crate::error::Error;
use crate::link::{BlockSend, Event, Events, Fabric, Posting, ReceiveTable, Slot};
use crate::wire::{MessageHeader, Rank};

pub use super::connector::VerbsConnector;
pub use super::lane::LaneStatistics;
pub use super::rail::Registration;
pub use super::select::RailChoice;
pub use super::settings::LinkSettings;

/// Completions that are taken from a queue at once.
const COMPLETIONS_PER_POLL: usize = 32;

/// Times that one queue is polled before the other ones get their turn.
const POLLS_PER_TURN: usize = 8;

/// How long flushed work is waited for before a queue pair is destroyed without it. Adapters flush
/// within microseconds; destroying ends every access as well.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// The verbs links of one rank.
///
/// Made by [`open`] together with the [`VerbsConnector`] that sets links up. Before sleeping:
/// [`VerbsFabric::arm`], poll once more, then wait for [`VerbsFabric::event_fds`], then
/// [`VerbsFabric::take_events`].
pub struct VerbsFabric {
    // Dropped first: queue pairs before completion queues and devices.
    links: Vec<Option<Box<Link>>>,
    by_peer: NumberMap<usize>,
    /// Per rail, by queue pair number.
    routes: Vec<NumberMap<Route>>,
    /// Links to attend to: receives, credits, chains.
    listed: Vec<usize>,
    /// Events that had no room yet.
    pending: VecDeque<Event>,
    /// Completions of other links that came while one was drained.
    stashed: VecDeque<(usize, Completion)>,
    completions: Box<[Completion; COMPLETIONS_PER_POLL]>,
    reasons: NumberMap<String>,
    /// Links whose peer has closed its end: they break when all that came over them was polled.
    closing: Vec<(Rank, u32)>,
    set_up: Arc<SetUp>,
    rails: Vec<Arc<Rail>>,
}

/// Opens the devices of `rails` for rank `rank`.
///
/// # Errors
/// If a setting is out of its range, a device, port or GID is not usable, or the settings need more
/// than a device has ([`VerbsError::OverLimit`] says of what).
pub fn open(
    driver: &dyn Driver,
    rails: &[RailChoice],
    rank: Rank,
    settings: LinkSettings,
) -> Result<(VerbsFabric, Arc<VerbsConnector>), Error> {
    settings.check()?;
    let rails = Rail::open_all(driver, rails, &settings)?;
    let links = settings.links_max as usize;
    // One batch of completions can finish every send slot of every lane that it names.
    let pending = COMPLETIONS_PER_POLL * (settings.send_depth as usize + 1);
    let lanes = links * settings.lanes as usize;
    let set_up = Arc::new(SetUp::new(rank));
    let fabric = VerbsFabric {
        links: Vec::with_capacity(links),
        by_peer: NumberMap::with_capacity_and_hasher(links, Default::default()),
        routes: rails
            .iter()
            .map(|_| NumberMap::with_capacity_and_hasher(lanes, Default::default()))
            .collect(),
        listed: Vec::with_capacity(links),
        pending: VecDeque::with_capacity(pending),
        stashed: VecDeque::new(),
        completions: Box::new([Completion::BLANK; COMPLETIONS_PER_POLL]),
        reasons: NumberMap::default(),
        closing: Vec::new(),
        set_up: Arc::clone(&set_up),
        rails: rails.clone(),
    };
    let connector = VerbsConnector::new(rank, rails, settings, set_up);
    Ok((fabric, Arc::new(connector)))
}

impl VerbsFabric {
    /// Registers memory with every rail.
    ///
    /// # Safety
    /// `bytes` bytes at `address` (provenance exposed) are mapped, writable if `access` is
    /// [`Access::RemoteWrite`], and stay so until the registration is dropped; until then nobody
    /// relies on bytes that a peer was granted.
    ///
    /// # Errors
    /// If a device refuses; where the memlock limit is the likely cause it is named.
    pub unsafe fn register(
        &self,
        address: usize,
        bytes: usize,
        access: Access,
    ) -> Result<Registration, Error> {
        // SAFETY: passed on to the caller.
        unsafe { Registration::new(&self.rails, address, bytes, access) }
    }

    /// The rails, for people: `rxe0 port 1, rxe1 port 1`.
    #[must_use]
    pub fn describe(&self) -> String {
        let name = |rail: &Arc<Rail>| format!("{} port {}", rail.choice.device, rail.choice.port);
        self.rails.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// How many rails there are.
    #[must_use]
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// Asks every completion queue for an event at its next completion. Poll once more before
    /// sleeping.
    ///
    /// # Errors
    /// If a device refuses.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.rails.iter().try_for_each(|rail| rail.queue.arm())
    }

    /// Descriptors that become readable when a completion comes after [`VerbsFabric::arm`].
    pub fn event_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rails.iter().map(|rail| rail.queue.event_fd())
    }

    /// Takes the events that wait, without blocking; then poll.
    ///
    /// # Errors
    /// If a completion channel is broken.
    pub fn take_events(&self) -> Result<(), VerbsError> {
        self.rails.iter().try_for_each(|rail| rail.queue.take_events())
    }

    /// What each lane of the link to `peer` has carried; empty without a link.
    #[must_use]
    pub fn lane_statistics(&self, peer: Rank) -> Vec<LaneStatistics> {
        self.find(peer).map(|link| link.statistics().collect()).unwrap_or_default()
    }

    /// How many writes each lane of the link to `peer` was given so far; empty without a link.
    pub(crate) fn writes(&self, peer: Rank) -> impl Iterator<Item = u64> {
        let lanes = self.find(peer).map(Link::lanes).unwrap_or_default();
        lanes.iter().map(Lane::queued)
    }

    /// Whether as many writes as the peer has given each lane have come over it, and were seen.
    pub(crate) fn have_come(&self, peer: Rank, writes: impl ExactSizeIterator<Item = u64>) -> bool {
        let Some(link) = self.find(peer) else { return false };
        let lanes = link.lanes();
        lanes.len() == writes.len()
            && lanes.iter().zip(writes).all(|(lane, writes)| lane.statistics.received >= writes)
    }

    /// Drops what is to be told of a receive that is closed while blocks are missing.
    pub(crate) fn forget_blocks(&mut self, closed: u16) {
        let of_it =
            |event: &Event| matches!(event, Event::Block { handle, .. } if *handle == closed);
        self.pending.retain(|event| !of_it(event));
    }

    // ---- links come ----

    fn find(&self, peer: Rank) -> Option<&Link> {
        self.links.get(*self.by_peer.get(&peer)?)?.as_deref()
    }

    fn find_mut(&mut self, peer: Rank) -> Option<&mut Link> {
        self.links.get_mut(*self.by_peer.get(&peer)?)?.as_deref_mut()
    }

    fn take_arrivals(&mut self) -> bool {
        if !self.set_up.has_arrivals() {
            return false;
        }
        let arrivals = self.set_up.take_arrivals();
        let moved = !arrivals.is_empty();
        for arrival in arrivals {
            match arrival {
                Arrival::Link(link) => self.install(link),
                Arrival::Confirmed { peer, epoch } => {
                    if let Some(link) = self.find_mut(peer).filter(|link| link.epoch == epoch) {
                        link.can_send = true;
                        self.list(peer);
                    }
                }
                Arrival::PeerClosed { peer, epoch } => self.closing.push((peer, epoch)),
                Arrival::Failed { peer, reason } => {
                    if let Some(position) = self.by_peer.get(&peer).copied() {
                        self.break_link(position, reason);
                    } else {
                        self.reasons.insert(peer, reason);
                    }
                }
            }
        }
        moved
    }

    fn install(&mut self, link: Box<Link>) {
        let free = self.links.iter().position(Option::is_none);
        let position = free.unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        for (index, lane) in link.lanes().iter().enumerate() {
            let route = Route { link: position, lane: index };
            self.routes[lane.rail].insert(lane.number(), route);
        }
        tracing::debug!(
            rank = link.rank,
            peer = link.peer,
            epoch = link.epoch,
            lanes = link.lanes().len(),
            "link installed"
        );
        self.reasons.remove(&link.peer);
        self.by_peer.insert(link.peer, position);
        self.links[position] = Some(link);
    }

    fn list(&mut self, peer: Rank) {
        if let Some(position) = self.by_peer.get(&peer).copied() {
            self.list_position(position);
        }
    }

    fn list_position(&mut self, position: usize) {
        if let Some(link) = self.links[position].as_deref_mut().filter(|link| !link.listed) {
            link.listed = true;
            self.listed.push(position);
        }
    }

    fn break_link(&mut self, position: usize, reason: String) {
        if let Some(link) = self.links[position].as_deref_mut() {
            let peer = link.peer;
            if link.set_broken(reason) {
                self.pending.push_back(Event::Broken { peer });
            }
        }
    }

    /// Breaks the links whose peer has closed its end. The peer's writes had completed before it
    /// said so, or will never: what came is in the completion queues, which were found empty.
    fn break_closing(&mut self) {
        for (peer, epoch) in std::mem::take(&mut self.closing) {
            let position = self.by_peer.get(&peer).copied();
            let is_it = self.find(peer).is_some_and(|link| link.epoch == epoch);
            if let Some(position) = position.filter(|_| is_it) {
                self.break_link(position, "the peer closed its end".into());
            }
        }
    }

    fn no_link(&self, peer: Rank) -> Error {
        let reason = self.reasons.get(&peer).cloned();
        let reason = reason.unwrap_or_else(|| "the link is not up".into());
        Error::Link { rank: self.set_up.rank(), peer, reason }
    }

    // ---- completions ----

    fn hand_over(&mut self, events: &mut Events) -> bool {
        let mut moved = false;
        while events.room() > 0
            && let Some(event) = self.pending.pop_front()
        {
            events.push(event);
            moved = true;
        }
        moved
    }

    fn poll_queues(&mut self, receives: &ReceiveTable, events: &mut Events) -> Result<bool, Error> {
        let mut moved = false;
        while self.pending.is_empty()
            && let Some((rail, completion)) = self.stashed.pop_front()
        {
            self.on_completion(rail, &completion, receives);
            moved |= self.hand_over(events);
        }
        for rail in 0..self.rails.len() {
            for _ in 0..POLLS_PER_TURN {
                // What has no room stays in the completion queue, which has room for everything.
                if !self.pending.is_empty() || events.room() == 0 {
                    return Ok(moved);
                }
                let taken = self.rails[rail].queue.poll(&mut self.completions[..])?;
                moved |= taken > 0;
                for index in 0..taken {
                    let completion = self.completions[index];
                    self.on_completion(rail, &completion, receives);
                }
                self.hand_over(events);
                if taken < COMPLETIONS_PER_POLL {
                    break;
                }
            }
        }
        Ok(moved)
    }

    pub(super) fn on_completion(
        &mut self,
        rail: usize,
        completion: &Completion,
        receives: &ReceiveTable,
    ) {
        let Some(route) = self.route(rail, completion) else {
            tracing::trace!(?completion, "completion of a queue pair that is gone");
            return;
        };
        let Some(link) = self.links[route.link].as_deref_mut() else { return };
        let result =
            link.on_completion(route.lane, completion, receives, &self.rails, &mut self.pending);
        match result {
            Ok(()) => self.list_position(route.link),
            Err(reason) => self.break_link(route.link, reason),
        }
    }

    /// Where a completion belongs. A queue pair that is not known may have been made since the
    /// last look; one whose generation differs is gone.
    fn route(&mut self, rail: usize, completion: &Completion) -> Option<Route> {
        let number = completion.queue_pair;
        if !self.routes[rail].contains_key(&number) {
            self.take_arrivals();
        }
        let route = self.routes[rail].get(&number).copied()?;
        let link = self.links[route.link].as_deref()?;
        WorkId(completion.work_id).is_of(link.generation).then_some(route)
    }

    /// Lets every link on the list post receives, credits and chains.
    fn attend(&mut self) -> bool {
        let mut moved = false;
        let mut kept = 0;
        for index in 0..self.listed.len() {
            let position = self.listed[index];
            let Some(link) = self.links[position].as_deref_mut() else { continue };
            let result = link.attend(&self.rails);
            if link.needs_attention() && result.is_ok() {
                self.listed[kept] = position;
                kept += 1;
            } else {
                link.listed = false;
            }
            match result {
                Ok(any) => moved |= any,
                Err(reason) => self.break_link(position, reason),
            }
        }
        self.listed.truncate(kept);
        moved
    }

    // ---- links go ----

    /// Stops a link and waits until everything it had outstanding was flushed; says whether it was.
    fn drain(&mut self, position: usize, link: &mut Link) -> bool {
        link.set_broken("this rank closed it".into());
        let marked = link.mark();
        let stashed = std::mem::take(&mut self.stashed);
        for (rail, completion) in stashed {
            self.sort_out(rail, completion, position, link);
        }
        let limit = Instant::now() + DRAIN_LIMIT;
        while !(marked && link.is_drained()) {
            let mut taken = 0;
            for rail in 0..self.rails.len() {
                taken += self.take_while_draining(rail, position, link);
            }
            if taken == 0 {
                if !marked || Instant::now() >= limit {
                    let (rank, peer) = (link.rank, link.peer);
                    tracing::warn!(rank, peer, "destroying queue pairs that were not drained");
                    return false;
                }
                std::thread::yield_now();
            }
        }
        true
    }

    /// Empties the completion queues of what destroyed queue pairs left there, so that it does not
    /// take the room that was reserved for others. What belongs to links is kept.
    fn sweep(&mut self) {
        for rail in 0..self.rails.len() {
            // A bound for a queue that other links keep filling.
            for _ in 0..self.rails[rail].queue.capacity() {
                let taken = self.rails[rail].queue.poll(&mut self.completions[..]).unwrap_or(0);
                let known = self.completions[..taken]
                    .iter()
                    .filter(|completion| self.routes[rail].contains_key(&completion.queue_pair));
                self.stashed.extend(known.map(|completion| (rail, *completion)));
                if taken == 0 {
                    break;
                }
            }
        }
    }

    fn take_while_draining(&mut self, rail: usize, position: usize, link: &mut Link) -> usize {
        let taken =
            self.rails[rail].queue.poll(&mut self.completions[..]).unwrap_or_else(|error| {
                // The next poll reports it; destroying the queue pairs ends all access as well.
                tracing::warn!(%error, "polling while draining");
                0
            });
        for index in 0..taken {
            let completion = self.completions[index];
            self.sort_out(rail, completion, position, link);
        }
        taken
    }

    /// Notes a completion of the link that is drained, and keeps every other one for later. What
    /// is kept holds its slots, so there is never more of it than completion queue entries.
    fn sort_out(&mut self, rail: usize, completion: Completion, position: usize, link: &mut Link) {
        let route = self.routes[rail].get(&completion.queue_pair).copied();
        match route.filter(|route| route.link == position) {
            Some(route) if WorkId(completion.work_id).is_of(link.generation) => {
                link.drained(route.lane, &completion);
            }
            _ => self.stashed.push_back((rail, completion)),
        }
    }

    fn forget(&mut self, position: usize, link: &Link) {
        for lane in link.lanes() {
            self.routes[lane.rail].remove(&lane.number());
        }
        let peer = link.peer;
        self.by_peer.remove(&peer);
        self.listed.retain(|listed| *listed != position);
        self.pending.retain(|event| event_peer(event) != peer);
        if let Some(reason) = link.broken() {
            self.reasons.insert(peer, reason.to_owned());
        }
    }
}

fn event_peer(event: &Event) -> Rank {
    match *event {
        Event::Message { slot } => slot.peer,
        Event::Block { peer, .. } | Event::Sent { peer, .. } | Event::Broken { peer } => peer,
    }
}

impl Fabric for VerbsFabric {
    fn is_up(&mut self, peer: Rank) -> bool {
        self.take_arrivals();
        self.find(peer).is_some_and(|link| link.can_send && link.broken().is_none())
    }

    fn send_message(
        &mut self,
        peer: Rank,
        header: &MessageHeader,
        payload: &[u8],
    ) -> Result<Posting, Error> {
        let Some(link) = self.find_mut(peer) else { return Err(self.no_link(peer)) };
        let posting = link.send_message(header, payload)?;
        self.list(peer);
        Ok(posting)
    }

    fn send_block(&mut self, block: &BlockSend<'_>) -> Result<Posting, Error> {
        let Some(link) = self.find_mut(block.peer) else { return Err(self.no_link(block.peer)) };
        let posting = link.send_block(block)?;
        self.list(block.peer);
        Ok(posting)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.attend();
        Ok(())
    }

    fn is_flushed(&self) -> bool {
        self.listed.is_empty() && self.pending.is_empty() && self.stashed.is_empty()
    }

    fn poll(&mut self, receives: &ReceiveTable, events: &mut Events) -> Result<bool, Error> {
        let mut moved = self.take_arrivals();
        moved |= self.hand_over(events);
        moved |= self.poll_queues(receives, events)?;
        moved |= self.attend();
        moved |= self.hand_over(events);
        if !moved && !self.closing.is_empty() {
            self.break_closing();
            moved |= self.hand_over(events);
        }
        Ok(moved)
    }

    fn message(&self, slot: Slot) -> Result<(MessageHeader, &[u8]), Error> {
        self.find(slot.peer).ok_or_else(|| self.no_link(slot.peer))?.message(slot)
    }

    fn release(&mut self, slot: Slot) {
        if let Some(link) = self.find_mut(slot.peer) {
            link.release(slot.sequence);
            self.list(slot.peer);
        }
    }

    fn quiesce(&mut self, peer: Rank) {
        self.take_arrivals();
        let Some(position) = self.by_peer.get(&peer).copied() else { return };
        let Some(mut link) = self.links[position].take() else { return };
        let drained = self.drain(position, &mut link);
        self.forget(position, &link);
        // Destroys the queue pairs, then frees the rings.
        drop(link);
        if !drained {
            self.sweep();
        }
        self.set_up.closed(peer);
        tracing::debug!(rank = self.set_up.rank(), peer, "link quiesced");
    }

    fn has_outstanding(&self, peer: Rank) -> bool {
        self.find(peer).is_some_and(Link::has_outstanding)
    }

    fn break_reason(&self, peer: Rank) -> Option<String> {
        let broken = self.find(peer).and_then(Link::broken).map(str::to_owned);
        broken.or_else(|| self.reasons.get(&peer).cloned())
    }
}
