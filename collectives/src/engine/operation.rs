//! One operation on this rank: its schedule, where its blocks lie, and what is still to be sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use verbcast_transport::endpoint::{BufferId, Endpoint};
use verbcast_transport::error::Error as TransportError;
use verbcast_transport::layout::Layout;
use verbcast_transport::link::{Posting, Slot};
use verbcast_transport::memory::Owned;
use verbcast_transport::wire::{CountBody, Grant, MessageKind, Ready, Signature};

use super::places::{Buffers, Places};
use crate::error::Error;
use crate::executor::{Arrival, Executor, Pacing, Send};
use crate::group::Group;
use crate::schedule::{Algorithm, Direction, Operation as Kind, Rank, RankSchedule, Shape};
use crate::trace::{Trace, TraceKind};

/// The root of a gather grants its buffer to so many ranks at a time: enough that one that is late does
/// not leave the port idle, few enough that they do not swamp it (incast).
const SENDERS_MOST: usize = 8;

/// One operation as the caller asked for it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) signature: Signature,
    pub(crate) algorithm: Algorithm,
    pub(crate) shape: Shape,
    pub(crate) group: Group,
    /// The message of a broadcast as one part, else the parts of all ranks in their order, in bytes; a
    /// rank that knows of no part but its own takes the others for empty.
    pub(crate) layout: Layout,
    /// Every rank knows the lengths of all parts; else each knows its own, and the root all.
    pub(crate) is_known: bool,
    /// Where the rank has the parts of others, in bytes, if not side by side.
    pub(crate) displacements: Option<Arc<[u64]>>,
    /// Parts of at most so many bytes travel in message slots, without a grant.
    pub(crate) eager_most: Option<u64>,
    /// What goes from the rank's own buffer to its other one.
    pub(crate) own: Option<OwnPart>,
    pub(crate) pacing: Pacing,
    pub(crate) deadline: Option<Duration>,
}

/// A rank's own part, which no link moves; in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnPart {
    /// Where it begins in what the caller gives.
    pub(crate) from: u64,
    /// Where it goes in what the caller gets.
    pub(crate) to: u64,
    pub(crate) bytes: u64,
}

impl Call {
    /// The part that a block belongs to.
    pub(super) fn part_of(&self, block: u32) -> u32 {
        block / self.shape.blocks()
    }

    pub(super) fn is_eager(&self, part: u32) -> bool {
        let range = self.layout.part_range(part);
        self.eager_most.is_some_and(|most| range.end - range.start <= most)
    }

    /// Whether blocks move by links, which messages do not.
    pub(crate) fn has_blocks(&self) -> bool {
        (0..self.layout.parts()).any(|part| !self.is_eager(part))
    }

    /// Whether a block exists: the blocks of a part that is shorter than others are fewer.
    fn exists(&self, block: u32) -> bool {
        let part = self.part_of(block);
        match self.is_eager(part) {
            true => block == part * self.shape.blocks(),
            false => self.layout.block_range(block).is_some(),
        }
    }

    fn part_bytes(&self, part: u32) -> u64 {
        let range = self.layout.part_range(part);
        range.end - range.start
    }
}

/// The open buffers of what the caller gives and gets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opened {
    pub(crate) send: Option<BufferId>,
    pub(crate) recv: Option<BufferId>,
}

/// What the caller has lent for good, as far as it is here or has come back.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    pub(crate) send: Option<Owned>,
    pub(crate) recv: Option<Owned>,
}

/// Where an operation stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// A persistent operation before its first start or after one that went well.
    Resting,
    /// Started, and waiting for older operations of its communicator.
    Queued,
    Running,
    /// It has failed, and its memory waits until no link can touch it any more, or for so long.
    Ending(Error, Instant),
    Ended(Result<(), Error>),
}

/// Storage that the next operation uses again.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) schedule: RankSchedule,
    pub(super) executor: Executor,
    pub(super) places: Places,
    /// Peers that this rank may not send to before they grant, ascending.
    granting: Vec<Rank>,
    /// Peers' buffers, and for which operation number each may be written.
    grants: Vec<(Rank, Grant, u64)>,
    /// Peers that still need this rank's grant, and for which section, in the order of the schedule.
    ungranted: Vec<(Rank, usize)>,
    /// Peers that have a grant and are not done, where only so many may be at a time.
    senders: Vec<Rank>,
    /// Sends that a link had no room for, at most one per peer.
    refused: Vec<Send>,
    /// Peers that are to be told this rank's count.
    pub(super) uncounted: Vec<Rank>,
}

