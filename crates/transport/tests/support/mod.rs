//! Endpoints as nodes of the simulator, with certificates larger than a datagram and a fixed clock for TLS.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bytes::BytesMut;
use sim::{Node, Outbox};
use transport::{
    ClientConfig, Datagram, Ecn, Endpoint, EndpointConfig, Event, Handle, Profile, ServerConfig,
    tls::rustls_backend::{FixedClock, Identity, RustlsClient, RustlsServer},
};
use units::{Instant, Seed};

pub mod direct;
pub mod exchange;
pub mod puppet;

/// Application on an endpoint.
pub trait App {
    /// Called after every datagram and timeout, with everything that happened.
    fn act(&mut self, now: Instant, endpoint: &mut Endpoint, events: Vec<(Handle, Event)>);
    /// Nothing is left to do.
    fn finished(&self) -> bool;
}

/// An endpoint with its application.
pub struct Host<A> {
    pub address: SocketAddr,
    pub endpoint: Endpoint,
    pub app: A,
    /// Times at which a NAT gives the host another address; datagrams to the address before are lost.
    pub moves: Vec<(Instant, SocketAddr)>,
    /// Times at which the host gets another socket, and its endpoint is told.
    pub rebinds: Vec<(Instant, SocketAddr)>,
    /// Another address of the host, which its endpoint may name as the local one.
    pub also: Option<SocketAddr>,
    /// Rewriting of ECN marks on the path to the host.
    pub rewrite_ecn: fn(netem::Ecn) -> netem::Ecn,
    buffer: Vec<u8>,
}

impl<A: App> Host<A> {
    pub fn new(address: SocketAddr, endpoint: Endpoint, app: A) -> Self {
        Self {
            address,
            endpoint,
            app,
            moves: Vec::new(),
            rebinds: Vec::new(),
            also: None,
            rewrite_ecn: |ecn| ecn,
            buffer: vec![0; 64 * 1500],
        }
    }

    fn drain(&mut self, now: Instant, out: &mut Outbox) {
        loop {
            let mut events = Vec::new();
            let mut sent = false;
            while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) {
                sent = true;
                let from = self.also.filter(|also| transmit.local == Some(also.ip())).unwrap_or(self.address);
                let mut datagram =
                    sim::Datagram::new(from, transmit.remote, BytesMut::from(&self.buffer[..transmit.len]));
                datagram.ecn = match transmit.ecn {
                    None => netem::Ecn::NotEct,
                    Some(Ecn::Ect0) => netem::Ecn::Ect0,
                    Some(Ecn::Ect1) => netem::Ecn::Ect1,
                    Some(Ecn::Ce) => netem::Ecn::Ce,
                };
                datagram.segment_size = (transmit.segment_size < transmit.len).then_some(transmit.segment_size);
                out.send(datagram);
            }
            while let Some(event) = self.endpoint.poll_event() {
                events.push(event);
            }
            let any = !events.is_empty();
            self.app.act(now, &mut self.endpoint, events);
            if !any && !sent {
                return;
            }
        }
    }
}

impl<A: App> Node for Host<A> {
    fn handle(&mut self, now: Instant, datagram: Option<sim::Datagram>, out: &mut Outbox) {
        while self.moves.first().is_some_and(|(at, _)| *at <= now) {
            self.address = self.moves.remove(0).1;
        }
        while self.rebinds.first().is_some_and(|(at, _)| *at <= now) {
            self.address = self.rebinds.remove(0).1;
            self.endpoint.rebind(now, Some(self.address.ip()));
        }
        if let Some(datagram) = datagram.filter(|d| d.to == self.address || Some(d.to) == self.also) {
            self.endpoint.handle_datagram(
                now,
                Datagram {
                    remote: datagram.from,
                    local: Some(datagram.to.ip()),
                    ecn: match (self.rewrite_ecn)(datagram.ecn) {
                        netem::Ecn::NotEct => None,
                        netem::Ecn::Ect0 => Some(Ecn::Ect0),
                        netem::Ecn::Ect1 => Some(Ecn::Ect1),
                        netem::Ecn::Ce => Some(Ecn::Ce),
                    },
                    received_at: now,
                    segment_size: datagram.payload.len(),
                    payload: datagram.payload,
                },
            );
        }
        self.endpoint.handle_timeout(now);
        self.app.act(now, &mut self.endpoint, Vec::new());
        self.drain(now, out);
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let rebind = self.rebinds.first().map(|&(at, _)| (at, "another socket"));
        let timer = self.endpoint.poll_timeout().map(|(at, _, timer)| (at, timer.name()));
        rebind.into_iter().chain(timer).min_by_key(|(at, _)| *at)
    }

    fn finished(&self) -> bool {
        self.app.finished()
    }
}

/// Seconds since 1970 at which the certificates of the tests are valid.
pub const CLOCK: FixedClock = FixedClock { unix_secs: 1_800_000_000 };

/// A chain of an Ed25519 leaf with many names (so that it spans two datagrams) and its root.
pub fn identity() -> &'static (Identity, Vec<u8>) {
    static IDENTITY: OnceLock<(Identity, Vec<u8>)> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let root_key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut root = rcgen::CertificateParams::new(Vec::new()).unwrap();
        root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root_cert = root.self_signed(&root_key).unwrap();
        let issuer = rcgen::Issuer::new(root, root_key);
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut names = vec!["server.test".to_owned()];
        names.extend((0..60).map(|n| format!("a-rather-long-name-of-a-virtual-host-{n}.server.test")));
        let leaf = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let identity = Identity::from_der(vec![leaf.der().to_vec()], key.serialize_der()).unwrap();
        (identity, root_cert.der().to_vec())
    })
}

pub fn server_tls() -> Arc<dyn transport::tls::ServerTls> {
    static TLS: OnceLock<Arc<dyn transport::tls::ServerTls>> = OnceLock::new();
    TLS.get_or_init(|| {
        let builder = RustlsServer::builder().identity(identity().0.clone()).alpn("test");
        Arc::new(builder.clock(Arc::new(CLOCK)).build().unwrap())
    })
    .clone()
}

pub fn client_tls() -> Arc<dyn transport::tls::ClientTls> {
    static TLS: OnceLock<Arc<dyn transport::tls::ClientTls>> = OnceLock::new();
    TLS.get_or_init(|| {
        let builder = RustlsClient::builder().roots([identity().1.clone()]).alpn("test");
        Arc::new(builder.clock(Arc::new(CLOCK)).build().unwrap())
    })
    .clone()
}

pub fn client_config(profile: &Profile) -> ClientConfig {
    ClientConfig::new(client_tls(), Arc::new(profile.clone()))
}

pub fn server_config(profile: &Profile) -> ServerConfig {
    ServerConfig::new(server_tls(), Arc::new(profile.clone()))
}

pub fn client_endpoint(seed: u64) -> Endpoint {
    Endpoint::new(EndpointConfig::from_seed(Seed::from_number(seed).child("client", 0)), None)
}

pub fn server_endpoint(seed: u64, config: ServerConfig) -> Endpoint {
    Endpoint::new(EndpointConfig::from_seed(Seed::from_number(seed).child("server", 0)), Some(Arc::new(config)))
}
