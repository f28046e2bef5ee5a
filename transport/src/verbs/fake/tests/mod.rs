//! Each rule of the fake has a test that breaks it and sees the error.

mod faults;
mod memory;
mod path;
mod queues;

use std::sync::Arc;

use super::super::driver::{
    Access, Capacities, Completion, CompletionKind, CompletionQueue, Device, InitAttributes,
    MemoryRegion, PathAddress, PostError, RawQueuePair, ReadyToReceiveAttributes,
    ReadyToSendAttributes, Write,
};
use super::{FakeNetwork, FakeSettings, Rule};

/// Settings without chance in posts and events.
fn plain(seed: u64) -> FakeSettings {
    FakeSettings { seed, partial_post_percent: 0, spurious_event_percent: 0, ..Default::default() }
}

const CAPACITIES: Capacities = Capacities { send: 4, receive: 4, inline_bytes: 64 };

/// One end: a queue pair with its queue and a registered buffer of 8 KiB.
struct End {
    pair: Box<dyn RawQueuePair>,
    queue: Arc<dyn CompletionQueue>,
    device: Arc<dyn Device>,
    region: Box<dyn MemoryRegion>,
    memory: Vec<u8>,
}

const BUFFER_BYTES: usize = 8192;

impl End {
    fn new(network: &FakeNetwork, host: usize) -> Self {
        Self::with(network, host, CAPACITIES, 64)
    }

    fn with(network: &FakeNetwork, host: usize, capacities: Capacities, entries: u32) -> Self {
        let driver = network.driver(host);
        let name = driver.devices().unwrap()[0].name.clone();
        let device = driver.open(&name).unwrap();
        let queue = device.completion_queue(entries).unwrap();
        let pair = device.queue_pair(&queue, capacities).unwrap();
        let mut memory = vec![0; BUFFER_BYTES];
        let region = register(&device, &mut memory[..], Access::RemoteWrite);
        Self { pair, queue, device, region, memory }
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// The first `bytes` bytes of this end's buffer into the peer's, signaled.
    fn write_to(&self, peer: &Self, bytes: u32) -> Write {
        Write {
            work_id: 1,
            local: self.address() as usize,
            bytes,
            lkey: self.region.lkey(),
            remote: peer.address(),
            rkey: peer.region.rkey(),
            immediate: None,
            signaled: true,
            inline: false,
        }
    }

    fn post(&mut self, writes: &[Write]) -> Result<(), PostError> {
        // SAFETY: the tests keep buffers and regions until the network is dropped, or drop regions
        // on purpose, which the fake notices before it touches memory.
        unsafe { self.pair.post_writes(writes) }
    }

    /// Everything that the queue holds once the network has delivered all it can.
    fn completions(&self, network: &FakeNetwork) -> Vec<Completion> {
        network.deliver_all();
        let mut all = Vec::new();
        let mut some = [Completion::BLANK; 3];
        loop {
            let count = self.queue.poll(&mut some).unwrap();
            if count == 0 {
                return all;
            }
            all.extend_from_slice(&some[..count]);
        }
    }

    /// The (id, status) of each completion; 0 is success.
    fn statuses(&self, network: &FakeNetwork) -> Vec<(u64, u32)> {
        let status = |completion: Completion| match completion.kind {
            CompletionKind::Failed { status, .. } => (completion.work_id, status),
            _ => (completion.work_id, 0),
        };
        self.completions(network).into_iter().map(status).collect()
    }
}

fn register(device: &Arc<dyn Device>, memory: &mut [u8], access: Access) -> Box<dyn MemoryRegion> {
    // SAFETY: the tests keep the memory longer than the region and read it only between deliveries.
    unsafe { device.register(memory.as_mut_ptr(), memory.len(), access) }.unwrap()
}

/// Attributes to move a queue pair of `host` towards the one numbered `number` of `peer`.
fn towards(
    network: &FakeNetwork,
    host: usize,
    peer: usize,
    number: u32,
) -> (InitAttributes, ReadyToReceiveAttributes, ReadyToSendAttributes) {
    let port = |host: usize| network.driver(host).devices().unwrap()[0].ports[0].clone();
    let (own, other) = (port(host), port(peer));
    let global = other.gids.last().filter(|_| other.lid == 0).map(|entry| entry.gid);
    let address = PathAddress {
        dlid: other.lid,
        global: global.map(|gid| (own.gids.last().unwrap().index as u8, gid)),
        service_level: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let receive = ReadyToReceiveAttributes {
        port: 1,
        path_mtu_bytes: own.active_mtu_bytes,
        destination_qpn: number,
        receive_psn: 100 + peer as u32,
        min_rnr_timer: 12,
        address,
    };
    let send = ReadyToSendAttributes {
        send_psn: 100 + host as u32,
        timeout: 18,
        retry_count: 6,
        rnr_retry: 0,
    };
    (InitAttributes { port: 1, pkey_index: 0 }, receive, send)
}

fn bring_up(network: &FakeNetwork, end: &mut End, host: usize, peer: usize, number: u32) {
    let (init, receive, send) = towards(network, host, peer, number);
    end.pair.to_init(&init).unwrap();
    end.pair.to_ready_to_receive(&receive).unwrap();
    end.pair.to_ready_to_send(&send).unwrap();
}

/// Ends at hosts 0 and 1, connected.
fn connected(network: &FakeNetwork) -> (End, End) {
    connected_with(network, CAPACITIES, 64)
}

fn connected_with(network: &FakeNetwork, capacities: Capacities, entries: u32) -> (End, End) {
    let mut a = End::with(network, 0, capacities, entries);
    let mut b = End::with(network, 1, capacities, entries);
    let (to_a, to_b) = (a.pair.number(), b.pair.number());
    bring_up(network, &mut a, 0, 1, to_b);
    bring_up(network, &mut b, 1, 0, to_a);
    (a, b)
}

fn rules(network: &FakeNetwork) -> Vec<Rule> {
    network.violations().into_iter().map(|violation| violation.rule).collect()
}
