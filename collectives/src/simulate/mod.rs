//! Runs the real executor of every rank in one process, in virtual time.
//!
//! Time is an integer number of picoseconds and comes from nowhere but the port model, so a run with
//! the same arguments and the same seed gives the same result on any machine.
//!
//! There are two port models, and a run has exactly one of them ([`Model`]):
//!
//! - **telephone**: paced by rounds. A port is busy alpha + m / beta for a message of m bytes; a
//!   message is what one rank sends to another on one port in one round, and pays alpha once however
//!   many blocks it has. A round ends when its busiest port is free again. See [`Model::Telephone`].
//! - **loggp**: without rounds. The out-port is busy max(g, t) for a block, with t = o + m / beta, o
//!   being 0 for an adapter; the last byte arrives L after the out-port has sent it; the in-port takes
//!   t for a block, in order of arrival, and makes late-comers wait. Where the receiver pulls, the
//!   out-port is busy g, and the in-port takes t from L after that began. A rank sends a block as soon as it holds it and its port
//!   is free, in the order of its schedule. See [`Model::Loggp`].
//!
//! | in `simulate` | file |
//! |---|---|
//! | what a network is: ports, links, hosts | `network.rs` |
//! | what can go wrong: loss, jitter, slow, late and dead ranks | `faults.rs` |
//! | the run without rounds, and its queue of events | `free.rs`, `queue.rs` |
//! | the run in rounds | `paced.rs` |
//! | rounds and bytes counted without any executor, for a million ranks | `evaluate.rs` |
//!
//! # Cost
//!
//! A run without rounds costs two or three events of O(log N) for each block and rank, and about
//! 3 KiB for each rank of the circulant schedule with 64 blocks: N = 65,536 takes seconds.
//! [`MAX_TRANSFERS`] bounds both. Beyond it, [`count_rounds`] takes memory for the rounds only.
//!
//! # Examples
//!
//! ```
//! use verbcast_collectives::schedule::{Algorithm, Shape};
//! use verbcast_collectives::simulate::{Blocks, Loggp, Model, Path, Simulation};
//!
//! // L = 1.5 us, g = 0.2 us, 50 GB/s: a message of 16 MiB in blocks of 16 KiB.
//! let path = Path::from_ns(1_500, 200, 50_000_000_000);
//! let simulation = Simulation::new(Model::Loggp(Loggp::new(path)));
//! let blocks = Blocks::new(16 << 20, 16 << 10)?;
//! let shape = Shape::new(8, 0, blocks.count())?;
//! let outcome = simulation.run(Algorithm::PipelinedTree, shape, blocks)?;
//! assert!(outcome.is_complete());
//! let line_rate_ps = (16 << 20) * 20;
//! assert!(line_rate_ps as f64 / outcome.time_ps as f64 > 0.97);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
mod error;
mod evaluate;
mod faults;
mod free;
mod network;
mod outcome;
mod paced;
mod queue;

pub use crate::model::Path;
pub use blocks::Blocks;
pub use error::SimulateError;
pub use evaluate::{RoundCount, count_rounds};
pub use faults::{Faults, MAX_RETRIES};
pub use network::{Loggp, MAX_PORTS, Model, Telephone};
pub use outcome::{Incomplete, Outcome, Span, SpanKind};

use crate::schedule::{Algorithm, Rank, RankSchedule, Shape};

/// The most blocks, over all ranks, that one run transfers: it bounds time and memory.
pub const MAX_TRANSFERS: u64 = 1 << 26;

/// The most spans that a run records for a picture.
pub const MAX_SPANS: usize = 1 << 22;

/// A network, what goes wrong in it, and what is recorded; [`Simulation::run`] sends a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Simulation {
    model: Model,
    faults: Faults,
    seed: u64,
    grants: bool,
    trace: bool,
}

impl Simulation {
    /// A simulation without faults, of ranks that have granted their buffers before the start.
    pub fn new(model: Model) -> Self {
        Self { model, faults: Faults::default(), seed: 0, grants: false, trace: false }
    }

