//! Other stacks as contenders of the laboratory: the same peers that the differential runs use, with a congestion controller
//! of their own, under the laboratory's workloads.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
};

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use lab::{
    contender::{BuildError, ConnectionSpec, Evidence, Factor, Identity as Who, RunSpec},
    host::{Host, HostEvent, ReadEnd, Stream, Written},
    stack::{Stack as LabStack, StackBuilder, StackCounters},
    view::SenderView,
};
use sim::{Datagram, Outbox};
use units::{Duration, Instant};

use crate::{
    certificates::{ChainSize, Identity},
    peer::{Congestion, Dir, Peer, Read, Settings, Side, Signal, Write},
    shown,
    stacks::Stack,
};

/// Names of all contenders: stack and controller.
pub fn names() -> Vec<&'static str> {
    let mut names = vec!["noq-bbr3", "noq-cubic", "noq-newreno", "quinn-bbr", "quinn-cubic", "quinn-newreno"];
    if cfg!(feature = "quiche") {
        names.extend(["quiche-bbr2", "quiche-cubic", "quiche-newreno"]);
    }
    names
}

/// The version of a package that this program is built with.
fn locked(package: &str) -> Option<&'static str> {
    let mut lines = include_str!("../../Cargo.lock").lines();
    let name = format!("name = \"{package}\"");
    lines.find(|line| *line == name)?;
    lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')
}

/// Window of a stream and of a connection in bytes: more than any path of the laboratory holds.
const WINDOW: u64 = 16 << 20;

/// Builds both ends of a connection with one stack and one of its controllers.
#[derive(Clone, Debug)]
pub struct Peers {
    name: &'static str,
    stack: Stack,
    congestion: Congestion,
    identity: Arc<Identity>,
}

impl Peers {
    /// The stack and controller of this name; `None` when there is none.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub fn named(name: &str) -> Result<Option<Self>> {
        let Some(name) = names().into_iter().find(|known| *known == name) else { return Ok(None) };
        let Some((stack, controller)) = name.split_once('-') else { return Ok(None) };
        let stack = stack.parse()?;
        let congestion = match controller {
            "cubic" => Congestion::Cubic,
            "newreno" => Congestion::NewReno,
            _ => Congestion::Bbr,
        };
        Ok(Some(Self { name, stack, congestion, identity: Arc::new(Identity::new(ChainSize::Small)?) }))
    }

    fn end(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec, side: Side) -> Result<End, BuildError> {
        let mut seed = [0; 32];
        let name = if side == Side::Client { "client" } else { "server" };
        rand_core::RngCore::fill_bytes(&mut spec.seed.child(name, connection.index as u64).stream("seed"), &mut seed);
        let settings = Settings {
            seed,
            identity: Arc::clone(&self.identity),
            post_quantum: false,
            idle_timeout: std::time::Duration::from_secs(300),
            stream_window: WINDOW,
            connection_window: WINDOW,
            streams: 100,
            memory: None,
            log: false,
            congestion: Some(self.congestion),
        };
        let (local, remote) = match side {
            Side::Client => (connection.client, connection.server),
            Side::Server => (connection.server, connection.client),
        };
        Ok(End {
            make: Some((self.stack, side, settings)),
            peer: None,
            local,
            remote,
            deadline: None,
            failed: None,
            out: Vec::new(),
            state_entries: RefCell::default(),
            state: Cell::new(""),
        })
    }
}

/// The states between two that were seen one after the other, where one acknowledgement has led through them: in the draft there
/// is no other way.
fn passed(before: &str, after: &str) -> &'static [&'static str] {
    match (before, after) {
        ("startup", "probe_bw_down") => &["drain"],
        ("startup", "probe_bw_cruise") => &["drain", "probe_bw_down"],
        ("drain" | "probe_bw_up" | "probe_rtt", "probe_bw_cruise") => &["probe_bw_down"],
        _ => &[],
    }
}

impl StackBuilder for Peers {
    type Stack = End;

    fn identity(&self) -> Who {
        let package = match self.stack {
            Stack::Tiderace => "tiderace-transport",
            Stack::Quinn => "quinn-proto",
            Stack::Noq => "noq-proto",
            Stack::Quiche => "quiche",
        };
        let mut parameters = BTreeMap::from([
            ("congestion".to_owned(), format!("{:?}", self.congestion)),
            ("stream and connection window".to_owned(), format!("{WINDOW} B")),
            ("datagram size".to_owned(), "the stack's first, not probed".to_owned()),
        ]);
        if self.stack == Stack::Quiche {
            // It leaves pacing to whoever sends: nobody does here.
            parameters.insert("pacing".to_owned(), "off".to_owned());
            parameters.insert("datagram size".to_owned(), "at most 1350 B".to_owned());
        }
        let version = format!("{package} {}", locked(package).unwrap_or("of an unknown version"));
        Who { name: self.name.to_owned(), version, parameters }
    }

    fn factors(&self) -> Vec<Factor> {
        Vec::new()
    }

