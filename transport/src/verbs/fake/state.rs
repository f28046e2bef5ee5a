//! The state of a fake network, all behind one lock, and the accounting of queues.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;

use super::super::driver::{
    Access, Capacities, Completion, CompletionKind, DeviceInfo, GidEntry, InitAttributes, PortInfo,
    ReadyToReceiveAttributes, ReadyToSendAttributes, STATUS_FLUSHED, Write,
};
use super::{
    DeviceStatistics, FakeDevice, FakePort, FakeSettings, LandedWrite, QueuePairReport, Rule,
    Violation,
};

/// Writes kept at most by a recording.
const LANDED_MAX: usize = 1 << 20;

/// A device: host and index on it.
pub(super) type DeviceId = (usize, usize);

pub(super) struct State {
    pub(super) settings: FakeSettings,
    pub(super) rng: fastrand::Rng,
    pub(super) hosts: Vec<HostState>,
    pub(super) queues: BTreeMap<u64, QueueState>,
    pub(super) pairs: BTreeMap<u64, PairState>,
    /// Queue pairs by device and number.
    pub(super) numbers: BTreeMap<(DeviceId, u32), u64>,
    /// Regions by lkey.
    pub(super) regions: BTreeMap<u32, RegionState>,
    pub(super) destroyed: Vec<(u64, QueuePairReport)>,
    pub(super) violations: Vec<Violation>,
    pub(super) user_memory: Vec<Range<usize>>,
    pub(super) recording: bool,
    pub(super) landed: VecDeque<LandedWrite>,
    /// Queue pairs that may have something to deliver.
    pub(super) active: Vec<u64>,
    pub(super) next_id: u64,
    /// The network's own thread has to end.
    pub(super) stopping: bool,
}

pub(super) struct HostState {
    pub(super) devices: Vec<DeviceState>,
    pub(super) frozen: bool,
}

pub(super) struct DeviceState {
    pub(super) spec: FakeDevice,
    pub(super) removed: bool,
    pub(super) next_number: u32,
    pub(super) statistics: DeviceStatistics,
}

/// A registered range; lkey and rkey differ and are unique in the network, so that a mix-up of
/// keys or devices is always noticed.
pub(super) struct RegionState {
    pub(super) device: DeviceId,
    pub(super) address: usize,
    pub(super) bytes: usize,
    pub(super) access: Access,
    pub(super) rkey: u32,
}

pub(super) struct QueueState {
    pub(super) device: DeviceId,
    pub(super) capacity: u32,
    pub(super) entries: VecDeque<QueueEntry>,
    pub(super) armed: bool,
    pub(super) overrun: bool,
    pub(super) event: Arc<EventFd>,
}

/// A completion, and what polling it frees.
pub(super) struct QueueEntry {
    pub(super) completion: Completion,
    pub(super) pair: u64,
    pub(super) frees: Frees,
}

