//! Tunnels through a proxy: UDP to one target (CONNECT-UDP, RFC 9298) or to many (bound UDP), IP packets (CONNECT-IP, RFC 9484) and TCP (CONNECT), over HTTP/3, or over HTTP/2 where UDP is blocked.
//!
//! All tunnels share a connection to the proxy. Over HTTP/3, UDP payloads are sent as QUIC datagrams. A payload of 1,200 bytes or less that does
//! not fit is sent as a capsule on the stream of its tunnel; a larger one is dropped, as on a path with a smaller MTU. Over HTTP/2 all payloads
//! are capsules: they arrive in order, and a lost packet of TCP delays those of all tunnels. QUIC is raced against TCP as for
//! [requests](crate::race), and a proxy that is reached over QUIC later than over TCP gets new tunnels over QUIC.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tiderace_client::{Settings, masque::ProxyClient};
//!
//! let proxy = ProxyClient::new(&Settings::default(), "proxy.example.org", Some("secret-token"))?;
//! let (mut sender, mut receiver) = proxy.open_udp("dns.example.org", 53).await?.split();
//! sender.send(b"a query");
//! if let Some(answer) = receiver.recv().await? {
//!     println!("{} bytes", answer.len());
//! }
//! proxy.close().await;
//! # Ok(())
//! # }
//! ```

mod bound;
mod error;
mod ip;
mod over_h2;
mod stream;
mod tcp;
mod udp;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use h3_quic::{
    Datagrams, Protocol,
    client::SendRequest,
    connect_ip::Scope,
    connect_udp::{PROTOCOL, Template},
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header, response, uri::InvalidUri};
use http_body_util::channel::Channel as BodyChannel;
use tiderace::Endpoint;
use tokio::sync::Mutex;

/// Types of IP proxying: scopes, prefixes, capsules and headers of packets.
pub use h3_quic::connect_ip;

pub use self::{
    bound::{BoundReceiver, BoundSender, BoundTunnel},
    error::ProxyError,
    ip::{IpEvent, IpReceiver, IpSender, IpTunnel, SentPacket},
    tcp::{TcpReceiver, TcpSender, TcpTunnel},
    udp::{SentPayload, UdpReceiver, UdpSender, UdpTunnel},
};
use self::{
    error::broken,
    over_h2::H2Link,
    stream::{H2Send, RecvHalf, SendHalf},
};
use crate::{
    fetch::Route,
    private::{Evidence, PrivateClient, Winner},
    race::{Leg, Verdict},
    settings::Settings,
    upkeep::Kept,
};

/// Time for the last packet of a connection to leave.
const CLOSING: Duration = Duration::from_millis(100);
/// Capsules, and parts of TCP, that wait for the connection.
const PARTS: usize = 4;

const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// A connection to the proxy, once the reason for its protocol is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyConnection {
    /// `h3` or `h2`.
    pub protocol: &'static str,
    /// Verdict on QUIC over this path; `None` if there is not enough evidence.
    pub verdict: Option<Verdict>,
}

type Observer = Arc<dyn Fn(ProxyConnection) + Send + Sync>;

/// Client of a proxy.
pub struct ProxyClient {
    connector: Arc<PrivateClient>,
    /// Template of requests for UDP; `None` when that of another kind was given.
    template: Option<Template>,
    /// The same for IP.
    ip_template: Option<connect_ip::Template>,
    host: String,
    port: u16,
    authorization: Option<HeaderValue>,
    limit: Duration,
    route: Route,
    observer: Option<Observer>,
    open: Arc<Mutex<Option<Carrier>>>,
}

/// Connection that carries tunnels.
#[derive(Clone)]
enum Carrier {
    H3 {
        sender: SendRequest,
        endpoint: Arc<Endpoint>,
        /// Ends with the last handle.
        _kept: Arc<Kept>,
    },
    H2(H2Link),
}

