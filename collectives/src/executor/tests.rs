//! One executor per rank, all driven in memory: random orders of events, contents compared.

use super::*;
use crate::schedule::{self, Algorithm, Operation, Shape, Step, broadcast};
use crate::test_seed;

fn content(block: u32) -> u64 {
    u64::from(block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Something that will happen, in an order that the driver draws.
#[derive(Clone, Copy, Debug)]
enum Event {
    Grant { from: Rank, to: Rank },
    Arrive { from: Rank, to: Rank, block: u32, content: u64 },
    Complete { rank: Rank, peer: Rank, block: u32 },
}

/// All ranks of a communicator with their executors and memory.
struct World {
    executors: Vec<Executor>,
    memory: Vec<Vec<Option<u64>>>,
    /// For each rank and peer the sends that have started and not arrived.
    on_link: Vec<Vec<(Rank, u32)>>,
    /// Who has granted its buffer to whom.
    grants: std::collections::HashSet<(Rank, Rank)>,
    pending: Vec<Event>,
    window: u32,
}

impl World {
    fn new(algorithm: Algorithm, shape: Shape, pacing: Pacing, window: u32) -> Self {
        let ranks = shape.ranks() as usize;
        let mut world = Self {
            executors: vec![Executor::new(); ranks],
            memory: vec![Vec::new(); ranks],
            on_link: vec![Vec::new(); ranks],
            grants: Default::default(),
            pending: Vec::new(),
            window,
        };
        world.start(algorithm, shape, pacing);
        world
    }

    fn start(&mut self, algorithm: Algorithm, shape: Shape, pacing: Pacing) {
        self.pending.clear();
        self.grants.clear();
        for rank in 0..shape.ranks() {
            let schedule = broadcast(algorithm, shape, rank).unwrap();
            self.executors[rank as usize].start(&schedule, pacing).unwrap();
            let own = shape.held_at_start(rank);
            let memory = 0..shape.total_blocks();
            let memory = memory.map(|block| own.contains(&block).then(|| content(block)));
            self.memory[rank as usize] = memory.collect();
            self.on_link[rank as usize] = schedule.send_peers().iter().map(|&p| (p, 0)).collect();
            let grants = schedule.recv_peers().iter();
            self.pending.extend(grants.map(|&to| Event::Grant { from: rank, to }));
        }
    }

    /// Starts what the rank may start within the link's window.
    fn start_sends(&mut self, rank: Rank) {
        let window = self.window;
        loop {
            let on_link = &self.on_link[rank as usize];
            let has_room = |peer| on_link.iter().any(|&(p, count)| p == peer && count < window);
            let Some(send) = self.executors[rank as usize].next_send(has_room) else { return };
            self.post(rank, send);
        }
    }

    fn post(&mut self, rank: Rank, send: Send) {
        let Send { peer, block, .. } = send;
        assert!(self.grants.contains(&(peer, rank)), "{rank} sends to {peer} without its grant");
        let content = self.memory[rank as usize][block as usize];
        let content = content.expect("a rank sends only what it holds");
        self.link(rank, peer, 1);
        self.pending.push(Event::Arrive { from: rank, to: peer, block, content });
        self.pending.push(Event::Complete { rank, peer, block });
    }

    fn link(&mut self, rank: Rank, peer: Rank, change: i32) {
        let links = &mut self.on_link[rank as usize];
        let link = links.iter_mut().find(|(p, _)| *p == peer).expect("a peer of the schedule");
        link.1 = link.1.checked_add_signed(change).expect("counts stay positive");
    }

    /// Applies the event, and gives the rank whose state changed.
    fn apply(&mut self, event: Event) -> Rank {
        match event {
            Event::Grant { from, to } => {
                self.executors[to as usize].granted(from).unwrap();
                self.grants.insert((from, to));
                to
            }
            Event::Complete { rank, peer, block } => {
                self.executors[rank as usize].sent(peer, block).unwrap();
                rank
            }
            Event::Arrive { from, to, block, content } => {
                let place = &mut self.memory[to as usize][block as usize];
                let expected = if place.is_none() { Arrival::New } else { Arrival::Duplicate };
                *place = Some(content);
                let arrival = self.executors[to as usize].arrived(from, block).unwrap();
                assert_eq!(arrival, expected, "block {block} from {from} at {to}");
                if arrival == Arrival::New {
                    self.link(from, to, -1);
                }
                from
            }
        }
    }

    fn assert_complete(&self, shape: Shape) {
        for (rank, (executor, memory)) in self.executors.iter().zip(&self.memory).enumerate() {
            assert!(executor.is_done(), "rank {rank}");
            assert_eq!(executor.missing_peers().count(), 0, "rank {rank}");
            for block in shape.held_at_end(rank as Rank) {
                let held = memory[block as usize];
                assert_eq!(held, Some(content(block)), "rank {rank}, block {block}, {shape:?}");
            }
        }
    }

    /// Runs to the end, the next event drawn at random; some blocks arrive twice.
    fn run_in_random_order(&mut self, shape: Shape, rng: &mut fastrand::Rng) {
        for rank in 0..shape.ranks() {
            self.start_sends(rank);
        }
        // A grant, an arrival, its duplicate and a completion for each block and rank, and no more.
        let bound = 4 * u64::from(shape.ranks()) * u64::from(shape.total_blocks() + 40);
        let mut events = 0;
        while !self.pending.is_empty() {
            events += 1;
            assert!(events <= bound, "no end after {events} events: {shape:?}");
            let event = self.pending.swap_remove(rng.usize(0..self.pending.len()));
            let is_new = match event {
                Event::Arrive { to, block, .. } => !self.executors[to as usize].holds(block),
                _ => false,
            };
            if is_new && rng.u8(0..8) == 0 {
                self.pending.push(event);
            }
            let changed = self.apply(event);
            self.start_sends(changed);
            if let Event::Arrive { to, .. } = event {
                self.start_sends(to);
            }
        }
        self.assert_complete(shape);
    }

    /// Runs in rounds of one message per port each, and gives the rounds it took.
    fn run_in_rounds(&mut self, shape: Shape) -> u64 {
        for grant in std::mem::take(&mut self.pending) {
            self.apply(grant);
        }
        let bound = u64::from(shape.ranks()) * u64::from(shape.total_blocks() + 1);
        for round in 0..=bound {
            if self.executors.iter().all(Executor::is_done) {
                return round;
            }
            let ports = usize::from(shape.ports());
            for rank in 0..shape.ranks() {
                self.executors[rank as usize].limit_round(round as u32);
                let mut messages = std::collections::BTreeMap::new();
                while let Some(send) = self.executors[rank as usize].next_send(|_| true) {
                    assert_eq!(u64::from(send.round), round, "rank {rank} of {shape:?}");
                    let peer = *messages.entry(send.port).or_insert(send.peer);
                    assert_eq!(peer, send.peer, "a second message in round {round}, rank {rank}");
                    self.post(rank, send);
                }
                assert!(messages.len() <= ports, "rank {rank}: {messages:?}");
            }
            let mut senders = vec![std::collections::BTreeSet::new(); shape.ranks() as usize];
            for event in std::mem::take(&mut self.pending) {
                if let Event::Arrive { from, to, .. } = event {
                    senders[to as usize].insert(from);
                    assert!(
                        senders[to as usize].len() <= ports,
                        "{:?} at {to}",
                        senders[to as usize]
                    );
                }
                self.apply(event);
            }
        }
        panic!("no end after {bound} rounds: {shape:?}");
    }
}

#[test]
fn contents_arrive_in_any_order_of_events() {
    let mut rng = test_seed::rng("contents_arrive_in_any_order_of_events");
    for ranks in (1..=40).chain([63, 64, 65, 100, 129]) {
        for algorithm in Algorithm::BROADCAST {
            for _ in 0..4 {
                let (root, blocks) = (rng.u32(0..ranks), rng.u32(1..=70));
                let shape = Shape::new(ranks, root, blocks).unwrap();
                let window = rng.u32(1..=4);
                let mut world = World::new(algorithm, shape, Pacing::Free, window);
                world.run_in_random_order(shape, &mut rng);
            }
        }
    }
}

#[test]
fn rounds_without_a_limit_also_end_in_any_order() {
    let mut rng = test_seed::rng("rounds_without_a_limit_also_end_in_any_order");
    for ranks in 1..=33 {
        for algorithm in Algorithm::BROADCAST {
            let shape = Shape::new(ranks, rng.u32(0..ranks), rng.u32(1..=30)).unwrap();
            let mut world = World::new(algorithm, shape, Pacing::Rounds, 2);
            world.run_in_random_order(shape, &mut rng);
        }
    }
}

#[test]
fn paced_run_takes_the_rounds_of_the_formula() {
    let mut rng = test_seed::rng("paced_run_takes_the_rounds_of_the_formula");
    for ranks in 1..=70 {
        for blocks in [1, 2, 3, 7, 17] {
            for algorithm in Algorithm::BROADCAST {
                let shape = Shape::new(ranks, rng.u32(0..ranks), blocks).unwrap();
                let mut world = World::new(algorithm, shape, Pacing::Rounds, u32::MAX);
                let rounds = world.run_in_rounds(shape);
                assert_eq!(rounds, schedule::rounds(algorithm, shape), "{algorithm} {shape:?}");
                world.assert_complete(shape);
            }
        }
    }
}

/// Scatter, gather and allgather as well, with several ports.
#[test]
fn every_operation_arrives_in_any_order_and_in_the_rounds_of_the_formula() {
    let mut rng = test_seed::rng("every_operation_arrives_in_any_order");
    for operation in Operation::ALL {
        for &algorithm in Algorithm::of(operation) {
            for ranks in [1, 2, 3, 4, 5, 8, 13, 16, 21, 32] {
                if algorithm == Algorithm::RecursiveDoubling && !u32::is_power_of_two(ranks) {
                    continue;
                }
                let shape = Shape::new(ranks, rng.u32(0..ranks), rng.u32(1..=5)).unwrap();
                let shape = shape.with_operation(operation).unwrap();
                let shape = shape.with_radix(rng.u32(2..=6)).unwrap();
                World::new(algorithm, shape, Pacing::Free, rng.u32(1..=4))
                    .run_in_random_order(shape, &mut rng);
                let shape = shape.with_ports(rng.u16(1..=4)).unwrap();
                World::new(algorithm, shape, Pacing::Free, rng.u32(1..=4))
                    .run_in_random_order(shape, &mut rng);
                let mut world = World::new(algorithm, shape, Pacing::Rounds, u32::MAX);
                let rounds = world.run_in_rounds(shape);
                assert_eq!(rounds, schedule::rounds(algorithm, shape), "{algorithm} {shape:?}");
                world.assert_complete(shape);
            }
        }
    }
}

#[test]
fn one_executor_serves_many_operations_without_new_memory() {
    let mut rng = test_seed::rng("one_executor_serves_many_operations_without_new_memory");
    let ranks = 24;
    let largest = Shape::new(ranks, 0, 90).unwrap();
    // Every rank is the root once, so that each executor has met its largest part.
    let mut world = World::new(Algorithm::Binomial, largest, Pacing::Rounds, 3);
    for algorithm in Algorithm::BROADCAST {
        for root in 0..ranks {
            let shape = Shape::new(ranks, root, 90).unwrap();
            world.start(algorithm, shape, Pacing::Rounds);
        }
    }
    let memory_of = |executor: &Executor| {
        let Executor { peers, slots, ready, block_start, block_slots, source, held, .. } = executor;
        [
            (peers.as_ptr() as usize, peers.capacity()),
            (slots.as_ptr() as usize, slots.capacity()),
            (ready.as_ptr() as usize, ready.capacity()),
            (block_start.as_ptr() as usize, block_start.capacity()),
            (block_slots.as_ptr() as usize, block_slots.capacity()),
            (source.as_ptr() as usize, source.capacity()),
            (held.as_ptr() as usize, held.capacity()),
        ]
    };
    let before: Vec<_> = world.executors.iter().map(memory_of).collect();
    for _ in 0..60 {
        let shape = Shape::new(ranks, rng.u32(0..ranks), rng.u32(1..=90)).unwrap();
        let algorithm = Algorithm::BROADCAST[rng.usize(0..3)];
        let pacing = if rng.bool() { Pacing::Free } else { Pacing::Rounds };
        world.start(algorithm, shape, pacing);
        world.run_in_random_order(shape, &mut rng);
    }
    assert_eq!(before, world.executors.iter().map(memory_of).collect::<Vec<_>>());
}

/// Rank 1 of nine in the circulant schedule from root 0: receives from and sends to several.
fn started(blocks: u32) -> (RankSchedule, Executor) {
    let shape = Shape::new(9, 0, blocks).unwrap();
    let schedule = broadcast(Algorithm::PipelinedTree, shape, 1).unwrap();
    let mut executor = Executor::new();
    executor.start(&schedule, Pacing::Free).unwrap();
    (schedule, executor)
}

fn steps_of(schedule: &RankSchedule, direction: Direction) -> impl Iterator<Item = Step> {
    schedule.steps().iter().copied().filter(move |step| step.direction == direction)
}

#[test]
fn sends_come_in_the_order_of_the_schedule() {
    let (schedule, mut executor) = started(30);
    for &peer in schedule.send_peers() {
        executor.granted(peer).unwrap();
    }
    let mut receives: Vec<Step> = steps_of(&schedule, Direction::Recv).collect();
    fastrand::Rng::with_seed(3).shuffle(&mut receives);
    for step in receives {
        executor.arrived(step.peer, step.block).unwrap();
    }
    let sends = std::iter::from_fn(|| executor.next_send(|_| true));
    let expected = steps_of(&schedule, Direction::Send).map(|s| (s.peer, s.block, s.round));
    assert!(sends.map(|s| (s.peer, s.block, s.round)).eq(expected));
}

#[test]
fn a_full_link_does_not_hold_up_the_others() {
    let (schedule, mut executor) = started(30);
    schedule.send_peers().iter().for_each(|&peer| executor.granted(peer).unwrap());
    for step in steps_of(&schedule, Direction::Recv) {
        executor.arrived(step.peer, step.block).unwrap();
    }
    let full = schedule.send_peers()[0];
    let mut asked = Vec::new();
    let sends: Vec<Send> = std::iter::from_fn(|| {
        asked.clear();
        let send = executor.next_send(|peer| {
            asked.push(peer);
            peer != full
        });
        asked.sort_unstable();
        assert!(asked.windows(2).all(|pair| pair[0] != pair[1]), "asked twice: {asked:?}");
        send
    })
    .collect();
    let expected = steps_of(&schedule, Direction::Send).filter(|step| step.peer != full);
    assert!(sends.iter().map(|s| (s.peer, s.block)).eq(expected.map(|s| (s.peer, s.block))));
    assert_eq!(executor.next_send(|_| true).map(|send| send.peer), Some(full));
}

#[test]
fn events_that_do_not_belong_are_errors_and_change_nothing() {
    let (schedule, mut executor) = started(6);
    let first = steps_of(&schedule, Direction::Recv).next().unwrap();
    let stranger = (0..9).find(|rank| !schedule.recv_peers().contains(rank)).unwrap();
    for (peer, block) in [(stranger, first.block), (first.peer, 6), (99, 0), (first.peer, u32::MAX)]
    {
        let expected = (block == first.block).then_some(first.peer);
        let expected = expected.or((block == 0).then(|| source_of(&schedule, 0)));
        let error = ExecutorError::BlockNotExpected { rank: 1, peer, block, expected };
        assert_eq!(executor.arrived(peer, block), Err(error));
    }
    let silent = (0..9).find(|rank| !schedule.send_peers().contains(rank)).unwrap();
    let error = ExecutorError::GrantNotExpected { rank: 1, peer: silent };
    assert_eq!(executor.granted(silent), Err(error));
    let peer = schedule.send_peers()[0];
    executor.granted(peer).unwrap();
    assert_eq!(executor.granted(peer), Err(ExecutorError::GrantedTwice { rank: 1, peer }));
    for block in [0, 5, 6, u32::MAX] {
        let error = ExecutorError::NotInFlight { rank: 1, peer, block };
        assert_eq!(executor.sent(peer, block), Err(error));
    }
    assert_eq!(executor.blocks_missing(), 6);
    assert_eq!(executor.next_send(|_| true), None);
}

fn source_of(schedule: &RankSchedule, block: u32) -> Rank {
    steps_of(schedule, Direction::Recv).find(|step| step.block == block).unwrap().peer
}

#[test]
fn a_peer_that_has_not_granted_gets_nothing() {
    let (schedule, mut executor) = started(30);
    for step in steps_of(&schedule, Direction::Recv) {
        executor.arrived(step.peer, step.block).unwrap();
    }
    assert_eq!(executor.next_send(|_| true), None);
    for &peer in schedule.send_peers() {
        executor.granted(peer).unwrap();
        let sends = std::iter::from_fn(|| executor.next_send(|_| true));
        let expected = steps_of(&schedule, Direction::Send).filter(|step| step.peer == peer);
        assert!(sends.map(|s| (s.peer, s.block)).eq(expected.map(|s| (s.peer, s.block))));
    }
}

#[test]
fn a_send_completes_once() {
    let shape = Shape::new(2, 0, 2).unwrap();
    let schedule = broadcast(Algorithm::Binomial, shape, 0).unwrap();
    let mut executor = Executor::new();
    executor.start(&schedule, Pacing::Free).unwrap();
    executor.granted(1).unwrap();
    assert_eq!(executor.next_send(|_| true).map(|send| send.block), Some(0));
    assert!(executor.sent(1, 1).is_err(), "block 1 has not started");
    executor.sent(1, 0).unwrap();
    assert!(executor.sent(1, 0).is_err(), "complete already");
    assert!(!executor.is_done());
    assert_eq!(executor.next_send(|_| true).map(|send| send.block), Some(1));
    assert_eq!(executor.missing_peers().map(|m| m.in_flight).collect::<Vec<_>>(), [1]);
    executor.sent(1, 1).unwrap();
    assert!(executor.is_done());
}

#[test]
fn missing_peers_tell_what_is_waited_for() {
    let shape = Shape::new(3, 0, 4).unwrap();
    let schedule = broadcast(Algorithm::PipelinedChain, shape, 1).unwrap();
    let mut executor = Executor::new();
    executor.start(&schedule, Pacing::Free).unwrap();
    let nothing = Missing { peer: 0, grant: false, blocks: 0, in_flight: 0 };
    let missing = |executor: &Executor| executor.missing_peers().collect::<Vec<_>>();
    let from_0 = Missing { peer: 0, blocks: 4, ..nothing };
    let to_2 = Missing { peer: 2, grant: true, ..nothing };
    assert_eq!(missing(&executor), [from_0, to_2]);
    executor.granted(2).unwrap();
    executor.arrived(0, 1).unwrap();
    assert_eq!(missing(&executor), [Missing { blocks: 3, ..from_0 }]);
    assert_eq!(executor.next_send(|_| true).map(|send| send.block), Some(1));
    let in_flight = Missing { peer: 2, in_flight: 1, ..nothing };
    assert_eq!(missing(&executor), [Missing { blocks: 3, ..from_0 }, in_flight]);
}

#[test]
fn schedules_that_cannot_run_are_refused() {
    let shape = Shape::new(3, 0, 2).unwrap();
    let recv = Step { round: 0, direction: Direction::Recv, peer: 0, block: 1, port: 0 };
    let send = Step { round: 1, direction: Direction::Send, peer: 2, ..recv };
    let start = |rank, steps: &[Step]| {
        let schedule = RankSchedule::from_steps(shape, rank, 3, steps.to_vec()).unwrap();
        let mut executor = Executor::new();
        let outcome = executor.start(&schedule, Pacing::Free);
        assert!(outcome.is_ok() || executor.is_done(), "nothing is left to do after an error");
        outcome
    };
    assert_eq!(start(1, &[recv, send]), Ok(()));
    let error = ExecutorError::ReceivesHeldBlock { rank: 1, peer: 2, block: 1 };
    assert_eq!(start(1, &[recv, Step { peer: 2, ..recv }]), Err(error));
    let error = ExecutorError::SendsMissingBlock { rank: 1, peer: 2, block: 0 };
    assert_eq!(start(1, &[recv, Step { block: 0, ..send }]), Err(error));
    let error = ExecutorError::ReceivesHeldBlock { rank: 0, peer: 2, block: 1 };
    assert_eq!(start(0, &[Step { peer: 2, ..recv }]), Err(error));
}

#[test]
fn rounds_hold_back_what_free_pacing_starts() {
    // Rank 1 of a chain of three gets block 1 before block 0, which its first round brings.
    let shape = Shape::new(3, 0, 2).unwrap();
    let schedule = broadcast(Algorithm::PipelinedChain, shape, 1).unwrap();
    for (pacing, started) in [(Pacing::Free, Some(1)), (Pacing::Rounds, None)] {
        let mut executor = Executor::new();
        executor.start(&schedule, pacing).unwrap();
        executor.granted(2).unwrap();
        executor.arrived(0, 1).unwrap();
        assert_eq!(executor.next_send(|_| true).map(|send| send.block), started, "{pacing:?}");
    }
}
