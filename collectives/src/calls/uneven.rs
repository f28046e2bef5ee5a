//! Operations whose parts have different lengths: the v forms.

use std::sync::Arc;

use verbcast_transport::layout::Layout;
use verbcast_transport::wire::{self, BLOCK_BYTES_MAX, MESSAGE_PAYLOAD_MAX};

use super::counts::{Counts, Parts};
use super::element::Element;
use super::{Lengths, Of, Options, Plan, Use, given, options, too_large, wrong};
use crate::communicator::Communicator;
use crate::engine::OwnPart;
use crate::error::Error;
use crate::request::{Failed, Memories, Prepared, Request, Scope};
use crate::schedule::{Algorithm, MAX_BLOCKS, Operation, Rank, Shape};

/// The ways to make a call that own their memory.
macro_rules! owned_ways {
    ($call:ident, $counts:ty) => {
        impl $call<'_> {
            /// Starts the operation on memory of its own, and does not wait for it.
            ///
            /// # Errors
            /// As for the blocking call, as far as this rank knows alone; what else goes wrong is
            /// told by [`Request::wait`]. The memory comes back with the error.
            pub fn start(
                self,
                memories: impl Into<Memories>,
                counts: $counts,
            ) -> Result<Request<'static>, Box<Failed>> {
                let memories = memories.into();
                match self.plan(self.options.of, counts, memories.lengths()) {
                    Ok(plan) => plan.start(self.communicator, &self.options, memories),
                    Err(error) => Err(Box::new(Failed { error, memories })),
                }
            }

            /// Sets the operation up on memory of its own, to be started any number of times.
            ///
            /// # Errors
            /// As for the blocking call, as far as this rank knows alone. The memory comes back
            /// with the error.
            pub fn prepare(
                self,
                memories: impl Into<Memories>,
                counts: $counts,
            ) -> Result<Prepared, Box<Failed>> {
                let memories = memories.into();
                match self.plan(self.options.of, counts, memories.lengths()) {
                    Ok(plan) => plan.prepare(self.communicator, &self.options, memories),
                    Err(error) => Err(Box::new(Failed { error, memories })),
                }
            }
        }
    };
}

impl Communicator {
    /// Gives rank i its part of the root's elements; how many, and from where on, the root says in
    /// `send`, which only the root gives, and each rank by the length of `recv`.
    ///
    /// # Errors
    /// [`Error::Arguments`] if the root's numbers do not go together, before any data moves;
    /// [`Error::OtherCount`] if a rank's own length is another than the root's for it, which aborts the
    /// communicator; else as for [`Communicator::broadcast`].
    pub fn scatterv<T: Element>(
        &self,
        send: Option<(&[T], Counts<'_>)>,
        recv: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        self.scatterv_call(root).run(send, recv)
    }

    /// Gives the root every rank's elements; how many, and to where, the root says in `recv`, which
    /// only the root gives, and each rank by the length of `send`.
    ///
    /// # Errors
    /// As for [`Communicator::scatterv`]; the root's parts may not overlap.
    pub fn gatherv<T: Element>(
        &self,
        send: &[T],
        recv: Option<(&mut [T], Counts<'_>)>,
        root: Rank,
    ) -> Result<(), Error> {
        self.gatherv_call(root).run(send, recv)
    }

    /// Gives every rank every rank's elements, as many as the counts say, the same on all ranks; where
    /// they go, each rank decides for itself.
    ///
    /// # Errors
    /// As for [`Communicator::gatherv`].
    pub fn allgatherv<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: Counts<'_>,
    ) -> Result<(), Error> {
        self.allgatherv_call().run(send, recv, counts)
    }

    /// A scatter of parts of different lengths with options; [`ScattervCall::run`] makes the call.
    pub fn scatterv_call(&self, root: Rank) -> ScattervCall<'_> {
        ScattervCall { communicator: self, root, options: Options::default() }
    }

