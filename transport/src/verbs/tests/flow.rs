//! Flow control: credits, slots, windows, and waiting.

use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;

#[test]
fn a_receiver_that_does_not_poll_stops_the_sender_and_loses_nothing() {
    for seed in 0..4 {
        let receives = 8;
        let mut plan = Plan::new(seed).lanes(2).depths(64, receives, 4);
        plan.settings.window_bytes = 1 << 30;
        let mut world = plan.connected();
        let mut flows = [Flow::new(&mut world, 0, 1, 100_000, 1000)];
        let mut chats = [Chat::new(0, 1, 50)];
        world.nodes[1].polls = false;
        let halt = world.run_steps(&mut flows, &mut chats, 2000).unwrap_err();
        assert!(matches!(halt, Halt::Stalled), "{halt:?}");
        world.assert_clean();
        for lane in world.nodes[0].fabric.lane_statistics(1) {
            let sent = lane.whole_blocks + lane.messages;
            assert_eq!(sent, u64::from(receives) - 1, "one receive is kept for credits");
        }
        world.nodes[1].polls = true;
        world.run(&mut flows, &mut chats).unwrap();
        flows.into_iter().for_each(|flow| flow.finish(&mut world));
        world.assert_clean();
    }
}

#[test]
fn both_ends_may_stop_and_go_on() {
    let mut world = Plan::new(6).lanes(2).depths(4, 4, 2).connected();
    let mut flows =
        [Flow::new(&mut world, 0, 1, 50_000, 999), Flow::new(&mut world, 1, 0, 60_000, 1001)];
    let mut chats = [Chat::new(0, 1, 60), Chat::new(1, 0, 60)];
    for turn in 0..40 {
        world.nodes[0].polls = turn % 2 == 0;
        world.nodes[1].polls = turn % 2 == 1;
        if world.run_steps(&mut flows, &mut chats, 30).is_ok() {
            break;
        }
    }
    world.nodes.iter_mut().for_each(|node| node.polls = true);
    world.run(&mut flows, &mut chats).unwrap();
    flows.into_iter().for_each(|flow| flow.finish(&mut world));
    world.assert_clean();
}

#[test]
fn a_message_waits_for_its_slot_to_be_given_back() {
    let mut world = Plan::new(5).connected();
    let mut sent = 0;
    let header = MessageHeader::new(MessageKind::Eager, &signature(), 0, 0);
    for _ in 0..200 {
        if world.nodes[0].fabric.send_message(1, &header, &[]).unwrap() == Posting::Posted {
            sent += 1;
        }
        for node in &mut world.nodes {
            node.fabric.flush().unwrap();
            node.fabric.poll(&node.receives, &mut node.events).unwrap();
        }
    }
    assert_eq!(sent, crate::wire::MESSAGE_SLOTS);
    let receiver = &mut world.nodes[1];
    let mut slots = Vec::new();
    while let Some(event) = receiver.events.pop() {
        let Event::Message { slot } = event else { panic!("{event:?}") };
        slots.push(slot);
    }
    assert_eq!(slots.len(), sent as usize);
    // All but the first: nothing can be given back, since slots go back in order.
    slots[1..].iter().for_each(|slot| receiver.fabric.release(*slot));
    assert!(receiver.fabric.message(slots[1]).is_err());
    assert!(receiver.fabric.message(slots[0]).is_ok());
    for _ in 0..50 {
        for node in &mut world.nodes {
            node.fabric.poll(&node.receives, &mut node.events).unwrap();
        }
    }
    assert_eq!(world.nodes[0].fabric.send_message(1, &header, &[]).unwrap(), Posting::Full);
    world.nodes[1].fabric.release(slots[0]);
    for _ in 0..50 {
        for node in &mut world.nodes {
            node.fabric.poll(&node.receives, &mut node.events).unwrap();
        }
    }
    assert_eq!(world.nodes[0].fabric.send_message(1, &header, &[]).unwrap(), Posting::Posted);
    world.assert_clean();
}

#[test]
fn thousands_of_messages_go_both_ways() {
    for (seed, receives) in [(1, 4), (2, 5), (3, 128)] {
        let mut plan = Plan::new(seed).depths(receives, receives, 1 + receives / 8);
        plan.events = 3;
        let mut world = plan.connected();
        world.lazy_percent = 30;
        let mut chats = [Chat::new(0, 1, 5000), Chat::new(1, 0, 5000)];
        world.run(&mut [], &mut chats).unwrap();
        world.assert_clean();
        for (rank, peer) in [(0, 1), (1, 0)] {
            let [lane] = world.nodes[rank].fabric.lane_statistics(peer)[..] else {
                panic!("one lane")
            };
            assert_eq!(lane.messages, 5000);
            // Credits come at half consumption, not for every message.
            let most = 2 * (lane.received + lane.messages) / u64::from(receives.min(16));
            assert!(lane.credits > 0 && lane.credits <= most + 2, "{lane:?}");
        }
    }
}

