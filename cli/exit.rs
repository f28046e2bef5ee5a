//! Exit statuses, the same in every command.

use std::process::ExitCode;

/// A run that failed.
pub(crate) const FAILED: u8 = 1;
/// A call that cannot be carried out as it was written.
pub(crate) const WRONG_USAGE: u8 = 2;
/// A job that was ended by its own time limit, as `timeout` from coreutils has it.
pub(crate) const TIMED_OUT: u8 = 124;
/// A program that is there but cannot be run, as shells have it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// A program that is not there, as shells have it.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that killed a process, as shells have it.
pub(crate) const SIGNALED: u8 = 128;

/// Prints `error` with its sources and gives the status of a run that failed.
pub(crate) fn failed(command: &str, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{command}: {}", chain(error));
    ExitCode::from(FAILED)
}

/// Prints `error` with its sources and gives the status of wrong usage.
pub(crate) fn wrong_usage(command: &str, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{command}: {}", chain(error));
    ExitCode::from(WRONG_USAGE)
}

/// An error with its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
