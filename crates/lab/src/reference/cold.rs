//! Requests on connections with little knowledge of their path: new ones, and those that carry only such requests.
//!
//! Losses occur in the direction of the data. In the handshake with its first request they occur in both directions. Runs with `auto` are
//! checked for evidence: repair symbols on the wire.

use std::fmt::Write;

use super::{Centre, Failed, Finding, TOLD, at_least, at_most, centre, figure, finding, records_of, scaled};
use crate::{figure::Figure, record::Record};

/// Round-trip time of the path in milliseconds.
const RTT: u32 = 100;
/// The profiles that are measured: name, and fields beside `fec`.
const PROFILES: [(&str, &str); 3] = [
    ("bbr3, tolerance 15 %", "congestion = \"bbr3\", random_loss_tolerance = \"15 %\""),
    ("cubic, tolerance 15 %", "congestion = \"cubic\", random_loss_tolerance = \"15 %\""),
    ("auto", "congestion = \"auto\""),
];

/// Connections of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Each carries one request.
    New,
    /// One carries requests of this size and nothing else.
    Sparse,
}

/// Way that the 12 kB take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Request of 12 kB, answer of 10 bytes.
    Up,
    /// Request of 200 bytes, answer of 12 kB.
    Down,
}

/// A path and its traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Age of the connections.
    pub connections: Connections,
    /// Direction of the data.
    pub data: Data,
    /// Share of packets lost in the direction of the data, in percent.
    pub loss: f64,
    /// The other direction loses as much.
    pub both: bool,
    /// Fields of the profile, beside `fec`.
    pub profile: &'static str,
    /// Seeds.
    pub seeds: u64,
}

impl Setting {
    fn text(&self, fec: &str) -> String {
        let lossy = |way: Data| if self.both || self.data == way { self.loss } else { 0.0 };
        let path = |name: &str, loss: f64| {
            format!(
                "[path.{name}]\nrate = \"20 Mbit/s\"\nqueue = \"250 kB\"\ndelay = \"{} ms\"\nloss = \"{loss} %\"\n",
                RTT / 2
            )
        };
        let mut text = "name = \"cold\"\ntitle = \"cold\"\nabout = \"cold\"\n".to_owned();
        text += &path("up", lossy(Data::Up));
        text += &path("down", lossy(Data::Down));
        text += match self.data {
            Data::Up => "[traffic]\ndirection = \"upload\"\nrequest-size = \"12 kB\"\nresponse-size = \"10 B\"\n",
            Data::Down => "[traffic]\ndirection = \"download\"\nrequest-size = \"200 B\"\nresponse-size = \"12 kB\"\n",
        };
        let (traffic, run) = match self.connections {
            Connections::New => (
                "workload = \"flows\"\nconnections = 600\nstart-spread = \"60 s\"\n",
                "warmup = \"1 s\"\nduration = \"80 s\"\n",
            ),
            Connections::Sparse => {
                ("workload = \"requests\"\nconnections = 1\n", "warmup = \"5 s\"\nduration = \"120 s\"\n")
            }
        };
        // Nothing goes into a string that can fail.
        let _ = write!(
            text,
            "{traffic}[run]\n{run}seeds = {}\n[contenders]\nprofiles = [{{ name = \"{fec}\", fec = \"{fec}\", {} }}]\n",
            self.seeds, self.profile
        );
        text
    }

    fn name(&self) -> String {
        let kind = match self.connections {
            Connections::New => "new connections",
            Connections::Sparse => "connection with such requests only",
        };
        let way = match self.data {
            Data::Up => "request of 12 kB",
            Data::Down => "request with an answer of 12 kB",
        };
        format!("{way}, {} %, {kind}", self.loss)
    }

    fn detail(&self) -> String {
        let load = match self.connections {
            Connections::New => "600 connections",
            Connections::Sparse => "120 s",
        };
        format!("20 Mbit/s, {RTT} ms, {} seeds x {load}", self.seeds)
    }
}

/// The records of all seeds with this code.
///
/// # Errors
/// When a run cannot be used, or `auto` sent no repair.
pub fn records(setting: &Setting, fec: &str) -> Result<Vec<Record>, Failed> {
    records_of(&setting.text(fec), fec)
}

/// A figure of these records: its median over the seeds, times a factor and less an offset, and the interval.
fn median(records: &[Record], what: Figure, by: f64, less: f64) -> Result<Centre, Failed> {
    // Where nothing was protected there is no figure of repair.
    let read = |record: &Record| match what {
        Figure::Repair => figure(record, what).or(Ok(0.0)),
        _ => figure(record, what),
    };
    let values: Result<Vec<f64>, Failed> = records.iter().map(read).collect();
    Ok(scaled(centre(&values?)?, by, less))
}

