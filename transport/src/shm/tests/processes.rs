//! Ranks that are processes of their own: this test binary, run again for one side of a test.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::blocks::exchange;
use super::*;

const SCENARIO: &str = "VERBCAST_SHM_TEST_SCENARIO";

/// Rank 1 and on: a child process, and the socket that set-up goes over (its standard input).
struct Other {
    process: Child,
    socket: UnixStream,
}

impl Other {
    fn start(scenario: &str, rank: Rank, arguments: &[u64]) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let arguments: Vec<_> = arguments.iter().map(u64::to_string).collect();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "shm::tests::processes::other_side", "--nocapture"])
            .env(SCENARIO, format!("{scenario} {rank} {}", arguments.join(" ")))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, socket }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    /// Stops it, and returns when it stands still.
    fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        self.wait_stopped();
    }

    fn wait_stopped(&self) {
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }

    fn go_on(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
    }

    fn expect_success(mut self) {
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the other side failed: {status}");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn tell(socket: &mut UnixStream, bytes: &[u8]) {
    socket.write_all(&(bytes.len() as u32).to_le_bytes()).unwrap();
    socket.write_all(bytes).unwrap();
}

fn hear(socket: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).expect("the other side is there");
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// Sets the link to whoever is behind `socket` up.
fn join(rank: &mut TestRank, socket: &mut UnixStream) -> Rank {
    tell(socket, &serde_json::to_vec(&rank.info()).unwrap());
    let peer: PeerInfo = serde_json::from_slice(&hear(socket)).unwrap();
    if rank.rank < peer.rank {
        tell(socket, &rank.connector.offer(&peer, 0).unwrap());
        rank.connector.complete(&peer, &hear(socket)).unwrap();
        tell(socket, b"ready");
    } else {
        let offer = hear(socket);
        tell(socket, &rank.connector.accept(&peer, &offer).unwrap());
        assert_eq!(hear(socket), b"ready");
        rank.connector.confirm(&peer).unwrap();
    }
    assert!(rank.fabric.is_up(peer.rank));
    peer.rank
}

fn settings(rank: Rank, cma: u64) -> ShmSettings {
    ShmSettings { cma: cma == 1, ..ShmSettings::new(rank) }
}

/// What the other processes of these tests run.
#[test]
#[ignore = "the other side of the tests here, started by them"]
fn other_side() {
    let scenario = std::env::var(SCENARIO).expect("started by a test");
    let mut words = scenario.split_whitespace();
    let name = words.next().unwrap();
    let rank: Rank = words.next().unwrap().parse().unwrap();
    let arguments: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut socket = UnixStream::from(socket);
    match (name, arguments.as_slice()) {
        ("exchange", [cma, bytes, block_bytes]) => {
            let mut rank = TestRank::new(settings(rank, *cma));
            join(&mut rank, &mut socket);
            exchange(&mut rank, &[0], *bytes as usize, *block_bytes);
            // Gone only when the other side has all: it reads this rank's memory.
            tell(&mut socket, b"done");
            assert_eq!(hear(&mut socket), b"done");
        }
        ("echo", [mode, rounds]) => {
            echo(TestRank::new(settings(rank, 1)), &mut socket, *mode, *rounds)
        }
        ("late", [cma, stop_itself]) => {
            late_sender(TestRank::new(settings(rank, *cma)), &mut socket, *stop_itself == 1);
        }
        ("leaks", []) => leaks(),
        ("sigpipe", []) => ring_the_bell_of_the_dead(),
        other => panic!("no scenario {other:?}"),
    }
}

#[test]
fn blocks_cross_between_processes_byte_for_byte() {
    for cma in [1, 0] {
        for (bytes, block_bytes) in [
            (1, 1),
            (7, 7),
            (4096, 1024),
            (65_537, 65_536),
            (3 << 20, 100_000),
            ((9 << 20) + 3, 1 << 20),
        ] {
            let mut root = TestRank::new(settings(0, cma));
            let mut others: Vec<_> = (1..=3)
                .map(|rank| Other::start("exchange", rank, &[cma, bytes, block_bytes]))
                .collect();
            let peers: Vec<_> =
                others.iter_mut().map(|other| join(&mut root, &mut other.socket)).collect();
            exchange(&mut root, &peers, bytes as usize, block_bytes);
            for mut other in others {
                tell(&mut other.socket, b"done");
                assert_eq!(hear(&mut other.socket), b"done");
                other.expect_success();
            }
        }
    }
}

