//! Verifies the schedules of all ranks together, whoever made them.
//!
//! The checker knows only what a schedule claims and the steps of every rank; it calls no
//! generator, so a fault of a generator cannot hide in it. It looks at, in this order:
//!
//! 1. each step alone: peer, block, round and port within their ranges, rounds in order
//!    ([`CheckError::StepOutside`], [`CheckError::StepOrder`]);
//! 2. each send has its receive, in the same round and on the same port, and the reverse
//!    ([`CheckError::SendWithoutRecv`], [`CheckError::RecvWithoutSend`]);
//! 3. holdings: each rank but the root receives each block once, the root none
//!    ([`CheckError::Duplicate`], [`CheckError::Lost`]);
//! 4. termination: run without rounds, where a send waits only for its block, every send comes
//!    to be made ([`CheckError::Deadlock`]);
//! 5. run in rounds, a rank holds what it sends before the round begins
//!    ([`CheckError::SentBeforeHeld`]);
//! 6. no rank starts more sends, or receives, in a round than it has ports, nor two on one port
//!    ([`CheckError::PortExceeded`]);
//! 7. the operation takes exactly the rounds claimed ([`CheckError::RoundCount`]).
//!
//! # Examples
//!
//! ```
//! use verbcast_collectives::check::{Claim, check};
//! use verbcast_collectives::schedule::{self, Algorithm, Shape};
//!
//! let shape = Shape::new(33, 5, 4)?;
//! let ranks: Vec<_> = (0..33)
//!     .map(|rank| schedule::broadcast(Algorithm::PipelinedTree, shape, rank))
//!     .collect::<Result<_, _>>()?;
//! let claim = Claim { ranks: 33, root: 5, blocks: 4, ports: 1, rounds: 6 + 4 - 1 };
//! let report = check(&claim, &ranks)?;
//! assert_eq!(report.transfers, 32 * 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::schedule::{Direction, Rank, Step};

/// What a set of schedules is said to do: broadcast `blocks` blocks of the root to all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The number of ranks N.
    pub ranks: u32,
    /// The rank that holds every block at the start.
    pub root: Rank,
    /// The number of blocks k.
    pub blocks: u32,
    /// The sends, and the receives, that a rank may make in one round.
    pub ports: u16,
    /// The rounds that the whole operation takes.
    pub rounds: u64,
}

/// What a correct set of schedules does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The number of blocks sent over all ranks.
    pub transfers: u64,
    /// The largest number of ranks that one rank sends to.
    pub most_send_peers: u32,
    /// The largest number of ranks that one rank receives from.
    pub most_recv_peers: u32,
}

/// The first fault found in a set of schedules, with its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The claim itself cannot be: no ranks, no blocks, or a root that is not a rank.
    #[error("{claim:?} is no broadcast, or its steps are given for {given} ranks")]
    Claim {
        /// The claim.
        claim: Claim,
        /// The number of step lists given.
        given: usize,
    },
    /// A step names a peer, block, round or port outside its range, or the rank itself.
    #[error("rank {rank}, step {index} ({step}, port {}): outside {claim:?}", step.port)]
    StepOutside {
        /// The rank whose step it is.
        rank: Rank,
        /// The place of the step in the rank's list, from 0.
        index: usize,
        /// The step.
        step: Step,
        /// What the step is outside of.
        claim: Claim,
    },
    /// A step has a lower round than the one before it in the list.
    #[error("rank {rank}, step {index} ({step}): a step before it has a later round")]
    StepOrder {
        /// The rank whose step it is.
        rank: Rank,
        /// The place of the step in the rank's list, from 0.
        index: usize,
        /// The step.
        step: Step,
    },
    /// A rank sends a block that the peer does not receive in that round, on that port.
    #[error("{transfer}: the receiver has no such step")]
    SendWithoutRecv {
        /// The transfer as the sender sees it.
        transfer: Transfer,
    },
    /// A rank receives a block that the peer does not send in that round, on that port.
    #[error("{transfer}: the sender has no such step")]
    RecvWithoutSend {
        /// The transfer as the receiver sees it.
        transfer: Transfer,
    },
    /// A rank receives a block that it already has.
    #[error("{transfer}: the receiver has the block by then")]
    Duplicate {
        /// The transfer that is too many.
        transfer: Transfer,
    },
    /// A rank never receives a block.
    #[error("rank {rank} never receives block {block}")]
    Lost {
        /// The rank that goes without.
        rank: Rank,
        /// The block.
        block: u32,
    },
    /// A rank waits for ever for the block that it is to send.
    #[error("{transfer}: never made, the block comes to its sender only by way of its receiver")]
    Deadlock {
        /// A transfer that is never made.
        transfer: Transfer,
    },
    /// A rank sends a block in a round before it has it.
    #[error("{transfer}: the sender has the block only after round {held_after}")]
    SentBeforeHeld {
        /// The transfer that comes too early.
        transfer: Transfer,
        /// The round in which the sender receives the block.
        held_after: u32,
    },
    /// A rank uses more ports than it has, or one port twice, in a round.
    #[error(
        "rank {rank} in round {round}: {count} steps in direction {direction:?}, {on_port} of them \
         on port {port}, with {ports} ports"
    )]
    PortExceeded {
        /// The rank.
        rank: Rank,
        /// The round.
        round: u32,
        /// Whether sends or receives are too many.
        direction: Direction,
        /// Such steps in the round.
        count: usize,
        /// The port used most.
        port: u16,
        /// Such steps on that port.
        on_port: usize,
        /// The ports a rank has.
        ports: u16,
    },
    /// The operation takes another number of rounds than claimed.
    #[error("the schedules take {actual} rounds, {claimed} are claimed")]
    RoundCount {
        /// The rounds claimed.
        claimed: u64,
        /// The rounds that hold a step, up to the last.
        actual: u64,
    },
}

