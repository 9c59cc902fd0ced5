//! Full handshakes of a gateway whose private keys are with `tiderace edge signer`, beside one that has them itself: RSA-2048 and ECDSA P-256,
//! HTTP/3 and HTTP/2. Rounds are interleaved.
//!
//! The transport decides where a gateway signs with a key of its own, and no setting changes it:
//!
//! - HTTP/3: on the threads of the TLS pool. A quick step that is alone runs on the thread that serves the connection.
//! - HTTP/2: on the thread that serves the connection.
//!
//! All of this is processor time of the gateway. With the signer, handshakes of both wait on threads of their own.
//!
//! Client, gateway and signer share the processors of one machine. Handshakes per core come from the processor time of the gateway alone,
//! and handshakes per second from all three together.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::load,
    edge_servers::{self as servers, Gentle},
    edge_watch::ask,
    row::{Row, Target},
};
use crate::processor;

const LIMIT: Duration = Duration::from_secs(300);
/// Handshakes of a run, and those at a time.
const HANDSHAKES: &str = "600";
const AT_A_TIME: &str = "8";
/// Handshakes that are alone: as many as a p99 needs.
const ALONE: &str = "300";
/// Time until a gateway has its connection to the signer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Gain that others have published, in the detail of the rows for RSA.
const REFERENCE: &str = "a large gateway reported 256 % with a card that computes RSA, which is 156 % more";

/// Kind of the site's private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyKind {
    Rsa,
    Ecdsa,
}

/// Place of the site's private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Gateway,
    Signer,
}

/// Metric of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Metric {
    /// Processor time of the gateway for a handshake, in µs.
    Gateway,
    /// Processor time of the signer for a signature, in µs.
    Signer,
    /// Handshakes per second.
    Rate,
    /// Latency of handshakes that are alone, in ms.
    P50,
    P99,
}

type Contender = (KeyKind, &'static str, Place);
type Values = BTreeMap<(Contender, Metric), Vec<f64>>;

impl KeyKind {
    const ALL: [Self; 2] = [Self::Rsa, Self::Ecdsa];

    /// Name of the folder with the certificate.
    fn folder(self) -> &'static str {
        match self {
            Self::Rsa => "rsa",
            Self::Ecdsa => "ecdsa",
        }
    }

    /// Key as `openssl req` makes it.
    fn openssl(self) -> &'static [&'static str] {
        match self {
            Self::Rsa => &["rsa:2048"],
            Self::Ecdsa => servers::P256,
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rsa => "RSA-2048",
            Self::Ecdsa => "ECDSA P-256",
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gateway => "key at the gateway",
            Self::Signer => "key at the signer",
        })
    }
}

/// Programs at work.
struct Site {
    load: PathBuf,
    scratch: PathBuf,
    signer: Server,
    gateways: BTreeMap<(KeyKind, Place), Server>,
}

/// A program with the port that serves clients, and the one that serves metrics.
struct Server {
    running: Gentle,
    port: u16,
    metrics: u16,
}

impl Server {
    fn start(context: &Context, name: &str, command: &mut Command, [port, metrics]: [u16; 2]) -> Result<Self> {
        let running = Gentle(context.commands.start(name, command)?);
        for port in [port, metrics] {
            servers::wait(port).with_context(|| running.0.printed())?;
        }
        Ok(Self { running, port, metrics })
    }

    fn metrics(&self) -> Result<String> {
        ask(self.metrics, "/metrics")
    }

    fn processor_time(&self) -> Result<f64> {
        processor::seconds(self.running.0.id())
    }
}

