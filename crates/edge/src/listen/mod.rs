//! Listener: TCP with TLS for HTTP/1.1 and HTTP/2, UDP with QUIC for HTTP/3 and private protocols.
//!
//! Each worker has its own sockets for both, so that a connection never leaves its thread. After an upgrade to fewer workers one has several; after
//! one to more of them, some share a socket for TCP.

mod h2_sections;
mod plain;
mod quic;
mod stall;
mod tcp;

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener, UdpSocket},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tiderace::{Endpoint, MachineLinks, TlsPool};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    activation::AddressSockets,
    body::Pace,
    config::Limits,
    context::{Draining, ListenerContext},
    generation::{Generation, Shared},
    machines::MachineLink,
    worker::Workers,
};

pub(crate) use self::plain::PlainListener;

/// An open address. When dropped, it accepts no more connections, and existing ones end.
pub(crate) struct Listener {
    local: SocketAddr,
    endpoint: Arc<Endpoint>,
    pool: TlsPool,
    /// Link to the other machines, where connection IDs name machines.
    machines: Option<Arc<MachineLink>>,
    draining: watch::Sender<Draining>,
    accepting: watch::Sender<Accepting>,
    /// Copies for a process that takes over.
    tcp: Mutex<Vec<StdListener>>,
}

/// Accept state of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepting {
    /// Not yet, or perhaps not any more.
    Paused,
    Open,
    /// Another process does.
    HandedOver,
    Closed,
}

/// Sockets of another process for one address: the same number of each kind.
pub(crate) struct ListenerSockets {
    pub(crate) tcp: Vec<StdListener>,
    pub(crate) udp: Vec<UdpSocket>,
    /// Table of kernel steering, where the other process has one.
    pub(crate) steering: Option<OwnedFd>,
    /// UDP sockets of still older processes are, or may be, beside these.
    pub(crate) is_among_others: bool,
}

/// UDP sockets that are open already.
struct TakenUdp {
    sockets: Vec<UdpSocket>,
    steering: Option<OwnedFd>,
    is_among_others: bool,
}

/// Least rate for the content of requests.
fn pace(limits: &Limits) -> Pace {
    Pace { interval: limits.content_timeout.0, progress: limits.content_progress.0 }
}

