//! Requests, persistent operations and communicators, on whatever the setup runs on.

use std::time::Duration;

use verbcast_collectives::{Communicator, Counts, Error, Memories, Prepared, Request, World};
use verbcast_transport::memory::Owned;

use super::{Setup, message};

/// Sizes on both sides of the eager limit and of a block.
const SIZES: [usize; 5] = [0, 5, 4096, 4097, 150_000];

fn bytes_of(memory: Option<Owned>) -> Vec<u8> {
    memory.expect("the memory comes back").into_bytes().expect("it was made of bytes")
}

/// An operation in flight, and what it has to bring.
struct Flying {
    request: Request<'static>,
    expected: Option<Vec<u8>>,
    what: String,
}

/// Starts operation `number`, which every rank draws alike.
fn start(c: &Communicator, random: &mut fastrand::Rng, number: u64) -> Flying {
    let (rank, size) = (c.rank(), c.size());
    let (kind, root) = (random.u8(0..8), random.u32(0..size));
    let bytes = SIZES[random.usize(0..SIZES.len())];
    let counts: Vec<usize> = (0..size).map(|_| random.usize(0..6000)).collect();
    let own = |rank: u32| message(rank, number, bytes);
    let uneven = |rank: u32| message(rank, number, counts[rank as usize]);
    let all: Vec<u8> = (0..size).flat_map(own).collect();
    let all_uneven: Vec<u8> = (0..size).flat_map(uneven).collect();
    let is_root = rank == root;
    let counted = is_root.then_some(Counts::new(&counts));
    let fresh = |bytes: usize| vec![0xa5_u8; bytes];
    let (request, expected) = match kind {
        0 | 1 => {
            let buffer = if is_root { own(root) } else { fresh(bytes) };
            (c.start_broadcast(buffer, root), Some(own(root)))
        }
        2 => {
            let memories = match is_root {
                true => Memories::both(all, fresh(bytes)),
                false => Memories::recv(fresh(bytes)),
            };
            (c.start_scatter(memories, root), Some(own(rank)))
        }
        3 => {
            let memories = match is_root {
                true => Memories::both(own(rank), fresh(all.len())),
                false => Memories::send(own(rank)),
            };
            (c.start_gather(memories, root), is_root.then_some(all))
        }
        4 => {
            let memories = Memories::both(own(rank), fresh(all.len()));
            (c.start_allgather(memories), Some(all))
        }
        5 => {
            let mut recv = fresh(uneven(rank).len());
            recv.fill(1);
            let memories = match is_root {
                true => Memories::both(all_uneven, recv),
                false => Memories::recv(recv),
            };
            (c.start_scatterv(memories, counted, root), Some(uneven(rank)))
        }
        6 => {
            let memories = match is_root {
                true => Memories::both(uneven(rank), fresh(all_uneven.len())),
                false => Memories::send(uneven(rank)),
            };
            (c.start_gatherv(memories, counted, root), is_root.then_some(all_uneven))
        }
        _ => {
            let memories = Memories::both(uneven(rank), fresh(all_uneven.len()));
            (c.start_allgatherv(memories, Counts::new(&counts)), Some(all_uneven))
        }
    };
    let what = format!("kind {kind}, root {root}, {bytes} bytes, operation {number}");
    Flying { request: request.unwrap_or_else(|error| panic!("{what}: {error}")), expected, what }
}

fn finish(flying: Flying) {
    let Flying { request, expected, what } = flying;
    let memories = request.wait().unwrap_or_else(|error| panic!("{what}: {error}"));
    if let Some(expected) = expected {
        assert!(bytes_of(memories.recv) == expected, "{what}: contents");
    }
}

/// Many operations in flight at once, on several communicators; each rank waits in its own order.
pub(crate) fn many_in_flight(world: World, seed: u64, turns: u64, at_once: u64) {
    let all = world.communicator();
    let copy = all.duplicate().expect("a duplicate");
    let half = all.split(Some(all.rank() % 2), -i64::from(all.rank())).expect("a split");
    let communicators = [all, copy, half.expect("each rank has a colour")];
    let mut own = fastrand::Rng::with_seed(seed ^ u64::from(world.rank()) << 32);
    let mut alike: Vec<fastrand::Rng> = (0..3).map(|_| fastrand::Rng::with_seed(seed)).collect();
    let mut which = fastrand::Rng::with_seed(seed);
    for turn in 0..turns {
        let mut flying = Vec::new();
        for number in 0..at_once {
            let place = which.usize(0..3);
            let number = turn << 8 | number;
            flying.push(start(&communicators[place], &mut alike[place], number));
        }
        while !flying.is_empty() {
            let mut next = flying.swap_remove(own.usize(0..flying.len()));
            if own.bool() {
                while !next.request.test().expect("it was not over") {}
                assert!(matches!(next.request.test(), Err(Error::RequestOver)));
            }
            finish(next);
        }
    }
    world.finalize().expect("all ranks come to the end");
}

