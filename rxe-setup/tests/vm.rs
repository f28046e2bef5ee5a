//! Guests as a user sees them. They take seconds each and need qemu, so that they are ignored unless
//! asked for: `cargo verify` does, or
//! `cargo test -p rxe-setup --test vm -- --ignored --test-threads=1`.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const RXE_SETUP: &str = env!("CARGO_BIN_EXE_rxe-setup");

fn vm_run(options: &[&str], command: &[&str]) -> Command {
    let mut vm = Command::new(RXE_SETUP);
    vm.args(["vm", "run"]).args(options).arg("--").args(command).stdin(Stdio::null());
    vm
}

fn run(options: &[&str], command: &[&str]) -> Output {
    vm_run(options, command).output().expect("rxe-setup starts")
}

fn shell(options: &[&str], script: &str) -> Output {
    run(options, &["sh", "-c", script])
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}\n{}\n{}", output.status, stdout(output), stderr(output));
}

/// A folder on the host's disk, removed at the end. Its path is in the command line of a guest that
/// shares it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    fn below(parent: &Path, name: &str) -> Self {
        let path = parent.join(format!("verbcast-{name}-{}", std::process::id()));
        let _left_over = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder below the target folder");
        Self(path.canonicalize().expect("it was just made"))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("the target folder has a plain name")
    }

    /// The qemu processes that share this folder.
    fn guests(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
        processes
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|pid| pid.bytes().all(|digit| digit.is_ascii_digit()))
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).into_owned();
                line.starts_with("qemu") && line.contains(self.text())
            })
            .collect()
    }

    /// Waits for a condition on the guests that share this folder; the bound only ends a failed test.
    fn wait_for_guests(&self, what: &str, condition: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !condition(&self.guests()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.guests());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_over = fs::remove_dir_all(&self.0);
    }
}

#[test]
#[ignore = "starts a guest: cargo verify runs it"]
fn the_commands_status_and_streams_come_back() {
    let output = run(
        &["--env", "GREETING=it's me", "--no-devices"],
        &["sh", "-c", r#"echo "$GREETING $1"; echo error >&2; exit 7"#, "sh", "a  b"],
    );
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "it's me a  b\n");
    assert!(stderr(&output).contains("error\n"), "{}", stderr(&output));
}

#[test]
#[ignore = "starts a guest: cargo verify runs it"]
fn a_signal_has_the_shells_status() {
    assert_eq!(shell(&["--no-devices"], "kill -9 $$").status.code(), Some(128 + 9));
}

#[test]
#[ignore = "starts a guest: cargo verify runs it"]
fn all_output_comes_back_though_a_process_is_left_behind() {
    let output = shell(&["--no-devices"], "sleep 1000 & seq 1 200000; seq 1 1000 >&2");
    assert_success(&output);
    let numbers = |last: u32| (1..=last).map(|n| format!("{n}\n")).collect::<String>();
    assert!(stdout(&output) == numbers(200_000), "{} bytes", output.stdout.len());
    assert!(stderr(&output).ends_with(&numbers(1000)));
}

#[test]
#[ignore = "starts a guest: cargo verify runs it"]
fn the_time_limit_ends_the_guest() {
    let folder = Folder::new("time-limit");
    let options = ["--no-devices", "--timeout", "20", "--share", folder.text()];
    let output = shell(&options, "echo started; sleep 1000");
    assert_eq!(output.status.code(), Some(124));
    assert!(stderr(&output).contains("time limit of 20 s"), "{}", stderr(&output));
    assert_eq!(folder.guests(), [] as [String; 0]);
}

