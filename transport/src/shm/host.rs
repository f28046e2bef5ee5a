//! What identifies this host, user and process: hints whether shared memory may work.

use nix::unistd::Uid;
use serde::{Deserialize, Serialize};

use super::error::SetupError;
use crate::link::PeerInfo;

/// Where a process runs. Equal hosts are a hint only; the proof is that attaching works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// Boot id of the kernel.
    pub boot_id: String,
    /// Inode of the pid namespace.
    pub pid_namespace: u64,
    /// Process id in it.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
}

impl HostIdentity {
    /// This process's.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn read() -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self {
            boot_id: boot_id.trim().to_owned(),
            pid_namespace: std::fs::metadata("/proc/self/ns/pid")?.ino(),
            pid: std::process::id(),
            uid: Uid::effective().as_raw(),
        })
    }

    /// Whether `peer` may be reachable by shared memory.
    pub(super) fn compare(&self, peer: &PeerInfo) -> Result<(), SetupError> {
        let PeerInfo { pid, pid_namespace, uid, .. } = *peer;
        let boot_id = peer.boot_id.trim().to_owned();
        self.compare_identity(&Self { boot_id, pid_namespace, pid, uid })
    }

    /// Whether a process that says this of itself may be reachable by shared memory.
    pub(super) fn compare_identity(&self, peer: &Self) -> Result<(), SetupError> {
        if peer.boot_id != self.boot_id {
            let (ours, theirs) = (self.boot_id.clone(), peer.boot_id.clone());
            return Err(SetupError::OtherHost { ours, theirs });
        }
        if peer.pid_namespace != self.pid_namespace {
            let (ours, theirs) = (self.pid_namespace, peer.pid_namespace);
            return Err(SetupError::OtherNamespace { ours, theirs });
        }
        if peer.uid != self.uid {
            return Err(SetupError::OtherUser { ours: self.uid, theirs: peer.uid });
        }
        Ok(())
    }
}

/// Lets processes of the same user read this one's memory where Yama would only let its parents.
///
/// With scope 1 a process names who may attach (prctl(2), PR_SET_PTRACER); it can name only one,
/// so this names any: what holds without Yama. With other scopes nothing is changed.
pub(super) fn permit_pull() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    if scope.as_deref().and_then(parse_scope) != Some(1) {
        return;
    }
    // SAFETY: PR_SET_PTRACER takes one integer and touches no memory of this process (prctl(2)).
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    tracing::debug!(result, "yama scope 1: PR_SET_PTRACER any");
}

fn parse_scope(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(of: &HostIdentity) -> PeerInfo {
        PeerInfo {
            rank: 1,
            addresses: Vec::new(),
            host: "h".into(),
            pid: of.pid,
            boot_id: of.boot_id.clone(),
            pid_namespace: of.pid_namespace,
            uid: of.uid,
        }
    }

    #[test]
    fn each_hint_alone_decides() {
        let own = HostIdentity::read().unwrap();
        assert!(own.compare(&peer(&own)).is_ok());
        let boot = PeerInfo { boot_id: "another".into(), ..peer(&own) };
        assert!(matches!(own.compare(&boot), Err(SetupError::OtherHost { .. })));
        let namespace = PeerInfo { pid_namespace: own.pid_namespace ^ 1, ..peer(&own) };
        assert!(matches!(own.compare(&namespace), Err(SetupError::OtherNamespace { .. })));
        let user = PeerInfo { uid: own.uid ^ 1, ..peer(&own) };
        assert!(matches!(own.compare(&user), Err(SetupError::OtherUser { .. })));
    }

    #[test]
    fn scopes_parse_as_the_kernel_prints_them() {
        assert_eq!(parse_scope("1\n"), Some(1));
        assert_eq!(parse_scope("0\n"), Some(0));
        assert_eq!(parse_scope(""), None);
    }
}
