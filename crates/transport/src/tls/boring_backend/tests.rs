use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::{pki_types::UnixTime, time_provider::TimeProvider};
use wire::{
    Side, TransportParameters,
    version::{V1, V2},
};

use super::*;
use crate::{
    crypto::CipherSuite,
    error::Code,
    ring::{KeyRing, MemoryRegister, Strike, StrikeId, StrikeRegister},
    tls::{
        CertificateFault, ClientTls, Direction, EarlyData, HandshakeFault, Level, MemoryTickets, Progress, ServerTls,
        Session, Ticket, TicketStore, TlsEvent, Waiting,
        rustls_backend::{ConfigError, Identity, KeyExchange, RustlsClient, RustlsServer},
        testing::converse,
    },
};

/// A wall clock that the test moves, from 2026-01-01.
#[derive(Debug)]
struct HandClock(AtomicU64);

impl TimeProvider for HandClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

/// An authority, a server's certificate under it, and the time.
struct World {
    root: Vec<u8>,
    chain: Vec<Vec<u8>>,
    key: Vec<u8>,
    clock: Arc<HandClock>,
}

impl World {
    fn new() -> Self {
        Self::signed_with(&rcgen::PKCS_ED25519)
    }

    fn signed_with(algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        Self::of("the authority", algorithm)
    }

    /// World whose authority has this name.
    fn of(authority: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut root = rcgen::CertificateParams::new(Vec::new()).unwrap();
        root.distinguished_name.push(rcgen::DnType::CommonName, authority);
        root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root_der = root.self_signed(&key).unwrap().der().to_vec();
        let issuer = rcgen::Issuer::new(root, key);
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let names = vec!["host.test".to_owned(), "192.0.2.1".to_owned()];
        let leaf = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        Self {
            root: root_der,
            chain: vec![leaf.der().to_vec()],
            key: key.serialize_der(),
            clock: Arc::new(HandClock(AtomicU64::new(1_767_225_600))),
        }
    }

    fn identity(&self) -> Identity {
        Identity::from_der(self.chain.clone(), self.key.clone()).unwrap()
    }

    fn client(&self) -> ClientBuilder {
        BoringClient::builder().roots([self.root.clone()]).clock(self.clock.clone()).alpn("one")
    }

    fn server(&self) -> ServerBuilder {
        BoringServer::builder().identity(self.identity()).clock(self.clock.clone()).alpn("other").alpn("one")
    }

    /// Both backends as a client.
    fn clients(&self) -> [Arc<dyn ClientTls>; 2] {
        let rustls = RustlsClient::builder().roots([self.root.clone()]).clock(self.clock.clone()).alpn("one");
        [Arc::new(self.client().build().unwrap()), Arc::new(rustls.build().unwrap())]
    }

    /// Both backends as a server.
    fn servers(&self) -> [Arc<dyn ServerTls>; 2] {
        let rustls = RustlsServer::builder().identity(self.identity()).clock(self.clock.clone()).alpn("one");
        [Arc::new(self.server().build().unwrap()), Arc::new(rustls.build().unwrap())]
    }

    fn pass(&self, secs: u64) {
        self.clock.0.fetch_add(secs, Ordering::Relaxed);
    }
}

fn start(client: &dyn ClientTls, server: &dyn ServerTls) -> (Box<dyn Session>, Box<dyn Session>) {
    (
        client.start(V1, "host.test", b"of the client".to_vec()).unwrap(),
        server.start(V1, b"of the server".to_vec()).unwrap(),
    )
}

fn place(said: &[TlsEvent], what: impl Fn(&TlsEvent) -> bool) -> Option<usize> {
    said.iter().position(what)
}

fn parameters(said: &[TlsEvent]) -> Option<&[u8]> {
    said.iter().find_map(|event| match event {
        TlsEvent::PeerParameters(parameters) => Some(&parameters[..]),
        _ => None,
    })
}

fn verdict(said: &[TlsEvent]) -> Option<bool> {
    said.iter().find_map(|event| match event {
        TlsEvent::EarlyData { accepted } => Some(*accepted),
        _ => None,
    })
}

