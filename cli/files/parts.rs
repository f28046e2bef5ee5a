//! The parts of a file, one for each rank, in order.

use std::ops::Range;

use verbcast::Counts;

use super::plan::Plan;

/// The most bytes that a file can have.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Where the parts of a file begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// One more than there are parts, ascending from 0.
    offsets: Vec<u64>,
}

/// What a step moves of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Whose part.
    pub(crate) rank: u32,
    /// Where it is in the file.
    pub(crate) offset: u64,
    /// Where it is in a window that has a piece of each part: without gaps, by rank.
    pub(crate) place: Range<usize>,
}

impl Parts {
    /// With these offsets, of which there are one more than parts.
    pub(crate) fn new(offsets: Vec<u64>) -> Self {
        Self { offsets }
    }

    /// With these sizes in bytes; `None` if no file can be as long.
    pub(crate) fn of_sizes(sizes: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut end = 0_u64;
        let mut offsets = vec![0];
        for bytes in sizes {
            end = end.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX)?;
            offsets.push(end);
        }
        Some(Self { offsets })
    }

    /// All offsets: where each part begins, and where the last one ends.
    pub(crate) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.offsets.len() as u32 - 1
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Bytes of the longest part.
    pub(crate) fn longest(&self) -> u64 {
        self.all().map(|part| part.end - part.start).max().unwrap_or(0)
    }

    /// The part of a rank; empty beyond the last.
    pub(crate) fn part(&self, rank: u32) -> Range<u64> {
        let at = |index: usize| self.offsets.get(index).copied().unwrap_or(self.bytes());
        at(rank as usize)..at(rank as usize + 1)
    }

    /// Every part, by rank.
    pub(crate) fn all(&self) -> impl Iterator<Item = Range<u64>> {
        self.offsets.windows(2).map(|ends| ends[0]..ends[1])
    }
}

/// What a rank has in its windows: the root a piece of every part, the others of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows<'a> {
    parts: &'a Parts,
    plan: Plan,
    rank: u32,
    root: u32,
}

impl<'a> Windows<'a> {
    /// Those of a rank.
    pub(crate) fn new(parts: &'a Parts, plan: Plan, rank: u32, root: u32) -> Self {
        Self { parts, plan, rank, root }
    }

    /// Bytes of each.
    pub(crate) fn bytes(&self) -> u64 {
        if self.rank == self.root { self.plan.window_bytes() } else { self.plan.piece_bytes }
    }

    /// Bytes of all together.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.plan.memory_bytes(self.bytes())
    }

    /// What a step moves of every part, by rank, in the root's window; a piece may be empty.
    pub(crate) fn pieces(&self, step: u64) -> impl Iterator<Item = Piece> + use<'a> {
        let (plan, mut end) = (self.plan, 0);
        (0..).zip(self.parts.all()).map(move |(rank, part)| {
            let piece = plan.piece(&part, step);
            let start = end;
            end += (piece.end - piece.start) as usize;
            Piece { rank, offset: piece.start, place: start..end }
        })
    }

    /// What a step moves of this rank's part, in this rank's window; the offset is in the part.
    pub(crate) fn own(&self, step: u64) -> Piece {
        let rank = self.rank;
        let part = self.parts.part(rank);
        let piece = self.plan.piece(&part, step);
        let start = match self.pieces(step).nth(rank as usize) {
            Some(own) if rank == self.root => own.place.start,
            _ => 0,
        };
        let end = start + (piece.end - piece.start) as usize;
        Piece { rank, offset: piece.start - part.start, place: start..end }
    }

    /// What a step moves of all parts together, in bytes.
    pub(crate) fn step_bytes(&self, step: u64) -> usize {
        self.pieces(step).last().map_or(0, |piece| piece.place.end)
    }
}

/// What the root gives to each other rank in a step, or gets from it. Its own piece is where it has to
/// be already: nothing of it is to be moved.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    counts: Vec<usize>,
    displacements: Vec<usize>,
}

impl Shares {
    /// Those of a step.
    pub(crate) fn of(&mut self, windows: &Windows<'_>, step: u64) -> Counts<'_> {
        self.counts.clear();
        self.displacements.clear();
        for Piece { rank, place, .. } in windows.pieces(step) {
            self.counts.push(if rank == windows.root { 0 } else { place.len() });
            self.displacements.push(place.start);
        }
        Counts::with_displacements(&self.counts, &self.displacements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_into_the_window_and_cover_the_file_once() {
        for sizes in [vec![], vec![0], vec![5], vec![0, 400_000, 3, 0, 100_000, 65_536]] {
            let parts = Parts::of_sizes(sizes.iter().copied()).unwrap();
            let bytes = sizes.iter().sum::<u64>();
            assert_eq!((parts.bytes(), parts.count() as usize), (bytes, sizes.len()));
            let plan = Plan::new(parts.longest(), parts.count().max(1), 1 << 20).unwrap();
            let root = Windows::new(&parts, plan, 0, 0);
            let mut covered = vec![0_u8; bytes as usize];
            for step in 0..plan.steps {
                let mut end = 0;
                for Piece { rank, offset, place } in root.pieces(step) {
                    assert_eq!(place.start, end);
                    end = place.end;
                    let part = parts.part(rank);
                    assert!(part.contains(&offset) || place.is_empty());
                    let start = offset as usize;
                    covered[start..start + place.len()].iter_mut().for_each(|times| *times += 1);
                    for is_root in [false, true] {
                        let of = if is_root { rank } else { rank + 1 };
                        let windows = Windows::new(&parts, plan, rank, of);
                        let own = windows.own(step);
                        assert_eq!(own.offset, offset - part.start);
                        let start = if is_root { place.start } else { 0 };
                        assert_eq!(own.place, start..start + place.len());
                        assert!(own.place.end as u64 <= windows.bytes());
                    }
                }
                assert!(end as u64 <= root.bytes());
                assert_eq!(end, root.step_bytes(step));
            }
            assert!(covered.iter().all(|times| *times == 1), "{sizes:?}");
        }
        assert_eq!(Parts::of_sizes([FILE_BYTES_MAX, 1]), None);
        assert_eq!(Parts::of_sizes([u64::MAX, u64::MAX]), None);
    }
}
