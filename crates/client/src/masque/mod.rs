//! Tunnels through a proxy: UDP (CONNECT-UDP, RFC 9298) and TCP (CONNECT), over HTTP/3.
//!
//! All tunnels share a connection to the proxy. UDP payloads are sent as QUIC datagrams. A payload of 1,200 bytes or less that does not fit
//! is sent as a capsule on the stream of its tunnel; a larger one is dropped, as on a path with a smaller MTU.
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

use std::time::Duration;

use bytes::Bytes;
use h3_quic::{
    Datagrams, Protocol,
    capsule::{self, Capsules},
    client::SendRequest,
    connect_udp::{ALWAYS_CARRIED, Content, MAX_PAYLOAD, PROTOCOL, Template, TemplateError, UDP_CONTEXT},
};
use http::{
    HeaderName, HeaderValue, Request, Response, StatusCode, Uri,
    header::{self, InvalidHeaderValue},
    uri::InvalidUri,
};
use http_body::Frame;
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use tokio::sync::Mutex;

use crate::{
    error::{Cause, FetchError},
    fetch::Route,
    private::{self, PrivateClient},
    race::Leg,
    settings::Settings,
};

/// The longest DATAGRAM capsule: the longest UDP payload, and the longest form of its context ID.
const MAX_CAPSULE: usize = MAX_PAYLOAD + 8;
/// Capsules, and parts of TCP, that wait for the connection.
const PARTS: usize = 4;

/// Time for the proxy to answer the end of a tunnel.
const CLOSING: Duration = Duration::from_secs(1);

