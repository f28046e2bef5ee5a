//! What goes wrong in a run.

use super::SimulateError;
use crate::schedule::Rank;

/// The most times that a block is sent again.
pub const MAX_RETRIES: u32 = 100;

/// Losses, jitter, and ranks that are slow, late or dead; by default none of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    /// The blocks that are lost on their way, of a million.
    pub loss_ppm: u32,
    /// From when a block has left the port until its sender finds it lost, in ps.
    pub timeout_ps: u64,
    /// How often a block is sent again before its link is given up.
    pub retries: u32,
    /// The most that is added to the latency of a block, in ps; each amount is equally likely.
    pub jitter_ps: u64,
    /// Ranks whose ports take this many per cent of the usual time for everything, 100 being usual.
    pub slow: Vec<(Rank, u32)>,
    /// Ranks that make the call this late, in ps: until then they send nothing and grant nothing.
    pub late: Vec<(Rank, u64)>,
    /// Ranks that neither send nor receive from this time on, in ps.
    pub dead: Vec<(Rank, u64)>,
}

impl Default for Faults {
    /// None; a timeout of 1 ms and 7 retries, should there be a loss.
    fn default() -> Self {
        Self {
            loss_ppm: 0,
            timeout_ps: 1_000_000_000,
            retries: 7,
            jitter_ps: 0,
            slow: Vec::new(),
            late: Vec::new(),
            dead: Vec::new(),
        }
    }
}

impl Faults {
    pub(super) fn check(&self, ranks: u32) -> Result<(), SimulateError> {
        if self.loss_ppm > 1_000_000 {
            return Err(SimulateError::Loss { ppm: self.loss_ppm });
        }
        if self.retries > MAX_RETRIES {
            return Err(SimulateError::Retries { retries: self.retries });
        }
        if let Some(&(rank, _)) = self.slow.iter().find(|(_, per_cent)| *per_cent == 0) {
            return Err(SimulateError::Slow { rank });
        }
        check_ranks("slowness", self.slow.iter().map(|&(rank, _)| rank), ranks)?;
        check_ranks("lateness", self.late.iter().map(|&(rank, _)| rank), ranks)?;
        check_ranks("death", self.dead.iter().map(|&(rank, _)| rank), ranks)
    }
}

fn check_ranks(
    what: &'static str,
    given: impl Iterator<Item = Rank>,
    ranks: u32,
) -> Result<(), SimulateError> {
    let mut given: Vec<Rank> = given.collect();
    given.sort_unstable();
    if let Some(&rank) = given.last().filter(|&&rank| rank >= ranks) {
        return Err(SimulateError::RankOutside { what, rank, ranks });
    }
    match given.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(SimulateError::RankTwice { what, rank: pair[0] }),
        None => Ok(()),
    }
}

/// For each rank a number; most have the usual one.
#[derive(Clone, Debug)]
pub(super) struct ByRank<T> {
    usual: T,
    others: Vec<(Rank, T)>,
}

impl<T: Copy> ByRank<T> {
    pub(super) fn new(usual: T, others: &[(Rank, T)]) -> Self {
        let mut others = others.to_vec();
        others.sort_unstable_by_key(|&(rank, _)| rank);
        Self { usual, others }
    }

    pub(super) fn of(&self, rank: Rank) -> T {
        if self.others.is_empty() {
            return self.usual;
        }
        match self.others.binary_search_by_key(&rank, |&(rank, _)| rank) {
            Ok(place) => self.others[place].1,
            Err(_) => self.usual,
        }
    }
}

/// `time_ps` times a percentage, rounded up.
pub(super) fn scale(time_ps: u64, per_cent: u32) -> u64 {
    if per_cent == 100 {
        return time_ps;
    }
    let scaled = (u128::from(time_ps) * u128::from(per_cent)).div_ceil(100);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