#[derive(Clone, Copy)]
pub(super) enum Frees {
    /// All send slots up to this sequence number.
    SendsThrough(u64),
    /// One receive slot.
    Receive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairPhase {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

pub(super) struct PairState {
    pub(super) device: DeviceId,
    pub(super) number: u32,
    pub(super) queue: u64,
    pub(super) capacities: Capacities,
    pub(super) phase: PairPhase,
    pub(super) init: Option<InitAttributes>,
    pub(super) ready_to_receive: Option<ReadyToReceiveAttributes>,
    pub(super) ready_to_send: Option<ReadyToSendAttributes>,
    /// Writes posted and not yet landed.
    pub(super) pending: VecDeque<PendingWrite>,
    /// Writes landed or failed whose completion has not surfaced yet.
    pub(super) sends_done: VecDeque<SendDone>,
    /// Ids of receives that wait for a write.
    pub(super) receives: VecDeque<u64>,
    /// Receives used up or flushed whose completion has not surfaced yet.
    pub(super) receives_done: VecDeque<Completion>,
    pub(super) sends_posted: u64,
    pub(super) sends_freed: u64,
    /// Sequence number after the newest signaled write.
    pub(super) signaled_through: u64,
    pub(super) receives_posted: u64,
    pub(super) receives_freed: u64,
    pub(super) writes: u64,
    pub(super) bytes: u64,
    pub(super) most_outstanding: u64,
    pub(super) is_active: bool,
}

pub(super) struct PendingWrite {
    pub(super) write: Write,
    /// Bytes captured at the post.
    pub(super) inline: Option<Box<[u8]>>,
    pub(super) sequence: u64,
    /// Bytes that have landed so far.
    pub(super) landed: u32,
}

pub(super) struct SendDone {
    pub(super) work_id: u64,
    pub(super) sequence: u64,
    /// `None`: an unsignaled success, which makes no completion.
    pub(super) outcome: Option<CompletionKind>,
}

/// Why a post was refused, in whole or in part.
pub(super) struct PostRefusal {
    pub(super) posted: usize,
    pub(super) queue_full: bool,
    pub(super) errno: i32,
}

/// The completion kind of a status.
pub(super) const fn failed(status: u32) -> CompletionKind {
    CompletionKind::Failed { status, vendor: 0 }
}

impl State {
    pub(super) fn new(settings: FakeSettings, hosts: Vec<Vec<FakeDevice>>) -> Self {
        let device = |spec| DeviceState {
            spec,
            removed: false,
            // The same on every device: routing by number alone over two of them shows.
            next_number: 0x11,
            statistics: DeviceStatistics::default(),
        };
        let host = |devices: Vec<FakeDevice>| HostState {
            devices: devices.into_iter().map(device).collect(),
            frozen: false,
        };
        Self {
            settings,
            rng: fastrand::Rng::with_seed(settings.seed),
            hosts: hosts.into_iter().map(host).collect(),
            queues: BTreeMap::new(),
            pairs: BTreeMap::new(),
            numbers: BTreeMap::new(),
            regions: BTreeMap::new(),
            destroyed: Vec::new(),
            violations: Vec::new(),
            user_memory: Vec::new(),
            recording: false,
            landed: VecDeque::new(),
            active: Vec::new(),
            next_id: 1,
            stopping: false,
        }
    }

    pub(super) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The device of this name; panics if there is none (test API).
    pub(super) fn device_id(&self, host: usize, name: &str) -> DeviceId {
        let devices = &self.hosts[host].devices;
        let index = devices.iter().position(|device| device.spec.name == name);
        (host, index.unwrap_or_else(|| panic!("host {host} has no device {name}")))
    }

    /// The queue pair of this number; panics if there is none (test API).
    pub(super) fn pair_id(&self, host: usize, device: &str, number: u32) -> u64 {
        let device = self.device_id(host, device);
        let id = self.numbers.get(&(device, number));
        *id.unwrap_or_else(|| panic!("device {device:?} has no queue pair {number:#x}"))
    }

    pub(super) fn device(&self, (host, index): DeviceId) -> &DeviceState {
        &self.hosts[host].devices[index]
    }

    pub(super) fn device_mut(&mut self, (host, index): DeviceId) -> &mut DeviceState {
        &mut self.hosts[host].devices[index]
    }

    pub(super) fn pair(&self, id: u64) -> &PairState {
        &self.pairs[&id]
    }

    pub(super) fn pair_mut(&mut self, id: u64) -> &mut PairState {
        self.pairs.get_mut(&id).expect("the queue pair exists while its owner or a step uses it")
    }

    pub(super) fn device_info(&self, id: DeviceId) -> DeviceInfo {
        let spec = &self.device(id).spec;
        let ports = spec.ports.iter().zip(1..).map(|(port, number)| port.info(number)).collect();
        let guid = 0x0002_c903_0000_0000 | (id.0 as u64) << 8 | id.1 as u64;
        DeviceInfo { name: spec.name.clone(), guid, limits: spec.limits, ports }
    }

    pub(super) fn report(&self, pair: &PairState) -> QueuePairReport {
        QueuePairReport {
            host: pair.device.0,
            device: self.device(pair.device).spec.name.clone(),
            number: pair.number,
            state: pair.phase.name(),
            destroyed: false,
            init: pair.init,
            ready_to_receive: pair.ready_to_receive,
            ready_to_send: pair.ready_to_send,
            writes: pair.writes,
            bytes: pair.bytes,
            most_outstanding: pair.most_outstanding,
        }
    }

    pub(super) fn violate(&mut self, device: DeviceId, queue_pair: u32, rule: Rule) {
        let name = self.device(device).spec.name.clone();
        tracing::debug!(host = device.0, device = name, queue_pair, ?rule, "rule broken");
        self.violations.push(Violation { host: device.0, device: name, queue_pair, rule });
    }

    pub(super) fn keep_landed(&mut self, write: LandedWrite) {
        if self.recording {
            if self.landed.len() == LANDED_MAX {
                self.landed.pop_front();
            }
            self.landed.push_back(write);
        }
    }

    // ---- posting ----

    /// Takes a chain of writes; inline bytes were captured by the caller.
    pub(super) fn post_writes(
        &mut self,
        id: u64,
        chain: Vec<(Write, Option<Box<[u8]>>)>,
    ) -> Result<(), PostRefusal> {
        self.refuse_early(id, false)?;
        let (device, number) = (self.pair(id).device, self.pair(id).number);
        let wanted = chain.len();
        let cut = self.injected_cut(id, &chain);
        for (posted, (write, inline)) in chain.into_iter().enumerate() {
            let pair = self.pair(id);
            let full = pair.sends_posted - pair.sends_freed >= u64::from(pair.capacities.send);
            let limit = pair.capacities.inline_bytes;
            if full || posted == cut.unwrap_or(wanted) {
                let statistics = &mut self.device_mut(device).statistics;
                statistics.full_posts += u64::from(full);
                statistics.injected_partial_posts += u64::from(!full);
                return Err(PostRefusal { posted, queue_full: true, errno: libc::ENOMEM });
            }
            if write.inline && write.bytes > limit {
                self.violate(device, number, Rule::InlineTooLong { bytes: write.bytes, limit });
                return Err(PostRefusal { posted, queue_full: false, errno: libc::EINVAL });
            }
            self.enqueue(id, write, inline);
        }
        self.activate(id);
        Ok(())
    }

    /// Errors of a post that no entry of the chain can change.
    fn refuse_early(&mut self, id: u64, is_receive: bool) -> Result<(), PostRefusal> {
        let pair = self.pair(id);
        let (device, number, phase) = (pair.device, pair.number, pair.phase);
        if self.device(device).removed {
            return Err(PostRefusal { posted: 0, queue_full: false, errno: libc::EIO });
        }
        let takes = match phase {
            PairPhase::ReadyToSend | PairPhase::Error => true,
            PairPhase::Init | PairPhase::ReadyToReceive => is_receive,
            PairPhase::Reset => false,
        };
        if takes {
            return Ok(());
        }
        self.violate(device, number, Rule::PostedInWrongState { state: phase.name() });
        Err(PostRefusal { posted: 0, queue_full: false, errno: libc::EINVAL })
    }

    /// Where to cut the chain short, if at all: only where a signaled write is outstanding then,
    /// since the poster may wait for a completion before it tries again.
    fn injected_cut(&mut self, id: u64, chain: &[(Write, Option<Box<[u8]>>)]) -> Option<usize> {
        if self.rng.u32(0..100) >= self.settings.partial_post_percent || chain.is_empty() {
            return None;
        }
        let cut = self.rng.usize(0..chain.len());
        let pair = self.pair(id);
        let waits = pair.signaled_through > pair.sends_freed
            || chain[..cut].iter().any(|(write, _)| write.signaled);
        (waits && pair.phase == PairPhase::ReadyToSend).then_some(cut)
    }

    fn enqueue(&mut self, id: u64, write: Write, inline: Option<Box<[u8]>>) {
        let pair = self.pair_mut(id);
        let sequence = pair.sends_posted;
        pair.sends_posted += 1;
        pair.most_outstanding = pair.most_outstanding.max(pair.sends_posted - pair.sends_freed);
        if pair.phase == PairPhase::Error {
            let outcome = Some(failed(STATUS_FLUSHED));
            pair.sends_done.push_back(SendDone { work_id: write.work_id, sequence, outcome });
        } else {
            if write.signaled {
                pair.signaled_through = sequence + 1;
            }
            pair.pending.push_back(PendingWrite { write, inline, sequence, landed: 0 });
        }
        self.activate(id);
    }

    pub(super) fn post_receives(
        &mut self,
        id: u64,
        count: u32,
        work_id: u64,
    ) -> Result<(), PostRefusal> {
        self.refuse_early(id, true)?;
        let pair = self.pair_mut(id);
        let in_use = pair.receives_posted - pair.receives_freed;
        let room = u64::from(pair.capacities.receive).saturating_sub(in_use);
        let taken = u64::from(count).min(room);
        pair.receives_posted += taken;
        for _ in 0..taken {
            if pair.phase == PairPhase::Error {
                let (queue_pair, kind) = (pair.number, failed(STATUS_FLUSHED));
                pair.receives_done.push_back(Completion { work_id, queue_pair, kind });
            } else {
                pair.receives.push_back(work_id);
            }
        }
        let device = pair.device;
        self.activate(id);
        if taken < u64::from(count) {
            self.device_mut(device).statistics.full_posts += 1;
            let posted = taken as usize;
            return Err(PostRefusal { posted, queue_full: true, errno: libc::ENOMEM });
        }
        Ok(())
    }

    // ---- completion queues ----

    /// Takes completions, fewer than there are now and then; `None` if the queue was overrun.
    pub(super) fn poll(&mut self, queue: u64, into: &mut [Completion]) -> Option<usize> {
        let entry_count = {
            let queue = &self.queues[&queue];
            if queue.overrun {
                return None;
            }
            queue.entries.len()
        };
        let available = entry_count.min(into.len());
        let taken = if available > 1 { self.rng.usize(1..=available) } else { available };
        for blank in &mut into[..taken] {
            let entries = self.queues.get_mut(&queue).map(|queue| &mut queue.entries);
            let Some(entry) = entries.and_then(VecDeque::pop_front) else { break };
            *blank = entry.completion;
            // The queue pair may be gone: its completions stay, as with Soft-RoCE.
            if let Some(pair) = self.pairs.get_mut(&entry.pair) {
                match entry.frees {
                    Frees::SendsThrough(sequence) => pair.sends_freed = sequence + 1,
                    Frees::Receive => pair.receives_freed += 1,
                }
            }
        }
        Some(taken)
    }

    /// Asks for an event at the next completion that arrives; `None` if the queue was overrun.
    pub(super) fn arm(&mut self, queue: u64) -> Option<()> {
        let spurious = self.rng.u32(0..100) < self.settings.spurious_event_percent;
        let queue = self.queues.get_mut(&queue)?;
        if queue.overrun {
            return None;
        }
        queue.armed = true;
        if spurious {
            queue.fire();
        }
        Some(())
    }

    pub(super) fn push_completion(&mut self, queue_id: u64, entry: QueueEntry) {
        let Some(queue) = self.queues.get_mut(&queue_id) else { return };
        if queue.entries.len() >= queue.capacity as usize {
            let first = !std::mem::replace(&mut queue.overrun, true);
            let (device, capacity) = (queue.device, queue.capacity);
            queue.fire();
            if first {
                let number = entry.completion.queue_pair;
                self.violate(device, number, Rule::CompletionQueueOverrun { capacity });
            }
            return;
        }
        queue.entries.push_back(entry);
        if queue.armed {
            queue.fire();
        }
    }

    /// Whether somebody sleeps, or is about to, while there is something to deliver.
    pub(super) fn needs_thread(&self) -> bool {
        !self.active.is_empty() && self.queues.values().any(|queue| queue.armed)
    }
}

impl QueueState {
    /// Signals the completion channel, once per arming.
    fn fire(&mut self) {
        self.armed = false;
        // Only an event counter near 2^64 refuses, and then it is readable anyway.
        let _ = self.event.write(1);
    }
}

impl FakePort {
    fn info(&self, number: u8) -> PortInfo {
        PortInfo {
            number,
            state: self.state,
            link_layer: self.link_layer,
            lid: self.lid,
            active_mtu_bytes: self.active_mtu_bytes,
            max_message_bytes: self.max_message_bytes,
            pkey_count: self.pkeys.len() as u16,
            rate_mbps: 10_000,
            gids: self.gids.clone(),
        }
    }

    pub(super) fn gid(&self, index: u8) -> Option<&GidEntry> {
        self.gids.iter().find(|entry| entry.index == u32::from(index))
    }
}

impl RegionState {
    pub(super) fn holds(&self, address: usize, bytes: usize) -> bool {
        let end = address.checked_add(bytes);
        address >= self.address && end.is_some_and(|end| end <= self.address + self.bytes)
    }
}