    /// A gather of parts of different lengths with options; [`GathervCall::run`] makes the call.
    pub fn gatherv_call(&self, root: Rank) -> GathervCall<'_> {
        GathervCall { communicator: self, root, options: Options::default() }
    }

    /// An allgather of parts of different lengths with options; [`AllgathervCall::run`] makes the call.
    pub fn allgatherv_call(&self) -> AllgathervCall<'_> {
        AllgathervCall { communicator: self, options: Options::default() }
    }
}

/// A scatter of parts of different lengths, with options. The algorithm is `flat`.
///
/// The root gives counts, the others give none. Of owned memory, the root gives `send`, and `recv`
/// unless its own part is to stay where it is; the others give `recv`.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct ScattervCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(ScattervCall);
owned_ways!(ScattervCall, Option<Counts<'_>>);

impl ScattervCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Scatter, wire::Operation::ScatterV);

    fn plan(&self, of: Of, counts: Option<Counts<'_>>, lengths: Lengths) -> Result<Plan, Error> {
        let Self { communicator, root, options } = self;
        let (rank, size, code) = (communicator.rank(), communicator.size(), Self::KIND.1);
        if rank != *root {
            let missing = || wrong(code, "this rank gives no `recv`".to_owned());
            let starts = alone(rank, size, lengths.recv.ok_or_else(missing)? as u64);
            let plan = flat(communicator, options, Self::KIND, *root, starts, of.code)?;
            return Ok(plan.uses(Use::Unused, Use::Write));
        }
        let missing = || wrong(code, "the root gives nothing to `send`, or no counts".to_owned());
        let (all, counts) = lengths.send.zip(counts).ok_or_else(missing)?;
        let parts = Parts::of(code, counts, size, (of.count(all), of.bytes), false)?;
        let own = own_part(code, of, "recv", &parts, rank, lengths.recv)?;
        let own = own.map(|place| OwnPart { to: 0, ..place });
        let plan = flat(communicator, options, Self::KIND, *root, parts.starts, of.code)?;
        let displacements = parts.displacements.map(Arc::from);
        Ok(Plan { own, displacements, ..plan.uses(Use::Read, Use::Local) })
    }

    /// Makes the call; see [`Communicator::scatterv`].
    ///
    /// # Errors
    /// As for [`Communicator::scatterv`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(
        self,
        send: Option<(&[T], Counts<'_>)>,
        recv: &mut [T],
    ) -> Result<(), Error> {
        let (send, counts) = send.unzip();
        let given = given(send, Some(recv));
        let plan = self.plan(Of::elements::<T>(), counts, given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the operation on borrowed memory, and does not wait for it. The root's own part stays
    /// where it is if it gives no `recv`.
    ///
    /// # Errors
    /// As for [`ScattervCall::run`], as far as this rank knows alone.
    pub fn start_in<'scope, T: Element>(
        self,
        scope: Scope<'scope, '_>,
        send: Option<(&'scope [T], Counts<'_>)>,
        recv: Option<&'scope mut [T]>,
    ) -> Result<Request<'scope>, Error> {
        let (send, counts) = send.unzip();
        let given = given(send, recv);
        let plan = self.plan(Of::elements::<T>(), counts, given.lengths())?;
        plan.start_in(self.communicator, self.options, scope, given)
    }
}

