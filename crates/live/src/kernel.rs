//! The kernel's TCP as a contender: a congestion controller per socket, TLS 1.3, HTTP/2.

use std::{
    cell::{Cell, RefCell},
    fs,
    future::Future,
    io,
    net::SocketAddr,
    os::fd::AsFd,
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
};

use emu::network::{CLIENT, Namespace, Network, SERVER, TcpInfo, address, controllers, now};
use lab::{
    contender::{BuildError, Contender, Evidence, Factor, Identity, Measured, Nodes, RunSpec},
    roster::Others,
    scenario::{Direction, Workload},
    stack::applications,
    workload::{App, End},
};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{net::TcpStream, task::LocalSet, time::Instant as Moment};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use units::{Duration, Instant};

use crate::{
    ends::Ends,
    http2::{Http2, WINDOWS},
    nodes::metered,
    tls::Tls,
    watch::{Looks, Watch},
};

/// Prefix of the names of these contenders.
pub const KERNEL: &str = "kernel-";
/// Controllers that have a contender.
const CONTROLLERS: [&str; 3] = ["reno", "cubic", "bbr"];
/// Time between two readings of `TCP_INFO` while a run is measured.
const SAMPLE: std::time::Duration = std::time::Duration::from_millis(10);
/// Port of the first server; the others follow.
const PORT: u16 = 10_000;

/// The kernel's TCP with one congestion controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(&'static str);

/// The kernel's contenders by their names, for [`lab::roster::join`].
pub fn others() -> Others {
    Others {
        names: || vec!["kernel-reno", "kernel-cubic", "kernel-bbr"],
        make: |name| match Kernel::of(name) {
            Some(kernel) => Ok(Box::new(kernel)),
            None => Err(format!("there is no contender `{name}`")),
        },
    }
}

impl Kernel {
    /// The contender with this name.
    pub fn of(name: &str) -> Option<Self> {
        let controller = name.strip_prefix(KERNEL)?;
        CONTROLLERS.into_iter().find(|known| *known == controller).map(Self)
    }

    /// Refuses a workload that TCP cannot carry.
    ///
    /// # Errors
    /// When it needs datagrams.
    pub fn check(workload: Workload) -> Result<(), String> {
        match workload {
            Workload::Datagrams | Workload::Messages => Err("TCP has no datagrams".to_owned()),
            _ => Ok(()),
        }
    }
}

