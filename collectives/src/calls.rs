//! The operations as calls with options: what each rank gives, gets, and may ask for.

mod counts;
mod element;
mod uneven;

use std::time::Duration;

use verbcast_transport::layout::Layout;
use verbcast_transport::wire::{self, Signature};
use zerocopy::IntoBytes;

pub use counts::Counts;
pub use element::Element;
pub use uneven::{AllgathervCall, GathervCall, ScattervCall};

use crate::communicator::Communicator;
use crate::engine::{Call, Given};
use crate::error::Error;
use crate::executor::Pacing;
use crate::model::{Choice, Demand};
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
}

impl Options<'_> {
    fn demand(&self) -> Demand {
        let (algorithm, block_bytes) = (self.algorithm, self.block_bytes);
        Demand { algorithm, block_bytes, ..Demand::default() }
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

            /// Records what happens on this rank.
            pub fn trace(mut self, trace: &'a mut $crate::trace::Trace) -> Self {
                self.options.trace = Some(trace);
                self
            }
        }
    };
}
use options;

/// How a call will be carried out, the same on every rank.
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
}

impl Plan {
    /// For an operation whose parts all have `bytes` bytes (the message of a broadcast).
    fn of(
        communicator: &Communicator,
        options: &Options<'_>,
        (operation, code): (Operation, wire::Operation),
        root: Rank,
        (bytes, element): (u64, u8),
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
            element,
            bytes,
            block_bytes,
        })
    }

    /// Makes the call.
    fn run(
        self,
        communicator: &Communicator,
        options: Options<'_>,
        displacements: Option<&[u64]>,
        given: Given<'_>,
    ) -> Result<(), Error> {
        let Self { operation, algorithm, shape, layout, eager_most, element, .. } = self;
        let (rank, root, bytes) = (communicator.rank(), shape.root(), self.bytes);
        let mut engine = communicator.lock();
        let signature = Signature {
            communicator: communicator.id,
            number: engine.take_number(communicator.id),
            operation: operation.code(),
            algorithm: algorithm.code(),
            element,
            // All radices of the model are below 256; 0 stands where there is none.
            radix: if algorithm == Algorithm::Knomial { shape.radix() as u8 } else { 0 },
            root,
            bytes,
            block_bytes: self.block_bytes,
        };
        let call = Call {
            signature,
            algorithm,
            shape,
            layout,
            is_known: self.is_known,
            displacements,
            eager_most,
            pacing: if options.paced { Pacing::Rounds } else { Pacing::Free },
            deadline: options.deadline,
            trace: options.trace,
        };
        let name = operation.name();
        let span = tracing::debug_span!("operation", name, %algorithm, rank, root, bytes);
        let _entered = span.enter();
        engine.run(call, given)
    }
}

fn too_large(code: wire::Operation, parts: u32, bytes: u64) -> Error {
    wrong(code, format!("{parts} parts of {bytes} bytes are too many blocks"))
}

/// An error of this rank's arguments.
fn wrong(code: wire::Operation, what: String) -> Error {
    Error::Arguments { operation: code.name(), what }
}

/// A buffer that has not the length it must have, in elements.
fn check_length(
    code: wire::Operation,
    name: &str,
    elements: usize,
    expected: Option<usize>,
) -> Result<(), Error> {
    match expected {
        Some(expected) if expected == elements => Ok(()),
        Some(expected) => {
            Err(wrong(code, format!("`{name}` has {elements} elements, not {expected}")))
        }
        None => Err(wrong(
            code,
            "the parts of all ranks have more bytes than there are addresses".to_owned(),
        )),
    }
}

/// A part of what all ranks have, in bytes.
fn part_bytes(all: &[u8], rank: Rank, bytes: usize) -> &[u8] {
    &all[rank as usize * bytes..][..bytes]
}

