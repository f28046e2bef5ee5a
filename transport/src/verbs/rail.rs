//! Rails: open devices with their port and completion queue, and memory registered with all of
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::driver::{
    Access, CompletionQueue, Device, Driver, LinkLayer, MemoryRegion, PortInfo, PortState,
};
use super::error::VerbsError;
use super::select::RailChoice;
use super::settings::LinkSettings;
use crate::error::Error;
use crate::wire::RAILS_MAX;

/// A rail of this rank.
pub(crate) struct Rail {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) queue: Arc<dyn CompletionQueue>,
    pub(crate) choice: RailChoice,
    /// Entries of the completion queue that no lane has reserved.
    unreserved: AtomicU32,
}

/// A rail's port as it is now: LID, GID and MTU move when a port flaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortNow {
    pub(crate) infiniband: bool,
    pub(crate) lid: u16,
    /// GID with its index, if one was chosen.
    pub(crate) gid: Option<(u8, [u8; 16])>,
    pub(crate) mtu_bytes: u32,
    pub(crate) max_message_bytes: u32,
    pub(crate) rate_mbps: u32,
}

impl Rail {
    /// Opens the devices of `choices`, each once, with a completion queue per rail.
    pub(crate) fn open_all(
        driver: &dyn Driver,
        choices: &[RailChoice],
        settings: &LinkSettings,
    ) -> Result<Vec<Arc<Self>>, Error> {
        if choices.is_empty() || choices.len() > RAILS_MAX {
            return Err(Error::Config(format!(
                "{} rails were chosen; there must be 1 to {RAILS_MAX}",
                choices.len()
            )));
        }
        let mut rails: Vec<Arc<Self>> = Vec::new();
        for (index, choice) in choices.iter().enumerate() {
            let open = rails.iter().find(|rail| rail.choice.device == choice.device);
            let device = match open {
                Some(rail) => Arc::clone(&rail.device),
                None => driver.open(&choice.device)?,
            };
            let lanes = lanes_of_rail(index, choices.len(), settings.lanes as usize);
            let entries = check_limits(&*device, lanes, settings)?;
            let queue = device.completion_queue(entries)?;
            let unreserved = AtomicU32::new(queue.capacity());
            let rail = Self { device, queue, choice: choice.clone(), unreserved };
            rail.port_now()?;
            rails.push(Arc::new(rail));
        }
        Ok(rails)
    }

    /// Looks the port up again.
    pub(crate) fn port_now(&self) -> Result<PortNow, VerbsError> {
        let info = self.device.info()?;
        let port = info.ports.iter().find(|port| port.number == self.choice.port);
        let port = port.ok_or_else(|| {
            self.unusable(format!("there is no such port; the device has {}", info.ports.len()))
        })?;
        if port.state != PortState::Active {
            return Err(self.unusable(format!(
                "the port is {:?}, not active: check the cable and, on InfiniBand, the subnet \
                 manager",
                port.state
            )));
        }
        let infiniband = port.link_layer == LinkLayer::InfiniBand;
        let gid = self.gid_now(port)?;
        if !infiniband && gid.is_none() {
            return Err(self.unusable("RoCE needs a GID: choose one by its index".into()));
        }
        if infiniband && gid.is_none() && port.lid == 0 {
            return Err(self.unusable("it has no LID yet: is a subnet manager running?".into()));
        }
        Ok(PortNow {
            infiniband,
            lid: port.lid,
            gid,
            mtu_bytes: port.active_mtu_bytes,
            max_message_bytes: port.max_message_bytes,
            rate_mbps: port.rate_mbps,
        })
    }

    fn gid_now(&self, port: &PortInfo) -> Result<Option<(u8, [u8; 16])>, VerbsError> {
        let Some(index) = self.choice.gid_index else { return Ok(None) };
        let entry = port.gids.iter().find(|entry| entry.index == index);
        match (entry, u8::try_from(index)) {
            (Some(entry), Ok(index)) => Ok(Some((index, entry.gid))),
            _ => Err(self.unusable(format!(
                "there is no GID at index {index} (see `verbcast devices`); it may have moved \
                 when the port or its address changed"
            ))),
        }
    }

