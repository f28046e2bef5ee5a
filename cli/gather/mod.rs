//! `verbcast gather`: one file from a part of every rank.

mod transfer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::files::job;
use crate::files::options::Options;

const EXAMPLES: &str = "\
Examples:
  verbcast launch -n 4 -- verbcast gather '/tmp/result.{rank}' result.bin
  verbcast launch -n 4 -- verbcast gather --root 3 '/scratch/log.{local_rank}' all.log";

/// Puts the ranks' files together, in the order of the ranks, as one file of the root's; run it
/// under `verbcast launch`.
///
/// The files may have any size, also none. FILE gets the permissions of the root's own part. Every
/// rank must be given the same arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What every rank reads; {rank}, {local_rank} and {host} are replaced
    #[arg(value_name = "SRC")]
    source: OsString,
    /// The file to write, as the root sees it
    file: PathBuf,
    /// The rank that writes FILE
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    #[command(flatten)]
    options: Options,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    job::run("verbcast gather", &args.options, |job| transfer::run(job, args))
}
