//! What the ranks are connected by.

use std::collections::BTreeMap;

use super::SimulateError;
use crate::schedule::Rank;

/// The most ports of a rank or host.
pub const MAX_PORTS: u16 = 64;

const PS_PER_S: u64 = 1_000_000_000_000;

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

/// What a port does, and the way from it to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// L: from when the last byte has left a port to when it arrives at another, in ps.
    pub latency_ps: u64,
    /// g: the time between the starts of two blocks at the out-port at least, in ps.
    pub gap_ps: u64,
    /// beta: bytes per second.
    pub bytes_per_second: u64,
}

impl Path {
    /// m / beta of m bytes, in ps, rounded up; the largest `u64` if it is more than that.
    pub fn transfer_ps(&self, bytes: u64) -> u64 {
        transfer_ps(bytes, self.bytes_per_second)
    }
}

/// bytes / rate in ps, rounded up; the largest `u64` if it is more than that. The rate is not 0.
pub(super) fn transfer_ps(bytes: u64, bytes_per_second: u64) -> u64 {
    // A division of 64 bits where that is enough is much faster.
    if let Some(product) = bytes.checked_mul(PS_PER_S) {
        return product.div_ceil(bytes_per_second);
    }
    let product = u128::from(bytes) * u128::from(PS_PER_S);
    u64::try_from(product.div_ceil(bytes_per_second.into())).unwrap_or(u64::MAX)
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
