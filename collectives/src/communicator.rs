//! A group of ranks and the operations on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::Engine;
use crate::error::Error;
use crate::model::{self, Choice, Demand, FabricProfile, Task};
use crate::schedule::{Operation, Rank};

/// A choice and what it was made for.
type Chosen = (Task, Demand, Choice);

/// One for each operation that has a choice.
const CHOICES: usize = Operation::ALL.len();

/// The communicator of all ranks.
pub(crate) const WORLD: u64 = 0;

/// A group of ranks; cheap to clone.
///
/// Calls on one communicator must be made in the same order by all of its ranks. Several threads
/// may hold clones; their calls take turns.
#[derive(Clone, Debug)]
pub struct Communicator {
    engine: Arc<Mutex<Engine>>,
    pub(crate) id: u64,
    rank: Rank,
    size: u32,
    pub(crate) profile: FabricProfile,
    /// The last choices and what they were made for: most programs ask for the same again and again.
    last_choices: Arc<Mutex<[Option<Chosen>; CHOICES]>>,
}

impl Communicator {
    pub(crate) fn new(
        engine: Arc<Mutex<Engine>>,
        id: u64,
        rank: Rank,
        size: u32,
        profile: FabricProfile,
    ) -> Self {
        Self { engine, id, rank, size, profile, last_choices: Arc::default() }
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

    /// What the model chooses for the task; `bytes` are those of one part where there are parts.
    pub(crate) fn choose(
        &self,
        operation: Operation,
        bytes: u64,
        demand: Demand,
    ) -> Result<Choice, Error> {
        let task = Task { operation, ranks: self.size, bytes, ports: 1 };
        // They are replaced as a whole, so a panic elsewhere leaves them valid.
        let mut last = self.last_choices.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut last[operation as usize % CHOICES];
        if let Some((for_task, for_demand, choice)) = *place
            && (for_task, for_demand) == (task, demand)
        {
            return Ok(choice);
        }
        let choice = model::select_for(&self.profile, task, demand)?;
        *place = Some((task, demand, choice));
        Ok(choice)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic inside an operation has quiesced its links on unwinding.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
