//! Broadcasts between ranks that are threads of one process: shared memory with and without
//! pulling, and verbs on the strict fake; contents compared byte for byte.

mod support;

use std::sync::Barrier;
use std::time::Duration;

use support::{Setup, matrix, message};
use verbcast_collectives::Error;
use verbcast_transport::control::AbortKind;
use verbcast_transport::error::Error as TransportError;

#[test]
fn shared_memory_by_pull() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        Setup::shm(ranks).run(matrix);
    }
}

#[test]
fn shared_memory_through_the_segment() {
    for ranks in [2, 3, 5] {
        Setup { cma: false, ..Setup::shm(ranks) }.run(matrix);
    }
}

#[test]
fn a_region_is_broadcast_like_any_memory() {
    Setup::shm(3).run(|world| {
        let mut region = world.region(1 << 20).expect("memory");
        let expected = message(1, 0, 1 << 20);
        if world.rank() == 1 {
            region.copy_from_slice(&expected);
        }
        world.communicator().broadcast(&mut region, 1).expect("a broadcast");
        assert!(*region == *expected);
        world.finalize().expect("the end");
    });
}

#[test]
fn different_sizes_are_an_error_on_every_rank_that_names_both() {
    let errors = Setup::shm(3).run(|world| {
        let bytes = if world.rank() == 2 { 100 } else { 200 };
        let mut buffer = vec![0_u8; bytes];
        // The root of a small broadcast may have returned before: it learns at a later call.
        (0..50).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            world.communicator().broadcast(&mut buffer, 0).err()
        })
    });
    for error in errors {
        match error {
            Some(Error::Transport(TransportError::Aborted(cause))) => {
                assert!(matches!(cause.kind, AbortKind::Mismatch { second: 2, .. }), "{cause}");
                let text = cause.to_string();
                assert!(text.contains("100 bytes") && text.contains("200 bytes"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn two_roots_are_an_error_although_nobody_grants() {
    let errors = Setup::shm(2).run(|world| {
        let mut buffer = vec![0_u8; 1 << 20];
        world.communicator().broadcast(&mut buffer, world.rank()).expect_err("both are roots")
    });
    for error in errors {
        assert!(error.to_string().contains("mismatched calls"), "{error}");
    }
}

#[test]
fn a_deadline_ends_the_wait_on_every_rank() {
    let errors = Setup::shm(3).run(|world| {
        let mut buffer = vec![0_u8; 1 << 20];
        if world.rank() == 2 {
            // Comes only after the others have given up.
            while world.abort_cause().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let call = world.communicator();
        let call = call.broadcast_call(2).deadline(Duration::from_millis(300));
        call.run(&mut buffer).expect_err("rank 2 does not come")
    });
    assert!(errors.iter().any(|error| error.to_string().contains("deadline passed")));
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("deadline passed") || text.contains("gave up"), "{text}");
    }
}

#[test]
fn a_world_that_is_dropped_aborts_the_others() {
    // Not before all have joined: a rank that is still joining is told by an error of that.
    let joined = Barrier::new(3);
    let errors = Setup::shm(3).run(|world| {
        joined.wait();
        if world.rank() == 1 {
            drop(world);
            return None;
        }
        let mut buffer = vec![0_u8; 1 << 20];
        world.communicator().broadcast(&mut buffer, 0).err()
    });
    for rank in [0, 2] {
        assert!(errors[rank].as_ref().is_some_and(|error| error.to_string().contains("rank 1")));
    }
}

#[test]
fn ranks_that_agree_to_fail_all_learn_why_although_they_leave_at_once() {
    for round in 0..20 {
        let errors = Setup::shm(4).run(move |world| {
            let failure = (world.rank() == round % 4).then(|| "no more paper".to_owned());
            let error = world.agree_all(failure).expect_err("one of them fails");
            drop(world);
            error.to_string()
        });
        for error in errors {
            assert_eq!(error, format!("rank {} cannot go on: no more paper", round % 4));
        }
    }
}