    fn unusable(&self, reason: String) -> VerbsError {
        let device = self.choice.device.clone();
        VerbsError::Unusable { device, port: self.choice.port, reason }
    }

    /// Sets `entries` of the completion queue aside for a lane.
    pub(crate) fn reserve(self: &Arc<Self>, entries: u32) -> Result<Reservation, VerbsError> {
        let taken = self
            .unreserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(entries));
        match taken {
            Ok(_) => Ok(Reservation { rail: Arc::clone(self), entries }),
            Err(left) => Err(VerbsError::OverLimit {
                device: self.choice.device.clone(),
                what: "free completion queue entries for one more lane (open the fabric for \
                       more links, or with shallower queues)",
                asked: entries.into(),
                limit: left.into(),
            }),
        }
    }
}

impl std::fmt::Debug for Rail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rail").field("choice", &self.choice).finish_non_exhaustive()
    }
}

/// Completion queue entries that a lane may use; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    rail: Arc<Rail>,
    entries: u32,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.rail.unreserved.fetch_add(self.entries, Ordering::Relaxed);
    }
}

/// How many lanes of a link are on rail `rail` of `rails`.
fn lanes_of_rail(rail: usize, rails: usize, lanes: usize) -> u64 {
    (lanes / rails + usize::from(rail < lanes % rails)) as u64
}

/// Checks the device's limits and gives the entries that its completion queue needs for `lanes`
/// lanes of every link.
fn check_limits(
    device: &dyn Device,
    lanes: u64,
    settings: &LinkSettings,
) -> Result<u32, VerbsError> {
    let limits = device.info()?.limits;
    let lanes = lanes * u64::from(settings.links_max);
    let entries = (lanes * u64::from(settings.completions_per_lane())).max(1);
    // Two regions per link: received messages and staged ones.
    let regions = 2 * u64::from(settings.links_max);
    for (what, asked, limit) in [
        ("queue pairs", lanes, limits.max_qp),
        ("work requests per send queue", settings.send_capacity().into(), limits.max_qp_wr),
        ("work requests per receive queue", settings.receive_depth.into(), limits.max_qp_wr),
        (
            "completion queue entries (every send and receive slot of every lane of every link \
             needs one: fewer lanes, shallower queues or fewer links at once help)",
            entries,
            limits.max_cqe,
        ),
        ("memory regions", regions, limits.max_mr),
    ] {
        if asked > u64::from(limit) {
            let device = device.name().to_owned();
            return Err(VerbsError::OverLimit { device, what, asked, limit: limit.into() });
        }
    }
    Ok(entries as u32)
}

/// Memory registered with every rail; dropping it deregisters.
pub struct Registration {
    /// Local and remote key per rail.
    keys: Vec<(u32, u32)>,
    /// One per device.
    _regions: Vec<Box<dyn MemoryRegion>>,
}

impl Registration {
    /// Registers with every rail, once per device.
    ///
    /// # Safety
    /// As [`Device::register`], until the registration is dropped.
    pub(crate) unsafe fn new(
        rails: &[Arc<Rail>],
        address: usize,
        bytes: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let mut keys = Vec::with_capacity(rails.len());
        let mut regions = Vec::new();
        for (index, rail) in rails.iter().enumerate() {
            let same = rails[..index].iter().position(|r| Arc::ptr_eq(&r.device, &rail.device));
            if let Some(same) = same {
                keys.push(keys[same]);
                continue;
            }
            let start = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the caller vouches for the memory until the registration is dropped, and
            // with it this region.
            let region = unsafe { rail.device.register(start, bytes, access) }?;
            keys.push((region.lkey(), region.rkey()));
            regions.push(region);
        }
        Ok(Self { keys, _regions: regions })
    }

    /// Local and remote key, per rail.
    #[must_use]
    pub fn keys(&self) -> &[(u32, u32)] {
        &self.keys
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("keys", &self.keys).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_is_on_one_rail() {
        for rails in 1..=RAILS_MAX {
            for lanes in 1..=64usize {
                for rail in 0..rails {
                    let counted = (0..lanes).filter(|lane| lane % rails == rail).count() as u64;
                    assert_eq!(lanes_of_rail(rail, rails, lanes), counted);
                }
            }
        }
    }
}
