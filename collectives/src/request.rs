//! Operations that outlive a call: requests, borrows for them, and persistent operations.

use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};

use verbcast_transport::endpoint::Lending;
use verbcast_transport::memory::{Held, Owned};

use crate::communicator::Alive;
use crate::engine::{Engine, OperationId, Outcome, Returned, Shared};
use crate::error::Error;

/// Memory that moves into an operation and comes back when it has ended: a `Vec<u8>`, a `Region`, or
/// an `Arc<Region>` that is only sent from.
///
/// Where an operation has one buffer (a broadcast, whatever is done in place), it is `recv`.
#[derive(Debug, Default, PartialEq)]
pub struct Memories {
    /// What is sent.
    pub send: Option<Owned>,
    /// What is received into.
    pub recv: Option<Owned>,
}

impl Memories {
    /// To be sent from; for a rank that receives nothing, or a scatter in place.
    pub fn send(memory: impl Into<Owned>) -> Self {
        Self { send: Some(memory.into()), recv: None }
    }

    /// To be received into.
    pub fn recv(memory: impl Into<Owned>) -> Self {
        Self { send: None, recv: Some(memory.into()) }
    }

    /// The first to be sent from, the second to be received into.
    pub fn both(send: impl Into<Owned>, recv: impl Into<Owned>) -> Self {
        Self { send: Some(send.into()), recv: Some(recv.into()) }
    }
}

impl From<Returned> for Memories {
    fn from(returned: Returned) -> Self {
        Self { send: returned.send, recv: returned.recv }
    }
}

/// An operation that was not started, or that failed; with the memory that it was given.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// Why.
    #[source]
    pub error: Error,
    /// What the operation owned.
    pub memories: Memories,
}

impl From<Box<Failed>> for Error {
    fn from(failed: Box<Failed>) -> Self {
        failed.error
    }
}

/// An operation in the engine that somebody waits for.
#[derive(Debug)]
pub(crate) struct Ticket {
    alive: Arc<Alive>,
    id: OperationId,
    is_taken: bool,
}

impl Ticket {
    pub(crate) fn new(alive: Arc<Alive>, id: OperationId) -> Self {
        Self { alive, id, is_taken: false }
    }

    fn is_over(&self) -> bool {
        let shared = &self.alive.shared;
        let mut engine = shared.enter();
        if !engine.is_ended(self.id) {
            shared.turn(&mut engine);
        }
        engine.is_ended(self.id)
    }

    /// The engine, when the operation has ended.
    fn ended(&self) -> MutexGuard<'_, Engine> {
        let shared = &self.alive.shared;
        shared.wait(shared.enter(), |engine| engine.is_ended(self.id))
    }

    fn take(mut self) -> Outcome {
        self.is_taken = true;
        self.ended().take(self.id)
    }

    /// Ends the operation if it has not.
    fn give_up(mut self) -> Outcome {
        self.is_taken = true;
        let shared = &self.alive.shared;
        shared.take(shared.enter(), self.id)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_taken {
            let shared = &self.alive.shared;
            // Memory is freed after the engine was left.
            let _outcome = shared.take(shared.enter(), self.id);
        }
    }
}

/// A started operation.
///
/// It makes progress whenever any thread of this process waits for, tests or makes a call, or all
/// the time with [`World::start_progress_thread`](crate::World::start_progress_thread). Several may
/// be in flight, and be waited for in any order; those of one communicator have the order of their
/// starts, which must be the same on all ranks.
///
/// Dropping a request whose operation has not ended gives it up: the communicator is aborted on
/// every rank, nothing touches the memory any more, and it is freed. That takes a bounded time.
#[derive(Debug)]
#[must_use = "dropping a request gives its operation up"]
pub struct Request<'m> {
    ticket: Ticket,
    is_over: bool,
    /// How long the memory is lent.
    lent: PhantomData<&'m mut ()>,
}

impl Request<'_> {
    pub(crate) fn new(ticket: Ticket) -> Self {
        Self { ticket, is_over: false, lent: PhantomData }
    }

    /// Whether the operation has ended, well or not: [`Request::wait`] then returns at once, and
    /// says how. Makes some progress, and does not wait.
    ///
    /// # Errors
    /// [`Error::RequestOver`] if it was said before that it has ended.
    pub fn test(&mut self) -> Result<bool, Error> {
        if self.is_over {
            return Err(Error::RequestOver);
        }
        self.is_over = self.ticket.is_over();
        Ok(self.is_over)
    }

    /// Waits for the end; the memory that the request owned comes back.
    ///
    /// # Errors
    /// As for the blocking call; the memory comes back with the error.
    pub fn wait(self) -> Result<Memories, Box<Failed>> {
        let Outcome { result, returned, .. } = self.ticket.take();
        let memories = Memories::from(returned);
        match result {
            Ok(()) => Ok(memories),
            Err(error) => Err(Box::new(Failed { error, memories })),
        }
    }

    /// Waits until one of the requests has ended that was not known to, and gives its place; `None`
    /// if all are known to have ended.
    pub fn wait_any(requests: &mut [Self]) -> Option<usize> {
        let first = requests.iter().find(|request| !request.is_over)?;
        let shared = Arc::clone(&first.ticket.alive.shared);
        let ended = |engine: &Engine| {
            requests.iter().position(|request| {
                // Those of another job are looked at when it is their turn.
                let is_here = Arc::ptr_eq(&request.ticket.alive.shared, &shared);
                !request.is_over && is_here && engine.is_ended(request.ticket.id)
            })
        };
        let engine = shared.wait(shared.enter(), |engine| ended(engine).is_some());
        let place = ended(&engine)?;
        drop(engine);
        requests[place].is_over = true;
        Some(place)
    }
}

