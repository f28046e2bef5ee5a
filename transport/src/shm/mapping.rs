//! Memory that other processes map too.
//!
//! Control words are atomics, whose every value is valid: whatever a peer writes, a load gives some
//! number, which the reader checks. Bulk bytes are copied through raw pointers; no reference to
//! them exists.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of a memfd, unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is reached by atomics, and by copies whose callers promise that no one else
// uses the bytes meanwhile; neither depends on the thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; `&Mapping` gives atomics, and copies with that promise.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `file`, which must be a memfd whose size is sealed (so that no
    /// access can run behind its end).
    pub(super) fn new(file: BorrowedFd<'_>, bytes: NonZeroUsize) -> nix::Result<Self> {
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: without an address hint the kernel places the mapping where nothing else is
        // (mmap(2)), so no existing memory changes.
        let base = unsafe { mmap(None, bytes, prot, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self { base: base.cast(), bytes: bytes.get() })
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// If it does not lie inside the mapping, aligned: layouts never give such an offset.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        let at = self.at(offset, size_of::<AtomicU64>());
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()), "misaligned word at {offset}");
        // SAFETY: `at` checked the bounds and the mapping is page-aligned, so the pointer is valid
        // and aligned for as long as `self`; words are accessed by atomics only.
        unsafe { AtomicU64::from_ptr(at.cast().as_ptr()) }
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// As for [`Self::word`].
    pub(super) fn half_word(&self, offset: usize) -> &AtomicU32 {
        let at = self.at(offset, size_of::<AtomicU32>());
        assert!(offset.is_multiple_of(align_of::<AtomicU32>()), "misaligned word at {offset}");
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) }
    }

    /// Copies `bytes` from `source` to `offset`.
    ///
    /// # Safety
    /// `source` is valid for reads of `bytes`. By the protocol of the segment, those bytes of it
    /// are the caller's: nobody else accesses them until a word says so.
    ///
    /// # Panics
    /// If the range does not lie inside the mapping.
    pub(super) unsafe fn write(&self, offset: usize, source: *const u8, bytes: usize) {
        let to = self.at(offset, bytes).as_ptr();
        // SAFETY: `at` checked the destination's bounds, the caller vouches for the source and for
        // exclusive use; caller memory and this mapping are different allocations.
        unsafe { source.copy_to_nonoverlapping(to, bytes) }
    }

    /// Copies `bytes` from `offset` to `destination`.
    ///
    /// # Safety
    /// `destination` is valid for writes of `bytes`, and by the protocol of the segment nobody
    /// writes those bytes of it until a word says so.
    ///
    /// # Panics
    /// If the range does not lie inside the mapping.
    pub(super) unsafe fn read(&self, offset: usize, destination: *mut u8, bytes: usize) {
        let from = self.at(offset, bytes).as_ptr();
        // SAFETY: `at` checked the source's bounds, the caller vouches for the destination and that
        // the bytes rest; caller memory and this mapping are different allocations.
        unsafe { destination.copy_from_nonoverlapping(from, bytes) }
    }

    fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {offset} do not lie in a mapping of {}", self.bytes);
        // SAFETY: the assertion above: the offset stays inside the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this object made the mapping, and no reference into it outlives the object.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
    }
}
