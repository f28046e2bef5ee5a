//! Whether KVM works here: proved by a guest that came up under it, and remembered.
//!
//! A host may offer /dev/kvm on which no guest gets anywhere (nested, or with registers it refuses
//! to set), so that its presence proves nothing.

use std::fmt;
use std::fs::{self, OpenOptions};

use crate::cache::Cache;

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// The processor itself.
    Kvm,
    /// qemu's translator (TCG).
    Emulation,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Emulation => "emulation",
        })
    }
}

/// What is known about KVM on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// There is no /dev/kvm, or no right to open it.
    Absent,
    /// A guest was tried under it and did not come up.
    Refuted,
    /// A guest came up under it.
    Proved,
    /// Nobody has tried since the host was started.
    Unknown,
}

impl Knowledge {
    /// Whether it is worth starting a guest under KVM.
    pub(crate) fn may_be_kvm(self) -> bool {
        matches!(self, Self::Proved | Self::Unknown)
    }
}

const FILE: &str = "accelerator";

/// What is known, from the device and from what was remembered since this boot.
pub(crate) fn recall(cache: &Cache) -> Knowledge {
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Knowledge::Absent;
    }
    let text = fs::read_to_string(cache.path(FILE)).unwrap_or_default();
    match text.split_once(' ') {
        Some((boot, "kvm\n")) if boot == boot_id() => Knowledge::Proved,
        Some((boot, "no-kvm\n")) if boot == boot_id() => Knowledge::Refuted,
        _ => Knowledge::Unknown,
    }
}

/// Remembers whether a guest came up under KVM. Failing to is no failure: it is tried again then.
pub(crate) fn remember(cache: &Cache, works: bool) {
    let text = format!("{} {}\n", boot_id(), if works { "kvm" } else { "no-kvm" });
    if let Err(error) = fs::write(cache.path(FILE), text) {
        eprintln!("rxe-setup: cannot remember whether KVM works: {error}");
    }
}

/// The answer holds until the host is started again: its kernel or its own host may be another then.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_remembered_until_the_next_boot() {
        let folder =
            std::env::temp_dir().join(format!("verbcast-accelerator-{}", std::process::id()));
        let cache = Cache::at(folder.clone()).unwrap();
        if recall(&cache) != Knowledge::Absent {
            assert_eq!(recall(&cache), Knowledge::Unknown);
            remember(&cache, false);
            assert_eq!(recall(&cache), Knowledge::Refuted);
            remember(&cache, true);
            assert_eq!(recall(&cache), Knowledge::Proved);
            fs::write(cache.path(FILE), "another-boot kvm\n").unwrap();
            assert_eq!(recall(&cache), Knowledge::Unknown);
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