/// One operation. Its peers are ranks of the group, as in the schedule; those of the endpoint are
/// ranks of the job.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) call: Call,
    pub(super) phase: Phase,
    pub(super) opened: Opened,
    pub(super) staging: Option<BufferId>,
    pub(super) returned: Returned,
    pub(super) is_persistent: bool,
    /// How often it was started.
    pub(super) starts: u64,
    /// No older one of its communicator runs: it may use the whole window of messages.
    pub(super) is_oldest: bool,
    pub(super) began: Instant,
    pub(super) published: bool,
    /// Who waits for this rank is to be told its count.
    pub(super) counted: bool,
    pub(super) warnings: u32,
    pub(super) broken: Option<(Rank, Instant)>,
    pub(super) trace: Option<Trace>,
    pub(super) state: State,
}

impl Operation {
    /// Makes the schedule and asks for the links; gives the bytes to be staged, if any.
    pub(super) fn new(
        endpoint: &mut Endpoint,
        call: Call,
        mut state: State,
    ) -> Result<(Self, Option<usize>), Error> {
        let rank = call.group.rank();
        state.schedule.fill(call.algorithm, call.shape, rank)?;
        state.schedule.retain(|step| call.exists(step.block));
        state.grants.clear();
        state.granting.clear();
        for step in state.schedule.steps().iter().filter(|step| step.direction == Direction::Send) {
            if !call.is_eager(call.part_of(step.block))
                && let Err(place) = state.granting.binary_search(&step.peer)
            {
                state.granting.insert(place, step.peer);
            }
        }
        for &peer in state.schedule.recv_peers().iter().chain(state.schedule.send_peers()) {
            endpoint.connect(call.group.in_job(peer))?;
        }
        let staged = state.places.staged_bytes(&call, &state.schedule);
        let staged = staged.map(usize::try_from).transpose().map_err(|_| {
            TransportError::Invalid("too many bytes to be passed on by one rank".into())
        })?;
        let operation = Self {
            call,
            phase: Phase::Resting,
            opened: Opened::default(),
            staging: None,
            returned: Returned::default(),
            is_persistent: false,
            starts: 0,
            is_oldest: false,
            began: Instant::now(),
            published: false,
            counted: false,
            warnings: 0,
            broken: None,
            trace: None,
            state,
        };
        Ok((operation, staged))
    }

    /// The buffers by what they are to the operation.
    fn buffers(&self) -> Buffers {
        let Opened { send, recv } = self.opened;
        let is_broadcast = self.call.shape.operation() == Kind::Broadcast;
        Buffers {
            source: if is_broadcast { recv } else { send },
            target: recv,
            staging: self.staging,
        }
    }

    pub(super) fn open_buffers(&self) -> impl Iterator<Item = BufferId> + use<> {
        let Opened { send, recv } = self.opened;
        [send, recv, self.staging].into_iter().flatten()
    }

    pub(super) fn uses(&self, buffer: BufferId) -> bool {
        self.open_buffers().any(|open| open == buffer)
    }

    /// Gets everything ready for the blocks of this start.
    pub(super) fn activate(&mut self, endpoint: &mut Endpoint) -> Result<(), Error> {
        let buffers = self.buffers();
        let Self { call, state, .. } = self;
        state.executor.start(&state.schedule, call.pacing)?;
        state.refused.clear();
        state.ungranted.clear();
        state.senders.clear();
        state.uncounted.clear();
        for &peer in state.schedule.send_peers() {
            if state.granting.binary_search(&peer).is_err() {
                state.executor.granted(peer)?;
            }
        }
        if let (Some(OwnPart { from, to, bytes }), Some(send), Some(recv)) =
            (call.own, self.opened.send, self.opened.recv)
        {
            endpoint.copy(send, from..from + bytes, recv, to)?;
        }
        match self.starts {
            0 => state.places.open(endpoint, call, state.schedule.rank(), buffers)?,
            _ => state.places.reopen(endpoint)?,
        }
        self.starts += 1;
        for step in state.schedule.steps().iter().filter(|step| step.direction == Direction::Recv) {
            let Some((index, section)) = state.places.of_part(call.part_of(step.block)) else {
                continue;
            };
            let wanted = (step.peer, index);
            if section.handle.is_some() && !state.ungranted.contains(&wanted) {
                state.ungranted.push(wanted);
            }
        }
        self.phase = Phase::Running;
        Ok(())
    }

