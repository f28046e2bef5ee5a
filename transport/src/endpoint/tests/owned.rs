//! Memory that the endpoint owns while an operation runs.

use super::*;

const BLOCK: u64 = 8 << 10;

#[test]
fn owned_memory_moves_blocks_and_comes_back() {
    for links in ALL_LINKS {
        println!("{links:?}");
        let mut job = job(2, links);
        job.connect(0, 1);
        let bytes = 100_000;
        let content = pattern(1, 3 * bytes);
        let mut region = job.endpoints[0].region(3 * bytes).unwrap();
        region.copy_from_slice(&content);
        let part = Owned::from(region).part(bytes..2 * bytes).unwrap().read_only();
        let source = job.endpoints[0].open_owned(part, true).unwrap();
        let target = job.endpoints[1].open_owned(vec![0; bytes], true).unwrap();
        let (handle, grant) = job.grant(1, target, BLOCK, 0);
        job.send_all(0, source, 1, &grant, BLOCK);
        job.receive(1, handle, bytes.div_ceil(BLOCK as usize) as u32);
        let owned = job.endpoints[0].close(source).unwrap().unwrap();
        assert_eq!(owned.len(), bytes);
        assert!(*owned.into_region().unwrap() == content[..]);
        let owned = job.endpoints[1].close(target).unwrap().unwrap();
        assert!(owned.into_bytes().unwrap() == content[bytes..2 * bytes]);
        assert!(job.endpoints[1].close(target).is_err(), "closed twice");
        assert!(job.endpoints[0].is_up(1), "nothing was in doubt, so the link stays");
        job.end();
    }
}

#[test]
fn several_sends_in_flight_are_told_apart_by_their_buffers() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let shared = {
            let mut region = job.endpoints[0].region(BLOCK as usize).unwrap();
            region.copy_from_slice(&pattern(2, BLOCK as usize));
            Arc::new(region)
        };
        let mut sources = Vec::new();
        let mut targets = Vec::new();
        for _ in 0..5 {
            sources.push(job.endpoints[0].open_owned(Arc::clone(&shared), true).unwrap());
            let target = job.endpoints[1].open_owned(vec![0; BLOCK as usize], true).unwrap();
            let (handle, grant) = job.grant(1, target, BLOCK, 0);
            targets.push((target, handle, grant));
        }
        for (source, (_, _, grant)) in sources.iter().zip(&targets) {
            let sender = &mut job.endpoints[0];
            let posting = sender.send_block(1, grant, 0, *source, 0..BLOCK, 0, 77).unwrap();
            assert_eq!(posting, Posting::Posted);
        }
        let mut told = Vec::new();
        for _ in 0..sources.len() {
            told.push(job.wait(0, |notice| match notice {
                Notice::Sent { peer: 1, buffer, token: 77 } => Some(*buffer),
                _ => None,
            }));
        }
        for source in &sources {
            assert_eq!(told.iter().filter(|buffer| *buffer == source).count(), 1);
        }
        for (target, handle, _) in targets {
            job.receive(1, handle, 1);
            let bytes = job.endpoints[1].close(target).unwrap().unwrap().into_bytes().unwrap();
            assert!(bytes == shared[..]);
        }
        for source in sources {
            let back = job.endpoints[0].close(source).unwrap().unwrap().into_shared().unwrap();
            assert!(Arc::ptr_eq(&back, &shared));
        }
        job.end();
    }
}

#[test]
fn a_buffer_that_peers_may_write_is_closed_within_bounds() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let source = job.endpoints[0].open_owned(vec![7; 2 * BLOCK as usize], true).unwrap();
        let target = job.endpoints[1].open_owned(vec![1; 2 * BLOCK as usize], true).unwrap();
        let (handle, grant) = job.grant(1, target, BLOCK, 0);
        let sender = &mut job.endpoints[0];
        let posting = sender.send_block(1, &grant, 0, source, 0..BLOCK, 0, 0).unwrap();
        assert_eq!(posting, Posting::Posted);
        job.receive(1, handle, 1);
        // The other block is missing, and its sender may still write it.
        let bytes = job.endpoints[1].close(target).unwrap().unwrap().into_bytes().unwrap();
        assert!(bytes[..BLOCK as usize].iter().all(|byte| *byte == 7));
        assert!(bytes[BLOCK as usize..].iter().all(|byte| *byte == 1));
        assert!(!job.endpoints[1].is_up(0), "the link was quiesced");
        job.endpoints[0].close(source).unwrap().unwrap();
        job.end();
    }
}

