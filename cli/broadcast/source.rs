//! FILE, as the root reads it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

use super::error::Error;

/// The file that is broadcast, open at the root.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    file: File,
    metadata: Metadata,
}

impl Source {
    /// Opens a regular file.
    ///
    /// # Errors
    /// If it is missing, no permission allows reading it, or it is no regular file.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let fail = |source| Error::Source { path: path.into(), what: "cannot be opened", source };
        // Nonblocking, so that a pipe nobody writes to does not hold the open up.
        let file = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "no regular file" };
            return Err(Error::NotRegular { path: path.into(), kind });
        }
        // Advice that is not taken does no harm.
        let _ignored = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
        Ok(Self { path: path.into(), file, metadata })
    }

    /// Its length when it was opened, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.metadata.len()
    }

    /// Its permissions (the nine bits).
    pub(crate) fn mode(&self) -> u32 {
        self.metadata.mode() & 0o777
    }

    /// Device and inode, which tell it from every other file of this host.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.metadata.dev(), self.metadata.ino())
    }

    /// Reads the bytes from `offset` on until `buffer` is full.
    ///
    /// # Errors
    /// If reading fails, or the file has become shorter than it was.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.changed(),
            Err(source) => {
                Err(Error::Source { path: self.path.clone(), what: "cannot be read", source })
            }
        }
    }

    /// Makes sure at the end that it is the file that it was at the beginning.
    ///
    /// # Errors
    /// If its length or its time of change is another.
    pub(crate) fn check_unchanged(&self) -> Result<(), Error> {
        let now = self.file.metadata().map_err(|source| Error::Source {
            path: self.path.clone(),
            what: "cannot be examined",
            source,
        })?;
        let essence = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec());
        if essence(&now) == essence(&self.metadata) { Ok(()) } else { self.changed() }
    }

    fn changed(&self) -> Result<(), Error> {
        let now = self.file.metadata().map_or(0, |metadata| metadata.len());
        Err(Error::Changed { path: self.path.clone(), before: self.bytes(), now })
    }
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn a_file_that_shrinks_or_changes_is_noticed() {
        let scratch = Scratch::new("source");
        let path = scratch.path("file");
        std::fs::write(&path, [7; 1000]).unwrap();
        let source = Source::open(&path).unwrap();
        let mut buffer = [0; 400];
        source.read(&mut buffer, 600).unwrap();
        assert_eq!(buffer, [7; 400]);
        source.check_unchanged().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(999).unwrap();
        let error = source.read(&mut buffer, 600).unwrap_err().to_string();
        assert!(error.contains("1000") && error.contains("999"), "{error}");
        assert!(source.check_unchanged().is_err());
    }

    #[test]
    fn only_regular_files_are_taken() {
        let scratch = Scratch::new("irregular");
        let error = |path: &Path| Source::open(path).unwrap_err().to_string();
        assert!(error(&scratch.path("missing")).contains("missing"));
        assert!(error(&scratch.path("")).contains("is a directory"));
        assert!(error(Path::new("/dev/null")).contains("no regular file"));
        let fifo = scratch.path("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(error(&fifo).contains("no regular file"));
    }
}
