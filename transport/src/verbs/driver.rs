//! What the links need of a verbs provider: the seam between them and libibverbs or the strict fake.
//!
//! Names follow the verbs manual pages. Everything is by trait object: one virtual call per batch
//! of work requests is small beside a doorbell. Order of tear-down: queue pairs (in ERR, drained)
//! before their completion queue and memory regions, these before the device; the objects keep
//! what they need alive (a queue pair holds its completion queue and its device).

use std::any::Any;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::Serialize;

use super::error::VerbsError;

/// A provider of devices: libibverbs, or the fake.
pub trait Driver: Send + Sync {
    /// The devices there are, with their ports and GIDs; an empty list where there are none.
    ///
    /// # Errors
    /// If the list cannot be read.
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError>;

    /// Opens a device by name, with a protection domain.
    ///
    /// # Errors
    /// If there is no such device or it cannot be opened.
    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError>;
}

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// Node GUID.
    pub guid: u64,
    /// Limits of the device.
    pub limits: DeviceLimits,
    /// Ports, numbered from 1.
    pub ports: Vec<PortInfo>,
}

/// Limits that link set-up checks against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most outstanding work requests of a queue.
    pub max_qp_wr: u32,
    /// Most scatter/gather entries of a work request.
    pub max_sge: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Longest memory region, in bytes.
    pub max_mr_bytes: u64,
}

/// Kind of network behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    /// Addressed by LID.
    InfiniBand,
    /// RoCE: addressed by GID, always with a GRH.
    Ethernet,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// No link.
    Down,
    /// Coming up.
    Initializing,
    /// Link up, not configured.
    Armed,
    /// Usable.
    Active,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Port number, from 1.
    pub number: u8,
    /// State.
    pub state: PortState,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Bytes of the active path MTU.
    pub active_mtu_bytes: u32,
    /// Longest message, in bytes.
    pub max_message_bytes: u32,
    /// Entries of the pkey table.
    pub pkey_count: u16,
    /// Speed of one lane times the width, in Mbit/s; 0 where unknown.
    pub rate_mbps: u32,
    /// The GIDs that are not zero.
    pub gids: Vec<GidEntry>,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the port's table (not the position among the entries that are not zero).
    pub index: u32,
    /// The GID.
    pub gid: [u8; 16],
    /// What it is used with.
    pub kind: GidKind,
    /// Interface name of the network device, where there is one.
    pub interface: Option<String>,
}

impl GidEntry {
    /// The GID as an address: IPv4-mapped ones are `::ffff:a.b.c.d`.
    #[must_use]
    pub fn address(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.gid)
    }
}

/// What a GID is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1.
    RoceV1,
    /// RoCE version 2.
    RoceV2,
}

/// An open device with its protection domain.
pub trait Device: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// What it is now: ports and GIDs are read again (they move when a port flaps).
    ///
    /// # Errors
    /// If the device does not answer.
    fn info(&self) -> Result<DeviceInfo, VerbsError>;

    /// Registers `bytes` bytes at `address`.
    ///
    /// # Safety
    /// The memory is mapped (writable if `access` lets anybody write) and stays so until the
    /// returned region is dropped; until then nobody relies on bytes that the device may write.
    ///
    /// # Errors
    /// If the range cannot be registered; where the memlock limit is the likely cause it is named.
    unsafe fn register(
        &self,
        address: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Box<dyn MemoryRegion>, VerbsError>;

    /// A completion queue for `capacity` completions, with a completion channel.
    ///
    /// # Errors
    /// If the device cannot make one.
    fn completion_queue(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, VerbsError>;

    /// A reliable connected queue pair in state RESET, completing to `queue`, which must be of
    /// this device.
    ///
    /// # Errors
    /// If the device cannot make one, or the capacities are over its limits.
    fn queue_pair(
        &self,
        queue: &Arc<dyn CompletionQueue>,
        capacities: Capacities,
    ) -> Result<Box<dyn RawQueuePair>, VerbsError>;
}

/// Who may do what with a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only the local device reads it (a source of sends).
    LocalRead,
    /// The local device and peers write it.
    RemoteWrite,
}

/// A registered range of memory; dropping it deregisters.
pub trait MemoryRegion: Send + Sync {
    /// Local key.
    fn lkey(&self) -> u32;
    /// Remote key.
    fn rkey(&self) -> u32;
}

/// A completion queue with its completion channel (`Any`: a device recognises its own ones).
pub trait CompletionQueue: Any + Send + Sync {
    /// Takes up to `completions.len()` completions and says how many.
    ///
    /// # Errors
    /// If the queue is broken (an overrun included).
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbsError>;

    /// Asks for an event at the next completion; poll again after it, before sleeping.
    ///
    /// # Errors
    /// If the device refuses.
    fn arm(&self) -> Result<(), VerbsError>;

    /// Readable when an event waits.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Takes and acknowledges the events that wait, without blocking.
    ///
    /// # Errors
    /// If the channel is broken.
    fn take_events(&self) -> Result<(), VerbsError>;

    /// How many completions it holds.
    fn capacity(&self) -> u32;
}

/// What a queue pair must be able to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Send work requests.
    pub send: u32,
    /// Receive work requests.
    pub receive: u32,
    /// Inline bytes asked for; the device may give fewer or more.
    pub inline_bytes: u32,
}

