//! Several ranks as threads of one process, over loopback.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::shared::Stop;
use super::{AbortCause, AbortKind, AbortScope, Control, Vote};
use crate::bootstrap::{RendezvousServer, Secret};
use crate::config::Config;
use crate::error::Error;
use crate::link::{Bell, Connector, PeerInfo};
use crate::wire::{Rank, Signature};

struct Silent;

impl Bell for Silent {
    fn ring(&self) {}
}

/// Notes the calls of link set-up, by peer, and checks their order.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<(&'static str, Rank)>>,
    refuse: u32,
}

impl Recorder {
    fn note(&self, call: &'static str, peer: Rank) {
        self.calls.lock().unwrap().push((call, peer));
    }

    fn count(&self, call: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|(name, _)| *name == call).count()
    }

    fn of(&self, peer: Rank) -> Vec<&'static str> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(_, to)| *to == peer).map(|(call, _)| *call).collect()
    }
}

impl Connector for Recorder {
    fn offer(&self, peer: &PeerInfo, attempt: u32) -> Result<Vec<u8>, Error> {
        if attempt > self.refuse {
            return Err(Error::Invalid("no further way".into()));
        }
        self.note("offer", peer.rank);
        Ok(vec![attempt as u8; 20_000])
    }

    fn accept(&self, peer: &PeerInfo, offer: &[u8]) -> Result<Vec<u8>, Error> {
        assert_eq!(offer.len(), 20_000);
        if u32::from(offer[0]) < self.refuse {
            self.note("refuse", peer.rank);
            return Err(Error::Invalid("not this way".into()));
        }
        self.note("accept", peer.rank);
        Ok(vec![7; 20_000])
    }

    fn complete(&self, peer: &PeerInfo, answer: &[u8]) -> Result<(), Error> {
        assert_eq!(answer, [7; 20_000]);
        self.note("complete", peer.rank);
        Ok(())
    }

    fn confirm(&self, peer: &PeerInfo) -> Result<(), Error> {
        self.note("confirm", peer.rank);
        Ok(())
    }

    fn failed(&self, peer: &PeerInfo, _reason: &str) {
        self.note("failed", peer.rank);
    }
}

