//! Link set-up: what both ends agree on, what is refused, and what is checked.

use super::super::fake::{FAKE_LIMITS, FakeDevice};
use super::*;
use crate::Error;

#[test]
fn both_ends_take_the_lower_of_lanes_and_mtu() {
    let plan = Plan::new(1).lanes(4);
    let mut world = plan.world();
    let mut other = plan.clone().lanes(3);
    other.settings.mtu_bytes = Some(512);
    other.settings.receive_depth = 5;
    let driver = world.network.driver(1);
    let (fabric, connector) =
        fabric::open(&*driver, &other.choices(), 1, other.settings.clone()).unwrap();
    world.nodes[1].fabric = fabric;
    world.nodes[1].connector = connector;
    world.connect(0, 1);
    for rank in 0..2 {
        let pairs = world.network.queue_pairs(rank);
        let up: Vec<_> = pairs.iter().filter(|pair| !pair.destroyed).collect();
        assert_eq!(up.len(), 3);
        for pair in up {
            assert_eq!(pair.state, "RTS");
            assert_eq!(pair.ready_to_receive.unwrap().path_mtu_bytes, 512);
        }
        assert_eq!(world.nodes[rank].fabric.lane_statistics(1 - rank as Rank).len(), 3);
    }
    let mut flows =
        [Flow::new(&mut world, 0, 1, 1 << 20, 1 << 17), Flow::new(&mut world, 1, 0, 1 << 20, 999)];
    world.run(&mut flows, &mut [Chat::new(0, 1, 50)]).unwrap();
    flows.into_iter().for_each(|flow| flow.finish(&mut world));
    world.assert_clean();
}

#[test]
fn settings_reach_the_queue_pairs_of_both_ends() {
    let mut plan = Plan::new(2).lanes(2);
    plan.settings.traffic_class = 106;
    plan.settings.service_level = 5;
    plan.settings.timeout = 19;
    plan.settings.retry_count = 5;
    let world = plan.connected();
    let mut psns = Vec::new();
    for rank in 0..2 {
        for pair in world.network.queue_pairs(rank) {
            let (receive, send) = (pair.ready_to_receive.unwrap(), pair.ready_to_send.unwrap());
            assert_eq!((receive.address.traffic_class, receive.address.service_level), (106, 5));
            assert!(receive.address.global.is_some_and(|(index, _)| index == 5));
            assert!(receive.address.hop_limit >= 64);
            assert_eq!((send.timeout, send.retry_count), (19, 5));
            assert!(receive.min_rnr_timer == 12 && send.retry_count < 7);
            psns.push(send.send_psn);
        }
    }
    psns.sort_unstable();
    psns.dedup();
    assert_eq!(psns.len(), 4, "every lane starts at a number of its own");
}

#[test]
fn the_first_write_may_come_before_the_confirmation() {
    let mut world = Plan::new(3).world();
    let (low, high) = (&world.nodes[0].connector, &world.nodes[1].connector);
    let offer = low.offer(&info(1), 0).unwrap();
    let answer = high.accept(&info(0), &offer).unwrap();
    low.complete(&info(1), &answer).unwrap();
    assert!(world.nodes[0].fabric.is_up(1));
    let header = MessageHeader::new(MessageKind::Eager, &signature(), 9, 2);
    assert_eq!(world.nodes[0].fabric.send_message(1, &header, b"hi").unwrap(), Posting::Posted);
    world.nodes[0].fabric.flush().unwrap();
    world.network.deliver_all();
    let node = &mut world.nodes[1];
    // Its data path has not looked at its links since the set-up began.
    node.fabric.poll(&node.receives, &mut node.events).unwrap();
    let Some(Event::Message { slot }) = node.events.pop() else { panic!("no message") };
    let (read, payload) = node.fabric.message(slot).unwrap();
    assert_eq!((read.block(), payload), (9, &b"hi"[..]));
    assert!(!node.fabric.is_up(0), "it may not send yet");
    assert!(node.fabric.send_message(0, &header, b"hi").is_err());
    node.connector.confirm(&info(0)).unwrap();
    assert!(node.fabric.is_up(0));
    assert_eq!(node.fabric.send_message(0, &header, b"hi").unwrap(), Posting::Posted);
    world.assert_clean();
}

