use std::sync::{Arc, Mutex};

use rustls::KeyLog;
use wire::version::{V1, V2};

use super::*;
use crate::PathId;
use crate::crypto::{HeaderKey, Labels, PacketKey, SAMPLE_LEN};
use crate::error::Code;
use crate::tls::client_hello::ClientHello;
use crate::tls::testing::{Delay, Delayed, converse};
use crate::tls::{CertificateFault, ClientTls, HandshakeFault, ServerTls, Waiting};

/// 2026-01-01.
const CLOCK: FixedClock = FixedClock { unix_secs: 1_767_225_600 };

/// A certificate authority and what it signed.
struct Authority {
    root: Vec<u8>,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        Self::named("the authority")
    }

    fn named(name: &str) -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().to_vec();
        Self { root, issuer: rcgen::Issuer::new(params, key) }
    }

    fn identity(&self, name: &str) -> Identity {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
    }
}

fn client(authority: &Authority) -> ClientBuilder {
    RustlsClient::builder().roots([authority.root.clone()]).clock(Arc::new(CLOCK)).alpn("one")
}

fn server(authority: &Authority) -> ServerBuilder {
    RustlsServer::builder().identity(authority.identity("host.test")).clock(Arc::new(CLOCK)).alpn("one")
}

fn start(client: &dyn ClientTls, server: &dyn ServerTls) -> (Box<dyn Session>, Box<dyn Session>) {
    (
        client.start(V1, "host.test", b"of the client".to_vec()).unwrap(),
        server.start(V1, b"of the server".to_vec()).unwrap(),
    )
}

fn secrets(said: &[TlsEvent]) -> Vec<(Level, Direction, CipherSuite, Vec<u8>)> {
    said.iter()
        .filter_map(|event| match event {
            TlsEvent::Secret { level, direction, suite, secret, .. } => {
                Some((*level, *direction, *suite, secret.as_slice().to_vec()))
            }
            _ => None,
        })
        .collect()
}

fn parameters(said: &[TlsEvent]) -> &[u8] {
    said.iter()
        .find_map(|event| match event {
            TlsEvent::PeerParameters(parameters) => Some(&parameters[..]),
            _ => None,
        })
        .expect("the peer's parameters were not told")
}

/// Checks that what one side seals with, the other opens with, at every level.
fn assert_secrets_match(client_said: &[TlsEvent], server_said: &[TlsEvent], count: usize) {
    let mut mine = secrets(client_said);
    let mut theirs: Vec<_> = secrets(server_said)
        .into_iter()
        .map(|(level, direction, suite, secret)| {
            let direction = if direction == Direction::Local { Direction::Remote } else { Direction::Local };
            (level, direction, suite, secret)
        })
        .collect();
    let order = |entry: &(Level, Direction, CipherSuite, Vec<u8>)| (entry.0, entry.1 == Direction::Local);
    mine.sort_by_key(order);
    theirs.sort_by_key(order);
    assert_eq!(mine.len(), count);
    assert_eq!(mine, theirs);
    for (_, _, suite, secret) in mine {
        assert_eq!(secret.len(), suite.secret_len());
    }
}

/// Checks that keys which come with secrets are what the transport would derive.
fn assert_keys_are_of_their_secrets(said: &[TlsEvent], version: u32) {
    let labels = Labels::of(version).unwrap();
    for event in said {
        let TlsEvent::Secret { suite, secret, keys, .. } = event else { continue };
        let keys = keys.as_ref().expect("rustls derives them");
        assert!(keys.is_of(labels));
        let packets = [PacketKey::new(*suite, secret, labels), PacketKey::from_material(*suite, keys)];
        let [ours, theirs] = packets.map(|key| {
            let mut packet = [7; 40];
            key.seal(3, PathId(0), b"header", &mut packet);
            packet
        });
        assert_eq!(ours, theirs);
        let headers = [HeaderKey::new(*suite, secret, labels), HeaderKey::from_material(*suite, keys)];
        let [ours, theirs] = headers.map(|key| key.mask(&[5; SAMPLE_LEN]));
        assert_eq!(ours, theirs);
    }
}

