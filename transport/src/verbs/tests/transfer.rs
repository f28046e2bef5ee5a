//! Contents, byte for byte, over lanes, rails, inline limits and link layers.

use super::*;
use crate::wire::STRIPE_MIN_BYTES;

/// Blocks of many sizes and messages, in both directions at once.
fn exchange(plan: &Plan) -> World {
    let mut world = plan.connected();
    let lanes = u64::from(plan.settings.lanes);
    let striped = STRIPE_MIN_BYTES * lanes;
    let shapes = [
        (1, 4096),
        (7, 3),
        (65_537, 4096),
        ((1 << 20) + 3, 65_536),
        (4 * striped as usize + 5, striped),
        (3 * striped as usize, striped + 4099),
    ];
    let mut flows = Vec::new();
    for from in 0..plan.ranks {
        for to in (0..plan.ranks).filter(|to| *to != from) {
            for (bytes, block_bytes) in shapes {
                flows.push(Flow::new(&mut world, from, to, bytes, block_bytes));
            }
        }
    }
    let pairs = (0..plan.ranks).flat_map(|from| (0..plan.ranks).map(move |to| (from, to)));
    let mut chats: Vec<Chat> =
        pairs.filter(|(from, to)| from != to).map(|(from, to)| Chat::new(from, to, 100)).collect();
    world.run(&mut flows, &mut chats).unwrap();
    for flow in flows {
        flow.finish(&mut world);
    }
    world.assert_clean();
    world
}

#[test]
fn bytes_arrive_over_every_number_of_lanes_and_rails() {
    for rails in [1, 2] {
        for lanes in [1, 2, 4, 5] {
            for max_inline_bytes in [0, 64] {
                let seed = u64::from(lanes) * 10 + rails as u64;
                let mut plan = Plan::new(seed).lanes(lanes);
                plan.rails = rails;
                plan.fake.max_inline_bytes = max_inline_bytes;
                exchange(&plan);
            }
        }
    }
}

#[test]
fn bytes_arrive_where_posts_are_cut_short_and_queues_are_shallow() {
    for seed in 0..8 {
        let mut plan = Plan::new(seed).lanes(3).depths(4, 4, 2);
        plan.fake.partial_post_percent = 60;
        plan.events = 1 + seed as usize;
        let world = exchange(&plan);
        let cut = world.network.statistics(0, "fake0").injected_partial_posts;
        assert!(cut > 0, "no post was cut short");
    }
}

#[test]
fn bytes_arrive_over_infiniband() {
    for rails in [1, 2] {
        let mut plan = Plan::new(3).lanes(4);
        plan.infiniband = true;
        plan.rails = rails;
        plan.settings.pkey_index = 1;
        plan.settings.service_level = 3;
        let world = exchange(&plan);
        for report in world.network.queue_pairs(0) {
            let ready = report.ready_to_receive.unwrap();
            assert!(ready.address.dlid > 0 && ready.address.global.is_none());
            assert_eq!(ready.address.service_level, 3);
            assert_eq!(ready.path_mtu_bytes, 4096);
            assert_eq!(report.init.unwrap().pkey_index, 1);
        }
    }
}

#[test]
fn four_ranks_exchange_with_everyone() {
    let mut plan = Plan::new(41).lanes(2);
    plan.ranks = 4;
    plan.rails = 2;
    exchange(&plan);
}

#[test]
fn large_blocks_go_from_user_memory_to_user_memory_without_a_copy() {
    let mut world = Plan::new(8).lanes(2).connected();
    let bytes = 3 << 20;
    let mut flows = [Flow::new(&mut world, 0, 1, bytes, 1 << 19)];
    world.run(&mut flows, &mut []).unwrap();
    let sender = world.network.statistics(0, "fake0");
    let receiver = world.network.statistics(1, "fake0");
    assert_eq!(sender.bytes_from_user_memory, bytes as u64);
    assert_eq!(receiver.bytes_into_user_memory, bytes as u64);
    assert_eq!(receiver.bytes_elsewhere, 0);
    let [flow] = flows;
    flow.finish(&mut world);
}

#[test]
fn every_lane_carries_its_share() {
    for (lanes, rails, block_bytes) in [(4, 1, 16 << 10), (4, 2, 16 << 10), (5, 1, 256 << 10)] {
        let mut plan = Plan::new(17).lanes(lanes);
        plan.rails = rails;
        let mut world = plan.connected();
        let mut flows = [Flow::new(&mut world, 0, 1, (8 << 20) + 11, block_bytes)];
        // Messages and credits take turns with the blocks.
        let mut chats = [Chat::new(0, 1, 200), Chat::new(1, 0, 200)];
        world.run(&mut flows, &mut chats).unwrap();
        let statistics = world.nodes[0].fabric.lane_statistics(1);
        assert_eq!(statistics.len(), lanes as usize);
        let total: u64 = statistics.iter().map(|lane| lane.block_bytes).sum();
        assert_eq!(total, (8 << 20) + 11);
        for lane in &statistics {
            let share = lane.block_bytes as f64 * f64::from(lanes) / total as f64;
            assert!((0.9..1.1).contains(&share), "{statistics:?}");
        }
        world.assert_clean();
    }
}

#[test]
fn small_messages_go_inline_where_the_device_can() {
    for (max_inline_bytes, inline) in [(64, true), (0, false)] {
        let mut plan = Plan::new(2);
        plan.fake.max_inline_bytes = max_inline_bytes;
        let mut world = plan.connected();
        world.network.record_writes(true);
        let mut chat = Chat::new(0, 1, 40);
        chat.payload_max = 16;
        world.run(&mut [], &mut [chat]).unwrap();
        let writes = world.network.take_writes();
        let messages: Vec<_> = writes.iter().filter(|w| w.from_host == 0 && w.bytes > 0).collect();
        assert_eq!(messages.len(), 40);
        assert!(messages.iter().all(|write| write.inline == inline && write.bytes <= 64));
    }
}
