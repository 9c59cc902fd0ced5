//! An experiment as a file: path, traffic, number of runs, contenders.
//!
//! A scenario is TOML. Every field is documented at its struct; the presets in `scenarios/` are examples. Unknown fields are refused, so a
//! typing mistake cannot silently leave a setting at its default.
//!
//! ```toml
//! name = "mobile"
//! title = "Mobile access, random loss"
//! about = "What the scenario stands for, and where its numbers come from."
//!
//! [path.down]                  # from servers to clients; fields: see netem::LinkConfig
//! rate = "20 Mbit/s"
//! queue = "125 kB"
//! delay = "25 ms"
//! loss = "5 %"
//!
//! [traffic]
//! workload = "bulk"
//! connections = 20
//!
//! [run]
//! warmup = "3 s"
//! duration = "12 s"
//!
//! [contenders]
//! congestion = ["newreno", "cubic"]
//! ```

mod broadcast;
mod check;
mod factors;
mod overrides;
mod presets;
mod programs;
mod read;
mod schema;
mod sessions;
mod suggest;
mod thresholds;
mod traces;

use std::collections::BTreeMap;

use netem::{LinkConfig, NatConfig};
use serde::{Deserialize, Serialize};
use transport::ack_frequency::AckFrequency;
use units::{Bitrate, DataSize, Duration, Instant};

pub use broadcast::BroadcastTraffic;
pub use check::Fault;
pub use factors::{CELL, Levels, Point, SHORTHANDS};
pub use overrides::{Overrides, QueueSize};
pub use presets::{PRESETS, Preset};
pub use programs::{PLACEHOLDERS, Programs, fill};
pub use read::{ScenarioError, load, parse};
pub use schema::schema;
pub use sessions::{FeedTraffic, PageTraffic, VideoTraffic};
pub use suggest::nearest;
pub use thresholds::Threshold;
pub(crate) use thresholds::quantity;

pub use crate::kind::Workload;
use crate::{
    figure::{Declaration, Figure, Needs, TABLE},
    tunnelling::Tunnel,
};

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Short name: lower-case letters, digits and hyphens. Files are named after it.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// Purpose of the scenario and origin of its numbers. For people.
    pub about: String,
    /// The path between clients and servers.
    pub path: Path,
    /// Traffic of the connections.
    pub traffic: Traffic,
    /// Length and number of runs.
    pub run: Plan,
    /// Contenders under comparison.
    #[serde(default)]
    pub contenders: Selection,
    /// Factors: a field of this file (`traffic.connections`), a field of every contender's profile
    /// (`profile.acks.every`) or one of [`SHORTHANDS`] (`path.rtt`), and its values. Every combination is a point of the
    /// matrix.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub factors: BTreeMap<String, Levels>,
    /// Cells: named sets of values of such fields, where a matrix is no product of factors. Each is a point, combined with the
    /// factors if there are any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cells: BTreeMap<String, Settings>,
    /// Limits that hold in every point, or `lab gate` fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<Threshold>,
}

/// Both directions of the path that all connections share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Path {
    /// From servers to clients.
    pub down: LinkConfig,
    /// From clients to servers. Without it, the same settings as `down`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<LinkConfig>,
    /// Address translation between the clients and the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat: Option<NatConfig>,
    /// Random delay of each packet before the link, from zero to this, in the simulator only. By default half of the time the link takes for
    /// a packet of 1500 bytes if several connections share it.
    #[serde(with = "units::duration_text::option", default, skip_serializing_if = "Option::is_none")]
    pub phase_jitter: Option<Duration>,
}

impl Path {
    /// The settings from clients to servers.
    pub fn up(&self) -> &LinkConfig {
        self.up.as_ref().unwrap_or(&self.down)
    }

    /// Round-trip time of the empty path: propagation alone, without the time to send a packet.
    pub fn base_rtt(&self) -> Duration {
        self.down.delay + self.up().delay
    }
}