fn start_sleeper(folder: &Folder) -> Child {
    let script = format!("touch {}/started; sleep 1000", folder.text());
    let child = vm_run(&["--no-devices", "--share", folder.text()], &["sh", "-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("rxe-setup starts");
    folder.wait_for_guests("the guest never started", |guests| !guests.is_empty());
    child
}

#[test]
#[ignore = "starts guests: cargo verify runs it"]
fn no_guest_outlives_a_killed_or_interrupted_run() {
    for signal in ["KILL", "INT"] {
        let folder = Folder::new("orphan");
        let mut child = start_sleeper(&folder);
        // Once while the command runs, and once early, while the guest boots.
        if signal == "KILL" {
            let deadline = Instant::now() + Duration::from_secs(120);
            while !folder.0.join("started").exists() {
                assert!(Instant::now() < deadline, "the command never started");
                thread::sleep(Duration::from_millis(100));
            }
        }
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let status = child.wait().unwrap();
        assert!(status.signal().is_some(), "{signal}: {status}");
        folder.wait_for_guests("the guest is still there", |guests| guests.is_empty());
    }
}

/// Names, sizes and times of the files in a folder of the host.
fn listing(folder: &str) -> String {
    let output = Command::new("ls")
        .args(["-lAR", "--time-style=full-iso", folder])
        .output()
        .expect("ls runs");
    stdout(&output)
}

#[test]
#[ignore = "starts guests: cargo verify runs it"]
fn the_host_is_whole_whatever_root_does_in_a_guest() {
    // Not below the target folder, which may itself lie in /tmp, and the guest has its own /tmp.
    let tree = Folder::below(Path::new("/var/tmp"), "victim");
    for number in 0..50 {
        let folder = tree.0.join(format!("{}", number % 5));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("file-{number}")), format!("content {number}")).unwrap();
    }
    let before = (listing(tree.text()), listing("/etc"));
    // First that writing does not reach the host at all, then the worst.
    let written = shell(
        &["--no-devices", "--no-target"],
        &format!(
            "set -e; cd {tree}; echo x >new; echo y >0/file-0; rm 1/file-1; cat new 0/file-0
             echo z >/etc/verbcast-was-here
             mkdir -p /mnt/again
             if mount -t 9p -o trans=virtio,version=9p2000.L host /mnt/again; then
                 if touch /mnt/again{tree}/through; then echo reached the host; fi
             fi",
            tree = tree.text()
        ),
    );
    assert_success(&written);
    assert_eq!(stdout(&written), "x\ny\n");
    assert_eq!((listing(tree.text()), listing("/etc")), before, "a write reached the host");

    let removed = shell(
        &["--no-devices", "--no-target"],
        &format!(
            "timeout 15 rm -rf --no-preserve-root {tree} /etc /usr/sbin / 2>/dev/null
             [ ! -e {tree} ] && [ ! -e /etc/passwd ] && echo gone",
            tree = tree.text()
        ),
    );
    assert!(stdout(&removed).contains("gone"), "{}{}", stdout(&removed), stderr(&removed));
    assert_eq!((listing(tree.text()), listing("/etc")), before, "a removal reached the host");
    for number in 0..50 {
        let path = tree.0.join(format!("{}/file-{number}", number % 5));
        assert_eq!(fs::read_to_string(path).unwrap(), format!("content {number}"));
    }
}

#[test]
#[ignore = "starts a guest: cargo verify runs it"]
fn the_shared_folders_and_nothing_else_take_what_the_guest_writes() {
    // The folder lies in the target folder, which is shared by itself.
    let folder = Folder::new("shared");
    let script = format!(
        "set -e; cd {}; seq 1 500000 >numbers; mkdir inner; mv numbers inner; sha256sum inner/numbers
         echo x >/var/verbcast-elsewhere",
        folder.text()
    );
    let output = shell(&["--no-devices"], &script);
    assert_success(&output);
    let sum =
        Command::new("sha256sum").arg("inner/numbers").current_dir(&folder.0).output().unwrap();
    assert_eq!(stdout(&output), stdout(&sum));
    assert!(!Path::new("/var/verbcast-elsewhere").exists());
}

#[test]
#[ignore = "starts a guest: cargo verify runs it"]
fn packets_between_nodes_cross_the_bridge() {
    let output = shell(
        &["--nodes", "3"],
        "set -e
         ibv_devices | awk 'NR > 2 { print $1 }'
         sent() { cat /sys/class/net/$1/statistics/tx_bytes; }
         before1=$(sent n1); before2=$(sent n2)
         ib_write_bw -d rxe0 -x 1 -s 65536 -n 100 -F >/dev/null &
         tries=0
         until ib_write_bw -d rxe1 -x 1 -s 65536 -n 100 -F localhost >/dev/null 2>&1; do
             tries=$((tries + 1)); [ $tries -lt 50 ]; sleep 0.2
         done
         wait
         echo $(( ($(sent n1) - before1) >= 6553600 )) $(( ($(sent n2) - before2) < 100000 ))",
    );
    assert_success(&output);
    assert_eq!(stdout(&output), "rxe0\nrxe1\nrxe2\n1 1\n");
}

