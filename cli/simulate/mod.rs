//! `verbcast simulate`: the executors of all ranks in virtual time, with what can go wrong.

mod arguments;
mod pictures;
mod result;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use verbcast::schedule::ScheduleError;
use verbcast::simulate::{Faults, SimulateError};

use crate::exit;
use crate::plan::question::{PlanError, Subject};
use crate::time::parse_ps;

const COMMAND: &str = "verbcast simulate";

const EXAMPLES: &str = "\
Examples:
  verbcast simulate -n 64                                 every algorithm, 16 MiB, nothing goes wrong
  verbcast simulate -n 16 --slow 3:4 --picture slow.svg   rank 3 takes four times as long
  verbcast simulate -n 16 --dead 5:100us --explain        who goes without when rank 5 dies
  verbcast simulate -n 64 --loss 0.1 --jitter 2us --seed 7 --json";

/// Runs broadcasts in virtual time: the executors of all ranks, driven by a port model.
///
/// Equal arguments and seeds give equal results on any machine. Ranks that go without, because others
/// are dead, are a result and no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Blocks that are lost on their way, in per cent
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = arguments::per_cent)]
    loss: u32,
    /// From when a block has left its port until its sender finds it lost
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_ps)]
    timeout: u64,
    /// How often a lost block is sent again before its link is given up
    #[arg(long, value_name = "COUNT", default_value_t = 7)]
    retries: u32,
    /// The most that is added to the latency of a block at random
    #[arg(long, value_name = "TIME", default_value = "0ns", value_parser = parse_ps)]
    jitter: u64,
    /// A rank that takes so many times as long for everything; may be repeated
    #[arg(long, value_name = "RANK:FACTOR", value_parser = arguments::slow)]
    slow: Vec<(u32, u32)>,
    /// A rank that makes the call so late; may be repeated
    #[arg(long, value_name = "RANK:TIME", value_parser = arguments::late)]
    late: Vec<(u32, u64)>,
    /// A rank that is dead, from this time on if one is given; may be repeated
    #[arg(long, value_name = "RANK[:TIME]", value_parser = arguments::dead)]
    dead: Vec<(u32, u64)>,
    /// Ranks that share the port of one host
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    ranks_per_host: u32,
    /// The seed of losses and jitter
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Name the ranks that go without, and what they wait for
    #[arg(long, conflicts_with = "json")]
    explain: bool,
    /// One JSON object per algorithm and line
    #[arg(long)]
    json: bool,
    /// Draw what every rank does when into this file, for the fastest algorithm or the one given
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
}

/// Why there is no simulation.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The question cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The simulator cannot run it.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Plan(error.into())
    }
}

impl From<ScheduleError> for Error {
    fn from(error: ScheduleError) -> Self {
        Self::Plan(error.into())
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match simulate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Plan(error)) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(Error::Plan(error)) if !error.is_wrong_usage() => exit::failed(COMMAND, &error),
        Err(error) => exit::wrong_usage(COMMAND, &error),
    }
}

impl Args {
    fn faults(&self) -> Faults {
        Faults {
            loss_ppm: self.loss,
            timeout_ps: self.timeout,
            retries: self.retries,
            jitter_ps: self.jitter,
            slow: self.slow.clone(),
            late: self.late.clone(),
            dead: self.dead.clone(),
        }
    }
}

fn simulate(args: &Args) -> Result<(), Error> {
    let question = args.subject.question()?;
    question.check_blocks()?;
    let runs = result::Runs::of(&question, args)?;
    if let Some(path) = &args.picture {
        let document = pictures::document(&question, &runs, args)?;
        std::fs::write(path, document)
            .map_err(|source| PlanError::Picture { path: path.clone(), source })?;
    }
    let mut to = BufWriter::new(io::stdout().lock());
    if args.json {
        runs.print_json(&mut to, &question, args)?;
    } else {
        runs.print_table(&mut to, &question, args)?;
    }
    Ok(to.flush()?)
}
