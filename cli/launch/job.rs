//! One job: its rendezvous, its ranks and their output.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::pipe2;

use super::meeting::Meeting;
use super::supervise::{Ranks, signals};
use super::{Args, Error, TERMINAL_WIDTH, output, rank_exec, screen, system};

/// Runs the job and gives its exit status.
///
/// # Errors
/// If it cannot be started, or not be seen to its end; no rank is left then.
pub(crate) fn run(args: &Args, program: &Path) -> Result<u8, Error> {
    // First of all: every thread started from here on leaves the signals to the descriptor.
    let signals = signals()?;
    allow_files(args.ranks);
    let (stdout, stderr, columns) =
        screen::open().map_err(system("standard output or standard error is closed"))?;
    let messages = stderr.try_clone().map_err(system("cannot duplicate standard error"))?;

    let deadline = Duration::from_secs(args.connect_deadline);
    let meeting = Meeting::open(&args.rendezvous, args.ranks, deadline)?;
    let environment = environment(args, &meeting, columns);
    let mut ranks = Ranks::new(messages, meeting.stop_handle(), args.grace, args.timeout);
    let (mut outputs, mut errors) = (Vec::new(), Vec::new());
    for rank in 0..args.ranks {
        let mut child = start(args, program, rank, &environment)
            .map_err(|source| Error::Start { rank, ranks: args.ranks, source })?;
        outputs.extend(child.stdout.take().map(OwnedFd::from));
        errors.extend(child.stderr.take().map(OwnedFd::from));
        ranks.add(child);
    }
    let mut forwarders = Vec::new();
    for (name, pipes, screen) in [("stdout", outputs, stdout), ("stderr", errors, stderr)] {
        let (stopped, stop) = pipe2(OFlag::O_CLOEXEC).map_err(system("cannot open a pipe"))?;
        let thread = output::forward(name, pipes, stopped, screen)
            .map_err(system("cannot start a thread for the ranks' output"))?;
        forwarders.push((thread, stop));
    }
    let status = ranks.wait(&signals);
    for (thread, stop) in forwarders {
        drop(stop);
        // A panic there has printed itself.
        let _panicked = thread.join();
    }
    status
}

/// What every rank's environment has in common.
fn environment(
    args: &Args,
    meeting: &Meeting,
    columns: Option<u16>,
) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("VERBCAST_SIZE", args.ranks.to_string()),
        ("VERBCAST_CONNECT_DEADLINE_S", args.connect_deadline.to_string()),
    ];
    environment.extend(meeting.environment());
    environment.extend(columns.map(|columns| (TERMINAL_WIDTH, columns.to_string())));
    if let Some(fabric) = &args.fabric {
        environment.push(("VERBCAST_FABRIC", fabric.clone()));
    }
    environment
}

fn start(
    args: &Args,
    program: &Path,
    rank: u32,
    environment: &[(&'static str, String)],
) -> std::io::Result<Child> {
    let rank_text = rank.to_string();
    rank_exec::command(program, &args.program)
        .envs(environment.iter().map(|(name, value)| (*name, OsString::from(value))))
        .env("VERBCAST_RANK", &rank_text)
        .env("VERBCAST_LOCAL_RANK", &rank_text)
        .stdin(standard_input(rank))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Rank 0 gets the launcher's input, unless that is a terminal: a rank is no member of the
/// terminal's foreground process group and would be stopped when it reads there.
fn standard_input(rank: u32) -> Stdio {
    if rank == 0 && !std::io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}

/// Raises the limit on open files if the pipes of the ranks need it and the hard limit has room.
fn allow_files(ranks: u32) {
    /// Two pipes of a rank, and what starting one takes.
    const FILES_PER_RANK: u64 = 2;
    /// The launcher's own, amply.
    const FILES: u64 = 64;
    let need = u64::from(ranks) * FILES_PER_RANK + FILES;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < need => {
            // If it stays too low, the start of a rank fails and says so.
            let _refused = setrlimit(Resource::RLIMIT_NOFILE, need.min(hard), hard);
        }
        _ => {}
    }
}
