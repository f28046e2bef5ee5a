//! A lane: one queue pair with explicit accounts of its send slots and of receives at both ends.
//!
//! *Send slots* are taken when a work request is queued and freed only by polled completions: a
//! completion of request s frees every slot up to s. Every n-th request and the last one of every
//! chain are signaled, so that a full queue always has a completion coming. One slot is kept for
//! credit messages.
//!
//! *Receives*: this end posts R receives before the peer can reach it and posts each one anew when
//! it was used up. The peer may have at most R - 1 writes with immediate on their way that it has
//! not heard of, plus one credit message; at half consumption this end gives the credits back. A
//! credit message may use the last receive only if it gives back at least half of the peer's: the
//! two ends then can never wait for each other, since whoever has none left has a message under way
//! that brings the other one some.

use super::driver::{Completion, Write};
use super::error::VerbsError;
use super::queue_pair::{QueuePair, ReadyToSend};
use super::rail::Reservation;
use super::settings::LinkSettings;
#[cfg(test)]
use super::settings::Mutation;
use crate::wire::Immediate;

/// What a work request was, so that its completion can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A part of the block in this entry of the link's list.
    Part { entry: u32 },
    /// A message or a credit: nothing to tell.
    Other,
}

/// What a lane has carried so far, for traces and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStatistics {
    /// Blocks that went over this lane whole.
    pub whole_blocks: u64,
    /// Parts of blocks that were striped over all lanes.
    pub parts: u64,
    /// Bytes of both.
    pub block_bytes: u64,
    /// Messages (lane 0 only).
    pub messages: u64,
    /// Credit messages.
    pub credits: u64,
    /// Chains of work requests posted.
    pub chains: u64,
    /// Completions asked for.
    pub signaled: u64,
    /// Writes with immediate received.
    pub received: u64,
}

/// Kind, link generation and sequence number of a work request in 64 bits: `receive:1 marker:1
/// generation:30 sequence:32`. The generation tells a completion of a destroyed queue pair from
/// one of its successor with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId(pub(crate) u64);

const RECEIVE: u64 = 1 << 63;
const MARKER: u64 = 1 << 62;
const GENERATION_MASK: u32 = (1 << 30) - 1;

impl WorkId {
    fn send(generation: u32, sequence: u64) -> Self {
        Self(u64::from(generation & GENERATION_MASK) << 32 | sequence & 0xffff_ffff)
    }

    pub(crate) fn receive(generation: u32) -> Self {
        Self(RECEIVE | u64::from(generation & GENERATION_MASK) << 32)
    }

    fn marker(generation: u32) -> Self {
        Self(MARKER | u64::from(generation & GENERATION_MASK) << 32)
    }

    pub(crate) fn is_receive(self) -> bool {
        self.0 & RECEIVE != 0
    }

    fn is_marker(self) -> bool {
        self.0 & MARKER != 0
    }

    pub(crate) fn is_of(self, generation: u32) -> bool {
        (self.0 >> 32) as u32 & GENERATION_MASK == generation & GENERATION_MASK
    }
}

/// One write to queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) local: usize,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) immediate: Immediate,
}

/// A lane whose queue pair can send and receive.
pub(crate) struct Lane {
    pair: QueuePair<ReadyToSend>,
    number: u32,
    max_inline: u32,
    pub(crate) rail: usize,
    pub(crate) peer_rail: usize,
    generation: u32,
    // Send slots.
    depth: u64,
    signal_every: u64,
    queued: u64,
    completed: u64,
    chain: Vec<Write>,
    work: Box<[Work]>,
    // Receives at the peer.
    credits: u32,
    peer_receives: u32,
    // Receives here.
    receives: u32,
    posted_receives: u32,
    to_return: u32,
    // Draining.
    marker_outstanding: bool,
    pub(crate) statistics: LaneStatistics,
    #[cfg(test)]
    mutation: Mutation,
    // Dropped after the queue pair: its completions are accounted for until then.
    _reservation: Reservation,
}

/// What a lane is made of: a queue pair with its receives posted.
pub(crate) struct LaneParts {
    pub(crate) pair: QueuePair<ReadyToSend>,
    pub(crate) reservation: Reservation,
    pub(crate) rail: usize,
    pub(crate) peer_rail: usize,
    pub(crate) generation: u32,
    pub(crate) peer_receives: u32,
}

