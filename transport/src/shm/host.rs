//! What identifies this host, user and process: hints whether shared memory may work.

use serde::{Deserialize, Serialize};

use super::error::SetupError;
use crate::link::PeerInfo;

/// Where a process runs. Equal hosts are a hint only; the proof is that attaching works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostIdentity {
    /// Boot id of the kernel.
    boot_id: String,
    /// Inode of the pid namespace.
    pid_namespace: u64,
    /// Process id in it.
    pub(super) pid: u32,
    /// User id.
    uid: u32,
}

impl From<&PeerInfo> for HostIdentity {
    fn from(info: &PeerInfo) -> Self {
        let PeerInfo { pid, pid_namespace, uid, .. } = *info;
        Self { boot_id: info.boot_id.clone(), pid_namespace, pid, uid }
    }
}

impl HostIdentity {
    /// Whether a process that says this of itself may be reachable by shared memory.
    pub(super) fn compare(&self, peer: &Self) -> Result<(), SetupError> {
        if peer.boot_id != self.boot_id || self.boot_id.is_empty() {
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

/// Whether Yama leaves pulling to the rules of users, and the system call is not forbidden (as some
/// containers have it).
pub(super) fn allows_pull() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let permitted = scope.as_deref().and_then(parse_scope).is_none_or(|scope| scope <= 1);
    permitted && super::pull::is_there()
}

fn parse_scope(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hint_alone_decides() {
        let own = HostIdentity::from(&crate::bootstrap::identity::describe(0, Vec::new()));
        assert!(own.compare(&own.clone()).is_ok());
        let boot = HostIdentity { boot_id: "another".into(), ..own.clone() };
        assert!(matches!(own.compare(&boot), Err(SetupError::OtherHost { .. })));
        let namespace = HostIdentity { pid_namespace: own.pid_namespace ^ 1, ..own.clone() };
        assert!(matches!(own.compare(&namespace), Err(SetupError::OtherNamespace { .. })));
        let user = HostIdentity { uid: own.uid ^ 1, ..own.clone() };
        assert!(matches!(own.compare(&user), Err(SetupError::OtherUser { .. })));
        // Where /proc cannot be read nothing is known, not even that both are on one host.
        let unknown = HostIdentity { boot_id: String::new(), ..own };
        assert!(matches!(unknown.compare(&unknown.clone()), Err(SetupError::OtherHost { .. })));
    }

    #[test]
    fn scopes_parse_as_the_kernel_prints_them() {
        assert_eq!(parse_scope("1\n"), Some(1));
        assert_eq!(parse_scope("0\n"), Some(0));
        assert_eq!(parse_scope(""), None);
    }
}