/// Waits for a message: polls for a time that varies, so that arming meets the other side's sending
/// at every possible distance, then sleeps.
fn sleep_for_message(rank: &mut TestRank, random: &mut fastrand::Rng, mode: u64) -> (Slot, u64) {
    let deadline = Instant::now() + PATIENCE;
    let mode = match mode {
        0 => Mode::Futex,
        1 => Mode::Pipe,
        _ => random.choice([Mode::Futex, Mode::Pipe]).unwrap(),
    };
    for _ in 0..random.u32(0..200) {
        if rank.poll() {
            break;
        }
    }
    loop {
        if rank.events.is_empty() {
            rank.bell.arm(mode);
        }
        if rank.events.is_empty() && !rank.poll() {
            match mode {
                Mode::Futex => rank.bell.sleep(Some(deadline)),
                Mode::Pipe => {
                    let mut fds = [PollFd::new(rank.bell.pipe_fd(), PollFlags::POLLIN)];
                    let patience = PollTimeout::try_from(PATIENCE).unwrap();
                    assert_eq!(poll(&mut fds, patience), Ok(1), "a wake-up was lost");
                }
            }
        }
        rank.bell.disarm();
        assert!(Instant::now() < deadline, "a wake-up was lost");
        match rank.events.pop() {
            Some(Event::Message { slot }) => return (slot, rank.read(slot).0),
            None => {}
            other => panic!("{other:?}"),
        }
    }
}

fn echo(mut rank: TestRank, socket: &mut UnixStream, mode: u64, rounds: u64) {
    join(&mut rank, socket);
    let mut random = fastrand::Rng::with_seed(rounds);
    for round in 0..rounds {
        let (slot, number) = sleep_for_message(&mut rank, &mut random, mode);
        assert_eq!(number, round);
        rank.fabric.release(slot);
        assert_eq!(rank.send(0, number, &[]), Posting::Posted);
        rank.fabric.flush().unwrap();
    }
    assert_eq!(hear(socket), b"done");
}

fn ping_pong_asleep(mode: u64, rounds: u64) {
    let mut other = Other::start("echo", 1, &[mode, rounds]);
    let mut rank = TestRank::new(settings(0, 1));
    join(&mut rank, &mut other.socket);
    let mut random = fastrand::Rng::with_seed(!rounds);
    for round in 0..rounds {
        assert_eq!(rank.send(1, round, b"ping"), Posting::Posted);
        rank.fabric.flush().unwrap();
        let (slot, number) = sleep_for_message(&mut rank, &mut random, mode);
        assert_eq!(number, round);
        rank.fabric.release(slot);
    }
    tell(&mut other.socket, b"done");
    other.expect_success();
}

#[test]
fn no_wake_up_is_lost_between_processes_on_a_futex() {
    ping_pong_asleep(0, 150_000);
}

#[test]
fn no_wake_up_is_lost_between_processes_in_poll() {
    ping_pong_asleep(1, 60_000);
}

#[test]
fn no_wake_up_is_lost_between_processes_that_sleep_both_ways() {
    ping_pong_asleep(2, 60_000);
}

const LATE_BYTES: usize = 24 << 20;
const LATE_BLOCK: u64 = 4 << 20;

