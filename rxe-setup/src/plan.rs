//! What has to be done to a kernel to have Soft-RoCE on it: probed state in, list of steps out.
//!
//! Nothing here touches the machine, so that the same plan serves this host's kernel and a guest's,
//! and a dry run shows exactly what a run would do.
//!
//! Two shapes. *Loopback* is one device `rxe0` on a veth pair: all traffic loops back inside rxe.
//! *Nodes* is a little cluster in one kernel: node i is a veth pair `n{i}`/`s{i}`, all `s{i}` hang on
//! a bridge in a network namespace of their own, and `rxe{i}` sits on `n{i}` with the address
//! 10.9.0.{i + 1}. rxe routes by its own device, so that a packet from one node to another really
//! leaves its veth, crosses the bridge and enters the other; tc shapes and breaks it on the way.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::run::quoted;

/// The network namespace that holds the bridge and the far ends of the veth pairs.
pub(crate) const SWITCH: &str = "verbcast-switch";
/// The mark (`ip link ... alias`) by which `down` knows what `up` made.
pub(crate) const MARK: &str = "verbcast";
/// Nodes are numbered in the last byte of an IPv4 address, and a bridge has 1024 ports.
pub(crate) const MAX_NODES: u32 = 250;

/// Bytes in a packet of the veth pairs: room for an RDMA MTU of 4096, as fabrics that carry RoCE have
/// it. The default of 1500 makes it 1024, which halves what Soft-RoCE moves.
const MTU: u32 = 4200;

/// The kernel modules a cluster needs, first to last, where they are not built in.
pub(crate) const MODULES: [&str; 5] = ["crc32_generic", "veth", "bridge", "rdma_rxe", "rdma_ucm"];
/// Those of them that not every kernel has: newer ones have the checksum in another place, and only
/// the connection manager wants the last.
const OPTIONAL_MODULES: [&str; 2] = ["crc32_generic", "rdma_ucm"];

/// The reverse path filter of all interfaces, which would drop packets between nodes.
pub(crate) const RP_FILTER: &str = "net.ipv4.conf.all.rp_filter";

/// What to set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cluster {
    /// One device whose traffic loops back.
    Loopback,
    /// This many devices on a private bridge.
    Nodes(u32),
}

impl Cluster {
    /// The cluster that `--nodes` asks for.
    ///
    /// # Errors
    /// [`Error::Usage`] for no node at all or more than [`MAX_NODES`].
    pub(crate) fn from_option(nodes: Option<u32>) -> Result<Self> {
        match nodes {
            None => Ok(Self::Loopback),
            Some(nodes) if (1..=MAX_NODES).contains(&nodes) => Ok(Self::Nodes(nodes)),
            Some(nodes) => Err(Error::Usage(format!(
                "--nodes {nodes} is not possible: a cluster has 1 to {MAX_NODES} nodes"
            ))),
        }
    }

    fn node_count(self) -> u32 {
        match self {
            Self::Loopback => 1,
            Self::Nodes(nodes) => nodes,
        }
    }

    /// The namespace of the far ends `s{i}`: none for loopback, which stays in one.
    fn far_side(self) -> Option<&'static str> {
        match self {
            Self::Loopback => None,
            Self::Nodes(_) => Some(SWITCH),
        }
    }
}

/// One RDMA device and the network interface under it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RdmaDevice {
    /// The device, `rxe0`.
    pub(crate) name: String,
    /// The interface it sits on, `n0`; `None` for a hardware device that does not say.
    pub(crate) interface: Option<String>,
}

/// What a kernel has already, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Modules that are loaded or built in.
    pub(crate) modules: BTreeSet<String>,
    /// Modules that could be loaded.
    pub(crate) loadable: BTreeSet<String>,
    /// All network interfaces.
    pub(crate) interfaces: BTreeSet<String>,
    /// Those of them that carry [`MARK`].
    pub(crate) marked: BTreeSet<String>,
    /// All RDMA devices.
    pub(crate) rdma: BTreeSet<RdmaDevice>,
    /// Whether the namespace [`SWITCH`] exists.
    pub(crate) switch: bool,
    /// `net.ipv4.conf.all.rp_filter` as it is; `None` if it is not known.
    pub(crate) rp_filter: Option<String>,
    /// `net.ipv4.conf.all.rp_filter` before `up` changed it; `None` if it did not.
    pub(crate) rp_filter_before: Option<String>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Load a kernel module.
    LoadModule(String),
    /// Write a value to a file under /proc/sys.
    Sysctl {
        /// The name with dots, `net.ipv4.conf.n0.rp_filter`.
        name: String,
        /// The value.
        value: String,
    },
    /// Run `ip`, in a network namespace if one is named.
    Ip {
        /// The namespace.
        namespace: Option<&'static str>,
        /// The words after `ip`.
        words: Vec<String>,
    },
    /// Run `rdma`.
    Rdma {
        /// The words after it.
        words: Vec<String>,
    },
}

