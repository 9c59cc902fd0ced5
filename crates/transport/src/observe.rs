//! What can be watched while a connection runs: the one table of events that qlog, traces and the lab are written from.
//!
//! A connection without an observer pays one branch per event. With one it pays for building the event; what the observer
//! does with it is on the connection's time, so it should be quick, and must not block.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use fec::Scheme;
use units::{Bitrate, Duration, Instant};
use wire::{ConnectionId, Side, TransportParameters};

use crate::{
    acks::Ecn,
    crypto::CipherSuite,
    events::CloseReason,
    recovery::{LossTrigger, PathDirection},
    sent::SentFrame,
    timers::Timer,
    tls::{Direction, Level},
};

/// The packet number space of an event, with 0-RTT and 1-RTT told apart.
pub use wire::PacketKind as PacketSpace;

/// The end that something comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// The local end.
    Local,
    /// The peer.
    Remote,
}

/// The beginning of a connection, as far as it is known before the first packet is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Client or server.
    pub side: Side,
    /// The version of QUIC.
    pub version: u32,
    /// The ID that the client addressed first: the same at both ends.
    pub original_dcid: ConnectionId,
    /// The first ID of this end.
    pub local_id: ConnectionId,
    /// The first ID that packets to the peer are addressed to.
    pub remote_id: ConnectionId,
    /// The address of this end, when the socket can tell.
    pub local: Option<IpAddr>,
    /// The address of the peer.
    pub remote: SocketAddr,
    /// Largest UDP payload in bytes.
    pub mtu: u16,
    /// The congestion window to start with, in bytes.
    pub window: u64,
    /// The RTT assumed before the first sample.
    pub initial_rtt: Duration,
    /// Packets after which an unacknowledged one counts as lost.
    pub reordering_threshold: u64,
    /// The congestion controller.
    pub controller: &'static str,
}

/// UDP payloads that left or came together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramsEvent {
    /// Bytes of all.
    pub len: usize,
    /// Bytes of each but the last.
    pub segment_size: usize,
    /// The mark on them.
    pub ecn: Option<Ecn>,
}

impl DatagramsEvent {
    /// The size of each, in bytes.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> + use<> {
        let (len, each) = (self.len, self.segment_size.max(1));
        (0..len.div_ceil(each)).map(move |place| each.min(len - place * each))
    }
}

/// A packet that leaves or came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent<'a> {
    /// Packet number space.
    pub space: PacketSpace,
    /// Packet number.
    pub pn: u64,
    /// Size in bytes, header and tag included.
    pub size: usize,
    /// Header up to and including the packet number, as it is without header protection.
    pub header: &'a [u8],
    /// Number of times the 1-RTT keys had been updated before those that seal it (RFC 9001 §6); 0 in other spaces.
    pub key_phase: u64,
    /// Frames as bytes, as they are before sealing or after opening.
    pub payload: &'a [u8],
    /// Sent: because a probe timeout expired. Received: it had to wait for its keys.
    pub out_of_turn: bool,
}

/// Why a packet was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Cannot be read.
    Invalid,
    /// Nobody has sealed it with the keys in use.
    Undecryptable,
    /// Came before, or so late that nobody remembers whether it did.
    Duplicate,
    /// Came from an address that the connection does not know.
    UnknownAddress,
    /// Came before its keys, and too many others wait for theirs.
    NoRoom,
}

/// A packet that is not sealed with the keys of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsealed<'a> {
    /// The server wants the client to show a token.
    Retry {
        /// The ID that the server has chosen.
        scid: ConnectionId,
        /// Bytes of the token.
        token_len: usize,
    },
    /// The server does not speak the version.
    VersionNegotiation {
        /// What it speaks.
        versions: &'a [u32],
    },
    /// The peer has lost its state.
    StatelessReset,
}

/// A packet in flight that was declared lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossEvent {
    /// Packet number space.
    pub space: PacketSpace,
    /// Packet number.
    pub pn: u64,
    /// Size in bytes.
    pub size: u16,
    /// Tried out a larger datagram size; it does not count in [`Stats::packets_lost`](crate::Stats::packets_lost).
    pub mtu_probe: bool,
    /// What gave it away.
    pub trigger: LossTrigger,
    /// How long after it had been sent: what it carried goes out again that much later.
    pub after: Duration,
}