const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// Error of a tunnel: it was not opened, or broke off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The proxy is neither a host nor a URI template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Target that cannot be written into a request.
    #[error("the target cannot be written into a request: {0}")]
    Target(#[source] http::Error),
    /// Token that cannot be written into a header field.
    #[error("the token has characters that a field cannot have")]
    Token(#[source] InvalidHeaderValue),
    /// No connection to the proxy.
    #[error(transparent)]
    Connection(#[from] FetchError),
    /// Proxy without extended CONNECT (RFC 9220): it is no proxy for UDP.
    #[error("the proxy does not offer extended CONNECT over HTTP/3")]
    NoExtendedConnect,
    /// Refusal by the proxy.
    #[error("the proxy refuses the tunnel with status {status}{}", reason(.proxy_status.as_deref()))]
    Refused {
        /// Status of the answer.
        status: StatusCode,
        /// The field `proxy-status` (RFC 9209), where the answer has it.
        proxy_status: Option<String>,
    },
    /// Answer that begins no tunnel.
    #[error("the proxy answers with status {0}, which begins no tunnel")]
    NoTunnel(StatusCode),
    /// Failure of the stream or the connection.
    #[error("the tunnel broke off: {0}")]
    Broken(#[source] Cause),
    /// No answer in time.
    #[error("the proxy did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

fn reason(proxy_status: Option<&str>) -> String {
    proxy_status.map_or_else(String::new, |text| format!(": {text}"))
}

impl ProxyError {
    /// Advice for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Template(_) => {
                "name a host, as in proxy.example.org:443, or a template, as in https://proxy.example.org/masque{?target_host,target_port}"
            }
            Self::Target(_) => "the target is a host and a port",
            Self::Token(_) => "the token has letters and digits",
            Self::Connection(FetchError::Resolve { .. }) => "check the spelling of the proxy, or give an IP address",
            Self::Connection(_) => "check the address of the proxy, its certificate, and that UDP gets through to it",
            Self::NoExtendedConnect | Self::NoTunnel(_) => {
                "the server is no MASQUE proxy, or at another path: give its URI template"
            }
            Self::Refused { status, .. } => match status.as_u16() {
                401 | 407 => "the proxy asks for a token",
                400 => "the proxy does not understand the target: it may have another URI template",
                403 => "the rules of the proxy prohibit this target",
                404 | 405 | 501 => "the server has no proxy there: it may have another URI template, or carry no TCP",
                429 => "this client has too many tunnels, or opens them too fast: try again later",
                502 | 504 => "the proxy does not reach the target: check its name and port",
                _ => "ask the operator of the proxy",
            },
            Self::Broken(_) | Self::TimedOut(_) => "try again; the proxy, or the way to it, may be overloaded",
        }
    }
}

/// Client of a proxy.
pub struct ProxyClient {
    connector: PrivateClient,
    template: Template,
    host: String,
    port: u16,
    authorization: Option<HeaderValue>,
    limit: Duration,
    open: Mutex<Option<(SendRequest, private::Channel)>>,
}

impl ProxyClient {
    /// A client of `proxy`, a host with or without a port, whose template is the default one (RFC 9298 §2), or a URI template. The token
    /// is sent as a bearer token (RFC 6750). Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the proxy, the token or the settings cannot be used.
    pub fn new(settings: &Settings, proxy: &str, token: Option<&str>) -> Result<Self, ProxyError> {
        let template: Template = if proxy.contains("://") { proxy.parse()? } else { Template::at(proxy)? };
        let uri: Uri = template.expand("a", 1).parse().map_err(|error: InvalidUri| ProxyError::Target(error.into()))?;
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let authorization = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        let mut authorization = authorization.transpose().map_err(ProxyError::Token)?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let alpn = h3_quic::ALPN;
        Ok(Self {
            connector: PrivateClient::new(settings, alpn, alpn)?,
            host,
            port: uri.port_u16().unwrap_or(443),
            template,
            authorization,
            limit: settings.timeouts.response,
            open: Mutex::default(),
        })
    }

    /// Opens the connection to the proxy, which all tunnels share, if there is none. Otherwise the first tunnel does so.
    ///
    /// # Errors
    /// When the proxy cannot be reached.
    pub async fn connect(&self) -> Result<(), ProxyError> {
        self.connection().await.map(drop)
    }

    /// The open connection to the proxy, or a new one.
    async fn connection(&self) -> Result<SendRequest, ProxyError> {
        let mut open = self.open.lock().await;
        if let Some((sender, _)) = open.as_ref().filter(|(sender, _)| sender.connection().close_reason().is_none()) {
            return Ok(sender.clone());
        }
        let route = Route { only: Some(Leg::Quic), ..Route::default() };
        let channel = self.connector.connect(&self.host, self.port, &route).await?.channel;
        let private::Channel::Quic(_, connection, _) = &channel else {
            return Err(ProxyError::Broken(Cause::other("the connection is not one of QUIC")));
        };
        let sender = h3_quic::client::begin(connection.clone()).await.map_err(broken)?;
        *open = Some((sender.clone(), channel));
        Ok(sender)
    }

    /// Sends a request for a tunnel. Gives the way to it and the answer.
    async fn ask(
        &self,
        request: http::request::Builder,
        authorization: HeaderName,
    ) -> Result<(Sender<Bytes, BodyError>, Response<h3_quic::ResponseBody>), ProxyError> {
        let (say, body) = Channel::new(PARTS);
        let mut request = request.body(body).map_err(ProxyError::Target)?;
        let value = self.authorization.clone();
        request.headers_mut().extend(value.map(|value| (authorization, value)));
        let asking = async {
            let mut sender = self.connection().await?;
            sender.send(request).await.map_err(|error| match error {
                h3_quic::Error::NoConnectProtocol => ProxyError::NoExtendedConnect,
                error => broken(error),
            })
        };
        let response =
            tokio::time::timeout(self.limit, asking).await.map_err(|_| ProxyError::TimedOut(self.limit))??;
        let status = response.status();
        // RFC 9298 §3.1 MUST-8, RFC 9298 §3.5 MUST-1
        if !status.is_success() {
            let proxy_status = response.headers().get(PROXY_STATUS).and_then(|value| value.to_str().ok());
            return Err(ProxyError::Refused { status, proxy_status: proxy_status.map(str::to_owned) });
        }
        // RFC 9297 §3.2
        if matches!(status.as_u16(), 204..=206) {
            return Err(ProxyError::NoTunnel(status));
        }
        Ok((say, response))
    }

    /// Opens a tunnel for UDP to a host, a name or an IP address, and a port.
    ///
    /// # Errors
    /// When the proxy cannot be reached, or refuses.
    pub async fn open_udp(&self, host: &str, port: u16) -> Result<UdpTunnel, ProxyError> {
        // RFC 9298 §3.4 SHALL-1, SHALL-2, RFC 9298 §6 SHOULD-2
        let request = Request::connect(self.template.expand(host, port)).extension(Protocol::from_static(PROTOCOL));
        let request = request.header(CAPSULE_PROTOCOL, "?1");
        let (stream, mut response) = self.ask(request, header::AUTHORIZATION).await?;
        let datagrams: Option<Datagrams> = response.extensions_mut().remove();
        let Some(datagrams) = datagrams else { return Err(ProxyError::NoTunnel(response.status())) };
        let sender = UdpSender { stream, datagrams: datagrams.clone() };
        let capsules = Capsules::only(capsule::DATAGRAM, MAX_CAPSULE);
        Ok(UdpTunnel { sender, receiver: UdpReceiver { content: response.into_body(), capsules, datagrams } })
    }

    /// Opens a tunnel for TCP to a host and a port.
    ///
    /// # Errors
    /// When the proxy cannot be reached, or refuses.
    pub async fn open_tcp(&self, host: &str, port: u16) -> Result<TcpTunnel, ProxyError> {
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let (stream, response) = self.ask(Request::connect(authority), header::PROXY_AUTHORIZATION).await?;
        Ok(TcpTunnel { sender: TcpSender { stream }, receiver: TcpReceiver { content: response.into_body() } })
    }

    /// Closes the connection to the proxy, and all tunnels.
    pub async fn close(&self) {
        if let Some((_, channel)) = self.open.lock().await.take() {
            channel.close(h3_quic::Code::NO_ERROR.0, "").await;
        }
        self.connector.close().await;
    }
}

type BodyError = Box<dyn std::error::Error + Send + Sync>;

fn broken(error: h3_quic::Error) -> ProxyError {
    ProxyError::Broken(Cause::from(&error))
}

/// A tunnel for UDP. Dropped, it is cancelled; see [`UdpReceiver::close`].
pub struct UdpTunnel {
    sender: UdpSender,
    receiver: UdpReceiver,
}

/// Sending half of a tunnel for UDP. Dropped, it ends the tunnel.
pub struct UdpSender {
    stream: Sender<Bytes, BodyError>,
    datagrams: Datagrams,
}

/// Receiving half of a tunnel for UDP.
pub struct UdpReceiver {
    content: h3_quic::ResponseBody,
    capsules: Capsules,
    datagrams: Datagrams,
}

/// Fate of a UDP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentPayload {
    /// Queued as a QUIC datagram.
    Datagram,
    /// Queued as a capsule on the stream.
    Capsule,
    /// Dropped: the payload fits into no QUIC datagram, and has more than 1,200 bytes.
    TooLarge,
    /// Dropped: the stream has no room, or the connection has ended.
    Dropped,
}