impl Step {
    fn ip(words: &str) -> Self {
        Self::ip_in(None, words)
    }

    fn ip_in(namespace: Option<&'static str>, words: &str) -> Self {
        Self::Ip { namespace, words: words.split(' ').map(str::to_owned).collect() }
    }

    fn rdma(words: &str) -> Self {
        Self::Rdma { words: words.split(' ').map(str::to_owned).collect() }
    }

    fn sysctl(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::Sysctl { name: name.into(), value: value.into() }
    }

    /// The step as a line for a shell.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::LoadModule(name) => format!("modprobe {name}"),
            Self::Sysctl { name, value } => {
                format!("echo {} > {}", quoted(value), sysctl_path(name))
            }
            Self::Ip { namespace: None, words } => format!("ip {}", words.join(" ")),
            Self::Ip { namespace: Some(name), words } => {
                format!("ip -n {name} {}", words.join(" "))
            }
            Self::Rdma { words } => format!("rdma {}", words.join(" ")),
        }
    }
}

/// The file of a kernel parameter.
pub(crate) fn sysctl_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// The steps that make `cluster` on a kernel in `state`; none for what is there already.
///
/// # Errors
/// [`Error::Conflict`] if a name that is needed is taken by something that `up` did not make,
/// [`Error::Usage`] if a loopback device is up and nodes are asked for, or the other way round,
/// [`Error::Missing`] if the kernel has not got a module.
pub(crate) fn up(cluster: Cluster, state: &State) -> Result<Vec<Step>> {
    let nodes = cluster.node_count();
    if !state.marked.is_empty() && state.switch != cluster.far_side().is_some() {
        return Err(Error::Usage(
            "a cluster of the other shape is up: run `rxe-setup down` first".to_owned(),
        ));
    }
    (0..nodes).try_for_each(|node| no_conflict(node, state))?;
    let fresh: Vec<u32> =
        (0..nodes).filter(|node| !state.interfaces.contains(&near(*node))).collect();

    let mut steps = modules_to_load(cluster, state)?;
    // The larger of `all` and the interface's own value counts, so `all` must be 0 as well.
    if state.rp_filter.as_deref() != Some("0") {
        steps.push(Step::sysctl(RP_FILTER, "0"));
    }
    let make_switch = cluster.far_side().is_some() && !state.switch;
    if make_switch {
        steps.push(Step::ip(&format!("netns add {SWITCH}")));
    }
    for node in &fresh {
        let (near, far) = (near(*node), far(*node));
        let side = cluster.far_side().map(|name| format!(" netns {name}")).unwrap_or_default();
        let pair = format!("{near} mtu {MTU} type veth peer name {far} mtu {MTU}{side}");
        steps.push(Step::ip(&format!("link add {pair}")));
        steps.push(Step::ip(&format!("link set {near} alias {MARK}")));
    }
    if make_switch {
        steps.push(Step::ip_in(Some(SWITCH), "link add br0 type bridge"));
        steps.push(Step::ip_in(Some(SWITCH), "link set br0 up"));
    }
    for node in &fresh {
        steps.push(match cluster.far_side() {
            None => Step::ip(&format!("link set {} up", far(*node))),
            side => Step::ip_in(side, &format!("link set {} master br0 up", far(*node))),
        });
    }
    for node in &fresh {
        let name = near(*node);
        for (key, value) in
            [("accept_local", "1"), ("rp_filter", "0"), ("arp_ignore", "1"), ("arp_announce", "2")]
        {
            steps.push(Step::sysctl(format!("net.ipv4.conf.{name}.{key}"), value));
        }
    }
    for node in &fresh {
        steps.push(Step::ip(&format!("addr add {}/24 dev {}", address(*node), near(*node))));
        steps.push(Step::ip(&format!("link set {} up", near(*node))));
    }
    for node in 0..nodes {
        let device = device(node);
        if !state.rdma.iter().any(|known| known.name == device) {
            steps.push(Step::rdma(&format!("link add {device} type rxe netdev {}", near(node))));
        }
    }
    Ok(steps)
}

