//! How links end: errors, quiescing, hostile peers, and dropping in any order.

use super::super::driver::{Completion, CompletionKind};
use super::super::lane::WorkId;
use super::*;

/// Polls a rank until its link to `peer` breaks; `Broken` comes once.
fn poll_until_broken(world: &mut World, rank: usize, peer: usize) -> String {
    let mut broken = 0;
    for _ in 0..500 {
        let node = &mut world.nodes[rank];
        let _ = node.fabric.flush();
        node.fabric.poll(&node.receives, &mut node.events).unwrap();
        while let Some(event) = node.events.pop() {
            broken += u32::from(event == Event::Broken { peer: peer as Rank });
        }
    }
    assert_eq!(broken, 1, "how often the link was reported broken");
    world.nodes[rank].fabric.break_reason(peer as Rank).expect("a reason")
}

fn unclosed_pairs(world: &World, rank: usize) -> usize {
    world.network.queue_pairs(rank).iter().filter(|pair| !pair.destroyed).count()
}

#[test]
fn nothing_lands_after_quiesce_however_late() {
    for seed in 0..20 {
        let mut plan = Plan::new(seed).lanes(4);
        plan.rails = 2;
        plan.settings.window_bytes = 1 << 30;
        let mut world = plan.connected();
        let mut flows = [
            Flow::new(&mut world, 0, 1, 400_000, 4000),
            Flow::new(&mut world, 0, 1, 1 << 20, 1 << 18),
        ];
        // Some of it lands, the rest is held up on its way.
        let _ = world.run_steps(&mut flows, &mut [], seed as usize % 7);
        world.network.freeze(0);
        for _ in 0..5 {
            world.step(0, &mut flows, &mut []).unwrap();
        }
        world.quiesce(1, 0);
        assert_eq!(unclosed_pairs(&world, 1), 0);
        let before: Vec<Vec<u8>> = flows.iter().map(|flow| flow.target.bytes.clone()).collect();
        world.network.thaw(0);
        world.network.deliver_all();
        for (flow, before) in flows.iter().zip(&before) {
            assert!(flow.target.bytes == *before, "a late write landed");
        }
        assert!(flows.iter().any(|flow| flow.source.bytes != flow.target.bytes));
        let reason = poll_until_broken(&mut world, 0, 1);
        assert!(reason.contains("to rank 1") && reason.contains("on fake"), "{reason}");
        assert!(world.nodes[0].fabric.has_outstanding(1));
        world.quiesce(0, 1);
        assert!(!world.nodes[0].fabric.has_outstanding(1));
        assert_eq!(unclosed_pairs(&world, 0), 0);
        drop(flows);
        // And the two can talk again.
        world.connect(0, 1);
        let mut flows = [Flow::new(&mut world, 0, 1, 100_000, 1000)];
        world.run(&mut flows, &mut [Chat::new(1, 0, 30)]).unwrap();
        flows.into_iter().for_each(|flow| flow.finish(&mut world));
        world.assert_clean();
    }
}

#[test]
fn quiescing_one_link_leaves_the_others_alone() {
    for seed in 0..10 {
        let mut plan = Plan::new(seed).lanes(2);
        plan.ranks = 3;
        let mut world = plan.connected();
        let pairs = [(2, 0), (0, 2), (1, 0), (0, 1)];
        let mut flows: Vec<Flow> = pairs
            .into_iter()
            .map(|(from, to)| Flow::new(&mut world, from, to, 1 << 20, 3000))
            .collect();
        let mut chats = [Chat::new(2, 0, 100), Chat::new(0, 2, 100)];
        let halt = world.run_steps(&mut flows, &mut chats, 10 + seed as usize);
        assert!(matches!(halt, Err(Halt::Stalled)), "it has not come to its end yet");
        // Much of both links' work completes while nobody looks.
        world.network.deliver_all();
        world.nodes[1].polls = false;
        world.nodes[0].fabric.quiesce(1);
        world.nodes[1].fabric.quiesce(0);
        flows.truncate(2);
        world.run(&mut flows, &mut chats).unwrap();
        flows.into_iter().for_each(|flow| flow.finish(&mut world));
    }
}