/// Traffic of the connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Traffic {
    /// The kind of traffic.
    pub workload: Workload,
    /// Direction of the data.
    #[serde(default)]
    pub direction: Direction,
    /// Connections that share the path, 1 to 1000.
    pub connections: u32,
    /// `bulk`: streams per connection. `requests`: requests in flight per connection. 1 to 1000, by default 1.
    #[serde(default = "one")]
    pub streams: u32,
    /// Each connection starts at a moment drawn from zero to this, so that connections do not move in step
    /// (Floyd & Jacobson's phase effects).
    #[serde(with = "units::duration_text", default)]
    pub start_spread: Duration,
    /// `requests`, `flows`: bytes of each request. By default 200 B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_size: Option<DataSize>,
    /// `requests`, `flows`: bytes of each response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_size: Option<DataSize>,
    /// `requests`: bytes of the first request (`upload`) or response (`download`) of each connection in place of the usual ones, so that
    /// the connection has estimates of its path before the measured requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_bytes: Option<DataSize>,
    /// `datagrams`, `messages`: payload rate of each connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagram_rate: Option<Bitrate>,
    /// `datagrams`, `messages`: how many per second of all connections together, in place of `datagram-rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_rate: Option<u32>,
    /// `datagrams`, `messages`: payload of each, 16 to 1150 bytes (messages: to 60 kB). By default 1000 B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagram_size: Option<DataSize>,
    /// `video`: segments, bitrates and buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoTraffic>,
    /// `page`: what a page consists of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<PageTraffic>,
    /// `feed`: what a screen consists of, and how long it is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed: Option<FeedTraffic>,
    /// `webtransport`: groups of pictures, audio, and the latency budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webtransport: Option<BroadcastTraffic>,
}

/// Direction of the measured data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Servers send: [`Path::down`] is the loaded direction.
    #[default]
    Download,
    /// Clients send: [`Path::up`] is the loaded direction.
    Upload,
}

/// Length and number of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plan {
    /// Time from the start that no figure counts: handshakes and slow start. By default 0.
    #[serde(with = "units::duration_text", default)]
    pub warmup: Duration,
    /// Time that is measured, after the warm-up.
    #[serde(with = "units::duration_text")]
    pub duration: Duration,
    /// Number of seeds, each a run of every contender. From 6 on there are intervals; by default 10.
    #[serde(default = "ten")]
    pub seeds: u32,
    /// The first seed; the others follow it. By default 1.
    #[serde(default = "first")]
    pub seed: u64,
}

impl Plan {
    /// Time at which measuring begins.
    pub fn measure_from(&self) -> Instant {
        Instant::ZERO + self.warmup
    }

    /// Time at which measuring and the run end.
    pub fn end(&self) -> Instant {
        self.measure_from() + self.duration
    }
}

/// Contenders: one for each name and each profile. The first one is the baseline of comparisons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "SelectionTable", rename_all = "kebab-case")]
pub struct Selection {
    /// Congestion controllers, with everything else as usual. Without this and `profiles`: newreno and cubic.
    pub congestion: Vec<String>,
    /// Acknowledgement frequencies asked of peers: `off`, `fixed:N`, `adaptive`. Every controller runs with
    /// every one.
    pub ack: Vec<AckFrequency>,
    /// Tunnels through which every controller runs: `none`, `datagrams`, `stream`.
    #[serde(default = "direct", skip_serializing_if = "is_direct")]
    pub tunnel: Vec<Tunnel>,
    /// Profiles of the transport: a name and any fields of a profile that are to be otherwise than usual.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<Settings>,
    /// Fields of the profile of every contender, unless its own profile sets them.
    #[serde(skip_serializing_if = "Settings::is_empty")]
    pub settings: Settings,
    /// Stacks of others with their controllers, such as `quinn-cubic`: see [`crate::roster`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<String>,
    /// Servers and clients of any kind, each a command: in real time only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Programs>,
    /// Pairs of the above that share the path, connection by connection in turn: see [`crate::rivals`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<[String; 2]>,
    /// Controller or profile beside which every contender runs: it has the connections with odd numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// Contenders judged by their regret: the loss of each against the best of the others in each cell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<String>,
}

/// Fields of a profile by name.
pub type Settings = serde_json::Map<String, serde_json::Value>;

/// [`Selection`] as written in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SelectionTable {
    congestion: Option<Vec<String>>,
    #[serde(default = "unasked")]
    ack: Vec<AckFrequency>,
    #[serde(default = "direct")]
    tunnel: Vec<Tunnel>,
    #[serde(default)]
    profiles: Vec<Settings>,
    #[serde(default)]
    settings: Settings,
    #[serde(default)]
    stacks: Vec<String>,
    #[serde(default)]
    commands: Vec<Programs>,
    #[serde(default)]
    rivals: Vec<[String; 2]>,
    beside: Option<String>,
    #[serde(default)]
    judged: Vec<String>,
}

