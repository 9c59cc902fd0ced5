//! Protocols other than HTTP: each bidirectional stream becomes a connection to a back end, datagrams use a UDP socket.
//!
//! The end of a stream is the end of the connection in that direction, both ways. A reset by the client resets the back end's connection. A
//! failure of the back end resets the stream, with [`BROKEN`]. A back end without a connection is [`UNREACHABLE`].

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tiderace::Connection;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UdpSocket, UnixStream},
};

pub(crate) use crate::stream_halves::{Datagrams, Incoming, Outgoing, StreamClosed};
use crate::{
    config::{host_port, webtransport::ECHO},
    context::ListenerContext,
    ending::{Cause, Ending},
    generation::Shared,
    metrics::{ProtocolLabel, ResultLabels},
    room::{ReadRoom, Rooms},
    stream_target::StreamTarget,
    tcp_back_end::TcpBackEnd,
};

/// Code of a connection or stream without a target.
pub(crate) const NOBODY: u64 = 1;
/// Code of a stream whose back end cannot be reached.
pub(crate) const UNREACHABLE: u64 = 2;
/// Code of a stream whose back end has broken off.
pub(crate) const BROKEN: u64 = 3;
/// Code with which a connection is closed when its time has ended.
const DRAINED: u64 = 0;

/// Bytes of a client that are written to its back end at a time.
const CHUNK: usize = 16 * 1024;

/// Client of a connection: its identity, for back ends that need it, and its memory budget.
#[derive(Clone, Debug)]
pub(crate) struct StreamClient {
    pub(crate) remote: SocketAddr,
    pub(crate) alpn: Vec<u8>,
    pub(crate) name: Option<String>,
    /// Memory of the connection for what its streams read.
    pub(crate) rooms: Rooms,
}

impl StreamClient {
    fn of(connection: &Connection, local: SocketAddr, rooms: &Rooms) -> Self {
        Self {
            remote: connection.remote_address().unwrap_or(local),
            alpn: connection.alpn().unwrap_or_default(),
            name: connection.server_name(),
            rooms: rooms.clone(),
        }
    }
}

/// Early end of copying a stream.
enum CopyError {
    /// By the client's reset, or with its connection.
    Client,
    /// By the back end.
    BackEnd(io::Error),
}

