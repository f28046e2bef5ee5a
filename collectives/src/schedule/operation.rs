//! The operations that schedules are made for.

use std::fmt;
use std::str::FromStr;

use super::ScheduleError;

/// What the ranks do together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Operation {
    /// Every rank gets the root's blocks.
    #[default]
    Broadcast,
    /// Each rank gets its own blocks from the root.
    Scatter,
    /// The root gets each rank's blocks.
    Gather,
    /// Every rank gets each rank's blocks.
    Allgather,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 4] = [Self::Broadcast, Self::Scatter, Self::Gather, Self::Allgather];

    /// The name, as on the command line and in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::Allgather => "allgather",
        }
    }

    /// Whether the blocks belong to ranks: rank i's are i k .. i k + k - 1, of N k in all.
    pub fn has_parts(self) -> bool {
        self != Self::Broadcast
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Operation {
    type Err = ScheduleError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || ScheduleError::UnknownOperation { name: name.to_owned() };
        Self::ALL.into_iter().find(|operation| operation.name() == name).ok_or_else(unknown)
    }
}
