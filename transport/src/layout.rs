//! Where the blocks of a buffer lie: the same computation at whoever sends and at whoever receives.

use std::ops::Range;
use std::sync::Arc;

/// A run of parts, one after another, each cut into blocks.
///
/// A broadcast has one part, the message; in other operations each rank has one. Parts have equal
/// lengths, or those between given *starts*. Block j of part p (from 0) is number p k + j, k being the
/// blocks of the longest part; a part that is shorter lacks its last numbers, and an empty one has
/// none. All lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    parts: u32,
    blocks_per_part: u32,
    part_bytes: u64,
    block_bytes: u64,
    starts: Option<Starts>,
}

/// Where uneven parts begin; one more than there are parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Starts {
    all: Arc<[u64]>,
    /// The first part of this layout among them.
    first: u32,
}

impl Layout {
    /// `parts` parts of `part_bytes` bytes in blocks of `block_bytes`, the last block of a part
    /// having the rest; `None` if there are no parts, blocks have no bytes, or numbers are too large.
    #[must_use]
    pub fn new(parts: u32, part_bytes: u64, block_bytes: u64) -> Option<Self> {
        let blocks_per_part = u32::try_from(
            part_bytes.checked_add(block_bytes)?.checked_sub(1)?.checked_div(block_bytes)?,
        )
        .ok()?
        .max(1);
        u64::from(parts).checked_mul(part_bytes)?;
        parts.checked_mul(blocks_per_part)?;
        let layout = Self { parts, blocks_per_part, part_bytes, block_bytes, starts: None };
        (parts > 0).then_some(layout)
    }

    /// One part between each of the starts, which ascend from 0, and the next; `None` as for
    /// [`Layout::new`], or if they do not ascend.
    #[must_use]
    pub fn uneven(starts: Arc<[u64]>, block_bytes: u64) -> Option<Self> {
        let parts = u32::try_from(starts.len().checked_sub(1)?).ok()?;
        if starts.first() != Some(&0) || !starts.is_sorted() {
            return None;
        }
        let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max()?;
        let layout = Self::new(parts, longest, block_bytes)?;
        Some(Self { starts: Some(Starts { all: starts, first: 0 }), ..layout })
    }

    /// Parts `first..first + parts` of this layout, as a layout of its own; `None` if there are not so
    /// many.
    #[must_use]
    pub fn slice(&self, first: u32, parts: u32) -> Option<Self> {
        let end = first.checked_add(parts)?;
        if parts == 0 || end > self.parts {
            return None;
        }
        let starts = self
            .starts
            .as_ref()
            .map(|starts| Starts { all: Arc::clone(&starts.all), first: starts.first + first });
        Some(Self { parts, starts, ..*self })
    }

    /// How many parts there are.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// k: the blocks of the longest part, at least 1.
    #[must_use]
    pub fn blocks_per_part(&self) -> u32 {
        self.blocks_per_part
    }