    /// Whether everything has come and everything was sent, as far as this rank's links know.
    pub(super) fn is_done(&self) -> bool {
        self.state.executor.is_done() && self.state.ungranted.is_empty()
    }

    /// Whether a message of this operation may go to the peer: the younger ones leave half of the
    /// window to the oldest, which the others wait for.
    fn may_send_message(&self, endpoint: &mut Endpoint, peer: Rank) -> bool {
        endpoint.is_up(peer)
            && (self.is_oldest || endpoint.has_spare_window(peer, self.call.signature.communicator))
    }

    /// Sends what can be sent now.
    pub(super) fn push(&mut self, endpoint: &mut Endpoint) -> Result<(), Error> {
        self.send_grants(endpoint)?;
        self.send_counts(endpoint)?;
        self.send_blocks(endpoint)
    }

    fn send_grants(&mut self, endpoint: &mut Endpoint) -> Result<(), Error> {
        // Only there no sender waits for what this rank has to send it first.
        let most = match self.call.shape.operation() {
            Kind::Gather => SENDERS_MOST,
            _ => usize::MAX,
        };
        let mut next = 0;
        while let Some(&(peer, index)) = self.state.ungranted.get(next) {
            let is_new = most < usize::MAX && !self.state.senders.contains(&peer);
            let Some(section) = self.state.places.get(index) else { break };
            let Some(handle) = section.handle else { break };
            let to = self.call.group.in_job(peer);
            let may_send = !(is_new && self.state.senders.len() >= most)
                && self.may_send_message(endpoint, to);
            let signature = &self.call.signature;
            let sent = may_send
                && Posting::Posted
                    == match self.starts {
                        1 => endpoint.send_grant(to, signature, handle, section.first_part)?,
                        _ => endpoint.send_ready(to, signature, handle)?,
                    };
            if sent {
                self.state.ungranted.remove(next);
                if is_new {
                    self.state.senders.push(peer);
                }
                self.note(TraceKind::GrantSent, peer, 0);
            } else {
                next += 1;
            }
        }
        Ok(())
    }

    /// Whoever waits in an operation whose counts not everybody knows tells its own to whom it waits for.
    fn send_counts(&mut self, endpoint: &mut Endpoint) -> Result<(), Error> {
        let (call, rank) = (&self.call, self.call.group.rank());
        let mut next = 0;
        while let Some(&peer) = self.state.uncounted.get(next) {
            let part = if rank == call.shape.root() { peer } else { rank };
            let bytes = call.part_bytes(part);
            let to = call.group.in_job(peer);
            // A link that is still being made is waited for: nothing else may ever cross it.
            let sent = endpoint.is_up(to)
                && endpoint.send_count(to, &call.signature, part, bytes)? == Posting::Posted;
            if sent {
                self.state.uncounted.swap_remove(next);
            } else {
                next += 1;
            }
        }
        Ok(())
    }

    fn send_blocks(&mut self, endpoint: &mut Endpoint) -> Result<(), Error> {
        let mut next = 0;
        while let Some(&send) = self.state.refused.get(next) {
            if self.send(endpoint, send)? {
                self.state.refused.remove(next);
            } else {
                next += 1;
            }
        }
        loop {
            let State { executor, refused, .. } = &mut self.state;
            let may_send = |peer| {
                endpoint.is_up(self.call.group.in_job(peer))
                    && !refused.iter().any(|send: &Send| send.peer == peer)
            };
            let Some(send) = executor.next_send(may_send) else { return Ok(()) };
            if !self.send(endpoint, send)? {
                self.state.refused.push(send);
            }
        }
    }