/// Serves a connection until it has ended, from its early data on or from the end of its handshake. A drain lets its streams end, and
/// takes no more.
pub(crate) async fn serve(
    connection: &Connection,
    target: &Arc<StreamTarget>,
    context: &ListenerContext,
    takes_early_data: bool,
) {
    if !takes_early_data && connection.established().await.is_err() {
        return;
    }
    // Without a budget the connection has ended.
    let Some(memory) = connection.memory_budget() else { return };
    let rooms = Rooms::new(&memory);
    carry_datagrams(connection.clone(), target);
    let mut drain = std::pin::pin!(context.drain());
    let (cause, mut streams) = (Cause::default(), tokio::task::JoinSet::new());
    loop {
        let halves = tokio::select! {
            accepted = connection.accept_bi() => accepted,
            () = &mut drain => break,
            Some(_) = streams.join_next() => continue,
        };
        // The connection has ended, and its streams notice by themselves.
        let Ok((send, recv)) = halves else { return };
        let who = StreamClient::of(connection, context.local, &rooms);
        streams.spawn(carry(send, recv, who, "stream", target.clone(), context.clone(), &cause));
    }
    let patience = context.shared.current().config.drain.0;
    let rest = async {
        while streams.join_next().await.is_some() {}
        while connection.close_reason().is_none() && connection.unacknowledged() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(patience, rest).await.is_err() {
        cause.note(Ending::Drained);
    }
    drop(streams);
    connection.close(DRAINED, b"");
}

/// Carries the datagrams of a connection until it has ended. Without a receiver they are read and discarded, so that none is
/// kept.
pub(crate) fn carry_datagrams(connection: impl Datagrams + Sync, target: &Arc<StreamTarget>) {
    if !target.takes_datagrams() {
        tokio::spawn(async move { while connection.read().await.is_some() {} });
        return;
    }
    let target = target.clone();
    tokio::spawn(async move {
        if let Err(error) = datagrams(&connection, &target).await {
            tracing::debug!("datagrams to {}: {error}", target.config.datagrams_to);
        }
    });
}

/// A stream in the books. Dropped, it is counted by its result.
pub(crate) struct Entry {
    shared: Arc<Shared>,
    protocol: &'static str,
    result: Option<&'static str>,
    /// Reason for which this endpoint ends all streams of the connection, if it does.
    cause: Cause,
}

impl Entry {
    pub(crate) fn begin(shared: &Arc<Shared>, protocol: &'static str, cause: &Cause) -> Self {
        let label = ProtocolLabel { protocol };
        shared.metrics.streams.begun.get_or_create(&label).inc();
        shared.metrics.streams.in_flight.get_or_create(&label).inc();
        Self { shared: shared.clone(), protocol, result: None, cause: cause.clone() }
    }

    pub(crate) fn end(mut self, result: &'static str) {
        self.result = Some(result);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let (metrics, protocol) = (&self.shared.metrics, self.protocol);
        let drained = self.cause.get().or_else(|| self.shared.cause.get()).map(Ending::reason);
        let result = self.result.or(drained).unwrap_or("lost");
        metrics.streams.ended.get_or_create(&ResultLabels { protocol, result }).inc();
        metrics.streams.in_flight.get_or_create(&ProtocolLabel { protocol }).dec();
    }
}

/// Gives a stream up that is not carried, with this result in the books.
pub(crate) fn refuse(
    send: &mut impl Outgoing,
    recv: &mut impl Incoming,
    code: u64,
    protocol: &'static str,
    result: &'static str,
    shared: &Arc<Shared>,
) {
    count_refused(protocol, result, shared);
    send.reset(code);
    recv.stop(code);
}

/// Enters a stream that is not carried into the books.
pub(crate) fn count_refused(protocol: &'static str, result: &'static str, shared: &Arc<Shared>) {
    Entry::begin(shared, protocol, &Cause::default()).end(result);
}

/// Carries one stream. Its entry in the books is open from here on, whether the future is ever polled or not.
pub(crate) fn carry<S: Outgoing, R: Incoming>(
    send: S,
    recv: R,
    who: StreamClient,
    protocol: &'static str,
    target: Arc<StreamTarget>,
    context: ListenerContext,
    cause: &Cause,
) -> impl Future<Output = ()> + Send + use<S, R> {
    let entry = Entry::begin(&context.shared, protocol, cause);
    async move {
        let result = stream(send, recv, who, &target, &context).await;
        entry.end(result);
    }
}

/// Carries one stream. Returns its outcome.
async fn stream<S: Outgoing, R: Incoming>(
    mut send: S,
    mut recv: R,
    who: StreamClient,
    target: &StreamTarget,
    context: &ListenerContext,
) -> &'static str {
    let to = &target.config.to;
    let give_up = |send: &mut S, recv: &mut R, code| {
        send.reset(code);
        recv.stop(code);
    };
    if to.is_empty() {
        give_up(&mut send, &mut recv, NOBODY);
        return "refused";
    }
    if to == ECHO {
        return match echo(&mut send, &mut recv).await {
            Ok(()) => "completed",
            Err(_) => {
                give_up(&mut send, &mut recv, BROKEN);
                "reset"
            }
        };
    }
    let room = who.rooms.one().await;
    let patience = target.config.connect_timeout.0;
    let Ok(Ok(_place)) = tokio::time::timeout(patience, target.places.acquire()).await else {
        give_up(&mut send, &mut recv, UNREACHABLE);
        return "queued";
    };
    let introduction =
        target.config.proxy_protocol.then(|| proxy_header(who.remote, context.local, &who.alpn, who.name.as_deref()));
    let copied = if let Some(path) = to.strip_prefix("unix:") {
        match tokio::time::timeout(patience, UnixStream::connect(path)).await {
            Ok(Ok(mut back_end)) => {
                let (from, to) = back_end.split();
                Some(copy(&mut send, &mut recv, from, to, introduction, room).await)
            }
            _ => None,
        }
    } else {
        let address = host_port(to, "tcp://").unwrap_or_default();
        match tokio::time::timeout(patience, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let mut back_end = TcpBackEnd::new(stream);
                let (from, to) = back_end.split();
                let copied = copy(&mut send, &mut recv, from, to, introduction, room).await;
                if copied.is_ok() {
                    back_end.complete();
                }
                Some(copied)
            }
            _ => None,
        }
    };
    match copied {
        None => {
            give_up(&mut send, &mut recv, UNREACHABLE);
            "unreachable"
        }
        Some(Ok(())) => "completed",
        Some(Err(CopyError::Client)) => {
            give_up(&mut send, &mut recv, BROKEN);
            "reset"
        }
        Some(Err(CopyError::BackEnd(error))) => {
            tracing::debug!("{to}: {error}");
            give_up(&mut send, &mut recv, BROKEN);
            "broken"
        }
    }
}

