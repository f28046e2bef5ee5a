//! The bell: how a rank's data path sleeps, and how others wake it.
//!
//! Each rank has one page that its same-host peers map. It holds `state`, which says whether the
//! rank is awake or sleeps (and how), and `word`, the futex it sleeps on.
//!
//! Sleeper: `arm` (remember `word`, set `state` to a new generation with the mode, full fence),
//! poll once more, `sleep` (futex_wait on the remembered value, or `poll` on the pipe), `disarm`.
//! Waker: publish, full fence, load `state`; if it is armed: add one to `word`, futex_wake (or write
//! a byte to the pipe), and then clear exactly that generation of `state`.
//!
//! # Why no wake-up is lost
//! Let a waker W publish p, and load s from `state`. The sleeper S polls after every sleep and
//! before every sleep, and does not sleep if that poll found something. Consider the generation g
//! that S armed last.
//!
//! 1. s is the armed g. W's addition to `word` comes after S read it, as S read before it stored g
//!    and W adds after it loaded g. So a futex_wait of generation g that has not begun fails by the
//!    kernel's comparison, and one that has begun is ended by W's futex_wake; a pipe stays readable
//!    until S drains it, after which S polls.
//! 2. s is older than g's arming in the order of stores to `state`. Then W's fence comes before S's
//!    fence in the single order of SeqCst fences (else W would have loaded g or newer), so S's poll
//!    after arming g sees p.
//! 3. s is newer than g's arming: g was disarmed by S, which polls before it sleeps again, under a
//!    newer arming, against the assumption; or g was cleared by another waker, which does so only
//!    after its own addition and futex_wake for g. Then S does not sleep on g any more, or not for
//!    long; before it sleeps again it arms g + 1, and case 2 holds for that.
//!
//! A waker that is stopped or killed between its steps blocks nobody: until it has really woken S,
//! `state` stays armed, and the next waker does it all itself. A stopped waker that goes on much
//! later can only clear its own old generation, which is not there any more.
//!
//! A peer that scribbles over the page can make its host rank miss wake-ups or wake for nothing,
//! but a sleep with a deadline ends by it, and no memory is at stake.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::{pipe2, read, write};

use super::error::SetupError;
use super::files::{self, Foreign};
use super::mapping::Mapping;
use crate::link::Bell;

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).expect("a page is not empty");
const STATE: usize = 0;
const WORD: usize = 128;
const MODE_BITS: u32 = 2;
const MODE_MASK: u64 = (1 << MODE_BITS) - 1;
const AWAKE: u64 = 0;

/// How a rank sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In [`ShmBell::sleep`].
    Futex,
    /// In `poll` over [`ShmBell::pipe_fd`] and other descriptors.
    Pipe,
}

impl Mode {
    const fn code(self) -> u64 {
        match self {
            Self::Futex => 1,
            Self::Pipe => 2,
        }
    }
}

/// The bell of this rank. One thread, the data path, arms and sleeps; any thread or same-host peer
/// rings.
///
/// The order to keep is: [`arm`](Self::arm), look at everything once more (poll the fabric, the
/// abort flag), and only if nothing moved [`sleep`](Self::sleep) or `poll` on
/// [`pipe_fd`](Self::pipe_fd); then [`disarm`](Self::disarm) in any case.
#[derive(Debug)]
pub struct ShmBell {
    page: Mapping,
    page_file: OwnedFd,
    pipe_read: OwnedFd,
    pipe_write: OwnedFd,
    /// Own copy of what was armed last: peers can write to the page.
    armed: AtomicU64,
    /// Value of the futex word before it was armed.
    expected: AtomicU32,
}

