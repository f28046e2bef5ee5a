//! What ARCHITECTURE.md promises about crates, their dependencies and their files.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The crates of the workspace, each with those of the workspace it may depend on.
const DIRECTIONS: [(&str, &[&str]); 4] = [
    ("verbcast-transport", &[]),
    ("verbcast-collectives", &["verbcast-transport"]),
    ("verbcast", &["verbcast-transport", "verbcast-collectives"]),
    ("rxe-setup", &[]),
];

/// Where `forbid(unsafe_code)` stands.
const FORBID_UNSAFE: [&str; 4] =
    ["src/lib.rs", "cli/main.rs", "collectives/src/lib.rs", "rxe-setup/src/main.rs"];

/// Where unsafe code may be: in the links, in the one file that turns addresses into memory, and in
/// the scope that keeps that memory borrowed.
const UNSAFE_PLACES: [&str; 7] = [
    "transport/src/verbs/",
    "transport/src/shm/",
    "transport/src/memory.rs",
    // Calls the unsafe functions of the driver on a real device.
    "transport/tests/verbs_device.rs",
    // Counts allocations.
    "transport/tests/persistent_starts.rs",
    "transport/src/endpoint/mod.rs",
    "transport/src/endpoint/memory.rs",
];

/// A file longer than this is two files.
const FILE_LINES_MAX: usize = 700;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `cargo metadata` of everything that a build for this machine can need.
fn metadata() -> Value {
    let version =
        Command::new(option_env!("RUSTC").unwrap_or("rustc")).arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().unwrap().iter()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

fn deny() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

/// All files below `folder` that end in `suffix`, without build output and version control.
fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.starts_with('.') {
                found.extend(files(&path, suffix));
            }
        } else if name.ends_with(suffix) {
            found.push(path);
        }
    }
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn crates_depend_in_one_direction() {
    let metadata = metadata();
    let members: BTreeSet<&str> =
        packages(&metadata).filter(|package| package["source"].is_null()).map(name).collect();
    let known: BTreeMap<&str, &[&str]> = DIRECTIONS.into_iter().collect();
    assert_eq!(members, known.keys().copied().collect(), "a crate that this test does not know");
    for package in packages(&metadata).filter(|package| package["source"].is_null()) {
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = name(dependency);
            let own_tests = on == name(package) && dependency["kind"] == "dev";
            assert!(
                !members.contains(on) || own_tests || known[name(package)].contains(&on),
                "{} must not depend on {on}",
                name(package)
            );
        }
    }
}

#[test]
fn rxe_setup_builds_without_a_system_library() {
    let metadata = metadata();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let edges: BTreeMap<&str, Vec<&str>> = nodes
        .iter()
        .map(|node| {
            let on = node["dependencies"].as_array().unwrap().iter();
            (node["id"].as_str().unwrap(), on.map(|id| id.as_str().unwrap()).collect())
        })
        .collect();
    let package = |id: &str| packages(&metadata).find(|package| package["id"] == id).unwrap();
    let start = packages(&metadata).find(|package| name(package) == "rxe-setup").unwrap();
    let mut seen = BTreeSet::new();
    let mut open = vec![start["id"].as_str().unwrap()];
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(&edges[id]);
        }
    }
    for id in seen {
        let package = package(id);
        assert!(
            package["links"].is_null(),
            "rxe-setup needs {}, which links {}",
            name(package),
            package["links"]
        );
        assert!(
            !["cc", "cmake", "bindgen", "pkg-config"].contains(&name(package)),
            "rxe-setup needs {} to build",
            name(package)
        );
    }
}

