//! Contexts, protection domains and memory regions.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048,
    ibv_access_flags, ibv_async_event, ibv_context, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_port_state,
};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::super::driver::{
    Access, Capacities, CompletionQueue, Device, DeviceInfo, DeviceLimits, LinkLayer, MemoryRegion,
    PortInfo, PortState, RawQueuePair,
};
use super::super::error::VerbsError;
use super::completion_queue::SysCompletionQueue;
use super::library::Library;
use super::queue_pair::SysQueuePair;
use super::{gid, last_error, returned_error};

/// Most asynchronous events that are taken at once.
const ASYNC_EVENTS_MAX: usize = 64;

/// The list of devices, freed when dropped.
pub(super) struct DeviceList<'a> {
    library: &'a Library,
    first: *mut *mut ibv_device,
    count: usize,
}

impl<'a> DeviceList<'a> {
    pub(super) fn read(library: &'a Library) -> Result<Self, VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: `count` is writable (ibv_get_device_list(3)).
        let first = unsafe { (library.get_device_list)(&raw mut count) };
        if first.is_null() {
            let source = io::Error::last_os_error();
            // A kernel without RDMA support says ENOSYS, and then there are no devices.
            if source.raw_os_error() != Some(libc::ENOSYS) {
                let device = "(list)".to_owned();
                return Err(VerbsError::Verb { function: "ibv_get_device_list", device, source });
            }
        }
        let count = if first.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
        Ok(Self { library, first, count })
    }

    /// The devices; valid as long as the list.
    pub(super) fn devices(&self) -> impl Iterator<Item = *mut ibv_device> + '_ {
        (0..self.count).map(|index| {
            let entry = self.first.wrapping_add(index);
            // SAFETY: the array has `count` entries (ibv_get_device_list(3)).
            unsafe { entry.read() }
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: the list came from ibv_get_device_list and is freed once; contexts that were
            // opened from it stay valid (ibv_free_device_list(3)).
            unsafe { (self.library.free_device_list)(self.first) };
        }
    }
}

/// An open device.
pub(super) struct Context {
    pub(super) library: Arc<Library>,
    pub(super) raw: *mut ibv_context,
    pub(super) name: String,
    /// Set when the device reported that it is broken.
    failed: AtomicBool,
    /// Set when the device reported that one of its completion queues is broken.
    overrun: AtomicBool,
}

