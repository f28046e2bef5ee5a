//! Calling the cargo that called us.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::run::{output_of, start_error};

/// A cargo command in the workspace's root.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.args(args).current_dir(root).stdin(Stdio::null());
    command
}

/// The workspace's root, found from the working folder.
pub(crate) fn workspace_root() -> Result<PathBuf> {
    let args = ["locate-project", "--workspace", "--message-format", "plain"];
    let text = output_of(&mut cargo(Path::new("."), &args))?;
    let manifest = PathBuf::from(String::from_utf8_lossy(&text).trim());
    Ok(manifest.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Whether cargo has a subcommand that is installed apart from it.
pub(crate) fn has_subcommand(root: &Path, name: &str) -> bool {
    output_of(&mut cargo(root, &[name, "--version"])).is_ok()
}

/// A line that cargo prints with `--message-format=json`, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Runs the cargo command `build` and returns the executable of the target `name` of a kind (`bin`,
/// `test`).
///
/// # Errors
/// [`Error::Program`] if the build fails, [`Error::Missing`] if it makes no such executable.
pub(crate) fn executable(build: &mut Command, kind: &str, name: &str) -> Result<PathBuf> {
    build.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = build.output().map_err(|source| start_error(build, source))?;
    if !output.status.success() {
        return Err(Error::Step(format!("the build of {name} failed")));
    }
    find_executable(&String::from_utf8_lossy(&output.stdout), kind, name).ok_or_else(|| {
        Error::Missing {
            what: format!("a {kind} target named {name}"),
            remedy: "the root package must have it".to_owned(),
        }
    })
}

fn find_executable(messages: &str, kind: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.reason == "compiler-artifact")
        .find(|message| {
            let wanted = |target: &Target| {
                target.name == name && target.kind.iter().any(|known| known == kind)
            };
            message.executable.is_some() && message.target.as_ref().is_some_and(wanted)
        })?
        .executable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_by_kind_and_name() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"guest","kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"name":"guest","kind":["bin"]},"executable":"/t/guest-bin"}
{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","target":{"name":"guest","kind":["test"]},"executable":"/t/guest-1"}
not json
{"reason":"build-finished","success":true}"#;
        let found = |kind, name| find_executable(messages, kind, name);
        assert_eq!(found("test", "guest"), Some(PathBuf::from("/t/guest-1")));
        assert_eq!(found("bin", "guest"), Some(PathBuf::from("/t/guest-bin")));
        assert_eq!(found("lib", "guest"), None);
        assert_eq!(found("test", "other"), None);
    }
}
