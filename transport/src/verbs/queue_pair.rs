//! Bring-up of a queue pair as a typestate: RESET, INIT, RTR, RTS, each a type of its own.
//!
//! A transition consumes the queue pair and gives back the next one; if the device refuses, the
//! queue pair is destroyed with the error, so nobody can hold a half-made one. Receives can be
//! posted from INIT on, writes from RTS on; anything else does not compile:
//!
//! ```compile_fail,E0599
//! use verbcast_transport::verbs::queue_pair::{QueuePair, ReadyToReceive};
//!
//! fn early(pair: &mut QueuePair<ReadyToReceive>) {
//!     // SAFETY: an empty chain uses no memory.
//!     let _ = unsafe { pair.post_writes(&[]) };
//! }
//! ```
//!
//! ```
//! use verbcast_transport::verbs::queue_pair::{QueuePair, ReadyToSend};
//!
//! fn in_time(pair: &mut QueuePair<ReadyToSend>) {
//!     // SAFETY: an empty chain uses no memory.
//!     let _ = unsafe { pair.post_writes(&[]) };
//! }
//! ```
//!
//! ```compile_fail,E0382
//! use verbcast_transport::verbs::driver::InitAttributes;
//! use verbcast_transport::verbs::queue_pair::{QueuePair, Reset};
//!
//! fn twice(pair: QueuePair<Reset>, attributes: &InitAttributes) {
//!     let _ = pair.initialize(attributes);
//!     let _ = pair.initialize(attributes);
//! }
//! ```

use std::marker::PhantomData;
use std::sync::Arc;

use super::driver::{
    Capacities, CompletionQueue, Device, InitAttributes, PostError, RawQueuePair,
    ReadyToReceiveAttributes, ReadyToSendAttributes, Write,
};
use super::error::VerbsError;

/// A reliable connected queue pair in state `S`; dropping it destroys it.
pub struct QueuePair<S> {
    raw: Box<dyn RawQueuePair>,
    state: PhantomData<S>,
}

/// Just made.
#[derive(Debug)]
pub enum Reset {}

/// Has a port and a partition; takes receives.
#[derive(Debug)]
pub enum Init {}

/// Knows its peer (RTR): what the peer writes lands.
#[derive(Debug)]
pub enum ReadyToReceive {}

/// Complete (RTS). After [`QueuePair::fail`] it is in ERR, where everything posted flushes.
#[derive(Debug)]
pub enum ReadyToSend {}

/// States in which receives can be posted.
pub trait TakesReceives: sealed::Sealed {}

impl TakesReceives for Init {}
impl TakesReceives for ReadyToReceive {}
impl TakesReceives for ReadyToSend {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Init {}
    impl Sealed for super::ReadyToReceive {}
    impl Sealed for super::ReadyToSend {}
}

impl<S> QueuePair<S> {
    fn of(raw: Box<dyn RawQueuePair>) -> Self {
        Self { raw, state: PhantomData }
    }

    /// Its number, 24 bits, which the peer has to know.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.raw.number()
    }

    /// The most bytes that a write can carry inline; may be 0.
    #[must_use]
    pub fn max_inline_bytes(&self) -> u32 {
        self.raw.max_inline_bytes()
    }

    /// Moves it to ERR: what is outstanding flushes in order, and nothing lands any more.
    ///
    /// # Errors
    /// If the device refuses; then it has to be destroyed.
    pub fn fail(&mut self) -> Result<(), VerbsError> {
        self.raw.to_error()
    }
}

impl QueuePair<Reset> {
    /// Makes one that completes to `queue`, which must be of `device`.
    ///
    /// # Errors
    /// If the device cannot make one, or the capacities are over its limits.
    pub fn create(
        device: &dyn Device,
        queue: &Arc<dyn CompletionQueue>,
        capacities: Capacities,
    ) -> Result<Self, VerbsError> {
        Ok(Self::of(device.queue_pair(queue, capacities)?))
    }

    /// RESET -> INIT.
    ///
    /// # Errors
    /// If the device refuses; the queue pair is destroyed.
    pub fn initialize(
        mut self,
        attributes: &InitAttributes,
    ) -> Result<QueuePair<Init>, VerbsError> {
        self.raw.to_init(attributes)?;
        Ok(QueuePair::of(self.raw))
    }
}

impl QueuePair<Init> {
    /// INIT -> RTR.
    ///
    /// # Errors
    /// If the device refuses (on Ethernet also for want of a GRH); the queue pair is destroyed.
    pub fn ready_to_receive(
        mut self,
        attributes: &ReadyToReceiveAttributes,
    ) -> Result<QueuePair<ReadyToReceive>, VerbsError> {
        self.raw.to_ready_to_receive(attributes)?;
        Ok(QueuePair::of(self.raw))
    }
}

