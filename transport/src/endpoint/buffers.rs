//! The open buffers, and what may still touch them.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::layout::Layout;
use crate::link::Span;
use crate::memory::{Held, Open, Owned, RegionInner, Status};
use crate::verbs::fabric::Registration;
use crate::wire::Rank;

/// Buffers that an endpoint can have open at a time.
const BUFFERS_MAX: usize = 1 << 16;

/// Statuses of closed buffers that are kept to be used again.
const SPARE_STATUSES_MAX: usize = 64;

/// Names an open buffer of an endpoint; means nothing once that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId {
    index: u16,
    generation: u16,
}

/// What a block's send token is made of, so that its completion finds the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) buffer: BufferId,
    pub(super) value: u32,
}

impl Token {
    pub(super) fn encode(self) -> u64 {
        u64::from(self.buffer.index) << 48
            | u64::from(self.buffer.generation) << 32
            | u64::from(self.value)
    }

    pub(super) fn decode(bits: u64) -> Self {
        let buffer = BufferId { index: (bits >> 48) as u16, generation: (bits >> 32) as u16 };
        Self { buffer, value: bits as u32 }
    }
}

/// What a buffer is made of.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) address: usize,
    pub(super) bytes: u64,
    pub(super) writable: bool,
    pub(super) region: Option<Arc<RegionInner>>,
    pub(super) registration: Option<Registration>,
    pub(super) owned: Option<Owned>,
    /// Links that had ended when it was opened.
    pub(super) losses: u64,
}

#[derive(Debug)]
struct Buffer {
    span: Span,
    /// Nothing but closing is to be done with it any more.
    withdrawn: bool,
    losses: u64,
    /// Sends that are outstanding, by peer.
    sends: Vec<(Rank, u32)>,
    // Dropped in this order: the rails forget the memory, then it is freed, then whoever lent it
    // hears of that.
    registration: Option<Registration>,
    region: Option<Arc<RegionInner>>,
    owned: Option<Owned>,
    open: Open,
}

#[derive(Debug)]
struct OpenReceive {
    handle: u16,
    buffer: BufferId,
    /// Who may write, and for which start it was last told so.
    granted: Vec<(Rank, u64)>,
    arrived: Vec<u64>,
    missing: u32,
    /// How often the receive was opened again.
    start: u64,
    /// Where in the buffer it begins.
    offset: u64,
    layout: Layout,
}

impl OpenReceive {
    /// Peers that may still write into it.
    fn in_doubt(&self) -> impl Iterator<Item = Rank> {
        // Who was not told of this start yet has written all it may.
        let is_told = |told: u64| self.missing > 0 && told == self.start;
        self.granted.iter().filter(move |(_, told)| is_told(*told)).map(|(peer, _)| *peer)
    }
}

/// All buffers, with lists whose storage is used again.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    entries: Vec<(u16, Option<Buffer>)>,
    receives: Vec<OpenReceive>,
    spare_granted: Vec<Vec<(Rank, u64)>>,
    spare_arrived: Vec<Vec<u64>>,
    spare_sends: Vec<Vec<(Rank, u32)>>,
    spare_keys: Vec<Vec<(u32, u32)>>,
    spare_statuses: Vec<Arc<Status>>,
}

