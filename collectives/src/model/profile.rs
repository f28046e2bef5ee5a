//! What a fabric costs, as measured or assumed, and its file.

mod file;

pub use file::{PROFILE_VERSION, ProfileError};

use verbcast_transport::wire::MESSAGE_PAYLOAD_MAX;

use super::{PS_PER_NS, Path};

/// What the links between the ranks do; the same on every rank of a communicator.
///
/// A fabric has a path between hosts, or one within a host, or both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FabricProfile {
    /// The path from one host to another.
    pub network: Option<PathProfile>,
    /// The path between ranks of one host.
    pub local: Option<PathProfile>,
    /// The hosts, all alike; `None` if nothing is known of them.
    pub host: Option<HostProfile>,
}

/// What one path costs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathProfile {
    /// L: from when the last byte has left a rank to its notification at the receiver, in ns.
    pub latency_ns: u64,
    /// g: the time between the starts of two blocks at least, in ns.
    pub gap_ns: u64,
    /// o: what a block costs beside its bytes where one processor starts and moves it, in ns; 0 for
    /// an adapter that fetches the bytes itself.
    pub overhead_ns: u64,
    /// beta: bytes per second of one rank's port.
    pub bytes_per_second: u64,
    /// Whether receivers fetch the bytes of granted blocks, so that a sender takes g for a block and
    /// serves many receivers at once: through shared memory.
    pub pulled: bool,
    /// The largest message that needs no grant, in bytes.
    pub eager_limit_bytes: u64,
    /// What it takes to make a link that is not there yet, in ns.
    pub link_setup_ns: u64,
    /// The links that one rank can have.
    pub links_max: u32,
    /// How sure the first four are, if they were measured.
    pub bounds: Option<Bounds>,
}

/// Between which two values the true one lies, with 95 % confidence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Of L, in ns.
    pub latency_ns: [u64; 2],
    /// Of g or o, whichever is not 0, in ns.
    pub gap_ns: [u64; 2],
    /// Of beta, in bytes per second.
    pub bytes_per_second: [u64; 2],
}

/// What one host can do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostProfile {
    /// The processors that ranks may run on.
    pub cores: u32,
    /// The bytes per second that one rank copies.
    pub copy_bytes_per_second: u64,
    /// The bytes per second that all ranks of the host copy together.
    pub copy_bytes_per_second_all: u64,
    /// What it takes to wake a rank that sleeps, in ns.
    pub wake_ns: u64,
}

impl FabricProfile {
    /// Assumed of RDMA adapters until they are measured: the order of a 100 Gb/s adapter, with the
    /// latency of a write that is not inline (`ib_write_lat` 1.3 us) and about 5 million work
    /// requests per second from one processor. Gap and overhead both have the cost of a request, so
    /// that the time is an upper bound wherever a processor does the adapter's work (Soft-RoCE).
    pub const VERBS: Self = Self::of_network(PathProfile {
        overhead_ns: 200,
        ..PathProfile::adapter(1_500, 200, 12_500_000_000)
    });

    /// Assumed of shared memory until it is measured: a notification between two processors 1 us,
    /// 300 ns to write a descriptor or a message and to see that it was taken, a system call per block
    /// 1 us, and one processor copying 5 GB/s.
    pub const SHM: Self =
        Self::of_host(PathProfile { pulled: true, gap_ns: 300, ..Self::SHM_COPIED.local_path() });

    /// The same where ranks may not read each other's memory: the sender copies a block into a segment,
    /// and the receiver out of it.
    pub const SHM_COPIED: Self = Self::of_host(PathProfile {
        latency_ns: 1_000,
        gap_ns: 1_000,
        overhead_ns: 1_000,
        bytes_per_second: 5_000_000_000,
        pulled: false,
        eager_limit_bytes: MESSAGE_PAYLOAD_MAX as u64,
        link_setup_ns: 100_000,
        links_max: 4_096,
        bounds: None,
    });

    /// 100 Gb/s adapters: L 1.5 us and g 0.2 us, as above.
    pub const VERBS_100G: Self = Self::of_network(PathProfile::adapter(1_500, 200, 12_500_000_000));