/// Copies both directions until both have ended.
async fn copy(
    send: &mut impl Outgoing,
    recv: &mut impl Incoming,
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    introduction: Option<Vec<u8>>,
    room: ReadRoom,
) -> Result<(), CopyError> {
    tokio::try_join!(up(recv, to, introduction), down(send, from, room)).map(drop)
}

/// Sends back what comes, and its end.
async fn echo(send: &mut impl Outgoing, recv: &mut impl Incoming) -> Result<(), StreamClosed> {
    loop {
        match recv.read_chunk(CHUNK).await {
            Ok(Some(data)) => match send.write_chunk(data).await {
                Ok(()) => {}
                Err(StreamClosed::Unwanted) => return Ok(()),
                Err(StreamClosed::Failed) => return Err(StreamClosed::Failed),
            },
            Ok(None) | Err(StreamClosed::Unwanted) => {
                send.finish();
                return Ok(());
            }
            Err(StreamClosed::Failed) => return Err(StreamClosed::Failed),
        }
    }
}

async fn up(
    recv: &mut impl Incoming,
    mut to: impl AsyncWrite + Unpin,
    introduction: Option<Vec<u8>>,
) -> Result<(), CopyError> {
    if let Some(introduction) = introduction {
        to.write_all(&introduction).await.map_err(CopyError::BackEnd)?;
    }
    loop {
        match recv.read_chunk(CHUNK).await {
            Ok(Some(data)) => to.write_all(&data).await.map_err(CopyError::BackEnd)?,
            Ok(None) => return to.shutdown().await.map_err(CopyError::BackEnd),
            Err(StreamClosed::Unwanted) => return Ok(()),
            Err(StreamClosed::Failed) => return Err(CopyError::Client),
        }
    }
}

async fn down(send: &mut impl Outgoing, mut from: impl AsyncRead + Unpin, mut room: ReadRoom) -> Result<(), CopyError> {
    let mut buffer = BytesMut::new();
    loop {
        match room.read(&mut from, &mut buffer).await {
            Ok(0) => {
                send.finish();
                return Ok(());
            }
            Ok(_) => {
                match send.write_chunk(buffer.split().freeze()).await {
                    Ok(()) => {}
                    // The client wants no more of this direction; the other may continue.
                    Err(StreamClosed::Unwanted) => return Ok(()),
                    Err(StreamClosed::Failed) => return Err(CopyError::Client),
                }
            }
            Err(error) => return Err(CopyError::BackEnd(error)),
        }
    }
}

/// Carries datagrams both ways until the connection has ended.
async fn datagrams(connection: &impl Datagrams, target: &StreamTarget) -> io::Result<()> {
    let address = host_port(&target.config.datagrams_to, "udp://").unwrap_or_default();
    let address = tokio::net::lookup_host(address).await?.next().ok_or(io::ErrorKind::NotFound)?;
    let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    let mut buffer = vec![0; 65_536];
    loop {
        tokio::select! {
            data = connection.read() => match data {
                // A datagram that finds no way is lost, as datagrams are.
                Some(data) => drop(socket.send(&data).await),
                None => return Ok(()),
            },
            received = socket.recv(&mut buffer) => {
                if let Ok(length) = received {
                    connection.send(Bytes::copy_from_slice(&buffer[..length]));
                }
            }
        }
    }
}

