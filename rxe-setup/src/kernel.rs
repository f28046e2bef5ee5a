//! The guest's kernel and initramfs: fetched from the distribution, unpacked, never installed.
//!
//! The package is only unpacked into the cache. What is kept of it is the kernel, uncompressed (an
//! emulated machine needs seconds to decompress it), and the few modules that a guest loads, in one
//! initramfs with a static busybox.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache::{Cache, remove_folder};
use crate::error::{Error, Result};
use crate::run::{inherited, output, output_of};

/// Loaded before anything can be mounted.
const FIRST_MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];
/// Loaded meanwhile; the checksum first, without which rxe fails to add a device.
const THEN_MODULES: [&str; 7] =
    ["crc32_generic", "veth", "bridge", "rdma_rxe", "rdma_ucm", "sch_netem", "sch_tbf"];
/// The busybox applets that the init script calls by name.
const APPLETS: [&str; 17] = [
    "cat", "chroot", "hostname", "insmod", "ip", "kill", "ln", "mkdir", "mkfifo", "mount",
    "poweroff", "sh", "sleep", "sync", "tail", "umount", "usleep",
];
/// Raised when what [`build`] makes of the same input changes.
const FORMAT: u32 = 2;
const INIT: &str = include_str!("guest/init.sh");

/// A kernel and an initramfs to start a guest with.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// An ELF kernel, or the distribution's bzImage where that could not be unpacked.
    pub(crate) kernel: PathBuf,
    /// An uncompressed cpio archive.
    pub(crate) initramfs: PathBuf,
}

impl Image {
    fn in_folder(folder: &Path) -> Self {
        Self { kernel: folder.join("kernel"), initramfs: folder.join("initramfs") }
    }
}

/// The cached image that this version of the tool built, if there is one.
pub(crate) fn cached(cache: &Cache) -> Result<Option<Image>> {
    let suffix = suffix();
    let mut entries = cache.entries()?.into_iter();
    Ok(entries
        .find(|path| name(path).starts_with("guest-") && name(path).ends_with(&suffix))
        .map(|folder| Image::in_folder(&folder)))
}

/// The image to start a guest with: the cached one, or one built now from the distribution's
/// kernel package. Concurrent callers wait for the first.
///
/// # Errors
/// [`Error::Missing`] where the distribution has no such package, [`Error::Program`] if fetching or
/// unpacking fails.
pub(crate) fn image(cache: &Cache) -> Result<Image> {
    if let Some(image) = cached(cache)? {
        return Ok(image);
    }
    let lock = cache.lock()?;
    if let Some(image) = cached(cache)? {
        return Ok(image);
    }
    let workshop = cache.workshop(&lock)?;
    let packages = packages(cache, &workshop)?;
    eprintln!("rxe-setup: building the guest's initramfs (once; kept in the cache)");
    let root = workshop.join("root");
    for package in &packages {
        inherited(Command::new("dpkg").arg("-x").arg(package).arg(&root))?;
    }
    let unpacked = Unpacked::find(&root)?;
    let folder = workshop.join("image");
    build(&unpacked, &workshop, &folder)?;
    let place = cache.path(&format!("guest-{}{}", unpacked.version, suffix()));
    fs::rename(&folder, &place).map_err(Error::file("move into the cache", &folder))?;
    remove_folder(&workshop)?;
    Ok(Image::in_folder(&place))
}

/// What tells images apart that were built by different versions of this tool.
fn suffix() -> String {
    let mut hasher = DefaultHasher::new();
    (FORMAT, INIT, FIRST_MODULES, THEN_MODULES, APPLETS).hash(&mut hasher);
    format!("-{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish())
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// The distribution's kernel packages, from the cache or fetched.
fn packages(cache: &Cache, workshop: &Path) -> Result<Vec<PathBuf>> {
    let place = cache.path("packages");
    let debs = |folder: &Path| -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder).map_err(Error::file("read", folder))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension() == Some(OsStr::new("deb")));
        paths.sort();
        Ok(paths)
    };
    if place.exists() {
        return debs(&place);
    }
    let names = package_names()?;
    eprintln!("rxe-setup: fetching {} (never installed, only unpacked)", names.join(" "));
    let folder = workshop.join("packages");
    fs::create_dir(&folder).map_err(Error::file("make the folder", &folder))?;
    let mut command = Command::new("apt-get");
    command.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(&names);
    output_of(command.current_dir(&folder))?;
    fs::rename(&folder, &place).map_err(Error::file("move into the cache", &folder))?;
    debs(&place)
}

