//! What has to be installed: probed by what each package is wanted for, not by its name, so that a
//! compiler from elsewhere counts as well.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;

use crate::args::Purpose;
use crate::error::{Error, Result};
use crate::probe::{file_names, is_static_program, library, library_folders, package, program};
use crate::run::{inherited, line, output};

/// Versions of libclang in the order in which they are preferred where none is there: bindgen works
/// with all of these, and the first is what it was tried with.
const LIBCLANG_VERSIONS: [u32; 8] = [14, 19, 18, 17, 16, 15, 20, 21];

/// A package and how to see that it is there.
struct Need {
    package: &'static str,
    purpose: Purpose,
    present: fn(&Path) -> bool,
}

const fn need(package: &'static str, purpose: Purpose, present: fn(&Path) -> bool) -> Need {
    Need { package, purpose, present }
}

const NEEDS: [Need; 16] = [
    need("build-essential", Purpose::Build, |root| {
        ["cc", "c++", "make"].iter().all(|name| program(root, name).is_some())
    }),
    need("cmake", Purpose::Build, |root| program(root, "cmake").is_some()),
    need("pkg-config", Purpose::Build, |root| program(root, "pkg-config").is_some()),
    need("libibverbs-dev", Purpose::Build, |root| {
        root.join("usr/include/infiniband/verbs.h").is_file()
    }),
    need("qemu-system-x86", Purpose::Guest, |root| program(root, "qemu-system-x86_64").is_some()),
    need("busybox-static", Purpose::Guest, |root| {
        program(root, "busybox").is_some_and(|path| is_static_program(&path))
    }),
    need("cpio", Purpose::Guest, |root| program(root, "cpio").is_some()),
    need("kmod", Purpose::Guest, |root| {
        program(root, "depmod").is_some() && program(root, "modprobe").is_some()
    }),
    need("xz-utils", Purpose::Guest, |root| program(root, "xz").is_some()),
    // Ubuntu packs its kernels and modules with it.
    need("zstd", Purpose::Guest, |root| !is_ubuntu(root) || program(root, "zstd").is_some()),
    need("iproute2", Purpose::Guest, |root| {
        program(root, "ip").is_some() && program(root, "rdma").is_some()
    }),
    need("rdma-core", Purpose::Guest, |root| package(root, "rdma-core")),
    need("ibverbs-providers", Purpose::Guest, |root| {
        library_folders(root).iter().any(|folder| {
            let names = file_names(&folder.join("libibverbs"));
            names.iter().any(|name| name.starts_with("librxe-"))
        })
    }),
    need("ibverbs-utils", Purpose::Guest, |root| program(root, "ibv_devices").is_some()),
    need("perftest", Purpose::Guest, |root| program(root, "ib_write_bw").is_some()),
    // Printed schedules are checked by a program that shares nothing with Verbcast.
    need("python3", Purpose::Test, |root| program(root, "python3").is_some()),
];

fn is_ubuntu(root: &Path) -> bool {
    let release = std::fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
    release.lines().any(|line| line == "ID=ubuntu" || line.contains("ubuntu debian"))
}

/// What is missing for a purpose.
#[derive(Debug, Default, PartialEq, Eq)]
struct Missing {
    packages: Vec<&'static str>,
    /// The libclang that lacks its headers, or any if there is none.
    libclang: Option<Libclang>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Libclang {
    /// No libclang that bindgen can use.
    Any,
    /// This version's library is there, its headers are not.
    HeadersOf(u32),
}

fn missing(root: &Path, wanted: Purpose) -> Missing {
    let asked = |purpose| wanted == Purpose::All || wanted == purpose;
    let packages = NEEDS
        .iter()
        .filter(|need| asked(need.purpose) && !(need.present)(root))
        .map(|need| need.package)
        .collect();
    let libclang = if asked(Purpose::Build) { missing_libclang(root) } else { None };
    Missing { packages, libclang }
}

fn missing_libclang(root: &Path) -> Option<Libclang> {
    let has_library = |version: &u32| {
        let own = root.join(format!("usr/lib/llvm-{version}/lib"));
        // libclang-cpp is another library, which comes with other packages.
        let is_c = |name: &String| {
            name.starts_with("libclang.so")
                || name.starts_with("libclang-") && !name.starts_with("libclang-cpp")
        };
        file_names(&own).iter().any(is_c)
            || library(root, &format!("libclang-{version}.so")).is_some()
    };
    let has_headers = |version: &u32| {
        let folders = [format!("usr/lib/llvm-{version}/lib/clang"), "usr/lib/clang".to_owned()];
        folders.iter().any(|folder| {
            let folder = root.join(folder);
            let of_version = |name: &String| name.split('.').next() == Some(&version.to_string());
            file_names(&folder)
                .iter()
                .filter(|name| of_version(name))
                .any(|name| folder.join(name).join("include/stddef.h").is_file())
        })
    };
    let present: Vec<u32> = LIBCLANG_VERSIONS.into_iter().filter(has_library).collect();
    match present.first() {
        None => Some(Libclang::Any),
        Some(_) if present.iter().any(has_headers) => None,
        Some(version) => Some(Libclang::HeadersOf(*version)),
    }
}

impl Missing {
    fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.libclang.is_none()
    }

