//! The checker accepts a correct set of schedules and rejects each kind of fault in it.

use super::*;
use crate::schedule::{Algorithm, Shape, broadcast, rounds, schedule};
use crate::test_seed;

const RANKS: u32 = 11;
const ROOT: Rank = 4;
const BLOCKS: u32 = 5;

type Steps = Vec<Vec<Step>>;

/// A correct set of schedules and its claim, for the mutations to start from.
fn correct(algorithm: Algorithm) -> (Claim, Steps) {
    let shape = Shape::new(RANKS, ROOT, BLOCKS).unwrap();
    let steps: Steps = (0..RANKS)
        .map(|rank| broadcast(algorithm, shape, rank).unwrap().steps().to_vec())
        .collect();
    let rounds = crate::schedule::rounds(algorithm, shape);
    let message_blocks = if algorithm == Algorithm::ScatterAllgather { BLOCKS } else { 1 };
    let claim = Claim { message_blocks, ..Claim::new(shape, rounds) };
    assert!(check(&claim, &steps).is_ok());
    (claim, steps)
}

fn small_claim(blocks: u32, ports: u16, rounds: u64) -> Claim {
    Claim::new(Shape::new(3, 0, blocks).unwrap().with_ports(ports).unwrap(), rounds)
}

/// Where the receive that belongs to a send is.
fn counterpart(steps: &Steps, rank: Rank, send: Step) -> (Rank, usize) {
    let wanted = Step { direction: Direction::Recv, peer: rank, ..send };
    let place = steps[send.peer as usize].iter().position(|&step| step == wanted);
    (send.peer, place.expect("each send has its receive"))
}

/// Every send of all ranks: rank, place in its list, step.
fn sends(steps: &Steps) -> Vec<(Rank, usize, Step)> {
    let mut found = Vec::new();
    for (rank, steps) in (0..).zip(steps) {
        let places = steps.iter().copied().enumerate();
        let sends = places.filter(|(_, step)| step.direction == Direction::Send);
        found.extend(sends.map(|(place, step)| (rank, place, step)));
    }
    found
}

/// Removes a send and its receive.
fn remove_transfer(steps: &mut Steps, rank: Rank, place: usize) -> Step {
    let send = steps[rank as usize][place];
    let (peer, other) = counterpart(steps, rank, send);
    steps[peer as usize].remove(other);
    steps[rank as usize].remove(place)
}

/// Adds a send and its receive, each at the end of its round.
fn add_transfer(steps: &mut Steps, rank: Rank, send: Step) {
    let recv = Step { direction: Direction::Recv, peer: rank, ..send };
    for (owner, step) in [(rank, send), (send.peer, recv)] {
        let list = &mut steps[owner as usize];
        let place = list.partition_point(|other| other.round <= step.round);
        list.insert(place, step);
    }
}

/// Applies the mutation to every send of every algorithm, one at a time.
fn for_each_send(mut test: impl FnMut(Algorithm, Claim, Steps, (Rank, usize, Step))) {
    for algorithm in Algorithm::BROADCAST {
        let (claim, steps) = correct(algorithm);
        for send in sends(&steps) {
            test(algorithm, claim, steps.clone(), send);
        }
    }
}

#[test]
fn block_sent_before_held_is_rejected() {
    let mut rejected = 0;
    for_each_send(|algorithm, claim, mut steps, (rank, place, send)| {
        let held_after = steps[rank as usize]
            .iter()
            .find(|step| step.direction == Direction::Recv && step.block == send.block)
            .map(|step| step.round);
        let Some(held_after) = held_after else { return };
        remove_transfer(&mut steps, rank, place);
        let early = Step { round: held_after, ..send };
        add_transfer(&mut steps, rank, early);
        let error = check(&claim, &steps).unwrap_err();
        let transfer =
            Transfer { round: held_after, from: rank, to: send.peer, block: send.block, port: 0 };
        assert_eq!(error, CheckError::SentBeforeHeld { transfer, held_after }, "{algorithm}");
        rejected += 1;
    });
    assert!(rejected > 50);
}

