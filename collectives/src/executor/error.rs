//! Events and schedules that the executor refuses.

use crate::schedule::Rank;

/// An event or a schedule that the executor cannot take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// The schedule makes the rank receive a block twice, or the root receive one at all.
    #[error("the schedule of rank {rank} receives block {block} from rank {peer}, but holds it")]
    ReceivesHeldBlock {
        /// The rank of the schedule.
        rank: Rank,
        /// The peer of the receive that is too many.
        peer: Rank,
        /// The block.
        block: u32,
    },
    /// The schedule makes the rank send a block that it never receives.
    #[error("the schedule of rank {rank} sends block {block} to rank {peer}, but never gets it")]
    SendsMissingBlock {
        /// The rank of the schedule.
        rank: Rank,
        /// The peer of the send.
        peer: Rank,
        /// The block.
        block: u32,
    },
    /// A grant came from a rank to which the schedule sends nothing.
    #[error("rank {peer} granted its buffer to rank {rank}, which has nothing to send to it")]
    GrantNotExpected {
        /// The rank that runs the schedule.
        rank: Rank,
        /// The peer that granted.
        peer: Rank,
    },
    /// A second grant came from the same rank.
    #[error("rank {peer} granted its buffer to rank {rank} twice in one operation")]
    GrantedTwice {
        /// The rank that runs the schedule.
        rank: Rank,
        /// The peer that granted.
        peer: Rank,
    },
    /// A block came that the schedule does not expect from this peer.
    #[error("block {block} came to rank {rank} from rank {peer}, {}", describe_source(*.expected))]
    BlockNotExpected {
        /// The rank that runs the schedule.
        rank: Rank,
        /// The peer that the block came from.
        peer: Rank,
        /// The block number that came, which may be outside the message.
        block: u32,
        /// The rank from which the schedule expects that block, if from any.
        expected: Option<Rank>,
    },
    /// A send was reported complete that is not in flight.
    #[error("rank {rank} has no send of block {block} to rank {peer} in flight")]
    NotInFlight {
        /// The rank that runs the schedule.
        rank: Rank,
        /// The peer named in the completion.
        peer: Rank,
        /// The block named in the completion.
        block: u32,
    },
}

fn describe_source(expected: Option<Rank>) -> String {
    match expected {
        Some(source) => format!("but should come from rank {source}"),
        None => "but should come from nobody".to_owned(),
    }
}