impl Contender for Kernel {
    fn identity(&self) -> Identity {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let parameters = [
            ("congestion", self.0.to_owned()),
            ("protocol", "HTTP/2 over TLS 1.3 over TCP, one connection".to_owned()),
            ("windows", format!("{} and {} bytes (stream, connection of HTTP/2)", WINDOWS.0, WINDOWS.1)),
            ("socket buffers", "tuned by the kernel".to_owned()),
            ("offloads", "off".to_owned()),
        ];
        Identity {
            name: format!("{KERNEL}{}", self.0),
            version: format!("Linux {}", kernel.trim()),
            parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }

    fn factors(&self) -> Vec<Factor> {
        vec![Factor { name: "congestion".to_owned(), value: self.0.to_owned() }]
    }

    fn build(&self, _spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        Err(BuildError(format!("{KERNEL}{} runs in real time only", self.0)))
    }
}

/// One end of one connection.
struct Seat {
    app: App,
    /// The socket once more, to ask it for its figures.
    socket: Option<Socket>,
    /// Figures at the beginning of the measurement.
    before: TcpInfo,
}

type Shared = Rc<RefCell<Seat>>;

impl Seat {
    fn info(&self) -> Option<TcpInfo> {
        self.socket.as_ref().and_then(|socket| TcpInfo::of(socket.as_fd()).ok())
    }
}

impl Kernel {
    /// Lets time pass.
    pub(crate) fn pass(self, network: &Network, spec: &RunSpec<'_>, watch: Option<&Watch<'_>>) -> Result<Ends, String> {
        Self::check(spec.scenario.traffic.workload)?;
        self.available(network)?;
        let tls = Rc::new(Tls::new()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        let local = LocalSet::new();
        let ends = local.block_on(&runtime, self.passes(network, spec, tls, Looks::new(watch)));
        // Connections that are still there end with their tasks, before their network does.
        drop(local);
        ends
    }

    /// Refuses a controller that the kernel does not have.
    fn available(self, network: &Network) -> Result<(), String> {
        // A network namespace lists what is loaded; asking for one by its name loads it where the system permits that.
        let probe = network.server().run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_tcp_congestion(self.0.as_bytes())
        });
        probe.map_err(|error| {
            let known = controllers(network.server()).unwrap_or_default().join(", ");
            match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("this kernel has no `{0}` (it has {known}); `modprobe tcp_{0}` loads it", self.0)
                }
                _ => format!("this kernel does not let us use `{}` (it has {known}): {error}", self.0),
            }
        })
    }

    async fn passes(
        self,
        network: &Network,
        spec: &RunSpec<'_>,
        tls: Rc<Tls>,
        mut looks: Looks<'_>,
    ) -> Result<Ends, String> {
        let system = |error: io::Error| format!("cannot use a TCP socket of the emulated network: {error}");
        let failed = |error: emu::network::NetworkError| error.to_string();
        let cpu = [Rc::new(Cell::new(0)), Rc::new(Cell::new(0))];
        let mut pairs: Vec<(Shared, Shared)> = Vec::new();
        let mut listeners = Vec::new();
        for connection in spec.connections {
            let number = u16::try_from(connection.index).map_err(|_| "too many connections".to_owned())?;
            listeners.push(self.listen(network.server(), PORT + number).map_err(system)?);
        }
        network.begin();
        let (origin, moment) = (now(), Moment::now());
        let clock = Clock { origin, moment };
        for (connection, listener) in spec.connections.iter().zip(listeners) {
            let seat = |end| {
                let app = App::new(end, spec);
                Rc::new(RefCell::new(Seat { app, socket: None, before: TcpInfo::default() }))
            };
            let (client, server) = (seat(End::Client), seat(End::Server));
            let to = address(SERVER, listener.local_addr().map_err(system)?.port());
            let socket = self.socket(network.client()).map_err(system)?;
            let work = Self::connect(socket, to, Rc::clone(&client), Rc::clone(&tls), clock, connection.start);
            tokio::task::spawn_local(Metered { spent: Rc::clone(&cpu[0]), work: Box::pin(work) });
            let work = Self::accept(listener, Rc::clone(&server), Rc::clone(&tls), clock);
            tokio::task::spawn_local(Metered { spent: Rc::clone(&cpu[1]), work: Box::pin(work) });
            pairs.push((client, server));
        }
        let direction = spec.scenario.traffic.direction;
        let sender = |(client, server): &(Shared, Shared)| match direction {
            Direction::Download => Rc::clone(server),
            Direction::Upload => Rc::clone(client),
        };
        let see = || pairs.iter().map(|pair| sender(pair).borrow().info().map(Into::into)).collect();
        while clock.now() < spec.measure_from {
            looks.look(clock.now(), see)?;
            tokio::time::sleep_until(clock.moment(looks.next(spec.measure_from))).await;
        }
        let before = network.snapshot().map_err(failed)?;
        for pair in &pairs {
            let sender = sender(pair);
            let info = sender.borrow().info().unwrap_or_default();
            sender.borrow_mut().before = info;
        }
        let mut smoothed_rtts = Vec::new();
        let mut next = clock.moment(spec.measure_from);
        while clock.now() < spec.end {
            looks.look(clock.now(), see)?;
            smoothed_rtts
                .extend(pairs.iter().filter_map(|pair| sender(pair).borrow().info()).map(|info| info.smoothed_rtt));
            next = (next + SAMPLE).min(clock.moment(spec.end));
            tokio::time::sleep_until(next).await;
        }
        let after = network.snapshot().map_err(failed)?;
        let mut delivery_rate = None;
        let mut measured = Vec::new();
        for (pair, connection) in pairs.iter().zip(spec.connections) {
            let info = sender(pair).borrow().info();
            if let Some(rate) = info.and_then(|info| info.delivery_rate) {
                #[expect(clippy::cast_precision_loss, reason = "a rate below 2^53 bit/s")]
                let rate = rate.as_bps() as f64;
                delivery_rate = Some(delivery_rate.unwrap_or(0.0) + rate);
            }
            measured.push(Self::measured(pair, &sender(pair), info, connection.start, spec));
        }
        let emulator = [before, after];
        Ok(Ends { measured, smoothed_rtts, delivery_rate, cpu: cpu.map(|spent| spent.get()), emulator })
    }

    fn measured(
        (client, server): &(Shared, Shared),
        sender: &Shared,
        info: Option<TcpInfo>,
        start: Instant,
        spec: &RunSpec<'_>,
    ) -> Measured {
        let traffic = &spec.scenario.traffic;
        let (client, server) = (&client.borrow().app, &server.borrow().app);
        let workload = applications(client, server, start, spec.measure_from, traffic.direction, traffic.workload);
        let seat = sender.borrow();
        let (Some(after), before) = (info, seat.before) else { return workload };
        let controller = seat.socket.as_ref().and_then(|socket| socket.tcp_congestion().ok()).unwrap_or_default();
        let controller = String::from_utf8_lossy(&controller).trim_end_matches('\0').to_owned();
        Measured {
            rtt_min: (after.min_rtt < Duration::from_secs(600)).then_some(after.min_rtt),
            stream_bytes_sent: Some(after.bytes_sent.saturating_sub(before.bytes_sent)),
            stream_bytes_resent: Some(after.bytes_resent.saturating_sub(before.bytes_resent)),
            packets_sent: Some(after.data_packets_sent.saturating_sub(before.data_packets_sent).into()),
            evidence: vec![Evidence {
                factor: "congestion".to_owned(),
                value: controller,
                counter: "packets with data sent by the socket (TCP_INFO)".to_owned(),
                count: after.data_packets_sent.into(),
            }],
            ..workload
        }
    }

    fn socket(self, side: &Namespace) -> io::Result<Socket> {
        let socket = side.run(|| Socket::new(Domain::IPV4, Type::STREAM, None))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_congestion(self.0.as_bytes())?;
        Ok(socket)
    }

    fn listen(self, side: &Namespace, port: u16) -> io::Result<tokio::net::TcpListener> {
        let socket = self.socket(side)?;
        socket.bind(&SockAddr::from(address(SERVER, port)))?;
        socket.listen(16)?;
        tokio::net::TcpListener::from_std(socket.into())
    }

    async fn connect(socket: Socket, to: SocketAddr, seat: Shared, tls: Rc<Tls>, clock: Clock, start: Instant) {
        tokio::time::sleep_until(clock.moment(start)).await;
        let made = async {
            socket.bind(&SockAddr::from(address(CLIENT, 0)))?;
            seat.borrow_mut().socket = Some(socket.try_clone()?);
            let stream = tokio::net::TcpSocket::from_std_stream(socket.into()).connect(to).await?;
            let stream = TlsConnector::from(Arc::clone(&tls.client)).connect(tls.name.clone(), stream).await?;
            Http2::client(stream).await.map_err(io::Error::other)
        };
        if let Ok(host) = made.await {
            work(seat, host, clock).await;
        }
    }

    async fn accept(listener: tokio::net::TcpListener, seat: Shared, tls: Rc<Tls>, clock: Clock) {
        let made = async {
            let (stream, _): (TcpStream, _) = listener.accept().await?;
            // The controller comes from the listener; this option does not.
            stream.set_nodelay(true)?;
            seat.borrow_mut().socket = Some(socket2::SockRef::from(&stream).try_clone()?);
            let stream = TlsAcceptor::from(Arc::clone(&tls.server)).accept(stream).await?;
            Http2::server(stream).await.map_err(io::Error::other)
        };
        if let Ok(host) = made.await {
            work(seat, host, clock).await;
        }
    }
}

