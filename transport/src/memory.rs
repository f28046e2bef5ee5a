//! Memory that links may touch: owned regions, memory that an endpoint owns while it is open, and
//! borrows for the length of a scope.
//!
//! This module and the fabrics are the only places where an address becomes memory again. The
//! endpoint keeps every [`Span`](crate::link::Span) within the life of the [`Owned`] memory or the
//! borrow it was made of, and quiesces the links before that ends.

use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
        // which write only inside an endpoint scope that holds `&mut [u8]` of this very memory, or
        // while the region itself lies inside an `Owned`, where nobody calls this.
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

/// Memory that moves into an endpoint and comes back when its buffer is closed.
///
/// Made of a [`Region`], of a `Vec<u8>`, or of a [`Region`] that several share to send from
/// (`Arc<Region>`, which is only read). Nobody has a slice of it meanwhile: ownership has moved.
///
/// ```
/// use verbcast_transport::memory::Owned;
///
/// let owned = Owned::from(vec![7; 100]).part(10..20)?;
/// assert_eq!(owned.len(), 10);
/// assert_eq!(owned.into_bytes().map(|bytes| bytes.len()), Ok(100));
/// # Ok::<(), verbcast_transport::Error>(())
/// ```
pub struct Owned {
    store: Arc<Store>,
    address: usize,
    bytes: usize,
    /// Whether links may write.
    writable: bool,
}

enum Store {
    Region(Region),
    Shared(Arc<Region>),
    Bytes(Vec<u8>),
}

impl Owned {
    fn new(store: Store, address: usize, bytes: usize) -> Self {
        let writable = !matches!(store, Store::Shared(_));
        Self { store: Arc::new(store), address, bytes, writable }
    }

    /// Only these bytes of it, counted from where it begins now.
    ///
    /// # Errors
    /// If the range is not inside.
    pub fn part(self, range: Range<usize>) -> Result<Self, Error> {
        if range.start > range.end || range.end > self.bytes {
            return Err(Error::Invalid(format!("{range:?} is no part of {} bytes", self.bytes)));
        }
        Ok(Self { address: self.address + range.start, bytes: range.len(), ..self })
    }

    /// Only to be read by links: what is sent needs no more.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { writable: false, ..self }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The whole region that it was made of.
    ///
    /// # Errors
    /// Itself, if it was made of something else.
    pub fn into_region(self) -> Result<Region, Self> {
        self.unwrap(|store| match store {
            Store::Region(region) => Ok(region),
            other => Err(other),
        })
    }

    /// The shared region that it was made of.
    ///
    /// # Errors
    /// Itself, if it was made of something else.
    pub fn into_shared(self) -> Result<Arc<Region>, Self> {
        self.unwrap(|store| match store {
            Store::Shared(region) => Ok(region),
            other => Err(other),
        })
    }

    /// The whole vector that it was made of.
    ///
    /// # Errors
    /// Itself, if it was made of something else.
    pub fn into_bytes(self) -> Result<Vec<u8>, Self> {
        self.unwrap(|store| match store {
            Store::Bytes(bytes) => Ok(bytes),
            other => Err(other),
        })
    }

    fn unwrap<T>(self, take: impl FnOnce(Store) -> Result<T, Store>) -> Result<T, Self> {
        let Self { store, address, bytes, writable } = self;
        // The only other owner there can be is a `Held`, and `Owned` is given back without one.
        let taken = Arc::try_unwrap(store).and_then(|store| take(store).map_err(Arc::new));
        taken.map_err(|store| Self { store, address, bytes, writable })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Whether links may write into it.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Access for the application; the endpoint has made sure that no link uses the memory.
    pub(crate) fn hold(&self, status: Arc<Status>) -> Held {
        status.held.store(true, Ordering::Relaxed);
        Held { store: Arc::clone(&self.store), address: self.address, bytes: self.bytes, status }
    }
}

impl std::fmt::Debug for Owned {
    /// Without the bytes, which may be many.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, writable) = (self.bytes, self.writable);
        f.debug_struct("Owned").field("bytes", &bytes).field("writable", &writable).finish()
    }
}

impl PartialEq for Owned {
    /// Whether they are the same memory.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
            && (self.address, self.bytes) == (other.address, other.bytes)
    }
}

impl From<Region> for Owned {
    fn from(region: Region) -> Self {
        let (address, bytes) = (region.inner.address(), region.len());
        Self::new(Store::Region(region), address, bytes)
    }
}

impl From<Arc<Region>> for Owned {
    fn from(region: Arc<Region>) -> Self {
        let (address, bytes) = (region.inner.address(), region.len());
        Self::new(Store::Shared(region), address, bytes)
    }
}

impl From<Vec<u8>> for Owned {
    fn from(mut bytes: Vec<u8>) -> Self {
        let (address, length) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
        Self::new(Store::Bytes(bytes), address, length)
    }
}

/// The application's access to [`Owned`] memory whose buffer stays open: while it lasts, the
/// endpoint refuses every use of the buffer.
pub struct Held {
    store: Arc<Store>,
    address: usize,
    bytes: usize,
    status: Arc<Status>,
}

impl Held {
    /// The bytes, to be changed; `None` if others read the same memory (`Arc<Region>`).
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if matches!(*self.store, Store::Shared(_)) {
            return None;
        }
        let start = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: `store` keeps the memory alive and hands out no slice of it. The endpoint made
        // this the only `Held`, with no link using the memory, and refuses every use until `drop`.
        Some(unsafe { std::slice::from_raw_parts_mut(start, self.bytes) })
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("bytes", &self.bytes).finish()
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`; those who share a region only read it.
        unsafe { bytes_at(self.address, self.bytes) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.status.held.store(false, Ordering::Release);
    }
}

/// What an open buffer, its lender and its holder know of each other.
#[derive(Debug, Default)]
pub(crate) struct Status {
    closed: AtomicBool,
    held: AtomicBool,
}

impl Status {
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }
}

/// An open buffer's side of its [`Status`]: says that it is closed when it is dropped, however that
/// comes about.
#[derive(Debug)]
pub(crate) struct Open(pub(crate) Arc<Status>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

/// A lender's side of the [`Status`] of a buffer of borrowed memory: when the borrow is about to
/// end and the buffer is still open, the process is aborted, since a link could write into memory
/// that belongs to somebody else by then.
#[derive(Debug)]
pub(crate) struct MustClose(pub(crate) Arc<Status>);

impl MustClose {
    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }
}

impl Drop for MustClose {
    fn drop(&mut self) {
        if !self.is_closed() {
            // A log may be switched off, and nothing comes after this.
            eprintln!("verbcast: borrowed memory is still open at the end of its scope: aborting");
            std::process::abort();
        }
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
/// `address..address + bytes.len()` lies in an open buffer whose memory is owned or borrowed
/// mutably, and `bytes` does not overlap it.
pub(crate) unsafe fn copy_in(address: usize, bytes: &[u8]) {
    let target = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the caller vouches for the range; see above.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
}

/// The bytes at `address`.
///
/// # Safety
/// `address..address + bytes` lies in memory that is owned or borrowed for longer than the returned
/// slice lives, and nobody writes into it meanwhile.
pub(crate) unsafe fn bytes_at<'a>(address: usize, bytes: usize) -> &'a [u8] {
    let source = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller vouches for the range; see above.
    unsafe { std::slice::from_raw_parts(source, bytes) }
}
