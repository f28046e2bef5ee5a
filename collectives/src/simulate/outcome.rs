//! What came out of a run.

use crate::executor::{Executor, Missing};
use crate::schedule::Rank;

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// From the start to when the last block that arrived was taken in, in ps.
    pub time_ps: u64,
    /// For each rank when it had all its blocks, in ps; `None` if it never did.
    pub finish_ps: Vec<Option<u64>>,
    /// The rounds that were run; 0 in a run without rounds.
    pub rounds: u64,
    /// The blocks that arrived, over all ranks.
    pub transfers: u64,
    /// The bytes that left a port, those that were lost included.
    pub bytes_sent: u128,
    /// The blocks that were sent again after a loss.
    pub retransmissions: u64,
    /// The ranks that are alive and did not come to their end, with what they wait for.
    pub incomplete: Vec<Incomplete>,
    /// The ranks that were dead at the end.
    pub dead: Vec<Rank>,
    /// What each port did, in order of starts; empty unless it was asked for.
    pub spans: Vec<Span>,
}

impl Outcome {
    /// Nothing has happened yet.
    pub(super) fn of(ranks: usize) -> Self {
        Self {
            time_ps: 0,
            finish_ps: vec![None; ranks],
            rounds: 0,
            transfers: 0,
            bytes_sent: 0,
            retransmissions: 0,
            incomplete: Vec::new(),
            dead: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Whether every rank has what it is to have, and has sent what it is to send.
    pub fn is_complete(&self) -> bool {
        self.incomplete.is_empty() && self.dead.is_empty()
    }
}

/// A rank that did not come to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incomplete {
    /// The rank.
    pub rank: Rank,
    /// The number of blocks it has not got.
    pub blocks_missing: u32,
    /// The number of blocks it has not sent, or not sent successfully.
    pub sends_incomplete: u32,
    /// The ranks it waits for, and what for.
    pub waits_for: Vec<Missing>,
}

/// One block at one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The rank whose port it is.
    pub rank: Rank,
    /// The rank at the other end.
    pub peer: Rank,
    /// The block.
    pub block: u32,
    /// The port, from 0.
    pub port: u16,
    /// When the port began, in ps.
    pub start_ps: u64,
    /// When the port was free again, in ps.
    pub end_ps: u64,
    /// What the port did.
    pub kind: SpanKind,
}

/// What a port does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SpanKind {
    /// It sends the block.
    Send,
    /// It sends a block that is then lost, or comes to a dead rank.
    Lost,
    /// It receives the block.
    Recv,
}

/// Lists the ranks that did not come to their end, of those that are alive.
pub(super) fn incomplete(executors: &[Executor], dead: &[Rank]) -> Vec<Incomplete> {
    (0..)
        .zip(executors)
        .filter(|(rank, executor)| !executor.is_done() && !dead.contains(rank))
        .map(|(rank, executor)| Incomplete {
            rank,
            blocks_missing: executor.blocks_missing(),
            sends_incomplete: executor.sends_incomplete(),
            waits_for: executor.missing_peers().collect(),
        })
        .collect()
}
