//! Drives operations over an endpoint: matching, grants, blocks, waiting, and an end in any case.

mod clock;
mod places;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use verbcast_transport::control::{AbortCause, AbortKind, AbortScope, Control};
use verbcast_transport::endpoint::{BufferId, Endpoint, Idle, Notice};
use verbcast_transport::error::Error as TransportError;
use verbcast_transport::layout::Layout;
use verbcast_transport::link::{Posting, Slot};
use verbcast_transport::memory::{Memory, Region};
use verbcast_transport::wire::{CountBody, Grant, MessageKind, Signature};

use self::places::{Buffers, Places};
use crate::error::Error;
use crate::executor::{Arrival, Executor, Pacing, Send};
use crate::schedule::{Algorithm, Direction, Operation, Rank, RankSchedule, Shape};
use crate::trace::{Trace, TraceKind};

/// After this long in one call a rank publishes what it called, so that ranks which called
/// something else find out although no message between them meets.
const PUBLISH_AFTER: Duration = Duration::from_millis(100);

/// After this long, and again each time as long, a warning names the ranks that have not come.
const WARN_AFTER: Duration = Duration::from_secs(60);

/// How long a rank whose link broke waits for the control plane to say why: the death of the peer
/// is the better news than the error of its queue pair.
const BREAK_GRACE: Duration = Duration::from_millis(500);

/// The least memory that is kept for staging, in bytes.
const STAGING_LEAST: usize = 1 << 20;

/// The root of a gather grants its buffer to so many ranks at a time: enough that one that is late does
/// not leave the port idle, few enough that they do not swamp it (incast).
const SENDERS_MOST: usize = 8;

/// The longest sleep between two looks at the clock.
const NAP: Duration = Duration::from_secs(1);

/// One operation as the caller asked for it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) signature: Signature,
    pub(crate) algorithm: Algorithm,
    pub(crate) shape: Shape,
    /// The message of a broadcast as one part, else the parts of all ranks in their order, in bytes; a
    /// rank that knows of no part but its own takes the others for empty.
    pub(crate) layout: Layout,
    /// Every rank knows the lengths of all parts; else each knows its own, and the root all.
    pub(crate) is_known: bool,
    /// Where the root has the parts of others, in bytes, if not side by side.
    pub(crate) displacements: Option<&'a [u64]>,
    /// Parts of at most so many bytes travel in message slots, without a grant.
    pub(crate) eager_most: Option<u64>,
    pub(crate) pacing: Pacing,
    pub(crate) deadline: Option<Duration>,
    pub(crate) trace: Option<&'a mut Trace>,
}

impl Call<'_> {
    /// The part that a block belongs to.
    fn part_of(&self, block: u32) -> u32 {
        block / self.shape.blocks()
    }

    fn is_eager(&self, part: u32) -> bool {
        let range = self.layout.part_range(part);
        self.eager_most.is_some_and(|most| range.end - range.start <= most)
    }

    /// Whether a block exists: the blocks of a part that is shorter than others are fewer.
    fn exists(&self, block: u32) -> bool {
        let part = self.part_of(block);
        match self.is_eager(part) {
            true => block == part * self.shape.blocks(),
            false => self.layout.block_range(block).is_some(),
        }
    }
}

/// What the caller gives and gets.
#[derive(Debug, Default)]
pub(crate) struct Given<'a> {
    pub(crate) source: Option<&'a [u8]>,
    pub(crate) target: Option<&'a mut [u8]>,
}

/// An endpoint and the operations on it.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) endpoint: Endpoint,
    operations: Operations,
    /// For what is only passed on; kept, and made larger when that does not fit.
    staging: Option<Region>,
}

/// The state of operations; its storage is used again by the next one.
#[derive(Debug, Default)]
struct Operations {
    /// Next operation number, by communicator.
    numbers: HashMap<u64, u64>,
    /// Messages of operations that this rank has not called yet, oldest first; bounded by each
    /// communicator's window of messages.
    unexpected: Vec<(Slot, Signature)>,
    schedule: RankSchedule,
    executor: Executor,
    places: Places,
    /// Peers that this rank may not send to before they grant, ascending.
    granting: Vec<Rank>,
    /// Peers' buffers in the running operation.
    grants: Vec<(Rank, Grant)>,
    /// Peers that still need this rank's grant, and for which section, in the order of the schedule.
    ungranted: Vec<(Rank, usize)>,
    /// Peers that have a grant and are not done, where only so many may be at a time.
    senders: Vec<Rank>,
    /// Sends that a link had no room for, at most one per peer.
    refused: Vec<Send>,
    /// Peers that are to be told this rank's count.
    uncounted: Vec<Rank>,
}

