//! Numbers and schedules that cannot be: a clear error, no panic, no run.

use super::*;
use crate::schedule::{Direction, ScheduleError, Step};

fn error(simulation: &Simulation) -> SimulateError {
    let blocks = Blocks::new(100, 10).unwrap();
    let shape = Shape::new(4, 0, 10).unwrap();
    simulation.run(Algorithm::PipelinedTree, shape, blocks).unwrap_err()
}

#[test]
fn blocks_that_cannot_be() {
    for (bytes, block_bytes) in [(100, 0), (100, 101), (0, 2), (1 << 40, 1)] {
        let error = SimulateError::BlockBytes { block_bytes, bytes };
        assert_eq!(Blocks::new(bytes, block_bytes), Err(error));
    }
    for bytes in [1 << 63, u64::MAX] {
        assert_eq!(Blocks::new(bytes, 1 << 50), Err(SimulateError::MessageBytes { bytes }));
        assert_eq!(Blocks::equal(bytes, 1), Err(SimulateError::MessageBytes { bytes }));
    }
    assert!(matches!(Blocks::equal(5, 0), Err(SimulateError::BlockCount { count: 0, .. })));
    let blocks = Blocks::equal((1 << 63) - 1, 3).unwrap();
    assert_eq!((0..3).map(|b| blocks.bytes_of(b)).sum::<u64>(), (1 << 63) - 1);
    let few = Blocks::equal(2, 5).unwrap();
    assert_eq!((0..5).map(|b| few.bytes_of(b)).collect::<Vec<_>>(), [1, 1, 0, 0, 0]);
    let shape = Shape::new(4, 0, 3).unwrap();
    let ten = Blocks::new(100, 10).unwrap();
    let outcome = loggp(FAST).run(Algorithm::PipelinedTree, shape, ten);
    assert_eq!(outcome, Err(SimulateError::BlockCount { count: 3, of: 10 }));
}

#[test]
fn networks_that_cannot_be() {
    let none = Path { bytes_per_second: 0, ..FAST };
    assert!(matches!(error(&loggp(none)), SimulateError::NoBandwidth { .. }));
    let with = |change: &dyn Fn(&mut Loggp)| {
        let mut model = Loggp::new(FAST);
        change(&mut model);
        error(&Simulation::new(Model::Loggp(model)))
    };
    assert_eq!(with(&|m| m.ports = 0), SimulateError::Ports { ports: 0 });
    assert_eq!(with(&|m| m.ports = 65), SimulateError::Ports { ports: 65 });
    assert_eq!(with(&|m| m.ranks_per_host = 0), SimulateError::RanksPerHost);
    assert!(matches!(with(&|m| m.local = Some(none)), SimulateError::NoBandwidth { .. }));
    let outside = with(&|m| {
        m.links.insert((1, 4), FAST);
    });
    assert_eq!(outside, SimulateError::RankOutside { what: "a link", rank: 4, ranks: 4 });
    let rate = Telephone { alpha_ps: 1, bytes_per_second: 0 };
    assert!(matches!(
        error(&Simulation::new(Model::Telephone(rate))),
        SimulateError::NoBandwidth { .. }
    ));
}

#[test]
fn faults_that_cannot_be() {
    let with = |change: &dyn Fn(&mut Faults)| {
        let mut faults = Faults::default();
        change(&mut faults);
        error(&loggp(FAST).faults(faults))
    };
    assert_eq!(with(&|f| f.loss_ppm = 1_000_001), SimulateError::Loss { ppm: 1_000_001 });
    assert_eq!(with(&|f| f.retries = 101), SimulateError::Retries { retries: 101 });
    assert_eq!(with(&|f| f.slow = vec![(1, 0)]), SimulateError::Slow { rank: 1 });
    assert!(matches!(with(&|f| f.dead = vec![(4, 0)]), SimulateError::RankOutside { rank: 4, .. }));
    assert!(matches!(
        with(&|f| f.late = vec![(2, 0); 2]),
        SimulateError::RankTwice { rank: 2, .. }
    ));
    let model = Model::Telephone(Telephone { alpha_ps: 1, bytes_per_second: 1 });
    let lossy = Faults { loss_ppm: 1, ..Faults::default() };
    let error = error(&Simulation::new(model).faults(lossy));
    assert_eq!(error, SimulateError::NotInRounds { what: "loss" });
}

#[test]
fn runs_that_are_too_large_end_before_they_begin() {
    let blocks = Blocks::new(1 << 20, 1).unwrap();
    let shape = Shape::new(65, 0, blocks.count()).unwrap();
    let outcome = loggp(FAST).run(Algorithm::PipelinedChain, shape, blocks);
    assert_eq!(outcome, Err(SimulateError::TooLarge { ranks: 65, blocks: 1 << 20 }));
    let bytes = (1 << 63) - 1;
    let slowest = Path { latency_ps: u64::MAX, gap_ps: u64::MAX, ..Path::from_ns(0, 0, 1) };
    let blocks = Blocks::new(bytes, bytes).unwrap();
    let shape = Shape::new(4, 0, 1).unwrap();
    for simulation in [
        loggp(slowest),
        loggp(Path { latency_ps: 0, gap_ps: 0, ..slowest }),
        loggp(Path { bytes_per_second: u64::MAX, ..slowest }),
        Simulation::new(Model::Telephone(Telephone { alpha_ps: u64::MAX, bytes_per_second: 1 })),
    ] {
        let outcome = simulation.run(Algorithm::Binomial, shape, blocks);
        assert_eq!(outcome, Err(SimulateError::TimeOverflow));
    }
}

#[test]
fn schedules_that_do_not_meet() {
    let shape = Shape::new(2, 0, 1).unwrap();
    let blocks = Blocks::new(8, 8).unwrap();
    let step = |direction, peer, port| Step { round: 0, direction, peer, block: 0, port };
    let schedule = |rank, steps| RankSchedule::from_steps(shape, rank, 1, steps).unwrap();
    let run = |schedules: &[RankSchedule]| loggp(FAST).run_given(schedules, blocks);
    let send = schedule(0, vec![step(Direction::Send, 1, 0)]);
    let receive = schedule(1, vec![step(Direction::Recv, 0, 0)]);
    assert!(run(&[send.clone(), receive.clone()]).unwrap().is_complete());
    // Nobody receives what is sent.
    let idle = schedule(1, vec![]);
    assert!(matches!(run(&[send.clone(), idle]), Err(SimulateError::Executor(_))));
    // Nobody sends what is awaited: the run ends and says so.
    let outcome = run(&[schedule(0, vec![]), receive.clone()]).unwrap();
    assert_eq!(outcome.incomplete.len(), 1);
    assert_eq!(outcome.incomplete[0].waits_for[0].peer, 0);
    assert_eq!(run(&[]), Err(SimulateError::Schedules { given: 0, ranks: 0 }));
    let alone = std::slice::from_ref(&send);
    assert_eq!(run(alone), Err(SimulateError::Schedules { given: 1, ranks: 2 }));
    let twice = [send.clone(), send.clone()];
    assert_eq!(run(&twice), Err(SimulateError::ScheduleOf { place: 1, rank: 0 }));
    let port = [schedule(0, vec![step(Direction::Send, 1, 3)]), receive];
    let outside = SimulateError::PortOutside { rank: 0, port: 3, ports: 1 };
    assert_eq!(run(&port), Err(outside));
    let outside = Shape::new(4, 4, 1).map_err(SimulateError::from);
    let expected = ScheduleError::RootOutside { root: 4, ranks: 4 };
    assert_eq!(outside, Err(SimulateError::Schedule(expected)));
}
