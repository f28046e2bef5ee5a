//! Schedules as data: for each rank an ordered list of sends and receives of blocks.
//!
//! A schedule knows ranks and blocks, nothing of bytes, links or time. It is generated for one rank
//! alone, without a table of all ranks, so a communicator of a million ranks costs each of them only
//! its own steps. [`crate::check`] verifies the schedules of all ranks together, and
//! [`crate::executor`] runs one rank's schedule.
//!
//! | algorithm | file | rounds (N >= 2, q = ceil(log2 N), k blocks) |
//! |---|---|---|
//! | `binomial` | [`binomial`] | q k |
//! | `pipelined-chain` | [`chain`] | N + k - 2 |
//! | `pipelined-tree` | [`circulant`] | q + k - 1 |
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
pub mod binomial;
pub mod chain;
pub mod circulant;

pub use algorithm::Algorithm;

use std::fmt;

/// A process of the communicator, numbered from 0.
pub type Rank = u32;

/// The largest number of ranks a schedule is made for; it keeps every round number within 32 bits.
pub const MAX_RANKS: u32 = 1 << 30;

/// The largest number of blocks of one message: a block number has 20 bits on the wire.
pub const MAX_BLOCKS: u32 = 1 << 20;

/// Whether a step sends or receives its block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// The rank sends the block to the peer.
    Send,
    /// The rank receives the block from the peer.
    Recv,
}

/// One block sent or received by one rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

/// What a schedule is made for: the number of ranks, the root and the number of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    ranks: u32,
    root: Rank,
    blocks: u32,
}

impl Shape {
    /// Makes a shape of `ranks` ranks, 1 to [`MAX_RANKS`], with `blocks` blocks, 1 to [`MAX_BLOCKS`].
    ///
    /// A message of 0 bytes has one block, which is empty.
    ///
    /// # Errors
    ///
    /// A number outside its range, or a root that is not one of the ranks.
    pub fn new(ranks: u32, root: Rank, blocks: u32) -> Result<Self, ScheduleError> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(ScheduleError::RankCount { ranks });
        }
        if root >= ranks {
            return Err(ScheduleError::RootOutside { root, ranks });
        }
        if !(1..=MAX_BLOCKS).contains(&blocks) {
            return Err(ScheduleError::BlockCount { blocks });
        }
        Ok(Self { ranks, root, blocks })
    }

    /// The number of ranks N.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The rank that holds the message at the start.
    pub fn root(&self) -> Rank {
        self.root
    }

    /// The number of blocks k.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The number of the rank counted from the root: `(rank - root) mod N`.
    pub(crate) fn relative(&self, rank: Rank) -> u32 {
        if rank >= self.root { rank - self.root } else { rank + self.ranks - self.root }
    }

    /// The inverse of [`Shape::relative`]; `relative` must be below N.
    pub(crate) fn absolute(&self, relative: u32) -> Rank {
        // Both are below MAX_RANKS = 2^30, so the sum fits.
        let sum = relative + self.root;
        if sum >= self.ranks { sum - self.ranks } else { sum }
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
            shape: Shape { ranks: 1, root: 0, blocks: 1 },
            rank: 0,
            rounds: 0,
            steps: Vec::new(),
            send_peers: Vec::new(),
            recv_peers: Vec::new(),
        }
    }
}

