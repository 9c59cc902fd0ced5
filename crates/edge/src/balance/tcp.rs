//! Connections of TCP: accepted at the addresses of `listen`, brought to the machine that the client's address chooses, behind a header
//! that names the client.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
};
use wire::ProxyHeader;

use super::{
    Shared,
    counters::{MachineCounters, add},
    relay::{Relay, RelayEnd, reset_on_drop},
    table::Table,
};

/// Connections that wait to be accepted, for each thread.
const BACKLOG: i32 = 1024;
/// Machines that are tried for a connection.
const TRIES: usize = 3;
/// A machine that is gone without a word is noticed: a silent connection is asked after this time, so often, …
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// … and again after this.
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(10);

/// Acceptance of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepting {
    Open,
    /// New ones go to other load balancers; those that are there end by themselves.
    Draining,
    /// Remaining connections are cut off.
    Over,
}

/// Connections of all threads.
pub(super) struct Connections {
    accepting: watch::Sender<Accepting>,
    open: watch::Sender<usize>,
}

impl Default for Connections {
    fn default() -> Self {
        Self { accepting: watch::Sender::new(Accepting::Open), open: watch::Sender::new(0) }
    }
}

impl Connections {
    /// Connections that are open.
    pub(super) fn open(&self) -> usize {
        *self.open.borrow()
    }

    /// Takes a place for a connection.
    fn enter(&self, limit: usize) -> Option<Place<'_>> {
        let is_in = self.open.send_if_modified(|open| {
            let is_free = *open < limit;
            *open += usize::from(is_free);
            is_free
        });
        is_in.then_some(Place(self))
    }

    /// Lets connections end, for so long; then those that are left are reset.
    pub(super) async fn drain(&self, limit: Duration) {
        self.accepting.send_replace(Accepting::Draining);
        let mut open = self.open.subscribe();
        if tokio::time::timeout(limit, open.wait_for(|open| *open == 0)).await.is_err() {
            self.accepting.send_replace(Accepting::Over);
            // Each connection ends as soon as its thread sees this.
            let _ = tokio::time::timeout(Duration::from_secs(5), open.wait_for(|open| *open == 0)).await;
        }
    }
}

/// Place of a connection, given back when dropped.
struct Place<'a>(&'a Connections);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

/// Connection that a machine has; no longer when dropped.
struct Open<'a>(&'a MachineCounters);

impl<'a> Open<'a> {
    fn at(counters: &'a MachineCounters) -> Self {
        add(&counters.connections, 1);
        add(&counters.open, 1);
        Self(counters)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Binds a socket that other threads, and other load balancers on this machine, share their port with.
pub(super) fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Accepts connections until the load balancer ends. Those that wait in the socket then are taken, too.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut accepting = shared.connections.accepting.subscribe();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = accepting.wait_for(|state| *state != Accepting::Open) => break,
        };
        match accepted {
            Ok((stream, client)) => begin(stream, client, &shared),
            Err(error) => {
                // Out of descriptors, most likely: others have to end first.
                tracing::warn!("cannot accept a connection: {error}");
                add(&shared.counters.tcp.unaccepted, 1);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, client)) = listener.accept() {
        if stream.set_nonblocking(true).is_ok()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            begin(stream, client, &shared);
        }
    }
}

fn begin(stream: TcpStream, client: SocketAddr, shared: &Arc<Shared>) {
    let shared = shared.clone();
    tokio::spawn(async move { connection(stream, client, &shared).await });
}

async fn connection(stream: TcpStream, client: SocketAddr, shared: &Shared) {
    let (table, counters) = (shared.table(), &shared.counters.tcp);
    let Some(_place) = shared.connections.enter(table.tcp.connections) else {
        add(&counters.over_limit, 1);
        return reset_on_drop(&stream);
    };
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let Ok(local) = stream.local_addr() else { return };
    let mut header = [0; ProxyHeader::MAX_LEN];
    let len = ProxyHeader { client, server: local, hint: None }.encode_stream(&mut header);
    let Some((machine, number)) = taken(&table, client, &header[..len]).await else {
        add(&counters.untaken, 1);
        return reset_on_drop(&stream);
    };
    prepare(&stream);
    let of_machine = &table.machines()[number].counters;
    let _open = Open::at(of_machine);
    let relay = Relay {
        client: &stream,
        machine: &machine,
        idle: table.tcp.idle_timeout,
        bytes_in: &of_machine.bytes_in,
        bytes_out: &of_machine.bytes_out,
    };
    let mut accepting = shared.connections.accepting.subscribe();
    let end = relay.carry(async { drop(accepting.wait_for(|state| *state == Accepting::Over).await) }).await;
    let counter = match end {
        RelayEnd::Completed => &counters.completed,
        RelayEnd::ClientReset => &counters.client_reset,
        RelayEnd::MachineReset => &counters.machine_reset,
        RelayEnd::Idle => &counters.idle,
        RelayEnd::Cut => &counters.cut,
    };
    add(counter, 1);
}

/// A connection to the first machine that takes it, with the header written, and the number of the machine.
async fn taken(table: &Table, client: SocketAddr, header: &[u8]) -> Option<(TcpStream, usize)> {
    let mut tried = [usize::MAX; TRIES];
    for number in 0..TRIES {
        let machine = table.for_connection(client, &tried[..number])?;
        let address = table.machines()[machine].address;
        match tokio::time::timeout(table.tcp.connect_timeout, connect(address, header)).await {
            Ok(Ok(stream)) => return Some((stream, machine)),
            Ok(Err(error)) => tracing::debug!("the machine at {address} does not take a connection: {error}"),
            Err(_) => tracing::debug!("the machine at {address} does not take a connection in time"),
        }
        add(&table.machines()[machine].counters.failed, 1);
        tried[number] = machine;
    }
    None
}

async fn connect(address: SocketAddr, header: &[u8]) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    let stream = socket.connect(address).await?;
    prepare(&stream);
    let mut rest = header;
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(stream)
}

/// Sends without delay, and notices a peer that is gone. A failure costs latency, or the idle limit.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE_AGAIN);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keep_alive);
}
