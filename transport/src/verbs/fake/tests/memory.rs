//! Protection, inline data and when bytes move.

use super::*;

#[test]
fn bytes_and_immediate_arrive_on_both_link_layers() {
    for network in [FakeNetwork::roce(2, 1, plain(1)), FakeNetwork::infiniband(2, 1, plain(1))] {
        let (mut a, mut b) = connected(&network);
        b.pair.post_receives(1, 77).unwrap();
        a.memory.iter_mut().zip(0..).for_each(|(byte, i)| *byte = (i % 251) as u8);
        a.post(&[Write { immediate: Some(0xdead_beef), ..a.write_to(&b, 5000) }]).unwrap();
        let completions = b.completions(&network);
        let kind = CompletionKind::Received { immediate: 0xdead_beef, bytes: 5000 };
        let queue_pair = b.pair.number();
        assert_eq!(completions, [Completion { work_id: 77, queue_pair, kind }]);
        assert_eq!(b.memory[..5000], a.memory[..5000]);
        assert!(b.memory[5000..].iter().all(|byte| *byte == 0));
        assert_eq!(a.statuses(&network), [(1, 0)]);
        assert_eq!(network.violations(), []);
        let report = &network.queue_pairs(0)[0];
        assert_eq!((report.writes, report.bytes, report.state), (1, 5000, "RTS"));
    }
}

#[test]
fn inline_bytes_are_captured_at_the_post_and_others_at_delivery() {
    for inline in [true, false] {
        let network = FakeNetwork::roce(2, 1, plain(2));
        let (mut a, b) = connected(&network);
        a.memory[0] = 1;
        network.freeze(0);
        let write =
            Write { inline, lkey: if inline { 0 } else { a.region.lkey() }, ..a.write_to(&b, 8) };
        a.post(&[write]).unwrap();
        a.memory[0] = 2;
        network.deliver_all();
        assert_eq!(b.memory[0], 0, "nothing lands at the post");
        network.thaw(0);
        assert_eq!(a.statuses(&network), [(1, 0)]);
        assert_eq!(b.memory[0], if inline { 1 } else { 2 });
    }
}

#[test]
fn inline_is_limited_and_may_be_nothing_at_all() {
    for (limit, bytes) in [(0, 1), (16, 17), (64, 65)] {
        let settings = FakeSettings { max_inline_bytes: limit, ..plain(3) };
        let network = FakeNetwork::roce(2, 1, settings);
        let (mut a, b) = connected(&network);
        assert_eq!(a.pair.max_inline_bytes(), limit);
        let write = Write { inline: true, ..a.write_to(&b, limit) };
        a.post(&[write]).unwrap();
        let error = a.post(&[write, Write { bytes, ..write }]).unwrap_err();
        assert_eq!((error.posted, error.queue_full), (1, false));
        assert_eq!(rules(&network), [Rule::InlineTooLong { bytes, limit }]);
    }
}

/// Writes, with one thing wrong, and the status it must end with.
fn refused(status: u32, break_it: impl Fn(&FakeNetwork, &mut End, &mut End, &mut Write)) -> Rule {
    let network = FakeNetwork::roce(2, 2, plain(4));
    let (mut a, mut b) = connected(&network);
    b.memory.fill(0x55);
    a.memory.fill(0xaa);
    let mut write = a.write_to(&b, 100);
    break_it(&network, &mut a, &mut b, &mut write);
    a.post(&[write, Write { work_id: 2, signaled: false, ..write }]).unwrap();
    assert_eq!(a.statuses(&network), [(1, status), (2, 5)], "the unsignaled one flushes too");
    assert!(b.memory.iter().all(|byte| *byte == 0x55), "nothing landed");
    assert_eq!(network.queue_pairs(0)[0].state, "ERR");
    let peer = if status == 10 { "ERR" } else { "RTS" };
    assert_eq!(network.queue_pairs(1)[0].state, peer);
    let [rule] = &rules(&network)[..] else { panic!("{:?}", rules(&network)) };
    rule.clone()
}

#[test]
fn local_ranges_must_be_registered() {
    let is_local = |rule| assert!(matches!(rule, Rule::LocalProtection { .. }), "{rule:?}");
    is_local(refused(4, |_, _, _, write| write.lkey += 1));
    is_local(refused(4, |_, a, _, write| write.lkey = a.region.rkey()));
    is_local(refused(4, |_, _, _, write| write.local += BUFFER_BYTES - 99));
    is_local(refused(4, |_, _, _, write| write.local -= 1));
    is_local(refused(4, |_, _, b, write| write.lkey = b.region.lkey()));
    is_local(refused(4, |_, a, _, _| {
        a.region = register(&a.device, &mut a.memory[..], Access::LocalRead);
    }));
    is_local(refused(4, |network, a, _, write| {
        let other = network.driver(0).open("fake1").unwrap();
        a.region = register(&other, &mut a.memory[..], Access::LocalRead);
        write.lkey = a.region.lkey();
    }));
}

