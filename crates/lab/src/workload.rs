//! Workloads of connections: one [`App`] at each end of each connection.
//!
//! An app knows the scenario, its side and the time, and drives its end of the connection through [`Host`]. Both ends know the scenario, so
//! nothing has to be negotiated: a server answers the first stream as configured.

mod broadcast;
mod bulk;
mod datagrams;
mod feed;
mod fetch;
mod page;
mod pattern;
mod requests;
mod session;
mod video;

use units::{Duration, Instant};

use crate::{
    contender::RunSpec,
    host::{Host, HostEvent},
    scenario::{Direction, Workload},
    tally::{BroadcastTally, FeedTally, Missing, VideoTally},
};

pub use pattern::{mismatches, pattern};

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Opened it.
    Client,
    /// Accepted it.
    Server,
}

/// Counts of one end of a connection between the begin and the end of measuring.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Unique application bytes received, where this end is the receiver of the measured data.
    pub delivered: u64,
    /// Bytes that arrived wrong, at any time of the run.
    pub wrong_bytes: u64,
    /// Time of each answered request, at the client.
    pub requests: Vec<Duration>,
    /// Completion of the last answered request, at the client, whether it counts or not.
    pub answered: Option<Instant>,
    /// Datagrams that were due, at the sender.
    pub due: u64,
    /// Time that each due datagram took, at the receiver.
    pub delays: Vec<Duration>,
    /// Experience of a video's viewer.
    pub video: VideoTally,
    /// Experience of a feed's reader.
    pub feed: FeedTally,
    /// Live broadcast, as far as this end knows of it.
    pub broadcast: BroadcastTally,
}

/// The time that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    from: Instant,
    to: Instant,
}

impl Window {
    pub(crate) fn contains(self, at: Instant) -> bool {
        (self.from..self.to).contains(&at)
    }
}

/// One end's share of the workload.
#[derive(Debug)]
pub struct App {
    end: End,
    kind: Kind,
    tally: Tally,
    window: Window,
    established: Option<Instant>,
    closed: Option<String>,
}

#[derive(Debug)]
enum Kind {
    Bulk(bulk::Bulk),
    Requests(requests::Requests),
    Datagrams(datagrams::Datagrams),
    Session(session::Session),
    Broadcast(broadcast::Broadcast),
}

impl App {
    /// The workload of a run at one end of a connection.
    pub fn new(end: End, spec: &RunSpec<'_>) -> Self {
        let traffic = &spec.scenario.traffic;
        let sender = if traffic.direction == Direction::Download { End::Server } else { End::Client };
        let kind = match traffic.workload {
            Workload::Bulk | Workload::Tunnel => {
                Kind::Bulk(bulk::Bulk::new(end, end == sender, traffic.streams, spec.throttle.cloned()))
            }
            Workload::Requests => Kind::Requests(requests::Requests::new(end, end != sender, traffic, None)),
            Workload::Flows => Kind::Requests(requests::Requests::new(end, end != sender, traffic, Some(1))),
            Workload::Datagrams | Workload::Messages => Kind::Datagrams(datagrams::Datagrams::new(end == sender, spec)),
            Workload::Video | Workload::Page | Workload::Feed => Kind::Session(session::Session::new(end, spec)),
            Workload::Webtransport => Kind::Broadcast(broadcast::Broadcast::new(end, end == sender, spec)),
        };
        let window = Window { from: spec.measure_from, to: spec.end };
        Self { end, kind, tally: Tally::default(), window, established: None, closed: None }
    }

    /// Processes the connection's events and timers. Returns whether there was anything to process.
    pub fn drive(&mut self, now: Instant, host: &mut impl Host) -> bool {
        let mut acted = false;
        while let Some(event) = host.poll_event() {
            acted = true;
            match &event {
                HostEvent::Established => self.established = Some(now),
                HostEvent::Closed(reason) => self.closed = Some(reason.clone()),
                _ => {}
            }
            let mut scope = Scope { now, window: self.window, tally: &mut self.tally };
            match &mut self.kind {
                Kind::Bulk(bulk) => bulk.on_event(host, &event, &mut scope),
                Kind::Requests(requests) => requests.on_event(host, &event, &mut scope),
                Kind::Datagrams(datagrams) => datagrams.on_event(host, &event, &mut scope),
                Kind::Session(session) => session.on_event(host, &event, &mut scope),
                Kind::Broadcast(broadcast) => broadcast.on_event(host, &event, &mut scope),
            }
        }
        match &mut self.kind {
            Kind::Datagrams(datagrams) => {
                acted |= datagrams.on_time(host, &mut Scope { now, window: self.window, tally: &mut self.tally });
            }
            Kind::Bulk(bulk) => acted |= bulk.on_time(host, now),
            Kind::Session(session) => {
                acted |= session.on_time(host, &mut Scope { now, window: self.window, tally: &mut self.tally });
            }
            Kind::Broadcast(broadcast) => {
                acted |= broadcast.on_time(host, &mut Scope { now, window: self.window, tally: &mut self.tally });
            }
            Kind::Requests(_) => {}
        }
        acted
    }

    /// Deadline of the app's next action by itself, and its reason.
    pub fn deadline(&self) -> Option<(Instant, &'static str)> {
        match &self.kind {
            Kind::Datagrams(datagrams) if self.closed.is_none() => {
                datagrams.deadline().map(|at| (at, "the next datagram is due"))
            }
            Kind::Bulk(bulk) if self.closed.is_none() => bulk.deadline().map(|at| (at, "the application writes again")),
            Kind::Broadcast(broadcast) => broadcast.deadline().map(|at| (at, "the broadcast goes on")),
            // Also of a connection that has ended: the account is settled at the end of the run.
            Kind::Session(session) => session.deadline().map(|at| (at, "the script goes on")),
            _ => None,
        }
    }

    /// End of the connection that this is.
    pub const fn end(&self) -> End {
        self.end
    }

    /// Time at which the handshake was complete.
    pub const fn established(&self) -> Option<Instant> {
        self.established
    }

    /// Reason why the connection has ended, if it is.
    pub fn closed(&self) -> Option<&str> {
        self.closed.as_deref()
    }

    /// Fate of the datagrams of this end that are due and did not arrive at `receiver`. `None` if the stack does not report it.
    pub fn missing(&self, receiver: &Self) -> Option<Missing> {
        match (&self.kind, &receiver.kind) {
            (Kind::Datagrams(sender), Kind::Datagrams(receiver)) => sender.missing(receiver, self.closed.is_some()),
            _ => None,
        }
    }

    /// Counters since the start.
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }
}

/// Context of an event handler: what it may read and count.
pub(crate) struct Scope<'a> {
    pub(crate) now: Instant,
    pub(crate) window: Window,
    pub(crate) tally: &'a mut Tally,
}

impl Scope<'_> {
    /// Counts bytes that arrived from `offset` of their stream, and those that are not what was sent.
    pub(crate) fn received(&mut self, offset: u64, data: &[u8], counts: bool) {
        self.tally.wrong_bytes += mismatches(offset, data);
        if counts && self.window.contains(self.now) {
            self.tally.delivered += data.len() as u64;
        }
    }
}
