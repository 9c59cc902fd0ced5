//! Reachability: the first connection, and the reason for its failure.

use std::{io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

use tiderace::{
    ClientConfig, CloseReason, ConnectError, Connection, EarlyData, Endpoint, HandshakeFault,
    transport::tls::MemoryTickets,
};
use tokio::time::Instant;

use super::{
    requests::{Exchange, Kind},
    transfer::{self, TransferError},
};
use crate::{address::any_for, failure::Failure};

/// Time that the first connection may take before the system is asked whether the port is closed. Longer than almost any
/// round trip.
const PATIENCE: Duration = Duration::from_millis(400);

/// The server, for connections of one kind.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// The name that its certificate has to be for.
    pub(super) name: String,
    pub(super) config: ClientConfig,
    /// Tickets that the server has given.
    pub(super) tickets: Arc<MemoryTickets>,
}

/// A connection whose handshake is complete.
pub(super) struct Reached {
    pub(super) connection: Connection,
    started: Instant,
    pub(super) handshake: Duration,
}

impl Reached {
    /// One request on a connection that is of this kind.
    ///
    /// # Errors
    /// When there is no answer, or no session was resumed where that was asked for.
    pub(super) async fn exchange(&self, peer: &Peer, kind: Kind) -> Result<Exchange, String> {
        let first_response = transfer::first_response(&self.connection, self.started, false).await;
        let first_response = first_response.map_err(|error| error.to_string())?;
        let is_resumed = self.connection.stats().is_some_and(|stats| stats.resumed == 1);
        peer.leave(&self.connection, kind).await?;
        if kind != Kind::New && !is_resumed {
            return Err("the server did not resume the session".to_owned());
        }
        Ok(Exchange { handshake: self.handshake, first_response })
    }
}

/// Time that a ticket may take when everything else is there.
const TICKET_TIME: Duration = Duration::from_secs(1);

impl Peer {
    /// Opens a connection, and measures its handshake.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<Reached, ConnectError> {
        let started = Instant::now();
        let connection = endpoint.connect(&self.config, self.address, &self.name)?.await?;
        Ok(Reached { connection, started, handshake: started.elapsed() })
    }

    /// One request as early data.
    ///
    /// # Errors
    /// When there is no session to resume, or the server refuses early data.
    pub(super) async fn exchange_early(&self, endpoint: &Endpoint) -> Result<Exchange, String> {
        let started = Instant::now();
        let connecting = endpoint.connect(&self.config, self.address, &self.name).map_err(|error| error.to_string())?;
        let connection = match connecting.into_early() {
            Ok(connection) => connection,
            Err(connecting) => {
                // A full handshake brings the next ticket.
                let connection = connecting.await.map_err(|error| error.to_string())?;
                self.leave(&connection, Kind::EarlyData).await?;
                return Err("there was no ticket for early data".to_owned());
            }
        };
        let established = async {
            connection.established().await?;
            Ok::<_, TransferError>(started.elapsed())
        };
        let both = tokio::try_join!(established, transfer::first_response(&connection, started, true));
        let (handshake, first_response) = both.map_err(|error| error.to_string())?;
        let is_accepted = connection.early_data() == EarlyData::Accepted;
        self.leave(&connection, Kind::EarlyData).await?;
        if !is_accepted {
            return Err("the server refused early data".to_owned());
        }
        Ok(Exchange { handshake, first_response })
    }

    /// Ends a connection, once the server has completed the handshake, too, and given a ticket where the next one needs it.
    async fn leave(&self, connection: &Connection, kind: Kind) -> Result<(), String> {
        transfer::nothing(connection).await.map_err(|error| error.to_string())?;
        let until = Instant::now() + TICKET_TIME;
        while kind != Kind::New && self.tickets.count(&self.name) == 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        connection.close(0, b"");
        Ok(())
    }

    /// Opens the first connection. Without it there is no run.
    pub(super) async fn reach(&self, endpoint: &Endpoint) -> Result<Reached, Failure> {
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
            ConnectError::Closed(CloseReason::HandshakeFailed { fault: HandshakeFault::Certificate(_), .. }) => failure
                .hint("say whom to trust: `--pin FINGERPRINT` (the server prints it), `--ca FILE` or `--insecure`"),
            ConnectError::Closed(CloseReason::PeerClosed { error } | CloseReason::HandshakeFailed { error, .. })
                if HandshakeFault::of(error.code) == Some(HandshakeFault::NoApplicationProtocol) =>
            {
                failure
                    .hint("the server speaks another protocol: it has to be `tiderace perf server` of the same version")
            }
            ConnectError::Closed(CloseReason::VersionMismatch { .. }) => {
                failure.hint("the server speaks other versions of QUIC")
            }
            ConnectError::Closed(_) => failure.hint("the server's own output may say more"),
            _ => failure.hint("the name in the certificate is set with `--server-name`"),
        }
    }
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
