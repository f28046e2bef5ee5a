//! Profiles as TOML: what is written is read again, and what cannot be is an error with its line.

use super::*;

fn measured() -> FabricProfile {
    let bounds = Bounds {
        latency_ns: [900, 1100],
        gap_ns: [90, 110],
        bytes_per_second: [9_000_000_000, 11_000_000_000],
    };
    let local = PathProfile { bounds: Some(bounds), ..FabricProfile::SHM.path() };
    let host = HostProfile {
        cores: 8,
        copy_bytes_per_second: 10_000_000_000,
        copy_bytes_per_second_all: 40_000_000_000,
        wake_ns: 5_000,
    };
    FabricProfile { local: Some(local), host: Some(host), ..FabricProfile::VERBS }
}

#[test]
fn what_is_written_is_read_again() {
    for profile in PROFILES.into_iter().chain([FabricProfile::VERBS, measured()]) {
        let text = profile.to_toml();
        assert_eq!(FabricProfile::from_toml(&text).unwrap(), profile, "{text}");
    }
    for name in FabricProfile::NAMES {
        assert!(FabricProfile::named(name).is_some(), "{name}");
    }
    assert_eq!(FabricProfile::named("infiniband"), None);
}

#[test]
fn a_file_is_read_and_written() {
    let directory = std::env::temp_dir().join(format!("verbcast-profile-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("fabric.toml");
    let missing = FabricProfile::read(&path).unwrap_err().to_string();
    assert!(missing.contains("fabric.toml"), "{missing}");
    measured().write(&path).unwrap();
    assert_eq!(FabricProfile::read(&path).unwrap(), measured());
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(matches!(FabricProfile::read(&path), Err(ProfileError::NoText { .. })));
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(matches!(FabricProfile::read(&path), Err(ProfileError::NoText { .. })));
    assert!(matches!(measured().write(&directory), Err(ProfileError::Write { .. })));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn numbers_that_cannot_be_are_errors_with_their_line() {
    let text = FabricProfile::VERBS_100G.to_toml();
    let line_of = |key: &str| 1 + text.lines().position(|line| line.starts_with(key)).unwrap();
    for (key, values) in [
        (
            "latency_ns",
            &["nan", "-nan", "inf", "-inf", "-1", "-0.6", "1e13", "\"1500\"", "true"][..],
        ),
        ("gap_ns", &["nan", "inf", "-1", "9223372036854775807"][..]),
        ("bytes_per_second", &["nan", "inf", "0", "-12500000000", "0.2", "1e300"][..]),
        ("eager_limit_bytes", &["nan", "-1", "9223372036854775808"][..]),
        ("links_max", &["0", "-1", "4294967296", "nan"][..]),
    ] {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        for value in values {
            let wrong = text.replace(line, &format!("{key} = {value}"));
            let error = FabricProfile::from_toml(&wrong).unwrap_err();
            let ProfileError::Syntax { line, message } = &error else {
                panic!("{key} = {value}: {error:?}")
            };
            assert_eq!(*line, line_of(key), "{key} = {value}: {error}");
            assert!(!message.is_empty() && !message.contains('\n'), "{error}");
        }
    }
    // A fraction is rounded.
    let text = text.replace("latency_ns = 1500", "latency_ns = 1499.6");
    assert_eq!(FabricProfile::from_toml(&text).unwrap(), FabricProfile::VERBS_100G);
}

#[test]
fn texts_that_are_no_profile_of_this_version() {
    let text = FabricProfile::VERBS.to_toml();
    let with = |from: &str, to: &str| FabricProfile::from_toml(&text.replace(from, to));
    assert!(matches!(with("version = 1", "version = 2"), Err(ProfileError::Version { found: 2 })));
    assert!(matches!(with("version = 1", "version = 0"), Err(ProfileError::Version { found: 0 })));
    assert!(matches!(with("version = 1\n", ""), Err(ProfileError::NoVersion)));
    assert!(matches!(with("version = 1", "version = \"1\""), Err(ProfileError::NoVersion)));
    assert!(matches!(FabricProfile::from_toml(""), Err(ProfileError::NoVersion)));
    assert!(matches!(FabricProfile::from_toml("version = 1"), Err(ProfileError::NoPath)));
    for (from, to) in [
        ("gap_ns", "gapns"),
        ("gap_ns = 200\n", ""),
        ("[network]", "[networks]"),
        ("[network]", "[network"),
        ("gap_ns = 200", "gap_ns ="),
        ("gap_ns = 200", "gap_ns = 200\ngap_ns = 300"),
    ] {
        let error = with(from, to).unwrap_err();
        assert!(matches!(error, ProfileError::Syntax { .. }), "{from} -> {to}: {error}");
    }
    // Cut anywhere, a profile is an error or lacks only what may be left out.
    let text = measured().to_toml();
    for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
        let _outcome = FabricProfile::from_toml(&text[..end]);
    }
}

#[test]
fn hosts_share_their_memory_and_wake_their_ranks() {
    let profile = measured().on_one_host();
    assert_eq!(profile.network, None);
    let shm = FabricProfile::SHM.path();
    assert_eq!(profile.path_of(4).bytes_per_second, shm.bytes_per_second);
    assert_eq!(profile.path_of(4).latency_ns, shm.latency_ns);
    let many = profile.path_of(17);
    assert_eq!(many.bytes_per_second, 40_000_000_000 / 16);
    assert_eq!(many.latency_ns, shm.latency_ns + 5_000);
    // Over a network the host does not decide.
    assert_eq!(measured().path_of(17), measured().path());
    assert_eq!(FabricProfile::VERBS.on_one_host(), FabricProfile::VERBS);
    assert_eq!(FabricProfile::default().path(), FabricProfile::VERBS_100G.path());
}