impl UdpTunnel {
    /// Halves for two tasks.
    pub fn split(self) -> (UdpSender, UdpReceiver) {
        (self.sender, self.receiver)
    }
}

impl UdpSender {
    /// Sends a UDP payload, or drops it.
    // RFC 9298 §5 MUST NOT-1
    pub fn send(&mut self, payload: &[u8]) -> SentPayload {
        if self.datagrams.max_size().is_some_and(|max| payload.len() < max) {
            let sent = self.datagrams.send_parts(&[&[UDP_CONTEXT], payload]);
            return if sent.is_ok() { SentPayload::Datagram } else { SentPayload::Dropped };
        }
        if payload.len() > ALWAYS_CARRIED {
            return SentPayload::TooLarge;
        }
        let mut out = Vec::with_capacity(payload.len() + 16);
        capsule::write_parts(&mut out, capsule::DATAGRAM, &[&[UDP_CONTEXT], payload]);
        match self.stream.try_send(Frame::data(out.into())) {
            Ok(()) => SentPayload::Capsule,
            Err(_) => SentPayload::Dropped,
        }
    }

    /// The longest payload that fits into a QUIC datagram at the moment.
    pub fn max_datagram(&self) -> Option<usize> {
        self.datagrams.max_size()?.checked_sub(1)
    }
}

