//! Measuring end: phases in order, from light to heavy.
//!
//! [`path`] has session and datagrams, [`inbox`] received packets, [`sample`] trains; [`mod@ecn`], [`mod@mtu`], [`rate`], [`load`], [`tcp`] and [`rivals`]
//! are a measurement each.

mod ecn;
mod inbox;
mod load;
mod mtu;
mod path;
mod rate;
mod rivals;
mod sample;
mod tcp;

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use tiderace::{
    ClientConfig, CloseReason, ConnectError, Connection, Endpoint, HandshakeFault, Profile,
    transport::tls::rustls_backend::KeyExchange,
};
use tokio::{task::JoinSet, time::timeout};

pub(super) use self::mtu::Mtu;
use self::{path::Path, sample::Shape};
use super::{
    ProbeArgs,
    consent::{self, Consent},
    estimate::{
        delay::{RoundTrips, Variation},
        loss::Loss,
        order::Reordering,
    },
    protocol::{self, ALPN, Answer, ExchangeError, Refusal, Request, Welcome},
    results::{Cost, Loaded, Measured, NatTimeout, Results, Tcp},
    verify,
};
use crate::{
    address::{self, Target},
    failure::Failure,
    meter::{Followed, Meter, Ticking},
    screen::Shown,
    stop::Stop,
    trust::{self, Sessions},
};

/// Direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    Up,
    Down,
}

