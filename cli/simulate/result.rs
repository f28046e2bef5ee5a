//! The runs of all algorithms, as a table and as JSON lines.

use std::io::{self, Write};

use serde::Serialize;
use verbcast::simulate::{
    Blocks, Faults, Incomplete, Loggp, MAX_TRANSFERS, Model, Outcome, RoundCount, Simulation,
    Telephone, count_rounds,
};

use super::{Args, Error};
use crate::files::bytes::{display, display_rate};
use crate::plan::compare::{self, Comparison, Row};
use crate::plan::question::{PortModel, Question};
use crate::table::{Align, Table};
use crate::time::display_ns;

/// The most blocks over all ranks whose rounds are counted where a run would be too large: it takes
/// minutes.
const MAX_COUNTED: u64 = 1 << 32;

/// Ranks that are named where many go without.
const NAMED_MOST: usize = 8;

/// One algorithm: what the model says, and what came out.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) row: Row,
    pub(super) blocks: Blocks,
    pub(super) outcome: Outcome,
    /// The rounds were counted from the schedules; no executor ran.
    pub(super) counted: bool,
}

impl Run {
    /// Simulates one algorithm, or counts its rounds if it is too large for that and nothing is to go
    /// wrong.
    fn of(question: &Question, args: &Args, row: Row, blocks: Blocks) -> Result<Self, Error> {
        let transfers = u64::from(question.ranks) * u64::from(blocks.count());
        let counted = transfers > MAX_TRANSFERS
            && transfers <= MAX_COUNTED
            && question.model == PortModel::Telephone
            && args.faults()
                == Faults { timeout_ps: args.timeout, retries: args.retries, ..Faults::default() };
        let outcome = if counted {
            count(question, &row, blocks)?
        } else {
            run(question, args, &row, blocks, false)?
        };
        Ok(Self { row, blocks, outcome, counted })
    }

    pub(super) fn time_ns(&self) -> f64 {
        self.outcome.time_ps as f64 / 1e3
    }
}

/// The runs, the fastest first, those that were not completed last.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) all: Vec<Run>,
}

impl Runs {
    /// Simulates the algorithm that was asked for, or all of them.
    ///
    /// # Errors
    /// Numbers outside their limits, more than a simulation can take.
    pub(super) fn of(question: &Question, args: &Args) -> Result<Self, Error> {
        let comparison = Comparison::of(question)?;
        let mut all = Vec::new();
        for row in comparison.rows {
            if question.algorithm.is_none_or(|algorithm| algorithm == row.algorithm) {
                let blocks = Blocks::equal(question.part_bytes(), row.blocks)?;
                all.push(Run::of(question, args, row, blocks)?);
            }
        }
        all.sort_by_key(|run| (!run.outcome.is_complete(), run.outcome.time_ps));
        Ok(Self { all })
    }

    /// The table, and what is to be said below it.
    pub(super) fn print_table(
        &self,
        to: &mut impl Write,
        question: &Question,
        args: &Args,
    ) -> io::Result<()> {
        let Question { ranks, bytes, .. } = *question;
        writeln!(to, "{}, simulated", question.heading())?;
        writeln!(to, "{}; seed {}\n", question.profile_line(), args.seed)?;
        let mut table = Table::new([
            ("ALGORITHM", Align::Left),
            ("BLOCKS", Align::Right),
            ("OF", Align::Right),
            ("SIMULATED", Align::Right),
            ("MODEL", Align::Right),
            ("RATE", Align::Right),
            ("SENT", Align::Right),
            ("AGAIN", Align::Right),
            ("RESULT", Align::Left),
        ]);
        for run in &self.all {
            let Run { row, blocks, outcome, .. } = run;
            let seconds = run.time_ns() / 1e9;
            let rate = if seconds > 0.0 && outcome.is_complete() {
                display_rate(bytes as f64 / seconds)
            } else {
                "-".into()
            };
            table.push([
                row.name(),
                blocks.count().to_string(),
                display(row.block_bytes),
                display_ns(run.time_ns()),
                display_ns(row.time_ns),
                rate,
                display(u64::try_from(outcome.bytes_sent).unwrap_or(u64::MAX)),
                outcome.retransmissions.to_string(),
                if run.counted {
                    "rounds counted, nothing run".into()
                } else {
                    result(outcome, ranks)
                },
            ]);
        }
        write!(to, "{table}")?;
        if args.explain {
            for run in &self.all {
                explain(to, run)?;
            }
        }
        Ok(())
    }

    /// A line for each run.
    pub(super) fn print_json(
        &self,
        to: &mut impl Write,
        question: &Question,
        args: &Args,
    ) -> io::Result<()> {
        for run in &self.all {
            let Run { row, blocks, outcome, .. } = run;
            let line = Line {
                op: question.operation.name(),
                algorithm: row.algorithm.name(),
                ranks: question.ranks,
                root: question.root,
                ports: question.ports,
                bytes: question.bytes,
                blocks: blocks.count(),
                block_bytes: row.block_bytes,
                model: question.model.name(),
                profile: &question.profile_name,
                seed: args.seed,
                time_ps: outcome.time_ps,
                predicted_ns: row.time_ns,
                rounds: (question.model == PortModel::Telephone).then_some(outcome.rounds),
                bytes_sent: outcome.bytes_sent,
                retransmissions: outcome.retransmissions,
                counted: run.counted,
                complete: outcome.is_complete(),
                dead: &outcome.dead,
                incomplete: outcome.incomplete.iter().map(Without::of).collect(),
            };
            serde_json::to_writer(&mut *to, &line)?;
            writeln!(to)?;
        }
        Ok(())
    }
}

