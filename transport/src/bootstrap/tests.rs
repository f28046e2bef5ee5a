//! The rendezvous over loopback: jobs that come together, jobs that cannot, and strangers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::{Registered, Registration};
use super::handshake::{ANSWER_BYTES, Claim, Dialler, Purpose, RENDEZVOUS_RANK, nonce};
use super::lobby::PENDING_MAX;
use super::server::KEY_LABEL;
use super::*;
use crate::wire::Rank;

/// Long enough for a loaded machine, never reached by a test that passes.
const LONG: Duration = Duration::from_secs(60);

type Served = JoinHandle<Result<(), BootstrapError>>;
type Joined = JoinHandle<Result<Registered, BootstrapError>>;

fn secret() -> Secret {
    Secret::from_text("a secret for tests").unwrap()
}

fn serve(size: u32, deadline: Duration) -> (SocketAddr, StopHandle, Served) {
    let server = RendezvousServer::bind("127.0.0.1:0", size, &secret(), deadline).unwrap();
    let (address, stop) = (server.address(), server.stop_handle());
    (address, stop, std::thread::spawn(move || server.serve()))
}

fn join(rank: Rank, size: u32, address: impl ToString, deadline: Duration) -> Joined {
    join_with(rank, size, address, deadline, secret())
}

fn join_with(
    rank: Rank,
    size: u32,
    address: impl ToString,
    deadline: Duration,
    secret: Secret,
) -> Joined {
    let address = address.to_string();
    std::thread::spawn(move || {
        let started = Instant::now();
        let deadline = started + deadline;
        Registration { rank, size, address: &address, secret: &secret, started, deadline }
            .register()
    })
}

fn refusal(joined: Joined) -> Refusal {
    match joined.join().unwrap() {
        Err(BootstrapError::Refused(refusal)) => refusal,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the job came together"),
    }
}

fn served_refusal(served: Served) -> Refusal {
    match served.join().unwrap() {
        Err(BootstrapError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn assert_complete(joined: Vec<Joined>, size: u32) {
    let books: Vec<Registered> = joined.into_iter().map(|j| j.join().unwrap().unwrap()).collect();
    for (rank, book) in books.iter().enumerate() {
        assert_eq!(book.peers.len(), size as usize);
        assert_eq!((book.job, &book.peers), (books[0].job, &books[0].peers));
        let own = book.listener.local_addr().unwrap().to_string();
        assert_eq!(book.peers[rank].addresses, [own]);
        assert_eq!(book.peers[rank].pid, std::process::id());
    }
}

#[test]
fn all_ranks_get_one_address_book() {
    // 40 ranks need several pages.
    for size in [1, 2, 3, 8, 40] {
        let (address, _, served) = serve(size, LONG);
        assert_complete((0..size).map(|rank| join(rank, size, address, LONG)).collect(), size);
        served.join().unwrap().unwrap();
    }
}

#[test]
fn ranks_may_come_before_the_rendezvous() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let joined: Vec<Joined> = (0..2).map(|rank| join(rank, 2, address, LONG)).collect();
    std::thread::sleep(Duration::from_millis(100));
    let server = RendezvousServer::bind(address, 2, &secret(), LONG).unwrap();
    let served = std::thread::spawn(move || server.serve());
    assert_complete(joined, 2);
    served.join().unwrap().unwrap();
}

#[test]
fn two_processes_with_one_rank_are_named_to_everybody() {
    let (address, _, served) = serve(3, LONG);
    let joined = [join(0, 3, address, LONG), join(1, 3, address, LONG), join(1, 3, address, LONG)];
    let pid = std::process::id();
    for refusal in joined.map(refusal).into_iter().chain([served_refusal(served)]) {
        let Refusal::DuplicateRank { rank: 1, first, second } = &refusal else {
            panic!("{refusal}")
        };
        assert_eq!((first.pid, second.pid), (pid, pid));
        assert!(refusal.to_string().contains("VERBCAST_RANK"), "{refusal}");
    }
}

#[test]
fn a_rank_outside_the_job_is_named_to_everybody() {
    let (address, _, served) = serve(2, LONG);
    let joined = [join(0, 2, address, LONG), join(2, 2, address, LONG)];
    for refusal in joined.map(refusal).into_iter().chain([served_refusal(served)]) {
        assert!(matches!(refusal, Refusal::RankOutside { rank: 2, size: 2, .. }), "{refusal}");
        assert!(refusal.to_string().contains("numbered 0 to 1"), "{refusal}");
    }
}

#[test]
fn another_size_is_named_to_everybody() {
    let (address, _, served) = serve(2, LONG);
    let joined = [join(0, 2, address, LONG), join(1, 3, address, LONG)];
    for refusal in joined.map(refusal).into_iter().chain([served_refusal(served)]) {
        let expected =
            matches!(refusal, Refusal::SizeDiffers { rank: 1, given: 3, expected: 2, .. });
        assert!(expected, "{refusal}");
    }
}

#[test]
fn missing_ranks_are_named_before_the_deadline_of_those_who_wait() {
    let (address, stop, served) = serve(8, LONG);
    let deadline = Duration::from_millis(1500);
    let joined = [0, 3, 4, 7].map(|rank| join(rank, 8, address, deadline));
    let missing: RankSet = [1, 2, 5, 6].into_iter().collect();
    for joined in joined {
        let refusal = refusal(joined);
        let Refusal::Missing { ranks, size: 8, .. } = &refusal else { panic!("{refusal}") };
        assert_eq!(ranks, &missing);
        assert!(refusal.to_string().contains("rank(s) 1-2, 5-6 of 8"), "{refusal}");
    }
    stop.stop("nobody else comes");
    assert!(matches!(served_refusal(served), Refusal::Missing { .. }));
}

#[test]
fn a_rank_that_goes_away_is_named() {
    let (address, stop, served) = serve(3, LONG);
    let joined = join(0, 3, address, LONG);
    let mut stream = TcpStream::connect(address).unwrap();
    let key = secret().derive(KEY_LABEL, b"");
    let claim = Claim { purpose: Purpose::Rendezvous, rank: 2, size: 3, target: RENDEZVOUS_RANK };
    let (dialler, hello) = Dialler::new(key, claim, nonce().unwrap());
    stream.write_all(&hello).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).unwrap();
    stream.write_all(&dialler.finish(&answer).unwrap().1).unwrap();
    let peer = identity::describe(2, Vec::new());
    let register = message::Register { peer, size: 3, patience_ms: 60_000 };
    stream.write_all(&frame::encode(&register, &[]).unwrap()).unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    drop(stream);
    let refusal = refusal(joined);
    assert!(matches!(refusal, Refusal::WentAway { rank: 2, .. }), "{refusal}");
    stop.stop("seen");
    served_refusal(served);
}

#[test]
fn a_stop_reaches_all_who_wait() {
    let (address, stop, served) = serve(3, LONG);
    let joined = [0, 1].map(|rank| join(rank, 3, address, LONG));
    // Not a race: whoever registers later is told as well.
    stop.stop("rank 2 exited with status 7");
    for joined in joined {
        let refusal = refusal(joined);
        assert!(refusal.to_string().contains("rank 2 exited with status 7"), "{refusal}");
    }
    stop.stop("twice does no harm");
    assert!(matches!(served_refusal(served), Refusal::Stopped { .. }));
}

#[test]
fn nobody_at_the_rendezvous_is_an_error_that_names_the_address() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let error = join(1, 2, address, Duration::from_millis(300)).join().unwrap().err().unwrap();
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains(&address.to_string()) && message.contains("firewall"), "{message}");

    let error = join(1, 2, "no port here", LONG).join().unwrap().err().unwrap();
    assert!(matches!(error, BootstrapError::Address { .. }), "{error}");
}