#[test]
fn a_failed_lane_breaks_the_link_once_and_says_what_to_do() {
    let mut world = Plan::new(3).lanes(3).connected();
    let mut flows = [Flow::new(&mut world, 0, 1, 1 << 20, 4000)];
    world.network.freeze(0);
    world.step(0, &mut flows, &mut []).unwrap();
    let number = world.network.queue_pairs(0)[1].number;
    world.network.break_queue_pair(0, "fake0", number);
    let reason = poll_until_broken(&mut world, 0, 1);
    for part in ["lane 1 to rank 1", "fake0 port 1", "RETRY_EXC_ERR", "VERBCAST_TIMEOUT"] {
        assert!(reason.contains(part), "{reason}");
    }
    let header = MessageHeader::new(MessageKind::Eager, &signature(), 0, 0);
    let error = world.nodes[0].fabric.send_message(1, &header, &[]).unwrap_err();
    assert!(matches!(&error, crate::Error::Link { peer: 1, .. }), "{error}");
    assert!(!world.nodes[0].fabric.is_up(1));
    world.quiesce(0, 1);
    assert_eq!(world.nodes[0].fabric.break_reason(1).as_deref(), Some(reason.as_str()));
    let error = world.nodes[0].fabric.send_message(1, &header, &[]).unwrap_err();
    assert!(error.to_string().contains("RETRY_EXC_ERR"), "{error}");
}

#[test]
fn a_removed_device_breaks_its_links() {
    let mut plan = Plan::new(3).lanes(2);
    plan.rails = 2;
    let mut world = plan.connected();
    let mut flows = [Flow::new(&mut world, 0, 1, 1 << 20, 4000)];
    let _ = world.run_steps(&mut flows, &mut [], 3);
    world.network.remove_device(0, "fake1");
    let halt = world.run(&mut flows, &mut []).unwrap_err();
    let Halt::Broken { rank, peer, reason } = halt else { panic!("{halt:?}") };
    assert!(rank as Rank != peer && reason.contains("fake1"), "{reason}");
    world.quiesce(0, 1);
    world.quiesce(1, 0);
    assert!(!world.nodes[0].fabric.has_outstanding(1));
}

#[test]
fn what_a_peer_must_not_send_breaks_the_link_and_nothing_else() {
    // Handle not open; block out of range; bytes that do not fit the block; wrong key.
    type Change = fn(&mut Flow, &mut u32, &mut u64);
    let cases: [(&str, Change); 4] = [
        ("is not open", |flow, _, _| flow.grant.handle = 77),
        ("out of range", |_, block, _| *block = 99),
        ("where this lane carries", |_, _, end| *end -= 1),
        ("WR_FLUSH_ERR", |flow, _, _| flow.grant.rkeys[0] ^= 1),
    ];
    for (words, change) in cases {
        let mut world = Plan::new(4).connected();
        let mut flow = Flow::new(&mut world, 0, 1, 4000, 1000);
        let (mut block, mut end) = (1, 2000);
        change(&mut flow, &mut block, &mut end);
        let send = BlockSend {
            peer: 1,
            grant: &flow.grant,
            span: &flow.span,
            range: 1000..end,
            offset: 1000,
            block,
            token: 0,
        };
        assert_eq!(world.nodes[0].fabric.send_block(&send).unwrap(), Posting::Posted);
        world.nodes[0].fabric.flush().unwrap();
        world.network.deliver_all();
        let reason = poll_until_broken(&mut world, 1, 0);
        assert!(reason.contains(words), "{reason}");
        world.quiesce(0, 1);
        world.quiesce(1, 0);
    }
}