/// Where a running operation stands.
struct Run<'a, 'b> {
    call: &'a mut Call<'b>,
    began: Instant,
    published: bool,
    warnings: u32,
    broken: Option<(Rank, Instant)>,
}

impl Engine {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, operations: Operations::default(), staging: None }
    }

    /// The number of the next operation on `communicator`; counts it.
    pub(crate) fn take_number(&mut self, communicator: u64) -> u64 {
        let number = self.operations.numbers.entry(communicator).or_default();
        *number += 1;
        *number - 1
    }

    /// Runs an operation: what this rank gives is read, what it gets is filled.
    pub(crate) fn run(&mut self, mut call: Call<'_>, given: Given<'_>) -> Result<(), Error> {
        let communicator = call.signature.communicator;
        let control = self.endpoint.control();
        control.record_call(&call.signature);
        check_abort(control, communicator)?;
        if call.shape.ranks() == 1 {
            return Ok(());
        }
        let operations = &mut self.operations;
        let staged = operations.prepare(&mut self.endpoint, &mut call)?;
        let result = reserve(&mut self.endpoint, &mut self.staging, staged).and_then(|()| {
            let staging = self.staging.as_mut().zip(staged);
            let staging = staging.map(|(region, bytes)| &mut region[..bytes]);
            operations.run_with(&mut self.endpoint, &mut call, given, staging)
        });
        if let Err(error) = &result {
            report(self.endpoint.control(), communicator, error);
        }
        result
    }
}

/// Makes sure that there is memory to stage so many bytes.
fn reserve(
    endpoint: &mut Endpoint,
    staging: &mut Option<Region>,
    bytes: Option<usize>,
) -> Result<(), Error> {
    let Some(bytes) = bytes else { return Ok(()) };
    let there = staging.as_ref().map_or(0, Region::len);
    if bytes > there || staging.is_none() {
        // The old one first: both at once might be too much.
        *staging = None;
        *staging = Some(endpoint.region(bytes.max(STAGING_LEAST))?);
    }
    Ok(())
}

/// Opens the memory for the links for as long as `work` runs.
fn with_memory<R>(
    endpoint: &mut Endpoint,
    memory: Option<Memory<'_>>,
    register: bool,
    work: impl FnOnce(&mut Endpoint, Option<BufferId>) -> Result<R, Error>,
) -> Result<R, Error> {
    match memory {
        None => work(endpoint, None),
        Some(memory) => {
            endpoint.scope(memory, register, |endpoint, buffer| work(endpoint, Some(buffer)))?
        }
    }
}

/// Tells everybody of an error that they could not notice by themselves.
fn report(control: &Control, communicator: u64, error: &Error) {
    let kind = match error {
        Error::Transport(TransportError::Aborted(_)) => return,
        other => AbortKind::Application { reason: chain(other) },
    };
    let origin = control.rank();
    control.abort(AbortCause { scope: AbortScope::Communicator(communicator), origin, kind });
}

/// An error and its sources in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

fn check_abort(control: &Control, communicator: u64) -> Result<(), Error> {
    if !control.is_aborted() {
        return Ok(());
    }
    match control.abort_cause(communicator) {
        Some(cause) => Err(TransportError::Aborted(cause).into()),
        None => Ok(()),
    }
}

impl Operations {
    /// Gets the schedule and the executor ready; gives the bytes that have to be staged, if any.
    fn prepare(
        &mut self,
        endpoint: &mut Endpoint,
        call: &mut Call<'_>,
    ) -> Result<Option<usize>, Error> {
        let rank = endpoint.rank();
        self.schedule.fill(call.algorithm, call.shape, rank)?;
        self.schedule.retain(|step| call.exists(step.block));
        self.executor.start(&self.schedule, call.pacing)?;
        self.grants.clear();
        self.refused.clear();
        self.ungranted.clear();
        self.senders.clear();
        self.uncounted.clear();
        self.granting.clear();
        for step in self.schedule.steps().iter().filter(|step| step.direction == Direction::Send) {
            if !call.is_eager(call.part_of(step.block))
                && let Err(place) = self.granting.binary_search(&step.peer)
            {
                self.granting.insert(place, step.peer);
            }
        }
        for &peer in self.schedule.send_peers() {
            if self.granting.binary_search(&peer).is_err() {
                self.executor.granted(peer)?;
            }
        }
        for &peer in self.schedule.recv_peers().iter().chain(self.schedule.send_peers()) {
            endpoint.connect(peer)?;
        }
        if let Some(trace) = &mut call.trace {
            trace.begin();
        }
        let staged = self.places.staged_bytes(call, &self.schedule);
        staged.map(usize::try_from).transpose().map_err(|_| {
            TransportError::Invalid("too many bytes to be passed on by one rank".into()).into()
        })
    }

