//! A strict in-process stand-in for verbs devices: as unforgiving as an adapter, and seeded.
//!
//! One [`FakeNetwork`] is shared by several hosts, which are usually the ranks of a test, each in a
//! thread of its own. What it enforces, where Soft-RoCE is lenient or an adapter merely hangs:
//!
//! - A send-queue slot is freed only when its completion was polled, an unsignaled one when a later
//!   signaled one of the same queue pair was; a receive slot likewise. A post to a full queue is
//!   partial, and now and then one is although there is room.
//! - A completion queue that overruns is broken for good.
//! - A write with immediate that finds no receive fails at once instead of retrying.
//! - Every byte read or written lies in registered memory of the right device, key and access.
//! - Queue pairs walk RESET, INIT, RTR, RTS in this order with attributes that fit the port, and
//!   both ends name each other, with the same PSNs, path MTU and partition.
//! - Bytes are copied when a write is delivered, never when it is posted (inline ones are captured
//!   at the post); long writes land in pieces; queue pairs have no order among each other.
//! - After an error, or a move to ERR, everything outstanding flushes in order, unsignaled work
//!   too, and nothing lands any more. Whether the last writes before it landed stays open.
//!
//! Each breach is a completion or post error as on an adapter, and is recorded besides: a test
//! asserts at its end that [`FakeNetwork::violations`] is empty. Breaks that a test asked for by
//! fault injection are not recorded.
//!
//! Deliveries are made a few steps at a time inside the calls of every thread, and by a thread of
//! the network's own while any completion queue is armed, so a sleeper is always woken. A test with
//! one thread that never arms is reproducible by its seed alone.

mod delivery;
mod provider;
mod state;
#[cfg(test)]
mod tests;
mod topology;
mod transition;

use std::ops::Range;
use std::sync::Arc;

use super::driver::{
    Driver, InitAttributes, PortState, ReadyToReceiveAttributes, ReadyToSendAttributes,
};
use provider::{FakeDriver, Network};
use state::PairPhase;
pub use topology::{FAKE_LIMITS, FakeDevice, FakePort, FakeSettings};

/// Hosts with devices on one network; a cheap handle.
#[derive(Clone)]
pub struct FakeNetwork {
    network: Arc<Network>,
}

/// A rule that was broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Host.
    pub host: usize,
    /// Device name.
    pub device: String,
    /// Queue pair number; 0 where the breach is not one queue pair's.
    pub queue_pair: u32,
    /// Which rule.
    pub rule: Rule,
}

/// The rules that can be broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// A write with immediate found no receive at the peer (RNR).
    ReceiverNotReady,
    /// A local range is not registered under its lkey with this device.
    LocalProtection {
        /// Address of the range.
        address: usize,
        /// Its length.
        bytes: u32,
        /// The lkey.
        lkey: u32,
    },
    /// A remote range is not registered for remote writes under its rkey with the peer's device.
    RemoteAccess {
        /// Address of the range.
        address: u64,
        /// Its length.
        bytes: u32,
        /// The rkey.
        rkey: u32,
    },
    /// More completions than the queue holds.
    CompletionQueueOverrun {
        /// What it holds.
        capacity: u32,
    },
    /// A write was sent before the peer's queue pair was ready to receive.
    PeerNotReady,
    /// The path or number names no queue pair, or one that names another one as its peer.
    Misaddressed,
    /// The two ends disagree.
    Disagreement {
        /// About what.
        what: &'static str,
        /// Sender's value.
        sender: u32,
        /// Receiver's value.
        receiver: u32,
    },
    /// Work was posted in a state that does not take it.
    PostedInWrongState {
        /// The state.
        state: &'static str,
    },
    /// Inline work longer than the queue pair takes.
    InlineTooLong {
        /// Bytes posted inline.
        bytes: u32,
        /// What the queue pair takes.
        limit: u32,
    },
    /// A message longer than the port takes.
    MessageTooLong {
        /// Its bytes.
        bytes: u32,
        /// What the port takes.
        limit: u32,
    },
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// Packets sent: one per path MTU, at least one per write.
    pub packets: u64,
    /// Bytes that landed at peers.
    pub bytes: u64,
    /// Writes that landed at peers whole.
    pub writes: u64,
    /// Those of them with immediate.
    pub immediates: u64,
    /// Receives used up by peers' writes.
    pub receives_used: u64,
    /// Bytes that peers' writes put into memory marked as a user's.
    pub bytes_into_user_memory: u64,
    /// Bytes that peers' writes put elsewhere.
    pub bytes_elsewhere: u64,
    /// Bytes sent (not inline) from memory marked as a user's.
    pub bytes_from_user_memory: u64,
    /// Chains that were cut short although there was room.
    pub injected_partial_posts: u64,
    /// Chains that met a queue which was really full: a link that counts its credits makes none.
    pub full_posts: u64,
}

/// A queue pair as it is, or was when it was destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairReport {
    /// Host.
    pub host: usize,
    /// Device name.
    pub device: String,
    /// Its number.
    pub number: u32,
    /// `RESET`, `INIT`, `RTR`, `RTS` or `ERR`.
    pub state: &'static str,
    /// Whether it was destroyed.
    pub destroyed: bool,
    /// How it was moved to INIT.
    pub init: Option<InitAttributes>,
    /// How it was moved to RTR.
    pub ready_to_receive: Option<ReadyToReceiveAttributes>,
    /// How it was moved to RTS.
    pub ready_to_send: Option<ReadyToSendAttributes>,
    /// Writes of it that landed whole.
    pub writes: u64,
    /// Bytes of it that landed.
    pub bytes: u64,
    /// The most send slots that were in use at once.
    pub most_outstanding: u64,
}

