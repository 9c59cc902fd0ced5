//! A server that accepts early data and says smaller limits than those under which it was sent (RFC 9000 §7.4.1): the client ends the
//! connection, whichever limit it is.

use crate::support;

use std::sync::Arc;

use sim::{client_address, server_address};
use support::{
    direct::{converse, events, give, sent},
    identity, server_endpoint,
};
use transport::{
    ClientConfig, CloseReason, Code, Event, Profile, ServerConfig,
    crypto::CipherSuite,
    ring::{KeyRing, MemoryRegister},
    streams::StreamsConfig,
    tls::{
        ClientTls, EarlyData, Level, Progress, Session, TicketVersions, TlsError, TlsEvent,
        rustls_backend::{RustlsClient, RustlsServer},
    },
};
use units::Instant;
use wire::{Dir, Side, TransportParameters};

type Change = fn(&mut TransportParameters);

/// A client's sessions, whose server's parameters are changed on their way: what a server of ill will would say. Our own server refuses
/// early data when its limits have become smaller.
struct Lying {
    inner: Arc<RustlsClient>,
    change: Change,
}

impl ClientTls for Lying {
    fn start(&self, version: u32, server_name: &str, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        let inner = self.inner.start(version, server_name, parameters)?;
        Ok(Box::new(LyingSession { inner, change: self.change }))
    }
}

struct LyingSession {
    inner: Box<dyn Session>,
    change: Change,
}

impl Session for LyingSession {
    fn next_event(&mut self) -> Option<TlsEvent> {
        let event = self.inner.next_event()?;
        let TlsEvent::PeerParameters(raw) = event else { return Some(event) };
        let mut parameters = TransportParameters::decode(Side::Server, &raw).expect("our server's");
        (self.change)(&mut parameters);
        let mut changed = Vec::new();
        parameters.encode(&mut changed, Side::Server, None);
        Some(TlsEvent::PeerParameters(changed))
    }

    fn read(&mut self, level: Level, data: &[u8]) -> Result<Progress, TlsError> {
        self.inner.read(level, data)
    }

    fn client_random(&self) -> Option<[u8; 32]> {
        self.inner.client_random()
    }

    fn resume(&mut self) -> Result<Progress, TlsError> {
        self.inner.resume()
    }

    fn read_level(&self) -> Level {
        self.inner.read_level()
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.inner.alpn()
    }

    fn server_name(&self) -> Option<&str> {
        self.inner.server_name()
    }

    fn peer_certificates(&self) -> Vec<&[u8]> {
        self.inner.peer_certificates()
    }

    fn early_data(&self) -> EarlyData {
        self.inner.early_data()
    }

    fn is_resumed(&self) -> bool {
        self.inner.is_resumed()
    }

    fn cipher_suite(&self) -> Option<CipherSuite> {
        self.inner.cipher_suite()
    }

    fn set_ticket_versions(&mut self, versions: TicketVersions) {
        self.inner.set_ticket_versions(versions);
    }

    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError> {
        self.inner.export_keying_material(out, label, context)
    }
}

/// Makes a second connection with early data to a server with changed limits. Returns whether early data was accepted, and why
/// the connection was closed.
fn second(change: Change) -> (EarlyData, Option<CloseReason>) {
    let clock = support::CLOCK;
    let tls = RustlsClient::builder().roots([identity().1.clone()]).alpn("test").early_data(true);
    let tls = Arc::new(tls.clock(Arc::new(clock)).build().unwrap());
    let server = RustlsServer::builder()
        .identity(identity().0.clone())
        .alpn("test")
        .clock(Arc::new(clock))
        .ring(KeyRing::single([7; 32]))
        .strike_register(Arc::new(MemoryRegister::default()))
        .early_data(true);
    let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
    let profile = Arc::new(Profile { streams, ..Profile::default() });
    let server = ServerConfig::new(Arc::new(server.build().unwrap()), profile.clone());
    let now = Instant::from_millis(0);
    let conforming = ClientConfig::new(tls.clone(), profile.clone());
    let lied_to = ClientConfig::new(Arc::new(Lying { inner: tls, change }), profile);
    let mut first = (support::client_endpoint(1), server_endpoint(1, server.clone()));
    first.0.connect(now, &conforming, server_address(0), "server.test").unwrap();
    converse(now, (&mut first.0, client_address(0)), (&mut first.1, server_address(0)));
    let (mut client, mut server) = (support::client_endpoint(2), server_endpoint(2, server));
    let handle = client.connect(now, &lied_to, server_address(0), "server.test").unwrap();
    let connection = client.connection_mut(handle).unwrap();
    let id = connection.open_early(Dir::Bi).expect("there is a ticket");
    connection.write(id, &mut vec![4; 5_000].into()).unwrap();
    let flight = sent(&mut client, now);
    assert!(client.connection(handle).unwrap().stats().early_packets_sent > 0);
    flight.iter().for_each(|d| give(&mut server, now, client_address(0), &d.payload));
    sent(&mut server, now).iter().for_each(|d| give(&mut client, now, server_address(0), &d.payload));
    let early = client.connection(handle).unwrap().early_data();
    let closed = events(&mut client).into_iter().find_map(|(_, event)| match event {
        Event::Closed(reason) => Some(reason),
        _ => None,
    });
    (early, closed)
}

// RFC 9000 §7.4.1 MUST NOT; RFC 9221 §3 MUST-4, MUST-5; draft-ietf-quic-reliable-stream-reset §3
#[test]
fn a_server_that_lowers_limits_of_early_data_it_accepts_is_in_error() {
    assert_eq!(second(|_| ()), (EarlyData::Accepted, None), "the same limits");
    assert_eq!(second(|p| p.initial_max_data += 1), (EarlyData::Accepted, None), "larger ones");
    let lower: [(&str, Change); 10] = [
        ("active_connection_id_limit", |p| p.active_connection_id_limit -= 1),
        ("initial_max_data", |p| p.initial_max_data -= 1),
        ("initial_max_stream_data_bidi_local", |p| p.initial_max_stream_data_bidi_local -= 1),
        ("initial_max_stream_data_bidi_remote", |p| p.initial_max_stream_data_bidi_remote -= 1),
        ("initial_max_stream_data_uni", |p| p.initial_max_stream_data_uni -= 1),
        ("initial_max_streams_bidi", |p| p.initial_max_streams_bidi -= 1),
        ("initial_max_streams_uni", |p| p.initial_max_streams_uni -= 1),
        ("max_datagram_frame_size", |p| p.max_datagram_frame_size -= 1),
        ("reset_stream_at", |p| p.reset_stream_at = false),
        ("all", |p| {
            p.initial_max_data = 0;
            p.initial_max_stream_data_bidi_remote = 0;
            p.initial_max_streams_bidi = 0;
        }),
    ];
    for (name, change) in lower {
        let (_, closed) = second(change);
        let (Some(CloseReason::PeerMisbehaved(error)) | Some(CloseReason::HandshakeFailed { error, .. })) = closed
        else {
            panic!("{name}: {closed:?}")
        };
        assert_eq!(error.code, Code::PROTOCOL_VIOLATION, "{name}");
    }
}
