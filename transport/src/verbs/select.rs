//! Which ports are the rails of a rank, and by which GID each is known: a pure choice.
//!
//! Automatic: ports that are active and have a usable address. On Ethernet a RoCE v2 GID with an
//! IPv4 address comes first, then v2 with a global IPv6 address; never a link-local one and never
//! v1, unless its index is asked for. All rails have one link layer (the one with more bandwidth),
//! and none is slower than half of the fastest. A rank alone on its host takes all such ports, up
//! to [`RAILS_MAX`]; of several local ranks each takes one device, by local rank modulo their
//! number. Devices that are named are all used, in the order of their names, or an error says why
//! not.

use serde::Serialize;

use super::driver::{DeviceInfo, GidEntry, GidKind, LinkLayer, PortInfo, PortState};
use super::error::VerbsError;
use crate::wire::RAILS_MAX;

/// What can be asked for.
#[derive(Clone, Copy, Debug)]
pub struct RailSettings<'a> {
    /// Devices by name, one or more rails each; empty: automatic.
    pub devices: &'a [String],
    /// Port of each device; `None`: every active one.
    pub port: Option<u8>,
    /// Index in the GID table; `None`: automatic.
    pub gid_index: Option<u32>,
    /// Index in the pkey table.
    pub pkey_index: u16,
    /// This rank among those of its host.
    pub local_rank: u32,
    /// How many ranks the host has.
    pub local_size: u32,
}

impl Default for RailSettings<'_> {
    fn default() -> Self {
        Self {
            devices: &[],
            port: None,
            gid_index: None,
            pkey_index: 0,
            local_rank: 0,
            local_size: 1,
        }
    }
}

/// Which port of which device a rail is, and which GID it is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailChoice {
    /// Device name.
    pub device: String,
    /// Port number, from 1.
    pub port: u8,
    /// Index in the port's GID table; `None` on InfiniBand without a GRH.
    pub gid_index: Option<u32>,
}

/// A port and what was decided about it, for people and for JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortDescription {
    /// Device name.
    pub device: String,
    /// Port number, from 1.
    pub port: u8,
    /// State of the port.
    pub state: PortState,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Bytes of the active path MTU.
    pub active_mtu_bytes: u32,
    /// Speed in Mbit/s; 0 where unknown.
    pub rate_mbps: u32,
    /// Index of the GID that would be used.
    pub gid_index: Option<u32>,
    /// That GID as an address.
    pub gid: Option<String>,
    /// What that GID is used with.
    pub gid_kind: Option<GidKind>,
    /// Network interface of that GID.
    pub interface: Option<String>,
    /// Whether it is a rail of a rank with these settings.
    pub chosen: bool,
    /// Why it is chosen or not.
    pub reason: String,
}

/// A port that can be a rail, and how.
struct Candidate<'a> {
    device: &'a DeviceInfo,
    port: &'a PortInfo,
    gid: Option<&'a GidEntry>,
    reason: &'static str,
}

/// Chooses the rails of a rank.
///
/// # Errors
/// [`VerbsError::NoSuchDevice`] for a named device that is not there; [`VerbsError::Unusable`] for
/// a named one that cannot be used; [`VerbsError::NoUsablePort`] if nothing can be.
///
/// # Examples
/// ```
/// use verbcast_transport::verbs::error::VerbsError;
/// use verbcast_transport::verbs::select::{RailSettings, select_rails};
///
/// let none = select_rails(&[], &RailSettings::default());
/// assert!(matches!(none, Err(VerbsError::NoUsablePort { .. })));
/// ```
pub fn select_rails(
    devices: &[DeviceInfo],
    settings: &RailSettings<'_>,
) -> Result<Vec<RailChoice>, VerbsError> {
    let rails = if settings.devices.is_empty() {
        automatic_rails(devices, settings)?
    } else {
        named_rails(devices, settings)?
    };
    let choice = |candidate: &Candidate<'_>| RailChoice {
        device: candidate.device.name.clone(),
        port: candidate.port.number,
        gid_index: candidate.gid.map(|gid| gid.index),
    };
    Ok(rails.iter().map(choice).collect())
}

