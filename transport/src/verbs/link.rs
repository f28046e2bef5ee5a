//! A link to one peer: its lanes, its rings of message slots and the blocks in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use super::driver::{Completion, CompletionKind};
use super::error::VerbsError;
use super::lane::{Lane, LaneStatistics, Request, Work, WorkId};
use super::rail::Rail;
use super::ring::{Inbox, Outbox};
use super::settings::LinkSettings;
#[cfg(test)]
use super::settings::Mutation;
use super::status;
use crate::error::Error;
use crate::link::{BlockSend, Event, Posting, ReceiveTable, Slot};
use crate::stripe::{Noted, Stripe};
use crate::wire::{Immediate, MESSAGE_SLOTS, MessageHeader, Rank};

/// What a work request costs a lane beside its bytes, in bytes, when shares are weighed.
const REQUEST_COST_BYTES: u64 = 256;

const NO_MEMORY: u32 = 0;

/// A block of which parts are on their way.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    token: u64,
    bytes: u64,
    parts_left: u32,
}

/// What a link is made of.
pub(crate) struct LinkParts {
    pub(crate) rank: Rank,
    pub(crate) peer: Rank,
    pub(crate) epoch: u32,
    pub(crate) generation: u32,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) stripe: Stripe,
    pub(crate) peer_ring: (u64, u32),
    pub(crate) message_bytes_max: u32,
    pub(crate) can_send: bool,
}

/// A link whose queue pairs are all up.
pub(crate) struct Link {
    pub(crate) rank: Rank,
    pub(crate) peer: Rank,
    pub(crate) epoch: u32,
    pub(crate) generation: u32,
    pub(crate) can_send: bool,
    /// Whether the fabric has it on its list of links to attend to.
    pub(crate) listed: bool,
    broken: Option<String>,
    // Dropped first: destroying the queue pairs ends every access to the rings below.
    lanes: Vec<Lane>,
    inbox: Inbox,
    outbox: Outbox,
    stripe: Stripe,
    /// Address and key of the peer's ring.
    peer_ring: (u64, u32),
    message_bytes_max: u64,
    blocks: Vec<InFlight>,
    free_blocks: Vec<u32>,
    bytes_in_flight: u64,
    /// What whole blocks have cost each lane.
    costs: Vec<u64>,
    window_bytes: u64,
    window_blocks: usize,
    #[cfg(test)]
    mutation: Mutation,
}

impl Link {
    pub(crate) fn new(parts: LinkParts, settings: &LinkSettings) -> Self {
        // Every block in flight holds at least one send slot.
        let blocks = parts.lanes.len() * settings.send_depth as usize;
        Self {
            rank: parts.rank,
            peer: parts.peer,
            epoch: parts.epoch,
            generation: parts.generation,
            can_send: parts.can_send,
            listed: false,
            broken: None,
            costs: vec![0; parts.lanes.len()],
            lanes: parts.lanes,
            inbox: parts.inbox,
            outbox: parts.outbox,
            stripe: parts.stripe,
            peer_ring: parts.peer_ring,
            message_bytes_max: parts.message_bytes_max.into(),
            blocks: vec![InFlight::default(); blocks],
            free_blocks: (0..blocks as u32).rev().collect(),
            bytes_in_flight: 0,
            window_bytes: settings.window_bytes,
            window_blocks: settings.window_blocks as usize,
            #[cfg(test)]
            mutation: settings.mutation,
        }
    }

    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(crate) fn statistics(&self) -> impl Iterator<Item = LaneStatistics> {
        self.lanes.iter().map(|lane| lane.statistics)
    }

    pub(crate) fn has_outstanding(&self) -> bool {
        self.blocks_in_flight() > 0
    }

    fn blocks_in_flight(&self) -> usize {
        self.blocks.len() - self.free_blocks.len()
    }

    fn usable(&self) -> Result<(), Error> {
        let reason = match &self.broken {
            Some(reason) => reason.clone(),
            None if !self.can_send => "the peer has not confirmed it yet".into(),
            None => return Ok(()),
        };
        Err(Error::Link { rank: self.rank, peer: self.peer, reason })
    }

    // ---- sending ----