impl Site {
    fn start(context: &Context) -> Result<Self> {
        let built = servers::build_ours(context)?;
        let (program, scratch) = (built.join("tiderace"), context.commands.scratch("signer-gain")?);
        servers::site(&scratch, &[("small", 1_000)])?;
        for (folder, key) in [("rsa", KeyKind::Rsa), ("ecdsa", KeyKind::Ecdsa), ("signer", KeyKind::Ecdsa)] {
            std::fs::create_dir_all(scratch.join(folder))?;
            servers::certificate(&scratch.join(folder), key.openssl())?;
        }
        let ports = [servers::port()?, servers::port()?];
        let config = scratch.join("signer/signer.toml");
        std::fs::write(&config, signer_config(ports))?;
        let mut command = Command::new(&program);
        let signer =
            Server::start(context, "signer-gain-signer", command.args(["edge", "signer"]).arg(&config), ports)?;
        let mut gateways = BTreeMap::new();
        for (kind, place) in KeyKind::ALL.into_iter().flat_map(|kind| [(kind, Place::Gateway), (kind, Place::Signer)]) {
            let name = format!("{}-{place:?}", kind.folder()).to_lowercase();
            let ports = [servers::port()?, servers::port()?];
            std::fs::create_dir_all(scratch.join(&name))?;
            let config = scratch.join(&name).join("edge.toml");
            std::fs::write(&config, gateway_config(kind, place, ports, signer.port))?;
            let mut command = Command::new(&program);
            command.args(["edge", "run", "--config"]).arg(&config);
            let gateway = Server::start(context, &format!("signer-gain-{name}"), &mut command, ports)?;
            let begun = Instant::now();
            while place == Place::Signer && value(&gateway.metrics()?, "tiderace_edge_signer_up") < 1.0 {
                ensure!(begun.elapsed() < PATIENCE, "{name} has no signer: {}", gateway.running.0.printed());
                std::thread::sleep(Duration::from_millis(50));
            }
            gateways.insert((kind, place), gateway);
        }
        Ok(Self { load: built.join("examples/load"), scratch, signer, gateways })
    }

    /// Makes full handshakes; also returns those that the signer has not signed once, or not where it should.
    fn run(&self, context: &Context, contender: Contender, at_a_time: &str, handshakes: &str) -> Result<(Run, f64)> {
        let (kind, protocol, place) = contender;
        let gateway = &self.gateways[&(kind, place)];
        let mut command = Command::new(&self.load);
        command.args(["handshakes", protocol, &format!("127.0.0.1:{}", gateway.port)]);
        command.arg(certificate(&self.scratch, kind)).args(["/small", at_a_time, handshakes, "full"]);
        let before = Signatures::read(&gateway.metrics()?, &self.signer.metrics()?);
        let time_before = (gateway.processor_time()?, self.signer.processor_time()?);
        let ended = context.commands.run("signer-gain-load", &mut command, LIMIT)?.ok()?;
        let times = (gateway.processor_time()? - time_before.0, self.signer.processor_time()? - time_before.1);
        let after = Signatures::read(&gateway.metrics()?, &self.signer.metrics()?);
        let run = Run::read(&ended.stdout, times)?;
        let unexpected = after.since(before).differ(if place == Place::Signer { run.handshakes } else { 0.0 });
        Ok((run, unexpected))
    }
}

/// File of the certificate that clients trust.
fn certificate(scratch: &Path, kind: KeyKind) -> PathBuf {
    scratch.join(kind.folder()).join("cert.pem")
}

fn signer_config([port, metrics]: [u16; 2]) -> String {
    let identities = KeyKind::ALL.map(|kind| {
        let folder = kind.folder();
        format!("[[identity]]\ncertificate = \"../{folder}/cert.pem\"\nkey = \"../{folder}/key.pem\"\n")
    });
    // Gateways present the certificate of the signer, too: each side trusts this one alone.
    format!(
        "listen = \"127.0.0.1:{port}\"\nmetrics = \"127.0.0.1:{metrics}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nclients = \"cert.pem\"\n{}",
        identities.concat()
    )
}

fn gateway_config(kind: KeyKind, place: Place, [port, metrics]: [u16; 2], signer: u16) -> String {
    let (folder, workers) = (kind.folder(), servers::workers());
    let (key, section) = match place {
        Place::Gateway => (format!("key = \"../{folder}/key.pem\"\n"), String::new()),
        Place::Signer => (
            String::new(),
            format!(
                "[signer]\naddress = \"localhost:{signer}\"\nroots = \"../signer/cert.pem\"\ncertificate = \"../signer/cert.pem\"\n\
                 key = \"../signer/key.pem\"\n"
            ),
        ),
    };
    format!(
        "workers = {workers}\nlisten = \"127.0.0.1:{port}\"\ncertificate = \"../{folder}/cert.pem\"\n{key}[limits]\nconnections-per-address = 50000\n\
         [metrics]\nlisten = \"127.0.0.1:{metrics}\"\n{section}[[route]]\nfiles = \"../www\"\n"
    )
}

/// Full handshakes as the load reports them, with the processor time of both programs in s.
#[derive(Debug, PartialEq)]
struct Run {
    handshakes: f64,
    seconds: f64,
    p50: f64,
    p99: f64,
    gateway: f64,
    signer: f64,
}

