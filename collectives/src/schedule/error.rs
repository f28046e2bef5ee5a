//! What can be wrong with the numbers given for a schedule.

use super::{
    Algorithm, MAX_BLOCKS, MAX_PORTS, MAX_RADIX, MAX_RANKS, MAX_STEPS, Operation, Rank, Shape,
    Step, algorithm,
};

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
    /// The number of ports is 0 or too large.
    #[error("{ports} ports: a rank has 1 to {MAX_PORTS}")]
    PortCount {
        /// The number given.
        ports: u16,
    },
    /// The radix is below 2 or too large.
    #[error("radix {radix}: a k-nomial tree has a radix of 2 to {MAX_RADIX}")]
    Radix {
        /// The number given.
        radix: u32,
    },
    /// The blocks of all parts together have no 32-bit numbers.
    #[error(
        "{ranks} ranks with {blocks} blocks each are too many blocks in all; use larger blocks"
    )]
    TotalBlocks {
        /// The number of ranks.
        ranks: u32,
        /// The blocks of each rank's part.
        blocks: u32,
    },
    /// The algorithm is none of the operation.
    #[error(
        "{algorithm} is no algorithm of a {operation}; there are {}",
        algorithm::names(*operation)
    )]
    NotOfOperation {
        /// The algorithm given.
        algorithm: Algorithm,
        /// The operation.
        operation: Operation,
    },
    /// The algorithm needs a number of ranks that is a power of two.
    #[error("{algorithm} needs a power of two of ranks, not {ranks}; bruck takes any number")]
    NotPowerOfTwo {
        /// The algorithm given.
        algorithm: Algorithm,
        /// The number of ranks.
        ranks: u32,
    },
    /// The schedule would have too many rounds or steps.
    #[error(
        "{algorithm} for {} ranks and {} blocks takes {rounds} rounds, up to {steps} steps of a rank; \
         the limits are {} and {MAX_STEPS}: use fewer, larger blocks",
        shape.ranks(), shape.blocks(), u32::MAX
    )]
    TooLarge {
        /// The algorithm given.
        algorithm: Algorithm,
        /// The shape given.
        shape: Shape,
        /// The rounds it would take.
        rounds: u64,
        /// The steps that a rank could have.
        steps: u64,
    },
    /// No operation has this name.
    #[error("no operation is called {name:?}; there are broadcast, scatter, gather and allgather")]
    UnknownOperation {
        /// The name given.
        name: String,
    },
    /// No algorithm has this name.
    #[error("no algorithm is called {name:?}; there are {}", algorithm::all_names())]
    UnknownName {
        /// The name given.
        name: String,
    },
    /// No algorithm has this code on the wire.
    #[error("no algorithm has code {code}; the peer may be of another version")]
    UnknownCode {
        /// The code given.
        code: u8,
    },
    /// A step of a schedule made elsewhere has a peer, block or round outside its range.
    #[error(
        "step {index} of rank {rank} ({step}) is outside {} ranks, {} blocks, {rounds} rounds, \
         or names the rank itself",
        shape.ranks(), shape.total_blocks()
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
