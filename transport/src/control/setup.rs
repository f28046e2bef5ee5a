//! Link set-up: who offers, who accepts, and what happens when somebody cannot.
//!
//! The lower rank of a pair always offers; the higher one asks it to (`Want`). `Offer` is answered
//! by `Accept`, after which the lower end is completed and `Ready` confirms the higher one, or by
//! `Refuse`, after which the next kind of link is offered, until there is none: `Failed`.
//!
//! Epochs count the links of a pair: a rank whose link broke goes on to the next epoch, and what
//! belongs to an older one is answered by `Failed` or ignored. It tells the other end (`Closed`),
//! whose data path closes its own as soon as it is driven; what belongs to a newer epoch waits
//! until then, so that a pair never has two links.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::cause::truncate;
use super::frame::{LinkStep, StepKind};
use super::shared::{LinkRequest, Shared};
use crate::link::{Connector, PeerInfo};
use crate::wire::Rank;

/// The longest description of a link's end, in bytes.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 32 << 10;

/// Kinds of link that are tried.
const ATTEMPTS_MAX: u32 = 16;

/// Offers that a rank has open at a time; the rest wait, so that no neighbour has to hold more.
const OFFERS_MAX: usize = 64;

const REASON_BYTES_MAX: usize = 2048;

/// A step to send: to whom, what, and the tail.
pub(crate) type Outgoing = (Rank, LinkStep, Vec<u8>);

/// The link set-ups of one rank.
pub(crate) struct LinkSetup {
    shared: Arc<Shared>,
    connector: Arc<dyn Connector>,
    links: HashMap<Rank, Link>,
    /// Peers whose offer waits for its turn.
    queued: VecDeque<Rank>,
    open_offers: usize,
    outgoing: Vec<Outgoing>,
}

#[derive(Default)]
struct Link {
    epoch: u32,
    state: State,
    /// Why earlier attempts came to nothing.
    refusals: String,
    /// The last step of a newer epoch, until this rank's own end of the old link is closed.
    deferred: Option<(LinkStep, Vec<u8>)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// Higher: the lower rank was asked.
    Wanted,
    /// Lower: the offer waits for its turn.
    Queued,
    /// Lower: waits for the answer.
    Offered {
        attempt: u32,
    },
    /// Higher: waits for the confirmation.
    Accepted {
        attempt: u32,
    },
    Up,
    /// The peer's end is closed, this rank's not yet.
    Closing,
    Failed {
        reason: String,
    },
}

impl LinkSetup {
    pub(crate) fn new(shared: Arc<Shared>, connector: Arc<dyn Connector>) -> Self {
        Self {
            shared,
            connector,
            links: HashMap::new(),
            queued: VecDeque::new(),
            open_offers: 0,
            outgoing: Vec::new(),
        }
    }

    /// What is to be sent.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    /// This rank asks.
    pub(crate) fn request(&mut self, request: LinkRequest) {
        match request {
            LinkRequest::Want(peer) => self.want(peer),
            LinkRequest::Forget(peer, epoch) => self.forget(peer, epoch),
        }
        self.start_queued();
    }

    /// A step of `peer` has come, which is another rank of the job.
    pub(crate) fn receive(&mut self, peer: Rank, step: LinkStep, tail: &[u8]) {
        tracing::trace!(rank = self.shared.rank, peer, ?step, "link step");
        let link = self.links.entry(peer).or_default();
        if step.epoch < link.epoch {
            // The peer still works on a link that this rank has given up.
            if matches!(step.kind, StepKind::Offer { .. } | StepKind::Ready { .. }) {
                let reason = format!("rank {} gave this link up", self.shared.rank);
                self.send(peer, step.epoch, StepKind::Failed { reason });
            }
            return;
        }
        let is_newer = step.epoch > link.epoch;
        let closes = matches!(step.kind, StepKind::Closed | StepKind::Failed { .. });
        if matches!(link.state, State::Up | State::Closing) && (is_newer || closes) {
            link.deferred = is_newer.then(|| (step, tail.to_vec()));
            self.peer_closed(peer);
            return;
        }
        if is_newer {
            self.go_to_epoch(peer, step.epoch);
        }
        let lower = self.shared.rank < peer;
        match step.kind {
            StepKind::Want if lower => self.wanted_by(peer),
            StepKind::Accept { attempt } if lower => self.accepted(peer, attempt, tail),
            StepKind::Refuse { attempt, reason } if lower => self.refused(peer, attempt, &reason),
            StepKind::Offer { attempt } if !lower => self.offered(peer, attempt, tail),
            StepKind::Ready { attempt } if !lower => self.ready(peer, attempt),
            StepKind::Failed { reason } => self.fail(peer, &reason, false),
            // There was none that stood, any more.
            StepKind::Closed => {}
            other => tracing::warn!(peer, step = ?other, "link step in the wrong direction"),
        }
        self.start_queued();
    }

