//! `verbcast scatter`: a part of one file to every rank.

mod cut;
mod transfer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::files::job;
use crate::files::options::{Options, block_bytes};
use cut::Cut;

const EXAMPLES: &str = "\
Examples:
  verbcast launch -n 4 -- verbcast scatter table.bin '/tmp/part.{rank}'
  verbcast launch -n 4 -- verbcast scatter --lines log.txt '/tmp/log.{rank}'
  verbcast launch -n 4 -- verbcast scatter --record-bytes 100 sorted.dat '/tmp/sorted.{rank}'
  verbcast launch -n 4 -- verbcast gather '/tmp/part.{rank}' table.bin     # puts it together again";

/// Cuts the root's file into as many parts as there are ranks and gives each rank its own; run it
/// under `verbcast launch`.
///
/// The parts are as equal as can be; rank 0 has the first one. `verbcast gather` puts them together
/// again. Every rank must be given the same arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file to cut, as the root sees it
    file: PathBuf,
    /// Where every rank puts its part; {rank}, {local_rank} and {host} are replaced
    #[arg(value_name = "DEST")]
    destination: OsString,
    /// The rank that reads FILE
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Split no line: each cut is moved on to the line's end, so some parts may be empty
    #[arg(long, conflicts_with = "record_bytes")]
    lines: bool,
    /// Split no record of so many bytes
    #[arg(long, value_name = "BYTES", value_parser = block_bytes)]
    record_bytes: Option<u64>,
    /// The last record may be shorter than the others
    #[arg(long, requires = "record_bytes")]
    short_record: bool,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn cut(&self) -> Cut {
        match self.record_bytes {
            Some(record_bytes) => Cut::Records { record_bytes, short: self.short_record },
            None if self.lines => Cut::Lines,
            None => Cut::Bytes,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    job::run("verbcast scatter", &args.options, |job| transfer::run(job, args))
}
