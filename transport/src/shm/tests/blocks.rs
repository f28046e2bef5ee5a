//! Blocks: contents, order, rings, ranges, epochs.

use super::*;

/// Moves `data` from `a` to `b` in blocks, posted in the order given; both poll in one thread.
fn transfer(
    a: &mut TestRank,
    b: &mut TestRank,
    data: &[u8],
    block_bytes: u64,
    order: &[u32],
) -> Vec<u8> {
    let mut buffer = vec![0; data.len()];
    let grant = b.grant(&mut buffer, block_bytes);
    let span = span(data);
    let mut waiting = order.iter().copied().peekable();
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + PATIENCE;
    while sent.len() < order.len() || came.len() < order.len() {
        while let Some(block) = waiting.peek() {
            if a.send_block(b.rank, &grant, &span, *block, block_bytes) == Posting::Full {
                break;
            }
            waiting.next();
        }
        a.fabric.flush().unwrap();
        while let Some(event) = b.next() {
            let Event::Block { peer, handle, block } = event else { panic!("{event:?}") };
            assert_eq!((peer, handle), (a.rank, grant.handle));
            came.push(block);
        }
        while let Some(event) = a.next() {
            let Event::Sent { peer, token } = event else { panic!("{event:?}") };
            assert_eq!(peer, b.rank);
            sent.push(token);
        }
        assert!(Instant::now() < deadline, "{came:?} of {order:?} came");
    }
    assert_eq!(came, order);
    assert_eq!(sent, order.iter().map(|block| token(b.rank, *block)).collect::<Vec<_>>());
    assert!(!a.fabric.has_outstanding(b.rank));
    b.receives.close(grant.handle);
    buffer
}

#[test]
fn blocks_of_every_size_arrive_byte_for_byte_in_any_order() {
    for settings in both_ways() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut a, mut b) = pair(settings);
        for (bytes, block_bytes) in [
            (1, 1),
            (7, 3),
            (4096, 4096),
            (65_537, 4096),
            (65_536 * 8 * 3 + 1, 65_536),
            ((1 << 20) + 3, 10_000),
            (5 << 20, (1 << 20) + 1),
            ((8 << 20) + 5, 8 << 20),
        ] {
            let data = pattern(bytes as u64, bytes);
            let mut order: Vec<u32> = (0..(bytes as u64).div_ceil(block_bytes) as u32).collect();
            random.shuffle(&mut order);
            let got = transfer(&mut a, &mut b, &data, block_bytes, &order);
            assert!(got == data, "{bytes} bytes in blocks of {block_bytes}, {settings:?}");
            let got = transfer(&mut b, &mut a, &data, block_bytes, &order);
            assert!(got == data, "{bytes} bytes back, {settings:?}");
        }
    }
}

#[test]
fn small_rings_wrap_many_times() {
    for settings in both_ways() {
        for (descriptors, chunks, chunk_bytes) in [(1, 1, 4096), (4, 2, 4096), (2, 5, 8192)] {
            let settings = ShmSettings { descriptors, chunks, chunk_bytes, ..settings };
            let (mut a, mut b) = pair(settings);
            let data = pattern(5, 300_001);
            let order: Vec<u32> = (0..300_001_u32.div_ceil(5000)).rev().collect();
            assert!(transfer(&mut a, &mut b, &data, 5000, &order) == data, "{settings:?}");
        }
    }
}

#[test]
fn a_full_ring_of_descriptors_turns_blocks_away_until_one_is_done() {
    for settings in both_ways() {
        let (mut a, mut b) = pair(ShmSettings { descriptors: 4, ..settings });
        let data = pattern(1, 500);
        let mut buffer = vec![0; 500];
        let grant = b.grant(&mut buffer, 100);
        let span = span(&data);
        for block in 0..4 {
            assert_eq!(a.send_block(1, &grant, &span, block, 100), Posting::Posted);
        }
        assert_eq!(a.send_block(1, &grant, &span, 4, 100), Posting::Full);
        assert!(a.fabric.has_outstanding(1));
        a.fabric.flush().unwrap();
        for block in 0..4 {
            assert_eq!(b.next(), Some(Event::Block { peer: 0, handle: grant.handle, block }));
        }
        // The place is free when its `Sent` was taken, not before.
        assert_eq!(a.send_block(1, &grant, &span, 4, 100), Posting::Full);
        for block in 0..4 {
            assert_eq!(a.next(), Some(Event::Sent { peer: 1, token: token(1, block) }));
        }
        assert_eq!(a.send_block(1, &grant, &span, 4, 100), Posting::Posted);
        a.fabric.flush().unwrap();
        assert_eq!(b.next(), Some(Event::Block { peer: 0, handle: grant.handle, block: 4 }));
        assert!(buffer == data);
    }
}

