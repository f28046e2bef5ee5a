//! A file that has no name until it is complete, or a hidden one where the filesystem cannot do
//! without.
//!
//! An unnamed file (`O_TMPFILE`) is gone with the process, however that ends. A hidden name is locked
//! by the process that writes it, so that another one can tell what was left behind by a death and
//! take it away: a small process that waits for just that ([`Heir`]), or the next writer of the same
//! name. [`Hidden`] removes it on every other way out, signals included.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, fsync, linkat, unlinkat};

use super::heir::Heir;

/// The longest name that filesystems take.
const NAME_BYTES_MAX: usize = 255;

/// Ends every hidden name.
const SUFFIX: &[u8] = b".verbcast-part";

/// How often a hidden name is tried for when others take it away at the same time.
const ATTEMPTS: u32 = 100;

/// A hidden name, removed when this is dropped.
#[derive(Debug)]
struct Hidden {
    folder: Arc<OwnedFd>,
    name: OsString,
    names: Names,
    /// Held for as long as the name is this process's.
    _lock: Flock<File>,
    /// Ends last, when there is nothing for it to do.
    _heir: Option<Heir>,
}

/// The hidden names of this process, for whoever ends it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    list: Arc<Mutex<Vec<Name>>>,
    /// Whether each name gets a process that removes it if this one is killed.
    with_heirs: bool,
}

/// A name and the folder it is in.
type Name = (Arc<OwnedFd>, OsString);

impl Names {
    /// No names yet; each will have its [`Heir`].
    pub(crate) fn with_heirs() -> Self {
        Self { list: Arc::default(), with_heirs: true }
    }

    /// Removes them all from their folders.
    pub(crate) fn remove_all(&self) {
        for (folder, name) in self.list.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It may be gone already, and nobody is left to be told.
            let _gone = unlinkat(&*folder, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }

    fn add(&self, folder: &Arc<OwnedFd>, name: &OsStr) {
        let mut names = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        names.push((Arc::clone(folder), name.into()));
    }

    fn forget(&self, folder: &Arc<OwnedFd>, name: &OsStr) {
        let mut names = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|(other, other_name)| !Arc::ptr_eq(other, folder) || other_name != name);
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Err(error) =
            unlinkat(&*self.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)
            && error != Errno::ENOENT
        {
            tracing::warn!(name = ?self.name, %error, "a temporary file could not be removed");
        }
        self.names.forget(&self.folder, &self.name);
    }
}

/// A file on its way to its name.
#[derive(Debug)]
pub(crate) struct Temporary {
    folder: Arc<OwnedFd>,
    name: OsString,
    file: File,
    /// Its own name until it gets the final one; `None` while it has none.
    hidden: Option<Hidden>,
    names: Names,
}

