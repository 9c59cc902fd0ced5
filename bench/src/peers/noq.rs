//! noq on tokio's current-thread runtime, with its own UDP sockets, GSO and GRO, and its default congestion control.
//!
//! noq is a fork of quinn: this file is `quinn.rs` over noq's types. No trait spans both crates, and a macro over both would hide where
//! they come to differ.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::Arc,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use noq::{
    ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};

use crate::{
    identity::{self, SERVER_NAME, ServerIdentity},
    meter::Datagrams,
    stack::{Connection, EarlyVerdict, RecvStream, SendStream, Settings, Stack},
    sys,
};

/// Most bytes taken per read.
const READ: usize = 1 << 20;

/// An endpoint, and what a client connects with.
pub struct Noq {
    endpoint: Endpoint,
    client: Option<ClientConfig>,
    /// A client offers early data.
    resume: bool,
    socket_buffer: u64,
}

fn transport(settings: Settings) -> Result<Arc<TransportConfig>> {
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(Settings::STREAM_WINDOW))
        .receive_window(VarInt::from_u32(Settings::CONNECTION_WINDOW))
        .send_window(u64::from(Settings::CONNECTION_WINDOW))
        .max_concurrent_bidi_streams(VarInt::from_u32(settings.streams))
        .datagram_send_buffer_size(Settings::DATAGRAM_QUEUE as usize)
        .datagram_receive_buffer_size(Some(Settings::DATAGRAM_QUEUE as usize))
        .max_idle_timeout(Some(Settings::IDLE_TIMEOUT.try_into()?))
        // The packet size is given, not searched for.
        .initial_mtu(Settings::UDP_PAYLOAD)
        .mtu_discovery_config(None);
    Ok(Arc::new(config))
}

impl Noq {
    fn open(address: SocketAddr, server: Option<ServerConfig>, client: Option<ClientConfig>) -> Result<Self> {
        let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let socket_buffer = sys::set_socket_buffers(socket.as_fd(), Settings::SOCKET_BUFFER)?;
        let endpoint = Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?;
        Ok(Self { endpoint, client, resume: false, socket_buffer })
    }
}

impl Stack for Noq {
    type Connection = noq::Connection;
    const COUNTS_OPERATIONS: bool = true;

    fn serve(listen: SocketAddr, settings: Settings, identity: ServerIdentity) -> Result<Self> {
        let tls = QuicServerConfig::try_from(identity.server_config(settings.resume, true)?)?;
        let mut config = ServerConfig::with_crypto(Arc::new(tls));
        config.transport_config(transport(settings)?);
        Self::open(listen, Some(config), None)
    }

    fn client(trust: &[u8], settings: Settings) -> Result<Self> {
        let tls = QuicClientConfig::try_from(identity::client_config(trust, settings.resume, true)?)?;
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(transport(settings)?);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Ok(Self { resume: settings.resume, ..Self::open(any, None, Some(config))? })
    }

    fn address(&self) -> Result<SocketAddr> {
        Ok(self.endpoint.local_addr()?)
    }

    fn socket_buffer(&self) -> Option<u64> {
        Some(self.socket_buffer)
    }

    async fn accept(&mut self) -> Result<Self::Connection> {
        Ok(self.endpoint.accept().await.context("the endpoint closed")?.await?)
    }

    async fn connect(&self, to: SocketAddr) -> Result<(Self::Connection, Option<EarlyVerdict>)> {
        let config = self.client.clone().context("a server does not connect")?;
        let connecting = self.endpoint.connect_with(config, to, SERVER_NAME)?;
        if !self.resume {
            return Ok((connecting.await?, None));
        }
        match connecting.into_0rtt() {
            Ok((connection, accepted)) => Ok((connection, Some(Box::pin(accepted)))),
            Err(connecting) => Ok((connecting.await?, None)),
        }
    }

    async fn wait_idle(&mut self) {
        self.endpoint.wait_idle().await;
    }

    fn counts(&self, connections: &[Self::Connection]) -> Option<Datagrams> {
        // noq does not count system calls.
        let mut counts = Datagrams::default();
        for connection in connections {
            let stats = connection.stats();
            counts.sent += stats.udp_tx.datagrams;
            counts.received += stats.udp_rx.datagrams;
            counts.lost += stats.lost_packets;
        }
        Some(counts)
    }
}

impl Connection for noq::Connection {
    type Send = noq::SendStream;
    type Recv = noq::RecvStream;

    async fn open(&self) -> Result<(Self::Send, Self::Recv)> {
        Ok(self.open_bi().await?)
    }

    async fn accept(&self) -> Result<(Self::Send, Self::Recv)> {
        Ok(self.accept_bi().await?)
    }

    async fn send_datagram(&self, data: Bytes) -> Result<()> {
        Ok(self.send_datagram_wait(data).await?)
    }

    async fn read_datagram(&self) -> Result<Bytes> {
        Ok(noq::Connection::read_datagram(self).await?)
    }

    fn close(&self) {
        noq::Connection::close(self, VarInt::from_u32(0), b"done");
    }

    async fn closed(&self) {
        noq::Connection::closed(self).await;
    }
}

impl SendStream for noq::SendStream {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        Ok(self.write_chunk(data).await?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(noq::SendStream::finish(self)?)
    }
}

impl RecvStream for noq::RecvStream {
    async fn read(&mut self) -> Result<Option<Bytes>> {
        Ok(self.read_chunk(READ).await?)
    }
}
