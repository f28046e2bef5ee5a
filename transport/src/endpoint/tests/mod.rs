//! Endpoints of one job in one process, over shared memory and over verbs on the strict fake, driven
//! from the test's own thread.

mod borrowed;
mod ending;
mod flows;
mod owned;
mod persistent;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::bootstrap::{RendezvousServer, Secret};
use crate::config::{Config, FabricChoice};
use crate::layout::Layout;
use crate::link::{Bell, Connector};
use crate::memory::{Memory, Owned};
use crate::shm::ShmSettings;
use crate::verbs::fabric::{LinkSettings, RailChoice};
use crate::verbs::fake::{FakeNetwork, FakeSettings};
use crate::wire::{Operation, Ready};

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// The endpoints of a job, and what each was told and did not yet use.
struct Job {
    // Dropped before the network, as in life.
    endpoints: Vec<Endpoint>,
    notices: Vec<Vec<Notice>>,
    network: Option<FakeNetwork>,
}

/// How the ranks of a test are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    /// Blocks are pulled.
    Pull,
    /// Blocks go through the segment.
    Bounce,
    /// Verbs with this many lanes.
    Fake(u32),
}

const ALL_LINKS: [Links; 4] = [Links::Pull, Links::Bounce, Links::Fake(1), Links::Fake(3)];

