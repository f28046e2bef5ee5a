//! Slots, completion queues, events and orders.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::verbs::error::VerbsError;

#[test]
fn a_send_slot_is_freed_by_its_polled_completion_only() {
    let network = FakeNetwork::roce(2, 1, plain(1));
    let (mut a, b) = connected(&network);
    let write = a.write_to(&b, 8);
    a.post(&[write; 4]).unwrap();
    network.deliver_all();
    let error = a.post(&[write]).unwrap_err();
    assert_eq!((error.posted, error.queue_full), (0, true));
    let mut one = [Completion::BLANK];
    assert_eq!(a.queue.poll(&mut one).unwrap(), 1);
    a.post(&[write]).unwrap();
    assert!(a.post(&[write]).is_err());
    assert_eq!(network.statistics(0, "fake0").full_posts, 2);
}

#[test]
fn unsignaled_slots_wait_for_a_later_signaled_completion() {
    let network = FakeNetwork::roce(2, 1, plain(2));
    let (mut a, b) = connected(&network);
    let signaled = a.write_to(&b, 8);
    let silent = Write { signaled: false, ..signaled };
    a.post(&[silent; 3]).unwrap();
    assert_eq!(a.completions(&network), []);
    let error = a.post(&[silent; 2]).unwrap_err();
    assert_eq!((error.posted, error.queue_full), (1, true), "delivery alone frees nothing");
    assert_eq!(a.completions(&network), []);

    let network = FakeNetwork::roce(2, 1, plain(3));
    let (mut a, b) = connected(&network);
    let signaled = a.write_to(&b, 8);
    let silent = Write { signaled: false, ..signaled };
    a.post(&[silent, silent, silent, signaled]).unwrap();
    network.deliver_all();
    assert!(a.post(&[silent]).is_err());
    assert_eq!(a.completions(&network).len(), 1);
    a.post(&[silent; 4]).unwrap();
}

#[test]
fn a_post_to_a_queue_with_too_little_room_is_partial_and_its_head_lands() {
    let network = FakeNetwork::roce(2, 1, plain(4));
    let (mut a, mut b) = connected(&network);
    b.pair.post_receives(4, 9).unwrap();
    let chain: Vec<_> = (0..6)
        .map(|i| Write { work_id: i, immediate: Some(i as u32), ..a.write_to(&b, 8) })
        .collect();
    let error = a.post(&chain).unwrap_err();
    assert_eq!((error.posted, error.queue_full), (4, true));
    let ids: Vec<_> = a.statuses(&network).into_iter().collect();
    assert_eq!(ids, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    let immediates: Vec<_> = b.completions(&network).iter().map(|c| c.kind).collect();
    let expected = [0, 1, 2, 3].map(|immediate| CompletionKind::Received { immediate, bytes: 8 });
    assert_eq!(immediates, expected);
    assert_eq!(network.violations(), []);
}

#[test]
fn injected_partial_posts_come_and_always_leave_a_completion_to_wait_for() {
    let mut cuts = 0;
    for seed in 0..50 {
        let settings = FakeSettings { partial_post_percent: 100, ..plain(seed) };
        let network = FakeNetwork::roce(2, 1, settings);
        let (mut a, b) = connected(&network);
        let write = a.write_to(&b, 8);
        if let Err(error) = a.post(&[Write { signaled: false, ..write }, write, write]) {
            assert!(error.queue_full && error.posted == 2, "seed {seed}: {error:?}");
            assert_eq!(a.completions(&network).len(), 1, "seed {seed}");
            cuts += 1;
        }
        let statistics = network.statistics(0, "fake0");
        assert_eq!(statistics.full_posts, 0);
    }
    assert!(cuts > 5, "{cuts} of 50 chains were cut");
}

#[test]
fn receives_are_counted_and_their_slots_freed_by_polling() {
    let network = FakeNetwork::roce(2, 1, plain(5));
    let (mut a, mut b) = connected(&network);
    let error = b.pair.post_receives(5, 7).unwrap_err();
    assert_eq!((error.posted, error.queue_full), (4, true));
    let write = Write { immediate: Some(3), ..a.write_to(&b, 0) };
    a.post(&[write; 2]).unwrap();
    network.deliver_all();
    assert_eq!(b.pair.post_receives(1, 7).unwrap_err().posted, 0, "not polled yet");
    assert_eq!(b.statuses(&network), [(7, 0), (7, 0)]);
    b.pair.post_receives(2, 7).unwrap();
}

#[test]
fn a_write_with_immediate_and_no_receive_is_an_error() {
    let network = FakeNetwork::roce(2, 1, plain(6));
    let (mut a, mut b) = connected(&network);
    b.pair.post_receives(1, 7).unwrap();
    let write = Write { immediate: Some(1), ..a.write_to(&b, 0) };
    a.post(&[write, Write { work_id: 2, ..write }, Write { work_id: 3, ..write }]).unwrap();
    assert_eq!(a.statuses(&network), [(1, 0), (2, 13), (3, 5)]);
    assert_eq!(rules(&network), [Rule::ReceiverNotReady]);
}

#[test]
fn an_overrun_completion_queue_is_broken_for_good() {
    let network = FakeNetwork::roce(2, 1, plain(7));
    let (mut a, b) = connected_with(&network, CAPACITIES, 2);
    a.post(&[a.write_to(&b, 8); 3]).unwrap();
    network.deliver_all();
    let mut some = [Completion::BLANK; 4];
    for _ in 0..2 {
        let error = a.queue.poll(&mut some).unwrap_err();
        assert!(matches!(error, VerbsError::CompletionQueueOverrun { capacity: 2, .. }));
        assert!(a.queue.arm().is_err());
    }
    assert_eq!(rules(&network), [Rule::CompletionQueueOverrun { capacity: 2 }]);
}

#[test]
fn queue_pairs_have_order_within_and_none_among_each_other() {
    let mut orders = BTreeSet::new();
    for seed in 0..40 {
        let network = FakeNetwork::roce(2, 1, plain(seed));
        let (mut a, b) = connected(&network);
        let mut second = a.device.queue_pair(&a.queue, CAPACITIES).unwrap();
        let mut other = b.device.queue_pair(&b.queue, CAPACITIES).unwrap();
        let (init, receive, send) = towards(&network, 0, 1, other.number());
        second.to_init(&init).unwrap();
        second.to_ready_to_receive(&receive).unwrap();
        second.to_ready_to_send(&send).unwrap();
        let (init, receive, _) = towards(&network, 1, 0, second.number());
        other.to_init(&init).unwrap();
        other.to_ready_to_receive(&receive).unwrap();
        let write = a.write_to(&b, 8);
        let chain = [0, 1, 2].map(|work_id| Write { work_id, ..write });
        a.post(&chain).unwrap();
        // SAFETY: `a` and `b` keep their buffers until the end of the test.
        unsafe { second.post_writes(&chain.map(|w| Write { work_id: w.work_id + 10, ..w })) }
            .unwrap();
        let order: Vec<_> = a.statuses(&network).into_iter().map(|(id, _)| id).collect();
        let of = |low: bool| order.iter().copied().filter(move |id| (*id < 10) == low);
        assert!(of(true).is_sorted() && of(false).is_sorted(), "seed {seed}: {order:?}");
        orders.insert(order);
        assert_eq!(network.violations(), []);
    }
    assert!(orders.len() > 5, "only {} orders in 40 seeds", orders.len());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let network = FakeNetwork::roce(2, 1, FakeSettings { seed, ..Default::default() });
        let (mut a, mut b) = connected_with(&network, Capacities { send: 64, ..CAPACITIES }, 128);
        b.pair.post_receives(4, 7).unwrap();
        let mut seen = Vec::new();
        for work_id in 0..40 {
            let write = Write { work_id, ..a.write_to(&b, 5000) };
            seen.push(u64::from(a.post(&[write, write]).is_err()));
            let mut some = [Completion::BLANK; 4];
            seen.push(a.queue.poll(&mut some).unwrap() as u64);
        }
        seen
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11), run(12));
}

