//! What this process tells the others of itself.

use std::os::unix::fs::MetadataExt as _;

use crate::link::PeerInfo;
use crate::wire::Rank;

/// Describes this process as `rank`, listening at `addresses`.
pub(crate) fn describe(rank: Rank, addresses: Vec<String>) -> PeerInfo {
    PeerInfo {
        rank,
        addresses,
        host: host(),
        pid: std::process::id(),
        // Hints: where /proc is not there they are empty, and equal hints prove nothing anyway.
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .unwrap_or_default(),
        pid_namespace: std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino()),
        uid: nix::unistd::getuid().as_raw(),
    }
}

fn host() -> String {
    nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|_| "unknown host".into())
}
