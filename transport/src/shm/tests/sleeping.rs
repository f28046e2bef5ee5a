//! The bell within one process; the stress test over processes is in `processes`.

use std::sync::atomic::{AtomicBool, Ordering};

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
