//! A deliberate mistake in the executor, which the tests of every kind of link must notice.
//!
//! The workspace is copied into the target folder with one expression of the executor changed: the
//! block that a send carries is off by one. The tests of the strict fake, of shared memory and of
//! real verbs in a guest must then fail; where they pass, they do not run that executor.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cargo::cargo;
use crate::error::{Error, Result};
use crate::run::start_error;

/// The file with the expression.
const FILE: &str = "collectives/src/executor.rs";
/// The expression, with enough around it to be there once.
const RIGHT: &str = "            self.slots[(peer.first_slot + peer.sends) as usize] = Slot {
                block: step.block,";
const WRONG: &str = "            self.slots[(peer.first_slot + peer.sends) as usize] = Slot {
                block: (step.block + 1) % self.blocks,";

/// Host tests that must fail: package and target.
const HOST_TESTS: [[&str; 2]; 3] = [
    ["verbcast-collectives", "broadcast_on_fake"],
    ["verbcast-collectives", "broadcast_in_process"],
    ["verbcast", "shared_memory_jobs"],
];

/// Copies the workspace at `root` and changes the copy; its root.
///
/// # Errors
/// If a file cannot be copied, or the expression is not there exactly once.
pub(crate) fn mutated_copy(root: &Path) -> Result<PathBuf> {
    let copy = root.join("target/mutated/workspace");
    let failed = |source| Error::Step(format!("cannot copy to {}: {source}", copy.display()));
    copy_folder(root, &copy).map_err(failed)?;
    let file = copy.join(FILE);
    let text = fs::read_to_string(&file).map_err(failed)?;
    fs::write(&file, mutated(&text)?).map_err(failed)?;
    Ok(copy)
}

/// Runs the host tests in the changed copy.
///
/// # Errors
/// If the copy does not build, or one of them passes.
pub(crate) fn host_tests_fail(copy: &Path) -> Result<()> {
    let mut build = cargo(copy, &["test", "--no-run", "--workspace", "--tests"]);
    crate::run::inherited(build.env("CARGO_TARGET_DIR", target(copy)))?;
    for [package, test] in HOST_TESTS {
        let mut command = cargo(copy, &["test", "--quiet", "-p", package, "--test", test]);
        command.env("CARGO_TARGET_DIR", target(copy));
        let output = command.output().map_err(|source| start_error(&command, source))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = text.lines().rev().find(|line| line.starts_with("test result: "));
        match summary {
            Some(line) if line.starts_with("test result: FAILED") => say!("{test}: {line}"),
            other => {
                return Err(Error::Step(format!(
                    "{test} must fail with the executor changed; its result: {other:?}"
                )));
            }
        }
    }
    Ok(())
}

/// The target folder of the changed copy; apart from ours, so that none of its files is taken for
/// one of ours.
pub(crate) fn target(copy: &Path) -> PathBuf {
    copy.with_file_name("target")
}

fn mutated(text: &str) -> Result<String> {
    match text.matches(RIGHT).count() {
        1 => Ok(text.replacen(RIGHT, WRONG, 1)),
        count => Err(Error::Step(format!("the expression to change is {count} times in {FILE}"))),
    }
}

/// Copies what is not built, keeping files that are equal, so that a second build is short.
fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if name == "target" || name == ".git" {
            continue;
        }
        let (source, copy) = (entry.path(), to.join(&name));
        if kind.is_dir() {
            copy_folder(&source, &copy)?;
        } else if kind.is_file() && fs::read(&source)? != fs::read(&copy).unwrap_or_default() {
            fs::copy(&source, &copy)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expression_is_there_once() {
        let text = include_str!("../../collectives/src/executor.rs");
        assert!(mutated(text).is_ok_and(|changed| changed != text));
        assert!(mutated("fn main() {}").is_err());
    }
}