impl Run {
    fn read(said: &str, (gateway, signer): (f64, f64)) -> Result<Self> {
        let value: Value = serde_json::from_str(said).with_context(|| format!("the load said {said:?}"))?;
        let get = |at: &str| value.pointer(at).and_then(Value::as_f64).with_context(|| format!("no {at} in {said}"));
        let handshakes = get("/connections")?;
        ensure!(handshakes > 0.0 && get("/resumed")? == 0.0, "not only full handshakes: {said}");
        let (p50, p99) = (get("/latency_ms/p50")?, get("/latency_ms/p99")?);
        Ok(Self { handshakes, seconds: get("/seconds")?, p50, p99, gateway, signer })
    }
}

/// Signatures as the gateway and the signer count them, since their start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Signatures {
    /// Signatures that the signer made, as the gateway counts them.
    by_signer: f64,
    /// Signatures that it should have made.
    by_others: f64,
    /// Signatures that the signer made, as it counts them itself.
    made: f64,
}

impl Signatures {
    fn read(gateway: &str, signer: &str) -> Self {
        let of_gateway = |is_wanted: fn(&str) -> bool| -> f64 {
            let samples = gateway.lines().filter(|line| line.starts_with("tiderace_edge_signatures_total{"));
            samples.filter(|line| is_wanted(line)).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        Self {
            by_signer: of_gateway(|line| line.contains("by=\"signer\"")),
            by_others: of_gateway(|line| !line.contains("by=\"signer\"")),
            made: value(signer, "tiderace_signer_requests_total{result=\"signed\"}"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            by_signer: self.by_signer - before.by_signer,
            by_others: self.by_others - before.by_others,
            made: self.made - before.made,
        }
    }

    /// Difference to so many signatures of the signer, in both counts.
    fn differ(self, wanted: f64) -> f64 {
        (self.by_signer - wanted).abs() + self.by_others + (self.made - wanted).abs()
    }
}

/// Value of a sample in the text format of Prometheus; 0 where it is missing.
fn value(text: &str, sample: &str) -> f64 {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok()).unwrap_or(0.0)
}

/// More handshakes in the same processor time, in per cent.
fn gain(at_gateway: f64, at_signer: f64) -> f64 {
    100.0 * (at_gateway / at_signer - 1.0)
}

/// All rows.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    eprintln!("signer-gain: building tiderace and its load");
    let site = Site::start(context)?;
    let (rounds, begun) = (if context.long { 21 } else { 7 }, Instant::now());
    let (mut values, mut unexpected) = (Values::new(), BTreeMap::<Place, f64>::new());
    for round in 0..=rounds {
        eprintln!(
            "signer-gain: round {round} of {rounds}, {:.0} s after the first began",
            begun.elapsed().as_secs_f64()
        );
        for contender in contenders() {
            let (busy, other) = site.run(context, contender, AT_A_TIME, HANDSHAKES)?;
            let (alone, another) = site.run(context, contender, "1", ALONE)?;
            *unexpected.entry(contender.2).or_default() += other + another;
            // The first round fills caches.
            if round == 0 {
                continue;
            }
            let mut add = |metric, value| values.entry((contender, metric)).or_default().push(value);
            add(Metric::Gateway, 1e6 * busy.gateway / busy.handshakes);
            add(Metric::Signer, 1e6 * busy.signer / busy.handshakes);
            add(Metric::Rate, busy.handshakes / busy.seconds);
            add(Metric::P50, alone.p50);
            add(Metric::P99, alone.p99);
        }
    }
    let mut rows = rows(&values);
    let of = |place| unexpected.get(&place).copied().unwrap_or(f64::NAN);
    rows.push(
        Row::new("full handshakes less signatures of the signer", of(Place::Signer), "", Target::Exactly(0.0))
            .detail("of gateways without keys; counts of the gateway and of the signer, sum over all runs"),
    );
    rows.push(
        Row::new("signatures of the signer for gateways with keys", of(Place::Gateway), "", Target::Exactly(0.0))
            .detail("sum over all runs"),
    );
    Ok(rows)
}

fn contenders() -> impl Iterator<Item = Contender> {
    pairs().flat_map(|(kind, protocol)| [(kind, protocol, Place::Gateway), (kind, protocol, Place::Signer)])
}

fn pairs() -> impl Iterator<Item = (KeyKind, &'static str)> {
    KeyKind::ALL.into_iter().flat_map(|kind| [(kind, "h3"), (kind, "h2")])
}