/// Every port there is, with what [`select_rails`] makes of it.
#[must_use]
pub fn describe_ports(devices: &[DeviceInfo], settings: &RailSettings<'_>) -> Vec<PortDescription> {
    let rails = select_rails(devices, settings);
    let chosen = |device: &str, port| {
        let is_it = |rail: &RailChoice| rail.device == device && rail.port == port;
        rails.as_ref().is_ok_and(|rails| rails.iter().any(is_it))
    };
    let describe = |device: &DeviceInfo, port: &PortInfo| {
        let verdict = judge(device, port, settings);
        let gid = verdict.as_ref().ok().and_then(|candidate| candidate.gid);
        let chosen = chosen(&device.name, port.number);
        let reason = match &verdict {
            Err(reason) => reason.clone(),
            Ok(candidate) if chosen => candidate.reason.to_owned(),
            Ok(_) => match &rails {
                Err(error) => error.to_string(),
                Ok(_) => "usable, but other ports are the rails of this rank".to_owned(),
            },
        };
        PortDescription {
            device: device.name.clone(),
            port: port.number,
            state: port.state,
            link_layer: port.link_layer,
            lid: port.lid,
            active_mtu_bytes: port.active_mtu_bytes,
            rate_mbps: port.rate_mbps,
            gid_index: gid.map(|gid| gid.index),
            gid: gid.map(|gid| gid.address().to_string()),
            gid_kind: gid.map(|gid| gid.kind),
            interface: gid.and_then(|gid| gid.interface.clone()),
            chosen,
            reason,
        }
    };
    let of_device = |device| {
        let device: &DeviceInfo = device;
        device.ports.iter().map(move |port| (device, port))
    };
    devices.iter().flat_map(of_device).map(|(device, port)| describe(device, port)).collect()
}

fn automatic_rails<'a>(
    devices: &'a [DeviceInfo],
    settings: &RailSettings<'_>,
) -> Result<Vec<Candidate<'a>>, VerbsError> {
    let mut candidates = Vec::new();
    let mut reasons = Vec::new();
    for device in devices {
        for port in &device.ports {
            match judge(device, port, settings) {
                Ok(candidate) => candidates.push(candidate),
                Err(reason) => {
                    reasons.push(format!("device {} port {}: {reason}", device.name, port.number));
                }
            }
        }
    }
    if candidates.is_empty() {
        let reasons = match reasons.is_empty() {
            true => "there is no RDMA device".to_owned(),
            false => reasons.join("; "),
        };
        return Err(VerbsError::NoUsablePort { reasons });
    }
    keep_one_link_layer(&mut candidates);
    let fastest = candidates.iter().map(|candidate| candidate.port.rate_mbps).max().unwrap_or(0);
    candidates.retain(|candidate| {
        let rate = candidate.port.rate_mbps;
        rate == 0 || u64::from(rate) * 2 >= u64::from(fastest)
    });
    if settings.local_size > 1 {
        let mut names: Vec<_> = candidates.iter().map(|c| c.device.name.clone()).collect();
        names.dedup();
        let own = names.swap_remove(settings.local_rank as usize % names.len());
        candidates.retain(|candidate| candidate.device.name == own);
    }
    candidates.truncate(RAILS_MAX);
    Ok(candidates)
}

/// Keeps the candidates of the link layer with more bandwidth (InfiniBand, if they are equal).
fn keep_one_link_layer(candidates: &mut Vec<Candidate<'_>>) {
    let bandwidth = |layer| {
        let of_layer = candidates.iter().filter(|candidate| candidate.port.link_layer == layer);
        of_layer.map(|candidate| u64::from(candidate.port.rate_mbps).max(1)).sum::<u64>()
    };
    let infiniband = bandwidth(LinkLayer::InfiniBand) >= bandwidth(LinkLayer::Ethernet);
    let keep = if infiniband { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
    candidates.retain(|candidate| candidate.port.link_layer == keep);
}

fn named_rails<'a>(
    devices: &'a [DeviceInfo],
    settings: &RailSettings<'_>,
) -> Result<Vec<Candidate<'a>>, VerbsError> {
    let mut rails: Vec<Candidate<'a>> = Vec::new();
    for (position, name) in settings.devices.iter().enumerate() {
        let device = devices.iter().find(|device| &device.name == name);
        let device = device.ok_or_else(|| no_such_device(name, devices))?;
        if settings.devices[..position].contains(name) {
            return Err(unusable(device, 0, "it is named twice; name each device once"));
        }
        let mut of_device = usable_ports(device, settings)?;
        if let (Some(first), Some(own)) = (rails.first(), of_device.first())
            && first.port.link_layer != own.port.link_layer
        {
            let reason = format!(
                "its link layer differs from that of device {}: all rails need the same one, \
                 name devices of one kind",
                first.device.name
            );
            return Err(unusable(device, own.port.number, reason));
        }
        rails.append(&mut of_device);
    }
    if rails.len() > RAILS_MAX {
        let first_over = &rails[RAILS_MAX];
        let reason =
            format!("there can be {RAILS_MAX} rails; name fewer devices, or set the port number");
        return Err(unusable(first_over.device, first_over.port.number, reason));
    }
    Ok(rails)
}

