//! The driver traits over a fake network.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::super::driver::{
    Access, Capacities, Completion, CompletionQueue, Device, DeviceInfo, Driver, InitAttributes,
    MemoryRegion, PostError, RawQueuePair, ReadyToReceiveAttributes, ReadyToSendAttributes,
    STATUS_FLUSHED, Write,
};
use super::super::error::VerbsError;
use super::super::select::no_such_device;
use super::state::{DeviceId, PairPhase, PairState, PostRefusal, QueueState, RegionState, State};
use super::{FakeDevice, FakeSettings};

/// How long the network's own thread rests between two rounds of steps.
const THREAD_PAUSE: Duration = Duration::from_micros(50);

/// The state with its own thread; the last handle (driver, device, queue pair, ...) ends it.
pub(super) struct Network {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Somebody may need the thread.
    work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked with the lock held has failed already; others may clean up.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers while somebody sleeps, so that a sleeper is woken though nobody polls.
    fn deliver_for_sleepers(&self) {
        let mut state = self.lock();
        while !state.stopping {
            if state.needs_thread() {
                state.steps();
                drop(state);
                std::thread::sleep(THREAD_PAUSE);
                state = self.lock();
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Network {
    pub(super) fn start(settings: FakeSettings, hosts: Vec<Vec<FakeDevice>>) -> Arc<Self> {
        let state = Mutex::new(State::new(settings, hosts));
        let shared = Arc::new(Shared { state, work: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fake-network".into())
            .spawn(move || of_thread.deliver_for_sleepers())
            .expect("a test can start a thread");
        Arc::new(Self { shared, thread: Some(thread) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Lets the network's thread look whether it is needed.
    pub(super) fn wake(&self) {
        self.shared.work.notify_one();
    }

    /// Uses the state, makes a few steps, and hands over to the thread if somebody sleeps.
    fn with<T>(&self, use_state: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = use_state(&mut state);
        let needs_thread = state.needs_thread();
        drop(state);
        if needs_thread {
            self.wake();
        }
        result
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.lock().stopping = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // It panics only if a rule of the fake itself is broken, which has printed by then.
            let _ = thread.join();
        }
    }
}

fn verb(function: &'static str, device: &str, errno: i32) -> VerbsError {
    let source = io::Error::from_raw_os_error(errno);
    VerbsError::Verb { function, device: device.to_owned(), source }
}

pub(super) struct FakeDriver {
    network: Arc<Network>,
    host: usize,
}

impl FakeDriver {
    pub(super) fn new(network: Arc<Network>, host: usize) -> Self {
        Self { network, host }
    }
}

impl Driver for FakeDriver {
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let state = self.network.lock();
        let devices = state.hosts[self.host].devices.iter().enumerate();
        let present = devices.filter(|(_, device)| !device.removed);
        Ok(present.map(|(index, _)| state.device_info((self.host, index))).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let devices = self.devices()?;
        if devices.iter().all(|info| info.name != name) {
            return Err(no_such_device(name, &devices));
        }
        let id = self.network.lock().device_id(self.host, name);
        Ok(Arc::new(OpenDevice { network: Arc::clone(&self.network), id, name: name.to_owned() }))
    }
}

struct OpenDevice {
    network: Arc<Network>,
    id: DeviceId,
    name: String,
}

impl OpenDevice {
    /// Fails if the device was removed, or if one more of `what` is over its limit.
    fn check(
        &self,
        state: &State,
        function: &'static str,
        what: &'static str,
        (asked, limit): (u64, u64),
    ) -> Result<(), VerbsError> {
        if state.device(self.id).removed {
            return Err(verb(function, &self.name, libc::EIO));
        }
        if asked > limit {
            return Err(VerbsError::OverLimit { device: self.name.clone(), what, asked, limit });
        }
        Ok(())
    }
}

impl Device for OpenDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> Result<DeviceInfo, VerbsError> {
        let state = self.network.lock();
        self.check(&state, "ibv_query_device", "devices", (0, 0))?;
        Ok(state.device_info(self.id))
    }

    unsafe fn register(
        &self,
        address: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Box<dyn MemoryRegion>, VerbsError> {
        let mut state = self.network.lock();
        let limits = state.device(self.id).spec.limits;
        let used = state.regions.values().filter(|region| region.device == self.id).count() as u64;
        self.check(&state, "ibv_reg_mr", "memory regions", (used + 1, u64::from(limits.max_mr)))?;
        let length = (bytes as u64, limits.max_mr_bytes);
        self.check(&state, "ibv_reg_mr", "bytes in a memory region", length)?;
        if bytes == 0 {
            return Err(verb("ibv_reg_mr", &self.name, libc::EINVAL));
        }
        let lkey = (state.fresh_id() as u32) << 8 | 0x4b;
        let rkey = (state.fresh_id() as u32) << 8 | 0x72;
        let address = address.expose_provenance();
        let region = RegionState { device: self.id, address, bytes, access, rkey };
        state.regions.insert(lkey, region);
        Ok(Box::new(FakeRegion { network: Arc::clone(&self.network), lkey, rkey }))
    }

    fn completion_queue(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        let mut state = self.network.lock();
        let limits = state.device(self.id).spec.limits;
        let used = state.queues.values().filter(|queue| queue.device == self.id).count() as u64;
        let count = (used + 1, u64::from(limits.max_cq));
        self.check(&state, "ibv_create_cq", "completion queues", count)?;
        let entries = (u64::from(capacity), u64::from(limits.max_cqe));
        self.check(&state, "ibv_create_cq", "entries in a completion queue", entries)?;
        if capacity == 0 {
            return Err(verb("ibv_create_cq", &self.name, libc::EINVAL));
        }
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let event = EventFd::from_flags(flags)
            .map_err(|errno| verb("ibv_create_comp_channel", &self.name, errno as i32))?;
        let event = Arc::new(event);
        let id = state.fresh_id();
        let queue = QueueState {
            device: self.id,
            capacity,
            entries: std::collections::VecDeque::new(),
            armed: false,
            overrun: false,
            event: Arc::clone(&event),
        };
        state.queues.insert(id, queue);
        let (network, device, name) = (Arc::clone(&self.network), self.id, self.name.clone());
        Ok(Arc::new(FakeCompletionQueue { network, id, device, name, capacity, event }))
    }

    fn queue_pair(
        &self,
        queue: &Arc<dyn CompletionQueue>,
        capacities: Capacities,
    ) -> Result<Box<dyn RawQueuePair>, VerbsError> {
        let any: &dyn Any = &**queue;
        let own = any.downcast_ref::<FakeCompletionQueue>();
        let own = own
            .filter(|own| own.device == self.id && Arc::ptr_eq(&own.network, &self.network))
            .ok_or_else(|| verb("ibv_create_qp", &self.name, libc::EINVAL))?;
        let mut state = self.network.lock();
        let limits = state.device(self.id).spec.limits;
        let used = state.pairs.values().filter(|pair| pair.device == self.id).count() as u64;
        let count = (used + 1, u64::from(limits.max_qp));
        self.check(&state, "ibv_create_qp", "queue pairs", count)?;
        for (what, asked) in
            [("send requests", capacities.send), ("receive requests", capacities.receive)]
        {
            let pair = (u64::from(asked), u64::from(limits.max_qp_wr));
            self.check(&state, "ibv_create_qp", what, pair)?;
        }
        let inline_bytes = capacities.inline_bytes.min(state.settings.max_inline_bytes);
        let capacities = Capacities { inline_bytes, ..capacities };
        let id = state.fresh_id();
        let number = state.device(self.id).next_number;
        state.device_mut(self.id).next_number += 1;
        state.numbers.insert((self.id, number), id);
        state.pairs.insert(id, PairState::new(self.id, number, own.id, capacities));
        let (network, queue) = (Arc::clone(&self.network), Arc::clone(queue));
        let name = self.name.clone();
        Ok(Box::new(FakeQueuePair { network, id, number, inline_bytes, name, _queue: queue }))
    }
}

impl PairState {
    fn new(device: DeviceId, number: u32, queue: u64, capacities: Capacities) -> Self {
        Self {
            device,
            number,
            queue,
            capacities,
            phase: PairPhase::Reset,
            init: None,
            ready_to_receive: None,
            ready_to_send: None,
            pending: Default::default(),
            sends_done: Default::default(),
            receives: Default::default(),
            receives_done: Default::default(),
            sends_posted: 0,
            sends_freed: 0,
            signaled_through: 0,
            receives_posted: 0,
            receives_freed: 0,
            writes: 0,
            bytes: 0,
            most_outstanding: 0,
            is_active: false,
        }
    }
}

struct FakeRegion {
    network: Arc<Network>,
    lkey: u32,
    rkey: u32,
}

impl MemoryRegion for FakeRegion {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        self.network.lock().regions.remove(&self.lkey);
    }
}

struct FakeCompletionQueue {
    network: Arc<Network>,
    id: u64,
    device: DeviceId,
    name: String,
    capacity: u32,
    event: Arc<EventFd>,
}

impl FakeCompletionQueue {
    fn overrun(&self) -> VerbsError {
        let (device, capacity) = (self.name.clone(), self.capacity);
        VerbsError::CompletionQueueOverrun { device, capacity }
    }
}

impl CompletionQueue for FakeCompletionQueue {
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        self.network
            .with(|state| {
                state.steps();
                state.poll(self.id, completions)
            })
            .ok_or_else(|| self.overrun())
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.network
            .with(|state| {
                let armed = state.arm(self.id);
                state.steps();
                armed
            })
            .ok_or_else(|| self.overrun())
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn take_events(&self) -> Result<(), VerbsError> {
        match self.event.read() {
            Ok(_) | Err(nix::errno::Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(verb("ibv_get_cq_event", &self.name, errno as i32)),
        }
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }
}

impl Drop for FakeCompletionQueue {
    fn drop(&mut self) {
        self.network.lock().queues.remove(&self.id);
    }
}

struct FakeQueuePair {
    network: Arc<Network>,
    id: u64,
    number: u32,
    inline_bytes: u32,
    name: String,
    /// Outlives the queue pair.
    _queue: Arc<dyn CompletionQueue>,
}

impl FakeQueuePair {
    fn modified(&self, result: Result<(), i32>) -> Result<(), VerbsError> {
        result.map_err(|errno| verb("ibv_modify_qp", &self.name, errno))
    }

    fn posted(
        &self,
        function: &'static str,
        result: Result<(), PostRefusal>,
    ) -> Result<(), PostError> {
        result.map_err(|PostRefusal { posted, queue_full, errno }| PostError {
            posted,
            queue_full,
            source: verb(function, &self.name, errno),
        })
    }
}

impl RawQueuePair for FakeQueuePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn max_inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    fn to_init(&mut self, attributes: &InitAttributes) -> Result<(), VerbsError> {
        self.modified(self.network.lock().move_to_init(self.id, attributes))
    }

    fn to_ready_to_receive(
        &mut self,
        attributes: &ReadyToReceiveAttributes,
    ) -> Result<(), VerbsError> {
        self.modified(self.network.lock().move_to_ready_to_receive(self.id, attributes))
    }

    fn to_ready_to_send(&mut self, attributes: &ReadyToSendAttributes) -> Result<(), VerbsError> {
        self.modified(self.network.lock().move_to_ready_to_send(self.id, attributes))
    }

    fn to_error(&mut self) -> Result<(), VerbsError> {
        self.network.with(|state| state.fail_pair(self.id, STATUS_FLUSHED, true));
        Ok(())
    }

    unsafe fn post_writes(&mut self, writes: &[Write]) -> Result<(), PostError> {
        let capture = |write: &Write| {
            let inline = (write.inline && write.bytes > 0).then(|| {
                let first = std::ptr::with_exposed_provenance::<u8>(write.local);
                // SAFETY: the caller promises that inline ranges are readable during this call.
                let bytes = unsafe { std::slice::from_raw_parts(first, write.bytes as usize) };
                Box::from(bytes)
            });
            (*write, inline)
        };
        let chain = writes.iter().map(capture).collect();
        let result = self.network.with(|state| {
            let result = state.post_writes(self.id, chain);
            state.steps();
            result
        });
        self.posted("ibv_post_send", result)
    }

    fn post_receives(&mut self, count: u32, work_id: u64) -> Result<(), PostError> {
        let result = self.network.with(|state| state.post_receives(self.id, count, work_id));
        self.posted("ibv_post_recv", result)
    }
}

impl Drop for FakeQueuePair {
    fn drop(&mut self) {
        let mut state = self.network.lock();
        let Some(pair) = state.pairs.remove(&self.id) else { return };
        state.numbers.remove(&(pair.device, pair.number));
        let mut report = state.report(&pair);
        report.destroyed = true;
        state.destroyed.push((self.id, report));
        if pair.is_active {
            state.active.retain(|&id| id != self.id);
        }
    }
}
