//! `verbcast plan`: what each algorithm would cost, which one is chosen and why, and its schedule.

mod bound;
pub(crate) mod compare;
mod explain;
pub(crate) mod pictures;
pub(crate) mod question;
mod schedule;
mod sweep;
mod verify;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::exit;
use crate::files::bytes;
use crate::table::{Align, Table};
use crate::time::display_ns;
use compare::{Comparison, Row};
use question::{PlanError, Question, Subject};

const COMMAND: &str = "verbcast plan";

const EXAMPLES: &str = "\
Examples:
  verbcast plan -n 64                              every algorithm for 16 MiB to 64 ranks
  verbcast plan -n 64 --bytes 8 --explain          why a small message goes another way
  verbcast plan -n 8 --blocks 12 --picture p.svg   who sends what when, and time against size
  verbcast plan -n 33 --root 5 --blocks 17 --algorithm pipelined-tree --schedule > s.jsonl
  verbcast plan -n 33 --root 5 --blocks 17 --check s.jsonl";

/// Shows what every algorithm would cost, which one would be chosen, and why; runs nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Say why: bound, blocks, sizes at which the choice changes, formulas
    #[arg(long, conflicts_with_all = ["json", "schedule"])]
    explain: bool,
    /// One JSON object per algorithm and line
    #[arg(long, conflicts_with = "schedule")]
    json: bool,
    /// Print the steps of every rank as JSON lines
    #[arg(long)]
    schedule: bool,
    /// Check the schedule in this file (- is standard input), which has steps as --schedule prints them;
    /// -n, --root, --blocks and so on say what it is for, unless its first line does:
    /// {"op":"broadcast","ranks":3,"root":0,"blocks":1,"rounds":2}
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "explain", "picture"])]
    check: Option<PathBuf>,
    /// The rounds that the schedule to be checked is said to take [default: as many as it takes]
    #[arg(long, requires = "check")]
    rounds: Option<u64>,
    /// Draw the schedule, and the curve of time against size, into this file
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.check {
        Some(path) => verify::run(path, &args.subject, args.rounds, args.json),
        None => plan(args).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(status) => status,
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) if error.is_wrong_usage() => exit::wrong_usage(COMMAND, &error),
        Err(error) => exit::failed(COMMAND, &error),
    }
}

fn plan(args: &Args) -> Result<(), PlanError> {
    let question = args.subject.question()?;
    let mut to = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    if let (true, None, Some(algorithm), Some(blocks)) =
        (args.schedule, &args.picture, question.algorithm, question.blocks)
    {
        // Nothing is left to choose.
        schedule::print(&mut to, algorithm, question.shape(blocks)?, question.ports > 1)?;
        return Ok(to.flush()?);
    }
    question.check_blocks()?;
    let comparison = Comparison::of(&question)?;
    if let Some(path) = &args.picture {
        let document = pictures::document(&question, &comparison, &question.profile_line())?;
        std::fs::write(path, document)
            .map_err(|source| PlanError::Picture { path: path.clone(), source })?;
    }
    if args.schedule {
        let row = comparison.chosen();
        let shape = row.shape(&question, row.blocks)?;
        schedule::print(&mut to, row.algorithm, shape, question.ports > 1)?;
    } else if args.json {
        print_json(&mut to, &question, &comparison)?;
    } else {
        print_table(&mut to, &question, &comparison, args.explain)?;
        if args.explain {
            write!(to, "\n{}", explain::explain(&question, &comparison)?)?;
        }
    }
    to.flush()?;
    Ok(())
}

fn print_table(
    to: &mut impl Write,
    question: &Question,
    comparison: &Comparison,
    explain: bool,
) -> Result<(), PlanError> {
    let bytes = question.bytes;
    writeln!(to, "{}", question.heading())?;
    writeln!(to, "{}\n", question.profile_line())?;
    let mut table = Table::new([
        ("", Align::Left),
        ("ALGORITHM", Align::Left),
        ("ROUNDS", Align::Right),
        ("BLOCKS", Align::Right),
        ("OF", Align::Right),
        ("TIME", Align::Right),
        ("RATE", Align::Right),
        ("x BOUND", Align::Right),
    ]);
    for row in &comparison.rows {
        let rate = bytes as f64 / (row.time_ns / 1e9);
        table.push([
            if row.chosen { "*" } else { "" }.into(),
            row.name(),
            row.rounds.to_string(),
            row.blocks.to_string(),
            bytes::display(row.block_bytes),
            display_ns(row.time_ns),
            if row.time_ns > 0.0 { bytes::display_rate(rate) } else { "-".into() },
            format!("{:.2}", row.ratio),
        ]);
    }
    write!(to, "{table}")?;
    for (algorithm, links) in &comparison.left_out {
        let most = question.path().links_max;
        if *links > u64::from(most) {
            writeln!(to, "   {algorithm} needs {links} links of a rank, which has {most} at most")?;
        } else {
            writeln!(to, "   {algorithm} has no schedule for so many ranks and blocks")?;
        }
    }
    if !explain {
        writeln!(to, "\nLower bound {}", display_ns(comparison.bound_ns))?;
        writeln!(to, "* {}", explain::why(question, comparison))?;
    }
    Ok(())
}

/// What a line of `--json` has.
#[derive(Serialize)]
struct Line<'a> {
    op: &'a str,
    ranks: u32,
    root: u32,
    ports: u16,
    bytes: u64,
    model: &'a str,
    profile: &'a str,
    #[serde(flatten)]
    row: &'a Row,
    lower_bound_ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

fn print_json(
    to: &mut impl Write,
    question: &Question,
    comparison: &Comparison,
) -> Result<(), PlanError> {
    for row in &comparison.rows {
        let line = Line {
            op: question.operation.name(),
            ranks: question.ranks,
            root: question.root,
            ports: question.ports,
            bytes: question.bytes,
            model: question.model.name(),
            profile: &question.profile_name,
            row,
            lower_bound_ns: comparison.bound_ns,
            why: row.chosen.then(|| explain::why(question, comparison)),
        };
        serde_json::to_writer(&mut *to, &line).map_err(io::Error::from)?;
        writeln!(to)?;
    }
    Ok(())
}