impl ShmBell {
    pub(super) fn new() -> Result<Self, SetupError> {
        let page_file = files::create_memfd("verbcast-bell", PAGE, PAGE.get())?;
        let page = Mapping::new(page_file.as_fd(), PAGE)
            .map_err(SetupError::system("mapping the bell's page"))?;
        let (pipe_read, pipe_write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
            .map_err(SetupError::system("making the bell's pipe"))?;
        let (armed, expected) = (AtomicU64::new(AWAKE), AtomicU32::new(0));
        Ok(Self { page, page_file, pipe_read, pipe_write, armed, expected })
    }

    /// Numbers of the page's memfd and of the pipe's write end in this process.
    pub(super) fn files(&self) -> (i32, i32) {
        (self.page_file.as_raw_fd(), self.pipe_write.as_raw_fd())
    }

    /// Announces that this rank is going to sleep; look at everything once more afterwards.
    pub fn arm(&self, mode: Mode) {
        self.expected.store(self.page.half_word(WORD).load(Ordering::Acquire), Ordering::Relaxed);
        let generation = (self.armed.load(Ordering::Relaxed) >> MODE_BITS).wrapping_add(1);
        let armed = generation << MODE_BITS | mode.code();
        self.armed.store(armed, Ordering::Relaxed);
        self.page.word(STATE).store(armed, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back, and empties the pipe if it was armed.
    pub fn disarm(&self) {
        let armed = self.armed.load(Ordering::Relaxed);
        let awake = armed & !MODE_MASK;
        self.armed.store(awake, Ordering::Relaxed);
        self.page.word(STATE).store(awake, Ordering::Release);
        if armed & MODE_MASK == Mode::Pipe.code() {
            // One read: bytes beyond it, or of wakers that come late, only wake once more.
            let mut bytes = [0; 256];
            let _ = read(&self.pipe_read, &mut bytes);
        }
    }

    /// Sleeps until rung, until `deadline`, or for no reason. Returns at once unless armed with
    /// [`Mode::Futex`].
    pub fn sleep(&self, deadline: Option<Instant>) {
        if self.armed.load(Ordering::Relaxed) & MODE_MASK != Mode::Futex.code() {
            return;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left != Some(Duration::ZERO) {
            let expected = self.expected.load(Ordering::Relaxed);
            futex_wait(self.page.half_word(WORD), expected, left);
        }
    }

    /// What to `poll` for input in when armed with [`Mode::Pipe`].
    #[must_use]
    pub fn pipe_fd(&self) -> BorrowedFd<'_> {
        self.pipe_read.as_fd()
    }
}

/// Single steps of a waker, for tests of what happens when it stops between them.
#[cfg(test)]
impl ShmBell {
    pub(super) fn bump_word(&self) {
        self.page.half_word(WORD).fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn armed_state(&self) -> u64 {
        self.page.word(STATE).load(Ordering::SeqCst)
    }

    pub(super) fn clear_state(&self, armed: u64) -> bool {
        clear(self.page.word(STATE), armed)
    }
}

impl Bell for ShmBell {
    fn ring(&self) {
        ring(&self.page, self.pipe_write.as_fd(), &Published::now());
    }
}

/// Proof that a full fence lies behind everything that was published: what a waker needs before it
/// looks whether the sleeper sleeps. One serves any number of peers.
#[derive(Debug)]
pub(super) struct Published(());

impl Published {
    pub(super) fn now() -> Self {
        fence(Ordering::SeqCst);
        Self(())
    }
}

/// The bell of a same-host peer.
#[derive(Debug)]
pub(super) struct PeerBell {
    page: Mapping,
    pipe: OwnedFd,
}

impl PeerBell {
    /// Opens the bell of process `pid` by the numbers that [`ShmBell::files`] gave there.
    pub(super) fn open(pid: u32, page_fd: i32, pipe_fd: i32) -> Result<Self, SetupError> {
        let page_file = files::open_memfd(Foreign { what: "the bell", pid, fd: page_fd }, PAGE)?;
        let page = Mapping::new(page_file.as_fd(), PAGE)
            .map_err(SetupError::system("mapping the peer's bell"))?;
        let pipe = files::open_pipe(Foreign { what: "the bell's pipe", pid, fd: pipe_fd })?;
        Ok(Self { page, pipe })
    }

    /// Wakes the peer if it sleeps.
    pub(super) fn ring(&self, published: &Published) {
        ring(&self.page, self.pipe.as_fd(), published);
    }
}

/// The waker's side of the protocol, after its fence.
fn ring(page: &Mapping, pipe: BorrowedFd<'_>, _: &Published) {
    let state = page.word(STATE);
    let armed = state.load(Ordering::Acquire);
    match armed & MODE_MASK {
        mode if mode == Mode::Futex.code() => {
            let word = page.half_word(WORD);
            word.fetch_add(1, Ordering::SeqCst);
            futex_wake(word);
        }
        mode if mode == Mode::Pipe.code() => {
            // A full pipe is readable, which is all that is wanted.
            let _ = write(pipe, &[1]);
        }
        _ => return,
    }
    clear(state, armed);
}

/// Clears one generation; says whether it was still armed (else the sleeper or another waker was
/// faster).
fn clear(state: &AtomicU64, armed: u64) -> bool {
    let awake = armed & !MODE_MASK;
    state.compare_exchange(armed, awake, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: left.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: futex(2) FUTEX_WAIT reads the word and the timeout, which both outlive the call; it is
    // not the private variant, as the wakers are other processes.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, timeout) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: futex(2) FUTEX_WAKE uses the address as a key only; one waiter at most is woken.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
