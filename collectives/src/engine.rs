//! Drives operations over an endpoint: matching, grants, blocks, waiting, and an end in any case.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use verbcast_transport::control::{AbortCause, AbortKind, AbortScope, Control};
use verbcast_transport::endpoint::{BufferId, Endpoint, Idle, Notice};
use verbcast_transport::error::Error as TransportError;
use verbcast_transport::link::{Posting, Slot};
use verbcast_transport::memory::Memory;
use verbcast_transport::wire::{Grant, MessageKind, Signature};

use crate::error::Error;
use crate::executor::{Executor, Pacing, Send};
use crate::schedule::{Algorithm, Rank, RankSchedule, Shape};
use crate::trace::{Trace, TraceKind};

/// After this long in one call a rank publishes what it called, so that ranks which called
/// something else find out although no message between them meets.
const PUBLISH_AFTER: Duration = Duration::from_millis(100);

/// After this long, and again each time as long, a warning names the ranks that have not come.
const WARN_AFTER: Duration = Duration::from_secs(60);

/// How long a rank whose link broke waits for the control plane to say why: the death of the peer
/// is the better news than the error of its queue pair.
const BREAK_GRACE: Duration = Duration::from_millis(500);

/// The longest sleep between two looks at the clock.
const NAP: Duration = Duration::from_secs(1);

/// One operation as the caller asked for it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) signature: Signature,
    pub(crate) algorithm: Algorithm,
    pub(crate) shape: Shape,
    /// The whole message travels in message slots.
    pub(crate) eager: bool,
    pub(crate) pacing: Pacing,
    pub(crate) deadline: Option<Duration>,
    pub(crate) trace: Option<&'a mut Trace>,
}

/// An endpoint and the operations on it.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) endpoint: Endpoint,
    operations: Operations,
}

/// The state of operations; its storage is used again by the next one.
#[derive(Debug, Default)]
struct Operations {
    /// Next operation number, by communicator.
    numbers: HashMap<u32, u64>,
    /// Messages of operations that this rank has not called yet, oldest first; bounded by each
    /// communicator's window of messages.
    unexpected: Vec<(Slot, Signature)>,
    schedule: RankSchedule,
    executor: Executor,
    /// Peers' buffers in the running operation.
    grants: Vec<(Rank, Grant)>,
    /// Peers that still need this rank's grant.
    ungranted: Vec<Rank>,
    /// Sends that a link had no room for, at most one per peer.
    refused: Vec<Send>,
}

/// Where a running operation stands.
struct Run<'a, 'b> {
    call: &'a mut Call<'b>,
    buffer: BufferId,
    handle: Option<u16>,
    began: Instant,
    published: bool,
    warnings: u32,
    broken: Option<(Rank, Instant)>,
}

impl Engine {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, operations: Operations::default() }
    }

    /// The number of the next operation on `communicator`; counts it.
    pub(crate) fn take_number(&mut self, communicator: u32) -> u64 {
        let number = self.operations.numbers.entry(communicator).or_default();
        *number += 1;
        *number - 1
    }

    /// Runs a broadcast: the schedule's root sends `memory`, every other rank fills it.
    pub(crate) fn broadcast(
        &mut self,
        mut call: Call<'_>,
        memory: Memory<'_>,
    ) -> Result<(), Error> {
        let communicator = call.signature.communicator;
        let control = self.endpoint.control();
        control.record_call(&call.signature);
        check_abort(control, communicator)?;
        if call.shape.ranks() == 1 {
            return Ok(());
        }
        let operations = &mut self.operations;
        operations.prepare(&mut self.endpoint, &mut call)?;
        let register = !call.eager;
        let result = self
            .endpoint
            .scope(memory, register, |endpoint, buffer| operations.run(endpoint, &mut call, buffer))
            .map_err(Error::from)
            .and_then(|result| result);
        if let Err(error) = &result {
            report(self.endpoint.control(), communicator, error);
        }
        result
    }
}

