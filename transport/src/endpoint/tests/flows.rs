//! Message accounts of communicators.

use super::*;
use crate::wire::MESSAGE_WINDOW;

const WINDOW: u64 = MESSAGE_WINDOW as u64;

/// Sends eager messages of a communicator, numbered from `from`, until it may not or `most` are
/// sent; says how many. The receiver keeps what comes meanwhile.
fn flood(job: &mut Job, communicator: u64, from: u64, most: u64, kept: &mut Vec<Slot>) -> u64 {
    let content: Vec<u8> = (0..most).flat_map(|number| (from + number).to_le_bytes()).collect();
    let source = job.endpoints[0].open_owned(content, false).unwrap();
    let mut sent = 0;
    let mut turns_without = 0;
    // Far more turns than anything needs: a message that has not gone by then may not go.
    while sent < most && turns_without < 300 {
        let range = sent * 8..sent * 8 + 8;
        let call = signature(communicator, from + sent);
        let posting = job.endpoints[0].send_message(1, &call, 0, source, range).unwrap();
        turns_without += 1;
        if posting == Posting::Posted {
            sent += 1;
            turns_without = 0;
        }
        job.turn();
        for notice in std::mem::take(&mut job.notices[1]) {
            let Notice::Message { slot } = notice else { panic!("{notice:?}") };
            let slot = job.endpoints[1].keep(slot).unwrap();
            assert_eq!(job.endpoints[1].keep(slot).unwrap(), slot, "kept already");
            kept.push(slot);
        }
    }
    job.endpoints[0].close(source).unwrap();
    sent
}

/// Whose messages a kept slot holds, and their number, which is their payload too.
fn read(job: &mut Job, slot: Slot) -> (u64, u64) {
    let (header, payload) = job.endpoints[1].message(slot).unwrap();
    let call = header.signature();
    assert_eq!(payload, call.number.to_le_bytes());
    (call.communicator, call.number)
}

#[test]
fn a_communicator_that_nobody_receives_for_stops_itself_alone() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let mut kept = Vec::new();
        for communicator in 1..=3 {
            assert_eq!(flood(&mut job, communicator, 0, 100, &mut kept), WINDOW, "{links:?}");
        }
        assert_eq!(kept.len() as u64, 3 * WINDOW);
        // A fourth one goes on for ever, and its messages are used at once.
        for number in 0..200 {
            let mut come = Vec::new();
            assert_eq!(flood(&mut job, 4, number, 1, &mut come), 1);
            job.until("the message", |job| {
                come.extend(std::mem::take(&mut job.notices[1]).into_iter().map(|notice| {
                    let Notice::Message { slot } = notice else { panic!("{notice:?}") };
                    slot
                }));
                !come.is_empty()
            });
            assert_eq!(read(&mut job, come[0]), (4, number));
            job.endpoints[1].release(come[0]);
        }
        // The second one is received for: it alone goes on, from where it was.
        let (second, mut others): (Vec<Slot>, Vec<Slot>) =
            kept.into_iter().partition(|slot| read(&mut job, *slot).0 == 2);
        let numbers: Vec<u64> = second.iter().map(|slot| read(&mut job, *slot).1).collect();
        assert_eq!(numbers, (0..WINDOW).collect::<Vec<_>>());
        for slot in second {
            job.endpoints[1].release(slot);
            assert!(job.endpoints[1].message(slot).is_err(), "it was given back");
            job.endpoints[1].release(slot);
        }
        assert_eq!(flood(&mut job, 2, WINDOW, 100, &mut others), WINDOW);
        assert_eq!(flood(&mut job, 1, WINDOW, 1, &mut others), 0);
        assert_eq!(flood(&mut job, 3, WINDOW, 1, &mut others), 0);
        // It ended on every rank, and another one has its number.
        job.endpoints.iter_mut().for_each(|endpoint| endpoint.forget_communicator(1));
        others.retain(|slot| job.endpoints[1].message(*slot).is_ok());
        assert_eq!(others.len() as u64, 2 * WINDOW);
        assert_eq!(flood(&mut job, 1, 0, 100, &mut others), WINDOW);
        job.end();
    }
}

#[test]
fn what_answers_a_message_returns_it() {
    let mut job = job(2, Links::Pull);
    job.connect(0, 1);
    let buffers = [0, 1].map(|rank| job.endpoints[rank].open_owned(vec![0; 8], false).unwrap());
    for number in 0..4 * WINDOW {
        for (from, to) in [(0, 1), (1, 0)] {
            let sender = &mut job.endpoints[from];
            let call = signature(1, number);
            let posting = sender.send_message(to as Rank, &call, 0, buffers[from], 0..8).unwrap();
            assert_eq!(posting, Posting::Posted);
            let (header, _) = job.message(to);
            assert_eq!(header.kind(), Ok(MessageKind::Eager));
            assert_eq!(header.returned(), u32::from((number, from) != (0, 0)));
        }
    }
    job.end();
}

#[test]
fn a_peer_that_sends_more_than_its_window_is_named() {
    for links in [Links::Pull, Links::Fake(1)] {
        let mut job = job(2, links);
        job.connect(0, 1);
        let header = MessageHeader::new(MessageKind::Eager, &signature(9, 0), 0, 0);
        let mut failed = None;
        for _ in 0..=WINDOW {
            job.until("room in the link", |job| {
                let fabric = job.endpoints[0].fabric(1).unwrap();
                fabric.send_message(1, &header, &[]).unwrap() == Posting::Posted
            });
            let slot = job.wait(1, |notice| match notice {
                Notice::Message { slot } => Some(*slot),
                _ => None,
            });
            assert!(failed.is_none());
            failed = job.endpoints[1].keep(slot).err();
        }
        let failed = failed.unwrap();
        assert!(matches!(failed, Error::Protocol { rank: 1, peer: 0, .. }), "{failed}");
        assert!(failed.to_string().contains("communicator 9"), "{failed}");
        job.end();
    }
}

#[test]
fn what_was_kept_outlives_its_link_and_costs_the_next_one_nothing() {
    let mut job = job(2, Links::Pull);
    job.connect(0, 1);
    let mut kept = Vec::new();
    assert_eq!(flood(&mut job, 1, 0, 100, &mut kept), WINDOW);
    job.endpoints[1].quiesce(0);
    job.wait(0, |notice| matches!(notice, Notice::Broken { peer: 1 }).then_some(()));
    job.endpoints[0].quiesce(1);
    job.connect(0, 1);
    let mut fresh = Vec::new();
    assert_eq!(flood(&mut job, 1, WINDOW, 100, &mut fresh), WINDOW);
    for (number, slot) in kept.into_iter().enumerate() {
        assert_eq!(read(&mut job, slot), (1, number as u64));
        job.endpoints[1].release(slot);
    }
    assert_eq!(flood(&mut job, 1, 2 * WINDOW, 1, &mut fresh), 0, "credit of the link before");
    job.end();
}