/// The state of recovery and congestion control at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryMetrics {
    /// Smallest RTT so far.
    pub min_rtt: Duration,
    /// Smoothed RTT.
    pub smoothed_rtt: Duration,
    /// Latest RTT sample.
    pub latest_rtt: Duration,
    /// Mean deviation of the RTT.
    pub rtt_variation: Duration,
    /// Congestion window in bytes.
    pub window: u64,
    /// Slow start threshold in bytes, once there is one.
    pub ssthresh: Option<u64>,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Rate of release, when packets are paced.
    pub pacing_rate: Option<Bitrate>,
    /// Consecutive probe timeouts.
    pub pto_count: u32,
    /// State of the congestion controller, in the words of its standard.
    pub state: &'static str,
}

/// How far the peer's move to another address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// Packets go to the new address from here on.
    Started,
    /// The peer has proved that it is there.
    Validated,
    /// The move failed: packets go to the old address again.
    Abandoned,
}

/// What keeps a connection from sending more at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The application has given nothing that is not sent.
    Application,
    /// What it has given lies beyond the peer's limits, of the connection or of streams (RFC 9000 §4).
    FlowControl,
    /// The congestion window is full.
    CongestionWindow,
    /// The window has room, and the next packet waits for its time.
    Pacing,
    /// Three times what came from an address that is not validated has been sent (RFC 9000 §8).
    Amplification,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Application, Self::FlowControl, Self::CongestionWindow, Self::Pacing, Self::Amplification];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::FlowControl => "flow_control",
            Self::CongestionWindow => "congestion_window",
            Self::Pacing => "pacing",
            Self::Amplification => "amplification",
        }
    }
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// Watches one connection. Every method is one event; by default an event is not of interest.
        pub trait Observer: Send {
            $($(#[$doc])* fn $name(&mut self, now: Instant, $($arg: $ty),*) { let _ = (now, $($arg),*); })*
        }

        /// The names of all events.
        pub const EVENTS: &[&str] = &[$(stringify!($name)),*];

        impl Observer for Both {
            $(fn $name(&mut self, now: Instant, $($arg: $ty),*) {
                self.0.$name(now, $($arg),*);
                self.1.$name(now, $($arg),*);
            })*
        }

        impl Observer for Lent {
            $(fn $name(&mut self, now: Instant, $($arg: $ty),*) {
                let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(observer) = &mut *place {
                    observer.$name(now, $($arg),*);
                }
            })*
        }

        impl<F: FnMut(Instant, &'static str) + Send> Observer for ByName<F> {
            $(fn $name(&mut self, now: Instant, $($arg: $ty),*) {
                let _ = ($($arg,)*);
                (self.0)(now, stringify!($name));
            })*
        }
    };
}

/// Two observers of one connection; the first hears each event first.
pub struct Both(pub Box<dyn Observer>, pub Box<dyn Observer>);

/// An observer whose owner can take it back while the connection goes on: see [`lend`].
pub struct Lent(Arc<Mutex<Option<Box<dyn Observer>>>>);

/// The owner's end of a [`Lent`] observer.
pub struct Loan(Arc<Mutex<Option<Box<dyn Observer>>>>);

/// Gives an observer to a connection for a time.
pub fn lend(observer: Box<dyn Observer>) -> (Lent, Loan) {
    let place = Arc::new(Mutex::new(Some(observer)));
    (Lent(place.clone()), Loan(place))
}