#[test]
fn wrong_peer_is_rejected() {
    for_each_send(|algorithm, claim, mut steps, (rank, place, send)| {
        let peer = (0..RANKS).find(|&peer| peer != rank && peer != send.peer).unwrap();
        steps[rank as usize][place].peer = peer;
        let error = check(&claim, &steps).unwrap_err();
        let is_named = match error {
            CheckError::SendWithoutRecv { transfer } => {
                (transfer.from, transfer.to, transfer.block) == (rank, peer, send.block)
            }
            CheckError::RecvWithoutSend { transfer } => {
                (transfer.from, transfer.to, transfer.block) == (rank, send.peer, send.block)
            }
            _ => false,
        };
        assert!(is_named, "{algorithm}: {error}");
        let (claim, mut steps) = correct(algorithm);
        steps[rank as usize][place].peer = rank;
        let error = check(&claim, &steps).unwrap_err();
        assert!(matches!(error, CheckError::StepOutside { .. }), "{algorithm}: {error}");
    });
}

#[test]
fn wrong_block_round_or_port_is_rejected() {
    for_each_send(|algorithm, claim, steps, (rank, place, send)| {
        let claim = Claim { ports: 2, ..claim };
        for wrong in [Step { block: (send.block + 1) % BLOCKS, ..send }, Step { port: 1, ..send }] {
            let mut steps = steps.clone();
            steps[rank as usize][place] = wrong;
            let error = check(&claim, &steps).unwrap_err();
            assert!(
                matches!(
                    error,
                    CheckError::SendWithoutRecv { .. } | CheckError::RecvWithoutSend { .. }
                ),
                "{algorithm}: {error}"
            );
        }
        for outside in
            [Step { block: BLOCKS, ..send }, Step { port: 2, ..send }, Step { peer: RANKS, ..send }]
        {
            let mut steps = steps.clone();
            steps[rank as usize][place] = outside;
            let error = check(&claim, &steps).unwrap_err();
            let expected = CheckError::StepOutside { rank, index: place, step: outside, claim };
            assert_eq!(error, expected, "{algorithm}");
        }
    });
}

#[test]
fn lost_block_is_rejected() {
    for_each_send(|algorithm, claim, mut steps, (rank, place, send)| {
        let one_sided = {
            let mut steps = steps.clone();
            steps[rank as usize].remove(place);
            check(&claim, &steps).unwrap_err()
        };
        let is_unmatched = matches!(one_sided, CheckError::RecvWithoutSend { transfer }
            if (transfer.from, transfer.to, transfer.block) == (rank, send.peer, send.block));
        assert!(is_unmatched, "{algorithm}: {one_sided}");
        remove_transfer(&mut steps, rank, place);
        let error = check(&claim, &steps).unwrap_err();
        let lost = CheckError::Lost { rank: send.peer, block: send.block };
        assert_eq!(error, lost, "{algorithm}");
    });
}

#[test]
fn duplicate_is_rejected() {
    for_each_send(|algorithm, claim, mut steps, (rank, _, send)| {
        let again = Step { round: claim.rounds as u32 - 1, ..send };
        add_transfer(&mut steps, rank, again);
        let error = check(&claim, &steps).unwrap_err();
        let is_named = matches!(error, CheckError::Duplicate { transfer }
            if (transfer.to, transfer.block) == (send.peer, send.block));
        assert!(is_named, "{algorithm}: {error}");
    });
    let (claim, mut steps) = correct(Algorithm::Binomial);
    let to_root = Step { round: 9, direction: Direction::Send, peer: ROOT, block: 0, port: 0 };
    add_transfer(&mut steps, 0, to_root);
    let error = check(&claim, &steps).unwrap_err();
    assert!(matches!(error, CheckError::Duplicate { transfer } if transfer.to == ROOT), "{error}");
}

