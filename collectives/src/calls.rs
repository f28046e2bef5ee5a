//! The operations as calls with options: what each rank gives, gets, and may ask for.

mod counts;
mod element;
mod equal;
mod started;
mod uneven;

use std::sync::Arc;
use std::time::Duration;

use verbcast_transport::endpoint::lend;
use verbcast_transport::layout::Layout;
use verbcast_transport::memory::Memory;
use verbcast_transport::wire::{self, Signature};
use zerocopy::IntoBytes;

pub use counts::Counts;
pub use element::Element;
pub use equal::{AllgatherCall, BarrierCall, BroadcastCall, GatherCall, ScatterCall};
pub use uneven::{AllgathervCall, GathervCall, ScattervCall};

use crate::communicator::Communicator;
use crate::engine::{Call, Engine, Opened, OperationId, OwnPart, Returned};
use crate::error::Error;
use crate::executor::Pacing;
use crate::model::{Choice, Demand};
use crate::request::{Failed, Memories, Prepared, Request, Scope, Ticket};
use crate::schedule::{Algorithm, Operation, Rank, Shape};
use crate::trace::Trace;

/// What may be asked of any call.
#[derive(Debug, Default)]
struct Options<'a> {
    algorithm: Option<Algorithm>,
    block_bytes: Option<u64>,
    deadline: Option<Duration>,
    paced: bool,
    trace: Option<&'a mut Trace>,
    /// What owned memory holds.
    of: Of,
}

impl Options<'_> {
    fn demand(&self) -> Demand {
        let (algorithm, block_bytes) = (self.algorithm, self.block_bytes);
        Demand { algorithm, block_bytes, ..Demand::default() }
    }
}

/// What the elements of a buffer are.
#[derive(Clone, Copy, Debug)]
struct Of {
    /// In the signature.
    code: u8,
    /// Of one element.
    bytes: usize,
}

impl Of {
    fn elements<T: Element>() -> Self {
        Self { code: element::code::<T>(), bytes: size_of::<T>() }
    }

    /// How many elements so many bytes are.
    fn count(self, bytes: usize) -> usize {
        bytes / self.bytes.max(1)
    }
}

impl Default for Of {
    fn default() -> Self {
        Self::elements::<u8>()
    }
}

/// The bytes of what a rank gives and gets, as far as it gave either.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    send: Option<usize>,
    recv: Option<usize>,
}

/// What the caller gives and gets, as bytes.
#[derive(Debug, Default)]
struct Given<'m> {
    send: Option<&'m [u8]>,
    recv: Option<&'m mut [u8]>,
}

impl Given<'_> {
    fn lengths(&self) -> Lengths {
        Lengths {
            send: self.send.as_ref().map(|bytes| bytes.len()),
            recv: self.recv.as_ref().map(|bytes| bytes.len()),
        }
    }
}

fn given<'m, T: Element>(send: Option<&'m [T]>, recv: Option<&'m mut [T]>) -> Given<'m> {
    Given { send: send.map(IntoBytes::as_bytes), recv: recv.map(IntoBytes::as_mut_bytes) }
}

impl Memories {
    fn lengths(&self) -> Lengths {
        Lengths {
            send: self.send.as_ref().map(|owned| owned.len()),
            recv: self.recv.as_ref().map(|owned| owned.len()),
        }
    }
}

/// The methods that set the options of a call.
macro_rules! options {
    ($call:ident) => {
        impl<'a> $call<'a> {
            /// The algorithm, instead of the model's choice; the same on all ranks.
            pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
                self.options.algorithm = Some(algorithm);
                self
            }

            /// Bytes of a block, instead of the model's choice, the same on all ranks; also makes
            /// small messages travel in granted blocks.
            pub fn block_bytes(mut self, block_bytes: u64) -> Self {
                self.options.block_bytes = Some(block_bytes);
                self
            }

            /// Ends the call, and aborts the communicator, if it takes longer.
            pub fn deadline(mut self, deadline: std::time::Duration) -> Self {
                self.options.deadline = Some(deadline);
                self
            }

            /// Starts no send before this rank's steps of earlier rounds are complete: slower, and
            /// each rank sends exactly in the order of its schedule.
            pub fn paced(mut self, paced: bool) -> Self {
                self.options.paced = paced;
                self
            }

            /// Records what happens on this rank, in a blocking call.
            pub fn trace(mut self, trace: &'a mut $crate::trace::Trace) -> Self {
                self.options.trace = Some(trace);
                self
            }

            /// Owned memory holds elements of this type, and not bytes: other ranks may use slices
            /// of it.
            pub fn elements<T: $crate::calls::Element>(mut self) -> Self {
                self.options.of = $crate::calls::Of::elements::<T>();
                self
            }
        }
    };
}
use options;