    /// Hands one block to its link; false if the link has no room.
    fn send(&mut self, endpoint: &mut Endpoint, send: Send) -> Result<bool, Error> {
        let call = &self.call;
        let Send { peer, block, .. } = send;
        let to = call.group.in_job(peer);
        let part = call.part_of(block);
        // The executor sends what the rank holds, and that has its place.
        let Some((_, section)) = self.state.places.of_part(part) else { return Ok(false) };
        if call.is_eager(part) {
            if !self.may_send_message(endpoint, to) {
                return Ok(false);
            }
            let range = section.layout.part_range(part - section.first_part);
            let range = section.offset + range.start..section.offset + range.end;
            let posting =
                endpoint.send_message(to, &call.signature, part, section.buffer, range)?;
            if posting == Posting::Full {
                return Ok(false);
            }
            self.note(TraceKind::SendPosted, peer, block);
            self.state.executor.sent(peer, block)?;
            self.note(TraceKind::Sent, peer, block);
            return Ok(true);
        }
        let number = call.signature.number;
        let covers =
            |grant: &Grant| (grant.first_part..grant.first_part + grant.parts).contains(&part);
        let grants = self.state.grants.iter();
        let grant = grants
            .filter(|(from, _, ready)| *from == peer && *ready == number)
            .find(|(_, grant, _)| covers(grant));
        // Of several grants of a peer this one may be on its way.
        let Some((_, grant, _)) = grant else { return Ok(false) };
        let blocks = call.shape.blocks();
        let own = section.layout.block_range(block - section.first_part * blocks);
        let theirs = call.layout.slice(grant.first_part, grant.parts);
        let in_grant = block - grant.first_part * blocks;
        let (Some(own), Some(theirs)) = (own, theirs.and_then(|all| all.block_range(in_grant)))
        else {
            return Ok(false);
        };
        let range = section.offset + own.start..section.offset + own.end;
        let buffer = section.buffer;
        let posting =
            endpoint.send_block(to, grant, in_grant, buffer, range, theirs.start, block)?;
        if posting == Posting::Full {
            return Ok(false);
        }
        self.note(TraceKind::SendPosted, peer, block);
        Ok(true)
    }

    /// A block is whole in the receive under this handle; false if that is not this operation's.
    pub(super) fn take_block(
        &mut self,
        from: Rank,
        handle: u16,
        block: u32,
    ) -> Result<bool, Error> {
        let section = self.state.places.of_handle(handle);
        let Some(first) = section.map(|section| section.first_part) else { return Ok(false) };
        let Some(peer) = self.call.group.in_group(from) else { return Ok(false) };
        let block = first * self.call.shape.blocks() + block;
        self.state.executor.arrived(peer, block)?;
        if self.state.executor.blocks_missing_from(peer) == 0 {
            self.state.senders.retain(|sender| *sender != peer);
        }
        self.note(TraceKind::Arrived, peer, block);
        Ok(true)
    }

    pub(super) fn take_sent(&mut self, to: Rank, block: u32) -> Result<(), Error> {
        let Some(peer) = self.call.group.in_group(to) else { return Ok(()) };
        self.state.executor.sent(peer, block)?;
        self.note(TraceKind::Sent, peer, block);
        Ok(())
    }

    /// Whether the operation still needs the link to this rank of the job.
    pub(super) fn needs(&self, rank: Rank) -> bool {
        let peer = self.call.group.in_group(rank);
        let needs = |peer: Rank| {
            self.state.executor.missing_peers().any(|missing| missing.peer == peer)
                || self.state.ungranted.iter().any(|(to, _)| *to == peer)
        };
        peer.is_some_and(needs)
    }