#[test]
fn the_smallest_queues_never_deadlock() {
    for seed in 0..60 {
        let mut plan = Plan::new(seed).lanes(1 + seed as u32 % 3).depths(4, 4, 1);
        plan.settings.signal_every = 1 + seed as u32 % 4;
        plan.fake.partial_post_percent = 30;
        plan.fake.steps_per_call = 1 + seed as u32 % 3;
        plan.events = 1 + seed as usize % 4;
        let mut world = plan.connected();
        world.lazy_percent = 50;
        let mut flows =
            [Flow::new(&mut world, 0, 1, 30_000, 333), Flow::new(&mut world, 1, 0, 30_000, 1024)];
        let mut chats = [Chat::new(0, 1, 70), Chat::new(1, 0, 90)];
        world.run(&mut flows, &mut chats).unwrap();
        flows.into_iter().for_each(|flow| flow.finish(&mut world));
        world.assert_clean();
    }
}

#[test]
fn bytes_in_flight_stay_within_the_window() {
    for (window_blocks, block_bytes, blocks) in
        [(4, 64 << 10, 8), (4, 512 << 10, 4), (1, 1000, 524)]
    {
        let mut plan = Plan::new(9).depths(1024, 1024, 16);
        plan.settings.window_bytes = 512 << 10;
        plan.settings.window_blocks = window_blocks;
        plan.settings.links_max = 1;
        let mut world = plan.connected();
        let mut flow = Flow::new(&mut world, 0, 1, 4 << 20, block_bytes);
        world.network.freeze(0);
        let all = flow.unsent.len();
        for _ in 0..20 {
            let fabric = &mut world.nodes[0].fabric;
            flow.send(0, fabric);
            fabric.flush().unwrap();
        }
        assert_eq!(all - flow.unsent.len(), blocks);
        assert!(world.nodes[0].fabric.has_outstanding(1));
        world.network.thaw(0);
        let mut flows = [flow];
        world.run(&mut flows, &mut []).unwrap();
        assert!(!world.nodes[0].fabric.has_outstanding(1));
        flows.into_iter().for_each(|flow| flow.finish(&mut world));
    }
}

/// Sends and receives until `flows` and `chats` of this rank are done, asleep in between.
fn work_asleep(node: &mut Node, rank: usize, chats: &mut [Chat], rng: &mut fastrand::Rng) -> u32 {
    let mut sleeps = 0;
    let mut armed = false;
    while !chats.iter().all(|chat| {
        if chat.from == rank { chat.sent == chat.count } else { chat.received == chat.count }
    }) || !node.fabric.is_flushed()
    {
        let mut moved = false;
        for chat in chats.iter_mut() {
            if chat.from == rank {
                moved |= chat.send(&mut node.fabric);
            } else {
                moved |= !chat.held.is_empty();
                chat.release(&mut node.fabric, rng);
            }
        }
        node.fabric.flush().unwrap();
        moved |= node.fabric.poll(&node.receives, &mut node.events).unwrap();
        while let Some(event) = node.events.pop() {
            let Event::Message { slot } = event else { panic!("{event:?}") };
            let chat = chats.iter_mut().find(|chat| chat.from == slot.peer as usize);
            chat.expect("a chat").receive(slot, &node.fabric);
        }
        if moved || !node.fabric.is_flushed() {
            armed = false;
        } else if armed {
            let mut fds: Vec<PollFd<'_>> =
                node.fabric.event_fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let limit = PollTimeout::try_from(Duration::from_secs(20)).unwrap();
            assert!(poll(&mut fds, limit).unwrap() > 0, "rank {rank} slept for ever");
            node.fabric.take_events().unwrap();
            sleeps += 1;
            armed = false;
        } else {
            node.fabric.arm().unwrap();
            armed = true;
        }
    }
    sleeps
}

#[test]
fn ranks_in_threads_sleep_on_their_completion_channels() {
    let mut plan = Plan::new(77).lanes(2);
    plan.rails = 2;
    let mut world = plan.connected();
    let nodes = std::mem::take(&mut world.nodes);
    let threads: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(rank, mut node)| {
            std::thread::spawn(move || {
                let mut chats = [Chat::new(rank, 1 - rank, 500), Chat::new(1 - rank, rank, 500)];
                let mut rng = fastrand::Rng::with_seed(rank as u64);
                let sleeps = work_asleep(&mut node, rank, &mut chats, &mut rng);
                (node, sleeps)
            })
        })
        .collect();
    // Both ends stay until both are done, as ranks of a job do.
    let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(ends.iter().any(|(_, sleeps)| *sleeps > 0), "nobody ever slept");
    world.nodes = ends.into_iter().map(|(node, _)| node).collect();
    world.assert_clean();
}
