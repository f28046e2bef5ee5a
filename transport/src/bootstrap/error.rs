//! Why the ranks of a job did not come together.

use std::fmt::{Display, Formatter};

use serde::{Deserialize, Serialize};

use super::handshake::HandshakeError;
use super::secret::SecretError;
use crate::wire::Rank;

/// Why a job could not be brought together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The address is none.
    #[error(
        "rank {rank}: cannot resolve the rendezvous address {address:?}: it has to be host:port"
    )]
    Address {
        /// This rank.
        rank: Rank,
        /// The address as it was given.
        address: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Nobody answered.
    #[error(
        "rank {rank}: nobody answered at the rendezvous address {address} for {after_ms} ms (last: \
         {last}): check that the launcher or rank 0 runs there, that the address is the same on \
         every rank, and that no firewall is in between"
    )]
    Unreachable {
        /// This rank.
        rank: Rank,
        /// The address.
        address: String,
        /// How long it tried, in milliseconds.
        after_ms: u64,
        /// How the last try ended.
        last: String,
    },
    /// Somebody answered, but is not this job.
    #[error("rank {rank}: the rendezvous at {address} is not this job's")]
    Stranger {
        /// This rank.
        rank: Rank,
        /// The address.
        address: String,
        /// How the handshake ended.
        #[source]
        source: HandshakeError,
    },
    /// The rendezvous refused the job; every rank that was there gets the same answer.
    #[error("{0}")]
    Refused(Refusal),
    /// The rendezvous went away, or does not speak the protocol.
    #[error("rank {rank}: the rendezvous at {address} broke off: {what}")]
    BrokenOff {
        /// This rank.
        rank: Rank,
        /// The address.
        address: String,
        /// How.
        what: String,
    },
    /// The rendezvous did not finish in time.
    #[error(
        "rank {rank}: the rendezvous at {address} did not bring {size} ranks together within \
         {after_ms} ms: check that every rank was started"
    )]
    Incomplete {
        /// This rank.
        rank: Rank,
        /// The address.
        address: String,
        /// Ranks of the job.
        size: u32,
        /// How long it waited, in milliseconds.
        after_ms: u64,
    },
    /// A rank of the job cannot be reached.
    #[error(
        "rank {rank}: no control connection with rank {peer} on {host} ({address}) within \
         {after_ms} ms: {reason}; check that the hosts reach each other at these addresses"
    )]
    Peer {
        /// This rank.
        rank: Rank,
        /// The rank it needs.
        peer: Rank,
        /// That rank's host.
        host: String,
        /// That rank's address.
        address: String,
        /// How long it tried, in milliseconds.
        after_ms: u64,
        /// How the last try ended.
        reason: String,
    },
    /// An address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The job secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A system call.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// A process, for messages to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl Display for Process {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {})", self.host, self.pid)
    }
}

/// Why the rendezvous cannot bring the job together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// Two processes have one number.
    DuplicateRank {
        /// The number.
        rank: Rank,
        /// Who came first.
        first: Process,
        /// Who came second.
        second: Process,
    },
    /// A process has a number that the job has not.
    RankOutside {
        /// The number.
        rank: Rank,
        /// Ranks of the job.
        size: u32,
        /// Who.
        process: Process,
    },
    /// A process takes the job for another size.
    SizeDiffers {
        /// The process's rank.
        rank: Rank,
        /// The size that it was given.
        given: u32,
        /// The size that the rendezvous was given.
        expected: u32,
        /// Who.
        process: Process,
    },
    /// Ranks did not come.
    Missing {
        /// Which.
        ranks: RankSet,
        /// Ranks of the job.
        size: u32,
        /// For how long the rendezvous was open, in milliseconds.
        after_ms: u64,
    },
    /// A rank registered and went away before all had come.
    WentAway {
        /// Which.
        rank: Rank,
        /// Who.
        process: Process,
    },
    /// Whoever runs the rendezvous ended it.
    Stopped {
        /// Why.
        reason: String,
    },
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DuplicateRank { rank, first, second } => write!(
                f,
                "two processes are rank {rank}: {first} and {second}; give every process its own \
                 VERBCAST_RANK"
            ),
            Self::RankOutside { rank, size, process } => write!(
                f,
                "{process} is rank {rank}, but the job has {size} rank(s), numbered 0 to {}; \
                 correct its VERBCAST_RANK or the VERBCAST_SIZE of all",
                size.saturating_sub(1)
            ),
            Self::SizeDiffers { rank, given, expected, process } => write!(
                f,
                "rank {rank} on {process} was started with size {given}, but the job has size \
                 {expected}; give every process the same VERBCAST_SIZE"
            ),
            Self::Missing { ranks, size, after_ms } => write!(
                f,
                "rank(s) {ranks} of {size} did not come to the rendezvous within {after_ms} ms; \
                 check that they were started, with this rendezvous address and job secret"
            ),
            Self::WentAway { rank, process } => write!(
                f,
                "rank {rank} on {process} went away before all ranks had come to the rendezvous; \
                 look at its own output"
            ),
            Self::Stopped { reason } => write!(f, "the launcher ended the job: {reason}"),
        }
    }
}

/// Ranges that a [`RankSet`] keeps; it crosses the network, in a frame of bounded length.
const RANGES_MAX: usize = 256;

/// A set of ranks for messages to people, kept and shown as ranges: `0, 3-5, 9`. Of very scattered
/// ranks the first are kept, and how many ranges are left out.
///
/// # Examples
/// ```
/// use verbcast_transport::bootstrap::RankSet;
///
/// let ranks: RankSet = [9, 3, 5, 4, 0].into_iter().collect();
/// assert_eq!(ranks.to_string(), "0, 3-5, 9");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSet {
    /// Inclusive ranges, ascending.
    ranges: Vec<(Rank, Rank)>,
    /// Ranges that are left out at the end.
    more: usize,
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut ranks: Vec<Rank> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        let mut ranges: Vec<(Rank, Rank)> = Vec::new();
        for rank in ranks {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
                _ => ranges.push((rank, rank)),
            }
        }
        let more = ranges.len().saturating_sub(RANGES_MAX);
        ranges.truncate(RANGES_MAX);
        Self { ranges, more }
    }
}

impl Display for RankSet {
    /// At most 16 ranges: what is too long to read is counted.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 16;
        for (i, (first, last)) in self.ranges.iter().take(SHOWN).enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
        }
        let hidden = self.ranges.len().saturating_sub(SHOWN) + self.more;
        if hidden > 0 {
            write!(f, " and {hidden} more ranges")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_compact() {
        let show = |ranks: &[Rank]| RankSet::from_iter(ranks.iter().copied()).to_string();
        assert_eq!(show(&[]), "");
        assert_eq!(show(&[0, 3, 4, 5, 9]), "0, 3-5, 9");
        assert_eq!(show(&[u32::MAX]), "4294967295");
        let odd: Vec<Rank> = (0..1000).map(|i| 2 * i + 1).collect();
        assert!(show(&odd).ends_with("29, 31 and 984 more ranges"), "{}", show(&odd));
        assert_eq!(RankSet::from_iter(odd).ranges.len(), RANGES_MAX);
    }
}
