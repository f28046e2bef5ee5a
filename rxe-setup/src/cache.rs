//! The folder where the guest's kernel, its initramfs and what was learnt about this host are kept.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::error::{Error, Result};

/// `${XDG_CACHE_HOME:-~/.cache}/verbcast`.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Held while the cache is changed; other processes wait.
pub(crate) struct CacheLock {
    _file: Flock<File>,
}

impl Cache {
    /// Opens the user's cache folder and makes it if need be.
    ///
    /// # Errors
    /// [`Error::Missing`] if neither `XDG_CACHE_HOME` nor `HOME` is set, [`Error::File`] if the
    /// folder cannot be made.
    pub(crate) fn open() -> Result<Self> {
        let absolute =
            |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .ok_or_else(|| Error::Missing {
                what: "a cache folder".to_owned(),
                remedy: "set XDG_CACHE_HOME or HOME to an absolute path".to_owned(),
            })?;
        Self::at(base.join("verbcast"))
    }

    /// Opens a given folder and makes it if need be.
    pub(crate) fn at(root: PathBuf) -> Result<Self> {
        fs::create_dir_all(&root).map_err(Error::file("make the folder", &root))?;
        Ok(Self { root })
    }

    /// A path in the cache.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Waits until no other process changes the cache.
    ///
    /// The lock is the kernel's: it ends with the process that holds it, however that ends.
    pub(crate) fn lock(&self) -> Result<CacheLock> {
        let path = self.path("lock");
        let file = File::create(&path).map_err(Error::file("open", &path))?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map(|file| CacheLock { _file: file })
            .map_err(|(_, errno)| Error::File { what: "lock", path, source: errno.into() })
    }

    /// An empty folder to build something in, to be moved to its place by a rename.
    ///
    /// What killed processes left there is removed first. Each process has a folder of its own: a
    /// program that a killed one had started may still be writing to the old one.
    pub(crate) fn workshop(&self, _lock: &CacheLock) -> Result<PathBuf> {
        for entry in self.entries()? {
            if abandoned(&entry) {
                remove_folder(&entry)?;
            }
        }
        let path = self.own_folder("building");
        fs::create_dir(&path).map_err(Error::file("make the folder", &path))?;
        Ok(path)
    }

    /// The path of a folder that no other process uses.
    pub(crate) fn own_folder(&self, purpose: &str) -> PathBuf {
        self.path(&format!("{purpose}-{}", std::process::id()))
    }

    /// The folders and files right in the cache, newest first.
    pub(crate) fn entries(&self) -> Result<Vec<PathBuf>> {
        let error = || Error::file("read", &self.root);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(error())? {
            let entry = entry.map_err(error())?;
            let modified = entry.metadata().and_then(|data| data.modified()).map_err(error())?;
            entries.push((modified, entry.path()));
        }
        entries.sort();
        Ok(entries.into_iter().rev().map(|(_, path)| path).collect())
    }
}

/// Whether a folder was made by [`Cache::own_folder`] in a process that is gone.
fn abandoned(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let process = ["building-", "job-"].iter().find_map(|prefix| name.strip_prefix(prefix));
    process.is_some_and(|process| {
        process == std::process::id().to_string() || !Path::new("/proc").join(process).exists()
    })
}

/// Removes a folder and what is in it; one that is not there is as good.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::tests::FakeRoot;

    #[test]
    fn the_workshop_is_empty_and_what_dead_processes_left_is_gone() {
        let root = FakeRoot::new(&[
            ("building-999999999/root/file", ""),
            ("job-999999999/file", ""),
            ("building-1/file", ""),
            ("guest-6.1/kernel", ""),
        ]);
        root.add(&format!("building-{}/file", std::process::id()), b"");
        let cache = Cache::at(root.path().to_owned()).unwrap();
        let lock = cache.lock().unwrap();
        let workshop = cache.workshop(&lock).unwrap();
        assert_eq!(fs::read_dir(&workshop).unwrap().count(), 0);
        let mut left: Vec<_> = cache
            .entries()
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        left.sort();
        let own = workshop.file_name().unwrap().to_string_lossy().into_owned();
        let mut wanted = ["building-1", &own, "guest-6.1", "lock"];
        wanted.sort_unstable();
        assert_eq!(left, wanted);
    }
}