impl UdpReceiver {
    /// The next UDP payload from the target; `None` when the proxy has closed the tunnel. Cancel safe.
    ///
    /// # Errors
    /// When the tunnel broke off.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ProxyError> {
        loop {
            while let Some(capsule) = self.capsules.take().map_err(broken)? {
                if let Some(payload) = payload(&capsule.value)? {
                    return Ok(Some(payload));
                }
            }
            tokio::select! {
                Some(datagram) = self.datagrams.recv() => {
                    if let Some(payload) = payload(&datagram)? {
                        return Ok(Some(payload));
                    }
                }
                frame = self.content.frame() => match frame {
                    None => return Ok(None),
                    Some(frame) => {
                        if let Ok(data) = frame.map_err(broken)?.into_data() {
                            self.capsules.push(&data);
                        }
                    }
                },
            }
        }
    }

    /// Closes the tunnel, and waits for the proxy to close it, too, for at most a second. A tunnel whose halves are dropped is cancelled
    /// instead.
    pub async fn close(mut self, sender: UdpSender) {
        drop(sender);
        let closed = async { while let Some(Ok(_)) = self.content.frame().await {} };
        let _ = tokio::time::timeout(CLOSING, closed).await;
    }

    /// Next UDP payload, if one has arrived in a QUIC datagram.
    pub fn try_recv(&mut self) -> Option<Bytes> {
        while let Some(datagram) = self.datagrams.try_recv() {
            if let Ok(Some(payload)) = payload(&datagram) {
                return Some(payload);
            }
        }
        None
    }
}

/// The UDP payload of an HTTP datagram; `None` when it is of another context.
fn payload(datagram: &Bytes) -> Result<Option<Bytes>, ProxyError> {
    match Content::parse(datagram) {
        Content::Udp(payload) => Ok(Some(datagram.slice_ref(payload))),
        Content::Unknown => Ok(None),
        Content::TooLong => {
            let reason = "the proxy sends a payload that is too long for UDP".to_owned();
            Err(ProxyError::Broken(Cause::Protocol { code: None, reason }))
        }
    }
}

/// A tunnel for TCP.
pub struct TcpTunnel {
    sender: TcpSender,
    receiver: TcpReceiver,
}

/// Sending half of a tunnel for TCP. Dropping it ends this direction.
pub struct TcpSender {
    stream: Sender<Bytes, BodyError>,
}

/// Half of a tunnel for TCP that comes from the target.
pub struct TcpReceiver {
    content: h3_quic::ResponseBody,
}

impl TcpTunnel {
    /// Halves for two tasks.
    pub fn split(self) -> (TcpSender, TcpReceiver) {
        (self.sender, self.receiver)
    }
}

impl TcpSender {
    /// Sends all of `data`, as soon as there is room.
    ///
    /// # Errors
    /// When the tunnel accepts no more data.
    pub async fn send(&mut self, data: Bytes) -> Result<(), ProxyError> {
        let sent = self.stream.send_data(data).await;
        sent.map_err(|_| {
            ProxyError::Broken(Cause::Reset { code: None, reason: "the proxy takes no more data".to_owned() })
        })
    }

    /// Gives this direction up, so that it does not look complete.
    pub fn abort(self, reason: &str) {
        self.stream.abort(reason.into());
    }
}

impl TcpReceiver {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When the tunnel broke off.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ProxyError> {
        loop {
            let Some(frame) = self.content.frame().await else { return Ok(None) };
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                return Ok(Some(data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_too_long_for_udp_breaks_a_tunnel() {
        let datagram = |len: usize| Bytes::from([&[UDP_CONTEXT][..], &vec![0; len]].concat());
        assert_eq!(payload(&datagram(MAX_PAYLOAD)).unwrap().map(|payload| payload.len()), Some(MAX_PAYLOAD));
        let error = payload(&datagram(MAX_PAYLOAD + 1)).unwrap_err();
        assert!(matches!(error, ProxyError::Broken(Cause::Protocol { code: None, .. })), "{error:?}");
    }
}
