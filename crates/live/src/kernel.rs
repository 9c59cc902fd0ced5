//! The kernel's TCP as a contender: a congestion controller per socket, TLS, HTTP/2 or HTTP/1.1.

use std::{cell::Cell, fs, future::Future, io, rc::Rc, task::Poll};

use emu::network::{Network, SERVER, TcpInfo, address, controllers, now, permit_fast_open};
use lab::{
    contender::{BuildError, Contender, Factor, Identity, Measured, Nodes, RunSpec},
    roster::Others,
    scenario::{Direction, Workload},
    stack::applications,
    workload::{App, End},
};
use socket2::{Domain, Socket, Type};
use tokio::{task::LocalSet, time::Instant as Moment};
use units::{Duration, Instant};

use crate::{
    ends::Ends,
    http2::WINDOWS,
    nodes::metered,
    recipe::Recipe,
    seat::{Clock, Seat, Shared, Sockets},
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

/// The kernel's TCP with one congestion controller, and the settings that its name carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    controller: &'static str,
    recipe: Recipe,
}

/// The kernel's contenders by their names, for [`lab::roster::join`].
pub fn others() -> Others {
    Others {
        names: || vec!["kernel-reno", "kernel-cubic", "kernel-bbr"],
        has: |name| Kernel::named(name).is_ok(),
        make: |name| Kernel::named(name).map(|kernel| Box::new(kernel) as Box<dyn Contender>),
    }
}

impl Kernel {
    /// Settings that a name may carry behind the controller, for messages.
    pub const SETTINGS: &str = Recipe::GRAMMAR;

    /// The contender with this name, such as `kernel-cubic` or `kernel-cubic:http1:6`.
    ///
    /// # Errors
    /// When it is no name of the kernel's contenders, or a setting in it does not exist.
    pub fn named(name: &str) -> Result<Self, String> {
        let unknown = || format!("there is no contender `{name}`");
        let rest = name.strip_prefix(KERNEL).ok_or_else(unknown)?;
        let controller = rest.split(':').next().unwrap_or_default();
        let controller = CONTROLLERS.into_iter().find(|known| *known == controller).ok_or_else(unknown)?;
        let recipe = rest.parse().map_err(|reason| format!("`{name}`: {reason}"))?;
        Ok(Self { controller, recipe })
    }

    /// Name of the controller, as the kernel has it.
    pub fn controller(self) -> &'static str {
        self.controller
    }

    /// Refuses a workload that TCP cannot carry.
    ///
    /// # Errors
    /// When it needs datagrams.
    pub fn check(workload: Workload) -> Result<(), String> {
        match workload {
            Workload::Datagrams | Workload::Messages | Workload::Webtransport => Err("TCP has no datagrams".to_owned()),
            Workload::Tunnel => Err("its packets go through no tunnel".to_owned()),
            _ => Ok(()),
        }
    }
}

