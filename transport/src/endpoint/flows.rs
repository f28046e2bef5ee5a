//! Message slots, shared out among communicators: none can stop another.
//!
//! A link has [`MESSAGE_SLOTS`](crate::wire::MESSAGE_SLOTS) slots for everybody. A communicator may
//! have [`MESSAGE_WINDOW`] messages on its way to a peer, or there and not yet used; the peer
//! returns that credit communicator by communicator. What it cannot use yet it keeps outside the
//! link's slots, which therefore never stay occupied while it polls.

use crate::error::Error;
use crate::link::Slot;
use crate::wire::{MESSAGE_WINDOW, MessageHeader, MessageKind, Rank};

/// Set in the sequence of a [`Slot`] that names a kept message instead of one in a link.
const KEPT: u64 = 1 << 63;

/// The messages of one communicator between this rank and one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    communicator: u64,
    /// Sent, and not returned by the peer.
    sent: u32,
    /// Used here, and not returned to the peer.
    used: u32,
    /// Kept here.
    kept: u32,
}

#[derive(Debug, Default)]
struct Peer {
    /// The one used last comes first: few are in use at a time.
    flows: Vec<Flow>,
    /// Which of all links that have ended was the last one to it, counted from 1.
    lost: u64,
}

/// A message that was copied out of its link.
#[derive(Debug)]
struct Kept {
    peer: Rank,
    /// How many links had ended when it came.
    losses: u64,
    header: MessageHeader,
    payload: Vec<u8>,
}

/// The flows of all peers, and the messages that are kept.
#[derive(Debug)]
pub(super) struct Flows {
    peers: Vec<Peer>,
    kept: Vec<Option<Kept>>,
    spare: Vec<Vec<u8>>,
    /// Peers with a flow whose credit is due; a peer may be there without.
    due: Vec<Rank>,
    /// Links that have ended, to whomever.
    losses: u64,
}

impl Flows {
    pub(super) fn new(size: u32) -> Self {
        let peers = (0..size).map(|_| Peer::default()).collect();
        Self { peers, kept: Vec::new(), spare: Vec::new(), due: Vec::new(), losses: 0 }
    }

    fn flow(&mut self, peer: Rank, communicator: u64) -> Option<&mut Flow> {
        let flows = &mut self.peers.get_mut(peer as usize)?.flows;
        match flows.iter().position(|flow| flow.communicator == communicator) {
            Some(place) => flows.swap(0, place),
            None => {
                flows.push(Flow { communicator, ..Flow::default() });
                let last = flows.len() - 1;
                flows.swap(0, last);
            }
        }
        flows.first_mut()
    }

    // ---- sending ----

    /// Whether the communicator may send `peer` another message.
    pub(super) fn may_send(&mut self, peer: Rank, communicator: u64) -> bool {
        self.flow(peer, communicator).is_some_and(|flow| flow.sent < MESSAGE_WINDOW)
    }

    /// Messages of the communicator that the peer has not returned.
    pub(super) fn on_their_way(&mut self, peer: Rank, communicator: u64) -> u32 {
        self.flow(peer, communicator).map_or(0, |flow| flow.sent)
    }

    pub(super) fn sent(&mut self, peer: Rank, communicator: u64) {
        if let Some(flow) = self.flow(peer, communicator) {
            flow.sent += 1;
        }
    }

    /// The peer has returned credit.
    pub(super) fn returned(&mut self, peer: Rank, communicator: u64, messages: u32) {
        let Some(peer) = self.peers.get_mut(peer as usize) else { return };
        let flow = peer.flows.iter_mut().find(|flow| flow.communicator == communicator);
        if let Some(flow) = flow {
            flow.sent = flow.sent.saturating_sub(messages);
        }
    }

    // ---- receiving ----

