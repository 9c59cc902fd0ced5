//! s2n-quic on tokio's current-thread runtime, with its own UDP sockets, GSO and GRO, its default TLS (s2n-tls on aws-lc) and its
//! default congestion control.
//!
//! Its interface has no resumption that is declared stable, so the resumed mode does not exist. It counts neither datagrams nor
//! asymmetric operations in a way that is open to applications.

use std::{
    future::poll_fn,
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::Arc,
    task::Poll,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use s2n_quic::{
    Client, Server,
    client::Connect,
    connection::{Handle, StreamAcceptor},
    provider::{
        datagram::default::{Endpoint as DatagramEndpoint, Receiver, Sender},
        io::tokio::Provider as Io,
        limits::Limits,
        tls::default as tls,
    },
    stream::{ReceiveStream, SendStream as S2nSendStream},
};
use s2n_tls::security::Policy;
use tokio::sync::Mutex;

use crate::{
    identity::{ALPN, SERVER_NAME, ServerIdentity},
    meter::Datagrams,
    stack::{Connection, EarlyVerdict, RecvStream, SendStream, Settings, Stack},
    sys,
};

/// s2n-quic counts the headers of UDP and IPv4 in.
const MTU: u16 = Settings::UDP_PAYLOAD + 28;
/// Queues are bounded in datagrams: as many as others hold of 1,200 B in theirs.
const DATAGRAMS: usize = Settings::DATAGRAM_QUEUE as usize / 1_264;

/// An endpoint of either kind.
pub enum S2n {
    Server(Server, u64),
    Client(Client, u64),
}

/// A connection: streams are opened by the handle, and accepted by one at a time.
#[derive(Clone)]
pub struct S2nConnection {
    handle: Handle,
    acceptor: Arc<Mutex<StreamAcceptor>>,
}

fn io(address: SocketAddr) -> Result<(Io, u64)> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let granted = sys::set_socket_buffers(socket.as_fd(), Settings::SOCKET_BUFFER)?;
    let io = Io::builder().with_rx_socket(socket)?.with_base_mtu(1_228)?.with_initial_mtu(MTU)?.with_max_mtu(MTU)?;
    Ok((io.build()?, granted))
}

fn limits(settings: Settings) -> Result<Limits> {
    let streams = settings.streams.into();
    Ok(Limits::new()
        .with_data_window(Settings::CONNECTION_WINDOW.into())?
        .with_bidirectional_local_data_window(Settings::STREAM_WINDOW.into())?
        .with_bidirectional_remote_data_window(Settings::STREAM_WINDOW.into())?
        .with_max_open_local_bidirectional_streams(streams)?
        .with_max_open_remote_bidirectional_streams(streams)?
        .with_max_idle_timeout(Settings::IDLE_TIMEOUT)?)
}

fn datagrams() -> Result<DatagramEndpoint> {
    let builder = DatagramEndpoint::builder()
        .with_send_capacity(DATAGRAMS)
        .and_then(|builder| builder.with_recv_capacity(DATAGRAMS))
        .map_err(|error| anyhow::anyhow!("{error:?}"))?;
    Ok(builder.build()?)
}

/// Of what s2n-tls has, the one that puts TLS_AES_128_GCM_SHA256 and X25519 first, so that both sides agree on them; its default puts
/// P-256 first.
fn policy() -> Result<Policy> {
    Ok(Policy::from_version("AWS-CRT-SDK-TLSv1.3")?)
}

fn pem(label: &str, der: &[u8]) -> String {
    pem::encode(&pem::Pem::new(label, der))
}

impl From<s2n_quic::Connection> for S2nConnection {
    fn from(connection: s2n_quic::Connection) -> Self {
        let (handle, acceptor) = connection.split();
        Self { handle, acceptor: Arc::new(Mutex::new(acceptor)) }
    }
}

impl Stack for S2n {
    type Connection = S2nConnection;
    const COUNTS_OPERATIONS: bool = false;

    fn serve(listen: SocketAddr, settings: Settings, identity: ServerIdentity) -> Result<Self> {
        let certificate = pem("CERTIFICATE", &identity.leaf);
        let key = pem("PRIVATE KEY", identity.key.secret_der());
        let mut tls = tls::Server::builder();
        tls.config_mut().set_security_policy(&policy()?)?;
        let tls = tls
            .with_certificate(certificate.as_str(), key.as_str())
            .and_then(|builder| builder.with_application_protocols([ALPN].iter()))
            .and_then(tls::server::Builder::build)
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let (io, granted) = io(listen)?;
        let server = Server::builder()
            .with_tls(tls)?
            .with_io(io)?
            .with_limits(limits(settings)?)?
            .with_datagram(datagrams()?)?
            .start()?;
        Ok(Self::Server(server, granted))
    }