/// Requests on borrowed memory.
pub(crate) fn scoped(world: World) {
    let c = world.communicator();
    let (rank, size) = (c.rank(), c.size());
    for bytes in SIZES {
        let parts: Vec<u8> = (0..size).flat_map(|rank| message(rank, 7, bytes)).collect();
        let own = message(rank, 7, bytes);
        let (mut one, mut two) = (vec![0; bytes], vec![0; bytes * size as usize]);
        let mut three = if rank == 1 { own.clone() } else { vec![0; bytes] };
        let outcome = c.scope(|scope| {
            let send = (rank == 0).then_some(&parts[..]);
            let first = c.scatter_call(0).start_in(scope, send, Some(&mut one))?;
            let second = c.allgather_call().start_in(scope, Some(&own), &mut two)?;
            let third = c.broadcast_call(1).start_in(scope, &mut three)?;
            let mut requests = vec![first, second, third];
            while !requests.is_empty() {
                let place = Request::wait_any(&mut requests).expect("one is left");
                requests.swap_remove(place).wait()?;
            }
            Ok::<_, Error>(())
        });
        outcome.unwrap_or_else(|error| panic!("{bytes} bytes: {error}"));
        assert!(one == own && two == parts && three == message(1, 7, bytes), "{bytes} bytes");
    }
    world.finalize().expect("all ranks come to the end");
}

/// What was leaked in a scope, dropped, or whose communicator was dropped: bounded, and the others
/// are told. Gives what rank 1 and rank 0 saw.
pub(crate) fn given_up(setup: &Setup, leak: bool) -> Vec<String> {
    setup.run(|world| {
        let all = world.communicator();
        let c = all.duplicate().expect("a duplicate");
        if world.rank() == 0 {
            // Nobody else is the root; the data never comes.
            let mut buffer = vec![3_u8; 300_000];
            let error = c.scope(|scope| {
                let request = c.broadcast_call(1).start_in(scope, &mut buffer).expect("a start");
                if leak {
                    // It ends with the scope.
                    std::mem::forget(request);
                    return None;
                }
                drop(request);
                c.barrier().err()
            });
            assert!(buffer.iter().all(|byte| *byte == 3), "nothing has come");
            drop(buffer);
            let error = error.or_else(|| c.barrier().err());
            std::thread::sleep(Duration::from_millis(50));
            all.barrier().expect("another communicator goes on");
            let told = error.map(|error| error.to_string());
            world.finalize().expect("the end");
            return told.unwrap_or_default();
        }
        // Another call under the same number would be an error of its own.
        std::thread::sleep(Duration::from_millis(400));
        let error = (0..400).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            c.start_barrier().and_then(|request| Ok(request.wait().map(drop)?)).err()
        });
        all.barrier().expect("another communicator goes on");
        world.finalize().expect("the end");
        error.map(|error| error.to_string()).unwrap_or_default()
    })
}

