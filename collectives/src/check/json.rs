//! Schedules from JSON lines, as `verbcast plan --schedule` prints them and as users write them.
//!
//! The first line may be the claim, and every other line is a step:
//!
//! ```json
//! {"op":"broadcast","ranks":3,"root":0,"blocks":1,"ports":1,"rounds":2}
//! {"rank":0,"round":0,"op":"send","peer":1,"block":0}
//! {"rank":1,"round":0,"op":"recv","peer":0,"block":0}
//! {"rank":1,"round":1,"op":"send","peer":2,"block":0}
//! {"rank":2,"round":1,"op":"recv","peer":1,"block":0}
//! ```
//!
//! Ranks are absolute numbers; ranks, rounds and blocks count from 0. A rank's steps are together, in
//! order of rounds. `port` is 0 where it is not given. In the claim `ports` is 1, `root` 0 and
//! `message_blocks` that of [`Claim::new`] where they are not given. Empty lines do not count.

use std::io::{BufRead, Read};

use serde::Deserialize;

use super::Claim;
use crate::schedule::{Direction, Operation, Rank, ScheduleError, Shape, Step};

/// The most steps that are read, over all ranks.
pub const STEPS_MAX: usize = 10_000_000;

/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: usize = 1024;

/// The most ranks of schedules that are read.
pub const READ_RANKS_MAX: u32 = 1 << 20;

/// Why schedules cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The input fails.
    #[error("line {line}: cannot be read")]
    Input {
        /// The line, from 1.
        line: usize,
        /// Why.
        source: std::io::Error,
    },
    /// A line is too long.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes; a step is a line of its own")]
    LineLength {
        /// The line, from 1.
        line: usize,
    },
    /// A line is no step, or the first one neither a claim nor a step.
    #[error(
        "line {line} is no step such as {{\"rank\":3,\"round\":2,\"op\":\"send\",\"peer\":7,\"block\":4}}"
    )]
    Line {
        /// The line, from 1.
        line: usize,
        /// Where in the line, and why.
        source: serde_json::Error,
    },
    /// The claim has a number outside its limits.
    #[error("line {line}: the claim")]
    Claim {
        /// The line, from 1.
        line: usize,
        /// Which number.
        source: ScheduleError,
    },
    /// No claim is there, and none was given.
    #[error(
        "the first line must say what the steps do: operation, ranks, root, blocks, ports, rounds"
    )]
    NoClaim,
    /// There are too many ranks.
    #[error("{ranks} ranks: schedules are read for at most {READ_RANKS_MAX}")]
    Ranks {
        /// The ranks claimed.
        ranks: u32,
    },
    /// A step is one of a rank that is not there.
    #[error("line {line}: rank {rank} is not one of the {ranks} ranks; ranks are numbered from 0")]
    RankOutside {
        /// The line, from 1.
        line: usize,
        /// The rank named.
        rank: Rank,
        /// The ranks claimed.
        ranks: u32,
    },
    /// A rank's steps are in two places.
    #[error(
        "line {line}: rank {rank} had its steps before other ranks; a rank's steps are together"
    )]
    RankTwice {
        /// The line, from 1.
        line: usize,
        /// The rank.
        rank: Rank,
    },
    /// There are too many steps.
    #[error("line {line}: more than {most} steps are not read")]
    TooManySteps {
        /// The line, from 1.
        line: usize,
        /// The limit.
        most: usize,
    },
}

/// The first line, if it is a claim.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimLine {
    op: OperationName,
    ranks: u32,
    #[serde(default)]
    root: Rank,
    blocks: u32,
    #[serde(default = "one")]
    ports: u16,
    rounds: u64,
    message_blocks: Option<u32>,
    /// For people.
    #[serde(default, rename = "algorithm")]
    _algorithm: Option<String>,
}

fn one() -> u16 {
    1
}

/// The names of [`Operation`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OperationName {
    Broadcast,
    Scatter,
    Gather,
    Allgather,
}

/// A line that is a step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepLine {
    rank: Rank,
    round: u32,
    op: DirectionName,
    peer: Rank,
    block: u32,
    #[serde(default)]
    port: u16,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DirectionName {
    Send,
    Recv,
}

impl ClaimLine {
    fn claim(&self) -> Result<Claim, ScheduleError> {
        let operation = match self.op {
            OperationName::Broadcast => Operation::Broadcast,
            OperationName::Scatter => Operation::Scatter,
            OperationName::Gather => Operation::Gather,
            OperationName::Allgather => Operation::Allgather,
        };
        let shape = Shape::new(self.ranks, self.root, self.blocks)?;
        let claim =
            Claim::new(shape.with_operation(operation)?.with_ports(self.ports)?, self.rounds);
        Ok(Claim { message_blocks: self.message_blocks.unwrap_or(claim.message_blocks), ..claim })
    }
}

