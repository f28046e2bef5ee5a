//! Errors, injected faults, and what may still land after them.

use super::super::super::driver::PortState;
use super::*;
use crate::verbs::error::VerbsError;

#[test]
fn a_move_to_err_flushes_in_order_and_unsignaled_work_too() {
    for seed in 0..100 {
        let network = FakeNetwork::roce(2, 1, plain(seed));
        let (mut a, b) = connected(&network);
        a.pair.post_receives(2, 50).unwrap();
        let chain = [0, 1, 2, 3].map(|work_id| Write {
            work_id,
            signaled: work_id == 1,
            ..a.write_to(&b, 8)
        });
        a.post(&chain).unwrap();
        a.pair.to_error().unwrap();
        let landed = network.statistics(0, "fake0").writes;
        let statuses = a.statuses(&network);
        assert_eq!(network.statistics(0, "fake0").writes, landed, "seed {seed}");
        let (receives, sends): (Vec<_>, Vec<_>) =
            statuses.into_iter().partition(|&(id, _)| id == 50);
        assert_eq!(receives, [(50, 5), (50, 5)], "seed {seed}");
        // A prefix completed well (only 1 shows); everything from the first failure on shows.
        let first = sends.iter().find(|(_, status)| *status == 5).map_or(4, |&(id, _)| id);
        let expected: Vec<_> = (0..4)
            .filter(|&id| id == 1 || id >= first)
            .map(|id| (id, if id >= first { 5 } else { 0 }))
            .collect();
        assert_eq!(sends, expected, "seed {seed}");
        a.post(&[Write { work_id: 9, signaled: false, ..chain[0] }]).unwrap();
        a.pair.post_receives(1, 51).unwrap();
        let mut late = a.statuses(&network);
        late.sort_unstable();
        assert_eq!(late, [(9, 5), (51, 5)], "posts in ERR are taken and flush");
        assert_eq!(network.violations(), []);
    }
}

#[test]
fn a_failed_write_may_have_landed() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let network = FakeNetwork::roce(2, 1, FakeSettings { steps_per_call: 3, ..plain(seed) });
        let (mut a, b) = connected(&network);
        a.memory[0] = 1;
        a.post(&[a.write_to(&b, 1)]).unwrap();
        a.pair.to_error().unwrap();
        outcomes.insert((b.memory[0], a.statuses(&network)[0].1));
    }
    let expected = [(0, 5), (1, 0), (1, 5)];
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn nothing_lands_at_a_queue_pair_in_err_however_late() {
    let network = FakeNetwork::roce(2, 1, plain(1));
    let (mut a, mut b) = connected(&network);
    b.pair.post_receives(2, 60).unwrap();
    a.memory.fill(0xaa);
    network.freeze(0);
    a.post(&[Write { immediate: Some(1), ..a.write_to(&b, 4096) }]).unwrap();
    network.deliver_all();
    b.pair.to_error().unwrap();
    assert_eq!(b.statuses(&network), [(60, 5), (60, 5)]);
    network.thaw(0);
    assert_eq!(a.statuses(&network), [(1, 12)]);
    assert!(b.memory.iter().all(|byte| *byte == 0));
    assert_eq!(network.violations(), []);
}

#[test]
fn nothing_lands_at_a_destroyed_queue_pair() {
    let network = FakeNetwork::roce(2, 1, plain(2));
    let (mut a, b) = connected(&network);
    let write = a.write_to(&b, 8);
    drop(b.pair);
    a.post(&[write]).unwrap();
    assert_eq!(a.statuses(&network), [(1, 12)]);
    assert_eq!(network.violations(), []);
    assert!(network.queue_pairs(1)[0].destroyed);
}

#[test]
fn completions_of_a_destroyed_queue_pair_stay_in_their_queue() {
    let network = FakeNetwork::roce(2, 1, plain(3));
    let (mut a, b) = connected(&network);
    a.post(&[a.write_to(&b, 8)]).unwrap();
    network.deliver_all();
    a.pair = a.device.queue_pair(&a.queue, CAPACITIES).unwrap();
    assert_eq!(a.statuses(&network), [(1, 0)]);
}

#[test]
fn a_broken_queue_pair_fails_with_retries_exceeded_and_flushes() {
    let network = FakeNetwork::roce(2, 1, plain(4));
    let (mut a, b) = connected(&network);
    network.freeze(0);
    a.post(&[1, 2].map(|work_id| Write { work_id, ..a.write_to(&b, 8) })).unwrap();
    network.break_queue_pair(0, "fake0", a.pair.number());
    assert_eq!(a.statuses(&network), [(1, 12), (2, 5)]);
    assert_eq!(network.violations(), []);
}

#[test]
fn a_removed_device_answers_nothing_but_flushes() {
    let network = FakeNetwork::roce(2, 2, plain(5));
    let (mut a, mut b) = connected(&network);
    b.pair.post_receives(1, 7).unwrap();
    network.remove_device(1, "fake0");
    assert_eq!(b.statuses(&network), [(7, 5)]);
    assert_eq!(b.pair.post_receives(1, 7).unwrap_err().posted, 0);
    assert!(b.device.info().is_err());
    assert!(b.device.completion_queue(8).is_err());
    let names: Vec<_> =
        network.driver(1).devices().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["fake1"]);
    let error = network.driver(1).open("fake0").err().unwrap();
    assert!(matches!(&error, VerbsError::NoSuchDevice { present, .. } if present == "fake1"));
    a.post(&[a.write_to(&b, 8)]).unwrap();
    assert_eq!(a.statuses(&network), [(1, 12)]);
    assert_eq!(network.violations(), []);
}

#[test]
fn writes_over_a_port_that_is_down_time_out() {
    for host in [0, 1] {
        let network = FakeNetwork::roce(2, 1, plain(6));
        let (mut a, b) = connected(&network);
        network.set_port_state(host, "fake0", 1, PortState::Down);
        a.post(&[a.write_to(&b, 8)]).unwrap();
        assert_eq!(a.statuses(&network), [(1, 12)]);
        assert_eq!(network.violations(), []);
    }
}
