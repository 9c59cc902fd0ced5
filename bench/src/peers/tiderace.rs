//! tiderace on tokio's current-thread runtime, with its own UDP sockets, GSO and GRO, and its default profile beside the
//! packet size and the windows that all contenders are given.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, Profile, RustlsClient, RustlsServer, ServerConfig,
    transport::streams::StreamsConfig,
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

fn profile() -> Arc<Profile> {
    Arc::new(Profile {
        initial_mtu: UDP_PAYLOAD,
        idle_timeout: Duration::from_secs(120),
        streams: StreamsConfig {
            receive_window_stream: STREAM_WINDOW.into(),
            receive_window_connection: CONNECTION_WINDOW.into(),
            receive_window_max: CONNECTION_WINDOW.into(),
            max_streams_bidi: 1_000,
            ..StreamsConfig::default()
        },
        ..Profile::default()
    })
}

fn on_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

fn endpoint(address: SocketAddr, server: Option<ServerConfig>) -> Result<(Endpoint, u64)> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let granted = sys::set_socket_buffers(socket.as_fd(), SOCKET_BUFFER)?;
    Ok((Endpoint::on_socket(socket, EndpointOptions { server, ..EndpointOptions::default() })?, granted))
}

fn datagrams(endpoint: &Endpoint, connection: &Connection) -> Option<Datagrams> {
    let (stats, socket) = (connection.stats()?, endpoint.socket_stats());
    Some(Datagrams {
        sent: stats.datagrams_sent,
        send_calls: socket.send_calls,
        received: stats.datagrams_received,
        receive_calls: Some(socket.receive_calls),
        lost: stats.packets_lost,
    })
}

/// Receives a stream.
pub fn serve(listen: SocketAddr, bytes: u64, announce: impl FnOnce(&Announcement) -> Result<()>) -> Result<SideReport> {
    on_runtime(async {
        let identity = Identity::generate()?;
        let trust = identity.authority.clone();
        let tls = RustlsServer::from_config(identity.server_config()?)?;
        let (endpoint, socket_buffer) = endpoint(listen, Some(ServerConfig::new(Arc::new(tls), profile())))?;
        announce(&Announcement::new(endpoint.local_addr(), &trust))?;

        let connection = endpoint.accept().await.context("the endpoint closed")?;
        let (mut answer, mut stream) = connection.accept_bi().await?;
        let mut check = Check::new();
        let mut meter = None;
        while let Some(chunk) = stream.read_chunk(READ).await? {
            meter.get_or_insert_with(Meter::first_byte);
            check.take(&chunk)?;
        }
        let mut meter = meter.context("nothing to receive")?;
        meter.last_byte();
        let datagrams = datagrams(&endpoint, &connection);
        answer.write_all(ANSWER).await?;
        answer.finish()?;
        connection.closed().await;
        endpoint.wait_idle().await;
        Ok(SideReport {
            content_samples: check.finish(bytes)?,
            socket_buffer: Some(socket_buffer),
            datagrams,
            ..meter.report(Role::Receiver, bytes)
        })
    })
}

/// Sends a stream.
pub fn send(to: SocketAddr, trust: &[u8], bytes: u64) -> Result<SideReport> {
    on_runtime(async {
        let tls = RustlsClient::from_config(identity::client_config(trust)?)?;
        let config = ClientConfig::new(Arc::new(tls), profile());
        let (endpoint, socket_buffer) = endpoint(SocketAddr::from(([127, 0, 0, 1], 0)), None)?;
        let connection = endpoint.connect(&config, to, SERVER_NAME)?.await?;
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
        let datagrams = datagrams(&endpoint, &connection);
        connection.close(0, b"done");
        endpoint.wait_idle().await;
        Ok(SideReport { socket_buffer: Some(socket_buffer), datagrams, ..meter.report(Role::Sender, bytes) })
    })
}