#[test]
fn a_second_link_waits_for_the_end_of_the_first() {
    let mut world = Plan::new(4).connected();
    let offer_again = world.nodes[0].connector.offer(&info(1), 0).unwrap_err();
    assert!(offer_again.to_string().contains("has not been closed"), "{offer_again}");
    world.quiesce(0, 1);
    let offer = world.nodes[0].connector.offer(&info(1), 0).unwrap();
    let refused = world.nodes[1].connector.accept(&info(0), &offer).unwrap_err();
    assert!(matches!(refused, Error::Link { rank: 1, peer: 0, .. }));
    world.nodes[0].connector.failed(&info(1), "refused");
    world.quiesce(1, 0);
    world.connect(0, 1);
}

#[test]
fn a_failed_set_up_leaves_nothing() {
    let mut world = Plan::new(5).lanes(3).world();
    let (low, high) = (&world.nodes[0].connector, &world.nodes[1].connector);
    let offer = low.offer(&info(1), 0).unwrap();
    let _answer = high.accept(&info(0), &offer).unwrap();
    low.failed(&info(1), "the answer was lost");
    high.failed(&info(0), "the answer was lost");
    let node = &mut world.nodes[1];
    node.fabric.poll(&node.receives, &mut node.events).unwrap();
    assert_eq!(node.events.pop(), Some(Event::Broken { peer: 0 }));
    assert_eq!(node.fabric.break_reason(0).as_deref(), Some("the answer was lost"));
    assert!(!world.nodes[0].fabric.is_up(1));
    assert_eq!(world.nodes[0].fabric.break_reason(1).as_deref(), Some("the answer was lost"));
    world.quiesce(1, 0);
    for rank in 0..2 {
        assert!(world.network.queue_pairs(rank).iter().all(|pair| pair.destroyed));
    }
    world.connect(0, 1);
    world.run(&mut [], &mut [Chat::new(0, 1, 20)]).unwrap();
    assert_eq!(world.nodes[0].fabric.break_reason(1), None);
}

#[test]
fn what_does_not_belong_to_a_set_up_is_an_error_and_leaves_nothing() {
    let world = Plan::new(6).lanes(2).world();
    let (low, high) = (&world.nodes[0].connector, &world.nodes[1].connector);
    for bytes in [&b""[..], b"{}", b"null", &[0xff; 100], b"{\"version\":1}"] {
        assert!(matches!(high.accept(&info(0), bytes), Err(Error::Protocol { .. })));
    }
    assert!(low.complete(&info(1), b"{}").is_err());
    assert!(high.confirm(&info(0)).is_err());
    assert!(low.offer(&info(1), 1).is_err());
    // An answer that describes more lanes than were offered.
    let offer = low.offer(&info(1), 0).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&offer).unwrap();
    let lane = json["lanes"][0].clone();
    json["lanes"].as_array_mut().unwrap().push(lane);
    let answer = serde_json::to_vec(&json).unwrap();
    assert!(low.complete(&info(1), &answer).unwrap_err().to_string().contains("more lanes"));
    // An answer to another offer.
    let offer = low.offer(&info(1), 0).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&offer).unwrap();
    json["epoch"] = (json["epoch"].as_u64().unwrap() ^ 1).into();
    let answer = serde_json::to_vec(&json).unwrap();
    assert!(low.complete(&info(1), &answer).unwrap_err().to_string().contains("earlier offer"));
    for rank in 0..2 {
        assert!(world.network.queue_pairs(rank).iter().all(|pair| pair.destroyed));
    }
    assert_eq!(world.network.violations(), []);
}

#[test]
fn rails_of_different_networks_are_refused_by_name() {
    let plan = Plan::new(7);
    let hosts = vec![vec![FakeDevice::roce(0, 0)], vec![FakeDevice::infiniband(1, 0)]];
    let network = FakeNetwork::new(plan.fake, hosts);
    let open = |rank: usize, device: &str, gid_index| {
        let choice = [RailChoice { device: device.into(), port: 1, gid_index }];
        fabric::open(&*network.driver(rank), &choice, rank as Rank, plan.settings.clone())
    };
    let (_low_fabric, low) = open(0, "fake0", Some(5)).unwrap();
    let (_high_fabric, high) = open(1, "ib0", None).unwrap();
    let offer = low.offer(&info(1), 0).unwrap();
    let error = high.accept(&info(0), &offer).unwrap_err().to_string();
    assert!(error.contains("RoCE") && error.contains("InfiniBand"), "{error}");
    assert!(network.queue_pairs(1).iter().all(|pair| pair.destroyed));
}

