//! Soft-RoCE in this host's own kernel: `up`, `down`, `status`.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::plan::{self, Cluster, MARK, RP_FILTER, RdmaDevice, SWITCH, State, Step};
use crate::probe::{file_names, first_line};
use crate::run::{inherited, line, output};

/// Where `up` notes the parameter that it changed; gone after a restart, as the change is.
const RP_FILTER_NOTE: &str = "/run/verbcast-rp_filter";

/// Sets `cluster` up, or says how.
///
/// # Errors
/// What [`plan::up`] says, [`Error::NeedsRoot`], [`Error::Program`] for a step that failed: what was
/// made before it is removed by [`down`].
pub(crate) fn up(nodes: Option<u32>, dry_run: bool) -> Result<()> {
    let cluster = Cluster::from_option(nodes)?;
    let state = state(Path::new("/"));
    let steps = plan::up(cluster, &state)?;
    let changes_filter =
        steps.iter().any(|step| matches!(step, Step::Sysctl { name, .. } if name == RP_FILTER));
    if !execute(&steps, dry_run, || match state.rp_filter {
        Some(before) if changes_filter && state.rp_filter_before.is_none() => {
            fs::write(RP_FILTER_NOTE, before).map_err(Error::file("write", RP_FILTER_NOTE))
        }
        _ => Ok(()),
    })? {
        eprintln!("rxe-setup: everything is up already");
    }
    Ok(())
}

/// Removes what [`up`] made, or says how.
pub(crate) fn down(dry_run: bool) -> Result<()> {
    let steps = plan::down(&state(Path::new("/")));
    if !execute(&steps, dry_run, || Ok(()))? {
        eprintln!("rxe-setup: nothing is up");
        return Ok(());
    }
    if dry_run || !Path::new(RP_FILTER_NOTE).exists() {
        return Ok(());
    }
    fs::remove_file(RP_FILTER_NOTE).map_err(Error::file("remove", RP_FILTER_NOTE))
}

/// Does the steps; `false` if there are none.
fn execute(steps: &[Step], dry_run: bool, before: impl FnOnce() -> Result<()>) -> Result<bool> {
    if dry_run {
        steps.iter().for_each(|step| say!("{}", step.line()));
        return Ok(!steps.is_empty());
    }
    if steps.is_empty() {
        return Ok(false);
    }
    if !geteuid().is_root() {
        let mut this = Command::new("sudo");
        this.args(env::args_os());
        return Err(Error::NeedsRoot { line: line(&this) });
    }
    before()?;
    for step in steps {
        say!("{}", step.line());
        perform(step)?;
    }
    Ok(true)
}

fn perform(step: &Step) -> Result<()> {
    match step {
        Step::LoadModule(name) => output("modprobe", &[name]).map(drop),
        Step::Sysctl { name, value } => {
            let path = plan::sysctl_path(name);
            fs::write(&path, value).map_err(Error::file("write", path))
        }
        Step::Ip { namespace, words } => {
            let mut command = Command::new("ip");
            command.args(namespace.iter().flat_map(|name| ["-n", name])).args(words);
            inherited(&mut command)
        }
        Step::Rdma { words } => inherited(Command::new("rdma").args(words)),
    }
}

/// Reads what a kernel has from its files under `root`.
pub(crate) fn state(root: &Path) -> State {
    let net = root.join("sys/class/net");
    let interfaces: BTreeSet<String> = file_names(&net).into_iter().collect();
    let marked = |name: &&String| first_line(&net.join(name).join("ifalias")) == MARK;
    let rp_filter = first_line(&root.join(plan::sysctl_path(RP_FILTER).trim_start_matches('/')));
    let note = first_line(&root.join(RP_FILTER_NOTE.trim_start_matches('/')));
    State {
        modules: loaded_modules(root),
        loadable: loadable_modules(root),
        marked: interfaces.iter().filter(marked).cloned().collect(),
        interfaces,
        rdma: rdma_devices(root),
        switch: root.join("run/netns").join(SWITCH).exists(),
        rp_filter: (!rp_filter.is_empty()).then_some(rp_filter),
        rp_filter_before: (!note.is_empty()).then_some(note),
    }
}

/// The kernel's modules that are loaded or built in.
fn loaded_modules(root: &Path) -> BTreeSet<String> {
    let loaded = fs::read_to_string(root.join("proc/modules")).unwrap_or_default();
    let mut names: BTreeSet<String> =
        loaded.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    names.extend(module_names(root, "modules.builtin"));
    names.extend(file_names(&root.join("sys/module")));
    names
}

/// The modules that modprobe could load.
fn loadable_modules(root: &Path) -> BTreeSet<String> {
    module_names(root, "modules.dep").into_iter().collect()
}

