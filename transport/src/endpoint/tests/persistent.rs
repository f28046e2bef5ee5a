//! Receives that stay open over many starts.

use super::*;

const BLOCK: u64 = 40_000;

/// A buffer at rank 0 that is sent to a granted one at rank 1.
struct Persistent {
    source: BufferId,
    target: BufferId,
    handle: u16,
    grant: Grant,
}

impl Persistent {
    fn new(job: &mut Job, bytes: usize) -> Self {
        let source = job.endpoints[0].open_owned(vec![0; bytes], true).unwrap();
        let target = job.endpoints[1].open_owned(vec![0; bytes], true).unwrap();
        let (handle, grant) = job.grant(1, target, BLOCK, 0);
        Self { source, target, handle, grant }
    }

    fn blocks(&self) -> u32 {
        self.grant.bytes.div_ceil(BLOCK) as u32
    }

    fn run(&self, job: &mut Job) {
        job.send_all(0, self.source, 1, &self.grant, BLOCK);
        job.receive(1, self.handle, self.blocks());
    }

    /// Opens the receive again and has the sender hear of it.
    fn ready(&self, job: &mut Job) -> Ready {
        job.endpoints[1].reopen(self.handle).unwrap();
        let posting = job.endpoints[1].send_ready(0, &signature(0, 0), self.handle).unwrap();
        assert_eq!(posting, Posting::Posted);
        let (header, payload) = job.message(0);
        assert_eq!(header.kind(), Ok(MessageKind::Ready));
        Ready::read(&payload).unwrap()
    }
}

#[test]
fn many_starts_under_one_handle_bring_what_each_of_them_sent() {
    let mut random = fastrand::Rng::with_seed(seed());
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        // Blocks that are striped over three lanes, and a last one that is not.
        let all = [Persistent::new(&mut job, 250_001), Persistent::new(&mut job, 64)];
        for start in 0..100 {
            for one in &all {
                if start > 0 {
                    let ready = one.ready(&mut job);
                    assert!(ready.is_for(&one.grant));
                    assert_eq!(ready.start, start);
                }
                let content = pattern(random.u64(..), one.grant.bytes as usize);
                let mut held = job.endpoints[0].hold(one.source).unwrap();
                held.bytes_mut().unwrap().copy_from_slice(&content);
                drop(held);
                one.run(&mut job);
                let held = job.endpoints[1].hold(one.target).unwrap();
                let turns = random.usize(0..5);
                (0..turns).for_each(|_| job.turn());
                assert!(*held == content[..], "{links:?} start {start}");
            }
        }
        for one in all {
            job.endpoints[0].close(one.source).unwrap().unwrap();
            job.endpoints[1].close(one.target).unwrap().unwrap();
        }
        assert!(job.endpoints[0].is_up(1) && job.endpoints[1].is_up(0));
        job.end();
    }
}

#[test]
fn a_start_begins_only_when_the_one_before_is_over_everywhere() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let one = Persistent::new(&mut job, 2 * BLOCK as usize);
        let call = signature(0, 0);
        let Persistent { source, target, handle, .. } = one;
        assert!(job.endpoints[1].reopen(handle).is_err(), "nothing has come");
        let sender = &mut job.endpoints[0];
        let posting = sender.send_block(1, &one.grant, 0, source, 0..BLOCK, 0, 0).unwrap();
        assert_eq!(posting, Posting::Posted);
        job.receive(1, handle, 1);
        let told = job.endpoints[1].reopen(handle).unwrap_err().to_string();
        assert!(told.contains("1 blocks"), "{told}");
        assert!(job.endpoints[1].send_ready(0, &call, handle).is_err(), "not opened again");
        let sender = &mut job.endpoints[0];
        let posting = sender.send_block(1, &one.grant, 1, source, BLOCK..2 * BLOCK, BLOCK, 1);
        assert_eq!(posting.unwrap(), Posting::Posted);
        job.wait(1, |notice| matches!(notice, Notice::Block { block: 1, .. }).then_some(()));
        let held = job.endpoints[1].hold(target).unwrap();
        assert!(job.endpoints[1].reopen(handle).is_err(), "the application holds the result");
        drop(held);
        let ready = one.ready(&mut job);
        assert_eq!(ready.start, 1);
        assert!(job.endpoints[1].send_ready(0, &call, handle).is_err(), "told twice");
        assert!(job.endpoints[1].send_ready(1, &call, handle).is_err(), "it has no grant");
        assert!(job.endpoints[1].reopen(handle).is_err(), "the next has not run");
        assert!(job.endpoints[1].hold(target).is_err(), "blocks may come");
        // What has not come again must not be passed on.
        let early = job.endpoints[1].send_message(0, &call, 0, target, 0..8);
        assert!(early.is_err());
        job.notices[0].clear();
        one.run(&mut job);
        assert!(job.endpoints[1].send_ready(0, &call, handle).is_err(), "all have come");
        assert!(job.endpoints[1].reopen(handle + 1).is_err(), "no such receive");
        job.endpoints[1].close(target).unwrap();
        assert!(job.endpoints[1].reopen(handle).is_err(), "closed");
        job.end();
    }
}

#[test]
fn between_starts_nothing_is_in_doubt() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let [idle, reopened, told] = [1, 2, 3].map(|_| Persistent::new(&mut job, 1000));
        for one in [&idle, &reopened, &told] {
            one.run(&mut job);
        }
        job.endpoints[1].close(idle.target).unwrap().unwrap();
        assert!(job.endpoints[1].is_up(0));
        // Its sender has not heard of the second start.
        job.endpoints[1].reopen(reopened.handle).unwrap();
        job.endpoints[1].close(reopened.target).unwrap().unwrap();
        assert!(job.endpoints[1].is_up(0));
        told.ready(&mut job);
        job.endpoints[1].close(told.target).unwrap().unwrap();
        assert!(!job.endpoints[1].is_up(0), "its sender may write");
        job.end();
    }
}