    /// A message of this very operation number, whose signature was compared.
    pub(super) fn take_message(
        &mut self,
        endpoint: &mut Endpoint,
        slot: Slot,
    ) -> Result<(), Error> {
        let rank = endpoint.rank();
        let broke = |what: String| TransportError::Protocol { rank, peer: slot.peer, what };
        let (header, payload) = endpoint.message(slot)?;
        let Some(peer) = self.call.group.in_group(slot.peer) else {
            return Err(broke("a message of a communicator that it is not in".into()).into());
        };
        match header.kind().map_err(|error| broke(error.to_string()))? {
            MessageKind::Grant => {
                let grant = Grant::read(payload).map_err(|error| broke(error.to_string()))?;
                endpoint.release(slot);
                let layout = self.call.layout.slice(grant.first_part, grant.parts);
                let expected = layout
                    .map(|layout| layout.bytes())
                    .ok_or_else(|| broke("it granted parts that do not exist".into()))?;
                if grant.bytes != expected {
                    return Err(self.other_count(rank, slot.peer, expected, grant.bytes));
                }
                let (first, last) = (grant.first_part, grant.first_part + (grant.parts - 1));
                let overlaps = |other: &Grant| {
                    other.first_part <= last && first < other.first_part + other.parts
                };
                if self.state.grants.iter().any(|(of, other, _)| *of == peer && overlaps(other)) {
                    return Err(broke(format!("part {first} granted twice")).into());
                }
                self.granted(peer)?;
                self.state.grants.push((peer, grant, self.call.signature.number));
            }
            MessageKind::Ready => {
                let ready = Ready::read(payload).map_err(|error| broke(error.to_string()))?;
                endpoint.release(slot);
                let is_of = |(from, grant, _): &&(Rank, Grant, u64)| {
                    (*from, grant.handle, grant.epoch) == (peer, ready.handle, ready.epoch)
                };
                let place = self.state.grants.iter().position(|grant| is_of(&grant));
                let place = place.ok_or_else(|| broke("a credit for nothing granted".into()))?;
                self.granted(peer)?;
                self.state.grants[place].2 = self.call.signature.number;
            }
            MessageKind::Count => {
                let (part, theirs) =
                    CountBody::read(payload).map_err(|error| broke(error.to_string()))?;
                endpoint.release(slot);
                let ours = self.call.part_bytes(part);
                if theirs != ours {
                    return Err(self.other_count(rank, slot.peer, ours, theirs));
                }
            }
            MessageKind::Credit => {
                return Err(broke("a credit that nobody waits for".into()).into());
            }
            MessageKind::Eager => {
                let (part, bytes) = (header.block(), payload.len() as u64);
                let place = self.state.places.of_part(part).map(|(_, section)| section);
                let Some(section) = place.filter(|_| part < self.call.layout.parts()) else {
                    return Err(broke(format!("an eager message of part {part}")).into());
                };
                let range = section.layout.part_range(part - section.first_part);
                let expected = range.end - range.start;
                if !self.call.is_eager(part) || bytes != expected {
                    endpoint.release(slot);
                    return Err(self.other_count(rank, slot.peer, expected, bytes));
                }
                let (buffer, offset) = (section.buffer, section.offset + range.start);
                let block = part * self.call.shape.blocks();
                // Before anything is copied: a block that is not expected may not overwrite one.
                if self.state.executor.arrived(peer, block)? == Arrival::New {
                    endpoint.copy_message(slot, buffer, offset)?;
                }
                endpoint.release(slot);
                self.note(TraceKind::Arrived, peer, block);
            }
        }
        Ok(())
    }

    /// The peer's buffer may be written in this start, or one of its buffers.
    fn granted(&mut self, peer: Rank) -> Result<(), Error> {
        let number = self.call.signature.number;
        let grants = &mut self.state.grants.iter();
        if !grants.any(|(from, _, ready)| (*from, *ready) == (peer, number)) {
            self.state.executor.granted(peer)?;
        }
        self.note(TraceKind::Granted, peer, 0);
        Ok(())
    }

    /// The peer has another count for a part than this rank.
    fn other_count(&self, rank: Rank, peer: Rank, ours: u64, theirs: u64) -> Error {
        Error::OtherCount { call: self.call.signature, rank, ours, peer, theirs }
    }

    fn note(&mut self, kind: TraceKind, peer: Rank, block: u32) {
        if let Some(trace) = &mut self.trace {
            trace.note(kind, peer, block);
        }
    }

    /// The ranks of the job that it waits for.
    pub(super) fn missing(&self) -> impl Iterator<Item = Rank> + '_ {
        self.state.executor.missing_peers().map(|missing| self.call.group.in_job(missing.peer))
    }
}
