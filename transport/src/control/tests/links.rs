//! Link set-up between all pairs, over as many hops as it takes.

use super::*;

/// What a connector was called for, in the order of the whole job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    Offer,
    Accept,
    Complete,
    Confirm,
    Failed,
    Closed,
}

type Log = Arc<Mutex<Vec<(Rank, Rank, Called)>>>;

/// Checks what it is given and writes down when it was called.
struct Recorder {
    rank: Rank,
    log: Log,
    /// Attempts that the higher rank refuses.
    refused: u32,
    /// Kinds of link that there are.
    kinds: u32,
    /// Bytes of each description.
    bytes: usize,
    links: Mutex<Vec<(Rank, &'static str)>>,
    failures: Mutex<Vec<(Rank, String)>>,
}

impl Recorder {
    fn new(rank: Rank, log: &Log) -> Self {
        let (links, failures) = (Mutex::default(), Mutex::default());
        Self { rank, log: log.clone(), refused: 0, kinds: 1, bytes: 100, links, failures }
    }

    fn note(&self, peer: &PeerInfo, called: Called) {
        lock(&self.log).push((self.rank, peer.rank, called));
    }

    fn description(&self, kind: &str, peer: Rank, attempt: u32) -> Vec<u8> {
        let mut text = format!("{kind} of {} for {peer}, attempt {attempt};", self.rank);
        text.extend(std::iter::repeat_n('.', self.bytes - text.len()));
        text.into_bytes()
    }

    fn up(&self, peer: Rank, how: &'static str) {
        lock(&self.links).push((peer, how));
    }
}

fn attempt_of(text: &str, prefix: &str) -> u32 {
    let rest = text.strip_prefix(prefix).unwrap_or_else(|| panic!("{text}, not {prefix}"));
    rest.split(';').next().unwrap().parse().unwrap()
}

impl Connector for Recorder {
    fn offer(&self, peer: &PeerInfo, attempt: u32) -> Result<Vec<u8>, Error> {
        assert!(self.rank < peer.rank, "the lower rank offers");
        self.note(peer, Called::Offer);
        if attempt < self.kinds {
            Ok(self.description("offer", peer.rank, attempt))
        } else {
            Err(Error::Invalid("no further kind of link".into()))
        }
    }

    fn accept(&self, peer: &PeerInfo, offer: &[u8]) -> Result<Vec<u8>, Error> {
        self.note(peer, Called::Accept);
        assert_eq!(offer.len(), self.bytes);
        let prefix = format!("offer of {} for {}, attempt ", peer.rank, self.rank);
        let attempt = attempt_of(std::str::from_utf8(offer).unwrap(), &prefix);
        if attempt < self.refused {
            return Err(Error::Invalid(format!("not kind {attempt}")));
        }
        Ok(self.description("answer", peer.rank, attempt))
    }

    fn complete(&self, peer: &PeerInfo, answer: &[u8]) -> Result<(), Error> {
        self.note(peer, Called::Complete);
        assert_eq!(answer.len(), self.bytes);
        let prefix = format!("answer of {} for {}, attempt ", peer.rank, self.rank);
        attempt_of(std::str::from_utf8(answer).unwrap(), &prefix);
        self.up(peer.rank, "completed");
        Ok(())
    }

    fn confirm(&self, peer: &PeerInfo) -> Result<(), Error> {
        self.note(peer, Called::Confirm);
        self.up(peer.rank, "confirmed");
        Ok(())
    }

    fn failed(&self, peer: &PeerInfo, reason: &str) {
        self.note(peer, Called::Failed);
        lock(&self.failures).push((peer.rank, reason.into()));
    }

