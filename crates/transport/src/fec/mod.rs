//! Forward error correction of 1-RTT packets (docs/fec.md).
//!
//! A source symbol is the part of a packet's payload after its SOURCE_SYMBOL frame: STREAM and DATAGRAM frames, and frames about streams.
//! `sender` keeps the latest symbols and makes repair symbols at the rate of a code, which is fixed or chosen by `controller`. `receiver`
//! rebuilds lost symbols and reports them. The crate `fec` has codes and arithmetic; the connection builds and reads packets.

mod carriers;
mod content;
mod controller;
mod estimate;
mod policy;
mod protection;
mod receiver;
mod sender;
mod table;
mod tail;

pub(crate) use content::{Content, SymbolRoom};
pub(crate) use controller::View;
pub use controller::{Conditions, choose};
pub use policy::{FecPolicy, ParseFecError};
pub(crate) use protection::Tolerance;
pub use protection::{DatagramFlow, Protection};
pub(crate) use receiver::{Receiver, Recovered};
pub(crate) use sender::Sender;

use units::Instant;

use crate::{error::TransportError, recovery::Rtt, sent::Verdict};

/// Source symbols that this end remembers of its peer: what it announces in `fec_window`. Wider than a repair symbol can reach,
/// so that reordering does not make one useless.
pub(crate) const WINDOW: u64 = 256;

/// Owns forward error correction of a connection, in both directions. Off, it is two null pointers.
#[derive(Default)]
pub(crate) struct Fec {
    pub(crate) sender: Option<Box<Sender>>,
    pub(crate) receiver: Option<Box<Receiver>>,
}

impl Fec {
    /// Starts FEC, which both endpoints support: `window` is the number of symbols that the peer remembers.
    pub(crate) fn start(&mut self, policy: FecPolicy, window: u64) {
        self.receiver = Some(Box::default());
        self.sender = Sender::new(policy, window).map(Box::new);
    }

    /// Returns whether the ends of short messages may be covered.
    pub(crate) fn covers_ends(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.may_cover_ends())
    }

    /// Returns whether symbols are shorter than their packets could be.
    pub(crate) fn cuts_symbols(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.covers_ends_only())
    }

    /// The handshake is complete: see [`Sender::start`].
    pub(crate) fn begin(&mut self, rtt: &Rtt, bytes: u64) {
        if let Some(sender) = &mut self.sender {
            sender.start(rtt.min(), rtt.smoothed(), bytes);
        }
    }

    /// Returns whether a repair symbol waits to be sent.
    #[inline]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.is_due())
    }

    /// Returns whether repair symbols wait that replace copies after a probe timeout.
    #[inline]
    pub(crate) fn has_probe(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.has_probe())
    }

    /// Takes the verdict on the packet with a source symbol.
    pub(crate) fn on_symbol(&mut self, verdict: Verdict, id: u64) {
        if let Some(sender) = &mut self.sender {
            sender.on_verdict(verdict, id);
        }
    }

    /// Takes the fate of a report of recovered symbols.
    pub(crate) fn on_report(&mut self, arrived: bool, largest: u64) {
        if let Some(receiver) = &mut self.receiver {
            receiver.on_report(arrived, largest);
        }
    }

    /// Takes the loss of a packet that counts for the estimate of the path.
    pub(crate) fn on_packet_lost(&mut self, pn: u64) {
        if let Some(sender) = &mut self.sender {
            sender.on_packet_lost(pn);
        }
    }

    /// Time at which the end of a message has to be protected, if no data follows it.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.sender.as_ref()?.tail_deadline()
    }

    /// Forgets all symbols; the connection has ended. Counts stay.
    pub(crate) fn forget(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.forget();
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.shed(usize::MAX);
        }
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> usize {
        self.sender.as_ref().map_or(0, |sender| sender.memory())
            + self.receiver.as_ref().map_or(0, |receiver| receiver.memory())
    }
}

/// Symbols that contradict each other or the rules: the peer's fault.
pub(crate) fn violation(what: &'static str, frame_type: u64) -> TransportError {
    TransportError::new(crate::error::Code::PROTOCOL_VIOLATION, what).in_frame(frame_type)
}
