//! Which ranks keep a control connection, and how frames find their way over them.
//!
//! Rank r is connected with (r + s[j]) mod N and (r - s[j]) mod N for the circulant skips s[j]: at
//! most 2 ceil(log2 N) connections, and the graph stays connected when ranks die.

use crate::wire::Rank;

/// The skips s[0] = 1 < s[1] < ... of a job of `size` ranks: s[q] = N (left out here), s[j] =
/// ceil(s[j+1] / 2). `ceil(log2 size)` of them.
///
/// Source: J. L. Traeff, DOI 10.1145/3735139. Since s[j+1] <= 2 s[j], one plus the sum of the
/// skips below j is at least s[j], which is what dissemination over them needs.
pub(crate) fn skips(size: u32) -> Vec<u32> {
    let mut skips = Vec::new();
    let mut skip = size;
    while skip > 1 {
        skip = skip.div_ceil(2);
        skips.push(skip);
    }
    skips.reverse();
    skips
}

/// A rank's place in the job.
#[derive(Clone, Debug)]
pub(crate) struct Overlay {
    rank: Rank,
    size: u32,
    skips: Vec<u32>,
}

/// A rank at the other end of a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) rank: Rank,
    /// Whether this end opens the connection.
    pub(crate) dial: bool,
}

impl Overlay {
    pub(crate) fn new(rank: Rank, size: u32) -> Self {
        assert!(rank < size, "rank {rank} of {size}");
        Self { rank, size, skips: skips(size) }
    }

    pub(crate) fn skips(&self) -> &[u32] {
        &self.skips
    }

    /// (r + skip) mod N.
    pub(crate) fn ahead(&self, skip: u32) -> Rank {
        ((u64::from(self.rank) + u64::from(skip)) % u64::from(self.size)) as Rank
    }

    /// (r - skip) mod N.
    pub(crate) fn behind(&self, skip: u32) -> Rank {
        self.ahead(self.size - skip)
    }

    /// The neighbours, ascending. Of each pair one end dials: r dials r + s[j], and where both
    /// would, the lower one does.
    pub(crate) fn neighbours(&self) -> Vec<Neighbour> {
        let ahead: Vec<Rank> = self.skips.iter().map(|skip| self.ahead(*skip)).collect();
        let behind: Vec<Rank> = self.skips.iter().map(|skip| self.behind(*skip)).collect();
        let mut ranks: Vec<Rank> = ahead.iter().chain(&behind).copied().collect();
        ranks.sort_unstable();
        ranks.dedup();
        let dial = |rank| ahead.contains(&rank) && (!behind.contains(&rank) || self.rank < rank);
        ranks.into_iter().map(|rank| Neighbour { rank, dial: dial(rank) }).collect()
    }

    /// The neighbour that brings a frame closer to `to`: the largest skip that does not pass it.
    /// `None` if `to` is this rank.
    pub(crate) fn next_hop(&self, to: Rank) -> Option<Rank> {
        let distance =
            (u64::from(to) + u64::from(self.size) - u64::from(self.rank)) % u64::from(self.size);
        let skip = self.skips.iter().rev().find(|skip| u64::from(**skip) <= distance)?;
        Some(self.ahead(*skip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_halve_and_cover() {
        assert!(skips(1).is_empty());
        assert_eq!(skips(2), [1]);
        assert_eq!(skips(9), [1, 2, 3, 5]);
        for size in 2..2000_u32 {
            let skips = skips(size);
            assert_eq!(skips.len() as u32, (size - 1).ilog2() + 1, "ceil(log2 {size})");
            let mut covered = 1;
            for skip in skips {
                assert!(skip <= covered, "size {size}: a gap below {skip}");
                covered += skip;
            }
            assert!(covered >= size, "size {size}: only {covered} ranks are heard");
        }
    }

    #[test]
    fn both_ends_of_a_pair_know_it_and_one_dials() {
        for size in 2..100 {
            for rank in 0..size {
                let neighbours = Overlay::new(rank, size).neighbours();
                assert!(neighbours.len() <= 2 * skips(size).len());
                for neighbour in neighbours {
                    assert_ne!(neighbour.rank, rank);
                    let back = Overlay::new(neighbour.rank, size).neighbours();
                    let us = back.iter().find(|n| n.rank == rank).unwrap();
                    assert_ne!(us.dial, neighbour.dial, "{rank} and {neighbour:?} of {size}");
                }
            }
        }
    }

    #[test]
    fn every_route_ends_within_the_number_of_skips() {
        for size in 1..100 {
            for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
                let (mut at, mut hops) = (from, 0);
                while let Some(next) = Overlay::new(at, size).next_hop(to) {
                    let neighbours = Overlay::new(at, size).neighbours();
                    assert!(neighbours.iter().any(|n| n.rank == next));
                    (at, hops) = (next, hops + 1);
                }
                assert_eq!(at, to);
                assert!(hops <= skips(size).len(), "{from} to {to} of {size}: {hops} hops");
            }
        }
    }
}