    /// What goes wrong.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// The seed of whatever is drawn at random: losses and jitter.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether each rank has to grant its buffer first, which takes one L; loggp only.
    #[must_use]
    pub fn grants(mut self, grants: bool) -> Self {
        self.grants = grants;
        self
    }

    /// Whether to record what each port did when, up to [`MAX_SPANS`] of them.
    #[must_use]
    pub fn trace(mut self, trace: bool) -> Self {
        self.trace = trace;
        self
    }

    /// Runs the algorithm to its end: until all is done, or nothing can happen any more.
    ///
    /// # Errors
    ///
    /// Numbers outside their limits; more than [`MAX_TRANSFERS`]; times above 2^64 ps (213 days).
    pub fn run(
        &self,
        algorithm: Algorithm,
        shape: Shape,
        blocks: Blocks,
    ) -> Result<Outcome, SimulateError> {
        let mut scratch = RankSchedule::default();
        self.run_schedules(shape, blocks, |rank, with| {
            scratch.fill(algorithm, shape, rank)?;
            with(&scratch)
        })
    }

    /// Runs schedules made elsewhere, `schedules[r]` being that of rank r.
    ///
    /// # Errors
    ///
    /// As for [`Simulation::run`]; and a schedule that an executor refuses, or that receives what
    /// nobody is to send.
    ///
    /// # Examples
    ///
    /// ```
    /// use verbcast_collectives::schedule::{self, Algorithm, RankSchedule, Shape};
    /// use verbcast_collectives::simulate::{Blocks, Model, Simulation, Telephone};
    ///
    /// let shape = Shape::new(5, 0, 2)?;
    /// let schedules: Vec<RankSchedule> = (0..5)
    ///     .map(|rank| schedule::broadcast(Algorithm::PipelinedChain, shape, rank))
    ///     .collect::<Result<_, _>>()?;
    /// let model = Model::Telephone(Telephone { alpha_ps: 1000, bytes_per_second: 1_000_000_000 });
    /// let outcome = Simulation::new(model).run_given(&schedules, Blocks::new(20, 10)?)?;
    /// assert_eq!(outcome.time_ps, (5 + 2 - 2) * (1000 + 10 * 1000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_given(
        &self,
        schedules: &[RankSchedule],
        blocks: Blocks,
    ) -> Result<Outcome, SimulateError> {
        let given = schedules.len();
        let shape = schedules.first().map(RankSchedule::shape);
        let shape = shape.ok_or(SimulateError::Schedules { given, ranks: 0 })?;
        let ranks = shape.ranks();
        if given != ranks as usize {
            return Err(SimulateError::Schedules { given, ranks });
        }
        for (rank, schedule) in (0..).zip(schedules) {
            if schedule.rank() != rank || schedule.shape() != shape {
                return Err(SimulateError::ScheduleOf { place: rank, rank: schedule.rank() });
            }
        }
        self.run_schedules(shape, blocks, |rank, with| with(&schedules[rank as usize]))
    }

    fn run_schedules(
        &self,
        shape: Shape,
        blocks: Blocks,
        schedules: impl FnMut(Rank, &mut Load<'_>) -> Result<(), SimulateError>,
    ) -> Result<Outcome, SimulateError> {
        blocks.check(shape)?;
        self.model.check(shape.ranks())?;
        self.faults.check(shape.ranks())?;
        let transfers = u64::from(shape.ranks()) * u64::from(shape.total_blocks());
        if transfers > MAX_TRANSFERS {
            return Err(SimulateError::TooLarge { ranks: shape.ranks(), blocks: blocks.count() });
        }
        match &self.model {
            Model::Telephone(model) => paced::run(self, *model, shape, blocks, schedules),
            Model::Loggp(model) => free::run(self, model, shape, blocks, schedules),
        }
    }
}

/// Takes one rank's schedule, which may be gone afterwards.
type Load<'a> = dyn FnMut(&RankSchedule) -> Result<(), SimulateError> + 'a;

#[cfg(test)]
mod tests;
