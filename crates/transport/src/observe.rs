//! Events of a connection: the one table behind qlog, traces and the lab.
//!
//! A connection without an observer pays one branch per event. With an observer it also builds the event. Observers run on the connection's
//! time: they should be quick, and must not block.

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
    recovery::PathDirection,
    timers::Timer,
    tls::{Direction, Level},
};

pub use crate::{
    recovery::LossTrigger,
    sent::{ControlFrame, SentFrame},
};

/// Packet number space of an event, which distinguishes 0-RTT and 1-RTT.
pub use wire::PacketKind as PacketSpace;

/// End of the connection that causes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// The local end.
    Local,
    /// The peer.
    Remote,
}

/// State of a connection at its start, before the first packet is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Client or server.
    pub side: Side,
    /// The version of QUIC.
    pub version: u32,
    /// Destination connection ID of the client's first packet: the same at both ends.
    pub original_dcid: ConnectionId,
    /// First connection ID of this end.
    pub local_id: ConnectionId,
    /// First connection ID of the peer that packets are addressed to.
    pub remote_id: ConnectionId,
    /// Address of this end, when the socket reports it.
    pub local: Option<IpAddr>,
    /// The address of the peer.
    pub remote: SocketAddr,
    /// Largest UDP payload in bytes.
    pub mtu: u16,
    /// Initial congestion window, in bytes.
    pub window: u64,
    /// The RTT assumed before the first sample.
    pub initial_rtt: Duration,
    /// Packets after which an unacknowledged one counts as lost.
    pub reordering_threshold: u64,
    /// The congestion controller.
    pub controller: &'static str,
}

/// UDP payloads that were sent or received together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramsEvent {
    /// Bytes of all payloads.
    pub len: usize,
    /// Bytes of each payload but the last.
    pub segment_size: usize,
    /// ECN codepoint of the packets.
    pub ecn: Option<Ecn>,
}

impl DatagramsEvent {
    /// Size of each payload, in bytes.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> + use<> {
        let (len, each) = (self.len, self.segment_size.max(1));
        (0..len.div_ceil(each)).map(move |place| each.min(len - place * each))
    }
}

/// Packet that is sent or was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent<'a> {
    /// Packet number space.
    pub space: PacketSpace,
    /// Packet number.
    pub pn: u64,
    /// Size in bytes, header and tag included.
    pub size: usize,
    /// Header up to and including the packet number, without header protection.
    pub header: &'a [u8],
    /// Number of updates of the 1-RTT keys before the packet's key (RFC 9001 §6); 0 in other spaces.
    pub key_phase: u64,
    /// Frames in the clear, before sealing or after opening.
    pub payload: &'a [u8],
    /// Sent because a probe timeout expired; received, but delayed until its keys were there.
    pub out_of_turn: bool,
}

/// Reason why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Malformed.
    Invalid,
    /// Not sealed with the keys in use.
    Undecryptable,
    /// Received before, or so late that this is not known any more.
    Duplicate,
    /// From an address that the connection does not know.
    UnknownAddress,
    /// Received before its keys, while too many other packets wait for theirs.
    NoRoom,
}

/// Packet that is not sealed with the keys of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsealed<'a> {
    /// Retry: the server wants a token (RFC 9000 §17.2.5).
    Retry {
        /// Connection ID that the server has chosen.
        scid: ConnectionId,
        /// Bytes of the token.
        token_len: usize,
    },
    /// Version Negotiation: the server does not support the version (RFC 9000 §17.2.1).
    VersionNegotiation {
        /// Versions that the server lists.
        versions: &'a [u32],
    },
    /// Stateless reset: the peer has lost its state (RFC 9000 §10.3).
    StatelessReset,
}

/// Packet in flight that was declared lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossEvent {
    /// Packet number space.
    pub space: PacketSpace,
    /// Packet number.
    pub pn: u64,
    /// Size in bytes.
    pub size: u16,
    /// Probe of a larger datagram size; it does not count in [`Stats::packets_lost`](crate::Stats::packets_lost).
    pub mtu_probe: bool,
    /// Rule by which it was declared lost.
    pub trigger: LossTrigger,
    /// Time since it was sent, after which its content is sent again.
    pub after: Duration,
}

/// State of recovery and congestion control at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryMetrics {
    /// Minimum RTT.
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

/// Progress of the peer's migration to another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// Packets go to the new address from here on.
    Started,
    /// The new address is validated.
    Validated,
    /// The migration failed: packets go to the old address again.
    Abandoned,
}

/// Reason why a connection sends no more at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// All data of the application has been sent.
    Application,
    /// The data lies beyond the peer's limits, of the connection or of streams (RFC 9000 §4).
    FlowControl,
    /// The congestion window is full.
    CongestionWindow,
    /// The window has room, and the next packet waits for its time.
    Pacing,
    /// Three times the bytes received from an address that is not validated have been sent (RFC 9000 §8).
    Amplification,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Application, Self::FlowControl, Self::CongestionWindow, Self::Pacing, Self::Amplification];

    /// Name in files.
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
        /// Observer of one connection. Every method is one event; the default implementation ignores it.
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

