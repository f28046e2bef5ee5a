//! Verifies the schedules of all ranks together, whoever made them.
//!
//! The checker knows only what a schedule claims and the steps of every rank; it calls no
//! generator, so a fault of a generator cannot hide in it. It looks at, in this order:
//!
//! 1. each step alone: peer, block, round and port within their ranges, rounds in order
//!    ([`CheckError::StepOutside`], [`CheckError::StepOrder`]);
//! 2. each send has its receive, in the same round and on the same port, and the reverse
//!    ([`CheckError::SendWithoutRecv`], [`CheckError::RecvWithoutSend`]);
//! 3. holdings: no rank receives a block that it holds at the start or has received, and each gets
//!    what the operation owes it ([`CheckError::Duplicate`], [`CheckError::Lost`]);
//! 4. termination: run without rounds, where a send waits only for its block, every send comes
//!    to be made ([`CheckError::Deadlock`]);
//! 5. run in rounds, a rank holds what it sends before the round begins
//!    ([`CheckError::SentBeforeHeld`]);
//! 6. no rank sends to, or receives from, more peers in a round than it has ports, nor two on one
//!    port ([`CheckError::PortExceeded`]), and no message has more blocks than claimed
//!    ([`CheckError::MessageBlocks`]);
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
//! let claim = Claim::new(shape, 6 + 4 - 1);
//! let report = check(&claim, &ranks)?;
//! assert_eq!(report.transfers, 32 * 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod json;

pub use json::{LINE_BYTES_MAX, READ_RANKS_MAX, ReadError, STEPS_MAX, read_schedules};

use crate::schedule::{Direction, Operation, Rank, Shape, Step};

/// What a set of schedules is said to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The operation.
    pub operation: Operation,
    /// The number of ranks N.
    pub ranks: u32,
    /// The rank that holds every block at the start, or at the end of a gather.
    pub root: Rank,
    /// The number of blocks k, of the message or of each rank's part.
    pub blocks: u32,
    /// The messages that a rank may send, and receive, in one round.
    pub ports: u16,
    /// The blocks that a message may have: 1 in pipelined broadcasts.
    pub message_blocks: u32,
    /// The rounds that the whole operation takes.
    pub rounds: u64,
}

impl Claim {
    /// The claim of schedules for `shape` that take `rounds` rounds; messages have one block in a
    /// broadcast, and any number elsewhere.
    pub fn new(shape: Shape, rounds: u64) -> Self {
        let operation = shape.operation();
        Self {
            operation,
            ranks: shape.ranks(),
            root: shape.root(),
            blocks: shape.blocks(),
            ports: shape.ports(),
            message_blocks: if operation == Operation::Broadcast { 1 } else { u32::MAX },
            rounds,
        }
    }

