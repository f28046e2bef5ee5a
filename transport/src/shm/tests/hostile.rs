//! Peers that write anything into the segment: they break their own link and nothing else.

use std::sync::atomic::Ordering;

use super::super::segment::{Direction, Segment, Transfer};
use super::*;
use crate::wire::{BLOCKS_MAX, HANDLE_BITS, MESSAGE_HEADER_BYTES, MESSAGE_SLOTS};

/// A victim (rank 1) and the segment as its peer can write it.
struct Attack {
    attacker: TestRank,
    victim: TestRank,
    buffer: Vec<u8>,
    grant: Grant,
    data: Vec<u8>,
}

const BLOCK: u64 = 1000;
/// Bytes before and behind the granted part of the buffer, which must never change.
const MARGIN: usize = 5000;
const GRANTED: usize = 10_000;

impl Attack {
    fn new(settings: ShmSettings) -> Self {
        let (attacker, mut victim) = pair(settings);
        let mut buffer = vec![0x77; GRANTED + 2 * MARGIN];
        let grant = victim.grant(&mut buffer[MARGIN..MARGIN + GRANTED], BLOCK);
        Self { attacker, victim, buffer, grant, data: pattern(9, GRANTED) }
    }

    fn segment(&self) -> &Segment {
        self.attacker.fabric.segment(1).expect("the attacker's end is up")
    }

    /// What the victim receives from, and what it sends in.
    fn directions(&self) -> (Direction, Direction) {
        (self.segment().outgoing(), self.segment().incoming())
    }

    fn set(&self, offset: usize, value: u64) {
        self.segment().mapping.word(offset).store(value, Ordering::SeqCst);
    }

    /// Lets the victim do all it can; its events.
    fn provoke(&mut self) -> Vec<Event> {
        let mut seen = Vec::new();
        let span = span(&self.data);
        for number in 0..6 {
            let _ = self.victim.fabric.send_message(0, &header(number, 3), b"abc");
            let send = BlockSend {
                peer: 0,
                grant: &self.grant,
                span: &span,
                range: 0..BLOCK,
                offset: 0,
                block: 0,
                token: number,
            };
            let _ = self.victim.fabric.send_block(&send);
            self.victim.fabric.flush().unwrap();
            self.victim.poll();
            while let Some(event) = self.victim.events.pop() {
                if let Event::Message { slot } = event {
                    let _ = self.victim.fabric.message(slot).map(|(_, payload)| payload.len());
                    self.victim.fabric.release(slot);
                }
                seen.push(event);
            }
        }
        let margins = self.buffer[..MARGIN].iter().chain(&self.buffer[MARGIN + GRANTED..]);
        assert!(margins.copied().all(|byte| byte == 0x77), "written outside the granted buffer");
        seen
    }

    fn expect_broken(&mut self, reason: &str) {
        let events = self.provoke();
        assert!(events.contains(&Event::Broken { peer: 0 }), "{reason}: {events:?}");
        let found = self.victim.fabric.break_reason(0).unwrap();
        assert!(found.contains(reason), "{found} instead of {reason}");
        assert!(!self.victim.fabric.is_up(0));
        self.victim.fabric.quiesce(0);
    }
}

#[test]
fn every_word_out_of_its_bounds_breaks_the_link_and_says_so() {
    for settings in both_ways() {
        let run = |place: fn(&Direction, &Direction) -> usize, value: u64, reason: &str| {
            let mut attack = Attack::new(settings);
            let (into_victim, from_victim) = attack.directions();
            attack.set(place(&into_victim, &from_victim), value);
            attack.expect_broken(reason);
        };
        for value in [2, 3, 17, u64::MAX] {
            run(|d, _| d.slot(0), value, "a message's stamp");
            run(|d, _| d.descriptor(0, 0), value, "a descriptor's stamp");
        }
        for value in [100, 1 << 40, u64::MAX] {
            run(|_, d| d.done(), value, "the count of finished blocks");
        }
    }
}

