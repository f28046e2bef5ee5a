//! What can go wrong with a verbs provider.

use std::io;

/// An error of the verbs layer; names the C function that failed and the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs cannot be loaded, or lacks a function.
    #[error(
        "no verbs here: {reason} (install libibverbs1 and ibverbs-providers, or use --fabric shm)"
    )]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// No device of this name.
    #[error("no RDMA device named {name}; there are: {present} (see `verbcast devices`)")]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names there are, or "none".
        present: String,
    },
    /// There is a device or none, but no port that can be used.
    #[error(
        "no usable RDMA port: {reasons} (Soft-RoCE makes one of any network interface: \
         `rdma link add rxe0 type rxe netdev IFACE`; or use --fabric shm on one host)"
    )]
    NoUsablePort {
        /// Why each port there is cannot be used.
        reasons: String,
    },
    /// A device, port or GID that was asked for cannot be used.
    #[error("device {device} port {port}: {reason}")]
    Unusable {
        /// Device.
        device: String,
        /// Port number.
        port: u8,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A verb failed.
    #[error("{function} failed on device {device}")]
    Verb {
        /// The C function.
        function: &'static str,
        /// Device.
        device: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Memory could not be registered.
    #[error(
        "registering {bytes} bytes with device {device} failed; the memlock limit is {limit}: \
         raise it with `ulimit -l unlimited` (or LimitMEMLOCK=infinity for a service), or check \
         that the range is mapped"
    )]
    Registration {
        /// Device.
        device: String,
        /// Bytes asked for.
        bytes: usize,
        /// RLIMIT_MEMLOCK for people, in bytes or "unlimited".
        limit: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A completion queue got more completions than it holds; what was lost is unknown.
    #[error(
        "the completion queue of {capacity} entries on device {device} was overrun: its queue \
         pairs can have more work outstanding than it holds"
    )]
    CompletionQueueOverrun {
        /// Device.
        device: String,
        /// Completions that it holds.
        capacity: u32,
    },
    /// The device reported that it is broken.
    #[error("device {device} reported a fatal error: it has to be reset; see the kernel log")]
    DeviceFailed {
        /// Device.
        device: String,
    },
    /// A capacity over the device's limit.
    #[error("device {device} allows {limit} {what}, {asked} were asked for")]
    OverLimit {
        /// Device.
        device: String,
        /// Which capacity.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What the device allows.
        limit: u64,
    },
}