    /// Copies a message out of its link; the caller gives its slot there back.
    pub(super) fn keep(
        &mut self,
        rank: Rank,
        peer: Rank,
        header: MessageHeader,
        payload: &[u8],
    ) -> Result<Slot, Error> {
        let communicator = header.signature().communicator;
        let Some(flow) = self.flow(peer, communicator).filter(|flow| flow.kept < MESSAGE_WINDOW)
        else {
            let what = format!(
                "more than {MESSAGE_WINDOW} messages of communicator {communicator} at once"
            );
            return Err(Error::Protocol { rank, peer, what });
        };
        flow.kept += 1;
        let losses = self.losses;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(payload);
        let free = self.kept.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.kept.push(None);
            self.kept.len() - 1
        });
        self.kept[place] = Some(Kept { peer, losses, header, payload: bytes });
        Ok(Slot { peer, sequence: KEPT | place as u64 })
    }

    fn find(&self, slot: Slot) -> Option<&Kept> {
        let kept = self.kept.get((slot.sequence & !KEPT) as usize)?.as_ref();
        kept.filter(|kept| kept.peer == slot.peer)
    }

    /// A kept message. What opens a peer's memory is void when the link over which it came has
    /// ended: the peer has closed that memory to it.
    pub(super) fn message(&self, rank: Rank, slot: Slot) -> Result<(MessageHeader, &[u8]), Error> {
        let kept = self.find(slot);
        let kept = kept.ok_or_else(|| Error::Invalid(format!("{slot:?} holds no message")))?;
        if matches!(kept.header.kind(), Ok(MessageKind::Grant | MessageKind::Ready)) {
            self.check_link(rank, slot.peer, kept.losses)?;
        }
        Ok((kept.header, &kept.payload[..]))
    }

    /// Forgets a kept message, which was used.
    pub(super) fn release(&mut self, slot: Slot) {
        let Some(kept) = self.find(slot) else { return };
        let (communicator, losses) = (kept.header.signature().communicator, kept.losses);
        if let Some(mut kept) = self.kept[(slot.sequence & !KEPT) as usize].take() {
            kept.payload.clear();
            self.spare.push(kept.payload);
        }
        if losses >= self.peers[slot.peer as usize].lost {
            if let Some(flow) = self.flow(slot.peer, communicator) {
                flow.kept = flow.kept.saturating_sub(1);
            }
            self.used(slot.peer, communicator);
        }
    }

    /// A message was used: its credit goes back at half the window.
    pub(super) fn used(&mut self, peer: Rank, communicator: u64) {
        let Some(flow) = self.flow(peer, communicator) else { return };
        // More than the window would be a peer's fault.
        flow.used = (flow.used + 1).min(MESSAGE_WINDOW);
        if flow.used >= MESSAGE_WINDOW / 2 && !self.due.contains(&peer) {
            self.due.push(peer);
        }
    }

    /// Messages of the communicator that the next message to `peer` returns.
    pub(super) fn unreturned(&mut self, peer: Rank, communicator: u64) -> u32 {
        self.flow(peer, communicator).map_or(0, |flow| flow.used)
    }

    /// A message that returned them was sent.
    pub(super) fn told(&mut self, peer: Rank, communicator: u64) {
        if let Some(flow) = self.flow(peer, communicator) {
            flow.used = 0;
        }
    }

    /// The `nth` peer to whom credit was due, and the communicator for which it still is.
    pub(super) fn due(&self, nth: usize) -> Option<(Rank, Option<u64>)> {
        let peer = *self.due.get(nth)?;
        let mut flows = self.peers[peer as usize].flows.iter();
        let flow = flows.find(|flow| flow.used >= MESSAGE_WINDOW / 2);
        Some((peer, flow.map(|flow| flow.communicator)))
    }

    /// Nothing is due to the `nth` peer any more.
    pub(super) fn settled(&mut self, nth: usize) {
        self.due.swap_remove(nth);
    }

    // ---- the end ----

    /// The link to `peer` has ended: the next one begins with full windows. What came over the old
    /// one is still kept.
    pub(super) fn link_gone(&mut self, peer: Rank) {
        self.due.retain(|due| *due != peer);
        self.losses += 1;
        if let Some(peer) = self.peers.get_mut(peer as usize) {
            peer.flows.clear();
            peer.lost = self.losses;
        }
    }

    /// How many links have ended so far.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// That no link to `peer` has ended since `losses` had: an operation must not go on over the
    /// next one, since the peer may have given its memory back, and messages are lost.
    pub(super) fn check_link(&self, rank: Rank, peer: Rank, losses: u64) -> Result<(), Error> {
        match self.peers.get(peer as usize) {
            Some(known) if known.lost > losses => Err(Error::Link {
                rank,
                peer,
                reason: "the link that this operation began with has ended".into(),
            }),
            _ => Ok(()),
        }
    }

    /// The communicator has ended on every rank.
    pub(super) fn forget(&mut self, communicator: u64) {
        for peer in &mut self.peers {
            peer.flows.retain(|flow| flow.communicator != communicator);
        }
        for kept in &mut self.kept {
            kept.take_if(|kept| kept.header.signature().communicator == communicator);
        }
    }
}

/// Whether a slot names a kept message.
pub(super) fn is_kept(slot: Slot) -> bool {
    slot.sequence & KEPT != 0
}
