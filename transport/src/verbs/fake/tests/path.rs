//! State machine, addressing and agreement of the two ends.

use super::*;

#[test]
fn states_follow_each_other_and_posts_need_the_right_one() {
    let network = FakeNetwork::roce(2, 1, plain(1));
    let (mut a, b) = (End::new(&network, 0), End::new(&network, 1));
    let (init, receive, send) = towards(&network, 0, 1, b.pair.number());
    let write = a.write_to(&b, 8);
    assert!(a.pair.to_ready_to_receive(&receive).is_err());
    assert!(a.pair.to_ready_to_send(&send).is_err());
    assert!(a.pair.post_receives(1, 0).is_err());
    assert_eq!(a.post(&[write]).unwrap_err().posted, 0);
    a.pair.to_init(&init).unwrap();
    assert!(a.pair.to_init(&init).is_err());
    assert!(a.pair.to_ready_to_send(&send).is_err());
    a.pair.post_receives(1, 0).unwrap();
    assert!(a.post(&[write]).is_err());
    a.pair.to_ready_to_receive(&receive).unwrap();
    assert!(a.post(&[write]).is_err());
    a.pair.to_ready_to_send(&send).unwrap();
    a.post(&[write]).unwrap();
    let states: Vec<_> = rules(&network)
        .into_iter()
        .take(4)
        .map(|rule| match rule {
            Rule::PostedInWrongState { state } => state,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(states, ["RESET", "RESET", "INIT", "RTR"]);
}

#[test]
fn attributes_must_fit_the_port() {
    let network = FakeNetwork::roce(2, 1, plain(2));
    let number = End::new(&network, 1).pair.number();
    let (init, good, send) = towards(&network, 0, 1, number);
    let refuses = |what: &str, bad: ReadyToReceiveAttributes| {
        let mut end = End::new(&network, 0);
        end.pair.to_init(&init).unwrap();
        assert!(end.pair.to_ready_to_receive(&bad).is_err(), "{what}");
        end.pair.to_ready_to_receive(&good).unwrap();
    };
    let with = |change: &dyn Fn(&mut PathAddress)| {
        let mut bad = good;
        change(&mut bad.address);
        bad
    };
    let (index, gid) = good.address.global.unwrap();
    refuses("no GRH on Ethernet", with(&|address| address.global = None));
    refuses("a zero GID table entry", with(&|address| address.global = Some((2, gid))));
    refuses("an index out of the table", with(&|address| address.global = Some((200, gid))));
    refuses("a zero GID of the peer", with(&|address| address.global = Some((index, [0; 16]))));
    refuses("hop limit 0", with(&|address| address.hop_limit = 0));
    refuses("service level 16", with(&|address| address.service_level = 16));
    refuses(
        "an MTU over the active one",
        ReadyToReceiveAttributes { path_mtu_bytes: 2048, ..good },
    );
    refuses("an MTU that is none", ReadyToReceiveAttributes { path_mtu_bytes: 1000, ..good });
    refuses("25 bits of PSN", ReadyToReceiveAttributes { receive_psn: 1 << 24, ..good });
    refuses("another port", ReadyToReceiveAttributes { port: 2, ..good });
    refuses("RNR timer 32", ReadyToReceiveAttributes { min_rnr_timer: 32, ..good });

    let mut end = End::new(&network, 0);
    assert!(end.pair.to_init(&InitAttributes { port: 2, pkey_index: 0 }).is_err());
    assert!(end.pair.to_init(&InitAttributes { port: 0, pkey_index: 0 }).is_err());
    assert!(end.pair.to_init(&InitAttributes { port: 1, pkey_index: 1 }).is_err());
    end.pair.to_init(&init).unwrap();
    end.pair.to_ready_to_receive(&good).unwrap();
    assert!(end.pair.to_ready_to_send(&ReadyToSendAttributes { timeout: 32, ..send }).is_err());
    assert!(end.pair.to_ready_to_send(&ReadyToSendAttributes { retry_count: 8, ..send }).is_err());

    let network = FakeNetwork::infiniband(2, 1, plain(3));
    let (init, mut good, _) = towards(&network, 0, 1, number);
    let mut end = End::new(&network, 0);
    end.pair.to_init(&init).unwrap();
    let dlid = std::mem::take(&mut good.address.dlid);
    assert!(end.pair.to_ready_to_receive(&good).is_err(), "LID 0 on InfiniBand");
    good.address.dlid = dlid;
    end.pair.to_ready_to_receive(&good).unwrap();
}

type Ends = [(InitAttributes, ReadyToReceiveAttributes, ReadyToSendAttributes); 2];

/// Brings two ends up with one thing wrong and writes from the first: it must time out.
fn times_out(network: &FakeNetwork, break_it: impl Fn(&mut Ends)) -> Rule {
    let (mut a, mut b) = (End::new(network, 0), End::new(network, 1));
    let mut ends =
        [towards(network, 0, 1, b.pair.number()), towards(network, 1, 0, a.pair.number())];
    break_it(&mut ends);
    for (end, (init, receive, send)) in [&mut a, &mut b].into_iter().zip(&ends) {
        end.pair.to_init(init).unwrap();
        end.pair.to_ready_to_receive(receive).unwrap();
        end.pair.to_ready_to_send(send).unwrap();
    }
    a.post(&[a.write_to(&b, 8), Write { work_id: 2, ..a.write_to(&b, 8) }]).unwrap();
    assert_eq!(a.statuses(network), [(1, 12), (2, 5)]);
    assert_eq!(b.statuses(network), []);
    let [rule] = &rules(network)[..] else { panic!("{:?}", rules(network)) };
    rule.clone()
}

#[test]
fn both_ends_must_name_each_other() {
    let roce = || FakeNetwork::roce(3, 1, plain(4));
    let ib = || FakeNetwork::infiniband(3, 1, plain(4));
    let misaddressed = |rule| assert_eq!(rule, Rule::Misaddressed);
    misaddressed(times_out(&roce(), |ends| ends[0].1.destination_qpn += 1));
    misaddressed(times_out(&roce(), |ends| ends[1].1.destination_qpn += 1));
    misaddressed(times_out(&ib(), |ends| ends[0].1.address.dlid = 999));
    misaddressed(times_out(&ib(), |ends| ends[1].1.address.dlid = 999));
    let third = |network: &FakeNetwork| towards(network, 0, 2, 0).1.address.global;
    let network = roce();
    let other = third(&network);
    misaddressed(times_out(&network, |ends| ends[1].1.address.global = other));
    // The same 16 bytes as RoCE v1 and as v2 are two addresses.
    misaddressed(times_out(&roce(), |ends| {
        let (_, gid) = ends[0].1.address.global.unwrap();
        ends[0].1.address.global = Some((3, gid));
        ends[1].1.address.global = Some((4, [0xfd; 16]));
    }));
}

#[test]
fn both_ends_must_agree() {
    let agree =
        |network: &FakeNetwork, what: &'static str, break_it: &dyn Fn(&mut Ends)| match times_out(
            network, break_it,
        ) {
            Rule::Disagreement { what: seen, .. } => assert_eq!(seen, what),
            other => panic!("{other:?}"),
        };
    let roce = || FakeNetwork::roce(2, 1, plain(5));
    agree(&roce(), "PSN", &|ends| ends[0].2.send_psn += 1);
    agree(&roce(), "path MTU", &|ends| ends[1].1.path_mtu_bytes = 512);
    agree(&FakeNetwork::infiniband(2, 1, plain(5)), "pkey", &|ends| ends[1].0.pkey_index = 1);
}

#[test]
fn a_write_before_the_peer_is_ready_is_lost() {
    let network = FakeNetwork::roce(2, 1, plain(6));
    let (mut a, b) = (End::new(&network, 0), End::new(&network, 1));
    let number = b.pair.number();
    bring_up(&network, &mut a, 0, 1, number);
    a.post(&[a.write_to(&b, 8)]).unwrap();
    assert_eq!(a.statuses(&network), [(1, 12)]);
    assert_eq!(rules(&network), [Rule::PeerNotReady]);
}

#[test]
fn a_message_longer_than_the_port_takes_is_an_error() {
    let mut device = crate::verbs::fake::FakeDevice::roce(0, 0);
    device.ports[0].max_message_bytes = 4096;
    let peer = crate::verbs::fake::FakeDevice::roce(1, 0);
    let network = FakeNetwork::new(plain(7), vec![vec![device], vec![peer]]);
    let (mut a, b) = connected(&network);
    a.post(&[a.write_to(&b, 4096), Write { work_id: 2, ..a.write_to(&b, 4097) }]).unwrap();
    assert_eq!(a.statuses(&network), [(1, 0), (2, 1)]);
    assert_eq!(rules(&network), [Rule::MessageTooLong { bytes: 4097, limit: 4096 }]);
}