    /// The shape of it, which has no number outside the limits.
    fn shape(&self) -> Option<Shape> {
        let shape = Shape::new(self.ranks, self.root, self.blocks).ok()?;
        shape.with_operation(self.operation).ok()?.with_ports(self.ports).ok()
    }
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
    /// The claim itself cannot be: no ranks, blocks or ports, or too many, or a root that is not a rank.
    #[error("{claim:?} has a number outside its limits, or its steps are given for {given} ranks")]
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
    /// A rank uses more ports than it has, or one port for two peers, in a round.
    #[error(
        "rank {rank} in round {round}: {count} messages in direction {direction:?}, {on_port} of \
         them on port {port}, with {ports} ports"
    )]
    PortExceeded {
        /// The rank.
        rank: Rank,
        /// The round.
        round: u32,
        /// Whether sends or receives are too many.
        direction: Direction,
        /// Such messages in the round.
        count: usize,
        /// The port used most.
        port: u16,
        /// Such messages on that port.
        on_port: usize,
        /// The ports a rank has.
        ports: u16,
    },
    /// A message has more blocks than claimed.
    #[error(
        "rank {rank} in round {round}: {count} blocks in one message to or from rank {peer}, at most \
         {most} are claimed"
    )]
    MessageBlocks {
        /// The rank.
        rank: Rank,
        /// The round.
        round: u32,
        /// The other rank.
        peer: Rank,
        /// The blocks of the message.
        count: usize,
        /// The blocks that one may have.
        most: u32,
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
    let no_claim = CheckError::Claim { claim, given: steps.len() };
    let shape = claim.shape().ok_or(no_claim)?;
    if steps.len() != claim.ranks as usize {
        return Err(no_claim);
    }
    for (rank, steps) in (0..).zip(steps) {
        check_each_step(&claim, shape, rank, steps.as_ref())?;
    }
    let transfers = match_transfers(steps)?;
    let received = check_holdings(shape, &transfers)?;
    check_termination(shape, &transfers)?;
    for &transfer in &transfers {
        if let Some(held_after) = received.round(transfer.from, transfer.block)
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

fn check_each_step(
    claim: &Claim,
    shape: Shape,
    rank: Rank,
    steps: &[Step],
) -> Result<(), CheckError> {
    let mut earliest = 0;
    for (index, &step) in steps.iter().enumerate() {
        let is_inside = step.peer < claim.ranks
            && step.peer != rank
            && step.block < shape.total_blocks()
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

/// What each rank receives, sorted by rank and block.
struct Received(Vec<(Rank, u32, u32)>);

impl Received {
    /// The round that brings a block to a rank; `None` if it holds it from the start.
    fn round(&self, rank: Rank, block: u32) -> Option<u32> {
        let place = self.0.binary_search_by_key(&(rank, block), |entry| (entry.0, entry.1));
        place.ok().map(|place| self.0[place].2)
    }
}

/// Each block comes once to who has not got it, and everybody gets what is due.
fn check_holdings(shape: Shape, transfers: &[Transfer]) -> Result<Received, CheckError> {
    let mut by_receiver: Vec<_> =
        transfers.iter().map(|transfer| (transfer.to, transfer.block, transfer)).collect();
    by_receiver.sort_unstable();
    // The fault of the earliest round is the one to name.
    let again = by_receiver.windows(2).filter_map(|pair| {
        let same = (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1);
        same.then_some(pair[1].2)
    });
    let held = |transfer: &&Transfer| shape.held_at_start(transfer.to).contains(&transfer.block);
    if let Some(&transfer) = again.chain(transfers.iter().filter(held)).min() {
        return Err(CheckError::Duplicate { transfer });
    }
    let mut rest = by_receiver.as_slice();
    for rank in 0..shape.ranks() {
        let own = rest.partition_point(|entry| entry.0 == rank);
        let (mut received, later) = rest.split_at(own);
        rest = later;
        let start = shape.held_at_start(rank);
        for block in shape.held_at_end(rank).filter(|block| !start.contains(block)) {
            // Ascending, as the blocks received are.
            let lower = received.partition_point(|entry| entry.1 < block);
            received = &received[lower..];
            if received.first().is_none_or(|entry| entry.1 != block) {
                return Err(CheckError::Lost { rank, block });
            }
        }
    }
    let entries = by_receiver.iter().map(|&(to, block, transfer)| (to, block, transfer.round));
    Ok(Received(entries.collect()))
}

/// Makes every transfer whose block is at its sender, in no order of rounds, as long as there is one.
fn check_termination(shape: Shape, transfers: &[Transfer]) -> Result<(), CheckError> {
    // Transfers sorted by what they wait for, so that each is looked at once.
    let mut waiting: Vec<_> = (0..)
        .zip(transfers)
        .map(|(number, transfer)| (transfer.from, transfer.block, number))
        .collect::<Vec<(Rank, u32, usize)>>();
    waiting.sort_unstable();
    let mut is_made = vec![false; transfers.len()];
    let held_at_start =
        |transfer: &Transfer| shape.held_at_start(transfer.from).contains(&transfer.block);
    let mut possible: Vec<usize> =
        (0..transfers.len()).filter(|&number| held_at_start(&transfers[number])).collect();
    while let Some(number) = possible.pop() {
        if std::mem::replace(&mut is_made[number], true) {
            continue;
        }
        let Transfer { to, block, .. } = transfers[number];
        let first = waiting.partition_point(|entry| (entry.0, entry.1) < (to, block));
        let next = waiting[first..].iter().take_while(|entry| (entry.0, entry.1) == (to, block));
        possible.extend(next.map(|entry| entry.2));
    }
    match is_made.iter().position(|&made| !made) {
        Some(number) => Err(CheckError::Deadlock { transfer: transfers[number] }),
        None => Ok(()),
    }
}

fn check_ports(claim: &Claim, rank: Rank, steps: &[Step]) -> Result<(), CheckError> {
    let mut in_round: Vec<(u16, Rank)> = Vec::new();
    for round_steps in steps.chunk_by(|a, b| a.round == b.round) {
        let (round, ports) = (round_steps[0].round, claim.ports);
        for direction in [Direction::Send, Direction::Recv] {
            in_round.clear();
            let same = round_steps.iter().filter(|step| step.direction == direction);
            in_round.extend(same.map(|step| (step.port, step.peer)));
            in_round.sort_unstable();
            let longest = in_round.chunk_by(|a, b| a == b).max_by_key(|message| message.len());
            let Some(longest) = longest else { continue };
            let ((_, peer), blocks) = (longest[0], longest.len());
            in_round.dedup();
            let uses = in_round.chunk_by(|a, b| a.0 == b.0).max_by_key(|uses| uses.len());
            let (on_port, port) = uses.map_or((0, 0), |uses| (uses.len(), uses[0].0));
            let count = in_round.len();
            if count > usize::from(ports) || on_port > 1 {
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
            if blocks > claim.message_blocks as usize {
                let most = claim.message_blocks;
                return Err(CheckError::MessageBlocks { rank, round, peer, count: blocks, most });
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
