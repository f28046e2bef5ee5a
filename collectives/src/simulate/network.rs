//! What the ranks are connected by.

use std::collections::BTreeMap;

use super::SimulateError;
use crate::model::Path;
use crate::schedule::Rank;

/// The most ports of a rank or host.
pub const MAX_PORTS: u16 = 64;

/// The port model of a run; the two are never mixed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Model {
    /// Paced by rounds, a port busy alpha + m / beta for a message.
    Telephone(Telephone),
    /// Without rounds, a port busy max(g, m / beta) for a block.
    Loggp(Loggp),
}

/// The telephone model: every rank has the ports of its schedule, all alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Telephone {
    /// alpha: the time to start a message, in ps.
    pub alpha_ps: u64,
    /// beta: the bytes per second of a port.
    pub bytes_per_second: u64,
}

impl Telephone {
    /// alpha + m / beta of a message whose blocks have these bytes, m / beta being the sum of those of
    /// the blocks; the largest `u64` if it is more than that.
    pub(super) fn message_ps(&self, blocks: impl Iterator<Item = u64>) -> u64 {
        let port = Path::from_ns(0, 0, self.bytes_per_second);
        blocks.fold(self.alpha_ps, |sum, bytes| sum.saturating_add(port.transfer_ps(bytes)))
    }
}

/// The loggp model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loggp {
    /// d: the ports of a rank, or of a host whose ranks share them.
    pub ports: u16,
    /// What a port does and how far the others are.
    pub path: Path,
    /// How many ranks share the ports of one host: ranks 0 to n - 1 those of the first, and so on.
    pub ranks_per_host: u32,
    /// What carries blocks between ranks of one host; each rank has a port of its own to it. If
    /// `None`, they go through the host's ports like all others.
    pub local: Option<Path>,
    /// Links from one rank to another that are not like the others.
    pub links: BTreeMap<(Rank, Rank), Path>,
}

impl Loggp {
    /// Ranks with one port each, all alike.
    pub fn new(path: Path) -> Self {
        Self { ports: 1, path, ranks_per_host: 1, local: None, links: BTreeMap::new() }
    }
}

impl Model {
    pub(super) fn check(&self, ranks: u32) -> Result<(), SimulateError> {
        let check = |place, bytes_per_second| match bytes_per_second {
            0 => Err(SimulateError::NoBandwidth { place }),
            _ => Ok(()),
        };
        let loggp = match self {
            Self::Telephone(model) => return check("the port", model.bytes_per_second),
            Self::Loggp(loggp) => loggp,
        };
        check("the path", loggp.path.bytes_per_second)?;
        if let Some(local) = loggp.local {
            check("the path inside a host", local.bytes_per_second)?;
        }
        for (&(from, to), link) in &loggp.links {
            check("a link", link.bytes_per_second)?;
            let outside = [from, to].into_iter().find(|&rank| rank >= ranks);
            if let Some(rank) = outside {
                return Err(SimulateError::RankOutside { what: "a link", rank, ranks });
            }
        }
        if !(1..=MAX_PORTS).contains(&loggp.ports) {
            return Err(SimulateError::Ports { ports: loggp.ports });
        }
        if loggp.ranks_per_host == 0 {
            return Err(SimulateError::RanksPerHost);
        }
        Ok(())
    }
}