/// How an operation uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Not at all.
    Unused,
    /// Its own part is copied, on this rank.
    Local,
    /// It is sent from.
    Read,
    /// It is received into.
    Write,
}

/// How a call will be carried out, the same on every rank.
#[derive(Debug)]
struct Plan {
    operation: wire::Operation,
    algorithm: Algorithm,
    shape: Shape,
    layout: Layout,
    is_known: bool,
    eager_most: Option<u64>,
    element: u8,
    /// As they are in the signature.
    bytes: u64,
    block_bytes: u64,
    displacements: Option<Arc<[u64]>>,
    send: Use,
    recv: Use,
    own: Option<OwnPart>,
}

impl Plan {
    /// For an operation whose parts all have `bytes` bytes (the message of a broadcast).
    fn of(
        communicator: &Communicator,
        options: &Options<'_>,
        (operation, code): (Operation, wire::Operation),
        root: Rank,
        (bytes, of): (u64, Of),
    ) -> Result<Self, Error> {
        let choice = communicator.choose(operation, bytes, options.demand())?;
        let Choice { algorithm, block_bytes, blocks, radix, .. } = choice;
        // Whoever gives a block size wants blocks, but there is no empty block.
        let is_eager = choice.is_eager && options.block_bytes.is_none() || bytes == 0;
        let shape = Shape::new(communicator.size(), root, blocks)?;
        let shape = shape.with_operation(operation)?.with_radix(radix)?;
        let parts = if operation.has_parts() { communicator.size() } else { 1 };
        let layout =
            Layout::new(parts, bytes, block_bytes).ok_or_else(|| too_large(code, parts, bytes))?;
        let eager_most = is_eager.then_some(bytes);
        Ok(Self {
            operation: code,
            algorithm,
            shape,
            layout,
            is_known: true,
            eager_most,
            element: of.code,
            bytes,
            block_bytes,
            displacements: None,
            send: Use::Unused,
            recv: Use::Unused,
            own: None,
        })
    }

    fn uses(self, send: Use, recv: Use) -> Self {
        Self { send, recv, ..self }
    }

    /// What the engine has to do; its number comes with the start.
    fn call(&self, communicator: &Communicator, options: &Options<'_>) -> Call {
        let (algorithm, shape) = (self.algorithm, self.shape);
        let signature = Signature {
            communicator: communicator.alive.communicator,
            number: 0,
            operation: self.operation.code(),
            algorithm: algorithm.code(),
            element: self.element,
            // All radices of the model are below 256; 0 stands where there is none.
            radix: if algorithm == Algorithm::Knomial { shape.radix() as u8 } else { 0 },
            root: shape.root(),
            bytes: self.bytes,
            block_bytes: self.block_bytes,
        };
        Call {
            signature,
            algorithm,
            shape,
            group: communicator.group.clone(),
            layout: self.layout.clone(),
            is_known: self.is_known,
            displacements: self.displacements.clone(),
            eager_most: self.eager_most,
            own: self.own,
            pacing: if options.paced { Pacing::Rounds } else { Pacing::Free },
            deadline: options.deadline,
        }
    }

    /// Makes a blocking call.
    fn run(
        self,
        communicator: &Communicator,
        mut options: Options<'_>,
        given: Given<'_>,
    ) -> Result<(), Error> {
        let call = self.call(communicator, &options);
        let (rank, root, bytes) = (communicator.rank(), self.shape.root(), self.bytes);
        let (name, algorithm) = (self.operation.name(), self.algorithm);
        let span = tracing::debug_span!("operation", name, %algorithm, rank, root, bytes);
        let _entered = span.enter();
        let trace = options.trace.as_deref_mut().map(std::mem::take);
        let shared = &communicator.alive.shared;
        let close = |buffer| shared.end_lending(buffer);
        let outcome = lend(close, |lending| {
            let mut engine = shared.enter();
            let opened = self.open_lent(lending, &mut engine, given, call.has_blocks())?;
            let id = begin(&mut engine, call, opened, trace)?;
            shared.tell(&mut engine);
            let mut engine = shared.wait(engine, |engine| engine.is_ended(id));
            Ok::<_, Error>(engine.take(id))
        })?;
        if let (Some(place), Some(trace)) = (options.trace, outcome.trace) {
            *place = trace;
        }
        outcome.result
    }