impl Temporary {
    /// A new file for `name` in `folder`, with this mode less the process's mask.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::ResourceBusy`] if another process is writing a
    /// temporary file for the same name.
    pub(crate) fn create(
        folder: OwnedFd,
        name: &OsStr,
        mode: u32,
        names: &Names,
    ) -> io::Result<Self> {
        let unnamed = openat(
            &folder,
            ".",
            OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC,
            Mode::from_bits_truncate(mode),
        );
        match unnamed {
            Ok(file) => Ok(Self {
                folder: Arc::new(folder),
                name: name.into(),
                file: file.into(),
                hidden: None,
                names: names.clone(),
            }),
            // EISDIR: the kernel does not know the flag.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR) => {
                Self::create_hidden(folder, name, mode, names)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Temporary::create`], for filesystems without unnamed files.
    fn create_hidden(folder: OwnedFd, name: &OsStr, mode: u32, names: &Names) -> io::Result<Self> {
        let folder = Arc::new(folder);
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let own_name = hidden_name(name);
        for _ in 0..ATTEMPTS {
            if !remove_stale(&folder, &own_name)? {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            match openat(&*folder, own_name.as_os_str(), flags, Mode::from_bits_truncate(mode)) {
                Ok(file) => {
                    let file = File::from(file);
                    if let Some(hidden) = Hidden::take(&folder, own_name.clone(), &file, names)? {
                        let hidden = Some(hidden);
                        let (name, names) = (name.into(), names.clone());
                        return Ok(Self { folder, name, file, hidden, names });
                    }
                }
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Gives the file its name, in place of whatever had it, and makes that durable.
    ///
    /// # Errors
    /// What the system says; what had the name is whole then, unless only the last step failed.
    pub(crate) fn put_in_place(mut self) -> io::Result<()> {
        let hidden = match self.hidden.take() {
            Some(hidden) => hidden,
            None => match self.link(&self.name) {
                Ok(()) => return Ok(fsync(&*self.folder)?),
                Err(Errno::EEXIST) => self.link_hidden()?,
                Err(error) => return Err(error.into()),
            },
        };
        renameat(&*self.folder, hidden.name.as_os_str(), &*self.folder, self.name.as_os_str())?;
        // The hidden name is the final one now; dropping it finds nothing to remove.
        drop(hidden);
        Ok(fsync(&*self.folder)?)
    }

    fn link(&self, name: &OsStr) -> nix::Result<()> {
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(self.folder.as_fd(), own.as_str(), &*self.folder, name, AtFlags::AT_SYMLINK_FOLLOW)
    }

    /// Gives the unnamed file a hidden name, which a rename can then make the final one.
    fn link_hidden(&self) -> io::Result<Hidden> {
        let own_name = hidden_name(&self.name);
        for _ in 0..ATTEMPTS {
            match self.link(&own_name) {
                Ok(()) => {
                    let taken =
                        Hidden::take(&self.folder, own_name.clone(), &self.file, &self.names)?;
                    if let Some(hidden) = taken {
                        return Ok(hidden);
                    }
                }
                Err(Errno::EEXIST) => {
                    if !remove_stale(&self.folder, &own_name)? {
                        return Err(io::ErrorKind::ResourceBusy.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Hidden {
    /// Locks the hidden name that `file` was just given; `None` if another process took it for
    /// stale meanwhile and removed it.
    fn take(
        folder: &Arc<OwnedFd>,
        name: OsString,
        file: &File,
        names: &Names,
    ) -> io::Result<Option<Self>> {
        let Ok(lock) = Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock) else {
            return Ok(None);
        };
        if !is_named(folder, &name, &lock)? {
            return Ok(None);
        }
        names.add(folder, &name);
        let heir = names.with_heirs.then(|| Heir::start(folder, &name)).transpose();
        if let Err(error) = &heir {
            tracing::warn!(%error, "if this process is killed, {} stays", name.display());
        }
        let (folder, names) = (Arc::clone(folder), names.clone());
        Ok(Some(Self { folder, name, names, _lock: lock, _heir: heir.ok().flatten() }))
    }
}

/// The hidden name for a file that will be called `name`.
fn hidden_name(name: &OsStr) -> OsString {
    let name = name.as_bytes();
    let kept = name.len().min(NAME_BYTES_MAX - SUFFIX.len() - 1);
    OsString::from_vec([b".", &name[..kept], SUFFIX].concat())
}

/// Removes a hidden file that nobody holds; `false` if somebody does.
pub(super) fn remove_stale(folder: &Arc<OwnedFd>, name: &OsStr) -> io::Result<bool> {
    let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = match openat(&**folder, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::ENOENT) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
        return Ok(false);
    };
    // Only who holds the lock of the file that has the name may take the name away.
    if is_named(folder, name, &lock)? {
        unlinkat(&**folder, name, UnlinkatFlags::NoRemoveDir)?;
    }
    Ok(true)
}

fn is_named(folder: &Arc<OwnedFd>, name: &OsStr, file: &File) -> io::Result<bool> {
    let own = fstat(file)?;
    match fstatat(&**folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((own.st_dev, own.st_ino) == (named.st_dev, named.st_ino)),
        Err(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::scratch::Scratch;
    use super::*;

    type Create = fn(OwnedFd, &OsStr, u32, &Names) -> io::Result<Temporary>;
    const KINDS: [Create; 2] = [Temporary::create, Temporary::create_hidden];

    fn folder(scratch: &Scratch) -> OwnedFd {
        File::open(scratch).unwrap().into()
    }

    #[test]
    fn a_file_gets_its_name_at_the_end_and_replaces_the_old_one_whole() {
        for (kind, create) in KINDS.into_iter().enumerate() {
            let scratch = Scratch::new(&format!("place-{kind}"));
            for content in ["first", "second"] {
                let before = std::fs::read(scratch.path("dest")).ok();
                let temporary =
                    create(folder(&scratch), "dest".as_ref(), 0o640, &Names::default()).unwrap();
                temporary.file().write_all(content.as_bytes()).unwrap();
                assert_eq!(std::fs::read(scratch.path("dest")).ok(), before);
                temporary.put_in_place().unwrap();
                assert_eq!(std::fs::read_to_string(scratch.path("dest")).unwrap(), content);
                assert_eq!(scratch.names(), ["dest"]);
            }
        }
    }

    #[test]
    fn nothing_is_left_when_it_is_given_up() {
        for (kind, create) in KINDS.into_iter().enumerate() {
            let scratch = Scratch::new(&format!("given-up-{kind}"));
            let names = Names::default();
            drop(create(folder(&scratch), "dest".as_ref(), 0o600, &names).unwrap());
            assert!(scratch.names().is_empty(), "{:?}", scratch.names());
            let kept = create(folder(&scratch), "dest".as_ref(), 0o600, &names).unwrap();
            names.remove_all();
            assert!(scratch.names().is_empty(), "{:?}", scratch.names());
            drop(kept);
        }
    }

    #[test]
    fn what_a_death_left_behind_is_taken_away_and_what_is_in_use_is_not() {
        let scratch = Scratch::new("stale");
        let stale = scratch.path(".dest.verbcast-part");
        std::fs::write(&stale, "half").unwrap();
        let names = Names::default();
        let create = || Temporary::create_hidden(folder(&scratch), "dest".as_ref(), 0o600, &names);
        let first = create().unwrap();
        assert_eq!(std::fs::metadata(&stale).unwrap().len(), 0);
        assert_eq!(create().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        create().unwrap().put_in_place().unwrap();
        assert_eq!(scratch.names(), ["dest"]);
    }

    #[test]
    fn a_hidden_name_fits_also_for_the_longest_name() {
        let scratch = Scratch::new("long");
        let name = "x".repeat(NAME_BYTES_MAX);
        for create in KINDS {
            for _ in 0..2 {
                create(folder(&scratch), name.as_ref(), 0o600, &Names::default())
                    .unwrap()
                    .put_in_place()
                    .unwrap();
            }
        }
        assert_eq!(scratch.names(), [name]);
    }
}
