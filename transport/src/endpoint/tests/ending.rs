//! Links that end while others use them.

use super::*;

const BLOCK: u64 = 4 << 10;

/// What a rank has under way with the other one.
fn in_flight(job: &mut Job) -> (BufferId, BufferId, Grant) {
    let source = job.endpoints[0].open_owned(vec![7; 2 * BLOCK as usize], true).unwrap();
    let target = job.endpoints[1].open_owned(vec![1; 2 * BLOCK as usize], true).unwrap();
    let (handle, grant) = job.grant(1, target, BLOCK, 0);
    let sender = &mut job.endpoints[0];
    let posting = sender.send_block(1, &grant, 0, source, 0..BLOCK, 0, 0).unwrap();
    assert_eq!(posting, Posting::Posted);
    job.receive(1, handle, 1);
    job.wait(0, |notice| matches!(notice, Notice::Sent { .. }).then_some(()));
    (source, target, grant)
}

fn broken(peer: Rank) -> impl Fn(&Notice) -> Option<()> {
    move |notice| (*notice == Notice::Broken { peer }).then_some(())
}

#[test]
fn both_ends_hear_of_a_link_that_one_has_closed_and_get_another_one() {
    for links in ALL_LINKS {
        for wanting in [0, 1] {
            println!("{links:?}, rank {wanting} wants another one");
            let mut job = job(2, links);
            job.connect(0, 1);
            let (source, target, grant) = in_flight(&mut job);
            let (other_source, other_target, _) = in_flight(&mut job);
            job.endpoints[1].close(target).unwrap().unwrap();
            // The other operation of this rank, and both of the peer's.
            job.wait(1, broken(0));
            job.wait(0, broken(1));
            assert!(job.notices.iter().all(Vec::is_empty), "told once: {:?}", job.notices);
            let (from, to) = (wanting, 1 - wanting);
            job.endpoints[from].connect(to as Rank).unwrap();
            job.until("another link", |job| job.endpoints[0].is_up(1) && job.endpoints[1].is_up(0));
            // What began over the old link does not go on over the new one.
            let late =
                job.endpoints[0].send_block(1, &grant, 1, source, BLOCK..2 * BLOCK, BLOCK, 1);
            assert!(matches!(late, Err(Error::Link { peer: 1, .. })), "{late:?}");
            let call = signature(0, 1);
            let late = job.endpoints[0].send_message(1, &call, 0, other_source, 0..8);
            assert!(matches!(late, Err(Error::Link { peer: 1, .. })), "{late:?}");
            let layout = Layout::new(1, BLOCK, BLOCK).unwrap();
            let handle = job.endpoints[1].open_receive(other_target, 0, &layout).unwrap();
            let late = job.endpoints[1].send_grant(0, &call, handle, 0);
            assert!(matches!(late, Err(Error::Link { peer: 0, .. })), "{late:?}");
            for source in [source, other_source] {
                job.endpoints[0].close(source).unwrap().unwrap();
            }
            job.endpoints[1].close(other_target).unwrap().unwrap();
            // What begins now does.
            in_flight(&mut job);
            job.end();
        }
    }
}

#[test]
fn what_came_before_the_peer_closed_is_reported_first() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let source = job.endpoints[0].open_owned(vec![7; 2 * BLOCK as usize], true).unwrap();
        let target = job.endpoints[1].open_owned(vec![1; 2 * BLOCK as usize], true).unwrap();
        let (handle, grant) = job.grant(1, target, 2 * BLOCK, 0);
        let sender = &mut job.endpoints[0];
        let posting = sender.send_block(1, &grant, 0, source, 0..2 * BLOCK, 0, 0).unwrap();
        assert_eq!(posting, Posting::Posted);
        let call = signature(0, 1);
        let posting = sender.send_message(1, &call, 0, source, 0..8).unwrap();
        assert_eq!(posting, Posting::Posted);
        // Rank 1 looks only when rank 0 has sent all and closed the link.
        let begun = Instant::now();
        while links != Links::Pull && job.notices[0].is_empty() {
            job.turn_of(0);
            assert!(begun.elapsed() < PATIENCE);
        }
        if links != Links::Pull {
            job.endpoints[0].quiesce(1);
            std::thread::sleep(Duration::from_millis(20));
        }
        job.receive(1, handle, 1);
        job.message(1);
        if links == Links::Pull {
            job.endpoints[0].quiesce(1);
        }
        job.wait(1, broken(0));
        job.end();
    }
}