// RFC 9001 §5.3 MUST NOT-1; RFC 9001 §8.1 MUST-1
#[test]
fn a_handshake_completes_with_every_suite_and_version() {
    let authority = Authority::new();
    for suite in [CipherSuite::Aes128Gcm, CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305] {
        for version in [V1, V2] {
            let config = client(&authority).cipher_suites([suite]).build().unwrap();
            let mut client = config.start(version, "host.test", b"of the client".to_vec()).unwrap();
            let mut server = server(&authority).build().unwrap().start(version, b"of the server".to_vec()).unwrap();
            let (client_said, server_said) = converse(&mut *client, &mut *server).unwrap();
            assert!(client.is_complete() && server.is_complete());
            assert_secrets_match(&client_said, &server_said, 4);
            assert_keys_are_of_their_secrets(&client_said, version);
            assert_keys_are_of_their_secrets(&server_said, version);
            assert_eq!(parameters(&client_said), b"of the server");
            assert_eq!(parameters(&server_said), b"of the client");
            assert_eq!(client.cipher_suite(), Some(suite));
            assert_eq!((client.alpn(), server.alpn()), (Some(&b"one"[..]), Some(&b"one"[..])));
            assert_eq!((client.server_name(), server.server_name()), (Some("host.test"), Some("host.test")));
            assert_eq!(client.peer_certificates().len(), 1);
            assert!(server.peer_certificates().is_empty());
            assert_eq!(client.read_level(), Level::OneRtt);

            let (mut mine, mut theirs) = ([0; 40], [0; 40]);
            client.export_keying_material(&mut mine, b"label", Some(b"context")).unwrap();
            server.export_keying_material(&mut theirs, b"label", Some(b"context")).unwrap();
            assert_eq!(mine, theirs);
            assert_ne!(mine, [0; 40]);

            // What remains of the server's session answers the same.
            assert!(client.settle().is_none(), "tickets may come");
            let mut settled = server.settle().expect("a server is done");
            assert_eq!((settled.alpn(), settled.server_name()), (Some(&b"one"[..]), Some("host.test")));
            assert_eq!((settled.cipher_suite(), settled.read_level()), (Some(suite), Level::OneRtt));
            assert!(settled.is_complete() && settled.next_event().is_none());
            theirs.fill(0);
            settled.export_keying_material(&mut theirs, b"label", Some(b"context")).unwrap();
            assert_eq!(mine, theirs);
            client.export_keying_material(&mut mine, b"other label", None).unwrap();
            settled.export_keying_material(&mut theirs, b"other label", None).unwrap();
            assert_eq!(mine, theirs);
            // RFC 9001 §6: a KeyUpdate message of TLS has no place in QUIC.
            let error = settled.read(Level::OneRtt, &[24, 0, 0, 1, 0]).unwrap_err();
            assert_eq!(error.code, crate::error::Code::crypto(alert::UNEXPECTED_MESSAGE));
        }
    }
}

// RFC 9001 §5.7 MUST NOT-1, MUST NOT-2
#[test]
fn the_server_cannot_open_one_rtt_packets_before_the_handshake_is_complete() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let Some(TlsEvent::Write { data, .. }) = client.next_event() else { panic!("a ClientHello is due") };
    let _ = server.read(Level::Initial, &data).unwrap();
    let said: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
    let told: Vec<_> = secrets(&said).into_iter().map(|(level, direction, ..)| (level, direction)).collect();
    let expected = [
        (Level::Handshake, Direction::Local),
        (Level::Handshake, Direction::Remote),
        (Level::OneRtt, Direction::Local),
    ];
    assert_eq!(told, expected);
    assert!(!server.is_complete());
    // The order of levels: ServerHello before the handshake secrets, the rest of the flight after them.
    let writes: Vec<_> = said
        .iter()
        .filter_map(|event| match event {
            TlsEvent::Write { level, data } => Some((*level, data[0])),
            _ => None,
        })
        .collect();
    assert_eq!(writes[0], (Level::Initial, 2));
    assert!(writes[1..].iter().all(|(level, _)| *level == Level::Handshake));
}