impl Listener {
    /// Opens an address on all workers. With port 0 TCP and UDP get the same free port.
    pub(crate) fn open(
        address: SocketAddr,
        first: &Generation,
        shared: &Arc<Shared>,
        workers: &Workers,
    ) -> io::Result<Self> {
        let mut last = io::Error::other("no port is free for both TCP and UDP");
        // Only when any port will do, another may be tried.
        for _ in 0..if address.port() == 0 { 16 } else { 1 } {
            match Self::try_open(address, first, shared, workers) {
                Ok(this) => return Ok(this),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_open(address: SocketAddr, first: &Generation, shared: &Arc<Shared>, workers: &Workers) -> io::Result<Self> {
        let sockets = tcp::sockets(address, workers.sockets())?;
        Self::assemble(sockets, None, first, shared, workers)
    }

    /// Takes over the sockets of another process. Accepts only after [`set_accepting`](Self::set_accepting).
    pub(crate) fn take_over(
        sockets: ListenerSockets,
        first: &Generation,
        shared: &Arc<Shared>,
        workers: &Workers,
    ) -> io::Result<Self> {
        let ListenerSockets { tcp, udp, steering, is_among_others } = sockets;
        if tcp.is_empty() || tcp.len() > workers.sockets() || tcp.len() != udp.len() {
            return Err(io::Error::other("there are not the same numbers of sockets of both kinds"));
        }
        let udp = TakenUdp { sockets: udp, steering, is_among_others };
        Self::assemble(tcp::shared(tcp, workers.sockets())?, Some(udp), first, shared, workers)
    }

    /// Serves on sockets that the service manager has opened. Those of a kind that is not there are opened.
    pub(crate) fn on_sockets(
        address: SocketAddr,
        sockets: AddressSockets,
        first: &Generation,
        shared: &Arc<Shared>,
        workers: &Workers,
    ) -> io::Result<Self> {
        let AddressSockets { tcp, udp } = sockets;
        let tcp = match tcp.is_empty() {
            true => tcp::sockets(address, workers.sockets())?,
            false => tcp::shared(tcp, workers.sockets())?,
        };
        let udp = (!udp.is_empty()).then_some(TakenUdp { sockets: udp, steering: None, is_among_others: false });
        let has_udp = udp.is_some();
        let this = Self::assemble(tcp, udp, first, shared, workers)?;
        if has_udp {
            this.open_missing()?;
            this.set_accepting(true, first);
        }
        Ok(this)
    }

    fn assemble(
        sockets: Vec<StdListener>,
        udp: Option<TakenUdp>,
        first: &Generation,
        shared: &Arc<Shared>,
        workers: &Workers,
    ) -> io::Result<Self> {
        let local = sockets[0].local_addr()?;
        let (draining, drain) = watch::channel(Draining::No);
        let (accepting, state) = watch::channel(if udp.is_some() { Accepting::Paused } else { Accepting::Open });
        let pool = quic::pool(first, workers);
        let endpoint = Arc::new(quic::open(local, udp, first, shared, workers, pool.clone())?);
        if let Some(fault) = endpoint.steering_fault() {
            tracing::info!("kernel steering is off at {local}, packets of older processes are forwarded: {fault}");
        }
        let machines = match shared.persistent.routable.current() {
            Some(_) => {
                let link = MachineLink::new(&shared.persistent.machines, endpoint.sockets(), &workers.of_sockets())?;
                Some(Arc::new(link))
            }
            None => None,
        };
        endpoint.set_machines(machines.clone().map(|link| link as Arc<dyn MachineLinks>).as_ref());
        let context = ListenerContext { shared: shared.clone(), local, draining: drain };
        for (number, worker) in workers.of_sockets().iter().enumerate() {
            worker.spawn(quic::accept(endpoint.clone(), number, context.clone(), state.clone()));
        }
        // Workers without a socket of their own share one.
        let accepting_workers = workers.handles().iter().cycle().take(workers.count().max(sockets.len()));
        for (worker, socket) in accepting_workers.zip(sockets.iter().cycle()) {
            let _inside = worker.enter();
            socket.set_nonblocking(true)?;
            let socket = TcpListener::from_std(socket.try_clone()?)?;
            worker.spawn(tcp::accept(socket, context.clone(), state.clone()));
        }
        Ok(Self { local, endpoint, pool, machines, draining, accepting, tcp: Mutex::new(sockets) })
    }

    /// Local address, with the actual port.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// From here on, handshakes are made as `generation` wants.
    pub(crate) fn adopt(&self, generation: &Generation) {
        if let Some(machines) = &self.machines {
            machines.prepare();
        }
        quic::prepare(&self.pool, generation);
        self.endpoint.set_server_config(Some(quic::server_config(generation, self.local)));
    }

    /// Accepts no more connections, and drains existing ones.
    pub(crate) fn drain(&self, generation: &Generation) {
        let before = self.accepting.send_replace(Accepting::Closed);
        // Open here, they would accept for nobody.
        self.tcp().clear();
        if matches!(before, Accepting::Paused | Accepting::HandedOver) {
            // First packets are for another process.
            self.endpoint.set_server_config(None);
            self.draining.send_replace(Draining::Yes);
            return;
        }
        let shed = tiderace::ServerConfig { versions: Vec::new(), ..quic::server_config(generation, self.local) };
        self.endpoint.set_server_config(Some(shed));
        self.draining.send_replace(Draining::Yes);
    }

    /// Leaves new connections to another process, or accepts them again. `generation` is that of new handshakes.
    pub(crate) fn set_accepting(&self, accepting: bool, generation: &Generation) {
        // Nothing that is read here finds no configuration.
        if !accepting {
            if let Err(error) = self.endpoint.steer_own(true) {
                tracing::warn!("the kernel does not steer packets of this process, which are forwarded: {error}");
            }
            self.endpoint.set_reading(false);
        }
        self.endpoint.set_server_config(accepting.then(|| quic::server_config(generation, self.local)));
        if accepting {
            self.endpoint.set_reading(true);
            // Emptying places cannot fail in a way that matters: an own socket is read as long as it is open.
            let _ = self.endpoint.steer_own(false);
        }
        self.accepting.send_replace(if accepting { Accepting::Open } else { Accepting::Paused });
    }

    /// Opens the UDP sockets that are missing, when no other process reads.
    pub(crate) fn open_missing(&self) -> io::Result<()> {
        self.endpoint.open_missing()
    }

    /// Another process has taken over for good.
    pub(crate) fn hand_over(&self) {
        self.accepting.send_replace(Accepting::HandedOver);
        // Open here, they would accept for nobody once the other process has closed them.
        self.tcp().clear();
        self.draining.send_replace(Draining::HandedOver);
    }

    /// Copies of the sockets, for another process.
    pub(crate) fn tcp(&self) -> MutexGuard<'_, Vec<StdListener>> {
        self.tcp.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
