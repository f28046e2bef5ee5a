//! Reliable connected queue pairs.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use ibverbs_sys::{
    IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096, ibv_access_flags,
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr,
    ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    ibv_sge, ibv_wr_opcode,
};

use super::super::driver::{
    Capacities, CompletionQueue, InitAttributes, PathAddress, PostError, RawQueuePair,
    ReadyToReceiveAttributes, ReadyToSendAttributes, Write,
};
use super::super::error::VerbsError;
use super::completion_queue::SysCompletionQueue;
use super::device::ProtectionDomain;
use super::returned_error;

/// Work requests per chain that is handed to the provider; longer ones go in several.
const CHAIN_MAX: usize = 64;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostReceive =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

pub(super) struct SysQueuePair {
    domain: Arc<ProtectionDomain>,
    raw: *mut ibv_qp,
    number: u32,
    max_inline_bytes: u32,
    post_send: PostSend,
    post_receive: PostReceive,
    /// Filled anew for each post, so that posting allocates nothing; cells, because each request
    /// points at the next one.
    writes: Box<[Cell<ibv_send_wr>]>,
    ranges: Box<[Cell<ibv_sge>]>,
    receives: Box<[Cell<ibv_recv_wr>]>,
    /// Outlives the queue pair.
    _queue: Arc<dyn CompletionQueue>,
}

// SAFETY: libibverbs is thread safe (see the module), the queue pair is only freed in Drop, and the
// pointers in the work requests are written and used within one call.
unsafe impl Send for SysQueuePair {}

impl SysQueuePair {
    pub(super) fn create(
        domain: &Arc<ProtectionDomain>,
        queue: &Arc<dyn CompletionQueue>,
        capacities: Capacities,
    ) -> Result<Self, VerbsError> {
        let context = &domain.context;
        let name = &context.name;
        let any: &dyn Any = &**queue;
        let own = any.downcast_ref::<SysCompletionQueue>();
        let own = own
            .filter(|own| Arc::ptr_eq(own.domain(), domain))
            .ok_or_else(|| returned_error("ibv_create_qp", name, libc::EINVAL))?;
        // SAFETY: the context is open; its table of operations is filled when it is opened.
        let operations = unsafe { (*context.raw).ops };
        let lacks = |what: &str| VerbsError::Unavailable {
            reason: format!("the provider of device {name} lacks {what}"),
        };
        let post_send = operations.post_send.ok_or_else(|| lacks("post_send"))?;
        let post_receive = operations.post_recv.ok_or_else(|| lacks("post_recv"))?;
        let (raw, max_inline_bytes) = create_raw(domain, own, capacities)?;
        // SAFETY: ibv_create_qp returned a queue pair, whose number does not change.
        let number = unsafe { (*raw).qp_num };
        tracing::debug!(device = name, number, max_inline_bytes, "queue pair");
        Ok(Self {
            domain: Arc::clone(domain),
            raw,
            number,
            max_inline_bytes,
            post_send,
            post_receive,
            writes: (0..CHAIN_MAX).map(|_| Cell::default()).collect(),
            ranges: (0..CHAIN_MAX).map(|_| Cell::default()).collect(),
            receives: (0..CHAIN_MAX).map(|_| Cell::default()).collect(),
            _queue: Arc::clone(queue),
        })
    }

    fn modify(
        &mut self,
        function: &'static str,
        mut attributes: ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        let library = &self.domain.context.library;
        let mask = mask.0 as c_int;
        // SAFETY: the queue pair is alive; the attributes that the mask names are set, all others
        // zero (ibv_modify_qp(3)).
        let result = unsafe { (library.modify_qp)(self.raw, &raw mut attributes, mask) };
        match result {
            0 => Ok(()),
            errno => Err(returned_error(function, &self.domain.context.name, errno)),
        }
    }

    /// Puts the writes into the request array as one chain, without posting it.
    fn chain(&self, writes: &[Write]) {
        for (index, write) in writes.iter().enumerate() {
            let addr = write.local as u64;
            self.ranges[index].set(ibv_sge { addr, length: write.bytes, lkey: write.lkey });
            let next =
                if index + 1 < writes.len() { self.writes[index + 1].as_ptr() } else { null_mut() };
            self.writes[index].set(send_request(write, self.ranges[index].as_ptr(), next));
        }
    }

