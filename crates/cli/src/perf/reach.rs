//! Reachability: the first connection, and the reason for its failure.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tiderace::{ClientConfig, CloseReason, ConnectError, Connection, Endpoint};

use crate::{address::any_for, failure::Failure};

/// Time that the first connection may take before the system is asked whether the port is closed. Longer than almost any
/// round trip.
const PATIENCE: Duration = Duration::from_millis(400);

/// The server.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// The name that its certificate has to be for.
    pub(super) name: String,
    pub(super) config: ClientConfig,
}

impl Peer {
    /// Opens a connection; says how long the handshake took.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<(Connection, Duration), ConnectError> {
        let started = Instant::now();
        let connection = endpoint.connect(&self.config, self.address, &self.name)?.await?;
        Ok((connection, started.elapsed()))
    }

    /// Opens the first connection. Without it there is no run.
    pub(super) async fn reach(&self, endpoint: &Endpoint) -> Result<(Connection, Duration), Failure> {
        tokio::select! {
            biased;
            connected = self.connect(endpoint) => connected.map_err(|error| self.explain(&error)),
            () = port_closed(self.address) => {
                Err(Failure::new(format_args!("nothing listens at {}: the port is closed", self.address))
                    .hint("start `tiderace perf server` there, and give its port"))
            }
        }
    }

    fn explain(&self, error: &ConnectError) -> Failure {
        let failure = Failure::new(format_args!("cannot connect to {}: {error}", self.address));
        match error {
            ConnectError::Closed(CloseReason::HandshakeTimeout) => failure.hint(
                "does `tiderace perf server` run there, and do firewalls let UDP through? `--timeout` waits longer",
            ),
            // RFC 8446 §6.2: the alerts about certificates are 42 to 46 and 48, as is RFC 6066's 113.
            ConnectError::Closed(CloseReason::HandshakeFailed(error))
                if alert(error.code.0, &[42, 43, 44, 45, 46, 48, 113]) =>
            {
                failure
                    .hint("say whom to trust: `--pin FINGERPRINT` (the server prints it), `--ca FILE` or `--insecure`")
            }
            // RFC 7301 §3.2: no application protocol in common.
            ConnectError::Closed(CloseReason::PeerClosed { error } | CloseReason::HandshakeFailed(error))
                if alert(error.code.0, &[120]) =>
            {
                failure.hint("the server speaks another protocol: it has to be `tiderace perf server`")
            }
            ConnectError::Closed(CloseReason::VersionMismatch { .. }) => {
                failure.hint("the server speaks other versions of QUIC")
            }
            ConnectError::Closed(_) => failure.hint("the server's own output may say more"),
            _ => failure.hint("the name in the certificate is set with `--server-name`"),
        }
    }
}

/// Returns whether the code stands for one of these TLS alerts (RFC 9001 §4.8).
fn alert(code: u64, alerts: &[u64]) -> bool {
    alerts.iter().any(|alert| code == 0x0100 + alert)
}

/// Ends when the system says that nothing listens at the address; otherwise never. QUIC itself does not believe such
/// messages, which anybody can forge; to somebody who waits in vain they are worth a lot.
async fn port_closed(address: SocketAddr) {
    tokio::time::sleep(PATIENCE).await;
    if told_closed(address).await != Some(ErrorKind::ConnectionRefused) {
        std::future::pending::<()>().await;
    }
}

/// The error that the system reports after one byte, which no QUIC server answers.
async fn told_closed(address: SocketAddr) -> Option<ErrorKind> {
    let socket = tokio::net::UdpSocket::bind(any_for(address)).await.ok()?;
    socket.connect(address).await.ok()?;
    socket.send(&[0]).await.ok()?;
    let mut buffer = [0; 16];
    socket.recv(&mut buffer).await.err().map(|error| error.kind())
}