#[test]
fn licences_of_all_dependencies_are_allowed() {
    let deny = deny();
    let allowed: Vec<spdx::Licensee> = deny["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|licence| spdx::Licensee::parse(licence.as_str().unwrap()).unwrap())
        .collect();
    let metadata = metadata();
    let mut checked = 0;
    for package in packages(&metadata) {
        let licence = package["license"].as_str().unwrap_or("");
        let expression = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .unwrap_or_else(|error| panic!("{}: licence {licence:?}: {error}", name(package)));
        let fits = expression.evaluate(|wanted| allowed.iter().any(|one| one.satisfies(wanted)));
        assert!(fits, "{} is under {licence}, which deny.toml does not allow", name(package));
        checked += 1;
    }
    assert!(checked > DIRECTIONS.len(), "no dependencies were looked at");
    for licence in ["GPL-2.0-only", "MPL-2.0", "LGPL-3.0-or-later", "AGPL-3.0-only"] {
        let copyleft = spdx::Expression::parse(licence).unwrap();
        assert!(!copyleft.evaluate(|wanted| allowed.iter().any(|one| one.satisfies(wanted))));
    }
}

#[test]
fn banned_crates_are_absent_and_sources_are_known() {
    let deny = deny();
    let banned: BTreeSet<&str> = deny["bans"]["deny"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["crate"].as_str().unwrap())
        .collect();
    let registries = deny["sources"]["allow-registry"].as_array().unwrap();
    for package in packages(&metadata()) {
        assert!(!banned.contains(name(package)), "{} is banned by deny.toml", name(package));
        if let Some(source) = package["source"].as_str() {
            let known = registries
                .iter()
                .any(|registry| source.strip_prefix("registry+") == registry.as_str());
            assert!(known, "{} comes from {source}", name(package));
        }
    }
}

/// Whether a line of Rust opens unsafe code (and does not only speak of it).
fn uses_unsafe(line: &str) -> bool {
    let word = concat!("uns", "afe");
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices(word).any(|(at, _)| {
        let starts = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &code[at + word.len()..];
        let next = rest.trim_start();
        let opens =
            ["{", "fn ", "impl", "extern", "trait", "("].iter().any(|form| next.starts_with(form));
        starts && (opens || next.is_empty())
    })
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    for file in FORBID_UNSAFE {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let forbidden = text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
        assert!(forbidden, "{file} does not forbid unsafe code");
    }
    let mut looked_at = 0;
    for path in files(root(), ".rs") {
        let file = relative(&path);
        let allowed = UNSAFE_PLACES.iter().any(|place| file.starts_with(place));
        let text = std::fs::read_to_string(&path).unwrap();
        let used = text.lines().any(uses_unsafe);
        assert!(allowed || !used, "{file} has unsafe code");
        looked_at += 1;
    }
    assert!(looked_at > 10);
}

#[test]
fn shared_memory_and_verbs_do_not_see_each_other() {
    for (folder, other) in [("shm", "verbs"), ("verbs", "shm")] {
        for path in files(&root().join("transport/src").join(folder), ".rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for form in [format!("crate::{other}"), format!("super::super::{other}")] {
                assert!(!text.contains(&form), "{} uses {form}", relative(&path));
            }
        }
    }
}

#[test]
fn schedules_see_only_ranks_and_blocks() {
    for path in files(&root().join("collectives/src/schedule"), ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let used = text.lines().filter(|line| line.trim_start().starts_with("use "));
        for line in used {
            let outside = line.contains("verbcast_transport") && !line.contains("::wire::Rank");
            assert!(!outside, "{}: {line}", relative(&path));
        }
    }
}

#[test]
fn files_stay_readable() {
    for suffix in [".rs", ".md", ".toml"] {
        for path in files(root(), suffix) {
            let lines = std::fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", relative(&path));
        }
    }
    let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(architecture.lines().count() <= 200, "ARCHITECTURE.md is for one sitting");
}

#[test]
fn the_map_names_what_is_there() {
    let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut paths = 0;
    for word in architecture.split('`').skip(1).step_by(2) {
        let is_path = word.contains('/') && !word.contains([' ', '*', '<', '{', ':']);
        if is_path && !word.starts_with('/') {
            assert!(root().join(word).exists(), "ARCHITECTURE.md names {word}, which is not there");
            paths += 1;
        }
    }
    assert!(paths > 10, "ARCHITECTURE.md maps the code");
}