#[test]
fn memory_is_held_by_the_application_or_used_by_links_never_both() {
    let mut job = job(2, Links::Pull);
    job.connect(0, 1);
    let bytes = 2 * BLOCK as usize;
    let source = job.endpoints[0].open_owned(pattern(1, bytes), true).unwrap();
    let target = job.endpoints[1].open_owned(vec![0; bytes], true).unwrap();
    let mut held = job.endpoints[0].hold(source).unwrap();
    assert!(job.endpoints[0].hold(source).is_err(), "held twice");
    held.bytes_mut().unwrap().fill(9);
    let (handle, grant) = job.grant(1, target, BLOCK, 0);
    assert!(job.endpoints[1].hold(target).is_err(), "blocks are missing");
    let sender = &mut job.endpoints[0];
    assert!(sender.send_block(1, &grant, 0, source, 0..BLOCK, 0, 0).is_err());
    assert!(sender.send_message(1, &signature(0, 0), 0, source, 0..8).is_err());
    assert!(sender.open_receive(source, 0, &Layout::new(1, 1, BLOCK).unwrap()).is_err());
    drop(held);
    let posting = sender.send_block(1, &grant, 0, source, 0..BLOCK, 0, 0).unwrap();
    assert_eq!(posting, Posting::Posted);
    assert!(sender.hold(source).is_err(), "it is being sent from");
    job.notices.iter_mut().for_each(Vec::clear);
    job.until("the first block", |job| {
        job.notices[0].iter().any(|notice| matches!(notice, Notice::Sent { .. }))
    });
    let last = job.endpoints[0].send_block(1, &grant, 1, source, BLOCK..2 * BLOCK, BLOCK, 1);
    assert_eq!(last.unwrap(), Posting::Posted);
    job.receive(1, handle, 2);
    let held = job.endpoints[1].hold(target).unwrap();
    assert!(held.iter().all(|byte| *byte == 9));
    // Closed all the same; the memory is the holder's alone then.
    assert_eq!(job.endpoints[1].close(target).unwrap(), None);
    assert!(held.iter().all(|byte| *byte == 9));
    drop(held);
    job.until("the last send", |job| job.endpoints[0].hold(source).is_ok());
    let shared = Arc::new(job.endpoints[0].region(100).unwrap());
    let reader = job.endpoints[0].open_owned(Arc::clone(&shared), true).unwrap();
    assert!(job.endpoints[0].hold(reader).unwrap().bytes_mut().is_none(), "others read it");
    assert!(
        job.endpoints[0].open_receive(reader, 0, &Layout::new(1, 1, BLOCK).unwrap()).is_err(),
        "others read it"
    );
    job.end();
}

#[test]
fn what_is_not_opened_comes_back() {
    assert!(Owned::from(vec![0; 10]).part(5..11).is_err());
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    let reversed = Owned::from(vec![0; 10]).part(6..5);
    assert!(reversed.is_err());
    let network = FakeNetwork::roce(1, 1, FakeSettings::default());
    let config = Config { size: 1, ..Config::default() };
    let mut endpoint = endpoint(&config, Links::Fake(1), Some(&network));
    let empty = endpoint.open_owned(Vec::new(), true).unwrap();
    assert!(endpoint.close(empty).unwrap().unwrap().into_bytes().unwrap().is_empty());
    network.remove_device(0, "fake0");
    let refused = endpoint.open_owned(vec![5; 100], true).unwrap_err();
    assert_eq!(refused.memory.into_bytes().unwrap(), vec![5; 100]);
    let borrowed = endpoint.scope(Memory::Read(&[1]), false, |endpoint, buffer| {
        assert!(endpoint.hold(buffer).is_err(), "borrowed memory is not handed out");
        buffer
    });
    assert!(endpoint.close(borrowed.unwrap()).is_err());
}

#[test]
fn an_endpoint_that_goes_with_open_buffers_frees_them() {
    for links in ALL_LINKS {
        let mut job = job(2, links);
        job.connect(0, 1);
        let source = job.endpoints[0].open_owned(vec![7; BLOCK as usize], true).unwrap();
        let target = job.endpoints[1].open_owned(vec![1; BLOCK as usize], true).unwrap();
        let (_, grant) = job.grant(1, target, BLOCK, 0);
        let sender = &mut job.endpoints[0];
        let posting = sender.send_block(1, &grant, 0, source, 0..BLOCK, 0, 0).unwrap();
        assert_eq!(posting, Posting::Posted);
        let Job { mut endpoints, network, .. } = job;
        drop(endpoints.pop());
        drop(endpoints);
        assert_eq!(network.map(|network| network.violations()).unwrap_or_default(), []);
    }
}
