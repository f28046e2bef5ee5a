//! Links over the strict fake: several ranks, driven step by step from one thread, so that a run is
//! reproducible by its seed and a livelock is found by a bound on steps.

mod ends;
mod flow;
mod mistakes;
mod setup;
mod transfer;

use std::sync::Arc;

use super::driver::Access;
use super::fabric::{self, LinkSettings, RailChoice, Registration, VerbsConnector, VerbsFabric};
use super::fake::{FakeNetwork, FakeSettings};
use crate::layout::Layout;
use crate::link::{
    BlockSend, Connector, Event, Events, Fabric, PeerInfo, Posting, ReceiveTable, Slot, Span,
};
use crate::wire::{
    Grant, MESSAGE_PAYLOAD_MAX, MessageHeader, MessageKind, Operation, RAILS_MAX, Rank, Signature,
};

/// Steps after which a run counts as stalled: far more than any run here takes.
const STEPS_MAX: usize = 200_000;

struct Node {
    fabric: VerbsFabric,
    connector: Arc<VerbsConnector>,
    receives: ReceiveTable,
    events: Events,
    /// Whether it polls at all.
    polls: bool,
}

struct World {
    // Dropped before the network, as in life.
    nodes: Vec<Node>,
    network: FakeNetwork,
    rng: fastrand::Rng,
    /// How often, in percent, a rank misses its turn.
    lazy_percent: u32,
}

/// What a test world is made of.
#[derive(Clone)]
struct Plan {
    ranks: usize,
    rails: usize,
    infiniband: bool,
    fake: FakeSettings,
    settings: LinkSettings,
    events: usize,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let settings = LinkSettings { seed: Some(seed), links_max: 8, ..LinkSettings::default() };
        let fake = FakeSettings { seed, ..FakeSettings::default() };
        Self { ranks: 2, rails: 1, infiniband: false, fake, settings, events: 64 }
    }

    fn lanes(mut self, lanes: u32) -> Self {
        self.settings.lanes = lanes;
        self
    }

    fn depths(mut self, send: u32, receive: u32, signal_every: u32) -> Self {
        self.settings.send_depth = send;
        self.settings.receive_depth = receive;
        self.settings.signal_every = signal_every;
        self
    }

    fn choices(&self) -> Vec<RailChoice> {
        let choice = |index| {
            if self.infiniband {
                RailChoice { device: format!("ib{index}"), port: 1, gid_index: None }
            } else {
                RailChoice { device: format!("fake{index}"), port: 1, gid_index: Some(5) }
            }
        };
        (0..self.rails).map(choice).collect()
    }

    fn network(&self) -> FakeNetwork {
        if self.infiniband {
            FakeNetwork::infiniband(self.ranks, self.rails, self.fake)
        } else {
            FakeNetwork::roce(self.ranks, self.rails, self.fake)
        }
    }

    fn world(&self) -> World {
        println!("seed {}", self.fake.seed);
        let network = self.network();
        let node = |rank: usize| {
            let driver = network.driver(rank);
            let settings = self.settings.clone();
            let (fabric, connector) =
                fabric::open(&*driver, &self.choices(), rank as Rank, settings).unwrap();
            let events = Events::with_capacity(self.events);
            Node { fabric, connector, receives: ReceiveTable::default(), events, polls: true }
        };
        let nodes = (0..self.ranks).map(node).collect();
        World { nodes, network, rng: fastrand::Rng::with_seed(self.fake.seed), lazy_percent: 0 }
    }

    /// With a link between every two ranks.
    fn connected(&self) -> World {
        let mut world = self.world();
        for low in 0..self.ranks {
            for high in low + 1..self.ranks {
                world.connect(low, high);
            }
        }
        world
    }
}

fn info(rank: usize) -> PeerInfo {
    PeerInfo {
        rank: rank as Rank,
        addresses: Vec::new(),
        host: format!("host{rank}"),
        pid: 1,
        boot_id: String::new(),
        pid_namespace: 0,
        uid: 0,
    }
}

fn signature() -> Signature {
    Signature {
        communicator: 0,
        number: 7,
        operation: Operation::Broadcast.code(),
        algorithm: 1,
        element: 0,
        radix: 0,
        root: 0,
        bytes: 8,
        block_bytes: 8,
    }
}

/// Memory that is registered with all rails of a rank and marked as a user's.
struct Buffer {
    // Dropped first: the rails forget the memory before it is freed.
    registration: Option<Registration>,
    bytes: Vec<u8>,
    network: FakeNetwork,
}

impl Buffer {
    fn new(world: &World, rank: usize, mut bytes: Vec<u8>, access: Access) -> Self {
        let address = bytes.as_mut_ptr().expose_provenance();
        world.network.mark_user_memory(address..address + bytes.len());
        let fabric = &world.nodes[rank].fabric;
        // SAFETY: the vector's memory stays where it is until the buffer is dropped, which drops
        // the registration first.
        let registration = unsafe { fabric.register(address, bytes.len(), access) }.unwrap();
        Self { registration: Some(registration), bytes, network: world.network.clone() }
    }