/// A write that landed whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LandedWrite {
    /// Sending host.
    pub from_host: usize,
    /// Number of the sending queue pair (of its device).
    pub queue_pair: u32,
    /// Receiving host.
    pub to_host: usize,
    /// Where it landed.
    pub remote: u64,
    /// How many bytes.
    pub bytes: u32,
    /// Immediate, in host order.
    pub immediate: Option<u32>,
    /// Whether the bytes went inline.
    pub inline: bool,
}

impl FakeNetwork {
    /// A network of these hosts, each with its devices.
    #[must_use]
    pub fn new(settings: FakeSettings, hosts: Vec<Vec<FakeDevice>>) -> Self {
        Self { network: Network::start(settings, hosts) }
    }

    /// `hosts` hosts with `devices` RoCE devices each ([`FakeDevice::roce`]).
    #[must_use]
    pub fn roce(hosts: usize, devices: usize, settings: FakeSettings) -> Self {
        let host = |host| (0..devices).map(|index| FakeDevice::roce(host, index)).collect();
        Self::new(settings, (0..hosts).map(host).collect())
    }

    /// `hosts` hosts with `devices` InfiniBand devices each ([`FakeDevice::infiniband`]).
    #[must_use]
    pub fn infiniband(hosts: usize, devices: usize, settings: FakeSettings) -> Self {
        let host = |host| (0..devices).map(|index| FakeDevice::infiniband(host, index)).collect();
        Self::new(settings, (0..hosts).map(host).collect())
    }

    /// What `host` sees as its verbs provider.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn driver(&self, host: usize) -> Arc<dyn Driver> {
        assert!(host < self.network.lock().hosts.len(), "the network has no host {host}");
        Arc::new(FakeDriver::new(Arc::clone(&self.network), host))
    }

    /// The rules broken so far, oldest first.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.network.lock().violations.clone()
    }

    /// Counters of a device.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn statistics(&self, host: usize, device: &str) -> DeviceStatistics {
        let state = self.network.lock();
        let id = state.device_id(host, device);
        state.device(id).statistics
    }

    /// Every queue pair of a host, in order of creation, destroyed ones too.
    #[must_use]
    pub fn queue_pairs(&self, host: usize) -> Vec<QueuePairReport> {
        let state = self.network.lock();
        let mut reports = state.destroyed.to_vec();
        reports.extend(state.pairs.iter().map(|(&id, pair)| (id, state.report(pair))));
        reports.sort_by_key(|&(id, _)| id);
        reports.into_iter().map(|(_, report)| report).filter(|r| r.host == host).collect()
    }

    /// Marks memory (of any host of this process) as a user's, for the statistics.
    pub fn mark_user_memory(&self, range: Range<usize>) {
        self.network.lock().user_memory.push(range);
    }

    /// Takes back [`FakeNetwork::mark_user_memory`] of exactly this range.
    pub fn unmark_user_memory(&self, range: &Range<usize>) {
        self.network.lock().user_memory.retain(|other| other != range);
    }

    /// Starts or stops keeping every write that lands (the newest 2^20 of them at most).
    pub fn record_writes(&self, on: bool) {
        self.network.lock().recording = on;
    }

    /// Takes the writes kept since the last call.
    #[must_use]
    pub fn take_writes(&self) -> Vec<LandedWrite> {
        std::mem::take(&mut self.network.lock().landed).into()
    }

    /// Holds back every write that `host` has posted or posts, until [`FakeNetwork::thaw`]: it is
    /// stopped, or its packets are late.
    pub fn freeze(&self, host: usize) {
        self.network.lock().hosts[host].frozen = true;
    }

    /// Lets the writes of `host` go on.
    pub fn thaw(&self, host: usize) {
        self.network.lock().thaw(host);
        self.network.wake();
    }

    /// Breaks a queue pair: its oldest unfinished write fails with RETRY_EXC, the rest flushes.
    ///
    /// # Panics
    /// If there is no such queue pair.
    pub fn break_queue_pair(&self, host: usize, device: &str, number: u32) {
        let mut state = self.network.lock();
        let id = state.pair_id(host, device, number);
        state.fail_pair(id, delivery::STATUS_RETRY_EXCEEDED, true);
        drop(state);
        self.network.wake();
    }

    /// Removes a device: every verb on it fails, its queue pairs flush, peers' writes time out.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn remove_device(&self, host: usize, device: &str) {
        let mut state = self.network.lock();
        let id = state.device_id(host, device);
        state.remove_device(id);
        drop(state);
        self.network.wake();
    }

    /// Sets the state of a port; over one that is not active, writes time out.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn set_port_state(&self, host: usize, device: &str, port: u8, port_state: PortState) {
        let mut state = self.network.lock();
        let id = state.device_id(host, device);
        let ports = &mut state.device_mut(id).spec.ports;
        ports[usize::from(port) - 1].state = port_state;
    }

    /// Delivers everything that is not frozen: afterwards all completions are in their queues.
    pub fn deliver_all(&self) {
        let mut state = self.network.lock();
        while state.step() {}
    }
}

impl PairPhase {
    const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Error => "ERR",
        }
    }
}
