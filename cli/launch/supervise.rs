//! Seeing the ranks to their end: signals, the first failure, the grace for the others.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use verbcast_transport::bootstrap::StopHandle;

use super::screen::Screen;
use super::{Error, system};
use crate::exit;
use crate::ignored::is_ignored;

/// How long a rank may take to end after SIGTERM before it gets SIGKILL.
const TERMINATION_TIME: Duration = Duration::from_secs(2);

/// How long after the first failure others are taken for parts of the same one. A rank that dies is
/// missed by its peers before the system has its status, and the first to say so need not be the cause.
const SETTLING_TIME: Duration = Duration::from_millis(50);

/// Signals that the launcher takes from [`signals`] and passes on, unless it was started with them
/// ignored, as its ranks are then.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Blocks the signals that this module handles, in this thread and those it starts, and gives the
/// descriptor that they come from.
///
/// # Errors
/// If the system refuses.
pub(crate) fn signals() -> Result<SignalFd, Error> {
    let mut set: SigSet = PASSED_ON.into_iter().filter(|&signal| !is_ignored(signal)).collect();
    set.add(Signal::SIGCHLD);
    set.thread_block().map_err(system("cannot block signals"))?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(system("cannot open a signal descriptor"))
}

/// A rank's process, the leader of its process group.
#[derive(Debug)]
struct Process {
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal to the whole group, which cannot be another's: its leader is not reaped yet.
    fn signal(&self, signal: Signal) {
        if self.status.is_none()
            && let Err(error) = killpg(self.pid(), signal)
        {
            tracing::debug!(pid = %self.pid(), %signal, %error, "a signal was not delivered");
        }
    }

    /// Takes the status if the process has ended, and ends what is left of its group.
    fn reap(&mut self) -> bool {
        if self.status.is_some() {
            return false;
        }
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        if matches!(
            waitid(Id::Pid(self.pid()), look),
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR)
        ) {
            return false;
        }
        self.signal(Signal::SIGKILL);
        self.status = Some(match self.child.wait() {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(pid = %self.pid(), %error, "the status of a rank is lost");
                ExitStatus::from_raw(i32::from(exit::FAILED) << 8)
            }
        });
        true
    }
}

/// What comes next for ranks that do not end by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Terminate,
    Kill,
}

/// The ranks of a job, from their start to their end. Dropping it kills those that are left.
#[derive(Debug)]
pub(crate) struct Ranks {
    processes: Vec<Process>,
    screen: Screen,
    meeting: StopHandle,
    grace: Duration,
    /// The status of the job, once something has ended it.
    status: Option<u8>,
    /// Ranks that failed, in the order in which that was found, and until when more are waited for.
    suspects: Vec<usize>,
    judgement: Option<Instant>,
    /// What happens to ranks that are still there, and when.
    next: Option<(Instant, Step)>,
    /// When the job has taken too long.
    limit: Option<(Instant, Duration)>,
    /// How often somebody asked for the end.
    interrupts: u32,
}

impl Ranks {
    /// No ranks yet; those that wait at `meeting` for one that has ended are told so.
    pub(crate) fn new(
        screen: Screen,
        meeting: StopHandle,
        grace: Duration,
        timeout: Option<Duration>,
    ) -> Self {
        let limit = timeout.and_then(|time| Some((Instant::now().checked_add(time)?, time)));
        Self {
            processes: Vec::new(),
            screen,
            meeting,
            grace,
            status: None,
            suspects: Vec::new(),
            judgement: None,
            next: None,
            limit,
            interrupts: 0,
        }
    }

    /// Adds the next rank's process, which leads a process group.
    pub(crate) fn add(&mut self, child: Child) {
        self.processes.push(Process { child, status: None });
    }

