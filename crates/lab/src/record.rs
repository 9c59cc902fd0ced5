//! Records: results of the runs as JSON lines, from which reports are made.
//!
//! The first line is the [`Manifest`] (the planned runs), each further line the [`Record`] of one run. Records have no data of the machine
//! or the day: the same experiment gives the same bytes. Readers refuse an unknown schema. Its number increases when a field changes its
//! meaning or is removed, not when one is added.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    books::Books,
    contender::{Evidence, Factor, Identity, RepairCounters},
    digest::{is_whole, seal},
    figure::Figure,
    measure::{LinkWindow, Reading},
    scenario::{Point, Scenario},
    spread::{Quantiles, Sampled},
};

/// Schema of the first line.
pub const MANIFEST_SCHEMA: &str = "tiderace-lab-experiment/1";
/// Schema of each further line.
pub const RECORD_SCHEMA: &str = "tiderace-lab-run/2";

/// Name and version of the program, as records have them.
pub const LAB: &str = concat!("tiderace ", env!("CARGO_PKG_VERSION"));

/// Suffix of the name of the program in the manifest of runs in real time.
pub const REAL_TIME: &str = ", real time";

/// Manifest of the planned runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_SCHEMA`].
    pub schema: String,
    /// The program and its version.
    pub lab: String,
    /// The scenario with everything that was replaced on the command line.
    pub scenario: Scenario,
    /// [`Scenario::digest`]: runs with equal digests may be compared.
    pub digest: String,
    /// The contenders in the order of reports. The first is the baseline of comparisons.
    pub contenders: Vec<Identity>,
}

impl Manifest {
    /// Returns whether its runs are in real time.
    pub fn is_real_time(&self) -> bool {
        self.lab.ends_with(REAL_TIME)
    }

    /// Time of its runs, by the clock that they have.
    pub(crate) fn seconds(&self, seconds: f64) -> String {
        if self.is_real_time() {
            format!("{seconds:.0} seconds in real time")
        } else {
            format!("{seconds:.0} virtual seconds")
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`RECORD_SCHEMA`].
    pub schema: String,
    /// Number in the matrix.
    #[serde(default)]
    pub run: u64,
    /// The values of the matrix's factors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub point: Point,
    /// The scenario's name.
    pub scenario: String,
    /// [`Scenario::digest`].
    pub digest: String,
    /// Contender.
    pub contender: Identity,
    /// With which seed.
    pub seed: u64,
    /// Outcome: whether the figures may be used.
    pub outcome: RunOutcome,
    /// Virtual seconds from the start to the end, warm-up included.
    pub virtual_seconds: f64,
    /// Events of the simulation.
    pub events: u64,
    /// Packets offered to a link, and the hash of their times, sizes and fates.
    pub trace: TraceSummary,
    /// The loaded direction's link while it was measured.
    pub link: LinkWindow,
    /// The figures by their keys.
    #[serde(with = "by_key")]
    pub figures: BTreeMap<Figure, Reading>,
    /// Distributions of the samples behind the percentiles, in seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub distributions: BTreeMap<Sampled, Quantiles>,
    /// Factors that were switched on.
    pub factors: Vec<Factor>,
    /// The connections in order.
    pub connections: Vec<ConnectionRecord>,
    /// Books of every packet and byte, from the start of the run to its end.
    #[serde(default)]
    pub books: Books,
    /// State of the machine, for a run in real time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real_time: Option<RealTime>,
}

/// Validity and cost of a run in real time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RealTime {
    /// Delay of packets behind their time, in seconds: median, p99 and p99.9.
    pub lateness: [f64; 3],
    /// Delay of the timer before the run, p99 in seconds.
    pub timer_lateness: f64,
    /// Devices of the emulated network: `tun` or `veth`. `None` in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Packets that the devices dropped although the path did not.
    pub device_drops: u64,
    /// Share of the machine that other programs used.
    pub foreign: f64,
    /// Share that a host took away from a virtual machine.
    pub stolen: f64,
    /// CPU seconds of the clients' and the servers' ends, system calls included.
    pub cpu: [f64; 2],
    /// CPU seconds of the emulator.
    pub cpu_emulator: f64,
    /// Part of `cpu_emulator` in which it wrote packets to devices: the receiving kernel's part of TCP and UDP runs there. `None` in records of
    /// older versions, whose figure `cpu` has all of `cpu_emulator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_receiving: Option<f64>,
    /// Clients of a contender that is a command; nothing else is known of such a run. `None` for other contenders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands: Option<Commands>,
    /// Reasons against runs that were made before this one and discarded, because the machine let them down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discarded: Vec<String>,
}

/// Clients of a contender that is a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Commands {
    /// For each client, seconds from its start to its end with exit code 0; `None` for one that did not end so.
    pub completion: Vec<Option<f64>>,
    /// For each client, its exit code; `None` for one that the end of the run ended.
    pub exit_codes: Vec<Option<u8>>,
    /// Bytes of IP packets that the links from and to the clients were offered in the whole run: up, down.
    pub link_bytes: [u64; 2],
}

impl RealTime {
    /// CPU seconds of both ends, the receiving kernel's part of TCP and UDP included. The emulator's own work is the same for every contender.
    pub(crate) fn cpu_of_ends(&self) -> f64 {
        self.cpu.iter().sum::<f64>() + self.cpu_receiving.unwrap_or(self.cpu_emulator)
    }
}

