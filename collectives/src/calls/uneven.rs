//! Operations whose parts have different lengths: the v forms.

use std::sync::Arc;

use verbcast_transport::layout::Layout;
use verbcast_transport::wire::{self, BLOCK_BYTES_MAX, MESSAGE_PAYLOAD_MAX};
use zerocopy::IntoBytes;

use super::counts::{Counts, Parts};
use super::element::Element;
use super::{Options, Plan, element, options, too_large, wrong};
use crate::communicator::Communicator;
use crate::engine::Given;
use crate::error::Error;
use crate::schedule::{Algorithm, MAX_BLOCKS, Operation, Rank, Shape};

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
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct ScattervCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(ScattervCall);

impl ScattervCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Scatter, wire::Operation::ScatterV);

    /// Makes the call; see [`Communicator::scatterv`].
    ///
    /// # Errors
    /// As for [`Communicator::scatterv`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(
        self,
        send: Option<(&[T], Counts<'_>)>,
        recv: &mut [T],
    ) -> Result<(), Error> {
        let Self { communicator, root, options } = self;
        let (rank, size) = (communicator.rank(), communicator.size());
        let element = element::code::<T>();
        let recv = recv.as_mut_bytes();
        if rank != root {
            let starts = alone(rank, size, recv.len() as u64);
            let plan = flat(communicator, &options, Self::KIND, root, starts, element)?;
            let given = Given { source: None, target: Some(recv) };
            return plan.run(communicator, options, None, given);
        }
        let code = Self::KIND.1;
        let (send, counts) =
            send.ok_or_else(|| wrong(code, "the root gives nothing to `send`".into()))?;
        let parts = Parts::of(code, counts, size, (send.len(), size_of::<T>()), false)?;
        let own = parts.range(rank as usize);
        check_own::<T>(code, "recv", recv.len(), own.len())?;
        let send = send.as_bytes();
        let plan = flat(communicator, &options, Self::KIND, root, parts.starts, element)?;
        recv.copy_from_slice(&send[own]);
        let given = Given { source: Some(send), target: None };
        plan.run(communicator, options, parts.displacements.as_deref(), given)
    }
}

/// A gather of parts of different lengths, with options. The algorithm is `flat`.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct GathervCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    options: Options<'a>,
}
options!(GathervCall);

impl GathervCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Gather, wire::Operation::GatherV);

    /// Makes the call; see [`Communicator::gatherv`].
    ///
    /// # Errors
    /// As for [`Communicator::gatherv`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(
        self,
        send: &[T],
        recv: Option<(&mut [T], Counts<'_>)>,
    ) -> Result<(), Error> {
        let Self { communicator, root, options } = self;
        let (rank, size) = (communicator.rank(), communicator.size());
        let element = element::code::<T>();
        let send = send.as_bytes();
        if rank != root {
            let starts = alone(rank, size, send.len() as u64);
            let plan = flat(communicator, &options, Self::KIND, root, starts, element)?;
            let given = Given { source: Some(send), target: None };
            return plan.run(communicator, options, None, given);
        }
        let code = Self::KIND.1;
        let (recv, counts) = recv.ok_or_else(|| wrong(code, "the root gives no `recv`".into()))?;
        let parts = Parts::of(code, counts, size, (recv.len(), size_of::<T>()), true)?;
        let own = parts.range(rank as usize);
        check_own::<T>(code, "send", send.len(), own.len())?;
        let plan = flat(communicator, &options, Self::KIND, root, parts.starts, element)?;
        let recv = recv.as_mut_bytes();
        recv[own].copy_from_slice(send);
        let given = Given { source: None, target: Some(recv) };
        plan.run(communicator, options, parts.displacements.as_deref(), given)
    }
}

/// An allgather of parts of different lengths, with options.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct AllgathervCall<'a> {
    communicator: &'a Communicator,
    options: Options<'a>,
}
options!(AllgathervCall);

impl AllgathervCall<'_> {
    const KIND: (Operation, wire::Operation) = (Operation::Allgather, wire::Operation::AllGatherV);

    /// Makes the call; see [`Communicator::allgatherv`]. Parts that are not to lie side by side are
    /// copied once more.
    ///
    /// # Errors
    /// As for [`Communicator::allgatherv`]; and if the deadline passed, or the block size is none.
    pub fn run<T: Element>(
        self,
        send: &[T],
        recv: &mut [T],
        counts: Counts<'_>,
    ) -> Result<(), Error> {
        let Self { communicator, options } = self;
        let (rank, size) = (communicator.rank(), communicator.size());
        let code = Self::KIND.1;
        let parts = Parts::of(code, counts, size, (recv.len(), size_of::<T>()), true)?;
        let (send, recv) = (send.as_bytes(), recv.as_mut_bytes());
        let own = parts.starts[rank as usize] as usize..parts.starts[rank as usize + 1] as usize;
        check_own::<T>(code, "send", send.len(), own.len())?;
        let plan = Self::plan(communicator, &options, &parts, element::code::<T>())?;
        if parts.displacements.is_none() {
            recv[own].copy_from_slice(send);
            let all = parts.bytes() as usize;
            let given = Given { source: None, target: Some(&mut recv[..all]) };
            return plan.run(communicator, options, None, given);
        }
        let mut all = vec![0; parts.bytes() as usize];
        all[own].copy_from_slice(send);
        plan.run(communicator, options, None, Given { source: None, target: Some(&mut all) })?;
        for part in 0..size as usize {
            let from = parts.starts[part] as usize..parts.starts[part + 1] as usize;
            recv[parts.range(part)].copy_from_slice(&all[from]);
        }
        Ok(())
    }

    /// As for parts of the mean length.
    fn plan(
        communicator: &Communicator,
        options: &Options<'_>,
        parts: &Parts,
        element: u8,
    ) -> Result<Plan, Error> {
        let (size, bytes) = (communicator.size(), parts.bytes());
        let (operation, code) = Self::KIND;
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
            element,
            bytes,
            block_bytes,
        })
    }
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
    })
}

/// Where parts begin, as a rank sees it that knows of its own only.
fn alone(rank: Rank, size: u32, bytes: u64) -> Vec<u64> {
    (0..=size).map(|part| if part > rank { bytes } else { 0 }).collect()
}

fn check_own<T>(
    code: wire::Operation,
    name: &str,
    bytes: usize,
    expected: usize,
) -> Result<(), Error> {
    if bytes == expected {
        return Ok(());
    }
    let element_bytes = size_of::<T>().max(1);
    let (elements, expected) = (bytes / element_bytes, expected / element_bytes);
    Err(wrong(
        code,
        format!("`{name}` has {elements} elements, and this rank's count is {expected}"),
    ))
}
