//! How a rank describes its end of a link to the peer: JSON, checked on reading as anything from
//! outside is.

use serde::{Deserialize, Serialize};

use super::settings::{DEPTH_MIN, MTUS_BYTES, RECEIVE_DEPTH_MAX};
use crate::wire::{LANES_MAX, MESSAGE_SLOT_BYTES, MESSAGE_SLOTS, PROTOCOL_VERSION, RAILS_MAX};

/// The longest description that is looked at, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 32 << 10;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) version: u8,
    /// Chosen by the initiator, repeated by the acceptor.
    pub(crate) epoch: u32,
    /// Lane l is on rail l modulo the number of rails.
    pub(crate) lanes: Vec<LaneDescription>,
    pub(crate) rails: Vec<RailDescription>,
    /// Receives posted per lane.
    pub(crate) receives: u32,
    pub(crate) ring: RingDescription,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaneDescription {
    pub(crate) queue_pair: u32,
    /// First packet sequence number that it sends.
    pub(crate) psn: u32,
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RailDescription {
    pub(crate) infiniband: bool,
    pub(crate) lid: u16,
    pub(crate) gid: Option<[u8; 16]>,
    pub(crate) mtu_bytes: u32,
    pub(crate) max_message_bytes: u32,
    pub(crate) rate_mbps: u32,
}

/// Message slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingDescription {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u32,
}

impl Description {
    pub(crate) fn write(&self) -> Vec<u8> {
        // Numbers and lists: there is nothing that JSON could not hold.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a peer's description, or says what is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > DESCRIPTION_BYTES_MAX {
            return Err(format!("its link description has {} bytes", bytes.len()));
        }
        let description: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("its link description cannot be read: {error}"))?;
        description.check().map(|()| description)
    }

    fn check(&self) -> Result<(), String> {
        if self.version != PROTOCOL_VERSION {
            return Err(format!(
                "it speaks version {} of the protocol, this rank {PROTOCOL_VERSION}: use the same \
                 release on every rank",
                self.version
            ));
        }
        let lanes = self.lanes.len();
        if !(1..=LANES_MAX).contains(&lanes) || !(1..=RAILS_MAX).contains(&self.rails.len()) {
            return Err(format!("it describes {lanes} lanes on {} rails", self.rails.len()));
        }
        if let Some(lane) = self.lanes.iter().find(|l| l.queue_pair >> 24 != 0 || l.psn >> 24 != 0)
        {
            return Err(format!("a lane is {lane:?}, whose numbers have 24 bits"));
        }
        if !(DEPTH_MIN..=RECEIVE_DEPTH_MAX).contains(&self.receives) {
            return Err(format!("it has {} receives per lane", self.receives));
        }
        self.rails.iter().try_for_each(RailDescription::check)?;
        self.ring.check()
    }
}

impl RailDescription {
    fn check(&self) -> Result<(), String> {
        let Self { infiniband, lid, gid, mtu_bytes, max_message_bytes, .. } = *self;
        if !MTUS_BYTES.contains(&mtu_bytes) {
            return Err(format!("a rail has an MTU of {mtu_bytes} bytes"));
        }
        if max_message_bytes < MESSAGE_SLOT_BYTES as u32 {
            return Err(format!("a rail carries {max_message_bytes} bytes at once"));
        }
        let has_gid = gid.is_some_and(|gid| gid != [0; 16]);
        if !has_gid && (!infiniband || lid == 0 || gid.is_some()) {
            return Err("a rail has no address".into());
        }
        Ok(())
    }
}

impl RingDescription {
    fn check(&self) -> Result<(), String> {
        let Self { address, slots, slot_bytes, .. } = *self;
        let bytes = u64::from(slots) * u64::from(slot_bytes);
        let fits = slots == MESSAGE_SLOTS && slot_bytes as usize == MESSAGE_SLOT_BYTES;
        if !fits || address == 0 || address.checked_add(bytes).is_none() {
            return Err(format!(
                "its message ring is {slots} slots of {slot_bytes} bytes at {address:#x}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        Description {
            version: PROTOCOL_VERSION,
            epoch: 7,
            lanes: vec![LaneDescription { queue_pair: 17, psn: 0xff_ffff }; 4],
            rails: vec![RailDescription {
                infiniband: false,
                lid: 0,
                gid: Some([1; 16]),
                mtu_bytes: 1024,
                max_message_bytes: 8 << 20,
                rate_mbps: 0,
            }],
            receives: 128,
            ring: RingDescription {
                address: 4096,
                rkey: 3,
                slots: MESSAGE_SLOTS,
                slot_bytes: MESSAGE_SLOT_BYTES as u32,
            },
        }
    }

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let mut largest = description();
        largest.lanes = vec![LaneDescription { queue_pair: 0xff_ffff, psn: 0xff_ffff }; LANES_MAX];
        largest.rails =
            vec![RailDescription { gid: Some([255; 16]), ..largest.rails[0] }; RAILS_MAX];
        for description in [description(), largest] {
            let bytes = description.write();
            assert!(bytes.len() < DESCRIPTION_BYTES_MAX);
            assert_eq!(Description::read(&bytes), Ok(description));
        }
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let cases: [fn(&mut Description); 14] = [
            |d| d.version += 1,
            |d| d.lanes.clear(),
            |d| d.lanes = vec![d.lanes[0]; LANES_MAX + 1],
            |d| d.rails.clear(),
            |d| d.rails = vec![d.rails[0]; RAILS_MAX + 1],
            |d| d.lanes[1].queue_pair = 1 << 24,
            |d| d.lanes[3].psn = 1 << 24,
            |d| d.receives = 1,
            |d| d.receives = 1 << 16,
            |d| d.rails[0].mtu_bytes = 1500,
            |d| d.rails[0].gid = None,
            |d| d.rails[0].max_message_bytes = 4095,
            |d| d.ring.slots = 1 << 31,
            |d| d.ring.address = u64::MAX - 1,
        ];
        for (number, change) in cases.into_iter().enumerate() {
            let mut changed = description();
            change(&mut changed);
            assert!(Description::read(&changed.write()).is_err(), "case {number}");
        }
    }

    #[test]
    fn hostile_bytes_are_an_error() {
        let good = description().write();
        let mut rng = fastrand::Rng::with_seed(5);
        assert!(Description::read(&[]).is_err());
        assert!(Description::read(&vec![b'['; 40_000]).is_err());
        assert!(Description::read(&vec![b'['; 30_000]).is_err());
        for _ in 0..2000 {
            let mut bytes = good.clone();
            bytes.truncate(rng.usize(0..=good.len()));
            for _ in 0..rng.usize(0..4) {
                let Some(last) = bytes.len().checked_sub(1) else { break };
                bytes[rng.usize(0..=last)] = rng.u8(..);
            }
            // Either an error, or a description that keeps every bound.
            if let Ok(description) = Description::read(&bytes) {
                assert_eq!(description.check(), Ok(()));
            }
        }
    }
}