    pub(crate) fn send_message(
        &mut self,
        header: &MessageHeader,
        payload: &[u8],
    ) -> Result<Posting, Error> {
        self.usable()?;
        let lane = &mut self.lanes[0];
        let has_slot = self.outbox.has_room(lane.completed());
        #[cfg(test)]
        let has_slot = has_slot || self.mutation == Mutation::IgnoreSlots;
        if !lane.has_room() || !has_slot {
            return Ok(Posting::Full);
        }
        let staged = self.outbox.stage(header, payload);
        let request = Request {
            local: staged.address,
            bytes: staged.bytes,
            lkey: self.outbox.lkey(),
            remote: self.peer_ring.0 + staged.offset,
            rkey: self.peer_ring.1,
            immediate: Immediate::Message { slot: staged.slot },
        };
        let sequence = lane.queue(request, Work::Other);
        lane.statistics.messages += 1;
        self.outbox.sent(sequence);
        Ok(Posting::Posted)
    }

    pub(crate) fn send_block(&mut self, send: &BlockSend<'_>) -> Result<Posting, Error> {
        self.usable()?;
        let bytes = self.check_block(send)?;
        if self.blocks_in_flight() >= self.window_blocks
            && self.bytes_in_flight + bytes > self.window_bytes
        {
            return Ok(Posting::Full);
        }
        let striped = self.stripe.is_striped(bytes);
        let lane = self.next_lane();
        let room = if striped {
            self.lanes.iter().all(Lane::has_room)
        } else {
            self.lanes[lane].has_room()
        };
        let entry = if room { self.free_blocks.pop() } else { None };
        let Some(entry) = entry else { return Ok(Posting::Full) };
        let parts_left = if striped { self.lanes.len() as u32 } else { 1 };
        self.blocks[entry as usize] = InFlight { token: send.token, bytes, parts_left };
        self.bytes_in_flight += bytes;
        if striped {
            for lane in 0..self.lanes.len() {
                self.queue_part(send, lane, self.stripe.part(bytes, lane), entry);
                self.lanes[lane].statistics.parts += 1;
            }
        } else {
            self.queue_part(send, lane, 0..bytes, entry);
            self.lanes[lane].statistics.whole_blocks += 1;
            self.costs[lane] += bytes + REQUEST_COST_BYTES;
        }
        Ok(Posting::Posted)
    }

    /// Checks what the endpoint promised and what it cannot know; gives the block's length.
    fn check_block(&self, send: &BlockSend<'_>) -> Result<u64, Error> {
        let bytes = send.range.end.saturating_sub(send.range.start);
        let inside = send.range.end <= send.span.bytes
            && send.offset.checked_add(bytes).is_some_and(|end| end <= send.grant.bytes);
        if bytes == 0 || !inside {
            return Err(Error::Invalid(format!(
                "block {} is not inside its own or its granted memory",
                send.block
            )));
        }
        if bytes > self.message_bytes_max {
            return Err(Error::Invalid(format!(
                "a block of {bytes} bytes is longer than the {} bytes that the ports to rank {} \
                 carry at once: use smaller blocks",
                self.message_bytes_max, self.peer
            )));
        }
        let rails = self.lanes.iter().map(|lane| lane.peer_rail).max().unwrap_or(0);
        if usize::from(send.grant.rails) <= rails {
            return Err(Error::Protocol {
                rank: self.rank,
                peer: self.peer,
                what: format!(
                    "it granted memory on {} rails, the link uses {}",
                    send.grant.rails,
                    rails + 1
                ),
            });
        }
        if self.lanes.iter().any(|lane| lane.rail >= send.span.keys.len()) {
            return Err(Error::Invalid("memory that is not registered was to be sent".into()));
        }
        Ok(bytes)
    }

    /// The lane that has carried the least for its weight.
    fn next_lane(&self) -> usize {
        let behind = |a: usize, b: usize| {
            // costs[a] / weight(a) < costs[b] / weight(b)
            u128::from(self.costs[a]) * u128::from(self.stripe.weight(b))
                < u128::from(self.costs[b]) * u128::from(self.stripe.weight(a))
        };
        (1..self.lanes.len()).fold(0, |best, lane| if behind(lane, best) { lane } else { best })
    }

