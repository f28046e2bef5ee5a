//! Loss, delay, jitter; slow, late and dead ranks: every run ends, and says who misses what.

use super::*;

const N: u32 = 13;

fn with(faults: Faults) -> Outcome {
    let simulation = loggp(FAST).faults(faults).seed(3).trace(true);
    run(&simulation, Algorithm::PipelinedTree, N, 1 << 20, 1 << 14)
}

#[test]
fn lost_blocks_are_sent_again_until_all_have_everything() {
    let usual = with(Faults::default());
    assert_eq!(usual.retransmissions, 0);
    let lossy = with(Faults { loss_ppm: 50_000, ..Faults::default() });
    assert!(lossy.is_complete());
    assert_eq!(lossy.transfers, usual.transfers);
    assert!(lossy.retransmissions > 0);
    let lost = lossy.spans.iter().filter(|span| span.kind == SpanKind::Lost).count() as u64;
    assert_eq!(lost, lossy.retransmissions, "each lost block was sent again");
    let again = u128::from(lossy.retransmissions) << 14;
    assert_eq!(lossy.bytes_sent, usual.bytes_sent + again);
    assert!(lossy.time_ps >= Faults::default().timeout_ps, "a loss is found after its timeout");
}

#[test]
fn a_link_that_loses_everything_is_given_up() {
    let outcome = with(Faults { loss_ppm: 1_000_000, retries: 3, ..Faults::default() });
    assert_eq!(outcome.transfers, 0);
    assert_eq!(outcome.retransmissions % 3, 0);
    assert_eq!(outcome.incomplete.len(), N as usize, "the root too has sends that failed");
    for incomplete in &outcome.incomplete[1..] {
        assert_eq!(incomplete.blocks_missing, 64);
        assert!(!incomplete.waits_for.is_empty());
    }
}

#[test]
fn jitter_adds_no_more_than_its_bound_to_each_hop() {
    let jitter_ps = 700_000;
    let outcome = run(
        &loggp(FAST).faults(Faults { jitter_ps, ..Faults::default() }),
        Algorithm::PipelinedChain,
        20,
        1000,
        1000,
    );
    let usual = run(&loggp(FAST), Algorithm::PipelinedChain, 20, 1000, 1000).time_ps;
    assert!(outcome.time_ps > usual);
    assert!(outcome.time_ps <= usual + 19 * jitter_ps);
}

#[test]
fn a_slow_rank_slows_what_goes_through_it() {
    // Rank 1 of a chain of three takes three times as long: its in-port, then its out-port.
    let slow = |slow| {
        let simulation = loggp(FAST).faults(Faults { slow, ..Faults::default() });
        run(&simulation, Algorithm::PipelinedChain, 3, 10 << 20, 1 << 20).time_ps
    };
    let block_ps = FAST.transfer_ps(1 << 20);
    let hops_ps = 2 * FAST.latency_ps;
    assert_eq!(slow(vec![]), hops_ps + (2 + 9) * block_ps);
    assert_eq!(slow(vec![(1, 300)]), hops_ps + (3 + 3 + 9 * 3) * block_ps);
    assert_eq!(slow(vec![(2, 300)]), hops_ps + (1 + 3 + 9 * 3) * block_ps);
}

#[test]
fn a_late_rank_delays_those_after_it() {
    let late = |late| {
        let simulation = loggp(FAST).faults(Faults { late, ..Faults::default() });
        run(&simulation, Algorithm::PipelinedChain, 3, 8, 8).time_ps
    };
    let hop_ps = FAST.latency_ps + FAST.transfer_ps(8);
    assert_eq!(late(vec![(1, 1_000_000_000)]), 1_000_000_000 + hop_ps);
    assert_eq!(late(vec![(2, 1_000_000_000)]), 2 * hop_ps, "what comes early is taken in");
    let simulation =
        loggp(FAST).grants(true).faults(Faults { late: vec![(2, 1 << 40)], ..Faults::default() });
    let outcome = run(&simulation, Algorithm::PipelinedChain, 3, 8, 8);
    assert_eq!(outcome.time_ps, (1 << 40) + FAST.latency_ps + hop_ps, "its grant comes late");
}

#[test]
fn a_dead_rank_leaves_survivors_that_know_what_they_miss() {
    // Rank 4 of a chain of nine dies before anything comes to it.
    for grants in [false, true] {
        let faults = Faults { dead: vec![(4, 1)], ..Faults::default() };
        let simulation = loggp(FAST).faults(faults).grants(grants);
        let outcome = run(&simulation, Algorithm::PipelinedChain, 9, 5 << 14, 1 << 14);
        assert_eq!(outcome.dead, [4]);
        assert!(!outcome.is_complete());
        let ranks: Vec<Rank> = outcome.incomplete.iter().map(|entry| entry.rank).collect();
        assert_eq!(ranks, [3, 5, 6, 7, 8], "rank 3 cannot pass on, the others get nothing");
        for entry in &outcome.incomplete {
            let missing = if entry.rank == 3 { 0 } else { 5 };
            assert_eq!(entry.blocks_missing, missing, "rank {}", entry.rank);
            let peer = if entry.rank == 3 { 4 } else { entry.rank - 1 };
            assert_eq!(entry.waits_for[0].peer, peer, "rank {}", entry.rank);
        }
        for rank in [0, 1, 2, 3] {
            assert!(outcome.finish_ps[rank].is_some());
        }
        assert_eq!(outcome.finish_ps[5], None);
    }
}

#[test]
fn a_rank_that_dies_on_the_way_ends_the_run() {
    for algorithm in Algorithm::BROADCAST {
        for at_ps in [0, 5_000_000, 20_000_000, u64::MAX - 1] {
            let faults = Faults { dead: vec![(3, at_ps), (0, at_ps)], ..Faults::default() };
            let simulation = loggp(FAST).faults(faults);
            let outcome = run(&simulation, algorithm, N, 1 << 20, 1 << 14);
            let complete = outcome.incomplete.is_empty();
            assert_eq!(complete, at_ps > 1 << 62, "{algorithm}, dead from {at_ps}");
        }
    }
}

#[test]
fn a_dead_rank_stops_the_rounds_of_those_behind_it() {
    let model = Model::Telephone(Telephone { alpha_ps: 10, bytes_per_second: 1_000_000_000 });
    let simulation =
        Simulation::new(model).faults(Faults { dead: vec![(2, 0)], ..Faults::default() });
    let outcome = run(&simulation, Algorithm::PipelinedChain, 5, 30, 10);
    let ranks: Vec<Rank> = outcome.incomplete.iter().map(|entry| entry.rank).collect();
    assert_eq!(ranks, [1, 3, 4], "rank 1 waits in its first send");
    assert_eq!(outcome.dead, [2]);
}
