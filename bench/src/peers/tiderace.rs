//! tiderace on tokio's current-thread runtime, with its own UDP sockets, GSO and GRO, and its default profile beside the
//! packet size, the windows and the limits that all contenders are given.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::Arc,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use tiderace::{
    ClientConfig, EarlyData, Endpoint, EndpointOptions, Handshakes, Profile, RustlsClient, RustlsServer, ServerConfig,
    transport::streams::StreamsConfig,
};

use crate::{
    identity::{self, SERVER_NAME, ServerIdentity},
    meter::Datagrams,
    stack::{Connection, EarlyVerdict, RecvStream, SendStream, Settings, Stack},
    sys,
};

/// Most bytes taken per read.
const READ: usize = 1 << 20;

/// An endpoint, and what a client connects with. A server's TLS runs on a pool of threads, which is the default, or not.
pub struct Tiderace<const POOL: bool> {
    pub(super) endpoint: Endpoint,
    client: Option<ClientConfig>,
    /// A client sends early data.
    resume: bool,
    socket_buffer: u64,
}

/// A connection, and whether its streams may be early.
#[derive(Clone)]
pub struct TideraceConnection {
    connection: tiderace::Connection,
    early: bool,
}

/// The suite of all contenders in the form of the builders' configurations.
fn suite() -> Result<rustls::SupportedCipherSuite> {
    let suites = tiderace::transport::tls::rustls_backend::crypto_provider().cipher_suites;
    let wanted = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    suites.into_iter().find(|suite| suite.suite() == wanted).context("the suite is built in")
}

fn profile(settings: Settings) -> Arc<Profile> {
    Arc::new(Profile {
        // The packet size is given, not searched for.
        initial_mtu: Settings::UDP_PAYLOAD,
        max_mtu: Settings::UDP_PAYLOAD,
        idle_timeout: Settings::IDLE_TIMEOUT,
        datagram_queue: Settings::DATAGRAM_QUEUE.into(),
        streams: StreamsConfig {
            receive_window_stream: Settings::STREAM_WINDOW.into(),
            receive_window_connection: Settings::CONNECTION_WINDOW.into(),
            receive_window_max: Settings::CONNECTION_WINDOW.into(),
            max_streams_bidi: settings.streams.into(),
            ..StreamsConfig::default()
        },
        ..Profile::default()
    })
}

impl<const POOL: bool> Tiderace<POOL> {
    fn open(address: SocketAddr, server: Option<ServerConfig>, client: Option<ClientConfig>) -> Result<Self> {
        let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let socket_buffer = sys::set_socket_buffers(socket.as_fd(), Settings::SOCKET_BUFFER)?;
        let handshakes = if POOL { Handshakes::default() } else { Handshakes::InPlace };
        let options = EndpointOptions { server, handshakes, ..EndpointOptions::default() };
        let endpoint = Endpoint::on_socket(socket, options)?;
        Ok(Self { endpoint, client, resume: false, socket_buffer })
    }
}

impl<const POOL: bool> Stack for Tiderace<POOL> {
    type Connection = TideraceConnection;
    const COUNTS_OPERATIONS: bool = true;

    fn serve(listen: SocketAddr, settings: Settings, identity: ServerIdentity) -> Result<Self> {
        let tls = RustlsServer::from_config(identity.server_config_with(suite()?, settings.resume, true)?)?;
        Self::open(listen, Some(ServerConfig::new(Arc::new(tls), profile(settings))), None)
    }

    fn client(trust: &[u8], settings: Settings) -> Result<Self> {
        let tls = RustlsClient::from_config(identity::client_config_with(suite()?, trust, settings.resume, true)?)?;
        let config = ClientConfig::new(Arc::new(tls), profile(settings));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Ok(Self { resume: settings.resume, ..Self::open(any, None, Some(config))? })
    }

    fn address(&self) -> Result<SocketAddr> {
        Ok(self.endpoint.local_addr())
    }

    fn socket_buffer(&self) -> Option<u64> {
        Some(self.socket_buffer)
    }

    async fn accept(&mut self) -> Result<Self::Connection> {
        let connection = self.endpoint.accept().await.context("the endpoint closed")?;
        Ok(TideraceConnection { connection, early: false })
    }

    async fn connect(&self, to: SocketAddr) -> Result<(Self::Connection, Option<EarlyVerdict>)> {
        let config = self.client.as_ref().context("a server does not connect")?;
        let connecting = self.endpoint.connect(config, to, SERVER_NAME)?;
        if !self.resume {
            return Ok((TideraceConnection { connection: connecting.await?, early: false }, None));
        }
        match connecting.into_early() {
            Ok(connection) => {
                let asked = connection.clone();
                let verdict =
                    Box::pin(
                        async move { asked.established().await.is_ok() && asked.early_data() == EarlyData::Accepted },
                    );
                Ok((TideraceConnection { connection, early: true }, Some(verdict)))
            }
            Err(connecting) => Ok((TideraceConnection { connection: connecting.await?, early: false }, None)),
        }
    }

    async fn wait_idle(&mut self) {
        self.endpoint.wait_idle().await;
    }

    fn counts(&self, connections: &[Self::Connection]) -> Option<Datagrams> {
        let socket = self.endpoint.socket_stats();
        let calls = (Some(socket.send_calls), Some(socket.receive_calls));
        let mut counts = Datagrams { send_calls: calls.0, receive_calls: calls.1, ..Datagrams::default() };
        for connection in connections {
            let stats = connection.connection.stats()?;
            counts.sent += stats.datagrams_sent;
            counts.received += stats.datagrams_received;
            counts.lost += stats.packets_lost;
        }
        Some(counts)
    }
}

impl Connection for TideraceConnection {
    type Send = tiderace::SendStream;
    type Recv = tiderace::RecvStream;

    async fn open(&self) -> Result<(Self::Send, Self::Recv)> {
        if self.early {
            return Ok(self.connection.open_bi_early().await?);
        }
        Ok(self.connection.open_bi().await?)
    }

    async fn accept(&self) -> Result<(Self::Send, Self::Recv)> {
        Ok(self.connection.accept_bi().await?)
    }

    async fn send_datagram(&self, data: Bytes) -> Result<()> {
        Ok(self.connection.send_datagram_wait(data).await?)
    }

    async fn read_datagram(&self) -> Result<Bytes> {
        Ok(self.connection.read_datagram().await?)
    }

    fn close(&self) {
        self.connection.close(0, b"done");
    }

    async fn closed(&self) {
        self.connection.closed().await;
    }
}

impl SendStream for tiderace::SendStream {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        Ok(self.write_chunk(data).await?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(tiderace::SendStream::finish(self)?)
    }

    async fn write_last(self, data: Bytes) -> Result<()> {
        Ok(tiderace::SendStream::write_last(self, data).await?)
    }
}

impl RecvStream for tiderace::RecvStream {
    async fn read(&mut self) -> Result<Option<Bytes>> {
        Ok(self.read_chunk(READ).await?)
    }
}