fn part_bytes_mut(all: &mut [u8], rank: Rank, bytes: usize) -> &mut [u8] {
    &mut all[rank as usize * bytes..][..bytes]
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

    /// A broadcast from `root` with options; [`BroadcastCall::run`] makes the call.
    pub fn broadcast_call(&self, root: Rank) -> BroadcastCall<'_> {
        BroadcastCall { communicator: self, root, options: Options::default() }
    }

    /// A scatter from `root` with options; [`ScatterCall::run`] makes the call.
    pub fn scatter_call(&self, root: Rank) -> ScatterCall<'_> {
        ScatterCall { communicator: self, root, options: Options::default() }
    }

    /// A gather to `root` with options; [`GatherCall::run`] makes the call.
    pub fn gather_call(&self, root: Rank) -> GatherCall<'_> {
        GatherCall { communicator: self, root, options: Options::default() }
    }

    /// An allgather with options; [`AllgatherCall::run`] makes the call.
    pub fn allgather_call(&self) -> AllgatherCall<'_> {
        AllgatherCall { communicator: self, options: Options::default() }
    }

    /// A barrier with options; [`BarrierCall::run`] makes the call.
    pub fn barrier_call(&self) -> BarrierCall<'_> {
        BarrierCall { communicator: self, options: Options::default() }
    }
}

/// A broadcast with options. All ranks give the same algorithm and block size, or none.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct BroadcastCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(BroadcastCall);

impl BroadcastCall<'_> {
    /// What the call will do with a buffer of `bytes` bytes: algorithm, block size, predicted time.
    ///
    /// # Errors
    /// If the options do not go with that many bytes.
    pub fn choice(&self, bytes: u64) -> Result<Choice, Error> {
        self.communicator.choose(Operation::Broadcast, bytes, self.options.demand())
    }

    /// Makes the call; see [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As for [`Communicator::broadcast`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, buffer: &mut [T]) -> Result<(), Error> {
        let Self { communicator, root, options } = self;
        let buffer = buffer.as_mut_bytes();
        let kind = (Operation::Broadcast, wire::Operation::Broadcast);
        let bytes = (buffer.len() as u64, element::code::<T>());
        let plan = Plan::of(communicator, &options, kind, root, bytes)?;
        let given = match communicator.rank() == root {
            true => Given { source: Some(buffer), target: None },
            false => Given { source: None, target: Some(buffer) },
        };
        plan.run(communicator, options, None, given)
    }
}

/// A scatter with options. All ranks give the same algorithm and block size, or none.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct ScatterCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(ScatterCall);

impl ScatterCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Scatter, wire::Operation::Scatter);

    /// Makes the call; see [`Communicator::scatter`].
    ///
    /// # Errors
    /// As for [`Communicator::scatter`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, send: Option<&[T]>, recv: &mut [T]) -> Result<(), Error> {
        let Self { communicator, root, options } = self;
        let (rank, size) = (communicator.rank(), communicator.size() as usize);
        let elements = recv.len();
        let recv = recv.as_mut_bytes();
        let bytes = recv.len();
        let send = match send {
            _ if rank != root => None,
            None => return Err(wrong(Self::KIND.1, "the root gives nothing to `send`".into())),
            Some(send) => {
                check_length(Self::KIND.1, "send", send.len(), elements.checked_mul(size))?;
                Some(send.as_bytes())
            }
        };
        let of = (bytes as u64, element::code::<T>());
        let plan = Plan::of(communicator, &options, Self::KIND, root, of)?;
        let given = match send {
            Some(send) => {
                recv.copy_from_slice(part_bytes(send, rank, bytes));
                Given { source: Some(send), target: None }
            }
            None => Given { source: None, target: Some(recv) },
        };
        plan.run(communicator, options, None, given)
    }

    /// Makes the call at the root, whose own part stays where it is in `send`.
    ///
    /// # Errors
    /// As for [`ScatterCall::run`]; and on a rank that is not the root.
    pub fn run_in_place<T: Element>(self, send: &[T]) -> Result<(), Error> {
        let Self { communicator, root, options } = self;
        let elements = in_place(Self::KIND.1, communicator, Some(root), send.len())?;
        let of = ((elements * size_of::<T>()) as u64, element::code::<T>());
        let plan = Plan::of(communicator, &options, Self::KIND, root, of)?;
        plan.run(communicator, options, None, Given { source: Some(send.as_bytes()), target: None })
    }
}

/// A gather with options. All ranks give the same algorithm and block size, or none.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct GatherCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(GatherCall);

