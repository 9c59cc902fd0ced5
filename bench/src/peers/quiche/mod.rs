//! quiche on tokio's current-thread runtime. It has neither sockets nor an asynchronous interface, so a driver of ours gives it both: one
//! task with a socket that sends and receives in batches (quinn-udp), and streams that tasks wait on. Stream data is handed over
//! as `Bytes` without a copy and read with one copy, as its interface has it. TLS is BoringSSL, congestion control its
//! default (CUBIC).
//!
//! It does not count asymmetric operations; the client asks it whether its session was resumed.

mod driver;
mod link;
mod settings;

use std::{
    future::poll_fn,
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::{Arc, Mutex},
    task::Poll,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use quiche::{Config, ConnectionId};

use self::{
    driver::{Driver, random_id},
    link::{Link, Shared, lock},
};
use crate::{
    identity::{SERVER_NAME, ServerIdentity},
    meter::Datagrams,
    stack::{Connection, EarlyVerdict, RecvStream, SendStream, Settings, Stack},
    sys,
};

/// An endpoint.
pub struct Quiche {
    shared: Arc<Shared>,
    local: SocketAddr,
    socket_buffer: u64,
    /// Of a client.
    config: Option<Mutex<Config>>,
    /// A client that resumes: the session that the last connection left.
    session: Option<Session>,
}

type Session = Arc<Mutex<Option<Vec<u8>>>>;

/// A connection.
#[derive(Clone)]
pub struct QuicheConnection {
    link: Arc<Link>,
    session: Option<Session>,
}

/// The sending half of a stream.
pub struct QuicheSend {
    link: Arc<Link>,
    id: u64,
    /// quiche knows of the stream.
    heard: bool,
}

/// The receiving half of a stream.
pub struct QuicheRecv {
    link: Arc<Link>,
    id: u64,
    finished: bool,
}

impl Quiche {
    /// Called within a runtime.
    fn open(address: SocketAddr, server: Option<Config>) -> Result<Self> {
        let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let socket_buffer = sys::set_socket_buffers(socket.as_fd(), Settings::SOCKET_BUFFER)?;
        let local = socket.local_addr()?;
        let shared = Arc::new(Shared::default());
        tokio::spawn(Driver::new(socket, server, shared.clone())?.run());
        Ok(Self { shared, local, socket_buffer, config: None, session: None })
    }
}

impl Stack for Quiche {
    type Connection = QuicheConnection;
    const COUNTS_OPERATIONS: bool = false;

    fn serve(listen: SocketAddr, settings: Settings, identity: ServerIdentity) -> Result<Self> {
        Self::open(listen, Some(settings::server(settings, &identity)?))
    }

    fn client(trust: &[u8], settings: Settings) -> Result<Self> {
        let config = Mutex::new(settings::client(settings, trust)?);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let session = settings.resume.then(Session::default);
        Ok(Self { config: Some(config), session, ..Self::open(any, None)? })
    }

    fn address(&self) -> Result<SocketAddr> {
        Ok(self.local)
    }

    fn socket_buffer(&self) -> Option<u64> {
        Some(self.socket_buffer)
    }

    async fn accept(&mut self) -> Result<QuicheConnection> {
        poll_fn(|cx| {
            let mut agenda = lock(&self.shared.agenda);
            if let Some(link) = agenda.accepted.pop_front() {
                return Poll::Ready(Ok(QuicheConnection { link, session: None }));
            }
            if agenda.failed {
                return Poll::Ready(Err(anyhow::anyhow!("the endpoint closed")));
            }
            agenda.accepting = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    async fn connect(&self, to: SocketAddr) -> Result<(QuicheConnection, Option<EarlyVerdict>)> {
        let own = random_id();
        let scid = ConnectionId::from_ref(&own);
        let mut quic = {
            let mut config = lock(self.config.as_ref().context("a server does not connect")?);
            quiche::connect_with_buffer_factory(Some(SERVER_NAME), &scid, self.local, to, &mut config)?
        };
        let session = self.session.as_ref().and_then(|session| lock(session).take());
        if let Some(session) = &session {
            quic.set_session(session)?;
        }
        let link = Link::new(quic, self.shared.clone(), vec![own.to_vec()]);
        let connection = QuicheConnection { link: link.clone(), session: self.session.clone() };
        link.list(&mut link.state());
        if session.is_some() {
            // What is written now goes with the first packets.
            let verdict =
                async move { poll_fn(|cx| link.poll_established(cx)).await.is_ok() && link.early_data_was_accepted() };
            return Ok((connection, Some(Box::pin(verdict))));
        }
        poll_fn(|cx| link.poll_established(cx)).await?;
        let suite = link.cipher_suite();
        ensure!(suite == Some("TLS_AES_128_GCM_SHA256"), "another cipher suite than the other stacks: {suite:?}");
        Ok((connection, None))
    }

    async fn wait_idle(&mut self) {
        poll_fn(|cx| {
            let mut agenda = lock(&self.shared.agenda);
            if agenda.live == 0 || agenda.failed {
                return Poll::Ready(());
            }
            agenda.emptying = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn counts(&self, connections: &[QuicheConnection]) -> Option<Datagrams> {
        let agenda = lock(&self.shared.agenda);
        let calls = (Some(agenda.send_calls), Some(agenda.receive_calls));
        drop(agenda);
        let mut counts = Datagrams { send_calls: calls.0, receive_calls: calls.1, ..Datagrams::default() };
        for connection in connections {
            // Counted in packets, of which each is a datagram once the handshake has ended.
            let stats = connection.link.state().quic.stats();
            counts.sent += u64::try_from(stats.sent).ok()?;
            counts.received += u64::try_from(stats.recv).ok()?;
            counts.lost += u64::try_from(stats.lost).ok()?;
        }
        Some(counts)
    }
}

impl QuicheConnection {
    fn stream(&self, id: u64, heard: bool) -> (QuicheSend, QuicheRecv) {
        let link = self.link.clone();
        (QuicheSend { link: link.clone(), id, heard }, QuicheRecv { link, id, finished: false })
    }
}

impl Connection for QuicheConnection {
    type Send = QuicheSend;
    type Recv = QuicheRecv;

    async fn open(&self) -> Result<(Self::Send, Self::Recv)> {
        Ok(self.stream(poll_fn(|cx| self.link.poll_open(cx)).await?, false))
    }

    async fn accept(&self) -> Result<(Self::Send, Self::Recv)> {
        Ok(self.stream(poll_fn(|cx| self.link.poll_accept(cx)).await?, true))
    }

    async fn send_datagram(&self, data: Bytes) -> Result<()> {
        poll_fn(|cx| self.link.poll_send_datagram(cx, &data)).await
    }

    async fn read_datagram(&self) -> Result<Bytes> {
        poll_fn(|cx| self.link.poll_read_datagram(cx)).await
    }

    fn is_resumed(&self) -> Option<bool> {
        Some(self.link.state().quic.is_resumed())
    }

    fn close(&self) {
        if let Some(session) = &self.session {
            *lock(session) = self.link.state().quic.session().map(<[u8]>::to_vec);
        }
        self.link.close();
    }

    async fn closed(&self) {
        poll_fn(|cx| self.link.poll_over(cx)).await;
    }
}

impl SendStream for QuicheSend {
    async fn write(&mut self, mut data: Bytes) -> Result<()> {
        poll_fn(|cx| self.link.poll_write(cx, self.id, &mut data, &mut self.heard)).await
    }

    fn finish(&mut self) -> Result<()> {
        self.link.finish(self.id, &mut self.heard)
    }
}

impl RecvStream for QuicheRecv {
    async fn read(&mut self) -> Result<Option<Bytes>> {
        if self.finished {
            return Ok(None);
        }
        let (bytes, last) = poll_fn(|cx| self.link.poll_read(cx, self.id)).await?;
        self.finished = last;
        Ok((!bytes.is_empty()).then_some(bytes))
    }
}