#[test]
fn the_client_hello_spans_two_datagrams_unless_told_otherwise() {
    let authority = Authority::new();
    let hello = |config: RustlsClient| match config.start(V1, "host.test", Vec::new()).unwrap().next_event() {
        Some(TlsEvent::Write { level: Level::Initial, data }) => data,
        other => panic!("a ClientHello is due, not {other:?}"),
    };
    let hybrid = hello(client(&authority).build().unwrap());
    assert!(hybrid.len() > 1200, "{} bytes", hybrid.len());
    let classic = hello(client(&authority).key_exchanges([KeyExchange::X25519]).build().unwrap());
    assert!(classic.len() < 600, "{} bytes", classic.len());

    for len in [0, 3, 700, hybrid.len() - 1] {
        assert_eq!(ClientHello::peek(&hybrid[..len]), Ok(None));
    }
    let peeked = ClientHello::peek(&hybrid).unwrap().unwrap();
    assert_eq!(peeked.server_name.as_deref(), Some("host.test"));
    assert_eq!(peeked.alpn, [b"one"]);
    assert_eq!(peeked.cipher_suites[0], 0x1301);
}

#[test]
fn messages_may_be_cut_anywhere() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    for _ in 0..4 {
        for (from, to) in [(&mut client, &mut server)] {
            while let Some(event) = from.next_event() {
                if let TlsEvent::Write { level, data } = event {
                    for byte in data {
                        assert_eq!(to.read(level, &[byte]), Ok(Progress::Ready));
                    }
                }
            }
        }
        std::mem::swap(&mut client, &mut server);
    }
    assert!(client.is_complete() && server.is_complete());
}

// RFC 9000 §7 MUST-2; RFC 9001 §8.1 MUST-2, MUST-5
#[test]
fn without_a_common_protocol_the_alert_is_120() {
    let authority = Authority::new();
    let other = RustlsClient::builder().roots([authority.root.clone()]).clock(Arc::new(CLOCK)).alpn("other");
    let (mut client, mut server) = start(&other.build().unwrap(), &server(&authority).build().unwrap());
    let (side, error) = converse(&mut *client, &mut *server).unwrap_err();
    assert_eq!(side, Side::Server);
    assert_eq!(error.code, Code::crypto(120));
    assert_eq!(error.fault, HandshakeFault::NoApplicationProtocol);
    assert!(server.read(Level::Initial, &[1]).is_err(), "an error is final");
}

// RFC 9001 §4.4 MUST-1; RFC 9000 §7 MUST-1; RFC 9001 §4.8 MUST-1
#[test]
fn certificates_are_judged() {
    let authority = Authority::new();
    let stranger = Authority::named("a stranger");
    let server = server(&authority).build().unwrap();
    // Another authority: unknown_ca. Another name: bad_certificate. Outside of validity: certificate_expired.
    let year_5000 = Arc::new(FixedClock { unix_secs: 95_617_584_000 });
    let year_1970 = Arc::new(FixedClock { unix_secs: 0 });
    let cases = [
        (client(&stranger), "host.test", 48, CertificateFault::UnknownIssuer),
        (client(&authority), "another.test", 42, CertificateFault::WrongName),
        (client(&authority).clock(year_5000), "host.test", 45, CertificateFault::Expired),
        (client(&authority).clock(year_1970), "host.test", 45, CertificateFault::NotYetValid),
    ];
    for (builder, name, alert, fault) in cases {
        let mut client = builder.build().unwrap().start(V1, name, Vec::new()).unwrap();
        let mut server = server.start(V1, Vec::new()).unwrap();
        let (side, error) = converse(&mut *client, &mut *server).unwrap_err();
        assert_eq!((side, error.code), (Side::Client, Code::crypto(alert)), "{error}");
        assert_eq!(error.fault, HandshakeFault::Certificate(fault), "{error}");
    }
}