    /// 400 Gb/s adapters with the same L and g.
    pub const VERBS_400G: Self = Self::of_network(PathProfile::adapter(1_500, 200, 50_000_000_000));

    /// RoCE over a 25 Gb/s Ethernet with a slow switch: L 5 us, g 1 us.
    pub const ROCE_25G: Self = Self::of_network(PathProfile::adapter(5_000, 1_000, 3_125_000_000));

    /// The names of the profiles that need no file.
    pub const NAMES: [&str; 6] =
        ["verbs", "shm", "shm-copied", "verbs-100g", "verbs-400g", "roce-25g"];

    /// The profile of one of the [`FabricProfile::NAMES`].
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "verbs" => Some(Self::VERBS),
            "shm" => Some(Self::SHM),
            "shm-copied" => Some(Self::SHM_COPIED),
            "verbs-100g" => Some(Self::VERBS_100G),
            "verbs-400g" => Some(Self::VERBS_400G),
            "roce-25g" => Some(Self::ROCE_25G),
            _ => None,
        }
    }

    const fn of_network(path: PathProfile) -> Self {
        Self { network: Some(path), local: None, host: None }
    }

    const fn of_host(path: PathProfile) -> Self {
        Self { network: None, local: Some(path), host: None }
    }

    /// The path within a host, which this profile is known to have.
    const fn local_path(self) -> PathProfile {
        match self.local {
            Some(path) => path,
            None => panic!("the profile has no path within a host"),
        }
    }

    /// The same for ranks that are all on one host: only the path within it counts, if there is one.
    #[must_use]
    pub fn on_one_host(self) -> Self {
        match self.local {
            Some(_) => Self { network: None, ..self },
            None => self,
        }
    }

    /// The path that decides: between hosts if there is one. That of [`FabricProfile::VERBS`] if the
    /// profile has none.
    pub fn path(&self) -> PathProfile {
        let assumed = PathProfile::adapter(1_500, 200, 12_500_000_000);
        self.network.or(self.local).unwrap_or(assumed)
    }

    /// What one rank copies by itself within memory, in bytes per second.
    pub fn copy_bytes_per_second(&self) -> u64 {
        self.host.map_or(self.path().bytes_per_second, |host| host.copy_bytes_per_second)
    }

    /// The deciding path as `ranks` ranks find it: on one host they share its memory, and where they
    /// outnumber its processors each hop wakes a rank.
    pub fn path_of(&self, ranks: u32) -> PathProfile {
        let path = self.path();
        let (None, Some(host)) = (self.network, self.host) else { return path };
        let receivers = u64::from(ranks.saturating_sub(1).max(1));
        let share = (host.copy_bytes_per_second_all / receivers).min(host.copy_bytes_per_second);
        let wake_ns = if ranks > host.cores { host.wake_ns } else { 0 };
        PathProfile {
            latency_ns: path.latency_ns.saturating_add(wake_ns),
            bytes_per_second: path.bytes_per_second.min(share).max(1),
            ..path
        }
    }
}

impl PathProfile {
    /// An adapter: no overhead; a link takes 200 us to make (a queue pair's way to RTS on both sides),
    /// and there may be 4,096 of them.
    pub const fn adapter(latency_ns: u64, gap_ns: u64, bytes_per_second: u64) -> Self {
        Self {
            latency_ns,
            gap_ns,
            overhead_ns: 0,
            bytes_per_second,
            pulled: false,
            eager_limit_bytes: MESSAGE_PAYLOAD_MAX as u64,
            link_setup_ns: 200_000,
            links_max: 4_096,
            bounds: None,
        }
    }

    /// The costs of a block, for the [loggp form](Path::time_ps) and for the simulator.
    pub fn costs(&self) -> Path {
        let path = Path::from_ns(self.latency_ns, self.gap_ns, self.bytes_per_second);
        let overhead_ps = self.overhead_ns.saturating_mul(PS_PER_NS);
        Path { overhead_ps, pulled: self.pulled, ..path }
    }
}
