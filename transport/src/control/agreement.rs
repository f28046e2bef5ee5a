//! Agreement among all ranks: an all-reduce by dissemination over the circulant skips.
//!
//! Sans IO. In round j rank r sends what it knows to r + s[j] and takes what r - s[j] knows. After
//! all q rounds it has heard of everybody (see [`skips`](super::overlay::skips)), some of them
//! twice, so the operation must not mind repetition: minimum, maximum, lowest failing rank.
//!
//! No rank finishes before all have started, so a neighbour is at most one agreement ahead.

use serde::{Deserialize, Serialize};

use super::cause::truncate;
use super::overlay::Overlay;
use crate::wire::Rank;

/// The longest text of a failure, in bytes.
const FAILURE_BYTES_MAX: usize = 4096;

/// What a rank brings to an agreement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// Why this rank cannot go on, if it cannot.
    pub failure: Option<String>,
    /// Its part of the minimum.
    pub low: u64,
    /// Its part of the maximum.
    pub high: u64,
}

/// What all ranks agree on; the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    /// The lowest rank that cannot go on, and why.
    pub failed: Option<(Rank, String)>,
    /// The lowest `low` of all votes.
    pub minimum: u64,
    /// The highest `high` of all votes.
    pub maximum: u64,
}

/// What an agreement is held for; all ranks must mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// All control connections are up.
    Start,
    /// The application asks.
    Agree,
    /// All ranks leave the job.
    Leave,
}

impl Purpose {
    /// What a rank does, for messages to people.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Start => "starts",
            Self::Agree => "waits for an agreement",
            Self::Leave => "leaves the job",
        }
    }
}

/// One round's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) sequence: u64,
    pub(crate) round: u32,
    pub(crate) purpose: Purpose,
    pub(crate) agreed: Agreed,
}

/// Why a round's message cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// It breaks the protocol.
    Protocol(String),
    /// Ranks mean different things.
    Purposes {
        /// What this rank does.
        ours: Purpose,
        /// What `rank` does.
        theirs: Purpose,
        /// The sender.
        rank: Rank,
    },
}

/// The agreements of one rank, one after the other.
pub(crate) struct Agreement {
    overlay: Overlay,
    /// Number of the active agreement, or else of the next.
    sequence: u64,
    active: Option<Active>,
    /// Messages by parity of their sequence and by round.
    inbox: [Vec<Option<Round>>; 2],
}

struct Active {
    purpose: Purpose,
    agreed: Agreed,
    /// Rounds whose message was taken.
    taken: usize,
    /// Rounds whose message was sent: one more than taken, until all are.
    sent: usize,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send this.
    Send {
        /// To whom (a neighbour).
        to: Rank,
        /// What.
        round: Round,
    },
    /// The agreement is reached.
    Done(Agreed),
    /// Give up.
    Violated(Violation),
}

impl Vote {
    /// What a vote alone leads to.
    pub(crate) fn alone(self, rank: Rank) -> Agreed {
        let failed = self.failure.map(|text| (rank, truncate(text, FAILURE_BYTES_MAX)));
        Agreed { failed, minimum: self.low, maximum: self.high }
    }
}

