//! A group of ranks and the operations on it.

mod split;

use std::sync::{Arc, Mutex, PoisonError};

use verbcast_transport::endpoint::lend;

use crate::engine::Shared;
use crate::error::Error;
use crate::group::Group;
use crate::model::{self, Choice, Demand, FabricProfile, Task};
use crate::request::Scope;
use crate::schedule::{Operation, Rank};

/// A choice and what it was made for.
type Chosen = (Task, Demand, Choice);

/// One for each operation that has a choice.
const CHOICES: usize = Operation::ALL.len();

/// The communicator of all ranks.
pub(crate) const WORLD: u64 = 0;

/// A group of ranks; cheap to clone.
///
/// Calls on one communicator must be made in the same order by all of its ranks: blocking ones,
/// starts, and the making of other communicators. Calls on different communicators do not mix and
/// do not wait for each other. Any thread may make any call at any time (MPI calls that
/// `MPI_THREAD_MULTIPLE`); what threads call on one communicator has the order in which they come
/// to it. When the last clone and the last request of a communicator are gone, it ends on this
/// rank.
#[derive(Clone, Debug)]
pub struct Communicator {
    pub(crate) alive: Arc<Alive>,
    pub(crate) group: Group,
    pub(crate) profile: FabricProfile,
    /// The last choices and what they were made for: most programs ask for the same again and again.
    last_choices: Arc<Mutex<[Option<Chosen>; CHOICES]>>,
}

/// A communicator's place in the engine, as long as somebody needs it.
#[derive(Debug)]
pub(crate) struct Alive {
    pub(crate) shared: Arc<Shared>,
    pub(crate) communicator: u64,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.shared.enter().forget_communicator(self.communicator);
    }
}

impl Communicator {
    pub(crate) fn new(
        shared: Arc<Shared>,
        communicator: u64,
        group: Group,
        profile: FabricProfile,
    ) -> Self {
        shared.enter().add_communicator(communicator);
        let alive = Arc::new(Alive { shared, communicator });
        Self { alive, group, profile, last_choices: Arc::default() }
    }

    /// This process's rank in it.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.group.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.group.size()
    }

    /// The rank in the job of a rank of this communicator.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn rank_in_job(&self, rank: Rank) -> Rank {
        assert!(rank < self.size(), "rank {rank} of a communicator of {}", self.size());
        self.group.in_job(rank)
    }

    /// Runs `work`, in which operations may be started on borrowed memory; see [`Scope`].
    ///
    /// ```no_run
    /// # fn example(world: &verbcast_collectives::Communicator) -> Result<(), verbcast_collectives::Error> {
    /// let (mut table, mut row) = (vec![0_f64; 1 << 20], [0_u32; 4]);
    /// world.scope(|scope| {
    ///     let first = world.broadcast_call(0).start_in(scope, &mut table)?;
    ///     let second = world.broadcast_call(1).start_in(scope, &mut row)?;
    ///     // Whatever else there is to do.
    ///     second.wait()?;
    ///     first.wait()?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn scope<'env, R>(
        &'env self,
        work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> R,
    ) -> R {
        let shared = &self.alive.shared;
        let close = |buffer| shared.end_lending(buffer);
        lend(close, |lending| work(Scope { lending, shared }))
    }

    /// What the model chooses for the task; `bytes` are those of one part where there are parts.
    pub(crate) fn choose(
        &self,
        operation: Operation,
        bytes: u64,
        demand: Demand,
    ) -> Result<Choice, Error> {
        let task = Task { operation, ranks: self.size(), bytes, ports: 1 };
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
}