/// The module that each line of a list in the running kernel's module folder begins with.
fn module_names(root: &Path, list: &str) -> Vec<String> {
    let release = first_line(&root.join("proc/sys/kernel/osrelease"));
    let path = root.join("lib/modules").join(release).join(list);
    let text = fs::read_to_string(path).unwrap_or_default();
    let name = |line: &str| -> Option<String> {
        let file = line.split(':').next()?.rsplit('/').next()?;
        Some(file.split(".ko").next()?.replace('-', "_"))
    };
    text.lines().filter_map(name).collect()
}

/// All RDMA devices, with the interface that each sits on.
fn rdma_devices(root: &Path) -> BTreeSet<RdmaDevice> {
    let folder = root.join("sys/class/infiniband");
    let interface = |device: &Path| {
        [device.join("parent"), device.join("ports/1/gid_attrs/ndevs/0")]
            .iter()
            .map(|path| first_line(path))
            .find(|name| !name.is_empty())
    };
    file_names(&folder)
        .into_iter()
        .map(|name| RdmaDevice { interface: interface(&folder.join(&name)), name })
        .collect()
}

/// A device as `status` shows it.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct DeviceStatus {
    device: String,
    interface: Option<String>,
    port_state: String,
    made_by_up: bool,
}

fn device_states(root: &Path) -> Vec<DeviceStatus> {
    let state = state(root);
    let port = |name: &str| {
        let path = root.join("sys/class/infiniband").join(name).join("ports/1/state");
        // "4: ACTIVE"
        first_line(&path).rsplit(' ').next().unwrap_or_default().to_owned()
    };
    state
        .rdma
        .iter()
        .map(|device| DeviceStatus {
            port_state: port(&device.name),
            made_by_up: device.interface.as_ref().is_some_and(|name| state.marked.contains(name)),
            device: device.name.clone(),
            interface: device.interface.clone(),
        })
        .collect()
}

/// Shows the RDMA devices of this host.
pub(crate) fn status(json: bool) -> Result<()> {
    let devices = device_states(Path::new("/"));
    for device in &devices {
        if json {
            say!("{}", serde_json::to_string(device).map_err(json_error)?);
        } else {
            say!(
                "{:<12} {:<12} {:<8} {}",
                device.device,
                device.interface.as_deref().unwrap_or("-"),
                device.port_state,
                if device.made_by_up { "made by `rxe-setup up`" } else { "" }
            );
        }
    }
    if devices.is_empty() && !json {
        say!("no RDMA device");
    }
    Ok(())
}

/// Writing JSON can fail only where the output does.
pub(crate) fn json_error(error: serde_json::Error) -> Error {
    Error::System { what: "write JSON", source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::tests::FakeRoot;

    fn fake() -> FakeRoot {
        FakeRoot::new(&[
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("proc/sys/net/ipv4/conf/all/rp_filter", "2\n"),
            ("proc/modules", "veth 36864 0 - Live 0x0\nib_core 1 1 x, Live 0x0\n"),
            ("lib/modules/6.1.0/modules.builtin", "kernel/net/bridge/bridge.ko\n"),
            (
                "lib/modules/6.1.0/modules.dep",
                "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/x/ib_core.ko.xz\n\
                 kernel/drivers/char/hw_random/virtio-rng.ko:\n",
            ),
            ("sys/class/net/lo/ifalias", "\n"),
            ("sys/class/net/n0/ifalias", "verbcast\n"),
            ("sys/class/infiniband/rxe0/parent", "n0\n"),
            ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n"),
            ("run/netns/verbcast-switch", ""),
            ("run/verbcast-rp_filter", "1"),
        ])
    }

    #[test]
    fn the_state_is_read_from_the_kernels_files() {
        let root = fake();
        let device = |name: &str, interface: &str| RdmaDevice {
            name: name.to_owned(),
            interface: Some(interface.to_owned()),
        };
        assert_eq!(
            state(root.path()),
            State {
                modules: ["veth", "ib_core", "bridge"].map(str::to_owned).into(),
                loadable: ["rdma_rxe", "virtio_rng"].map(str::to_owned).into(),
                interfaces: ["lo", "n0"].map(str::to_owned).into(),
                marked: ["n0".to_owned()].into(),
                rdma: [device("rxe0", "n0"), device("mlx5_0", "eth0")].into(),
                switch: true,
                rp_filter: Some("2".to_owned()),
                rp_filter_before: Some("1".to_owned()),
            }
        );
    }

    #[test]
    fn an_empty_root_has_nothing() {
        assert_eq!(state(FakeRoot::new(&[]).path()), State::default());
    }

    #[test]
    fn the_status_tells_our_devices_from_others() {
        let states = device_states(fake().path());
        let short: Vec<_> = states
            .iter()
            .map(|device| (device.device.as_str(), device.port_state.as_str(), device.made_by_up))
            .collect();
        assert_eq!(short, [("mlx5_0", "DOWN", false), ("rxe0", "ACTIVE", true)]);
    }
}