/// Sends blocks of ones; stops at some time; when it goes on, tries everything that a sender can
/// do, with twos. Ends when it knows that its link broke.
fn late_sender(mut rank: TestRank, socket: &mut UnixStream, stop_itself: bool) {
    let peer = join(&mut rank, socket);
    let (slot, _, payload) = rank.expect_message();
    rank.fabric.release(slot);
    let grant = Grant::read(&payload).unwrap();
    let mut data = vec![1; LATE_BYTES];
    let span = span(&data);
    for block in 0..(LATE_BYTES as u64 / LATE_BLOCK) as u32 {
        assert_eq!(rank.send_block(peer, &grant, &span, block, LATE_BLOCK), Posting::Posted);
    }
    rank.fabric.flush().unwrap();
    tell(socket, b"posted");
    if stop_itself {
        raise(Signal::SIGSTOP).unwrap();
        // Going on late: what was posted is still wanted by this side.
        let _ = rank.fabric.flush();
        let _ = rank.send_block(peer, &grant, &span, 0, LATE_BLOCK);
        let _ = rank.fabric.flush();
    }
    loop {
        match rank.wait() {
            Event::Sent { .. } => {}
            Event::Broken { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    rank.fabric.quiesce(peer);
    data.fill(2);
    tell(socket, b"broken");
}

/// Receives from a sender that is stopped, gives up, and lets it go on.
fn receive_from_late_sender(cma: u64, blocks_first: u32, stop_itself: bool) {
    let mut other = Other::start("late", 1, &[cma, stop_itself.into()]);
    let mut rank = TestRank::new(settings(0, cma));
    join(&mut rank, &mut other.socket);
    let mut buffer = vec![0; LATE_BYTES];
    let grant = rank.grant(&mut buffer, LATE_BLOCK);
    let body = crate::wire::GrantBody::from(&grant);
    assert_eq!(rank.send(1, 1, zerocopy::IntoBytes::as_bytes(&body)), Posting::Posted);
    rank.fabric.flush().unwrap();
    assert_eq!(hear(&mut other.socket), b"posted");
    if stop_itself {
        other.wait_stopped();
        // A part of the first block comes, from a sender that stands still.
        assert!(rank.poll());
    } else {
        for _ in 0..blocks_first {
            assert!(matches!(rank.wait(), Event::Block { .. }));
        }
        other.stop();
    }
    // The deadline passes: the buffer goes back to its owner.
    rank.fabric.quiesce(1);
    rank.receives.close(grant.handle);
    let before = buffer.clone();
    assert!(before.iter().all(|byte| *byte <= 1));
    assert!(before.contains(&0) && before.contains(&1), "not stopped in the middle");
    other.go_on();
    assert_eq!(hear(&mut other.socket), b"broken");
    for _ in 0..100 {
        rank.poll();
    }
    assert!(rank.events.is_empty());
    assert!(buffer == before, "a late sender changed a buffer that was given back");
    other.expect_success();
}

#[test]
fn a_sender_stopped_after_it_posted_does_no_harm_when_it_goes_on() {
    receive_from_late_sender(1, 0, true);
    receive_from_late_sender(0, 0, true);
}

#[test]
fn a_sender_stopped_while_it_copies_does_no_harm_when_it_goes_on() {
    for blocks_first in 1..=4 {
        receive_from_late_sender(0, blocks_first, false);
        receive_from_late_sender(1, blocks_first, false);
    }
}

#[test]
fn a_killed_sender_breaks_the_link_and_nothing_waits_for_it() {
    for cma in [1, 0] {
        let mut other = Other::start("late", 1, &[cma, 1]);
        let mut rank = TestRank::new(settings(0, cma));
        join(&mut rank, &mut other.socket);
        let mut buffer = vec![0; LATE_BYTES];
        let grant = rank.grant(&mut buffer, LATE_BLOCK);
        let body = crate::wire::GrantBody::from(&grant);
        assert_eq!(rank.send(1, 1, zerocopy::IntoBytes::as_bytes(&body)), Posting::Posted);
        rank.fabric.flush().unwrap();
        assert_eq!(hear(&mut other.socket), b"posted");
        other.wait_stopped();
        assert!(rank.poll());
        drop(other);
        if cma == 1 {
            assert_eq!(rank.next(), Some(Event::Broken { peer: 1 }));
            let reason = rank.fabric.break_reason(1).unwrap();
            assert!(reason.contains("is gone"), "{reason}");
        } else {
            // What it had copied comes, then nothing: its death is the control plane's to tell.
            while rank.poll() {}
            assert!(rank.events.is_empty());
            // Sending to the dead ends in a full window, not in a signal or a wait.
            rank.bell.arm(Mode::Pipe);
            for number in 0..100 {
                let _ = rank.send(1, number, &[]);
                rank.fabric.flush().unwrap();
            }
            rank.bell.disarm();
        }
        rank.fabric.quiesce(1);
        assert!(!rank.fabric.has_outstanding(1));
    }
}

#[test]
fn nothing_is_left_open_mapped_or_named() {
    Other::start("leaks", 1, &[]).expect_success();
}

/// In a process of its own, as other tests of this one open and map things too.
fn leaks() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:verbcast")).count()
    };
    let named = || {
        let Ok(names) = std::fs::read_dir("/dev/shm") else { return 0 };
        names.filter(|name| format!("{name:?}").contains("verbcast")).count()
    };
    let before = (descriptors(), mappings(), named());
    assert_eq!(before.1, 0);
    for round in 0..20 {
        let (mut a, mut b) = pair(settings(0, round % 2));
        // A bell page and a link on each side, and each other's bell.
        assert_eq!(mappings(), 6);
        a.fabric.quiesce(1);
        assert_eq!(b.wait(), Event::Broken { peer: 0 });
        connect(&mut a, &mut b);
        // Set-ups that end in the middle, in every way.
        let (info_a, info_b) = (a.info(), b.info());
        let offer = a.connector.offer(&info_b, 0).unwrap();
        let _ = a.connector.offer(&info_b, 0).unwrap();
        assert!(b.connector.accept(&info_a, &offer).is_err());
        let offer = a.connector.offer(&info_b, 0).unwrap();
        let _ = b.connector.accept(&info_a, &offer).unwrap();
        a.connector.failed(&info_b, "test");
        assert!(a.connector.complete(&info_b, b"x").is_err());
        let mut other = TestRank::new(settings(2, 1));
        connect(&mut a, &mut other);
        drop((a, b));
        assert_eq!(other.wait(), Event::Broken { peer: 0 });
    }
    assert_eq!((descriptors(), mappings(), named()), before);
}

#[test]
fn ringing_a_peer_that_died_raises_no_signal() {
    Other::start("sigpipe", 1, &[]).expect_success();
}

/// In a process of its own, where SIGPIPE is fatal, as it is outside of Rust programs.
fn ring_the_bell_of_the_dead() {
    // SAFETY: resets a signal to its default action, which runs no code of this process (signal(2)).
    let previous = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    assert_ne!(previous, libc::SIG_ERR);
    let (mut a, b) = pair(settings(0, 1));
    b.bell.arm(Mode::Pipe);
    drop(b);
    assert_eq!(a.send(1, 1, b"anybody there?"), Posting::Posted);
    a.fabric.flush().unwrap();
    assert_eq!(a.wait(), Event::Broken { peer: 1 });
}