/// Tells everybody of an error that they could not notice by themselves.
fn report(control: &Control, communicator: u32, error: &Error) {
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

fn check_abort(control: &Control, communicator: u32) -> Result<(), Error> {
    if !control.is_aborted() {
        return Ok(());
    }
    match control.abort_cause(communicator) {
        Some(cause) => Err(TransportError::Aborted(cause).into()),
        None => Ok(()),
    }
}

impl Operations {
    fn prepare(&mut self, endpoint: &mut Endpoint, call: &mut Call<'_>) -> Result<(), Error> {
        let rank = endpoint.rank();
        self.schedule.fill(call.algorithm, call.shape, rank)?;
        self.executor.start(&self.schedule, call.pacing)?;
        self.grants.clear();
        self.refused.clear();
        self.ungranted.clear();
        if call.eager {
            for &peer in self.schedule.send_peers() {
                self.executor.granted(peer)?;
            }
        } else {
            self.ungranted.extend_from_slice(self.schedule.recv_peers());
        }
        for &peer in self.schedule.recv_peers().iter().chain(self.schedule.send_peers()) {
            endpoint.connect(peer)?;
        }
        if let Some(trace) = &mut call.trace {
            trace.begin();
        }
        Ok(())
    }

    fn run(
        &mut self,
        endpoint: &mut Endpoint,
        call: &mut Call<'_>,
        buffer: BufferId,
    ) -> Result<(), Error> {
        let is_root = endpoint.rank() == call.shape.root();
        let handle = if is_root || call.eager {
            None
        } else {
            Some(endpoint.open_receive(buffer, call.signature.block_bytes)?)
        };
        let mut run = Run {
            call,
            buffer,
            handle,
            began: Instant::now(),
            published: false,
            warnings: 0,
            broken: None,
        };
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
        let Some(handle) = run.handle else { return Ok(()) };
        let mut next = 0;
        while let Some(&peer) = self.ungranted.get(next) {
            let sent = endpoint.is_up(peer)
                && endpoint.send_grant(peer, &run.call.signature, handle)? == Posting::Posted;
            if sent {
                self.ungranted.swap_remove(next);
                note(run, TraceKind::GrantSent, peer, 0);
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
        let signature = &run.call.signature;
        let Send { peer, block, .. } = send;
        let start = u64::from(block) * signature.block_bytes;
        let range = start..start.saturating_add(signature.block_bytes).min(signature.bytes);
        if run.call.eager {
            let posting = endpoint.send_message(peer, signature, block, run.buffer, range)?;
            if posting == Posting::Full {
                return Ok(false);
            }
            note(run, TraceKind::SendPosted, peer, block);
            self.executor.sent(peer, block)?;
            note(run, TraceKind::Sent, peer, block);
            return Ok(true);
        }
        let grant = self.grants.iter().find(|(from, _)| *from == peer).map(|(_, grant)| grant);
        // The executor sends only to peers that granted.
        let Some(grant) = grant else { return Ok(false) };
        let posting = endpoint.send_block(peer, grant, block, run.buffer, range, start, block)?;
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
                if run.handle == Some(handle) {
                    self.executor.arrived(peer, block)?;
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
                if grant.bytes != ours.bytes {
                    return Err(broke(format!("it granted {} bytes", grant.bytes)).into());
                }
                endpoint.release(slot);
                self.executor.granted(slot.peer)?;
                self.grants.push((slot.peer, grant));
                note(run, TraceKind::Granted, slot.peer, 0);
            }
            MessageKind::Ready | MessageKind::Credit => {
                return Err(broke("a credit that nobody waits for".into()).into());
            }
            MessageKind::Eager => {
                let (block, bytes) = (header.block(), payload.len() as u64);
                if !run.call.eager || bytes != ours.bytes {
                    return Err(broke(format!("an eager message of {bytes} bytes")).into());
                }
                self.executor.arrived(slot.peer, block)?;
                endpoint.copy_message(slot, run.buffer, 0)?;
                endpoint.release(slot);
                note(run, TraceKind::Arrived, slot.peer, block);
            }
        }
        Ok(())
    }

    /// Deadline, broken links, failed set-ups, publication and warning; until when to sleep.
    fn look_at_clock(
        &mut self,
        endpoint: &mut Endpoint,
        run: &mut Run<'_, '_>,
    ) -> Result<Instant, Error> {
        let now = Instant::now();
        let waited = now - run.began;
        let mut until = now + NAP;
        if let Some((peer, grace)) = run.broken {
            if now >= grace {
                let reason = endpoint.break_reason(peer);
                return Err(abort_with(endpoint, run, AbortKind::Link { peer, reason }));
            }
            until = until.min(grace);
        }
        for missing in self.executor.missing_peers() {
            if let Some(reason) = endpoint.link_failure(missing.peer) {
                let kind = AbortKind::Link { peer: missing.peer, reason };
                return Err(abort_with(endpoint, run, kind));
            }
        }
        if let Some(deadline) = run.call.deadline {
            if waited >= deadline {
                return Err(self.give_up(endpoint, run, waited));
            }
            until = until.min(run.began + deadline);
        }
        if !run.published {
            if waited >= PUBLISH_AFTER {
                run.published = true;
                endpoint.control().publish_call(&run.call.signature);
            } else {
                until = until.min(run.began + PUBLISH_AFTER);
            }
        }
        if waited >= WARN_AFTER * (run.warnings + 1) {
            run.warnings += 1;
            let missing = ranks(self.executor.missing_peers().map(|missing| missing.peer));
            tracing::warn!(
                rank = endpoint.rank(),
                seconds = waited.as_secs(),
                "{} still waits for rank(s) {missing}",
                run.call.signature
            );
        }
        Ok(until)
    }

    fn give_up(&self, endpoint: &Endpoint, run: &Run<'_, '_>, waited: Duration) -> Error {
        let missing: Vec<Rank> =
            self.executor.missing_peers().map(|missing| missing.peer).collect();
        let call = run.call.signature;
        let after_ms = waited.as_millis() as u64;
        let error = TransportError::Deadline {
            rank: endpoint.rank(),
            after_ms,
            call,
            missing: ranks(missing.iter().copied()),
        };
        let scope = AbortScope::Communicator(call.communicator);
        let kind = AbortKind::Deadline { call, after_ms, missing };
        endpoint.control().abort(AbortCause { scope, origin: endpoint.rank(), kind });
        error.into()
    }
}

fn note(run: &mut Run<'_, '_>, kind: TraceKind, peer: Rank, block: u32) {
    if let Some(trace) = &mut run.call.trace {
        trace.note(kind, peer, block);
    }
}

fn ranks(ranks: impl Iterator<Item = Rank>) -> String {
    ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
}

/// Aborts the communicator; the error is the cause that won, which may be another's.
fn abort_with(endpoint: &Endpoint, run: &Run<'_, '_>, kind: AbortKind) -> Error {
    let communicator = run.call.signature.communicator;
    let scope = AbortScope::Communicator(communicator);
    let cause = AbortCause { scope, origin: endpoint.rank(), kind };
    let control = endpoint.control();
    control.abort(cause.clone());
    TransportError::Aborted(control.abort_cause(communicator).unwrap_or(cause)).into()
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