    fn queue_part(
        &mut self,
        send: &BlockSend<'_>,
        lane: usize,
        part: std::ops::Range<u64>,
        entry: u32,
    ) {
        let lane = &mut self.lanes[lane];
        // At most `message_bytes_max`, which is 32 bits wide.
        let bytes = (part.end - part.start) as u32;
        let immediate = Immediate::Block { handle: send.grant.handle, block: send.block };
        let request = if bytes == 0 {
            Request { local: 0, bytes, lkey: NO_MEMORY, remote: 0, rkey: NO_MEMORY, immediate }
        } else {
            Request {
                local: send.span.address + (send.range.start + part.start) as usize,
                bytes,
                lkey: send.span.keys[lane.rail].0,
                remote: send.grant.address + send.offset + part.start,
                rkey: send.grant.rkeys[lane.peer_rail],
                immediate,
            }
        };
        lane.queue(request, Work::Part { entry });
        lane.statistics.block_bytes += u64::from(bytes);
    }

    /// Posts receives anew, returns credits that are due, and posts what is queued. Says whether
    /// anything moved; an error breaks the link.
    pub(crate) fn attend(&mut self, rails: &[Arc<Rail>]) -> Result<bool, String> {
        if self.broken.is_some() {
            return Ok(false);
        }
        let mut moved = false;
        for index in 0..self.lanes.len() {
            moved |= self.attend_lane(index).map_err(|error| {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                format!("{}: {error}: {}", self.at(index, rails), source.unwrap_or_default())
            })?;
        }
        Ok(moved)
    }

    fn attend_lane(&mut self, index: usize) -> Result<bool, VerbsError> {
        let lane = &mut self.lanes[index];
        let mut moved = lane.post_receives()?;
        let slots = if index == 0 { self.inbox.to_return() } else { 0 };
        // The peer has to confirm before this end sends, credits included.
        if self.can_send && lane.return_credits(slots, slots >= MESSAGE_SLOTS / 2) && index == 0 {
            self.inbox.told();
        }
        // SAFETY: message slots are written again only after their write has completed, and are
        // freed after the queue pair was destroyed. Blocks lie in a `Span`, which the endpoint
        // keeps registered, mapped and unwritten until `Event::Sent`, or until `quiesce` has
        // destroyed the queue pair.
        moved |= unsafe { lane.post() }?;
        Ok(moved)
    }

    /// Whether `attend` has something left to do without a further completion.
    pub(crate) fn needs_attention(&self) -> bool {
        self.broken.is_none()
            && self.lanes.iter().any(|lane| lane.has_queued() || lane.lacks_receives())
    }

    // ---- completions ----

    /// Takes a completion of lane `index` of this generation; an error breaks the link.
    pub(crate) fn on_completion(
        &mut self,
        index: usize,
        completion: &Completion,
        receives: &ReceiveTable,
        rails: &[Arc<Rail>],
        events: &mut VecDeque<Event>,
    ) -> Result<(), String> {
        if self.broken.is_some() {
            self.lanes[index].drained(completion);
            return Ok(());
        }
        match completion.kind {
            CompletionKind::Write => {
                self.sends_completed(index, WorkId(completion.work_id), events);
                Ok(())
            }
            CompletionKind::Received { immediate, bytes } => {
                self.lanes[index].received();
                self.received(index, immediate, bytes, receives, events)
                    .map_err(|what| format!("{}: protocol error: {what}", self.at(index, rails)))
            }
            CompletionKind::Failed { status, vendor } => {
                self.lanes[index].drained(completion);
                let (name, remedy) = status::describe(status);
                let at = self.at(index, rails);
                Err(format!(
                    "{at} failed with {name} ({status}, vendor code {vendor:#x}): {remedy}"
                ))
            }
        }
    }

    fn at(&self, index: usize, rails: &[Arc<Rail>]) -> String {
        let lane = &self.lanes[index];
        let (peer, number) = (self.peer, lane.number());
        let choice = rails.get(lane.rail).map(|rail| &rail.choice);
        let (device, port) = choice.map_or(("?", 0), |c| (c.device.as_str(), c.port));
        format!("lane {index} to rank {peer} (queue pair {number} on {device} port {port})")
    }

    fn sends_completed(&mut self, index: usize, id: WorkId, events: &mut VecDeque<Event>) {
        if id.is_receive() {
            return;
        }
        for sequence in self.lanes[index].sends_completed(id) {
            let Work::Part { entry } = self.lanes[index].work(sequence) else { continue };
            let block = &mut self.blocks[entry as usize];
            block.parts_left = block.parts_left.saturating_sub(1);
            if block.parts_left == 0 {
                self.bytes_in_flight -= block.bytes;
                events.push_back(Event::Sent { peer: self.peer, token: block.token });
                self.free_blocks.push(entry);
            }
        }
    }

