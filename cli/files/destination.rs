//! A file that a rank writes.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::fstatvfs;

use super::error::{Error, Named};
use super::location::Location;
use super::temporary::{Names, Temporary};

/// The file that a rank writes, unseen until it is put in place.
#[derive(Debug)]
pub(crate) struct Destination {
    name: Named,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Written, then put in place.
    File(Temporary),
    /// It is what is read: it is in place already.
    Source,
}

impl Destination {
    /// Gets ready for a file of `bytes` with this name and mode; `source` is the identity of a
    /// file of the same contents, if this rank reads one.
    ///
    /// # Errors
    /// If there cannot be such a file: the name is a directory's, the folder is missing or may not
    /// be written, the disk is full.
    pub(crate) fn create(
        name: Named,
        bytes: u64,
        mode: u32,
        source: Option<(u64, u64)>,
        names: &Names,
    ) -> Result<Self, Error> {
        let (name, existing) = resolve(name)?;
        if existing.is_some() && existing == source {
            return Ok(Self { name, kind: Kind::Source });
        }
        let (folder, file_name) = open_folder(&name)?;
        let temporary = Temporary::create(folder, &file_name, mode, names).map_err(|source| {
            let busy = source.kind() == io::ErrorKind::ResourceBusy;
            let what =
                if busy { "is being written by another process" } else { "cannot be created" };
            Error::File { file: name.clone(), what, source }
        })?;
        reserve(&name, &temporary, bytes)?;
        Ok(Self { name, kind: Kind::File(temporary) })
    }

    /// What it will be called, symbolic links followed.
    pub(crate) fn name(&self) -> &Named {
        &self.name
    }

    /// Where that is.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn location(&self) -> Result<Location, Error> {
        Location::of(&self.name.path).map_err(self.fail("cannot be examined"))
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        match &self.kind {
            Kind::File(temporary) => {
                temporary.file().write_all_at(bytes, offset).map_err(self.fail("cannot be written"))
            }
            Kind::Source => Ok(()),
        }
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// What the system says, also of earlier writes.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        match &self.kind {
            Kind::File(temporary) => {
                temporary.file().sync_all().map_err(self.fail("cannot be written to its disk"))
            }
            Kind::Source => Ok(()),
        }
    }

    /// Puts the file in place of whatever was there.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn put_in_place(self) -> Result<(), Error> {
        match self.kind {
            Kind::File(temporary) => {
                let file = self.name;
                let fail = |source| Error::File { file, what: "cannot be put in place", source };
                temporary.put_in_place().map_err(fail)
            }
            Kind::Source => Ok(()),
        }
    }

    fn fail(&self, what: &'static str) -> impl FnOnce(io::Error) -> Error {
        let file = self.name.clone();
        move |source| Error::File { file, what, source }
    }
}

/// The name to write, symbolic links followed, and the identity of the file that is there.
fn resolve(name: Named) -> Result<(Named, Option<(u64, u64)>), Error> {
    let path = &name.path;
    let refuse = |reason: &str| Error::Name { file: name.clone(), reason: reason.into() };
    let fail = |source| Error::File { file: name.clone(), what: "cannot be examined", source };
    if path.as_os_str().is_empty() {
        return Err(refuse("is empty: give the name of a file"));
    }
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if path.is_symlink() {
                return Err(refuse("is a symbolic link to nothing"));
            }
            if path.as_os_str().as_bytes().ends_with(b"/") || path.file_name().is_none() {
                return Err(refuse("is the name of a directory: give the name of a file"));
            }
            return Ok((name, None));
        }
        Err(source) => return Err(fail(source)),
    };
    if metadata.is_dir() {
        return Err(refuse("is a directory: give the name of a file in it"));
    }
    if !metadata.is_file() {
        return Err(refuse("is no regular file, and is not replaced"));
    }
    let path = path.canonicalize().map_err(fail)?;
    Ok((Named { path, ..name }, Some((metadata.dev(), metadata.ino()))))
}

