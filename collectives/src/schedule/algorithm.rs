//! The broadcast algorithms by name and by code.

use std::fmt;
use std::str::FromStr;

use super::ScheduleError;

/// A broadcast algorithm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Algorithm {
    /// `binomial`: a binomial tree, each rank passing the whole message on: q k rounds.
    Binomial,
    /// `pipelined-chain`: each rank passes each block on to its successor: N + k - 2 rounds.
    PipelinedChain,
    /// `pipelined-tree`: the circulant schedule: q + k - 1 rounds, the least possible.
    PipelinedTree,
}

/// Name and code on the wire of each algorithm, the one place for both.
///
/// Codes count the names of all broadcast algorithms of Verbcast in their documented order, those
/// not yet there included, so that a code never changes its meaning. 0 is no algorithm.
const TABLE: [(Algorithm, &str, u8); 3] = [
    (Algorithm::PipelinedChain, "pipelined-chain", 3),
    (Algorithm::Binomial, "binomial", 4),
    (Algorithm::PipelinedTree, "pipelined-tree", 9),
];

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 3] = [Self::Binomial, Self::PipelinedChain, Self::PipelinedTree];

    /// The fixed name, as on the command line and in output.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The code on the wire, never 0.
    pub fn code(self) -> u8 {
        self.row().2
    }

    /// The algorithm that has this code on the wire.
    ///
    /// # Errors
    ///
    /// No algorithm has the code.
    pub fn from_code(code: u8) -> Result<Self, ScheduleError> {
        TABLE
            .iter()
            .find(|row| row.2 == code)
            .map(|row| row.0)
            .ok_or(ScheduleError::UnknownCode { code })
    }

    fn row(self) -> &'static (Self, &'static str, u8) {
        TABLE.iter().find(|row| row.0 == self).expect("the table has a row for each algorithm")
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = ScheduleError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        TABLE
            .iter()
            .find(|row| row.1 == name)
            .map(|row| row.0)
            .ok_or_else(|| ScheduleError::UnknownName { name: name.to_owned() })
    }
}

/// The names in one line, for messages.
pub(super) fn names() -> String {
    Algorithm::ALL.map(Algorithm::name).join(", ")
}