    fn client(trust: &[u8], settings: Settings) -> Result<Self> {
        let mut tls = tls::Client::builder();
        tls.config_mut().set_security_policy(&policy()?)?;
        let tls = tls
            .with_certificate(pem("CERTIFICATE", trust).as_str())
            .and_then(|builder| builder.with_application_protocols([ALPN].iter()))
            .and_then(tls::client::Builder::build)
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let (io, granted) = io(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let client = Client::builder()
            .with_tls(tls)?
            .with_io(io)?
            .with_limits(limits(settings)?)?
            .with_datagram(datagrams()?)?
            .start()?;
        Ok(Self::Client(client, granted))
    }

    fn address(&self) -> Result<SocketAddr> {
        Ok(match self {
            Self::Server(server, _) => server.local_addr()?,
            Self::Client(client, _) => client.local_addr()?,
        })
    }

    fn socket_buffer(&self) -> Option<u64> {
        let (Self::Server(_, granted) | Self::Client(_, granted)) = self;
        Some(*granted)
    }

    async fn accept(&mut self) -> Result<S2nConnection> {
        let Self::Server(server, _) = self else { bail!("a client does not accept") };
        Ok(server.accept().await.context("the endpoint closed")?.into())
    }

    async fn connect(&self, to: SocketAddr) -> Result<(S2nConnection, Option<EarlyVerdict>)> {
        let Self::Client(client, _) = self else { bail!("a server does not connect") };
        let connection = client.connect(Connect::new(to).with_server_name(SERVER_NAME)).await?;
        Ok((connection.into(), None))
    }

    async fn wait_idle(&mut self) {
        // A server has no such call; its process ends when each connection is closed.
        if let Self::Client(client, _) = self {
            let _ = client.wait_idle().await;
        }
    }

    fn counts(&self, _: &[S2nConnection]) -> Option<Datagrams> {
        None
    }
}

impl Connection for S2nConnection {
    type Send = S2nSendStream;
    type Recv = ReceiveStream;

    async fn open(&self) -> Result<(Self::Send, Self::Recv)> {
        let (recv, send) = self.handle.clone().open_bidirectional_stream().await?.split();
        Ok((send, recv))
    }

    async fn accept(&self) -> Result<(Self::Send, Self::Recv)> {
        let stream = self.acceptor.lock().await.accept_bidirectional_stream().await?;
        let (recv, send) = stream.context("the connection is closed")?.split();
        Ok((send, recv))
    }

    async fn send_datagram(&self, mut data: Bytes) -> Result<()> {
        poll_fn(|cx| {
            let sent = self.handle.datagram_mut(|sender: &mut Sender| sender.poll_send_datagram(&mut data, cx));
            match sent {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(sent)) => Poll::Ready(sent.map_err(|error| anyhow::anyhow!("{error}"))),
                Err(error) => Poll::Ready(Err(anyhow::anyhow!("{error:?}"))),
            }
        })
        .await
    }

    async fn read_datagram(&self) -> Result<Bytes> {
        poll_fn(|cx| {
            let received = self.handle.datagram_mut(|receiver: &mut Receiver| receiver.poll_recv_datagram(cx));
            match received {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(received)) => Poll::Ready(received.map_err(|error| anyhow::anyhow!("{error}"))),
                Err(error) => Poll::Ready(Err(anyhow::anyhow!("{error:?}"))),
            }
        })
        .await
    }

    fn is_resumed(&self) -> Option<bool> {
        // No session is kept.
        Some(false)
    }

    fn close(&self) {
        self.handle.close(0_u32.into());
    }

    async fn closed(&self) {
        // No stream comes any more: what is accepted next is the end.
        let _ = self.acceptor.lock().await.accept_bidirectional_stream().await;
    }
}

impl SendStream for S2nSendStream {
    async fn write(&mut self, data: Bytes) -> Result<()> {
        Ok(self.send(data).await?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(S2nSendStream::finish(self)?)
    }
}

impl RecvStream for ReceiveStream {
    async fn read(&mut self) -> Result<Option<Bytes>> {
        Ok(self.receive().await?)
    }
}