#[test]
fn tokens_of_finished_blocks_wait_for_room_in_the_events() {
    for settings in both_ways() {
        let (mut a, mut b) = pair(ShmSettings { descriptors: 4, ..settings });
        a.events = Events::with_capacity(2);
        let data = pattern(1, 600);
        let mut buffer = vec![0; 600];
        let grant = b.grant(&mut buffer, 100);
        let span = span(&data);
        for block in 0..4 {
            assert_eq!(a.send_block(1, &grant, &span, block, 100), Posting::Posted);
        }
        a.fabric.flush().unwrap();
        assert!(b.poll() && a.poll());
        // All four are done, two are reported: two places are free.
        for block in 4..6 {
            assert_eq!(a.send_block(1, &grant, &span, block, 100), Posting::Posted);
        }
        assert_eq!(a.send_block(1, &grant, &span, 0, 100), Posting::Full);
        a.fabric.flush().unwrap();
        assert!(b.poll());
        for block in 0..6 {
            assert_eq!(a.next(), Some(Event::Sent { peer: 1, token: token(1, block) }));
        }
        assert!(buffer == data);
    }
}

#[test]
fn a_poll_is_bounded_and_goes_on_where_it_stopped() {
    for settings in both_ways() {
        let (mut a, mut b) = pair(settings);
        let data = pattern(2, 8 << 20);
        let mut buffer = vec![0; 8 << 20];
        let grant = b.grant(&mut buffer, 8 << 20);
        assert_eq!(a.send_block(1, &grant, &span(&data), 0, 8 << 20), Posting::Posted);
        let mut polls = 0;
        let came = loop {
            a.fabric.flush().unwrap();
            polls += 1;
            if let Some(event) = b.next() {
                break event;
            }
        };
        assert_eq!(came, Event::Block { peer: 0, handle: grant.handle, block: 0 });
        assert!(polls >= 8, "8 MiB in {polls} polls: too much at once");
        assert!(buffer == data);
    }
}

#[test]
fn a_block_that_has_begun_is_finished_before_anothers_begins() {
    const BYTES: usize = 4 << 20;
    let mut b = TestRank::new(ShmSettings::new(9));
    let data = pattern(2, BYTES);
    let mut buffers = vec![vec![0; BYTES]; 3];
    let mut senders: Vec<_> = (0..3).map(|rank| TestRank::new(ShmSettings::new(rank))).collect();
    for (a, buffer) in senders.iter_mut().zip(&mut buffers) {
        connect(a, &mut b);
        let grant = b.grant(buffer, BYTES as u64);
        assert_eq!(a.send_block(9, &grant, &span(&data), 0, BYTES as u64), Posting::Posted);
        a.fabric.flush().unwrap();
    }
    let mut open = vec![0, 1, 2];
    while !open.is_empty() {
        // A block needs four polls, whoever else sends.
        let came: Vec<_> = (0..4).flat_map(|_| b.next()).collect();
        let [Event::Block { peer, .. }] = came[..] else { panic!("{came:?} in four polls") };
        open.retain(|rank| *rank != peer);
    }
    assert!(buffers.iter().all(|buffer| *buffer == data));
}

#[test]
fn blocks_for_a_closed_receive_are_passed_over() {
    for settings in both_ways() {
        let (mut a, mut b) = pair(settings);
        let data = pattern(3, 2 << 20);
        let mut old = vec![0x55; 2 << 20];
        let grant = b.grant(&mut old, 2 << 20);
        // Begun, then closed in the middle; the handle is used again for another buffer.
        assert_eq!(a.send_block(1, &grant, &span(&data), 0, 2 << 20), Posting::Posted);
        a.fabric.flush().unwrap();
        assert!(b.poll());
        assert!(b.events.is_empty());
        b.receives.close(grant.handle);
        let begun = old.clone();
        let mut new = vec![0xaa; 2 << 20];
        let other = b.grant(&mut new, 2 << 20);
        assert_eq!((other.handle, other.epoch == grant.epoch), (grant.handle, false));
        let deadline = Instant::now() + PATIENCE;
        let event = loop {
            assert_eq!(b.next(), None);
            if let Some(event) = a.next() {
                break event;
            }
            assert!(Instant::now() < deadline);
        };
        assert_eq!(event, Event::Sent { peer: 1, token: token(1, 0) });
        assert!(old == begun, "written after its receive was closed");
        assert!(new.iter().all(|byte| *byte == 0xaa), "another receive's buffer was written");

        // The link still works, for the new receive.
        let got = transfer(&mut a, &mut b, &data, 70_000, &(0..30).collect::<Vec<_>>());
        assert!(got == data);
    }
}