fn modules_to_load(cluster: Cluster, state: &State) -> Result<Vec<Step>> {
    let wanted = |module: &&str| *module != "bridge" || cluster.far_side().is_some();
    let (loadable, absent): (Vec<&str>, Vec<&str>) = MODULES
        .into_iter()
        .filter(wanted)
        .filter(|module| !state.modules.contains(*module))
        .partition(|module| state.loadable.contains(*module));
    let needed: Vec<&str> =
        absent.into_iter().filter(|module| !OPTIONAL_MODULES.contains(module)).collect();
    if needed.is_empty() {
        return Ok(loadable.into_iter().map(|name| Step::LoadModule(name.to_owned())).collect());
    }
    Err(Error::Missing {
        what: format!("in this host's kernel: {}", needed.join(", ")),
        remedy: "cloud and container kernels often lack it; use a guest, `rxe-setup vm run`, or a \
                 kernel with CONFIG_RDMA_RXE"
            .to_owned(),
    })
}

fn no_conflict(node: u32, state: &State) -> Result<()> {
    let interface = near(node);
    if state.interfaces.contains(&interface) && !state.marked.contains(&interface) {
        return Err(Error::Conflict { what: format!("the network interface {interface}") });
    }
    let name = device(node);
    match state.rdma.iter().find(|known| known.name == name) {
        Some(known) if known.interface.as_ref() != Some(&interface) => {
            Err(Error::Conflict { what: format!("the RDMA device {name}") })
        }
        _ => Ok(()),
    }
}

/// The steps that remove what [`up`] made, and nothing else.
pub(crate) fn down(state: &State) -> Vec<Step> {
    let mut steps = Vec::new();
    for device in &state.rdma {
        if device.interface.as_ref().is_some_and(|name| state.marked.contains(name)) {
            steps.push(Step::rdma(&format!("link delete {}", device.name)));
        }
    }
    // Deleting one end of a veth pair deletes the other.
    for interface in &state.marked {
        steps.push(Step::ip(&format!("link delete {interface}")));
    }
    if state.switch {
        steps.push(Step::ip(&format!("netns delete {SWITCH}")));
    }
    if let Some(value) = &state.rp_filter_before {
        steps.push(Step::sysctl(RP_FILTER, value.as_str()));
    }
    steps
}

/// One shell script of all steps, with one process for each run of similar steps: in an emulated
/// guest it is the starting of processes that takes the time.
pub(crate) fn script(steps: &[Step]) -> String {
    let mut script = String::from("set -e\n");
    let mut batch: Option<(String, Vec<String>)> = None;
    for step in steps {
        let (program, line) = match step {
            Step::Ip { namespace, words } if words.first().is_some_and(|word| word != "netns") => {
                let namespace = namespace.map(|name| format!("-n {name} ")).unwrap_or_default();
                (format!("ip {namespace}-batch -"), words.join(" "))
            }
            Step::Rdma { words } => ("rdma -b -".to_owned(), words.join(" ")),
            other => (String::new(), other.line()),
        };
        match &mut batch {
            Some((open, lines)) if *open == program => lines.push(line),
            _ => {
                close(&mut script, batch.take());
                batch = Some((program, vec![line]));
            }
        }
    }
    close(&mut script, batch);
    script
}

fn close(script: &mut String, batch: Option<(String, Vec<String>)>) {
    let Some((program, lines)) = batch else { return };
    let lines = lines.join("\n");
    if program.is_empty() {
        script.push_str(&format!("{lines}\n"));
    } else {
        script.push_str(&format!("{program} <<'END'\n{lines}\nEND\n"));
    }
}

/// The RDMA device of a node.
pub(crate) fn device(node: u32) -> String {
    format!("rxe{node}")
}

/// The IPv4 address of a node.
pub(crate) fn address(node: u32) -> String {
    format!("10.9.0.{}", node + 1)
}

fn near(node: u32) -> String {
    format!("n{node}")
}

fn far(node: u32) -> String {
    format!("s{node}")
}

#[cfg(test)]
mod tests;
