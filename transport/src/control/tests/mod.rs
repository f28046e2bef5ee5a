//! Whole jobs over loopback, with the ranks as threads of this process.

mod abort;
mod bad_input;
mod links;
mod membership;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::shared::lock;
use super::*;
use crate::wire::Operation;

/// Long enough for a loaded machine, never reached by a test that passes.
const LONG: Duration = Duration::from_secs(60);

/// The sizes every test of whole jobs runs with.
const SIZES: [u32; 9] = [1, 2, 3, 4, 5, 8, 9, 16, 33];

/// Counts its rings, and wakes who waits for something.
#[derive(Default)]
struct TestBell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell for TestBell {
    fn ring(&self) {
        *lock(&self.rings) += 1;
        self.rung.notify_all();
    }
}

impl TestBell {
    /// Waits until `done`, looking again at each ring only.
    fn wait_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let until = Instant::now() + LONG;
        let mut rings = lock(&self.rings);
        while !done() {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain for {what}");
            let seen = *rings;
            rings = self.rung.wait_timeout_while(rings, left, |now| *now == seen).unwrap().0;
        }
    }
}

/// No links.
struct NoConnector;

impl Connector for NoConnector {
    fn offer(&self, _: &PeerInfo, _: u32) -> Result<Vec<u8>, Error> {
        Err(Error::Invalid("no links in this test".into()))
    }
    fn accept(&self, _: &PeerInfo, _: &[u8]) -> Result<Vec<u8>, Error> {
        Err(Error::Invalid("no links in this test".into()))
    }
    fn complete(&self, _: &PeerInfo, _: &[u8]) -> Result<(), Error> {
        Err(Error::Invalid("no links in this test".into()))
    }
    fn confirm(&self, _: &PeerInfo) -> Result<(), Error> {
        Err(Error::Invalid("no links in this test".into()))
    }
    fn failed(&self, _: &PeerInfo, _: &str) {}
}

/// A rank of a test's job.
struct TestRank {
    control: Control,
    bell: Arc<TestBell>,
}

fn secret() -> Secret {
    Secret::from_text("a secret for tests").unwrap()
}

fn config(rank: Rank, size: u32, rendezvous: &str) -> Config {
    Config {
        rank,
        size,
        rendezvous: Some(rendezvous.into()),
        secret: Some(secret()),
        connect_deadline: LONG,
        ..Config::default()
    }
}

/// A job of `size` ranks that has started, with a rendezvous of its own.
fn job(size: u32) -> Vec<TestRank> {
    job_with(size, |_| Arc::new(NoConnector))
}

fn job_with(
    size: u32,
    connector: impl Fn(Rank) -> Arc<dyn Connector> + Send + Sync,
) -> Vec<TestRank> {
    let server = RendezvousServer::bind("127.0.0.1:0", size, &secret(), LONG).unwrap();
    let address = server.address().to_string();
    let serving = std::thread::spawn(move || server.serve());
    let ranks = each(size, |rank| {
        let bell = Arc::new(TestBell::default());
        let config = config(rank, size, &address);
        let control = Control::start(&config, bell.clone(), connector(rank)).unwrap();
        TestRank { control, bell }
    });
    // A job of one does not come to the rendezvous.
    if size > 1 {
        serving.join().unwrap().unwrap();
    }
    ranks
}

/// Runs `body` for every rank at once, each in a thread of its own.
fn each<T: Send>(size: u32, body: impl Fn(Rank) -> T + Send + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn shutdown_all(ranks: &[TestRank]) {
    for result in each(ranks.len() as u32, |rank| ranks[rank as usize].control.shutdown(LONG)) {
        result.unwrap();
    }
}

/// Waits until this rank knows of an abort of the job, which it must without calling anything.
fn aborted(rank: &TestRank) -> AbortCause {
    rank.bell.wait_until("an abort", || rank.control.abort_cause(u64::MAX).is_some());
    rank.control.abort_cause(u64::MAX).unwrap()
}

fn application(origin: Rank, scope: AbortScope, reason: &str) -> AbortCause {
    AbortCause { scope, origin, kind: AbortKind::Application { reason: reason.into() } }
}

fn call(communicator: u64, number: u64, root: Rank) -> Signature {
    Signature {
        communicator,
        number,
        operation: Operation::Broadcast.code(),
        algorithm: 1,
        element: 0,
        radix: 0,
        root,
        bytes: 1 << 33,
        block_bytes: 4096,
    }
}