/// A gather of parts of different lengths, with options. The algorithm is `flat`.
///
/// The root gives counts, the others give none. Of owned memory, the root gives `recv`, and `send`
/// unless its own part is in its place already; the others give `send`.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct GathervCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(GathervCall);
owned_ways!(GathervCall, Option<Counts<'_>>);

impl GathervCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Gather, wire::Operation::GatherV);

    fn plan(&self, of: Of, counts: Option<Counts<'_>>, lengths: Lengths) -> Result<Plan, Error> {
        let Self { communicator, root, options } = self;
        let (rank, size, code) = (communicator.rank(), communicator.size(), Self::KIND.1);
        if rank != *root {
            let missing = || wrong(code, "this rank gives no `send`".to_owned());
            let starts = alone(rank, size, lengths.send.ok_or_else(missing)? as u64);
            let plan = flat(communicator, options, Self::KIND, *root, starts, of.code)?;
            return Ok(plan.uses(Use::Read, Use::Unused));
        }
        let missing = || wrong(code, "the root gives no `recv`, or no counts".to_owned());
        let (all, counts) = lengths.recv.zip(counts).ok_or_else(missing)?;
        let parts = Parts::of(code, counts, size, (of.count(all), of.bytes), true)?;
        let own = own_part(code, of, "send", &parts, rank, lengths.send)?;
        let own = own.map(|place| OwnPart { from: 0, ..place });
        let plan = flat(communicator, options, Self::KIND, *root, parts.starts, of.code)?;
        let displacements = parts.displacements.map(Arc::from);
        Ok(Plan { own, displacements, ..plan.uses(Use::Local, Use::Write) })
    }

    /// Makes the call; see [`Communicator::gatherv`].
    ///
    /// # Errors
    /// As for [`Communicator::gatherv`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(
        self,
        send: &[T],
        recv: Option<(&mut [T], Counts<'_>)>,
    ) -> Result<(), Error> {
        let (recv, counts) = recv.unzip();
        let given = given(Some(send), recv);
        let plan = self.plan(Of::elements::<T>(), counts, given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the operation on borrowed memory, and does not wait for it. The root's own part is in
    /// its place already if it gives no `send`.
    ///
    /// # Errors
    /// As for [`GathervCall::run`], as far as this rank knows alone.
    pub fn start_in<'scope, T: Element>(
        self,
        scope: Scope<'scope, '_>,
        send: Option<&'scope [T]>,
        recv: Option<(&'scope mut [T], Counts<'_>)>,
    ) -> Result<Request<'scope>, Error> {
        let (recv, counts) = recv.unzip();
        let given = given(send, recv);
        let plan = self.plan(Of::elements::<T>(), counts, given.lengths())?;
        plan.start_in(self.communicator, self.options, scope, given)
    }
}

/// An allgather of parts of different lengths, with options.
///
/// Of owned memory, each rank gives `recv`, and `send` unless its own part is in its place already.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct AllgathervCall<'a> {
    communicator: &'a Communicator,
    options: Options<'a>,
}
options!(AllgathervCall);
owned_ways!(AllgathervCall, Counts<'_>);

impl AllgathervCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Allgather, wire::Operation::AllGatherV);

    /// Makes the call; see [`Communicator::allgatherv`].
    ///
    /// # Errors
    /// As for [`Communicator::allgatherv`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(
        self,
        send: &[T],
        recv: &mut [T],
        counts: Counts<'_>,
    ) -> Result<(), Error> {
        let given = given(Some(send), Some(recv));
        let plan = self.plan(Of::elements::<T>(), counts, given.lengths())?;
        plan.run(self.communicator, self.options, given)
    }

    /// Starts the operation on borrowed memory, and does not wait for it. The rank's own part is in
    /// its place already if it gives no `send`.
    ///
    /// # Errors
    /// As for [`AllgathervCall::run`], as far as this rank knows alone.
    pub fn start_in<'scope, T: Element>(
        self,
        scope: Scope<'scope, '_>,
        send: Option<&'scope [T]>,
        recv: &'scope mut [T],
        counts: Counts<'_>,
    ) -> Result<Request<'scope>, Error> {
        let given = given(send, Some(recv));
        let plan = self.plan(Of::elements::<T>(), counts, given.lengths())?;
        plan.start_in(self.communicator, self.options, scope, given)
    }

    /// As for parts of the mean length.
    fn plan(&self, of: Of, counts: Counts<'_>, lengths: Lengths) -> Result<Plan, Error> {
        let Self { communicator, options } = self;
        let (rank, size) = (communicator.rank(), communicator.size());
        let (operation, code) = Self::KIND;
        let missing = || wrong(code, "this rank gives no `recv`".to_owned());
        let all = lengths.recv.ok_or_else(missing)?;
        let parts = Parts::of(code, counts, size, (of.count(all), of.bytes), true)?;
        let own = own_part(code, of, "send", &parts, rank, lengths.send)?;
        let own = own.map(|place| OwnPart { from: 0, ..place });
        let bytes = parts.bytes();
        let mean = bytes.div_ceil(size.into());
        let choice = communicator.choose(operation, mean, options.demand())?;
        let longest = parts.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        // No more numbers of blocks than there are; no block longer than one can be.
        let least = longest.div_ceil(u64::from((MAX_BLOCKS / size).max(1)));
        let block_bytes = choice.block_bytes.max(least).clamp(1, BLOCK_BYTES_MAX);
        let layout = Layout::uneven(Arc::from(&parts.starts[..]), block_bytes)
            .ok_or_else(|| too_large(code, size, longest))?;
        let shape = Shape::new(size, 0, layout.blocks_per_part())?;
        Ok(Plan {
            operation: code,
            algorithm: choice.algorithm,
            shape: shape.with_operation(operation)?.with_radix(choice.radix)?,
            layout,
            is_known: true,
            eager_most: Some(eager_most(communicator, options)),
            element: of.code,
            bytes,
            block_bytes,
            displacements: parts.displacements.map(Arc::from),
            send: Use::Local,
            recv: Use::Write,
            own,
        })
    }
}

