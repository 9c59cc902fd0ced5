//! One end of a connection of the kernel's TCP: its sockets, its application, and the making of both.

use std::{cell::RefCell, future::Future, io, net::SocketAddr, os::fd::AsFd, pin::pin, rc::Rc, sync::Arc, task::Poll};

use emu::network::{
    CLIENT, Namespace, SERVER, TcpInfo, accept_fast_open, address, connect_fast_open, is_multipath, now,
};
use lab::{contender::Evidence, workload::App};
use rustls::{CommonState, NamedGroup, ProtocolVersion};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant as Moment,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use units::Instant;

use crate::{
    http1::Http1,
    http2::Http2,
    pool::{Link, Making, Pool},
    recipe::Recipe,
    tls::Tls,
};

/// Most bytes that the options of a TCP segment take (RFC 9293 §3.1).
const OPTIONS: u32 = 40;

/// One end of one connection.
pub(crate) struct Seat {
    pub(crate) app: App,
    /// The sockets once more, to ask them for their figures.
    pub(crate) sockets: Vec<Socket>,
    /// Figures at the beginning of the measurement.
    pub(crate) before: TcpInfo,
    /// Sockets by their numbers whose TLS handshake is complete, with the packets that they had sent again by then.
    established: Vec<(usize, u64)>,
    /// Versions of HTTP and TLS that the last handshake has agreed on.
    agreed: Option<(&'static str, &'static str)>,
    /// Handshakes with a key exchange of X25519.
    classic: u64,
}

pub(crate) type Shared = Rc<RefCell<Seat>>;

impl Seat {
    pub(crate) fn new(app: App) -> Shared {
        Rc::new(RefCell::new(Self {
            app,
            sockets: Vec::new(),
            before: TcpInfo::default(),
            established: Vec::new(),
            agreed: None,
            classic: 0,
        }))
    }

    /// Figures of each socket.
    pub(crate) fn infos(&self) -> impl Iterator<Item = TcpInfo> {
        self.sockets.iter().filter_map(|socket| TcpInfo::of(socket.as_fd()).ok())
    }

    /// Figures of all sockets as one; `None` without any.
    pub(crate) fn info(&self) -> Option<TcpInfo> {
        TcpInfo::sum(self.infos())
    }

    /// Notes a socket before its handshake; returns its number.
    fn note(&mut self, socket: Socket) -> usize {
        self.sockets.push(socket);
        self.sockets.len() - 1
    }

    /// Packets that its sockets have sent again: in set-up, and after it.
    pub(crate) fn resent(&self) -> [u64; 2] {
        let total: u64 = self.infos().map(|info| u64::from(info.retransmits)).sum();
        let after: u64 =
            self.established.iter().map(|&(number, setup)| self.resent_by(number).saturating_sub(setup)).sum();
        [total.saturating_sub(after), after]
    }

    /// Packets that one of its sockets has sent again.
    fn resent_by(&self, number: usize) -> u64 {
        let socket = self.sockets.get(number).and_then(|socket| TcpInfo::of(socket.as_fd()).ok());
        socket.map_or(0, |info| info.retransmits.into())
    }

    /// Notes what a socket's handshake, now complete, has agreed on.
    fn agree(&mut self, number: usize, tls: &CommonState) {
        let resent = self.resent_by(number);
        self.established.push((number, resent));
        let http = if tls.alpn_protocol() == Some(b"h2") { "2" } else { "1.1" };
        let version = if tls.protocol_version() == Some(ProtocolVersion::TLSv1_2) { "1.2" } else { "1.3" };
        self.agreed = Some((http, version));
        let classic = tls.negotiated_key_exchange_group().is_some_and(|group| group.name() == NamedGroup::X25519);
        self.classic += u64::from(classic);
    }

