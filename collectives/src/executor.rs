//! Runs one rank's schedule without any IO: events in, sends out.
//!
//! The same executor is driven by the real endpoint and by tests and simulations that hold all
//! ranks in one process. It names blocks and peers only; bytes, lanes and time are its driver's.
//!
//! # State machine
//!
//! ```text
//! a block:   missing --arrived--> held                       (some are held from the start)
//! a peer:    silent  --granted--> granted                    (it may be written to)
//! a send:    waiting --block held, peer granted--> ready --next_send--> in flight --sent--> complete
//! the whole: running --every block arrived, every send complete--> done
//! ```
//!
//! [`Executor::next_send`] gives the ready send that is first in the schedule's list: order is
//! priority. There is no barrier between rounds, unless the driver asks for [`Pacing::Rounds`].
//! Every event is checked against the schedule; one that does not belong there is an error and
//! changes nothing, so that a faulty peer cannot bring the executor into a state outside the above.
//!
//! # Calling it
//!
//! - first: [`Executor::start`], which may allocate, and only where it needs more memory than any
//!   start before it; no other method allocates;
//! - on events: [`Executor::granted`], [`Executor::arrived`], [`Executor::sent`];
//! - after any of them: [`Executor::next_send`] until it gives nothing;
//! - then: [`Executor::is_done`]; for a message about a wait, [`Executor::missing_peers`].
//!
//! # Cost
//!
//! An event costs O(log k) for each send that it makes ready, `next_send` O(p + log k) for p peers:
//! 2 ceil(log2 N) of them in the circulant schedule.
//!
//! # Examples
//!
//! ```
//! use verbcast_collectives::executor::{Arrival, Executor, Pacing};
//! use verbcast_collectives::schedule::{self, Algorithm, Shape};
//!
//! // Rank 1 of a chain of three, one block: it comes from rank 0 and goes to rank 2.
//! let shape = Shape::new(3, 0, 1)?;
//! let schedule = schedule::broadcast(Algorithm::PipelinedChain, shape, 1)?;
//! let mut executor = Executor::new();
//! executor.start(&schedule, Pacing::Free)?;
//! executor.granted(2)?;
//! assert_eq!(executor.next_send(|_| true), None, "the block is not here yet");
//! assert_eq!(executor.arrived(0, 0)?, Arrival::New);
//! let send = executor.next_send(|_| true).expect("held and granted");
//! assert_eq!((send.peer, send.block), (2, 0));
//! executor.sent(2, 0)?;
//! assert!(executor.is_done());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod pace;
mod ready;

pub use error::ExecutorError;

use std::ops::Range;

use crate::schedule::{Direction, Rank, RankSchedule};
use pace::Pace;

/// When a send whose block is held and whose peer has granted may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pacing {
    /// At once: the rule for real links.
    #[default]
    Free,
    /// Not before all of the rank's own steps of earlier rounds are complete, and not after the
    /// round that [`Executor::limit_round`] has set: the telephone model.
    Rounds,
}

/// What an arrived block was to this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The block was missing and is now held.
    New,
    /// The block was already held, for instance after a retransmission; nothing changed.
    Duplicate,
}

/// A send to start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Send {
    /// The rank to send to.
    pub peer: Rank,
    /// The block to send.
    pub block: u32,
    /// The place of the send in [`RankSchedule::steps`].
    pub step: u32,
    /// The round of the send.
    pub round: u32,
    /// The port that the schedule gives it.
    pub port: u16,
}

/// What a rank still waits for from one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The peer.
    pub peer: Rank,
    /// There is something to send to the peer, and it has not granted its buffer.
    pub grant: bool,
    /// The number of blocks that have not arrived from the peer.
    pub blocks: u32,
    /// The number of sends to the peer that have started and are not complete.
    pub in_flight: u32,
}

/// No peer: the source of a block that the rank receives from nobody.
const NOBODY: u32 = u32::MAX;

/// The state of one send, beside being ready or not, which follows from block and peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SendState {
    /// Not started.
    Pending,
    InFlight,
    Complete,
}

/// One send of the schedule. The sends of a peer lie side by side, in the schedule's order.
#[derive(Clone, Copy, Debug)]
struct Slot {
    block: u32,
    /// Index into `Executor::peers`.
    peer: u32,
    /// Index into the schedule's steps.
    step: u32,
    round: u32,
    port: u16,
    state: SendState,
}

