//! The events that are still to come, in order of time.
//!
//! Time never goes back in a run, so the queue is a radix heap: R. K. Ahuja, K. Mehlhorn, J. Orlin
//! and R. Tarjan, "Faster algorithms for the shortest path problem", J. ACM 37(2), 1990, DOI
//! 10.1145/77600.77615. Bucket i > 0 has the events whose time differs from the time now in bit
//! i - 1 and in none above. An event only ever moves to lower buckets, at most 64 times, and a bucket is
//! read from its start to its end: with a hundred thousand events that is several times as fast as a
//! binary heap. Events of one time are always in one bucket, in the order of their pushes.

use std::collections::VecDeque;

/// Events by time; of those at one time what comes in goes before what goes out, and then in the
/// order in which they were pushed. So a port that is free at the moment when a block arrives has
/// the choice of that block too.
#[derive(Debug)]
pub(super) struct Queue<E> {
    now_ps: u64,
    /// The events of the time now, coming in and going out.
    now_in: VecDeque<E>,
    now_out: VecDeque<E>,
    /// Bucket i + 1 is `later[i]`.
    later: [Vec<(u64, Class, E)>; 64],
    /// Bit i is set if `later[i]` is not empty.
    used: u64,
}

/// Whether an event brings something to a rank, or lets it send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    In,
    Out,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Self {
        Self {
            now_ps: 0,
            now_in: VecDeque::new(),
            now_out: VecDeque::new(),
            later: std::array::from_fn(|_| Vec::new()),
            used: 0,
        }
    }

    /// Adds an event at a time that is not before that of the last one popped.
    ///
    /// # Panics
    ///
    /// The time is before that.
    pub(super) fn push(&mut self, time_ps: u64, class: Class, event: E) {
        assert!(time_ps >= self.now_ps, "{time_ps} ps is before {} ps", self.now_ps);
        let difference = time_ps ^ self.now_ps;
        match difference.checked_ilog2() {
            None => match class {
                Class::In => self.now_in.push_back(event),
                Class::Out => self.now_out.push_back(event),
            },
            Some(bit) => {
                self.used |= 1 << bit;
                self.later[bit as usize].push((time_ps, class, event));
            }
        }
    }

    pub(super) fn pop(&mut self) -> Option<(u64, E)> {
        if self.now_in.is_empty() && self.now_out.is_empty() {
            self.advance();
        }
        let event = self.now_in.pop_front().or_else(|| self.now_out.pop_front());
        event.map(|event| (self.now_ps, event))
    }

    /// Goes on to the time of the next event, if there is one.
    fn advance(&mut self) {
        if self.used == 0 {
            return;
        }
        let bit = self.used.trailing_zeros() as usize;
        self.used &= !(1 << bit);
        let mut bucket = std::mem::take(&mut self.later[bit]);
        let times = bucket.iter().map(|(time_ps, _, _)| *time_ps);
        self.now_ps = times.min().unwrap_or(self.now_ps);
        for (time_ps, class, event) in bucket.drain(..) {
            self.push(time_ps, class, event);
        }
        // Every event went to a lower bucket; this one keeps its memory.
        self.later[bit] = bucket;
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, Queue};
    use crate::test_seed;

    #[test]
    fn events_come_in_order_of_time_class_and_push() {
        let mut rng = test_seed::rng("events_come_in_order_of_time_class_and_push");
        for _ in 0..200 {
            let mut queue = Queue::new();
            let mut oracle: Vec<(u64, bool, u32)> = Vec::new();
            let (mut now, bits) = (0, rng.u32(1..40));
            for number in 0..rng.u32(1..300) {
                if rng.u32(0..3) > 0 || oracle.is_empty() {
                    let time = now + rng.u64(0..1 << bits);
                    let class = if rng.bool() { Class::In } else { Class::Out };
                    queue.push(time, class, number);
                    oracle.push((time, class == Class::Out, number));
                } else {
                    let first = oracle.iter().min().copied().unwrap();
                    oracle.retain(|entry| *entry != first);
                    assert_eq!(queue.pop(), Some((first.0, first.2)));
                    now = first.0;
                }
            }
            oracle.sort_unstable();
            for (time, _, number) in oracle {
                assert_eq!(queue.pop(), Some((time, number)));
            }
            assert_eq!(queue.pop(), None);
        }
    }
}