/// Two observers of one connection; the first receives each event first.
pub struct Both(pub Box<dyn Observer>, pub Box<dyn Observer>);

/// Observer whose owner can take it back while the connection continues: see [`lend`].
pub struct Lent(Arc<Mutex<Option<Box<dyn Observer>>>>);

/// Owner's end of a [`Lent`] observer.
pub struct Loan(Arc<Mutex<Option<Box<dyn Observer>>>>);

/// Lends an observer to a connection.
pub fn lend(observer: Box<dyn Observer>) -> (Lent, Loan) {
    let place = Arc::new(Mutex::new(Some(observer)));
    (Lent(place.clone()), Loan(place))
}

impl Loan {
    /// Takes the observer back; it receives no more events. `None` when it was taken back before.
    pub fn take_back(&self) -> Option<Box<dyn Observer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Observer that calls a function with the name of each event.
pub struct ByName<F>(pub F);

events! {
    /// Start of the connection: a client begins to connect, or a server has received a first authentic packet. Always the first
    /// event for observers that an [`ObserverFactory`] made.
    started(start: &Start);
    /// Transport parameters of one end.
    parameters_set(by: Initiator, parameters: &TransportParameters);
    /// UDP payloads are sent. Their packets were reported before.
    datagrams_sent(datagrams: &DatagramsEvent);
    /// UDP payloads were received. Their packets follow.
    datagrams_received(datagrams: &DatagramsEvent);
    /// A packet is about to be sealed and sent.
    packet_sent(packet: &PacketEvent<'_>);
    /// A packet was opened, and is no duplicate.
    packet_received(packet: &PacketEvent<'_>);
    /// A packet of `size` bytes has to wait for its keys.
    packet_buffered(space: PacketSpace, size: usize);
    /// A packet of `size` bytes was dropped.
    packet_dropped(space: Option<PacketSpace>, size: usize, reason: DropReason);
    /// A Retry, a Version Negotiation packet or a stateless reset of `size` bytes was accepted.
    unsealed_received(packet: &Unsealed<'_>, size: usize);
    /// A packet was declared lost. Its frames follow, as [`frame_lost`](Observer::frame_lost).
    packet_lost(lost: &LossEvent);
    /// A frame of the lost packet, which will be sent again as far as it still matters.
    frame_lost(frame: &SentFrame);
    /// RTT sample of an acknowledgement: as measured, and without the peer's acknowledgement delay (RFC 9002 §5.3).
    rtt_sample(latest: Duration, adjusted: Duration);
    /// Variation of the delay of packet `pn` in this direction: by how much it lies above the smallest of the last 5 to 10 s.
    /// Needs the peer's receive times.
    one_way_sample(direction: PathDirection, pn: u64, variation: Duration);
    /// An acknowledgement or a timeout of recovery was processed.
    metrics(metrics: &RecoveryMetrics);
    /// A lost packet was rebuilt from repair symbols: source symbol `id`, `delay` after it was first missed.
    symbol_recovered(id: u64, delay: Duration);
    /// The peer has rebuilt packet `pn`, which was lost: its content is not sent again. Not reported for packets that were
    /// declared lost before.
    packet_recovered(pn: u64);
    /// Another code protects what is sent from here on; `None`: no code.
    code_updated(old: Option<Scheme>, new: Option<Scheme>);
    /// Sending stops for the moment, for this reason. Repeated while it lasts, also with the same reason.
    limited(by: Limit);
    /// Random bytes of the ClientHello, by which key logs name a connection. Once, when TLS has its first secret.
    client_random(random: &[u8; 32]);
    /// A timer expired.
    timer_expired(timer: Timer);
    /// Keys for packets of `sender` at this level were installed.
    key_installed(level: Level, sender: Direction, suite: CipherSuite);
    /// 1-RTT keys of both directions were updated, for the `phase`th time (RFC 9001 §6).
    keys_updated(phase: u64, by: Initiator);
    /// Keys of a level were discarded; if it has several phases, those of one phase.
    keys_discarded(level: Level, phase: Option<u64>);
    /// The handshake is complete, with this application protocol.
    connected(alpn: &[u8]);
    /// The handshake is confirmed (RFC 9001 §4.1.2).
    confirmed();
    /// Migration of the peer to this address.
    migration(state: Migration, remote: SocketAddr);
    /// Size of datagrams on the path in use from here on, in bytes of UDP payload.
    mtu_updated(old: u16, new: u16);
    /// The connection has ended. Only packets with CONNECTION_CLOSE may follow.
    closed(reason: &CloseReason, ending: Ending);
}

/// Manner in which a connection ends (RFC 9000 §10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By CONNECTION_CLOSE of this end: closing state.
    Closing,
    /// By CONNECTION_CLOSE or a stateless reset of the peer: draining state.
    Draining,
    /// Silently: no CONNECTION_CLOSE is sent.
    Silent,
}

/// Maker of observers: decides which connections are observed.
pub trait ObserverFactory: Send + Sync {
    /// Returns an observer for a connection that starts, or `None`. A server calls this once a first packet has proved
    /// authentic, so any client that can send a well-formed first packet causes a call: an implementation that opens files
    /// should limit their number.
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
