//! Runs several ranks as threads of one process: over shared memory, or verbs on the strict fake.
#![allow(dead_code, reason = "each test target uses a part of it")]

pub(crate) mod operations;
pub(crate) mod requests;

use std::sync::Arc;
use std::time::Duration;

use verbcast_collectives::World;
use verbcast_collectives::schedule::Algorithm;
use verbcast_transport::bootstrap::{RendezvousServer, Secret};
use verbcast_transport::config::{Config, FabricChoice};
use verbcast_transport::verbs::driver::Driver;
use verbcast_transport::verbs::error::VerbsError;
use verbcast_transport::verbs::fake::FakeNetwork;

/// Makes the verbs provider of a rank.
pub(crate) type MakeDriver = Arc<dyn Fn(u32) -> Arc<dyn Driver> + Send + Sync>;

/// How a group of ranks is set up.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) ranks: u32,
    pub(crate) cma: bool,
    pub(crate) lanes: Option<u32>,
    /// Makes a rank's verbs provider; shared memory without one.
    pub(crate) driver: Option<MakeDriver>,
}

impl Setup {
    pub(crate) fn shm(ranks: u32) -> Self {
        Self { ranks, cma: true, lanes: None, driver: None }
    }

    fn config(&self, rank: u32, rendezvous: &str, secret: &Secret) -> Config {
        Config {
            rank,
            size: self.ranks,
            local_rank: Some(rank),
            rendezvous: Some(rendezvous.to_owned()),
            secret: Some(secret.clone()),
            fabric: if self.driver.is_some() { FabricChoice::Verbs } else { FabricChoice::Shm },
            cma: self.cma,
            lanes: self.lanes,
            connect_deadline: Duration::from_secs(60),
            ..Config::default()
        }
    }

    /// Runs `work` on every rank, each in a thread, and gives the results by rank.
    pub(crate) fn run<R: Send>(&self, work: impl Fn(World) -> R + Sync) -> Vec<R> {
        let secret = Secret::generate().expect("random bytes");
        let server =
            RendezvousServer::bind("127.0.0.1:0", self.ranks, &secret, Duration::from_secs(60))
                .expect("a free port on loopback");
        let address = server.address().to_string();
        std::thread::scope(|scope| {
            // A single rank needs no rendezvous and does not come to it.
            if self.ranks > 1 {
                scope.spawn(move || server.serve());
            }
            let ranks: Vec<_> = (0..self.ranks)
                .map(|rank| {
                    let config = self.config(rank, &address, &secret);
                    let (work, driver) = (&work, self.driver.clone());
                    scope.spawn(move || {
                        let world = World::connect_with(config, move || match driver {
                            Some(make) => Ok(make(rank)),
                            None => Err(VerbsError::Unavailable { reason: "not wanted".into() }),
                        })
                        .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
                        work(world)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
        })
    }
}

/// Each rank on a host of its own, over verbs on the strict fake.
pub(crate) fn on_fake(network: &FakeNetwork, ranks: u32, lanes: u32) -> Setup {
    let network = network.clone();
    let driver: MakeDriver = Arc::new(move |rank| network.driver(rank as usize));
    Setup { lanes: Some(lanes), driver: Some(driver), ..Setup::shm(ranks) }
}

/// What a randomised test is drawn by: what `VERBCAST_TEST_SEED` says, else anything; printed.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("VERBCAST_TEST_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("replay with VERBCAST_TEST_SEED={seed}");
    seed
}

/// The byte at `index` of the message that `root` sends in broadcast `number`.
pub(crate) fn pattern(root: u32, number: u64, index: usize) -> u8 {
    let mixed =
        (index as u64 ^ number << 40 ^ u64::from(root) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// The whole message.
pub(crate) fn message(root: u32, number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| pattern(root, number, index)).collect()
}

/// Sizes around those where something changes.
const SIZES: [usize; 6] = [0, 1, 7, 4096, 65537, (1 << 20) + 3];

/// Every algorithm, root and size; `block_bytes` as the model chooses and small.
pub(crate) fn matrix(world: World) {
    let communicator = world.communicator();
    let mut number = 0;
    for algorithm in Algorithm::BROADCAST {
        for root in 0..world.size() {
            for bytes in SIZES {
                for block_bytes in [None, Some(16 << 10)] {
                    let expected = message(root, number, bytes);
                    let mut buffer =
                        if world.rank() == root { expected.clone() } else { vec![0xa5; bytes] };
                    let mut call = communicator
                        .broadcast_call(root)
                        .algorithm(algorithm)
                        .deadline(Duration::from_secs(60));
                    if let Some(block_bytes) = block_bytes {
                        call = call.block_bytes(block_bytes);
                    }
                    call.run(&mut buffer).unwrap_or_else(|error| {
                        panic!("{algorithm} root {root} bytes {bytes}: {error}")
                    });
                    assert!(buffer == expected, "{algorithm} root {root} bytes {bytes}: contents");
                    number += 1;
                }
            }
        }
    }
    world.finalize().expect("all ranks come to the end");
}