/// A rank that this rank sends to, receives from, or both.
#[derive(Clone, Copy, Debug)]
struct Peer {
    rank: Rank,
    granted: bool,
    /// The peer's sends are `slots[first_slot..first_slot + sends]`.
    first_slot: u32,
    sends: u32,
    /// The length of the heap of sends whose block is held, in `ready[first_slot..]`.
    ready: u32,
    /// The step of the send at the top of that heap, so that only the best one's slot is read.
    next_step: u32,
    in_flight: u32,
    blocks_missing: u32,
}

/// The state of one rank's part in one operation; see the [module](self) for how to call it.
#[derive(Clone, Debug, Default)]
pub struct Executor {
    rank: Rank,
    /// The number of different blocks.
    blocks: u32,
    /// The blocks held from the start.
    own: Range<u32>,
    peers: Vec<Peer>,
    slots: Vec<Slot>,
    /// Sends whose block is held, not yet started: for each peer a heap of slot numbers.
    ready: Vec<u32>,
    /// `block_slots[block_start[b]..block_start[b + 1]]` are the sends of block b, by peer.
    block_start: Vec<u32>,
    block_slots: Vec<u32>,
    /// For each block the peer it comes from, as an index into `peers`, or [`NOBODY`].
    source: Vec<u32>,
    /// One bit per block that has arrived; none if the rank holds all from the start.
    held: Vec<u64>,
    pace: Pace,
    blocks_missing: u32,
    sends_incomplete: u32,
}

impl Executor {
    /// An executor with nothing to do, ready for [`Executor::start`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the schedule: the rank holds what its operation gives it at the start.
    ///
    /// The state of an earlier operation is dropped, its memory is used again.
    ///
    /// # Errors
    ///
    /// The schedule receives a block twice, or sends one that it never gets (possible only for a
    /// schedule made elsewhere). The executor then has nothing to do.
    pub fn start(&mut self, schedule: &RankSchedule, pacing: Pacing) -> Result<(), ExecutorError> {
        self.clear();
        let outcome = self.load(schedule, pacing);
        if outcome.is_err() {
            self.clear();
        }
        outcome
    }

    /// Notes that the peer has granted its buffer: blocks may be sent to it.
    ///
    /// # Errors
    ///
    /// The schedule sends nothing to the peer, or it has granted before.
    pub fn granted(&mut self, peer: Rank) -> Result<(), ExecutorError> {
        let rank = self.rank;
        let index = self.peer_index(peer).filter(|&index| self.peers[index].sends > 0);
        let index = index.ok_or(ExecutorError::GrantNotExpected { rank, peer })?;
        if self.peers[index].granted {
            return Err(ExecutorError::GrantedTwice { rank, peer });
        }
        self.peers[index].granted = true;
        Ok(())
    }

    /// Notes that a block has arrived whole from the peer.
    ///
    /// # Errors
    ///
    /// The schedule does not expect the block from this peer; `block` may be any number.
    pub fn arrived(&mut self, peer: Rank, block: u32) -> Result<Arrival, ExecutorError> {
        let source = self.source.get(block as usize).copied().unwrap_or(NOBODY);
        let expected = self.peers.get(source as usize).map(|peer| peer.rank);
        if expected != Some(peer) {
            return Err(ExecutorError::BlockNotExpected { rank: self.rank, peer, block, expected });
        }
        if self.holds(block) {
            return Ok(Arrival::Duplicate);
        }
        self.held[block as usize / 64] |= 1 << (block % 64);
        self.blocks_missing -= 1;
        self.peers[source as usize].blocks_missing -= 1;
        self.pace.received(block);
        for place in self.block_range(block) {
            let slot = self.block_slots[place];
            let peer = &mut self.peers[self.slots[slot as usize].peer as usize];
            let first = peer.first_slot as usize;
            peer.ready += 1;
            ready::push(&mut self.ready[first..first + peer.ready as usize], slot);
            peer.next_step = self.slots[self.ready[first] as usize].step;
        }
        Ok(Arrival::New)
    }

    /// Takes the ready send that comes first in the schedule, if any; it is then in flight.
    ///
    /// `may_send` says whether a peer's link has room; it is asked at most once per peer.
    pub fn next_send(&mut self, mut may_send: impl FnMut(Rank) -> bool) -> Option<Send> {
        let mut best: Option<(usize, Slot)> = None;
        for (index, peer) in self.peers.iter().enumerate() {
            let is_first = best.is_none_or(|(_, first)| peer.next_step < first.step);
            if !peer.granted || peer.ready == 0 || !is_first {
                continue;
            }
            let slot = self.slots[self.ready[peer.first_slot as usize] as usize];
            if self.pace.permits(slot.step, slot.round) && may_send(peer.rank) {
                best = Some((index, slot));
            }
        }
        let (index, Slot { block, step, round, port, .. }) = best?;
        let peer = &mut self.peers[index];
        let first = peer.first_slot as usize;
        let slot = ready::pop(&mut self.ready[first..first + peer.ready as usize]);
        peer.ready -= 1;
        if peer.ready > 0 {
            peer.next_step = self.slots[self.ready[first] as usize].step;
        }
        peer.in_flight += 1;
        self.slots[slot as usize].state = SendState::InFlight;
        Some(Send { peer: peer.rank, block, step, round, port })
    }

