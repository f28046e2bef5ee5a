//! What the control thread and the data path share while links come and go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::link::Link;
use super::routes::NumberMap;
use crate::wire::Rank;

/// What the control thread tells the data path.
pub(crate) enum Arrival {
    /// A link's own end is up.
    Link(Box<Link>),
    /// The peer's end is up too: this one may send.
    Confirmed { peer: Rank, epoch: u32 },
    /// The link will not come up, or not stay.
    Failed { peer: Rank, reason: String },
    /// The peer has closed its end of the standing link.
    PeerClosed { peer: Rank, epoch: u32 },
}

/// Arrivals, and which links stand.
pub(crate) struct SetUp {
    rank: Rank,
    /// Whether there may be arrivals: the data path looks at this alone.
    has_arrivals: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arrivals: Vec<Arrival>,
    /// Epochs of the links that were handed over and not yet closed.
    standing: NumberMap<u32>,
}

impl SetUp {
    pub(crate) fn new(rank: Rank) -> Self {
        Self { rank, has_arrivals: AtomicBool::new(false), state: Mutex::default() }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is one call that does not panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut state: MutexGuard<'_, State>, arrival: Arrival) {
        state.arrivals.push(arrival);
        self.has_arrivals.store(true, Ordering::Release);
    }

    // ---- control thread ----

    /// Whether a link to `peer` stands.
    pub(crate) fn stands(&self, peer: Rank) -> bool {
        self.lock().standing.contains_key(&peer)
    }

    /// Hands a link over.
    pub(crate) fn hand_over(&self, link: Box<Link>) {
        let mut state = self.lock();
        state.standing.insert(link.peer, link.epoch);
        self.push(state, Arrival::Link(link));
    }

    /// The standing link to `peer` may send now; says whether there is one.
    pub(crate) fn confirm(&self, peer: Rank) -> bool {
        let state = self.lock();
        let Some(epoch) = state.standing.get(&peer).copied() else { return false };
        self.push(state, Arrival::Confirmed { peer, epoch });
        true
    }

    /// No link to `peer` comes, or the one that stands is no use.
    pub(crate) fn fail(&self, peer: Rank, reason: &str) {
        let state = self.lock();
        self.push(state, Arrival::Failed { peer, reason: reason.to_owned() });
    }

    /// The peer has closed its end of the standing link, if there is one.
    pub(crate) fn peer_closed(&self, peer: Rank) {
        let state = self.lock();
        let Some(epoch) = state.standing.get(&peer).copied() else { return };
        self.push(state, Arrival::PeerClosed { peer, epoch });
    }

    // ---- data path ----

    /// One atomic load.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.has_arrivals.load(Ordering::Acquire)
    }

    pub(crate) fn take_arrivals(&self) -> Vec<Arrival> {
        let mut state = self.lock();
        self.has_arrivals.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.arrivals)
    }

    /// The link to `peer` is gone; another one may be set up.
    pub(crate) fn closed(&self, peer: Rank) {
        self.lock().standing.remove(&peer);
    }
}
