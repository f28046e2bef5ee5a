//! What the handle of the control plane and its thread share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;

use super::agreement::{Agreed, Purpose, Vote};
use super::calls::{Calls, Published};
use super::cause::{AbortCause, AbortScope};
use crate::error::Error;
use crate::link::{Bell, PeerInfo};
use crate::wire::{Rank, Signature};

/// Communicators that can be aborted one by one; with more, the job is.
const ABORTED_COMMUNICATORS: usize = 4096;

/// Published calls that wait for the thread; more are left out, they come again.
const PUBLICATIONS_MAX: usize = 256;

/// How long an abort waits until it is on its way to the neighbours.
const FLOOD_WAIT: Duration = Duration::from_secs(1);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked left whole values behind: every change below is one assignment or push.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shared by all handles and the thread of one rank.
pub(crate) struct Shared {
    pub(crate) rank: Rank,
    pub(crate) peers: Vec<PeerInfo>,
    bell: Arc<dyn Bell>,
    aborted: AtomicBool,
    /// By peer: a link was asked for, so that asking again costs one load.
    wanted: Vec<AtomicBool>,
    /// By peer: the link's epoch.
    link_epochs: Vec<AtomicU32>,
    calls: Mutex<Calls>,
    state: Mutex<State>,
    /// The thread has taken commands, or ended.
    taken: Condvar,
    /// Wakes the thread; none in a job of one rank.
    wake: Option<EventFd>,
}

#[derive(Default)]
struct State {
    job_abort: Option<AbortCause>,
    communicator_aborts: BTreeMap<u64, AbortCause>,
    commands: Commands,
    /// Aborts that were given to the thread, and those it has written.
    floods_given: u64,
    floods_written: u64,
    awaited: Vec<Rank>,
    thread: Option<std::thread::ThreadId>,
    ended: bool,
}

/// What the thread is asked to do.
#[derive(Default)]
pub(crate) struct Commands {
    /// Aborts to spread (recorded here already).
    pub(crate) floods: Vec<AbortCause>,
    /// In the order in which they were asked for.
    pub(crate) links: Vec<LinkRequest>,
    pub(crate) publications: Vec<Signature>,
    pub(crate) ballots: Vec<Ballot>,
    pub(crate) stop: Option<Stop>,
}

/// What the data path wants of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkRequest {
    /// Set it up.
    Want(Rank),
    /// The one of this epoch is gone; a new one may be wanted later.
    Forget(Rank, u32),
}

/// A vote, and where the answer goes.
pub(crate) struct Ballot {
    pub(crate) purpose: Purpose,
    pub(crate) vote: Vote,
    pub(crate) reply: SyncSender<Result<Agreed, Error>>,
}

/// How the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All ranks have agreed to leave: goodbye to the neighbours, until theirs have come.
    Goodbye {
        /// Not longer than until then.
        until: Instant,
    },
    /// Without a goodbye; what is queued is still written.
    Abrupt,
    /// As if the process had been killed.
    #[cfg(test)]
    Vanish,
}