    /// Bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.start(self.parts)
    }

    /// How many block numbers there are, those of missing blocks included.
    #[must_use]
    pub fn numbers(&self) -> u32 {
        self.parts * self.blocks_per_part
    }

    /// How many blocks have bytes.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        match &self.starts {
            None => self.parts * self.part_bytes.div_ceil(self.block_bytes) as u32,
            Some(_) => (0..self.parts)
                .map(|part| {
                    (self.start(part + 1) - self.start(part)).div_ceil(self.block_bytes) as u32
                })
                .sum(),
        }
    }

    /// The bytes of a part; that of no part is empty.
    #[must_use]
    pub fn part_range(&self, part: u32) -> Range<u64> {
        self.start(part.min(self.parts))..self.start(part.saturating_add(1).min(self.parts))
    }

    /// The bytes of a block, or `None` if there is no such block or it is empty.
    #[must_use]
    pub fn block_range(&self, block: u32) -> Option<Range<u64>> {
        let (part, within) = (block / self.blocks_per_part, block % self.blocks_per_part);
        if part >= self.parts {
            return None;
        }
        let Range { start, end } = self.part_range(part);
        let first = start.checked_add(u64::from(within) * self.block_bytes)?;
        (first < end).then(|| first..first.saturating_add(self.block_bytes).min(end))
    }

    /// Whether `is_there` holds for every block that has bytes in `range`.
    pub(crate) fn all_in(&self, range: &Range<u64>, mut is_there: impl FnMut(u32) -> bool) -> bool {
        if range.is_empty() {
            return true;
        }
        let mut part = self.part_at(range.start);
        while part < self.parts && self.start(part) < range.end {
            let bytes = self.part_range(part);
            let from = (range.start.max(bytes.start) - bytes.start) / self.block_bytes;
            let to = (range.end.min(bytes.end) - bytes.start).div_ceil(self.block_bytes);
            let first = part * self.blocks_per_part;
            if !(from..to).all(|block| is_there(first + block as u32)) {
                return false;
            }
            part += 1;
        }
        true
    }

    /// A part before which no byte from `at` on lies.
    fn part_at(&self, at: u64) -> u32 {
        match &self.starts {
            None => {
                at.checked_div(self.part_bytes).map_or(0, |part| part.min(self.parts.into()) as u32)
            }
            Some(starts) => {
                let base = self.base(starts);
                let own = &starts.all[starts.first as usize..][..self.parts as usize];
                own.partition_point(|start| start - base <= at).saturating_sub(1) as u32
            }
        }
    }

    /// Where a part begins; `parts` gives the end of the last. Parts beyond are the caller's mistake.
    fn start(&self, part: u32) -> u64 {
        match &self.starts {
            None => u64::from(part) * self.part_bytes,
            Some(starts) => starts.all[(starts.first + part) as usize] - self.base(starts),
        }
    }

    fn base(&self, starts: &Starts) -> u64 {
        starts.all[starts.first as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte belongs to exactly one block, in order; by a list of all bytes.
    #[test]
    fn blocks_cover_the_bytes_in_order() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let counts: Vec<u64> = (0..rng.usize(1..8)).map(|_| rng.u64(0..40)).collect();
            let block_bytes = rng.u64(1..=30);
            let is_even = rng.bool();
            let counts = if is_even { vec![counts[0]; counts.len()] } else { counts };
            let mut starts = vec![0];
            counts.iter().for_each(|count| starts.push(starts.last().unwrap() + count));
            let layout = match is_even {
                true => Layout::new(counts.len() as u32, counts[0], block_bytes),
                false => Layout::uneven(starts.clone().into(), block_bytes),
            };
            let layout = layout.unwrap();
            let first = rng.u32(0..layout.parts());
            let parts = rng.u32(1..=layout.parts() - first);
            let slice = layout.slice(first, parts).unwrap();
            assert_eq!(layout.slice(first, layout.parts() - first + 1), None);
            let mut next = 0;
            let mut blocks = 0;
            for block in 0..slice.numbers() {
                let Some(range) = slice.block_range(block) else { continue };
                assert_eq!(range.start, next);
                assert!(range.end - range.start <= block_bytes);
                let part = block / slice.blocks_per_part();
                assert!(range.end <= slice.part_range(part).end);
                assert_eq!(
                    starts[(first + part) as usize] - starts[first as usize],
                    slice.part_range(part).start
                );
                (next, blocks) = (range.end, blocks + 1);
                let outside = |other: u32| other != block;
                assert!(!slice.all_in(&range, outside) && slice.all_in(&(0..range.start), outside));
                assert!(slice.all_in(&(range.end..slice.bytes()), outside));
            }
            assert_eq!(slice.block_range(slice.numbers()), None);
            assert_eq!((next, blocks), (slice.bytes(), slice.blocks()));
            assert_eq!(next, counts[first as usize..][..parts as usize].iter().sum::<u64>());
        }
    }

    #[test]
    fn numbers_that_cannot_be_give_no_layout() {
        assert_eq!(Layout::new(0, 1, 1), None);
        assert_eq!(Layout::new(1, 1, 0), None);
        assert_eq!(Layout::new(2, u64::MAX / 2 + 1, u64::MAX), None);
        assert_eq!(Layout::new(1, u64::MAX, 1), None);
        assert_eq!(Layout::new(1 << 20, 1 << 20, 1), None);
        assert_eq!(Layout::uneven([0, 2, 1].into(), 1), None);
        assert_eq!(Layout::uneven([1, 2].into(), 1), None);
        assert_eq!(Layout::uneven([0].into(), 1), None);
        assert_eq!(Layout::uneven([].into(), 1), None);
    }
}
