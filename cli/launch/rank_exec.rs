//! The step between the launcher and a rank's program: `verbcast __rank PARENT FILE NAME ARGS...`.
//!
//! A rank must die with its launcher, however that dies, and only a process itself can ask the
//! kernel for that. Doing it here, in a program of its own that then becomes the rank's, needs no
//! code between fork and exec in the launcher, which has threads.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};

use crate::exit;

/// The hidden subcommand.
const SUBCOMMAND: &str = "__rank";

/// What to become.
#[derive(Debug)]
pub(crate) struct RankExec {
    parent: Pid,
    file: OsString,
    name: OsString,
    arguments: Vec<OsString>,
}

/// What this process was asked to become, if it was started by [`command`].
pub(crate) fn requested() -> Option<RankExec> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != SUBCOMMAND {
        return None;
    }
    let parent = Pid::from_raw(arguments.next()?.to_str()?.parse().ok()?);
    let (file, name) = (arguments.next()?, arguments.next()?);
    Some(RankExec { parent, file, name, arguments: arguments.collect() })
}

/// A command that becomes `program` (found at `file`), in a process group of its own, and dies with
/// the calling process.
pub(crate) fn command(file: &std::path::Path, program: &[OsString]) -> Command {
    // The kernel resolves this link in the child, where it still names this very binary, also if
    // its file has been replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg(SUBCOMMAND).arg(Pid::this().to_string()).arg(file).args(program).process_group(0);
    command
}

impl RankExec {
    /// Becomes the program; comes back only if that fails.
    pub(crate) fn exec(self) -> ExitCode {
        let Self { parent, file, name, arguments } = self;
        // The launcher reads signals from a descriptor; the rank gets them as every program does.
        let prepared =
            set_pdeathsig(Signal::SIGKILL).and_then(|()| SigSet::empty().thread_set_mask());
        if let Err(error) = prepared {
            eprintln!("verbcast launch: cannot prepare a rank's process: {error}");
            return ExitCode::from(exit::FAILED);
        }
        if getppid() != parent {
            return ExitCode::from(exit::FAILED);
        }
        let error = Command::new(&file).arg0(&name).args(arguments).exec();
        eprintln!("verbcast launch: cannot run {}: {error}", file.display());
        let not_found = error.kind() == std::io::ErrorKind::NotFound;
        ExitCode::from(if not_found { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE })
    }
}