/// The secrets that were told, by level and by who seals with them.
fn secrets(said: &[TlsEvent], side: Side) -> Vec<(Level, Side, CipherSuite, Vec<u8>)> {
    let mut all: Vec<_> = said
        .iter()
        .filter_map(|event| match event {
            TlsEvent::Secret { level, direction, suite, secret, .. } => {
                let sender = if *direction == Direction::Local { side } else { side.peer() };
                Some((*level, sender, *suite, secret.as_slice().to_vec()))
            }
            _ => None,
        })
        .collect();
    all.sort_by_key(|(level, sender, ..)| (*level, *sender == Side::Server));
    all
}

#[test]
fn each_backend_completes_with_each_in_every_version() {
    let world = World::new();
    for version in [V1, V2] {
        for client in world.clients() {
            for server in world.servers() {
                let mut client = client.start(version, "host.test", b"of the client".to_vec()).unwrap();
                let mut server = server.start(version, b"of the server".to_vec()).unwrap();
                let (client_said, server_said) = converse(&mut *client, &mut *server).unwrap();
                assert!(client.is_complete() && server.is_complete());
                let (mine, theirs) = (secrets(&client_said, Side::Client), secrets(&server_said, Side::Server));
                assert_eq!((mine.len(), &mine), (4, &theirs));
                assert!(mine.iter().all(|(_, _, suite, secret)| secret.len() == suite.secret_len()));
                assert_eq!(parameters(&client_said), Some(&b"of the server"[..]));
                assert_eq!(parameters(&server_said), Some(&b"of the client"[..]));
                for said in [&client_said, &server_said] {
                    let complete = place(said, |e| matches!(e, TlsEvent::Complete)).unwrap();
                    let told = place(said, |e| matches!(e, TlsEvent::PeerParameters(_))).unwrap();
                    let one_rtt = place(said, |e| matches!(e, TlsEvent::Secret { level: Level::OneRtt, .. })).unwrap();
                    assert!(told < one_rtt && one_rtt < complete, "{said:?}");
                }
                assert_eq!(client.cipher_suite(), server.cipher_suite());
                assert_eq!((client.alpn(), server.alpn()), (Some(&b"one"[..]), Some(&b"one"[..])));
                assert_eq!((client.server_name(), server.server_name()), (Some("host.test"), Some("host.test")));
                assert_eq!(client.peer_certificates(), [&world.chain[0][..]]);
                assert!(server.peer_certificates().is_empty());
                assert_eq!((client.read_level(), server.read_level()), (Level::OneRtt, Level::OneRtt));
                let (mut mine, mut theirs) = ([0; 40], [0; 40]);
                client.export_keying_material(&mut mine, b"label", Some(b"context")).unwrap();
                server.export_keying_material(&mut theirs, b"label", Some(b"context")).unwrap();
                assert_eq!(mine, theirs);
                assert_ne!(mine, [0; 40]);
            }
        }
    }
}

// RFC 9001 §5.7 MUST NOT-1, MUST NOT-2
#[test]
fn the_server_cannot_open_one_rtt_packets_before_the_handshake_is_complete() {
    let world = World::new();
    let (mut client, mut server) = start(&world.client().build().unwrap(), &world.server().build().unwrap());
    let Some(TlsEvent::Write { data, .. }) = client.next_event() else { panic!("a ClientHello is due") };
    assert_eq!(server.read(Level::Initial, &data), Ok(Progress::Ready));
    let said: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
    let one_rtt: Vec<_> = secrets(&said, Side::Server).into_iter().filter(|s| s.0 == Level::OneRtt).collect();
    assert_eq!(one_rtt.len(), 1);
    assert_eq!(one_rtt[0].1, Side::Server);
    assert!(!server.is_complete());
    let mut nothing = [0; 8];
    assert!(server.export_keying_material(&mut nothing, b"label", None).is_err());
}

#[test]
fn messages_may_be_cut_anywhere() {
    let world = World::new();
    let (mut client, mut server) =
        start(&world.client().build().unwrap(), &world.server().early_data(true).build().unwrap());
    for _ in 0..4 {
        while let Some(event) = client.next_event() {
            if let TlsEvent::Write { level, data } = event {
                for byte in data {
                    assert_eq!(server.read(level, &[byte]), Ok(Progress::Ready));
                }
            }
        }
        std::mem::swap(&mut client, &mut server);
    }
    assert!(client.is_complete() && server.is_complete());
}

