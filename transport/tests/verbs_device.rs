//! The verbs layer on a real device: run in a guest with at least two Soft-RoCE devices.
//!
//! ```text
//! cargo run -q -p rxe-setup -- vm run --nodes 2 --env VERBCAST_GUEST=1 -- \
//!     target/debug/deps/verbs_device-... --ignored --test-threads=1
//! ```
//!
//! A test fails where its device is missing; none of them skips.

#![cfg(feature = "verbs")]

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbcast_transport::verbs::driver::{
    Access, Capacities, Completion, CompletionKind, CompletionQueue, Device, InitAttributes,
    MemoryRegion, PathAddress, PortInfo, ReadyToReceiveAttributes, ReadyToSendAttributes,
    STATUS_FLUSHED, Write,
};
use verbcast_transport::verbs::error::VerbsError;
use verbcast_transport::verbs::queue_pair::{QueuePair, ReadyToSend};
use verbcast_transport::verbs::select::{RailSettings, describe_ports, select_rails};
use verbcast_transport::verbs::sys;

const BUFFER_BYTES: usize = 1 << 20;
/// `IBV_WC_REM_ACCESS_ERR` and `IBV_WC_RETRY_EXC_ERR`.
const STATUS_REMOTE_ACCESS: u32 = 10;
const STATUS_RETRY_EXCEEDED: u32 = 12;
/// Long enough for an emulated guest on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const CAPACITIES: Capacities = Capacities { send: 16, receive: 16, inline_bytes: 64 };

/// One end: in order of tear-down.
struct End {
    pair: QueuePair<ReadyToSend>,
    region: Box<dyn MemoryRegion>,
    queue: Arc<dyn CompletionQueue>,
    memory: Vec<u8>,
}

/// A device with the port, GID index and GID that are chosen for it.
fn open(name: &str) -> (Arc<dyn Device>, PortInfo, u8, [u8; 16]) {
    let driver = sys::driver().expect("libibverbs is installed in the guest");
    let device = driver.open(name).expect("the guest has the device");
    let info = device.info().expect("the device answers");
    let rails =
        select_rails(std::slice::from_ref(&info), &RailSettings::default()).expect("a usable port");
    let port = info.ports.into_iter().find(|port| port.number == rails[0].port);
    let port = port.expect("the chosen port exists");
    let index = rails[0].gid_index.expect("RoCE is addressed by GID");
    let entry = port.gids.iter().find(|entry| entry.index == index);
    let gid = entry.expect("the chosen GID exists").gid;
    (device, port, u8::try_from(index).expect("a small index"), gid)
}

fn register(device: &Arc<dyn Device>, memory: &mut [u8]) -> Box<dyn MemoryRegion> {
    // SAFETY: `End` drops the region before the memory, and looks at the bytes only after the
    // completion of the write that put them there.
    unsafe { device.register(memory.as_mut_ptr(), memory.len(), Access::RemoteWrite) }
        .expect("memory can be registered")
}

