//! Memory for operations: regions, scopes, owned buffers, and borrows that outlive a call.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smallvec::SmallVec;

use super::Endpoint;
use super::buffers::{BufferId, Source};
use crate::error::Error;
use crate::memory::{Held, Mapping, Memory, MustClose, Owned, Region, RegionInner, Status};
use crate::verbs::driver::Access;
use crate::verbs::fabric::Registration;

/// Memory that could not be opened, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotOpened {
    /// The memory.
    pub memory: Owned,
    /// Why.
    #[source]
    pub error: Error,
}

impl Endpoint {
    /// Allocates a [`Region`] of `bytes` bytes, registered with every rail.
    ///
    /// # Errors
    /// If the memory cannot be mapped or registered (the memlock limit is named).
    pub fn region(&mut self, bytes: usize) -> Result<Region, Error> {
        let mapping = Mapping::new(bytes, self.rank)?;
        let registration = match (&self.verbs, bytes) {
            (Some(verbs), 1..) => {
                // SAFETY: the mapping is readable and writable, and `RegionInner` drops the
                // registration before it.
                Some(unsafe { verbs.register(mapping.address(), bytes, Access::RemoteWrite) }?)
            }
            _ => None,
        };
        let region = Region::new(mapping, registration);
        self.regions.retain(|known| known.strong_count() > 0);
        self.regions.push(Arc::downgrade(&region.inner));
        Ok(region)
    }

    /// Runs `work` with `memory` usable by the links under the [`BufferId`] it gets.
    ///
    /// When `work` has returned or panicked, nothing touches the memory any more: links over which
    /// it still could be read or written are quiesced (queue pairs to ERR and drained), and what
    /// was registered for the call is deregistered. `register` says whether blocks will move by
    /// verbs; small messages alone need no registration.
    ///
    /// # Errors
    /// If the memory cannot be registered; `work` is not run then.
    pub fn scope<R>(
        &mut self,
        memory: Memory<'_>,
        register: bool,
        work: impl FnOnce(&mut Self, BufferId) -> R,
    ) -> Result<R, Error> {
        let (id, status) = self.open_borrowed(memory, register)?;
        let guard = ScopeGuard { endpoint: self, id, _must_close: MustClose(status) };
        let result = work(guard.endpoint, id);
        // Before the borrow that `memory` holds ends, which is at the return.
        drop(guard);
        Ok(result)
    }

    /// Opens memory for as long as an operation needs it: the buffer owns it until
    /// [`close`](Endpoint::close). `register` is as in [`scope`](Endpoint::scope).
    ///
    /// # Errors
    /// If the memory cannot be registered or too many buffers are open: it comes back with the
    /// error.
    pub fn open_owned(
        &mut self,
        memory: impl Into<Owned>,
        register: bool,
    ) -> Result<BufferId, Box<NotOpened>> {
        let memory = memory.into();
        let (address, bytes, writable) =
            (memory.address(), memory.len() as u64, memory.is_writable());
        match self.keys_for(address, bytes, writable, register) {
            Ok((region, registration)) => {
                let owned = Some(memory);
                let losses = self.flows.losses();
                let source =
                    Source { address, bytes, writable, region, registration, owned, losses };
                Ok(self.buffers.insert(source).0)
            }
            Err(error) => Err(Box::new(NotOpened { memory, error })),
        }
    }

    /// Closes a buffer and gives owned memory back. Links over which it could still be read or
    /// written are quiesced first, so this is bounded whatever the peers do; there are none when it
    /// [is quiet](Endpoint::is_quiet).
    ///
    /// `None` for borrowed memory, and for memory that the application [holds](Endpoint::hold).
    ///
    /// # Errors
    /// If the buffer is not open.
    pub fn close(&mut self, buffer: BufferId) -> Result<Option<Owned>, Error> {
        if !self.buffers.is_open(buffer) {
            return Err(Error::Invalid("this buffer is not open (any more)".into()));
        }
        Ok(self.close_buffer(buffer))
    }

    /// Hands the bytes of an owned buffer to the application, between two starts of a persistent
    /// operation: they stay registered and granted. Until the [`Held`] is dropped, every use of
    /// the buffer but [`close`](Endpoint::close) is an error.
    ///
    /// # Errors
    /// If the buffer is not open, is borrowed memory or held already, is being sent from, or has a
    /// receive whose blocks have not all come.
    pub fn hold(&mut self, buffer: BufferId) -> Result<Held, Error> {
        self.buffers.hold(buffer)
    }

    fn open_borrowed(
        &mut self,
        mut memory: Memory<'_>,
        register: bool,
    ) -> Result<(BufferId, Arc<Status>), Error> {
        let bytes = memory.bytes();
        let (address, writable) = memory.expose();
        let (region, registration) = self.keys_for(address, bytes, writable, register)?;
        let (owned, losses) = (None, self.flows.losses());
        let source = Source { address, bytes, writable, region, registration, owned, losses };
        Ok(self.buffers.insert(source))
    }

