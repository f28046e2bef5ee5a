//! Link set-up: what is refused, and what is left when it fails.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::{Value, json};

use super::*;
use crate::Error;

fn two() -> (TestRank, TestRank) {
    (TestRank::new(ShmSettings::new(0)), TestRank::new(ShmSettings::new(1)))
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::Link { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

/// What rank 1 says to rank 0's offer after `change`.
fn answer_to(change: impl FnOnce(&mut Value)) -> String {
    let (a, mut b) = two();
    let offer = a.connector.offer(&b.info(), 0).unwrap();
    let mut offer: Value = serde_json::from_slice(&offer).unwrap();
    change(&mut offer);
    let refused = reason(b.connector.accept(&a.info(), offer.to_string().as_bytes()));
    assert!(!b.poll() && !b.fabric.is_up(0));
    assert!(reason(b.connector.confirm(&a.info())).contains("no such link"));
    refused
}

#[test]
fn peers_elsewhere_get_no_offer() {
    let (a, b) = two();
    let here = b.info();
    let offer = |peer: PeerInfo| reason(a.connector.offer(&peer, 0));
    let far = offer(PeerInfo { boot_id: "other".into(), ..here.clone() });
    assert!(far.contains("not on this host: its boot id is other"), "{far}");
    let boxed = offer(PeerInfo { pid_namespace: 1, ..here.clone() });
    assert!(boxed.contains("in another pid namespace (1"), "{boxed}");
    let foreign = offer(PeerInfo { uid: 4711, ..here.clone() });
    assert!(foreign.contains("runs as user 4711"), "{foreign}");
    let again = reason(a.connector.offer(&here, 1));
    assert!(again.contains("no other kind"), "{again}");
}

#[test]
fn offers_that_are_wrong_are_refused_with_the_reason() {
    for garbage in [&b""[..], b"{}", b"\xff\xfe", b"[1,2,3]"] {
        let (a, b) = two();
        let refused = reason(b.connector.accept(&a.info(), garbage));
        assert!(refused.contains("malformed set-up bytes"), "{refused}");
    }
    let refused = answer_to(|offer| offer["cookie"][1] = json!(1));
    assert!(refused.contains("its cookie differs"), "{refused}");
    let refused = answer_to(|offer| offer["from"]["host"]["pid"] = json!(1));
    assert!(refused.contains("is process 1, but its address book"), "{refused}");
    let refused = answer_to(|offer| offer["from"]["host"]["boot_id"] = json!("x"));
    assert!(refused.contains("not on this host"), "{refused}");
    let refused = answer_to(|offer| offer["from"]["version"] = json!(99));
    assert!(refused.contains("version 99"), "{refused}");
    let refused = answer_to(|offer| offer["sizes"]["chunks"] = json!(4_000_000_000_u32));
    assert!(refused.contains("cannot be"), "{refused}");
    let refused = answer_to(|offer| offer["sizes"]["chunks"] = json!(7));
    assert!(refused.contains("is not of the size that was told"), "{refused}");
    let refused = answer_to(|offer| offer["segment_fd"] = json!(1_000_000));
    assert!(refused.contains("cannot be opened through /proc: No such file"), "{refused}");
    let refused = answer_to(|offer| offer["segment_fd"] = json!(-1));
    assert!(refused.contains("cannot be opened"), "{refused}");
    let refused = answer_to(|offer| offer["from"]["bell_fd"] = offer["segment_fd"].clone());
    assert!(refused.contains("the bell of process"), "{refused}");
    let refused = answer_to(|offer| offer["from"]["pipe_fd"] = offer["segment_fd"].clone());
    assert!(refused.contains("is not a pipe of this user"), "{refused}");
}

#[test]
fn files_that_are_no_sealed_memfd_are_refused() {
    let directory: OwnedFd = std::fs::File::open("/proc/self").unwrap().into();
    let exe = std::env::current_exe().unwrap();
    let on_disk: OwnedFd = std::fs::File::open(exe).unwrap().into();
    let (pipe, _) = std::io::pipe().unwrap();
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let unsealed = memfd_create("unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let no_memfd = [directory, pipe.into(), socket.into()];
    for file in &no_memfd {
        let refused = answer_to(|offer| offer["segment_fd"] = json!(file.as_raw_fd()));
        assert!(refused.contains("is not a memfd of this user"), "{refused}");
    }
    // A file on disk that this user may not write, or may: no seals on it.
    let refused = answer_to(|offer| offer["segment_fd"] = json!(on_disk.as_raw_fd()));
    assert!(refused.contains("is not a memfd") || refused.contains("Text file busy"), "{refused}");
    let written = std::env::temp_dir().join(format!("verbcast-no-memfd-{}", std::process::id()));
    let file = std::fs::File::create(&written).unwrap();
    std::fs::remove_file(&written).unwrap();
    let refused = answer_to(|offer| offer["segment_fd"] = json!(file.as_raw_fd()));
    assert!(refused.contains("is not a memfd"), "{refused}");
    let refused = answer_to(|offer| offer["segment_fd"] = json!(unsealed.as_raw_fd()));
    assert!(refused.contains("is not a memfd of sealed size"), "{refused}");
}

#[test]
fn answers_that_are_wrong_end_the_set_up() {
    for (change, expected) in [
        ((|answer| answer["cookie"][0] = json!(3)) as fn(&mut Value), "no such link"),
        (|answer| answer["from"]["host"]["pid"] = json!(2), "is process 2"),
        (|answer| answer["from"]["bell_fd"] = json!(-5), "cannot be opened"),
        (|answer| answer["cookie"] = json!("x"), "malformed set-up bytes"),
    ] {
        let (mut a, mut b) = two();
        let (info_a, info_b) = (a.info(), b.info());
        let offer = a.connector.offer(&info_b, 0).unwrap();
        let answer = b.connector.accept(&info_a, &offer).unwrap();
        let mut wrong: Value = serde_json::from_slice(&answer).unwrap();
        change(&mut wrong);
        let refused = reason(a.connector.complete(&info_b, wrong.to_string().as_bytes()));
        assert!(refused.contains(expected), "{refused}");
        assert!(!a.fabric.is_up(1));
        // The initiator's end is gone: a right answer comes too late, and the acceptor sees it.
        assert!(reason(a.connector.complete(&info_b, &answer)).contains("no such link"));
        assert_eq!(b.wait(), Event::Broken { peer: 0 });
    }
}

#[test]
fn steps_out_of_order_are_errors() {
    let (a, b) = two();
    assert!(reason(a.connector.complete(&b.info(), b"{}")).contains("no such link"));
    assert!(reason(a.connector.confirm(&b.info())).contains("no such link"));
    a.connector.offer(&b.info(), 0).unwrap();
    assert!(reason(a.connector.confirm(&b.info())).contains("no such link"));
}

#[test]
fn a_set_up_that_failed_leaves_its_reason() {
    let (mut a, mut b) = two();
    let (info_a, info_b) = (a.info(), b.info());
    let offer = a.connector.offer(&info_b, 0).unwrap();
    a.connector.failed(&info_b, "rank 1 refused");
    assert_eq!(a.next(), None);
    assert_eq!(a.fabric.break_reason(1).unwrap(), "rank 1 refused");
    let error = a.fabric.send_message(1, &header(0, 0), &[]).unwrap_err();
    assert!(error.to_string().ends_with("shared memory: rank 1 refused"), "{error}");

    // The other side had accepted: what was made is dropped, and the endpoint hears of it.
    assert!(reason(b.connector.accept(&info_a, &offer)).contains("cannot be opened"));
    let offer = a.connector.offer(&info_b, 0).unwrap();
    b.connector.accept(&info_a, &offer).unwrap();
    assert!(!b.fabric.is_up(0));
    b.connector.failed(&info_a, "rank 0 vanished");
    assert_eq!(b.next(), Some(Event::Broken { peer: 0 }));
    assert!(b.fabric.break_reason(0).unwrap().contains("rank 0 vanished"));

    connect(&mut a, &mut b);
    assert_eq!((a.fabric.break_reason(1), b.fabric.break_reason(0)), (None, None));
}

#[test]
fn settings_out_of_range_are_the_callers_error() {
    for wrong in [
        ShmSettings { chunk_bytes: 1000, ..ShmSettings::new(0) },
        ShmSettings { descriptors: 0, ..ShmSettings::new(0) },
        ShmSettings { chunks: 1000, ..ShmSettings::new(0) },
    ] {
        assert!(matches!(open(wrong), Err(Error::Invalid(_))), "{wrong:?}");
    }
}

#[test]
fn cma_is_used_only_if_both_sides_want_it() {
    for (ours, theirs) in [(true, true), (true, false), (false, true)] {
        let mut a = TestRank::new(ShmSettings { cma: ours, ..ShmSettings::new(0) });
        let mut b = TestRank::new(ShmSettings { cma: theirs, ..ShmSettings::new(1) });
        connect(&mut a, &mut b);
        assert_eq!(pulls(&mut a, &mut b), ours && theirs);
        assert_eq!(pulls(&mut b, &mut a), ours && theirs);
    }
}

/// Moves a block from `a` to `b`; says whether it was pulled, which shows in that the sender's
/// memory is needed until the receiver has polled.
fn pulls(a: &mut TestRank, b: &mut TestRank) -> bool {
    let data = pattern(1, 10_000);
    let mut buffer = vec![0; 10_000];
    let grant = b.grant(&mut buffer, 10_000);
    assert_eq!(a.send_block(b.rank, &grant, &span(&data), 0, 10_000), Posting::Posted);
    a.fabric.flush().unwrap();
    let outstanding = a.fabric.has_outstanding(b.rank);
    assert!(matches!(b.wait(), Event::Block { .. }));
    assert!(matches!(a.wait(), Event::Sent { .. }));
    assert!(buffer == data);
    b.receives.close(grant.handle);
    outstanding
}

/// As in a container whose seccomp profile forbids it: the probe fails and blocks go through the
/// segment.
#[test]
fn without_permission_to_pull_blocks_go_through_the_segment() {
    std::thread::spawn(|| {
        forbid_process_vm_readv();
        let (mut a, mut b) = pair(ShmSettings::new(0));
        assert!(!pulls(&mut a, &mut b));
        assert!(!pulls(&mut b, &mut a));
    })
    .join()
    .unwrap();
}

/// Makes process_vm_readv fail with EPERM in this thread (seccomp(2)).
fn forbid_process_vm_readv() {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let call = libc::SYS_process_vm_readv as u32;
    let mut program = [
        // The system call's number is the first word of what a filter sees.
        step((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        step((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, call),
        step(libc::BPF_RET as u16, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: PR_SET_NO_NEW_PRIVS takes integers only (prctl(2)).
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0);
    // SAFETY: the program and its description outlive the call, which copies them (seccomp(2)).
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(result, 0);
}