fn open_folder(name: &Named) -> Result<(OwnedFd, OsString), Error> {
    let folder = match name.path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let opened = File::open(folder).and_then(|opened| {
        if opened.metadata()?.is_dir() { Ok(opened) } else { Err(Errno::ENOTDIR.into()) }
    });
    match opened {
        Ok(opened) => Ok((opened.into(), name.path.file_name().unwrap_or_default().into())),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Err(Error::Name {
            file: name.clone(),
            reason: format!("cannot be: there is no directory {}", folder.display()),
        }),
        Err(source) => Err(Error::File {
            file: name.clone(),
            what: "cannot be created: its directory cannot be opened",
            source,
        }),
    }
}

/// Takes the room on the disk at once, so that a full one shows before any data flows.
fn reserve(name: &Named, temporary: &Temporary, bytes: u64) -> Result<(), Error> {
    let fail = |source| Error::File { file: name.clone(), what: "cannot be made as long", source };
    if bytes == 0 {
        return Ok(());
    }
    let length = i64::try_from(bytes).map_err(|_| fail(Errno::EFBIG.into()))?;
    let statistics = fstatvfs(temporary.folder()).map_err(|error| fail(error.into()))?;
    let [free, all_free] = [statistics.blocks_available(), statistics.blocks_free()]
        .map(|blocks| blocks.saturating_mul(statistics.fragment_size()));
    let full = Err(Error::NoRoom { file: name.clone(), needed: bytes, free });
    // Trying would first take away what is left from everybody else.
    if all_free < bytes {
        return full;
    }
    match fallocate(temporary.file(), FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) if free >= bytes => Ok(()),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOSPC) => full,
        Err(error) => Err(fail(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::scratch::Scratch;
    use super::*;

    fn named(path: &Path) -> Named {
        Named { role: "DEST", path: path.into() }
    }

    fn create(path: &Path, bytes: u64) -> Result<Destination, Error> {
        Destination::create(named(path), bytes, 0o751, None, &Names::default())
    }

    #[test]
    fn the_mode_is_the_wanted_one_less_the_mask() {
        let scratch = Scratch::new("mode");
        let path = scratch.path("dest");
        create(&path, 3).unwrap().put_in_place().unwrap();
        std::fs::write(scratch.path("other"), "").unwrap();
        let mode = |name: &str| scratch.path(name).metadata().unwrap().mode();
        let mask = 0o666 & !mode("other");
        // The mask's execute bits do not show in an ordinary file's mode.
        assert_eq!(mode("dest") & 0o666, 0o751 & !mask & 0o666);
        assert_eq!(path.metadata().unwrap().len(), 3);
    }

    #[test]
    fn a_link_is_followed_and_what_is_no_file_is_refused() {
        let scratch = Scratch::new("links");
        let error = |name: &str| create(&scratch.path(name), 0).unwrap_err().to_string();
        std::fs::write(scratch.path("file"), "old").unwrap();
        symlink("file", scratch.path("link")).unwrap();
        create(&scratch.path("link"), 5).unwrap().put_in_place().unwrap();
        assert_eq!(scratch.path("file").metadata().unwrap().len(), 5);
        assert!(scratch.path("link").is_symlink());
        symlink("nothing", scratch.path("dangling")).unwrap();
        assert!(error("dangling").contains("link to nothing"));
        assert!(error("").contains("is a directory"));
        assert!(error("new/").contains("name of a file"));
        assert!(error("no/such").contains("there is no directory"));
        assert!(error("file/below").contains("examined"), "{}", error("file/below"));
        let device = create(Path::new("/dev/null"), 0).unwrap_err().to_string();
        assert!(device.contains("no regular file"), "{device}");
    }

    #[test]
    fn a_source_that_is_the_destination_is_left_alone() {
        let scratch = Scratch::new("same");
        let path = scratch.path("file");
        std::fs::write(&path, "content").unwrap();
        let metadata = path.metadata().unwrap();
        let identity = Some((metadata.dev(), metadata.ino()));
        let destination =
            Destination::create(named(&path), 7, 0o600, identity, &Names::default()).unwrap();
        destination.write(b"another", 0).unwrap();
        destination.sync().unwrap();
        destination.put_in_place().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "content");
        assert_eq!(path.metadata().unwrap().ino(), metadata.ino());
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused_at_once() {
        let scratch = Scratch::new("room");
        let error = create(&scratch.path("dest"), 1 << 60).unwrap_err().to_string();
        assert!(error.contains("no room"), "{error}");
        assert!(scratch.names().is_empty());
    }
}