/// p99 of requests on new and on sparsely used connections, and the share of repair in the bytes.
///
/// # Errors
/// As [`records`].
pub fn requests(seeds: u64) -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    for connections in [Connections::Sparse, Connections::New] {
        for (profile_name, profile) in PROFILES {
            for data in [Data::Up, Data::Down] {
                for loss in [1.0, 3.0] {
                    let setting = Setting { connections, data, loss, both: false, profile, seeds };
                    // What comes back, or goes out first, takes half a round trip.
                    let other = f64::from(RTT) / 2.0;
                    for fec in ["off", "auto"] {
                        let records = records(&setting, fec)?;
                        let target = if fec == "auto" { at_most(90.0) } else { TOLD };
                        let name = format!("p99 one way, {fec}, {profile_name}, {}", setting.name());
                        let p99 = median(&records, Figure::RequestP99, 1e3, other)?;
                        findings.push(finding(name, p99, target, "ms", setting.detail()));
                        if fec == "auto" {
                            let name = format!("repair of bytes, {profile_name}, {}", setting.name());
                            let share = median(&records, Figure::Repair, 100.0, 0.0)?;
                            findings.push(finding(name, share, at_most(15.0), "%", setting.detail()));
                        }
                    }
                }
            }
        }
    }
    Ok(findings)
}

/// p99 of a handshake with its first request, both directions losing.
///
/// # Errors
/// As [`records`].
pub fn handshakes(seeds: u64) -> Result<Vec<Finding>, Failed> {
    let mut findings = Vec::new();
    for (profile_name, profile) in PROFILES {
        for data in [Data::Up, Data::Down] {
            let setting = Setting { connections: Connections::New, data, loss: 5.0, both: true, profile, seeds };
            let mut each = Vec::new();
            for fec in ["off", "auto"] {
                let records = records(&setting, fec)?;
                let p99 = median(&records, Figure::FlowP99, 1e3, 0.0)?;
                each.push(p99.0);
                let name = format!("p99 of handshake and first request, {fec}, {profile_name}, {}", setting.name());
                findings.push(finding(name, p99, TOLD, "ms", setting.detail()));
                if fec == "auto" {
                    let name = format!("auto / off of the same, {profile_name}, {}", setting.name());
                    findings.push(finding(name, (each[1] / each[0], None), at_most(0.6), "", setting.detail()));
                }
            }
        }
    }
    Ok(findings)
}

/// Twenty connections on one link without random loss: what `auto` leaves of the goodput and of the fairness without.
///
/// # Errors
/// As [`records`].
pub fn shared(seeds: u64) -> Result<Vec<Finding>, Failed> {
    const LOADS: [(&str, &str, Figure); 2] = [
        ("bulk transfers", "workload = \"bulk\"\ndirection = \"download\"\n", Figure::Goodput),
        (
            "requests with answers of 12 kB",
            "workload = \"requests\"\ndirection = \"download\"\nrequest-size = \"200 B\"\nresponse-size = \"12 kB\"\n",
            Figure::RequestRate,
        ),
    ];
    let mut findings = Vec::new();
    for (load_name, load, yields) in LOADS {
        for (profile_name, profile) in PROFILES {
            let text = |fec: &str| {
                let path = "rate = \"20 Mbit/s\"\nqueue = \"250 kB\"\ndelay = \"50 ms\"\n";
                format!(
                    "name = \"cold\"\ntitle = \"cold\"\nabout = \"cold\"\n[path.up]\n{path}[path.down]\n{path}[traffic]\n{load}\
                     connections = 20\nstart-spread = \"2 s\"\n[run]\nwarmup = \"5 s\"\nduration = \"30 s\"\nseeds = {seeds}\n\
                     [contenders]\nprofiles = [{{ name = \"{fec}\", fec = \"{fec}\", {profile} }}]\n"
                )
            };
            let (off, auto) = (records_of(&text("off"), "off")?, records_of(&text("auto"), "auto")?);
            let detail = format!("20 Mbit/s, {RTT} ms, 20 connections, {seeds} seeds x 30 s");
            let mut compare = |what: &str, of: Figure, least: f64| -> Result<(), Failed> {
                let ratios: Result<Vec<f64>, Failed> =
                    auto.iter().zip(&off).map(|(auto, off)| Ok(figure(auto, of)? / figure(off, of)?)).collect();
                let name = format!("{what} of 20 connections, auto / off, {profile_name}, {load_name}");
                findings.push(finding(name, centre(&ratios?)?, at_least(least), "", detail.clone()));
                Ok(())
            };
            compare("goodput", yields, 0.85)?;
            compare("fairness (Jain)", Figure::Jain, 0.95)?;
        }
    }
    Ok(findings)
}
