//! Connection to a proxy over HTTP/2, for networks that block UDP: CONNECT, and extended CONNECT (RFC 8441).

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Ping, PingPong, RecvStream, SendStream,
    client::{Builder, SendRequest},
    ext::Protocol,
};
use http::{Request, Response};
use tokio::{net::TcpStream, sync::oneshot};
use tokio_rustls::client::TlsStream;

use super::{ProxyError, error::broken_h2};
use crate::{closing::ClosingConnections, error::Cause};

/// Name of the protocol in TLS.
pub(super) const ALPN: &[u8] = b"h2";
/// Limits on memory: bytes of a field section, and of unread content, for a tunnel and in total. The connection has room for 32 tunnels that
/// nobody reads: when its window is full, no other tunnel goes on.
const FIELDS: u32 = 64 * 1024;
const STREAM: u32 = 2 << 20;
const CONNECTION: u32 = 64 << 20;
/// Bytes of a tunnel that wait for the connection.
const UNSENT: usize = 256 * 1024;
/// Interval of PINGs, and time limit of their answers.
const PING: Duration = Duration::from_secs(20);

/// An open connection.
#[derive(Clone)]
pub(super) struct H2Link {
    sender: SendRequest<Bytes>,
    is_closed: Arc<AtomicBool>,
    remote: Option<SocketAddr>,
}

impl H2Link {
    /// Begins HTTP/2. Returns when the proxy's SETTINGS have arrived: they say whether there is extended CONNECT.
    pub(super) async fn begin(stream: TlsStream<TcpStream>, closing: &ClosingConnections) -> Result<Self, ProxyError> {
        let mut builder = Builder::new();
        builder.enable_push(false).max_header_list_size(FIELDS).max_send_buffer_size(UNSENT);
        builder.initial_window_size(STREAM).initial_connection_window_size(CONNECTION);
        let remote = stream.get_ref().0.peer_addr().ok();
        let handshake = builder.handshake::<_, Bytes>(stream).await;
        let (sender, mut connection) = handshake.map_err(|error| broken_h2(&error))?;
        let ping = connection.ping_pong();
        let is_closed = Arc::new(AtomicBool::new(false));
        let (settled, has_settled) = oneshot::channel();
        let driver = {
            let is_closed = is_closed.clone();
            async move {
                let ended = tokio::select! {
                    ended = connection => ended.map_err(|error| error.to_string()),
                    () = watch(ping, settled) => Err("the proxy does not answer PING".to_owned()),
                };
                is_closed.store(true, Relaxed);
                ended
            }
        };
        closing.await_driver(driver);
        let ended = || ProxyError::Broken(Cause::other("the proxy closed the connection over HTTP/2 at its start"));
        has_settled.await.map_err(|_| ended())?;
        Ok(Self { sender, is_closed, remote })
    }

    /// Address of the proxy.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Waits until the proxy permits another stream. Returns false if it permits no more on this connection (GOAWAY).
    pub(super) async fn is_ready(&self) -> bool {
        let is_ready = self.sender.clone().ready().await.is_ok();
        if !is_ready {
            self.is_closed.store(true, Relaxed);
        }
        is_ready
    }

    /// Sends a request, with the protocol of an extended CONNECT, and waits for the answer.
    pub(super) async fn ask(
        &mut self,
        mut request: Request<()>,
        protocol: Option<&'static str>,
    ) -> Result<(SendStream<Bytes>, Response<RecvStream>), ProxyError> {
        let mut sender = self.sender.clone().ready().await.map_err(|error| broken_h2(&error))?;
        if let Some(protocol) = protocol {
            // RFC 8441 §3 MUST NOT: not without the peer's SETTINGS_ENABLE_CONNECT_PROTOCOL.
            if !sender.is_extended_connect_protocol_enabled() {
                return Err(ProxyError::NoExtendedConnect);
            }
            request.extensions_mut().insert(Protocol::from_static(protocol));
        }
        let (response, stream) = sender.send_request(request, false).map_err(|error| broken_h2(&error))?;
        let response = response.await.map_err(|error| broken_h2(&error))?;
        Ok((stream, response))
    }
}

/// Sends PINGs until one has no answer. SETTINGS of the peer have arrived before the answer to the first one.
async fn watch(ping: Option<PingPong>, settled: oneshot::Sender<()>) {
    let Some(mut ping) = ping else { return };
    let mut settled = Some(settled);
    loop {
        match tokio::time::timeout(PING, ping.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection has ended, and its own error says why.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => return,
        }
        if let Some(settled) = settled.take() {
            let _ = settled.send(());
        }
        tokio::time::sleep(PING).await;
    }
}
