//! Requests, persistent operations, communicators and threads: ranks that are threads of one process
//! over shared memory, and over verbs on the strict fake; contents compared byte for byte.

mod support;

use std::time::{Duration, Instant};

use support::{Setup, message, on_fake, requests, seed};
use verbcast_collectives::{Error, Memories, World};
use verbcast_transport::verbs::fake::{FakeNetwork, FakeSettings};

fn on_fake_of(ranks: u32, rails: usize, work: impl Fn(World) + Sync) {
    let settings =
        FakeSettings { seed: seed(), partial_post_percent: 10, ..FakeSettings::default() };
    let network = FakeNetwork::roce(ranks as usize, rails, settings);
    on_fake(&network, ranks, 2).run(work);
    assert_eq!(network.violations(), [], "{ranks} ranks");
}

#[test]
fn many_operations_in_flight_end_in_any_order() {
    let seed = seed();
    for (ranks, cma) in [(2, true), (3, false), (5, true)] {
        Setup { cma, ..Setup::shm(ranks) }
            .run(|world| requests::many_in_flight(world, seed, 12, 40));
    }
}

#[test]
fn many_operations_in_flight_over_verbs() {
    let seed = seed();
    on_fake_of(4, 2, |world| requests::many_in_flight(world, seed, 6, 40));
}

#[test]
fn more_than_run_at_once_are_started_and_the_rest_follows() {
    Setup::shm(3).run(|world| {
        let c = world.communicator();
        let send =
            |number: u32| vec![number as u8; if number.is_multiple_of(3) { 20_000 } else { 16 }];
        let requests: Vec<_> = (0..300)
            .map(|number| {
                let root = number % 3;
                let mut buffer = send(number);
                if world.rank() != root {
                    buffer.fill(0xff);
                }
                c.start_broadcast(buffer, root).expect("a start")
            })
            .collect();
        for (number, request) in (0..300).zip(requests).rev() {
            let memories = request.wait().expect("a broadcast");
            let bytes = memories.recv.map(verbcast_transport::memory::Owned::into_bytes);
            assert!(bytes == Some(Ok(send(number))), "broadcast {number}");
        }
        world.finalize().expect("the end");
    });
}

#[test]
fn borrowed_memory_in_scopes() {
    for ranks in [2, 4] {
        Setup::shm(ranks).run(requests::scoped);
    }
    on_fake_of(3, 1, requests::scoped);
}

#[test]
fn a_request_that_is_dropped_or_leaked_ends_and_the_others_are_told() {
    for leak in [false, true] {
        let told = requests::given_up(&Setup::shm(3), leak);
        for text in &told[1..] {
            assert!(text.contains("rank 0 dropped the request of broadcast"), "{told:?}");
        }
        let network = FakeNetwork::roce(2, 1, FakeSettings { seed: seed(), ..Default::default() });
        let told = requests::given_up(&on_fake(&network, 2, 2), leak);
        assert!(told[1].contains("rank 0 dropped the request of broadcast"), "{told:?}");
        assert_eq!(network.violations(), []);
    }
}

#[test]
fn persistent_operations_bring_what_each_start_sends() {
    let seed = seed();
    let starts = if std::env::var_os("VERBCAST_FULL").is_some() { 10_000 } else { 40 };
    for (ranks, cma) in [(2, true), (4, true), (3, false)] {
        Setup { cma, ..Setup::shm(ranks) }.run(|world| requests::persistent(world, seed, starts));
    }
    on_fake_of(3, 2, |world| requests::persistent(world, seed, starts.min(1000)));
}

#[test]
fn threads_do_not_stop_each_other() {
    for ranks in [2, 3] {
        Setup::shm(ranks).run(|world| requests::threads(world, 60));
    }
    on_fake_of(2, 1, |world| requests::threads(world, 40));
}

