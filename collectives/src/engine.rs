//! Drives operations over an endpoint: matching, grants, blocks, waiting, and an end in any case.
//!
//! An operation is *started*, which gives it its number on its communicator; from then on whoever
//! drives the engine ([`Shared::wait`]) drives all operations that run. Messages find their
//! operation by communicator and number, blocks by the handle of their receive, completions by
//! their buffer.

mod clock;
mod incoming;
mod operation;
mod places;
mod shared;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use verbcast_transport::control::{AbortCause, AbortKind, AbortScope, Control};
use verbcast_transport::endpoint::{BufferId, Endpoint};
use verbcast_transport::error::Error as TransportError;
use verbcast_transport::link::Slot;
use verbcast_transport::memory::{Owned, Region};
use verbcast_transport::wire::{Rank, Signature};

pub(crate) use operation::{Call, Opened, OwnPart, Returned};
use operation::{Operation, Phase, State};
pub(crate) use shared::Shared;

use crate::error::Error;
use crate::trace::Trace;

/// How long a rank whose link broke waits for the control plane to say why: the death of the peer
/// is the better news than the error of its queue pair.
const BREAK_GRACE: Duration = Duration::from_millis(500);

/// How long an operation that failed waits for peers to say that they write into its memory no more;
/// links over which they still could are ended then.
const ENDING_WITHIN: Duration = Duration::from_millis(500);

/// The least memory that is kept for staging, in bytes.
const STAGING_LEAST: usize = 1 << 20;

/// Regions for staging that are kept for the next operations.
const STAGING_KEPT: usize = 4;

/// Operations of one communicator that run at a time; those started beyond wait for older ones.
const RUNNING_MOST: usize = 32;

/// Ended communicators that are remembered, so that late messages of theirs are dropped.
const ENDED_KEPT: usize = 4096;

/// Names an operation of an [`Engine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationId {
    index: usize,
    generation: u64,
}

/// How an operation ended, and what comes back.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<(), Error>,
    pub(crate) returned: Returned,
    pub(crate) trace: Option<Trace>,
}

/// An endpoint and the operations on it.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) endpoint: Endpoint,
    operations: Vec<(u64, Option<Operation>)>,
    /// Places in `operations` of those that are queued or run, in the order of their starts.
    active: Vec<usize>,
    /// Places of those that have failed, and whose memory links may still touch.
    ending: Vec<usize>,
    spare: Vec<State>,
    communicators: HashMap<u64, Numbers>,
    /// Messages of operations that this rank has not started yet, oldest first; bounded by each
    /// communicator's window of messages.
    unexpected: Vec<(Slot, Signature)>,
    /// Communicators that have ended here, oldest first.
    ended: VecDeque<u64>,
    /// For what is only passed on; kept, and made larger when that does not fit.
    staging: Vec<Region>,
    /// How many operations have ended.
    ends: u64,
    /// A thread drives the engine; it may have given way for a moment.
    is_driven: bool,
    /// Threads that sleep until the one that drives tells them.
    parked: u32,
    /// How often they were told.
    told: u64,
}

/// The operations of a communicator, by their numbers.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    running: usize,
    queued: usize,
}

