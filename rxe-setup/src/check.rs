//! The subcommand `check`: what this host can do.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::Serialize;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::guest::prove_kvm;
use crate::host::{json_error, state};
use crate::plan::State;
use crate::probe::{first_line, library, program};
use crate::run::output;

/// Whether this host's kernel can have Soft-RoCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Rxe {
    Loaded,
    Loadable,
    Absent,
}

/// The fabric that Verbcast runs best on here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Fabric {
    Verbs,
    Shm,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    rxe: Rxe,
    rdma_devices: BTreeSet<String>,
    libibverbs: Option<PathBuf>,
    /// Bytes; `None` is unlimited.
    memlock_limit_bytes: Option<u64>,
    qemu: Option<String>,
    /// `None` if it was never tried.
    kvm_works: Option<bool>,
    best_fabric: Fabric,
}

/// Prints what this host can do, as text or as one JSON object.
///
/// # Errors
/// [`Error::System`] if the limits cannot be read, and what trying KVM can say.
pub(crate) fn report(json: bool) -> Result<()> {
    let report = Report::new(Path::new("/"))?;
    if json {
        say!("{}", serde_json::to_string(&report).map_err(json_error)?);
    } else {
        say!("{}", report.to_string().trim_end());
    }
    Ok(())
}

impl Report {
    fn new(root: &Path) -> Result<Self> {
        let state = state(root);
        let libibverbs = library(root, "libibverbs.so.1");
        let (soft, _hard) = getrlimit(Resource::RLIMIT_MEMLOCK).map_err(|errno| Error::System {
            what: "read the memlock limit",
            source: errno.into(),
        })?;
        let qemu = program(root, "qemu-system-x86_64").and_then(|path| {
            let text = output(&path.to_string_lossy(), &["--version"]).ok()?;
            String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
        });
        let kvm_works = if qemu.is_some() { prove_kvm(&Cache::open()?)? } else { None };
        Ok(Self {
            kernel: first_line(&root.join("proc/sys/kernel/osrelease")),
            rxe: rxe(&state),
            best_fabric: best_fabric(&state, libibverbs.is_some()),
            rdma_devices: state.rdma.into_iter().map(|device| device.name).collect(),
            libibverbs,
            memlock_limit_bytes: (soft != RLIM_INFINITY).then_some(soft),
            qemu,
            kvm_works,
        })
    }
}

fn rxe(state: &State) -> Rxe {
    if state.modules.contains("rdma_rxe") {
        Rxe::Loaded
    } else if state.loadable.contains("rdma_rxe") {
        Rxe::Loadable
    } else {
        Rxe::Absent
    }
}

fn best_fabric(state: &State, libibverbs: bool) -> Fabric {
    if libibverbs && !state.rdma.is_empty() { Fabric::Verbs } else { Fabric::Shm }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |what: &str, answer: &str| writeln!(f, "{what:<16} {answer}");
        row("kernel", &self.kernel)?;
        row(
            "Soft-RoCE",
            match self.rxe {
                Rxe::Loaded => "in this kernel: `rxe-setup up` makes devices",
                Rxe::Loadable => "can be loaded into this kernel: `rxe-setup up` does it",
                Rxe::Absent => "not in this kernel: use a guest, `rxe-setup vm run`",
            },
        )?;
        let devices: Vec<_> = self.rdma_devices.iter().map(String::as_str).collect();
        let devices = if devices.is_empty() { "none".to_owned() } else { devices.join(" ") };
        row("RDMA devices", &devices)?;
        let absent = "not installed: `rxe-setup deps` installs it".to_owned();
        let library = self.libibverbs.as_ref().map(|path| path.display().to_string());
        row("libibverbs", &library.unwrap_or_else(|| absent.clone()))?;
        row(
            "memlock limit",
            &match self.memlock_limit_bytes {
                None => "unlimited".to_owned(),
                Some(bytes) => format!(
                    "{} MiB (root is not bound by it; `ulimit -l unlimited` lifts it)",
                    bytes >> 20
                ),
            },
        )?;
        row("qemu", self.qemu.as_deref().unwrap_or(&absent))?;
        row(
            "KVM",
            match self.kvm_works {
                Some(true) => "works: a guest came up under it",
                Some(false) => "does not work here: guests are emulated",
                None => "not tried yet: `rxe-setup vm prepare` fetches a guest to try it with",
            },
        )?;
        row(
            "best fabric",
            match (self.best_fabric, self.rxe) {
                (Fabric::Verbs, _) => "verbs",
                (Fabric::Shm, Rxe::Absent) => "shm (verbs only in a guest)",
                (Fabric::Shm, _) => "shm (verbs after `rxe-setup up`)",
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::RdmaDevice;

    #[test]
    fn verbs_are_best_only_with_a_device_and_the_library() {
        let mut state = State::default();
        assert_eq!(best_fabric(&state, true), Fabric::Shm);
        state.rdma.insert(RdmaDevice { name: "mlx5_0".to_owned(), interface: None });
        assert_eq!(best_fabric(&state, true), Fabric::Verbs);
        assert_eq!(best_fabric(&state, false), Fabric::Shm);
    }

    #[test]
    fn the_module_is_loaded_loadable_or_absent() {
        let mut state = State::default();
        assert_eq!(rxe(&state), Rxe::Absent);
        state.loadable.insert("rdma_rxe".to_owned());
        assert_eq!(rxe(&state), Rxe::Loadable);
        state.modules.insert("rdma_rxe".to_owned());
        assert_eq!(rxe(&state), Rxe::Loaded);
    }
}