#[test]
fn a_progress_thread_goes_on_while_the_rank_computes() {
    Setup::shm(3).run(|world| {
        world.start_progress_thread().expect("a thread");
        let c = world.communicator();
        let bytes = 300_000;
        // Rank 1 passes it on without being in a call.
        let call = c.broadcast_call(0).algorithm("chain".parse().expect("a name"));
        let began = Instant::now();
        let buffer = if world.rank() == 0 { message(0, 1, bytes) } else { vec![0; bytes] };
        let request = call.start(buffer).expect("a start");
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1500));
        }
        let memories = request.wait().expect("a broadcast");
        let took = began.elapsed();
        assert!(world.rank() == 1 || took < Duration::from_millis(1400), "{took:?}");
        let bytes = memories.recv.map(verbcast_transport::memory::Owned::into_bytes);
        assert!(bytes == Some(Ok(message(0, 1, 300_000))));
        c.barrier().expect("a barrier");
        world.finalize().expect("the end");
    });
}

#[test]
fn communicators_have_the_ranks_that_were_asked_for() {
    Setup::shm(5).run(|world| {
        let all = world.communicator();
        let rank = world.rank();
        // Ranks 3, 1 and 4, 2, 0: by descending key.
        let half = all.split(Some(rank % 2), -i64::from(rank)).expect("a split").expect("a half");
        let in_job: Vec<u32> = (0..half.size()).map(|member| half.rank_in_job(member)).collect();
        assert_eq!(in_job, if rank % 2 == 1 { vec![3, 1] } else { vec![4, 2, 0] });
        assert_eq!(in_job[half.rank() as usize], rank);
        let mut ranks = vec![0; half.size() as usize];
        half.allgather(&[rank], &mut ranks).expect("an allgather");
        assert_eq!(ranks, in_job);
        let odd = all.split((rank % 2 == 1).then_some(9), 0).expect("a split");
        assert_eq!(
            odd.as_ref().map(verbcast_collectives::Communicator::size),
            (rank % 2 == 1).then_some(2)
        );
        let group = all.subgroup(&[4, 0, 3]).expect("a subgroup");
        assert_eq!(group.is_some(), [0, 3, 4].contains(&rank));
        if let Some(group) = &group {
            let mut from_four = [rank];
            group.broadcast(&mut from_four, 0).expect("a broadcast");
            assert_eq!(from_four, [4]);
        }
        let alone = all.split(Some(rank), 0).expect("a split").expect("its own");
        assert_eq!((alone.rank(), alone.size()), (0, 1));
        let mut own = [rank; 3];
        alone.broadcast(&mut own, 0).expect("alone");
        alone.allgather(&[1, 2, 3], &mut own).expect("alone");
        assert_eq!(own, [1, 2, 3]);
        alone.barrier().expect("alone");
        for (ranks, words) in [(&[0, 1, 0][..], "twice"), (&[7], "rank 7")] {
            let error = all.subgroup(ranks).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        let lists = [[0, 1], [1, 0]];
        let error = all.subgroup(&lists[usize::from(rank == 3)]).expect_err("different lists");
        assert!(error.to_string().contains("different lists"), "{error}");
        // Many, one after another, and dropped: their numbers do not mix.
        for turn in 0..40 {
            let next = all.split(Some(turn % 2 + rank % 2), 0).expect("a split").expect("a colour");
            let mut buffer = [turn + next.rank_in_job(0)];
            next.broadcast(&mut buffer, 0).expect("a broadcast");
            assert_eq!(buffer, [turn + next.rank_in_job(0)]);
        }
        world.finalize().expect("the end");
    });
}

#[test]
fn one_communicator_fails_and_the_others_go_on() {
    let work = |world: World| {
        let all = world.communicator();
        let (bad, good) = (all.duplicate().expect("one"), all.duplicate().expect("another"));
        let rank = world.rank();
        // In flight on the good one while the bad one fails.
        let large = |number: u64| message(0, number, 400_000);
        let buffer = if rank == 0 { large(1) } else { vec![0; 400_000] };
        let flying = (rank != 1).then(|| good.start_broadcast(buffer.clone(), 0).expect("a start"));
        let mut wrong = vec![rank as u8; if rank == 0 { 90_000 } else { 80_000 }];
        let error = bad.broadcast(&mut wrong, 0).expect_err("different sizes").to_string();
        assert!(error.contains("90000") && error.contains("80000"), "{error}");
        let again = bad.barrier().expect_err("it has failed").to_string();
        assert!(again.contains("90000") && again.contains("80000"), "{again}");
        let flying = flying.unwrap_or_else(|| good.start_broadcast(buffer, 0).expect("a start"));
        let memories = flying.wait().expect("the other one goes on");
        let bytes = memories.recv.map(verbcast_transport::memory::Owned::into_bytes);
        assert!(bytes == Some(Ok(large(1))), "contents");
        let mut parts = vec![0; 3 * 70_000];
        good.allgather(&vec![rank as u8; 70_000], &mut parts).expect("an allgather");
        let expected: Vec<u8> = (0..3).flat_map(|rank| vec![rank; 70_000]).collect();
        assert!(parts == expected, "contents");
        world.finalize().expect("the end");
    };
    for cma in [true, false] {
        Setup { cma, ..Setup::shm(3) }.run(work);
    }
}

#[test]
fn wrong_uses_are_told_and_nothing_happens() {
    Setup::shm(2).run(|world| {
        let c = world.communicator();
        let rank = world.rank();
        // The memory comes back.
        let failed =
            c.start_allgather(Memories::both(vec![1; 3], vec![1; 7])).expect_err("lengths");
        assert!(failed.error.to_string().contains("has 7 elements, not 6"), "{failed}");
        assert!(failed.memories.send.is_some_and(|memory| memory.len() == 3));
        let failed = c.start_scatter(Memories::recv(vec![1; 3]), rank).expect_err("no send");
        assert!(failed.to_string().contains("gives nothing to `send`"), "{failed}");
        assert!(failed.memories.recv.is_some_and(|memory| memory.len() == 3));
        let shared = std::sync::Arc::new(world.region(64).expect("a region"));
        let failed = c.start_allgather(Memories::recv(shared)).expect_err("read only");
        assert!(failed.to_string().contains("only be read"), "{failed}");

        let mut prepared = c.prepare_broadcast(vec![rank as u8; 10_000], 0).expect("prepared");
        assert!(matches!(prepared.wait(), Err(Error::RequestOver)));
        assert!(matches!(prepared.test(), Err(Error::RequestOver)));
        let held = prepared.recv().expect("held");
        let error = prepared.start().expect_err("held").to_string();
        assert!(error.contains("holds"), "{error}");
        drop(held);
        prepared.start().expect("a start");
        assert!(matches!(prepared.start(), Err(Error::NotStarted { .. })));
        assert!(matches!(prepared.recv(), Err(Error::NotStarted { .. })));
        prepared.wait().expect("the end");
        assert!(prepared.recv().expect("held").iter().all(|byte| *byte == 0));

        let mut trace = verbcast_collectives::Trace::default();
        let failed = c.broadcast_call(0).trace(&mut trace).start(vec![0; 3]).expect_err("a trace");
        assert!(failed.to_string().contains("only a blocking call"), "{failed}");
        c.barrier().expect("nothing has happened");
        // The requests outlive what they were started on.
        let request = {
            let copy = c.duplicate().expect("a duplicate");
            copy.start_allgather(Memories::both(vec![rank as u8], vec![9; 2])).expect("a start")
        };
        let memories = request.wait().expect("it goes on");
        let bytes = memories.recv.map(verbcast_transport::memory::Owned::into_bytes);
        assert_eq!(bytes, Some(Ok(vec![0, 1])));
        world.finalize().expect("the end");
    });
}