    /// What a new buffer is registered with, if there may be another one.
    fn keys_for(
        &self,
        address: usize,
        bytes: u64,
        writable: bool,
        register: bool,
    ) -> Result<(Option<Arc<RegionInner>>, Option<Registration>), Error> {
        if !self.buffers.has_room() {
            return Err(Error::Invalid("too many buffers are open at once".into()));
        }
        let Some(verbs) = self.verbs.as_ref().filter(|_| register && bytes > 0) else {
            return Ok((None, None));
        };
        let end = address + bytes as usize;
        let region =
            self.regions.iter().filter_map(Weak::upgrade).find(|region| {
                region.address() <= address && end <= region.address() + region.bytes()
            });
        if let Some(region) = region {
            return Ok((Some(region), None));
        }
        let access = if writable { Access::RemoteWrite } else { Access::LocalRead };
        // SAFETY: the memory is owned by the buffer, or borrowed until its lender has seen the
        // buffer closed (`MustClose`), and closing it drops the registration first; memory that is
        // only read is registered without write access.
        let registration = unsafe { verbs.register(address, bytes as usize, access) }?;
        Ok((None, Some(registration)))
    }

    fn close_buffer(&mut self, id: BufferId) -> Option<Owned> {
        let in_doubt = self.buffers.peers_in_doubt(id);
        let handles = self.buffers.handles_of(id);
        for handle in self.buffers.incomplete_receives_of(id) {
            self.forget_receive(handle);
        }
        self.buffers.close_receives(id);
        for peer in in_doubt {
            tracing::debug!(rank = self.rank, peer, "quiescing a link that may touch a buffer");
            self.buffers.sends_gone(id, peer);
            // Operations on other buffers must hear that their link has ended, too.
            if self.buffers.uses_link(peer) && !self.broken.contains(&peer) {
                self.broken.push(peer);
            }
            self.quiesce(peer);
        }
        for handle in handles {
            self.receives.close(handle);
        }
        self.buffers.remove(id)
    }
}

/// Closes a buffer at the end of its scope, also when the work panicked.
struct ScopeGuard<'a> {
    endpoint: &'a mut Endpoint,
    id: BufferId,
    // Looked at last: the work may have put another endpoint into the place of this one.
    _must_close: MustClose,
}

impl Drop for ScopeGuard<'_> {
    fn drop(&mut self) {
        self.endpoint.close_buffer(self.id);
    }
}

/// Most calls lend one or two buffers: then nothing is allocated.
type Opened = SmallVec<[(BufferId, MustClose); 2]>;

/// Borrowed memory that operations use while [`lend`] runs.
#[derive(Debug)]
pub struct Lending<'scope, 'env: 'scope> {
    opened: Mutex<Opened>,
    // Both invariant, as in `std::thread::Scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Lending<'scope, '_> {
    /// Opens borrowed memory until [`Endpoint::close`] or the end of [`lend`]; `register` is as in
    /// [`Endpoint::scope`]. The memory itself is the caller's again when [`lend`] returns.
    ///
    /// # Errors
    /// If the memory cannot be registered or too many buffers are open.
    pub fn open(
        &'scope self,
        endpoint: &mut Endpoint,
        memory: Memory<'scope>,
        register: bool,
    ) -> Result<BufferId, Error> {
        let mut opened = self.lock();
        opened.retain(|(_, lent)| !lent.is_closed());
        let (id, status) = endpoint.open_borrowed(memory, register)?;
        opened.push((id, MustClose(status)));
        Ok(id)
    }

    fn lock(&self) -> MutexGuard<'_, Opened> {
        // The list is whole after every statement.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work`, in which operations that outlive a call may borrow memory, as threads may in
/// [`std::thread::scope`]: whatever the caller leaks or drops, nothing touches that memory when
/// `lend` has returned.
///
/// When `work` has returned or panicked, `close` is called for every buffer that is still open; it
/// has to [close](Endpoint::close) it, on the endpoint that it was opened on. The process is
/// aborted if one is open after that: its memory is about to be somebody else's, and a peer could
/// still write into it.
///
/// ```no_run
/// # use std::sync::Mutex;
/// # use verbcast_transport::{endpoint::{Endpoint, lend}, memory::Memory};
/// # fn example(endpoint: &Mutex<Endpoint>) -> Result<(), verbcast_transport::Error> {
/// let mut bytes = vec![0; 1 << 20];
/// let close = |buffer| drop(endpoint.lock().map(|mut endpoint| endpoint.close(buffer)));
/// lend(close, |lending| {
///     let mut endpoint = endpoint.lock().expect("no panic");
///     let buffer = lending.open(&mut endpoint, Memory::Write(&mut bytes), true)?;
///     // Operations on `buffer`, of this thread and others.
///     # let _ = buffer;
///     Ok(())
/// })
/// # }
/// ```
pub fn lend<'env, R>(
    close: impl FnMut(BufferId),
    work: impl for<'scope> FnOnce(&'scope Lending<'scope, 'env>) -> R,
) -> R {
    // Dropped last, which is when it is looked whether all are closed.
    let lending = Lending { opened: Mutex::default(), scope: PhantomData, env: PhantomData };
    let _ending = Ending { opened: &lending.opened, close };
    work(&lending)
}

/// Has every lent buffer closed, also when the work panicked.
struct Ending<'a, C: FnMut(BufferId)> {
    opened: &'a Mutex<Opened>,
    close: C,
}

impl<C: FnMut(BufferId)> Drop for Ending<'_, C> {
    fn drop(&mut self) {
        let mut next = 0;
        loop {
            // Not locked while `close` runs.
            let lent = {
                let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
                opened.get(next).map(|(id, lent)| (*id, lent.is_closed()))
            };
            match lent {
                Some((id, false)) => (self.close)(id),
                Some(_) => {}
                None => return,
            }
            next += 1;
        }
    }
}