// RFC 9001 §8.1 MUST-2, MUST-3
#[test]
fn without_a_common_protocol_the_alert_is_120() {
    let world = World::new();
    let other = BoringClient::builder().roots([world.root.clone()]).clock(world.clock.clone()).alpn("another");
    let other = other.build().unwrap();
    for server in world.servers() {
        let (mut client, mut server) = start(&other, &*server);
        let (side, error) = converse(&mut *client, &mut *server).unwrap_err();
        assert_eq!((side, error.code), (Side::Server, Code::crypto(120)), "{error}");
        assert!(server.read(Level::Initial, &[1]).is_err(), "an error is final");
    }
}

// RFC 9001 §4.4 MUST-1
#[test]
fn certificates_are_judged() {
    let (world, namesake) = (World::new(), World::new());
    let stranger = World::of("another authority", &rcgen::PKCS_ED25519);
    let year_5000 = Arc::new(HandClock(AtomicU64::new(95_617_584_000)));
    let cases = [
        (stranger.client(), "host.test", Some(CertificateFault::UnknownIssuer)),
        // BoringSSL looks an issuer up by its name, and finds that it has not signed.
        (namesake.client(), "host.test", Some(CertificateFault::BadSignature)),
        (world.client(), "another.test", Some(CertificateFault::WrongName)),
        (world.client(), "192.0.2.2", Some(CertificateFault::WrongName)),
        (world.client().clock(year_5000), "host.test", Some(CertificateFault::Expired)),
        (world.client(), "host.test", None),
    ];
    for (builder, name, fault) in cases {
        let mut client = builder.build().unwrap().start(V1, name, b"c".to_vec()).unwrap();
        let mut server = world.server().build().unwrap().start(V1, b"s".to_vec()).unwrap();
        match converse(&mut *client, &mut *server) {
            Ok(_) => assert_eq!(fault, None, "{name}"),
            Err((side, error)) => {
                assert_eq!(side, Side::Client, "{name}: {error}");
                assert_eq!(Some(error.fault), fault.map(HandshakeFault::Certificate), "{name}: {error}");
                // One of the alerts that speak of certificates.
                assert!((42..=51).any(|alert| error.code == Code::crypto(alert)), "{error}");
            }
        }
    }
}

// RFC 9001 §4.1.3 MUST-2; RFC 9001 §4.4 MUST-2; RFC 9001 §6 MUST-1
#[test]
fn what_has_no_place_is_refused() {
    let world = World::new();
    let (mut client, mut server) = start(&world.client().build().unwrap(), &world.server().build().unwrap());
    let Some(TlsEvent::Write { data, .. }) = client.next_event() else { panic!("a ClientHello is due") };
    let error = server.read(Level::Initial, &[&data[..], &[1, 0]].concat()).unwrap_err();
    assert_eq!(error.code, Code::PROTOCOL_VIOLATION, "{error}");

    let (_, mut server) = start(&world.client().build().unwrap(), &world.server().build().unwrap());
    assert_eq!(server.read(Level::Handshake, b"anything").unwrap_err().code, Code::PROTOCOL_VIOLATION);

    let key_update = &[24, 0, 0, 1, 0][..];
    let certificate_request = &[13, 0, 0, 11, 0, 0, 8, 0, 13, 0, 4, 0, 2, 8, 7][..];
    for (side, message, code) in [
        (Side::Client, key_update, Code::crypto(10)),
        (Side::Server, key_update, Code::crypto(10)),
        (Side::Client, certificate_request, Code::PROTOCOL_VIOLATION),
    ] {
        let (mut client, mut server) = start(&world.client().build().unwrap(), &world.server().build().unwrap());
        converse(&mut *client, &mut *server).unwrap();
        let session = if side == Side::Client { &mut client } else { &mut server };
        assert_eq!(session.read(Level::OneRtt, message).unwrap_err().code, code, "{side:?} {message:?}");
    }
    for garbage in [&[1, 0, 0, 2, 9, 9][..], &[99, 0, 0, 0], &[20, 0, 0, 1, 0]] {
        let (_, mut server) = start(&world.client().build().unwrap(), &world.server().build().unwrap());
        let error = server.read(Level::Initial, garbage).unwrap_err();
        assert!((0x100..0x200).contains(&error.code.0) && error.code != Code::crypto(80), "{error}");
    }
}

