//! Broadcasts over verbs on the strict fake, each rank a thread with a host of its own: several
//! lanes and rails, partial posts, no inline, InfiniBand; contents compared byte for byte, and no
//! rule of the fake broken.

mod support;

use std::time::Duration;

use support::{matrix, message, on_fake, seed};
use verbcast_transport::verbs::fake::{FakeNetwork, FakeSettings};

fn run(network: &FakeNetwork, ranks: u32, lanes: u32) {
    on_fake(network, ranks, lanes).run(matrix);
    assert_eq!(network.violations(), [], "{ranks} ranks, {lanes} lanes");
}

#[test]
fn one_rail_one_and_four_lanes() {
    let seed = seed();
    for (ranks, lanes) in [(2, 1), (3, 4), (4, 1), (5, 4)] {
        let settings = FakeSettings { seed, ..FakeSettings::default() };
        run(&FakeNetwork::roce(ranks as usize, 1, settings), ranks, lanes);
    }
}

#[test]
fn two_rails_partial_posts_and_no_inline() {
    let settings = FakeSettings {
        seed: seed(),
        partial_post_percent: 30,
        max_inline_bytes: 0,
        ..FakeSettings::default()
    };
    run(&FakeNetwork::roce(4, 2, settings), 4, 4);
}

#[test]
fn infiniband_by_lid() {
    let settings = FakeSettings { seed: seed(), ..FakeSettings::default() };
    run(&FakeNetwork::infiniband(3, 1, settings), 3, 2);
}

#[test]
fn a_large_broadcast_lands_in_user_memory_only() {
    let settings = FakeSettings { seed: seed(), ..FakeSettings::default() };
    let network = FakeNetwork::roce(3, 1, settings);
    let buffers = on_fake(&network, 3, 1).run(|world| {
        let bytes = 1 << 20;
        let expected = message(2, 0, bytes);
        let mut buffer = if world.rank() == 2 { expected.clone() } else { vec![0; bytes] };
        let start = buffer.as_ptr() as usize;
        network.mark_user_memory(start..start + bytes);
        network.record_writes(true);
        world.communicator().broadcast(&mut buffer, 2).expect("a broadcast");
        assert!(buffer == expected);
        world.agree_all(None).expect("all ranks come to the end");
        network.unmark_user_memory(&(start..start + bytes));
        world.finalize().expect("all ranks leave");
        start as u64..(start + bytes) as u64
    });
    let large: Vec<_> =
        network.take_writes().into_iter().filter(|write| write.bytes >= 4096).collect();
    let landed: u64 = large.iter().map(|write| u64::from(write.bytes)).sum();
    assert_eq!(landed, 2 << 20, "two receivers, each byte once");
    for write in large {
        assert!(buffers.iter().any(|buffer| buffer.contains(&write.remote)), "{write:?}");
    }
    assert_eq!(network.violations(), []);
}

#[test]
fn an_operation_that_is_given_up_lets_nothing_land_afterwards() {
    let settings = FakeSettings { seed: seed(), ..FakeSettings::default() };
    let network = FakeNetwork::roce(2, 1, settings);
    on_fake(&network, 2, 1).run(|world| {
        let communicator = world.communicator();
        let mut warm = vec![7; 100_000];
        communicator.broadcast(&mut warm, 0).expect("links come up");
        world.agree_all(None).expect("both have it");
        let mut buffer = vec![world.rank() as u8; 4 << 20];
        if world.rank() == 0 {
            // What the root posts from now on is delivered only after the receiver gave up.
            network.freeze(0);
        }
        let call = communicator.broadcast_call(0).deadline(Duration::from_millis(300));
        call.run(&mut buffer).expect_err("nothing is delivered");
        let handed_back = buffer.clone();
        network.thaw(0);
        network.deliver_all();
        std::thread::sleep(Duration::from_millis(50));
        assert!(buffer == handed_back, "a late write landed");
    });
}