    fn address(&self) -> usize {
        self.bytes.as_ptr().expose_provenance()
    }

    fn span(&self, writable: bool) -> Span {
        let keys = self.registration.as_ref().map_or(Vec::new(), |r| r.keys().to_vec());
        Span { address: self.address(), bytes: self.bytes.len() as u64, writable, keys }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.registration = None;
        let range = self.address()..self.address() + self.bytes.len();
        self.network.unmark_user_memory(&range);
    }
}

/// One message of blocks from a rank to another.
struct Flow {
    from: usize,
    to: usize,
    block_bytes: u64,
    source: Buffer,
    span: Span,
    target: Buffer,
    grant: Grant,
    /// Blocks to send, the next one last.
    unsent: Vec<u32>,
    sent: Vec<bool>,
    arrived: Vec<bool>,
}

impl Flow {
    fn new(world: &mut World, from: usize, to: usize, bytes: usize, block_bytes: u64) -> Self {
        let mut content = vec![0; bytes];
        world.rng.fill(&mut content);
        let source = Buffer::new(world, from, content, Access::LocalRead);
        let target = Buffer::new(world, to, vec![0; bytes], Access::RemoteWrite);
        let node = &mut world.nodes[to];
        let (handle, epoch) = node
            .receives
            .open(target.address(), Layout::new(1, bytes as u64, block_bytes).unwrap())
            .unwrap();
        let mut rkeys = [0; RAILS_MAX];
        let span = target.span(true);
        for (rkey, keys) in rkeys.iter_mut().zip(&span.keys) {
            *rkey = keys.1;
        }
        let grant = Grant {
            rkeys,
            rails: span.keys.len() as u16,
            ..Grant::of_memory(handle, epoch, target.address(), bytes as u64)
        };
        let blocks = (bytes as u64).div_ceil(block_bytes) as usize;
        let mut unsent: Vec<u32> = (0..blocks as u32).collect();
        world.rng.shuffle(&mut unsent);
        let span = source.span(false);
        let (sent, arrived) = (vec![false; blocks], vec![false; blocks]);
        Self { from, to, block_bytes, source, span, target, grant, unsent, sent, arrived }
    }

    fn is_done(&self) -> bool {
        self.unsent.is_empty() && self.sent.iter().chain(&self.arrived).all(|done| *done)
    }

    /// Sends blocks until the link is full.
    fn send(&mut self, index: usize, fabric: &mut VerbsFabric) -> bool {
        let mut moved = false;
        while let Some(&block) = self.unsent.last() {
            let start = u64::from(block) * self.block_bytes;
            let end = (start + self.block_bytes).min(self.span.bytes);
            let send = BlockSend {
                peer: self.to as Rank,
                grant: &self.grant,
                span: &self.span,
                range: start..end,
                offset: start,
                block,
                token: (index as u64) << 32 | u64::from(block),
            };
            if fabric.send_block(&send).unwrap() == Posting::Full {
                break;
            }
            self.unsent.pop();
            moved = true;
        }
        moved
    }

    /// Asserts that the receiver has what was sent, and closes the receive.
    fn finish(self, world: &mut World) {
        assert!(self.is_done());
        assert!(self.source.bytes == self.target.bytes, "the bytes differ");
        world.nodes[self.to].receives.close(self.grant.handle);
    }
}

/// A series of messages from a rank to another.
struct Chat {
    from: usize,
    to: usize,
    count: u32,
    sent: u32,
    received: u32,
    /// Slots that are kept for a while.
    held: Vec<Slot>,
    /// The longest payload.
    payload_max: usize,
}

impl Chat {
    fn new(from: usize, to: usize, count: u32) -> Self {
        let payload_max = MESSAGE_PAYLOAD_MAX;
        Self { from, to, count, sent: 0, received: 0, held: Vec::new(), payload_max }
    }

    fn payload(&self, number: u32) -> Vec<u8> {
        // Every fourth one is short enough to go inline.
        let span = if number.is_multiple_of(4) { 17 } else { self.payload_max + 1 };
        let length = (number as usize * 977) % span;
        (0..length).map(|i| (i as u32 ^ number.wrapping_mul(31) ^ self.from as u32) as u8).collect()
    }

    fn is_done(&self) -> bool {
        self.sent == self.count && self.received == self.count && self.held.is_empty()
    }

    fn send(&mut self, fabric: &mut VerbsFabric) -> bool {
        let before = self.sent;
        while self.sent < self.count {
            let payload = self.payload(self.sent);
            let header =
                MessageHeader::new(MessageKind::Eager, &signature(), self.sent, payload.len());
            if fabric.send_message(self.to as Rank, &header, &payload).unwrap() == Posting::Full {
                break;
            }
            self.sent += 1;
        }
        self.sent > before
    }

