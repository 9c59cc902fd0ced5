//! Connection attempts to a back end over QUIC.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use h3_quic::client::{self, SendRequest};
use http::uri::Authority;
use tiderace::{
    ClientConfig, CloseReason, ConnectError, Connection, Endpoint, EndpointOptions, HandshakeFault, Handshakes,
    ProcessBudget, Profile, RustlsClient, transport::tls::rustls_backend::CertificateCheck,
};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::{
    resolve::{self, Resolve},
    trust::{RootsError, Trust},
    upstream::{back_end::Host, names::Source},
};

/// Addresses of a name that are tried.
const ADDRESSES: usize = 4;
/// The next address is tried when one takes longer, or fails (RFC 8305 §8).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Sockets of a worker for its connections to a back end, one for each version of IP, opened with the first connection. A socket has receive
/// buffers of some MiB while much arrives: with one for each connection, a back end could make the gateway hold as much for each.
#[derive(Default)]
pub(super) struct Sockets(Mutex<[Option<Arc<Endpoint>>; 2]>);

impl Sockets {
    /// The endpoint that leads to an address.
    fn to(&self, remote: SocketAddr, memory: &ProcessBudget) -> io::Result<Arc<Endpoint>> {
        let mut endpoints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut endpoints[usize::from(remote.is_ipv6())];
        if let Some(endpoint) = place {
            return Ok(endpoint.clone());
        }
        let any: IpAddr = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // A handshake with a back end is rare, and needs no thread.
        let options = EndpointOptions {
            memory: Some(memory.clone()),
            handshakes: Handshakes::InPlace,
            ..EndpointOptions::default()
        };
        Ok(place.insert(Arc::new(Endpoint::open((any, 0).into(), options)?)).clone())
    }
}

/// Settings of connections to one back end.
pub(super) struct Dialer {
    config: ClientConfig,
    host: String,
    port: u16,
    /// Address of the host, where it is known.
    address: Option<IpAddr>,
    /// The name that the certificate has to have.
    server_name: String,
    resolver: Arc<dyn Resolve>,
    memory: ProcessBudget,
    /// Time limit of an attempt.
    pub(super) time: Duration,
}

/// Failure of a connection attempt.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{word}: {what}")]
pub(crate) struct DialError {
    /// Label of metrics.
    pub(crate) word: &'static str,
    what: String,
}

impl DialError {
    pub(super) fn new(word: &'static str, what: impl Into<String>) -> Self {
        Self { word, what: what.into() }
    }
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> Self {
        let word = match &error {
            ConnectError::Closed(CloseReason::HandshakeFailed { fault: HandshakeFault::Certificate(_), .. }) => {
                "certificate"
            }
            ConnectError::Closed(CloseReason::HandshakeFailed { .. }) => "tls",
            ConnectError::Closed(CloseReason::PeerClosed { .. } | CloseReason::PeerApplication { .. }) => "refused",
            ConnectError::Closed(CloseReason::VersionMismatch { .. }) => "version",
            ConnectError::Closed(CloseReason::HandshakeTimeout | CloseReason::IdleTimeout) => "timeout",
            _ => "other",
        };
        Self::new(word, error.to_string())
    }
}

impl Dialer {
    pub(super) fn new(
        authority: &Authority,
        host: Host,
        source: &Source,
        profile: Profile,
    ) -> Result<Self, RootsError> {
        let tls = RustlsClient::builder().alpn(h3_quic::ALPN);
        let refused = |error: &dyn std::error::Error| RootsError::Refused(rustls::Error::General(error.to_string()));
        // Sessions are resumed, and nothing is sent before the handshake: requests in early data may be replayed.
        let tls = match &source.trust {
            Trust::System => tls.platform_roots(),
            Trust::Roots(pem) => tls.roots_pem(pem).map_err(|error| refused(&error))?,
            Trust::Anybody => tls.verifier(Arc::new(CertificateCheck::new(|_| Ok(())))),
        };
        let tls = tls.build().map_err(|error| refused(&error))?;
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self {
            config: ClientConfig::new(Arc::new(tls), Arc::new(profile)),
            server_name: Some(source.route.tls.name.clone()).filter(|name| !name.is_empty()).unwrap_or(name.clone()),
            host: name,
            port: authority.port_u16().unwrap_or(443),
            address: match host {
                Host::Url => None,
                Host::Address(address) => Some(address),
            },
            resolver: source.resolver.clone(),
            memory: source.memory.clone(),
            time: source.route.connect_timeout.0,
        })
    }

    /// Addresses of the host.
    async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self.address {
            Some(address) => Ok(vec![SocketAddr::new(address, self.port)]),
            None => resolve::addresses(&*self.resolver, &self.host, self.port).await,
        }
    }

    /// Ready when the host accepts a connection over TCP; never, if it accepts none.
    pub(super) async fn tcp_answers(&self) {
        for address in self.addresses().await.unwrap_or_default().into_iter().take(ADDRESSES) {
            if let Ok(Ok(_)) = timeout(self.time, TcpStream::connect(address)).await {
                return;
            }
        }
        std::future::pending().await
    }

    /// Opens a connection for requests, as [`connect`](Self::connect) does.
    ///
    /// # Errors
    /// When no address answers in time.
    pub(super) async fn dial(&self, sockets: &Sockets) -> Result<SendRequest, DialError> {
        let connection = self.connect(sockets).await?;
        let options = client::Options { copies: true, ..client::Options::default() };
        client::begin_with(connection, options).await.map_err(|error| DialError::new("refused", error.to_string()))
    }

    /// Opens a connection on one of the worker's `sockets`. Must be called on the worker's runtime.
    ///
    /// # Errors
    /// When no address answers in time.
    pub(super) async fn connect(&self, sockets: &Sockets) -> Result<Connection, DialError> {
        let silent = || DialError::new("timeout", format!("no answer within {:?}", self.time));
        timeout(self.time, self.race(sockets)).await.unwrap_or_else(|_| Err(silent()))
    }

    /// Tries the addresses one after the other, the next when one takes long.
    async fn race(&self, sockets: &Sockets) -> Result<Connection, DialError> {
        let found = self.addresses().await.map_err(|error| DialError::new("name", error.to_string()))?;
        let mut rest = found.into_iter().take(ADDRESSES);
        let mut attempts = JoinSet::new();
        let mut last = DialError::new("name", "the name has no address");
        loop {
            match rest.next() {
                Some(remote) => match sockets.to(remote, &self.memory) {
                    Ok(endpoint) => {
                        let (config, name) = (self.config.clone(), self.server_name.clone());
                        attempts.spawn(async move { Ok(endpoint.connect(&config, remote, &name)?.await?) });
                    }
                    Err(error) => {
                        last = DialError::new("socket", error.to_string());
                        continue;
                    }
                },
                None if attempts.is_empty() => return Err(last),
                None => {}
            }
            tokio::select! {
                Some(end) = attempts.join_next() => match end {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => last = error,
                    Err(error) => last = DialError::new("other", error.to_string()),
                },
                () = tokio::time::sleep(NEXT_ADDRESS), if rest.len() > 0 => {}
            }
        }
    }
}
