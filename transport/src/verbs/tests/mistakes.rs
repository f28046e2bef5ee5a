//! Deliberate mistakes in the accounting: each is noticed, by a stall or by the fake's rules.

use super::super::fake::Rule;
use super::super::settings::Mutation;
use super::*;

/// Enough for any of these runs without a mistake.
const STEPS: usize = 20_000;

fn plan(mutation: Mutation) -> Plan {
    let mut plan = Plan::new(23).lanes(2).depths(16, 8, 4);
    plan.settings.mutation = mutation;
    plan.fake.partial_post_percent = 0;
    plan
}

/// The same traffic for all; `None` if it came to its end.
fn run(plan: &Plan) -> (World, Option<Halt>) {
    let mut world = plan.connected();
    let mut flows = [Flow::new(&mut world, 0, 1, 300_000, 1000)];
    let mut chats = [Chat::new(0, 1, 100), Chat::new(1, 0, 100)];
    let halt = world.run_steps(&mut flows, &mut chats, STEPS).err();
    // Stopped before their memory goes.
    for (rank, peer) in [(0, 1), (1, 0)] {
        world.quiesce(rank, peer);
    }
    (world, halt)
}

fn full_posts(world: &World) -> u64 {
    world.network.statistics(0, "fake0").full_posts
}

#[test]
fn without_a_mistake_it_comes_to_its_end() {
    let (world, halt) = run(&plan(Mutation::None));
    assert!(halt.is_none(), "{halt:?}");
    world.assert_clean();
}

#[test]
fn never_asking_for_completions_stalls() {
    let (_, halt) = run(&plan(Mutation::NeverSignal));
    assert!(matches!(halt, Some(Halt::Stalled)), "{halt:?}");
}

#[test]
fn not_signaling_the_last_of_a_chain_stalls() {
    // Five blocks, an interval of sixteen: no completion is asked for.
    let mut plan = plan(Mutation::SignalIntervalOnly);
    plan.settings.signal_every = 16;
    let mut world = plan.connected();
    let mut flows = [Flow::new(&mut world, 0, 1, 5000, 1000)];
    let halt = world.run_steps(&mut flows, &mut [], STEPS);
    assert!(matches!(halt, Err(Halt::Stalled)), "{halt:?}");
    assert!(flows[0].arrived.iter().all(|arrived| *arrived));
    assert!(world.nodes[0].fabric.has_outstanding(1));
}

#[test]
fn sending_without_credit_meets_no_receive() {
    let (world, halt) = run(&plan(Mutation::IgnoreCredits));
    let broken = world.network.violations();
    assert!(broken.iter().any(|v| v.rule == Rule::ReceiverNotReady), "{broken:?}");
    assert!(matches!(halt, Some(Halt::Broken { .. })), "{halt:?}");
}

#[test]
fn keeping_credits_stalls() {
    let (world, halt) = run(&plan(Mutation::KeepCredits));
    assert!(matches!(halt, Some(Halt::Stalled)), "{halt:?}");
    assert_eq!(world.network.violations(), []);
}

#[test]
fn freeing_send_slots_before_their_completions_overfills_the_queue() {
    let mut plan = plan(Mutation::FreeSlotsAtPost);
    plan.settings.receive_depth = 64;
    plan.fake.steps_per_call = 1;
    let (world, _) = run(&plan);
    assert!(full_posts(&world) > 0);
}

#[test]
fn writing_into_a_slot_that_is_not_free_is_a_protocol_error() {
    let mut plan = plan(Mutation::IgnoreSlots);
    plan.settings.receive_depth = 64;
    plan.settings.send_depth = 64;
    let mut world = plan.connected();
    let header = MessageHeader::new(MessageKind::Eager, &signature(), 0, 0);
    for _ in 0..crate::wire::MESSAGE_SLOTS + 1 {
        assert_eq!(world.nodes[0].fabric.send_message(1, &header, &[]).unwrap(), Posting::Posted);
    }
    world.nodes[0].fabric.flush().unwrap();
    world.network.deliver_all();
    let node = &mut world.nodes[1];
    let mut broken = 0;
    for _ in 0..20 {
        node.fabric.poll(&node.receives, &mut node.events).unwrap();
        while let Some(event) = node.events.pop() {
            broken += u32::from(matches!(event, Event::Broken { peer: 0 }));
        }
    }
    assert_eq!(broken, 1);
    let reason = node.fabric.break_reason(0).unwrap();
    assert!(reason.contains("not given back"), "{reason}");
}