    /// The names to install, libclang in the version that `offered` has.
    fn names(&self, offered: &BTreeSet<String>) -> Vec<String> {
        let mut names: Vec<String> = self.packages.iter().map(|name| (*name).to_owned()).collect();
        let version = match self.libclang {
            None => return names,
            Some(Libclang::HeadersOf(version)) => version,
            Some(Libclang::Any) => LIBCLANG_VERSIONS
                .into_iter()
                .find(|version| offered.contains(&format!("libclang1-{version}")))
                .unwrap_or(LIBCLANG_VERSIONS[0]),
        };
        if self.libclang == Some(Libclang::Any) {
            names.push(format!("libclang1-{version}"));
        }
        names.push(format!("libclang-common-{version}-dev"));
        names
    }
}

/// Installs what is missing, or says what would be.
///
/// # Errors
/// [`Error::NeedsRoot`] with the line to run, [`Error::Program`] if apt-get fails.
pub(crate) fn install(wanted: Purpose, dry_run: bool) -> Result<()> {
    let missing = missing(Path::new("/"), wanted);
    if missing.is_empty() {
        say!("nothing is missing");
        return Ok(());
    }
    let (mut names, update) = offered_names(&missing);
    let line = install_line(&names, update);
    if dry_run {
        say!("{line}");
        return Ok(());
    }
    if !geteuid().is_root() {
        return Err(Error::NeedsRoot { line: format!("sudo sh -c '{line}'") });
    }
    say!("installing {}", names.join(" "));
    if update {
        inherited(&mut apt_get(&["-q", "update"]))?;
        names = offered_names(&missing).0;
    }
    if let Err(error) = apt_install(&names) {
        if update {
            return Err(error);
        }
        // The lists may be older than the archive.
        inherited(&mut apt_get(&["-q", "update"]))?;
        apt_install(&names)?;
    }
    let left = self::missing(Path::new("/"), wanted);
    if left.is_empty() {
        return Ok(());
    }
    Err(Error::Missing {
        what: left.names(&BTreeSet::new()).join(" "),
        remedy: "apt-get installed it, but what it is wanted for is still not there".to_owned(),
    })
}

/// The names to install, and whether apt's lists must be updated to have them all.
fn offered_names(missing: &Missing) -> (Vec<String>, bool) {
    let mut asked: Vec<String> = missing.packages.iter().map(|name| (*name).to_owned()).collect();
    for version in LIBCLANG_VERSIONS {
        asked.extend([format!("libclang1-{version}"), format!("libclang-common-{version}-dev")]);
    }
    let policy = output("apt-cache", &[vec!["policy".to_owned()], asked].concat());
    let offered = candidates(&String::from_utf8_lossy(&policy.unwrap_or_default()));
    let names = missing.names(&offered);
    let update = names.iter().any(|name| !offered.contains(name));
    (names, update)
}

/// The packages that have a candidate in the output of `apt-cache policy`.
fn candidates(policy: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut package = "";
    for line in policy.lines() {
        if !line.starts_with(' ') {
            package = line.trim_end_matches(':');
        } else if line.trim().strip_prefix("Candidate: ").is_some_and(|name| name != "(none)") {
            found.insert(package.to_owned());
        }
    }
    found
}

const INSTALL: [&str; 4] = ["-q", "install", "-y", "--no-install-recommends"];

fn install_line(names: &[String], update: bool) -> String {
    let mut command = Command::new("apt-get");
    command.args(INSTALL).args(names);
    let update = if update { "apt-get -q update && " } else { "" };
    format!("{update}{}", line(&command))
}

fn apt_install(names: &[String]) -> Result<()> {
    inherited(apt_get(&INSTALL).args(names))
}

fn apt_get(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests;
