//! Links that end: quiesced, closed, replaced; and what is read from a sender that gave up.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Grants a buffer of one block at `b` and posts it at `a`.
fn post_one(a: &mut TestRank, b: &mut TestRank, data: &[u8], buffer: &mut [u8]) {
    let grant = b.grant(buffer, data.len() as u64);
    let posting = a.send_block(b.rank, &grant, &span(data), 0, data.len() as u64);
    assert_eq!(posting, Posting::Posted);
    a.fabric.flush().unwrap();
}

#[test]
fn a_block_given_up_in_the_middle_is_not_reported() {
    for settings in both_ways() {
        let (mut a, mut b) = pair(settings);
        let mut data = pattern(1, 8 << 20);
        let mut buffer = vec![0; 8 << 20];
        post_one(&mut a, &mut b, &data, &mut buffer);
        assert!(b.poll() && b.events.is_empty(), "begun, not finished");
        assert!(a.fabric.has_outstanding(1));
        a.fabric.quiesce(1);
        assert!(!a.fabric.has_outstanding(1));
        data.fill(0xee);
        let event = b.wait();
        assert_eq!(event, Event::Broken { peer: 0 }, "{settings:?}");
        assert_eq!(b.fabric.break_reason(0).unwrap(), "the peer closed its end");
        assert_eq!(a.fabric.break_reason(1).unwrap(), "this rank closed it");
        assert!(!b.poll() && b.events.is_empty(), "broken is reported once");
    }
}

/// The sender gives up at any moment and writes into its memory at once; the receiver must never
/// report a block that holds one of the newer bytes.
#[test]
fn no_torn_block_is_ever_reported() {
    const BYTES: usize = 96 << 10;
    let mut random = fastrand::Rng::with_seed(21);
    let mut a = TestRank::new(ShmSettings::new(0));
    let mut b = TestRank::new(ShmSettings::new(1));
    let mut data = vec![0; BYTES];
    let mut buffer = vec![0; BYTES];
    let (mut whole, mut given_up) = (0, 0);
    for round in 0..600 {
        connect(&mut a, &mut b);
        data.fill(1);
        buffer.fill(0);
        let grant = b.grant(&mut buffer, BYTES as u64);
        let _ = a.send_block(1, &grant, &span(&data), 0, BYTES as u64);
        a.fabric.flush().unwrap();
        let started = AtomicU32::new(0);
        let delay = random.u32(0..3000);
        let event = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                started.store(1, Ordering::SeqCst);
                b.wait()
            });
            while started.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..delay {
                std::hint::spin_loop();
            }
            a.fabric.quiesce(1);
            data.fill(2);
            receiver.join().unwrap()
        });
        match event {
            Event::Block { .. } => {
                whole += 1;
                assert!(buffer.iter().all(|byte| *byte == 1), "torn in round {round}");
                assert_eq!(b.wait(), Event::Broken { peer: 0 });
            }
            Event::Broken { peer: 0 } => given_up += 1,
            other => panic!("{other:?}"),
        }
        b.receives.close(grant.handle);
        b.fabric.quiesce(0);
    }
    assert!(whole > 0 && given_up > 0, "{whole} whole, {given_up} given up: not a race");
}

#[test]
fn a_receiver_that_quiesced_is_not_written_any_more() {
    for settings in both_ways() {
        let (mut a, mut b) = pair(settings);
        let data = pattern(1, 4 << 20);
        let mut buffer = vec![0; 4 << 20];
        post_one(&mut a, &mut b, &data, &mut buffer);
        assert!(b.poll());
        b.fabric.quiesce(0);
        let before = buffer.clone();
        assert!(a.fabric.has_outstanding(1), "until it is quiesced here too");
        assert_eq!(a.wait(), Event::Broken { peer: 1 });
        assert!(a.fabric.has_outstanding(1));
        a.fabric.quiesce(1);
        assert!(!a.fabric.has_outstanding(1));
        while b.poll() {}
        assert!(b.events.is_empty());
        assert!(buffer == before);
    }
}

#[test]
fn what_was_sent_before_the_end_arrives_before_the_end() {
    for settings in both_ways() {
        let (mut a, mut b) = pair(settings);
        for number in 0..5 {
            assert_eq!(a.send(1, number, &[number as u8]), Posting::Posted);
        }
        drop(a);
        for number in 0..5 {
            let (slot, got, payload) = b.expect_message();
            assert_eq!((got, payload), (number, vec![number as u8]));
            if number % 2 == 0 {
                b.fabric.release(slot);
            }
        }
        assert_eq!(b.wait(), Event::Broken { peer: 0 });
        // Messages that are not released stay readable until the link is quiesced.
        assert_eq!(b.read(Slot { peer: 0, sequence: 3 }).0, 3);
        b.fabric.quiesce(0);
        assert!(b.fabric.message(Slot { peer: 0, sequence: 3 }).is_err());
    }
}

#[test]
fn bounced_bytes_that_are_all_there_outlive_their_sender() {
    let settings = ShmSettings { cma: false, ..ShmSettings::new(0) };
    let (mut a, mut b) = pair(settings);
    let data = pattern(1, 300_000);
    let mut buffer = vec![0; 300_000];
    post_one(&mut a, &mut b, &data, &mut buffer);
    assert_eq!(a.wait(), Event::Sent { peer: 1, token: token(1, 0) });
    drop(a);
    assert!(matches!(b.wait(), Event::Block { block: 0, .. }));
    assert!(buffer == data);
    assert_eq!(b.wait(), Event::Broken { peer: 0 });
}

#[test]
fn a_link_can_be_set_up_anew_and_old_slots_are_not_its() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    assert_eq!(a.send(1, 7, b"old"), Posting::Posted);
    let (old, _, _) = b.expect_message();
    a.fabric.quiesce(1);
    assert_eq!(b.wait(), Event::Broken { peer: 0 });
    assert!(!b.fabric.is_up(0));
    for round in 0..5 {
        connect(&mut a, &mut b);
        assert_eq!(a.send(1, round, b"new"), Posting::Posted);
        let (new, number, payload) = b.expect_message();
        assert_eq!((number, payload.as_slice()), (round, b"new".as_slice()));
        assert!(new.sequence > old.sequence);
        b.fabric.release(old);
        assert_eq!(b.read(new).1, b"new", "released by an old slot");
        assert!(b.fabric.message(old).is_err());
        assert_eq!(b.fabric.break_reason(0), None);
        a.fabric.quiesce(1);
        b.fabric.quiesce(0);
    }
}

#[test]
fn a_live_link_that_is_set_up_anew_breaks_first() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    // The initiator lost its end; the acceptor has not noticed when the new offer comes.
    let (info_a, info_b) = (a.info(), b.info());
    a.fabric.quiesce(1);
    let offer = a.connector.offer(&info_b, 0).unwrap();
    let answer = b.connector.accept(&info_a, &offer).unwrap();
    a.connector.complete(&info_b, &answer).unwrap();
    b.connector.confirm(&info_a).unwrap();
    assert_eq!(b.next(), Some(Event::Broken { peer: 0 }));
    b.fabric.quiesce(0);
    assert!(b.fabric.is_up(0) && a.fabric.is_up(1));
    assert_eq!(a.send(1, 3, b"again"), Posting::Posted);
    assert_eq!(b.expect_message().1, 3);
}
