//! Scatter, gather, allgather and barrier between ranks that are threads of one process: shared memory
//! with and without pulling; contents compared byte for byte.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use support::{Setup, operations, seed};
use verbcast_collectives::schedule::Algorithm;
use verbcast_collectives::{Counts, Error, World};

#[test]
fn equal_parts_by_pull() {
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    for ranks in (1..=9).filter(|ranks| full || [1, 2, 3, 5, 8].contains(ranks)) {
        Setup::shm(ranks).run(operations::even);
    }
}

#[test]
fn equal_parts_through_the_segment() {
    for ranks in [2, 3, 6] {
        Setup { cma: false, ..Setup::shm(ranks) }.run(operations::even);
    }
}

#[test]
fn parts_of_different_lengths() {
    let seed = seed();
    for ranks in 1..=6 {
        for cma in [true, false] {
            Setup { cma, ..Setup::shm(ranks) }
                .run(|world| operations::uneven(world, seed ^ u64::from(ranks), 150));
        }
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for ranks in [2, 3, 7] {
        let here = AtomicU32::new(0);
        Setup::shm(ranks).run(|world| {
            let communicator = world.communicator();
            for turn in 1..=20 {
                if turn % ranks == world.rank() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                here.fetch_add(1, Ordering::SeqCst);
                communicator.barrier().expect("a barrier");
                assert!(here.load(Ordering::SeqCst) >= turn * ranks);
            }
            world.finalize().expect("the end");
        });
    }
}

/// The error of a call that only this rank gets wrong; the communicator can be used afterwards.
fn is_told(world: &World, call: impl FnOnce() -> Result<(), Error>, words: &str) {
    let error = call().expect_err(words);
    let text = error.to_string();
    assert!(matches!(error, Error::Arguments { .. }) && text.contains(words), "{text}");
    let mut buffer = [world.rank(); 3];
    world.communicator().broadcast(&mut buffer, 1).expect("nothing has happened");
    assert_eq!(buffer, [1; 3]);
}

#[test]
fn arguments_that_do_not_go_together_are_told_and_nothing_happens() {
    Setup::shm(3).run(|world| {
        let c = world.communicator();
        let rank = world.rank();
        let mut two = [0_u16; 2];
        // Each rank is the root of its own call: it does not come to the point of asking others.
        is_told(&world, || c.scatter(None, &mut two, rank), "gives nothing");
        is_told(&world, || c.scatter(Some(&[1; 5]), &mut two, rank), "has 5 elements, not 6");
        is_told(&world, || c.gather(&[1_u8; 2], Some(&mut [0; 7]), rank), "has 7 elements, not 6");
        is_told(&world, || c.gather(&[1_u8; 2], None, rank), "gives no `recv`");
        is_told(&world, || c.allgather(&[1_u8; 2], &mut [0; 4]), "has 4 elements, not 6");
        is_told(&world, || c.scatter_call(rank).run_in_place(&[1; 4]), "no equal parts");
        is_told(&world, || c.gather_call((rank + 1) % 3).run_in_place(&mut [1; 3]), "not the root");
        is_told(&world, || c.allgather_call().run_in_place(&mut [1; 4]), "no equal parts");
        let v = |counts: &[usize], displacements: Option<&[usize]>, words: &str| {
            let counts = match displacements {
                Some(displacements) => Counts::with_displacements(counts, displacements),
                None => Counts::new(counts),
            };
            let mut recv = [0_u32; 10];
            let call = || c.gatherv(&[7; 2], Some((&mut recv, counts)), rank);
            is_told(&world, call, words);
        };
        v(&[2, 2], None, "2 counts for 3 ranks");
        v(&[2, 2, 2], Some(&[0, 2]), "2 displacements for 3 ranks");
        v(&[2, usize::MAX, 2], None, "overflow");
        v(&[2, usize::MAX / 8, 2], None, "not within the 10 elements");
        v(&[2, 7, 2], None, "not within the 10 elements");
        v(&[2, 2, 2], Some(&[0, 9, 2]), "rank 1, 2 elements from 9 on");
        v(&[2, 2, 2], Some(&[0, usize::MAX, 2]), "not within");
        v(&[2, 2, 2], Some(&[0, 4, 5]), "ranks 1 and 2 overlap at element 5");
        v(&[3, 3, 3], None, "this rank's count is 3");
        let algorithm = Algorithm::Binomial;
        let counts = Counts::new(&[2; 3]);
        let all = [0_u8; 6];
        let mut own = [0; 2];
        let call = c.scatterv_call(rank).algorithm(algorithm);
        is_told(&world, || call.run(Some((&all, counts)), &mut own), "only flat");
        world.finalize().expect("the end");
    });
}

#[test]
fn different_counts_are_an_error_that_names_both() {
    operations::different_counts(&Setup::shm(3));
}

/// A call that a rank may make, by its number, as rank 0 or another one.
fn make(call: usize, world: &World) -> Result<(), Error> {
    let c = world.communicator();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let (mut small, mut large) = (vec![0_u8; 12], vec![0_u8; 60_000]);
    let all = vec![0_u8; 60_000 * size];
    let mut into = vec![0_u8; 60_000 * size];
    let send = |root: usize, bytes: usize| (rank == root).then(|| &all[..bytes * size]);
    match call {
        0 => c.broadcast(&mut small, 0),
        1 => c.broadcast(&mut small[..11], 0),
        2 => c.broadcast(&mut small, 1),
        3 => c.broadcast(&mut large, 0),
        4 => c.broadcast(&mut large, 1),
        5 => c.broadcast(&mut [0_u32; 3], 0),
        6 => c.broadcast_call(0).algorithm(Algorithm::Chain).run(&mut large),
        7 => c.broadcast_call(0).block_bytes(7000).run(&mut large),
        8 => c.scatter(send(0, 12), &mut small, 0),
        9 => c.scatter(send(1, 12), &mut small, 1),
        10 => c.scatter(send(0, 60_000), &mut large, 0),
        11 => c.scatter(send(1, 60_000), &mut large, 1),
        12 => c.gather(&small, (rank == 0).then_some(&mut into[..12 * size]), 0),
        13 => c.gather(&large, (rank == 0).then_some(&mut into[..]), 0),
        14 => c.gather(&large, (rank == 1).then_some(&mut into[..]), 1),
        15 => c.allgather(&small, &mut into[..12 * size]),
        16 => c.allgather_call().algorithm(Algorithm::Bruck).run(&large, &mut into),
        17 => c.allgather_call().algorithm(Algorithm::Ring).run(&large, &mut into),
        18 => c.barrier(),
        _ => {
            let counts = vec![12; size];
            c.allgatherv(&small, &mut into, Counts::new(&counts))
        }
    }
}

/// Every pair of these calls, one of them made by one rank: an error on every rank that names both.
#[test]
fn every_mismatched_pair_is_an_error_on_every_rank() {
    let full = std::env::var_os("VERBCAST_FULL").is_some();
    let mut rng = fastrand::Rng::with_seed(seed());
    for most in 0..20_usize {
        for other in 0..20 {
            if most == other || !full && rng.u8(0..8) > 0 {
                continue;
            }
            let ranks = if rng.bool() { 2 } else { 4 };
            let odd = rng.u32(0..ranks);
            let texts = operations::errors(&Setup::shm(ranks), |world| {
                make(if world.rank() == odd { other } else { most }, world)
            });
            for text in texts {
                let names_both = text.contains("mismatched calls")
                    && text.contains(&format!("rank {odd}"))
                    && text.matches(" number ").count() == 2;
                assert!(names_both, "{most} and {other} by rank {odd} of {ranks}: {text}");
            }
        }
    }
}