impl RankSchedule {
    /// Replaces the contents by the broadcast schedule of `rank`, and keeps the memory.
    ///
    /// It allocates only where the new schedule has more steps or peers than any it held before.
    ///
    /// # Errors
    ///
    /// `rank` outside the shape; the schedule is then as it was.
    pub fn fill(
        &mut self,
        algorithm: Algorithm,
        shape: Shape,
        rank: Rank,
    ) -> Result<(), ScheduleError> {
        if rank >= shape.ranks {
            return Err(ScheduleError::RankOutside { rank, ranks: shape.ranks });
        }
        self.shape = shape;
        self.rank = rank;
        self.rounds = rounds_u32(algorithm, shape);
        self.steps.clear();
        match algorithm {
            Algorithm::Binomial => binomial::push_steps(shape, rank, &mut self.steps),
            Algorithm::PipelinedChain => chain::push_steps(shape, rank, &mut self.steps),
            Algorithm::PipelinedTree => circulant::push_steps(shape, rank, &mut self.steps),
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
        if rank >= shape.ranks {
            return Err(ScheduleError::RankOutside { rank, ranks: shape.ranks });
        }
        let mut earliest = 0;
        for (index, &step) in steps.iter().enumerate() {
            let peer_is_valid = step.peer < shape.ranks && step.peer != rank;
            if !peer_is_valid || step.block >= shape.blocks || step.round >= rounds {
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

/// The broadcast schedule of one rank.
///
/// # Errors
///
/// `rank` outside the shape.
pub fn broadcast(
    algorithm: Algorithm,
    shape: Shape,
    rank: Rank,
) -> Result<RankSchedule, ScheduleError> {
    let mut schedule = RankSchedule::default();
    schedule.fill(algorithm, shape, rank)?;
    Ok(schedule)
}

/// The rounds that the algorithm takes with one port per rank, paced: the formula in its file.
///
/// 0 for one rank.
pub fn rounds(algorithm: Algorithm, shape: Shape) -> u64 {
    if shape.ranks == 1 {
        return 0;
    }
    match algorithm {
        Algorithm::Binomial => binomial::rounds(shape),
        Algorithm::PipelinedChain => chain::rounds(shape),
        Algorithm::PipelinedTree => circulant::rounds(shape),
    }
}

fn rounds_u32(algorithm: Algorithm, shape: Shape) -> u32 {
    // N <= 2^30 and k <= 2^20: the largest formula here is N + k - 2, below 2^31.
    u32::try_from(rounds(algorithm, shape)).expect("a shape within its limits has 32-bit rounds")
}

/// What is wrong with the numbers given for a schedule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The number of ranks is 0 or too large.
    #[error("{ranks} ranks: a schedule is made for 1 to {MAX_RANKS} ranks")]
    RankCount {
        /// The number given.
        ranks: u32,
    },
    /// The root is not one of the ranks.
    #[error("root {root} is not one of the {ranks} ranks; roots are numbered from 0")]
    RootOutside {
        /// The root given.
        root: Rank,
        /// The number of ranks.
        ranks: u32,
    },
    /// The number of blocks is 0 or does not fit the wire.
    #[error("{blocks} blocks: a message has 1 to {MAX_BLOCKS}; use larger blocks")]
    BlockCount {
        /// The number given.
        blocks: u32,
    },
    /// The rank is not one of the ranks.
    #[error("rank {rank} is not one of the {ranks} ranks; ranks are numbered from 0")]
    RankOutside {
        /// The rank given.
        rank: Rank,
        /// The number of ranks.
        ranks: u32,
    },
    /// No broadcast algorithm has this name.
    #[error("no broadcast algorithm is called {name:?}; there are {}", algorithm::names())]
    UnknownName {
        /// The name given.
        name: String,
    },
    /// No broadcast algorithm has this code on the wire.
    #[error("no broadcast algorithm has code {code}; the peer may be of another version")]
    UnknownCode {
        /// The code given.
        code: u8,
    },
    /// A step of a schedule made elsewhere has a peer, block or round outside its range.
    #[error(
        "step {index} of rank {rank} ({step}) is outside {} ranks, {} blocks, {rounds} rounds, \
         or names the rank itself",
        shape.ranks, shape.blocks
    )]
    StepOutside {
        /// The rank whose step it is.
        rank: Rank,
        /// The place of the step in the list, from 0.
        index: usize,
        /// The step.
        step: Step,
        /// The shape of the operation.
        shape: Shape,
        /// The rounds of the operation.
        rounds: u32,
    },
    /// A step of a schedule made elsewhere has a lower round than the step before it.
    #[error("step {index} of rank {rank} ({step}) comes after a step of a later round")]
    StepOrder {
        /// The rank whose step it is.
        rank: Rank,
        /// The place of the step in the list, from 0.
        index: usize,
        /// The step.
        step: Step,
    },
}

#[cfg(test)]
mod tests;