/// Where the rank's own part is among those of all, from both ends; none if it is in its place.
fn own_part(
    code: wire::Operation,
    of: Of,
    name: &str,
    parts: &Parts,
    rank: Rank,
    own_bytes: Option<usize>,
) -> Result<Option<OwnPart>, Error> {
    let Some(own_bytes) = own_bytes else { return Ok(None) };
    let range = parts.range(rank as usize);
    check_own(code, of, name, own_bytes, range.len())?;
    let (place, bytes) = (range.start as u64, range.len() as u64);
    Ok(Some(OwnPart { from: place, to: place, bytes }))
}

/// Parts of at most so many bytes go without a grant: the same number on all ranks, whatever each of
/// them knows of the other parts.
fn eager_most(communicator: &Communicator, options: &Options<'_>) -> u64 {
    let limit = communicator.profile.path_of(communicator.size()).eager_limit_bytes;
    if options.block_bytes.is_some() { 0 } else { limit.min(MESSAGE_PAYLOAD_MAX as u64) }
}

/// A scatter or gather between the root and each rank; blocks are as large as may be, since nobody
/// passes them on, so that all ranks take the same size without knowing each other's counts.
fn flat(
    communicator: &Communicator,
    options: &Options<'_>,
    (operation, code): (Operation, wire::Operation),
    root: Rank,
    starts: Vec<u64>,
    element: u8,
) -> Result<Plan, Error> {
    let size = communicator.size();
    if let Some(other) = options.algorithm.filter(|asked| *asked != Algorithm::Flat) {
        return Err(wrong(code, format!("by {other}: only flat has parts of different lengths")));
    }
    let block_bytes = options.block_bytes.unwrap_or(BLOCK_BYTES_MAX);
    if !(1..=BLOCK_BYTES_MAX).contains(&block_bytes) {
        return Err(wrong(
            code,
            format!("blocks of {block_bytes} bytes, of 1 to {BLOCK_BYTES_MAX}"),
        ));
    }
    let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let layout =
        Layout::uneven(starts.into(), block_bytes).ok_or_else(|| too_large(code, size, longest))?;
    let shape = Shape::new(size, root, layout.blocks_per_part())?;
    Ok(Plan {
        operation: code,
        algorithm: Algorithm::Flat,
        shape: shape.with_operation(operation)?,
        layout,
        is_known: false,
        eager_most: Some(eager_most(communicator, options)),
        element,
        bytes: 0,
        block_bytes,
        displacements: None,
        send: Use::Unused,
        recv: Use::Unused,
        own: None,
    })
}

/// Where parts begin, as a rank sees it that knows of its own only.
fn alone(rank: Rank, size: u32, bytes: u64) -> Vec<u64> {
    (0..=size).map(|part| if part > rank { bytes } else { 0 }).collect()
}

fn check_own(
    code: wire::Operation,
    of: Of,
    name: &str,
    bytes: usize,
    expected: usize,
) -> Result<(), Error> {
    if bytes == expected {
        return Ok(());
    }
    let (elements, expected) = (of.count(bytes), of.count(expected));
    Err(wrong(
        code,
        format!("`{name}` has {elements} elements, and this rank's count is {expected}"),
    ))
}
