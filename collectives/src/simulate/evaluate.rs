//! Rounds and bytes, counted from the schedules alone.

use super::{Blocks, SimulateError, Telephone};
use crate::schedule::{Algorithm, Direction, Rank, RankSchedule, Shape};

/// The most rounds that are counted: it bounds the memory.
const MAX_ROUNDS: u32 = 1 << 28;

/// What the schedules of some ranks, or of all, do in rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoundCount {
    /// The rounds in which one of the ranks sends or receives.
    pub rounds: u64,
    /// The blocks that the ranks receive.
    pub transfers: u64,
    /// The paced telephone time, in ps: over the rounds the largest message of one of the ranks.
    pub time_ps: u64,
}

/// Generates the schedules of the ranks given, one after another, and adds their rounds up.
///
/// With all ranks, `0..N`, the time is that of [`Simulation::run`](super::Simulation::run) in the
/// telephone model, but only one schedule is in memory at a time, so N may be a million. With some
/// ranks it is a lower bound.
///
/// # Errors
///
/// Numbers outside their limits; more than 2^28 rounds; times above 2^64 ps.
///
/// # Examples
///
/// ```
/// use verbcast_collectives::schedule::{Algorithm, Shape};
/// use verbcast_collectives::simulate::{Blocks, Telephone, count_rounds};
///
/// let shape = Shape::new(100_000, 0, 4)?;
/// let blocks = Blocks::new(4000, 1000)?;
/// let model = Telephone { alpha_ps: 1_000, bytes_per_second: 1_000_000_000 };
/// let count = count_rounds(Algorithm::PipelinedTree, shape, blocks, model, 0..1000)?;
/// assert_eq!(count.rounds, 17 + 4 - 1);
/// assert_eq!(count.time_ps, 20 * (1_000 + 1_000_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn count_rounds(
    algorithm: Algorithm,
    shape: Shape,
    blocks: Blocks,
    model: Telephone,
    ranks: impl IntoIterator<Item = Rank>,
) -> Result<RoundCount, SimulateError> {
    blocks.check(shape)?;
    super::Model::Telephone(model).check(shape.ranks())?;
    // The time of the largest message, in ps.
    let mut largest: Vec<u64> = Vec::new();
    let mut used: Vec<bool> = Vec::new();
    let mut transfers = 0;
    let mut schedule = RankSchedule::default();
    for rank in ranks {
        schedule.fill(algorithm, shape, rank)?;
        if schedule.rounds() > MAX_ROUNDS {
            return Err(SimulateError::TooLarge { ranks: shape.ranks(), blocks: blocks.count() });
        }
        let of_message = |step: &crate::schedule::Step| {
            (step.round, step.direction == Direction::Send, step.peer, step.port)
        };
        for message in schedule.steps().chunk_by(|a, b| of_message(a) == of_message(b)) {
            let round = message[0].round as usize;
            if round >= used.len() {
                used.resize(round + 1, false);
                largest.resize(round + 1, 0);
            }
            let bytes = message.iter().map(|step| blocks.bytes_of(step.block));
            used[round] = true;
            largest[round] = largest[round].max(model.message_ps(bytes));
            if message[0].direction == Direction::Recv {
                transfers += message.len() as u64;
            }
        }
    }
    let rounds = used.iter().filter(|used| **used).count() as u64;
    let time_ps = largest.iter().copied().fold(0, u64::saturating_add);
    if time_ps == u64::MAX {
        return Err(SimulateError::TimeOverflow);
    }
    Ok(RoundCount { rounds, transfers, time_ps })
}
