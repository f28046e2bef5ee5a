//! How a block is cut over the lanes of a link, and which parts of a block have come.
//!
//! Both ends of a link compute the parts from the same lane weights, so that nothing but the block
//! number has to cross the wire. Parts are contiguous, in lane order, and begin at multiples of 64
//! bytes (a cache line), whatever the weights.

use std::cell::Cell;
use std::ops::Range;

use crate::wire::{LANES_MAX, STRIPE_MIN_BYTES};

const PART_ALIGNMENT_BYTES: u64 = 64;

/// The cut of blocks over the lanes of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stripe {
    /// Sum of the weights of all lanes below this one; one entry more than lanes.
    below: Vec<u64>,
}

impl Stripe {
    /// For lanes of these weights (relative speeds). Without any usable weight all are alike.
    pub(crate) fn new(weights: &[u32]) -> Self {
        debug_assert!((1..=LANES_MAX).contains(&weights.len()));
        let known = weights.iter().all(|&weight| weight > 0);
        let mut below = Vec::with_capacity(weights.len() + 1);
        let mut sum = 0;
        for &weight in weights {
            below.push(sum);
            sum += if known { u64::from(weight) } else { 1 };
        }
        below.push(sum);
        Self { below }
    }

    /// How many lanes there are.
    pub(crate) fn lanes(&self) -> usize {
        self.below.len() - 1
    }

    /// The weight of a lane.
    pub(crate) fn weight(&self, lane: usize) -> u64 {
        self.below[lane + 1] - self.below[lane]
    }

    /// Whether a block of `bytes` bytes goes over all lanes.
    pub(crate) fn is_striped(&self, bytes: u64) -> bool {
        self.lanes() > 1 && bytes >= STRIPE_MIN_BYTES * self.lanes() as u64
    }

    /// The part of a striped block of `bytes` bytes that goes over `lane`; may be empty.
    pub(crate) fn part(&self, bytes: u64, lane: usize) -> Range<u64> {
        self.cut(bytes, lane)..self.cut(bytes, lane + 1)
    }

    fn cut(&self, bytes: u64, boundary: usize) -> u64 {
        if boundary == self.lanes() {
            return bytes;
        }
        let total = u128::from(self.below[self.lanes()]);
        let exact = u128::from(bytes) * u128::from(self.below[boundary]) / total;
        // No larger than `bytes`.
        exact as u64 / PART_ALIGNMENT_BYTES * PART_ALIGNMENT_BYTES
    }
}

/// What the arrival of a part means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// Other parts of the block are still missing.
    Partial,
    /// The block is whole, for the first time.
    Complete,
    /// This part, or the whole block, had come before.
    Duplicate,
}

/// Which parts of the blocks of one open receive have come: deduplicates by (block, part).
///
/// One word per block, a bit per lane; all ones once the block is whole. The lanes of a pair of
/// ranks stay the same for as long as a receive is open.
#[derive(Debug, Default)]
pub(crate) struct ArrivedParts {
    blocks: Vec<Cell<u64>>,
}

const WHOLE: u64 = u64::MAX;

impl ArrivedParts {
    /// Forgets everything and gets ready for `blocks` blocks; allocates only when it has to grow.
    pub(crate) fn reset(&mut self, blocks: u64) {
        self.blocks.clear();
        self.blocks.resize(usize::try_from(blocks).unwrap_or(usize::MAX), Cell::new(0));
    }

    /// Forgets what has come, for the same blocks once more.
    pub(crate) fn clear(&mut self) {
        self.blocks.iter().for_each(|parts| parts.set(0));
    }

    /// A whole block has come over one lane.
    pub(crate) fn note_whole(&self, block: u32) -> Noted {
        match self.blocks.get(block as usize).map(|parts| parts.replace(WHOLE)) {
            Some(WHOLE) | None => Noted::Duplicate,
            Some(_) => Noted::Complete,
        }
    }

    /// The part of a block that `lane` of `lanes` carries has come.
    pub(crate) fn note_part(&self, block: u32, lane: usize, lanes: usize) -> Noted {
        let Some(parts) = self.blocks.get(block as usize) else { return Noted::Duplicate };
        let before = parts.get();
        let after = before | 1 << lane;
        if after == before {
            return Noted::Duplicate;
        }
        let all = WHOLE >> (LANES_MAX - lanes);
        parts.set(if after == all { WHOLE } else { after });
        if after == all { Noted::Complete } else { Noted::Partial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_block_once_and_in_order() {
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..2000 {
            let lanes = rng.usize(1..=LANES_MAX);
            let weights: Vec<u32> = (0..lanes).map(|_| rng.u32(1..=400_000)).collect();
            let bytes = rng.u64(0..=16 << 20);
            let stripe = Stripe::new(&weights);
            let mut end = 0;
            for lane in 0..lanes {
                let part = stripe.part(bytes, lane);
                assert_eq!(part.start, end);
                assert!(part.end >= part.start);
                assert!(lane + 1 == lanes || part.end.is_multiple_of(64));
                end = part.end;
            }
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn equal_lanes_get_equal_parts_and_faster_lanes_get_more() {
        for lanes in [2usize, 4, 5, 64] {
            let stripe = Stripe::new(&vec![100; lanes]);
            let bytes = STRIPE_MIN_BYTES * lanes as u64;
            assert!(stripe.is_striped(bytes) && !stripe.is_striped(bytes - 1));
            for lane in 0..lanes {
                let part = stripe.part(bytes, lane);
                assert_eq!(part.end - part.start, STRIPE_MIN_BYTES);
            }
        }
        let stripe = Stripe::new(&[100, 300]);
        assert_eq!(stripe.part(1 << 20, 0), 0..1 << 18);
        assert!(!Stripe::new(&[1]).is_striped(1 << 30));
        // A rail of unknown speed: all alike.
        assert_eq!(Stripe::new(&[0, 300]), Stripe::new(&[1, 1]));
    }

    #[test]
    fn a_block_is_complete_once_when_every_part_has_come() {
        for lanes in [2usize, 4, 5, 64] {
            let mut parts = ArrivedParts::default();
            parts.reset(3);
            for lane in (0..lanes).rev() {
                let want = if lane == 0 { Noted::Complete } else { Noted::Partial };
                assert_eq!(parts.note_part(1, lane, lanes), want);
                assert_eq!(parts.note_part(1, lane, lanes), Noted::Duplicate);
            }
            assert_eq!(parts.note_whole(1), Noted::Duplicate);
            assert_eq!(parts.note_whole(2), Noted::Complete);
            assert_eq!(parts.note_part(2, 0, lanes), Noted::Duplicate);
            assert_eq!(parts.note_whole(3), Noted::Duplicate);
            parts.reset(3);
            assert_eq!(parts.note_whole(1), Noted::Complete);
        }
    }
}