impl Direction {
    pub(super) const BOTH: [Self; 2] = [Self::Down, Self::Up];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// Time that the answer to the first message may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the UDP payload of paced packets.
const SMALL: u16 = 72;
/// Packets a second of a path whose rate is not known: 40 kbit/s.
const CAREFUL: f64 = 50.0;
/// Times of silence after which a packet should still come, in seconds.
const SILENCES: [u64; 14] = [5, 10, 15, 20, 25, 30, 45, 60, 90, 120, 180, 240, 300, 600];

/// Measures the path to a server.
///
/// # Errors
/// When the server cannot be reached or refuses, or the terminal cannot be used.
pub(super) async fn run(host: &str, args: &ProbeArgs, plain: bool) -> Result<Results, Failure> {
    let target = address::resolve(host)?;
    args.trust.warn();
    let consent = consent::ask(args)?;
    let begun = Instant::now();
    let mut path = connect(&target, args).await?;
    // Before this there is nothing to report, and Ctrl-C ends the program.
    let stop = Stop::on_interrupt()?;
    let verifies = if args.verify { verify::Plan::length(args) } else { Duration::ZERO };
    let length = args.time + args.nat_timeout.unwrap_or_default() + verifies;
    let watched = args.screen.then(|| Watched::start(&mut path, host, length, plain, &stop)).transpose()?;
    let results = Results::default();
    let mut probe = Probe { path: Arc::new(path), results, begun: Instant::now(), time: args.time, stop };
    probe.light().await;
    if consent == Consent::Given {
        probe.heavy().await;
    } else {
        probe.idle(args.time.mul_f64(0.3)).await;
        probe.note("rate, queue, policer, loaded round trips, TCP: not measured, since the path was not to be loaded");
    }
    if let Some(most) = args.nat_timeout {
        probe.nat(most).await;
    }
    if args.verify && consent == Consent::Given {
        probe.verify(args).await;
    }
    if probe.path.is_cut() {
        probe.note("a limit of bytes (`--bytes`, or the server's) has cut trains short");
    }
    drop(watched);
    let Probe { path, mut results, stop, .. } = probe;
    results.is_partial = stop.is_asked();
    results.cost = Cost { bytes: path.spent(), seconds: begun.elapsed().as_secs_f64() };
    path.connection.close(0, b"done");
    let _ = timeout(Duration::from_millis(100), path.endpoint.wait_idle()).await;
    Ok(results)
}

/// View of the measurement while it goes on: `--screen`.
struct Watched {
    _shown: Shown,
    _datagrams: Option<Followed>,
    _ticking: Ticking,
}

impl Watched {
    fn start(path: &mut Path, host: &str, length: Duration, plain: bool, stop: &Stop) -> Result<Self, Failure> {
        let (meter, stop) = (Meter::new(&format!("probe {host}"), Some(length)), stop.clone());
        path.meter = Some(meter.clone());
        let (ticking, datagrams) = (meter.ticking(), path.follow_datagrams());
        let shown = Shown::start(meter, plain, move || stop.ask())?;
        Ok(Self { _shown: shown, _datagrams: datagrams, _ticking: ticking })
    }
}

/// Opens connection, session and datagrams.
async fn connect(target: &Target, args: &ProbeArgs) -> Result<Path, Failure> {
    let mut profile =
        Profile { name: "probe".to_owned(), keep_alive: Some(Duration::from_secs(10)), ..Profile::default() };
    profile.handshake_timeout = args.timeout;
    let (tls, _) = trust::client(&args.trust, ALPN, Sessions::New, &KeyExchange::ALL, None)?;
    let config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
    let name = args.server_name.clone().unwrap_or_else(|| target.host.clone());
    let no_socket =
        |error: std::io::Error| Failure::new(format_args!("cannot open a socket: {}", address::plain(&error)));
    let endpoint = Endpoint::client_for(target.address).map_err(no_socket)?;
    let connecting = endpoint.connect(&config, target.address, &name);
    let connected = async { connecting?.await };
    let connection = match connected.await {
        Ok(connection) => connection,
        Err(error) => return Err(explain(&error, target, args.timeout).await),
    };
    let begin = Request::Begin { token: args.token.clone() };
    let welcome = match timeout(PATIENCE, welcome(&connection, &begin)).await {
        Ok(Ok(welcome)) => welcome,
        Ok(Err(error)) => return Err(refused(&error)),
        Err(_) => return Err(refused(&ExchangeError::Silence)),
    };
    let (tools, peer) = ((endpoint, config), (target.address, name));
    Path::open(tools, peer, connection, welcome, args.bytes.as_bytes()).map_err(no_socket)
}

async fn welcome(connection: &Connection, begin: &Request) -> Result<Welcome, ExchangeError> {
    let (mut send, mut recv) = connection.open_bi().await?;
    protocol::request(&mut send, begin).await?;
    match protocol::read(&mut recv).await? {
        Answer::Welcome(welcome) => Ok(welcome),
        Answer::Refused(refusal) => Err(refusal.into()),
        _ => Err(ExchangeError::Protocol),
    }
}

/// The server did not begin a session.
fn refused(error: &ExchangeError) -> Failure {
    let failure = Failure::new(format_args!("cannot measure: {error}"));
    match error {
        ExchangeError::Refused(Refusal::Token) => failure.hint("give `--token TOKEN`, which the server has printed"),
        ExchangeError::Refused(Refusal::Busy) => failure.hint("try again when others have finished"),
        ExchangeError::Refused(Refusal::Client | Refusal::Total) => {
            failure.hint("try again in an hour, or raise the server's `--client-bytes` and `--total-bytes`")
        }
        _ => failure.hint("the server's own output may say more"),
    }
}

/// Explains a failed connection: reports whether UDP is blocked.
async fn explain(error: &ConnectError, target: &Target, within: Duration) -> Failure {
    let failure = Failure::new(format_args!("cannot connect to {}: {error}", target.address));
    match error {
        ConnectError::Closed(CloseReason::HandshakeTimeout) => {
            if tcp::connects(target.address, within.min(Duration::from_secs(5))).await {
                return Failure::new(format_args!("UDP does not pass to {}, while TCP connects there", target.address))
                    .hint("a firewall blocks UDP, or `tiderace probe --serve` is not what listens at this port");
            }
            failure.hint("does `tiderace probe --serve` run there, and do firewalls let UDP through?")
        }
        ConnectError::Closed(CloseReason::HandshakeFailed { fault: HandshakeFault::Certificate(_), .. }) => {
            failure.hint("say whom to trust: `--pin FINGERPRINT` (the server prints it), `--ca FILE` or `--insecure`")
        }
        ConnectError::Closed(CloseReason::PeerClosed { error } | CloseReason::HandshakeFailed { error, .. })
            if HandshakeFault::of(error.code) == Some(HandshakeFault::NoApplicationProtocol) =>
        {
            failure.hint("the server has to be `tiderace probe --serve` of the same version")
        }
        _ => failure.hint("the server's own output may say more"),
    }
}

/// Measurements in progress.
struct Probe {
    path: Arc<Path>,
    results: Results,
    begun: Instant,
    time: Duration,
    stop: Stop,
}

impl Probe {
    fn note(&mut self, text: impl Into<String>) {
        self.results.notes.push(text.into());
    }

    /// Time that is left.
    fn left(&self) -> Duration {
        self.time.saturating_sub(self.begun.elapsed())
    }