// SAFETY: libibverbs is thread safe (see the module), and the context is only freed in Drop.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device of a list that is not freed yet.
    pub(super) fn open(
        library: &Arc<Library>,
        device: *mut ibv_device,
    ) -> Result<Self, VerbsError> {
        let name = library.device_name(device);
        // SAFETY: `device` is an entry of a live device list (ibv_open_device(3)).
        let raw = unsafe { (library.open_device)(device) };
        if raw.is_null() {
            return Err(last_error("ibv_open_device", &name));
        }
        let library = Arc::clone(library);
        let (failed, overrun) = (AtomicBool::new(false), AtomicBool::new(false));
        let context = Self { library, raw, name, failed, overrun };
        // SAFETY: the context is open; `async_fd` is set by ibv_open_device and never changes.
        let descriptor = unsafe { (*raw).async_fd };
        set_nonblocking(descriptor).map_err(|source| VerbsError::Verb {
            function: "fcntl (asynchronous events)",
            device: context.name.clone(),
            source,
        })?;
        Ok(context)
    }

    /// Fails if the device has reported something that no completion queue of it survives.
    pub(super) fn check_events(&self, capacity: u32) -> Result<(), VerbsError> {
        let device = || self.name.clone();
        if self.failed.load(Ordering::Relaxed) {
            return Err(VerbsError::DeviceFailed { device: device() });
        }
        if self.overrun.load(Ordering::Relaxed) {
            return Err(VerbsError::CompletionQueueOverrun { device: device(), capacity });
        }
        Ok(())
    }

    /// Takes the asynchronous events that wait: an overrun completion queue shows only there.
    pub(super) fn take_async_events(&self) {
        for _ in 0..ASYNC_EVENTS_MAX {
            let mut event = ibv_async_event::default();
            // SAFETY: the context is open and `event` writable; the descriptor does not block
            // (ibv_get_async_event(3)).
            let result = unsafe { (self.library.get_async_event)(self.raw, &raw mut event) };
            if result != 0 {
                return;
            }
            let kind = event.event_type;
            // SAFETY: the event was just taken and is acknowledged once (ibv_get_async_event(3)).
            unsafe { (self.library.ack_async_event)(&raw mut event) };
            tracing::warn!(device = self.name, event = kind, "asynchronous event");
            match kind {
                ibverbs_sys::IBV_EVENT_CQ_ERR => self.overrun.store(true, Ordering::Relaxed),
                ibverbs_sys::IBV_EVENT_DEVICE_FATAL => self.failed.store(true, Ordering::Relaxed),
                _ => {}
            }
        }
    }

    pub(super) fn info(&self) -> Result<DeviceInfo, VerbsError> {
        let mut attributes = ibv_device_attr::default();
        // SAFETY: the context is open and `attributes` writable (ibv_query_device(3)).
        let result = unsafe { (self.library.query_device)(self.raw, &raw mut attributes) };
        if result != 0 {
            return Err(returned_error("ibv_query_device", &self.name, result));
        }
        let attributes_of_ports: Vec<_> = (1..=attributes.phys_port_cnt)
            .map(|number| self.query_port(number).map(|port| (number, port)))
            .collect::<Result<_, _>>()?;
        let tables = gid::tables(self, &attributes_of_ports)?;
        let ports = attributes_of_ports.iter().zip(tables);
        let ports = ports.map(|(&(number, ref port), gids)| port_info(number, port, gids));
        let positive = |limit: c_int| u32::try_from(limit).unwrap_or(0);
        let limits = DeviceLimits {
            max_qp: positive(attributes.max_qp),
            max_qp_wr: positive(attributes.max_qp_wr),
            max_sge: positive(attributes.max_sge),
            max_cq: positive(attributes.max_cq),
            max_cqe: positive(attributes.max_cqe),
            max_mr: positive(attributes.max_mr),
            max_mr_bytes: attributes.max_mr_size,
        };
        let guid = u64::from_be(attributes.node_guid);
        Ok(DeviceInfo { name: self.name.clone(), guid, limits, ports: ports.collect() })
    }

    fn query_port(&self, number: u8) -> Result<ibv_port_attr, VerbsError> {
        let mut attributes = ibv_port_attr::default();
        let compatible = (&raw mut attributes).cast();
        // SAFETY: the exported function fills the older, shorter struct, a prefix of the zeroed
        // one it is given (verbs.h: ___ibv_query_port does the same).
        let result = unsafe { (self.library.query_port)(self.raw, number, compatible) };
        if result != 0 {
            return Err(returned_error("ibv_query_port", &self.name, result));
        }
        Ok(attributes)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by ibv_open_device, closed once; every object made with it holds it alive
        // and is gone.
        let result = unsafe { (self.library.close_device)(self.raw) };
        if result != 0 {
            tracing::error!(device = self.name, result, "ibv_close_device failed");
        }
    }
}

/// Makes a descriptor of libibverbs not block.
pub(super) fn set_nonblocking(descriptor: c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as the libibverbs object that the caller holds.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

fn port_info(
    number: u8,
    port: &ibv_port_attr,
    gids: Vec<super::super::driver::GidEntry>,
) -> PortInfo {
    let state = match port.state {
        ibv_port_state::IBV_PORT_INIT => PortState::Initializing,
        ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
        ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
        _ => PortState::Down,
    };
    let ethernet = u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET;
    PortInfo {
        number,
        state,
        link_layer: if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
        lid: if ethernet { 0 } else { port.lid },
        active_mtu_bytes: match port.active_mtu {
            IBV_MTU_256 => 256,
            IBV_MTU_512 => 512,
            IBV_MTU_1024 => 1024,
            IBV_MTU_2048 => 2048,
            _ => 4096,
        },
        max_message_bytes: port.max_msg_sz,
        pkey_count: port.pkey_tbl_len,
        rate_mbps: rate_mbps(port.active_width, port.active_speed),
        gids,
    }
}

/// Speed of a port from its width and speed codes (IBTA, PortInfo: LinkWidthActive,
/// LinkSpeedActive and LinkSpeedExtActive).
fn rate_mbps(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane_mbps = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * lane_mbps
}

/// An open device with its protection domain.
pub(super) struct OpenDevice {
    pub(super) domain: Arc<ProtectionDomain>,
    limits: DeviceLimits,
}

/// A protection domain; everything that is made in it holds it alive.
pub(super) struct ProtectionDomain {
    pub(super) context: Context,
    pub(super) raw: *mut ibv_pd,
}

// SAFETY: libibverbs is thread safe (see the module), and the domain is only freed in Drop.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: from ibv_alloc_pd, freed once; regions and queue pairs in it hold it alive and
        // are gone.
        let result = unsafe { (self.context.library.dealloc_pd)(self.raw) };
        if result != 0 {
            tracing::error!(device = self.context.name, result, "ibv_dealloc_pd failed");
        }
    }
}