    // ---- both ----

    fn want(&mut self, peer: Rank) {
        let rank = self.shared.rank;
        let link = self.links.entry(peer).or_default();
        if link.state != State::Idle {
            return;
        }
        if rank < peer {
            self.queue(peer);
        } else {
            link.state = State::Wanted;
            let epoch = link.epoch;
            self.send(peer, epoch, StepKind::Want);
        }
    }

    fn forget(&mut self, peer: Rank, epoch: u32) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let state = link.state.clone();
        if link.epoch != epoch || state == State::Idle {
            return;
        }
        let deferred = link.deferred.take();
        if matches!(state, State::Wanted | State::Offered { .. } | State::Accepted { .. }) {
            let reason = format!("rank {} gave this link up", self.shared.rank);
            self.send(peer, epoch, StepKind::Failed { reason });
        } else if state == State::Up {
            self.send(peer, epoch, StepKind::Closed);
        }
        self.go_to_epoch(peer, epoch.wrapping_add(1));
        if let Some((step, tail)) = deferred {
            self.receive(peer, step, &tail);
        }
    }

    /// The peer has closed its end of a link that stood: the data path is to close this one's.
    fn peer_closed(&mut self, peer: Rank) {
        if self.is_in(peer, &State::Closing) {
            return;
        }
        tracing::debug!(rank = self.shared.rank, peer, "the peer closed its end of a link");
        self.set_state(peer, State::Closing);
        self.connector.closed(self.peer(peer));
        self.shared.ring();
    }

    fn go_to_epoch(&mut self, peer: Rank, epoch: u32) {
        self.leave_state(peer);
        self.shared.set_link_epoch(peer, epoch);
        self.links.insert(peer, Link { epoch, ..Link::default() });
    }

    /// Gives back what the state of this link holds.
    fn leave_state(&mut self, peer: Rank) {
        match self.links.get(&peer).map(|link| &link.state) {
            Some(State::Offered { .. }) => self.open_offers -= 1,
            Some(State::Queued) => self.queued.retain(|queued| *queued != peer),
            _ => {}
        }
    }

    fn set_state(&mut self, peer: Rank, state: State) {
        self.leave_state(peer);
        if matches!(state, State::Offered { .. }) {
            self.open_offers += 1;
        }
        self.links.entry(peer).or_default().state = state;
    }

    fn fail(&mut self, peer: Rank, reason: &str, tell: bool) {
        let link = self.links.entry(peer).or_default();
        if matches!(link.state, State::Failed { .. }) {
            return;
        }
        let epoch = link.epoch;
        let reason = truncate(reason.into(), REASON_BYTES_MAX);
        tracing::debug!(rank = self.shared.rank, peer, reason, "no link");
        self.set_state(peer, State::Failed { reason: reason.clone() });
        self.connector.failed(self.peer(peer), &reason);
        self.shared.ring();
        if tell {
            self.send(peer, epoch, StepKind::Failed { reason });
        }
    }

    fn up(&mut self, peer: Rank) {
        self.set_state(peer, State::Up);
        tracing::debug!(rank = self.shared.rank, peer, "link up");
        self.shared.ring();
    }

    // ---- the lower rank's side ----

    fn wanted_by(&mut self, peer: Rank) {
        let link = self.links.entry(peer).or_default();
        match link.state.clone() {
            State::Idle => self.queue(peer),
            State::Failed { reason } => {
                let epoch = link.epoch;
                self.send(peer, epoch, StepKind::Failed { reason });
            }
            // On its way, or there.
            _ => {}
        }
    }

    fn queue(&mut self, peer: Rank) {
        self.set_state(peer, State::Queued);
        self.queued.push_back(peer);
    }

    fn start_queued(&mut self) {
        while self.open_offers < OFFERS_MAX
            && let Some(peer) = self.queued.pop_front()
        {
            self.offer(peer, 0);
        }
    }

    fn offer(&mut self, peer: Rank, attempt: u32) {
        let offer = if attempt < ATTEMPTS_MAX {
            self.connector.offer(self.peer(peer), attempt).map_err(|error| error.to_string())
        } else {
            Err(format!("{ATTEMPTS_MAX} kinds of link were refused"))
        };
        match offer.and_then(check_length) {
            Ok(tail) => {
                self.set_state(peer, State::Offered { attempt });
                self.send_with(peer, StepKind::Offer { attempt }, tail);
            }
            Err(reason) => {
                let refusals = &self.links.entry(peer).or_default().refusals;
                let reason =
                    if refusals.is_empty() { reason } else { format!("{refusals}; {reason}") };
                self.fail(peer, &reason, true);
            }
        }
    }

    fn offer_next(&mut self, peer: Rank, attempt: u32, reason: &str) {
        let refusals = &mut self.links.entry(peer).or_default().refusals;
        if !refusals.is_empty() {
            refusals.push_str("; ");
        }
        refusals.push_str(reason);
        *refusals = truncate(std::mem::take(refusals), REASON_BYTES_MAX);
        self.offer(peer, attempt + 1);
    }

    fn accepted(&mut self, peer: Rank, attempt: u32, tail: &[u8]) {
        if !self.is_in(peer, &State::Offered { attempt }) {
            return;
        }
        match self.connector.complete(self.peer(peer), tail) {
            Ok(()) => {
                self.up(peer);
                self.send_with(peer, StepKind::Ready { attempt }, Vec::new());
            }
            Err(error) => self.offer_next(peer, attempt, &error.to_string()),
        }
    }

    fn refused(&mut self, peer: Rank, attempt: u32, reason: &str) {
        if self.is_in(peer, &State::Offered { attempt }) {
            self.offer_next(peer, attempt, reason);
        }
    }

    // ---- the higher rank's side ----

    fn offered(&mut self, peer: Rank, attempt: u32, tail: &[u8]) {
        let link = self.links.entry(peer).or_default();
        if let State::Failed { reason } = &link.state {
            let (epoch, reason) = (link.epoch, reason.clone());
            self.send(peer, epoch, StepKind::Failed { reason });
            return;
        }
        let accepted = self.connector.accept(self.peer(peer), tail);
        match accepted.map_err(|error| error.to_string()).and_then(check_length) {
            Ok(tail) => {
                self.set_state(peer, State::Accepted { attempt });
                self.send_with(peer, StepKind::Accept { attempt }, tail);
            }
            Err(reason) => {
                self.set_state(peer, State::Wanted);
                let reason = truncate(reason, REASON_BYTES_MAX);
                self.send_with(peer, StepKind::Refuse { attempt, reason }, Vec::new());
            }
        }
    }

    fn ready(&mut self, peer: Rank, attempt: u32) {
        if !self.is_in(peer, &State::Accepted { attempt }) {
            return;
        }
        match self.connector.confirm(self.peer(peer)) {
            Ok(()) => self.up(peer),
            Err(error) => self.fail(peer, &error.to_string(), true),
        }
    }

    fn is_in(&self, peer: Rank, state: &State) -> bool {
        self.links.get(&peer).is_some_and(|link| link.state == *state)
    }

    fn peer(&self, peer: Rank) -> &PeerInfo {
        &self.shared.peers[peer as usize]
    }

    fn send(&mut self, peer: Rank, epoch: u32, kind: StepKind) {
        self.outgoing.push((peer, LinkStep { epoch, kind }, Vec::new()));
    }

    fn send_with(&mut self, peer: Rank, kind: StepKind, tail: Vec<u8>) {
        let epoch = self.links.get(&peer).map_or(0, |link| link.epoch);
        self.outgoing.push((peer, LinkStep { epoch, kind }, tail));
    }
}

fn check_length(description: Vec<u8>) -> Result<Vec<u8>, String> {
    if description.len() <= DESCRIPTION_BYTES_MAX {
        Ok(description)
    } else {
        Err(format!(
            "the description of a link's end has {} bytes, more than {DESCRIPTION_BYTES_MAX}",
            description.len()
        ))
    }
}