    fn run_with(
        &mut self,
        endpoint: &mut Endpoint,
        call: &mut Call<'_>,
        given: Given<'_>,
        staging: Option<&mut [u8]>,
    ) -> Result<(), Error> {
        let Given { source, target } = given;
        let parts = 0..call.layout.parts();
        // Blocks move by the device, messages do not.
        let register = parts.into_iter().any(|part| !call.is_eager(part));
        let source = source.map(Memory::Read);
        with_memory(endpoint, source, register, |endpoint, source| {
            let target = target.map(Memory::Write);
            with_memory(endpoint, target, register, |endpoint, target| {
                let staging = staging.map(Memory::Write);
                with_memory(endpoint, staging, register, |endpoint, staging| {
                    self.run(endpoint, call, Buffers { source, target, staging })
                })
            })
        })
    }

    fn run(
        &mut self,
        endpoint: &mut Endpoint,
        call: &mut Call<'_>,
        buffers: Buffers,
    ) -> Result<(), Error> {
        self.places.open(endpoint, call, self.schedule.rank(), buffers)?;
        for step in self.schedule.steps().iter().filter(|step| step.direction == Direction::Recv) {
            let Some((index, section)) = self.places.of_part(call.part_of(step.block)) else {
                continue;
            };
            let wanted = (step.peer, index);
            if section.handle.is_some() && !self.ungranted.contains(&wanted) {
                self.ungranted.push(wanted);
            }
        }
        let mut run =
            Run { call, began: Instant::now(), published: false, warnings: 0, broken: None };
        self.take_unexpected(endpoint, &mut run)?;
        let mut idle = Idle::new();
        let result = loop {
            match self.advance(endpoint, &mut run, &mut idle) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        endpoint.busy(&mut idle);
        result
    }

    /// One turn: grants, sends, events; then a look at the clock and a wait if nothing moved.
    fn advance(
        &mut self,
        endpoint: &mut Endpoint,
        run: &mut Run<'_, '_>,
        idle: &mut Idle,
    ) -> Result<bool, Error> {
        self.send_grants(endpoint, run)?;
        self.send_counts(endpoint, run)?;
        self.send_blocks(endpoint, run)?;
        endpoint.flush()?;
        if self.executor.is_done() && self.ungranted.is_empty() && endpoint.is_flushed() {
            return Ok(true);
        }
        let moved = endpoint.poll()?;
        while let Some(notice) = endpoint.next_event() {
            self.take(endpoint, run, notice)?;
        }
        check_abort(endpoint.control(), run.call.signature.communicator)?;
        if moved {
            endpoint.busy(idle);
            return Ok(false);
        }
        let until = self.look_at_clock(endpoint, run)?;
        endpoint.idle(idle, until)?;
        Ok(false)
    }

    fn send_grants(&mut self, endpoint: &mut Endpoint, run: &mut Run<'_, '_>) -> Result<(), Error> {
        // Only there no sender waits for what this rank has to send it first.
        let most = match run.call.shape.operation() {
            Operation::Gather => SENDERS_MOST,
            _ => usize::MAX,
        };
        let mut next = 0;
        while let Some(&(peer, index)) = self.ungranted.get(next) {
            let is_new = most < usize::MAX && !self.senders.contains(&peer);
            let Some(section) = self.places.get(index) else { break };
            let Some(handle) = section.handle else { break };
            let may_send = !(is_new && self.senders.len() >= most) && endpoint.is_up(peer);
            let signature = &run.call.signature;
            let sent = may_send
                && endpoint.send_grant(peer, signature, handle, section.first_part)?
                    == Posting::Posted;
            if sent {
                self.ungranted.remove(next);
                if is_new {
                    self.senders.push(peer);
                }
                note(run, TraceKind::GrantSent, peer, 0);
            } else {
                next += 1;
            }
        }
        Ok(())
    }

    /// Whoever waits in an operation whose counts not everybody knows tells its own to whom it waits for.
    fn send_counts(&mut self, endpoint: &mut Endpoint, run: &Run<'_, '_>) -> Result<(), Error> {
        let (call, rank) = (&*run.call, endpoint.rank());
        let mut next = 0;
        while let Some(&peer) = self.uncounted.get(next) {
            let part = if rank == call.shape.root() { peer } else { rank };
            let range = call.layout.part_range(part);
            let bytes = range.end - range.start;
            // A link that is still being made is waited for: nothing else may ever cross it.
            let sent = endpoint.is_up(peer)
                && endpoint.send_count(peer, &call.signature, part, bytes)? == Posting::Posted;
            if sent {
                self.uncounted.swap_remove(next);
            } else {
                next += 1;
            }
        }
        Ok(())
    }

    fn send_blocks(&mut self, endpoint: &mut Endpoint, run: &mut Run<'_, '_>) -> Result<(), Error> {
        let mut next = 0;
        while let Some(&send) = self.refused.get(next) {
            if self.send(endpoint, run, send)? {
                self.refused.remove(next);
            } else {
                next += 1;
            }
        }
        loop {
            let Self { executor, refused, .. } = self;
            let may_send =
                |peer| endpoint.is_up(peer) && !refused.iter().any(|send: &Send| send.peer == peer);
            let Some(send) = executor.next_send(may_send) else { return Ok(()) };
            if !self.send(endpoint, run, send)? {
                self.refused.push(send);
            }
        }
    }

    /// Hands one block to its link; false if the link has no room.
    fn send(
        &mut self,
        endpoint: &mut Endpoint,
        run: &mut Run<'_, '_>,
        send: Send,
    ) -> Result<bool, Error> {
        let call = &*run.call;
        let Send { peer, block, .. } = send;
        let part = call.part_of(block);
        // The executor sends what the rank holds, and that has its place.
        let Some((_, section)) = self.places.of_part(part) else { return Ok(false) };
        if call.is_eager(part) {
            let range = section.layout.part_range(part - section.first_part);
            let range = section.offset + range.start..section.offset + range.end;
            let posting =
                endpoint.send_message(peer, &call.signature, part, section.buffer, range)?;
            if posting == Posting::Full {
                return Ok(false);
            }
            note(run, TraceKind::SendPosted, peer, block);
            self.executor.sent(peer, block)?;
            note(run, TraceKind::Sent, peer, block);
            return Ok(true);
        }
        let covers =
            |grant: &Grant| (grant.first_part..grant.first_part + grant.parts).contains(&part);
        let grant = self.grants.iter().find(|(from, grant)| *from == peer && covers(grant));
        // Of several grants of a peer this one may be on its way.
        let Some((_, grant)) = grant else { return Ok(false) };
        let blocks = call.shape.blocks();
        let own = section.layout.block_range(block - section.first_part * blocks);
        let theirs = call.layout.slice(grant.first_part, grant.parts);
        let number = block - grant.first_part * blocks;
        let (Some(own), Some(theirs)) = (own, theirs.and_then(|all| all.block_range(number)))
        else {
            return Ok(false);
        };
        let range = section.offset + own.start..section.offset + own.end;
        let posting =
            endpoint.send_block(peer, grant, number, section.buffer, range, theirs.start, block)?;
        if posting == Posting::Full {
            return Ok(false);
        }
        note(run, TraceKind::SendPosted, peer, block);
        Ok(true)
    }

    fn take(
        &mut self,
        endpoint: &mut Endpoint,
        run: &mut Run<'_, '_>,
        notice: Notice,
    ) -> Result<(), Error> {
        match notice {
            Notice::Message { slot } => self.take_message(endpoint, run, slot),
            Notice::Block { peer, handle, block } => {
                let section = self.places.of_handle(handle);
                if let Some(first) = section.map(|section| section.first_part) {
                    let block = first * run.call.shape.blocks() + block;
                    self.executor.arrived(peer, block)?;
                    if self.executor.blocks_missing_from(peer) == 0 {
                        self.senders.retain(|sender| *sender != peer);
                    }
                    note(run, TraceKind::Arrived, peer, block);
                }
                Ok(())
            }
            Notice::Sent { peer, token, .. } => {
                self.executor.sent(peer, token)?;
                note(run, TraceKind::Sent, peer, token);
                Ok(())
            }
            Notice::Broken { peer } => {
                let until = Instant::now() + BREAK_GRACE;
                run.broken.get_or_insert((peer, until));
                Ok(())
            }
        }
    }

    /// Messages that came before this rank made the call.
    fn take_unexpected(
        &mut self,
        endpoint: &mut Endpoint,
        run: &mut Run<'_, '_>,
    ) -> Result<(), Error> {
        let (communicator, number) = (run.call.signature.communicator, run.call.signature.number);
        let mut next = 0;
        while let Some((slot, signature)) = self.unexpected.get(next) {
            if signature.communicator == communicator && signature.number == number {
                let slot = *slot;
                self.unexpected.remove(next);
                self.take_message(endpoint, run, slot)?;
            } else {
                next += 1;
            }
        }
        Ok(())
    }

    fn take_message(
        &mut self,
        endpoint: &mut Endpoint,
        run: &mut Run<'_, '_>,
        slot: Slot,
    ) -> Result<(), Error> {
        let rank = endpoint.rank();
        let broke = |what: String| TransportError::Protocol { rank, peer: slot.peer, what };
        let (header, payload) = endpoint.message(slot)?;
        let theirs = header.signature();
        let ours = run.call.signature;
        if theirs.communicator != ours.communicator || theirs.number > ours.number {
            let kept = endpoint.keep(slot)?;
            self.unexpected.push((kept, theirs));
            return Ok(());
        }
        if theirs.number < ours.number {
            endpoint.release(slot);
            return match endpoint.control().recorded_call(theirs.communicator, theirs.number) {
                Some(called) if called != theirs => {
                    mismatch(endpoint.control(), called, slot.peer, theirs)
                }
                _ => Ok(()),
            };
        }
        if theirs != ours {
            endpoint.release(slot);
            return mismatch(endpoint.control(), ours, slot.peer, theirs);
        }
        match header.kind().map_err(|error| broke(error.to_string()))? {
            MessageKind::Grant => {
                let grant = Grant::read(payload).map_err(|error| broke(error.to_string()))?;
                endpoint.release(slot);
                let layout = run.call.layout.slice(grant.first_part, grant.parts);
                let expected = layout
                    .map(|layout| layout.bytes())
                    .ok_or_else(|| broke("it granted parts that do not exist".into()))?;
                if grant.bytes != expected {
                    return Err(self.other_count(run, rank, slot.peer, expected, grant.bytes));
                }
                if !self.grants.iter().any(|(peer, _)| *peer == slot.peer) {
                    self.executor.granted(slot.peer)?;
                }
                self.grants.push((slot.peer, grant));
                note(run, TraceKind::Granted, slot.peer, 0);
            }
            MessageKind::Count => {
                let (part, theirs) =
                    CountBody::read(payload).map_err(|error| broke(error.to_string()))?;
                endpoint.release(slot);
                let range = run.call.layout.part_range(part);
                if theirs != range.end - range.start {
                    let ours = range.end - range.start;
                    return Err(self.other_count(run, rank, slot.peer, ours, theirs));
                }
            }
            MessageKind::Ready | MessageKind::Credit => {
                return Err(broke("a credit that nobody waits for".into()).into());
            }
            MessageKind::Eager => {
                let (part, bytes) = (header.block(), payload.len() as u64);
                let place = self.places.of_part(part).map(|(_, section)| section);
                let Some(section) = place.filter(|_| part < run.call.layout.parts()) else {
                    return Err(broke(format!("an eager message of part {part}")).into());
                };
                let range = section.layout.part_range(part - section.first_part);
                let expected = range.end - range.start;
                if !run.call.is_eager(part) || bytes != expected {
                    endpoint.release(slot);
                    return Err(self.other_count(run, rank, slot.peer, expected, bytes));
                }
                let (buffer, offset) = (section.buffer, section.offset + range.start);
                let block = part * run.call.shape.blocks();
                // Before anything is copied: a block that is not expected may not overwrite one.
                if self.executor.arrived(slot.peer, block)? == Arrival::New {
                    endpoint.copy_message(slot, buffer, offset)?;
                }
                endpoint.release(slot);
                note(run, TraceKind::Arrived, slot.peer, block);
            }
        }
        Ok(())
    }

    /// The peer has another count for a part than this rank.
    fn other_count(
        &self,
        run: &Run<'_, '_>,
        rank: Rank,
        peer: Rank,
        ours: u64,
        theirs: u64,
    ) -> Error {
        Error::OtherCount { call: run.call.signature, rank, ours, peer, theirs }
    }
}

fn note(run: &mut Run<'_, '_>, kind: TraceKind, peer: Rank, block: u32) {
    if let Some(trace) = &mut run.call.trace {
        trace.note(kind, peer, block);
    }
}

fn mismatch(
    control: &Control,
    ours: Signature,
    peer: Rank,
    theirs: Signature,
) -> Result<(), Error> {
    let mut calls = [(control.rank(), ours), (peer, theirs)];
    calls.sort_by_key(|(rank, _)| *rank);
    let [(first, first_call), (second, second_call)] = calls;
    let scope = AbortScope::Communicator(ours.communicator);
    let kind = AbortKind::Mismatch { first, first_call, second, second_call };
    let cause = AbortCause { scope, origin: control.rank(), kind };
    control.abort(cause.clone());
    let cause = control.abort_cause(ours.communicator).unwrap_or(cause);
    Err(TransportError::Aborted(cause).into())
}
