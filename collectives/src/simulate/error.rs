//! What a simulation cannot take.

use super::{MAX_PORTS, MAX_RETRIES, MAX_TRANSFERS};
use crate::executor::ExecutorError;
use crate::schedule::{MAX_BLOCKS, Rank, ScheduleError};

/// Numbers or schedules that cannot be simulated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The shape, or a rank of it.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A schedule that is none, or whose receives and sends do not meet.
    #[error("the schedules do not fit together")]
    Executor(#[from] ExecutorError),
    /// 2^63 bytes or more.
    #[error("{bytes} bytes: a message has less than 2^63")]
    MessageBytes {
        /// The bytes given.
        bytes: u64,
    },
    /// Blocks of no bytes, larger than the message, or too many of them.
    #[error(
        "blocks of {block_bytes} bytes for a message of {bytes} bytes: a block has at least 1 byte \
         and no more than the message, and there are at most {MAX_BLOCKS}"
    )]
    BlockBytes {
        /// The block size given.
        block_bytes: u64,
        /// The bytes of the message.
        bytes: u64,
    },
    /// The number of blocks is 0, too large, or not that of the shape.
    #[error(
        "{count} blocks, but the message was cut into {of}; both are the same, 1 to {MAX_BLOCKS}"
    )]
    BlockCount {
        /// The blocks of the shape.
        count: u32,
        /// The blocks of the message.
        of: u32,
    },
    /// No ports, or too many.
    #[error("{ports} ports: a rank has 1 to {MAX_PORTS}")]
    Ports {
        /// The number given.
        ports: u16,
    },
    /// A step on a port that the network does not have.
    #[error("rank {rank} uses port {port}, but there are {ports}; ports are numbered from 0")]
    PortOutside {
        /// The rank.
        rank: Rank,
        /// Its port.
        port: u16,
        /// The ports of the network.
        ports: u16,
    },
    /// A port of no bandwidth.
    #[error("{place}: 0 bytes per second, with which nothing would ever arrive")]
    NoBandwidth {
        /// Which path.
        place: &'static str,
    },
    /// No ranks on a host.
    #[error("0 ranks per host: a host has at least 1")]
    RanksPerHost,
    /// A link or a fault names a rank that is none.
    #[error("{what} of rank {rank}: there are {ranks} ranks, numbered from 0")]
    RankOutside {
        /// What was given for the rank.
        what: &'static str,
        /// The rank.
        rank: Rank,
        /// The number of ranks.
        ranks: u32,
    },
    /// A fault is given twice for one rank.
    #[error("{what} of rank {rank} is given twice")]
    RankTwice {
        /// What was given twice.
        what: &'static str,
        /// The rank.
        rank: Rank,
    },
    /// More than every message lost.
    #[error("a loss of {ppm} per million: there are 0 to 1000000, and 1000000 loses everything")]
    Loss {
        /// The loss given.
        ppm: u32,
    },
    /// Too many retries.
    #[error("{retries} retries: at most {MAX_RETRIES}")]
    Retries {
        /// The retries given.
        retries: u32,
    },
    /// A slow rank that would take no time.
    #[error("rank {rank} takes 0 per cent of the usual time: it takes at least 1")]
    Slow {
        /// The rank.
        rank: Rank,
    },
    /// The port model in rounds has no place for a fault.
    #[error(
        "{what}: the telephone model has none, since its rounds wait for every rank; use loggp"
    )]
    NotInRounds {
        /// The fault.
        what: &'static str,
    },
    /// Too many blocks over all ranks.
    #[error(
        "{ranks} ranks with {blocks} blocks each: a simulation transfers at most {MAX_TRANSFERS} \
         blocks; use fewer blocks, or count the rounds without executors"
    )]
    TooLarge {
        /// The number of ranks.
        ranks: u32,
        /// The blocks of a message or part.
        blocks: u32,
    },
    /// Not as many schedules as ranks.
    #[error("{given} schedules for {ranks} ranks: each rank has one, and there is at least one")]
    Schedules {
        /// The schedules given.
        given: usize,
        /// The ranks they are made for.
        ranks: u32,
    },
    /// A schedule in another's place, or made for another shape than the first.
    #[error("schedule {place} is that of rank {rank}, or made for another shape than schedule 0")]
    ScheduleOf {
        /// Its place in the list.
        place: u32,
        /// The rank it was made for.
        rank: Rank,
    },
    /// The run takes more time than 64 bits of picoseconds hold.
    #[error("the run takes more than 2^64 ps (213 days); the bandwidth or the times are unreal")]
    TimeOverflow,
}
