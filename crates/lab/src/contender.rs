//! Contenders: the interface between the lab and the compared stacks.
//!
//! A [`Contender`] builds, for one run, a client and a server per connection as nodes of the simulator, and afterwards returns their
//! counters. The lab does not know the stack, so another workspace can build the same lab with other stacks. A sans-IO stack need not
//! implement this directly: see [`crate::stack`].

use core::net::SocketAddr;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sim::Node;
use units::{Duration, Instant, Seed};

use crate::{
    books::EndBooks,
    qlog::QlogDir,
    scenario::Scenario,
    tally::{BroadcastTally, FeedTally, Missing, VideoTally},
    throttle::Throttle,
    tunnelling::TunnelCounters,
    view::{RttReader, Viewer},
};

/// One stack with one set of parameters.
pub trait Contender: Send + Sync {
    /// Identity in records.
    fn identity(&self) -> Identity;

    /// Factors that are switched on and have to be shown: for each of these, every connection must afterwards present
    /// [`Evidence`] from the stack's own counters, or the run fails.
    fn factors(&self) -> Vec<Factor>;

    /// Factors at one connection, from 0: the same at all, unless contenders of several kinds share the path.
    fn factors_of(&self, _connection: usize) -> Vec<Factor> {
        self.factors()
    }

    /// Number of kinds of contenders that share the path, connection by connection in turn.
    fn kinds(&self) -> usize {
        1
    }

    /// The kinds of contenders that share the path, each as it would be alone on it; empty when all are of one kind, or when it is not needed.
    fn alone(&self) -> Vec<Box<dyn Contender + '_>> {
        Vec::new()
    }

    /// Builds the nodes of one run. Called on the thread that runs it; the nodes need not be `Send`.
    ///
    /// # Errors
    /// When the stack cannot be set up like this.
    fn build(&self, spec: &RunSpec<'_>) -> Result<Nodes, BuildError>;
}

/// Identity of a contender.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// Short name in tables, unique in a report: `tiderace cubic`.
    pub name: String,
    /// Version of the stack.
    pub version: String,
    /// Settings that matter, by name.
    pub parameters: BTreeMap<String, String>,
}

/// Factor of a contender that is switched on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Factor {
    /// Name: `congestion`.
    pub name: String,
    /// Value: `cubic`.
    pub value: String,
}

/// A counter of the stack that shows a factor at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The factor's name: `congestion`.
    pub factor: String,
    /// The value that the stack itself reports: `cubic`, asked from the controller in use and not from the settings.
    pub value: String,
    /// The counter, for people: `acknowledgements processed by the controller`.
    pub counter: String,
    /// Count of the stack. Zero is no evidence.
    pub count: u64,
}

/// The contender cannot be set up for this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

/// One run: a scenario with one seed.
#[derive(Clone, Copy, Debug)]
pub struct RunSpec<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The seed as a person writes it.
    pub seed_number: u64,
    /// Seed of all randomness of the stack. It is the same for every contender with this seed number, and
    /// independent of the link's, so that runs can be compared in pairs.
    pub seed: Seed,
    /// The connections, in order.
    pub connections: &'a [ConnectionSpec],
    /// Figures count from here …
    pub measure_from: Instant,
    /// … to here, when the run ends.
    pub end: Instant,
    /// Directory of qlog files, if they are wanted.
    pub qlog: Option<&'a QlogDir>,
    /// Limit on the application of bulk connections, if there is one.
    pub throttle: Option<&'a Throttle>,
}

/// One connection of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSpec {
    /// Number, from 0.
    pub index: usize,
    /// The client's address.
    pub client: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
    /// Time at which the client begins the handshake.
    pub start: Instant,
}

/// Nodes of a run, and the means to read them out afterwards.
pub struct Nodes {
    /// Client and server of each connection, in the order of [`RunSpec::connections`].
    pub pairs: Vec<(Box<dyn Node>, Box<dyn Node>)>,
    /// Called once, after the end, with the nodes gone from the simulator's hands or not.
    pub measured: Box<dyn FnOnce() -> Vec<Measured>>,
    /// For each connection, in the same order: view of the congestion control of the sender of the data during the run. Empty for a
    /// contender without one.
    pub views: Vec<Viewer>,
    /// The same of its RTT samples, for those who watch.
    pub rtts: Vec<RttReader>,
}

impl core::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Nodes").field("pairs", &self.pairs.len()).finish_non_exhaustive()
    }
}