/// Two connected ends, on these devices.
fn connect(names: [&str; 2], entries: u32, timeout: u8) -> [End; 2] {
    let ends = names.map(|name| {
        let (device, port, index, gid) = open(name);
        let queue = device.completion_queue(entries).expect("a completion queue");
        let pair = QueuePair::create(&*device, &queue, CAPACITIES).expect("a queue pair");
        let init = InitAttributes { port: port.number, pkey_index: 0 };
        let pair = pair.initialize(&init).expect("INIT");
        (device, port, index, gid, queue, pair)
    });
    let peers = [1, 0].map(|peer: usize| (ends[peer].5.number(), ends[peer].3));
    let mut peers = peers.into_iter();
    ends.map(|(device, port, index, _, queue, pair)| {
        let (destination_qpn, gid) = peers.next().expect("one peer each");
        let address = PathAddress {
            dlid: 0,
            global: Some((index, gid)),
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        let receive = ReadyToReceiveAttributes {
            port: port.number,
            path_mtu_bytes: port.active_mtu_bytes,
            destination_qpn,
            receive_psn: 7,
            min_rnr_timer: 12,
            address,
        };
        let pair = pair.ready_to_receive(&receive).expect("RTR");
        let send = ReadyToSendAttributes { send_psn: 7, timeout, retry_count: 6, rnr_retry: 0 };
        let pair = pair.ready_to_send(&send).expect("RTS");
        let mut memory = vec![0; BUFFER_BYTES];
        let region = register(&device, &mut memory);
        End { pair, region, queue, memory }
    })
}

impl End {
    /// A signaled write of the first bytes of this end's memory into the peer's.
    fn write_to(&self, peer: &Self, bytes: usize) -> Write {
        Write {
            work_id: 1,
            local: self.memory.as_ptr().expose_provenance(),
            bytes: bytes as u32,
            lkey: self.region.lkey(),
            remote: peer.memory.as_ptr().expose_provenance() as u64,
            rkey: peer.region.rkey(),
            immediate: None,
            signaled: true,
            inline: false,
        }
    }

    fn post(
        &mut self,
        writes: &[Write],
    ) -> Result<(), verbcast_transport::verbs::driver::PostError> {
        // SAFETY: the writes name this end's memory, which outlives the queue pair and is written
        // again only after their completions.
        unsafe { self.pair.post_writes(writes) }
    }

    /// The next `count` completions; fails if they do not come.
    fn take(&self, count: usize) -> Vec<Completion> {
        let start = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < count {
            let mut some = [Completion::BLANK; 8];
            let wanted = (count - taken.len()).min(some.len());
            let polled = self.queue.poll(&mut some[..wanted]).expect("the queue is whole");
            taken.extend_from_slice(&some[..polled]);
            if polled == 0 {
                assert!(start.elapsed() < PATIENCE, "{} of {count} completions", taken.len());
                std::thread::yield_now();
            }
        }
        taken
    }

    fn statuses(&self, count: usize) -> Vec<(u64, u32)> {
        let status = |completion: Completion| match completion.kind {
            CompletionKind::Failed { status, .. } => (completion.work_id, status),
            _ => (completion.work_id, 0),
        };
        self.take(count).into_iter().map(status).collect()
    }
}

fn pattern(bytes: &mut [u8]) {
    bytes.iter_mut().zip(0_u32..).for_each(|(byte, index)| *byte = (index * 7 % 253) as u8 + 1);
}

/// Writes with and without immediate, inline, empty and long, between two queue pairs.
fn writes_arrive(names: [&str; 2]) {
    let [mut a, mut b] = connect(names, 64, 18);
    pattern(&mut a.memory);
    b.pair.post_receives(4, 50).expect("receives");
    let long = Write { immediate: Some(0x0102_0304), ..a.write_to(&b, 300_001) };
    let inline_bytes = a.pair.max_inline_bytes().min(64) as usize;
    let inline = Write {
        work_id: 2,
        inline: inline_bytes > 0,
        bytes: inline_bytes as u32,
        remote: long.remote + 500_000,
        ..a.write_to(&b, inline_bytes)
    };
    let empty = Write { work_id: 3, bytes: 0, immediate: Some(u32::MAX), ..long };
    let silent = Write { work_id: 4, signaled: false, immediate: None, bytes: 10, ..inline };
    a.post(&[long, inline, silent, empty]).expect("room for all");
    assert_eq!(a.statuses(3), [(1, 0), (2, 0), (3, 0)]);
    let received: Vec<_> = b.take(2);
    let kinds: Vec<_> = received.iter().map(|completion| completion.kind).collect();
    let expected = [
        CompletionKind::Received { immediate: 0x0102_0304, bytes: 300_001 },
        CompletionKind::Received { immediate: u32::MAX, bytes: 0 },
    ];
    assert_eq!(kinds, expected);
    let number = b.pair.number();
    assert!(received.iter().all(|c| c.work_id == 50 && c.queue_pair == number));
    assert_eq!(b.memory[..300_001], a.memory[..300_001]);
    assert!(b.memory[300_001..500_000].iter().all(|byte| *byte == 0));
    assert_eq!(b.memory[500_000..500_000 + inline_bytes], a.memory[..inline_bytes]);
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn devices_are_described_and_the_ipv4_gid_is_chosen() {
    let driver = sys::driver().expect("libibverbs is installed in the guest");
    let devices = driver.devices().expect("a list");
    let device = devices.iter().find(|device| device.name == "rxe0").expect("rxe0 is there");
    let limits = device.limits;
    assert!(limits.max_qp > 0 && limits.max_cqe > 0 && limits.max_mr_bytes > 0, "{limits:?}");
    assert!(device.ports[0].max_message_bytes >= 1 << 20);
    let described = describe_ports(&devices, &RailSettings::default());
    let port = described.iter().find(|port| port.device == "rxe0").expect("its port");
    assert!(port.chosen, "{port:?}");
    let gid: Ipv6Addr = port.gid.as_deref().expect("a GID").parse().expect("an address");
    assert!(gid.to_ipv4_mapped().is_some(), "{port:?}");
    assert!(port.interface.is_some(), "{port:?}");
    let error = driver.open("rxe77").err().expect("no such device");
    assert!(error.to_string().contains("rxe0"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn writes_arrive_over_one_device() {
    writes_arrive(["rxe0", "rxe0"]);
}

#[test]
#[ignore = "needs two RDMA devices; run by cargo verify in the guest"]
fn writes_arrive_between_two_devices() {
    writes_arrive(["rxe0", "rxe1"]);
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn an_armed_sleeper_is_woken() {
    let [mut a, mut b] = connect(["rxe0", "rxe0"], 64, 18);
    let readable = |end: &End, timeout: Duration| {
        let mut descriptors = [PollFd::new(end.queue.event_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).expect("a short time");
        poll(&mut descriptors, timeout).expect("poll works") == 1
    };
    b.pair.post_receives(1, 50).expect("a receive");
    b.queue.take_events().expect("no events are no error");
    b.queue.arm().expect("armed");
    assert!(!readable(&b, Duration::from_millis(20)));
    a.post(&[Write { immediate: Some(1), ..a.write_to(&b, 8) }]).expect("room");
    assert!(readable(&b, PATIENCE));
    b.queue.take_events().expect("an event");
    assert!(!readable(&b, Duration::ZERO));
    assert_eq!(b.statuses(1), [(50, 0)]);
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn a_chain_longer_than_the_queue_is_posted_in_part() {
    let [mut a, b] = connect(["rxe0", "rxe0"], 128, 18);
    pattern(&mut a.memory);
    let chain: Vec<_> = (0..60)
        .map(|index| {
            let write = a.write_to(&b, 1);
            let offset = index as usize;
            Write {
                work_id: index,
                local: write.local + offset,
                remote: write.remote + index,
                ..write
            }
        })
        .collect();
    let error = a.post(&chain).expect_err("60 requests do not fit");
    assert!(error.queue_full, "{error:?}");
    let posted = error.posted;
    assert!((CAPACITIES.send as usize..60).contains(&posted), "{posted}");
    let expected: Vec<_> = (0..posted as u64).map(|index| (index, 0)).collect();
    assert_eq!(a.statuses(posted), expected);
    assert_eq!(b.memory[..posted], a.memory[..posted]);
    assert!(b.memory[posted..60].iter().all(|byte| *byte == 0), "only what was counted landed");
    a.post(&chain[posted..posted + 1]).expect("room again");
    assert_eq!(a.statuses(1), [(posted as u64, 0)]);
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn after_an_error_everything_flushes_and_nothing_lands() {
    let [mut a, mut b] = connect(["rxe0", "rxe0"], 64, 14);
    a.memory.fill(0xaa);
    a.pair.post_receives(2, 60).expect("receives");
    let good = a.write_to(&b, 64);
    let bad = Write { rkey: good.rkey.wrapping_add(0x0101), work_id: 2, ..good };
    let after = Write { work_id: 3, signaled: false, remote: good.remote + 4096, ..good };
    a.post(&[good, bad, after]).expect("room");
    let mut statuses = a.statuses(5);
    statuses.sort_unstable();
    let flushed = STATUS_FLUSHED;
    let expected = [(1, 0), (2, STATUS_REMOTE_ACCESS), (3, flushed), (60, flushed), (60, flushed)];
    assert_eq!(statuses, expected);
    assert!(b.memory[64..].iter().all(|byte| *byte == 0));
    a.post(&[Write { work_id: 4, ..good }]).expect("a post in ERR is taken");
    assert_eq!(a.statuses(1), [(4, flushed)]);
    b.pair.fail().expect("ERR again or already");
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn nothing_lands_at_a_queue_pair_in_err() {
    let [mut a, mut b] = connect(["rxe0", "rxe0"], 64, 10);
    a.memory.fill(0xaa);
    b.pair.post_receives(1, 50).expect("a receive");
    b.pair.fail().expect("ERR");
    assert_eq!(b.statuses(1), [(50, STATUS_FLUSHED)]);
    a.post(&[Write { immediate: Some(1), ..a.write_to(&b, 4096) }]).expect("room");
    assert_eq!(a.statuses(1), [(1, STATUS_RETRY_EXCEEDED)]);
    assert!(b.memory.iter().all(|byte| *byte == 0));
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn an_overrun_completion_queue_is_an_error_when_it_is_armed() {
    let [mut a, b] = connect(["rxe0", "rxe0"], 4, 18);
    let capacity = a.queue.capacity();
    let write = a.write_to(&b, 8);
    let start = Instant::now();
    let mut posted = 0;
    let error = loop {
        match a.post(&[write]) {
            Ok(()) => posted += 1,
            Err(error) => assert!(error.queue_full, "{error}"),
        }
        if let Err(error) = a.queue.arm() {
            break error;
        }
        assert!(start.elapsed() < PATIENCE, "{posted} posted, {capacity} entries");
    };
    assert!(matches!(error, VerbsError::CompletionQueueOverrun { .. }), "{error}");
    assert!(posted > capacity, "{posted} posted, {capacity} entries");
    let mut some = [Completion::BLANK; 64];
    while let Ok(count) = a.queue.poll(&mut some) {
        assert!(count > 0, "an empty, broken queue is an error");
    }
}

#[test]
#[ignore = "needs an RDMA device; run by cargo verify in the guest"]
fn what_the_device_refuses_is_named_and_leaves_nothing_behind() {
    for _ in 0..50 {
        let (device, port, _, _) = open("rxe0");
        let queue = device.completion_queue(16).expect("a completion queue");
        let pair = QueuePair::create(&*device, &queue, CAPACITIES).expect("a queue pair");
        let init = InitAttributes { port: port.number, pkey_index: 0 };
        let pair = pair.initialize(&init).expect("INIT");
        let address = PathAddress {
            dlid: 1,
            global: None,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        let receive = ReadyToReceiveAttributes {
            port: port.number,
            path_mtu_bytes: port.active_mtu_bytes,
            destination_qpn: 5,
            receive_psn: 7,
            min_rnr_timer: 12,
            address,
        };
        let error = pair.ready_to_receive(&receive).expect_err("RoCE needs a GRH");
        assert!(error.to_string().contains("INIT to RTR"), "{error}");
    }
    let (device, ..) = open("rxe0");
    let unmapped = std::ptr::without_provenance_mut(4096);
    // SAFETY: nothing is mapped there, so the device can write nothing: it refuses.
    let result = unsafe { device.register(unmapped, 4096, Access::RemoteWrite) };
    let error = result.err().expect("no memory there");
    assert!(error.to_string().contains("memlock"), "{error}");
    let over = Capacities { send: u32::MAX, ..CAPACITIES };
    let queue = device.completion_queue(16).expect("a completion queue");
    let error = QueuePair::create(&*device, &queue, over).expect_err("too many");
    assert!(matches!(error, VerbsError::OverLimit { .. }), "{error}");
}
