//! Which calls this rank made and which others published, to find calls that do not match.
//!
//! Sans IO. A rank keeps its last [`HISTORY_CALLS`] calls per communicator, and the last
//! [`PUBLISHED_CALLS`] published ones of anybody: those it has not reached yet are compared when it
//! does, and an identical one is not spread again.

use std::collections::{HashMap, VecDeque};

use super::cause::{AbortCause, AbortKind, AbortScope};
use crate::wire::{Rank, Signature};

/// Calls of this rank that are kept per communicator.
pub(crate) const HISTORY_CALLS: usize = 256;

/// Communicators whose calls are kept; the one unused for longest goes first.
pub(crate) const HISTORY_COMMUNICATORS: usize = 1024;

/// Published calls that are kept, of all communicators.
pub(crate) const PUBLISHED_CALLS: usize = 1024;

/// The calls that a rank knows of.
pub(crate) struct Calls {
    rank: Rank,
    made: HashMap<u64, Made>,
    uses: u64,
    published: HashMap<(u64, u64), (Rank, Signature)>,
    /// Keys of `published` in the order in which they came.
    order: VecDeque<(u64, u64)>,
}

struct Made {
    recent: VecDeque<Signature>,
    last_use: u64,
}

/// What a published call led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// It was known: not to be spread further.
    Known,
    /// It is new, and does not contradict anything.
    New,
    /// It contradicts another call.
    Mismatch(AbortCause),
}

impl Calls {
    pub(crate) fn new(rank: Rank) -> Self {
        Self {
            rank,
            made: HashMap::new(),
            uses: 0,
            published: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// This rank has made a call. Allocates only at the first one of a communicator.
    pub(crate) fn record(&mut self, call: &Signature) -> Option<AbortCause> {
        self.uses += 1;
        if !self.made.contains_key(&call.communicator) {
            self.add_communicator(call.communicator);
        }
        let uses = self.uses;
        if let Some(made) = self.made.get_mut(&call.communicator) {
            made.last_use = uses;
            if made.recent.len() == HISTORY_CALLS {
                made.recent.pop_front();
            }
            made.recent.push_back(*call);
        }
        if self.published.is_empty() {
            return None;
        }
        let (origin, other) = self.published.get(&(call.communicator, call.number))?;
        (other != call).then(|| self.mismatch((self.rank, call), (*origin, other)))
    }

    /// A call that `origin`, this rank or another, has published.
    pub(crate) fn publish(&mut self, origin: Rank, call: &Signature) -> Published {
        let key = (call.communicator, call.number);
        if let Some((first, known)) = self.published.get(&key) {
            if known == call {
                return Published::Known;
            }
            return Published::Mismatch(self.mismatch((*first, known), (origin, call)));
        }
        if self.order.len() == PUBLISHED_CALLS
            && let Some(oldest) = self.order.pop_front()
        {
            self.published.remove(&oldest);
        }
        self.order.push_back(key);
        self.published.insert(key, (origin, *call));
        match self.own(call.communicator, call.number) {
            Some(own) if own != call => {
                Published::Mismatch(self.mismatch((self.rank, own), (origin, call)))
            }
            _ => Published::New,
        }
    }

    pub(crate) fn own(&self, communicator: u64, number: u64) -> Option<&Signature> {
        let recent = &self.made.get(&communicator)?.recent;
        recent.iter().rev().find(|call| call.number == number)
    }

    fn add_communicator(&mut self, communicator: u64) {
        if self.made.len() == HISTORY_COMMUNICATORS {
            let oldest = self.made.iter().min_by_key(|(_, made)| made.last_use).map(|(id, _)| *id);
            oldest.map(|id| self.made.remove(&id));
        }
        let recent = VecDeque::with_capacity(HISTORY_CALLS);
        self.made.insert(communicator, Made { recent, last_use: 0 });
    }

    fn mismatch(&self, one: (Rank, &Signature), other: (Rank, &Signature)) -> AbortCause {
        let (first, second) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        AbortCause {
            scope: AbortScope::Communicator(one.1.communicator),
            origin: self.rank,
            kind: AbortKind::Mismatch {
                first: first.0,
                first_call: *first.1,
                second: second.0,
                second_call: *second.1,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Operation;

    fn call(communicator: u64, number: u64, root: Rank) -> Signature {
        Signature {
            communicator,
            number,
            operation: Operation::Broadcast.code(),
            algorithm: 1,
            element: 0,
            radix: 0,
            root,
            bytes: 8,
            block_bytes: 8,
        }
    }

    fn ranks(cause: &AbortCause) -> (Rank, Rank, Rank, Rank) {
        match &cause.kind {
            AbortKind::Mismatch { first, first_call, second, second_call } => {
                (*first, first_call.root, *second, second_call.root)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_foreign_call_is_compared_with_past_and_future_ones() {
        let mut calls = Calls::new(5);
        assert_eq!(calls.record(&call(0, 0, 0)), None);
        // Past: this rank called number 0 already.
        let Published::Mismatch(cause) = calls.publish(2, &call(0, 0, 1)) else { panic!() };
        assert_eq!(ranks(&cause), (2, 1, 5, 0));
        assert_eq!(cause.scope, AbortScope::Communicator(0));
        // Future: it calls number 7 later, rightly on communicator 0, wrongly on 1.
        assert_eq!(calls.publish(2, &call(0, 7, 3)), Published::New);
        assert_eq!(calls.publish(9, &call(1, 7, 3)), Published::New);
        assert_eq!(calls.record(&call(0, 7, 3)), None);
        assert_eq!(ranks(&calls.record(&call(1, 7, 4)).unwrap()), (5, 4, 9, 3));
    }

    #[test]
    fn identical_calls_are_spread_once_and_two_foreign_ones_are_compared() {
        let mut calls = Calls::new(5);
        assert_eq!(calls.publish(2, &call(0, 1, 0)), Published::New);
        assert_eq!(calls.publish(3, &call(0, 1, 0)), Published::Known);
        assert_eq!(calls.publish(5, &call(0, 1, 0)), Published::Known);
        let Published::Mismatch(cause) = calls.publish(1, &call(0, 1, 9)) else { panic!() };
        assert_eq!(ranks(&cause), (1, 9, 2, 0));
    }

    #[test]
    fn everything_is_bounded_and_the_newest_is_kept() {
        let mut calls = Calls::new(0);
        let last = 2 * HISTORY_CALLS as u64;
        for number in 0..=last {
            assert_eq!(calls.record(&call(0, number, 0)), None);
        }
        assert_eq!(calls.made[&0].recent.len(), HISTORY_CALLS);
        let oldest_kept = last + 1 - HISTORY_CALLS as u64;
        assert!(matches!(calls.publish(1, &call(0, oldest_kept, 1)), Published::Mismatch(_)));
        assert_eq!(calls.publish(1, &call(0, oldest_kept - 1, 1)), Published::New);
        for number in 0..2 * PUBLISHED_CALLS as u64 {
            assert_eq!(calls.publish(1, &call(9, number, 0)), Published::New);
        }
        assert_eq!((calls.published.len(), calls.order.len()), (PUBLISHED_CALLS, PUBLISHED_CALLS));
        for communicator in 0..=HISTORY_COMMUNICATORS as u64 {
            calls.record(&call(1000 + communicator, 0, 0));
        }
        assert_eq!(calls.made.len(), HISTORY_COMMUNICATORS);
        assert!(!calls.made.contains_key(&0), "the one unused for longest went");
    }
}