/// Measurements of one connection between [`RunSpec::measure_from`] and [`RunSpec::end`]. A value that a contender cannot report is `None`
/// and prints as `–`; it must not be estimated from other values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Unique application bytes that the receiving application got.
    pub delivered: u64,
    /// From the client's first packet to the established connection. `None` also when it never was.
    pub handshake: Option<Duration>,
    /// RTT samples of the sender of the data, one for each acknowledgement that gave one, less the delay that the
    /// receiver reports for the acknowledgement: what the path took, not what the receiver's policy adds.
    pub rtt: Option<Vec<Duration>>,
    /// Smallest RTT of the connection's whole life.
    pub rtt_min: Option<Duration>,
    /// For each packet of the sender of the data that was declared lost: how long after it had been sent.
    pub loss_delays: Option<Vec<Duration>>,
    /// Stream bytes put into packets, by the sender of the data.
    pub stream_bytes_sent: Option<u64>,
    /// Part of them that had been sent before.
    pub stream_bytes_resent: Option<u64>,
    /// Packets sent by the sender of the data.
    pub packets_sent: Option<u64>,
    /// Packets that both ends of a connection of TCP have sent again since its beginning: in set-up, and after it. `None` for other stacks.
    pub resent: Option<[u64; 2]>,
    /// Losses found by the sender of the data, and by the other end.
    pub losses: [Losses; 2],
    /// Bytes of memory that the sender of the data holds at the end.
    pub memory: Option<u64>,
    /// Counters of forward error correction. `None` without protected data.
    pub repair: Option<RepairCounters>,
    /// Time of each request that was answered. `None` for other workloads.
    pub requests: Option<Vec<Duration>>,
    /// Outcome of the flow. `None` for other workloads.
    pub flow: Option<Flow>,
    /// Outcome of the datagrams. `None` for other workloads.
    pub datagrams: Option<DatagramsMeasured>,
    /// Experience of a video's viewer, and the begin of playback. `None` for other workloads.
    pub video: Option<(VideoTally, Option<Duration>)>,
    /// Experience of a feed's reader. `None` for other workloads.
    pub feed: Option<FeedTally>,
    /// Live broadcast, as its sender and its receiver saw it. `None` for other workloads.
    pub broadcast: Option<BroadcastTally>,
    /// Reason why the connection ended before the run did.
    pub closed: Option<String>,
    /// Bytes that arrived wrong, duplicated or out of place. A value other than zero fails the run.
    pub wrong_bytes: u64,
    /// Counters of the sender of the data that show the factors at work: on every connection.
    pub evidence: Vec<Evidence>,
    /// Counters of its receiver that do. What was sent on one connection may all have been lost: together they have to stand above zero.
    pub evidence_at_receiver: Vec<Evidence>,
    /// Accounts of client and server from the start of the run to its end. `None` for a stack without them; an error, which fails the run,
    /// if they do not balance.
    pub books: [Option<Result<EndBooks, String>>; 2],
}

/// Losses that one end of a connection found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Packets that it sent.
    pub packets_sent: Option<u64>,
    /// Packets among them that it declared lost.
    pub packets_lost: Option<u64>,
    /// Tunnel around the connection. `None` without one.
    pub tunnel: Option<TunnelCounters>,
}

/// Counters of forward error correction at the sender and at the receiver of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairCounters {
    /// Packets sent that are protected: source symbols.
    pub symbols_sent: u64,
    /// Packets sent with repair.
    pub repairs_sent: u64,
    /// Bytes of UDP payload of these.
    pub repair_bytes: u64,
    /// Bytes of headers of protected packets that only repair needs, and of their padding.
    #[serde(default)]
    pub header_bytes: u64,
    /// Packets that were lost and rebuilt, and are not sent again.
    pub not_sent_again: u64,
    /// Packets rebuilt at the receiver.
    pub recovered: u64,
    /// Part of them that arrived after all: they were late and not lost.
    #[serde(default)]
    pub needless: u64,
    /// Packets that neither arrived nor could be rebuilt.
    pub unrecovered: u64,
    /// Repair symbols that arrived.
    pub repairs_received: u64,
    /// Repair symbols among them that arrived after their source symbols were forgotten.
    pub repairs_late: u64,
    /// Repair symbols among them without new information.
    pub repairs_spurious: u64,
    /// Nanoseconds from missing a packet to having rebuilt it, of all rebuilt packets together.
    pub recovery_delay: u64,
}

impl RepairCounters {
    /// Difference of the counters to `before`.
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            symbols_sent: less(self.symbols_sent, before.symbols_sent),
            repairs_sent: less(self.repairs_sent, before.repairs_sent),
            repair_bytes: less(self.repair_bytes, before.repair_bytes),
            header_bytes: less(self.header_bytes, before.header_bytes),
            not_sent_again: less(self.not_sent_again, before.not_sent_again),
            recovered: less(self.recovered, before.recovered),
            needless: less(self.needless, before.needless),
            unrecovered: less(self.unrecovered, before.unrecovered),
            repairs_received: less(self.repairs_received, before.repairs_received),
            repairs_late: less(self.repairs_late, before.repairs_late),
            repairs_spurious: less(self.repairs_spurious, before.repairs_spurious),
            recovery_delay: less(self.recovery_delay, before.recovery_delay),
        }
    }

    /// Counters of one direction: those of the sender from `sender`, those of the receiver from `receiver`.
    pub fn of_direction(sender: &Self, receiver: &Self) -> Self {
        Self {
            symbols_sent: sender.symbols_sent,
            repairs_sent: sender.repairs_sent,
            repair_bytes: sender.repair_bytes,
            header_bytes: sender.header_bytes,
            not_sent_again: sender.not_sent_again,
            ..*receiver
        }
    }
}

/// A short flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Began during the measurement and took this long.
    Took(Duration),
    /// Began during the measurement and was not complete when the run ended.
    Unfinished,
    /// Began before measuring did.
    Early,
}

/// Unreliable datagrams, as the two applications saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramsMeasured {
    /// Datagrams that were due: sent early enough to arrive before the end even through a full queue.
    pub due: u64,
    /// Part of them that arrived, each counted once.
    pub arrived: u64,
    /// Time that each of those took.
    pub delays: Vec<Duration>,
    /// Fate of the others. `None` for a stack that does not report it.
    pub missing: Option<Missing>,
}
