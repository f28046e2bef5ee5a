//! Finding the program before any rank is started, so that a wrong name is one error and not N.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::exit;

/// Why a program cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ProgramError {
    /// There is none of that name.
    #[error("program {0:?} not found{hint}", hint = if is_path(.0) { "" } else { " in PATH" })]
    NotFound(OsString),
    /// It may not be run.
    #[error("program {} cannot be run: {reason}", .path.display())]
    NotExecutable {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
}

impl ProgramError {
    /// The exit status a shell would have given.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::NotFound(_) => exit::NOT_FOUND,
            Self::NotExecutable { .. } => exit::NOT_EXECUTABLE,
        }
    }
}

/// The file that `name` stands for: itself if it has a slash, else the first in `PATH`.
///
/// # Errors
/// If there is none, or none that may be executed.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, ProgramError> {
    find_in(name, &std::env::var_os("PATH").unwrap_or_default())
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, ProgramError> {
    if is_path(name) {
        return check(Path::new(name));
    }
    let mut refused = None;
    for folder in std::env::split_paths(path).filter(|_| !name.is_empty()) {
        match check(&folder.join(name)) {
            Ok(file) => return Ok(file),
            Err(ProgramError::NotFound(_)) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| ProgramError::NotFound(name.into())))
}

fn is_path(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}

fn check(file: &Path) -> Result<PathBuf, ProgramError> {
    let refuse = |reason| ProgramError::NotExecutable { path: file.into(), reason };
    let metadata = file.metadata().map_err(|_| ProgramError::NotFound(file.into()))?;
    if metadata.is_dir() {
        return Err(refuse("it is a directory"));
    }
    access(file, AccessFlags::X_OK).map_err(|_| refuse("no permission to execute it"))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_as_shells_do() {
        assert_eq!(find_in("sh".as_ref(), "/nowhere:/bin".as_ref()), Ok("/bin/sh".into()));
        assert_eq!(find_in("/bin/sh".as_ref(), "".as_ref()), Ok("/bin/sh".into()));
        let missing = find_in("no-such-program".as_ref(), "/bin".as_ref()).unwrap_err();
        assert_eq!(missing.status(), 127);
        assert!(missing.to_string().contains("in PATH"), "{missing}");
        assert_eq!(find_in("".as_ref(), "/bin".as_ref()).unwrap_err().status(), 127);
        assert_eq!(find_in("/".as_ref(), "".as_ref()).unwrap_err().status(), 126);
        assert_eq!(find_in("/etc/passwd".as_ref(), "".as_ref()).unwrap_err().status(), 126);
    }
}