#[test]
fn one_port_too_many_is_rejected() {
    // The root sends the last two blocks of a flat broadcast to two ranks in one round.
    let claim = small_claim(1, 2, 1);
    let send = Step { round: 0, direction: Direction::Send, peer: 1, block: 0, port: 0 };
    let flat = |second_port| {
        let mut steps = vec![Vec::new(); 3];
        add_transfer(&mut steps, 0, send);
        add_transfer(&mut steps, 0, Step { peer: 2, port: second_port, ..send });
        steps
    };
    assert!(check(&claim, &flat(1)).is_ok(), "two ports suffice");
    let error = check(&claim, &flat(0)).unwrap_err();
    let expected = CheckError::PortExceeded {
        rank: 0,
        round: 0,
        direction: Direction::Send,
        count: 2,
        port: 0,
        on_port: 2,
        ports: 2,
    };
    assert_eq!(error, expected);
    let error = check(&Claim { ports: 1, ..claim }, &flat(0)).unwrap_err();
    assert!(matches!(error, CheckError::PortExceeded { count: 2, ports: 1, .. }), "{error}");
}

#[test]
fn two_receives_on_one_port_are_rejected() {
    // Ranks 0 and 1 both send to rank 2 in round 1.
    let claim = small_claim(2, 1, 3);
    let send =
        |round, peer, block| Step { round, direction: Direction::Send, peer, block, port: 0 };
    let mut steps = vec![Vec::new(); 3];
    add_transfer(&mut steps, 0, send(0, 1, 0));
    add_transfer(&mut steps, 1, send(1, 2, 0));
    add_transfer(&mut steps, 0, send(1, 2, 1));
    add_transfer(&mut steps, 0, send(2, 1, 1));
    let error = check(&claim, &steps).unwrap_err();
    let is_named = matches!(
        error,
        CheckError::PortExceeded { rank: 2, round: 1, direction: Direction::Recv, count: 2, .. }
    );
    assert!(is_named, "{error}");
}

#[test]
fn deadlock_is_rejected() {
    // Ranks 1 and 2 each get the block from the other.
    let claim = small_claim(1, 1, 2);
    let send = Step { round: 0, direction: Direction::Send, peer: 2, block: 0, port: 0 };
    let mut steps = vec![Vec::new(); 3];
    add_transfer(&mut steps, 1, send);
    add_transfer(&mut steps, 2, Step { round: 1, peer: 1, ..send });
    let transfer = Transfer { round: 0, from: 1, to: 2, block: 0, port: 0 };
    assert_eq!(check(&claim, &steps), Err(CheckError::Deadlock { transfer }));
}

#[test]
fn wrong_round_count_is_rejected() {
    for algorithm in Algorithm::BROADCAST {
        let (claim, steps) = correct(algorithm);
        for claimed in [claim.rounds - 1, claim.rounds + 1] {
            let error = check(&Claim { rounds: claimed, ..claim }, &steps).unwrap_err();
            assert_eq!(error, CheckError::RoundCount { claimed, actual: claim.rounds });
        }
        // An empty round in front: one round more than claimed.
        let mut later = steps.clone();
        later.iter_mut().flatten().for_each(|step| step.round += 1);
        let error = check(&claim, &later).unwrap_err();
        let expected = CheckError::RoundCount { claimed: claim.rounds, actual: claim.rounds + 1 };
        assert_eq!(error, expected);
    }
}

#[test]
fn steps_out_of_order_are_rejected() {
    let (claim, mut steps) = correct(Algorithm::PipelinedChain);
    let last = steps[0].len() - 1;
    steps[0].swap(0, last);
    let error = check(&claim, &steps).unwrap_err();
    assert!(matches!(error, CheckError::StepOrder { rank: 0, index: 1, .. }), "{error}");
}

#[test]
fn impossible_claims_are_rejected() {
    let (claim, steps) = correct(Algorithm::Binomial);
    for claim in [
        Claim { ranks: RANKS + 1, ..claim },
        Claim { root: RANKS, ..claim },
        Claim { blocks: 0, ..claim },
    ] {
        let error = check(&claim, &steps).unwrap_err();
        assert_eq!(error, CheckError::Claim { claim, given: RANKS as usize });
    }
}