impl Buffers {
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < BUFFERS_MAX || self.entries.iter().any(|(_, entry)| entry.is_none())
    }

    /// Opens a buffer. The caller has asked for [room](Self::has_room).
    pub(super) fn insert(&mut self, source: Source) -> (BufferId, Arc<Status>) {
        let free = self.entries.iter().position(|(_, entry)| entry.is_none());
        let index = free.unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() - 1
        });
        let Source { address, bytes, writable, region, registration, owned, losses } = source;
        let mut keys = self.spare_keys.pop().unwrap_or_default();
        let of_region = region.as_ref().and_then(|region| region.registration.as_ref());
        if let Some(registered) = registration.as_ref().or(of_region) {
            keys.extend_from_slice(registered.keys());
        }
        let status = self.new_status();
        let buffer = Buffer {
            span: Span { address, bytes, writable, keys },
            withdrawn: false,
            losses,
            sends: self.spare_sends.pop().unwrap_or_default(),
            registration,
            region,
            owned,
            open: Open(Arc::clone(&status)),
        };
        let (generation, entry) = &mut self.entries[index];
        *generation = generation.wrapping_add(1);
        *entry = Some(buffer);
        (BufferId { index: index as u16, generation: *generation }, status)
    }

    fn new_status(&mut self) -> Arc<Status> {
        let spare = &mut self.spare_statuses;
        let unused = spare.iter_mut().position(|status| Arc::get_mut(status).is_some());
        let mut status = unused.map(|place| spare.swap_remove(place)).unwrap_or_default();
        if let Some(status) = Arc::get_mut(&mut status) {
            *status = Status::default();
        }
        status
    }

    pub(super) fn is_open(&mut self, id: BufferId) -> bool {
        self.find(id).is_some()
    }

    /// The application's access to an owned buffer that no link uses.
    pub(super) fn hold(&mut self, id: BufferId) -> Result<Held, Error> {
        let incomplete = self.receives.iter().any(|open| open.buffer == id && open.missing > 0);
        let buffer = self.find(id).ok_or_else(closed)?;
        let sending = buffer.sends.iter().any(|(_, count)| *count > 0);
        match &buffer.owned {
            _ if buffer.open.0.is_held() => Err(held()),
            _ if buffer.withdrawn => Err(withdrawn()),
            Some(owned) if !incomplete && !sending => Ok(owned.hold(Arc::clone(&buffer.open.0))),
            Some(_) => Err(Error::Invalid("this buffer is in use by a link".into())),
            None => Err(Error::Invalid("this buffer is borrowed memory".into())),
        }
    }

    fn look(&self, id: BufferId) -> Option<&Buffer> {
        let (generation, entry) = self.entries.get(usize::from(id.index))?;
        if *generation == id.generation { entry.as_ref() } else { None }
    }

    fn find(&mut self, id: BufferId) -> Option<&mut Buffer> {
        let (generation, entry) = self.entries.get_mut(usize::from(id.index))?;
        if *generation == id.generation { entry.as_mut() } else { None }
    }

    /// The memory of an open buffer that the application does not hold.
    pub(super) fn span(&self, id: BufferId) -> Result<&Span, Error> {
        let entry = self.entries.get(usize::from(id.index));
        match entry {
            Some((generation, Some(buffer))) if *generation == id.generation => match buffer {
                _ if buffer.open.0.is_held() => Err(held()),
                _ if buffer.withdrawn => Err(withdrawn()),
                _ => Ok(&buffer.span),
            },
            _ => Err(closed()),
        }
    }

    /// Links that had ended when the buffer was opened.
    pub(super) fn losses(&mut self, id: BufferId) -> Result<u64, Error> {
        self.find(id).map(|buffer| buffer.losses).ok_or_else(closed)
    }

    /// The buffer of an open receive.
    pub(super) fn of_receive(&self, handle: u16) -> Result<BufferId, Error> {
        let receive = self.receives.iter().find(|receive| receive.handle == handle);
        receive.map(|receive| receive.buffer).ok_or_else(|| not_open(handle))
    }

    /// Lets nothing more be done with a buffer; says whether it was not so before.
    pub(super) fn withdraw(&mut self, id: BufferId) -> Result<bool, Error> {
        let buffer = self.find(id).ok_or_else(closed)?;
        Ok(!std::mem::replace(&mut buffer.withdrawn, true))
    }

    /// Peers to whom sends from the buffer are outstanding.
    pub(super) fn peers_sent_to(&self, id: BufferId) -> Vec<Rank> {
        let sends = self.look(id).map(|buffer| &buffer.sends[..]).unwrap_or_default();
        sends.iter().filter(|(_, count)| *count > 0).map(|(peer, _)| *peer).collect()
    }

    /// Peers that may still write into the receive under this handle.
    pub(super) fn peers_granted(&self, handle: u16) -> Vec<Rank> {
        let receive = self.receives.iter().find(|receive| receive.handle == handle);
        receive.into_iter().flat_map(OpenReceive::in_doubt).collect()
    }

    /// `peer` writes no more into the receive under this handle.
    pub(super) fn grant_over(&mut self, handle: u16, peer: Rank) {
        if let Some(receive) = self.receive(handle) {
            receive.granted.retain(|(from, _)| *from != peer);
        }
    }

    /// Whether a link to `peer` has something to do with an open buffer.
    pub(super) fn uses_link(&self, peer: Rank) -> bool {
        let buffers = self.entries.iter().filter_map(|(_, entry)| entry.as_ref());
        let mut sends = buffers.flat_map(|buffer| &buffer.sends);
        let mut grants = self.receives.iter().flat_map(|receive| &receive.granted);
        sends.any(|(to, count)| *to == peer && *count > 0) || grants.any(|(from, _)| *from == peer)
    }

    /// Forgets the receives of a buffer.
    pub(super) fn close_receives(&mut self, id: BufferId) {
        let mut position = 0;
        while position < self.receives.len() {
            if self.receives[position].buffer == id {
                let OpenReceive { granted, arrived, .. } = self.receives.swap_remove(position);
                self.spare_granted.push(granted);
                self.spare_arrived.push(arrived);
            } else {
                position += 1;
            }
        }
    }

    /// Forgets the sends of a buffer to `peer`.
    pub(super) fn sends_gone(&mut self, id: BufferId, peer: Rank) {
        if let Some(buffer) = self.find(id) {
            buffer.sends.retain(|(to, _)| *to != peer);
        }
    }

    /// Closes a buffer, and gives its memory back if that was owned and nobody else holds it.
    pub(super) fn remove(&mut self, id: BufferId) -> Option<Owned> {
        self.find(id)?;
        self.close_receives(id);
        let buffer = self.entries[usize::from(id.index)].1.take()?;
        let Buffer { mut span, mut sends, registration, region, owned, open, .. } = buffer;
        drop(registration);
        drop(region);
        sends.clear();
        self.spare_sends.push(sends);
        span.keys.clear();
        self.spare_keys.push(span.keys);
        if self.spare_statuses.len() < SPARE_STATUSES_MAX {
            self.spare_statuses.push(Arc::clone(&open.0));
        }
        owned.filter(|_| !open.0.is_held())
    }

    pub(super) fn receive_opened(
        &mut self,
        buffer: BufferId,
        handle: u16,
        offset: u64,
        layout: Layout,
    ) {
        let mut granted = self.spare_granted.pop().unwrap_or_default();
        let mut arrived = self.spare_arrived.pop().unwrap_or_default();
        granted.clear();
        arrived.clear();
        arrived.resize((layout.numbers() as usize).div_ceil(64), 0);
        let missing = layout.blocks();
        let start = 0;
        self.receives.push(OpenReceive {
            handle,
            buffer,
            granted,
            arrived,
            missing,
            start,
            offset,
            layout,
        });
    }

    fn receive(&mut self, handle: u16) -> Option<&mut OpenReceive> {
        self.receives.iter_mut().find(|receive| receive.handle == handle)
    }

    pub(super) fn keys_of_receive(&self, handle: u16) -> Result<&[(u32, u32)], Error> {
        let receive = self.receives.iter().find(|receive| receive.handle == handle);
        let receive = receive.ok_or_else(|| not_open(handle))?;
        Ok(&self.span(receive.buffer)?.keys)
    }

    /// `peer` was told that it may write for the current start.
    pub(super) fn granted(&mut self, handle: u16, peer: Rank) {
        let Some(receive) = self.receive(handle) else { return };
        let start = receive.start;
        match receive.granted.iter_mut().find(|(to, _)| *to == peer) {
            Some((_, told)) => *told = start,
            None => receive.granted.push((peer, start)),
        }
    }

    /// Opens a receive whose blocks have all come once more.
    pub(super) fn reopen(&mut self, handle: u16) -> Result<(), Error> {
        let receive = self.receives.iter().find(|receive| receive.handle == handle);
        let receive = receive.ok_or_else(|| not_open(handle))?;
        let (buffer, missing) = (receive.buffer, receive.missing);
        self.span(buffer)?;
        if missing > 0 {
            return Err(Error::Invalid(format!(
                "{missing} blocks of the start before have not come"
            )));
        }
        let sends = self.find(buffer).map_or(0, |buffer| {
            buffer.sends.iter().map(|(_, count)| u64::from(*count)).sum::<u64>()
        });
        if sends > 0 {
            return Err(Error::Invalid(format!(
                "{sends} sends of the start before have not completed"
            )));
        }
        let Some(receive) = self.receive(handle) else { return Err(not_open(handle)) };
        receive.arrived.fill(0);
        receive.missing = receive.layout.blocks();
        receive.start += 1;
        Ok(())
    }

    /// The number of the start that `peer` may be told of now.
    pub(super) fn start_to_tell(&self, handle: u16, peer: Rank) -> Result<u64, Error> {
        let receive = self.receives.iter().find(|receive| receive.handle == handle);
        let receive = receive.ok_or_else(|| not_open(handle))?;
        self.span(receive.buffer)?;
        let start = receive.start;
        match receive.granted.iter().find(|(to, _)| *to == peer) {
            Some((_, told)) if *told < start && receive.missing > 0 => Ok(start),
            Some(_) => Err(Error::Invalid(format!(
                "start {start} of handle {handle} is not to be told to rank {peer} (again)"
            ))),
            None => Err(Error::Invalid(format!("rank {peer} has no grant of handle {handle}"))),
        }
    }

    /// Notes a block; false if it is not the first time or there is no such block.
    pub(super) fn block_arrived(&mut self, handle: u16, block: u32) -> bool {
        let Some(receive) = self.receive(handle) else { return false };
        let Some(word) = receive.arrived.get_mut(block as usize / 64) else { return false };
        let bit = 1 << (block % 64);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        receive.missing = receive.missing.saturating_sub(1);
        true
    }

    /// Whether `range` of the buffer holds what it should: no open receive may still write there.
    pub(super) fn holds(&self, id: BufferId, range: &Range<u64>) -> bool {
        self.receives.iter().filter(|receive| receive.buffer == id && receive.missing > 0).all(
            |receive| {
                // What of the range lies in the receive.
                let end = range.end.saturating_sub(receive.offset).min(receive.layout.bytes());
                let within = range.start.saturating_sub(receive.offset)..end;
                receive.layout.all_in(&within, |block| {
                    let word = receive.arrived.get(block as usize / 64);
                    word.is_some_and(|word| word & (1 << (block % 64)) != 0)
                })
            },
        )
    }

    pub(super) fn send_posted(&mut self, id: BufferId, peer: Rank) {
        let Some(buffer) = self.find(id) else { return };
        match buffer.sends.iter_mut().find(|(to, _)| *to == peer) {
            Some((_, count)) => *count += 1,
            None => buffer.sends.push((peer, 1)),
        }
    }

    /// Notes a completed send; false if the buffer's scope has ended since.
    pub(super) fn send_done(&mut self, id: BufferId, peer: Rank) -> bool {
        let Some(buffer) = self.find(id) else { return false };
        match buffer.sends.iter_mut().find(|(to, count)| *to == peer && *count > 0) {
            Some((_, count)) => {
                *count -= 1;
                true
            }
            None => false,
        }
    }

    /// Peers whose links may still touch the buffer.
    pub(super) fn peers_in_doubt(&self, id: BufferId) -> Vec<Rank> {
        let mut peers = self.peers_sent_to(id);
        let receives = self.receives.iter().filter(|receive| receive.buffer == id);
        peers.extend(receives.flat_map(OpenReceive::in_doubt));
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    pub(super) fn handles_of(&self, id: BufferId) -> Vec<u16> {
        let of_buffer = self.receives.iter().filter(|receive| receive.buffer == id);
        of_buffer.map(|receive| receive.handle).collect()
    }

    pub(super) fn incomplete_receives_of(&self, id: BufferId) -> Vec<u16> {
        let incomplete = |receive: &&OpenReceive| receive.buffer == id && receive.missing > 0;
        self.receives.iter().filter(incomplete).map(|receive| receive.handle).collect()
    }

    /// Nothing outstanding on this peer's link will complete.
    pub(super) fn link_gone(&mut self, peer: Rank) {
        for (_, entry) in &mut self.entries {
            if let Some(buffer) = entry {
                buffer.sends.retain(|(to, _)| *to != peer);
            }
        }
        for receive in &mut self.receives {
            receive.granted.retain(|(from, _)| *from != peer);
        }
    }
}

pub(super) fn not_open(handle: u16) -> Error {
    Error::Invalid(format!("no receive is open under handle {handle}"))
}

fn closed() -> Error {
    Error::Invalid("this buffer is not open (any more)".into())
}

fn withdrawn() -> Error {
    Error::Invalid("this buffer was withdrawn".into())
}

fn held() -> Error {
    Error::Invalid("the application holds this buffer".into())
}