#[test]
fn clients_show_certificates_when_asked() {
    let authority = Authority::new();
    let strict = server(&authority).client_roots([authority.root.clone()], true).build().unwrap();
    let lenient = server(&authority).client_roots([authority.root.clone()], false).build().unwrap();
    let anonymous = client(&authority).build().unwrap();
    let known = client(&authority).identity(authority.identity("client.test")).build().unwrap();
    let unknown = client(&authority).identity(Authority::named("a stranger").identity("client.test")).build().unwrap();
    // certificate_required; no alert; no alert; unknown_ca in both ways.
    let cases = [
        (&anonymous, &strict, Err(116)),
        (&anonymous, &lenient, Ok(0)),
        (&known, &strict, Ok(1)),
        (&unknown, &strict, Err(48)),
        (&unknown, &lenient, Err(48)),
    ];
    for (client, server, expected) in cases {
        let (mut client, mut server) = start(client, server);
        match (converse(&mut *client, &mut *server), expected) {
            (Ok(_), Ok(certificates)) => assert_eq!(server.peer_certificates().len(), certificates),
            (Err((side, error)), Err(alert)) => assert_eq!((side, error.code), (Side::Server, Code::crypto(alert))),
            (got, _) => panic!("{expected:?} was expected, not {got:?}"),
        }
    }
}

// RFC 9001 §8.3 MUST NOT-1; RFC 9001 §4.6.1 MUST NOT-1
#[test]
fn early_data_when_both_sides_want_it() {
    let authority = Authority::new();
    for accepted in [true, false] {
        let config = client(&authority).early_data(true).build().unwrap();
        let server_config = server(&authority).early_data(true).build().unwrap();
        let (mut client, mut server) = start(&config, &server_config);
        converse(&mut *client, &mut *server).unwrap();
        assert_eq!(client.early_data(), EarlyData::None);

        // A server that lost its tickets refuses.
        let again = if accepted { server_config } else { self::server(&authority).early_data(true).build().unwrap() };
        let mut client = config.start(V1, "host.test", b"of the client".to_vec()).unwrap();
        let mut server = again.start(V1, b"of the server today".to_vec()).unwrap();
        assert_eq!(client.early_data(), EarlyData::Offered);
        let (client_said, server_said) = converse(&mut *client, &mut *server).unwrap();
        assert!(matches!(&client_said[0], TlsEvent::RememberedParameters(p) if p == b"of the server"));
        assert_eq!(parameters(&client_said), b"of the server today");
        assert!(client_said.iter().any(|event| matches!(event, TlsEvent::EarlyData { accepted: a } if *a == accepted)));
        let verdict = if accepted { EarlyData::Accepted } else { EarlyData::Rejected };
        assert_eq!(client.early_data(), verdict);
        if accepted {
            assert_eq!(server.early_data(), verdict);
            assert_secrets_match(&client_said, &server_said, 5);
        } else {
            assert_eq!(secrets(&client_said).len(), 5);
            assert_eq!(secrets(&server_said).len(), 4);
        }
    }
}

#[test]
fn handshake_data_at_the_wrong_level_is_refused() {
    let authority = Authority::new();
    let (_, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let error = server.read(Level::Handshake, b"anything").unwrap_err();
    assert_eq!(error.code, Code::PROTOCOL_VIOLATION);
}

// RFC 9001 §4.8 MUST-1
#[test]
fn garbage_is_refused_with_an_alert() {
    let authority = Authority::new();
    let server = server(&authority).build().unwrap();
    for garbage in [&[1, 0, 0, 2, 9, 9][..], &[99, 0, 0, 0], &[20, 0, 0, 1, 0]] {
        let error = server.start(V1, Vec::new()).unwrap().read(Level::Initial, garbage).unwrap_err();
        assert!((0x100..0x200).contains(&error.code.0) && error.code != Code::crypto(80), "{error}");
    }
}

// RFC 9000 §7 MUST-2
#[test]
fn incomplete_configurations_are_refused() {
    let authority = Authority::new();
    assert_eq!(RustlsClient::builder().build().unwrap_err(), ConfigError::NoAlpn);
    assert_eq!(client(&authority).alpn("").build().unwrap_err(), ConfigError::BadAlpn);
    assert_eq!(RustlsServer::builder().alpn("one").build().unwrap_err(), ConfigError::NoIdentity);
    assert_eq!(client(&authority).roots([]).build().unwrap_err(), ConfigError::Empty(List::RootCertificates));
    assert_eq!(client(&authority).cipher_suites([]).build().unwrap_err(), ConfigError::Empty(List::CipherSuites));
    assert_eq!(client(&authority).key_exchanges([]).build().unwrap_err(), ConfigError::Empty(List::KeyExchanges));
    let too_long = server(&authority).early_data_state(vec![0; 256]).build().unwrap_err();
    assert_eq!(too_long, ConfigError::EarlyDataStateTooLong { len: 256, max: 255 });
    let config = client(&authority).build().unwrap();
    let error = config.start(V1, "not a name", Vec::new()).err().unwrap();
    assert_eq!(error.fault, HandshakeFault::InvalidServerName);
    assert!(config.start(0xff00_001d, "host.test", Vec::new()).is_err());
}

/// Writes secrets down the way SSLKEYLOGFILE does.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<(String, Vec<u8>)>>);

impl KeyLog for Notes {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().push((label.to_owned(), secret.to_vec()));
    }
}