    /// Starts it on borrowed memory.
    fn start_in<'scope>(
        self,
        communicator: &Communicator,
        options: Options<'_>,
        scope: Scope<'scope, '_>,
        given: Given<'scope>,
    ) -> Result<Request<'scope>, Error> {
        let shared = &communicator.alive.shared;
        self.check_untraced(&options)?;
        if !Arc::ptr_eq(shared, scope.shared) {
            return Err(wrong(self.operation, "the scope is one of another job".to_owned()));
        }
        let call = self.call(communicator, &options);
        let mut engine = shared.enter();
        let opened = self.open_lent(scope.lending, &mut engine, given, call.has_blocks())?;
        let started = begin(&mut engine, call, opened, None);
        let id = started.inspect_err(|_| {
            for buffer in [opened.send, opened.recv].into_iter().flatten() {
                // Nothing has used it; one that is closed already is as well.
                let _closed = engine.endpoint.close(buffer);
            }
        })?;
        shared.turn(&mut engine);
        shared.tell(&mut engine);
        drop(engine);
        Ok(Request::new(Ticket::new(communicator.alive.clone(), id)))
    }

    /// Starts it on memory of its own.
    fn start(
        self,
        communicator: &Communicator,
        options: &Options<'_>,
        memories: Memories,
    ) -> Result<Request<'static>, Box<Failed>> {
        let shared = &communicator.alive.shared;
        let mut engine = shared.enter();
        let id = self.open(communicator, options, &mut engine, memories, false)?;
        if let Err(error) = engine.start(id, None) {
            let memories = engine.take(id).returned.into();
            return Err(Box::new(Failed { error, memories }));
        }
        shared.turn(&mut engine);
        shared.tell(&mut engine);
        drop(engine);
        Ok(Request::new(Ticket::new(communicator.alive.clone(), id)))
    }

    /// Sets it up on memory of its own.
    fn prepare(
        self,
        communicator: &Communicator,
        options: &Options<'_>,
        memories: Memories,
    ) -> Result<Prepared, Box<Failed>> {
        let mut engine = communicator.alive.shared.enter();
        let id = self.open(communicator, options, &mut engine, memories, true)?;
        drop(engine);
        Ok(Prepared::new(Ticket::new(communicator.alive.clone(), id)))
    }

    fn check_untraced(&self, options: &Options<'_>) -> Result<(), Error> {
        match options.trace {
            None => Ok(()),
            Some(_) => Err(wrong(self.operation, "only a blocking call can be traced".into())),
        }
    }

    /// Opens memory that is borrowed for as long as `lending` lasts.
    fn open_lent<'scope>(
        &self,
        lending: &'scope verbcast_transport::endpoint::Lending<'scope, '_>,
        engine: &mut Engine,
        given: Given<'scope>,
        has_blocks: bool,
    ) -> Result<Opened, Error> {
        let mut opened = Opened::default();
        let endpoint = &mut engine.endpoint;
        if let Some(send) = given.send.filter(|_| self.send != Use::Unused) {
            let register = has_blocks && self.send == Use::Read;
            opened.send = Some(lending.open(endpoint, Memory::Read(send), register)?);
        }
        let recv = match (given.recv, self.recv) {
            (None, _) | (_, Use::Unused) => None,
            (Some(recv), Use::Read) => Some(Memory::Read(recv)),
            (Some(recv), Use::Local | Use::Write) => Some(Memory::Write(recv)),
        };
        if let Some(recv) = recv {
            let register = has_blocks && self.recv != Use::Local;
            opened.recv = Some(lending.open(endpoint, recv, register)?);
        }
        Ok(opened)
    }

    /// Opens memory that the operation owns, and makes the operation.
    fn open(
        &self,
        communicator: &Communicator,
        options: &Options<'_>,
        engine: &mut Engine,
        memories: Memories,
        is_persistent: bool,
    ) -> Result<OperationId, Box<Failed>> {
        let refuse = |error: Error, memories| Err(Box::new(Failed { error, memories }));
        if let Err(error) = self.check_untraced(options) {
            return refuse(error, memories);
        }
        let is_read_only =
            |memories: &Memories| memories.recv.as_ref().is_some_and(|owned| !owned.is_writable());
        if matches!(self.recv, Use::Local | Use::Write) && is_read_only(&memories) {
            let what = "`recv` is memory that may only be read".to_owned();
            return refuse(wrong(self.operation, what), memories);
        }
        let call = self.call(communicator, options);
        let has_blocks = call.has_blocks();
        let Memories { send, recv } = memories;
        let mut opened = Opened::default();
        let mut unused = Returned::default();
        for (memory, used, place, back) in [
            (send, self.send, &mut opened.send, &mut unused.send),
            (recv, self.recv, &mut opened.recv, &mut unused.recv),
        ] {
            let Some(memory) = memory else { continue };
            if used == Use::Unused {
                *back = Some(memory);
                continue;
            }
            let register = has_blocks && used != Use::Local;
            match engine.endpoint.open_owned(memory, register) {
                Ok(buffer) => *place = Some(buffer),
                Err(refused) => *back = Some(refused.memory),
            }
        }
        let is_open = |used: Use, buffer: Option<_>, back: bool| {
            used == Use::Unused || buffer.is_some() || !back
        };
        let all_open = is_open(self.send, opened.send, unused.send.is_some())
            && is_open(self.recv, opened.recv, unused.recv.is_some());
        let result = match all_open {
            true => engine.prepare(call, opened, is_persistent),
            false => Err(wrong(self.operation, "its memory cannot be registered".to_owned())),
        };
        match result {
            Ok(id) => {
                engine.keep_unused(id, unused);
                Ok(id)
            }
            Err(error) => {
                let mut back = |buffer: Option<_>| {
                    buffer.and_then(|buffer| engine.endpoint.close(buffer).ok().flatten())
                };
                let send = back(opened.send).or(unused.send);
                let recv = back(opened.recv).or(unused.recv);
                refuse(error, Memories { send, recv })
            }
        }
    }
}