/// The packages that hold the kernel and its modules: on Debian one, on Ubuntu three.
fn package_names() -> Result<Vec<String>> {
    for meta in ["linux-image-amd64", "linux-image-generic"] {
        let Ok(depends) = output("apt-cache", &["depends", meta]) else { continue };
        if let Some(image) = image_package(&String::from_utf8_lossy(&depends)) {
            let version = image.trim_start_matches("linux-image-").to_owned();
            let mut names = vec![image];
            for kind in ["linux-modules", "linux-modules-extra"] {
                let candidate = format!("{kind}-{version}");
                if output("apt-cache", &["show", &candidate]).is_ok_and(|text| !text.is_empty()) {
                    names.push(candidate);
                }
            }
            return Ok(names);
        }
    }
    Err(Error::Missing {
        what: "a kernel package for the guest (linux-image-amd64 or linux-image-generic)"
            .to_owned(),
        remedy: "run `apt-get update`; only Debian and Ubuntu on x86-64 are supported".to_owned(),
    })
}

/// The versioned kernel package in the output of `apt-cache depends` for a meta package.
fn image_package(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| {
            name.strip_prefix("linux-image-")
                .is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
        })
        .map(str::to_owned)
}

/// An unpacked kernel package.
struct Unpacked {
    version: String,
    kernel: PathBuf,
    /// The folder in which `lib/modules` lies, as depmod and modprobe want it.
    base: PathBuf,
}

impl Unpacked {
    fn find(root: &Path) -> Result<Self> {
        let boot = root.join("boot");
        let kernel = fs::read_dir(&boot)
            .map_err(Error::file("read", &boot))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| name(path).starts_with("vmlinuz-"))
            .ok_or_else(|| Error::Missing {
                what: format!("the kernel in {}", boot.display()),
                remedy: "remove `packages` in the cache folder and try again".to_owned(),
            })?;
        let version = name(&kernel).trim_start_matches("vmlinuz-").to_owned();
        let merged = root.join("usr/lib/modules");
        let base = if merged.exists() { root.join("usr") } else { root.to_owned() };
        Ok(Self { version, kernel, base })
    }

    /// The files of these modules and of all they need, in the order in which they must be loaded.
    fn load_order(&self, modules: &[&str]) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let base = self.base.to_string_lossy();
        for module in modules {
            let args = ["-d", &base, "-S", &self.version, "--show-depends", module];
            files.extend(insmod_files(&String::from_utf8_lossy(&output("modprobe", &args)?)));
        }
        Ok(files)
    }
}

/// The files in the output of `modprobe --show-depends`; built-in modules have none.
fn insmod_files(show_depends: &str) -> Vec<PathBuf> {
    show_depends
        .lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        .filter_map(|rest| rest.split_whitespace().next())
        .map(PathBuf::from)
        .collect()
}

