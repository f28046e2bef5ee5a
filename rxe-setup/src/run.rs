//! Running other programs.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Runs `program` to its end and returns what it wrote on its standard output.
///
/// # Errors
/// [`Error::Start`] if it cannot be started, [`Error::Program`] with its standard error if it fails.
pub(crate) fn output<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    output_of(&mut command)
}

/// Like [`output`], for a command that was set up further.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().map_err(|source| start_error(command, source))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Error::Program {
        command: line(command),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs a command whose output goes where ours goes.
///
/// # Errors
/// [`Error::Start`] if it cannot be started, [`Error::Program`] if it fails.
pub(crate) fn inherited(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|source| start_error(command, source))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Program {
        command: line(command),
        status: status.to_string(),
        stderr: String::new(),
    })
}

pub(crate) fn start_error(command: &Command, source: std::io::Error) -> Error {
    Error::Start { program: command.get_program().to_string_lossy().into_owned(), source }
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let mut words = vec![quoted(&command.get_program().to_string_lossy())];
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

/// `word` as a shell reads it: quoted only where it must be.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_where_they_must_be() {
        assert_eq!(quoted("a/b-c=1"), "a/b-c=1");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("$(x)"), "'$(x)'");
    }

    #[test]
    fn a_failing_program_is_quoted_with_its_words() {
        let error = output("sh", &["-c", "echo no >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no"), "{error}");
    }

    #[test]
    fn an_absent_program_is_named() {
        let error = output("no-such-program-here", &[""]).unwrap_err();
        assert!(
            matches!(error, Error::Start { ref program, .. } if program == "no-such-program-here")
        );
    }
}
