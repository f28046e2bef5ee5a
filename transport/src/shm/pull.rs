//! Reading another process's memory (cross-memory attach, process_vm_readv(2)).

use std::io;

use serde::{Deserialize, Serialize};

use super::error::PullError;

/// Random bytes at a fixed address in a process's private memory, which prove to a reader who
/// knows them that it reads the process it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) address: u64,
    pub(super) cookie: [u64; 2],
}

const COOKIE_BYTES: usize = size_of::<[u64; 2]>();

/// Whether the system call is there for this process, which reads itself.
pub(super) fn is_there() -> bool {
    let cookie = [0x7665_7262_6361_7374, u64::from(std::process::id())];
    let address = cookie.as_ptr().expose_provenance() as u64;
    Source::probe(std::process::id(), Identity { address, cookie }).is_ok()
}

/// A process whose memory this one may read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pid: libc::pid_t,
    identity: Identity,
}

impl Source {
    /// Finds out by trying whether the memory of process `pid` can be read.
    pub(super) fn probe(pid: u32, identity: Identity) -> Result<Self, PullError> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| PullError::Gone { pid: i32::MAX })?;
        let source = Self { pid, identity };
        // SAFETY: no bytes are asked for, so nothing is written through the pointer.
        unsafe { source.pull(identity.address, std::ptr::dangling_mut(), 0) }?;
        Ok(source)
    }

    /// Reads up to `bytes` bytes from `address` of that process to `destination`; says how many
    /// came, at least one if `bytes` is not 0.
    ///
    /// Every call reads the cookie along in the same system call: should the process have died and
    /// its number gone to another, that is an error and never foreign bytes.
    ///
    /// # Safety
    /// `destination` is valid for writes of `bytes`, and nobody else uses that memory meanwhile.
    pub(super) unsafe fn pull(
        &self,
        address: u64,
        destination: *mut u8,
        bytes: usize,
    ) -> Result<usize, PullError> {
        let pid = self.pid;
        let mut cookie = [0_u64; 2];
        let local = [
            libc::iovec { iov_base: cookie.as_mut_ptr().cast(), iov_len: COOKIE_BYTES },
            libc::iovec { iov_base: destination.cast(), iov_len: bytes },
        ];
        let remote = [
            libc::iovec { iov_base: remote(self.identity.address), iov_len: COOKIE_BYTES },
            libc::iovec { iov_base: remote(address), iov_len: bytes },
        ];
        // SAFETY: the local ranges are the array above and what the caller vouches for; the remote
        // ones are checked by the kernel, which only reads them (process_vm_readv(2)).
        let read = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        let Ok(read) = usize::try_from(read) else {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::ESRCH) => PullError::Gone { pid },
                Some(libc::EFAULT) => PullError::Unmapped { pid, address: self.identity.address },
                _ => PullError::System { pid, source },
            });
        };
        if read < COOKIE_BYTES || cookie != self.identity.cookie {
            return Err(PullError::Stranger { pid });
        }
        let read = read - COOKIE_BYTES;
        if read == 0 && bytes > 0 {
            return Err(PullError::Unmapped { pid, address });
        }
        Ok(read)
    }
}

/// An address of another process: never followed here.
fn remote(address: u64) -> *mut libc::c_void {
    std::ptr::without_provenance_mut(address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_own_memory_and_checks_who_it_is() {
        let cookie = Box::new([3_u64, 4]);
        let identity =
            Identity { address: cookie.as_ptr().expose_provenance() as u64, cookie: *cookie };
        let source = Source::probe(std::process::id(), identity).unwrap();
        let data = [7_u8; 100];
        let mut into = [0_u8; 100];
        // SAFETY: `into` is a local array of that length.
        let read = unsafe {
            source.pull(data.as_ptr().expose_provenance() as u64, into.as_mut_ptr(), 100)
        };
        assert_eq!((read.unwrap(), into), (100, data));

        let other = Identity { cookie: [3, 5], ..identity };
        let refused = Source::probe(std::process::id(), other);
        assert!(matches!(refused, Err(PullError::Stranger { .. })));
        let nowhere = Identity { address: 8, ..identity };
        let refused = Source::probe(std::process::id(), nowhere);
        assert!(matches!(refused, Err(PullError::Unmapped { .. })));
        // SAFETY: nothing can be read at address 8, so nothing is written.
        let unmapped = unsafe { source.pull(8, into.as_mut_ptr(), 100) };
        assert!(matches!(unmapped, Err(PullError::Unmapped { address: 8, .. })));
    }
}