impl Lane {
    pub(crate) fn new(parts: LaneParts, settings: &LinkSettings) -> Self {
        let depth = settings.send_depth as usize;
        Self {
            number: parts.pair.number(),
            max_inline: parts.pair.max_inline_bytes(),
            pair: parts.pair,
            rail: parts.rail,
            peer_rail: parts.peer_rail,
            generation: parts.generation,
            depth: depth as u64,
            signal_every: settings.signal_every.into(),
            queued: 0,
            completed: 0,
            chain: Vec::with_capacity(depth),
            work: vec![Work::Other; depth].into_boxed_slice(),
            credits: parts.peer_receives,
            peer_receives: parts.peer_receives,
            receives: settings.receive_depth,
            posted_receives: settings.receive_depth,
            to_return: 0,
            marker_outstanding: false,
            statistics: LaneStatistics::default(),
            #[cfg(test)]
            mutation: settings.mutation,
            _reservation: parts.reservation,
        }
    }

    /// Number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    // ---- sending ----

    /// Work requests that were queued so far.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Work requests that have completed.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether a block or a message may be queued: a send slot and a receive at the peer, and of
    /// each one more for a credit message.
    pub(crate) fn has_room(&self) -> bool {
        self.queued - self.completed + 1 < self.depth && self.may_use_receive(2)
    }

    fn may_use_receive(&self, least: u32) -> bool {
        #[cfg(test)]
        if self.mutation == Mutation::IgnoreCredits {
            return true;
        }
        self.credits >= least
    }

    /// Queues a write with immediate and gives its sequence number. The caller has asked
    /// [`Lane::has_room`] (or knows that a credit message has room).
    pub(crate) fn queue(&mut self, request: Request, work: Work) -> u64 {
        let sequence = self.queued;
        assert!(sequence - self.completed < self.depth, "a send slot is taken that is not free");
        let signaled = (sequence + 1).is_multiple_of(self.signal_every);
        self.chain.push(Write {
            work_id: WorkId::send(self.generation, sequence).0,
            local: request.local,
            bytes: request.bytes,
            lkey: request.lkey,
            remote: request.remote,
            rkey: request.rkey,
            immediate: Some(request.immediate.encode()),
            signaled,
            inline: request.bytes > 0 && request.bytes <= self.max_inline,
        });
        tracing::trace!(
            queue_pair = self.number,
            sequence,
            bytes = request.bytes,
            immediate = ?request.immediate,
            "write queued"
        );
        self.work[(sequence % self.depth) as usize] = work;
        self.queued += 1;
        self.credits = self.credits.saturating_sub(1);
        sequence
    }

    /// Posts what is queued as one chain; what the queue does not take stays queued.
    ///
    /// # Safety
    /// The local memory of every queued request stays mapped, registered under its key and
    /// unwritten until the request has completed or the queue pair was destroyed.
    pub(crate) unsafe fn post(&mut self) -> Result<bool, VerbsError> {
        let Some(last) = self.chain.last_mut() else { return Ok(false) };
        last.signaled = true;
        #[cfg(test)]
        self.mutate_chain();
        // SAFETY: the caller vouches for the memory; remote keys are the peer device's to check.
        let result = unsafe { self.pair.post_writes(&self.chain) };
        let posted = match result {
            Ok(()) => self.chain.len(),
            Err(error) if error.queue_full => error.posted.min(self.chain.len()),
            Err(error) => return Err(error.source),
        };
        let asked = self.chain[..posted].iter().filter(|write| write.signaled).count();
        tracing::trace!(
            queue_pair = self.number,
            posted,
            signaled = asked,
            left = self.chain.len() - posted,
            "chain posted"
        );
        self.statistics.chains += u64::from(posted > 0);
        self.statistics.signaled += asked as u64;
        self.chain.drain(..posted);
        #[cfg(test)]
        if self.mutation == Mutation::FreeSlotsAtPost {
            self.completed = self.queued - self.chain.len() as u64;
        }
        Ok(posted > 0)
    }

    #[cfg(test)]
    fn mutate_chain(&mut self) {
        for write in &mut self.chain {
            let on_interval = (write.work_id + 1) % (1 << 32) % self.signal_every == 0;
            match self.mutation {
                Mutation::NeverSignal => write.signaled = false,
                Mutation::SignalIntervalOnly => write.signaled = on_interval,
                _ => {}
            }
        }
    }