impl QueuePair<ReadyToReceive> {
    /// RTR -> RTS.
    ///
    /// # Errors
    /// If the device refuses; the queue pair is destroyed.
    pub fn ready_to_send(
        mut self,
        attributes: &ReadyToSendAttributes,
    ) -> Result<QueuePair<ReadyToSend>, VerbsError> {
        self.raw.to_ready_to_send(attributes)?;
        Ok(QueuePair::of(self.raw))
    }
}

impl<S: TakesReceives> QueuePair<S> {
    /// Posts `count` receives with no memory (for writes with immediate), all with this id.
    ///
    /// # Errors
    /// [`PostError`] says how many were posted.
    pub fn post_receives(&mut self, count: u32, work_id: u64) -> Result<(), PostError> {
        self.raw.post_receives(count, work_id)
    }
}

impl QueuePair<ReadyToSend> {
    /// Posts RDMA writes as one chain: one doorbell.
    ///
    /// # Safety
    /// Every `local` range lies in memory that stays mapped and registered under its lkey, and is
    /// not written, until the write (or a later signaled one of this queue pair) has completed, or
    /// the queue pair was destroyed. Inline ranges need to be readable only during the call.
    ///
    /// # Errors
    /// [`PostError`] says how many of the chain *were* posted.
    pub unsafe fn post_writes(&mut self, writes: &[Write]) -> Result<(), PostError> {
        // SAFETY: the caller keeps the contract, which is that of the raw queue pair.
        unsafe { self.raw.post_writes(writes) }
    }
}

impl<S> std::fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::{Completion, CompletionKind, PathAddress};
    use super::super::fake::{FakeNetwork, FakeSettings};
    use super::*;

    const CAPACITIES: Capacities = Capacities { send: 4, receive: 4, inline_bytes: 0 };
    const INIT: InitAttributes = InitAttributes { port: 1, pkey_index: 0 };
    const SEND: ReadyToSendAttributes =
        ReadyToSendAttributes { send_psn: 5, timeout: 18, retry_count: 6, rnr_retry: 0 };

    fn towards(destination_qpn: u32, dlid: u16) -> ReadyToReceiveAttributes {
        let address =
            PathAddress { dlid, global: None, service_level: 0, traffic_class: 0, hop_limit: 64 };
        ReadyToReceiveAttributes {
            port: 1,
            path_mtu_bytes: 4096,
            destination_qpn,
            receive_psn: 5,
            min_rnr_timer: 12,
            address,
        }
    }

    #[test]
    fn a_queue_pair_walks_through_its_states_and_carries_an_immediate() {
        let network = FakeNetwork::infiniband(2, 1, FakeSettings::default());
        let mut pairs = Vec::new();
        for host in 0..2 {
            let device = network.driver(host).open("ib0").unwrap();
            let queue = device.completion_queue(16).unwrap();
            let pair = QueuePair::create(&*device, &queue, CAPACITIES).unwrap();
            let lid = device.info().unwrap().ports[0].lid;
            pairs.push((pair.initialize(&INIT).unwrap(), queue, lid));
        }
        let (mut receiver, receives, receiver_lid) = pairs.pop().unwrap();
        let (sender, sends, sender_lid) = pairs.pop().unwrap();
        receiver.post_receives(1, 7).unwrap();
        let receiver = receiver.ready_to_receive(&towards(sender.number(), sender_lid)).unwrap();
        let sender = sender.ready_to_receive(&towards(receiver.number(), receiver_lid)).unwrap();
        let mut sender = sender.ready_to_send(&SEND).unwrap();
        let write = Write {
            work_id: 3,
            local: 0,
            bytes: 0,
            lkey: 0,
            remote: 0,
            rkey: 0,
            immediate: Some(99),
            signaled: true,
            inline: false,
        };
        // SAFETY: a write of no bytes uses no memory.
        unsafe { sender.post_writes(&[write]) }.unwrap();
        network.deliver_all();
        let mut one = [Completion::BLANK];
        assert_eq!(receives.poll(&mut one).unwrap(), 1);
        assert_eq!(one[0].kind, CompletionKind::Received { immediate: 99, bytes: 0 });
        assert_eq!(sends.poll(&mut one).unwrap(), 1);
        assert_eq!((one[0].work_id, one[0].kind), (3, CompletionKind::Write));
        sender.fail().unwrap();
        assert_eq!(network.queue_pairs(0)[0].state, "ERR");
        assert_eq!(network.violations(), []);
    }

    #[test]
    fn a_refused_transition_destroys_the_queue_pair() {
        let network = FakeNetwork::roce(1, 1, FakeSettings::default());
        let device = network.driver(0).open("fake0").unwrap();
        let queue = device.completion_queue(16).unwrap();
        let pair = QueuePair::create(&*device, &queue, CAPACITIES).unwrap();
        let pair = pair.initialize(&INIT).unwrap();
        let error = pair.ready_to_receive(&towards(1, 1)).unwrap_err();
        assert!(error.to_string().contains("ibv_modify_qp"), "{error}");
        assert!(network.queue_pairs(0)[0].destroyed);
    }
}