    /// Posts one chain of at most [`CHAIN_MAX`].
    ///
    /// # Safety
    /// As for [`RawQueuePair::post_writes`].
    unsafe fn post_chain(&mut self, writes: &[Write]) -> Result<(), PostError> {
        self.chain(writes);
        let (first, mut bad) = (self.writes[0].as_ptr(), null_mut());
        // SAFETY: the queue pair is alive, and the chain and its ranges, which lie in arrays of
        // `self`, are linked within bounds and end in null; the caller keeps the memory that they
        // name (ibv_post_send(3)).
        let result = unsafe { (self.post_send)(self.raw, first, &raw mut bad) };
        match result {
            0 => Ok(()),
            errno => {
                let refused = position(first, bad, writes.len());
                Err(self.post_error("ibv_post_send", errno, refused))
            }
        }
    }

    fn post_error(&self, function: &'static str, errno: c_int, posted: usize) -> PostError {
        let source = returned_error(function, &self.domain.context.name, errno);
        let queue_full = matches!(
            &source,
            VerbsError::Verb { source, .. } if source.raw_os_error() == Some(libc::ENOMEM)
        );
        PostError { posted, queue_full, source }
    }
}

/// Creates the queue pair, without inline where the device does not give as much as asked for.
fn create_raw(
    domain: &Arc<ProtectionDomain>,
    queue: &SysCompletionQueue,
    capacities: Capacities,
) -> Result<(*mut ibv_qp, u32), VerbsError> {
    let context = &domain.context;
    let mut inline_bytes = capacities.inline_bytes;
    loop {
        let mut attributes = ibv_qp_init_attr {
            send_cq: queue.raw,
            recv_cq: queue.raw,
            cap: ibv_qp_cap {
                max_send_wr: capacities.send,
                max_recv_wr: capacities.receive,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
            ..Default::default()
        };
        // SAFETY: domain and queue are alive, and the queue pair holds them alive; the attributes
        // are zero but for those set (ibv_create_qp(3)).
        let raw = unsafe { (context.library.create_qp)(domain.raw, &raw mut attributes) };
        if !raw.is_null() {
            return Ok((raw, attributes.cap.max_inline_data));
        }
        let source = io::Error::last_os_error();
        if inline_bytes == 0 {
            let device = context.name.clone();
            return Err(VerbsError::Verb { function: "ibv_create_qp", device, source });
        }
        tracing::debug!(device = context.name, inline_bytes, %source, "trying without inline");
        inline_bytes = 0;
    }
}

/// A work request for one write.
fn send_request(write: &Write, range: *mut ibv_sge, next: *mut ibv_send_wr) -> ibv_send_wr {
    let mut flags = ibv_send_flags(0);
    if write.signaled {
        flags |= ibv_send_flags::IBV_SEND_SIGNALED;
    }
    if write.inline {
        flags |= ibv_send_flags::IBV_SEND_INLINE;
    }
    let opcode = match write.immediate {
        Some(_) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        None => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
    };
    let imm_data = write.immediate.unwrap_or(0).to_be();
    let rdma =
        ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: write.remote, rkey: write.rkey };
    ibv_send_wr {
        wr_id: write.work_id,
        next,
        sg_list: range,
        num_sge: c_int::from(write.bytes > 0),
        opcode,
        send_flags: flags.0,
        __bindgen_anon_1: ibv_send_wr__bindgen_ty_1 { imm_data },
        wr: ibv_send_wr__bindgen_ty_2 { rdma },
        ..Default::default()
    }
}

/// How many of a chain were posted: those before the bad one; all of them where the provider
/// queued the whole chain and failed to ring the doorbell, which leaves `bad` alone.
fn position<T>(first: *mut T, bad: *mut T, length: usize) -> usize {
    if bad.is_null() {
        return length;
    }
    (bad.addr().saturating_sub(first.addr()) / size_of::<T>()).min(length)
}