    fn closed(&self, peer: &PeerInfo) {
        self.note(peer, Called::Closed);
    }
}

fn recorders(size: u32, change: impl Fn(&mut Recorder)) -> (Log, Vec<Arc<Recorder>>) {
    let log = Log::default();
    let recorders = (0..size).map(|rank| {
        let mut recorder = Recorder::new(rank, &log);
        change(&mut recorder);
        Arc::new(recorder)
    });
    (log.clone(), recorders.collect())
}

/// The calls between `a` and `b`, in their order: who was called for what.
fn between(log: &Log, a: Rank, b: Rank) -> Vec<(Rank, Called)> {
    let log = lock(log);
    let pair =
        log.iter().filter(|(rank, peer, _)| (*rank, *peer) == (a, b) || (*rank, *peer) == (b, a));
    pair.map(|(rank, _, called)| (*rank, *called)).collect()
}

#[test]
fn every_pair_is_linked_in_order_whoever_asks() {
    for size in SIZES {
        let (log, recorders) = recorders(size, |_| {});
        let ranks = job_with(size, |rank| recorders[rank as usize].clone());
        each(size, |rank| {
            let own = &ranks[rank as usize];
            // Asked for by the lower rank, by the higher one, or by both, and more than once.
            for peer in (0..size).filter(|peer| *peer != rank) {
                if (rank + peer) % 3 == 0 || (rank < peer) == ((rank + peer) % 3 == 1) {
                    own.control.want_link(peer);
                    own.control.want_link(peer);
                }
            }
            let links = &recorders[rank as usize].links;
            own.bell.wait_until("all links", || lock(links).len() + 1 == size as usize);
        });
        // What is still on its way would come before the end of this.
        shutdown_all(&ranks);
        for (a, b) in (0..size).flat_map(|b| (0..b).map(move |a| (a, b))) {
            assert_eq!(
                between(&log, a, b),
                [
                    (a, Called::Offer),
                    (b, Called::Accept),
                    (a, Called::Complete),
                    (b, Called::Confirm)
                ],
                "ranks {a} and {b} of {size}"
            );
        }
    }
}

#[test]
fn a_refused_kind_of_link_is_followed_by_the_next() {
    let (log, recorders) = recorders(6, |recorder| {
        recorder.refused = 2;
        recorder.kinds = 3;
    });
    let ranks = job_with(6, |rank| recorders[rank as usize].clone());
    ranks[5].control.want_link(1);
    for (rank, how) in [(1, "completed"), (5, "confirmed")] {
        let links = &recorders[rank].links;
        ranks[rank].bell.wait_until("the link", || !lock(links).is_empty());
        assert_eq!(lock(links)[0].1, how);
    }
    use Called::{Accept, Complete, Confirm, Offer};
    let expected = [
        (1, Offer),
        (5, Accept),
        (1, Offer),
        (5, Accept),
        (1, Offer),
        (5, Accept),
        (1, Complete),
        (5, Confirm),
    ];
    assert_eq!(between(&log, 1, 5), expected);
    shutdown_all(&ranks);
}

#[test]
fn when_all_kinds_are_refused_both_sides_are_told_why() {
    let (_, recorders) = recorders(6, |recorder| {
        recorder.refused = 9;
        recorder.kinds = 2;
    });
    let ranks = job_with(6, |rank| recorders[rank as usize].clone());
    ranks[1].control.want_link(5);
    for (rank, peer) in [(1, 5), (5, 1)] {
        let failures = &recorders[rank].failures;
        ranks[rank].bell.wait_until("the failure", || !lock(failures).is_empty());
        let (with, reason) = lock(failures)[0].clone();
        assert_eq!(with, peer);
        for part in ["not kind 0", "not kind 1", "no further kind"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
    // It stays failed until it is forgotten.
    ranks[5].control.want_link(1);
    shutdown_all(&ranks);
    assert_eq!(lock(&recorders[5].failures).len(), 1);
}

#[test]
fn the_largest_descriptions_pass_and_larger_ones_fail() {
    for (bytes, passes) in [(32 << 10, true), ((32 << 10) + 1, false)] {
        let (_, recorders) = recorders(9, |recorder| recorder.bytes = bytes);
        let ranks = job_with(9, |rank| recorders[rank as usize].clone());
        ranks[0].control.want_link(7);
        let (links, failures) = (&recorders[0].links, &recorders[0].failures);
        ranks[0].bell.wait_until("an end", || lock(links).len() + lock(failures).len() > 0);
        assert_eq!((lock(links).len(), lock(failures).len()), (passes.into(), (!passes).into()));
        shutdown_all(&ranks);
    }
}

#[test]
fn a_forgotten_link_is_built_anew_by_whoever_wants_it() {
    for (forgetting, wanting) in [(0, 0), (0, 3), (3, 0), (3, 3)] {
        let (log, recorders) = recorders(4, |_| {});
        let ranks = job_with(4, |rank| recorders[rank as usize].clone());
        let wait_for = |count| {
            for rank in [0, 3] {
                let links = &recorders[rank].links;
                ranks[rank].bell.wait_until("the link", || lock(links).len() == count);
            }
        };
        ranks[3].control.want_link(0);
        wait_for(1);
        // A link that broke is noticed by both ends in the end; the order must not matter.
        ranks[forgetting].control.forget_link(3 - forgetting as Rank);
        ranks[3 - forgetting].control.forget_link(forgetting as Rank);
        ranks[wanting].control.want_link(3 - wanting as Rank);
        wait_for(2);
        use Called::{Accept, Closed, Complete, Confirm, Offer};
        let once = [(0, Offer), (3, Accept), (0, Complete), (3, Confirm)];
        let mut calls = between(&log, 0, 3);
        // One end may hear of the other's before it forgets the link itself.
        calls.retain(|(_, called)| *called != Closed);
        assert_eq!(calls, [once, once].concat());
        shutdown_all(&ranks);
    }
}

#[test]
fn the_other_end_is_told_and_a_new_link_waits_for_it() {
    for forgetting in [0, 3] {
        let (log, recorders) = recorders(4, |_| {});
        let ranks = job_with(4, |rank| recorders[rank as usize].clone());
        ranks[0].control.want_link(3);
        let links = &recorders[3].links;
        ranks[3].bell.wait_until("the link", || lock(links).len() == 1);
        let other = 3 - forgetting;
        ranks[forgetting].control.forget_link(other as Rank);
        ranks[forgetting].control.want_link(other as Rank);
        let closed = || between(&log, 0, 3).contains(&(other as Rank, Called::Closed));
        ranks[other].bell.wait_until("the news", closed);
        // Long enough for a link to be made, were it made now.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let accepts = || {
            let calls = between(&log, 0, 3);
            calls.iter().filter(|(_, called)| *called == Called::Accept).count()
        };
        assert_eq!(accepts(), 1, "a new link beside the old one");
        ranks[other].control.forget_link(forgetting as Rank);
        ranks[3].bell.wait_until("the second link", || lock(links).len() == 2);
        assert_eq!(accepts(), 2);
        let told = between(&log, 0, 3).into_iter().filter(|(_, called)| *called == Called::Closed);
        assert_eq!(told.collect::<Vec<_>>(), [(other as Rank, Called::Closed)]);
        shutdown_all(&ranks);
    }
}
