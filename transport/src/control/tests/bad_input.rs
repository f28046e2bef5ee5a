//! Wrong configurations, strangers at the control port, and neighbours that break the protocol.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::bootstrap::handshake::{ANSWER_BYTES, Claim, Dialler, Purpose as Connection, nonce};
use crate::bootstrap::identity;
use crate::bootstrap::{HandshakeError, Refusal};
use crate::control::frame::Frame;

type Started = JoinHandle<Result<Control, Error>>;

fn start(config: Config) -> Started {
    std::thread::spawn(move || {
        Control::start(&config, Arc::new(TestBell::default()), Arc::new(NoConnector))
    })
}

/// An address at which nobody listens, for a rank 0 that runs the rendezvous itself.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn refusals(started: Vec<Started>) -> Vec<Refusal> {
    let refusal = |started: Started| match started.join().unwrap() {
        Err(Error::Bootstrap(BootstrapError::Refused(refusal))) => refusal,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the job came together"),
    };
    started.into_iter().map(refusal).collect()
}

#[test]
fn without_a_launcher_rank_0_runs_the_rendezvous() {
    for size in [2, 5] {
        let address = free_address();
        let started: Vec<Started> =
            (0..size).rev().map(|rank| start(config(rank, size, &address))).collect();
        let controls: Vec<Control> =
            started.into_iter().map(|started| started.join().unwrap().unwrap()).collect();
        for result in each(size, |rank| controls[rank as usize].shutdown(LONG)) {
            result.unwrap();
        }
    }
}

#[test]
fn wrong_numbers_are_an_error_on_every_rank() {
    let address = free_address();
    let started = [(0, 3), (1, 3), (1, 3)].map(|(rank, size)| start(config(rank, size, &address)));
    for refusal in refusals(started.into()) {
        assert!(matches!(refusal, Refusal::DuplicateRank { rank: 1, .. }), "{refusal}");
    }
    let address = free_address();
    let started = [(0, 2), (5, 2)].map(|(rank, size)| start(config(rank, size, &address)));
    for refusal in refusals(started.into()) {
        assert!(matches!(refusal, Refusal::RankOutside { rank: 5, .. }), "{refusal}");
    }
    let address = free_address();
    let started = [(0, 2), (1, 1)].map(|(rank, size)| start(config(rank, size, &address)));
    for refusal in refusals(started.into()) {
        assert!(matches!(refusal, Refusal::SizeDiffers { rank: 1, given: 1, .. }), "{refusal}");
    }
    let address = free_address();
    let started = [0, 2].map(|rank| {
        let deadline = Duration::from_millis(1500);
        start(Config { connect_deadline: deadline, ..config(rank, 4, &address) })
    });
    for refusal in refusals(started.into()) {
        assert!(refusal.to_string().contains("rank(s) 1, 3 of 4"), "{refusal}");
    }
}

#[test]
fn what_is_missing_in_a_configuration_is_named() {
    let message = |config: Config| start(config).join().unwrap().err().unwrap().to_string();
    let missing = message(Config { rank: 1, size: 2, ..Config::default() });
    assert!(missing.contains("VERBCAST_RENDEZVOUS"), "{missing}");
    let missing = message(Config { secret: None, ..config(1, 2, "127.0.0.1:1") });
    assert!(missing.contains("VERBCAST_JOB_SECRET"), "{missing}");
    let outside = message(Config { rank: 3, size: 1, ..Config::default() });
    assert!(outside.contains("rank 3 is outside the job of 1"), "{outside}");
    let none = message(Config { size: 0, ..config(0, 2, "127.0.0.1:1") });
    assert!(none.contains("not 0"), "{none}");
}

#[test]
fn another_secret_is_an_error_at_once() {
    let address = free_address();
    let zero =
        start(Config { connect_deadline: Duration::from_millis(1500), ..config(0, 2, &address) });
    let wrong = Secret::from_text("another secret, also long").unwrap();
    let error = start(Config { secret: Some(wrong), ..config(1, 2, &address) });
    let error = error.join().unwrap().err().unwrap();
    let expected = matches!(
        error,
        Error::Bootstrap(BootstrapError::Stranger { source: HandshakeError::Secret, .. })
    );
    assert!(expected, "{error}");
    assert!(matches!(refusals(vec![zero])[0], Refusal::Missing { .. }));
}

#[test]
fn strangers_at_the_control_port_do_not_stop_the_job() {
    let ranks = job(3);
    let address = &ranks[0].control.peers()[1].addresses[0];
    let connect = || TcpStream::connect(address).unwrap();
    let silent = connect();
    for bytes in [&[0x5a; 32][..], &u32::MAX.to_le_bytes(), b"VBCT\x01\x01\x01\x00garbage"] {
        let mut stream = connect();
        stream.write_all(bytes).unwrap();
        if !bytes.starts_with(b"VBCT") {
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.is_empty());
        }
    }
    // Wrong secret: an answer comes, and proves nothing to somebody without the right one; a
    // finish made of it ends the connection.
    let claim = Claim { purpose: Connection::Overlay, rank: 0, size: 3, target: 1 };
    let key = Secret::from_text("another secret, also long").unwrap().derive("control", &[0; 16]);
    let (dialler, hello) = Dialler::new(key, claim, nonce().unwrap());
    let mut stream = connect();
    stream.write_all(&hello).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(dialler.finish(&answer).unwrap_err(), HandshakeError::Secret);
    stream.write_all(&answer[..32]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "dropped");

    each(3, |rank| ranks[rank as usize].control.agree(Vote::default(), None).unwrap());
    shutdown_all(&ranks);
    drop(silent);
}

