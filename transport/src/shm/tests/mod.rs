//! Tests of shared-memory links: ranks as threads of one process and as processes of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bell::Mode;
use super::{ShmBell, ShmConnector, ShmFabric, ShmSettings, open};
use crate::link::{
    BlockSend, Connector, Event, Events, Fabric, PeerInfo, Posting, ReceiveTable, Slot, Span,
};
use crate::wire::{Grant, MessageHeader, MessageKind, Operation, Rank, Signature};

mod blocks;
mod faults;
mod hostile;
mod messages;
mod processes;
mod setup;
mod sleeping;

/// No test waits longer than this for anything; a lost wake-up or message fails by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A rank with its links, as an endpoint would hold them.
struct TestRank {
    rank: Rank,
    fabric: ShmFabric,
    connector: Arc<ShmConnector>,
    bell: Arc<ShmBell>,
    receives: ReceiveTable,
    events: Events,
}

impl TestRank {
    fn new(settings: ShmSettings) -> Self {
        let (fabric, connector, bell) = open(settings).unwrap();
        let events = Events::with_capacity(64);
        let rank = settings.rank;
        Self { rank, fabric, connector, bell, receives: ReceiveTable::default(), events }
    }

    fn info(&self) -> PeerInfo {
        crate::bootstrap::identity::describe(self.rank, Vec::new())
    }

    fn poll(&mut self) -> bool {
        self.fabric.poll(&self.receives, &mut self.events).unwrap()
    }

    /// The next event, if one comes by a single poll.
    fn next(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.poll();
        }
        self.events.pop()
    }

    /// The next event, waited for asleep.
    fn wait(&mut self) -> Event {
        let deadline = Instant::now() + PATIENCE;
        self.fabric.flush().unwrap();
        loop {
            if let Some(event) = self.next() {
                return event;
            }
            self.bell.arm(Mode::Futex);
            if !self.poll() {
                self.bell.sleep(Some(deadline));
            }
            self.bell.disarm();
            assert!(Instant::now() < deadline, "rank {} waited in vain", self.rank);
        }
    }

    /// Opens a receive of `buffer` and gives what a sender needs to know of it.
    fn grant(&mut self, buffer: &mut [u8], block_bytes: u64) -> Grant {
        let address = buffer.as_mut_ptr().expose_provenance();
        let bytes = buffer.len() as u64;
        let (handle, epoch) = self
            .receives
            .open(address, crate::layout::Layout::new(1, bytes, block_bytes).expect("a layout"))
            .unwrap();
        Grant::of_memory(handle, epoch, address, bytes)
    }

    /// Sends block `block` of a message that lies in `span` as it does in the granted buffer.
    fn send_block(
        &mut self,
        peer: Rank,
        grant: &Grant,
        span: &Span,
        block: u32,
        block_bytes: u64,
    ) -> Posting {
        let start = u64::from(block) * block_bytes;
        let range = start..(start + block_bytes).min(span.bytes);
        let token = token(peer, block);
        let block =
            BlockSend { peer, grant, span, range: range.clone(), offset: start, block, token };
        self.fabric.send_block(&block).unwrap()
    }

    fn send(&mut self, peer: Rank, number: u64, payload: &[u8]) -> Posting {
        self.fabric.send_message(peer, &header(number, payload.len()), payload).unwrap()
    }

    /// Number and payload of a message.
    fn read(&self, slot: Slot) -> (u64, Vec<u8>) {
        let (header, payload) = self.fabric.message(slot).unwrap();
        (header.signature().number, payload.to_vec())
    }

    fn expect_message(&mut self) -> (Slot, u64, Vec<u8>) {
        match self.wait() {
            Event::Message { slot } => {
                let (number, payload) = self.read(slot);
                (slot, number, payload)
            }
            other => panic!("rank {}: {other:?} instead of a message", self.rank),
        }
    }
}

fn token(peer: Rank, block: u32) -> u64 {
    u64::from(peer) << 32 | u64::from(block)
}

fn header(number: u64, payload_bytes: usize) -> MessageHeader {
    let signature = Signature {
        communicator: 1,
        number,
        operation: Operation::Broadcast.code(),
        algorithm: 2,
        element: 0,
        radix: 0,
        root: 0,
        bytes: payload_bytes as u64,
        block_bytes: 0,
    };
    MessageHeader::new(MessageKind::Eager, &signature, 0, payload_bytes)
}

fn span(data: &[u8]) -> Span {
    Span {
        address: data.as_ptr().expose_provenance(),
        bytes: data.len() as u64,
        writable: false,
        keys: Vec::new(),
    }
}

/// Bytes that depend on the seed and on every position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut data = vec![0; bytes];
    random.fill(&mut data);
    data
}

/// Sets the link between two ranks of this thread up; `a` is the initiator.
fn connect(a: &mut TestRank, b: &mut TestRank) {
    let (info_a, info_b) = (a.info(), b.info());
    let offer = a.connector.offer(&info_b, 0).unwrap();
    let answer = b.connector.accept(&info_a, &offer).unwrap();
    assert!(!b.fabric.is_up(a.rank), "an unconfirmed link must not send");
    a.connector.complete(&info_b, &answer).unwrap();
    assert!(a.fabric.is_up(b.rank));
    b.connector.confirm(&info_a).unwrap();
    assert!(b.fabric.is_up(a.rank));
}

/// Two connected ranks; `settings` are the initiator's, and the acceptor's but for the rank.
fn pair(settings: ShmSettings) -> (TestRank, TestRank) {
    let mut a = TestRank::new(settings);
    let mut b = TestRank::new(ShmSettings { rank: settings.rank + 1, ..settings });
    connect(&mut a, &mut b);
    (a, b)
}

/// Pulling, and through the segment.
fn both_ways() -> [ShmSettings; 2] {
    let pull = ShmSettings::new(0);
    [pull, ShmSettings { cma: false, ..pull }]
}