/// Makes an operation and starts it; its buffers stay open if it was not started.
fn begin(
    engine: &mut Engine,
    call: Call,
    opened: Opened,
    trace: Option<Trace>,
) -> Result<OperationId, Error> {
    engine.check(call.signature.communicator)?;
    let id = engine.prepare(call, opened, false)?;
    match engine.start(id, trace) {
        Ok(()) => Ok(id),
        Err(error) => {
            let _outcome = engine.take(id);
            Err(error)
        }
    }
}

fn too_large(code: wire::Operation, parts: u32, bytes: u64) -> Error {
    wrong(code, format!("{parts} parts of {bytes} bytes are too many blocks"))
}

/// An error of this rank's arguments.
fn wrong(code: wire::Operation, what: String) -> Error {
    Error::Arguments { operation: code.name(), what }
}

/// A buffer that has not the length it must have, in bytes.
fn check_length(
    code: wire::Operation,
    of: Of,
    name: &str,
    bytes: usize,
    expected: Option<usize>,
) -> Result<(), Error> {
    match expected {
        Some(expected) if expected == bytes => Ok(()),
        Some(expected) => {
            let (elements, expected) = (of.count(bytes), of.count(expected));
            Err(wrong(code, format!("`{name}` has {elements} elements, not {expected}")))
        }
        None => Err(wrong(
            code,
            "the parts of all ranks have more bytes than there are addresses".to_owned(),
        )),
    }
}

impl Communicator {
    /// Gives every rank the root's elements; `buffer` has the same length on every rank.
    ///
    /// Returns when this rank has them and need not pass them on any more. A
    /// [`Region`](verbcast_transport::memory::Region)'s slice is not registered anew.
    ///
    /// # Errors
    /// A root outside the communicator; a mismatch with another rank's call, a dead rank or a
    /// broken link, which abort the communicator on every rank.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        self.broadcast_call(root).run(buffer)
    }

    /// Gives rank i the i-th part of the root's elements: `recv.len()` of them, the same number on
    /// every rank, out of `recv.len()` times N in `send`, which only the root gives.
    ///
    /// # Errors
    /// [`Error::Arguments`] if the root gives nothing or another number of elements, before any data
    /// moves; else as for [`Communicator::broadcast`].
    pub fn scatter<T: Element>(
        &self,
        send: Option<&[T]>,
        recv: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        self.scatter_call(root).run(send, recv)
    }

    /// Gives the root every rank's elements, in the order of the ranks: `send.len()` of them, the same
    /// number on every rank, into `send.len()` times N in `recv`, which only the root gives.
    ///
    /// # Errors
    /// As for [`Communicator::scatter`].
    pub fn gather<T: Element>(
        &self,
        send: &[T],
        recv: Option<&mut [T]>,
        root: Rank,
    ) -> Result<(), Error> {
        self.gather_call(root).run(send, recv)
    }

    /// Gives every rank every rank's elements, in the order of the ranks: `send.len()` of them, the same
    /// number on every rank, into `send.len()` times N in `recv`.
    ///
    /// # Errors
    /// As for [`Communicator::scatter`].
    pub fn allgather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        self.allgather_call().run(send, recv)
    }

    /// Returns when all ranks have made this call.
    ///
    /// # Errors
    /// As for [`Communicator::broadcast`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.barrier_call().run()
    }
}