impl GatherCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Gather, wire::Operation::Gather);

    /// Makes the call; see [`Communicator::gather`].
    ///
    /// # Errors
    /// As for [`Communicator::gather`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, send: &[T], recv: Option<&mut [T]>) -> Result<(), Error> {
        let Self { communicator, root, options } = self;
        let (rank, size) = (communicator.rank(), communicator.size() as usize);
        let elements = send.len();
        let send = send.as_bytes();
        let recv = match recv {
            _ if rank != root => None,
            None => return Err(wrong(Self::KIND.1, "the root gives no `recv`".into())),
            Some(recv) => {
                check_length(Self::KIND.1, "recv", recv.len(), elements.checked_mul(size))?;
                Some(recv.as_mut_bytes())
            }
        };
        let of = (send.len() as u64, element::code::<T>());
        let plan = Plan::of(communicator, &options, Self::KIND, root, of)?;
        let given = match recv {
            Some(recv) => {
                part_bytes_mut(recv, rank, send.len()).copy_from_slice(send);
                Given { source: None, target: Some(recv) }
            }
            None => Given { source: Some(send), target: None },
        };
        plan.run(communicator, options, None, given)
    }

    /// Makes the call at the root, whose own part is in its place in `recv` already.
    ///
    /// # Errors
    /// As for [`GatherCall::run`]; and on a rank that is not the root.
    pub fn run_in_place<T: Element>(self, recv: &mut [T]) -> Result<(), Error> {
        let Self { communicator, root, options } = self;
        let elements = in_place(Self::KIND.1, communicator, Some(root), recv.len())?;
        let of = ((elements * size_of::<T>()) as u64, element::code::<T>());
        let plan = Plan::of(communicator, &options, Self::KIND, root, of)?;
        let given = Given { source: None, target: Some(recv.as_mut_bytes()) };
        plan.run(communicator, options, None, given)
    }
}

/// An allgather with options. All ranks give the same algorithm and block size, or none.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct AllgatherCall<'a> {
    communicator: &'a Communicator,
    options: Options<'a>,
}
options!(AllgatherCall);

impl AllgatherCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Allgather, wire::Operation::AllGather);

    /// Makes the call; see [`Communicator::allgather`].
    ///
    /// # Errors
    /// As for [`Communicator::allgather`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size() as usize);
        check_length(Self::KIND.1, "recv", recv.len(), send.len().checked_mul(size))?;
        let send = send.as_bytes();
        part_bytes_mut(recv.as_mut_bytes(), rank, send.len()).copy_from_slice(send);
        self.run_in_place(recv)
    }

    /// Makes the call; each rank's own part is in its place in `recv` already.
    ///
    /// # Errors
    /// As for [`AllgatherCall::run`].
    pub fn run_in_place<T: Element>(self, recv: &mut [T]) -> Result<(), Error> {
        let Self { communicator, options } = self;
        let elements = in_place(Self::KIND.1, communicator, None, recv.len())?;
        let of = ((elements * size_of::<T>()) as u64, element::code::<T>());
        let plan = Plan::of(communicator, &options, Self::KIND, 0, of)?;
        let given = Given { source: None, target: Some(recv.as_mut_bytes()) };
        plan.run(communicator, options, None, given)
    }
}

/// A barrier with options.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct BarrierCall<'a> {
    communicator: &'a Communicator,
    options: Options<'a>,
}
options!(BarrierCall);

impl BarrierCall<'_> {
    /// Makes the call; see [`Communicator::barrier`]. It is an allgather of empty parts: in
    /// ceil(log2 N) rounds everybody has heard of everybody.
    ///
    /// # Errors
    /// As for [`Communicator::barrier`]; and if the deadline passed.
    pub fn run(self) -> Result<(), Error> {
        let Self { communicator, mut options } = self;
        options.algorithm.get_or_insert(Algorithm::Bruck);
        let kind = (Operation::Allgather, wire::Operation::Barrier);
        let plan = Plan::of(communicator, &options, kind, 0, (0, 0))?;
        plan.run(communicator, options, None, Given { source: None, target: Some(&mut []) })
    }
}

/// The elements of each part where `all` are those of all ranks.
fn in_place(
    code: wire::Operation,
    communicator: &Communicator,
    root: Option<Rank>,
    all: usize,
) -> Result<usize, Error> {
    let (rank, size) = (communicator.rank(), communicator.size() as usize);
    if let Some(root) = root.filter(|root| *root != rank) {
        return Err(wrong(
            code,
            format!("rank {rank} is not the root {root}, which alone has all parts"),
        ));
    }
    if !all.is_multiple_of(size) {
        return Err(wrong(code, format!("{all} elements are no equal parts for {size} ranks")));
    }
    Ok(all / size)
}
