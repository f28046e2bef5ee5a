//! `verbcast broadcast`: one file to every rank.
//!
//! Nothing flows before all ranks agree that it can, and nothing is seen before all agree that it
//! arrived ([`transfer`]). In between the file streams through bounded memory ([`stream`]).

pub(crate) mod bytes;
mod destination;
mod error;
pub(crate) mod heir;
mod interrupt;
pub(crate) mod progress;
mod report;
#[cfg(test)]
mod scratch;
mod source;
mod stream;
mod template;
mod temporary;
mod transfer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use verbcast::{Algorithm, Config, World};

use crate::exit;
use crate::launch::seconds;
use temporary::Names;

/// Gives every rank a copy of the root's file; run it under `verbcast launch`.
///
/// Every rank must be given the same arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to broadcast, as the root sees it
    file: PathBuf,
    /// Where every rank puts its copy; {rank}, {local_rank} and {host} are replaced
    #[arg(value_name = "DEST")]
    destination: OsString,
    /// The rank that reads FILE
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Memory that each rank may use for the file's bytes
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = memory)]
    memory: u64,
    /// The algorithm [default: the one that the model finds fastest]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    algorithm: Option<Algorithm>,
    /// Bytes of a block [default: what the model finds fastest]
    #[arg(long, value_name = "BYTES", value_parser = block_bytes)]
    block_size: Option<u64>,
    /// Give up when the broadcast has taken this long [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    deadline: Option<Duration>,
    /// Queue pairs per link [default: one per rail]
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=64))]
    lanes: Option<u32>,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = bytes::parse(text)?;
    if bytes < stream::MEMORY_MIN {
        return Err(format!("at least {} are needed", bytes::display(stream::MEMORY_MIN)));
    }
    Ok(bytes)
}

fn block_bytes(text: &str) -> Result<u64, String> {
    match bytes::parse(text)? {
        0 => Err("a block has at least one byte".into()),
        bytes => Ok(bytes),
    }
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    text.parse().map_err(|error: verbcast::schedule::ScheduleError| error.to_string())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    const COMMAND: &str = "verbcast broadcast";
    let names = Names::with_heirs();
    if let Err(error) = interrupt::watch(names.clone()) {
        return exit::failed(COMMAND, &error);
    }
    match join_and_transfer(args, &names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::failed(COMMAND, &error),
    }
}

fn join_and_transfer(args: &Args, names: &Names) -> Result<(), error::Error> {
    if args.file.as_os_str() == "-" {
        return Err(error::Error::StandardInput);
    }
    let mut config = Config::from_env().map_err(verbcast::Error::from)?;
    config.lanes = args.lanes.or(config.lanes);
    let local_rank = config.local_rank.unwrap_or(0);
    let world = World::connect(config)?;
    match transfer::run(&world, args, local_rank, names) {
        Ok(report) => {
            world.finalize()?;
            report.print();
            Ok(())
        }
        Err(error) if error.is_agreed() => {
            // Every rank has the same error. That one of them is gone before it said goodbye does
            // not make it worse.
            let _gone = world.finalize();
            Err(error)
        }
        Err(error) => {
            // The first cause is what all ranks report; if there is none yet, this is it.
            world.abort(&exit::chain(&error));
            Err(match world.abort_cause() {
                Some(cause) => error::Error::Aborted(cause),
                None => error,
            })
        }
    }
}