#[test]
fn any_immediate_is_taken_or_breaks_the_link() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = Plan::new(seed).lanes(2).connected();
        let flow = Flow::new(&mut world, 0, 1, 300_000, 1000);
        let numbers: Vec<u32> = world.network.queue_pairs(1).iter().map(|p| p.number).collect();
        for _ in 0..40 {
            let node = &mut world.nodes[1];
            let immediate =
                if rng.bool() { rng.u32(..) } else { rng.u32(0..4) << 30 | rng.u32(0..40) };
            let bytes = [0, 48, 1000, rng.u32(..)][rng.usize(0..4)];
            let completion = Completion {
                work_id: WorkId::receive(0).0,
                queue_pair: numbers[rng.usize(0..2)],
                kind: CompletionKind::Received { immediate, bytes },
            };
            node.fabric.on_completion(0, &completion, &node.receives);
            let _ = node.fabric.poll(&node.receives, &mut node.events).unwrap();
            while let Some(event) = node.events.pop() {
                if let Event::Message { slot } = event {
                    // Nothing was written: malformed, not a panic.
                    assert!(node.fabric.message(slot).is_err());
                }
            }
        }
        world.quiesce(1, 0);
        world.quiesce(0, 1);
        drop(flow);
    }
}

#[test]
fn completions_of_a_predecessor_are_not_taken_for_the_successors() {
    let mut world = Plan::new(12).connected();
    world.quiesce(0, 1);
    world.quiesce(1, 0);
    world.connect(0, 1);
    let number = world.network.queue_pairs(1).last().unwrap().number;
    let node = &mut world.nodes[1];
    // The generation of the link of before.
    let stale = Completion {
        work_id: WorkId::receive(0).0,
        queue_pair: number,
        kind: CompletionKind::Failed { status: 5, vendor: 0 },
    };
    node.fabric.on_completion(0, &stale, &node.receives);
    assert!(node.fabric.is_up(0));
    let current = Completion { work_id: WorkId::receive(1).0, ..stale };
    node.fabric.on_completion(0, &current, &node.receives);
    assert!(!node.fabric.is_up(0));
}

#[test]
fn everything_drops_in_any_order_and_in_any_state() {
    for case in 0..24 {
        let mut plan = Plan::new(case).lanes(2);
        plan.rails = 2;
        let mut world = plan.world();
        let network = world.network.clone();
        let (low, high) = (&world.nodes[0].connector, &world.nodes[1].connector);
        let offer = low.offer(&info(1), 0).unwrap();
        if case % 4 > 0 {
            let answer = high.accept(&info(0), &offer).unwrap();
            if case % 4 > 1 {
                low.complete(&info(1), &answer).unwrap();
            }
            if case % 4 > 2 {
                high.confirm(&info(0)).unwrap();
                assert!(world.nodes[0].fabric.is_up(1));
                let mut flows = [Flow::new(&mut world, 0, 1, 100_000, 1000)];
                network.freeze(case as usize % 2);
                let _ = world.run_steps(&mut flows, &mut [Chat::new(0, 1, 100)], 10);
                // Their memory goes, so the links have to let go of it.
                world.quiesce(0, 1);
                world.quiesce(1, 0);
            }
        }
        let mut rng = fastrand::Rng::with_seed(case);
        let mut parts: Vec<Box<dyn std::any::Any>> = Vec::new();
        for node in std::mem::take(&mut world.nodes) {
            parts.push(Box::new(node.fabric));
            parts.push(Box::new(node.connector));
        }
        rng.shuffle(&mut parts);
        parts.into_iter().for_each(drop);
        for rank in 0..2 {
            assert_eq!(unclosed_pairs(&world, rank), 0);
        }
        network.deliver_all();
    }
}

#[test]
fn a_link_that_is_dropped_with_work_outstanding_touches_no_memory_any_more() {
    let mut world = Plan::new(31).lanes(2).connected();
    let mut flows = [Flow::new(&mut world, 0, 1, 100_000, 1000)];
    world.network.freeze(0);
    world.step(0, &mut flows, &mut []).unwrap();
    let network = world.network.clone();
    drop(std::mem::take(&mut world.nodes));
    network.thaw(0);
    network.deliver_all();
    assert!(flows[0].target.bytes.iter().all(|byte| *byte == 0));
}
