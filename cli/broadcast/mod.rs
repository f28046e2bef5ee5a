//! `verbcast broadcast`: one file to every rank.

mod transfer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use verbcast::Algorithm;

use crate::files::job;
use crate::files::options::Options;

const EXAMPLES: &str = "\
Examples:
  verbcast launch -n 4 -- verbcast broadcast model.bin '/tmp/model.{rank}'
  verbcast launch -n 4 -- verbcast broadcast --root 2 --memory 64M index /scratch/index.{local_rank}";

/// Gives every rank a copy of the root's file; run it under `verbcast launch`.
///
/// Every rank must be given the same arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file to broadcast, as the root sees it
    file: PathBuf,
    /// Where every rank puts its copy; {rank}, {local_rank} and {host} are replaced
    #[arg(value_name = "DEST")]
    destination: OsString,
    /// The rank that reads FILE
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// The algorithm [default: the one that the model finds fastest]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    algorithm: Option<Algorithm>,
    #[command(flatten)]
    options: Options,
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    text.parse().map_err(|error: verbcast::schedule::ScheduleError| error.to_string())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    job::run("verbcast broadcast", &args.options, |job| transfer::run(job, args))
}
