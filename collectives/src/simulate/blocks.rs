//! How many bytes each block has.

use super::SimulateError;
use crate::schedule::{MAX_BLOCKS, Shape};

/// The sizes of the blocks of a message, or of each rank's part of it.
///
/// In a broadcast the whole message is cut, in a scatter, gather or allgather the part of one rank,
/// and every part in the same way. All blocks but the last have the same size, the last has the rest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Blocks {
    bytes: u64,
    block_bytes: u64,
    count: u32,
}

impl Blocks {
    /// Cuts `bytes` bytes, below 2^63, into blocks of `block_bytes`; 0 bytes are one empty block.
    ///
    /// # Errors
    ///
    /// Blocks of 0 bytes or of more than there are; too many blocks; 2^63 bytes or more.
    pub fn new(bytes: u64, block_bytes: u64) -> Result<Self, SimulateError> {
        let error = SimulateError::BlockBytes { block_bytes, bytes };
        if bytes >= 1 << 63 {
            return Err(SimulateError::MessageBytes { bytes });
        }
        if !(1..=bytes.max(1)).contains(&block_bytes) {
            return Err(error);
        }
        let count = u32::try_from(bytes.div_ceil(block_bytes).max(1)).map_err(|_| error.clone())?;
        if count > MAX_BLOCKS {
            return Err(error);
        }
        Ok(Self { bytes, block_bytes, count })
    }

    /// Cuts `bytes` bytes into `count` blocks of ceil(`bytes` / `count`), where trailing blocks may
    /// have less, or nothing.
    ///
    /// # Errors
    ///
    /// No blocks or too many; 2^63 bytes or more.
    pub fn equal(bytes: u64, count: u32) -> Result<Self, SimulateError> {
        if bytes >= 1 << 63 {
            return Err(SimulateError::MessageBytes { bytes });
        }
        if !(1..=MAX_BLOCKS).contains(&count) {
            return Err(SimulateError::BlockCount { count, of: count });
        }
        Ok(Self { bytes, block_bytes: bytes.div_ceil(count.into()).max(1), count })
    }

    /// The number of blocks k, at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of all blocks together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of every block but the last ones.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The bytes of one block, by its number in the schedule.
    pub fn bytes_of(&self, block: u32) -> u64 {
        let before = u64::from(block % self.count).saturating_mul(self.block_bytes);
        self.bytes.saturating_sub(before).min(self.block_bytes)
    }

    pub(super) fn check(&self, shape: Shape) -> Result<(), SimulateError> {
        if shape.blocks() != self.count {
            return Err(SimulateError::BlockCount { count: shape.blocks(), of: self.count });
        }
        Ok(())
    }
}
