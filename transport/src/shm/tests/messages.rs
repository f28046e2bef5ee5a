//! Messages: contents, order, credits.

use super::*;
use crate::wire::{MESSAGE_PAYLOAD_MAX, MESSAGE_SLOTS};

const SLOTS: u64 = MESSAGE_SLOTS as u64;

#[test]
fn messages_of_every_size_come_in_order_and_whole() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    let sizes = [0, 1, 7, 8, 63, 64, 65, 1000, 4095, MESSAGE_PAYLOAD_MAX];
    for round in 0..20 {
        for (n, size) in sizes.into_iter().enumerate() {
            let number = (round * sizes.len() + n) as u64;
            assert_eq!(a.send(1, number, &pattern(number, size)), Posting::Posted);
            let reply = pattern(!number, size);
            assert_eq!(b.send(0, !number, &reply), Posting::Posted);

            let (slot, got, payload) = b.expect_message();
            assert_eq!((slot.peer, slot.sequence), (0, number));
            assert_eq!((got, payload), (number, pattern(number, size)));
            b.fabric.release(slot);
            let (slot, got, payload) = a.expect_message();
            assert_eq!((slot.peer, got, payload), (1, !number, reply));
            a.fabric.release(slot);
        }
    }
}

#[test]
fn a_full_window_turns_messages_away_until_slots_come_back() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    for number in 0..SLOTS {
        assert_eq!(a.send(1, number, &[1]), Posting::Posted);
    }
    assert_eq!(a.send(1, SLOTS, &[1]), Posting::Full);
    assert!(!a.poll(), "nothing moved at the sender");

    let (first, number, _) = b.expect_message();
    assert_eq!(number, 0);
    assert_eq!(a.send(1, SLOTS, &[1]), Posting::Full, "taken is not released");
    b.fabric.release(first);
    b.fabric.flush().unwrap();
    assert!(a.poll(), "a credit counts as progress for who was turned away");
    assert_eq!(a.send(1, SLOTS, &[2]), Posting::Posted);
    assert_eq!(a.send(1, SLOTS + 1, &[2]), Posting::Full);
    for number in 1..=SLOTS {
        let (slot, got, payload) = b.expect_message();
        assert_eq!((got, payload), (number, vec![1 + u8::from(number == SLOTS)]));
        b.fabric.release(slot);
    }
    assert_eq!(b.next(), None);
}

#[test]
fn slots_released_out_of_order_are_credited_in_order() {
    let mut random = fastrand::Rng::with_seed(11);
    let (mut a, mut b) = pair(ShmSettings::new(0));
    let (mut sent, mut taken) = (0, 0);
    let mut held: Vec<(Slot, Vec<u8>)> = Vec::new();
    let mut credited = 0;
    let mut released = std::collections::BTreeSet::new();
    for _ in 0..5000 {
        let payload = pattern(sent, random.usize(0..100));
        let expected = if sent - credited < SLOTS { Posting::Posted } else { Posting::Full };
        assert_eq!(a.send(1, sent, &payload), expected, "{sent} sent, {credited} credited");
        if expected == Posting::Posted {
            sent += 1;
            held.push({
                let (slot, number, got) = b.expect_message();
                assert_eq!((slot.sequence, number), (taken, taken));
                taken += 1;
                (slot, got)
            });
        }
        if held.len() as u64 == SLOTS || random.bool() {
            let (slot, payload) = held.swap_remove(random.usize(0..held.len()));
            // What was taken rests until it is released, whatever was released before it.
            assert_eq!(b.read(slot), (slot.sequence, payload));
            b.fabric.release(slot);
            assert!(b.fabric.message(slot).is_err(), "a released slot holds no message");
            b.fabric.release(slot);
            released.insert(slot.sequence);
            while released.remove(&credited) {
                credited += 1;
            }
        }
        if held.is_empty() {
            assert_eq!(credited, sent);
        }
    }
}

#[test]
fn messages_without_events_left_wait_for_the_next_poll() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    b.events = Events::with_capacity(3);
    for number in 0..10 {
        assert_eq!(a.send(1, number, &[0]), Posting::Posted);
    }
    let mut seen = 0;
    while seen < 10 {
        assert!(b.poll());
        while let Some(event) = b.events.pop() {
            let Event::Message { slot } = event else { panic!("{event:?}") };
            assert_eq!(slot.sequence, seen);
            seen += 1;
        }
    }
}

#[test]
fn what_cannot_be_sent_is_an_error() {
    let (mut a, _b) = pair(ShmSettings::new(0));
    let error = a.fabric.send_message(1, &header(0, 4), &[0; 5]).unwrap_err();
    assert!(error.to_string().contains("header does not say so"), "{error}");
    let error = a.fabric.send_message(9, &header(0, 4), &[0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "rank 0: link to rank 9: shared memory: there is no link (yet)");
    let nothing = Slot { peer: 1, sequence: 0 };
    assert!(a.fabric.message(nothing).is_err());
    a.fabric.release(nothing);
}