impl Carrier {
    /// HTTP over the connection that was ready first.
    async fn begin(winner: Winner, connector: &PrivateClient) -> Result<Self, ProxyError> {
        match winner {
            Winner::Quic(endpoint, connection, _kept) => {
                let sender = h3_quic::client::begin(connection).await.map_err(broken)?;
                Ok(Self::H3 { sender, endpoint, _kept })
            }
            Winner::Tcp(stream) => Ok(Self::H2(H2Link::begin(*stream, connector.closing()).await?)),
        }
    }

    fn protocol(&self) -> &'static str {
        match self {
            Self::H3 { .. } => "h3",
            Self::H2(_) => "h2",
        }
    }

    fn remote(&self) -> Option<SocketAddr> {
        match self {
            Self::H3 { sender, .. } => sender.connection().remote_address(),
            Self::H2(link) => link.remote(),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::H3 { sender, .. } => sender.connection().close_reason().is_some(),
            Self::H2(link) => link.is_closed(),
        }
    }
}

/// A stream whose request was answered with a tunnel.
struct Opened {
    sender: SendHalf,
    receiver: RecvHalf,
    /// Datagrams of the stream, over HTTP/3.
    datagrams: Option<Datagrams>,
    is_h3: bool,
    /// Address of the proxy.
    remote: Option<SocketAddr>,
    status: StatusCode,
    fields: HeaderMap,
}

impl ProxyClient {
    /// A client of `proxy`, a host with or without a port, whose template is the default one (RFC 9298 §2), or a URI template. The token
    /// is sent as a bearer token (RFC 6750). Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the proxy, the token or the settings cannot be used.
    pub fn new(settings: &Settings, proxy: &str, token: Option<&str>) -> Result<Self, ProxyError> {
        let templates = if proxy.contains("://") {
            (Some(proxy.parse()?), None)
        } else {
            (Some(Template::at(proxy)?), Some(connect_ip::Template::at(proxy)?))
        };
        Self::with(settings, templates, token)
    }

    /// A client of an IP proxy, as in [`new`](Self::new). The template of a host is the default one (RFC 9484 §3).
    ///
    /// # Errors
    /// As `new`.
    pub fn for_ip(settings: &Settings, proxy: &str, token: Option<&str>) -> Result<Self, ProxyError> {
        if !proxy.contains("://") {
            return Self::new(settings, proxy, token);
        }
        let template = proxy.parse().map_err(ProxyError::IpTemplate)?;
        Self::with(settings, (None, Some(template)), token)
    }

