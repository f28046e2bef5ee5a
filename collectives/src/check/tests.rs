//! The checker accepts a correct set of schedules and rejects each kind of fault in it.

use super::*;
use crate::schedule::{Algorithm, Shape, broadcast};

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
