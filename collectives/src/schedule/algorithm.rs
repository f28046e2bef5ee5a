//! The algorithms by name and by code.

use std::fmt;
use std::str::FromStr;

use super::{Operation, ScheduleError};

/// An algorithm for one or more operations; see [`Algorithm::of`].
///
/// q = ceil(log2 N); rounds are those of a broadcast of k blocks with one port, N >= 2, where the
/// algorithm has broadcasts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Algorithm {
    /// `flat`: the root and each other rank, one after the other: (N - 1) k rounds.
    Flat,
    /// `chain`: each rank passes the whole message on to its successor: (N - 1) k rounds.
    Chain,
    /// `pipelined-chain`: each rank passes each block on to its successor: N + k - 2 rounds.
    PipelinedChain,
    /// `binomial`: a binomial tree, each rank passing the whole message on: q k rounds.
    Binomial,
    /// `knomial`: the same with a radix above two, and with as many children at once as ports.
    Knomial,
    /// `pipelined-binary`: a complete binary tree, block by block: about 2 k + 2 log2 N rounds.
    PipelinedBinary,
    /// `pipelined-binomial`: a binomial tree, block by block: q k rounds.
    PipelinedBinomial,
    /// `two-tree`: two binary trees, each for half of the blocks: about k + 2 log2 N rounds.
    TwoTree,
    /// `pipelined-tree`: the circulant schedule: q + k - 1 rounds, the least possible.
    PipelinedTree,
    /// `scatter-allgather`: a binomial scatter and a ring: q + N - 1 rounds of many blocks each.
    ScatterAllgather,
    /// `bidirectional-ring`: two chains from the root, in both directions of a ring.
    BidirectionalRing,
    /// `ring`: each rank passes each part on to its successor: N - 1 rounds.
    Ring,
    /// `recursive-doubling`: exchanges over distances 1, 2, 4, ..., N a power of two: q rounds.
    RecursiveDoubling,
    /// `bruck`: the same for any N, around a ring: q rounds.
    Bruck,
    /// `circulant`: the broadcasts of `pipelined-tree` from all ranks at once: q + k - 1 rounds.
    Circulant,
}

use Algorithm::{
    BidirectionalRing, Binomial, Bruck, Chain, Circulant, Flat, Knomial, PipelinedBinary,
    PipelinedBinomial, PipelinedChain, PipelinedTree, RecursiveDoubling, Ring, ScatterAllgather,
    TwoTree,
};

/// Name and code on the wire of each algorithm, the one place for both.
///
/// Codes count the names in their documented order, so that a code never changes its meaning. 0 is
/// no algorithm.
const TABLE: [(Algorithm, &str, u8); 15] = [
    (Flat, "flat", 1),
    (Chain, "chain", 2),
    (PipelinedChain, "pipelined-chain", 3),
    (Binomial, "binomial", 4),
    (Knomial, "knomial", 5),
    (PipelinedBinary, "pipelined-binary", 6),
    (PipelinedBinomial, "pipelined-binomial", 7),
    (TwoTree, "two-tree", 8),
    (PipelinedTree, "pipelined-tree", 9),
    (ScatterAllgather, "scatter-allgather", 10),
    (BidirectionalRing, "bidirectional-ring", 11),
    (Ring, "ring", 12),
    (RecursiveDoubling, "recursive-doubling", 13),
    (Bruck, "bruck", 14),
    (Circulant, "circulant", 15),
];

impl Algorithm {
    /// The broadcast algorithms.
    pub const BROADCAST: [Self; 11] = [
        Flat,
        Chain,
        PipelinedChain,
        Binomial,
        Knomial,
        PipelinedBinary,
        PipelinedBinomial,
        TwoTree,
        PipelinedTree,
        ScatterAllgather,
        BidirectionalRing,
    ];

    /// The algorithms of an operation, in their documented order.
    pub fn of(operation: Operation) -> &'static [Self] {
        match operation {
            Operation::Broadcast => &Self::BROADCAST,
            Operation::Scatter | Operation::Gather => &[Flat, Binomial, Knomial],
            Operation::Allgather => &[Ring, RecursiveDoubling, Bruck, Circulant],
        }
    }

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

/// The names of an operation's algorithms in one line, for messages.
pub(super) fn names(operation: Operation) -> String {
    let names: Vec<_> = Algorithm::of(operation).iter().map(|algorithm| algorithm.name()).collect();
    names.join(", ")
}

/// All names in one line, for messages.
pub(super) fn all_names() -> String {
    TABLE.map(|row| row.1).join(", ")
}
