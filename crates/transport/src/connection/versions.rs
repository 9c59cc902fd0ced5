//! QUIC version of a connection. The client's first flight names one. The server may answer in another version, as which the flight can be
//! parsed (RFC 9368 §2.3, RFC 9369 §4). Both confirm their choice in authenticated transport parameters.

// RFC 9368 §8 MUST-1: versions are negotiated in this way and no other
// RFC 9369 §4 MUST-1: version information is sent, read and checked

use wire::{ConnectionId, LongType, Side, TransportParameters, VersionInformation, version};

use super::{coalesced::LongPacket, identity::Identity, initial_keys, labels};
use crate::{
    config::select_version,
    crypto::Labels,
    error::{Code, TransportError},
    handshake::Handshake,
    keys::{KeyLimits, Keys},
    tls::{Level, TicketVersions},
};

/// State of version negotiation until the handshake is confirmed.
#[derive(Debug)]
pub(super) struct Versions {
    /// Version of the client's first packet.
    pub(super) original: u32,
    /// Versions that a client speaks, the preferred one first; none at a server, whose answer decides.
    available: Vec<u32>,
    /// Destination ID that the keys of Initial packets follow from.
    pub(super) initial_dcid: ConnectionId,
    /// A client that was sent here by a Version Negotiation packet.
    reacts: bool,
}

impl Versions {
    /// Returns whether the connection follows from a Version Negotiation packet.
    pub(super) fn reacts(&self) -> bool {
        self.reacts
    }

    pub(super) fn new(original: u32, available: &[u32], initial_dcid: ConnectionId, reacts: bool) -> Option<Box<Self>> {
        Some(Box::new(Self { original, available: available.to_vec(), initial_dcid, reacts }))
    }
}

/// Version information of an end that speaks `available` and has chosen `chosen`, for its transport parameters (RFC 9368 §3).
// RFC 9368 §3 MUST-2: a client's choice is among what it offers. Another that nobody implements keeps peers used to not
// knowing every version.
pub(super) fn information(chosen: u32, available: &[u32], random: u64) -> VersionInformation {
    let offered = available;
    let mut available = Vec::with_capacity(offered.len() + 2);
    available.extend_from_slice(offered);
    if !available.contains(&chosen) {
        available.push(chosen);
    }
    available.push(version::greased(random as u32));
    VersionInformation { chosen, available }
}

impl Identity {
    /// Returns whether a packet of this version is for the connection, apart from its keys. A client learns here that the server
    /// answers in another version.
    pub(super) fn speaks(
        &mut self,
        side: Side,
        header: &LongPacket,
        packet: &[u8],
        keys: &mut Keys,
        handshake: &mut Handshake,
    ) -> bool {
        let &LongPacket { version, ty, pn_offset, .. } = header;
        if version == self.version {
            return true;
        }
        let Some(versions) = &self.versions else { return false };
        match side {
            // RFC 9369 §4.1 MUST NOT-3: early data stays in the version of the first flight.
            // RFC 9369 §4.1 MUST NOT-2: Initial packets of that version are read as long as there are Initial keys.
            // RFC 9369 §4.1 MUST-5: other packets of another version are dropped.
            Side::Server => matches!(ty, LongType::ZeroRtt | LongType::Initial) && version == versions.original,
            // RFC 9369 §4.1 SHOULD-1: the first packet in another version that the client offered, and that is authentic, says
            // which version the server has chosen; from there on it is that.
            Side::Client => {
                let may_switch = self.version == versions.original && !keys.can_open(Level::Handshake);
                may_switch
                    && ty == LongType::Initial
                    && versions.available.contains(&version)
                    && is_authentic_initial(version, versions.initial_dcid, packet, pn_offset)
                    && self.adopt_version(version, side, keys, handshake)
            }
        }
    }

    /// The connection speaks this version from here on. `true`, for the sake of the caller.
    fn adopt_version(&mut self, version: u32, side: Side, keys: &mut Keys, handshake: &mut Handshake) -> bool {
        let Some(versions) = &self.versions else { return false };
        // RFC 9369 §5 MUST NOT-1: what a client gets from here on is for this version.
        handshake.set_ticket_versions(TicketVersions { offered: versions.original, given: version });
        // RFC 9369 §4.1 MUST-3, MUST-4: whatever is sent from here on is of this version, but for early data.
        self.version = version;
        keys.set_labels(labels(version));
        if side == Side::Server {
            keys.keep_first_initial();
        }
        if keys.can_seal(Level::Initial) {
            // RFC 9369 §4.1: with the ID of the client's first flight.
            keys.set_initial(versions.initial_dcid.as_slice());
        }
        true
    }

