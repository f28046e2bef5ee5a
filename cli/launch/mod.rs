//! `verbcast launch`: starts the ranks of a job on this host and sees them to their end.
//!
//! Each rank is a process group of its own, dies with the launcher ([`rank_exec`]), and has its
//! output passed on line by line ([`output`]). The launcher hosts the rendezvous at which the ranks
//! find each other; after that it is not needed by them.

mod job;
mod meeting;
mod output;
mod program;
pub(crate) mod rank_exec;
mod screen;
mod supervise;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use verbcast_transport::bootstrap::BootstrapError;

use crate::exit;

/// Names of the programs' environment that are the launcher's own.
pub(crate) const TERMINAL_WIDTH: &str = "VERBCAST_TERMINAL_WIDTH";

/// The most ranks that one launcher starts: beyond it a typing error is likelier than a wish.
const RANKS_MAX: i64 = 4096;

/// Runs a program as N ranks on this host; the first rank that fails ends the job with its status.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many ranks to start (more than there are cores is fine)
    #[arg(short = 'n', long = "ranks", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    ranks: u32,
    /// What the ranks talk through: verbs (RDMA), shm (shared memory), or auto: the best there is
    #[arg(long, value_name = "FABRIC", value_parser = ["auto", "verbs", "shm"])]
    fabric: Option<String>,
    /// Where the ranks meet
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    rendezvous: String,
    /// How long the ranks may take to find each other
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    connect_deadline: u64,
    /// How long the job may take in all [default: no limit]; exit status 124 if it takes longer
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// How long the other ranks may take to end by themselves after one failed, before SIGTERM and
    /// SIGKILL
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    grace: Duration,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A duration from a positive number of seconds, such as `2` or `0.5`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    match Duration::try_from_secs_f64(number) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("it has to be more than 0 seconds".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let program = match program::find(&args.program[0]) {
        Ok(program) => program,
        Err(error) => {
            eprintln!("verbcast launch: {error}");
            return ExitCode::from(error.status());
        }
    };
    match job::run(args, &program) {
        Ok(status) => ExitCode::from(status),
        Err(error) => exit::failed("verbcast launch", &error),
    }
}

/// Why a job could not be started or seen to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A system call.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A rank could not be started; those that had been were ended.
    #[error("cannot start rank {rank} of {ranks} (a limit on processes or open files?)")]
    Start {
        /// Which.
        rank: u32,
        /// Of how many.
        ranks: u32,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The place where ranks meet.
    #[error("the ranks have no place to meet (see --rendezvous)")]
    Rendezvous(#[source] Box<BootstrapError>),
}

/// Makes an [`Error::System`] of an errno or I/O error.
fn system<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::System { what, source: source.into() }
}
