//! Files without a name, and how a process of the same host opens them.
//!
//! A memfd has no name, so nothing is left behind however its processes end. A peer opens it
//! through `/proc/<pid>/fd/<n>` (proc_pid_fd(5)), where the kernel checks the owner.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat};
use nix::unistd::{Uid, ftruncate};

use super::error::SetupError;

/// The size is fixed for good: nobody can make another's mapping fault with SIGBUS.
const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// A file of another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Foreign {
    pub(super) what: &'static str,
    pub(super) pid: u32,
    pub(super) fd: i32,
}

/// Makes a zeroed memfd of `bytes`, owner only and sealed; memory for the first `reserved` bytes
/// is allocated now, so that a shortage is an error here and no signal later.
pub(super) fn create_memfd(
    name: &str,
    bytes: NonZeroUsize,
    reserved: usize,
) -> Result<OwnedFd, SetupError> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(name, flags).map_err(SetupError::system("memfd_create"))?;
    fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR).map_err(SetupError::system("fchmod"))?;
    let length = libc::off_t::try_from(bytes.get()).map_err(|_| SetupError::System {
        what: "ftruncate of the segment",
        source: io::ErrorKind::FileTooLarge.into(),
    })?;
    ftruncate(&file, length).map_err(SetupError::system("ftruncate of the segment"))?;
    let reserved = libc::off_t::try_from(reserved.min(bytes.get())).unwrap_or(length);
    fallocate(&file, FallocateFlags::empty(), 0, reserved)
        .map_err(SetupError::system("allocating the segment"))?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).map_err(SetupError::system("sealing a memfd"))?;
    Ok(file)
}

/// Opens a memfd that [`create_memfd`] made with this size in another process.
pub(super) fn open_memfd(foreign: Foreign, bytes: NonZeroUsize) -> Result<OwnedFd, SetupError> {
    let file = reopen(foreign, SFlag::S_IFREG, "a memfd of this user", OFlag::O_RDWR)?;
    let wrong = |expected| SetupError::WrongFile {
        what: foreign.what,
        pid: foreign.pid,
        fd: foreign.fd,
        expected,
    };
    let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(|_| wrong("a memfd"))?;
    if !SealFlag::from_bits_truncate(seals).contains(SEALS) {
        return Err(wrong("a memfd of sealed size"));
    }
    let length = fstat(&file).map_err(SetupError::system("fstat"))?.st_size;
    if usize::try_from(length) != Ok(bytes.get()) {
        return Err(wrong("of the size that was told"));
    }
    Ok(file)
}

/// Opens the pipe of another process for writing. It is opened for reading too, so that a write
/// after the other's death fails by being full and raises no SIGPIPE (fifo(7)).
pub(super) fn open_pipe(foreign: Foreign) -> Result<OwnedFd, SetupError> {
    reopen(foreign, SFlag::S_IFIFO, "a pipe of this user", OFlag::O_RDWR | OFlag::O_NONBLOCK)
}

/// Looks at the file by `O_PATH` first, which has no side effect whatever it is (open(2)), and
/// opens it for use only if it is what was promised.
fn reopen(
    foreign: Foreign,
    kind: SFlag,
    expected: &'static str,
    flags: OFlag,
) -> Result<OwnedFd, SetupError> {
    let Foreign { what, pid, fd } = foreign;
    let failed = |errno: nix::Error| SetupError::Open { what, pid, fd, source: errno.into() };
    let path = format!("/proc/{pid}/fd/{fd}");
    let seen =
        open(path.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
    let stat = fstat(&seen).map_err(failed)?;
    let right_kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind;
    if !right_kind || stat.st_uid != Uid::effective().as_raw() {
        return Err(SetupError::WrongFile { what, pid, fd, expected });
    }
    let own = format!("/proc/self/fd/{}", seen.as_fd().as_raw_fd());
    open(own.as_str(), flags | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)
}