    /// Whether something is queued that the queue pair has not taken.
    pub(crate) fn has_queued(&self) -> bool {
        !self.chain.is_empty()
    }

    /// A signaled request has completed: the sequence numbers of all that are done now with it.
    pub(crate) fn sends_completed(&mut self, id: WorkId) -> std::ops::Range<u64> {
        let first = self.completed;
        // Sequence numbers travel modulo 2^32; fewer than that are outstanding.
        let count = u64::from((id.0 as u32).wrapping_sub(first as u32)) + 1;
        if count > self.queued - first {
            return first..first;
        }
        self.completed = first + count;
        first..self.completed
    }

    /// What the request with this number was.
    pub(crate) fn work(&self, sequence: u64) -> Work {
        self.work[(sequence % self.depth) as usize]
    }

    /// The peer has posted this many receives anew; says whether that can be.
    pub(crate) fn credited(&mut self, receives: u32) -> bool {
        self.credits = self.credits.saturating_add(receives);
        self.credits <= self.peer_receives
    }

    // ---- receiving ----

    /// A receive was used up.
    pub(crate) fn received(&mut self) {
        self.posted_receives = self.posted_receives.saturating_sub(1);
        self.statistics.received += 1;
    }

    /// Posts receives in place of those used up.
    pub(crate) fn post_receives(&mut self) -> Result<bool, VerbsError> {
        let missing = self.receives - self.posted_receives;
        if missing == 0 {
            return Ok(false);
        }
        let id = WorkId::receive(self.generation).0;
        let posted = match self.pair.post_receives(missing, id) {
            Ok(()) => missing,
            Err(error) if error.queue_full => (error.posted as u32).min(missing),
            Err(error) => return Err(error.source),
        };
        self.posted_receives += posted;
        self.to_return += posted;
        Ok(posted > 0)
    }

    /// Whether receives are missing that could not be posted.
    pub(crate) fn lacks_receives(&self) -> bool {
        self.posted_receives < self.receives
    }

    /// Queues a credit message if it is due and has room: `slots` message slots are given back
    /// with it. Says whether it did.
    pub(crate) fn return_credits(&mut self, slots: u32, slots_due: bool) -> bool {
        #[cfg(test)]
        if self.mutation == Mutation::KeepCredits {
            return false;
        }
        let half = self.to_return >= self.receives.div_ceil(2);
        let may_send = if half { self.may_use_receive(1) } else { self.may_use_receive(2) };
        let has_slot = self.queued - self.completed < self.depth;
        if !(half || slots_due) || !may_send || !has_slot {
            return false;
        }
        let receives = self.to_return as u16;
        let immediate = Immediate::Credit { receives, slots: slots as u16 };
        let nothing = Request { local: 0, bytes: 0, lkey: 0, remote: 0, rkey: 0, immediate };
        self.queue(nothing, Work::Other);
        self.to_return = 0;
        self.statistics.credits += 1;
        true
    }

    // ---- the end ----

    /// Stops the lane: nothing lands or is sent any more, and what is outstanding is flushed.
    /// Nothing that was queued is posted after this.
    pub(crate) fn stop(&mut self) -> Result<(), VerbsError> {
        self.chain.clear();
        self.pair.fail()
    }

    /// Posts a marker behind the outstanding sends of a stopped lane: when it has been flushed,
    /// all of them have.
    pub(crate) fn mark(&mut self) -> Result<(), VerbsError> {
        let marker = Write {
            work_id: WorkId::marker(self.generation).0,
            local: 0,
            bytes: 0,
            lkey: 0,
            remote: 0,
            rkey: 0,
            immediate: None,
            signaled: true,
            inline: false,
        };
        // SAFETY: the marker has no local memory.
        let posted = unsafe { self.pair.post_writes(&[marker]) };
        posted.map_err(|error| error.source)?;
        self.marker_outstanding = true;
        Ok(())
    }

    /// Notes a completion of a stopped lane.
    pub(crate) fn drained(&mut self, completion: &Completion) {
        let id = WorkId(completion.work_id);
        if id.is_receive() {
            self.posted_receives = self.posted_receives.saturating_sub(1);
        } else if id.is_marker() {
            self.marker_outstanding = false;
        }
    }

    /// Whether everything of a stopped and marked lane was flushed.
    pub(crate) fn is_drained(&self) -> bool {
        self.posted_receives == 0 && !self.marker_outstanding
    }
}
