//! Several ranks behind the ports of one host, links that differ, several ports.

use super::*;

/// 1 byte per ns, no gap.
const SLOW: Path = Path::from_ns(5, 0, 1_000_000_000);

fn flat_time(model: Loggp, ranks: u32, bytes: u64) -> u64 {
    run(&Simulation::new(Model::Loggp(model)), Algorithm::Binomial, ranks, bytes, bytes).time_ps
}

#[test]
fn ranks_of_a_host_share_its_port() {
    // Binomial, 4 ranks: 0 > 2, then 0 > 1 and 2 > 3 together.
    let alone = Loggp::new(SLOW);
    assert_eq!(flat_time(alone.clone(), 4, 100), 2 * (5000 + 100_000));
    // All on one host: 0 > 1 follows 0 > 2 at the port, and so 2 > 3 waits until it has left.
    let shared = Loggp { ranks_per_host: 4, ..alone.clone() };
    assert_eq!(flat_time(shared, 4, 100), 3 * 100_000 + 5000);
    // Ranks 2 and 3 share one: 2 > 3 has the port of the host for itself.
    let pairs = Loggp { ranks_per_host: 2, ..alone.clone() };
    assert_eq!(flat_time(pairs, 4, 100), 2 * (5000 + 100_000));
}

#[test]
fn blocks_within_a_host_take_the_local_path() {
    let local = Path::from_ns(1, 0, 10_000_000_000);
    let model = Loggp { ranks_per_host: 2, local: Some(local), ..Loggp::new(SLOW) };
    // 0 > 2 over the network; then 2 > 3 within the host.
    assert_eq!(flat_time(model, 4, 100), (5000 + 100_000) + (1000 + 10_000));
}

#[test]
fn a_link_has_its_own_speed() {
    let mut model = Loggp::new(SLOW);
    let half = Path { bytes_per_second: 500_000_000, ..SLOW };
    model.links.insert((0, 1), half);
    let time = |model: &Loggp| {
        let simulation = Simulation::new(Model::Loggp(model.clone()));
        run(&simulation, Algorithm::PipelinedChain, 3, 1000, 100).time_ps
    };
    assert_eq!(time(&Loggp::new(SLOW)), 2 * (5000 + 100_000) + 9 * 100_000);
    assert_eq!(time(&model), (5000 + 200_000) + 9 * 200_000 + (5000 + 100_000));
    // One way only.
    model.links.clear();
    model.links.insert((1, 0), half);
    assert_eq!(time(&model), 2 * (5000 + 100_000) + 9 * 100_000);
}
