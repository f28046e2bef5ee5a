//! From a queue pair's number to its link and lane.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes one 32-bit number: queue pair numbers and ranks are not chosen by strangers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        // Fibonacci hashing (Knuth, TAOCP 3, 6.4): the multiplier is 2^64 divided by the golden
        // ratio; the high bits, which the table uses as tags, depend on all bits of the number.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// A map by number.
pub(crate) type NumberMap<T> = HashMap<u32, T, BuildHasherDefault<NumberHasher>>;

/// Where completions of a queue pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Position of the link in the fabric's list.
    pub(crate) link: usize,
    /// Its lane.
    pub(crate) lane: usize,
}
