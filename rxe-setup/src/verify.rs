//! The subcommand `verify`: every check and test there is, in order, up to the first that fails.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::args::Purpose;
use crate::cache::Cache;
use crate::cargo::{cargo, executable, has_subcommand, workspace_root};
use crate::deps;
use crate::error::{Error, Result};
use crate::guest::{self, GuestOptions, Job, Output, target_folder};
use crate::kernel::image;
use crate::mutation;
use crate::plan::Cluster;
use crate::run::inherited;

/// The least number of tests that must have run in the guest, committed, so that tests that vanish
/// are noticed.
const GUEST_MINIMUM: &str = include_str!("../guest-minimum.txt");
/// Nodes of the guest that the tests run in.
const GUEST_NODES: u32 = 8;
/// Set for tests that have a full form, which takes hours.
const FULL: &str = "VERBCAST_FULL";
/// For all tests in the guest together.
const GUEST_LIMIT: Duration = Duration::from_secs(900);
/// The same for the whole matrix.
const FULL_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// What every step works on.
struct Verify {
    root: PathBuf,
    full: bool,
}

type Step = (&'static str, fn(&Verify) -> Result<()>);

const STEPS: [Step; 10] = [
    ("what is needed to build and to run guests", Verify::dependencies),
    ("formatting", |verify| verify.cargo(&["fmt", "--all", "--check"])),
    ("clippy", |verify| {
        verify.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    }),
    ("tests", Verify::tests),
    ("documentation tests", |verify| verify.cargo(&["test", "--doc", "--workspace"])),
    ("build without verbs", |verify| verify.cargo(&["check", "--no-default-features"])),
    ("documentation", Verify::documentation),
    ("guests", |verify| {
        let args = ["test", "--workspace", "--test", "vm", "--", "--ignored", "--test-threads=1"];
        verify.cargo(&args)
    }),
    ("tests on Soft-RoCE in a guest", Verify::guest_tests),
    ("a mistake in the executor is noticed", Verify::mutation),
];

/// Runs all steps.
///
/// # Errors
/// [`Error::Step`] naming the first step that failed.
pub(crate) fn run(full: bool) -> Result<()> {
    let verify = Verify { root: workspace_root()?, full };
    let started = Instant::now();
    for (number, (name, step)) in STEPS.iter().enumerate() {
        say!("\n== {}/{} {name}", number + 1, STEPS.len());
        let step_started = Instant::now();
        let result = step(&verify);
        let took = step_started.elapsed().as_secs_f64();
        match result {
            Ok(()) => say!("== {name}: passed in {took:.1} s"),
            Err(error) => {
                return Err(Error::Step(format!(
                    "verify: `{name}` failed after {took:.1} s: {error}"
                )));
            }
        }
    }
    say!("\nverify: all steps passed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

impl Verify {
    fn cargo(&self, args: &[&str]) -> Result<()> {
        inherited(&mut cargo(&self.root, args))
    }

    fn dependencies(&self) -> Result<()> {
        deps::install(Purpose::All, false)?;
        image(&Cache::open()?).map(drop)
    }

    fn tests(&self) -> Result<()> {
        let args: &[&str] = if has_subcommand(&self.root, "nextest") {
            &["nextest", "run", "--workspace"]
        } else {
            &["test", "--workspace", "--all-targets"]
        };
        let mut command = cargo(&self.root, args);
        if self.full {
            command.env(FULL, "1");
        }
        inherited(&mut command)
    }

    fn documentation(&self) -> Result<()> {
        let mut command = cargo(&self.root, &["doc", "--no-deps", "--workspace"]);
        inherited(command.env("RUSTDOCFLAGS", "-D warnings"))
    }

    /// Builds the tests here and runs them in one guest.
    fn guest_tests(&self) -> Result<()> {
        // The whole workspace, so that the features and with them the builds are those of the tests
        // before.
        let tests = |name| {
            let args = ["test", "--no-run", "--workspace", "--test", name];
            let program = executable(&mut cargo(&self.root, &args), "test", name)?;
            Ok::<_, Error>(format!("'{}' --include-ignored --test-threads=1", program.display()))
        };
        let script = format!("{} && {}", tests("verbs_device")?, tests("guest")?);
        let (status, text) = self.in_guest(script)?;
        let ran = passed_tests(&text);
        say!("guest tests: {ran} ran");
        check_guest_tests(status, ran, minimum())
    }

    /// Runs a script in a guest with its cluster: the status, and the end of what it printed.
    fn in_guest(&self, script: String) -> Result<(u8, String)> {
        let mut env = vec![("VERBCAST_GUEST".to_owned(), "1".to_owned())];
        if self.full {
            env.push((FULL.to_owned(), "1".to_owned()));
        }
        let job = Job {
            command: vec!["sh".to_owned(), "-c".to_owned(), script],
            folder: self.root.clone(),
            visible: Vec::new(),
            env,
        };
        let options = GuestOptions {
            memory_mib: 3072,
            cpus: 2,
            limit: if self.full { FULL_LIMIT } else { GUEST_LIMIT },
            cluster: Some(Cluster::Nodes(GUEST_NODES)),
            shares: target_folder(&self.root).into_iter().collect(),
            show_console: false,
        };
        let copy = Copy::default();
        let stdout = Box::new(Tee { to: io::stdout(), copy: copy.clone() });
        let status = guest::run(&options, &job, Output { stdout, stderr: Box::new(io::stderr()) })?;
        Ok((status, copy.text()))
    }

    /// With a block number off by one in the executor the tests on every link fail; only in the full
    /// form, since it builds the workspace a second time.
    fn mutation(&self) -> Result<()> {
        if !self.full {
            say!("only with --full");
            return Ok(());
        }
        let copy = mutation::mutated_copy(&self.root)?;
        mutation::host_tests_fail(&copy)?;
        let mut build = cargo(&copy, &["test", "--no-run", "--workspace", "--test", "guest"]);
        build.env("CARGO_TARGET_DIR", mutation::target(&copy));
        let program = executable(&mut build, "test", "guest")?;
        let test = "four_processes_on_one_device";
        let script = format!("'{}' --include-ignored --exact {test}", program.display());
        let (_, text) = self.in_guest(script)?;
        if text.contains("test result: FAILED. 0 passed; 1 failed") {
            return Ok(());
        }
        Err(Error::Step(format!("{test} must fail in the guest with the executor changed")))
    }
}

fn minimum() -> u64 {
    GUEST_MINIMUM.trim().parse().unwrap_or(u64::MAX)
}

fn check_guest_tests(status: u8, ran: u64, minimum: u64) -> Result<()> {
    if status != 0 {
        return Err(Error::Step(format!("the tests in the guest ended with status {status}")));
    }
    if ran < minimum {
        return Err(Error::Step(format!(
            "only {ran} tests ran in the guest, at least {minimum} must \
             (rxe-setup/guest-minimum.txt)"
        )));
    }
    Ok(())
}

/// The sum of the numbers in lines such as `test result: ok. 12 passed; 0 failed; ...`.
fn passed_tests(output: &str) -> u64 {
    output
        .lines()
        .filter_map(|line| line.split_once("test result: ok. ")?.1.split_once(" passed"))
        .filter_map(|(number, _)| number.parse::<u64>().ok())
        .sum()
}

/// The last part of what was written, for as long as somebody wants to read it.
#[derive(Debug, Clone, Default)]
struct Copy(Arc<Mutex<Vec<u8>>>);

impl Copy {
    /// The summary of a test run stands at its end.
    const BYTES: usize = 1 << 20;

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        let surplus = kept.len().saturating_sub(Self::BYTES);
        kept.drain(..surplus);
    }
}

/// Writes on and keeps a copy.
struct Tee<W> {
    to: W,
    copy: Copy,
}

impl<W: Write> Write for Tee<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.copy.push(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 2 tests\ntest a ... ok\ntest b ... ok\n\n\
        test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
        test result: FAILED. 5 passed; 1 failed\n\
        test result: ok. 3 passed; 0 failed\n";

    #[test]
    fn only_tests_of_runs_that_passed_count() {
        assert_eq!(passed_tests(OUTPUT), 15);
        assert_eq!(passed_tests("test result: ok. many passed"), 0);
        assert_eq!(passed_tests(""), 0);
    }

    #[test]
    fn too_few_tests_or_a_failed_run_fail_the_step() {
        assert!(check_guest_tests(0, 3, 3).is_ok());
        assert!(check_guest_tests(0, 2, 3).unwrap_err().to_string().contains("only 2"));
        assert!(check_guest_tests(101, 3, 3).unwrap_err().to_string().contains("101"));
    }

    #[test]
    fn the_committed_minimum_is_a_number() {
        assert!((1..1_000_000).contains(&minimum()));
    }

    #[test]
    fn the_copy_is_bounded_and_keeps_the_end() {
        let copy = Copy::default();
        let mut tee = Tee { to: io::sink(), copy: copy.clone() };
        tee.write_all(&vec![b'x'; 2 * Copy::BYTES]).unwrap();
        tee.write_all(OUTPUT.as_bytes()).unwrap();
        assert_eq!(copy.text().len(), Copy::BYTES);
        assert_eq!(passed_tests(&copy.text()), 15);
    }
}