    /// Runs a measurement and adds up its cost. An error, or the end of the time, becomes a note.
    async fn cost<T>(
        &mut self,
        what: &str,
        work: impl Future<Output = Result<Option<T>, ExchangeError>>,
    ) -> Option<Measured<T>> {
        let (bytes, begun) = (self.path.spent(), Instant::now());
        let left = self.left();
        if self.stop.is_asked() {
            self.note(format!("{what}: not measured, since the run was interrupted"));
            return None;
        }
        if let Some(meter) = &self.path.meter {
            meter.state().stage = Some(what.to_owned());
        }
        if left.is_zero() {
            self.note(format!("{what}: not measured, since `--time` is over"));
            return None;
        }
        let stop = self.stop.clone();
        let found = tokio::select! {
            found = timeout(left.max(Duration::from_secs(1)), work) => found,
            () = stop.wait() => {
                self.note(format!("{what}: not measured, since the run was interrupted"));
                return None;
            }
        };
        let cost = Cost { bytes: self.path.spent() - bytes, seconds: begun.elapsed().as_secs_f64() };
        match found {
            Ok(Ok(Some(value))) => return Some(Measured { value, cost }),
            Ok(Ok(None)) => self.note(format!("{what}: not measured, since too few packets came through")),
            Ok(Err(error)) => self.note(format!("{what}: not measured: {error}")),
            Err(_) => self.note(format!("{what}: not measured, since `--time` is over")),
        }
        None
    }

    /// Measures without a load: round trip, ECN, MTU.
    async fn light(&mut self) {
        let path = self.path.clone();
        self.results.rtt = self
            .cost("RTT", async {
                let pings = path.pings(40, Duration::from_millis(15), usize::from(SMALL)).await;
                Ok(RoundTrips::of(&pings.rtts()))
            })
            .await;
        if self.results.rtt.is_none() {
            let port = self.path.welcome.udp_port;
            self.note(format!(
                "datagrams do not come back: does a firewall let UDP port {port} of the server through?"
            ));
        }
        if let Some(Measured { value: [up, down], cost }) = self.cost("ECN", ecn::measure(&path)).await {
            self.results.up.ecn = Some(Measured { value: up, cost });
            self.results.down.ecn = Some(Measured { value: down, cost });
        }
        for direction in Direction::BOTH {
            let what = format!("MTU {}", direction.name());
            let found = self.cost(&what, mtu::search(&path, direction)).await;
            self.results.way_mut(direction).mtu = found;
        }
    }

    /// Measures under load: rate and queue, loss at a pace that the rate allows, round trips under load, TCP.
    async fn heavy(&mut self) {
        let path = self.path.clone();
        let mut trains = Vec::new();
        for direction in Direction::BOTH {
            let what = format!("rate {}", direction.name());
            let train = self.cost(&what, rate::find(&path, direction, self.time.mul_f64(0.05), 0.35)).await;
            if let Some(found) = train.as_ref().and_then(|train| train.value.train.analyse(0.0)) {
                let cost = train.as_ref().map_or_else(Cost::default, |train| train.cost);
                self.results.way_mut(direction).rate = Some(Measured { value: found, cost });
            }
            trains.extend(train.map(|train| (direction, train)));
        }
        self.idle(self.time.mul_f64(0.15)).await;
        // Loss without load is known now: what is lost behind the bottleneck was delivered by it.
        for (direction, train) in trains {
            let way = self.results.way_mut(direction);
            let idle = way.loss.as_ref().map_or(0.0, |loss| loss.value.share.value);
            if let Some(value) = train.value.train.analyse(idle) {
                way.rate = Some(Measured { value, cost: train.cost });
            }
            if train.value.unrecorded > 0 {
                self.note(format!("rate {}: the server had no room for the records of all packets", direction.name()));
            }
        }
        for direction in Direction::BOTH {
            let bytes = path.left() / 4;
            let lasts = self.fits(direction, self.time.mul_f64(0.11), bytes);
            let what = format!("round trips under load {}", direction.name());
            let found = self
                .cost(&what, async {
                    let loaded = load::load(&path, direction, lasts, bytes).await?;
                    let rtt = RoundTrips::of(&loaded.rtts);
                    let responsiveness = loaded.probes.responsiveness();
                    Ok(Some(Loaded { rtt, responsiveness, goodput: loaded.goodput }))
                })
                .await;
            self.results.way_mut(direction).loaded = found;
        }
        if path.welcome.tcp_port.is_none() {
            self.note("TCP: not measured, since the server could not listen");
            return;
        }
        for direction in Direction::BOTH {
            let bytes = path.left() / 2;
            let lasts = self.fits(direction, self.time.mul_f64(0.09), bytes);
            let what = format!("TCP {}", direction.name());
            let found = self
                .cost(&what, async {
                    let found = tcp::goodput(&path, direction, lasts, bytes).await;
                    path.settle().await;
                    Ok(found.map(|goodput| Tcp { goodput }))
                })
                .await;
            self.results.way_mut(direction).tcp = found;
        }
    }

