//! Completion queues with their completion channel.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;

use ibverbs_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_opcode};

use super::super::driver::{Completion, CompletionKind, CompletionQueue};
use super::super::error::VerbsError;
use super::device::{ProtectionDomain, set_nonblocking};
use super::{last_error, returned_error};

/// Completions taken by one call of the provider.
const POLL_BATCH: usize = 16;

/// Most events taken at once; arming gives at most one each.
const EVENTS_MAX: u32 = 64;

/// `IBV_WC_GENERAL_ERR`.
const STATUS_GENERAL: u32 = 21;

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

pub(super) struct SysCompletionQueue {
    pub(super) raw: *mut ibv_cq,
    poll_cq: PollCq,
    request_notify: RequestNotify,
    capacity: u32,
    channel: Channel,
}

/// A completion channel, which does not block.
struct Channel {
    domain: Arc<ProtectionDomain>,
    raw: *mut ibv_comp_channel,
    descriptor: c_int,
}

// SAFETY: libibverbs is thread safe (see the module), and the queue is only freed in Drop.
unsafe impl Send for SysCompletionQueue {}
// SAFETY: as above; poll, arm and events take the provider's own locks.
unsafe impl Sync for SysCompletionQueue {}

impl SysCompletionQueue {
    pub(super) fn create(
        domain: &Arc<ProtectionDomain>,
        capacity: u32,
    ) -> Result<Self, VerbsError> {
        let context = &domain.context;
        // SAFETY: the context is open; its table of operations is filled when it is opened.
        let operations = unsafe { (*context.raw).ops };
        let lacks = |what: &str| VerbsError::Unavailable {
            reason: format!("the provider of device {} lacks {what}", context.name),
        };
        let poll_cq = operations.poll_cq.ok_or_else(|| lacks("poll_cq"))?;
        let request_notify = operations.req_notify_cq.ok_or_else(|| lacks("req_notify_cq"))?;
        let channel = Channel::create(domain)?;
        let entries = capacity as c_int;
        // SAFETY: context and channel are alive, and the queue holds them alive; completion vector
        // 0 always exists (ibv_create_cq(3)).
        let raw = unsafe {
            (context.library.create_cq)(context.raw, entries, null_mut(), channel.raw, 0)
        };
        if raw.is_null() {
            return Err(last_error("ibv_create_cq", &context.name));
        }
        // SAFETY: ibv_create_cq returned a queue; `cqe` changes only by ibv_resize_cq, which is
        // not used.
        let granted = unsafe { (*raw).cqe };
        let capacity = u32::try_from(granted).unwrap_or(capacity);
        tracing::debug!(device = context.name, capacity, "completion queue");
        Ok(Self { raw, poll_cq, request_notify, capacity, channel })
    }

    pub(super) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.channel.domain
    }

    fn name(&self) -> &str {
        &self.channel.domain.context.name
    }

    fn check(&self) -> Result<(), VerbsError> {
        self.channel.domain.context.check_events(self.capacity)
    }
}