#[test]
#[ignore = "starts a guest: cargo verify runs it"]
fn up_status_and_down_work_on_a_real_kernel() {
    let script = format!(
        "set -e; exec 2>&1
         echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter
         links() {{ ls /sys/class/net /sys/class/infiniband /run/netns 2>/dev/null | grep -v -e : -e '^$' | sort; }}
         before=$(links)
         {RXE_SETUP} up --nodes 2 --dry-run >/tmp/planned
         [ \"$(links)\" = \"$before\" ]
         {RXE_SETUP} up --nodes 2 >/tmp/done
         cmp /tmp/planned /tmp/done
         {RXE_SETUP} up --nodes 2
         {RXE_SETUP} up && exit 1
         {RXE_SETUP} status --json
         ip link add n7 type veth peer name other
         {RXE_SETUP} up --nodes 8 && exit 1
         ip link delete n7
         {RXE_SETUP} down --dry-run >/tmp/planned
         {RXE_SETUP} down >/tmp/done
         cmp /tmp/planned /tmp/done
         [ \"$(links)\" = \"$before\" ]
         cat /proc/sys/net/ipv4/conf/all/rp_filter
         {RXE_SETUP} down
         {RXE_SETUP} up >/dev/null; {RXE_SETUP} status; {RXE_SETUP} down >/dev/null
         [ \"$(links)\" = \"$before\" ]"
    );
    let output = shell(&["--no-devices"], &script);
    assert_success(&output);
    let text = stdout(&output);
    let found = |wanted: &str| assert!(text.contains(wanted), "{wanted} is not in {text}");
    found("everything is up already\n");
    found("a cluster of the other shape is up");
    found(r#"{"device":"rxe1","interface":"n1","port_state":"ACTIVE","made_by_up":true}"#);
    found("the network interface n7 exists already");
    found("\n2\nrxe-setup: nothing is up\n");
    found("rxe0         n0           ACTIVE   made by `rxe-setup up`\n");
}

#[test]
#[ignore = "starts guests: cargo verify runs it"]
fn two_guests_run_at_once() {
    let runs: Vec<_> = (0..2)
        .map(|number| {
            let number = number.to_string();
            vm_run(&["--nodes", "2"], &["echo", &number]).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (number, run) in runs.into_iter().enumerate() {
        let output = run.wait_with_output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), format!("{number}\n")));
    }
}

#[test]
#[ignore = "builds a guest: cargo verify runs it"]
fn the_image_is_built_once_though_a_build_was_killed_and_two_want_it() {
    let cache = Folder::new("cache");
    let user = std::env::var("XDG_CACHE_HOME").map_or_else(
        |_| PathBuf::from(std::env::var("HOME").unwrap()).join(".cache"),
        PathBuf::from,
    );
    let prepare = || {
        let mut command = Command::new(RXE_SETUP);
        command.args(["vm", "prepare"]).env("XDG_CACHE_HOME", cache.text()).stdout(Stdio::piped());
        command
    };
    // The kernel package is not fetched again.
    let own = cache.0.join("verbcast");
    fs::create_dir_all(own.join("packages")).unwrap();
    assert!(Command::new(RXE_SETUP).args(["vm", "prepare"]).status().unwrap().success());
    for entry in fs::read_dir(user.join("verbcast/packages")).unwrap().flatten() {
        fs::copy(entry.path(), own.join("packages").join(entry.file_name())).unwrap();
    }
    let mut killed = prepare().stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let building = || {
        let mut names = fs::read_dir(&own).unwrap().flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with("building-"))
    };
    while !building() {
        assert!(Instant::now() < deadline, "the build never began");
        thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();

    let both: Vec<_> = (0..2).map(|_| prepare().spawn().unwrap()).collect();
    let outputs: Vec<_> = both.into_iter().map(|run| run.wait_with_output().unwrap()).collect();
    outputs.iter().for_each(assert_success);
    assert_eq!(outputs[0].stdout, outputs[1].stdout);
    for line in stdout(&outputs[0]).lines() {
        assert!(fs::metadata(line).unwrap().len() > 1 << 20, "{line}");
    }
    let mut left: Vec<_> = fs::read_dir(&own)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left[0].starts_with("guest-") && left[1..] == ["lock", "packages"], "{left:?}");
}

#[test]
fn wrong_usage_is_status_2() {
    for options in [&["--nodes", "0"][..], &["--nodes", "251"], &["--share", "/"], &["--env", "=x"]]
    {
        let output = run(options, &["true"]);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", stderr(&output));
    }
    let absent = run(&["--share", "/no/such/folder"], &["true"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(stderr(&absent).contains("/no/such/folder"), "{}", stderr(&absent));
}