/// Runs `work` on each of `size` ranks in a thread of its own.
fn job<R: Send>(size: u32, refuse: u32, work: impl Fn(Control, &Recorder) -> R + Sync) -> Vec<R> {
    let secret = Secret::generate().unwrap();
    let within = Duration::from_secs(60);
    let server = RendezvousServer::bind("127.0.0.1:0", size, &secret, within).unwrap();
    let address = server.address().to_string();
    std::thread::scope(|scope| {
        // A single rank needs no rendezvous and does not come to it.
        if size > 1 {
            scope.spawn(move || server.serve());
        }
        let start = |rank| {
            let config = Config {
                rank,
                size,
                rendezvous: Some(address.clone()),
                secret: Some(secret.clone()),
                ..Config::default()
            };
            let work = &work;
            scope.spawn(move || {
                let recorder = Arc::new(Recorder { refuse, ..Recorder::default() });
                let control = Control::start(&config, Arc::new(Silent), recorder.clone());
                work(control.unwrap_or_else(|e| panic!("rank {rank}: {e}")), &recorder)
            })
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Waits for something that another thread does.
fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < give_up, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const SIZES: [u32; 9] = [1, 2, 3, 4, 5, 8, 9, 16, 33];

#[test]
fn ranks_meet_agree_and_leave() {
    for size in SIZES {
        job(size, 0, |control, _| {
            let rank = control.rank();
            assert_eq!(control.peers().len() as u32, size);
            for round in 0..5 {
                let failure = (rank == size / 2 && round == 3).then(|| format!("in {round}"));
                let vote = Vote { failure, low: 100 + u64::from(rank), high: u64::from(rank) };
                let agreed = control.agree(vote, None).unwrap();
                assert_eq!((agreed.minimum, agreed.maximum), (100, u64::from(size) - 1));
                let failed = (round == 3).then(|| (size / 2, "in 3".to_owned()));
                assert_eq!(agreed.failed, failed);
            }
            control.shutdown(Duration::from_secs(60)).unwrap();
        });
    }
}

#[test]
fn every_pair_gets_one_link_in_order() {
    for (size, refuse) in [(2, 0), (5, 0), (9, 1)] {
        job(size, refuse, |control, recorder| {
            let others: Vec<_> = (0..size).filter(|peer| *peer != control.rank()).collect();
            for &peer in &others {
                control.want_link(peer);
                control.want_link(peer);
            }
            eventually("every link", || {
                recorder.count("complete") + recorder.count("confirm") == others.len()
            });
            control.agree(Vote::default(), None).unwrap();
            for &peer in &others {
                let (again, once) = match (control.rank() < peer, refuse) {
                    (true, 0) => (vec![], vec!["offer", "complete"]),
                    (true, _) => (vec!["offer"], vec!["offer", "complete"]),
                    (false, 0) => (vec![], vec!["accept", "confirm"]),
                    (false, _) => (vec!["refuse"], vec!["accept", "confirm"]),
                };
                assert_eq!(recorder.of(peer), [again, once].concat());
            }
            control.shutdown(Duration::from_secs(60)).unwrap();
        });
    }
}

#[test]
fn a_vanished_rank_is_named_on_every_survivor() {
    for (size, victim) in [(2, 0), (3, 1), (5, 0), (8, 7), (16, 5), (33, 20)] {
        let started = std::sync::Barrier::new(size as usize);
        job(size, 0, |control, _| {
            // A rank may still be starting, or in an agreement, when another has ended it.
            started.wait();
            if control.rank() == victim {
                control.owner.left.store(true, std::sync::atomic::Ordering::Release);
                control.owner.stop(Stop::Vanish);
                return;
            }
            eventually("the abort", || control.is_aborted());
            let cause = control.abort_cause(0).unwrap();
            let AbortKind::RankDied { rank, .. } = cause.kind else { panic!("{cause}") };
            assert_eq!((rank, cause.scope), (victim, AbortScope::Job));
            let refused = control.agree(Vote::default(), None);
            assert!(matches!(refused, Err(Error::Aborted(_))), "{refused:?}");
        });
    }
}

#[test]
fn an_abort_of_one_communicator_reaches_all_and_leaves_the_others() {
    for size in [2, 9, 33] {
        job(size, 0, |control, _| {
            let kind = AbortKind::Application { reason: "enough".into() };
            let scope = AbortScope::Communicator(3);
            if control.rank() == size - 1 {
                control.abort(AbortCause { scope, origin: control.rank(), kind });
            }
            eventually("the abort", || control.abort_cause(3).is_some());
            assert_eq!(control.abort_cause(0), None);
            control.agree(Vote::default(), None).unwrap();
            control.shutdown(Duration::from_secs(60)).unwrap();
        });
    }
}

#[test]
fn published_calls_that_differ_abort_their_communicator_on_every_rank() {
    job(9, 0, |control, _| {
        let root = u32::from(control.rank() == 4);
        let call = Signature {
            communicator: 0,
            number: 7,
            operation: 1,
            algorithm: 9,
            element: 0,
            radix: 0,
            root,
            bytes: 10,
            block_bytes: 10,
        };
        control.record_call(&call);
        assert_eq!(control.recorded_call(0, 7), Some(call));
        control.publish_call(&call);
        eventually("the abort", || control.abort_cause(0).is_some());
        let cause = control.abort_cause(0).unwrap();
        let AbortKind::Mismatch { first_call, second_call, first, second } = cause.kind else {
            panic!("{cause}")
        };
        assert!(first == 4 || second == 4);
        assert_eq!(first_call.root + second_call.root, 1);
        control.agree(Vote::default(), None).unwrap();
        control.shutdown(Duration::from_secs(60)).unwrap();
    });
}

#[test]
fn the_thread_sleeps_when_there_is_nothing_to_do() {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike as _;
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let time = usage.user_time() + usage.system_time();
        Duration::from_micros(time.num_microseconds() as u64)
    };
    // Other tests of this process use the processor meanwhile, so the least of several looks.
    job(4, 0, |control, _| {
        let least = (0..20)
            .map(|_| {
                let before = cpu();
                std::thread::sleep(Duration::from_millis(100));
                cpu() - before
            })
            .min()
            .unwrap();
        control.agree(Vote::default(), None).unwrap();
        control.shutdown(Duration::from_secs(60)).unwrap();
        assert!(least < Duration::from_millis(60), "{least:?} of 100 ms with four idle ranks");
    });
}
