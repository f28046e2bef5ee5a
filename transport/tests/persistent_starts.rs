//! A start of a persistent operation allocates nothing: counted on the data path's thread.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbcast_transport::bootstrap::{RendezvousServer, Secret};
use verbcast_transport::config::{Config, FabricChoice};
use verbcast_transport::control::Control;
use verbcast_transport::endpoint::{Connectors, Endpoint, Notice, Parts, WaitPolicy};
use verbcast_transport::link::{Bell, Connector, Posting};
use verbcast_transport::shm::{self, ShmSettings};
use verbcast_transport::wire::{Grant, MessageKind, Operation, Ready, Signature};

const PATIENCE: Duration = Duration::from_secs(60);

/// The system's allocator, and how often this thread has called it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came; counting neither allocates nor
// unwinds (a thread that ends has no counter).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: passed on to the caller.
        unsafe { System.realloc(start, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn endpoint(rank: u32, rendezvous: &str, secret: &Secret, cma: bool) -> Endpoint {
    let (shm, connector, bell) = shm::open(ShmSettings { cma, ..ShmSettings::new(rank) }).unwrap();
    let connectors = Arc::new(Connectors::new(rank, FabricChoice::Shm, Some(connector)));
    let config = Config {
        rank,
        size: 2,
        rendezvous: Some(rendezvous.to_owned()),
        secret: Some(secret.clone()),
        connect_deadline: PATIENCE,
        ..Config::default()
    };
    let control = Control::start(
        &config,
        Arc::clone(&bell) as Arc<dyn Bell>,
        Arc::clone(&connectors) as Arc<dyn Connector>,
    )
    .unwrap();
    let policy = WaitPolicy { spin: Duration::ZERO, yields: 1 };
    Endpoint::new(Parts { control, connectors, shm: Some(shm), verbs: None, bell, policy })
}

fn pair(cma: bool) -> [Endpoint; 2] {
    let secret = Secret::generate().unwrap();
    let server = RendezvousServer::bind("127.0.0.1:0", 2, &secret, PATIENCE).unwrap();
    let address = server.address().to_string();
    let mut ranks = std::thread::scope(|scope| {
        scope.spawn(move || server.serve());
        let other = scope.spawn(|| endpoint(1, &address, &secret, cma));
        let own = endpoint(0, &address, &secret, cma);
        [own, other.join().unwrap()]
    });
    ranks[0].connect(1).unwrap();
    until(|| {
        for rank in &mut ranks {
            rank.poll().unwrap();
        }
        ranks[0].is_up(1) && ranks[1].is_up(0)
    });
    ranks
}

fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::yield_now();
    }
}

/// Polls one rank until a notice comes, and gives it.
fn notice(rank: &mut Endpoint) -> Notice {
    let mut found = None;
    until(|| {
        rank.flush().unwrap();
        rank.poll().unwrap();
        found = rank.next_event();
        found.is_some()
    });
    found.unwrap()
}

fn signature(bytes: u64) -> Signature {
    Signature {
        communicator: 0,
        number: 0,
        operation: Operation::Broadcast.code(),
        algorithm: 1,
        element: 0,
        radix: 0,
        root: 0,
        bytes,
        block_bytes: bytes,
    }
}

#[test]
fn a_start_allocates_nothing() {
    for (cma, bytes) in [(true, 8), (true, 65_536), (false, 8), (false, 65_536)] {
        let [mut sender, mut receiver] = pair(cma);
        let source = sender.open_owned(vec![0; bytes as usize], true).unwrap();
        let target = receiver.open_owned(vec![0; bytes as usize], true).unwrap();
        let layout = verbcast_transport::layout::Layout::new(1, bytes, bytes).unwrap();
        let handle = receiver.open_receive(target, 0, &layout).unwrap();
        let call = signature(bytes);
        assert_eq!(receiver.send_grant(0, &call, handle, 0).unwrap(), Posting::Posted);
        receiver.flush().unwrap();
        let Notice::Message { slot } = notice(&mut sender) else { panic!("no grant") };
        let (_, payload) = sender.message(slot).unwrap();
        let grant = Grant::read(payload).unwrap();
        sender.release(slot);
        let mut before = 0;
        for start in 0..1000_u64 {
            // The first ones may grow what is used again afterwards.
            if start == 20 {
                before = ALLOCATIONS.with(Cell::get);
            }
            if start > 0 {
                receiver.reopen(handle).unwrap();
                assert_eq!(receiver.send_ready(0, &call, handle).unwrap(), Posting::Posted);
                receiver.flush().unwrap();
                let Notice::Message { slot } = notice(&mut sender) else { panic!("no credit") };
                let (header, payload) = sender.message(slot).unwrap();
                assert_eq!(header.kind(), Ok(MessageKind::Ready));
                assert_eq!(Ready::read(payload).unwrap().start, start);
                sender.release(slot);
            }
            let mut held = sender.hold(source).unwrap();
            held.bytes_mut().unwrap().fill(start as u8);
            drop(held);
            let posting = sender.send_block(1, &grant, 0, source, 0..bytes, 0, 0).unwrap();
            assert_eq!(posting, Posting::Posted);
            sender.flush().unwrap();
            assert!(matches!(notice(&mut receiver), Notice::Block { block: 0, .. }));
            assert!(matches!(notice(&mut sender), Notice::Sent { .. }));
            let held = receiver.hold(target).unwrap();
            assert!(held.iter().all(|byte| *byte == start as u8), "start {start}");
        }
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(made, 0, "allocations of 980 starts of {bytes} bytes");
        assert!(before > 0, "the allocator counts");
        let leaving = sender.control().clone();
        let leaving = std::thread::spawn(move || leaving.shutdown(PATIENCE));
        receiver.control().shutdown(PATIENCE).unwrap();
        leaving.join().unwrap().unwrap();
    }
}