/// One block on its way from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Transfer {
    /// The round.
    pub round: u32,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The block.
    pub block: u32,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { round, from, to, block, port } = self;
        write!(f, "round {round}, block {block} from rank {from} to rank {to} on port {port}")
    }
}

/// Verifies the steps of all ranks, `steps[r]` being those of rank r, against the claim.
///
/// # Errors
///
/// The first fault found, in the order of the [module](self).
pub fn check<S: AsRef<[Step]>>(claim: &Claim, steps: &[S]) -> Result<Report, CheckError> {
    let claim = *claim;
    let is_broadcast = claim.blocks > 0 && claim.root < claim.ranks;
    if !is_broadcast || steps.len() != claim.ranks as usize {
        return Err(CheckError::Claim { claim, given: steps.len() });
    }
    for (rank, steps) in (0..).zip(steps) {
        check_each_step(&claim, rank, steps.as_ref())?;
    }
    let transfers = match_transfers(steps)?;
    let held_after = check_holdings(&claim, &transfers)?;
    check_termination(&claim, &transfers)?;
    for &transfer in &transfers {
        if let Some(held_after) = held_after[slot(&claim, transfer.from, transfer.block)]
            && held_after >= transfer.round
        {
            return Err(CheckError::SentBeforeHeld { transfer, held_after });
        }
    }
    for (rank, steps) in (0..).zip(steps) {
        check_ports(&claim, rank, steps.as_ref())?;
    }
    let actual = transfers.iter().map(|transfer| u64::from(transfer.round) + 1).max().unwrap_or(0);
    if actual != claim.rounds {
        return Err(CheckError::RoundCount { claimed: claim.rounds, actual });
    }
    Ok(Report {
        transfers: transfers.len() as u64,
        most_send_peers: most_peers(steps, Direction::Send),
        most_recv_peers: most_peers(steps, Direction::Recv),
    })
}

fn check_each_step(claim: &Claim, rank: Rank, steps: &[Step]) -> Result<(), CheckError> {
    let mut earliest = 0;
    for (index, &step) in steps.iter().enumerate() {
        let is_inside = step.peer < claim.ranks
            && step.peer != rank
            && step.block < claim.blocks
            && step.port < claim.ports;
        if !is_inside {
            return Err(CheckError::StepOutside { rank, index, step, claim: *claim });
        }
        if step.round < earliest {
            return Err(CheckError::StepOrder { rank, index, step });
        }
        earliest = step.round;
    }
    Ok(())
}

/// The transfers, sorted by round, once as the senders see them and once as the receivers do.
fn match_transfers<S: AsRef<[Step]>>(steps: &[S]) -> Result<Vec<Transfer>, CheckError> {
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for (rank, steps) in (0..).zip(steps) {
        for &Step { round, direction, peer, block, port } in steps.as_ref() {
            match direction {
                Direction::Send => {
                    sends.push(Transfer { round, from: rank, to: peer, block, port });
                }
                Direction::Recv => {
                    receives.push(Transfer { round, from: peer, to: rank, block, port });
                }
            }
        }
    }
    sends.sort_unstable();
    receives.sort_unstable();
    let unequal = sends.iter().zip(&receives).position(|(send, receive)| send != receive);
    let place = unequal.unwrap_or(sends.len().min(receives.len()));
    // In two sorted lists the lower one at the first difference is the one without counterpart.
    match (sends.get(place).copied(), receives.get(place).copied()) {
        (None, None) => Ok(sends),
        (Some(send), Some(receive)) if send < receive => {
            Err(CheckError::SendWithoutRecv { transfer: send })
        }
        (_, Some(transfer)) => Err(CheckError::RecvWithoutSend { transfer }),
        (Some(transfer), None) => Err(CheckError::SendWithoutRecv { transfer }),
    }
}