/// Simulates one algorithm.
pub(super) fn run(
    question: &Question,
    args: &Args,
    row: &Row,
    blocks: Blocks,
    trace: bool,
) -> Result<Outcome, Error> {
    let simulation = Simulation::new(model(question, args))
        .faults(args.faults())
        .seed(args.seed)
        .grants(row.grants && question.model == PortModel::Loggp)
        .trace(trace);
    let shape = row.shape(question, blocks.count())?;
    Ok(simulation.run(row.algorithm, shape, blocks)?)
}

/// The paced time from the schedules alone, of which only one is in memory at a time.
fn count(question: &Question, row: &Row, blocks: Blocks) -> Result<Outcome, Error> {
    let shape = row.shape(question, blocks.count())?;
    let model = telephone(question);
    let counted = count_rounds(row.algorithm, shape, blocks, model, 0..question.ranks)?;
    let RoundCount { rounds, transfers, time_ps } = counted;
    Ok(Outcome {
        time_ps,
        finish_ps: Vec::new(),
        rounds,
        transfers,
        bytes_sent: u128::from(question.ranks - 1) * u128::from(blocks.bytes()),
        retransmissions: 0,
        incomplete: Vec::new(),
        dead: Vec::new(),
        spans: Vec::new(),
    })
}

fn telephone(question: &Question) -> Telephone {
    let telephone = compare::telephone(question);
    Telephone {
        alpha_ps: telephone.alpha_ns.saturating_mul(1000),
        bytes_per_second: telephone.bytes_per_second,
    }
}

fn model(question: &Question, args: &Args) -> Model {
    match question.model {
        PortModel::Telephone => Model::Telephone(telephone(question)),
        PortModel::Loggp => {
            let path = question.path().costs();
            Model::Loggp(Loggp {
                ports: question.ports,
                ranks_per_host: args.ranks_per_host,
                ..Loggp::new(path)
            })
        }
    }
}

fn result(outcome: &Outcome, ranks: u32) -> String {
    if outcome.is_complete() {
        return "all ranks have it".into();
    }
    let without = outcome.incomplete.iter().filter(|rank| rank.blocks_missing > 0).count();
    let dead = match outcome.dead.len() {
        0 => String::new(),
        count => format!(", {count} dead"),
    };
    match without {
        0 if outcome.incomplete.is_empty() => format!("all that live have it{dead}"),
        0 => format!("all that live have it, some cannot pass it on{dead}"),
        _ => format!("{without} of {ranks} ranks go without{dead}"),
    }
}

/// Who goes without, and why.
fn explain(to: &mut impl Write, run: &Run) -> io::Result<()> {
    let Run { row, blocks, outcome, .. } = run;
    if outcome.is_complete() {
        return Ok(());
    }
    writeln!(to, "\n{}", row.algorithm)?;
    for &rank in outcome.dead.iter().take(NAMED_MOST) {
        writeln!(to, "  rank {rank} is dead")?;
    }
    for incomplete in outcome.incomplete.iter().take(NAMED_MOST) {
        let Incomplete { rank, blocks_missing, sends_incomplete, waits_for } = incomplete;
        let peers: Vec<String> =
            waits_for.iter().take(NAMED_MOST).map(|missing| missing.peer.to_string()).collect();
        let more = if waits_for.len() > NAMED_MOST { ", ..." } else { "" };
        let what = match (blocks_missing, sends_incomplete) {
            (0, sends) => format!("has everything and cannot make {sends} sends"),
            (missing, _) => format!("lacks {missing} of {} blocks", blocks.count()),
        };
        writeln!(to, "  rank {rank} {what}; it waits for {}{more}", peers.join(", "))?;
    }
    let more = outcome.incomplete.len().saturating_sub(NAMED_MOST);
    if more > 0 {
        writeln!(to, "  and {} more", counted(more, "rank"))?;
    }
    Ok(())
}

/// `1 rank`, `2 ranks`.
fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// What a line of `--json` has.
#[derive(Serialize)]
struct Line<'a> {
    op: &'a str,
    algorithm: &'a str,
    ranks: u32,
    root: u32,
    ports: u16,
    bytes: u64,
    blocks: u32,
    block_bytes: u64,
    model: &'a str,
    profile: &'a str,
    seed: u64,
    time_ps: u64,
    predicted_ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rounds: Option<u64>,
    bytes_sent: u128,
    retransmissions: u64,
    /// No executor ran: the rounds were counted from the schedules.
    counted: bool,
    complete: bool,
    dead: &'a [u32],
    incomplete: Vec<Without>,
}

#[derive(Serialize)]
struct Without {
    rank: u32,
    blocks_missing: u32,
    sends_incomplete: u32,
    waits_for: Vec<u32>,
}

impl Without {
    fn of(incomplete: &Incomplete) -> Self {
        Self {
            rank: incomplete.rank,
            blocks_missing: incomplete.blocks_missing,
            sends_incomplete: incomplete.sends_incomplete,
            waits_for: incomplete.waits_for.iter().map(|missing| missing.peer).collect(),
        }
    }
}
