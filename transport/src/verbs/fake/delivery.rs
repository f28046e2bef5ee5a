//! Deliveries: the steps by which posted writes land and completions surface.

use super::super::driver::{
    Access, Completion, CompletionKind, LinkLayer, PathAddress, PortState, STATUS_FLUSHED,
};
use super::state::{
    DeviceId, Frees, PairPhase, PairState, PendingWrite, QueueEntry, SendDone, State, failed,
};
use super::{LandedWrite, Rule};

// `ibv_wc_status` values (ibv_poll_cq(3)).
const STATUS_LOCAL_LENGTH: u32 = 1;
const STATUS_LOCAL_PROTECTION: u32 = 4;
const STATUS_REMOTE_ACCESS: u32 = 10;
pub(super) const STATUS_RETRY_EXCEEDED: u32 = 12;
const STATUS_RNR_RETRY_EXCEEDED: u32 = 13;

/// What an attempt to land a write came to.
enum Landing {
    /// Some packets landed.
    Partly,
    /// All did.
    Whole,
    /// None of the rest will: the status of the completion.
    Failed(u32),
}

/// One copy of bytes from a registered range into another, or from captured inline bytes.
enum Source<'a> {
    Registered(usize),
    Captured(&'a [u8]),
}

impl State {
    /// Makes a few steps.
    pub(super) fn steps(&mut self) {
        for _ in 0..self.rng.u32(0..=self.settings.steps_per_call) {
            if !self.step() {
                break;
            }
        }
    }

    /// Makes one step of one queue pair chosen by the seed; false if there is nothing to do.
    pub(super) fn step(&mut self) -> bool {
        if self.active.is_empty() {
            return false;
        }
        let position = self.rng.usize(0..self.active.len());
        let id = self.active[position];
        let Some(pair) = self.pairs.get(&id) else {
            self.active.swap_remove(position);
            return true;
        };
        let frozen = self.hosts[pair.device.0].frozen;
        let ways = [
            !pair.pending.is_empty() && !frozen,
            !pair.sends_done.is_empty(),
            !pair.receives_done.is_empty(),
        ];
        let count = ways.iter().filter(|way| **way).count();
        if count == 0 {
            self.active.swap_remove(position);
            self.pair_mut(id).is_active = false;
            return true;
        }
        let choice = self.rng.usize(0..count);
        let way = (0..3).filter(|&way| ways[way]).nth(choice);
        match way {
            Some(0) => self.advance_write(id),
            Some(1) => self.surface_send(id),
            _ => self.surface_receive(id),
        }
        true
    }

    /// Lets the queue pair take part in the steps.
    pub(super) fn activate(&mut self, id: u64) {
        let pair = self.pair_mut(id);
        if !std::mem::replace(&mut pair.is_active, true) {
            self.active.push(id);
        }
    }

