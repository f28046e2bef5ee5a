//! Waiting: spin a little, yield, then sleep until something rings.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::Error;
use crate::shm::ShmBell;
use crate::shm::bell::Mode as BellMode;
use crate::verbs::fabric::VerbsFabric;
use crate::wire::Rank;

/// How long a rank spins and yields before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// How long it polls with a pause between polls. 0 where ranks outnumber cores.
    pub spin: Duration,
    /// Polls with a `sched_yield` between them.
    pub yields: u32,
}

impl WaitPolicy {
    /// For `local_ranks` ranks on a host where this process may use `cores` cores.
    ///
    /// A wake-up of a sleeper costs some 5-50 us: spinning for about the cost of a wake-up never costs
    /// more than twice the best choice (competitive spinning), and a spinning rank must not hold the
    /// core of the one that it waits for. The kernel may put a rank that it wakes onto the core of the
    /// one that woke it, which then waits for it: that, too, ends with the spinning.
    #[must_use]
    pub fn for_host(local_ranks: u32, cores: u32) -> Self {
        if local_ranks <= cores {
            Self { spin: Duration::from_micros(5), yields: 100 }
        } else {
            Self { spin: Duration::ZERO, yields: 50 }
        }
    }
}

/// Where a wait stands.
#[derive(Debug, Default)]
pub struct Idle {
    /// When the spinning ends, once it has begun.
    spin_until: Option<Instant>,
    yields: u32,
    armed: bool,
}

impl Idle {
    /// At the beginning.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn reset(&mut self, bell: &ShmBell) {
        if self.armed {
            bell.disarm();
        }
        *self = Self::default();
    }

    /// One step: the caller polls between steps, so that after arming it looks once more.
    pub(super) fn step(
        &mut self,
        policy: WaitPolicy,
        bell: &ShmBell,
        verbs: Option<&VerbsFabric>,
        until: Instant,
        rank: Rank,
    ) -> Result<(), Error> {
        if self.yields == 0 && !policy.spin.is_zero() {
            let now = Instant::now();
            if now < *self.spin_until.get_or_insert(now + policy.spin) {
                std::hint::spin_loop();
                return Ok(());
            }
        }
        if self.yields < policy.yields {
            self.yields += 1;
            std::thread::yield_now();
            return Ok(());
        }
        if !self.armed {
            self.armed = true;
            bell.arm(if verbs.is_some() { BellMode::Pipe } else { BellMode::Futex });
            if let Some(verbs) = verbs {
                verbs.arm()?;
            }
            return Ok(());
        }
        match verbs {
            None => bell.sleep(Some(until)),
            Some(verbs) => {
                sleep_in_poll(bell, verbs, until, rank)?;
                verbs.take_events()?;
            }
        }
        bell.disarm();
        // Whatever woke it may be the first of several: poll a few times before arming again.
        self.armed = false;
        self.yields = policy.yields - policy.yields.min(2);
        Ok(())
    }
}

fn sleep_in_poll(
    bell: &ShmBell,
    verbs: &VerbsFabric,
    until: Instant,
    rank: Rank,
) -> Result<(), Error> {
    const FDS: usize = crate::wire::RAILS_MAX + 1;
    let mut fds: [PollFd<'_>; FDS] =
        std::array::from_fn(|_| PollFd::new(bell.pipe_fd(), PollFlags::POLLIN));
    let mut used = 1;
    let channels = verbs.event_fds().take(FDS - 1);
    for fd in channels {
        let fd: BorrowedFd<'_> = fd;
        fds[used] = PollFd::new(fd, PollFlags::POLLIN);
        used += 1;
    }
    let left = until.saturating_duration_since(Instant::now());
    let millis = left.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
    let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds[..used], timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => {
            Err(Error::System { rank, what: "poll() on completion channels", source: errno.into() })
        }
    }
}