    fn with(
        settings: &Settings,
        (template, ip_template): (Option<Template>, Option<connect_ip::Template>),
        token: Option<&str>,
    ) -> Result<Self, ProxyError> {
        let of_udp = template.as_ref().map(|template| template.expand("a", 1));
        let of_ip = ip_template.as_ref().map(|template| template.expand(&Scope::default()));
        let uri = of_udp.or(of_ip).unwrap_or_default();
        let uri: Uri = uri.parse().map_err(|error: InvalidUri| ProxyError::Target(error.into()))?;
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let authorization = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        let mut authorization = authorization.transpose().map_err(ProxyError::Token)?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Self {
            connector: Arc::new(PrivateClient::new(settings, h3_quic::ALPN, over_h2::ALPN)?),
            host,
            port: uri.port_u16().unwrap_or(443),
            template,
            ip_template,
            authorization,
            limit: settings.timeouts.response,
            route: Route::default(),
            observer: None,
            open: Arc::default(),
        })
    }

    /// Uses one leg only: HTTP/3 over QUIC, or HTTP/2 over TCP.
    pub fn only(mut self, leg: Leg) -> Self {
        self.route.only = Some(leg);
        self
    }

    /// Reports each connection to the proxy, as soon as the reason for its protocol is known.
    pub fn observe(mut self, observer: impl Fn(ProxyConnection) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Opens the connection to the proxy, which all tunnels share, if there is none. Otherwise the first tunnel does so.
    ///
    /// # Errors
    /// When the proxy cannot be reached.
    pub async fn connect(&self) -> Result<(), ProxyError> {
        let connected = tokio::time::timeout(self.limit, self.connection()).await;
        connected.map_err(|_| ProxyError::TimedOut(self.limit))?.map(drop)
    }

    /// The open connection to the proxy, or a new one.
    async fn connection(&self) -> Result<Carrier, ProxyError> {
        let mut open = self.open.lock().await;
        if let Some(carrier) = open.as_ref().filter(|carrier| !carrier.is_closed()) {
            return Ok(carrier.clone());
        }
        let (winner, evidence) = self.connector.connect_first(&self.host, self.port, &self.route).await?;
        let carrier = Carrier::begin(winner, &self.connector).await?;
        *open = Some(carrier.clone());
        tokio::spawn(self.judge(evidence, carrier.protocol()));
        Ok(carrier)
    }

    /// Waits for the verdict on a connection, and reports it. If QUIC works, but was ready after TCP, new tunnels go over QUIC.
    fn judge(&self, evidence: Evidence, protocol: &'static str) -> impl Future<Output = ()> + Send + use<> {
        let (connector, open, observer) = (self.connector.clone(), Arc::downgrade(&self.open), self.observer.clone());
        async move {
            let judged = evidence.judge().await;
            let verdict = judged.as_ref().map(|(verdict, _)| *verdict);
            let report =
                |protocol| observer.iter().for_each(|observer| observer(ProxyConnection { protocol, verdict }));
            report(protocol);
            let late = judged.and_then(|(_, opened)| opened).filter(|_| protocol == "h2");
            let (Some(opened), Some(open)) = (late, open.upgrade()) else { return };
            let Ok(carrier) = Carrier::begin(connector.keep(opened), &connector).await else { return };
            let mut open = open.lock().await;
            // Otherwise the client was closed, or has connected again.
            if matches!(*open, Some(Carrier::H2(_))) {
                *open = Some(carrier);
                report("h3");
            }
        }
    }

    /// Sends a request for a tunnel, with the protocol of an extended CONNECT. Returns the stream if the answer begins a tunnel.
    async fn ask(
        &self,
        mut request: Request<()>,
        protocol: Option<&'static str>,
        authorization: HeaderName,
    ) -> Result<Opened, ProxyError> {
        let value = self.authorization.clone();
        request.headers_mut().extend(value.map(|value| (authorization, value)));
        let asking = async {
            let mut carrier = self.connection().await?;
            if let Carrier::H2(link) = &carrier
                && !link.is_ready().await
            {
                carrier = self.connection().await?;
            }
            let remote = carrier.remote();
            let (head, sender, receiver, is_h3) = match carrier {
                Carrier::H3 { sender, .. } => ask_h3(sender, request, protocol).await?,
                Carrier::H2(mut link) => {
                    let (stream, response) = link.ask(request, protocol).await?;
                    let (head, content) = response.into_parts();
                    (head, SendHalf::H2(H2Send::new(stream)), RecvHalf::H2(content), false)
                }
            };
            Ok::<_, ProxyError>((head, sender, receiver, is_h3, remote))
        };
        let answered = tokio::time::timeout(self.limit, asking).await;
        let (mut head, sender, receiver, is_h3, remote) = answered.map_err(|_| ProxyError::TimedOut(self.limit))??;
        let status = head.status;
        // RFC 9298 §3.1 MUST-8, RFC 9298 §3.5 MUST-1, RFC 9484 §4.1 MUST-7, RFC 9484 §4.5 MUST-1
        if !status.is_success() {
            let proxy_status = head.headers.get(PROXY_STATUS).and_then(|value| value.to_str().ok());
            return Err(ProxyError::Refused { status, proxy_status: proxy_status.map(str::to_owned) });
        }
        // RFC 9297 §3.2
        if matches!(status.as_u16(), 204..=206) {
            return Err(ProxyError::NoTunnel(status));
        }
        let datagrams = head.extensions.remove();
        Ok(Opened { sender, receiver, datagrams, is_h3, remote, status, fields: head.headers })
    }

    /// Opens a tunnel for UDP to a host, a name or an IP address, and a port.
    ///
    /// # Errors
    /// When the proxy cannot be reached, or refuses.
    pub async fn open_udp(&self, host: &str, port: u16) -> Result<UdpTunnel, ProxyError> {
        // RFC 9298 §3.4 SHALL-1, SHALL-2, RFC 9298 §6 SHOULD-2
        let template = self.template.as_ref().ok_or(ProxyError::OtherTemplate)?;
        let request = Request::connect(template.expand(host, port)).header(CAPSULE_PROTOCOL, "?1");
        let request = request.body(()).map_err(ProxyError::Target)?;
        let opened = self.ask(request, Some(PROTOCOL), header::AUTHORIZATION).await?;
        if opened.is_h3 && opened.datagrams.is_none() {
            return Err(ProxyError::NoTunnel(opened.status));
        }
        Ok(UdpTunnel::new(opened.sender, opened.receiver, opened.datagrams))
    }

    /// Opens a tunnel for IP packets to the targets of a scope.
    ///
    /// # Errors
    /// When the proxy cannot be reached, or refuses.
    // RFC 9484 §4.4 SHALL-1, SHALL-2, RFC 9484 §10 SHOULD-2
    pub async fn open_ip(&self, scope: &Scope) -> Result<IpTunnel, ProxyError> {
        let template = self.ip_template.as_ref().ok_or(ProxyError::OtherTemplate)?;
        if !template.carries(scope) {
            return Err(ProxyError::NoScope);
        }
        let request = Request::connect(template.expand(scope)).header(CAPSULE_PROTOCOL, "?1");
        let request = request.body(()).map_err(ProxyError::Target)?;
        let opened = self.ask(request, Some(connect_ip::PROTOCOL), header::AUTHORIZATION).await?;
        if opened.is_h3 && opened.datagrams.is_none() {
            return Err(ProxyError::NoTunnel(opened.status));
        }
        // Before packets come that are too large.
        if let Some(datagrams) = &opened.datagrams {
            datagrams.discover_max_size();
        }
        Ok(IpTunnel::new(opened.sender, opened.receiver, opened.datagrams, opened.remote))
    }

    /// Opens a tunnel for TCP to a host and a port.
    ///
    /// # Errors
    /// When the proxy cannot be reached, or refuses.
    pub async fn open_tcp(&self, host: &str, port: u16) -> Result<TcpTunnel, ProxyError> {
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let request = Request::connect(authority).body(()).map_err(ProxyError::Target)?;
        let opened = self.ask(request, None, header::PROXY_AUTHORIZATION).await?;
        Ok(TcpTunnel::new(opened.sender, opened.receiver))
    }

    /// Closes the connection to the proxy, and all tunnels.
    pub async fn close(&self) {
        if let Some(Carrier::H3 { sender, endpoint, .. }) = self.open.lock().await.take() {
            sender.connection().close(h3_quic::Code::NO_ERROR.0, b"");
            let _ = tokio::time::timeout(CLOSING, endpoint.wait_idle()).await;
        }
        self.connector.close().await;
    }
}

/// Sends a request over HTTP/3, and waits for the answer.
async fn ask_h3(
    mut sender: SendRequest,
    request: Request<()>,
    protocol: Option<&'static str>,
) -> Result<(response::Parts, SendHalf, RecvHalf, bool), ProxyError> {
    let (say, body) = BodyChannel::new(PARTS);
    let mut request = request.map(|()| body);
    if let Some(protocol) = protocol {
        request.extensions_mut().insert(Protocol::from_static(protocol));
    }
    let answered = sender.send(request).await.map_err(|error| match error {
        h3_quic::Error::NoConnectProtocol => ProxyError::NoExtendedConnect,
        error => broken(error),
    });
    let (head, content) = answered?.into_parts();
    Ok((head, SendHalf::H3(say), RecvHalf::H3(Box::new(content)), true))
}
