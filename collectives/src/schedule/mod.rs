//! Schedules as data: for each rank an ordered list of sends and receives of blocks.
//!
//! A schedule knows ranks and blocks, nothing of bytes, links or time. It is generated for one rank
//! alone, without a table of all ranks, so a communicator of a million ranks costs each of them only
//! its own steps. [`crate::check`] verifies the schedules of all ranks together, and
//! [`crate::executor`] runs one rank's schedule.
//!
//! | operation | algorithms, each with its cost and conditions |
//! |---|---|
//! | broadcast | [`flat`], [`chain`] (plain and pipelined), [`binomial`] (plain and pipelined), [`knomial`], [`binary`], [`two_tree`], [`circulant`], [`scatter_allgather`], [`bidirectional_ring`] |
//! | scatter, gather | [`flat`], [`knomial`] (`binomial` is radix 2); a gather is a scatter with every arrow reversed |
//! | allgather | [`ring`], [`recursive_doubling`], [`bruck`], [`circulant_allgather`] |
//!
//! [`rounds`] gives each one's exact number of rounds.
//!
//! A *message* is a run of adjacent steps of one rank with the same round, direction, peer and port:
//! blocks that travel together. Pipelined broadcasts have one block per message.
//!
//! # Several ports
//!
//! `flat`, `knomial` and `bidirectional-ring` serve several peers at once. The other algorithms are
//! *striped*: with d ports, block b of a message or of a part travels on port b mod d, as block b div d
//! of the same algorithm with one port. That takes the rounds of ceil(k / d) blocks.
//!
//! # Examples
//!
//! ```
//! use verbcast_collectives::schedule::{self, Algorithm, Direction, Shape};
//!
//! let shape = Shape::new(9, 0, 4)?;
//! let schedule = schedule::broadcast(Algorithm::PipelinedTree, shape, 0)?;
//! assert_eq!(schedule.rounds(), 4 + 4 - 1);
//! assert_eq!(schedule.send_peers(), [1, 2, 3, 5]);
//! assert!(schedule.steps().iter().all(|step| step.direction == Direction::Send));
//! # Ok::<(), schedule::ScheduleError>(())
//! ```

mod algorithm;
pub mod bidirectional_ring;
pub mod binary;
pub mod binomial;
pub mod bruck;
pub mod chain;
pub mod circulant;
pub mod circulant_allgather;
mod error;
pub mod flat;
mod generate;
pub mod knomial;
mod operation;
pub mod recursive_doubling;
pub mod ring;
pub mod scatter_allgather;
mod shape;
pub mod two_tree;

pub use algorithm::Algorithm;
pub use error::ScheduleError;
pub use operation::Operation;
pub use shape::{MAX_BLOCKS, MAX_PORTS, MAX_RADIX, MAX_RANKS, Shape};

use std::fmt;

/// A process of the communicator, numbered from 0.
pub type Rank = u32;

/// Whether a step sends or receives its block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// The rank sends the block to the peer.
    Send,
    /// The rank receives the block from the peer.
    Recv,
}

/// One block sent or received by one rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Step {
    /// The round in which the step takes place when the run is paced, from 0.
    pub round: u32,
    /// Whether the block goes out or comes in.
    pub direction: Direction,
    /// The other rank, an absolute number (not relative to the root).
    pub peer: Rank,
    /// The block, from 0.
    pub block: u32,
    /// The port used, from 0; always 0 in an algorithm for one port.
    pub port: u16,
}

impl Step {
    /// A step on a port that is within the ports of a shape.
    fn new(round: u32, direction: Direction, peer: Rank, block: u32, port: u32) -> Self {
        Self { round, direction, peer, block, port: port as u16 }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, preposition) = match self.direction {
            Direction::Send => ("send", "to"),
            Direction::Recv => ("recv", "from"),
        };
        let Step { round, peer, block, .. } = self;
        write!(f, "round {round}: {verb} block {block} {preposition} rank {peer}")
    }
}

/// `q = ceil(log2 ranks)`; 0 for one rank.
pub fn ceil_log2(ranks: u32) -> u32 {
    if ranks <= 1 { 0 } else { 32 - (ranks - 1).leading_zeros() }
}

/// One rank's steps of one operation; their order is priority, never a barrier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankSchedule {
    shape: Shape,
    rank: Rank,
    rounds: u32,
    steps: Vec<Step>,
    send_peers: Vec<Rank>,
    recv_peers: Vec<Rank>,
}

impl Default for RankSchedule {
    /// The schedule of a communicator of one rank: no steps. A start for [`RankSchedule::fill`].
    fn default() -> Self {
        Self {
            shape: Shape::default(),
            rank: 0,
            rounds: 0,
            steps: Vec::new(),
            send_peers: Vec::new(),
            recv_peers: Vec::new(),
        }
    }
}

