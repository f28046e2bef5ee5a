//! Aborts and deaths, and calls that do not match.

use super::*;

#[test]
fn an_abort_of_the_job_reaches_every_rank_with_one_cause() {
    for size in SIZES {
        for origin in [0, size / 2, size - 1] {
            let ranks = job(size);
            let cause = application(origin, AbortScope::Job, "disk full");
            ranks[origin as usize].control.abort(cause.clone());
            assert!(ranks[origin as usize].control.is_aborted(), "at once where it comes from");
            for rank in &ranks {
                assert_eq!(aborted(rank), cause);
                let error = rank.control.agree(Vote::default(), None).unwrap_err();
                assert!(matches!(&error, Error::Aborted(c) if *c == cause), "{error}");
            }
            // The first cause stays.
            ranks[0].control.abort(application(0, AbortScope::Job, "too late"));
            for rank in &ranks {
                assert_eq!(rank.control.abort_cause(0), Some(cause.clone()));
                let error = rank.control.shutdown(LONG).unwrap_err();
                assert!(matches!(&error, Error::Aborted(c) if *c == cause), "{error}");
            }
        }
    }
}

#[test]
fn an_abort_of_a_communicator_leaves_the_others_alone() {
    let ranks = job(9);
    let cause = application(4, AbortScope::Communicator(7), "only this one");
    ranks[4].control.abort(cause.clone());
    for rank in &ranks {
        rank.bell.wait_until("the abort", || rank.control.abort_cause(7).is_some());
        assert_eq!(rank.control.abort_cause(7), Some(cause.clone()));
        assert_eq!(rank.control.abort_cause(8), None);
        assert!(rank.control.is_aborted(), "any abort at all");
    }
    let other = application(5, AbortScope::Communicator(8), "another");
    ranks[5].control.abort(other.clone());
    for rank in &ranks {
        rank.bell.wait_until("the other abort", || rank.control.abort_cause(8).is_some());
        assert_eq!(rank.control.abort_cause(7), Some(cause.clone()), "the first cause stays");
    }
    // Agreement and shutdown belong to the job.
    each(9, |rank| ranks[rank as usize].control.agree(Vote::default(), None).unwrap());
    shutdown_all(&ranks);
}

#[test]
fn who_waits_in_an_agreement_is_woken_by_an_abort() {
    let ranks = job(8);
    let cause = application(3, AbortScope::Job, "gave up");
    let errors = each(8, |rank| {
        let control = &ranks[rank as usize].control;
        if rank == 3 {
            control.abort(cause.clone());
        }
        control.agree(Vote::default(), None).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("gave up")), "{errors:?}");
}

#[test]
fn a_texts_length_cannot_break_an_abort() {
    let ranks = job(2);
    let long = "é".repeat(1 << 20);
    ranks[0].control.abort(application(0, AbortScope::Job, &long));
    let AbortKind::Application { reason } = aborted(&ranks[1]).kind else { panic!() };
    assert!(!reason.is_empty() && long.starts_with(&reason));
    let ranks = job(2);
    let missing = (0..1_000_000).collect();
    let kind = AbortKind::Deadline { call: call(0, 0, 0), after_ms: 1, missing };
    ranks[0].control.abort(AbortCause { scope: AbortScope::Job, origin: 0, kind });
    assert!(matches!(aborted(&ranks[1]).kind, AbortKind::Deadline { .. }));
}

fn assert_died(rank: &TestRank, dead: Rank) {
    let cause = aborted(rank);
    let host = rank.control.peers()[dead as usize].host.clone();
    assert_eq!(cause.kind, AbortKind::RankDied { rank: dead, host }, "{cause}");
}

#[test]
fn the_death_of_a_rank_is_told_to_every_survivor() {
    for size in SIZES.into_iter().filter(|size| *size > 1) {
        for dead in [0, size / 2, size - 1] {
            let ranks = job(size);
            ranks[dead as usize].control.vanish();
            for rank in ranks.iter().filter(|rank| rank.control.rank() != dead) {
                assert_died(rank, dead);
            }
            // Survivors may end in any order, and it is no further news.
            each(size, |rank| {
                if rank != dead {
                    ranks[rank as usize].control.shutdown(LONG).unwrap_err();
                    assert_died(&ranks[rank as usize], dead);
                }
            });
        }
    }
}

