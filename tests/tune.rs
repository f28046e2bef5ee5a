//! `verbcast tune`: a job measures what its links do.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod job;

use std::path::{Path, PathBuf};

use job::{Outcome, launch_shell, run, verbcast};
use serde_json::Value;
use verbcast::model::FabricProfile;

#[test]
fn a_job_measures_itself_with_bounds() {
    for ranks in ["2", "3"] {
        let program = env!("CARGO_BIN_EXE_verbcast");
        let command = ["launch", "-n", ranks, "--", program, "tune", "--json", "--within", "0.5"];
        let outcome = run(verbcast(command)).expect_code(0);
        let lines: Vec<Value> =
            outcome.of_rank(0).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
        for name in ["L", "g", "o", "beta", "eager limit", "link set-up", "wake"] {
            assert!(names.contains(&name), "no {name:?} in {names:?}");
        }
        for line in &lines {
            let number = |name: &str| line[name].as_f64().unwrap();
            assert!(
                number("low") <= number("value") && number("value") <= number("high"),
                "{line}"
            );
            assert!(number("samples") >= 1.0, "{line}");
        }
        let value = |name: &str| {
            let line = lines.iter().find(|line| line["name"] == name).unwrap();
            line["value"].as_f64().unwrap()
        };
        assert!(value("L") > 0.0 && value("beta") > 0.0);
        // Only rank 0 speaks.
        assert!(outcome.of_rank(1).is_empty());
    }
}

#[test]
fn one_rank_has_nothing_to_measure() {
    run(verbcast(["tune"])).expect_code(2).expect_error("verbcast launch -n 4");
}

/// A folder of its own, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("verbcast-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, profile: &FabricProfile) -> PathBuf {
        let path = self.join(name);
        profile.write(&path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_profile_is_written_read_and_planned_with() {
    let folder = Folder::new("tune");
    let path = folder.join("fabric.toml");
    let program = env!("CARGO_BIN_EXE_verbcast");
    let name = path.to_str().unwrap();
    let arguments =
        ["launch", "-n", "2", "--", program, "tune", "--within", "0.5", "--output", name];
    run(verbcast(arguments)).expect_code(0);
    let profile = FabricProfile::read(&path).unwrap();
    let local = profile.local.unwrap();
    let bounds = local.bounds.unwrap();
    assert!(profile.network.is_none() && profile.host.unwrap().cores > 0);
    for (value, [low, high]) in
        [(local.latency_ns, bounds.latency_ns), (local.bytes_per_second, bounds.bytes_per_second)]
    {
        assert!(low <= value && value <= high, "{low} <= {value} <= {high}");
    }
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file is left");
    let planned = run(verbcast(["plan", "-n", "4", "--profile", name])).expect_code(0);
    assert!(planned.stdout.contains(name), "{}", planned.stdout);
}

#[test]
fn a_profile_that_cannot_be_written_is_told_before_anything_is_measured() {
    let program = env!("CARGO_BIN_EXE_verbcast");
    let arguments = ["launch", "-n", "2", "--", program, "tune", "--output", "/nowhere/p.toml"];
    run(verbcast(arguments)).expect_code(1).expect_error("/nowhere/p.toml: cannot be written");
}

/// A broadcast of a megabyte by three ranks with VERBCAST_PROFILE set to this.
fn broadcast_with(folder: &Folder, profile: &str) -> Outcome {
    let file = folder.join("in");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let program = env!("CARGO_BIN_EXE_verbcast");
    let (file, to) = (file.display(), folder.join("out.{rank}").display().to_string());
    run(launch_shell(
        3,
        &format!("export VERBCAST_PROFILE={profile}; exec {program} broadcast {file} '{to}'"),
    ))
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_job_chooses_by_its_profile() {
    let folder = Folder::new("given");
    let mut local = FabricProfile::SHM_COPIED.local.unwrap();
    // A block costs 10 ms: one for everything is best.
    (local.gap_ns, local.overhead_ns) = (10_000_000, 10_000_000);
    let dear = FabricProfile { local: Some(local), ..FabricProfile::default() };
    // A block costs nothing: small ones are best.
    (local.gap_ns, local.overhead_ns) = (0, 0);
    let cheap = FabricProfile { local: Some(local), ..FabricProfile::default() };
    let dear = broadcast_with(&folder, name(&folder.write("dear", &dear))).expect_code(0).stdout;
    let cheap = broadcast_with(&folder, name(&folder.write("cheap", &cheap))).expect_code(0).stdout;
    assert!(dear.contains("blocks of 1 MiB"), "{dear}");
    assert!(cheap.contains("KiB") && !cheap.contains("blocks of 1 MiB"), "{cheap}");
}

#[test]
fn ranks_with_different_profiles_are_named() {
    let folder = Folder::new("differ");
    folder.write("p0", &FabricProfile::SHM);
    folder.write("p1", &FabricProfile::VERBS);
    for profile in [folder.join("p$VERBCAST_RANK"), folder.join("p0")] {
        // In the second case only rank 0 has one.
        let text = format!("{}; [ $VERBCAST_RANK = 0 ] || {}", name(&profile), {
            if profile.ends_with("p0") {
                "unset VERBCAST_PROFILE"
            } else {
                "VERBCAST_PROFILE=${VERBCAST_PROFILE%[0-9]}1"
            }
        });
        broadcast_with(&folder, &text)
            .expect_code(1)
            .expect_error("[0] verbcast broadcast: ranks 0 and 1 were given different profiles");
    }
}

#[test]
fn a_profile_that_is_none_is_told_with_its_line() {
    let folder = Folder::new("bad");
    let text = FabricProfile::SHM.to_toml();
    for (wrong, words) in [
        (text.replace("latency_ns = 1000", "latency_ns = nan"), "line 4"),
        (text.replace("latency_ns = 1000", "latency_ns = -1"), "line 4"),
        (text.replace("version = 1", "version = 2"), "version 2"),
        ("what".into(), "line 1"),
    ] {
        let path = folder.join("p.toml");
        std::fs::write(&path, &wrong).unwrap();
        broadcast_with(&folder, name(&path)).expect_code(1).expect_error(words);
        run(verbcast(["plan", "-n", "4", "--profile", name(&path)]))
            .expect_code(2)
            .expect_error(words);
    }
    broadcast_with(&folder, "/nowhere/p.toml").expect_code(1).expect_error("/nowhere/p.toml");
}