    fn client(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<End, BuildError> {
        self.end(spec, connection, Side::Client)
    }

    fn server(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<End, BuildError> {
        self.end(spec, connection, Side::Server)
    }
}

/// One end of a connection.
pub struct End {
    /// Parts, until it begins.
    make: Option<(Stack, Side, Settings)>,
    peer: Option<Box<dyn Peer>>,
    local: core::net::SocketAddr,
    remote: core::net::SocketAddr,
    deadline: Option<(Instant, &'static str)>,
    failed: Option<String>,
    out: Vec<BytesMut>,
    /// Number of entries into each state.
    state_entries: RefCell<BTreeMap<&'static str, u32>>,
    state: Cell<&'static str>,
}

impl End {
    /// Does something with the peer and asks it for its deadline.
    fn with<T>(&mut self, act: impl FnOnce(&mut dyn Peer) -> T) -> Option<T> {
        let peer = self.peer.as_mut()?;
        let result = act(peer.as_mut());
        self.deadline = peer.deadline();
        Some(result)
    }
}

impl LabStack for End {
    fn start(&mut self, _now: Instant) {
        let Some((stack, side, settings)) = self.make.take() else { return };
        match stack.peer(side, &settings) {
            Ok(peer) => self.peer = Some(peer),
            Err(error) => self.failed = Some(error.to_string()),
        }
        self.with(|_| ());
    }

    fn receive(&mut self, now: Instant, datagram: Datagram) {
        let size = datagram.segment_size.unwrap_or(datagram.payload.len()).max(1);
        let mut payload = datagram.payload;
        while !payload.is_empty() {
            let rest = payload.split_off(size.min(payload.len()));
            self.with(|peer| peer.receive(now, payload));
            payload = rest;
        }
    }

    fn timeout(&self) -> Option<(Instant, &'static str)> {
        self.deadline
    }

    fn on_timeout(&mut self, now: Instant) {
        self.with(|peer| peer.expire(now));
    }

    fn transmit(&mut self, now: Instant, out: &mut Outbox) {
        let mut datagrams = std::mem::take(&mut self.out);
        self.with(|peer| peer.transmit(now, &mut datagrams));
        for payload in datagrams.drain(..) {
            out.send(Datagram::new(self.local, self.remote, payload));
        }
        self.out = datagrams;
    }

    fn take_rtt_samples(&mut self, _sink: &mut dyn FnMut(Duration)) -> bool {
        false
    }

    fn counters(&self) -> StackCounters {
        StackCounters::default()
    }

    fn evidence(&self) -> Vec<Evidence> {
        Vec::new()
    }

    fn view(&self) -> Option<SenderView> {
        let text = self.peer.as_ref()?.controller()?;
        let mut view = shown::bbr3(&text)?;
        let mut state_entries = self.state_entries.borrow_mut();
        let before = self.state.replace(view.state);
        if before != view.state {
            for state in passed(before, view.state).iter().chain([&view.state]) {
                *state_entries.entry(state).or_default() += 1;
            }
        }
        if let Some(model) = &mut view.model {
            for (state, count) in &mut model.state_entries {
                *count = state_entries.get(state).copied().unwrap_or(0);
            }
        }
        Some(view)
    }
}

impl Host for End {
    fn poll_event(&mut self) -> Option<HostEvent> {
        if let Some(reason) = self.failed.take() {
            return Some(HostEvent::Closed(reason));
        }
        loop {
            let signal = self.with(|peer| peer.signal())??;
            return Some(match signal {
                Signal::Connected => HostEvent::Established,
                Signal::Opened(Dir::Bi) => HostEvent::Opened,
                Signal::Readable(id) => HostEvent::Readable(id),
                Signal::Writable(id) => HostEvent::Writable(id),
                Signal::StreamsAvailable(Dir::Bi) => HostEvent::Available,
                Signal::Closed(reason) => HostEvent::Closed(format!("{reason:?}")),
                Signal::Opened(Dir::Uni) | Signal::StreamsAvailable(Dir::Uni) | Signal::Stopped { .. } => continue,
            });
        }
    }

    fn open(&mut self) -> Option<Stream> {
        self.with(|peer| peer.open(Dir::Bi))?
    }

    fn accept(&mut self) -> Option<Stream> {
        self.with(|peer| peer.accept(Dir::Bi))?
    }

    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written {
        match self.with(|peer| peer.write(stream, data)) {
            Some(Ok(Write::Taken(taken))) => {
                let _ = data.split_to(taken);
                Written::Bytes(taken)
            }
            Some(Ok(Write::Blocked)) => Written::Blocked,
            _ => Written::Closed,
        }
    }

    fn finish(&mut self, stream: Stream) {
        // A stream that the other end stopped has no end to send.
        let _ = self.with(|peer| peer.finish(stream));
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match self.with(|peer| peer.read(stream, &mut buffer)) {
                Some(Ok(Read::Data(count))) => sink(&buffer[..count]),
                Some(Ok(Read::Finished)) => return ReadEnd::Finished,
                Some(Ok(Read::Blocked)) => return ReadEnd::Blocked,
                _ => return ReadEnd::Closed,
            }
        }
    }

    fn send_datagram(&mut self, _data: Bytes) -> bool {
        false
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        None
    }
}

#[cfg(test)]
mod tests {
    use lab::{record::RunOutcome, run::run_one, scenario::load, stack::SansIo};

    use super::*;

    #[test]
    fn every_stack_carries_data_and_says_its_version() {
        let mut scenario = load("mobile").unwrap();
        (scenario.run.duration, scenario.run.warmup) = (Duration::from_secs(3), Duration::ZERO);
        scenario.traffic.start_spread = Duration::ZERO;
        for name in names() {
            let peers = SansIo(Peers::named(name).unwrap().unwrap());
            let record = run_one(&scenario, &peers, 1, None);
            assert_eq!(record.outcome, RunOutcome::Valid, "{name}");
            let goodput: f64 = record.connections.iter().map(|one| one.goodput).sum();
            assert!(goodput > 1e5, "{name}: {goodput} bit/s");
            let version = &record.contender.version;
            assert!(version.contains(|c: char| c.is_ascii_digit()) && !version.contains("unknown"), "{version}");
        }
        assert!(Peers::named("quinn-bbr9").unwrap().is_none());
    }
}