    /// Notes that a send is complete: it needs this rank's buffer no longer.
    ///
    /// # Errors
    ///
    /// No such send is in flight.
    pub fn sent(&mut self, peer: Rank, block: u32) -> Result<(), ExecutorError> {
        let slot = self.slot_in_flight(peer, block).ok_or(ExecutorError::NotInFlight {
            rank: self.rank,
            peer,
            block,
        })?;
        let Slot { peer, step, .. } = self.slots[slot];
        self.slots[slot].state = SendState::Complete;
        self.peers[peer as usize].in_flight -= 1;
        self.sends_incomplete -= 1;
        self.pace.completed(step);
        Ok(())
    }

    /// Lets sends start up to `round` and no later, under [`Pacing::Rounds`]; there is no limit
    /// before the first call.
    ///
    /// A rank that is idle in some round could else run ahead of it and meet another rank's block
    /// at the receiver's port, which the telephone model excludes.
    pub fn limit_round(&mut self, round: u32) {
        self.pace.limit_round(round);
    }

    /// Whether every block has arrived and every send is complete.
    pub fn is_done(&self) -> bool {
        self.blocks_missing == 0 && self.sends_incomplete == 0
    }

    /// The number of blocks that have not arrived.
    pub fn blocks_missing(&self) -> u32 {
        self.blocks_missing
    }

    /// The number of blocks of this peer that have not arrived.
    pub fn blocks_missing_from(&self, peer: Rank) -> u32 {
        self.peer_index(peer).map_or(0, |index| self.peers[index].blocks_missing)
    }

    /// The number of sends that are not complete, started or not.
    pub fn sends_incomplete(&self) -> u32 {
        self.sends_incomplete
    }

    /// Whether the rank holds the block; never for a block outside the message.
    pub fn holds(&self, block: u32) -> bool {
        self.own.contains(&block)
            || self.held.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// What this rank still waits for, by peer in ascending order of ranks.
    pub fn missing_peers(&self) -> impl Iterator<Item = Missing> + '_ {
        self.peers
            .iter()
            .map(|peer| Missing {
                peer: peer.rank,
                grant: peer.sends > 0 && !peer.granted,
                blocks: peer.blocks_missing,
                in_flight: peer.in_flight,
            })
            .filter(|missing| missing.grant || missing.blocks > 0 || missing.in_flight > 0)
    }

    fn clear(&mut self) {
        self.peers.clear();
        self.slots.clear();
        self.ready.clear();
        self.block_start.clear();
        self.block_slots.clear();
        self.source.clear();
        self.held.clear();
        self.pace.clear();
        (self.rank, self.blocks, self.own) = (0, 0, 0..0);
        (self.blocks_missing, self.sends_incomplete) = (0, 0);
    }

    fn load(&mut self, schedule: &RankSchedule, pacing: Pacing) -> Result<(), ExecutorError> {
        let shape = schedule.shape();
        self.rank = schedule.rank();
        self.blocks = shape.total_blocks();
        self.own = shape.held_at_start(self.rank);
        self.load_peers(schedule);
        self.load_receives(schedule)?;
        self.load_sends(schedule);
        self.index_sends_by_block()?;
        if pacing == Pacing::Rounds {
            self.pace.load(schedule);
        }
        self.ready.resize(self.slots.len(), 0);
        for (number, slot) in (0..).zip(&self.slots) {
            if self.own.contains(&slot.block) {
                // Slots ascend within a peer, and an ascending list is a heap.
                let peer = &mut self.peers[slot.peer as usize];
                if peer.ready == 0 {
                    peer.next_step = slot.step;
                }
                self.ready[(peer.first_slot + peer.ready) as usize] = number;
                peer.ready += 1;
            }
        }
        Ok(())
    }