    /// A server whose handshake has moved to another version follows it.
    pub(super) fn follow_handshake_version(&mut self, side: Side, keys: &mut Keys, handshake: &mut Handshake) {
        let version = handshake.version();
        if side == Side::Server && version != self.version {
            self.adopt_version(version, side, keys, handshake);
        }
    }

    /// Checks the version information of the peer against the packets that were received (RFC 9368 §4).
    pub(super) fn check_versions(&self, side: Side, peer: &TransportParameters) -> Result<(), TransportError> {
        let Some(versions) = &self.versions else { return Ok(()) };
        judge(versions, side, self.version, peer.version_information.as_ref())
            .map_err(|what| TransportError::new(Code::VERSION_NEGOTIATION_ERROR, what))
    }
}

/// Returns whether an Initial packet of another version was sealed with keys of our first packet.
fn is_authentic_initial(version: u32, dcid: ConnectionId, packet: &[u8], pn_offset: usize) -> bool {
    Labels::of(version).is_some()
        && initial_keys(Side::Client, version, &dcid, KeyLimits::default())
            .open_long(Level::Initial, &mut packet.to_vec(), pn_offset, 0)
            .is_ok()
}

/// Returns whether the peer's version information is consistent with the handshake, which has negotiated `version`.
// RFC 9368 §4 MUST-3: both ends read what the other says
// RFC 8999 §7 MUST-1: what a Version Negotiation packet said is authenticated before anybody relies on it
// RFC 9368 §4 MUST NOT-1: without version information that handshake does not complete
fn judge(versions: &Versions, side: Side, version: u32, told: Option<&VersionInformation>) -> Result<(), &'static str> {
    match (told, side) {
        // RFC 9368 §4 MUST-9, MUST-10, MUST-11: what the client says it chose is what it uses.
        (Some(told), Side::Server) if told.chosen != versions.original => {
            Err("the client's packets are of another version than it says")
        }
        // RFC 9368 §4 MUST-12, MUST-17, MUST-18: so is what the server chose; nobody in between can have changed it.
        (Some(told), Side::Client) if told.chosen != version => {
            Err("the server's packets are of another version than it says")
        }
        (None, Side::Client) if version != versions.original => {
            Err("the server changed the version and does not say so")
        }
        // RFC 9368 §8 SHALL-1: a server of version 1 that says nothing speaks version 1 and nothing else; so a client that
        // begins with version 1 would choose it again.
        (None, Side::Client) if versions.reacts && version == version::V1 => Ok(()),
        // RFC 9368 §4 MUST-13, MUST-14, MUST-15, MUST-16: after Version Negotiation the client would choose the same
        // again, now that it knows for sure what the server speaks.
        (Some(told), Side::Client) if versions.reacts => {
            let mut offered = told.available.clone();
            offered.push(version);
            match select_version(&versions.available, &offered) {
                Some(version) if !told.available.is_empty() && version == versions.original => Ok(()),
                _ => Err("somebody has forged a Version Negotiation packet"),
            }
        }
        (None, Side::Client) if versions.reacts => Err("the server does not confirm its Version Negotiation packet"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 9368 §4 MUST-13, MUST NOT-1; RFC 9368 §8 SHALL-1
    #[test]
    fn without_a_word_after_version_negotiation_only_version_1_goes_on() {
        for (version, reacts, good) in [
            (version::V1, true, true),
            (version::V2, true, false),
            (version::V1, false, true),
            (version::V2, false, true),
        ] {
            let id = ConnectionId::new(&[1; 8]).unwrap();
            let versions = Versions::new(version, &[version::V2, version::V1], id, reacts).unwrap();
            assert_eq!(judge(&versions, Side::Client, version, None).is_ok(), good, "{version:#x} {reacts}");
        }
    }

    // RFC 9368 §3 MUST-2
    #[test]
    fn what_is_chosen_is_among_what_is_offered() {
        for available in [&[version::V1, version::V2][..], &[version::V2], &[]] {
            let information = information(version::V1, available, 7);
            assert!(information.chosen == version::V1 && information.available.contains(&version::V1));
        }
    }
}
