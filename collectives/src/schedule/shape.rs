//! What a schedule is made for.

use std::ops::Range;

use super::{Operation, Rank, ScheduleError};

/// The largest number of ranks a schedule is made for; it keeps sums of two ranks within 32 bits.
pub const MAX_RANKS: u32 = 1 << 30;

/// The largest number of blocks of one message: a block number has 20 bits on the wire.
pub const MAX_BLOCKS: u32 = 1 << 20;

/// The largest number of ports of a rank.
pub const MAX_PORTS: u16 = 64;

/// The largest radix of a k-nomial tree.
pub const MAX_RADIX: u32 = 1 << 16;

/// What a schedule is made for: operation, number of ranks, root, blocks, ports, radix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    operation: Operation,
    ranks: u32,
    root: Rank,
    blocks: u32,
    ports: u16,
    radix: u32,
}

impl Default for Shape {
    /// A broadcast of one block by a single rank.
    fn default() -> Self {
        Self { operation: Operation::Broadcast, ranks: 1, root: 0, blocks: 1, ports: 1, radix: 2 }
    }
}

impl Shape {
    /// The shape of a broadcast with one port: `ranks` ranks, 1 to [`MAX_RANKS`], and `blocks` blocks,
    /// 1 to [`MAX_BLOCKS`].
    ///
    /// A message of 0 bytes has one block, which is empty.
    ///
    /// # Errors
    ///
    /// A number outside its range, or a root that is not one of the ranks.
    pub fn new(ranks: u32, root: Rank, blocks: u32) -> Result<Self, ScheduleError> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(ScheduleError::RankCount { ranks });
        }
        if root >= ranks {
            return Err(ScheduleError::RootOutside { root, ranks });
        }
        if !(1..=MAX_BLOCKS).contains(&blocks) {
            return Err(ScheduleError::BlockCount { blocks });
        }
        Ok(Self { ranks, root, blocks, ..Self::default() })
    }

    /// The same for another operation; where blocks belong to ranks, k is the number of each rank.
    ///
    /// # Errors
    ///
    /// More blocks in all than have 32-bit numbers.
    pub fn with_operation(self, operation: Operation) -> Result<Self, ScheduleError> {
        let Self { ranks, blocks, .. } = self;
        if operation.has_parts() && ranks.checked_mul(blocks).is_none() {
            return Err(ScheduleError::TotalBlocks { ranks, blocks });
        }
        Ok(Self { operation, ..self })
    }

    /// The same with `ports` ports, 1 to [`MAX_PORTS`].
    ///
    /// # Errors
    ///
    /// A number outside its range.
    pub fn with_ports(self, ports: u16) -> Result<Self, ScheduleError> {
        if !(1..=MAX_PORTS).contains(&ports) {
            return Err(ScheduleError::PortCount { ports });
        }
        Ok(Self { ports, ..self })
    }

    /// The same with this radix for `knomial`, 2 to [`MAX_RADIX`]; other algorithms ignore it.
    ///
    /// # Errors
    ///
    /// A number outside its range.
    pub fn with_radix(self, radix: u32) -> Result<Self, ScheduleError> {
        if !(2..=MAX_RADIX).contains(&radix) {
            return Err(ScheduleError::Radix { radix });
        }
        Ok(Self { radix, ..self })
    }

    /// The same with one block, of the message or of each part, which no shape is without.
    pub(crate) fn with_one_block(self) -> Self {
        Self { blocks: 1, ..self }
    }

    /// The operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The number of ranks N.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The rank that sends or collects; in an allgather without meaning.
    pub fn root(&self) -> Rank {
        self.root
    }

    /// The number of blocks k, of the message or of each rank's part.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The number of ports d of a rank.
    pub fn ports(&self) -> u16 {
        self.ports
    }

    /// The radix of a `knomial` tree.
    pub fn radix(&self) -> u32 {
        self.radix
    }

    /// The number of different blocks: k in a broadcast, else N k.
    pub fn total_blocks(&self) -> u32 {
        if self.operation.has_parts() { self.ranks * self.blocks } else { self.blocks }
    }

    /// The blocks of a rank's part; all blocks in a broadcast.
    pub fn part(&self, rank: Rank) -> Range<u32> {
        match self.operation {
            Operation::Broadcast => 0..self.blocks,
            _ => rank * self.blocks..(rank + 1) * self.blocks,
        }
    }

    /// The blocks that a rank holds at the start.
    pub fn held_at_start(&self, rank: Rank) -> Range<u32> {
        match self.operation {
            Operation::Gather | Operation::Allgather => self.part(rank),
            _ if rank == self.root => 0..self.total_blocks(),
            _ => 0..0,
        }
    }

    /// The blocks that a rank must hold at the end; it may hold more, of what it passed on.
    pub fn held_at_end(&self, rank: Rank) -> Range<u32> {
        match self.operation {
            Operation::Broadcast | Operation::Allgather => 0..self.total_blocks(),
            Operation::Gather if rank == self.root => 0..self.total_blocks(),
            Operation::Scatter | Operation::Gather => self.part(rank),
        }
    }

    /// The shape of one port's stripe, which has every d-th block from `port` on; `None` if it has none.
    pub(super) fn stripe(&self, port: u16) -> Option<Self> {
        let (blocks, ports) = (self.blocks, u32::from(self.ports));
        let own = blocks.checked_sub(port.into())?.div_ceil(ports);
        (own > 0).then_some(Self { blocks: own, ports: 1, ..*self })
    }

    /// The number of the rank counted from the root: `(rank - root) mod N`.
    pub(crate) fn relative(&self, rank: Rank) -> u32 {
        if rank >= self.root { rank - self.root } else { rank + self.ranks - self.root }
    }

    /// The inverse of [`Shape::relative`]; `relative` must be below N.
    pub(crate) fn absolute(&self, relative: u32) -> Rank {
        // Both are below MAX_RANKS = 2^30, so the sum fits.
        let sum = relative + self.root;
        if sum >= self.ranks { sum - self.ranks } else { sum }
    }
}
