//! Copies of handshake flights, sent before any timeout.
//!
//! A lost handshake packet costs a probe timeout: a second without an RTT sample, three round trips after the first sample. Repair symbols
//! need 1-RTT keys. So with repair `auto` each flight of the handshake is sent a second time shortly after the first, if it is not
//! acknowledged by then. A server does so only for clients that offer repair, and within the anti-amplification limit.

use units::{Duration, Instant};
use wire::Side;

use super::{Connection, packets::Packets, sources::Sources};
use crate::{fec::FecPolicy, tls::Level};

/// Time from a flight to its copy. A short burst of loss takes both otherwise.
const AFTER: Duration = Duration::from_millis(10);

/// Owns the copies that are still to be made.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Time at which the flight in progress is copied.
    due: Option<Instant>,
    /// Flights that were copied.
    made: u8,
}

impl Copies {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }
}

impl Connection {
    /// Repeats the flight in progress when its copy is due. Called without other data to send; returns whether a copy is due.
    pub(super) fn copy_handshake(&mut self, now: Instant) -> bool {
        if self.profile.fec != FecPolicy::Auto {
            return false;
        }
        if self.packets.sources.handshake.is_confirmed() {
            // On a path with a short round trip the handshake has ended before its copy is due: the deadline would stay in the past.
            self.packets.sources.copies.due = None;
            return false;
        }
        self.packets.copy_handshake(now, self.side)
    }
}

impl Packets {
    fn copy_handshake(&mut self, now: Instant, side: Side) -> bool {
        let flight = self.sources.flight(side);
        let copies = &mut self.sources.copies;
        if flight <= copies.made {
            copies.due = None;
            return false;
        }
        if *copies.due.get_or_insert(now + AFTER) > now {
            return false;
        }
        copies.due = None;
        copies.made = flight;
        self.sources.repeat_handshake();
        true
    }
}

impl Sources {
    /// Number of the flight that waits for its acknowledgement, from 1; 0 for none that is to be copied.
    fn flight(&mut self, side: Side) -> u8 {
        let repaired = self.fec.sender.is_some();
        let mut waits = |level| self.handshake.crypto(level).is_some_and(|crypto| crypto.has_unacknowledged());
        let (initial, handshake) = (waits(Level::Initial), waits(Level::Handshake));
        match side {
            Side::Client if handshake && repaired => 2,
            Side::Client if initial => 1,
            // The whole of the flight, which ends with Handshake packets.
            Side::Server if handshake && repaired => 1,
            _ => 0,
        }
    }
}