    pub(super) fn thaw(&mut self, host: usize) {
        self.hosts[host].frozen = false;
        let of_host = self.pairs.iter().filter(|(_, pair)| pair.device.0 == host);
        for id in of_host.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.activate(id);
        }
    }

    pub(super) fn remove_device(&mut self, device: DeviceId) {
        self.device_mut(device).removed = true;
        let of_device = self.pairs.iter().filter(|(_, pair)| pair.device == device);
        for id in of_device.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.fail_pair(id, STATUS_FLUSHED, true);
        }
    }

    /// Moves a queue pair to ERR: what has not completed fails, the oldest with `status`, the rest
    /// flushed, in order. With `cut_short`, writes that landed but were not acknowledged yet may
    /// be among the failed ones.
    pub(super) fn fail_pair(&mut self, id: u64, status: u32, cut_short: bool) {
        let landed = self.pair(id).sends_done.len();
        let acknowledged = if cut_short { self.rng.usize(0..=landed) } else { landed };
        let pair = self.pair_mut(id);
        if pair.phase == PairPhase::Error {
            return;
        }
        pair.phase = PairPhase::Error;
        let mut status = status;
        for done in pair.sends_done.iter_mut().skip(acknowledged) {
            done.outcome = Some(failed(status));
            status = STATUS_FLUSHED;
        }
        for PendingWrite { write, sequence, .. } in pair.pending.drain(..) {
            let outcome = Some(failed(status));
            pair.sends_done.push_back(SendDone { work_id: write.work_id, sequence, outcome });
            status = STATUS_FLUSHED;
        }
        let (queue_pair, kind) = (pair.number, failed(STATUS_FLUSHED));
        for work_id in pair.receives.drain(..) {
            pair.receives_done.push_back(Completion { work_id, queue_pair, kind });
        }
        self.activate(id);
    }

    fn surface_send(&mut self, id: u64) {
        let pair = self.pair_mut(id);
        let (queue, queue_pair) = (pair.queue, pair.number);
        let Some(SendDone { work_id, sequence, outcome }) = pair.sends_done.pop_front() else {
            return;
        };
        if let Some(kind) = outcome {
            let completion = Completion { work_id, queue_pair, kind };
            let frees = Frees::SendsThrough(sequence);
            self.push_completion(queue, QueueEntry { completion, pair: id, frees });
        }
    }

    fn surface_receive(&mut self, id: u64) {
        let pair = self.pair_mut(id);
        let queue = pair.queue;
        if let Some(completion) = pair.receives_done.pop_front() {
            let frees = Frees::Receive;
            self.push_completion(queue, QueueEntry { completion, pair: id, frees });
        }
    }

    /// Lands the oldest pending write, or some packets of it.
    fn advance_write(&mut self, id: u64) {
        let Some(mut pending) = self.pair_mut(id).pending.pop_front() else { return };
        let landing = self.land(id, &mut pending);
        let (write, sequence) = (pending.write, pending.sequence);
        let finish = |state: &mut Self, outcome| {
            let done = SendDone { work_id: write.work_id, sequence, outcome };
            state.pair_mut(id).sends_done.push_back(done);
        };
        match landing {
            Landing::Partly => self.pair_mut(id).pending.push_front(pending),
            Landing::Whole => finish(self, write.signaled.then_some(CompletionKind::Write)),
            Landing::Failed(status) => {
                finish(self, Some(failed(status)));
                self.fail_pair(id, STATUS_FLUSHED, false);
            }
        }
    }

    fn land(&mut self, id: u64, pending: &mut PendingWrite) -> Landing {
        let write = pending.write;
        let (device, number) = (self.pair(id).device, self.pair(id).number);
        let peer = match self.find_peer(id) {
            Ok(peer) => peer,
            Err(rule) => {
                if let Some(rule) = rule {
                    self.violate(device, number, rule);
                }
                return Landing::Failed(STATUS_RETRY_EXCEEDED);
            }
        };
        let port = self.port_of(self.pair(id));
        let limit = port.map_or(0, |port| port.max_message_bytes);
        if write.bytes > limit {
            self.violate(device, number, Rule::MessageTooLong { bytes: write.bytes, limit });
            return Landing::Failed(STATUS_LOCAL_LENGTH);
        }
        let mtu = self.pair(id).ready_to_receive.map_or(1024, |rtr| rtr.path_mtu_bytes);
        let rest = write.bytes - pending.landed;
        let bytes = if rest > mtu && self.rng.u32(0..4) == 0 {
            mtu * self.rng.u32(1..=(rest - 1) / mtu)
        } else {
            rest
        };
        if let Err(status) = self.move_bytes(id, peer, pending, bytes) {
            return Landing::Failed(status);
        }
        if bytes < rest {
            pending.landed += bytes;
            self.device_mut(device).statistics.packets += u64::from(bytes / mtu);
            return Landing::Partly;
        }
        if let Err(status) = self.notify(id, peer, pending) {
            return Landing::Failed(status);
        }
        self.count_landed(id, peer, pending, mtu, rest);
        Landing::Whole
    }

    /// Copies the next `bytes` bytes of a write, after checking both ranges.
    fn move_bytes(
        &mut self,
        id: u64,
        peer: u64,
        pending: &PendingWrite,
        bytes: u32,
    ) -> Result<(), u32> {
        let write = pending.write;
        if write.bytes == 0 {
            return Ok(());
        }
        let (device, number) = (self.pair(id).device, self.pair(id).number);
        let (to_device, to_number) = (self.pair(peer).device, self.pair(peer).number);
        if pending.inline.is_none() && !self.reads(device, write.lkey, write.local, write.bytes) {
            let rule = Rule::LocalProtection {
                address: write.local,
                bytes: write.bytes,
                lkey: write.lkey,
            };
            self.violate(device, number, rule);
            return Err(STATUS_LOCAL_PROTECTION);
        }
        let Some(remote) = self.writes_to(to_device, write.rkey, write.remote, write.bytes) else {
            let rule =
                Rule::RemoteAccess { address: write.remote, bytes: write.bytes, rkey: write.rkey };
            self.violate(to_device, to_number, rule);
            // The responder's queue pair goes to ERR too (IBTA: class C error).
            self.fail_pair(peer, STATUS_FLUSHED, false);
            return Err(STATUS_REMOTE_ACCESS);
        };
        let from = pending.landed as usize;
        let source = match &pending.inline {
            Some(captured) => Source::Captured(&captured[from..from + bytes as usize]),
            None => Source::Registered(write.local + from),
        };
        copy(source, remote + from, bytes as usize);
        let (from_user, into_user) = (
            pending.inline.is_none() && self.is_user_memory(write.local + from, bytes),
            self.is_user_memory(remote + from, bytes),
        );
        let bytes = u64::from(bytes);
        self.device_mut(device).statistics.bytes_from_user_memory += bytes * u64::from(from_user);
        let at_peer = &mut self.device_mut(to_device).statistics;
        at_peer.bytes_into_user_memory += bytes * u64::from(into_user);
        at_peer.bytes_elsewhere += bytes * u64::from(!into_user);
        Ok(())
    }

    /// Uses up a receive of the peer where the write carries an immediate.
    fn notify(&mut self, id: u64, peer: u64, pending: &PendingWrite) -> Result<(), u32> {
        let Some(immediate) = pending.write.immediate else { return Ok(()) };
        let bytes = pending.write.bytes;
        let to = self.pair_mut(peer);
        let (to_device, queue_pair) = (to.device, to.number);
        let Some(work_id) = to.receives.pop_front() else {
            self.violate(to_device, queue_pair, Rule::ReceiverNotReady);
            tracing::debug!(sender = self.pair(id).number, "no receive posted at the peer");
            return Err(STATUS_RNR_RETRY_EXCEEDED);
        };
        let kind = CompletionKind::Received { immediate, bytes };
        to.receives_done.push_back(Completion { work_id, queue_pair, kind });
        self.device_mut(to_device).statistics.receives_used += 1;
        self.activate(peer);
        Ok(())
    }

    fn count_landed(&mut self, id: u64, peer: u64, pending: &PendingWrite, mtu: u32, rest: u32) {
        let write = pending.write;
        let (device, queue_pair) = (self.pair(id).device, self.pair(id).number);
        let to_host = self.pair(peer).device.0;
        let statistics = &mut self.device_mut(device).statistics;
        statistics.packets += u64::from(rest.div_ceil(mtu).max(1));
        statistics.bytes += u64::from(write.bytes);
        statistics.writes += 1;
        statistics.immediates += u64::from(write.immediate.is_some());
        let pair = self.pair_mut(id);
        pair.writes += 1;
        pair.bytes += u64::from(write.bytes);
        self.keep_landed(LandedWrite {
            from_host: device.0,
            queue_pair,
            to_host,
            remote: write.remote,
            bytes: write.bytes,
            immediate: write.immediate,
            inline: write.inline,
        });
    }

    /// The queue pair that packets of `id` reach and that takes them; otherwise they are lost,
    /// and the rule says whose fault that is (nobody's, if the network or the peer failed).
    fn find_peer(&self, id: u64) -> Result<u64, Option<Rule>> {
        let pair = self.pair(id);
        let (Some(rtr), Some(rts)) = (pair.ready_to_receive, pair.ready_to_send) else {
            return Err(None);
        };
        let (to_device, to_port) =
            self.resolve(pair, &rtr.address).ok_or(Some(Rule::Misaddressed))?;
        let peer_id = self.numbers.get(&(to_device, rtr.destination_qpn));
        let Some(&peer_id) = peer_id else {
            let was_there = self.destroyed.iter().any(|(_, report)| {
                report.host == to_device.0 && report.number == rtr.destination_qpn
            });
            return Err((!was_there).then_some(Rule::Misaddressed));
        };
        let peer = self.pair(peer_id);
        let is_active = |port: Option<&super::FakePort>| {
            port.is_some_and(|port| port.state == PortState::Active)
        };
        let there = !self.device(to_device).removed
            && is_active(self.port_of(pair))
            && is_active(self.device(to_device).spec.ports.get(usize::from(to_port) - 1));
        if !there || peer.phase == PairPhase::Error {
            return Err(None);
        }
        let Some(peer_rtr) = peer.ready_to_receive else { return Err(Some(Rule::PeerNotReady)) };
        let own_port = pair.init.map_or(0, |init| init.port);
        let back = self.resolve(peer, &peer_rtr.address);
        if peer_rtr.destination_qpn != pair.number
            || back != Some((pair.device, own_port))
            || peer_rtr.port != to_port
        {
            return Err(Some(Rule::Misaddressed));
        }
        let pkey = |pair: &PairState| {
            let index = pair.init.map_or(0, |init| usize::from(init.pkey_index));
            self.port_of(pair).and_then(|port| port.pkeys.get(index)).copied().unwrap_or(0)
        };
        let disagreements = [
            ("PSN", rts.send_psn, peer_rtr.receive_psn),
            ("path MTU", rtr.path_mtu_bytes, peer_rtr.path_mtu_bytes),
            ("pkey", u32::from(pkey(pair) & 0x7fff), u32::from(pkey(peer) & 0x7fff)),
        ];
        for (what, sender, receiver) in disagreements {
            if sender != receiver {
                return Err(Some(Rule::Disagreement { what, sender, receiver }));
            }
        }
        Ok(peer_id)
    }

    /// The port that a path of `pair` leads to: by LID on InfiniBand, else by GID of the same kind.
    fn resolve(&self, pair: &PairState, address: &PathAddress) -> Option<(DeviceId, u8)> {
        let own = self.port_of(pair)?;
        let own_kind = address.global.and_then(|(index, _)| own.gid(index)).map(|gid| gid.kind);
        let matches = |port: &super::FakePort| match (own.link_layer, address.global) {
            (LinkLayer::InfiniBand, _) => {
                port.link_layer == LinkLayer::InfiniBand && port.lid == address.dlid
            }
            (LinkLayer::Ethernet, Some((_, gid))) => {
                port.gids.iter().any(|entry| entry.gid == gid && Some(entry.kind) == own_kind)
            }
            (LinkLayer::Ethernet, None) => false,
        };
        for (host, state) in self.hosts.iter().enumerate() {
            for (index, device) in state.devices.iter().enumerate() {
                let port = device.spec.ports.iter().position(matches);
                if let Some(port) = port {
                    return Some(((host, index), port as u8 + 1));
                }
            }
        }
        None
    }

    fn port_of(&self, pair: &PairState) -> Option<&super::FakePort> {
        let number = usize::from(pair.init?.port);
        self.device(pair.device).spec.ports.get(number.checked_sub(1)?)
    }

    /// Whether the range may be read under this lkey.
    fn reads(&self, device: DeviceId, lkey: u32, address: usize, bytes: u32) -> bool {
        self.regions
            .get(&lkey)
            .is_some_and(|region| region.device == device && region.holds(address, bytes as usize))
    }

    /// The address of the range if a peer may write it under this rkey.
    fn writes_to(&self, device: DeviceId, rkey: u32, address: u64, bytes: u32) -> Option<usize> {
        let address = usize::try_from(address).ok()?;
        let region = self.regions.values().find(|region| region.rkey == rkey)?;
        let may = region.device == device
            && region.access == Access::RemoteWrite
            && region.holds(address, bytes as usize);
        may.then_some(address)
    }

    fn is_user_memory(&self, address: usize, bytes: u32) -> bool {
        let end = address + bytes as usize;
        self.user_memory.iter().any(|range| range.start <= address && end <= range.end)
    }
}

/// Copies as the device would. The ranges were just checked against regions that are registered,
/// under the lock that deregistering takes.
fn copy(source: Source<'_>, destination: usize, bytes: usize) {
    let source = match source {
        Source::Registered(address) => std::ptr::with_exposed_provenance::<u8>(address),
        Source::Captured(captured) => captured.as_ptr(),
    };
    let destination = std::ptr::with_exposed_provenance_mut::<u8>(destination);
    // SAFETY: both ranges are mapped for `bytes` bytes: captured bytes are a live slice, registered
    // ones lie in a region whose registrar promised (`Device::register`) that its memory stays
    // mapped, writable where peers may write it, and that nobody relies on bytes the device may
    // write, until the region is dropped; dropping takes the lock that the caller holds. `copy`
    // allows the ranges to overlap.
    unsafe { std::ptr::copy(source, destination, bytes) };
}