impl Loan {
    /// The observer, which hears of nothing more. `None` when it was taken back before.
    pub fn take_back(&self) -> Option<Box<dyn Observer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An observer that only wants to know when which event happened: calls a function with the name.
pub struct ByName<F>(pub F);

events! {
    /// The connection exists: a client has been told to connect, a server has seen a first authentic packet. Always the
    /// first event for observers that an [`ObserverFactory`] made.
    started(start: &Start);
    /// One end has stated its transport parameters.
    parameters_set(by: Initiator, parameters: &TransportParameters);
    /// UDP payloads leave. Their packets were reported before.
    datagrams_sent(datagrams: &DatagramsEvent);
    /// UDP payloads came. Their packets follow.
    datagrams_received(datagrams: &DatagramsEvent);
    /// A packet is about to be sealed and leaves.
    packet_sent(packet: &PacketEvent<'_>);
    /// A packet was opened, and is new.
    packet_received(packet: &PacketEvent<'_>);
    /// A packet of `size` bytes has to wait for its keys.
    packet_buffered(space: PacketSpace, size: usize);
    /// A packet of `size` bytes was not looked at.
    packet_dropped(space: Option<PacketSpace>, size: usize, reason: DropReason);
    /// A Retry, a Version Negotiation packet or a stateless reset of `size` bytes was accepted.
    unsealed_received(packet: &Unsealed<'_>, size: usize);
    /// A packet was declared lost. What it carried follows, as [`frame_lost`](Observer::frame_lost).
    packet_lost(lost: &LossEvent);
    /// A frame of the lost packet will be sent again as far as it still matters.
    frame_lost(frame: &SentFrame);
    /// An acknowledgement gave an RTT sample: as it was, and without the peer's delay of the acknowledgement (RFC 9002
    /// §5.3), which is what the path took.
    rtt_sample(latest: Duration, adjusted: Duration);
    /// Variation of the delay of packet `pn` in this direction: by how much it lies above the smallest of the last 5 to 10 s.
    /// Needs the peer's receive times.
    one_way_sample(direction: PathDirection, pn: u64, variation: Duration);
    /// An acknowledgement or a timeout of recovery was processed.
    metrics(metrics: &RecoveryMetrics);
    /// A packet that was lost was rebuilt from repair symbols: source symbol `id`, `delay` after it was first missed.
    symbol_recovered(id: u64, delay: Duration);
    /// The peer has rebuilt packet `pn`, which was lost: what it carried is not sent again. Not said of packets that were declared
    /// lost before.
    packet_recovered(pn: u64);
    /// What is sent is protected by another code from here on; `None`: it is not.
    code_updated(old: Option<Scheme>, new: Option<Scheme>);
    /// Nothing more leaves for the moment, and this is why. Told again and again, also when the reason is the same.
    limited(by: Limit);
    /// The random bytes of the ClientHello, by which key logs name a connection. Once, when TLS has its first secret.
    client_random(random: &[u8; 32]);
    /// A deadline passed.
    timer_expired(timer: Timer);
    /// Keys for packets of `sender` at this level became usable.
    key_installed(level: Level, sender: Direction, suite: CipherSuite);
    /// The keys of 1-RTT packets of both directions were replaced, for the `phase`th time.
    keys_updated(phase: u64, by: Initiator);
    /// The keys of a level were forgotten; those of one phase, where there are several.
    keys_discarded(level: Level, phase: Option<u64>);
    /// The handshake is complete, with this application protocol.
    connected(alpn: &[u8]);
    /// Both ends know that the other has the keys.
    confirmed();
    /// The peer is moving to this address.
    migration(state: Migration, remote: SocketAddr);
    /// Datagrams on the path in use have another size from here on, in bytes of UDP payload.
    mtu_updated(old: u16, new: u16);
    /// The connection is over. Only the packets that say so may follow.
    closed(reason: &CloseReason, ending: Ending);
}

/// Observer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer is told.
    Closing,
    /// The peer has said so, or has forgotten the connection.
    Draining,
    /// Without a word.
    Silent,
}

/// Decides which connections are watched, and by whom.
pub trait ObserverFactory: Send + Sync {
    /// An observer for a connection that starts, or `None`. A server asks when a first packet has proved authentic, so
    /// anyone who can send a well-formed first packet makes it ask: whoever opens files here should limit their number.
    fn observe(&self, now: Instant, start: &Start) -> Option<Box<dyn Observer>>;
}

impl<F: Fn(Instant, &Start) -> Option<Box<dyn Observer>> + Send + Sync> ObserverFactory for F {
    fn observe(&self, now: Instant, start: &Start) -> Option<Box<dyn Observer>> {
        self(now, start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_sizes_add_up() {
        let sizes = |len, segment_size| DatagramsEvent { len, segment_size, ecn: None }.sizes().collect::<Vec<_>>();
        assert_eq!(sizes(3000, 1200), [1200, 1200, 600]);
        assert_eq!(sizes(2400, 1200), [1200, 1200]);
        assert_eq!(sizes(50, 1200), [50]);
        assert_eq!(sizes(0, 0), [0; 0]);
    }

    #[test]
    fn an_observer_that_was_taken_back_hears_nothing_more() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ears = heard.clone();
        let (mut lent, loan) =
            lend(Box::new(ByName(move |_: Instant, name: &'static str| ears.lock().unwrap().push(name))));
        lent.confirmed(Instant::ZERO);
        assert!(loan.take_back().is_some() && loan.take_back().is_none());
        lent.limited(Instant::ZERO, Limit::Pacing);
        assert_eq!(*heard.lock().unwrap(), ["confirmed"]);
    }

    #[test]
    fn two_observers_hear_the_same() {
        let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let ear = |who: &'static str| {
            let heard = heard.clone();
            Box::new(ByName(move |_: Instant, name: &'static str| heard.lock().unwrap().push((who, name))))
        };
        let mut both = Both(ear("a"), ear("b"));
        both.confirmed(Instant::ZERO);
        both.timer_expired(Instant::ZERO, Timer::Idle);
        let expected = [("a", "confirmed"), ("b", "confirmed"), ("a", "timer_expired"), ("b", "timer_expired")];
        assert_eq!(*heard.lock().unwrap(), expected);
    }
}
