//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Every failure of rxe-setup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// An operation on a file failed.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// The operation, as a verb.
        what: &'static str,
        /// The file it was tried on.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A system call failed that names no file.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation, as a verb.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A program could not be started at all.
    #[error("cannot start {program}: {source}; `rxe-setup deps` installs what is missing")]
    Start {
        /// The program's name.
        program: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}){}", indented(stderr))]
    Program {
        /// The whole command line.
        command: String,
        /// Its exit status or signal.
        status: String,
        /// What it wrote on its standard error.
        stderr: String,
    },
    /// Something this machine lacks.
    #[error("missing {what}; {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// The right to do something is missing; the caller can do it by hand.
    #[error("this needs root; run\n    {line}")]
    NeedsRoot {
        /// The line to run.
        line: String,
    },
    /// What `up` should make is there already and belongs to somebody else.
    #[error(
        "{what} exists already and was not made by `rxe-setup up`: remove it, or use it as it is"
    )]
    Conflict {
        /// The thing in the way.
        what: String,
    },
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// The guest did not come up, or broke down before the command ended.
    #[error("the guest failed: {reason}{}", indented(console))]
    Guest {
        /// What was seen.
        reason: String,
        /// The last lines of its console.
        console: String,
    },
    /// The command did not end in time.
    #[error("the time limit of {} s passed; the guest was stopped (--timeout sets it)", limit.as_secs())]
    TimeLimit {
        /// The limit that passed.
        limit: Duration,
    },
    /// A step of `verify` or `demo` failed; its own output said why.
    #[error("{0}")]
    Step(String),
}

/// The result of everything that can fail here.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes the closure that `map_err` wants for an operation on a file.
    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// The exit status that tells this error: 2 wrong usage, 124 and 125 as `timeout` has them.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::NeedsRoot { .. } | Self::Usage(_) => 2,
            Self::TimeLimit { .. } => 124,
            Self::Guest { .. } => 125,
            _ => 1,
        }
    }
}

fn indented(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("\n    {line}")).collect()
}