/// The place of a rank's block in a list over all ranks and blocks.
fn slot(claim: &Claim, rank: Rank, block: u32) -> usize {
    rank as usize * claim.blocks as usize + block as usize
}

/// For each rank and block the round that brings it; none for the root.
fn check_holdings(claim: &Claim, transfers: &[Transfer]) -> Result<Vec<Option<u32>>, CheckError> {
    let mut held_after = vec![None; claim.ranks as usize * claim.blocks as usize];
    for &transfer in transfers {
        let entry = &mut held_after[slot(claim, transfer.to, transfer.block)];
        if transfer.to == claim.root || entry.is_some() {
            return Err(CheckError::Duplicate { transfer });
        }
        *entry = Some(transfer.round);
    }
    for rank in (0..claim.ranks).filter(|&rank| rank != claim.root) {
        for block in 0..claim.blocks {
            if held_after[slot(claim, rank, block)].is_none() {
                return Err(CheckError::Lost { rank, block });
            }
        }
    }
    Ok(held_after)
}

/// Makes every transfer whose block is at its sender, in no order of rounds, as long as there is one.
fn check_termination(claim: &Claim, transfers: &[Transfer]) -> Result<(), CheckError> {
    // Transfers sorted by what they wait for, so that each is looked at once.
    let mut waiting: Vec<_> = transfers
        .iter()
        .map(|transfer| (slot(claim, transfer.from, transfer.block), transfer))
        .collect();
    waiting.sort_unstable();
    let is_made =
        |held: &[bool], transfer: &Transfer| held[slot(claim, transfer.to, transfer.block)];
    let mut held = vec![false; claim.ranks as usize * claim.blocks as usize];
    let mut arrived: Vec<usize> =
        (0..claim.blocks).map(|block| slot(claim, claim.root, block)).collect();
    while let Some(place) = arrived.pop() {
        if std::mem::replace(&mut held[place], true) {
            continue;
        }
        let first = waiting.partition_point(|(source, _)| *source < place);
        for (_, transfer) in waiting[first..].iter().take_while(|(source, _)| *source == place) {
            arrived.push(slot(claim, transfer.to, transfer.block));
        }
    }
    match transfers.iter().find(|transfer| !is_made(&held, transfer)) {
        Some(&transfer) => Err(CheckError::Deadlock { transfer }),
        None => Ok(()),
    }
}

fn check_ports(claim: &Claim, rank: Rank, steps: &[Step]) -> Result<(), CheckError> {
    let mut in_round: Vec<u16> = Vec::new();
    for round_steps in steps.chunk_by(|a, b| a.round == b.round) {
        for direction in [Direction::Send, Direction::Recv] {
            in_round.clear();
            let same = round_steps.iter().filter(|step| step.direction == direction);
            in_round.extend(same.map(|step| step.port));
            in_round.sort_unstable();
            let uses = in_round.chunk_by(|a, b| a == b).max_by_key(|uses| uses.len());
            let Some(&[port, ..]) = uses else { continue };
            let on_port = uses.map_or(0, <[u16]>::len);
            let count = in_round.len();
            if count > usize::from(claim.ports) || on_port > 1 {
                let (round, ports) = (round_steps[0].round, claim.ports);
                return Err(CheckError::PortExceeded {
                    rank,
                    round,
                    direction,
                    count,
                    port,
                    on_port,
                    ports,
                });
            }
        }
    }
    Ok(())
}

fn most_peers<S: AsRef<[Step]>>(steps: &[S], direction: Direction) -> u32 {
    let mut peers = Vec::new();
    let count_of = |steps: &S| {
        peers.clear();
        let same = steps.as_ref().iter().filter(|step| step.direction == direction);
        peers.extend(same.map(|step| step.peer));
        peers.sort_unstable();
        peers.dedup();
        peers.len() as u32
    };
    steps.iter().map(count_of).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