/// How a path to a peer's port is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAddress {
    /// Destination LID; 0 on Ethernet.
    pub dlid: u16,
    /// With a GRH: own GID index and the peer's GID. Always there on Ethernet.
    pub global: Option<(u8, [u8; 16])>,
    /// Service level.
    pub service_level: u8,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Hop limit of the GRH.
    pub hop_limit: u8,
}

/// RESET -> INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttributes {
    /// Own port.
    pub port: u8,
    /// Index in the port's pkey table.
    pub pkey_index: u16,
}

/// INIT -> RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceiveAttributes {
    /// Own port.
    pub port: u8,
    /// Bytes of the path MTU: 256, 512, 1024, 2048 or 4096.
    pub path_mtu_bytes: u32,
    /// The peer's queue pair.
    pub destination_qpn: u32,
    /// First packet sequence number that the peer sends.
    pub receive_psn: u32,
    /// RNR timer code; 0 is 655 ms, use 12.
    pub min_rnr_timer: u8,
    /// The way to the peer.
    pub address: PathAddress,
}

/// RTR -> RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSendAttributes {
    /// First packet sequence number that we send.
    pub send_psn: u32,
    /// Acknowledgement timeout code: 4.096 us * 2^timeout.
    pub timeout: u8,
    /// Retries; 7 is for ever on Soft-RoCE.
    pub retry_count: u8,
    /// Retries after RNR; 7 is for ever.
    pub rnr_retry: u8,
}

/// A reliable connected queue pair as the provider knows it; `super::queue_pair` puts the
/// typestate on top. Dropping it destroys it.
pub trait RawQueuePair: Send {
    /// Its number, 24 bits.
    fn number(&self) -> u32;
    /// Inline bytes that it takes.
    fn max_inline_bytes(&self) -> u32;
    /// RESET -> INIT.
    ///
    /// # Errors
    /// If the device refuses.
    fn to_init(&mut self, attributes: &InitAttributes) -> Result<(), VerbsError>;
    /// INIT -> RTR.
    ///
    /// # Errors
    /// If the device refuses.
    fn to_ready_to_receive(
        &mut self,
        attributes: &ReadyToReceiveAttributes,
    ) -> Result<(), VerbsError>;
    /// RTR -> RTS.
    ///
    /// # Errors
    /// If the device refuses.
    fn to_ready_to_send(&mut self, attributes: &ReadyToSendAttributes) -> Result<(), VerbsError>;
    /// Any state -> ERR: everything outstanding completes with a flush error, nothing more lands.
    ///
    /// # Errors
    /// If the device refuses.
    fn to_error(&mut self) -> Result<(), VerbsError>;

    /// Posts RDMA writes as one chain.
    ///
    /// # Safety
    /// Every `local` range lies in memory that stays mapped and registered under its lkey, and is
    /// not written, until the write (or a later signaled one of this queue pair) has completed, or
    /// the queue pair was destroyed. Inline ranges need to be readable only during the call.
    ///
    /// # Errors
    /// [`PostError`] says how many of the chain *were* posted.
    unsafe fn post_writes(&mut self, writes: &[Write]) -> Result<(), PostError>;

    /// Posts `count` receives with no memory (for writes with immediate), all with this id.
    ///
    /// # Errors
    /// [`PostError`] says how many were posted.
    fn post_receives(&mut self, count: u32, work_id: u64) -> Result<(), PostError>;
}

/// An RDMA write, with or without immediate; one local range.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Comes back in the completion.
    pub work_id: u64,
    /// Address of the local bytes (provenance exposed); may be 0 when `bytes` is 0.
    pub local: usize,
    /// Length in bytes.
    pub bytes: u32,
    /// Local key; unused when inline or empty.
    pub lkey: u32,
    /// Remote address.
    pub remote: u64,
    /// Remote key.
    pub rkey: u32,
    /// Immediate, in host byte order (the provider puts it on the wire big-endian).
    pub immediate: Option<u32>,
    /// Ask for a completion.
    pub signaled: bool,
    /// Copy the bytes into the work request.
    pub inline: bool,
}

/// A chain that was not posted whole.
#[derive(Debug, thiserror::Error)]
#[error("only {posted} work requests of the chain were posted")]
pub struct PostError {
    /// Work requests that were posted, from the first on.
    pub posted: usize,
    /// Whether the queue was full (then posting again after completions helps).
    pub queue_full: bool,
    /// What the provider said.
    #[source]
    pub source: VerbsError,
}

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A send-queue entry (and all unsignaled ones before it) is done.
    Write,
    /// A receive was used up by a write with this immediate (host byte order).
    Received {
        /// The immediate.
        immediate: u32,
        /// Bytes that the write carried.
        bytes: u32,
    },
    /// It failed with this `ibv_wc_status`; whether a write landed is unknown, and the kind of
    /// work is told by `work_id` alone.
    Failed {
        /// `ibv_wc_status`.
        status: u32,
        /// Vendor's code.
        vendor: u32,
    },
}

/// `ibv_wc_status` of work that was flushed because its queue pair went to ERR.
pub const STATUS_FLUSHED: u32 = 5;

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id given when it was posted.
    pub work_id: u64,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// What happened.
    pub kind: CompletionKind,
}

impl Completion {
    /// A blank entry for the array that `poll` fills.
    pub const BLANK: Self = Self { work_id: 0, queue_pair: 0, kind: CompletionKind::Write };
}