impl Record {
    /// Connections that broke off or were never established. Of commands nobody knows.
    pub(crate) fn connections_lost(&self) -> usize {
        if self.real_time.as_ref().is_some_and(|machine| machine.commands.is_some()) {
            return 0;
        }
        self.connections.iter().filter(|one| one.closed.is_some() || one.handshake.is_none()).count()
    }
}

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOutcome {
    /// Figures may be used.
    Valid,
    /// Figures may not be used, for this reason.
    Failed(String),
}

/// A packet trace in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Equal traces have equal hashes.
    pub hash: String,
    /// Packets in it.
    pub packets: u64,
}

/// One connection of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// Bits per second that its receiving application got.
    pub goodput: f64,
    /// Seconds that the handshake took.
    pub handshake: Option<f64>,
    /// RTT samples.
    pub rtt_samples: Option<usize>,
    /// Smallest RTT in seconds.
    pub rtt_min: Option<f64>,
    /// Stream bytes that the sender of the data put into packets.
    pub stream_bytes_sent: Option<u64>,
    /// Part of them that had been sent before.
    pub stream_bytes_resent: Option<u64>,
    /// Packets of the sender of the data.
    pub packets_sent: Option<u64>,
    /// Counters of forward error correction, if data was protected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairCounters>,
    /// Reason why the connection ended before the run did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Counters that show the factors at work.
    pub evidence: Vec<Evidence>,
    /// The same of the receiver of the data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence_at_receiver: Vec<Evidence>,
}

/// Records that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is not what it should be.
    #[error("line {line}: {message}")]
    Line {
        /// From 1.
        line: usize,
        /// Fault.
        message: String,
    },
    /// No first line.
    #[error("the file is empty")]
    Empty,
}

/// Writes an experiment.
///
/// # Errors
/// When `out` cannot be written.
pub fn write(out: &mut impl Write, manifest: &Manifest, records: &[Record]) -> io::Result<()> {
    let mut line = |value: serde_json::Result<String>| writeln!(out, "{}", seal(value.map_err(io::Error::other)?));
    line(serde_json::to_string(manifest))?;
    records.iter().try_for_each(|record| line(serde_json::to_string(record)))
}

/// A record as its line in a file, with its checksum and without its end.
///
/// # Errors
/// Never for a record that a run yielded.
pub fn line(record: &Record) -> serde_json::Result<String> {
    Ok(seal(serde_json::to_string(record)?))
}

/// A manifest as the first line of a file, with its checksum and without its end.
///
/// # Errors
/// Never for a manifest of a scenario.
pub fn head(manifest: &Manifest) -> serde_json::Result<String> {
    Ok(seal(serde_json::to_string(manifest)?))
}

/// Reads an experiment back.
///
/// # Errors
/// When a line is not what [`write()`] writes.
pub fn read(input: impl BufRead) -> Result<(Manifest, Vec<Record>), ReadError> {
    let mut lines = input.lines().enumerate();
    let (_, first) = lines.next().ok_or(ReadError::Empty)?;
    let manifest = parse_manifest(&first?)?;
    let records = lines.map(|(index, line)| parse_record(index + 1, &line?)).collect::<Result<_, _>>()?;
    Ok((manifest, records))
}

/// Reads the first line.
///
/// # Errors
/// When it is no manifest of this version, or damaged.
pub fn parse_manifest(line: &str) -> Result<Manifest, ReadError> {
    parse(1, line, MANIFEST_SCHEMA)
}

/// Reads a further line.
///
/// # Errors
/// When it is no record of this version, or damaged. `number` is the line's, for the message.
pub fn parse_record(number: usize, line: &str) -> Result<Record, ReadError> {
    parse(number, line, RECORD_SCHEMA)
}

fn parse<T: DeserializeOwned>(line: usize, text: &str, schema: &str) -> Result<T, ReadError> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    let error = |message: String| ReadError::Line { line, message };
    let head: Head =
        serde_json::from_str(text).map_err(|e| error(format!("this is no line of a file with records ({e})")))?;
    if head.schema != schema {
        return Err(error(format!("the schema is `{}`, this version reads `{schema}`", head.schema)));
    }
    if !is_whole(text) {
        return Err(error("the line is damaged: its checksum is another".to_owned()));
    }
    serde_json::from_str(text).map_err(|e| error(e.to_string()))
}

/// Figures as a map from key to reading with its unit.
mod by_key {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use super::{Figure, Reading};

    #[derive(Serialize)]
    struct Written<'a> {
        unit: &'static str,
        #[serde(flatten)]
        reading: &'a Reading,
    }

    pub(super) fn serialize<S: Serializer>(
        figures: &BTreeMap<Figure, Reading>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let written =
            figures.iter().map(|(figure, reading)| (figure.key(), Written { unit: figure.unit().base(), reading }));
        serializer.collect_map(written)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Figure, Reading>, D::Error> {
        let written = BTreeMap::<String, Reading>::deserialize(deserializer)?;
        let known = written.into_iter().map(|(key, value)| {
            let figure = Figure::from_key(&key).ok_or_else(|| D::Error::custom(format!("unknown figure `{key}`")))?;
            Ok((figure, value))
        });
        known.collect()
    }
}
