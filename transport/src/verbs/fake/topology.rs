//! What a fake network is made of: hosts with devices, devices with ports, ports with tables.

use super::super::driver::{DeviceLimits, GidEntry, GidKind, LinkLayer, PortState};

/// Behaviour of a [`FakeNetwork`](super::FakeNetwork).
#[derive(Clone, Copy, Debug)]
pub struct FakeSettings {
    /// Decides every order and delay; print it, so that a failure can be replayed.
    pub seed: u64,
    /// The most inline bytes that a queue pair gets, whatever it asks for; may be 0.
    pub max_inline_bytes: u32,
    /// How often, in percent, a chain of writes is cut short as if the queue were full (only while
    /// a signaled write is outstanding, so that a completion will come).
    pub partial_post_percent: u32,
    /// How often, in percent, arming a completion queue wakes the sleeper for nothing.
    pub spurious_event_percent: u32,
    /// The most steps of the network per call into it; fewer are slower and mix orders more.
    pub steps_per_call: u32,
}

impl Default for FakeSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            max_inline_bytes: 64,
            partial_post_percent: 5,
            spurious_event_percent: 5,
            steps_per_call: 8,
        }
    }
}

/// A device of a host.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    /// Its name.
    pub name: String,
    /// Its limits.
    pub limits: DeviceLimits,
    /// Its ports, numbered from 1.
    pub ports: Vec<FakePort>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct FakePort {
    /// State.
    pub state: PortState,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// LID; 0 on Ethernet.
    pub lid: u16,
    /// Bytes of the active path MTU.
    pub active_mtu_bytes: u32,
    /// Longest message, in bytes.
    pub max_message_bytes: u32,
    /// The pkey table; bit 15 marks a full member.
    pub pkeys: Vec<u16>,
    /// The GIDs that are not zero, with their index in the table.
    pub gids: Vec<GidEntry>,
}

/// Limits as Soft-RoCE has them, but for fewer queue pairs.
pub const FAKE_LIMITS: DeviceLimits = DeviceLimits {
    max_qp: 1024,
    max_qp_wr: 8192,
    max_sge: 1,
    max_cq: 64,
    max_cqe: 32767,
    max_mr: 4096,
    max_mr_bytes: 1 << 40,
};

impl FakeDevice {
    /// Device `index` of host `host` with one RoCE port.
    ///
    /// Its GID table: 0 link-local v1, 1 link-local v2, 2 zero, 3 v1 and 5 v2 of the IPv4 address
    /// `10.9.index.(host + 1)`, 4 v2 of a global IPv6 address.
    #[must_use]
    pub fn roce(host: usize, index: usize) -> Self {
        let (host_byte, index_byte) = (host as u8 + 1, index as u8);
        let link_local =
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, index_byte, host_byte];
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, index_byte, host_byte];
        let global = [0xfd, 0xbc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, index_byte, host_byte];
        let entry = |index, gid, kind| GidEntry {
            index,
            gid,
            kind,
            interface: Some(format!("eth{index_byte}")),
        };
        let port = FakePort {
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            active_mtu_bytes: 1024,
            max_message_bytes: 8 << 20,
            pkeys: vec![0xffff],
            gids: vec![
                entry(0, link_local, GidKind::RoceV1),
                entry(1, link_local, GidKind::RoceV2),
                entry(3, mapped, GidKind::RoceV1),
                entry(4, global, GidKind::RoceV2),
                entry(5, mapped, GidKind::RoceV2),
            ],
        };
        Self { name: format!("fake{index}"), limits: FAKE_LIMITS, ports: vec![port] }
    }

    /// Device `index` of host `host` with one InfiniBand port: LIDs from 1, two partition keys.
    #[must_use]
    pub fn infiniband(host: usize, index: usize) -> Self {
        let lid = (host * 16 + index + 1) as u16;
        let [high, low] = lid.to_be_bytes();
        let port = FakePort {
            state: PortState::Active,
            link_layer: LinkLayer::InfiniBand,
            lid,
            active_mtu_bytes: 4096,
            max_message_bytes: 1 << 30,
            pkeys: vec![0xffff, 0x8123],
            gids: vec![GidEntry {
                index: 0,
                gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, high, low],
                kind: GidKind::InfiniBand,
                interface: None,
            }],
        };
        Self { name: format!("ib{index}"), limits: FAKE_LIMITS, ports: vec![port] }
    }
}
