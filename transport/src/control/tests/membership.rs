//! Start, agreement and shutdown; sleeping in between.

use super::*;

#[test]
fn jobs_start_agree_and_shut_down() {
    for size in SIZES {
        let ranks = job(size);
        for rank in &ranks {
            assert_eq!(rank.control.size(), size);
            let numbers: Vec<Rank> = rank.control.peers().iter().map(|peer| peer.rank).collect();
            assert_eq!(numbers, (0..size).collect::<Vec<_>>());
        }
        for round in 0..3 {
            let votes = each(size, |rank| {
                let failure = (round == 1 && rank >= size / 2).then(|| format!("I am {rank}"));
                let vote = Vote { failure, low: u64::MAX - u64::from(rank), high: u64::from(rank) };
                ranks[rank as usize].control.agree(vote, Some(Instant::now() + LONG)).unwrap()
            });
            let failed = (round == 1).then(|| (size / 2, format!("I am {}", size / 2)));
            let last = u64::from(size - 1);
            let expected = Agreed { failed, minimum: u64::MAX - last, maximum: last };
            assert!(votes.iter().all(|agreed| *agreed == expected), "{size}: {votes:?}");
        }
        shutdown_all(&ranks);
        assert!(ranks.iter().all(|rank| !rank.control.is_aborted()), "size {size}");
        // Afterwards nothing is left to do, and nothing hangs.
        ranks[0].control.shutdown(LONG).unwrap();
        if size > 1 {
            let error = ranks[0].control.agree(Vote::default(), None).unwrap_err();
            assert!(matches!(error, Error::Control(ControlError::Left { rank: 0 })), "{error}");
        }
    }
}

#[test]
fn an_agreement_waits_for_the_last_and_survives_a_deadline() {
    let ranks = job(5);
    let soon = || Some(Instant::now() + Duration::from_millis(200));
    for rank in &ranks[..4] {
        let error = rank.control.agree(Vote { high: 7, ..Vote::default() }, soon()).unwrap_err();
        let Error::Control(ControlError::AgreeDeadline { missing, .. }) = &error else {
            panic!("{error}")
        };
        assert!(!missing.is_empty(), "{error}");
    }
    // The votes were cast: the last rank agrees with all of them at once, and the next agreement
    // finds everybody in step.
    let agreed = ranks[4].control.agree(Vote::default(), Some(Instant::now() + LONG)).unwrap();
    assert_eq!(agreed.maximum, 7);
    let next = each(5, |rank| {
        let vote = Vote { high: 9, ..Vote::default() };
        ranks[rank as usize].control.agree(vote, Some(Instant::now() + LONG)).unwrap()
    });
    assert!(next.iter().all(|agreed| agreed.maximum == 9));
    shutdown_all(&ranks);
}

#[test]
fn a_deadline_names_the_one_that_is_late_where_it_is_a_neighbour() {
    let ranks = job(2);
    let soon = Some(Instant::now() + Duration::from_millis(100));
    let error = ranks[0].control.agree(Vote::default(), soon).unwrap_err();
    assert!(error.to_string().contains("rank(s) 1"), "{error}");
    ranks[1].control.agree(Vote::default(), None).unwrap();
    shutdown_all(&ranks);
}

#[test]
fn calls_of_several_threads_follow_each_other() {
    let ranks = job(3);
    std::thread::scope(|scope| {
        for rank in &ranks {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        rank.control.agree(Vote::default(), Some(Instant::now() + LONG)).unwrap();
                    }
                });
            }
        }
    });
    shutdown_all(&ranks);
}

#[test]
fn a_rank_that_leaves_while_others_agree_is_an_error_on_all() {
    for size in [2, 3, 8] {
        let ranks = job(size);
        let results = each(size, |rank| {
            let control = &ranks[rank as usize].control;
            if rank == 1 {
                control.shutdown(LONG).map(drop)
            } else {
                control.agree(Vote::default(), Some(Instant::now() + LONG)).map(drop)
            }
        });
        for result in results {
            let message = result.unwrap_err().to_string();
            assert!(message.contains("mismatched calls"), "{message}");
            assert!(message.contains("rank 1 leaves the job"), "{message}");
        }
    }
}

#[test]
fn a_shutdown_that_others_do_not_join_aborts_the_job() {
    let ranks = job(3);
    let error = ranks[2].control.shutdown(Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, Error::Control(ControlError::AgreeDeadline { .. })), "{error}");
    for rank in &ranks[..2] {
        let cause = aborted(rank).to_string();
        assert!(cause.contains("rank 2: could not leave the job"), "{cause}");
        rank.control.shutdown(LONG).unwrap_err();
    }
}

#[test]
fn a_handle_that_is_dropped_aborts_the_job() {
    let mut ranks = job(4);
    let dropped = ranks.remove(1);
    let second_handle = dropped.control.clone();
    drop(dropped.control);
    assert!(!second_handle.is_aborted(), "a handle is left");
    drop(second_handle);
    for rank in &ranks {
        assert_eq!(
            aborted(rank),
            application(1, AbortScope::Job, "left the job without finalizing it")
        );
    }
}

#[test]
fn an_idle_thread_uses_no_time() {
    let connectors: Vec<Arc<ThreadId>> = (0..3).map(|_| Arc::default()).collect();
    let ranks = job_with(3, |rank| connectors[rank as usize].clone());
    ranks[0].control.want_link(1);
    ranks[1].control.want_link(2);
    for (rank, connector) in ranks.iter().zip(&connectors) {
        let known = || connector.0.load(Ordering::Relaxed) != 0;
        rank.bell.wait_until("the end of a link", known);
    }
    // The clock is the thread's own; the wall only says for how long it could have run.
    let before: Vec<Duration> = connectors.iter().map(|connector| connector.time()).collect();
    std::thread::sleep(Duration::from_secs(1));
    for (connector, before) in connectors.iter().zip(before) {
        let used = connector.time() - before;
        assert!(used < Duration::from_millis(20), "{used:?} within a second of idleness");
    }
    shutdown_all(&ranks);
}

/// Tells which thread calls it; makes no links.
#[derive(Default)]
struct ThreadId(AtomicUsize);

impl ThreadId {
    fn note(&self) -> Error {
        self.0.store(nix::unistd::gettid().as_raw() as usize, Ordering::Relaxed);
        Error::Invalid("no links in this test".into())
    }

    /// CPU time of that thread so far.
    fn time(&self) -> Duration {
        let thread = self.0.load(Ordering::Relaxed);
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }
}

impl Connector for ThreadId {
    fn offer(&self, _: &PeerInfo, _: u32) -> Result<Vec<u8>, Error> {
        Err(self.note())
    }
    fn accept(&self, _: &PeerInfo, _: &[u8]) -> Result<Vec<u8>, Error> {
        Err(self.note())
    }
    fn complete(&self, _: &PeerInfo, _: &[u8]) -> Result<(), Error> {
        Err(self.note())
    }
    fn confirm(&self, _: &PeerInfo) -> Result<(), Error> {
        Err(self.note())
    }
    fn failed(&self, _: &PeerInfo, _: &str) {
        self.note();
    }
}