impl RawQueuePair for SysQueuePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn max_inline_bytes(&self) -> u32 {
        self.max_inline_bytes
    }

    fn to_init(&mut self, attributes: &InitAttributes) -> Result<(), VerbsError> {
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let raw = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            pkey_index: attributes.pkey_index,
            port_num: attributes.port,
            qp_access_flags: access.0,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp (RESET to INIT)", raw, mask)
    }

    fn to_ready_to_receive(
        &mut self,
        attributes: &ReadyToReceiveAttributes,
    ) -> Result<(), VerbsError> {
        let path_mtu = match attributes.path_mtu_bytes {
            256 => IBV_MTU_256,
            512 => IBV_MTU_512,
            1024 => IBV_MTU_1024,
            2048 => IBV_MTU_2048,
            4096 => IBV_MTU_4096,
            // No code: the device refuses it.
            _ => 0,
        };
        let raw = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu,
            dest_qp_num: attributes.destination_qpn,
            rq_psn: attributes.receive_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: attributes.min_rnr_timer,
            ah_attr: address_vector(&attributes.address, attributes.port),
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp (INIT to RTR)", raw, mask)
    }

    fn to_ready_to_send(&mut self, attributes: &ReadyToSendAttributes) -> Result<(), VerbsError> {
        let raw = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            sq_psn: attributes.send_psn,
            timeout: attributes.timeout,
            retry_cnt: attributes.retry_count,
            rnr_retry: attributes.rnr_retry,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp (RTR to RTS)", raw, mask)
    }

    fn to_error(&mut self) -> Result<(), VerbsError> {
        let raw = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify("ibv_modify_qp (to ERR)", raw, ibv_qp_attr_mask::IBV_QP_STATE)
    }

    unsafe fn post_writes(&mut self, writes: &[Write]) -> Result<(), PostError> {
        let mut posted = 0;
        for chain in writes.chunks(CHAIN_MAX) {
            // SAFETY: the caller keeps the contract for every write of the slice.
            let result = unsafe { self.post_chain(chain) };
            result.map_err(|error| PostError { posted: posted + error.posted, ..error })?;
            posted += chain.len();
        }
        Ok(())
    }

    fn post_receives(&mut self, count: u32, work_id: u64) -> Result<(), PostError> {
        let mut posted = 0;
        let count = count as usize;
        while posted < count {
            let length = (count - posted).min(CHAIN_MAX);
            for index in 0..length {
                let next =
                    if index + 1 < length { self.receives[index + 1].as_ptr() } else { null_mut() };
                let sg_list = null_mut();
                self.receives[index].set(ibv_recv_wr { wr_id: work_id, next, sg_list, num_sge: 0 });
            }
            let (first, mut bad) = (self.receives[0].as_ptr(), null_mut());
            // SAFETY: the queue pair is alive, and the chain lies in an array of `self`, is linked
            // within bounds, ends in null and names no memory (ibv_post_recv(3)).
            let result = unsafe { (self.post_receive)(self.raw, first, &raw mut bad) };
            if result != 0 {
                posted += position(first, bad, length);
                return Err(self.post_error("ibv_post_recv", result, posted));
            }
            posted += length;
        }
        Ok(())
    }
}

fn address_vector(address: &PathAddress, port: u8) -> ibv_ah_attr {
    let grh = match address.global {
        Some((sgid_index, gid)) => ibv_global_route {
            dgid: ibv_gid { raw: gid },
            flow_label: 0,
            sgid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        None => ibv_global_route::default(),
    };
    ibv_ah_attr {
        grh,
        dlid: address.dlid,
        sl: address.service_level,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(address.global.is_some()),
        port_num: port,
    }
}

impl Drop for SysQueuePair {
    fn drop(&mut self) {
        // SAFETY: from ibv_create_qp, freed once; it is attached to no multicast group.
        let result = unsafe { (self.domain.context.library.destroy_qp)(self.raw) };
        if result != 0 {
            let device = &self.domain.context.name;
            tracing::error!(device, number = self.number, result, "ibv_destroy_qp failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bad_request_tells_how_many_were_posted() {
        let mut chain = [0_u64; 8];
        let first = chain.as_mut_ptr();
        for posted in 0..8 {
            assert_eq!(position(first, first.wrapping_add(posted), 8), posted);
        }
        assert_eq!(position(first, null_mut(), 8), 8);
        assert_eq!(position(first, first.wrapping_add(99), 8), 8);
    }

    #[test]
    fn a_request_says_what_the_write_says() {
        let write = Write {
            work_id: 7,
            local: 0x1000,
            bytes: 5,
            lkey: 1,
            remote: 0xffff_0000_1234,
            rkey: 2,
            immediate: Some(0x0102_0304),
            signaled: true,
            inline: false,
        };
        let mut range = ibv_sge::default();
        let request = send_request(&write, &raw mut range, null_mut());
        assert_eq!((request.wr_id, request.num_sge), (7, 1));
        assert_eq!(request.opcode, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
        assert_eq!(request.send_flags, ibv_send_flags::IBV_SEND_SIGNALED.0);
        // SAFETY: the union holds four plain bytes.
        let immediate = unsafe { request.__bindgen_anon_1.imm_data };
        assert_eq!(immediate.to_ne_bytes(), [1, 2, 3, 4], "big-endian on the wire");
        // SAFETY: `send_request` set the rdma member.
        let rdma = unsafe { request.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey), (0xffff_0000_1234, 2));
        let silent = Write { signaled: false, inline: true, immediate: None, bytes: 0, ..write };
        let request = send_request(&silent, &raw mut range, null_mut());
        assert_eq!(request.opcode, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        assert_eq!((request.num_sge, request.send_flags), (0, ibv_send_flags::IBV_SEND_INLINE.0));
    }
}