#[test]
fn the_users_key_log_gets_the_same_secrets() {
    let authority = Authority::new();
    let notes = Arc::new(Notes::default());
    let config = client(&authority).key_log(notes.clone()).build().unwrap();
    let (mut client, mut server) = start(&config, &server(&authority).build().unwrap());
    let (client_said, _) = converse(&mut *client, &mut *server).unwrap();
    let notes = notes.0.lock().unwrap();
    let noted = |label: &str| &notes.iter().find(|(l, _)| l == label).unwrap().1;
    for (level, direction, _, secret) in secrets(&client_said) {
        let label = match (level, direction) {
            (Level::Handshake, Direction::Local) => "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
            (Level::Handshake, Direction::Remote) => "SERVER_HANDSHAKE_TRAFFIC_SECRET",
            (_, Direction::Local) => "CLIENT_TRAFFIC_SECRET_0",
            (_, Direction::Remote) => "SERVER_TRAFFIC_SECRET_0",
        };
        assert_eq!(&secret, noted(label));
    }
}

#[test]
fn rustls_sessions_can_be_made_to_wait() {
    let authority = Authority::new();
    let delays = [
        Delay { level: Level::Initial, waiting: Waiting::Signature, refusals: 1 },
        Delay { level: Level::Handshake, waiting: Waiting::Ticket, refusals: 0 },
    ];
    let server = Delayed::new(Arc::new(server(&authority).build().unwrap()), delays);
    let client = Delayed::new(Arc::new(client(&authority).build().unwrap()), delays);
    let (mut client, mut server) = start(&client, &server);
    let (client_said, server_said) = converse(&mut *client, &mut *server).unwrap();
    assert!(client.is_complete() && server.is_complete());
    assert_secrets_match(&client_said, &server_said, 4);
}

/// A handshake message without one of its extensions, which begin at `at`.
fn without_extension(message: &[u8], at: usize, ty: u16) -> Vec<u8> {
    let mut out = message[..at].to_vec();
    let mut rest = &message[at + 2..];
    let mut removed = 0;
    out.extend([0, 0]);
    while let [t0, t1, l0, l1, ..] = *rest {
        let len = 4 + usize::from(u16::from_be_bytes([l0, l1]));
        if u16::from_be_bytes([t0, t1]) == ty {
            removed += 1;
        } else {
            out.extend(&rest[..len]);
        }
        rest = &rest[len..];
    }
    assert_eq!(removed, 1, "the extension was there");
    let extensions = u16::try_from(out.len() - at - 2).unwrap();
    out[at..at + 2].copy_from_slice(&extensions.to_be_bytes());
    let body = u32::try_from(out.len() - 4).unwrap();
    out[1..4].copy_from_slice(&body.to_be_bytes()[1..]);
    out
}

/// Offset of the extensions of a ClientHello.
fn extensions_of_hello(hello: &[u8]) -> usize {
    let suites = 4 + 2 + 32 + 1 + usize::from(hello[38]);
    let compression = suites + 2 + usize::from(u16::from_be_bytes([hello[suites], hello[suites + 1]]));
    compression + 1 + usize::from(hello[compression])
}

