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
    /// What a killed process left there is removed first: call it with the lock held.
    pub(crate) fn workshop(&self, _lock: &CacheLock) -> Result<PathBuf> {
        let path = self.path("building");
        remove_folder(&path)?;
        fs::create_dir(&path).map_err(Error::file("make the folder", &path))?;
        Ok(path)
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

/// Removes a folder and what is in it; one that is not there is as good.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}
