//! In which pieces a file goes through the memory.
//!
//! A file has one part or several, of which each goes to its own place. Step i moves the i-th piece
//! of every part; what one step moves lies in one *window* of the memory.

use std::ops::Range;

use super::bytes::display;
use super::error::Error;

/// The least memory that a rank can do with, in bytes, where there is one part.
pub(crate) const MEMORY_MIN: u64 = WINDOWS_MIN * PIECE_BYTES_MIN;

/// Windows that the memory is cut into at least, so that reading, moving and writing overlap.
const WINDOWS_MIN: u64 = 4;

/// Windows that the memory is cut into at most. The slowest of the three parts sets the pace however
/// far the others run ahead, and fresh memory costs more than what is still in the caches.
const WINDOWS_MAX: u64 = 8;

/// Windows that a file is cut into if it has enough bytes, for the same reason.
const WINDOWS_OF_FILE: u64 = 8;

/// The smallest window that a file is cut into on purpose, in bytes.
const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// The largest window in bytes: many blocks, of which the start and the end of a broadcast take few,
/// and still small beside the caches.
const WINDOW_BYTES_MAX: u64 = 4 << 20;

/// The smallest piece of a part, in bytes.
const PIECE_BYTES_MIN: u64 = 16 << 10;

/// The smallest piece of a part on purpose, in bytes, be the window as large as it has to: below that a
/// message costs more than its bytes.
const PIECE_BYTES_WANTED: u64 = 64 << 10;

const PAGE_BYTES: u64 = 4096;

/// How a file goes through the memory; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Parts of the file.
    parts: u64,
    /// Bytes of each piece but a part's last.
    pub(crate) piece_bytes: u64,
    /// Pieces of the longest part.
    pub(crate) steps: u64,
    /// Windows in memory.
    windows: u64,
}

impl Plan {
    /// For a file of so many parts, of which the longest has `longest` bytes, through at most `memory`
    /// bytes.
    ///
    /// # Errors
    /// If that is too little memory for so many parts.
    pub(crate) fn new(longest: u64, parts: u32, memory: u64) -> Result<Self, Error> {
        let parts = u64::from(parts);
        let most = memory / WINDOWS_MIN / parts;
        if most < PIECE_BYTES_MIN {
            let needed = display(parts * WINDOWS_MIN * PIECE_BYTES_MIN);
            return Err(Error::Memory { given: display(memory), needed, parts });
        }
        let window = longest.saturating_mul(parts) / WINDOWS_OF_FILE;
        let window = window.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
        let wanted = (window / parts).max(PIECE_BYTES_WANTED);
        let piece_bytes = wanted.min(most) / PAGE_BYTES * PAGE_BYTES;
        let steps = longest.div_ceil(piece_bytes);
        let windows = steps.min(memory / parts / piece_bytes).min(WINDOWS_MAX);
        Ok(Self { parts, piece_bytes, steps, windows })
    }

    /// Bytes of a window that holds a piece of each part.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.parts * self.piece_bytes
    }

    /// Bytes of all windows of a rank, each of `window_bytes`; 0 for an empty file.
    pub(crate) fn memory_bytes(&self, window_bytes: u64) -> u64 {
        self.windows * window_bytes
    }

    /// The piece that this step moves of a part of the file.
    pub(crate) fn piece(&self, part: &Range<u64>, step: u64) -> Range<u64> {
        let offset = |step: u64| step.saturating_mul(self.piece_bytes);
        let at = |step| part.start.saturating_add(offset(step)).min(part.end);
        at(step)..at(step + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_keep_to_the_memory_and_cover_every_part() {
        let sizes = [0, 1, 4095, 65536, 65537, 1 << 20, (24 << 20) + 1, 5 << 30, u64::MAX >> 1];
        let memories = [MEMORY_MIN, MEMORY_MIN + 1, 1 << 20, (16 << 20) + 5, 256 << 20];
        let mut refused = 0;
        for parts in [1, 2, 3, 7, 64, 1000] {
            for (memory, longest) in
                memories.into_iter().flat_map(|memory| sizes.map(|bytes| (memory, bytes)))
            {
                let Ok(plan) = Plan::new(longest, parts, memory) else {
                    assert!(memory < MEMORY_MIN * u64::from(parts));
                    refused += 1;
                    continue;
                };
                let held = plan.memory_bytes(plan.window_bytes());
                assert!(held <= memory, "{plan:?}");
                assert_eq!(plan.piece_bytes % PAGE_BYTES, 0);
                assert!(plan.windows >= WINDOWS_MIN || plan.windows == plan.steps, "{plan:?}");
                if plan.steps > 10_000 {
                    continue;
                }
                for part in [77..77 + longest, 5..5 + longest / 2, 9..9] {
                    let mut end = part.start;
                    for step in 0..plan.steps {
                        let piece = plan.piece(&part, step);
                        assert_eq!(piece.start, end);
                        assert!(piece.end - piece.start <= plan.piece_bytes);
                        end = piece.end;
                    }
                    assert_eq!(end, part.end);
                }
            }
        }
        assert!(refused > 0);
    }
}