    fn received(
        &mut self,
        index: usize,
        immediate: u32,
        bytes: u32,
        receives: &ReceiveTable,
        events: &mut VecDeque<Event>,
    ) -> Result<(), String> {
        let peer = self.peer;
        match Immediate::decode(immediate) {
            Some(Immediate::Block { handle, block }) => {
                if self.block_arrived(index, handle, block, bytes, receives)? {
                    events.push_back(Event::Block { peer, handle, block });
                }
                Ok(())
            }
            Some(Immediate::Message { slot }) if index == 0 => {
                let sequence = self.inbox.arrived(slot, bytes).map_err(|e| e.to_string())?;
                events.push_back(Event::Message { slot: Slot { peer, sequence } });
                Ok(())
            }
            Some(Immediate::Credit { receives, slots }) if slots == 0 || index == 0 => {
                if !self.lanes[index].credited(receives.into()) {
                    return Err("it gave back more receives than it was sent".into());
                }
                self.outbox.returned(slots.into()).map_err(|e| e.to_string())
            }
            _ => Err(format!("immediate {immediate:#010x} means nothing on this lane")),
        }
    }

    /// A block, or this lane's part of it, is here; says whether that makes it whole.
    fn block_arrived(
        &self,
        index: usize,
        handle: u16,
        block: u32,
        bytes: u32,
        receives: &ReceiveTable,
    ) -> Result<bool, String> {
        let receive = receives
            .find(handle)
            .ok_or_else(|| format!("block {block} of handle {handle}, which is not open"))?;
        let range = receive
            .block_range(block)
            .ok_or_else(|| format!("block {block} of handle {handle} is out of range"))?;
        let length = range.end - range.start;
        let striped = self.stripe.is_striped(length);
        let part = if striped { self.stripe.part(length, index) } else { 0..length };
        if u64::from(bytes) != part.end - part.start {
            return Err(format!(
                "{bytes} bytes of block {block} of handle {handle}, where this lane carries {}",
                part.end - part.start
            ));
        }
        let noted = if striped {
            receive.arrived.note_part(block, index, self.lanes.len())
        } else {
            receive.arrived.note_whole(block)
        };
        if noted == Noted::Duplicate {
            tracing::trace!(peer = self.peer, handle, block, lane = index, "duplicate part");
        }
        Ok(noted == Noted::Complete)
    }

    // ---- messages ----

    pub(crate) fn message(&self, slot: Slot) -> Result<(MessageHeader, &[u8]), Error> {
        let (rank, peer) = (self.rank, self.peer);
        match self.inbox.message(slot.sequence) {
            Some(Ok(message)) => Ok(message),
            Some(Err(malformed)) => {
                Err(Error::Protocol { rank, peer, what: malformed.to_string() })
            }
            None => Err(Error::Invalid(format!(
                "rank {rank}: there is no message {} of rank {peer}",
                slot.sequence
            ))),
        }
    }

    pub(crate) fn release(&mut self, sequence: u64) {
        self.inbox.release(sequence);
    }

    // ---- the end ----

    /// Breaks the link, once: its queue pairs stop. Says whether it was whole until now.
    pub(crate) fn set_broken(&mut self, reason: String) -> bool {
        if self.broken.is_some() {
            return false;
        }
        tracing::debug!(rank = self.rank, peer = self.peer, reason, "link broken");
        self.broken = Some(reason);
        for lane in &mut self.lanes {
            if let Err(error) = lane.stop() {
                tracing::warn!(rank = self.rank, peer = self.peer, %error, "stopping a lane");
            }
        }
        true
    }

    /// Posts the markers that show when everything was flushed; says whether all could be posted.
    pub(crate) fn mark(&mut self) -> bool {
        let mut all = true;
        for lane in &mut self.lanes {
            if let Err(error) = lane.mark() {
                tracing::warn!(rank = self.rank, peer = self.peer, %error, "draining a lane");
                all = false;
            }
        }
        all
    }

    /// Notes a completion while draining.
    pub(crate) fn drained(&mut self, index: usize, completion: &Completion) {
        self.lanes[index].drained(completion);
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.lanes.iter().all(Lane::is_drained)
    }
}