/// Bytes that a session has written at a level.
fn written(session: &mut dyn Session, wanted: Level) -> Vec<u8> {
    let events = std::iter::from_fn(|| session.next_event());
    events
        .filter_map(|e| if let TlsEvent::Write { level, data } = e { (level == wanted).then_some(data) } else { None })
        .flatten()
        .collect()
}

// RFC 9001 §8.2 MUST-1, MUST-2
#[test]
fn transport_parameters_may_not_be_missing() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let hello = written(&mut *client, Level::Initial);
    let (_, mut other) = start(&self::client(&authority).build().unwrap(), &self::server(&authority).build().unwrap());
    let error = other.read(Level::Initial, &without_extension(&hello, extensions_of_hello(&hello), 0x39)).unwrap_err();
    assert_eq!(error.code, Code::crypto(109), "missing_extension: {error}");
    let _ = server.read(Level::Initial, &hello).unwrap();
    let mut said: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
    let mut at = |wanted: Level| {
        let data = said.iter_mut().filter_map(|e| match e {
            TlsEvent::Write { level, data } if *level == wanted => Some(std::mem::take(data)),
            _ => None,
        });
        data.flatten().collect::<Vec<u8>>()
    };
    let _ = client.read(Level::Initial, &at(Level::Initial)).unwrap();
    let flight = at(Level::Handshake);
    // EncryptedExtensions come first, and begin with the length of their list.
    let len = 4 + usize::from(u16::from_be_bytes([flight[2], flight[3]]));
    let error = client.read(Level::Handshake, &without_extension(&flight[..len], 4, 0x39)).unwrap_err();
    assert_eq!(error.code, Code::crypto(109), "missing_extension: {error}");
}

// RFC 9001 §8.1 MUST-2, MUST-3
#[test]
fn a_client_refuses_a_server_without_a_protocol() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let _ = server.read(Level::Initial, &written(&mut *client, Level::Initial)).unwrap();
    let said: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
    let at = |wanted: Level| -> Vec<u8> {
        let data = said.iter().filter_map(|e| match e {
            TlsEvent::Write { level, data } if *level == wanted => Some(data.clone()),
            _ => None,
        });
        data.flatten().collect()
    };
    let _ = client.read(Level::Initial, &at(Level::Initial)).unwrap();
    let flight = at(Level::Handshake);
    let len = 4 + usize::from(u16::from_be_bytes([flight[2], flight[3]]));
    let error = client.read(Level::Handshake, &without_extension(&flight[..len], 4, 16)).unwrap_err();
    assert_eq!(error.code, Code::crypto(120), "no_application_protocol: {error}");
}

// RFC 9001 §4.2 MUST NOT-1, MUST-1; RFC 9001 §5.3 MUST NOT-2; RFC 9001 §8.4 MUST NOT-1
#[test]
fn only_tls_13_is_spoken_without_its_compatibility_mode() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let hello = written(&mut *client, Level::Initial);
    assert_eq!(hello[38], 0, "no session ID");
    let versions = |hello: &[u8]| hello.windows(7).position(|w| w == [0, 43, 0, 3, 2, 3, 4]);
    let place = versions(&hello).expect("TLS 1.3 is offered, and nothing else");
    // A suite that nobody knows, before those that the server knows.
    let mut unknown = hello.clone();
    let suites = extensions_of_hello(&hello) - 2 - usize::from(u16::from_be_bytes([hello[39], hello[40]]));
    assert!(suites >= 41 && hello[39] == 0 && hello[40] >= 4, "two suites at least");
    unknown[41..43].copy_from_slice(&[0x13, 0xf7]);
    let _ = server.read(Level::Initial, &unknown).expect("an unknown suite does no harm");
    // A client of TLS 1.2 only.
    let (_, mut other) = start(&self::client(&authority).build().unwrap(), &self::server(&authority).build().unwrap());
    let mut old = hello;
    old[place + 6] = 3;
    let error = other.read(Level::Initial, &old).unwrap_err();
    assert_eq!(error.code, Code::crypto(70), "protocol_version: {error}");
}