#[test]
fn blocks_that_are_none_of_the_buffer_break_the_link() {
    for settings in both_ways() {
        // Beyond the buffer, at a wrong offset, of a wrong length, of a wrong number.
        for (range, offset, block) in
            [(0..100, 1000, 10), (0..100, 250, 2), (0..99, 200, 2), (0..100, 200, 3)]
        {
            let (mut a, mut b) = pair(settings);
            let data = pattern(4, 1000);
            let mut buffer = vec![0; 1000];
            let grant = b.grant(&mut buffer, 100);
            let span = span(&data);
            let send =
                BlockSend { peer: 1, grant: &grant, span: &span, range, offset, block, token: 0 };
            assert_eq!(a.fabric.send_block(&send).unwrap(), Posting::Posted);
            a.fabric.flush().unwrap();
            assert_eq!(b.next(), Some(Event::Broken { peer: 0 }));
            let reason = b.fabric.break_reason(0).unwrap();
            assert!(reason.contains("is not a block of this rank's buffer"), "{reason}");
            assert!(buffer.iter().all(|byte| *byte == 0));
            assert!(b.fabric.send_message(0, &header(0, 0), &[]).is_err());
        }
    }
}

#[test]
fn a_range_outside_the_span_is_the_callers_error() {
    let (mut a, mut b) = pair(ShmSettings::new(0));
    let data = pattern(4, 100);
    let mut buffer = vec![0; 1000];
    let grant = b.grant(&mut buffer, 100);
    let span = span(&data);
    for range in [0..101, 50..50, 100..101] {
        let block =
            BlockSend { peer: 1, grant: &grant, span: &span, range, offset: 0, block: 0, token: 0 };
        assert!(matches!(a.fabric.send_block(&block), Err(crate::Error::Invalid(_))));
    }
}

#[test]
fn a_star_of_ranks_as_threads_moves_blocks_both_ways_asleep() {
    const LEAVES: u32 = 5;
    const BYTES: usize = 700_001;
    const BLOCK: u64 = 60_000;
    for settings in both_ways() {
        let mut root = TestRank::new(settings);
        let mut leaves: Vec<_> =
            (1..=LEAVES).map(|rank| TestRank::new(ShmSettings { rank, ..settings })).collect();
        leaves.iter_mut().for_each(|leaf| connect(&mut root, leaf));
        std::thread::scope(|scope| {
            for leaf in &mut leaves {
                scope.spawn(move || exchange(leaf, &[0], BYTES, BLOCK));
            }
            exchange(&mut root, &(1..=LEAVES).collect::<Vec<_>>(), BYTES, BLOCK);
        });
    }
}

/// Grants a buffer to every peer, sends each one its message, checks what comes. Sleeps to wait.
pub(super) fn exchange(rank: &mut TestRank, peers: &[Rank], bytes: usize, block_bytes: u64) {
    let seed = |from: Rank, to: Rank| u64::from(from) << 32 | u64::from(to);
    let blocks = (bytes as u64).div_ceil(block_bytes) as u32;
    let mut buffers: Vec<Vec<u8>> = peers.iter().map(|_| vec![0; bytes]).collect();
    let data: Vec<_> = peers.iter().map(|peer| pattern(seed(rank.rank, *peer), bytes)).collect();
    let place = |peer: Rank| peers.iter().position(|p| *p == peer).unwrap();
    let mut handles = Vec::new();
    for (peer, buffer) in peers.iter().zip(&mut buffers) {
        let grant = rank.grant(buffer, block_bytes);
        let body = crate::wire::GrantBody::from(&grant);
        handles.push(grant.handle);
        assert_eq!(rank.send(*peer, 1, zerocopy::IntoBytes::as_bytes(&body)), Posting::Posted);
    }
    let mut grants: Vec<Option<Grant>> = vec![None; peers.len()];
    let mut next = vec![0; peers.len()];
    let (mut sent, mut came) = (0, 0);
    while sent < blocks * peers.len() as u32 || came < blocks * peers.len() as u32 {
        match rank.wait() {
            Event::Message { slot } => {
                let (_, payload) = rank.read(slot);
                grants[place(slot.peer)] = Some(Grant::read(&payload).unwrap());
                rank.fabric.release(slot);
            }
            Event::Block { peer, handle, .. } => {
                assert_eq!(handle, handles[place(peer)]);
                came += 1;
            }
            Event::Sent { .. } => sent += 1,
            event @ Event::Broken { peer } => {
                panic!("{event:?}: {:?}", rank.fabric.break_reason(peer))
            }
        }
        for (n, peer) in peers.iter().enumerate() {
            let Some(grant) = grants[n] else { continue };
            let span = span(&data[n]);
            while next[n] < blocks
                && rank.send_block(*peer, &grant, &span, next[n], block_bytes) == Posting::Posted
            {
                next[n] += 1;
            }
        }
        rank.fabric.flush().unwrap();
    }
    for (peer, buffer) in peers.iter().zip(&buffers) {
        assert!(*buffer == pattern(seed(*peer, rank.rank), bytes), "from {peer}");
    }
    handles.into_iter().for_each(|handle| rank.receives.close(handle));
}
