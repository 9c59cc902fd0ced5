//! Serving end: answers clients with a token, within limits.
//!
//! [`limits`] has the limits, [`session`] the state of a client, [`requests`] answers over QUIC, [`tcp`] over TCP. This file answers
//! datagrams: none goes to an address that QUIC has not validated, and no answer is larger than its request.

mod limits;
mod requests;
mod session;
mod tcp;

use std::{
    collections::HashMap,
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::json;
use tiderace::{Endpoint, EndpointOptions, Profile, ServerConfig, units::DataSize};

use self::{
    limits::{Ledger, Limits},
    session::{Session, lock},
};
use super::{
    ServeArgs,
    estimate::Arrival,
    port::{Arrived, Port},
    protocol::ALPN,
    wire::{HEAD, Key, Kind, Packet, Record},
};
use crate::{
    address::{cannot_listen, plain},
    failure::Failure,
    interrupt::Interrupt,
    stdout::write_json_line,
    trust,
};

/// Largest number of connections without a session. Their time is limited to a handshake and one message.
const STRANGERS: usize = 64;

/// State that all answers share.
struct Server {
    /// `None`: any client may measure.
    token: Option<String>,
    /// Longest session.
    lasts: Duration,
    port: Port,
    /// Source address of datagrams where the socket is bound to all.
    udp_port: u16,
    tcp_port: Option<u16>,
    ledger: Arc<Mutex<Ledger>>,
    /// Sessions under each of their keys.
    sessions: Mutex<HashMap<Key, Arc<Session>>>,
    is_json: bool,
}

impl Server {
    fn session(&self, key: &Key) -> Option<Arc<Session>> {
        lock(&self.sessions).get(key).cloned()
    }

    /// Answers a datagram, or records it.
    fn take(&self, arrived: &Arrived<'_>) {
        let Some(packet) = Packet::read(arrived.bytes) else { return };
        let Some(session) = self.session(&packet.key).filter(|session| session.udp == packet.key) else { return };
        let length = arrived.bytes.len() as u64;
        let Some(nonce) = session.nonce(arrived.from, arrived.to) else { return };
        match packet.kind {
            Kind::Data => {
                if session.spend(length) {
                    let arrival = Arrival { number: packet.number, sent: packet.sent, received: arrived.at };
                    session.record(packet.train, Record { arrival, ecn: arrived.ecn });
                }
            }
            Kind::Ping => {
                if session.spend(length + HEAD as u64) {
                    let mut answer = [0; HEAD];
                    Packet { kind: Kind::Pong, nonce, ..packet }.write(&mut answer);
                    // A full socket loses it, as the path might.
                    let _ = self.port.send_now(arrived.from, arrived.to, &answer);
                }
            }
            Kind::Pong => {}
        }
    }
}

/// Runs the serving end until it is asked to end.
pub(super) async fn run(
    address: SocketAddr,
    token: Option<&String>,
    args: &ServeArgs,
    is_json: bool,
) -> Result<ExitCode, Failure> {
    let token = match (token, args.open) {
        (_, true) => None,
        (Some(token), false) if token.is_empty() || token.len() > 256 => {
            return Err(Failure::new("a token has 1 to 256 bytes").hint("leave `--token` out, and one is made"));
        }
        (Some(token), false) => Some(token.clone()),
        (None, false) => Some(session::random().iter().map(|byte| format!("{byte:02x}")).collect()),
    };
    let limits = Limits {
        sessions: args.clients.get(),
        client: args.client_bytes.as_bytes(),
        total: args.total_bytes.as_bytes(),
    };
    if limits.client < LEAST || limits.total < LEAST {
        return Err(Failure::new("within less than 1 MB nothing can be measured")
            .hint("give `--client-bytes` and `--total-bytes` more, such as '500 MB'"));
    }
    let profile = Profile { name: "probe".to_owned(), ..Profile::default() };
    let (tls, fingerprint) = trust::server(&args.certificate, ALPN, None)?;
    let mut config = ServerConfig::new(Arc::new(tls), Arc::new(profile));
    config.max_connections = limits.sessions.saturating_mul(16).saturating_add(STRANGERS);
    let mut interrupt = Interrupt::listen()?;
    let options = EndpointOptions { server: Some(config), ..EndpointOptions::default() };
    let endpoint = Endpoint::open(address, options).map_err(|error| cannot_listen(address, &error))?;
    let local = endpoint.local_addr();
    let udp = SocketAddr::new(address.ip(), args.udp_port.unwrap_or(0));
    let port = Port::bind(udp).map_err(|error| cannot_listen(udp, &error))?;
    let listener = tcp::listen(local);
    let server = Arc::new(Server {
        token,
        lasts: args.longest,
        udp_port: port.local().map_err(|error| cannot_listen(udp, &error))?.port(),
        port,
        tcp_port: listener.as_ref().ok().and_then(|listener| Some(listener.local_addr().ok()?.port())),
        ledger: Arc::new(Mutex::new(Ledger::new(limits, Instant::now()))),
        sessions: Mutex::default(),
        is_json,
    });
    if let Err(error) = &listener {
        eprintln!("warning: TCP is not measured: cannot listen on {local}: {}", plain(error));
    }
    say_listening(&server, local, fingerprint)?;
    let datagrams = tokio::spawn({
        let server = server.clone();
        async move { server.port.receive(|arrived| server.take(&arrived)).await }
    });
    let streams = listener.ok().map(|listener| tokio::spawn(tcp::serve(server.clone(), listener)));
    tokio::select! {
        () = requests::accept(&server, &endpoint) => {}
        () = interrupt.wait() => {}
    }
    endpoint.close(0, b"the server ends");
    let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    datagrams.abort();
    if let Some(streams) = streams {
        streams.abort();
    }
    Ok(ExitCode::SUCCESS)
}

/// Bytes below which a limit makes no sense.
const LEAST: u64 = DataSize::from_bytes(1_000_000).as_bytes();

fn say_listening(server: &Server, address: SocketAddr, fingerprint: trust::Fingerprint) -> Result<(), Failure> {
    if server.is_json {
        return write_json_line(&json!({
            "event": "listening", "address": address.to_string(), "certificate_sha256": fingerprint.to_string(),
            "token": server.token, "udp_port": server.udp_port, "tcp_port": server.tcp_port,
        }));
    }
    let token = server.token.as_ref().map_or_else(String::new, |token| format!(" --token {token}"));
    eprintln!("listening on {address}, for datagrams on UDP port {}; Ctrl-C ends", server.udp_port);
    if server.token.is_none() {
        eprintln!("warning: --open: anybody may measure, within the limits");
    }
    eprintln!("clients measure with: tiderace probe HOST:{} --pin {fingerprint}{token}", address.port());
    Ok(())
}
