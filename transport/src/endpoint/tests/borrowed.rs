//! Borrowed memory for operations that outlive a call, and callers that do their worst.

use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;

use super::*;

const SCENARIO: &str = "VERBCAST_ENDPOINT_TEST_SCENARIO";

const BLOCK: u64 = 4 << 10;

fn alone() -> Endpoint {
    endpoint(&Config { size: 1, ..Config::default() }, Links::Pull, None)
}

#[test]
fn lent_memory_is_used_by_several_operations_and_is_the_callers_again() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let content = pattern(3, 4 * BLOCK as usize);
        let mut received = [vec![0; content.len()], vec![0; content.len()]];
        let [first, second] = &mut received;
        let shared = Mutex::new(job);
        let close = |rank: usize| {
            let shared = &shared;
            move |id| drop(shared.lock().unwrap().endpoints[rank].close(id).unwrap())
        };
        lend(close(0), |sending| {
            lend(close(1), |receiving| {
                for target in [first, second] {
                    let mut job = shared.lock().unwrap();
                    let job = &mut *job;
                    let from = &mut job.endpoints[0];
                    let source = sending.open(from, Memory::Read(&content), true).unwrap();
                    let to = &mut job.endpoints[1];
                    let target = receiving.open(to, Memory::Write(target), true).unwrap();
                    let (handle, grant) = job.grant(1, target, BLOCK, 0);
                    job.send_all(0, source, 1, &grant, BLOCK);
                    job.receive(1, handle, 4);
                    // One is closed here, the others at the end.
                    assert_eq!(job.endpoints[0].close(source).unwrap(), None);
                }
            });
        });
        assert!(received.iter().all(|bytes| *bytes == content));
        shared.into_inner().unwrap().end();
    }
}

#[test]
fn whatever_is_leaked_no_link_touches_lent_memory_after_its_scope() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let source = job.endpoints[0].open_owned(vec![7; 2 * BLOCK as usize], true).unwrap();
        let mut bytes = vec![1; 2 * BLOCK as usize];
        let shared = Mutex::new(job);
        let close = |id| drop(shared.lock().unwrap().endpoints[1].close(id).unwrap());
        let grant = lend(close, |lending| {
            let mut job = shared.lock().unwrap();
            let memory = Memory::Write(&mut bytes);
            let target = lending.open(&mut job.endpoints[1], memory, true).unwrap();
            let (handle, grant) = job.grant(1, target, BLOCK, 0);
            // All that names the operation is forgotten while its sender may still write.
            std::mem::forget(Box::new((target, handle, lending)));
            grant
        });
        bytes.fill(2);
        let mut job = shared.into_inner().unwrap();
        assert!(!job.endpoints[1].is_up(0), "the link was quiesced");
        for block in 0..2 {
            let start = u64::from(block) * BLOCK;
            let range = start..start + BLOCK;
            // Refused, or lost: the link is gone at the other end.
            let sender = &mut job.endpoints[0];
            let _posting = sender.send_block(1, &grant, block, source, range, start, block);
        }
        for _ in 0..200 {
            job.turn();
        }
        assert!(bytes.iter().all(|byte| *byte == 2), "{links:?}");
        job.end();
    }
}

#[test]
fn a_panic_closes_what_was_lent() {
    let endpoint = Mutex::new(alone());
    let mut closed = 0;
    let mut bytes = [0; 100];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let close = |id| {
            closed += 1;
            let mut endpoint = endpoint.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            assert_eq!(endpoint.close(id).unwrap(), None);
        };
        lend(close, |lending| {
            let mut endpoint = endpoint.lock().unwrap();
            let (one, other) = bytes.split_at_mut(50);
            lending.open(&mut endpoint, Memory::Write(one), true).unwrap();
            lending.open(&mut endpoint, Memory::Read(other), true).unwrap();
            panic!("the work failed");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(closed, 2);
}

/// A test that must end its process by an abort, and what is seen before.
fn expect_abort(scenario: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "endpoint::tests::borrowed::bad_caller", "--nocapture"])
        .env(SCENARIO, scenario)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let signal = output.status.signal();
    assert_eq!(signal, Some(nix::sys::signal::Signal::SIGABRT as i32), "{scenario}: {error}");
    assert!(error.contains("borrowed memory is still open"), "{scenario}: {error}");
}

#[test]
fn what_cannot_be_made_sound_ends_the_process() {
    for scenario in [
        "idle closer",
        "panicking closer",
        "forgotten endpoint",
        "closer of another endpoint",
        "swapped endpoints",
    ] {
        expect_abort(scenario);
    }
    // The same way of starting it, without anything wrong.
    let fine = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "endpoint::tests::borrowed::bad_caller", "--nocapture"])
        .env(SCENARIO, "dropped endpoint")
        .status()
        .unwrap();
    assert!(fine.success());
}

/// Run in a process of its own by `what_cannot_be_made_sound_ends_the_process`.
#[test]
#[ignore = "aborts its process; run by another test"]
fn bad_caller() {
    let scenario = std::env::var(SCENARIO).unwrap_or_default();
    let mut bytes = [0; 100];
    let mut endpoint = alone();
    match scenario.as_str() {
        "idle closer" => lend(
            |_| {},
            |lending| {
                lending.open(&mut endpoint, Memory::Write(&mut bytes), true).unwrap();
            },
        ),
        "panicking closer" => {
            let _caught = catch_unwind(AssertUnwindSafe(|| {
                lend(
                    |_| panic!("the closer failed"),
                    |lending| {
                        lending.open(&mut endpoint, Memory::Write(&mut bytes), true).unwrap();
                    },
                );
            }));
        }
        "forgotten endpoint" => lend(
            |_| {},
            |lending| {
                lending.open(&mut endpoint, Memory::Write(&mut bytes), true).unwrap();
                std::mem::forget(endpoint);
            },
        ),
        "dropped endpoint" => lend(
            |_| {},
            |lending| {
                lending.open(&mut endpoint, Memory::Write(&mut bytes), true).unwrap();
                drop(endpoint);
            },
        ),
        "closer of another endpoint" => {
            let mut other = alone();
            other.open_owned(Owned::from(vec![0]), true).unwrap();
            lend(
                |id| drop(other.close(id)),
                |lending| {
                    lending.open(&mut endpoint, Memory::Write(&mut bytes), true).unwrap();
                },
            );
        }
        "swapped endpoints" => {
            let mut other = alone();
            let ended = endpoint.scope(Memory::Write(&mut bytes), true, |endpoint, _| {
                std::mem::swap(endpoint, &mut other);
            });
            ended.unwrap();
        }
        other => panic!("scenario {other:?}"),
    }
}
