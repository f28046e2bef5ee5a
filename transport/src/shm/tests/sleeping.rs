//! The bell within one process; the stress test over processes is in `processes`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::link::Bell;

fn new_bell() -> Arc<ShmBell> {
    open(ShmSettings::new(0)).unwrap().2
}

/// Whether the pipe is readable now.
fn readable(bell: &ShmBell) -> bool {
    let mut fds = [PollFd::new(bell.pipe_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

/// Whether `bell` returns from a sleep that would last until the end of the test.
fn wakes(bell: &ShmBell) -> bool {
    let deadline = Instant::now() + PATIENCE;
    bell.sleep(Some(deadline));
    bell.disarm();
    Instant::now() < deadline
}

#[test]
fn a_ring_between_arming_and_sleeping_is_not_lost() {
    let bell = new_bell();
    for _ in 0..1000 {
        bell.arm(Mode::Futex);
        bell.ring();
        bell.ring();
        assert!(wakes(&bell));
        bell.arm(Mode::Pipe);
        bell.ring();
        assert!(readable(&bell));
        bell.disarm();
        assert!(!readable(&bell), "disarming empties the pipe");
    }
}

#[test]
fn a_ring_while_awake_costs_and_leaves_nothing() {
    let bell = new_bell();
    bell.ring();
    assert!(!readable(&bell));
    // Not armed, armed for the pipe, or past its deadline: a sleep that must not begin.
    bell.sleep(None);
    bell.arm(Mode::Pipe);
    bell.sleep(None);
    bell.disarm();
    bell.arm(Mode::Futex);
    bell.sleep(Some(Instant::now()));
    bell.disarm();
}

#[test]
fn a_deadline_ends_a_sleep_and_not_before() {
    let bell = new_bell();
    let deadline = Instant::now() + Duration::from_millis(30);
    while Instant::now() < deadline {
        bell.arm(Mode::Futex);
        bell.sleep(Some(deadline));
        bell.disarm();
    }
    assert!(Instant::now() < deadline + PATIENCE);
}

/// Whoever of two wakers comes first may be stopped between any two steps: the other one wakes.
#[test]
fn a_waker_that_died_half_way_silences_no_other() {
    for mode in [Mode::Futex, Mode::Pipe] {
        let bell = new_bell();
        let asleep = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                bell.arm(mode);
                asleep.store(true, Ordering::SeqCst);
                match mode {
                    Mode::Futex => bell.sleep(Some(Instant::now() + PATIENCE)),
                    Mode::Pipe => {
                        let mut fds = [PollFd::new(bell.pipe_fd(), PollFlags::POLLIN)];
                        poll(&mut fds, PollTimeout::try_from(PATIENCE).unwrap()).unwrap();
                    }
                }
                bell.disarm();
            });
            while !asleep.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            // What a waker does before it wakes; then it is killed.
            bell.bump_word();
            std::thread::sleep(Duration::from_millis(20));
            let begun = Instant::now();
            bell.ring();
            sleeper.join().unwrap();
            assert!(begun.elapsed() < PATIENCE / 2, "woken by the deadline only");
        });
    }
}

/// A waker that goes on late clears its own generation only, not the sleeper's next one.
#[test]
fn a_late_waker_does_not_disarm_the_next_sleep() {
    let bell = new_bell();
    bell.arm(Mode::Futex);
    let stale = bell.armed_state();
    bell.disarm();
    bell.arm(Mode::Futex);
    assert!(!bell.clear_state(stale), "another generation was cleared");
    bell.ring();
    assert!(wakes(&bell));
}

/// The protocol alone, as tight as can be: the sleeper looks right after arming, while the waker
/// publishes at about that time. Without either fence this hangs after some thousand rounds.
#[test]
fn arming_and_publishing_at_once_never_miss_each_other() {
    const ROUNDS: u32 = 400_000;
    let bell = new_bell();
    let (ready, published) = (AtomicU32::new(0), AtomicU32::new(0));
    let seed = 5;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(seed);
            for round in 1..=ROUNDS {
                let mut spins = 0;
                while ready.load(Ordering::Acquire) < round {
                    pause(&mut spins);
                }
                (0..random.u32(0..12)).for_each(|_| std::hint::spin_loop());
                published.store(round, Ordering::Release);
                bell.ring();
            }
        });
        let mut random = fastrand::Rng::with_seed(!seed);
        for round in 1..=ROUNDS {
            ready.store(round, Ordering::Release);
            (0..random.u32(0..12)).for_each(|_| std::hint::spin_loop());
            loop {
                bell.arm(Mode::Futex);
                let seen = published.load(Ordering::Acquire) == round;
                let woken = seen || wakes(&bell);
                bell.disarm();
                assert!(woken, "a wake-up was lost in round {round}");
                if seen {
                    break;
                }
            }
        }
    });
}

/// Spins, and yields now and then: there may be fewer cores than threads.
fn pause(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(1000) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Lets `sleeper` begin to sleep in another thread, and does `then` meanwhile.
fn while_asleep<T: Send>(sleeper: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(sleeper);
        // Nothing depends on this being long enough: woken too early, it just did not sleep.
        std::thread::sleep(Duration::from_millis(50));
        then();
        sleeper.join().unwrap()
    })
}

/// Sleeps until `done` after a poll; fails if that takes all patience.
fn sleep_until(rank: &mut TestRank, mut done: impl FnMut(&mut TestRank) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        rank.bell.arm(Mode::Futex);
        rank.poll();
        let done = done(rank);
        if !done {
            rank.bell.sleep(Some(deadline));
        }
        rank.bell.disarm();
        assert!(Instant::now() < deadline, "nobody woke rank {}", rank.rank);
        if done {
            return;
        }
    }
}

#[test]
fn a_slot_that_comes_back_wakes_a_sender_that_was_turned_away() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    while a.send(1, 0, &[]) == Posting::Posted {}
    let (slot, _, _) = b.expect_message();
    let resume = || sleep_until(&mut a, |a| a.send(1, 1, &[]) == Posting::Posted);
    while_asleep(resume, || {
        b.fabric.release(slot);
        b.fabric.flush().unwrap();
    });
}

#[test]
fn a_link_that_comes_up_wakes_who_waits_for_it() {
    let (mut a, mut b) = (TestRank::new(ShmSettings::new(0)), TestRank::new(ShmSettings::new(1)));
    let (info_a, info_b) = (a.info(), b.info());
    let (setup_a, setup_b) = (Arc::clone(&a.connector), Arc::clone(&b.connector));
    let offer = setup_a.offer(&info_b, 0).unwrap();
    let answer = setup_b.accept(&info_a, &offer).unwrap();
    let a_up = || sleep_until(&mut a, |a| a.fabric.is_up(1));
    while_asleep(a_up, || setup_a.complete(&info_b, &answer).unwrap());
    let b_up = || sleep_until(&mut b, |b| b.fabric.is_up(0));
    while_asleep(b_up, || setup_b.confirm(&info_a).unwrap());
}

#[test]
fn the_end_of_a_link_wakes_its_peer() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    assert_eq!(while_asleep(|| b.wait(), || a.fabric.quiesce(1)), Event::Broken { peer: 0 });
}