#[test]
fn one_rank_needs_no_step() {
    let claim = Claim::new(Shape::new(1, 0, 3).unwrap(), 0);
    let report = Report { transfers: 0, most_send_peers: 0, most_recv_peers: 0 };
    assert_eq!(check(&claim, &[[]]), Ok(report));
}

/// Every operation and algorithm, with messages of several blocks and several ports: whatever is done
/// to one transfer of a correct set is noticed.
#[test]
fn every_mutation_of_every_algorithm_is_rejected() {
    let mut rng = test_seed::rng("every_mutation_of_every_algorithm_is_rejected");
    for operation in Operation::ALL {
        for &algorithm in Algorithm::of(operation) {
            for ports in [1, 2] {
                let shape = Shape::new(8, 3, 4).unwrap().with_operation(operation).unwrap();
                let shape = shape.with_ports(ports).unwrap().with_radix(3).unwrap();
                let steps: Steps = (0..8)
                    .map(|rank| schedule(algorithm, shape, rank).unwrap().steps().to_vec())
                    .collect();
                let many = operation.has_parts() || algorithm == Algorithm::ScatterAllgather;
                let message_blocks = if many { u32::MAX } else { 1 };
                let claim = Claim { message_blocks, ..Claim::new(shape, rounds(algorithm, shape)) };
                check(&claim, &steps).unwrap();
                let mut sends = sends(&steps);
                rng.shuffle(&mut sends);
                for (rank, place, send) in sends.into_iter().take(40) {
                    for mutated in mutations(&steps, &claim, shape, (rank, place, send)) {
                        assert!(
                            check(&claim, &mutated.1).is_err(),
                            "{algorithm} {operation}, {ports} ports: {} of {send} by {rank}",
                            mutated.0
                        );
                    }
                }
            }
        }
    }
}

fn mutations(
    steps: &Steps,
    claim: &Claim,
    shape: Shape,
    (rank, place, send): (Rank, usize, Step),
) -> Vec<(&'static str, Steps)> {
    let one_sided = |wrong: Step| {
        let mut steps = steps.clone();
        steps[rank as usize][place] = wrong;
        steps
    };
    let other = (0..shape.ranks()).find(|&peer| peer != rank && peer != send.peer).unwrap();
    let mut list = vec![
        (
            "another block",
            one_sided(Step { block: (send.block + 1) % shape.total_blocks(), ..send }),
        ),
        ("another peer", one_sided(Step { peer: other, ..send })),
        ("a port too high", one_sided(Step { port: claim.ports, ..send })),
    ];
    let mut lost = steps.clone();
    remove_transfer(&mut lost, rank, place);
    // A part that only passes through an inner rank may be missing there if nobody needs it after.
    list.push(("loss", lost));
    let mut twice = steps.clone();
    add_transfer(&mut twice, rank, send);
    list.push(("repetition", twice));
    let mut late = steps.clone();
    remove_transfer(&mut late, rank, place);
    add_transfer(&mut late, rank, Step { round: claim.rounds as u32, ..send });
    list.push(("a round too late", late));
    list
}

#[test]
fn messages_longer_than_claimed_are_rejected() {
    let shape = Shape::new(4, 0, 1).unwrap().with_operation(Operation::Scatter).unwrap();
    let steps: Steps = (0..4)
        .map(|rank| schedule(Algorithm::Binomial, shape, rank).unwrap().steps().to_vec())
        .collect();
    let claim = Claim::new(shape, 2);
    assert_eq!(check(&claim, &steps).unwrap().transfers, 4);
    let error = check(&Claim { message_blocks: 1, ..claim }, &steps).unwrap_err();
    assert_eq!(error, CheckError::MessageBlocks { rank: 0, round: 0, peer: 2, count: 2, most: 1 });
}

const CHAIN: &str = r#"{"op":"broadcast","ranks":3,"root":0,"blocks":1,"rounds":2}
{"rank":0,"round":0,"op":"send","peer":1,"block":0}
{"rank":1,"round":0,"op":"recv","peer":0,"block":0}