fn seed() -> u64 {
    let given = std::env::var("VERBCAST_TEST_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("replay with VERBCAST_TEST_SEED={seed}");
    seed
}

fn job(size: u32, links: Links) -> Job {
    let network = matches!(links, Links::Fake(_)).then(|| {
        FakeNetwork::roce(size as usize, 1, FakeSettings { seed: seed(), ..Default::default() })
    });
    let secret = Secret::generate().unwrap();
    let server = RendezvousServer::bind("127.0.0.1:0", size, &secret, PATIENCE).unwrap();
    let address = server.address().to_string();
    let endpoints = std::thread::scope(|scope| {
        if size > 1 {
            scope.spawn(move || server.serve());
        }
        let start = |rank| {
            let config = Config {
                rank,
                size,
                rendezvous: Some(address.clone()),
                secret: Some(secret.clone()),
                connect_deadline: PATIENCE,
                ..Config::default()
            };
            let network = network.clone();
            scope.spawn(move || endpoint(&config, links, network.as_ref()))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    Job { endpoints, notices: (0..size).map(|_| Vec::new()).collect(), network }
}

fn endpoint(config: &Config, links: Links, network: Option<&FakeNetwork>) -> Endpoint {
    let rank = config.rank;
    let settings = ShmSettings { cma: links == Links::Pull, ..ShmSettings::new(rank) };
    let (shm, shm_connector, bell) = crate::shm::open(settings).unwrap();
    let choice = if network.is_some() { FabricChoice::Verbs } else { FabricChoice::Shm };
    let with_shm = network.is_none();
    let connectors = Connectors::new(rank, choice, with_shm.then_some(shm_connector));
    let verbs = network.map(|network| {
        let lanes = if let Links::Fake(lanes) = links { lanes } else { 1 };
        let settings = LinkSettings { lanes, links_max: 8, ..LinkSettings::default() };
        let rail = RailChoice { device: "fake0".into(), port: 1, gid_index: Some(5) };
        let driver = network.driver(rank as usize);
        let (verbs, connector) =
            crate::verbs::fabric::open(&*driver, &[rail], rank, settings).unwrap();
        connectors.set_verbs(connector);
        verbs
    });
    let connectors = Arc::new(connectors);
    let control = Control::start(
        config,
        Arc::clone(&bell) as Arc<dyn Bell>,
        Arc::clone(&connectors) as Arc<dyn Connector>,
    )
    .unwrap();
    let policy = WaitPolicy { spin: Duration::ZERO, yields: 1 };
    Endpoint::new(Parts { control, connectors, shm: with_shm.then_some(shm), verbs, bell, policy })
}

impl Job {
    /// One turn of every endpoint.
    fn turn(&mut self) {
        for rank in 0..self.endpoints.len() {
            self.turn_of(rank);
        }
    }

    fn turn_of(&mut self, rank: usize) {
        let endpoint = &mut self.endpoints[rank];
        endpoint.flush().unwrap();
        endpoint.poll().unwrap();
        while let Some(notice) = endpoint.next_event() {
            self.notices[rank].push(notice);
        }
    }

    /// Turns until `done` says so.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "waited in vain for {what}: {:?}", self.notices);
            self.turn();
            std::thread::yield_now();
        }
    }

    fn connect(&mut self, a: usize, b: usize) {
        self.endpoints[a].connect(b as Rank).unwrap();
        self.endpoints[b].connect(a as Rank).unwrap();
        self.until("a link", |job| {
            job.endpoints[a].is_up(b as Rank) && job.endpoints[b].is_up(a as Rank)
        });
    }

    /// The next notice of `rank` that `choose` takes.
    fn wait<T>(&mut self, rank: usize, mut choose: impl FnMut(&Notice) -> Option<T>) -> T {
        let mut found = None;
        self.until("a notice", |job| {
            let place = job.notices[rank].iter().position(|notice| {
                found = choose(notice);
                found.is_some()
            });
            place.map(|place| job.notices[rank].remove(place)).is_some()
        });
        found.unwrap()
    }

    /// The next message at `rank`: its header and payload; its slot is given back.
    fn message(&mut self, rank: usize) -> (MessageHeader, Vec<u8>) {
        let slot = self.wait(rank, |notice| match notice {
            Notice::Message { slot } => Some(*slot),
            _ => None,
        });
        let (header, payload) = self.endpoints[rank].message(slot).unwrap();
        let message = (header, payload.to_vec());
        self.endpoints[rank].release(slot);
        message
    }

    /// Opens a receive of `buffer` at `to` and grants it to `from`, which gets the grant.
    fn grant(
        &mut self,
        to: usize,
        buffer: BufferId,
        block_bytes: u64,
        from: usize,
    ) -> (u16, Grant) {
        let bytes = self.endpoints[to].buffers.span(buffer).unwrap().bytes;
        let layout = Layout::new(1, bytes, block_bytes).unwrap();
        let handle = self.endpoints[to].open_receive(buffer, 0, &layout).unwrap();
        let call = signature(0, 0);
        let posting = self.endpoints[to].send_grant(from as Rank, &call, handle, 0).unwrap();
        assert_eq!(posting, Posting::Posted);
        let (header, payload) = self.message(from);
        assert_eq!(header.kind(), Ok(MessageKind::Grant));
        (handle, Grant::read(&payload).unwrap())
    }

    /// Sends all of `buffer` in blocks and waits until its memory is free.
    fn send_all(&mut self, from: usize, buffer: BufferId, to: usize, grant: &Grant, block: u64) {
        let blocks = grant.bytes.div_ceil(block) as u32;
        for number in 0..blocks {
            let start = u64::from(number) * block;
            let range = start..(start + block).min(grant.bytes);
            self.until("room", |job| {
                let sender = &mut job.endpoints[from];
                let range = range.clone();
                let posting =
                    sender.send_block(to as Rank, grant, number, buffer, range, start, number);
                posting.unwrap() == Posting::Posted
            });
        }
        let mut left: Vec<u32> = (0..blocks).collect();
        while !left.is_empty() {
            let token = self.wait(from, |notice| match notice {
                Notice::Sent { buffer: of, token, .. } if *of == buffer => Some(*token),
                _ => None,
            });
            left.retain(|number| *number != token);
        }
    }

    /// Waits for `blocks` blocks under `handle`.
    fn receive(&mut self, rank: usize, handle: u16, blocks: u32) {
        let mut left: Vec<u32> = (0..blocks).collect();
        while !left.is_empty() {
            let block = self.wait(rank, |notice| match notice {
                Notice::Block { handle: of, block, .. } if *of == handle => Some(*block),
                _ => None,
            });
            assert!(left.contains(&block), "block {block} came twice");
            left.retain(|number| *number != block);
        }
    }

    /// Ends the job; nothing broke a rule of the fake.
    fn end(self) {
        let Self { endpoints, network, .. } = self;
        std::thread::scope(|scope| {
            for endpoint in endpoints {
                scope.spawn(move || endpoint.control().shutdown(PATIENCE).unwrap());
            }
        });
        assert_eq!(network.map(|network| network.violations()).unwrap_or_default(), []);
    }
}

fn signature(communicator: u64, number: u64) -> Signature {
    Signature {
        communicator,
        number,
        operation: Operation::Broadcast.code(),
        algorithm: 1,
        element: 0,
        radix: 0,
        root: 0,
        bytes: 8,
        block_bytes: 8,
    }
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}