#[test]
fn somebody_silent_at_the_rendezvous_is_not_waited_for_beyond_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let error = join(1, 2, address, Duration::from_millis(300)).join().unwrap().err().unwrap();
    assert!(error.to_string().contains("did not answer"), "{error}");
}

#[test]
fn another_service_or_another_secret_at_the_rendezvous_is_known_at_once() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut stream = other.accept().unwrap().0;
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = join(1, 2, address, LONG).join().unwrap().err().unwrap();
    assert!(
        matches!(error, BootstrapError::Stranger { source: HandshakeError::Magic, .. }),
        "{error}"
    );
    thread.join().unwrap();

    let (address, stop, served) = serve(2, LONG);
    let wrong = Secret::from_text("another secret, also long").unwrap();
    let error = join_with(1, 2, address, LONG, wrong).join().unwrap().err().unwrap();
    assert!(
        matches!(error, BootstrapError::Stranger { source: HandshakeError::Secret, .. }),
        "{error}"
    );
    stop.stop("done");
    served_refusal(served);
}

#[test]
fn strangers_are_dropped_and_the_job_goes_on() {
    let (address, _, served) = serve(2, LONG);
    let first = join(0, 2, address, LONG);
    let mut strangers: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    strangers[0].write_all(&[0x5a; 32]).unwrap();
    strangers[1].write_all(&u32::MAX.to_le_bytes()).unwrap();
    // Strangers 2 says nothing; stranger 3 begins well and then claims 4 GiB.
    strangers[3].write_all(b"VBCT").unwrap();
    strangers[3].write_all(&[0xff; 4096]).unwrap();
    let wrong = Secret::from_text("another secret, also long").unwrap();
    assert!(join_with(1, 2, address, LONG, wrong).join().unwrap().is_err());
    for stranger in [0, 1, 3] {
        // Dropped: the end of the stream, or a reset. Stranger 3 is told our version first.
        let mut bytes = Vec::new();
        let _ = strangers[stranger].read_to_end(&mut bytes);
        assert!(bytes.len() <= ANSWER_BYTES);
    }
    assert_complete(vec![first, join(1, 2, address, LONG)], 2);
    served.join().unwrap().unwrap();
}

#[test]
fn silent_strangers_make_room() {
    let (address, _, served) = serve(2, LONG);
    let strangers: Vec<TcpStream> =
        (0..2 * PENDING_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_complete((0..2).map(|rank| join(rank, 2, address, LONG)).collect(), 2);
    served.join().unwrap().unwrap();
    drop(strangers);
}

#[test]
fn random_bytes_do_not_stop_the_rendezvous() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (address, _, served) = serve(1, LONG);
    for _ in 0..200 {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut bytes = vec![0; random.usize(1..600)];
        random.fill(&mut bytes);
        let prefix = random.usize(..=7).min(bytes.len());
        bytes[..prefix].copy_from_slice(&b"VBCT\x01\x01\x01"[..prefix]);
        let _ = stream.write_all(&bytes);
    }
    assert_complete(vec![join(0, 1, address, LONG)], 1);
    served.join().unwrap().unwrap();
}