impl Contender for Kernel {
    fn identity(&self) -> Identity {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let windows = match self.recipe.http1 {
            true => "none above TCP's".to_owned(),
            false => format!("{} and {} bytes (stream, connection of HTTP/2)", WINDOWS.0, WINDOWS.1),
        };
        let buffer = self.recipe.send_buffer.map(|size| format!("{} bytes", size.as_bytes()));
        let segments = self.recipe.segment_size.map(|bytes| format!("{bytes} bytes"));
        let parameters = [
            ("congestion", self.controller.to_owned()),
            ("protocol", self.recipe.protocol()),
            ("windows", windows),
            ("fast open", if self.recipe.fast_open { "on, without a cookie" } else { "off" }.to_owned()),
            ("send buffer", buffer.unwrap_or_else(|| "tuned by the kernel".to_owned())),
            ("maximum segment size", segments.unwrap_or_else(|| "that of the device".to_owned())),
            ("offloads", "off".to_owned()),
        ];
        Identity {
            name: format!("{KERNEL}{}{}", self.controller, self.recipe),
            version: format!("Linux {}", kernel.trim()),
            parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }

    fn factors(&self) -> Vec<Factor> {
        let recipe = self.recipe;
        let factors = [
            (true, "congestion", self.controller.to_owned()),
            (recipe.http1, "http", "1.1".to_owned()),
            (recipe.tls12, "tls", "1.2".to_owned()),
            (recipe.x25519, "key-exchange", "x25519".to_owned()),
            (recipe.connections > 1, "connections", recipe.connections.to_string()),
            (recipe.fast_open, "fast-open", "on".to_owned()),
            (recipe.mptcp, "mptcp", "on".to_owned()),
            (recipe.send_buffer.is_some(), "buffer", recipe.send_buffer.map_or(0, |size| size.as_bytes()).to_string()),
            (recipe.segment_size.is_some(), "mss", recipe.segment_size.unwrap_or(0).to_string()),
        ];
        let set = factors.into_iter().filter(|(is_set, ..)| *is_set);
        set.map(|(_, name, value)| Factor { name: name.to_owned(), value }).collect()
    }

    fn build(&self, _spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        Err(BuildError(format!("{} runs in real time only", self.identity().name)))
    }
}

impl Kernel {
    /// Lets time pass.
    pub(crate) fn pass(self, network: &Network, spec: &RunSpec<'_>, watch: Option<&Watch<'_>>) -> Result<Ends, String> {
        Self::check(spec.scenario.traffic.workload)?;
        self.available(network)?;
        let tls = Rc::new(Tls::new(self.recipe)?);
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
            socket.set_tcp_congestion(self.controller.as_bytes())
        });
        probe.map_err(|error| {
            let known = controllers(network.server()).unwrap_or_default().join(", ");
            match error.kind() {
                io::ErrorKind::NotFound => {
                    let name = self.controller;
                    format!("this kernel has no `{name}` (it has {known}); `modprobe tcp_{name}` loads it")
                }
                _ => format!("this kernel does not let us use `{}` (it has {known}): {error}", self.controller),
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
        let sockets = Sockets { controller: self.controller, recipe: self.recipe };
        if self.recipe.fast_open {
            for side in [network.client(), network.server()] {
                permit_fast_open(side).map_err(|error| format!("the system keeps TCP Fast Open off: {error}"))?;
            }
        }
        let mut pairs: Vec<(Shared, Shared)> = Vec::new();
        let mut listeners = Vec::new();
        for connection in spec.connections {
            let number = u16::try_from(connection.index).map_err(|_| "too many connections".to_owned())?;
            listeners.push(sockets.listen(network.server(), PORT + number).map_err(system)?);
        }
        network.begin();
        let (origin, moment) = (now(), Moment::now());
        let clock = Clock { origin, moment };
        for (connection, listener) in spec.connections.iter().zip(listeners) {
            let (client, server) = (Seat::new(App::new(End::Client, spec)), Seat::new(App::new(End::Server, spec)));
            let to = address(SERVER, listener.local_addr().map_err(system)?.port());
            let own = (0..self.recipe.connections).map(|_| sockets.socket(network.client()));
            let own = own.collect::<io::Result<Vec<_>>>().map_err(system)?;
            let work = sockets.connect(own, to, Rc::clone(&client), Rc::clone(&tls), clock, connection.start);
            tokio::task::spawn_local(Metered { spent: Rc::clone(&cpu[0]), work: Box::pin(work) });
            let work = sockets.accept(listener, Rc::clone(&server), Rc::clone(&tls), clock);
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
            for pair in &pairs {
                smoothed_rtts.extend(sender(pair).borrow().infos().map(|info| info.smoothed_rtt));
            }
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
            measured.push(self.measured(pair, &sender(pair), info, connection.start, spec));
        }
        let emulator = [before, after];
        Ok(Ends { measured, smoothed_rtts, delivery_rate, cpu: cpu.map(|spent| spent.get()), emulator })
    }

    fn measured(
        self,
        (client, server): &(Shared, Shared),
        sender: &Shared,
        info: Option<TcpInfo>,
        start: Instant,
        spec: &RunSpec<'_>,
    ) -> Measured {
        let traffic = &spec.scenario.traffic;
        let receiver = if Rc::ptr_eq(sender, client) { server } else { client };
        let evidence_at_receiver = receiver.borrow().evidence_at_receiver(self.recipe);
        let [ours, theirs] = [client, server].map(|seat| seat.borrow().resent());
        let resent = Some([ours[0] + theirs[0], ours[1] + theirs[1]]);
        let (client, server) = (&client.borrow().app, &server.borrow().app);
        let workload = applications(client, server, start, spec.measure_from, traffic.direction, traffic.workload);
        let seat = sender.borrow();
        let (Some(after), before) = (info, seat.before) else { return Measured { resent, ..workload } };
        Measured {
            resent,
            rtt_min: (after.min_rtt < Duration::from_secs(600)).then_some(after.min_rtt),
            stream_bytes_sent: Some(after.bytes_sent.saturating_sub(before.bytes_sent)),
            stream_bytes_resent: Some(after.bytes_resent.saturating_sub(before.bytes_resent)),
            packets_sent: Some(after.data_packets_sent.saturating_sub(before.data_packets_sent).into()),
            evidence: seat.evidence(self.recipe),
            evidence_at_receiver,
            ..workload
        }
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
            assert!((others().has)(name));
            assert_eq!(Some(contender.factors()[0].value.as_str()), name.strip_prefix(KERNEL));
        }
        assert!((others().make)("kernel-vegas").is_err() && !(others().has)("kernel-cubic:http3"));
        assert!(Kernel::named("cubic").is_err());
        let parameters: BTreeMap<String, String> = Kernel::named("kernel-bbr").unwrap().identity().parameters;
        assert!(parameters["protocol"].contains("TLS 1.3"));
    }

    #[test]
    fn settings_in_a_name_are_factors() {
        let kernel = Kernel::named("kernel-cubic:6:http1:mss=1310:buffer=128KiB").unwrap();
        assert_eq!(kernel.identity().name, "kernel-cubic:http1:6:buffer=128KiB:mss=1310");
        let factors: Vec<_> = kernel.factors().into_iter().map(|factor| (factor.name, factor.value)).collect();
        let expected =
            [("congestion", "cubic"), ("http", "1.1"), ("connections", "6"), ("buffer", "131072"), ("mss", "1310")];
        assert_eq!(factors, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            Kernel::named("kernel-cubic:9").unwrap_err(),
            "`kernel-cubic:9`: `9` connections: 1 to 8 are possible"
        );
    }

    #[test]
    fn datagrams_are_none_of_tcps() {
        assert!(Kernel::check(Workload::Datagrams).is_err() && Kernel::check(Workload::Bulk).is_ok());
    }
}