fn rows(values: &Values) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, protocol) in pairs() {
        let of = |place, metric| values.get(&((kind, protocol, place), metric)).map_or(&[][..], Vec::as_slice);
        let (at_gateway, at_signer) = (of(Place::Gateway, Metric::Gateway), of(Place::Signer, Metric::Gateway));
        let both = || at_gateway.iter().zip(at_signer);
        let gains: Vec<f64> = both().map(|(gateway, signer)| gain(*gateway, *signer)).collect();
        let saved: Vec<f64> = both().map(|(gateway, signer)| gateway - signer).collect();
        let reference = if kind == KeyKind::Rsa { format!("{REFERENCE}; ") } else { String::new() };
        let row = |what: &str, values: &[f64], unit| {
            Row::median(format!("{what}: {kind}, {protocol}"), values, unit, Target::Printed)
        };
        rows.push(row("more handshakes per core of the gateway with the signer", &gains, "%").detail(format!(
            "{reference}full handshakes, each with a request of 1 kB, {AT_A_TIME} at a time; {}",
            load()
        )));
        rows.push(row("processor time that the signer spares the gateway, per handshake", &saved, "µs"));
        rows.push(row("processor time of the signer, per signature", of(Place::Signer, Metric::Signer), "µs"));
        for place in [Place::Gateway, Place::Signer] {
            let row = |what: &str, values: &[f64], unit| row(&format!("{what}, {place}"), values, unit);
            let per_core: Vec<f64> = of(place, Metric::Gateway).iter().map(|time| 1e6 / time).collect();
            rows.push(row("handshakes per second and core of the gateway", &per_core, "1/s"));
            rows.push(row("processor time of the gateway, per handshake", of(place, Metric::Gateway), "µs"));
            rows.push(row("handshakes per second on this machine", of(place, Metric::Rate), "1/s"));
            rows.push(row("one handshake at a time, p50", of(place, Metric::P50), "ms"));
            rows.push(row("one handshake at a time, p99", of(place, Metric::P99), "ms"));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_counted_on_both_sides() {
        let gateway = "# TYPE tiderace_edge_signatures counter\ntiderace_edge_signatures_total{reason=\"signed\",by=\"signer\"} 900\n\
                       tiderace_edge_signatures_total{reason=\"busy\",by=\"nobody\"} 2\n\
                       tiderace_edge_signatures_total{reason=\"time_limit\",by=\"here\"} 1\ntiderace_edge_signer_up 1\n";
        let signer = "tiderace_signer_requests_total{result=\"signed\"} 901\ntiderace_signer_requests_total{result=\"refused\"} 4\n";
        let counted = Signatures::read(gateway, signer);
        assert_eq!(counted, Signatures { by_signer: 900.0, by_others: 3.0, made: 901.0 });
        let none = Signatures::read("", "");
        assert_eq!((counted.since(none), none.differ(0.0)), (counted, 0.0));
        assert_eq!(counted.differ(900.0), 4.0, "three not signed by it, and one more than the gateway knows");
        assert_eq!(none.differ(2.0), 4.0, "missing at both");
        assert_eq!(value(gateway, "tiderace_edge_signer_up"), 1.0);
    }

    #[test]
    fn runs_of_full_handshakes_alone_are_read() {
        let said = |resumed| {
            format!(
                "{{\"connections\":600,\"resumed\":{resumed},\"seconds\":2.5,\"latency_ms\":{{\"p50\":3.5,\"p99\":9.0,\"p999\":null,\"max\":11.0}}}}"
            )
        };
        let run = Run { handshakes: 600.0, seconds: 2.5, p50: 3.5, p99: 9.0, gateway: 0.6, signer: 0.3 };
        assert_eq!(Run::read(&said(0), (0.6, 0.3)).unwrap(), run);
        assert!(Run::read(&said(1), (0.6, 0.3)).is_err(), "a resumed one has no signature");
        assert!(Run::read("", (0.6, 0.3)).is_err());
    }

    #[test]
    fn a_gain_is_what_the_same_processor_time_does_more() {
        assert_eq!(gain(1_000.0, 400.0), 150.0);
        let contender = |place| (KeyKind::Rsa, "h3", place);
        let mut values = Values::new();
        values.insert((contender(Place::Gateway), Metric::Gateway), vec![1_000.0, 1_200.0, 900.0]);
        values.insert((contender(Place::Signer), Metric::Gateway), vec![500.0, 400.0, 600.0]);
        let rows = rows(&values);
        let get = |what: &str| rows.iter().find(|row| row.what.starts_with(what)).unwrap();
        let gained = get("more handshakes per core");
        assert_eq!(gained.value, Some(100.0), "round by round: 100, 200 and 50 %");
        assert!(gained.detail.contains("256 %"), "{}", gained.detail);
        assert_eq!(get("processor time that the signer spares").value, Some(500.0));
        assert_eq!(get("handshakes per second and core of the gateway, key at the signer").value, Some(2_000.0));
        assert!(!get("one handshake at a time, p50").passed, "nothing was measured");
    }
}
