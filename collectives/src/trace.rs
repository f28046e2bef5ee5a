//! What one rank did in one operation, in order.

use std::time::Instant;

use crate::schedule::Rank;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Nanoseconds since the operation began on this rank.
    pub at_ns: u64,
    /// What.
    pub kind: TraceKind,
    /// With whom.
    pub peer: Rank,
    /// The block; 0 for grants.
    pub block: u32,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// This rank granted its buffer to the peer.
    GrantSent,
    /// The peer granted its buffer.
    Granted,
    /// A block was handed to the link.
    SendPosted,
    /// The link needs that block's memory no longer.
    Sent,
    /// A block arrived whole.
    Arrived,
}

/// A record of one operation; see [`BroadcastCall::trace`](crate::BroadcastCall::trace).
#[derive(Debug, Default)]
pub struct Trace {
    events: Vec<TraceEvent>,
    began: Option<Instant>,
}

impl Trace {
    /// An empty one with room for `events` events, which it then takes without allocating.
    #[must_use]
    pub fn with_capacity(events: usize) -> Self {
        Self { events: Vec::with_capacity(events), began: None }
    }

    /// What happened, in order.
    #[must_use]
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// The most sends that were outstanding to `peer` at each moment a further one was posted.
    #[must_use]
    pub fn outstanding(&self, peer: Rank) -> Vec<u32> {
        let mut now = 0_u32;
        let mut seen = Vec::new();
        for event in self.events.iter().filter(|event| event.peer == peer) {
            match event.kind {
                TraceKind::SendPosted => {
                    now += 1;
                    seen.push(now);
                }
                TraceKind::Sent => now = now.saturating_sub(1),
                _ => {}
            }
        }
        seen
    }

    pub(crate) fn begin(&mut self) {
        self.events.clear();
        self.began = Some(Instant::now());
    }

    pub(crate) fn note(&mut self, kind: TraceKind, peer: Rank, block: u32) {
        let at_ns = self.began.map_or(0, |began| began.elapsed().as_nanos() as u64);
        self.events.push(TraceEvent { at_ns, kind, peer, block });
    }
}