/// Whether the completion channel becomes readable in time; it wakes at once if it does.
fn becomes_readable(queue: &dyn CompletionQueue, timeout: Duration) -> bool {
    let mut descriptors = [PollFd::new(queue.event_fd(), PollFlags::POLLIN)];
    poll(&mut descriptors, PollTimeout::try_from(timeout).unwrap()).unwrap() == 1
}

#[test]
fn an_armed_sleeper_is_woken_though_nobody_polls() {
    for seed in 0..20 {
        let network = FakeNetwork::roce(2, 1, plain(seed));
        let (mut a, mut b) = connected(&network);
        b.pair.post_receives(1, 7).unwrap();
        b.queue.arm().unwrap();
        a.post(&[Write { immediate: Some(1), ..a.write_to(&b, 8) }]).unwrap();
        assert!(becomes_readable(&*b.queue, Duration::from_secs(20)), "seed {seed}");
        b.queue.take_events().unwrap();
        assert!(!becomes_readable(&*b.queue, Duration::ZERO), "one event per arming");
        let mut some = [Completion::BLANK; 2];
        assert_eq!(b.queue.poll(&mut some).unwrap(), 1);
    }
}

#[test]
fn arming_is_silent_about_completions_that_are_there_already() {
    let network = FakeNetwork::roce(2, 1, plain(8));
    let (mut a, b) = connected(&network);
    a.post(&[a.write_to(&b, 8)]).unwrap();
    network.deliver_all();
    a.queue.arm().unwrap();
    assert!(!becomes_readable(&*a.queue, Duration::ZERO), "re-poll after arming is needed");
    assert_eq!(a.completions(&network).len(), 1);

    let settings = FakeSettings { spurious_event_percent: 100, ..plain(9) };
    let network = FakeNetwork::roce(2, 1, settings);
    let end = End::new(&network, 0);
    end.queue.arm().unwrap();
    assert!(becomes_readable(&*end.queue, Duration::ZERO), "a spurious event");
}

#[test]
fn limits_of_the_device_are_kept() {
    let network = FakeNetwork::roce(1, 1, plain(10));
    let end = End::new(&network, 0);
    let limits = end.device.info().unwrap().limits;
    let over = |error: VerbsError| {
        assert!(matches!(error, VerbsError::OverLimit { .. }), "{error}");
    };
    over(end.device.completion_queue(limits.max_cqe + 1).err().unwrap());
    let capacities = Capacities { send: limits.max_qp_wr + 1, ..CAPACITIES };
    over(end.device.queue_pair(&end.queue, capacities).err().unwrap());
    let pairs: Vec<_> = (1..limits.max_qp)
        .map(|_| end.device.queue_pair(&end.queue, CAPACITIES).unwrap())
        .collect();
    over(end.device.queue_pair(&end.queue, CAPACITIES).err().unwrap());
    drop(pairs);
    end.device.queue_pair(&end.queue, CAPACITIES).unwrap();
}

#[test]
fn a_queue_of_another_device_is_refused() {
    let network = FakeNetwork::roce(1, 2, plain(11));
    let end = End::new(&network, 0);
    let other = network.driver(0).open("fake1").unwrap();
    assert!(other.queue_pair(&end.queue, CAPACITIES).is_err());
}