fn build(unpacked: &Unpacked, workshop: &Path, folder: &Path) -> Result<()> {
    let tree = workshop.join("tree");
    for part in ["bin", "modules", "proc", "sys", "dev"] {
        let path = tree.join(part);
        fs::create_dir_all(&path).map_err(Error::file("make the folder", &path))?;
    }
    fs::create_dir_all(folder).map_err(Error::file("make the folder", folder))?;
    let base = unpacked.base.to_string_lossy();
    output("depmod", &["-b", &*base, &unpacked.version])?;
    let mut seen = BTreeSet::new();
    for (list, modules) in [("first", &FIRST_MODULES[..]), ("then", &THEN_MODULES[..])] {
        let mut names = String::new();
        for file in unpacked.load_order(modules)? {
            let plain = plain_module_name(name(&file)).to_owned();
            if seen.insert(plain.clone()) {
                copy_module(&file, &tree.join("modules").join(&plain))?;
                names.push_str(&format!("{plain}\n"));
            }
        }
        write(&tree.join("modules").join(list), names.as_bytes(), 0o644)?;
    }
    let busybox = static_busybox()?;
    let content = fs::read(&busybox).map_err(Error::file("read", &busybox))?;
    write(&tree.join("bin/busybox"), &content, 0o755)?;
    for applet in APPLETS {
        let link = tree.join("bin").join(applet);
        symlink("busybox", &link).map_err(Error::file("link", &link))?;
    }
    write(&tree.join("init"), INIT.as_bytes(), 0o755)?;
    let image = Image::in_folder(folder);
    write(&image.initramfs, &archive(&tree)?, 0o644)?;
    let packed = fs::read(&unpacked.kernel).map_err(Error::file("read", &unpacked.kernel))?;
    let kernel = decompressed_kernel(&packed).unwrap_or(packed);
    write(&image.kernel, &kernel, 0o644)
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    fs::write(path, content).map_err(Error::file("write", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::file("set the mode of", path))
}

/// A folder as an uncompressed cpio archive of the kind the kernel unpacks, all owned by root.
pub(crate) fn archive(folder: &Path) -> Result<Vec<u8>> {
    let script = "find . -mindepth 1 | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0";
    let mut command = Command::new("sh");
    output_of(command.args(["-c", script]).current_dir(folder).stdin(Stdio::null()))
}

fn plain_module_name(file: &str) -> &str {
    [".xz", ".zst", ".gz"].iter().find_map(|ending| file.strip_suffix(ending)).unwrap_or(file)
}

/// Copies a module: decompressed, since busybox's insmod takes no other, and without its signature,
/// which takes an emulated guest longer to check than the module to load.
fn copy_module(from: &Path, to: &Path) -> Result<()> {
    let tool = match from.extension().and_then(OsStr::to_str) {
        Some("xz") => Some("xz"),
        Some("zst") => Some("zstd"),
        Some("gz") => Some("gzip"),
        _ => None,
    };
    let content = match tool {
        Some(tool) => output(tool, &[OsStr::new("-dc"), from.as_os_str()])?,
        None => fs::read(from).map_err(Error::file("read", from))?,
    };
    write(to, unsigned(&content), 0o644)
}

/// A module without its signature: behind the module stand the signature, a record of 12 bytes whose
/// last four are the signature's length in big-endian, and this text (`struct module_signature` in
/// include/linux/module_signature.h of the kernel).
fn unsigned(module: &[u8]) -> &[u8] {
    let plain = || -> Option<&[u8]> {
        let (rest, record) =
            module.strip_suffix(b"~Module signature appended~\n")?.split_last_chunk::<12>()?;
        let length = u32::from_be_bytes(*record.last_chunk::<4>()?);
        rest.get(..rest.len().checked_sub(usize::try_from(length).ok()?)?)
    };
    plain().unwrap_or(module)
}

/// The host's busybox, if it is a static one.
fn static_busybox() -> Result<PathBuf> {
    ["/usr/bin/busybox", "/bin/busybox"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| crate::probe::is_static_program(path))
        .ok_or_else(|| Error::Missing {
            what: "a static busybox".to_owned(),
            remedy: "run `rxe-setup deps --for guest`".to_owned(),
        })
}

/// The ELF kernel inside a bzImage, by the offsets in its setup header (x86 boot protocol 2.08,
/// Documentation/arch/x86/boot.rst of the kernel: `setup_sects`, `payload_offset`,
/// `payload_length`). `None` where it has none, or one that cannot be decompressed here.
fn decompressed_kernel(image: &[u8]) -> Option<Vec<u8>> {
    let payload = payload(image)?;
    let tool = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        _ => return None,
    };
    let mut child = Command::new(tool)
        .args(["-dc"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    let payload = payload.to_vec();
    let feeder = std::thread::spawn(move || {
        // Behind the compressed kernel stand four bytes, its size: the tool may refuse them.
        let _refused = std::io::Write::write_all(&mut stdin, &payload);
    });
    let kernel = child.wait_with_output().ok()?.stdout;
    feeder.join().ok()?;
    is_complete_elf(&kernel).then_some(kernel)
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    image.get(start..start.checked_add(word(0x24c)?)?)
}

/// Whether every segment of a 64-bit ELF file lies inside it.
fn is_complete_elf(file: &[u8]) -> bool {
    let number = |at: usize, len: usize| -> Option<u64> {
        let bytes = file.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let complete = || -> Option<bool> {
        if file.get(..5)? != b"\x7fELF\x02" {
            return Some(false);
        }
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        for segment in 0..count {
            let at = usize::try_from(table + segment * size).ok()?;
            let end = number(at + 8, 8)?.checked_add(number(at + 32, 8)?)?;
            if end > file.len() as u64 {
                return Some(false);
            }
        }
        Some(count > 0)
    };
    complete().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versioned_package_is_found_among_what_the_meta_package_needs() {
        let debian = "linux-image-amd64\n  Depends: linux-image-6.1.0-57-amd64\n";
        assert_eq!(image_package(debian).as_deref(), Some("linux-image-6.1.0-57-amd64"));
        let ubuntu = "linux-image-generic\n  Depends: linux-image-6.8.0-50-generic\n  \
                      Depends: linux-modules-extra-6.8.0-50-generic\n  Depends: linux-firmware\n";
        assert_eq!(image_package(ubuntu).as_deref(), Some("linux-image-6.8.0-50-generic"));
        assert_eq!(image_package("linux-image-amd64\n  Depends: linux-image-cloud\n"), None);
        assert_eq!(image_package(""), None);
    }

    #[test]
    fn modules_come_in_the_order_of_modprobe() {
        let text = "insmod /x/lib/modules/6.1/kernel/llc.ko \nbuiltin stp\n\
                    insmod /x/lib/modules/6.1/kernel/bridge.ko.xz option=1\n";
        let files = insmod_files(text);
        assert_eq!(
            files.iter().map(|path| name(path)).collect::<Vec<_>>(),
            ["llc.ko", "bridge.ko.xz"]
        );
        assert_eq!(plain_module_name("bridge.ko.xz"), "bridge.ko");
        assert_eq!(plain_module_name("llc.ko"), "llc.ko");
    }

    #[test]
    fn a_signature_is_cut_off() {
        let mut signed = b"module".to_vec();
        signed
            .extend_from_slice(b"signature\0\0\0\0\0\0\0\0\0\0\0\x09~Module signature appended~\n");
        assert_eq!(unsigned(&signed), b"module");
        assert_eq!(unsigned(b"module"), b"module");
        let wrong = b"\0\0\0\0\0\0\0\0\xff\0\0\0~Module signature appended~\n";
        assert_eq!(unsigned(wrong), wrong, "a length beyond the file");
        assert_eq!(unsigned(b"~Module signature appended~\n"), b"~Module signature appended~\n");
    }

    #[test]
    fn the_payload_of_a_kernel_image_is_found_by_its_header() {
        let mut image = vec![0_u8; 4096];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&5_u32.to_le_bytes());
        image[1024 + 16..1024 + 21].copy_from_slice(b"hello");
        assert_eq!(payload(&image), Some(&b"hello"[..]));
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None, "a length beyond the file");
        assert_eq!(payload(b"short"), None);
        image[0x202] = 0;
        assert_eq!(payload(&image), None, "not a kernel");
    }

    #[test]
    fn a_truncated_kernel_is_not_taken() {
        let mut elf = vec![0_u8; 200];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        elf[32] = 64; // table of segments
        elf[54] = 56; // size of one
        elf[56] = 1; // their number
        elf[64 + 8] = 120; // offset
        elf[64 + 32] = 80; // size in the file
        assert!(is_complete_elf(&elf));
        assert!(!is_complete_elf(&elf[..199]));
        assert!(!is_complete_elf(b"\x7fELF\x02"));
        assert!(!is_complete_elf(b""));
    }
}