/// The header of PROXY protocol version 2: the client's address, this end's, the application protocol and the name.
fn proxy_header(remote: SocketAddr, local: SocketAddr, alpn: &[u8], name: Option<&str>) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    // Version 2, on behalf of a client.
    header.push(0x21);
    let mut rest = Vec::new();
    match (remote.ip().to_canonical(), local.ip().to_canonical()) {
        (IpAddr::V4(from), to) => {
            // A stream over IPv4.
            header.push(0x11);
            rest.extend(from.octets());
            rest.extend(match to {
                IpAddr::V4(to) => to.octets(),
                IpAddr::V6(_) => [0; 4],
            });
        }
        (IpAddr::V6(from), to) => {
            header.push(0x21);
            rest.extend(from.octets());
            rest.extend(match to {
                IpAddr::V6(to) => to.octets(),
                IpAddr::V4(to) => to.to_ipv6_mapped().octets(),
            });
        }
    }
    rest.extend(remote.port().to_be_bytes());
    rest.extend(local.port().to_be_bytes());
    // PP2_TYPE_ALPN and PP2_TYPE_AUTHORITY.
    for (kind, value) in [(1, Some(alpn)), (2, name.map(str::as_bytes))] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            rest.push(kind);
            rest.extend(u16::try_from(value.len()).unwrap_or(0).to_be_bytes());
            rest.extend(&value[..value.len().min(65_535)]);
        }
    }
    header.extend(u16::try_from(rest.len()).unwrap_or(0).to_be_bytes());
    header.extend(rest);
    header
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use tiderace::{ConnectionBudget, ProcessBudget};

    use super::*;

    /// A client that takes some chunks, and then stands still.
    struct Stalled {
        taken: Vec<usize>,
        most: usize,
    }

    impl Outgoing for Stalled {
        async fn write_chunk(&mut self, data: Bytes) -> Result<(), StreamClosed> {
            self.taken.push(data.len());
            if self.taken.len() == self.most {
                std::future::pending::<()>().await;
            }
            Ok(())
        }

        fn finish(&mut self) {}

        fn reset(&mut self, _: u64) {}
    }

    /// Largest read, and memory held, when a client of a connection with this budget stands still.
    fn held_for_a_stalled_client(limit: u64) -> (usize, u64) {
        let memory = ConnectionBudget::new(limit, &ProcessBudget::default());
        let room = ReadRoom::new(&memory, 1).ok().unwrap();
        let mut client = Stalled { taken: Vec::new(), most: 8 };
        let held = {
            let mut copied = pin!(down(&mut client, tokio::io::repeat(0), room));
            assert!(matches!(copied.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
            memory.held()
        };
        assert_eq!((client.taken.len(), memory.held()), (8, 0), "what is held is given back");
        (client.taken.into_iter().max().unwrap(), held)
    }

    #[test]
    fn what_is_read_for_a_client_is_charged_to_its_connection() {
        assert_eq!(held_for_a_stalled_client(1 << 20), (16 * 1024, 16 * 1024));
        // Reads stay small where the connection has little memory.
        assert_eq!(held_for_a_stalled_client(5 * 1024), (2 * 1024, 2 * 1024));
    }

    #[test]
    fn proxy_headers() {
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let header = proxy_header(address("192.0.2.1:1000"), address("192.0.2.2:443"), b"redis", None);
        assert_eq!(&header[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x14");
        assert_eq!(&header[16..28], [192, 0, 2, 1, 192, 0, 2, 2, 0x03, 0xe8, 0x01, 0xbb]);
        assert_eq!(&header[28..], b"\x01\x00\x05redis");
        let header = proxy_header(address("[2001:db8::1]:1"), address("[::]:443"), b"", Some("a.b"));
        assert_eq!((header[13], header.len()), (0x21, 16 + 36 + 6));
    }
}