impl Agreement {
    pub(crate) fn new(overlay: Overlay) -> Self {
        let rounds = overlay.skips().len();
        let inbox = [vec![None; rounds], vec![None; rounds]];
        Self { overlay, sequence: 0, active: None, inbox }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Starts the next one. The one before must be over.
    pub(crate) fn start(&mut self, rank: Rank, purpose: Purpose, vote: Vote) {
        assert!(self.active.is_none(), "agreements follow each other");
        self.active = Some(Active { purpose, agreed: vote.alone(rank), taken: 0, sent: 0 });
    }

    /// Takes a message of a neighbour.
    pub(crate) fn receive(&mut self, from: Rank, round: Round) -> Result<(), Violation> {
        let number = round.round as usize;
        let ahead = round.sequence.wrapping_sub(self.sequence);
        let in_time = ahead == 0 || ahead == 1 && self.active.is_some();
        let skip = self.overlay.skips().get(number);
        let right_sender = skip.is_some_and(|skip| self.overlay.behind(*skip) == from);
        if !in_time || !right_sender {
            return Err(Violation::Protocol(format!(
                "round {number} of agreement {} came during agreement {}",
                round.sequence, self.sequence
            )));
        }
        let slot = &mut self.inbox[(round.sequence % 2) as usize][number];
        if slot.is_some() {
            return Err(Violation::Protocol(format!(
                "round {number} of agreement {} came twice",
                round.sequence
            )));
        }
        *slot = Some(round);
        Ok(())
    }

    /// What is to be done next, if anything is. To be called until there is nothing.
    pub(crate) fn poll(&mut self) -> Option<Step> {
        let active = self.active.as_mut()?;
        let skips = self.overlay.skips();
        if active.taken == skips.len() {
            let agreed = active.agreed.clone();
            self.active = None;
            self.sequence += 1;
            return Some(Step::Done(agreed));
        }
        if active.sent == active.taken {
            active.sent += 1;
            let round = Round {
                sequence: self.sequence,
                round: active.taken as u32,
                purpose: active.purpose,
                agreed: active.agreed.clone(),
            };
            return Some(Step::Send { to: self.overlay.ahead(skips[active.taken]), round });
        }
        let rank = self.overlay.behind(skips[active.taken]);
        let message = self.inbox[(self.sequence % 2) as usize][active.taken].take()?;
        if message.purpose != active.purpose {
            let (ours, theirs) = (active.purpose, message.purpose);
            return Some(Step::Violated(Violation::Purposes { ours, theirs, rank }));
        }
        active.agreed.merge(message.agreed);
        active.taken += 1;
        self.poll()
    }

    /// The neighbours whose message is still to come; none if no agreement is active.
    pub(crate) fn awaited(&self) -> Vec<Rank> {
        let Some(active) = &self.active else { return Vec::new() };
        let inbox = &self.inbox[(self.sequence % 2) as usize];
        let skips = self.overlay.skips().iter().zip(inbox).skip(active.taken);
        let mut ranks: Vec<Rank> = skips
            .filter(|(_, message)| message.is_none())
            .map(|(skip, _)| self.overlay.behind(*skip))
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

impl Agreed {
    fn merge(&mut self, other: Self) {
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
        let lower = match (&self.failed, &other.failed) {
            (Some((ours, _)), Some((theirs, _))) => theirs < ours,
            (None, theirs) => theirs.is_some(),
            (Some(_), None) => false,
        };
        if lower {
            self.failed = other.failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(size: u32) -> Vec<Agreement> {
        (0..size).map(|rank| Agreement::new(Overlay::new(rank, size))).collect()
    }

    /// Delivers messages in random order (but in order between two ranks) until nothing moves.
    fn run(ranks: &mut [Agreement], random: &mut fastrand::Rng) -> Vec<Option<Agreed>> {
        let mut wire: Vec<(Rank, Rank, Round)> = Vec::new();
        let mut done = vec![None; ranks.len()];
        loop {
            for (rank, agreement) in ranks.iter_mut().enumerate() {
                while let Some(step) = agreement.poll() {
                    match step {
                        Step::Send { to, round } => wire.push((rank as Rank, to, round)),
                        Step::Done(agreed) => done[rank] = Some(agreed),
                        Step::Violated(violation) => panic!("{violation:?}"),
                    }
                }
            }
            if wire.is_empty() {
                return done;
            }
            let picked = random.usize(..wire.len());
            let pair = (wire[picked].0, wire[picked].1);
            let first = wire.iter().position(|(from, to, _)| (*from, *to) == pair).unwrap();
            let (from, to, round) = wire.remove(first);
            ranks[to as usize].receive(from, round).unwrap();
        }
    }

    #[test]
    fn all_ranks_agree_on_minimum_maximum_and_lowest_failure() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for size in (1..40).chain([64, 65, 100]) {
            let mut ranks = job(size);
            for _ in 0..3 {
                let votes: Vec<Vote> = (0..size)
                    .map(|_| Vote {
                        failure: (random.u32(..4) == 0).then(|| format!("f{}", random.u8(..))),
                        low: random.u64(..),
                        high: random.u64(..),
                    })
                    .collect();
                let lowest = votes
                    .iter()
                    .enumerate()
                    .find_map(|(rank, vote)| vote.failure.clone().map(|text| (rank as Rank, text)));
                let expected = Agreed {
                    failed: lowest,
                    minimum: votes.iter().map(|vote| vote.low).min().unwrap(),
                    maximum: votes.iter().map(|vote| vote.high).max().unwrap(),
                };
                for (rank, vote) in votes.into_iter().enumerate() {
                    ranks[rank].start(rank as Rank, Purpose::Agree, vote);
                }
                for agreed in run(&mut ranks, &mut random) {
                    assert_eq!(agreed.as_ref(), Some(&expected), "size {size}");
                }
            }
        }
    }

    #[test]
    fn nobody_finishes_before_the_last_has_started() {
        let mut random = fastrand::Rng::with_seed(1);
        for size in [2, 3, 8, 9, 33] {
            for late in 0..size {
                let mut ranks = job(size);
                for rank in (0..size).filter(|rank| *rank != late) {
                    ranks[rank as usize].start(rank, Purpose::Agree, Vote::default());
                }
                let done = run(&mut ranks, &mut random);
                assert!(done.iter().all(Option::is_none), "size {size}, late {late}");
                assert!(ranks.iter().enumerate().all(|(rank, agreement)| {
                    rank as Rank == late || !agreement.awaited().is_empty()
                }));
                ranks[late as usize].start(late, Purpose::Agree, Vote::default());
                assert!(run(&mut ranks, &mut random).iter().all(Option::is_some));
            }
        }
    }

    #[test]
    fn messages_out_of_turn_are_violations() {
        let overlay = Overlay::new(0, 4);
        let alone = Vote::default().alone(3);
        let message = |sequence, round| Round {
            sequence,
            round,
            purpose: Purpose::Agree,
            agreed: alone.clone(),
        };
        let mut agreement = Agreement::new(overlay);
        assert!(agreement.receive(3, message(1, 0)).is_err(), "ahead of one that did not start");
        assert!(agreement.receive(2, message(0, 0)).is_err(), "from the wrong rank");
        assert!(agreement.receive(3, message(0, 2)).is_err(), "no such round");
        assert!(agreement.receive(3, message(0, u32::MAX)).is_err(), "no such round");
        agreement.receive(3, message(0, 0)).unwrap();
        assert!(agreement.receive(3, message(0, 0)).is_err(), "twice");
        agreement.start(0, Purpose::Agree, Vote::default());
        agreement.receive(3, message(1, 0)).unwrap();
        assert!(agreement.receive(3, message(2, 0)).is_err(), "two ahead");
        assert_eq!(agreement.awaited(), [2]);
    }

    #[test]
    fn a_rank_that_leaves_meets_one_that_agrees() {
        let mut agreement = Agreement::new(Overlay::new(0, 2));
        let agreed = Vote::default().alone(1);
        agreement
            .receive(1, Round { sequence: 0, round: 0, purpose: Purpose::Leave, agreed })
            .unwrap();
        agreement.start(0, Purpose::Agree, Vote::default());
        assert!(matches!(agreement.poll(), Some(Step::Send { to: 1, .. })));
        let expected =
            Violation::Purposes { ours: Purpose::Agree, theirs: Purpose::Leave, rank: 1 };
        assert_eq!(agreement.poll(), Some(Step::Violated(expected)));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(truncate("aé".into(), 2), "a");
        assert_eq!(truncate("aé".into(), 3), "aé");
        let vote = Vote { failure: Some("é".repeat(9000)), ..Vote::default() };
        assert_eq!(vote.alone(0).failed.unwrap().1.len(), FAILURE_BYTES_MAX);
    }
}