    /// Runs the recommended controller and its rivals.
    async fn verify(&mut self, args: &ProbeArgs) {
        if self.stop.is_asked() {
            return self.note("verification: not made, since the run was interrupted");
        }
        let Some(recommended) = verify::recommended(&self.results) else {
            return self.note("verification: not made, since nothing is recommended");
        };
        let rate = self.results.down.rate.as_ref().map(|rate| rate.value.rate.value);
        let granted = self.path.welcome.bytes.saturating_sub(self.path.spent());
        let plan = verify::Plan::new(args, rate, args.bytes.as_bytes().min(granted));
        match &self.path.meter {
            Some(meter) => meter.state().stage = Some("verification".to_owned()),
            None => eprintln!("verifying {}: {}", recommended.name(), plan.estimate()),
        }
        let rounds = rivals::run(&self.path, &plan, &self.stop).await;
        self.results.verification = Some(verify::Verification::new(recommended, &plan, rounds));
    }

    /// Duration of a load within a number of bytes at the path's rate: at most `lasts`, and not shortened below one second.
    fn fits(&self, direction: Direction, lasts: Duration, bytes: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
        let all = |rate: f64| bytes as f64 * 8.0 * 0.8 / rate;
        let rate = self.results.way(direction).rate.as_ref().map(|rate| rate.value.rate.value);
        let most = rate.map_or(f64::INFINITY, all).clamp(1.0, 3_600.0);
        lasts.min(Duration::from_secs_f64(most))
    }

    /// Paced packets in both directions at once: loss, reordering, variation of delay.
    async fn idle(&mut self, lasts: Duration) {
        let path = self.path.clone();
        let shape = |results: &Results, direction| {
            let rate = results.way(direction).rate.as_ref().map(|rate| rate.value.rate.value);
            let wire = f64::from(u32::from(SMALL) + path.overhead()) * 8.0;
            // A quarter of a slow path, which leaves its queue empty.
            let pace = rate.map_or(CAREFUL, |rate| (rate * 0.25 / wire).clamp(10.0, 1_000.0));
            Shape::at(pace * wire, SMALL, path.overhead(), lasts)
        };
        let (up, down) = (shape(&self.results, Direction::Up), shape(&self.results, Direction::Down));
        let both = async {
            let (up, down) = tokio::join!(path.train_up(up, true), path.train_down(down, true));
            Ok(Some([(Direction::Up, up?), (Direction::Down, down?)]))
        };
        let Some(Measured { value, cost }) = self.cost("loss", both).await else { return };
        for (direction, sample) in value {
            let train = &sample.train;
            let numbers: Vec<u32> = train.arrivals.iter().map(|arrival| arrival.number).collect();
            let way = self.results.way_mut(direction);
            if !train.sent.is_empty() && sample.unrecorded == 0 {
                let loss = Loss::of_numbers(train.sent.len(), numbers.iter().copied());
                way.loss = Some(Measured { value: loss, cost });
            }
            way.reordering = (!numbers.is_empty()).then(|| Measured { value: Reordering::of(&numbers), cost });
            way.variation = Variation::of(&train.arrivals).map(|value| Measured { value, cost });
        }
    }

    /// Sockets that are silent for different times.
    async fn nat(&mut self, most: Duration) {
        let path = self.path.clone();
        let (bytes, begun) = (path.spent(), Instant::now());
        let mut waits = JoinSet::new();
        for silence in SILENCES.into_iter().filter(|silence| Duration::from_secs(*silence) <= most) {
            let path = path.clone();
            waits.spawn(async move { (silence, path.comes_after(Duration::from_secs(silence)).await) });
        }
        let mut found = Vec::new();
        let stop = self.stop.clone();
        while let Some(joined) = tokio::select! {
            joined = waits.join_next() => joined,
            () = stop.wait() => None,
        } {
            match joined {
                Ok((silence, Ok(comes))) => found.push((silence, comes)),
                Ok((silence, Err(error))) => self.note(format!("NAT: {silence} s not measured: {error}")),
                Err(_) => {}
            }
        }
        let survives_s = found.iter().filter(|(_, comes)| *comes).map(|(silence, _)| *silence).max();
        // One packet may be lost on the way: the shortest silence behind the longest that was survived counts.
        let survives_s = survives_s.unwrap_or(0);
        let forgets_s =
            found.iter().filter(|(silence, comes)| !comes && *silence > survives_s).map(|(silence, _)| *silence).min();
        if found.is_empty() {
            let reason = if stop.is_asked() {
                "the run was interrupted"
            } else {
                "`--nat-timeout` is below 5 s, or no packet came back"
            };
            return self.note(format!("NAT: not measured: {reason}"));
        }
        let cost = Cost { bytes: path.spent() - bytes, seconds: begun.elapsed().as_secs_f64() };
        self.results.nat = Some(Measured { value: NatTimeout { survives_s, forgets_s }, cost });
    }
}