    /// Signs on the sockets that the settings of the recipe are at work, and the controller.
    pub(crate) fn evidence(&self, recipe: Recipe) -> Vec<Evidence> {
        let count = |what: &dyn Fn(&Socket) -> bool| self.sockets.iter().filter(|socket| what(socket)).count() as u64;
        let controller = self.sockets.first().and_then(|socket| socket.tcp_congestion().ok()).unwrap_or_default();
        let controller = String::from_utf8_lossy(&controller).trim_end_matches('\0').to_owned();
        let packets: u64 = self.infos().map(|info| u64::from(info.data_packets_sent)).sum();
        let (http, tls) = self.agreed.unwrap_or(("none", "none"));
        let used = self.infos().filter(|info| info.data_packets_sent > 0).count() as u64;
        let buffer = self.sockets.first().and_then(|socket| socket.send_buffer_size().ok()).unwrap_or(0);
        let of = |factor: &str, value: String, counter: &str, count| Evidence {
            factor: factor.to_owned(),
            value,
            counter: counter.to_owned(),
            count,
        };
        let mut all = vec![of("congestion", controller, "packets with data sent by the socket (TCP_INFO)", packets)];
        if recipe.http1 {
            all.push(of("http", http.to_owned(), "connections that sent data", used));
        }
        if recipe.tls12 {
            all.push(of("tls", tls.to_owned(), "connections that sent data", used));
        }
        if recipe.x25519 {
            all.push(of("key-exchange", "x25519".to_owned(), "handshakes with it", self.classic));
        }
        if recipe.connections > 1 {
            all.push(of("connections", recipe.connections.to_string(), "connections that sent data", used));
        }
        if recipe.fast_open {
            all.push(of("fast-open", "on".to_owned(), "sockets that were made with it", count(&|_| true)));
        }
        if recipe.mptcp {
            let speaking = count(&|socket| is_multipath(socket.as_fd()).unwrap_or(false));
            all.push(of("mptcp", "on".to_owned(), "sockets without fall-back (MPTCP_INFO)", speaking));
        }
        if recipe.send_buffer.is_some() {
            // The kernel doubles what is asked for, for its own structures.
            all.push(of("buffer", (buffer / 2).to_string(), "bytes of the send buffer", buffer as u64));
        }
        if let Some(size) = recipe.segment_size {
            // Less what options take of a segment, such as 12 bytes for timestamps.
            let largest = self.infos().map(|info| info.segment_size).max().unwrap_or(0);
            let as_set = (size.saturating_sub(OPTIONS)..=size).contains(&largest);
            let value = if as_set { size } else { largest };
            all.push(of("mss", value.to_string(), "packets with data of at most this size (TCP_INFO)", packets));
        }
        all
    }

    /// Signs that only the other end can see: a SYN that lost its data is sent again without them.
    pub(crate) fn evidence_at_receiver(&self, recipe: Recipe) -> Vec<Evidence> {
        let taken = self.infos().filter(|info| info.syn_data).count() as u64;
        let evidence = Evidence {
            factor: "fast-open".to_owned(),
            value: "on".to_owned(),
            counter: "connections whose SYN carried data (TCP_INFO)".to_owned(),
            count: taken,
        };
        recipe.fast_open.then_some(evidence).into_iter().collect()
    }
}

/// Settings of a contender's sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sockets {
    pub(crate) controller: &'static str,
    pub(crate) recipe: Recipe,
}

impl Sockets {
    /// Makes a socket on a side of the network.
    pub(crate) fn socket(self, side: &Namespace) -> io::Result<Socket> {
        let protocol = self.recipe.mptcp.then_some(Protocol::MPTCP);
        let socket = side.run(|| Socket::new(Domain::IPV4, Type::STREAM, protocol))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_congestion(self.controller.as_bytes())?;
        if let Some(size) = self.recipe.segment_size {
            socket.set_tcp_mss(size)?;
        }
        if let Some(size) = self.recipe.send_buffer {
            let size = usize::try_from(size.as_bytes()).unwrap_or(usize::MAX);
            socket.set_send_buffer_size(size)?;
            let given = socket.send_buffer_size()? / 2;
            if given != size {
                let text = format!("the kernel gives a send buffer of {given} bytes, not {size} (net.core.wmem_max)");
                return Err(io::Error::other(text));
            }
        }
        Ok(socket)
    }

