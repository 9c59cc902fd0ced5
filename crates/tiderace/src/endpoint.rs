//! Endpoint: an address with all of its connections.

use std::{
    any::Any,
    future::poll_fn,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use transport::{
    AttemptLog, ClientConfig, EndpointConfig, EndpointStats, GenerationIds, Handle, IdGeneration, Machines,
    RetryPolicy, RoutableConfig, RoutableIds, ServerConfig, memory::ProcessBudget, ring::KeyRing,
};
use units::Seed;

#[cfg(target_os = "linux")]
use crate::steering::EndpointSteering;
use crate::{
    clock::Clock,
    connection::{Connecting, Connection},
    driver::{Driver, Parts},
    error::ConnectError,
    load_balancers::LoadBalancers,
    machines::MachineLinks,
    panics::PanicAction,
    service::{Running, ServedConnection, Service},
    shards::{self, Joined, ShardLink, Shards},
    shared::{Shared, State},
    socket::{Socket, SocketStats},
    tap::{MaybeTap, Tap},
    tls_pool::{TlsLink, TlsPool},
};

/// Place of the TLS work of accepted connections.
#[derive(Clone, Default)]
pub enum Handshakes {
    /// On a pool of the endpoint's own with its default size. This is the default. A step that is alone runs on the task that
    /// drives the endpoint, once many in a row have been quick; with a remote private key they never are.
    #[default]
    OwnPool,
    /// On this pool, which endpoints may share.
    Pool(TlsPool),
    /// On the task that drives the endpoint: no thread is started, and a burst of handshakes delays data.
    InPlace,
}

/// Options of an endpoint.
#[derive(Default)]
pub struct EndpointOptions {
    /// Configuration with which connections are accepted; `None` accepts none.
    pub server: Option<ServerConfig>,
    /// Seed and layout of connection IDs. `None`: the seed comes from the operating system.
    pub config: Option<EndpointConfig>,
    /// Keys of tokens and stateless resets, in place of those in `config`. Servers that share the ring accept each other's.
    pub ring: Option<KeyRing>,
    /// Generation of this process in connection IDs, in place of those in `config`. Needed by processes that take over each other's
    /// sockets.
    pub generation: Option<IdGeneration>,
    /// Load balancers by whose server ID in connection IDs packets find this machine, in place of the layout in `config`. The nonce
    /// has `generation`.
    pub routable: Option<RoutableConfig>,
    /// Configurations of load balancers before `routable`, whose connection IDs are still read.
    pub routable_before: Vec<RoutableConfig>,
    /// Load balancers that name clients in a PROXY protocol header. Endpoints may share it.
    pub load_balancers: Option<LoadBalancers>,
    /// Memory that all connections of the process may hold together, in place of that in `config`. Endpoints share it.
    pub memory: Option<ProcessBudget>,
    /// Place of TLS work.
    pub handshakes: Handshakes,
    /// Number of sockets and threads of the endpoint; the default is one socket on a task of the caller's runtime.
    pub shards: Shards,
    /// Runtimes that drive the shards, in place of threads of the endpoint's own: the first drives the first shard, and so on.
    /// A task on the same runtime that serves the connections of a shard ([`Endpoint::accept_at`]) wakes no other thread.
    pub runtimes: Vec<tokio::runtime::Handle>,
    /// Observer of every payload that passes the sockets.
    pub tap: Option<Arc<dyn Tap>>,
    /// Receiver of the events of connection attempts at a server; the tasks that drive the shards call it.
    pub attempts: Option<Arc<dyn AttemptLog>>,
    /// Steering of packets to their processes by the kernel, where processes take over each other's sockets.
    #[cfg(target_os = "linux")]
    pub steering: crate::KernelSteering,
    /// Sockets that are taken over ([`Endpoint::take_over`]) have others beside them, as the endpoint before says it
    /// ([`Endpoint::is_among_others`]). Without its table of steering, no more sockets may join them.
    #[cfg(target_os = "linux")]
    pub is_among_others: bool,
    /// Action when a panic has ended a shard. The endpoint's other shards continue. The connections of the lost one end with
    /// [`CloseReason::StateLost`](transport::CloseReason::StateLost), and nothing reads its socket any more.
    pub on_panic: Option<PanicAction>,
}

/// Endpoint: QUIC at one address. When it is dropped, its connections continue; the socket is closed with the last of them.
pub struct Endpoint {
    pub(crate) shards: Vec<Arc<Shared>>,
    pub(crate) local: Mutex<SocketAddr>,
    /// Shard that is asked first next time.
    next: AtomicUsize,
    /// Copies for a process that takes over, where there may be one.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux hands sockets over"))]
    pub(crate) sockets: Vec<UdpSocket>,
    /// Sockets that have joined those that were taken over.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux hands sockets over"))]
    pub(crate) joined: Joined,
    #[cfg(target_os = "linux")]
    pub(crate) steering: EndpointSteering,
}

impl Endpoint {
    /// Opens a socket at `address`, or one for each shard. The endpoint can connect and, with a server configuration, accept.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound, or the system cannot spread it over several sockets.
    pub fn open(address: SocketAddr, mut options: EndpointOptions) -> io::Result<Self> {
        if options.shards.count.get() == 1 {
            return Self::on_socket(UdpSocket::bind(address)?, options);
        }
        let config = config_of(&mut options)?;
        let sockets = shards::sockets(address, options.shards, &config, options.load_balancers.is_some())?;
        Self::assemble(sockets, config, options, true)
    }

    /// Opens a client on any port, of the address family of `remote`.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn client_for(remote: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = if remote.is_ipv4() {
            (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        };
        Self::open(any, EndpointOptions::default())
    }

    /// Opens a server at `address`.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn server(address: SocketAddr, config: ServerConfig) -> io::Result<Self> {
        Self::open(address, EndpointOptions { server: Some(config), ..EndpointOptions::default() })
    }

    /// Uses a socket that is bound already, which is one shard.
    ///
    /// # Errors
    /// When the socket cannot be prepared, or several shards are requested.
    pub fn on_socket(socket: UdpSocket, mut options: EndpointOptions) -> io::Result<Self> {
        if options.shards.count.get() > 1 {
            let reason = "one socket cannot serve several shards\nhint: let the endpoint open them";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let config = config_of(&mut options)?;
        Self::assemble(vec![socket], config, options, true)
    }

    /// Makes the shards. Where there are fewer sockets than shards, the last shards get copies of the first socket, to send through.
    pub(crate) fn assemble(
        mut sockets: Vec<UdpSocket>,
        config: EndpointConfig,
        options: EndpointOptions,
        reading: bool,
    ) -> io::Result<Self> {
        let EndpointOptions {
            server,
            handshakes,
            runtimes,
            tap,
            attempts,
            generation,
            load_balancers,
            on_panic,
            shards,
            ..
        } = options;
        let copies = if generation.is_some() { &sockets[..] } else { &[] };
        let copies = copies.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?;
        let count = u8::try_from(sockets.len()).expect("shards are counted in a byte").max(shards.count.get());
        #[cfg(target_os = "linux")]
        let steering =
            EndpointSteering::open(options.steering, options.is_among_others, &sockets, count, &config, generation);
        while sockets.len() < count.into() {
            sockets.push(sockets[0].try_clone()?);
        }
        let (tap, joined) = (MaybeTap(tap), Joined::default());
        let pool = match handshakes {
            _ if server.is_none() => None,
            Handshakes::OwnPool => Some(TlsPool::default()),
            Handshakes::Pool(pool) => Some(pool),
            Handshakes::InPlace => None,
        };
        let server = server.map(|server| Arc::new(share(server, count)));
        let mut links = if count > 1 { ShardLink::all(&sockets, &joined)? } else { Vec::new() }.into_iter();
        let clock = Clock::start();
        let local = sockets[0].local_addr()?;
        let mut this = Self {
            shards: Vec::new(),
            local: Mutex::new(local),
            next: AtomicUsize::new(0),
            sockets: copies,
            joined,
            #[cfg(target_os = "linux")]
            steering,
        };
        let configs = shards::configs(config, count)?;
        for (shard, (socket, config)) in (0..count).zip(sockets.into_iter().zip(configs)) {
            let mut endpoint = transport::Endpoint::new(config, server.clone());
            endpoint.set_shard(shard, count);
            endpoint.set_attempt_log(attempts.clone());
            let tls = pool.clone().map(|pool| TlsLink::new(pool, count, &mut endpoint));
            let shared = Shared::new(shard, clock, endpoint);
            shared.lock().reading = reading;
            this.shards.push(shared.clone());
            let (balancers, tap, on_panic) = (load_balancers.clone(), tap.clone(), on_panic.clone());
            let parts = |shards| Parts { tls, shards, balancers, tap, on_panic };
            match (links.next(), runtimes.get(usize::from(shard))) {
                (link, Some(runtime)) => {
                    let _inside = runtime.enter();
                    runtime.spawn(Driver::new(shared, Socket::new(socket)?, parts(link)));
                }
                (None, None) => {
                    tokio::spawn(Driver::new(shared, Socket::new(socket)?, parts(None)));
                }
                (Some(link), None) => on_thread(shared, socket, parts(Some(link)))?,
            }
        }
        Ok(this)
    }

    /// Address of the socket.
    pub fn local_addr(&self) -> SocketAddr {
        *self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection. Returns a future that is ready when the handshake is complete.
    ///
    /// # Errors
    /// When TLS refuses the server name, or the endpoint is closed.
    pub fn connect(
        &self,
        config: &ClientConfig,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<Connecting, ConnectError> {
        let shared = &self.shards[self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len()];
        let mut state = shared.lock();
        if state.closed || state.is_lost() {
            return Err(ConnectError::EndpointClosed);
        }
        let handle = state.endpoint.connect(shared.clock.now(), config, remote, server_name)?;
        state.connections.entry(handle).or_default();
        state.hold(handle);
        state.wake_driver();
        drop(state);
        Ok(Connecting::new(Connection::new(shared.clone(), handle)))
    }

    /// Accepts the next connection whose handshake is complete, of any shard. `None` once the endpoint is closed.
    pub async fn accept(&self) -> Option<Connection> {
        self.accept_by(State::next_incoming).await
    }

    /// Accepts the next connection as [`accept`](Self::accept) does, but one whose early data the server accepts is returned at
    /// once, so that its requests can be answered a round trip earlier. Until [`Connection::established`], all its data may be
    /// a replay by an attacker: use it only for requests that may happen twice. Answers are sent at once.
    pub async fn accept_early(&self) -> Option<Connection> {
        self.accept_by(|state| state.next_early().or_else(|| state.next_incoming())).await
    }

    /// Accepts the next connection of one shard, with `early` as [`accept_early`](Self::accept_early).
    ///
    /// # Panics
    /// When there is no shard of this number.
    pub async fn accept_at(&self, shard: usize, early: bool) -> Option<Connection> {
        let shared = &self.shards[shard];
        poll_fn(|cx| {
            let mut state = shared.lock();
            let next = if early { state.next_early() } else { None }.or_else(|| state.next_incoming());
            if let Some(handle) = next {
                state.hold(handle);
                return Poll::Ready(Some(Connection::new(shared.clone(), handle)));
            }
            if state.closed || state.is_lost() {
                return Poll::Ready(None);
            }
            state.wait_incoming(cx.waker());
            Poll::Pending
        })
        .await
    }

    async fn accept_by(&self, next: impl Fn(&mut State) -> Option<Handle>) -> Option<Connection> {
        poll_fn(|cx| {
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            let mut lost = 0;
            for at in 0..self.shards.len() {
                let shared = &self.shards[(first + at) % self.shards.len()];
                let mut state = shared.lock();
                if let Some(handle) = next(&mut state) {
                    state.hold(handle);
                    return Poll::Ready(Some(Connection::new(shared.clone(), handle)));
                }
                if state.closed {
                    return Poll::Ready(None);
                }
                lost += usize::from(state.is_lost());
                state.wait_incoming(cx.waker());
            }
            if lost == self.shards.len() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    /// Lets services answer the streams of connections that are accepted from here on, on the tasks that drive the sockets: one service for
    /// each shard, made by `make` from its number. A connection that its service does not take is accepted as ever. For clients nothing
    /// changes.
    pub fn serve<S: Service>(&self, mut make: impl FnMut(usize) -> S) {
        for shared in &self.shards {
            let service = Running::new(make(shared.shard.into()));
            shared.lock().service = Some(Box::new(service));
        }
    }

    /// Lets the caller act on the service of a shard and one of its connections, for example to write an answer that was not ready in time.
    /// `None` when there is no such service or the connection is over.
    ///
    /// # Panics
    /// When there is no shard of this number.
    pub fn with_service<S: Service, T>(
        &self,
        shard: usize,
        connection: Handle,
        act: impl FnOnce(&mut S, &mut ServedConnection<'_>) -> T,
    ) -> Option<T> {
        let shared = &self.shards[shard];
        let mut state = shared.lock();
        let State { endpoint, service, .. } = &mut *state;
        let service: &mut dyn Any = service.as_deref_mut()?;
        let service = service.downcast_mut::<Running<S>>()?;
        let result = service.act(shared.clock.now(), connection, endpoint.connection_mut(connection)?, act);
        state.wake_driver();
        Some(result)
    }

    /// Sets the links to other machines; `None` leaves all packets to this one.
    pub fn set_machines(&self, links: Option<&Arc<dyn MachineLinks>>) {
        for shared in &self.shards {
            let mut state = shared.lock();
            if state.is_lost() {
                continue;
            }
            state.endpoint.set_machines(links.map(|links| links.clone() as Arc<dyn Machines>));
            state.machines = links.cloned();
        }
    }

    /// Accepts connections with another configuration from here on, or with `None` no more; existing connections keep theirs,
    /// and so do handshakes under way.
    pub fn set_server_config(&self, config: Option<ServerConfig>) {
        let count = u8::try_from(self.shards.len()).expect("shards are counted in a byte");
        let config = config.map(|config| Arc::new(share(config, count)));
        for shared in &self.shards {
            let mut state = shared.lock();
            if !state.is_lost() {
                state.endpoint.set_server_config(config.clone());
            }
        }
    }

    /// Closes all connections with `code`, and accepts and opens no more.
    pub fn close(&self, code: u64, reason: &[u8]) {
        for shared in &self.shards {
            let mut state = shared.lock();
            let now = shared.clock.now();
            state.closed = true;
            state.endpoint.set_server_config(None);
            let handles: Vec<_> = state.connections.keys().copied().collect();
            for handle in handles {
                if let Some(connection) = state.endpoint.connection_mut(handle) {
                    connection.close(now, code, reason);
                }
            }
            let waiters = std::mem::take(&mut state.incoming_waiters);
            state.wake_driver();
            drop(state);
            waiters.into_iter().for_each(std::task::Waker::wake);
        }
    }

    /// Waits until every connection has ended and its CONNECTION_CLOSE is sent.
    pub async fn wait_idle(&self) {
        poll_fn(|cx| {
            for shared in &self.shards {
                let mut state = shared.lock();
                if state.endpoint.open_connections() > 0 {
                    state.idle_waiters.push(cx.waker().clone());
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Returns the counters that no connection reports, of all shards together.
    pub fn stats(&self) -> EndpointStats {
        let mut sum = EndpointStats::default();
        (0..self.shards()).for_each(|shard| sum += self.shard_stats(shard).0);
        sum
    }

    /// Returns the counters of the sockets of all shards.
    pub fn socket_stats(&self) -> SocketStats {
        let mut sum = SocketStats::default();
        (0..self.shards()).for_each(|shard| sum += self.shard_stats(shard).1);
        sum
    }

    /// Returns the counters of one shard and its socket.
    ///
    /// # Panics
    /// When there is no shard of this number.
    pub fn shard_stats(&self, shard: usize) -> (EndpointStats, SocketStats) {
        let state = self.shards[shard].lock();
        (state.lost.unwrap_or_else(|| state.endpoint.stats()), state.socket)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for shared in &self.shards {
            let mut state = shared.lock();
            state.orphaned = true;
            state.endpoint.set_server_config(None);
            state.wake_driver();
        }
    }
}

/// Drives a shard on a new thread until its last connection has ended.
fn on_thread(shared: Arc<Shared>, socket: UdpSocket, parts: Parts) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let name = format!("quic-{}", shared.shard);
    let driver = {
        let _inside = runtime.enter();
        Driver::new(shared, Socket::new(socket)?, parts)
    };
    std::thread::Builder::new().name(name).spawn(move || runtime.block_on(driver))?;
    Ok(())
}

/// A shard's part of limits that are meant for the whole endpoint.
fn share(config: ServerConfig, count: u8) -> ServerConfig {
    let part = |all: usize| all.div_ceil(count.into());
    ServerConfig {
        max_connections: part(config.max_connections),
        retry: match config.retry {
            RetryPolicy::Above(limit) => RetryPolicy::Above(part(limit)),
            other => other,
        },
        ..config
    }
}

pub(crate) fn config_of(options: &mut EndpointOptions) -> io::Result<EndpointConfig> {
    let mut config = match options.config.take() {
        Some(config) => config,
        None => EndpointConfig::from_seed(system_seed()?),
    };
    if let Some(routable) = options.routable {
        let generation = options.generation.map_or(0, |generation| generation.number);
        let ids = RoutableIds::new(0, generation, routable, &config.seed);
        let ids = ids.and_then(|ids| ids.reading(&options.routable_before));
        config.ids = Box::new(ids.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?);
    } else if let Some(generation) = options.generation {
        config.ids = Box::new(GenerationIds::new(0, generation, &config.seed));
    }
    if let Some(ring) = options.ring.take() {
        config.ring = ring;
    }
    if let Some(memory) = options.memory.take() {
        config.memory = memory;
    }
    Ok(config)
}

/// 32 bytes from the operating system.
pub(crate) fn system_seed() -> io::Result<Seed> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(Seed::from_bytes(bytes))
}
