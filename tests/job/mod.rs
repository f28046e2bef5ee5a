//! Running `verbcast` from tests: with a time limit, its output kept, nothing left behind.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses its part; a test fails by panicking"
)]

pub mod files;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No test waits longer than this for a process; it is no measure of anything.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A `verbcast` command with nothing of the caller's job in its environment.
pub fn verbcast<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    // Whoever runs the tests in the background may have them ignore signals, which is inherited.
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_verbcast")]);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"VERBCAST_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// `verbcast launch -n RANKS -- sh -c SCRIPT`.
pub fn launch_shell(ranks: u32, script: &str) -> Command {
    verbcast(["launch", "-n", &ranks.to_string(), "--grace", "2", "--", "sh", "-c", script])
}

/// A running command whose output is collected.
pub struct Running {
    child: Child,
    outputs: [Arc<Mutex<Vec<u8>>>; 2],
    readers: Vec<JoinHandle<()>>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Starts `command` with both outputs collected.
pub fn start(mut command: Command) -> Running {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let outputs = [Arc::default(), Arc::default()];
    let readers = vec![
        collect(child.stdout.take().expect("piped"), &outputs[0]),
        collect(child.stderr.take().expect("piped"), &outputs[1]),
    ];
    Running { child, outputs, readers }
}

/// Runs `command` to its end.
pub fn run(command: Command) -> Outcome {
    start(command).finish()
}

fn collect(mut pipe: impl Read + Send + 'static, into: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = pipe.read(&mut buffer) {
            into.lock().unwrap().extend_from_slice(&buffer[..bytes]);
        }
    })
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What has come out so far: standard output, standard error.
    pub fn so_far(&self) -> (String, String) {
        let text =
            |i: usize| String::from_utf8_lossy(&self.outputs[i].lock().unwrap()).into_owned();
        (text(0), text(1))
    }

    /// Waits until standard output holds `count` lines that contain `text`, and gives them.
    pub fn lines(&mut self, count: usize, text: &str) -> Vec<String> {
        self.until(&format!("{count} lines with {text:?}"), |stdout, _| {
            let whole = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
            let lines: Vec<String> =
                whole.lines().filter(|line| line.contains(text)).map(str::to_owned).collect();
            (lines.len() >= count).then_some(lines)
        })
    }

    /// Waits until `look` finds something in standard output and standard error.
    pub fn until<T>(&mut self, what: &str, look: impl Fn(&str, &str) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            let (stdout, stderr) = self.so_far();
            if let Some(found) = look(&stdout, &stderr) {
                return found;
            }
            if started.elapsed() > LIMIT {
                self.give_up(what);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal by its name (`TERM`, `KILL`, ...).
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end.
    pub fn finish(self) -> Outcome {
        self.finish_within(LIMIT)
    }

    /// Waits for the end of something that takes longer.
    pub fn finish_within(mut self, limit: Duration) -> Outcome {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                break status;
            }
            if started.elapsed() > limit {
                self.give_up("its end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers.drain(..) {
            reader.join().expect("the reader does not panic");
        }
        let (stdout, stderr) = self.so_far();
        Outcome { status, stdout, stderr }
    }

    fn give_up(&mut self, what: &str) -> ! {
        let (stdout, stderr) = self.so_far();
        let _gone = self.child.kill();
        panic!("no {what} within {LIMIT:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}

impl Outcome {
    /// The exit code, or 128 + the signal's number.
    pub fn code(&self) -> i32 {
        let signal = || self.status.signal().map(|signal| 128 + signal);
        self.status.code().or_else(signal).expect("it ended")
    }

    /// Fails with both outputs if the exit code is another one.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }

    /// Fails with both outputs if `text` is not in standard error.
    #[track_caller]
    pub fn expect_error(self, text: &str) -> Self {
        assert!(
            self.stderr.contains(text),
            "no {text:?} in\n--- stdout\n{}\n--- stderr\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// What a rank printed, without its prefix.
    pub fn of_rank(&self, rank: u32) -> Vec<&str> {
        let prefix = format!("[{rank}] ");
        self.stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect()
    }
}

/// Sends a signal to a process by its number.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.expect("kill runs").success(), "kill -{name} {pid}");
}

/// Whether a process runs (a zombie does not).
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rfind(')').and_then(|end| stat[end..].chars().nth(2));
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Fails if one of these processes still runs when a generous time is over.
#[track_caller]
pub fn expect_gone(pids: &[u32]) {
    let started = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| is_running(**pid)) {
        assert!(started.elapsed() < LIMIT, "process {pid} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process numbers in lines such as `[1] pid 4711`.
pub fn pids(lines: &[String]) -> Vec<u32> {
    let number = |line: &String| line.rsplit(' ').next().and_then(|word| word.parse().ok());
    lines
        .iter()
        .map(|line| number(line).unwrap_or_else(|| panic!("no number in {line:?}")))
        .collect()
}

/// An error on every rank that contains `text`, and no file.
#[track_caller]
pub fn expect_failure(outcome: Outcome, ranks: u32, text: &str) {
    let outcome = outcome.expect_code(1);
    for rank in 0..ranks {
        let prefix = format!("[{rank}]");
        let said = |line: &str| line.starts_with(&prefix) && line.contains(text);
        assert!(
            outcome.stderr.lines().any(said),
            "rank {rank} does not say {text:?}:\n{}",
            outcome.stderr
        );
    }
}