    /// Listens on the server's side.
    pub(crate) fn listen(self, side: &Namespace, port: u16) -> io::Result<TcpListener> {
        let socket = self.socket(side)?;
        socket.bind(&SockAddr::from(address(SERVER, port)))?;
        if self.recipe.fast_open {
            accept_fast_open(socket.as_fd())?;
        }
        socket.listen(16)?;
        TcpListener::from_std(socket.into())
    }

    /// Makes a client's connections at `start`, then drives them.
    pub(crate) async fn connect(
        self,
        sockets: Vec<Socket>,
        to: SocketAddr,
        seat: Shared,
        tls: Rc<Tls>,
        clock: Clock,
        start: Instant,
    ) {
        tokio::time::sleep_until(clock.moment(start)).await;
        let make = |socket| {
            let (seat, tls) = (Rc::clone(&seat), Rc::clone(&tls));
            Box::pin(async move { self.client(socket, to, &seat, &tls).await }) as Making
        };
        let pool = Pool::new(sockets.into_iter().map(make).collect());
        work(seat, pool, clock).await;
    }

    async fn client(self, socket: Socket, to: SocketAddr, seat: &Shared, tls: &Tls) -> io::Result<Box<dyn Link>> {
        socket.bind(&SockAddr::from(address(CLIENT, 0)))?;
        if self.recipe.fast_open {
            connect_fast_open(socket.as_fd())?;
        }
        let number = seat.borrow_mut().note(socket.try_clone()?);
        let stream = tokio::net::TcpSocket::from_std_stream(socket.into()).connect(to).await?;
        let stream = TlsConnector::from(Arc::clone(&tls.client)).connect(tls.name.clone(), stream).await?;
        seat.borrow_mut().agree(number, stream.get_ref().1);
        if self.recipe.http1 {
            return Ok(Box::new(Http1::client(stream).await?));
        }
        Ok(Box::new(Http2::client(stream).await.map_err(io::Error::other)?))
    }

    /// Accepts a client's connections, and drives them.
    pub(crate) async fn accept(self, listener: TcpListener, seat: Shared, tls: Rc<Tls>, clock: Clock) {
        let listener = Rc::new(listener);
        let make = |_| {
            let (listener, seat, tls) = (Rc::clone(&listener), Rc::clone(&seat), Rc::clone(&tls));
            Box::pin(async move { self.server(&listener, &seat, &tls).await }) as Making
        };
        let pool = Pool::new((0..self.recipe.connections).map(make).collect());
        work(seat, pool, clock).await;
    }

    async fn server(self, listener: &TcpListener, seat: &Shared, tls: &Tls) -> io::Result<Box<dyn Link>> {
        let (stream, _): (TcpStream, _) = listener.accept().await?;
        // The controller comes from the listener; this option does not.
        stream.set_nodelay(true)?;
        let number = seat.borrow_mut().note(socket2::SockRef::from(&stream).try_clone()?);
        let stream = TlsAcceptor::from(Arc::clone(&tls.server)).accept(stream).await?;
        seat.borrow_mut().agree(number, stream.get_ref().1);
        if self.recipe.http1 {
            return Ok(Box::new(Http1::server(stream)));
        }
        Ok(Box::new(Http2::server(stream).await.map_err(io::Error::other)?))
    }
}

/// Drives one end: its connections, then the workload on them, until neither has anything to do. Never ends by itself.
async fn work(seat: Shared, mut pool: Pool, clock: Clock) {
    let mut sleep = pin!(tokio::time::sleep_until(clock.moment));
    std::future::poll_fn(|cx| {
        loop {
            // Before the seat is borrowed: connections that are being made note their sockets there.
            pool.poll(cx);
            let mut seat = seat.borrow_mut();
            if seat.app.drive(clock.now(), &mut pool) {
                continue;
            }
            let Some((at, _)) = seat.app.deadline() else { return Poll::Pending };
            sleep.as_mut().reset(clock.moment(at));
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::<()>::Pending;
            }
        }
    })
    .await;
}

/// The time of a run by both clocks.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) origin: Instant,
    pub(crate) moment: Moment,
}

impl Clock {
    pub(crate) fn now(self) -> Instant {
        Instant::ZERO + (now() - self.origin)
    }

    pub(crate) fn moment(self, at: Instant) -> Moment {
        self.moment + (at - Instant::ZERO)
    }
}