/// A rank 1 of 2 that this test plays itself, connected with a real rank 0.
struct Played {
    zero: TestRank,
    stream: TcpStream,
}

fn play() -> Played {
    let address = free_address();
    let bell = Arc::new(TestBell::default());
    let rung = bell.clone();
    let zero_config = config(0, 2, &address);
    let zero = std::thread::spawn(move || {
        Control::start(&zero_config, rung, Arc::new(NoConnector)).unwrap()
    });
    let secret = secret();
    let started = Instant::now();
    let registered = Registration {
        rank: 1,
        size: 2,
        address: &address,
        secret: &secret,
        started,
        deadline: started + LONG,
    }
    .register()
    .unwrap();
    // Rank 0 dials.
    registered.listener.set_nonblocking(false).unwrap();
    let mut stream = registered.listener.accept().unwrap().0;
    let key = secret.derive("control", &registered.job);
    let claim = Claim { purpose: Connection::Overlay, rank: 1, size: 2, target: 0 };
    let mut hello = [0; crate::bootstrap::handshake::HELLO_BYTES];
    stream.read_exact(&mut hello).unwrap();
    let (acceptor, answer) =
        crate::bootstrap::handshake::Acceptor::answer(key, claim, nonce().unwrap(), &hello)
            .ok()
            .unwrap();
    stream.write_all(&answer).unwrap();
    let mut finish = [0; crate::bootstrap::handshake::FINISH_BYTES];
    stream.read_exact(&mut finish).unwrap();
    acceptor.accept(&finish).unwrap();
    let round = crate::control::agreement::Round {
        sequence: 0,
        round: 0,
        purpose: Purpose::Start,
        agreed: Vote::default().alone(1),
    };
    stream.write_all(&encode(&Frame::Agree(round))).unwrap();
    Played { zero: TestRank { control: zero.join().unwrap(), bell }, stream }
}

fn encode(frame: &Frame) -> Vec<u8> {
    crate::bootstrap::frame::encode(frame, &[]).unwrap()
}

#[test]
fn a_neighbour_that_breaks_the_protocol_ends_the_job_with_its_name() {
    let round = crate::control::agreement::Round {
        sequence: 7,
        round: 0,
        purpose: Purpose::Agree,
        agreed: Vote::default().alone(1),
    };
    let step =
        crate::control::frame::LinkStep { epoch: 0, kind: crate::control::frame::StepKind::Want };
    let beyond = application(9, AbortScope::Job, "from nowhere");
    for (bytes, expected) in [
        (u32::MAX.to_le_bytes().to_vec(), "4294967295 bytes"),
        (vec![8, 0, 0, 0, 4, 0, 0, 0, b'n', b'o', b'p', b'e'], "malformed"),
        (encode(&Frame::Bye), "not all ranks leave"),
        (encode(&Frame::Abort(beyond)), "rank 9 of 2"),
        (encode(&Frame::Call { origin: 2, call: call(0, 0, 0) }), "rank 2 of 2"),
        (encode(&Frame::Link { from: 1, to: u32::MAX, step: step.clone() }), "of 2"),
        (encode(&Frame::Link { from: 1, to: 1, step }), "to itself"),
        (encode(&Frame::Agree(round)), "of agreement 7"),
    ] {
        let mut played = play();
        played.stream.write_all(&bytes).unwrap();
        let cause = aborted(&played.zero).to_string();
        assert!(cause.contains(expected), "{cause}, not {expected}");
    }
}

#[test]
fn random_frames_neither_panic_nor_hang() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..30 {
        let mut played = play();
        let mut head = vec![0; random.usize(1..200)];
        random.fill(&mut head);
        let total = head.len() as u32 + 4;
        let mut bytes = total.to_le_bytes().to_vec();
        bytes.extend(random.u32(..total).to_le_bytes());
        bytes.extend(head);
        // Rank 0 may have given up on us in the middle.
        let _ = played.stream.write_all(&bytes);
        aborted(&played.zero);
        assert!(played.zero.control.shutdown(LONG).is_err());
    }
}

#[test]
fn a_neighbour_that_dies_while_the_job_starts_is_named() {
    let address = free_address();
    let zero = start(config(0, 2, &address));
    let secret = secret();
    let started = Instant::now();
    let registered = Registration {
        rank: 1,
        size: 2,
        address: &address,
        secret: &secret,
        started,
        deadline: started + LONG,
    }
    .register()
    .unwrap();
    drop(registered);
    let error = zero.join().unwrap().err().unwrap();
    assert!(error.to_string().contains("rank 1 on"), "{error}");
}

#[test]
fn a_neighbour_that_never_connects_is_named_at_the_deadline() {
    let address = free_address();
    let deadline = Duration::from_millis(1000);
    let one = start(Config { connect_deadline: deadline, ..config(1, 2, &address) });
    // This test is rank 0, runs the rendezvous, and dials nobody.
    let server = RendezvousServer::bind(&*address, 2, &secret(), LONG).unwrap();
    let serving = std::thread::spawn(move || server.serve());
    let secret = secret();
    let started = Instant::now();
    let registered = Registration {
        rank: 0,
        size: 2,
        address: &address,
        secret: &secret,
        started,
        deadline: started + LONG,
    }
    .register()
    .unwrap();
    serving.join().unwrap().unwrap();
    let error = one.join().unwrap().err().unwrap();
    assert!(matches!(error, Error::Bootstrap(BootstrapError::Peer { peer: 0, .. })), "{error}");
    assert!(error.to_string().contains("it did not connect"), "{error}");
    assert_eq!(registered.peers[1].host, identity::describe(1, Vec::new()).host);
}