    /// Merges the two ascending lists of peers.
    fn load_peers(&mut self, schedule: &RankSchedule) {
        let (mut to, mut from) = (schedule.send_peers(), schedule.recv_peers());
        while let Some(&rank) = to.first().into_iter().chain(from.first()).min() {
            to = to.strip_prefix(&[rank]).unwrap_or(to);
            from = from.strip_prefix(&[rank]).unwrap_or(from);
            self.peers.push(Peer {
                rank,
                granted: false,
                first_slot: 0,
                sends: 0,
                ready: 0,
                next_step: 0,
                in_flight: 0,
                blocks_missing: 0,
            });
        }
    }

    fn load_receives(&mut self, schedule: &RankSchedule) -> Result<(), ExecutorError> {
        let rank = self.rank;
        let blocks = self.blocks as usize;
        self.source.resize(blocks, NOBODY);
        if self.own.len() < blocks {
            self.held.resize(blocks.div_ceil(64), 0);
        }
        for step in schedule.steps().iter().filter(|step| step.direction == Direction::Recv) {
            let (peer, block) = (step.peer, step.block);
            if self.own.contains(&block) || self.source[block as usize] != NOBODY {
                return Err(ExecutorError::ReceivesHeldBlock { rank, peer, block });
            }
            let index = self.known_peer(peer);
            self.source[block as usize] = index as u32;
            self.peers[index].blocks_missing += 1;
            self.blocks_missing += 1;
        }
        Ok(())
    }

    /// Sorts the sends by peer, those of one peer in the schedule's order.
    fn load_sends(&mut self, schedule: &RankSchedule) {
        let sends = || {
            let steps = schedule.steps().iter().enumerate();
            steps.filter(|(_, step)| step.direction == Direction::Send)
        };
        for (_, step) in sends() {
            let index = self.known_peer(step.peer);
            self.peers[index].sends += 1;
        }
        for peer in &mut self.peers {
            peer.first_slot = self.sends_incomplete;
            self.sends_incomplete += peer.sends;
            peer.sends = 0;
        }
        let state = SendState::Pending;
        let empty = Slot { block: 0, peer: 0, step: 0, round: 0, port: 0, state };
        self.slots.resize(self.sends_incomplete as usize, empty);
        for (index, step) in sends() {
            let peer_index = self.known_peer(step.peer);
            let peer = &mut self.peers[peer_index];
            self.slots[(peer.first_slot + peer.sends) as usize] = Slot {
                block: step.block,
                peer: peer_index as u32,
                step: index as u32,
                round: step.round,
                port: step.port,
                state,
            };
            peer.sends += 1;
        }
    }

    /// Sorts slot numbers by block; the slots of one block ascend, so they are sorted by peer.
    fn index_sends_by_block(&mut self) -> Result<(), ExecutorError> {
        // The count of block b is made at b + 2 and summed up; placing the slots of b then moves
        // the entry at b + 1 from the start of b to its end.
        self.block_start.resize(self.blocks as usize + 2, 0);
        for slot in &self.slots {
            if !self.own.contains(&slot.block) && self.source[slot.block as usize] == NOBODY {
                let (peer, block) = (self.peers[slot.peer as usize].rank, slot.block);
                return Err(ExecutorError::SendsMissingBlock { rank: self.rank, peer, block });
            }
            self.block_start[slot.block as usize + 2] += 1;
        }
        for block in 2..self.block_start.len() {
            self.block_start[block] += self.block_start[block - 1];
        }
        self.block_slots.resize(self.slots.len(), 0);
        for (number, slot) in self.slots.iter().enumerate() {
            let place = &mut self.block_start[slot.block as usize + 1];
            self.block_slots[*place as usize] = number as u32;
            *place += 1;
        }
        Ok(())
    }

    fn block_range(&self, block: u32) -> std::ops::Range<usize> {
        let block = block as usize;
        self.block_start[block] as usize..self.block_start[block + 1] as usize
    }

    fn peer_index(&self, rank: Rank) -> Option<usize> {
        self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()
    }

    /// The index of a peer of the schedule that is being loaded.
    fn known_peer(&self, rank: Rank) -> usize {
        self.peer_index(rank).expect("a schedule lists the peers of all its steps")
    }

    fn slot_in_flight(&self, peer: Rank, block: u32) -> Option<usize> {
        let peer = self.peer_index(peer)? as u32;
        if block >= self.blocks {
            return None;
        }
        let slots = &self.block_slots[self.block_range(block)];
        let first = slots.partition_point(|&slot| self.slots[slot as usize].peer < peer);
        slots[first..]
            .iter()
            .map(|&slot| slot as usize)
            .take_while(|&slot| self.slots[slot].peer == peer)
            .find(|&slot| self.slots[slot].state == SendState::InFlight)
    }
}

#[cfg(test)]
mod tests;