#[test]
fn counts_of_credits_and_chunks_out_of_bounds_break_the_link() {
    for value in [17, u64::MAX] {
        let mut attack = Attack::new(ShmSettings::new(0));
        let (_, from_victim) = attack.directions();
        attack.set(from_victim.released(), value);
        for _ in 0..MESSAGE_SLOTS {
            let _ = attack.victim.send(0, 1, &[]);
        }
        attack.expect_broken("the count of released messages");
    }
    let bounce = ShmSettings { cma: false, ..ShmSettings::new(0) };
    for value in [9, u64::MAX] {
        let mut attack = Attack::new(bounce);
        let (into_victim, _) = attack.directions();
        write_descriptor(&attack, Transfer::Bounce.code(), |_| {});
        attack.set(into_victim.filled(), value);
        attack.expect_broken("the count of filled chunks");
    }
    for value in [1000, u64::MAX] {
        let mut attack = Attack::new(ShmSettings { chunks: 2, ..bounce });
        let (_, from_victim) = attack.directions();
        attack.set(from_victim.emptied(), value);
        attack.expect_broken("the count of emptied chunks");
    }
}

/// Writes a descriptor of block 0 that is right but for `change` of its words.
fn write_descriptor(attack: &Attack, transfer: u64, change: impl FnOnce(&mut [u64; 6])) {
    let (into_victim, _) = attack.directions();
    let address = attack.data.as_ptr().expose_provenance() as u64;
    let head = u64::from(attack.grant.handle) | transfer << 16;
    let mut words = [1, head, attack.grant.epoch.into(), address, BLOCK, 0];
    change(&mut words);
    for (place, value) in words.into_iter().enumerate().rev() {
        attack.set(into_victim.descriptor(0, place), value);
    }
}

#[test]
fn descriptors_are_checked_word_by_word() {
    let pull = Transfer::Pull.code();
    let run = |change: fn(&mut [u64; 6]), reason: &str| {
        let mut attack = Attack::new(ShmSettings::new(0));
        write_descriptor(&attack, pull, change);
        attack.expect_broken(reason);
    };
    run(|words| words[1] |= 1 << HANDLE_BITS, "the handle");
    run(|words| words[1] = (words[1] & !0xffff_0000) | 3 << 16, "the way of transfer");
    run(|words| words[1] |= u64::from(BLOCKS_MAX) << 32, "the block number");
    run(|words| words[2] |= 1 << 32, "the epoch");
    run(|words| words[3] = u64::MAX - 10, "the address");
    run(|words| words[3] = 64, "is not mapped");
    run(|words| words[3] = 1 << 63, "reading the peer's memory");
    run(|words| words[4] = 0, "the length");
    run(|words| words[4] = u64::MAX, "the address");
    run(|words| (words[4], words[5]) = (2, u64::MAX), "the length is 2");
    run(|words| words[4] = BLOCK - 1, "is not a block of this rank's buffer");
    run(|words| words[4] = BLOCK + 1, "is not a block of this rank's buffer");
    run(|words| words[5] = GRANTED as u64, "is not a block of this rank's buffer");
    run(|words| words[5] = 1, "is not a block of this rank's buffer");

    // One that is right, to prove that the wrong ones failed by what was changed.
    let mut attack = Attack::new(ShmSettings::new(0));
    write_descriptor(&attack, pull, |_| {});
    let handle = attack.grant.handle;
    assert!(attack.provoke().contains(&Event::Block { peer: 0, handle, block: 0 }));
    assert!(attack.buffer[MARGIN..MARGIN + 1000] == attack.data[..1000]);
}

#[test]
fn a_pull_is_refused_where_this_rank_asked_for_the_segment() {
    let mut attack = Attack::new(ShmSettings { cma: false, ..ShmSettings::new(0) });
    write_descriptor(&attack, Transfer::Pull.code(), |_| {});
    attack.expect_broken("the way of transfer");
}

