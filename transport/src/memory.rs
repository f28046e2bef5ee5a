//! Memory that links may touch: owned regions, and borrows for the length of a scope.
//!
//! This module and the fabrics are the only places where an address becomes memory again. The
//! endpoint keeps every [`Span`](crate::link::Span) within the life of the [`Region`] or borrow it
//! was made of, and quiesces the links before that ends.

use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::Error;
use crate::verbs::fabric::Registration;
use crate::wire::Rank;

/// Bytes of a huge page; smaller regions have none.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory that an operation uses while it runs.
#[derive(Debug)]
pub enum Memory<'a> {
    /// It is only read (a root's data).
    Read(&'a [u8]),
    /// It is written (and read again, to pass blocks on).
    Write(&'a mut [u8]),
}

impl Memory<'_> {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Read(bytes) => bytes.len() as u64,
            Self::Write(bytes) => bytes.len() as u64,
        }
    }

    /// The address, with its provenance exposed, and whether it may be written.
    pub(crate) fn expose(&mut self) -> (usize, bool) {
        match self {
            Self::Read(bytes) => (bytes.as_ptr().expose_provenance(), false),
            Self::Write(bytes) => (bytes.as_mut_ptr().expose_provenance(), true),
        }
    }
}

/// Page-aligned memory, zeroed, registered with every rail of the world that made it.
///
/// It dereferences to bytes. Slices of a region that are handed to an operation are recognised, so
/// nothing is registered at the call. Its memory is unmapped when the region and the last
/// operation on it are gone.
#[derive(Debug)]
pub struct Region {
    pub(crate) inner: Arc<RegionInner>,
}

#[derive(Debug)]
pub(crate) struct RegionInner {
    // Dropped first: the rails forget the memory before it is unmapped.
    pub(crate) registration: Option<Registration>,
    mapping: Mapping,
}

impl RegionInner {
    pub(crate) fn address(&self) -> usize {
        self.mapping.start.as_ptr().expose_provenance()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mapping.bytes
    }
}

impl Region {
    pub(crate) fn new(mapping: Mapping, registration: Option<Registration>) -> Self {
        Self { inner: Arc::new(RegionInner { registration, mapping }) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.mapping.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let mapping = &self.inner.mapping;
        // SAFETY: the mapping is `bytes` long, initialised (anonymous pages read as zero) and
        // lives as long as `self`. Writers are `deref_mut`, which needs `&mut self`, and links,
        // which write only inside an endpoint scope that holds `&mut [u8]` of this very memory.
        unsafe { std::slice::from_raw_parts(mapping.start.as_ptr(), mapping.bytes) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        let mapping = &self.inner.mapping;
        // SAFETY: as in `deref`; `&mut self` excludes every other slice of this region, since
        // `inner` is cloned only by the endpoint, which never makes slices of it.
        unsafe { std::slice::from_raw_parts_mut(mapping.start.as_ptr(), mapping.bytes) }
    }
}

/// An anonymous private mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is owned memory, like a `Box<[u8]>`.
unsafe impl Send for Mapping {}
// SAFETY: shared use only reads; see `Region::deref`.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(bytes: usize, rank: Rank) -> Result<Self, Error> {
        let Some(length) = NonZeroUsize::new(bytes) else {
            return Ok(Self { start: NonNull::dangling(), bytes: 0 });
        };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: mmap(2): a new anonymous mapping at an address of the kernel's choice replaces
        // nothing.
        let start =
            unsafe { mmap_anonymous(None, length, protection, flags) }.map_err(|errno| {
                Error::System { rank, what: "mapping memory for a region", source: errno.into() }
            })?;
        if bytes >= HUGE_PAGE_BYTES {
            // Fewer translations for the kernel's copies and the adapter; only a wish.
            // SAFETY: madvise(2): the advice changes no contents, and the range is ours.
            let _ = unsafe { madvise(start, bytes, MmapAdvise::MADV_HUGEPAGE) };
        }
        Ok(Self { start: start.cast(), bytes })
    }

    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: this is exactly the range that `new` mapped, and nobody holds a slice of it
            // any more.
            let _ = unsafe { munmap(self.start.cast(), self.bytes) };
        }
    }
}

/// Copies `bytes` to `address`.
///
/// # Safety
/// `address..address + bytes.len()` lies in memory that is borrowed mutably for an endpoint scope
/// that is still open, and `bytes` does not overlap it.
pub(crate) unsafe fn copy_in(address: usize, bytes: &[u8]) {
    let target = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the caller vouches for the range; see above.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
}

/// The bytes at `address`.
///
/// # Safety
/// `address..address + bytes` lies in memory that is borrowed for an endpoint scope which outlives
/// the returned slice, and no link writes into it meanwhile.
pub(crate) unsafe fn bytes_at<'a>(address: usize, bytes: usize) -> &'a [u8] {
    let source = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller vouches for the range; see above.
    unsafe { std::slice::from_raw_parts(source, bytes) }
}
