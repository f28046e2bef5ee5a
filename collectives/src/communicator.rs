//! A group of ranks and the operations on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use verbcast_transport::memory::Memory;
use verbcast_transport::wire::{Operation, Signature};

use crate::engine::{Call, Engine};
use crate::error::Error;
use crate::executor::Pacing;
use crate::model::{self, Choice, Demand, FabricProfile};
use crate::schedule::{Algorithm, Rank, Shape};
use crate::trace::Trace;

/// The communicator of all ranks.
pub(crate) const WORLD: u32 = 0;

/// A group of ranks; cheap to clone.
///
/// Calls on one communicator must be made in the same order by all of its ranks. Several threads
/// may hold clones; their calls take turns.
#[derive(Clone, Debug)]
pub struct Communicator {
    engine: Arc<Mutex<Engine>>,
    id: u32,
    rank: Rank,
    size: u32,
    profile: FabricProfile,
    /// The last choice and what it was made for: most programs ask for the same again and again.
    last_choice: Arc<Mutex<Option<(u64, Demand, Choice)>>>,
}

impl Communicator {
    pub(crate) fn new(
        engine: Arc<Mutex<Engine>>,
        id: u32,
        rank: Rank,
        size: u32,
        profile: FabricProfile,
    ) -> Self {
        Self { engine, id, rank, size, profile, last_choice: Arc::default() }
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Gives every rank the root's bytes; `buffer` has the same length on every rank.
    ///
    /// Returns when this rank has the bytes and need not pass them on any more. A
    /// [`Region`](verbcast_transport::memory::Region)'s slice is not registered anew.
    ///
    /// # Errors
    /// A root outside the communicator; a mismatch with another rank's call, a dead rank or a
    /// broken link, which abort the communicator on every rank.
    pub fn broadcast(&self, buffer: &mut [u8], root: Rank) -> Result<(), Error> {
        self.broadcast_call(root).run(buffer)
    }

    /// A broadcast from `root` with options; [`BroadcastCall::run`] makes the call.
    pub fn broadcast_call(&self, root: Rank) -> BroadcastCall<'_> {
        BroadcastCall {
            communicator: self,
            root,
            algorithm: None,
            block_bytes: None,
            deadline: None,
            paced: false,
            trace: None,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic inside an operation has quiesced its links on unwinding.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A broadcast with options: algorithm, block size, deadline. All ranks give the same algorithm
/// and block size, or none.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct BroadcastCall<'a> {
    communicator: &'a Communicator,
    root: Rank,
    algorithm: Option<Algorithm>,
    block_bytes: Option<u64>,
    deadline: Option<Duration>,
    paced: bool,
    trace: Option<&'a mut Trace>,
}

impl<'a> BroadcastCall<'a> {
    /// The algorithm, instead of the model's choice.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Bytes of a block, instead of the model's choice; also makes a small message travel in
    /// granted blocks.
    pub fn block_bytes(mut self, block_bytes: u64) -> Self {
        self.block_bytes = Some(block_bytes);
        self
    }

    /// Ends the call, and aborts the communicator, if it takes longer.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Starts no send before this rank's steps of earlier rounds are complete: slower, and each
    /// rank sends exactly in the order of its schedule.
    pub fn paced(mut self, paced: bool) -> Self {
        self.paced = paced;
        self
    }

    /// Records what happens on this rank.
    pub fn trace(mut self, trace: &'a mut Trace) -> Self {
        self.trace = Some(trace);
        self
    }

    /// What the call will do with a buffer of `bytes` bytes: algorithm, block size, predicted time.
    ///
    /// # Errors
    /// If the options do not go with that many bytes.
    pub fn choice(&self, bytes: u64) -> Result<Choice, Error> {
        let Communicator { size, profile, last_choice, .. } = self.communicator;
        let Self { algorithm, block_bytes, .. } = *self;
        let demand = Demand { algorithm, block_bytes, ..Demand::default() };
        // It is replaced as a whole, so a panic elsewhere leaves it valid.
        let mut last = last_choice.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((for_bytes, for_demand, choice)) = *last
            && (for_bytes, for_demand) == (bytes, demand)
        {
            return Ok(choice);
        }
        let choice = model::select(*size, bytes, profile, demand)?;
        *last = Some((bytes, demand, choice));
        Ok(choice)
    }

    /// Makes the call; see [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As for [`Communicator::broadcast`]; and if the deadline passed, or the block size is none.
    pub fn run(self, buffer: &mut [u8]) -> Result<(), Error> {
        let bytes = buffer.len() as u64;
        let choice = self.choice(bytes)?;
        let Self { communicator, root, .. } = self;
        let Choice { algorithm, block_bytes, blocks, radix, .. } = choice;
        // Whoever gives a block size wants blocks, but there is no empty block.
        let eager = choice.is_eager && self.block_bytes.is_none() || bytes == 0;
        let shape = Shape::new(communicator.size, root, blocks)?.with_radix(radix)?;
        let mut engine = communicator.lock();
        let signature = Signature {
            communicator: communicator.id,
            number: engine.take_number(communicator.id),
            operation: Operation::Broadcast.code(),
            algorithm: algorithm.code(),
            element: 0,
            // All radices of the model are below 256; 0 stands where there is none.
            radix: if algorithm == Algorithm::Knomial { radix as u8 } else { 0 },
            root,
            bytes,
            block_bytes,
        };
        let call = Call {
            signature,
            algorithm,
            shape,
            eager,
            pacing: if self.paced { Pacing::Rounds } else { Pacing::Free },
            deadline: self.deadline,
            trace: self.trace,
        };
        let memory =
            if communicator.rank == root { Memory::Read(buffer) } else { Memory::Write(buffer) };
        let span =
            tracing::debug_span!("broadcast", %algorithm, rank = communicator.rank, root, bytes);
        let _entered = span.enter();
        engine.broadcast(call, memory)
    }
}