/// Persistent operations with changing contents; receivers hold what came for a while.
pub(crate) fn persistent(world: World, seed: u64, starts: u64) {
    let c = world.communicator();
    let (rank, size) = (c.rank(), c.size());
    let mut own = fastrand::Rng::with_seed(seed ^ u64::from(rank));
    for bytes in [8, 4096, 65_536] {
        let parts = bytes * size as usize;
        let counts: Vec<usize> = (0..size as usize).map(|rank| bytes / (rank + 1)).collect();
        let uneven: usize = counts.iter().sum();
        let counted = (rank == 1).then_some(Counts::new(&counts));
        let mine = counts[rank as usize];
        let is_root = rank == 1;
        let at_root =
            |memories: Memories, others: Memories| if is_root { memories } else { others };
        let zeros = |bytes: usize| vec![0_u8; bytes];
        let mut prepared: Vec<(&str, Prepared)> = vec![
            ("broadcast", c.prepare_broadcast(zeros(bytes), 1).expect("broadcast")),
            ("scatter", {
                let root = Memories::both(zeros(parts), zeros(bytes));
                let memories = at_root(root, Memories::recv(zeros(bytes)));
                c.prepare_scatter(memories, 1).expect("scatter")
            }),
            ("gather", {
                let root = Memories::both(zeros(bytes), zeros(parts));
                let memories = at_root(root, Memories::send(zeros(bytes)));
                c.prepare_gather(memories, 1).expect("gather")
            }),
            ("allgather", {
                let memories = Memories::both(zeros(bytes), zeros(parts));
                c.prepare_allgather(memories).expect("allgather")
            }),
            ("gatherv", {
                let root = Memories::both(zeros(mine), zeros(uneven));
                let memories = at_root(root, Memories::send(zeros(mine)));
                c.prepare_gatherv(memories, counted, 1).expect("gatherv")
            }),
            ("allgatherv", {
                let memories = Memories::both(zeros(mine), zeros(uneven));
                c.prepare_allgatherv(memories, Counts::new(&counts)).expect("allgatherv")
            }),
        ];
        for number in 0..starts {
            for (what, prepared) in &mut prepared {
                let of = |rank: u32, bytes: usize| message(rank, number, bytes);
                let even = |bytes: usize| (0..size).flat_map(|r| of(r, bytes)).collect::<Vec<u8>>();
                let uneven: Vec<u8> =
                    (0..size).zip(&counts).flat_map(|(rank, bytes)| of(rank, *bytes)).collect();
                let (send, expected) = match *what {
                    "broadcast" => (None, Some(of(1, bytes))),
                    "scatter" => (is_root.then(|| even(bytes)), Some(of(rank, bytes))),
                    "gather" => (Some(of(rank, bytes)), is_root.then(|| even(bytes))),
                    "allgather" => (Some(of(rank, bytes)), Some(even(bytes))),
                    "gatherv" => (Some(of(rank, mine)), is_root.then_some(uneven)),
                    _ => (Some(of(rank, mine)), Some(uneven)),
                };
                if let Some(send) = send {
                    let mut held = prepared.send().expect("what is sent");
                    held.bytes_mut().expect("its own").copy_from_slice(&send);
                }
                if let Some(expected) = &expected {
                    let mut held = prepared.recv().expect("what is received");
                    let held = held.bytes_mut().expect("its own");
                    held.fill(0x5a);
                    if *what == "broadcast" && is_root {
                        held.copy_from_slice(expected);
                    }
                    if own.u8(0..8) == 0 {
                        std::thread::sleep(Duration::from_micros(own.u64(0..300)));
                    }
                    assert!(held[..] == [0x5a].repeat(held.len())[..] || is_root, "{what}");
                }
                prepared.start().unwrap_or_else(|error| panic!("{what} {number}: {error}"));
                if own.bool() {
                    while !prepared.test().expect("it runs") {}
                }
                prepared.wait().unwrap_or_else(|error| panic!("{what} {number}: {error}"));
                if let Some(expected) = expected {
                    let held = prepared.recv().expect("what was received");
                    assert!(held[..] == expected[..], "{what}, {bytes} bytes, start {number}");
                }
            }
        }
        for (what, prepared) in prepared {
            let memories = prepared.into_memories();
            assert!(memories.send.is_some() || memories.recv.is_some(), "{what}");
        }
        c.barrier().expect("all have come so far");
    }
    world.finalize().expect("all ranks come to the end");
}

/// Two threads of each rank call on communicators of their own while a third call waits long for a
/// late rank.
pub(crate) fn threads(world: World, turns: u64) {
    let all = world.communicator();
    let rank = world.rank();
    let mut others: Vec<Communicator> =
        (0..3).map(|_| all.duplicate().expect("a duplicate")).collect();
    let late = others.pop().expect("one of three");
    std::thread::scope(|scope| {
        let late = scope.spawn(move || {
            let mut buffer = vec![rank as u8; 70_000];
            if rank == 0 {
                std::thread::sleep(Duration::from_millis(400));
            }
            late.broadcast(&mut buffer, 0).expect("a late broadcast");
            assert!(buffer.iter().all(|byte| *byte == 0));
        });
        let busy: Vec<_> = others
            .into_iter()
            .zip(0_u64..)
            .map(|(c, which)| {
                scope.spawn(move || {
                    for number in 0..turns {
                        let bytes = SIZES[(number as usize + which as usize) % SIZES.len()];
                        let root = (number as u32) % c.size();
                        let expected = message(root, number << 1 | which, bytes);
                        let mut buffer =
                            if rank == root { expected.clone() } else { vec![0; bytes] };
                        c.broadcast(&mut buffer, root).expect("a broadcast");
                        assert!(buffer == expected, "thread {which}, turn {number}: contents");
                    }
                })
            })
            .collect();
        for thread in busy {
            thread.join().expect("no panic");
            // In spite of the late rank.
            assert!(!late.is_finished() || turns > 100, "the others went on meanwhile");
        }
    });
    world.finalize().expect("all ranks come to the end");
}
