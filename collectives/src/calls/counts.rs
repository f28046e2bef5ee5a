//! How many elements each rank has where that differs, and where they lie.

use verbcast_transport::wire;

use super::wrong;
use crate::error::Error;

/// The number of elements of each rank's part, and where each begins; in elements.
///
/// # Examples
///
/// ```
/// use verbcast_collectives::Counts;
///
/// // Side by side: elements 0..2, 2..2, 2..5.
/// let counts = Counts::new(&[2, 0, 3]);
/// // Elements 10..12, none, 0..3.
/// let counts = Counts::with_displacements(&[2, 0, 3], &[10, 0, 0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts<'a> {
    counts: &'a [usize],
    displacements: Option<&'a [usize]>,
}

impl<'a> Counts<'a> {
    /// Parts side by side, in the order of the ranks.
    #[must_use]
    pub const fn new(counts: &'a [usize]) -> Self {
        Self { counts, displacements: None }
    }

    /// Parts that begin at these elements.
    #[must_use]
    pub const fn with_displacements(counts: &'a [usize], displacements: &'a [usize]) -> Self {
        Self { counts, displacements: Some(displacements) }
    }
}

/// The same in bytes, checked.
#[derive(Debug)]
pub(super) struct Parts {
    /// Where the parts would begin side by side, and the end of the last.
    pub(super) starts: Vec<u64>,
    /// Where they begin, if elsewhere.
    pub(super) displacements: Option<Vec<u64>>,
}

impl Parts {
    /// For `size` ranks and a buffer of `elements` elements of `element_bytes` bytes; where
    /// `is_written`, no two parts may overlap.
    pub(super) fn of(
        code: wire::Operation,
        counts: Counts<'_>,
        size: u32,
        (elements, element_bytes): (usize, usize),
        is_written: bool,
    ) -> Result<Self, Error> {
        let Counts { counts, displacements } = counts;
        for (what, numbers) in [("counts", Some(counts)), ("displacements", displacements)] {
            if let Some(numbers) = numbers.filter(|numbers| numbers.len() != size as usize) {
                let given = numbers.len();
                return Err(wrong(code, format!("{given} {what} for {size} ranks")));
            }
        }
        let mut starts = Vec::with_capacity(counts.len() + 1);
        let mut start = 0_usize;
        starts.push(0);
        for (rank, &count) in counts.iter().enumerate() {
            start = start
                .checked_add(count)
                .filter(|end| end.checked_mul(element_bytes).is_some())
                .ok_or_else(|| wrong(code, format!("the counts up to rank {rank} overflow")))?;
            starts.push((start * element_bytes) as u64);
        }
        let ranges = (0..counts.len()).map(|rank| {
            let begin =
                displacements.map_or(starts[rank] as usize / element_bytes.max(1), |all| all[rank]);
            (begin, counts[rank], rank)
        });
        let mut ranges: Vec<(usize, usize, usize)> = ranges.collect();
        for &(begin, count, rank) in &ranges {
            if begin.checked_add(count).is_none_or(|end| end > elements) {
                return Err(wrong(
                    code,
                    format!(
                        "the part of rank {rank}, {count} elements from {begin} on, is not within the \
                         {elements} elements of the buffer"
                    ),
                ));
            }
        }
        let in_bytes: Vec<u64> =
            ranges.iter().map(|&(begin, ..)| (begin * element_bytes) as u64).collect();
        if is_written {
            ranges.retain(|&(_, count, _)| count > 0);
            ranges.sort_unstable();
            for pair in ranges.windows(2) {
                let ((begin, count, one), (next, _, other)) = (pair[0], pair[1]);
                if begin + count > next {
                    return Err(wrong(
                        code,
                        format!("the parts of ranks {one} and {other} overlap at element {next}"),
                    ));
                }
            }
        }
        let is_side_by_side = in_bytes[..] == starts[..counts.len()];
        let displacements = (displacements.is_some() && !is_side_by_side).then_some(in_bytes);
        Ok(Self { starts, displacements })
    }

    /// The bytes of a rank's part in the buffer.
    pub(super) fn range(&self, rank: usize) -> std::ops::Range<usize> {
        let bytes = (self.starts[rank + 1] - self.starts[rank]) as usize;
        let begin = match &self.displacements {
            Some(displacements) => displacements[rank],
            None => self.starts[rank],
        };
        begin as usize..begin as usize + bytes
    }

    /// The bytes of all parts.
    pub(super) fn bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }
}