impl Engine {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            operations: Vec::new(),
            active: Vec::new(),
            ending: Vec::new(),
            spare: Vec::new(),
            communicators: HashMap::new(),
            unexpected: Vec::new(),
            ended: VecDeque::new(),
            staging: Vec::new(),
            ends: 0,
            is_driven: false,
            parked: 0,
            told: 0,
        }
    }

    /// From now on calls on this communicator are known; its operations are numbered from 0.
    pub(crate) fn add_communicator(&mut self, communicator: u64) {
        self.communicators.entry(communicator).or_default();
    }

    /// No more calls on this communicator: what comes for it is dropped.
    pub(crate) fn forget_communicator(&mut self, communicator: u64) {
        self.communicators.remove(&communicator);
        if self.ended.len() == ENDED_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(communicator);
        let Self { unexpected, endpoint, .. } = self;
        unexpected.retain(|(slot, signature)| {
            let stays = signature.communicator != communicator;
            if !stays {
                endpoint.release(*slot);
            }
            stays
        });
        self.endpoint.forget_communicator(communicator);
    }

    /// Whether operations of the communicator may be started.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, communicator: u64) -> Result<(), Error> {
        check_abort(self.endpoint.control(), communicator)
    }

    /// Makes an operation of these buffers, which it closes in the end; it is not started.
    ///
    /// # Errors
    /// The call cannot be carried out; the buffers are still open.
    pub(crate) fn prepare(
        &mut self,
        call: Call,
        opened: Opened,
        is_persistent: bool,
    ) -> Result<OperationId, Error> {
        let state = self.spare.pop().unwrap_or_default();
        let register = call.has_blocks();
        let (mut operation, staged) = Operation::new(&mut self.endpoint, call, state)?;
        if let Some(bytes) = staged {
            operation.staging = Some(self.open_staging(bytes, register)?);
        }
        operation.opened = opened;
        operation.is_persistent = is_persistent;
        let free = self.operations.iter().position(|(_, operation)| operation.is_none());
        let index = free.unwrap_or_else(|| {
            self.operations.push((0, None));
            self.operations.len() - 1
        });
        let (generation, place) = &mut self.operations[index];
        *generation += 1;
        *place = Some(operation);
        Ok(OperationId { index, generation: *generation })
    }

    /// Memory that the operation was given and does not need comes back with the rest.
    pub(crate) fn keep_unused(&mut self, id: OperationId, unused: Returned) {
        if let Some(operation) = &mut self.operations[id.index].1 {
            operation.returned = unused;
        }
    }

    /// The open buffers of an operation.
    pub(crate) fn opened(&self, id: OperationId) -> Opened {
        self.get(id).map(|operation| operation.opened).unwrap_or_default()
    }

    fn open_staging(&mut self, bytes: usize, register: bool) -> Result<BufferId, Error> {
        let fits = self.staging.iter().position(|region| region.len() >= bytes);
        let region = match fits {
            Some(place) => self.staging.swap_remove(place),
            None => {
                // A smaller one first: both at once might be too much.
                self.staging.pop();
                self.endpoint.region(bytes.max(STAGING_LEAST))?
            }
        };
        let opened = self.endpoint.open_owned(region, register);
        opened.map_err(|refused| {
            let refused = *refused;
            self.keep_staging(Some(refused.memory));
            refused.error.into()
        })
    }

    fn keep_staging(&mut self, memory: Option<Owned>) {
        let region = memory.and_then(|memory| memory.into_region().ok());
        if self.staging.len() < STAGING_KEPT {
            self.staging.extend(region);
        }
    }

    /// Starts a prepared operation: it has its number on its communicator from now on.
    ///
    /// # Errors
    /// The communicator has failed, or the memory is not free for it; nothing was started, nor a
    /// number taken. Whatever goes wrong later is the operation's result.
    pub(crate) fn start(&mut self, id: OperationId, trace: Option<Trace>) -> Result<(), Error> {
        let (generation, Some(operation)) = &mut self.operations[id.index] else {
            return Err(Error::NotStarted { reason: "it is gone" });
        };
        match operation.phase {
            Phase::Resting if *generation == id.generation => {}
            Phase::Ended(Ok(())) if operation.is_persistent => {}
            Phase::Ended(_) => return Err(Error::NotStarted { reason: "it has failed before" }),
            _ => return Err(Error::NotStarted { reason: "it has not ended yet" }),
        }
        let communicator = operation.call.signature.communicator;
        check_abort(self.endpoint.control(), communicator)?;
        let Opened { send, recv } = operation.opened;
        for buffer in [send, recv].into_iter().flatten() {
            self.endpoint.check_free(buffer)?;
        }
        let numbers = self.communicators.entry(communicator).or_default();
        operation.call.signature.number = numbers.next;
        numbers.next += 1;
        operation.phase = Phase::Queued;
        operation.began = Instant::now();
        operation.published = false;
        operation.counted = false;
        operation.warnings = 0;
        operation.broken = None;
        operation.trace = trace;
        if let Some(trace) = &mut operation.trace {
            trace.begin();
        }
        self.endpoint.control().record_call(&operation.call.signature);
        self.active.push(id.index);
        numbers.queued += 1;
        self.activate(communicator);
        Ok(())
    }

    /// Lets queued operations of the communicator run, oldest first.
    fn activate(&mut self, communicator: u64) {
        loop {
            let Some(numbers) = self.communicators.get_mut(&communicator) else { return };
            if numbers.queued == 0 || numbers.running >= RUNNING_MOST {
                return;
            }
            let is_next = |index: &&usize| {
                self.operations[**index].1.as_ref().is_some_and(|operation| {
                    matches!(operation.phase, Phase::Queued)
                        && operation.call.signature.communicator == communicator
                })
            };
            let next = self.active.iter().find(is_next).copied();
            let Some(index) = next else { return };
            let is_first = numbers.running == 0;
            let Some(operation) = &mut self.operations[index].1 else { return };
            // One that runs alone is told what is missing; else receives will be free later.
            let receives = operation.state.places.receives_most();
            let runs_any = self.communicators.values().any(|numbers| numbers.running > 0);
            if runs_any && operation.starts == 0 && self.endpoint.receives_free() < receives {
                return;
            }
            operation.is_oldest = is_first;
            let result = operation.activate(&mut self.endpoint);
            if let Some(numbers) = self.communicators.get_mut(&communicator) {
                numbers.queued -= 1;
                numbers.running += 1;
            }
            match result.and_then(|()| self.take_unexpected(index)) {
                Ok(()) => {}
                Err(error) => self.end(index, Err(error)),
            }
        }
    }

    /// Whether the operation has ended.
    pub(crate) fn is_ended(&self, id: OperationId) -> bool {
        self.get(id).is_none_or(|operation| matches!(operation.phase, Phase::Ended(_)))
    }

    /// Whether nothing is under way for the operation: it has ended, or it was not started.
    fn is_over(&self, id: OperationId) -> bool {
        self.get(id)
            .is_none_or(|operation| matches!(operation.phase, Phase::Ended(_) | Phase::Resting))
    }

    fn get(&self, id: OperationId) -> Option<&Operation> {
        let (generation, operation) = self.operations.get(id.index)?;
        operation.as_ref().filter(|_| *generation == id.generation)
    }

    /// How the last start of a persistent operation ended; it can be started again if that was well.
    pub(crate) fn take_result(&mut self, id: OperationId) -> Result<(), Error> {
        let (generation, Some(operation)) = &mut self.operations[id.index] else {
            return Err(Error::NotStarted { reason: "it is gone" });
        };
        if *generation != id.generation {
            return Err(Error::NotStarted { reason: "it is gone" });
        }
        let failed = Phase::Ended(Err(Error::NotStarted { reason: "it has failed before" }));
        match std::mem::replace(&mut operation.phase, failed) {
            Phase::Ended(Ok(())) => {
                operation.phase = Phase::Resting;
                Ok(())
            }
            Phase::Ended(Err(error)) => Err(error),
            other => {
                operation.phase = other;
                Err(Error::NotStarted { reason: "it has not ended yet" })
            }
        }
    }

    /// Gives an operation up that has not ended: its end has to be waited for.
    pub(crate) fn give_up(&mut self, id: OperationId) {
        let Some(operation) = self.get(id) else { return };
        if matches!(operation.phase, Phase::Queued | Phase::Running) {
            let call = operation.call.signature;
            let rank = self.endpoint.rank();
            self.end(id.index, Err(Error::Abandoned { call, rank }));
        }
    }

    /// Forgets an operation that does not run; what it owned comes back.
    pub(crate) fn take(&mut self, id: OperationId) -> Outcome {
        let gone = Outcome {
            result: Err(Error::NotStarted { reason: "it is gone" }),
            returned: Returned::default(),
            trace: None,
        };
        self.give_up(id);
        if self.get(id).is_none() {
            return gone;
        }
        self.ending.retain(|index| *index != id.index);
        self.close(id.index);
        let Some(operation) = self.operations[id.index].1.take() else { return gone };
        let Operation { phase, returned, trace, state, .. } = operation;
        self.spare.push(state);
        let result = match phase {
            Phase::Ended(result) => result,
            Phase::Ending(error, _) => Err(error),
            _ => Ok(()),
        };
        Outcome { result, returned, trace }
    }

    /// The operation that uses this buffer, if there is one.
    pub(crate) fn user_of(&self, buffer: BufferId) -> Option<OperationId> {
        let uses = |(_, operation): &(u64, Option<Operation>)| {
            operation.as_ref().is_some_and(|operation| operation.uses(buffer))
        };
        let index = self.operations.iter().position(uses)?;
        Some(OperationId { index, generation: self.operations[index].0 })
    }

    fn end(&mut self, index: usize, result: Result<(), Error>) {
        let Some(operation) = &mut self.operations[index].1 else { return };
        let communicator = operation.call.signature.communicator;
        if let Err(error) = &result {
            report(self.endpoint.control(), communicator, error);
        }
        self.ends += 1;
        let stays_open = operation.is_persistent && result.is_ok();
        let was_running = matches!(operation.phase, Phase::Running);
        let mut is_quiet = true;
        operation.phase = match result {
            Ok(()) => Phase::Ended(Ok(())),
            Err(error) => {
                for buffer in operation.open_buffers() {
                    // It is open, and that is all there is to it.
                    let _withdrawn = self.endpoint.withdraw(buffer);
                    is_quiet &= self.endpoint.is_quiet(buffer);
                }
                match is_quiet {
                    true => Phase::Ended(Err(error)),
                    false => Phase::Ending(error, Instant::now() + ENDING_WITHIN),
                }
            }
        };
        operation.is_oldest = false;
        if let Some(numbers) = self.communicators.get_mut(&communicator) {
            match was_running {
                true => numbers.running -= 1,
                false => numbers.queued -= 1,
            }
        }
        self.active.retain(|other| *other != index);
        match is_quiet {
            true if stays_open => {}
            true => self.close(index),
            false => self.ending.push(index),
        }
        for &index in &self.active {
            if let Some(operation) = &mut self.operations[index].1
                && operation.call.signature.communicator == communicator
            {
                operation.is_oldest = true;
                break;
            }
        }
        self.activate(communicator);
    }

    /// Nothing touches the operation's memory any more.
    fn close(&mut self, index: usize) {
        let Some(operation) = &mut self.operations[index].1 else { return };
        let Opened { send, recv } = std::mem::take(&mut operation.opened);
        let staging = operation.staging.take();
        let mut close = |buffer: Option<BufferId>| {
            buffer.and_then(|buffer| self.endpoint.close(buffer).ok().flatten())
        };
        operation.returned.send = close(send).or(operation.returned.send.take());
        operation.returned.recv = close(recv).or(operation.returned.recv.take());
        let staging = close(staging);
        self.keep_staging(staging);
    }

    /// Ends those that failed, when nothing touches their memory any more.
    fn finish_ending(&mut self) {
        let mut next = 0;
        while let Some(&index) = self.ending.get(next) {
            let Some(operation) = &mut self.operations[index].1 else { return };
            let Phase::Ending(_, until) = operation.phase else { return };
            let is_quiet = operation.open_buffers().all(|buffer| self.endpoint.is_quiet(buffer));
            if !is_quiet && Instant::now() < until {
                next += 1;
                continue;
            }
            self.ending.remove(next);
            self.ends += 1;
            self.close(index);
            if let Some(operation) = &mut self.operations[index].1
                && let Phase::Ending(error, _) =
                    std::mem::replace(&mut operation.phase, Phase::Resting)
            {
                operation.phase = Phase::Ended(Err(error));
            }
        }
    }

    /// One turn of all that run: sends, events, ends. Says whether anything moved.
    pub(crate) fn turn(&mut self) -> bool {
        let mut ended = false;
        let mut next = 0;
        while let Some(&index) = self.active.get(next) {
            let Some(operation) = &mut self.operations[index].1 else { break };
            if !matches!(operation.phase, Phase::Running) {
                next += 1;
                continue;
            }
            match operation.push(&mut self.endpoint) {
                Ok(()) => next += 1,
                // Its operation has failed; why, the control plane is about to say.
                Err(Error::Transport(TransportError::Withdrawn { peer, .. })) => {
                    let until = Instant::now() + BREAK_GRACE;
                    operation.broken.get_or_insert((peer, until));
                    next += 1;
                }
                Err(error) => {
                    self.end(index, Err(error));
                    (ended, next) = (true, 0);
                }
            }
        }
        if let Err(error) = self.endpoint.flush() {
            self.end_all(error);
            return true;
        }
        // Nobody drives the links between calls.
        if self.endpoint.is_flushed() {
            let mut next = 0;
            while let Some(&index) = self.active.get(next) {
                let operation = self.operations[index].1.as_ref();
                let is_done = operation.is_some_and(|operation| {
                    matches!(operation.phase, Phase::Running) && operation.is_done()
                });
                if is_done {
                    self.end(index, Ok(()));
                    ended = true;
                } else {
                    next += 1;
                }
            }
        }
        if ended {
            return true;
        }
        let moved = match self.endpoint.poll() {
            Ok(moved) => moved,
            Err(error) => {
                self.end_all(error);
                return true;
            }
        };
        while let Some(notice) = self.endpoint.next_event() {
            self.take_notice(notice);
        }
        self.finish_ending();
        self.end_aborted() || moved
    }

    /// Ends what belongs to aborted communicators; says whether there was any.
    fn end_aborted(&mut self) -> bool {
        if !self.endpoint.control().is_aborted() {
            return false;
        }
        let (mut any, mut next) = (false, 0);
        while let Some(&index) = self.active.get(next) {
            let Some(operation) = &self.operations[index].1 else { break };
            let communicator = operation.call.signature.communicator;
            match check_abort(self.endpoint.control(), communicator) {
                Ok(()) => next += 1,
                Err(error) => {
                    self.end(index, Err(error));
                    (any, next) = (true, 0);
                }
            }
        }
        any
    }

    /// Whether nothing needs to be driven.
    fn is_at_rest(&self) -> bool {
        self.active.is_empty() && self.ending.is_empty()
    }

    /// The endpoint as a whole is broken.
    fn end_all(&mut self, error: TransportError) {
        let reason = chain(&error);
        let mut first = Some(error);
        while let Some(&index) = self.active.first() {
            let error = first.take().unwrap_or_else(|| TransportError::Invalid(reason.clone()));
            self.end(index, Err(error.into()));
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

/// Aborts the communicator, naming both calls.
fn mismatch(control: &Control, ours: Signature, peer: Rank, theirs: Signature) -> Error {
    let mut calls = [(control.rank(), ours), (peer, theirs)];
    calls.sort_by_key(|(rank, _)| *rank);
    let [(first, first_call), (second, second_call)] = calls;
    let scope = AbortScope::Communicator(ours.communicator);
    let kind = AbortKind::Mismatch { first, first_call, second, second_call };
    let cause = AbortCause { scope, origin: control.rank(), kind };
    control.abort(cause.clone());
    let cause = control.abort_cause(ours.communicator).unwrap_or(cause);
    TransportError::Aborted(cause).into()
}