{"rank":1,"round":1,"op":"send","peer":2,"block":0}
{"rank":2,"round":1,"op":"recv","peer":1,"block":0}
"#;

#[test]
fn schedules_are_read_from_json() {
    let (claim, steps) = read_schedules(CHAIN.as_bytes(), None).unwrap();
    assert_eq!(claim, small_claim(1, 1, 2));
    assert_eq!(check(&claim, &steps).unwrap().transfers, 2);
    let without = CHAIN.split_once('\n').unwrap().1;
    let (same, again) = read_schedules(without.as_bytes(), Some(claim)).unwrap();
    assert_eq!((same, again), (claim, steps));
    assert!(matches!(read_schedules(without.as_bytes(), None), Err(ReadError::NoClaim)));
    assert!(matches!(read_schedules(&b""[..], None), Err(ReadError::NoClaim)));
}

#[test]
fn bad_json_is_an_error_with_its_line() {
    let error = |text: &str| read_schedules(text.as_bytes(), None).unwrap_err();
    // Cut short anywhere, it is an error here or an incomplete broadcast.
    for end in 0..CHAIN.trim_end().len() {
        let whole = read_schedules(&CHAIN.as_bytes()[..end], None);
        let complete = whole.is_ok_and(|(claim, steps)| check(&claim, &steps).is_ok());
        assert!(!complete, "cut after {end} bytes");
    }
    let cut = &CHAIN[..CHAIN.len() - 8];
    assert!(matches!(error(cut), ReadError::Line { line: 6, .. }), "{}", error(cut));
    let again = CHAIN.lines().nth(1).unwrap();
    let twice = error(&format!("{CHAIN}{again}"));
    assert!(matches!(twice, ReadError::RankTwice { line: 7, rank: 0 }), "{twice}");
    let field = error(&CHAIN.replace("{\"rank\":2,", "{\"rank\":2,\"rank\":1,"));
    assert!(matches!(field, ReadError::Line { line: 6, .. }), "{field}");
    let outside = error(&CHAIN.replace("{\"rank\":2,", "{\"rank\":3,"));
    assert!(matches!(outside, ReadError::RankOutside { line: 6, rank: 3, ranks: 3 }), "{outside}");
    for (from, to) in [
        ("\"block\":0", "\"block\":-1"),
        ("\"block\":0", "\"block\":1e99"),
        ("\"block\":0", "\"blocks\":0"),
        ("\"send\"", "\"put\""),
        ("\"round\":0", "\"round\":4294967296"),
    ] {
        let wrong = error(&CHAIN.replacen(from, to, 1));
        assert!(matches!(wrong, ReadError::Line { line: 2, .. }), "{to}: {wrong}");
    }
    for (from, to) in [("\"ranks\":3", "\"ranks\":0"), ("\"root\":0", "\"root\":3")] {
        let wrong = error(&CHAIN.replacen(from, to, 1));
        assert!(matches!(wrong, ReadError::Claim { line: 1, .. }), "{to}: {wrong}");
    }
    let many = error(&CHAIN.replacen("\"ranks\":3", "\"ranks\":1000000000", 1));
    assert!(matches!(many, ReadError::Ranks { .. }), "{many}");
    let long = error(&format!("{CHAIN}{}", "x".repeat(5000)));
    assert!(matches!(long, ReadError::LineLength { line: 7 }), "{long}");
}

/// An endless input of steps, which are made up as they are read.
#[test]
fn more_steps_than_the_limit_are_refused() {
    struct Endless;
    impl std::io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let line = b"{\"rank\":0,\"round\":0,\"op\":\"send\",\"peer\":1,\"block\":0}\n";
            let lines = buffer.len() / line.len();
            for place in buffer.chunks_exact_mut(line.len()) {
                place.copy_from_slice(line);
            }
            Ok(lines * line.len())
        }
    }
    let input = std::io::BufReader::with_capacity(1 << 16, Endless);
    let error = json::read_up_to(1000, input, Some(small_claim(1, 1, 1))).unwrap_err();
    assert!(matches!(error, ReadError::TooManySteps { line: 1001, most: 1000 }), "{error}");
}