#[test]
fn infiniband_uses_a_grh_where_subnets_differ() {
    let mut plan = Plan::new(8);
    plan.infiniband = true;
    let mut far = FakeDevice::infiniband(1, 0);
    far.ports[0].gids[0].gid[7] = 9;
    let network = FakeNetwork::new(plan.fake, vec![vec![FakeDevice::infiniband(0, 0)], vec![far]]);
    let open = |rank: usize| {
        let choice = [RailChoice { device: "ib0".into(), port: 1, gid_index: Some(0) }];
        let settings = plan.settings.clone();
        fabric::open(&*network.driver(rank), &choice, rank as Rank, settings).unwrap()
    };
    let ((_low_fabric, low), (_high_fabric, high)) = (open(0), open(1));
    let offer = low.offer(&info(1), 0).unwrap();
    let answer = high.accept(&info(0), &offer).unwrap();
    low.complete(&info(1), &answer).unwrap();
    for rank in 0..2 {
        let address = network.queue_pairs(rank)[0].ready_to_receive.unwrap().address;
        assert!(address.global.is_some() && address.dlid > 0, "{address:?}");
    }
}

#[test]
fn limits_of_the_device_are_named_when_it_is_opened() {
    type Change = fn(&mut LinkSettings);
    let cases: [(&str, Change); 4] = [
        ("completion queue entries", |s| (s.links_max, s.lanes) = (100, 2)),
        ("queue pairs", |s| {
            (s.links_max, s.send_depth, s.receive_depth, s.signal_every) = (1025, 4, 4, 1)
        }),
        ("work requests per send queue", |s| (s.links_max, s.send_depth) = (1, 8192)),
        ("work requests per receive queue", |s| (s.links_max, s.receive_depth) = (1, 8193)),
    ];
    let plan = Plan::new(9);
    let network = plan.network();
    for (what, change) in cases {
        let mut settings = plan.settings.clone();
        change(&mut settings);
        let result = fabric::open(&*network.driver(0), &plan.choices(), 0, settings);
        let error = result.err().expect(what).to_string();
        assert!(error.contains(what) && error.contains("fake0"), "{error}");
    }
    assert_eq!(FAKE_LIMITS.max_cqe, 32767);
    for (device, port, gid_index, word) in [
        ("none", 1, Some(5), "none"),
        ("fake0", 2, Some(5), "no such port"),
        ("fake0", 1, Some(2), "index 2"),
        ("fake0", 1, None, "GID"),
    ] {
        let choice = [RailChoice { device: device.into(), port, gid_index }];
        let result = fabric::open(&*network.driver(0), &choice, 0, plan.settings.clone());
        let error = result.err().expect(word).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn more_links_than_planned_is_an_error_that_names_the_limit() {
    let mut plan = Plan::new(10).lanes(2);
    plan.ranks = 4;
    plan.settings.links_max = 2;
    let mut world = plan.world();
    world.connect(0, 1);
    world.connect(0, 2);
    let error = world.nodes[0].connector.offer(&info(3), 0).unwrap_err().to_string();
    assert!(error.contains("completion queue entries"), "{error}");
    world.quiesce(0, 1);
    world.connect(0, 3);
    world.run(&mut [], &mut [Chat::new(0, 3, 30), Chat::new(2, 0, 30)]).unwrap();
    world.assert_clean();
}

#[test]
fn blocks_that_cannot_be_sent_are_errors() {
    let mut world = Plan::new(11).connected();
    let flow = Flow::new(&mut world, 0, 1, 4000, 1000);
    let fabric = &mut world.nodes[0].fabric;
    let send = |range: std::ops::Range<u64>, offset| BlockSend {
        peer: 1,
        grant: &flow.grant,
        span: &flow.span,
        range,
        offset,
        block: 0,
        token: 0,
    };
    for (range, offset) in [(0..0, 0), (0..4001, 0), (0..1000, 3001), (0..1000, u64::MAX)] {
        assert!(matches!(fabric.send_block(&send(range, offset)), Err(Error::Invalid(_))));
    }
    let grant = Grant { rails: 0, ..flow.grant };
    let no_rails = BlockSend { grant: &grant, ..send(0..1000, 0) };
    assert!(matches!(fabric.send_block(&no_rails), Err(Error::Protocol { peer: 1, .. })));
    let span = Span { keys: Vec::new(), ..flow.target.span(false) };
    let no_keys = BlockSend { span: &span, ..send(0..1000, 0) };
    assert!(matches!(fabric.send_block(&no_keys), Err(Error::Invalid(_))));
    let stranger = BlockSend { peer: 5, ..send(0..1000, 0) };
    assert!(matches!(fabric.send_block(&stranger), Err(Error::Link { peer: 5, .. })));
}
