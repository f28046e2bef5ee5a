//! The process that takes a hidden file away when its owner was killed: `verbcast __heir NAME`.
//!
//! Its working folder is the file's, and its standard input a pipe that only the owner holds: the end
//! of the pipe is the end of the owner, however that came. It then removes the file if nobody else
//! has it, which is not so once the owner has put it in place or removed it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use super::temporary::remove_stale;
use crate::exit;

/// The hidden subcommand.
const SUBCOMMAND: &str = "__heir";

/// How often, and how far apart, it tries for a file whose lock is not gone yet: a process that was
/// killed closes one descriptor after the other.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A waiting heir; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Heir(Child);

impl Heir {
    /// Starts the heir of the file `name` in `folder`.
    ///
    /// # Errors
    /// If no process can be started.
    pub(super) fn start(folder: &OwnedFd, name: &OsStr) -> io::Result<Self> {
        // The kernel resolves both links in the child: its own binary, and the folder, whose
        // descriptor it has until it becomes that binary. In a group of its own no signal to the
        // owner's group reaches it.
        let child = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .arg(name)
            .current_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self(child))
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Nothing can be done if it cannot be waited for; it ends by itself.
        let _status = self.0.wait();
    }
}

/// The file whose heir this process was started to be, if so.
pub(crate) fn requested() -> Option<OsString> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != SUBCOMMAND {
        return None;
    }
    arguments.next()
}

/// Waits for the end of the owner and removes what it left.
pub(crate) fn run(name: &OsStr) -> ExitCode {
    // Whatever ends the reading, the owner is gone.
    let _ended = io::stdin().read(&mut [0]);
    let Ok(folder) = File::open(".").map(|folder| Arc::new(OwnedFd::from(folder))) else {
        return ExitCode::from(exit::FAILED);
    };
    for _ in 0..ATTEMPTS {
        match remove_stale(&folder, name) {
            Ok(true) => return ExitCode::SUCCESS,
            Ok(false) => sleep(PAUSE),
            Err(_) => break,
        }
    }
    ExitCode::from(exit::FAILED)
}