impl RankSchedule {
    /// Replaces the contents by the schedule of `rank`, and keeps the memory.
    ///
    /// With one port it allocates only where the new schedule has more steps or peers than any it held
    /// before.
    ///
    /// # Errors
    ///
    /// `rank` outside the shape, an algorithm that is none of the shape's operation or not made for its
    /// number of ranks, or too many rounds or steps; the schedule is then as it was.
    pub fn fill(
        &mut self,
        algorithm: Algorithm,
        shape: Shape,
        rank: Rank,
    ) -> Result<(), ScheduleError> {
        if rank >= shape.ranks() {
            return Err(ScheduleError::RankOutside { rank, ranks: shape.ranks() });
        }
        let rounds = checked_rounds(algorithm, shape)?;
        self.shape = shape;
        self.rank = rank;
        self.rounds = rounds;
        self.steps.clear();
        if shape.ranks() > 1 {
            generate::push_steps(algorithm, shape, rank, rounds, &mut self.steps);
        }
        self.collect_peers();
        Ok(())
    }

    /// A schedule from steps made elsewhere, for an operation of `rounds` rounds in all.
    ///
    /// Only what one rank can see is verified here; [`crate::check`] verifies all ranks together.
    ///
    /// # Errors
    ///
    /// A rank, peer, block or round outside its range, or steps that are not in order of rounds.
    pub fn from_steps(
        shape: Shape,
        rank: Rank,
        rounds: u32,
        steps: Vec<Step>,
    ) -> Result<Self, ScheduleError> {
        if rank >= shape.ranks() {
            return Err(ScheduleError::RankOutside { rank, ranks: shape.ranks() });
        }
        let mut earliest = 0;
        for (index, &step) in steps.iter().enumerate() {
            let peer_is_valid = step.peer < shape.ranks() && step.peer != rank;
            if !peer_is_valid || step.block >= shape.total_blocks() || step.round >= rounds {
                return Err(ScheduleError::StepOutside { rank, index, step, shape, rounds });
            }
            if step.round < earliest {
                return Err(ScheduleError::StepOrder { rank, index, step });
            }
            earliest = step.round;
        }
        let mut schedule = Self { shape, rank, rounds, steps, ..Self::default() };
        schedule.collect_peers();
        Ok(schedule)
    }

    /// Leaves out the steps of blocks that do not exist, as where parts have different lengths.
    pub(crate) fn retain(&mut self, mut exists: impl FnMut(&Step) -> bool) {
        let before = self.steps.len();
        self.steps.retain(|step| exists(step));
        if self.steps.len() < before {
            self.collect_peers();
        }
    }

    /// The shape that the schedule was made for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The rank whose steps these are.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The rounds of the whole operation, over all ranks.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The steps in order of priority, which is order of rounds.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The ranks that this rank sends to, ascending, each once.
    pub fn send_peers(&self) -> &[Rank] {
        &self.send_peers
    }

    /// The ranks that this rank receives from, ascending, each once.
    pub fn recv_peers(&self) -> &[Rank] {
        &self.recv_peers
    }

    fn collect_peers(&mut self) {
        self.send_peers.clear();
        self.recv_peers.clear();
        for step in &self.steps {
            let peers = match step.direction {
                Direction::Send => &mut self.send_peers,
                Direction::Recv => &mut self.recv_peers,
            };
            if let Err(place) = peers.binary_search(&step.peer) {
                peers.insert(place, step.peer);
            }
        }
    }
}

impl AsRef<[Step]> for RankSchedule {
    fn as_ref(&self) -> &[Step] {
        &self.steps
    }
}

/// The schedule of one rank, of the shape's operation.
///
/// # Errors
///
/// As for [`RankSchedule::fill`].
pub fn schedule(
    algorithm: Algorithm,
    shape: Shape,
    rank: Rank,
) -> Result<RankSchedule, ScheduleError> {
    let mut schedule = RankSchedule::default();
    schedule.fill(algorithm, shape, rank)?;
    Ok(schedule)
}

/// The broadcast schedule of one rank: [`schedule()`] by another name.
///
/// # Errors
///
/// As for [`RankSchedule::fill`].
pub fn broadcast(
    algorithm: Algorithm,
    shape: Shape,
    rank: Rank,
) -> Result<RankSchedule, ScheduleError> {
    schedule(algorithm, shape, rank)
}

/// The rounds that the algorithm takes, paced: the formula in its file.
///
/// 0 for one rank. An algorithm of another operation has the formula of its own one.
pub fn rounds(algorithm: Algorithm, shape: Shape) -> u64 {
    if shape.ranks() == 1 {
        return 0;
    }
    generate::rounds(algorithm, shape)
}

/// The rounds, if a schedule can be made.
fn checked_rounds(algorithm: Algorithm, shape: Shape) -> Result<u32, ScheduleError> {
    let (operation, ranks) = (shape.operation(), shape.ranks());
    if !Algorithm::of(operation).contains(&algorithm) {
        return Err(ScheduleError::NotOfOperation { algorithm, operation });
    }
    if algorithm == Algorithm::RecursiveDoubling && !ranks.is_power_of_two() {
        return Err(ScheduleError::NotPowerOfTwo { algorithm, ranks });
    }
    let rounds = rounds(algorithm, shape);
    let steps = generate::most_steps(algorithm, shape);
    match u32::try_from(rounds) {
        Ok(rounds) if steps <= MAX_STEPS => Ok(rounds),
        _ => Err(ScheduleError::TooLarge { algorithm, shape, rounds, steps }),
    }
}

/// The most steps a schedule of one rank may have; its memory is then within 3 GB.
pub const MAX_STEPS: u64 = 1 << 27;

#[cfg(test)]
mod tests;
