//! Where a file is, in a form that ranks can compare.

use std::ffi::OsStr;
use std::fs::read;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of a file in a folder of a host: equal for two paths that lead to one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location(pub(crate) [u8; 32]);

impl Location {
    /// Of a file that may not be there yet; its folder has to be.
    ///
    /// # Errors
    /// What the system says of the folder.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let folder = folder.metadata()?;
        let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
        // Containers of one host have the same; it tells hosts apart whose disks have equal numbers.
        let host = read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        for field in [&host[..], &folder.dev().to_le_bytes(), &folder.ino().to_le_bytes(), name] {
            hasher.update(&(field.len() as u64).to_le_bytes()).update(field);
        }
        Ok(Self(*hasher.finalize().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn one_name_has_one_location_whatever_the_path() {
        let scratch = Scratch::new("location");
        std::fs::create_dir(scratch.path("folder")).unwrap();
        std::fs::write(scratch.path("folder/file"), "").unwrap();
        symlink("folder", scratch.path("other")).unwrap();
        symlink("folder/file", scratch.path("link")).unwrap();
        let of = |name: &str| Location::of(&scratch.path(name)).unwrap();
        for name in ["other/file", "link", "folder/../folder/./file"] {
            assert_eq!(of(name), of("folder/file"), "{name}");
        }
        assert_eq!(of("other/new"), of("folder/new"));
        assert_ne!(of("folder/new"), of("folder/file"));
        assert_ne!(of("file"), of("folder/file"));
        assert!(Location::of(&scratch.path("missing/file")).is_err());
    }
}