/// In which operations may be started on borrowed memory; made by
/// [`Communicator::scope`](crate::Communicator::scope).
///
/// As with threads in [`std::thread::scope`], whatever happens to a request, dropped or leaked,
/// nothing touches its memory when the scope has ended: what has not ended by then is given up, as
/// if its [`Request`] were dropped.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    pub(crate) lending: &'scope Lending<'scope, 'env>,
    pub(crate) shared: &'env Arc<Shared>,
}

/// An operation that is set up once and can be started again and again.
///
/// Addresses, keys and sizes are exchanged at the first start; after that a start sends one small
/// message to each peer that sends blocks to this rank, and allocates nothing. Every rank has to
/// start it as often and in the same order among its other calls.
///
/// Between starts the application gets at the memory by [`Prepared::recv`] and [`Prepared::send`];
/// while it holds on to it, other ranks may start already: nothing is written before this rank has
/// started, too.
///
/// ```no_run
/// # use verbcast_collectives::{Communicator, Error};
/// # fn example(world: &Communicator) -> Result<(), Error> {
/// let mut update = world.broadcast_call(0).prepare(vec![0; 1 << 16])?;
/// for step in 0..1000 {
///     if world.rank() == 0 {
///         update.recv()?.bytes_mut().expect("its own").fill(step as u8);
///     }
///     update.start()?;
///     update.wait()?;
///     assert!(update.recv()?.iter().all(|byte| *byte == step as u8));
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropping it while it runs gives the operation up, as dropping a [`Request`] does.
#[derive(Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Prepared {
    ticket: Ticket,
    /// It was started, and its end was not waited for.
    runs: bool,
}

impl Prepared {
    pub(crate) fn new(ticket: Ticket) -> Self {
        Self { ticket, runs: false }
    }

    /// Starts it (once more).
    ///
    /// # Errors
    /// [`Error::NotStarted`] if the last start has not been waited for or has failed; if the
    /// application holds the memory; if the communicator has failed. Nothing was started then, and
    /// no other rank was told.
    pub fn start(&mut self) -> Result<(), Error> {
        if self.runs {
            return Err(Error::NotStarted { reason: "its last start was not waited for" });
        }
        let shared = &self.ticket.alive.shared;
        let mut engine = shared.enter();
        engine.start(self.ticket.id, None)?;
        shared.turn(&mut engine);
        shared.tell(&mut engine);
        drop(engine);
        self.runs = true;
        Ok(())
    }

    /// Whether the last start has ended, well or not; [`Prepared::wait`] then returns at once.
    ///
    /// # Errors
    /// [`Error::RequestOver`] if nothing was started since the last wait.
    pub fn test(&mut self) -> Result<bool, Error> {
        match self.runs {
            true => Ok(self.ticket.is_over()),
            false => Err(Error::RequestOver),
        }
    }

    /// Waits for the end of the last start.
    ///
    /// # Errors
    /// [`Error::RequestOver`] if nothing was started since the last wait; else as for the blocking
    /// call: it cannot be started again then.
    pub fn wait(&mut self) -> Result<(), Error> {
        if !self.runs {
            return Err(Error::RequestOver);
        }
        self.runs = false;
        self.ticket.ended().take_result(self.ticket.id)
    }

    /// The memory that is received into (of a broadcast, the only one), between two starts.
    ///
    /// # Errors
    /// If it runs, it has failed, the memory is held already, or there is none.
    pub fn recv(&mut self) -> Result<Held, Error> {
        self.hold(|engine, id| engine.opened(id).recv)
    }

    /// The memory that is sent from, between two starts.
    ///
    /// # Errors
    /// As for [`Prepared::recv`].
    pub fn send(&mut self) -> Result<Held, Error> {
        self.hold(|engine, id| engine.opened(id).send)
    }

    fn hold(
        &mut self,
        buffer: impl FnOnce(&Engine, OperationId) -> Option<verbcast_transport::endpoint::BufferId>,
    ) -> Result<Held, Error> {
        if self.runs {
            return Err(Error::NotStarted { reason: "its last start was not waited for" });
        }
        let mut engine = self.ticket.alive.shared.enter();
        let buffer = buffer(&engine, self.ticket.id);
        let buffer =
            buffer.ok_or(Error::NotStarted { reason: "it has no such memory (any more)" })?;
        Ok(engine.endpoint.hold(buffer)?)
    }

    /// Ends it and gives the memory back, except what the application still holds.
    ///
    /// If it runs, the operation is given up.
    pub fn into_memories(self) -> Memories {
        self.ticket.give_up().returned.into()
    }
}