/// Drives one end until its connection has ended: the connection, then the workload on it, until neither has anything to do.
async fn work(seat: Shared, mut host: Http2, clock: Clock) {
    let mut sleep = pin!(tokio::time::sleep_until(clock.moment));
    std::future::poll_fn(|cx| {
        let mut seat = seat.borrow_mut();
        loop {
            host.poll(cx);
            if seat.app.drive(clock.now(), &mut host) {
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
struct Clock {
    origin: Instant,
    moment: Moment,
}

impl Clock {
    fn now(self) -> Instant {
        Instant::ZERO + (now() - self.origin)
    }

    fn moment(self, at: Instant) -> Moment {
        self.moment + (at - Instant::ZERO)
    }
}

/// A task whose CPU time is counted.
struct Metered<F> {
    spent: Rc<Cell<u64>>,
    work: std::pin::Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for Metered<F> {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<()> {
        let mut spent = self.spent.get();
        let polled = metered(&mut spent, || self.work.as_mut().poll(cx));
        self.spent.set(spent);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn names_are_those_of_the_roster() {
        for name in (others().names)() {
            let contender = (others().make)(name).unwrap();
            assert_eq!(contender.identity().name, name);
            assert_eq!(Some(contender.factors()[0].value.as_str()), name.strip_prefix(KERNEL));
        }
        assert!((others().make)("kernel-vegas").is_err());
        assert_eq!(Kernel::of("cubic"), None);
        let parameters: BTreeMap<String, String> = Kernel("bbr").identity().parameters;
        assert!(parameters["protocol"].contains("TLS 1.3"));
    }

    #[test]
    fn datagrams_are_none_of_tcps() {
        assert!(Kernel::check(Workload::Datagrams).is_err() && Kernel::check(Workload::Bulk).is_ok());
    }
}