#[test]
fn incomplete_configurations_are_refused() {
    let world = World::new();
    assert_eq!(BoringClient::builder().build().err(), Some(ConfigError::NoAlpn));
    assert_eq!(world.client().alpn("").build().err(), Some(ConfigError::BadAlpn));
    assert_eq!(BoringServer::builder().alpn("one").build().err(), Some(ConfigError::NoIdentity));
    assert!(matches!(world.client().roots([]).build(), Err(ConfigError::Empty(_))));
    assert!(matches!(world.client().key_exchanges([]).build(), Err(ConfigError::Empty(_))));
    assert!(matches!(
        world.server().early_data_state(vec![0; 256]).build(),
        Err(ConfigError::EarlyDataStateTooLong { len: 256, max: 255 })
    ));
}

/// Parameters with this limit for all data.
fn with_limit(limit: u64) -> Vec<u8> {
    let mut parameters = TransportParameters { initial_max_data: limit, ..TransportParameters::default() };
    parameters.initial_max_streams_bidi = 1;
    let mut out = Vec::new();
    parameters.encode(&mut out, Side::Server, None);
    out
}

/// One client and servers that share ring and register.
struct Early {
    world: World,
    ring: KeyRing,
    register: Arc<MemoryRegister>,
    store: Arc<MemoryTickets>,
    client: BoringClient,
}

impl Early {
    fn new() -> Self {
        let (world, store) = (World::new(), Arc::new(MemoryTickets::default()));
        let client = world.client().early_data(true).ticket_store(store.clone()).build().unwrap();
        Self { world, ring: KeyRing::single([7; 32]), register: Arc::default(), store, client }
    }