/// Reads the steps of all ranks, by rank, and the claim: the input's own, or else `claim`.
///
/// What can be seen in a line is verified here, all else by [`super::check`]. Memory is bounded by
/// [`STEPS_MAX`] and [`READ_RANKS_MAX`], whatever the input.
///
/// # Errors
///
/// The first fault, with its line.
///
/// # Examples
///
/// ```
/// use verbcast_collectives::check::{check, read_schedules};
///
/// let text = r#"{"op":"broadcast","ranks":2,"root":0,"blocks":1,"rounds":1}
/// {"rank":0,"round":0,"op":"send","peer":1,"block":0}
/// {"rank":1,"round":0,"op":"recv","peer":0,"block":0}"#;
/// let (claim, steps) = read_schedules(text.as_bytes(), None)?;
/// assert_eq!(check(&claim, &steps)?.transfers, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_schedules(
    input: impl BufRead,
    claim: Option<Claim>,
) -> Result<(Claim, Vec<Vec<Step>>), ReadError> {
    read_up_to(STEPS_MAX, input, claim)
}

/// As [`read_schedules`], with another limit.
pub(super) fn read_up_to(
    most: usize,
    mut input: impl BufRead,
    claim: Option<Claim>,
) -> Result<(Claim, Vec<Vec<Step>>), ReadError> {
    let mut claim = claim;
    let mut steps: Vec<Vec<Step>> = Vec::new();
    let (mut current, mut count, mut is_first) = (None, 0, true);
    let mut text = Vec::new();
    for line in 1.. {
        if !next_line(&mut input, line, &mut text)? {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        if std::mem::take(&mut is_first)
            && let Some(own) = claim_line(&text, line, claim)?
        {
            claim = Some(own);
            continue;
        }
        let Claim { ranks, .. } = claim.ok_or(ReadError::NoClaim)?;
        make_room(&mut steps, ranks)?;
        let read: StepLine =
            serde_json::from_slice(&text).map_err(|source| ReadError::Line { line, source })?;
        let StepLine { rank, round, op, peer, block, port } = read;
        let Some(own) = steps.get_mut(rank as usize) else {
            return Err(ReadError::RankOutside { line, rank, ranks });
        };
        if current != Some(rank) && !own.is_empty() {
            return Err(ReadError::RankTwice { line, rank });
        }
        current = Some(rank);
        count += 1;
        if count > most {
            return Err(ReadError::TooManySteps { line, most });
        }
        let direction = match op {
            DirectionName::Send => Direction::Send,
            DirectionName::Recv => Direction::Recv,
        };
        own.push(Step { round, direction, peer, block, port });
    }
    let claim = claim.ok_or(ReadError::NoClaim)?;
    make_room(&mut steps, claim.ranks)?;
    Ok((claim, steps))
}

fn make_room(steps: &mut Vec<Vec<Step>>, ranks: u32) -> Result<(), ReadError> {
    if ranks > READ_RANKS_MAX {
        return Err(ReadError::Ranks { ranks });
    }
    steps.resize(ranks as usize, Vec::new());
    Ok(())
}

/// The claim in the first line; `None` if that is a step and the claim is known already.
fn claim_line(text: &[u8], line: usize, known: Option<Claim>) -> Result<Option<Claim>, ReadError> {
    match serde_json::from_slice::<ClaimLine>(text) {
        Ok(read) => read.claim().map(Some).map_err(|source| ReadError::Claim { line, source }),
        Err(_) if known.is_some() => Ok(None),
        Err(_) if serde_json::from_slice::<StepLine>(text).is_ok() => Err(ReadError::NoClaim),
        Err(source) => Err(ReadError::Line { line, source }),
    }
}

/// Reads a line into `text`; false at the end.
fn next_line(input: &mut impl BufRead, line: usize, text: &mut Vec<u8>) -> Result<bool, ReadError> {
    text.clear();
    let limit = LINE_BYTES_MAX as u64 + 1;
    let read = input.take(limit).read_until(b'\n', text);
    let read = read.map_err(|source| ReadError::Input { line, source })?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if text.len() > LINE_BYTES_MAX {
        return Err(ReadError::LineLength { line });
    }
    Ok(read > 0)
}
