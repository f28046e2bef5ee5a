//! The choice of rails, case by case.

use super::*;
use crate::verbs::fake::{FAKE_LIMITS, FakeDevice, FakeNetwork, FakeSettings};

fn gid(index: u32, kind: GidKind, text: &str) -> GidEntry {
    let address: std::net::Ipv6Addr = text.parse().unwrap();
    GidEntry { index, gid: address.octets(), kind, interface: None }
}

fn ethernet(number: u8, gids: &[GidEntry]) -> PortInfo {
    PortInfo {
        number,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        lid: 0,
        active_mtu_bytes: 1024,
        max_message_bytes: 8 << 20,
        pkey_count: 1,
        rate_mbps: 100_000,
        gids: gids.to_vec(),
    }
}

fn infiniband(number: u8, lid: u16) -> PortInfo {
    let gids = [gid(0, GidKind::InfiniBand, "fe80::2:c903:0:1")];
    let link_layer = LinkLayer::InfiniBand;
    PortInfo { link_layer, lid, pkey_count: 2, ..ethernet(number, &gids) }
}

fn device(name: &str, ports: Vec<PortInfo>) -> DeviceInfo {
    DeviceInfo { name: name.to_owned(), guid: 1, limits: FAKE_LIMITS, ports }
}

fn roce(name: &str) -> DeviceInfo {
    device(name, vec![ethernet(1, &[gid(1, GidKind::RoceV2, "::ffff:10.0.0.1")])])
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// `device:port:gid` of each rail, or the error's text.
fn rails(devices: &[DeviceInfo], settings: &RailSettings<'_>) -> Result<String, String> {
    let text = |rail: &RailChoice| {
        let gid = rail.gid_index.map_or("-".to_owned(), |index| index.to_string());
        format!("{}:{}:{gid}", rail.device, rail.port)
    };
    let rails = select_rails(devices, settings).map_err(|error| error.to_string())?;
    Ok(rails.iter().map(text).collect::<Vec<_>>().join(" "))
}

#[test]
fn the_gid_is_v2_with_ipv4_then_v2_with_global_ipv6_and_nothing_else() {
    use GidKind::{RoceV1, RoceV2};
    let link_local = gid(0, RoceV2, "fe80::1");
    let link_local_v1 = gid(1, RoceV1, "fe80::1");
    let ipv4_v1 = gid(2, RoceV1, "::ffff:10.0.0.1");
    let global = gid(3, RoceV2, "2001:db8::1");
    let unique_local = gid(4, RoceV2, "fd00::1");
    let ipv4 = gid(5, RoceV2, "::ffff:10.0.0.1");
    let second_ipv4 = gid(7, RoceV2, "::ffff:10.0.0.2");
    let far = gid(300, RoceV2, "::ffff:10.0.0.3");
    let all = [&link_local, &link_local_v1, &ipv4_v1, &global, &unique_local, &ipv4, &second_ipv4];
    let cases: [(&[&GidEntry], Option<&str>); 8] = [
        (&all, Some("r:1:5")),
        (&[&link_local, &link_local_v1, &ipv4_v1, &global], Some("r:1:3")),
        (&[&link_local, &unique_local], Some("r:1:4")),
        (&[&global, &far], Some("r:1:3")),
        (&[&link_local], None),
        (&[&link_local_v1, &ipv4_v1], None),
        (&[&far], None),
        (&[], None),
    ];
    for (entries, expected) in cases {
        let entries: Vec<_> = entries.iter().map(|entry| (*entry).clone()).collect();
        let devices = [device("r", vec![ethernet(1, &entries)])];
        let chosen = rails(&devices, &RailSettings::default());
        assert_eq!(chosen.as_deref().ok(), expected, "{entries:?}");
        if let Err(error) = chosen {
            assert!(error.contains("device r port 1") && error.contains("VERBCAST_GID_INDEX"));
        }
    }
}

#[test]
fn a_gid_index_that_is_asked_for_is_taken_or_the_usable_ones_are_listed() {
    let gids = [
        gid(0, GidKind::RoceV1, "fe80::1"),
        gid(1, GidKind::RoceV2, "fe80::1"),
        gid(3, GidKind::RoceV2, "::ffff:10.0.0.1"),
    ];
    let devices = [device("r", vec![ethernet(1, &gids)]), device("i", vec![infiniband(1, 5)])];
    let ask = |name: &str, index| {
        let devices_asked = names(&[name]);
        let gid_index = Some(index);
        rails(&devices, &RailSettings { devices: &devices_asked, gid_index, ..Default::default() })
    };
    assert_eq!(ask("r", 0).unwrap(), "r:1:0");
    assert_eq!(ask("r", 1).unwrap(), "r:1:1");
    assert_eq!(ask("i", 0).unwrap(), "i:1:0");
    for index in [2, 4, 300] {
        let error = ask("r", index).unwrap_err();
        let wanted = [
            format!("device r port 1: there is no GID at index {index}"),
            "3 (RoCE v2, ::ffff:10.0.0.1)".to_owned(),
        ];
        assert!(wanted.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn ports_that_are_not_active_are_passed_over_or_named() {
    for state in [PortState::Down, PortState::Initializing, PortState::Armed] {
        let mut down = roce("down");
        down.ports[0].state = state;
        let devices = [down, roce("up")];
        assert_eq!(rails(&devices, &RailSettings::default()).unwrap(), "up:1:1");
        let asked = names(&["down"]);
        let settings = RailSettings { devices: &asked, ..Default::default() };
        let error = rails(&devices, &settings).unwrap_err();
        assert!(error.contains("device down port 1") && error.contains("not Active"), "{error}");
        let error = rails(&devices[..1], &RailSettings::default()).unwrap_err();
        assert!(error.contains("device down port 1") && error.contains("not Active"), "{error}");
    }
    let error = rails(&[], &RailSettings::default()).unwrap_err();
    assert!(error.contains("there is no RDMA device"), "{error}");
}

#[test]
fn infiniband_needs_a_lid_and_no_gid() {
    let devices = [device("i", vec![infiniband(1, 0), infiniband(2, 9)])];
    assert_eq!(rails(&devices, &RailSettings::default()).unwrap(), "i:2:-");
    let port = Some(1);
    let asked = names(&["i"]);
    let settings = RailSettings { devices: &asked, port, ..Default::default() };
    let error = rails(&devices, &settings).unwrap_err();
    assert!(error.contains("device i port 1: it has no LID"), "{error}");
}

#[test]
fn named_devices_are_all_used_in_their_order_whatever_the_local_rank() {
    let devices = [roce("a"), roce("b"), roce("c")];
    let asked = names(&["c", "a"]);
    for local_rank in 0..3 {
        let settings =
            RailSettings { devices: &asked, local_rank, local_size: 3, ..Default::default() };
        assert_eq!(rails(&devices, &settings).unwrap(), "c:1:1 a:1:1");
    }
}

#[test]
fn named_devices_that_cannot_be_are_errors_that_say_what_there_is() {
    let two = [gid(1, GidKind::RoceV2, "::ffff:10.0.0.1")];
    let devices = [
        roce("a"),
        device("i", vec![infiniband(1, 3)]),
        device("two", vec![ethernet(1, &two), ethernet(2, &two)]),
        device("bare", Vec::new()),
    ];
    let cases: [(&[&str], Option<u8>, &str); 6] = [
        (&["b"], None, "no RDMA device named b; there are: a, i, two, bare"),
        (&["a", "i"], None, "device i port 1: its link layer differs from that of device a"),
        (&["a", "a"], None, "device a port 0: it is named twice"),
        (&["a"], Some(2), "device a port 2: there is no such port; the device has ports 1 to 1"),
        (&["two"], Some(0), "device two port 0: there is no such port"),
        (&["bare"], None, "device bare port 0: it has no ports"),
    ];
    for (asked, port, expected) in cases {
        let asked = names(asked);
        let settings = RailSettings { devices: &asked, port, ..Default::default() };
        let error = rails(&devices, &settings).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let asked = names(&["two", "a"]);
    let with_port = |port| RailSettings { devices: &asked[..1], port, ..Default::default() };
    assert_eq!(rails(&devices, &with_port(None)).unwrap(), "two:1:1 two:2:1");
    assert_eq!(rails(&devices, &with_port(Some(2))).unwrap(), "two:2:1");
    let settings = RailSettings { devices: &asked, pkey_index: 1, ..Default::default() };
    let error = rails(&devices, &settings).unwrap_err();
    assert!(error.contains("device two port 1: there is no pkey at index 1"), "{error}");
}

#[test]
fn a_rank_alone_takes_all_ports_and_several_share_the_devices() {
    let gids = [gid(1, GidKind::RoceV2, "::ffff:10.0.0.1")];
    let devices = [roce("a"), device("b", vec![ethernet(1, &gids), ethernet(2, &gids)]), roce("c")];
    let alone = RailSettings::default();
    assert_eq!(rails(&devices, &alone).unwrap(), "a:1:1 b:1:1 b:2:1 c:1:1");
    let of_four =
        |local_rank| rails(&devices, &RailSettings { local_rank, local_size: 4, ..alone }).unwrap();
    assert_eq!([0, 1, 2, 3].map(of_four), ["a:1:1", "b:1:1 b:2:1", "c:1:1", "a:1:1"]);
    let many: Vec<_> = (0..12).map(|i| roce(&format!("d{i}"))).collect();
    assert_eq!(select_rails(&many, &alone).unwrap().len(), RAILS_MAX);
    let asked: Vec<_> = many.iter().map(|device| device.name.clone()).collect();
    let error = rails(&many, &RailSettings { devices: &asked, ..alone }).unwrap_err();
    assert!(error.contains("device d8 port 1: there can be 8 rails"), "{error}");
}

#[test]
fn automatic_rails_have_one_link_layer_and_no_slow_ones() {
    let mut slow = roce("slow");
    slow.ports[0].rate_mbps = 25_000;
    let mut half = roce("half");
    half.ports[0].rate_mbps = 50_000;
    let mut unknown = roce("unknown");
    unknown.ports[0].rate_mbps = 0;
    let devices = [slow, roce("fast"), half, unknown];
    let auto = RailSettings::default();
    assert_eq!(rails(&devices, &auto).unwrap(), "fast:1:1 half:1:1 unknown:1:1");
    let ib = || device("i", vec![infiniband(1, 3)]);
    assert_eq!(rails(&[roce("a"), ib()], &auto).unwrap(), "i:1:-");
    assert_eq!(rails(&[roce("a"), ib(), roce("b")], &auto).unwrap(), "a:1:1 b:1:1");
}

#[test]
fn the_fake_devices_are_chosen_by_their_ipv4_gid() {
    let host = vec![FakeDevice::roce(0, 0), FakeDevice::roce(0, 1), FakeDevice::infiniband(0, 2)];
    let network = FakeNetwork::new(FakeSettings::default(), vec![host]);
    let devices = network.driver(0).devices().unwrap();
    let chosen = rails(&devices, &RailSettings::default()).unwrap();
    assert_eq!(chosen, "fake0:1:5 fake1:1:5");
}

#[test]
fn descriptions_cover_every_port_and_give_reasons() {
    let mut down = roce("down");
    down.ports[0].state = PortState::Down;
    let devices = [roce("a"), down, device("i", vec![infiniband(1, 3)]), roce("b")];
    let described = describe_ports(&devices, &RailSettings::default());
    let short: Vec<_> = described.iter().map(|port| (port.device.as_str(), port.chosen)).collect();
    assert_eq!(short, [("a", true), ("down", false), ("i", false), ("b", true)]);
    assert_eq!(described[0].gid.as_deref(), Some("::ffff:10.0.0.1"));
    assert_eq!(described[0].reason, "RoCE v2 GID with an IPv4 address");
    assert!(described[1].reason.contains("not Active"));
    assert!(described[2].reason.contains("other ports"));
    let json = serde_json::to_value(&described[0]).unwrap();
    assert_eq!(json["state"], "active");
    assert_eq!(json["link_layer"], "ethernet");
    assert_eq!(json["gid_kind"], "roce-v2");
    let asked = names(&["nosuch"]);
    let settings = RailSettings { devices: &asked, ..Default::default() };
    let described = describe_ports(&devices, &settings);
    assert!(described.iter().all(|port| !port.chosen));
    assert!(described[0].reason.contains("no RDMA device named nosuch"));
}