impl From<SelectionTable> for Selection {
    fn from(table: SelectionTable) -> Self {
        let SelectionTable { congestion, ack, tunnel, profiles, settings, stacks, commands, rivals, beside, judged } =
            table;
        let named = !profiles.is_empty() || !stacks.is_empty() || !commands.is_empty() || !rivals.is_empty();
        let usual = || if named { Vec::new() } else { both() };
        let congestion = congestion.unwrap_or_else(usual);
        Self { congestion, ack, tunnel, profiles, settings, stacks, commands, rivals, beside, judged }
    }
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            congestion: both(),
            ack: unasked(),
            tunnel: direct(),
            profiles: Vec::new(),
            settings: Settings::new(),
            stacks: Vec::new(),
            commands: Vec::new(),
            rivals: Vec::new(),
            beside: None,
            judged: Vec::new(),
        }
    }
}

fn unasked() -> Vec<AckFrequency> {
    vec![AckFrequency::Off]
}

fn direct() -> Vec<Tunnel> {
    vec![Tunnel::None]
}

fn is_direct(tunnels: &Vec<Tunnel>) -> bool {
    *tunnels == direct()
}

fn both() -> Vec<String> {
    vec!["newreno".to_owned(), "cubic".to_owned()]
}

const fn one() -> u32 {
    1
}

const fn ten() -> u32 {
    10
}

const fn first() -> u64 {
    1
}

impl Scenario {
    /// Returns whether the scenario is run at several points.
    pub fn has_points(&self) -> bool {
        !self.factors.is_empty() || !self.cells.is_empty()
    }

    /// A factor, or a field of a cell, that changes the path.
    pub fn varied_path(&self) -> Option<&String> {
        let fields = self.cells.values().flat_map(|cell| cell.keys());
        self.factors.keys().chain(fields).find(|field| field.starts_with("path."))
    }

    /// Appends to the title what differs from the file.
    pub fn add_to_title(&mut self, what: &str) {
        self.title.push_str("; ");
        self.title.push_str(what);
    }

    /// The settings that carry the measured data.
    pub fn loaded_link(&self) -> &LinkConfig {
        match self.traffic.direction {
            Direction::Download => &self.path.down,
            Direction::Upload => self.path.up(),
        }
    }

    /// The figures that its runs can have, in the order of reports.
    pub fn figures(&self) -> impl Iterator<Item = Figure> + '_ {
        TABLE.iter().filter(|row| self.has(row)).map(|row| row.figure)
    }

    /// The figures that it is about, the deciding one first.
    pub fn headlines(&self) -> Vec<Figure> {
        let mut placed: Vec<(u8, Figure)> = TABLE
            .iter()
            .filter(|row| self.has(row))
            .filter_map(|row| Some((row.place(self.traffic.workload)?, row.figure)))
            .collect();
        placed.sort_by_key(|(place, _)| *place);
        placed.into_iter().map(|(_, figure)| figure).collect()
    }

    /// Returns whether its runs can have a figure.
    fn has(&self, figure: &Declaration) -> bool {
        const CONNECTIONS: &str = "traffic.connections";
        let varied =
            || self.factors.contains_key(CONNECTIONS) || self.cells.values().any(|cell| cell.contains_key(CONNECTIONS));
        let several = || self.traffic.connections > 1 || varied();
        figure.workloads.contains(self.traffic.workload)
            && match figure.needs {
                Needs::Nothing => true,
                Needs::Connections => several(),
                Needs::Rivals => !self.contenders.rivals.is_empty() || self.contenders.beside.is_some(),
                // The scenario does not say by which clock it is run.
                Needs::RealTime => false,
            }
    }

    /// A short fingerprint of everything that influences a run. Texts for people and the choice of seeds and
    /// contenders are left out: runs with equal fingerprints may be compared.
    pub fn digest(&self) -> String {
        let settings = serde_json::json!({
            "path": self.path, "traffic": self.traffic,
            "warmup": units::duration_text::display(self.run.warmup).to_string(),
            "duration": units::duration_text::display(self.run.duration).to_string(),
        });
        format!("{:016x}", crate::digest::fnv1a(settings.to_string().as_bytes()))
    }
}
