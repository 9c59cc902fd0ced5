//! The task that moves datagrams between the socket and quiche's connections.
//!
//! A turn: receive a few batches' worth (GRO), look at timers, let the tasks run that were woken, then send for each connection
//! that may have something to send: one batch of datagrams of equal size (GSO) each, until nothing is left.

use std::{
    collections::{BinaryHeap, HashMap},
    future::poll_fn,
    io::{ErrorKind, IoSliceMut, Result},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use aws_lc_rs::rand;
use quiche::{Config, ConnectionId, RecvInfo};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::{io::Interest, net::UdpSocket, time::Sleep};

use super::{
    link::{Link, Shared, State, lock},
    settings::ID_LEN,
};
use crate::stack::Settings;

/// Buffers per receiving system call; what they hold fits the queue of a connection's datagrams.
const BUFFERS: usize = 8;
/// Bytes of each: the most that the kernel hands up at once.
const BUFFER: usize = 65_536;
/// Bytes of a batch that is sent: the most that UDP over IPv4 carries.
const BATCH: usize = 65_507;
/// Bytes of the shortest datagram that can open a connection (RFC 9000 §14.1).
const SHORTEST_INITIAL: usize = 1_200;
/// Distance of a deadline that never comes.
const NEVER: Duration = Duration::from_secs(86_400);

/// A new connection ID.
pub(super) fn random_id() -> [u8; ID_LEN] {
    let mut id = [0; ID_LEN];
    rand::fill(&mut id).expect("the system has randomness");
    id
}

/// Ordered by time, the earliest first.
struct Alarm {
    at: Instant,
    link: Arc<Link>,
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

/// Datagrams ready to leave, of one size, of which the last may be shorter.
struct Batch {
    len: usize,
    datagram: usize,
    to: SocketAddr,
    /// Lack of room for all there is.
    more: bool,
}

/// The driver of an endpoint.
pub(super) struct Driver {
    socket: UdpSocket,
    udp: UdpSocketState,
    local: SocketAddr,
    /// Of a server.
    config: Option<Config>,
    shared: Arc<Shared>,
    routes: HashMap<Vec<u8>, Arc<Link>>,
    alarms: BinaryHeap<Alarm>,
    sleep: Pin<Box<Sleep>>,
    received: Vec<u8>,
    batch: Vec<u8>,
    /// A datagram that did not fit a batch by its size: it lies behind that and begins the next.
    left_over: Option<(usize, SocketAddr)>,
}

impl Driver {
    /// On this socket; called within a runtime.
    pub(super) fn new(socket: std::net::UdpSocket, config: Option<Config>, shared: Arc<Shared>) -> Result<Self> {
        let udp = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        Ok(Self {
            socket: UdpSocket::from_std(socket)?,
            udp,
            local,
            config,
            shared,
            routes: HashMap::new(),
            alarms: BinaryHeap::new(),
            sleep: Box::pin(tokio::time::sleep(NEVER)),
            received: vec![0; BUFFERS * BUFFER],
            batch: vec![0; BATCH],
            left_over: None,
        })
    }

    /// Runs until the runtime ends.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.drive().await {
            eprintln!("quiche's socket failed: {error}");
            let mut agenda = lock(&self.shared.agenda);
            agenda.failed = true;
            let tasks = [agenda.accepting.take(), agenda.emptying.take()];
            drop(agenda);
            tasks.into_iter().flatten().for_each(std::task::Waker::wake);
            self.routes.values().for_each(|link| link.state().end());
        }
    }

    async fn drive(&mut self) -> Result<()> {
        loop {
            self.receive()?;
            self.expire();
            behind_the_others().await;
            // Those that are listed meanwhile have their turn after the socket.
            let listed = lock(&self.shared.agenda).list.len();
            for _ in 0..listed {
                let Some(link) = Link::next(&self.shared) else { break };
                self.transmit(&link).await?;
            }
            self.wait().await?;
        }
    }

    /// Takes what the socket has, up to `BUFFERS` buffers.
    fn receive(&mut self) -> Result<()> {
        let mut storage = std::mem::take(&mut self.received);
        let mut metas = [RecvMeta::default(); BUFFERS];
        let count = {
            let mut pieces = storage.chunks_exact_mut(BUFFER);
            let mut slices: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| IoSliceMut::new(pieces.next().expect("a buffer for each")));
            let socket = &self.socket;
            socket.try_io(Interest::READABLE, || self.udp.recv(socket.into(), &mut slices, &mut metas))
        };
        match count {
            Ok(count) => {
                lock(&self.shared.agenda).receive_calls += 1;
                for (buffer, meta) in storage.chunks_exact_mut(BUFFER).zip(&metas[..count]) {
                    self.take(&mut buffer[..meta.len], meta);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        self.received = storage;
        Ok(())
    }

    /// The datagrams of one buffer, each to its connection.
    fn take(&mut self, buffer: &mut [u8], meta: &RecvMeta) {
        let info = RecvInfo { from: meta.addr, to: self.local };
        let mut datagrams = buffer.chunks_mut(meta.stride.max(1)).peekable();
        while let Some(mut datagram) = datagrams.next() {
            let Some(link) = self.link_of(datagram, meta.addr) else { continue };
            let id = destination(datagram).map(<[u8]>::to_vec);
            let mut state = link.state();
            loop {
                // An error closes the connection where the standard asks for it, and says nothing beyond that.
                let _ = state.quic.recv(datagram, info);
                match datagrams.next_if(|next| destination(next) == id.as_deref()) {
                    Some(next) => datagram = next,
                    None => break,
                }
            }
            link.settle(&mut state);
            link.list(&mut state);
        }
    }

    /// The connection that a datagram belongs to, or that it opens.
    fn link_of(&mut self, datagram: &[u8], from: SocketAddr) -> Option<Arc<Link>> {
        let id = destination(datagram)?;
        if let Some(link) = self.routes.get(id) {
            return Some(link.clone());
        }
        let config = self.config.as_mut()?;
        let is_initial = datagram[0] & 0xf0 == 0xc0 && datagram[1..5] == quiche::PROTOCOL_VERSION.to_be_bytes();
        if !is_initial || datagram.len() < SHORTEST_INITIAL {
            return None;
        }
        let own = random_id();
        let scid = ConnectionId::from_ref(&own);
        let quic = quiche::accept_with_buf_factory(&scid, None, self.local, from, config).ok()?;
        let link = Link::new(quic, self.shared.clone(), vec![own.to_vec(), id.to_vec()]);
        self.route(&link, &mut link.state());
        Some(link)
    }

    fn route(&mut self, link: &Arc<Link>, state: &mut State) {
        state.routed = true;
        for id in &link.ids {
            self.routes.insert(id.clone(), link.clone());
        }
    }

    /// Deadlines that have come.
    fn expire(&mut self) {
        let Some(first) = self.alarms.peek() else { return };
        let now = Instant::now();
        if first.at > now {
            return;
        }
        while let Some(alarm) = self.alarms.peek()
            && alarm.at <= now
        {
            let Alarm { at, link } = self.alarms.pop().expect("it was there");
            let mut state = link.state();
            // Another alarm may have taken its place.
            if state.armed != Some(at) {
                continue;
            }
            state.armed = None;
            if state.quic.timeout_instant().is_some_and(|due| due <= now) {
                state.quic.on_timeout();
                link.settle(&mut state);
            }
            link.list(&mut state);
        }
    }

    /// Sends one batch for a connection, and puts it on the list again if there is more.
    async fn transmit(&mut self, link: &Arc<Link>) -> Result<()> {
        loop {
            let batch = {
                let mut state = link.state();
                if !state.routed {
                    self.route(link, &mut state);
                }
                let batch = self.pack(&mut state);
                link.settle(&mut state);
                if batch.more && self.left_over.is_none() {
                    link.list(&mut state);
                }
                self.watch(link, &mut state);
                batch
            };
            if batch.len > 0 {
                self.send(&batch).await?;
            }
            let Some((size, _)) = self.left_over else { return Ok(()) };
            self.batch.copy_within(batch.len..batch.len + size, 0);
        }
    }

    /// Has quiche fill a batch.
    fn pack(&mut self, state: &mut State) -> Batch {
        const LARGEST: usize = Settings::UDP_PAYLOAD as usize;
        let (len, to) = self.left_over.take().unwrap_or((0, self.local));
        let mut batch = Batch { len, datagram: len, to, more: true };
        let mut count = usize::from(len > 0);
        while count < self.udp.max_gso_segments() && batch.len + LARGEST <= self.batch.len() {
            let Ok((size, info)) = state.quic.send(&mut self.batch[batch.len..batch.len + LARGEST]) else {
                batch.more = false;
                break;
            };
            if batch.len == 0 {
                (batch.datagram, batch.to) = (size, info.to);
            }
            if size > batch.datagram || info.to != batch.to {
                self.left_over = Some((size, info.to));
                break;
            }
            batch.len += size;
            count += 1;
            if size < batch.datagram {
                break;
            }
        }
        batch
    }

    async fn send(&mut self, batch: &Batch) -> Result<()> {
        let transmit = Transmit {
            destination: batch.to,
            ecn: None,
            contents: &self.batch[..batch.len],
            segment_size: (batch.len > batch.datagram).then_some(batch.datagram),
            src_ip: None,
        };
        lock(&self.shared.agenda).send_calls += 1;
        loop {
            let sent = self.socket.try_io(Interest::WRITABLE, || self.udp.try_send((&self.socket).into(), &transmit));
            match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.socket.writable().await?,
                // Who was there is gone, which its connection's timers notice.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
                sent => return sent,
            }
        }
    }

    /// Sets the alarm for a connection, or forgets the connection.
    fn watch(&mut self, link: &Arc<Link>, state: &mut State) {
        if state.quic.is_closed() {
            if !state.gone {
                state.gone = true;
                state.armed = None;
                for id in &link.ids {
                    self.routes.remove(id);
                }
                let mut agenda = lock(&self.shared.agenda);
                agenda.live -= 1;
                if agenda.live == 0
                    && let Some(task) = agenda.emptying.take()
                {
                    task.wake();
                }
            }
            return;
        }
        let due = state.quic.timeout_instant();
        if let Some(at) = due.filter(|due| state.armed.is_none_or(|armed| *due < armed)) {
            state.armed = Some(at);
            self.alarms.push(Alarm { at, link: link.clone() });
        }
    }

    /// Until the socket has something, a connection is listed or a deadline comes.
    async fn wait(&mut self) -> Result<()> {
        let due = self.alarms.peek().map(|alarm| tokio::time::Instant::from_std(alarm.at));
        let due = due.unwrap_or_else(|| tokio::time::Instant::now() + NEVER);
        if self.sleep.deadline() != due {
            self.sleep.as_mut().reset(due);
        }
        poll_fn(|cx| {
            {
                let mut agenda = lock(&self.shared.agenda);
                if !agenda.list.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                agenda.driver = Some(cx.waker().clone());
            }
            if let Poll::Ready(ready) = self.socket.poll_recv_ready(cx) {
                return Poll::Ready(ready);
            }
            self.sleep.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}

/// The connection ID that a datagram is addressed to.
fn destination(datagram: &[u8]) -> Option<&[u8]> {
    const LONG_HEADER: u8 = 0x80;
    if datagram.first()? & LONG_HEADER == 0 {
        return datagram.get(1..=ID_LEN);
    }
    let len = usize::from(*datagram.get(5)?);
    datagram.get(6..6 + len)
}

/// Lets the tasks run that are ready.
async fn behind_the_others() {
    let mut been_here = false;
    poll_fn(|cx| {
        if been_here {
            return Poll::Ready(());
        }
        been_here = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