impl CompletionQueue for SysCompletionQueue {
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut taken = 0;
        while taken < completions.len() {
            let wanted = (completions.len() - taken).min(POLL_BATCH);
            let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; POLL_BATCH];
            let first = batch.as_mut_ptr().cast::<ibv_wc>();
            // SAFETY: the queue is alive and `batch` has room for `wanted` (ibv_poll_cq(3)).
            let count = unsafe { (self.poll_cq)(self.raw, wanted as c_int, first) };
            let count = usize::try_from(count)
                .map_err(|_| returned_error("ibv_poll_cq", self.name(), libc::EIO))?;
            let into = &mut completions[taken..];
            for (completion, polled) in into.iter_mut().zip(&batch[..count.min(wanted)]) {
                // SAFETY: ibv_poll_cq filled the first `count` entries.
                *completion = translate(unsafe { polled.assume_init_ref() });
            }
            taken += count;
            if count < wanted {
                break;
            }
        }
        if taken == 0 {
            self.check()?;
        }
        Ok(taken)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.channel.domain.context.take_async_events();
        self.check()?;
        // SAFETY: the queue is alive (ibv_req_notify_cq(3)).
        let result = unsafe { (self.request_notify)(self.raw, 0) };
        match result {
            0 => Ok(()),
            errno => Err(returned_error("ibv_req_notify_cq", self.name(), errno)),
        }
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which `self` holds.
        unsafe { BorrowedFd::borrow_raw(self.channel.descriptor) }
    }

    fn take_events(&self) -> Result<(), VerbsError> {
        let library = &self.channel.domain.context.library;
        let mut taken = 0;
        while taken < EVENTS_MAX {
            let (mut queue, mut user) = (null_mut(), null_mut());
            // SAFETY: the channel is alive and does not block; both results are writable
            // (ibv_get_cq_event(3)).
            let result =
                unsafe { (library.get_cq_event)(self.channel.raw, &raw mut queue, &raw mut user) };
            if result == 0 {
                taken += 1;
                continue;
            }
            let error = last_error("ibv_get_cq_event", self.name());
            if taken > 0 {
                self.acknowledge(taken);
            }
            return match &error {
                VerbsError::Verb { source, .. }
                    if source.kind() == std::io::ErrorKind::WouldBlock =>
                {
                    Ok(())
                }
                _ => Err(error),
            };
        }
        self.acknowledge(taken);
        Ok(())
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }
}

impl SysCompletionQueue {
    fn acknowledge(&self, events: u32) {
        // SAFETY: the channel serves this queue alone, so all the events taken are its own
        // (ibv_get_cq_event(3)).
        unsafe { (self.channel.domain.context.library.ack_cq_events)(self.raw, events) };
    }
}

impl Drop for SysCompletionQueue {
    fn drop(&mut self) {
        // SAFETY: from ibv_create_cq, freed once; queue pairs hold the queue alive and are gone,
        // and every event that was taken was acknowledged.
        let result = unsafe { (self.channel.domain.context.library.destroy_cq)(self.raw) };
        if result != 0 {
            tracing::error!(device = self.name(), result, "ibv_destroy_cq failed");
        }
    }
}

impl Channel {
    fn create(domain: &Arc<ProtectionDomain>) -> Result<Self, VerbsError> {
        let context = &domain.context;
        // SAFETY: the context is open (ibv_create_comp_channel(3)).
        let raw = unsafe { (context.library.create_comp_channel)(context.raw) };
        if raw.is_null() {
            return Err(last_error("ibv_create_comp_channel", &context.name));
        }
        // SAFETY: ibv_create_comp_channel returned a channel, whose descriptor does not change.
        let descriptor = unsafe { (*raw).fd };
        let channel = Self { domain: Arc::clone(domain), raw, descriptor };
        let failed = |source| VerbsError::Verb {
            function: "fcntl (completion channel)",
            device: context.name.clone(),
            source,
        };
        set_nonblocking(descriptor).map_err(failed)?;
        Ok(channel)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: from ibv_create_comp_channel, freed once; its queue was destroyed just before.
        let result = unsafe { (self.domain.context.library.destroy_comp_channel)(self.raw) };
        if result != 0 {
            let device = &self.domain.context.name;
            tracing::error!(device, result, "ibv_destroy_comp_channel failed");
        }
    }
}

/// What a work completion says; its opcode means nothing unless the status is success.
fn translate(wc: &ibv_wc) -> Completion {
    let kind = match (wc.error(), wc.opcode()) {
        (Some((status, vendor)), _) => CompletionKind::Failed { status, vendor },
        (None, ibv_wc_opcode::IBV_WC_RDMA_WRITE) => CompletionKind::Write,
        (None, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM) => CompletionKind::Received {
            immediate: u32::from_be(wc.imm_data),
            bytes: wc.len() as u32,
        },
        // Nothing else is ever posted, and no peer of this protocol sends anything else.
        (None, opcode) => CompletionKind::Failed { status: STATUS_GENERAL, vendor: opcode },
    };
    Completion { work_id: wc.wr_id(), queue_pair: wc.qp_num, kind }
}