    fn receive(&mut self, slot: Slot, fabric: &VerbsFabric) {
        let (header, payload) = fabric.message(slot).unwrap();
        assert_eq!(header.block(), self.received, "messages come in order");
        assert_eq!(payload, self.payload(self.received));
        self.received += 1;
        self.held.push(slot);
    }

    /// Releases some of the messages, in any order.
    fn release(&mut self, fabric: &mut VerbsFabric, rng: &mut fastrand::Rng) {
        for _ in 0..rng.usize(0..3).min(self.held.len()) {
            let slot = self.held.swap_remove(rng.usize(0..self.held.len()));
            fabric.release(slot);
        }
    }
}

/// Why a run did not come to its end.
#[derive(Debug)]
enum Halt {
    /// Nothing moves any more.
    Stalled,
    /// A link broke.
    Broken { rank: usize, peer: Rank, reason: String },
}

impl World {
    fn connect(&mut self, low: usize, high: usize) {
        let (initiator, acceptor) = (&self.nodes[low].connector, &self.nodes[high].connector);
        let offer = initiator.offer(&info(high), 0).unwrap();
        let answer = acceptor.accept(&info(low), &offer).unwrap();
        initiator.complete(&info(high), &answer).unwrap();
        acceptor.confirm(&info(low)).unwrap();
        assert!(self.nodes[low].fabric.is_up(high as Rank));
        assert!(self.nodes[high].fabric.is_up(low as Rank));
    }

    /// Moves everything to its end.
    fn run(&mut self, flows: &mut [Flow], chats: &mut [Chat]) -> Result<(), Halt> {
        self.run_steps(flows, chats, STEPS_MAX)
    }

    fn run_steps(
        &mut self,
        flows: &mut [Flow],
        chats: &mut [Chat],
        steps: usize,
    ) -> Result<(), Halt> {
        for _ in 0..steps {
            if flows.iter().all(Flow::is_done) && chats.iter().all(Chat::is_done) {
                return Ok(());
            }
            for rank in 0..self.nodes.len() {
                self.step(rank, flows, chats)?;
            }
        }
        Err(Halt::Stalled)
    }

    fn step(&mut self, rank: usize, flows: &mut [Flow], chats: &mut [Chat]) -> Result<(), Halt> {
        let node = &mut self.nodes[rank];
        if !node.polls || self.rng.u32(0..100) < self.lazy_percent {
            return Ok(());
        }
        for (index, flow) in flows.iter_mut().enumerate().filter(|(_, flow)| flow.from == rank) {
            flow.send(index, &mut node.fabric);
        }
        for chat in chats.iter_mut().filter(|chat| chat.from == rank) {
            chat.send(&mut node.fabric);
        }
        for chat in chats.iter_mut().filter(|chat| chat.to == rank) {
            chat.release(&mut node.fabric, &mut self.rng);
        }
        node.fabric.flush().unwrap();
        node.fabric.poll(&node.receives, &mut node.events).unwrap();
        while let Some(event) = node.events.pop() {
            match event {
                Event::Block { peer, handle, block } => {
                    let flow = flows.iter_mut().find(|flow| {
                        (flow.from, flow.to, flow.grant.handle) == (peer as usize, rank, handle)
                    });
                    let arrived = &mut flow.expect("a flow").arrived[block as usize];
                    assert!(!std::mem::replace(arrived, true), "block {block} came twice");
                }
                Event::Sent { peer, token } => {
                    let flow = &mut flows[(token >> 32) as usize];
                    assert_eq!((flow.from, flow.to), (rank, peer as usize));
                    let sent = &mut flow.sent[token as u32 as usize];
                    assert!(!std::mem::replace(sent, true), "a block was reported sent twice");
                }
                Event::Message { slot } => {
                    let chat = chats
                        .iter_mut()
                        .find(|chat| (chat.from, chat.to) == (slot.peer as usize, rank));
                    chat.expect("a chat").receive(slot, &node.fabric);
                }
                Event::Broken { peer } => {
                    let reason = node.fabric.break_reason(peer).expect("a reason");
                    return Err(Halt::Broken { rank, peer, reason });
                }
            }
        }
        Ok(())
    }

    /// Closes the end that `rank` has of its link to `peer`.
    fn quiesce(&mut self, rank: usize, peer: usize) {
        self.nodes[rank].fabric.quiesce(peer as Rank);
        // What was reported before is of the link that is gone.
        while self.nodes[rank].events.pop().is_some() {}
    }

    /// Asserts that no rule was broken and no send queue was overfilled.
    fn assert_clean(&self) {
        assert_eq!(self.network.violations(), []);
        for rank in 0..self.nodes.len() {
            for report in self.network.queue_pairs(rank) {
                let statistics = self.network.statistics(rank, &report.device);
                assert_eq!(statistics.full_posts, 0, "a queue was overfilled");
            }
        }
    }
}
