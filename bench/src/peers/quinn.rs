//! quinn on tokio's current-thread runtime, with its own UDP sockets, GSO and GRO, and its default congestion control.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use quinn::{
    ClientConfig, ConnectionStats, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};

use super::{ANSWER, Announcement, CONNECTION_WINDOW, SOCKET_BUFFER, STREAM_WINDOW, UDP_PAYLOAD};
use crate::{
    content::{Check, Source},
    identity::{self, Identity, SERVER_NAME},
    meter::{Datagrams, Meter, Role, SideReport},
    sys,
};

/// Most bytes taken per read.
const READ: usize = 1 << 20;

fn transport() -> Result<Arc<TransportConfig>> {
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(u64::from(CONNECTION_WINDOW))
        .max_concurrent_bidi_streams(VarInt::from_u32(1_000))
        .max_idle_timeout(Some(Duration::from_secs(120).try_into()?))
        // The packet size is given, not searched for.
        .initial_mtu(UDP_PAYLOAD)
        .mtu_discovery_config(None);
    Ok(Arc::new(config))
}

fn on_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

fn endpoint(address: SocketAddr, server: Option<ServerConfig>) -> Result<(Endpoint, u64)> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let granted = sys::set_socket_buffers(socket.as_fd(), SOCKET_BUFFER)?;
    Ok((Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?, granted))
}

fn datagrams(stats: &ConnectionStats) -> Datagrams {
    Datagrams {
        sent: stats.udp_tx.datagrams,
        send_calls: stats.udp_tx.ios,
        received: stats.udp_rx.datagrams,
        // quinn counts a received datagram as an operation of its own, however it came.
        receive_calls: None,
        lost: stats.path.lost_packets,
    }
}

/// Receives a stream.
pub fn serve(listen: SocketAddr, bytes: u64, announce: impl FnOnce(&Announcement) -> Result<()>) -> Result<SideReport> {
    on_runtime(async {
        let identity = Identity::generate()?;
        let trust = identity.authority.clone();
        let tls = QuicServerConfig::try_from(identity.server_config()?)?;
        let mut config = ServerConfig::with_crypto(Arc::new(tls));
        config.transport_config(transport()?);
        let (endpoint, socket_buffer) = endpoint(listen, Some(config))?;
        announce(&Announcement::new(endpoint.local_addr()?, &trust))?;

        let connection = endpoint.accept().await.context("the endpoint closed")?.await?;
        let (mut answer, mut stream) = connection.accept_bi().await?;
        let mut check = Check::new();
        let mut meter = None;
        while let Some(chunk) = stream.read_chunk(READ, true).await? {
            meter.get_or_insert_with(Meter::first_byte);
            check.take(&chunk.bytes)?;
        }
        let mut meter = meter.context("nothing to receive")?;
        meter.last_byte();
        let stats = connection.stats();
        answer.write_all(ANSWER).await?;
        answer.finish()?;
        connection.closed().await;
        endpoint.wait_idle().await;
        Ok(SideReport {
            content_samples: check.finish(bytes)?,
            socket_buffer: Some(socket_buffer),
            datagrams: Some(datagrams(&stats)),
            ..meter.report(Role::Receiver, bytes)
        })
    })
}

/// Sends a stream.
pub fn send(to: SocketAddr, trust: &[u8], bytes: u64) -> Result<SideReport> {
    on_runtime(async {
        let tls = QuicClientConfig::try_from(identity::client_config(trust)?)?;
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(transport()?);
        let (endpoint, socket_buffer) = endpoint(SocketAddr::from(([127, 0, 0, 1], 0)), None)?;
        let connection = endpoint.connect_with(config, to, SERVER_NAME)?.await?;
        let (mut stream, mut answer) = connection.open_bi().await?;
        let source = Source::new();
        let mut sent = 0;
        let mut meter = Meter::first_byte();
        while sent < bytes {
            let len = Source::write_len(sent, bytes);
            stream.write_chunk(source.bytes_at(sent, len)).await?;
            sent += len as u64;
        }
        stream.finish()?;
        let answered = answer.read_to_end(ANSWER.len()).await?;
        meter.last_byte();
        ensure!(answered == ANSWER, "the server's answer is wrong");
        let stats = connection.stats();
        connection.close(VarInt::from_u32(0), b"done");
        endpoint.wait_idle().await;
        Ok(SideReport {
            socket_buffer: Some(socket_buffer),
            datagrams: Some(datagrams(&stats)),
            ..meter.report(Role::Sender, bytes)
        })
    })
}