/// The ports of a named device that can be rails; an error if there are none.
fn usable_ports<'a>(
    device: &'a DeviceInfo,
    settings: &RailSettings<'_>,
) -> Result<Vec<Candidate<'a>>, VerbsError> {
    if let Some(number) = settings.port
        && device.ports.iter().all(|port| port.number != number)
    {
        let count = device.ports.len();
        let reason = format!("there is no such port; the device has ports 1 to {count}");
        return Err(unusable(device, number, reason));
    }
    let mut usable = Vec::new();
    let mut first_reason = None;
    for port in &device.ports {
        if settings.port.is_some_and(|number| number != port.number) {
            continue;
        }
        match judge(device, port, settings) {
            Ok(candidate) => usable.push(candidate),
            Err(reason) => first_reason = first_reason.or(Some((port.number, reason))),
        }
    }
    if usable.is_empty() {
        let (port, reason) = first_reason.unwrap_or((0, "it has no ports".to_owned()));
        return Err(unusable(device, port, reason));
    }
    // Two ports of a device can have different link layers; the first one decides.
    let layer = usable[0].port.link_layer;
    usable.retain(|candidate| candidate.port.link_layer == layer);
    Ok(usable)
}

/// Whether a port can be a rail: how, or why not and what to do.
fn judge<'a>(
    device: &'a DeviceInfo,
    port: &'a PortInfo,
    settings: &RailSettings<'_>,
) -> Result<Candidate<'a>, String> {
    if let Some(number) = settings.port
        && number != port.number
    {
        return Err(format!("port {number} was asked for"));
    }
    if port.state != PortState::Active {
        return Err(match port.link_layer {
            LinkLayer::Ethernet => format!(
                "its state is {:?}, not Active: check the cable and bring its network interface \
                 up (`ip link set ... up`)",
                port.state
            ),
            LinkLayer::InfiniBand => format!(
                "its state is {:?}, not Active: check the cable and that a subnet manager runs",
                port.state
            ),
        });
    }
    if settings.pkey_index >= port.pkey_count {
        return Err(format!(
            "there is no pkey at index {}; its table has {} (0 to {})",
            settings.pkey_index,
            port.pkey_count,
            port.pkey_count.saturating_sub(1)
        ));
    }
    let (gid, reason) = match (settings.gid_index, port.link_layer) {
        (Some(index), _) => (Some(gid_at(port, index)?), "its GID index was asked for"),
        (None, LinkLayer::InfiniBand) if port.lid == 0 => {
            return Err("it has no LID: check that a subnet manager runs".to_owned());
        }
        (None, LinkLayer::InfiniBand) => (None, "addressed by its LID"),
        (None, LinkLayer::Ethernet) => {
            let (gid, reason) = best_gid(port)?;
            (Some(gid), reason)
        }
    };
    Ok(Candidate { device, port, gid, reason })
}

fn gid_at(port: &PortInfo, index: u32) -> Result<&GidEntry, String> {
    // Address vectors have 8 bits for the index.
    let entry = port.gids.iter().find(|entry| entry.index == index && index < 256);
    entry.ok_or_else(|| {
        format!("there is no GID at index {index}; there are: {}", gid_list(&port.gids))
    })
}

fn best_gid(port: &PortInfo) -> Result<(&GidEntry, &'static str), String> {
    let v2 = || {
        let fits = |entry: &&GidEntry| entry.kind == GidKind::RoceV2 && entry.index < 256;
        port.gids.iter().filter(fits)
    };
    let mapped = v2().find(|entry| entry.address().to_ipv4_mapped().is_some());
    if let Some(entry) = mapped {
        return Ok((entry, "RoCE v2 GID with an IPv4 address"));
    }
    let global = v2().find(|entry| {
        let address = entry.address();
        !(address.is_unicast_link_local() || address.is_unspecified() || address.is_multicast())
    });
    global.map(|entry| (entry, "RoCE v2 GID with a global IPv6 address")).ok_or_else(|| {
        format!(
            "it has no RoCE v2 GID with an IPv4 or global IPv6 address: give its network \
             interface one, or choose by index (VERBCAST_GID_INDEX) among: {}",
            gid_list(&port.gids)
        )
    })
}

fn gid_list(gids: &[GidEntry]) -> String {
    let text = |entry: &GidEntry| {
        let kind = match entry.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        format!("{} ({kind}, {})", entry.index, entry.address())
    };
    match gids {
        [] => "none".to_owned(),
        gids => gids.iter().map(text).collect::<Vec<_>>().join(", "),
    }
}

fn unusable(device: &DeviceInfo, port: u8, reason: impl Into<String>) -> VerbsError {
    VerbsError::Unusable { device: device.name.clone(), port, reason: reason.into() }
}

/// The error for a device that is not there.
pub(crate) fn no_such_device(name: &str, devices: &[DeviceInfo]) -> VerbsError {
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    let present = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    VerbsError::NoSuchDevice { name: name.to_owned(), present }
}

#[cfg(test)]
mod tests;