    fn server_with(&self, change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> BoringServer {
        let server = self.world.server().early_data(true).ring(self.ring.clone());
        change(server.strike_register(self.register.clone())).build().unwrap()
    }

    fn server(&self) -> BoringServer {
        self.server_with(|builder| builder)
    }

    /// A connection with a full handshake, or without.
    fn connect(&self, server: &dyn ServerTls, limit: u64) -> (Option<bool>, Vec<TlsEvent>, Vec<TlsEvent>) {
        let mut client = self.client.start(V1, "host.test", b"of the client".to_vec()).unwrap();
        let offered = client.early_data() == EarlyData::Offered;
        let mut server = server.start(V1, with_limit(limit)).unwrap();
        let (client_said, server_said) = converse(&mut *client, &mut *server).unwrap();
        assert!(client.is_complete() && server.is_complete());
        let accepted = verdict(&client_said);
        assert_eq!(accepted.is_some(), offered);
        let expected = match accepted {
            None => EarlyData::None,
            Some(true) => EarlyData::Accepted,
            Some(false) => EarlyData::Rejected,
        };
        assert_eq!(client.early_data(), expected);
        (accepted, client_said, server_said)
    }

    /// Writes all tickets down and reads them into a store of another client, as another process would.
    fn move_tickets(&self) -> Self {
        let store = Arc::new(MemoryTickets::default());
        let tickets: Vec<Vec<u8>> = std::iter::from_fn(|| self.store.take("host.test"))
            .map(|ticket| ticket.as_bytes().expect("tickets of BoringSSL can be written down").to_vec())
            .collect();
        assert_eq!(tickets.len(), 2);
        tickets.into_iter().rev().for_each(|bytes| store.insert("host.test", Ticket::from_bytes(bytes)));
        let world = World {
            root: self.world.root.clone(),
            chain: self.world.chain.clone(),
            key: self.world.key.clone(),
            clock: self.world.clock.clone(),
        };
        let client = world.client().early_data(true).ticket_store(store.clone()).build().unwrap();
        Self { world, ring: self.ring.clone(), register: self.register.clone(), store, client }
    }
}

#[test]
fn early_data_is_taken_with_a_ticket_that_was_written_down() {
    let early = Early::new();
    let first = early.server();
    assert_eq!(early.connect(&first, 1000).0, None);
    assert_eq!(first.ticket_stats().issued, 2);
    let elsewhere = early.move_tickets();
    let second = elsewhere.server();
    let (accepted, client_said, server_said) = elsewhere.connect(&second, 2000);
    assert_eq!(accepted, Some(true));
    assert_eq!(verdict(&server_said), Some(true));
    assert!(matches!(&client_said[0], TlsEvent::RememberedParameters(p) if *p == with_limit(1000)));
    assert_eq!(parameters(&client_said), Some(&with_limit(2000)[..]));
    let verdict = place(&client_said, |e| matches!(e, TlsEvent::EarlyData { .. })).unwrap();
    assert!(verdict < place(&client_said, |e| matches!(e, TlsEvent::PeerParameters(_))).unwrap());
    let (mine, theirs) = (secrets(&client_said, Side::Client), secrets(&server_said, Side::Server));
    assert_eq!((mine.len(), &mine), (5, &theirs));
    let stats = second.ticket_stats();
    assert_eq!((stats.opened, stats.early_accepted, stats.issued), (1, 1, 2));
}

#[test]
fn a_copy_of_a_first_flight_is_refused_by_every_server() {
    let early = Early::new();
    early.connect(&early.server(), 1000);
    let mut client = early.client.start(V1, "host.test", b"of the client".to_vec()).unwrap();
    let said: Vec<_> = std::iter::from_fn(|| client.next_event()).collect();
    let hello: Vec<u8> = said
        .iter()
        .filter_map(|event| if let TlsEvent::Write { data, .. } = event { Some(data.clone()) } else { None })
        .flatten()
        .collect();
    let mut verdicts = Vec::new();
    for wait in [0, 0, 5, 30] {
        early.world.pass(wait);
        let server = early.server();
        let mut session = server.start(V1, with_limit(1000)).unwrap();
        assert_eq!(session.read(Level::Initial, &hello), Ok(Progress::Ready));
        verdicts.push(session.early_data());
    }
    assert_eq!(verdicts, [EarlyData::Accepted, EarlyData::Rejected, EarlyData::Rejected, EarlyData::Rejected]);
}

#[test]
fn early_data_is_refused_for_reduced_limits_other_state_old_keys_and_by_rustls() {
    let early = Early::new();
    let rustls = RustlsServer::builder().identity(early.world.identity()).clock(early.world.clock.clone()).alpn("one");
    let rustls = rustls.early_data(true).ring(early.ring.clone()).build().unwrap();
    let refusing: [(&str, Arc<dyn ServerTls>, u64); 5] = [
        ("limits", Arc::new(early.server()), 999),
        ("state", Arc::new(early.server_with(|builder| builder.early_data_state(*b"other"))), 1000),
        ("ring", Arc::new(early.server_with(|builder| builder.ring(KeyRing::single([8; 32])))), 1000),
        ("never", Arc::new(early.server_with(|builder| builder.early_data(false))), 1000),
        ("rustls", Arc::new(rustls), 1000),
    ];
    for (why, server, limit) in refusing {
        // Whatever is left of the other servers' tickets is no good here.
        while early.store.take("host.test").is_some() {}
        assert_eq!(early.connect(&early.server(), 1000).0, None, "{why}");
        let (accepted, client_said, _) = early.connect(&*server, limit);
        assert_eq!(accepted, Some(false), "{why}");
        assert_eq!(parameters(&client_said), Some(&with_limit(limit)[..]), "{why}");
    }
    // The server says for how long a ticket is good; after that the client does not show it.
    while early.store.take("host.test").is_some() {}
    early.connect(&early.server(), 1000);
    early.world.pass(25 * 60 * 60);
    assert_eq!(early.connect(&early.server(), 1000).0, None, "older than a day");
}

#[test]
fn a_retried_hello_has_no_early_data_and_loses_nothing() {
    let early = Early::new();
    early.connect(&early.server(), 1000);
    // Neither of the client's key shares: a HelloRetryRequest.
    let server = early.server_with(|builder| builder.key_exchanges([KeyExchange::Secp384r1]));
    let (accepted, client_said, server_said) = early.connect(&server, 1000);
    assert_eq!(accepted, Some(false));
    let (mine, theirs) = (secrets(&client_said, Side::Client), secrets(&server_said, Side::Server));
    assert_eq!(mine[1..], theirs, "all but that of early data");
}

#[test]
fn a_ticket_is_for_the_version_that_it_came_with() {
    let early = Early::new();
    early.connect(&early.server(), 1000);
    let client = early.client.start(V2, "host.test", Vec::from(*b"of the client")).unwrap();
    assert_eq!(client.early_data(), EarlyData::None);
}

#[test]
fn tickets_of_others_are_left_alone() {
    let early = Early::new();
    early.store.insert("host.test", Ticket::new(7_u32));
    early.store.insert("host.test", Ticket::from_bytes(b"bssl\x01\0\0\0\x01\0\0nonsense".to_vec()));
    assert_eq!(early.connect(&early.server(), 1000).0, None);
    while early.store.take("host.test").is_some() {}
    early.store.insert("host.test", Ticket::new(7_u32));
    assert_eq!(early.connect(&early.server(), 1000).0, None);
}

/// A register that is asked over a network: it answers the second time.
#[derive(Default)]
struct Remote(Mutex<Vec<StrikeId>>);

impl StrikeRegister for Remote {
    fn strike(&self, id: &StrikeId, _: u64, _: u64, _: &Waker) -> Strike {
        let mut asked = self.0.lock().unwrap();
        if asked.contains(id) {
            return Strike::First;
        }
        asked.push(*id);
        Strike::Pending
    }
}

#[test]
fn the_register_may_answer_later() {
    let early = Early::new();
    let server = early.server_with(|builder| builder.strike_register(Arc::new(Remote::default())));
    early.connect(&server, 1000);
    let mut client = early.client.start(V1, "host.test", b"of the client".to_vec()).unwrap();
    let mut session = server.start(V1, with_limit(1000)).unwrap();
    let said: Vec<_> = std::iter::from_fn(|| client.next_event()).collect();
    let hello = said.iter().find_map(|e| if let TlsEvent::Write { data, .. } = e { Some(data) } else { None }).unwrap();
    assert_eq!(session.read(Level::Initial, hello), Ok(Progress::Pending(Waiting::Ticket)));
    assert!(session.next_event().is_none());
    assert!(session.read(Level::Initial, b"more").is_err());
    assert_eq!(session.resume(), Ok(Progress::Ready));
    assert_eq!(session.early_data(), EarlyData::Accepted);
    converse(&mut *client, &mut *session).unwrap();
    assert!(client.is_complete() && session.is_complete());
}

/// A key that is elsewhere: what it is asked to sign waits until the test lets it.
struct Elsewhere {
    key: EcdsaKeyPair,
    answers: Arc<Mutex<Answers>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    NotYet,
    Signed,
    Refused,
}

struct Awaited {
    signature: Vec<u8>,
    answers: Arc<Mutex<Answers>>,
}

impl Signer for Elsewhere {
    fn schemes(&self) -> Vec<u16> {
        vec![0x0403]
    }

