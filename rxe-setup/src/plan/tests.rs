use super::*;

fn lines(steps: &[Step]) -> Vec<String> {
    steps.iter().map(Step::line).collect()
}

/// Applies steps to a state as a kernel would, refusing what a kernel refuses.
fn apply(state: &mut State, steps: &[Step]) {
    for step in steps {
        let line = step.line();
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["modprobe", name] => assert!(state.modules.insert((*name).to_owned()), "{line}"),
            ["echo", value, ">", "/proc/sys/net/ipv4/conf/all/rp_filter"] => {
                state.rp_filter_before = if *value == "0" { state.rp_filter.take() } else { None };
                state.rp_filter = Some((*value).to_owned());
            }
            ["echo", _, ">", path] => {
                let interface = path.split('/').nth(6).expect("a path under conf");
                assert!(state.interfaces.contains(interface), "{line}");
            }
            ["ip", "netns", "add", SWITCH] => {
                assert!(!state.switch, "{line}");
                state.switch = true;
            }
            ["ip", "netns", "delete", SWITCH] => {
                assert!(state.switch, "{line}");
                state.switch = false;
            }
            [
                "ip",
                "link",
                "add",
                name,
                "mtu",
                _,
                "type",
                "veth",
                "peer",
                "name",
                _,
                "mtu",
                _,
                rest @ ..,
            ] => {
                assert!(rest.is_empty() || (rest == ["netns", SWITCH] && state.switch), "{line}");
                assert!(state.interfaces.insert((*name).to_owned()), "{line}");
            }
            ["ip", "link", "set", name, "alias", MARK] => {
                assert!(state.interfaces.contains(*name), "{line}");
                state.marked.insert((*name).to_owned());
            }
            ["ip", "link", "delete", name] => {
                assert!(state.interfaces.remove(*name), "{line}");
                state.marked.remove(*name);
                state.rdma.retain(|device| device.interface.as_deref() != Some(name));
            }
            ["rdma", "link", "add", name, "type", "rxe", "netdev", interface] => {
                assert!(state.interfaces.contains(*interface), "{line}");
                let device = RdmaDevice {
                    name: (*name).to_owned(),
                    interface: Some((*interface).to_owned()),
                };
                assert!(state.rdma.insert(device), "{line}");
            }
            ["rdma", "link", "delete", name] => {
                let before = state.rdma.len();
                state.rdma.retain(|device| device.name != *name);
                assert_eq!(state.rdma.len() + 1, before, "{line}");
            }
            ["ip", "addr" | "link", ..] => {}
            ["ip", "-n", SWITCH, ..] => assert!(state.switch, "{line}"),
            _ => panic!("an unexpected step: {line}"),
        }
    }
}

fn bring_up(cluster: Cluster, state: &mut State) {
    let steps = up(cluster, state).unwrap();
    apply(state, &steps);
}

/// A kernel that has every module and nothing else.
fn bare() -> State {
    State { loadable: MODULES.map(str::to_owned).into(), ..State::default() }
}

fn host() -> State {
    State {
        loadable: MODULES.map(str::to_owned).into(),
        rp_filter: Some("2".to_owned()),
        interfaces: ["lo", "eth0"].map(str::to_owned).into(),
        rdma: [RdmaDevice { name: "mlx5_0".to_owned(), interface: Some("eth0".to_owned()) }].into(),
        ..State::default()
    }
}

#[test]
fn loopback_is_one_device_on_a_veth_pair() {
    let steps = up(Cluster::Loopback, &bare()).unwrap();
    assert_eq!(
        lines(&steps),
        [
            "modprobe crc32_generic",
            "modprobe veth",
            "modprobe rdma_rxe",
            "modprobe rdma_ucm",
            "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter",
            "ip link add n0 mtu 4200 type veth peer name s0 mtu 4200",
            "ip link set n0 alias verbcast",
            "ip link set s0 up",
            "echo 1 > /proc/sys/net/ipv4/conf/n0/accept_local",
            "echo 0 > /proc/sys/net/ipv4/conf/n0/rp_filter",
            "echo 1 > /proc/sys/net/ipv4/conf/n0/arp_ignore",
            "echo 2 > /proc/sys/net/ipv4/conf/n0/arp_announce",
            "ip addr add 10.9.0.1/24 dev n0",
            "ip link set n0 up",
            "rdma link add rxe0 type rxe netdev n0",
        ]
    );
}

#[test]
fn each_node_has_its_own_device_interface_and_address() {
    let steps = lines(&up(Cluster::Nodes(3), &bare()).unwrap());
    for node in 0..3 {
        for wanted in [
            format!(
                "ip link add n{node} mtu 4200 type veth \
                 peer name s{node} mtu 4200 netns verbcast-switch"
            ),
            format!("ip -n verbcast-switch link set s{node} master br0 up"),
            format!("ip addr add 10.9.0.{}/24 dev n{node}", node + 1),
            format!("rdma link add rxe{node} type rxe netdev n{node}"),
        ] {
            assert_eq!(steps.iter().filter(|line| **line == wanted).count(), 1, "{wanted}");
        }
    }
    assert!(!steps.iter().any(|line| line.contains("rxe3") || line.contains("n3")));
}

