//! A file that a rank reads.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

use super::error::{Error, Named};
use super::location::Location;

/// A regular file, open for reading.
#[derive(Debug)]
pub(crate) struct Source {
    name: Named,
    file: File,
    metadata: Metadata,
}

impl Source {
    /// Opens a regular file.
    ///
    /// # Errors
    /// If it is missing, no permission allows reading it, or it is no regular file.
    pub(crate) fn open(name: Named) -> Result<Self, Error> {
        if name.path.as_os_str() == "-" {
            return Err(Error::StandardInput(name.role));
        }
        let fail = |source| Error::File { file: name.clone(), what: "cannot be opened", source };
        // Nonblocking, so that a pipe nobody writes to does not hold the open up.
        let file = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&name.path)
            .map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "no regular file" };
            return Err(Error::NotRegular { file: name, kind });
        }
        // Advice that is not taken does no harm.
        let _ignored = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
        Ok(Self { name, file, metadata })
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &Named {
        &self.name
    }

    /// Where it is.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn location(&self) -> Result<Location, Error> {
        let file = self.name.clone();
        let what = "cannot be examined";
        Location::of(&self.name.path).map_err(|source| Error::File { file, what, source })
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
                Err(Error::File { file: self.name.clone(), what: "cannot be read", source })
            }
        }
    }

    /// Makes sure at the end that it is the file that it was at the beginning.
    ///
    /// # Errors
    /// If its length or its time of change is another.
    pub(crate) fn check_unchanged(&self) -> Result<(), Error> {
        let now = self.file.metadata().map_err(|source| Error::File {
            file: self.name.clone(),
            what: "cannot be examined",
            source,
        })?;
        let essence = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec());
        if essence(&now) == essence(&self.metadata) { Ok(()) } else { self.changed() }
    }

    fn changed(&self) -> Result<(), Error> {
        let now = self.file.metadata().map_or(0, |metadata| metadata.len());
        Err(Error::Changed { file: self.name.clone(), before: self.bytes(), now })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::scratch::Scratch;
    use super::*;

    fn open(path: &Path) -> Result<Source, Error> {
        Source::open(Named { role: "SRC", path: path.into() })
    }

    #[test]
    fn a_file_that_shrinks_or_changes_is_noticed() {
        let scratch = Scratch::new("source");
        let path = scratch.path("file");
        std::fs::write(&path, [7; 1000]).unwrap();
        let source = open(&path).unwrap();
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
        let error = |path: &Path| open(path).unwrap_err().to_string();
        assert!(error(&scratch.path("missing")).contains("missing"));
        assert!(error(&scratch.path("")).contains("is a directory"));
        assert!(error(Path::new("-")).contains("standard input"));
        assert!(error(Path::new("/dev/null")).contains("no regular file"));
        let fifo = scratch.path("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(error(&fifo).contains("no regular file"));
    }
}
