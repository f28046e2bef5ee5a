//! The state machine of a fake queue pair: which moves and attributes a device accepts.

use super::super::driver::{
    InitAttributes, LinkLayer, ReadyToReceiveAttributes, ReadyToSendAttributes,
};
use super::state::{PairPhase, State};

/// Refused, with this errno.
pub(super) type Refused = i32;

const PSN_MAX: u32 = (1 << 24) - 1;

impl State {
    fn leave(&self, id: u64, from: PairPhase) -> Result<(), Refused> {
        let pair = self.pair(id);
        if self.device(pair.device).removed {
            return Err(libc::EIO);
        }
        check(pair.phase == from)
    }

    pub(super) fn move_to_init(&mut self, id: u64, wanted: &InitAttributes) -> Result<(), Refused> {
        self.leave(id, PairPhase::Reset)?;
        let ports = &self.device(self.pair(id).device).spec.ports;
        let port = usize::from(wanted.port).checked_sub(1).and_then(|index| ports.get(index));
        let port = port.ok_or(libc::EINVAL)?;
        check(usize::from(wanted.pkey_index) < port.pkeys.len())?;
        let pair = self.pair_mut(id);
        pair.init = Some(*wanted);
        pair.phase = PairPhase::Init;
        Ok(())
    }

    pub(super) fn move_to_ready_to_receive(
        &mut self,
        id: u64,
        wanted: &ReadyToReceiveAttributes,
    ) -> Result<(), Refused> {
        self.leave(id, PairPhase::Init)?;
        let pair = self.pair(id);
        let own_port = pair.init.map_or(0, |init| init.port);
        check(own_port == wanted.port)?;
        let port = &self.device(pair.device).spec.ports[usize::from(own_port) - 1];
        let mtu = wanted.path_mtu_bytes;
        check([256, 512, 1024, 2048, 4096].contains(&mtu) && mtu <= port.active_mtu_bytes)?;
        check(wanted.destination_qpn <= PSN_MAX && wanted.receive_psn <= PSN_MAX)?;
        check(wanted.min_rnr_timer < 32 && wanted.address.service_level < 16)?;
        if let Some((index, gid)) = wanted.address.global {
            check(port.gid(index).is_some() && gid != [0; 16] && wanted.address.hop_limit > 0)?;
        }
        match port.link_layer {
            LinkLayer::Ethernet => check(wanted.address.global.is_some())?,
            LinkLayer::InfiniBand => check(wanted.address.dlid != 0)?,
        }
        let pair = self.pair_mut(id);
        pair.ready_to_receive = Some(*wanted);
        pair.phase = PairPhase::ReadyToReceive;
        Ok(())
    }

    pub(super) fn move_to_ready_to_send(
        &mut self,
        id: u64,
        wanted: &ReadyToSendAttributes,
    ) -> Result<(), Refused> {
        self.leave(id, PairPhase::ReadyToReceive)?;
        check(wanted.send_psn <= PSN_MAX && wanted.timeout < 32)?;
        check(wanted.retry_count < 8 && wanted.rnr_retry < 8)?;
        let pair = self.pair_mut(id);
        pair.ready_to_send = Some(*wanted);
        pair.phase = PairPhase::ReadyToSend;
        Ok(())
    }
}

fn check(holds: bool) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(libc::EINVAL) }
}
