mod messages;

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