#[test]
fn a_message_that_says_it_is_longer_than_a_slot_breaks_the_link() {
    let mut attack = Attack::new(ShmSettings::new(0));
    let (into_victim, _) = attack.directions();
    let at = into_victim.message(0);
    // The length field is bytes 26 and 27 of the header.
    attack.set(at + 24, u64::MAX);
    attack.set(into_victim.slot(0), 1);
    attack.expect_broken("payload of 65535 bytes does not fit");
}

#[test]
fn messages_that_are_held_are_out_of_reach() {
    let slots = u64::from(MESSAGE_SLOTS);
    let mut attack = Attack::new(ShmSettings::new(0));
    let (into_victim, _) = attack.directions();
    for number in 0..slots {
        assert_eq!(attack.attacker.send(1, number, b"whole"), Posting::Posted);
        let (slot, _, _) = attack.victim.expect_message();
        assert_eq!(slot.sequence, number);
    }
    // The attacker overruns its window: it writes the first slot again and says that it is there.
    attack.set(into_victim.message(0) + 8, 99);
    attack.set(into_victim.message(0) + MESSAGE_HEADER_BYTES, 0);
    attack.set(into_victim.slot(0), slots + 1);
    assert_eq!(attack.victim.next(), None);
    for sequence in 0..slots {
        let held = attack.victim.read(Slot { peer: 0, sequence });
        assert_eq!(held, (sequence, b"whole".to_vec()));
    }
}

#[test]
fn the_way_to_receive_blocks_must_be_one_that_there_is() {
    let (mut a, mut b) = (TestRank::new(ShmSettings::new(0)), TestRank::new(ShmSettings::new(1)));
    let (info_a, info_b) = (a.info(), b.info());
    let offer = a.connector.offer(&info_b, 0).unwrap();
    let answer = b.connector.accept(&info_a, &offer).unwrap();
    a.connector.complete(&info_b, &answer).unwrap();
    assert!(a.fabric.is_up(1));
    a.fabric.segment(1).unwrap().set_transfer_code(77);
    b.connector.confirm(&info_a).unwrap();
    assert!(!b.fabric.is_up(0));
    assert_eq!(b.next(), Some(Event::Broken { peer: 0 }));
    assert!(b.fabric.break_reason(0).unwrap().contains("the way to receive blocks"));
}

/// Random words, some likely to pass for right ones, all over the control part of the segment.
fn scribble(attack: &Attack, random: &mut fastrand::Rng) {
    let (into, from) = attack.directions();
    for _ in 0..random.usize(1..40) {
        let d = if random.bool() { &into } else { &from };
        let place = match random.u32(0..8) {
            0 => d.starved(),
            1 => d.released(),
            2 => d.done(),
            3 => d.filled(),
            4 => d.emptied(),
            5 => d.descriptor(random.u64(0..4), random.usize(0..8)),
            6 => d.slot(random.u64(0..4)),
            _ => d.message(random.u64(0..4)) + 8 * random.usize(0..12),
        };
        let value = match random.u32(0..6) {
            0 => random.u64(..),
            1 => u64::MAX,
            2 => attack.data.as_ptr().expose_provenance() as u64,
            3 => u64::from(attack.grant.handle) | 1 << 16 | random.u64(0..12) << 32,
            _ => random.u64(0..12),
        };
        attack.set(place, value);
    }
}

#[test]
fn random_scribbles_crash_nothing_and_write_nowhere_else() {
    let mut broken = 0;
    for seed in 0..600 {
        for settings in both_ways() {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut attack = Attack::new(ShmSettings { descriptors: 4, ..settings });
            let before = broken;
            for _ in 0..4 {
                if attack.attacker.fabric.segment(1).is_some() {
                    scribble(&attack, &mut random);
                }
                broken += usize::from(attack.provoke().contains(&Event::Broken { peer: 0 }));
            }
            let reason = attack.victim.fabric.break_reason(0);
            assert_eq!(broken - before, usize::from(reason.is_some()), "seed {seed}: {reason:?}");
        }
    }
    // The others were scribbled on only where nobody looks.
    assert!(broken > 1100, "only {broken} of 1200 links broke");
}