impl OpenDevice {
    pub(super) fn new(context: Context) -> Result<Self, VerbsError> {
        let limits = context.info()?.limits;
        // SAFETY: the context is open (ibv_alloc_pd(3)).
        let raw = unsafe { (context.library.alloc_pd)(context.raw) };
        if raw.is_null() {
            return Err(last_error("ibv_alloc_pd", &context.name));
        }
        Ok(Self { domain: Arc::new(ProtectionDomain { context, raw }), limits })
    }

    /// Fails if more is asked for than the device has.
    fn check(&self, what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
        if asked <= limit {
            return Ok(());
        }
        let device = self.name().to_owned();
        Err(VerbsError::OverLimit { device, what, asked, limit })
    }
}

impl Device for OpenDevice {
    fn name(&self) -> &str {
        &self.domain.context.name
    }

    fn info(&self) -> Result<DeviceInfo, VerbsError> {
        self.domain.context.info()
    }

    unsafe fn register(
        &self,
        address: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Box<dyn MemoryRegion>, VerbsError> {
        self.check("bytes in a memory region", bytes as u64, self.limits.max_mr_bytes)?;
        let flags = match access {
            Access::LocalRead => ibv_access_flags(0),
            Access::RemoteWrite => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
        };
        // The work requests name the range by address; the device keeps a pointer to it.
        let _ = address.expose_provenance();
        let library = &self.domain.context.library;
        // SAFETY: the domain is alive, and the caller keeps the range mapped until the region is
        // dropped (ibv_reg_mr(3)). No optional access flags, so ibv_reg_mr_iova2 is not needed.
        let raw =
            unsafe { (library.reg_mr)(self.domain.raw, address.cast(), bytes, flags.0 as c_int) };
        if raw.is_null() {
            let (device, source) = (self.name().to_owned(), io::Error::last_os_error());
            return Err(VerbsError::Registration { device, bytes, limit: memlock_limit(), source });
        }
        // SAFETY: ibv_reg_mr returned a region, whose keys do not change.
        let region = unsafe { raw.read() };
        let domain = Arc::clone(&self.domain);
        Ok(Box::new(SysRegion { domain, raw, lkey: region.lkey, rkey: region.rkey }))
    }

    fn completion_queue(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        let limit = u64::from(self.limits.max_cqe);
        self.check("entries in a completion queue", u64::from(capacity), limit)?;
        Ok(Arc::new(SysCompletionQueue::create(&self.domain, capacity)?))
    }

    fn queue_pair(
        &self,
        queue: &Arc<dyn CompletionQueue>,
        capacities: Capacities,
    ) -> Result<Box<dyn RawQueuePair>, VerbsError> {
        let limit = u64::from(self.limits.max_qp_wr);
        self.check("send requests in a queue pair", u64::from(capacities.send), limit)?;
        self.check("receive requests in a queue pair", u64::from(capacities.receive), limit)?;
        Ok(Box::new(SysQueuePair::create(&self.domain, queue, capacities)?))
    }
}

/// RLIMIT_MEMLOCK for people.
fn memlock_limit() -> String {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => "unlimited".to_owned(),
        Ok((bytes, _)) => format!("{bytes} bytes"),
        Err(errno) => format!("unknown ({errno})"),
    }
}

struct SysRegion {
    domain: Arc<ProtectionDomain>,
    raw: *mut ibv_mr,
    lkey: u32,
    rkey: u32,
}

// SAFETY: libibverbs is thread safe (see the module), and the region is only freed in Drop.
unsafe impl Send for SysRegion {}
// SAFETY: as above; shared use reads the keys only.
unsafe impl Sync for SysRegion {}

impl MemoryRegion for SysRegion {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for SysRegion {
    fn drop(&mut self) {
        // SAFETY: from ibv_reg_mr, freed once; no memory window is bound to it (none is made here).
        let result = unsafe { (self.domain.context.library.dereg_mr)(self.raw) };
        if result != 0 {
            let device = &self.domain.context.name;
            tracing::error!(device, result, "ibv_dereg_mr failed: the memory stays registered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rate_mbps;

    #[test]
    fn rates_follow_from_width_and_speed() {
        let cases = [(1, 4, 10_000), (2, 32, 100_000), (2, 64, 200_000), (2, 128, 400_000)];
        for (width, speed, expected) in cases {
            assert_eq!(rate_mbps(width, speed), expected);
        }
        assert_eq!(rate_mbps(0, 1), 0);
        assert_eq!(rate_mbps(1, 0), 0);
    }
}