    fn sign(&self, scheme: u16, message: &[u8]) -> Box<dyn Signature> {
        assert_eq!(scheme, 0x0403);
        let signature = self.key.sign(&aws_lc_rs::rand::SystemRandom::new(), message).unwrap();
        Box::new(Awaited { signature: signature.as_ref().to_vec(), answers: self.answers.clone() })
    }
}

impl Signature for Awaited {
    fn poll(&mut self, _: &Waker) -> Option<Result<Vec<u8>, String>> {
        match *self.answers.lock().unwrap() {
            Answers::NotYet => None,
            Answers::Signed => Some(Ok(std::mem::take(&mut self.signature))),
            Answers::Refused => Some(Err("the key is locked away".to_owned())),
        }
    }
}

#[test]
fn a_signature_may_come_later_or_never() {
    let world = World::signed_with(&rcgen::PKCS_ECDSA_P256_SHA256);
    let answers = Arc::new(Mutex::new(Answers::NotYet));
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &world.key).unwrap();
    let signer = Arc::new(Elsewhere { key, answers: answers.clone() });
    let server = BoringServer::builder().signer(world.chain.clone(), signer).clock(world.clock.clone()).alpn("one");
    let server = server.build().unwrap();
    for (client, last) in world
        .clients()
        .into_iter()
        .zip([Answers::Signed, Answers::Signed])
        .chain([(world.clients()[0].clone(), Answers::Refused)])
    {
        *answers.lock().unwrap() = Answers::NotYet;
        let (mut client, mut server) = start(&*client, &server);
        let Some(TlsEvent::Write { data, .. }) = client.next_event() else { panic!("a ClientHello is due") };
        assert_eq!(server.read(Level::Initial, &data), Ok(Progress::Pending(Waiting::Signature)));
        assert_eq!(server.resume(), Ok(Progress::Pending(Waiting::Signature)));
        assert!(server.read(Level::Initial, b"more").is_err(), "it waits");
        *answers.lock().unwrap() = last;
        match server.resume() {
            Ok(progress) => {
                assert!(progress == Progress::Ready && last == Answers::Signed);
                converse(&mut *client, &mut *server).unwrap();
                assert!(client.is_complete() && server.is_complete());
            }
            Err(error) => assert!(last == Answers::Refused && error.code == Code::crypto(80), "{error}"),
        }
    }
}