impl Shared {
    pub(crate) fn new(
        rank: Rank,
        peers: Vec<PeerInfo>,
        bell: Arc<dyn Bell>,
        wake: Option<EventFd>,
    ) -> Self {
        Self {
            rank,
            wanted: peers.iter().map(|_| AtomicBool::new(false)).collect(),
            link_epochs: peers.iter().map(|_| AtomicU32::new(0)).collect(),
            peers,
            bell,
            aborted: AtomicBool::new(false),
            calls: Mutex::new(Calls::new(rank)),
            state: Mutex::default(),
            taken: Condvar::new(),
            wake,
        }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    pub(crate) fn job_abort(&self) -> Option<AbortCause> {
        if self.is_aborted() { lock(&self.state).job_abort.clone() } else { None }
    }

    pub(crate) fn abort_cause(&self, communicator: u64) -> Option<AbortCause> {
        if !self.is_aborted() {
            return None;
        }
        let state = lock(&self.state);
        state.communicator_aborts.get(&communicator).or(state.job_abort.as_ref()).cloned()
    }

    /// Whether this abort would be recorded.
    pub(crate) fn is_new_abort(&self, cause: &AbortCause) -> bool {
        recorded_as(&lock(&self.state), cause).is_some()
    }

    /// Records an abort and wakes the data path; `false` if its scope was aborted before.
    pub(crate) fn record_abort(&self, cause: &AbortCause) -> bool {
        let new = record(&mut lock(&self.state), cause);
        if new {
            self.aborted.store(true, Ordering::Release);
            tracing::debug!(rank = self.rank, %cause, "aborted");
            self.bell.ring();
        }
        new
    }

    /// Records an abort of this rank and has it spread; returns when it is on its way.
    pub(crate) fn abort(&self, cause: AbortCause) {
        let cause = cause.bounded();
        if !self.record_abort(&cause) {
            return;
        }
        let mut state = lock(&self.state);
        state.commands.floods.push(cause);
        state.floods_given += 1;
        let ticket = state.floods_given;
        if state.ended || self.wake.is_none() {
            return;
        }
        self.wake_thread();
        if state.thread == Some(std::thread::current().id()) {
            return;
        }
        let pending = |state: &mut State| !state.ended && state.floods_written < ticket;
        let waited = self.taken.wait_timeout_while(state, FLOOD_WAIT, pending);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn record_call(&self, call: &Signature) {
        let mismatch = lock(&self.calls).record(call);
        if let Some(cause) = mismatch {
            self.abort(cause);
        }
    }

    pub(crate) fn recorded_call(&self, communicator: u64, number: u64) -> Option<Signature> {
        lock(&self.calls).own(communicator, number).copied()
    }

    pub(crate) fn publish_call(&self, call: &Signature) {
        let published = lock(&self.calls).publish(self.rank, call);
        match published {
            Published::Known => {}
            Published::New => {
                self.command(|commands| {
                    if commands.publications.len() < PUBLICATIONS_MAX {
                        commands.publications.push(*call);
                    }
                });
            }
            Published::Mismatch(cause) => self.abort(cause),
        }
    }

    /// A call that another rank has published, for the thread.
    pub(crate) fn heard_call(&self, origin: Rank, call: &Signature) -> Published {
        lock(&self.calls).publish(origin, call)
    }

    pub(crate) fn want_link(&self, peer: Rank) {
        if !self.wanted[peer as usize].swap(true, Ordering::Relaxed) {
            self.command(|commands| commands.links.push(LinkRequest::Want(peer)));
        }
    }

    pub(crate) fn forget_link(&self, peer: Rank) {
        // Also if this rank did not ask for it: the peer may have.
        self.wanted[peer as usize].store(false, Ordering::Relaxed);
        // Until the thread comes to it, the peer may have begun a new link: that one stays.
        let epoch = self.link_epochs[peer as usize].load(Ordering::Acquire);
        self.command(|commands| commands.links.push(LinkRequest::Forget(peer, epoch)));
    }

    /// Gives the thread something to do; `false` if it has ended.
    pub(crate) fn command(&self, add: impl FnOnce(&mut Commands)) -> bool {
        let mut state = lock(&self.state);
        if state.ended || self.wake.is_none() {
            return false;
        }
        add(&mut state.commands);
        drop(state);
        self.wake_thread();
        true
    }

    /// The neighbours that the current agreement waits for.
    pub(crate) fn awaited(&self) -> Vec<Rank> {
        lock(&self.state).awaited.clone()
    }

    // ---- the thread's side ----

    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    pub(crate) fn wake_event(&self) -> Option<&EventFd> {
        self.wake.as_ref()
    }

    pub(crate) fn enter_thread(&self) {
        lock(&self.state).thread = Some(std::thread::current().id());
    }

    pub(crate) fn set_link_epoch(&self, peer: Rank, epoch: u32) {
        self.link_epochs[peer as usize].store(epoch, Ordering::Release);
    }

    pub(crate) fn take_commands(&self) -> Commands {
        std::mem::take(&mut lock(&self.state).commands)
    }

    /// `count` aborts are on their way.
    pub(crate) fn floods_written(&self, count: usize) {
        if count > 0 {
            lock(&self.state).floods_written += count as u64;
            self.taken.notify_all();
        }
    }

    pub(crate) fn set_awaited(&self, ranks: Vec<Rank>) {
        lock(&self.state).awaited = ranks;
    }

    /// The thread takes no more commands; what waits for it is dropped, and with it its replies.
    pub(crate) fn end_thread(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let left = std::mem::take(&mut state.commands);
        drop(state);
        drop(left);
        self.taken.notify_all();
    }

    fn wake_thread(&self) {
        if let Some(wake) = &self.wake {
            // It can only fail when the counter is at its limit, and then the thread is awake.
            let _ = wake.write(1);
        }
    }
}

/// Under which scope an abort would be recorded, if its scope is not aborted already.
fn recorded_as(state: &State, cause: &AbortCause) -> Option<AbortScope> {
    let aborted = &state.communicator_aborts;
    match cause.scope {
        _ if state.job_abort.is_some() => None,
        AbortScope::Communicator(id) if aborted.contains_key(&id) => None,
        AbortScope::Communicator(id) if aborted.len() < ABORTED_COMMUNICATORS => {
            Some(AbortScope::Communicator(id))
        }
        AbortScope::Communicator(_) | AbortScope::Job => Some(AbortScope::Job),
    }
}

fn record(state: &mut State, cause: &AbortCause) -> bool {
    match recorded_as(state, cause) {
        None => return false,
        Some(AbortScope::Job) => state.job_abort = Some(cause.clone()),
        Some(AbortScope::Communicator(id)) => {
            state.communicator_aborts.insert(id, cause.clone());
        }
    }
    true
}