// RFC 9001 §4.4 MUST-2; RFC 9001 §6 MUST-1
#[test]
fn messages_that_have_no_place_after_the_handshake_are_refused() {
    let authority = Authority::new();
    let key_update = &[24, 0, 0, 1, 0][..];
    let certificate_request = &[13, 0, 0, 11, 0, 0, 8, 0, 13, 0, 4, 0, 2, 8, 7][..];
    for (side, message, code) in [
        (Side::Client, key_update, Code::crypto(10)),
        (Side::Server, key_update, Code::crypto(10)),
        (Side::Client, certificate_request, Code::PROTOCOL_VIOLATION),
    ] {
        let (mut client, mut server) =
            start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
        converse(&mut *client, &mut *server).unwrap();
        let session = if side == Side::Client { &mut client } else { &mut server };
        assert_eq!(session.read(Level::OneRtt, message).unwrap_err().code, code, "{side:?} {message:?}");
    }
}

// RFC 9001 §4.1.3 MUST-2
#[test]
fn data_beyond_the_end_of_a_level_is_refused() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let hello = written(&mut *client, Level::Initial);
    let error = server.read(Level::Initial, &[&hello[..], &[1, 0]].concat()).unwrap_err();
    assert_eq!(error.code, Code::PROTOCOL_VIOLATION, "{error}");
}

// RFC 9001 §4.6.1 MUST-1
#[test]
fn tickets_limit_early_data_by_nothing() {
    let authority = Authority::new();
    let ticket = |size: Option<u32>| {
        let mut extensions = Vec::new();
        if let Some(size) = size {
            extensions.extend([0, 42, 0, 4]);
            extensions.extend(size.to_be_bytes());
        }
        let mut body = vec![0, 0, 14, 16, 1, 2, 3, 4, 1, 7, 0, 3, 9, 9, 9, 0, extensions.len() as u8];
        body.extend(extensions);
        [&[4, 0, 0, body.len() as u8][..], &body].concat()
    };
    let refused = Some(Code::PROTOCOL_VIOLATION);
    for (size, expected) in
        [(None, None), (Some(u32::MAX), None), (Some(0), refused), (Some(1), refused), (Some(u32::MAX - 1), refused)]
    {
        // Whole, byte by byte, and behind another one.
        let cuts: [Vec<Vec<u8>>; 3] = [
            vec![ticket(size)],
            ticket(size).into_iter().map(|byte| vec![byte]).collect(),
            vec![[ticket(None), ticket(size)].concat()],
        ];
        for pieces in cuts {
            let (mut client, mut server) =
                start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
            converse(&mut *client, &mut *server).unwrap();
            let error = pieces.iter().find_map(|piece| client.read(Level::OneRtt, piece).err());
            assert_eq!(error.map(|e| e.code), expected, "{size:?}");
        }
    }
}

// RFC 9369 §5 MUST NOT-1, MUST-1
#[test]
fn tickets_do_not_pass_from_one_version_to_another() {
    let authority = Authority::new();
    let server_config = server(&authority).early_data(true).build().unwrap();
    let visited = |given: u32| {
        let config = client(&authority).early_data(true).build().unwrap();
        let (mut client, mut server) = start(&config, &server_config);
        for session in [&mut client, &mut server] {
            session.set_ticket_versions(TicketVersions { offered: V1, given });
        }
        converse(&mut *client, &mut *server).unwrap();
        config
    };
    for given in [V1, V2] {
        for (version, offers) in [(given, true), (V1 ^ V2 ^ given, false)] {
            let client = visited(given).start(version, "host.test", b"of the client".to_vec()).unwrap();
            assert_eq!(client.early_data() == EarlyData::Offered, offers);
        }
        // A client that offers it all the same.
        let mut client = visited(given).start(given, "host.test", b"of the client".to_vec()).unwrap();
        let mut server = server_config.start(V1 ^ V2 ^ given, b"of the server".to_vec()).unwrap();
        let foreign = server_config.ticket_stats().foreign;
        converse(&mut *client, &mut *server).unwrap();
        assert_eq!(client.early_data(), EarlyData::Rejected);
        assert!(server_config.ticket_stats().foreign > foreign);
    }
}