#[test]
fn a_death_ends_agreements_and_shutdowns() {
    for size in [2, 3, 9] {
        for leaving in [false, true] {
            let ranks = job(size);
            let errors = each(size, |rank| {
                let control = &ranks[rank as usize].control;
                if rank == 1 {
                    // Late enough that some others wait already; right at any time.
                    std::thread::sleep(Duration::from_millis(20));
                    control.vanish();
                    return "died".into();
                }
                let result = if leaving {
                    control.shutdown(LONG)
                } else {
                    control.agree(Vote::default(), None).map(drop)
                };
                result.unwrap_err().to_string()
            });
            assert!(errors.iter().all(|e| e.contains("rank 1 on") || e == "died"), "{errors:?}");
        }
    }
}

#[test]
fn several_deaths_at_once_reach_all_survivors() {
    let size = 33;
    let ranks = job(size);
    let dead = [0, 1, 2, 16, 17, 30];
    each(size, |rank| {
        if dead.contains(&rank) {
            ranks[rank as usize].control.vanish();
        }
    });
    for rank in ranks.iter().filter(|rank| !dead.contains(&rank.control.rank())) {
        let AbortKind::RankDied { rank: named, .. } = aborted(rank).kind else { panic!() };
        assert!(dead.contains(&named));
    }
}

#[test]
fn calls_that_do_not_match_are_found_though_nobody_waits_for_the_other() {
    for size in [2, 3, 9, 33] {
        let ranks = job(size);
        // Rank 0 waits in one call, the last rank in another; those between are far behind.
        let (one, other) = (call(5, 3, 0), call(5, 3, size - 1));
        let last = &ranks[size as usize - 1].control;
        ranks[0].control.record_call(&one);
        last.record_call(&other);
        ranks[0].control.publish_call(&one);
        last.publish_call(&other);
        for rank in &ranks {
            rank.bell.wait_until("the mismatch", || rank.control.abort_cause(5).is_some());
            let cause = rank.control.abort_cause(5).unwrap();
            let expected = AbortKind::Mismatch {
                first: 0,
                first_call: one,
                second: size - 1,
                second_call: other,
            };
            assert_eq!((cause.scope, &cause.kind), (AbortScope::Communicator(5), &expected));
            assert_eq!(rank.control.abort_cause(6), None);
        }
        shutdown_all(&ranks);
    }
}

#[test]
fn a_published_call_is_compared_with_what_was_and_what_will_be_called() {
    let ranks = job(9);
    // Rank 7 has finished number 1 long ago, with another root.
    ranks[7].control.record_call(&call(1, 1, 2));
    ranks[7].control.record_call(&call(1, 2, 2));
    ranks[0].control.record_call(&call(1, 1, 0));
    assert_eq!(ranks[7].control.recorded_call(1, 1), Some(call(1, 1, 2)));
    assert_eq!(ranks[7].control.recorded_call(1, 3), None);
    ranks[0].control.publish_call(&call(1, 1, 0));
    for rank in &ranks {
        rank.bell.wait_until("the mismatch", || rank.control.abort_cause(1).is_some());
    }
    // Rank 4 comes to a call that others have published before.
    ranks[0].control.publish_call(&call(2, 1, 0));
    each(9, |rank| ranks[rank as usize].control.agree(Vote::default(), None).unwrap());
    assert_eq!(ranks[4].control.abort_cause(2), None);
    ranks[4].control.record_call(&call(2, 1, 4));
    let cause = ranks[4].control.abort_cause(2).unwrap().to_string();
    assert!(
        cause.contains("rank 0 called broadcast number 1") && cause.contains("rank 4"),
        "{cause}"
    );
    ranks[8].bell.wait_until("the mismatch", || ranks[8].control.abort_cause(2).is_some());
    shutdown_all(&ranks);
}

#[test]
fn publications_without_end_neither_pile_up_nor_disturb() {
    let ranks = job(5);
    for number in 0..5000 {
        let call = call(0, number, 0);
        for rank in &ranks {
            rank.control.record_call(&call);
            rank.control.publish_call(&call);
        }
    }
    each(5, |rank| ranks[rank as usize].control.agree(Vote::default(), None).unwrap());
    assert!(ranks.iter().all(|rank| !rank.control.is_aborted()));
    shutdown_all(&ranks);
}
