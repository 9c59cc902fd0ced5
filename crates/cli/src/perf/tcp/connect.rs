//! Connections of a client over TCP with TLS 1.3, and causes of their failure.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::{AlertDescription, ClientConfig, pki_types::ServerName};
use socket2::{Domain, Socket, Type};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    io::{self, ALPN},
    set_congestion,
    watch::Watch,
};
use crate::{address::plain, failure::Failure, perf::requests::Exchange};

/// The server.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// The name that its certificate has to be for.
    pub(super) name: ServerName<'static>,
    pub(super) tls: Arc<ClientConfig>,
    /// Congestion control of what this end sends; `None` for the kernel's default.
    pub(super) congestion: Option<String>,
    /// Time that TCP's and TLS's handshakes may take together.
    pub(super) patience: Duration,
}

/// A connection.
pub(super) struct Link {
    pub(super) tls: TlsStream<TcpStream>,
    pub(super) watch: Arc<Watch>,
    /// From the first packet until TLS was complete.
    pub(super) handshake: Duration,
    /// Beginning of the connection.
    pub(super) started: Instant,
}

impl Link {
    /// One request.
    ///
    /// # Errors
    /// When there is no answer.
    pub(super) async fn exchange(self) -> Result<Exchange, String> {
        let first_response = io::first_response(self.tls, self.started).await.map_err(|error| error.to_string())?;
        Ok(Exchange { handshake: self.handshake, first_response })
    }

    /// Returns whether TLS resumed a session.
    pub(super) fn is_resumed(&self) -> bool {
        self.tls.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }
}

/// Reason for a connection that is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{}", plain(.0))]
    Io(#[from] std::io::Error),
    #[error("the handshake timed out")]
    Timeout,
    #[error("the server speaks another protocol")]
    Protocol,
}

impl Peer {
    /// Opens a connection.
    ///
    /// # Errors
    /// When TCP or TLS fails, or both take longer than they may.
    pub(super) async fn connect(&self) -> Result<Link, ConnectError> {
        timeout(self.patience, self.handshake()).await.map_err(|_| ConnectError::Timeout)?
    }

    async fn handshake(&self) -> Result<Link, ConnectError> {
        let socket = Socket::new(Domain::for_address(self.address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(name) = &self.congestion {
            set_congestion(&socket, name)?;
        }
        let socket = TcpSocket::from_std_stream(socket.into());
        let started = Instant::now();
        let stream = socket.connect(self.address).await?;
        let watch = Arc::new(Watch::start(&stream)?);
        let tls = TlsConnector::from(self.tls.clone()).connect(self.name.clone(), stream).await?;
        if tls.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(ConnectError::Protocol);
        }
        Ok(Link { tls, watch, handshake: started.elapsed(), started })
    }

    /// Opens the first connection. Without it there is no run.
    ///
    /// # Errors
    /// As [`Self::connect`], with advice.
    pub(super) async fn reach(&self) -> Result<Link, Failure> {
        self.connect().await.map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &ConnectError) -> Failure {
        let failure = Failure::new(format_args!("cannot connect to {} over TCP: {error}", self.address));
        let another =
            "the server speaks another protocol: it has to be `tiderace perf server --tcp` of the same version";
        match error {
            ConnectError::Timeout => failure.hint(
                "does `tiderace perf server --tcp` run there, and do firewalls let TCP through? `--timeout` waits longer",
            ),
            ConnectError::Protocol => failure.hint(another),
            ConnectError::Io(error) => match error.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(rustls::Error::InvalidCertificate(_)) => failure
                    .hint("say whom to trust: `--pin FINGERPRINT` (the server prints it), `--ca FILE` or `--insecure`"),
                // RFC 7301 §3.2: no application protocol in common.
                Some(
                    rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)
                    | rustls::Error::InvalidMessage(_)
                    | rustls::Error::NoApplicationProtocol,
                ) => failure.hint(another),
                Some(_) => failure.hint("the server's own output may say more"),
                None if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    failure.hint("the port is closed: start `tiderace perf server --tcp` there, and give its port")
                }
                None => failure.hint("does `tiderace perf server --tcp` run there?"),
            },
        }
    }
}