    /// Waits until every rank has ended and gives the job's status.
    ///
    /// # Errors
    /// If the launcher cannot wait any more; the ranks are killed then.
    pub(crate) fn wait(mut self, signals: &SignalFd) -> Result<u8, Error> {
        loop {
            self.reap();
            let all_ended = self.processes.iter().all(|process| process.status.is_some());
            if self.judgement.is_some_and(|at| all_ended || at <= Instant::now()) {
                self.judge();
            }
            if all_ended {
                self.screen.clear_status();
                return Ok(self.status.unwrap_or(0));
            }
            self.act_on_time(Instant::now());
            let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, self.sleep_time(Instant::now())) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(system("cannot wait for signals")(error)),
            }
            while let Some(info) = signals.read_signal().map_err(system("cannot read signals"))? {
                if let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed()) {
                    self.pass_on(signal);
                }
            }
        }
    }

    /// Takes the statuses of all that have ended.
    fn reap(&mut self) {
        for (rank, process) in self.processes.iter_mut().enumerate() {
            if process.reap() && process.status.is_some_and(|status| !status.success()) {
                self.suspects.push(rank);
            }
        }
        if self.status.is_none() && self.judgement.is_none() && !self.suspects.is_empty() {
            self.judgement = Instant::now().checked_add(SETTLING_TIME);
        }
    }

    /// Finds the rank whose failure is the job's, and starts the job's end.
    fn judge(&mut self) {
        self.judgement = None;
        if self.status.is_some() {
            return;
        }
        // One that was killed is the cause; one that ended with the plain status of failure may have
        // done so because of another.
        let weight = |rank: &usize| {
            let status = self.processes[*rank].status.unwrap_or_default();
            match (status.signal(), status.code()) {
                (Some(_), _) => 0,
                (None, Some(code)) if code != i32::from(exit::FAILED) => 1,
                _ => 2,
            }
        };
        // The first found of the lowest weight.
        let Some(rank) = self.suspects.iter().copied().min_by_key(weight) else { return };
        let process = &self.processes[rank];
        let (status, what) = describe(process.status.unwrap_or_default());
        let what = format!("rank {rank} (pid {}) {what}", process.pid());
        self.meeting.stop(&what);
        if self.interrupts == 0 {
            self.screen.say(&what);
        }
        self.status = Some(status);
        self.schedule(Step::Terminate, self.grace);
    }

    fn act_on_time(&mut self, now: Instant) {
        if let Some((_, time)) = self.limit.take_if(|(at, _)| *at <= now)
            && self.status.is_none()
        {
            self.screen.say(&format!("the job took longer than its limit of {time:?}: ending it"));
            self.status = Some(exit::TIMED_OUT);
            self.next = Some((now, Step::Terminate));
        }
        let Some((_, step)) = self.next.take_if(|(at, _)| *at <= now) else {
            return;
        };
        let left: Vec<String> = (0..self.processes.len())
            .filter(|rank| self.processes[*rank].status.is_none())
            .map(|rank| rank.to_string())
            .collect();
        let left = left.join(", ");
        match step {
            Step::Terminate => {
                self.screen.say(&format!("sending SIGTERM to rank(s) {left}"));
                self.signal(Signal::SIGTERM);
                // A stopped process cannot end.
                self.signal(Signal::SIGCONT);
                self.schedule(Step::Kill, TERMINATION_TIME);
            }
            Step::Kill => {
                self.screen.say(&format!("sending SIGKILL to rank(s) {left}"));
                self.signal(Signal::SIGKILL);
            }
        }
    }

    /// Schedules a step unless a sooner one is.
    fn schedule(&mut self, step: Step, after: Duration) {
        let Some(at) = Instant::now().checked_add(after) else { return };
        if self.next.is_none_or(|(earlier, _)| at < earlier) {
            self.next = Some((at, step));
        }
    }

    fn sleep_time(&self, now: Instant) -> PollTimeout {
        let times = [self.judgement, self.next.map(|(at, _)| at), self.limit.map(|(at, _)| at)];
        let Some(at) = times.into_iter().flatten().min() else {
            return PollTimeout::NONE;
        };
        // Rounded up, so that the time has come when the sleep ends.
        let left = at.saturating_duration_since(now) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => return,
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                self.interrupts += 1;
                if self.interrupts > 1 {
                    self.screen.say(&format!("{signal} again: killing all ranks"));
                    self.signal(Signal::SIGKILL);
                    return;
                }
                self.schedule(Step::Kill, self.grace);
            }
            _ => {}
        }
        self.signal(signal);
        if signal == Signal::SIGTSTP {
            // Stops here, as asked; SIGCONT comes through the descriptor when this goes on.
            let _stopped = raise(Signal::SIGSTOP);
        }
    }

    fn signal(&self, signal: Signal) {
        for process in &self.processes {
            process.signal(signal);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for process in &mut self.processes {
            if process.status.is_none() {
                process.signal(Signal::SIGKILL);
                process.status = process.child.wait().ok();
            }
        }
    }
}

/// The status that a rank's end gives the job, and what happened in words.
fn describe(status: ExitStatus) -> (u8, String) {
    if let Some(code) = status.code() {
        return (code as u8, format!("exited with status {code}"));
    }
    let number = status.signal().unwrap_or_default();
    let name = Signal::try_from(number).map_or("a real-time signal", Signal::as_str);
    let dump = if status.core_dumped() { ", core dumped" } else { "" };
    (exit::SIGNALED + number as u8, format!("was killed by signal {number} ({name}{dump})"))
}
