//! The same question for messages of many sizes: lines of time against size, and switch points.

use verbcast::Algorithm;

use super::compare::Comparison;
use super::question::{PlanError, Question};
use crate::picture::curve::Switch;

/// The smallest message of a sweep, in bytes.
pub(crate) const SMALLEST: u64 = 8;
/// The largest, unless a larger one was asked about.
pub(crate) const LARGEST: u64 = 1 << 30;
/// Sizes from each power of two to the next.
const PER_OCTAVE: u32 = 2;

/// From this size on another algorithm is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) bytes: u64,
    pub(crate) algorithm: Algorithm,
}

/// Comparisons at sizes from [`SMALLEST`] to [`LARGEST`].
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Those that were compared, in their documented order.
    algorithms: Vec<Algorithm>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) comparisons: Vec<Comparison>,
    /// Ascending; the first is at the smallest size.
    pub(crate) changes: Vec<Change>,
}

impl Sweep {
    /// Compares at every size, and finds to the byte where the choice changes, as far as it does so
    /// once between two neighbouring sizes.
    ///
    /// # Errors
    /// Numbers outside their limits.
    pub(crate) fn of(question: &Question) -> Result<Self, PlanError> {
        let sizes = sizes(question.bytes);
        let at = |bytes| Comparison::of(&question.with_bytes(bytes));
        let comparisons =
            sizes.iter().map(|bytes| at(*bytes)).collect::<Result<Vec<_>, PlanError>>()?;
        let mut changes: Vec<Change> = Vec::new();
        for (index, (&bytes, comparison)) in sizes.iter().zip(&comparisons).enumerate() {
            let algorithm = comparison.chosen().algorithm;
            let before = changes.last().map(|change| change.algorithm);
            if before == Some(algorithm) {
                continue;
            }
            // The choice at `low` is the old one, at `high` the new one.
            let mut high = bytes;
            let mut low = index.checked_sub(1).map_or(bytes, |index| sizes[index]);
            while low + 1 < high {
                let middle = low + (high - low) / 2;
                if at(middle)?.chosen().algorithm == algorithm {
                    high = middle;
                } else {
                    low = middle;
                }
            }
            changes.push(Change { bytes: high, algorithm });
        }
        let compared = |algorithm: &Algorithm| {
            comparisons[0].rows.iter().any(|row| row.algorithm == *algorithm)
        };
        let algorithms =
            Algorithm::of(question.operation).iter().copied().filter(compared).collect();
        Ok(Self { algorithms, sizes, comparisons, changes })
    }

    /// A line for each algorithm, in their documented order.
    pub(crate) fn lines(&self) -> Vec<(String, Vec<f64>)> {
        let time = |comparison: &Comparison, algorithm| {
            let row = comparison.rows.iter().find(|row| row.algorithm == algorithm);
            row.map_or(f64::INFINITY, |row| row.time_ns)
        };
        self.algorithms
            .iter()
            .map(|&algorithm| {
                let times = self.comparisons.iter().map(|at| time(at, algorithm)).collect();
                (algorithm.to_string(), times)
            })
            .collect()
    }

    /// The changes, naming lines.
    pub(crate) fn switches(&self) -> Vec<Switch> {
        let line = |wanted| self.algorithms.iter().position(|&algorithm| algorithm == wanted);
        self.changes
            .iter()
            .filter_map(|change| {
                Some(Switch { bytes: change.bytes, line: line(change.algorithm)? })
            })
            .collect()
    }
}

fn sizes(asked: u64) -> Vec<u64> {
    let largest = LARGEST.max(asked.saturating_mul(2).min(verbcast::model::MAX_MESSAGE_BYTES));
    let mut sizes = Vec::new();
    for step in 0.. {
        let (octave, part) = (step / PER_OCTAVE, step % PER_OCTAVE);
        let whole = SMALLEST << octave;
        let size = whole + whole / u64::from(PER_OCTAVE) * u64::from(part);
        if size > largest {
            break;
        }
        sizes.push(size);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_from_eight_bytes_to_what_was_asked() {
        let few = sizes(16 << 20);
        assert_eq!((few[0], few[1], *few.last().unwrap()), (8, 12, 1 << 30));
        assert!(few.windows(2).all(|pair| pair[0] < pair[1]));
        let most = verbcast::model::MAX_MESSAGE_BYTES;
        assert!(*sizes(most).last().unwrap() > most / 2);
        assert!(*sizes(u64::MAX).last().unwrap() <= most);
    }
}