#[test]
fn up_twice_makes_nothing_twice() {
    for cluster in [Cluster::Loopback, Cluster::Nodes(1), Cluster::Nodes(8), Cluster::Nodes(250)] {
        let mut state = host();
        bring_up(cluster, &mut state);
        assert_eq!(up(cluster, &state).unwrap(), []);
    }
}

#[test]
fn a_larger_cluster_adds_what_is_missing() {
    let mut state = host();
    bring_up(Cluster::Nodes(2), &mut state);
    let more = up(Cluster::Nodes(4), &state).unwrap();
    apply(&mut state, &more);
    let devices: Vec<_> = state.rdma.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(devices, ["mlx5_0", "rxe0", "rxe1", "rxe2", "rxe3"]);
}

#[test]
fn the_two_shapes_do_not_mix() {
    for (first, second) in
        [(Cluster::Loopback, Cluster::Nodes(2)), (Cluster::Nodes(2), Cluster::Loopback)]
    {
        let mut state = host();
        bring_up(first, &mut state);
        assert!(matches!(up(second, &state), Err(Error::Usage(_))), "{first:?}");
        let steps = down(&state);
        apply(&mut state, &steps);
        state.modules.clear();
        assert!(up(second, &state).is_ok());
    }
}

#[test]
fn down_leaves_exactly_what_was_there_before() {
    for cluster in [Cluster::Loopback, Cluster::Nodes(8)] {
        let before = host();
        let mut state = before.clone();
        bring_up(cluster, &mut state);
        let steps = down(&state);
        apply(&mut state, &steps);
        assert_eq!(lines(&steps).last().unwrap(), "echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter");
        let left = State { modules: BTreeSet::new(), ..state };
        assert_eq!(left, before);
    }
}

#[test]
fn down_on_a_host_without_a_cluster_does_nothing() {
    assert_eq!(down(&host()), []);
}

#[test]
fn a_half_made_cluster_is_removed_too() {
    let complete = up(Cluster::Nodes(4), &host()).unwrap();
    for made in 0..=complete.len() {
        let mut state = host();
        apply(&mut state, &complete[..made]);
        // An interface is marked by the step after the one that makes it.
        state.marked.extend(state.interfaces.iter().filter(|name| name.starts_with('n')).cloned());
        let steps = down(&state);
        apply(&mut state, &steps);
        assert_eq!(
            (state.interfaces, state.rdma),
            (host().interfaces, host().rdma),
            "{made} steps"
        );
    }
}

#[test]
fn a_module_that_the_kernel_lacks_is_an_error_where_it_is_needed() {
    let without = |module: &str| {
        let mut state = bare();
        state.loadable.remove(module);
        up(Cluster::Nodes(2), &state)
    };
    for module in ["veth", "bridge", "rdma_rxe"] {
        let error = without(module).unwrap_err().to_string();
        assert!(error.contains(module) && error.contains("vm run"), "{error}");
    }
    for module in ["crc32_generic", "rdma_ucm"] {
        assert!(without(module).is_ok_and(|steps| !lines(&steps).join(" ").contains(module)));
    }
}

#[test]
fn what_others_made_is_in_the_way() {
    let mut foreign_interface = host();
    foreign_interface.interfaces.insert("n1".to_owned());
    assert!(up(Cluster::Nodes(1), &foreign_interface).is_ok());
    let error = up(Cluster::Nodes(2), &foreign_interface).unwrap_err();
    assert!(error.to_string().contains("interface n1"), "{error}");

    let mut foreign_device = host();
    foreign_device
        .rdma
        .insert(RdmaDevice { name: "rxe0".to_owned(), interface: Some("eth0".to_owned()) });
    let error = up(Cluster::Loopback, &foreign_device).unwrap_err();
    assert!(error.to_string().contains("RDMA device rxe0"), "{error}");
    assert_eq!(down(&foreign_device), [], "down must not touch it either");
}

#[test]
fn the_number_of_nodes_is_bounded() {
    assert_eq!(Cluster::from_option(None).unwrap(), Cluster::Loopback);
    assert_eq!(Cluster::from_option(Some(250)).unwrap(), Cluster::Nodes(250));
    for nodes in [0, 251, u32::MAX] {
        assert!(matches!(Cluster::from_option(Some(nodes)), Err(Error::Usage(_))), "{nodes}");
    }
}

#[test]
fn the_script_starts_one_process_for_each_run_of_steps() {
    let steps = up(Cluster::Nodes(8), &bare()).unwrap();
    let script = script(&steps);
    let starts =
        script.lines().filter(|line| line.ends_with("<<'END'") || line.starts_with("ip netns"));
    assert_eq!(
        starts.collect::<Vec<_>>(),
        [
            "ip netns add verbcast-switch",
            "ip -batch - <<'END'",
            "ip -n verbcast-switch -batch - <<'END'",
            "ip -batch - <<'END'",
            "rdma -b - <<'END'",
        ]
    );
    let words = |line: &str| line.trim_start_matches("ip ").trim_start_matches("rdma ").to_owned();
    for step in lines(&steps) {
        let batched = words(step.trim_start_matches("ip -n verbcast-switch "));
        assert!(script.lines().any(|line| line == step || line == batched), "{step}");
    }
}