#[test]
fn remote_ranges_must_be_registered_for_remote_writes() {
    let is_remote = |rule| assert!(matches!(rule, Rule::RemoteAccess { .. }), "{rule:?}");
    is_remote(refused(10, |_, _, _, write| write.rkey += 1));
    is_remote(refused(10, |_, _, b, write| write.rkey = b.region.lkey()));
    is_remote(refused(10, |_, _, _, write| write.remote += BUFFER_BYTES as u64 - 99));
    is_remote(refused(10, |_, _, _, write| write.remote = u64::MAX - 5));
    is_remote(refused(10, |_, _, b, write| {
        b.region = register(&b.device, &mut b.memory[..], Access::LocalRead);
        write.rkey = b.region.rkey();
    }));
    is_remote(refused(10, |network, _, b, write| {
        let other = network.driver(1).open("fake1").unwrap();
        b.region = register(&other, &mut b.memory[..], Access::RemoteWrite);
        write.rkey = b.region.rkey();
    }));
}

#[test]
fn a_write_of_no_bytes_needs_no_memory() {
    let network = FakeNetwork::roce(2, 1, plain(5));
    let (mut a, mut b) = connected(&network);
    b.pair.post_receives(1, 7).unwrap();
    let write = Write { local: 0, lkey: 0, remote: 0, rkey: 0, ..a.write_to(&b, 0) };
    a.post(&[Write { immediate: Some(5), ..write }]).unwrap();
    assert_eq!(a.statuses(&network), [(1, 0)]);
    assert_eq!(network.violations(), []);
    assert_eq!(network.statistics(0, "fake0").packets, 1);
}

#[test]
fn long_writes_land_in_pieces_front_first() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let settings = FakeSettings { steps_per_call: 2, ..plain(seed) };
        let network = FakeNetwork::roce(2, 1, settings);
        let (mut a, mut b) = connected(&network);
        a.memory.fill(0xaa);
        a.post(&[a.write_to(&b, 8000)]).unwrap();
        b.pair.to_error().unwrap();
        let landed = b.memory.iter().take_while(|byte| **byte == 0xaa).count();
        assert!(b.memory[landed..].iter().all(|byte| *byte == 0), "seed {seed}");
        lengths.insert(landed);
        network.deliver_all();
        let after = b.memory.iter().take_while(|byte| **byte == 0xaa).count();
        assert_eq!(after, landed, "seed {seed}: bytes landed after the move to ERR");
        assert_eq!(network.violations(), []);
    }
    assert!(lengths.len() > 4 && lengths.contains(&0), "{lengths:?}");
    assert!(lengths.iter().all(|&length| length == 8000 || length % 1024 == 0), "{lengths:?}");
}

#[test]
fn statistics_tell_packets_bytes_and_user_memory() {
    let network = FakeNetwork::roce(2, 1, plain(6));
    let (mut a, mut b) = connected(&network);
    b.pair.post_receives(4, 7).unwrap();
    let start = b.address() as usize;
    network.mark_user_memory(start..start + 4096);
    let own = a.address() as usize;
    network.mark_user_memory(own..own + 8);
    network.record_writes(true);
    let write = a.write_to(&b, 8);
    let long = Write { bytes: 2049, immediate: Some(6), ..write };
    let outside = Write { bytes: 10, remote: write.remote + 4090, ..write };
    a.post(&[write, long, outside]).unwrap();
    assert_eq!(a.statuses(&network).len(), 3);
    let sender = network.statistics(0, "fake0");
    assert_eq!((sender.packets, sender.bytes, sender.writes, sender.immediates), (5, 2067, 3, 1));
    assert_eq!(sender.bytes_from_user_memory, 8);
    let receiver = network.statistics(1, "fake0");
    assert_eq!(receiver.receives_used, 1);
    assert_eq!(receiver.bytes_elsewhere, 10);
    assert_eq!(receiver.bytes_into_user_memory, 2057);
    let landed = network.take_writes();
    assert_eq!(landed.iter().map(|write| write.bytes).collect::<Vec<_>>(), [8, 2049, 10]);
    assert_eq!((landed[1].immediate, landed[1].to_host), (Some(6), 1));
    assert!(network.take_writes().is_empty());
    let range = own..own + 8;
    network.unmark_user_memory(&range);
    a.post(&[write]).unwrap();
    network.deliver_all();
    assert_eq!(network.statistics(0, "fake0").bytes_from_user_memory, 8);
}

#[test]
fn registration_has_limits() {
    let network = FakeNetwork::roce(1, 1, plain(7));
    let end = End::new(&network, 0);
    // SAFETY: an empty range needs no memory.
    let empty = unsafe { end.device.register(std::ptr::null_mut(), 0, Access::LocalRead) };
    assert!(empty.is_err());
}
