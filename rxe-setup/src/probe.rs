//! What a machine has, read from its files: under `/`, or under another root in tests.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The names in a folder, sorted; none if it cannot be read.
pub(crate) fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The first line of a file without the space around it; empty if it cannot be read.
pub(crate) fn first_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Where a program is, looked for along `PATH` and in the system's folders.
pub(crate) fn program(root: &Path, name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .filter_map(|folder| Some(root.join(folder.strip_prefix("/").ok()?).join(name)))
        .find(|path| path.is_file())
}

/// The folders that hold shared libraries: `usr/lib` and its multiarch subfolders.
pub(crate) fn library_folders(root: &Path) -> Vec<PathBuf> {
    let lib = root.join("usr/lib");
    let mut folders: Vec<_> = file_names(&lib)
        .into_iter()
        .filter(|name| name.contains("-linux-gnu"))
        .map(|name| lib.join(name))
        .collect();
    folders.extend([lib, root.join("usr/lib64"), root.join("usr/local/lib")]);
    folders
}

/// The first library whose file name starts with `prefix`.
pub(crate) fn library(root: &Path, prefix: &str) -> Option<PathBuf> {
    library_folders(root).into_iter().find_map(|folder| {
        let name = file_names(&folder).into_iter().find(|name| name.starts_with(prefix))?;
        Some(folder.join(name))
    })
}

/// Whether dpkg has the package installed.
pub(crate) fn package(root: &Path, name: &str) -> bool {
    let info = root.join("var/lib/dpkg/info");
    info.join(format!("{name}.list")).is_file() || info.join(format!("{name}:amd64.list")).is_file()
}

/// Whether a file is a program that needs no dynamic linker: a 64-bit ELF file without the
/// PT_INTERP segment.
pub(crate) fn is_static_program(path: &Path) -> bool {
    const PT_INTERP: &[u8] = &3_u32.to_le_bytes();
    let Ok(file) = fs::read(path) else { return false };
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = file.get(at..at.checked_add(len)?)?;
        bytes.iter().rev().try_fold(0_usize, |value, byte| {
            value.checked_mul(256)?.checked_add(usize::from(*byte))
        })
    };
    let interpreter = || -> Option<bool> {
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        for segment in 0..count {
            let at = table.checked_add(segment.checked_mul(size)?)?;
            if file.get(at..at.checked_add(4)?)? == PT_INTERP {
                return Some(true);
            }
        }
        Some(false)
    };
    file.get(..5) == Some(b"\x7fELF\x02") && interpreter() == Some(false)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder that stands for the root of a machine; removed when it is dropped.
    pub(crate) struct FakeRoot(PathBuf);

    impl FakeRoot {
        /// Makes a root with these files.
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("verbcast-root-{}-{number}", std::process::id());
            let root = Self(env::temp_dir().join(name));
            fs::create_dir_all(&root.0).unwrap();
            files.iter().for_each(|(path, content)| root.add(path, content.as_bytes()));
            root
        }

        /// Adds a file.
        pub(crate) fn add(&self, path: &str, content: &[u8]) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        /// Where it is.
        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for FakeRoot {
        fn drop(&mut self) {
            let _left_over = fs::remove_dir_all(&self.0);
        }
    }

    /// The smallest file that looks like a program, with or without a dynamic linker.
    pub(crate) fn elf(dynamic: bool) -> Vec<u8> {
        let mut file = vec![0_u8; 64 + 56];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        (file[32], file[54], file[56]) = (64, 56, 1);
        file[64] = if dynamic { 3 } else { 1 };
        file
    }

    #[test]
    fn a_static_program_has_no_interpreter() {
        let root = FakeRoot::new(&[("text", "#!/bin/sh\n"), ("empty", "")]);
        root.add("static", &elf(false));
        root.add("dynamic", &elf(true));
        root.add("cut", &elf(false)[..80]);
        root.add("cut_short", &elf(false)[..50]);
        let found = |name| is_static_program(&root.path().join(name));
        assert!(found("static"));
        for name in ["dynamic", "text", "empty", "absent", "cut_short"] {
            assert!(!found(name), "{name}");
        }
        assert!(is_static_program(&root.path().join("cut")), "only the segment's type is read");
    }

    #[test]
    fn libraries_are_found_in_multiarch_folders() {
        let root = FakeRoot::new(&[("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "")]);
        let found = library(root.path(), "libibverbs.so").unwrap();
        assert!(found.ends_with("usr/lib/x86_64-linux-gnu/libibverbs.so.1"));
        assert_eq!(library(root.path(), "libclang"), None);
    }

    #[test]
    fn programs_are_found_in_the_systems_folders() {
        let root = FakeRoot::new(&[("usr/sbin/depmod", ""), ("opt/tool", "")]);
        assert!(program(root.path(), "depmod").is_some());
        assert_eq!(program(root.path(), "tool"), None);
    }
}
