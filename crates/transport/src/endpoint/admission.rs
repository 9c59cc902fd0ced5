//! Admission: decides whether a first packet becomes a connection.

use std::ops::Range;

use units::Instant;
use wire::{ConnectionId, Side, Writer};

use super::{AttemptEvent, Endpoint, pending::SessionWaker};
use crate::config::RetryPolicy;
use crate::udp::Datagram;
use crate::{
    connection::{Connection, Origin, labels},
    crypto::retry_tag,
    error::Code,
    keys::{KeyLimits, Keys},
    tls::Level,
    token::{Token, Useless},
};

/// RFC 9000 §14.1: what a client's first datagram measures at least.
const MIN_INITIAL: usize = 1200;

/// The first packet of a would-be connection.
pub(super) struct FirstPacket {
    pub(super) version: u32,
    pub(super) dcid: ConnectionId,
    pub(super) scid: ConnectionId,
    /// Place of the token in the payload.
    pub(super) token: Range<usize>,
}

impl Endpoint {
    /// Starts a connection for a client's first packet, or answers why not.
    pub(super) fn admit(&mut self, now: Instant, datagram: Datagram, buffer: usize, first: &FirstPacket) {
        let Some(server) = self.server.clone() else { return };
        // RFC 9000 §14.1 MUST-3: a first packet in a datagram below 1,200 bytes is discarded; §7.2 MUST: so is one
        // whose made-up destination has less than 8 bytes.
        if datagram.payload.len().min(datagram.segment_size) < MIN_INITIAL || first.dcid.len() < 8 {
            self.stats.dropped += 1;
            return;
        }
        let token = &datagram.payload[first.token.clone()];
        let token =
            (!token.is_empty()).then(|| self.tokens.check(now, first.version, datagram.remote, &first.dcid, token));
        let (original_dcid, validated) = match token {
            Some(Token::Retry { original_dcid }) => (original_dcid, true),
            Some(Token::Returning) => (first.dcid, true),
            Some(Token::BadRetry) => {
                // RFC 9000 §8.1.2 SHOULD-1: the client takes no second Retry, so it is told at once that it has ended.
                if self.refuse(&datagram, first, Code::INVALID_TOKEN, "the Retry token is not valid (any more)") {
                    self.stats.tokens_invalid += 1;
                }
                return;
            }
            Some(Token::Useless(why)) => {
                self.count_useless(why);
                (first.dcid, false)
            }
            None => (first.dcid, false),
        };
        let retry = match server.retry {
            RetryPolicy::Never => false,
            RetryPolicy::Always => true,
            RetryPolicy::Above(limit) => self.half_open > limit,
        };
        if retry && !validated {
            // RFC 9000 §17.2.5.1 MUST NOT-2: one Retry per datagram
            // RFC 9001 §4.7 SHOULD-1: addresses are validated with Retry, not with HelloRetryRequest
            self.send_retry(now, &datagram, first);
            return;
        }
        if self.tls_steps.is_full() {
            self.stats.overloaded += 1;
            self.note_attempt(datagram.remote, AttemptEvent::Refused);
            return;
        }
        if self.open >= server.max_connections {
            if self.refuse(&datagram, first, Code::CONNECTION_REFUSED, "too many connections") {
                self.stats.refused += 1;
            }
            return;
        }
        if self.relief.budget().is_scarce() {
            if self.refuse(&datagram, first, Code::CONNECTION_REFUSED, "too little memory") {
                self.stats.refused_for_memory += 1;
            }
            return;
        }
        let scid = self.ids.generate();
        let mut setup = self.setup(now, scid, datagram.remote, datagram.local);
        // RFC 9000 §18.2 MUST NOT-3, MUST NOT-4: no preferred address without an ID for it
        if !server.preferred_address.is_empty() && !self.ids.is_empty() {
            let id = self.ids.generate();
            setup.preferred = Some((id, self.tokens.reset_token(now, &id)));
        }
        let origin = Origin {
            version: first.version,
            initial_dcid: first.dcid,
            original_dcid,
            // RFC 9000 §7.2 MUST-5: a server takes its destination ID from the first Initial packet
            peer: first.scid,
            retried: matches!(token, Some(Token::Retry { .. })),
            validated,
        };
        let mut connection = Connection::accept_from(now, setup, &server, &origin);
        if self.tls_steps.are_on() {
            connection.hand_out_tls();
        }
        let waker = self.handshake_waker.clone().map(SessionWaker::new);
        if let Some(waker) = &waker {
            connection.set_handshake_waker(waker.clone().into());
        }
        self.ledger.on_adopted(datagram.payload.len(), datagram.segment_size);
        connection.handle_datagram(now, datagram, buffer);
        // A packet that nobody sealed for this destination leaves no trace.
        if !connection.has_heard() {
            self.stats.dropped += 1;
            self.ledger.on_ended(&connection);
            return;
        }
        let remote = connection.first_remote();
        let handle = self.insert(connection);
        if let Some(waker) = waker {
            waker.assign(handle);
        }
        self.note_attempt(remote, AttemptEvent::Begun);
        self.accepted.push_back(handle);
        self.mark_dirty(handle.index);
        self.deliver_early(now, handle.index, &first.dcid);
    }

    /// Sends the client back with a token that proves its address.
    fn send_retry(&mut self, now: Instant, datagram: &Datagram, first: &FirstPacket) {
        // RFC 9369 §4.1 MUST-1: a Retry is of the version of the client's packet
        // RFC 9000 §17.2.5.1 MUST NOT-1: a Retry brings a new ID
        let scid = self.ids.generate();
        let token = self.tokens.retry(&mut self.random, now, first.version, datagram.remote, &first.dcid, &scid);
        let mut packet = vec![0; 64 + token.len() + 2 * ConnectionId::MAX_LEN];
        let mut w = Writer::new(&mut packet);
        wire::encode_retry(&mut w, first.version, &first.scid, &scid, &token);
        let len = w.position();
        packet.truncate(len);
        let tag = retry_tag(labels(first.version), first.dcid.as_slice(), &packet);
        packet.extend_from_slice(&tag);
        if self.stateless.answer(datagram, packet) {
            self.stats.retries += 1;
            self.note_attempt(datagram.remote, AttemptEvent::Retried);
        }
    }

    // RFC 9000 §8.1.3 MUST-4, SHOULD-3, RFC 9000 §8.1.4 MUST-4: a client whose token says nothing is as one without a
    // token.
    fn count_useless(&mut self, why: Useless) {
        let counter = match why {
            Useless::Foreign => &mut self.stats.tokens_foreign,
            Useless::UnknownKey => &mut self.stats.tokens_unknown_key,
            Useless::Expired => &mut self.stats.tokens_expired,
            Useless::Elsewhere | Useless::Used => &mut self.stats.tokens_not_accepted,
            Useless::Unjudged => &mut self.stats.tokens_unjudged,
        };
        *counter += 1;
    }

    /// Closes the connection that `first` would have begun, without keeping state (RFC 9000 §5.2.2 SHOULD-3). `false` when too
    /// many answers wait already.
    fn refuse(&mut self, datagram: &Datagram, first: &FirstPacket, code: Code, reason: &'static str) -> bool {
        let scid = self.ids.generate();
        let mut keys = Keys::new(Side::Server, labels(first.version), KeyLimits::default());
        keys.set_initial(first.dcid.as_slice());
        let header = wire::LongHeader { ty: wire::LongType::Initial, version: first.version, dcid: first.scid, scid };
        let mut packet = vec![0; 128];
        let mut w = Writer::new(&mut packet);
        let pos = header.encode(&mut w, &[], 0, 1);
        wire::Frame::ConnectionClose { error: code.0, frame_type: 0, reason: reason.as_bytes() }.encode(&mut w);
        let end = w.position() + crate::crypto::TAG_LEN;
        packet.truncate(end);
        wire::patch_length(&mut packet, &pos, end);
        if keys.seal_long(Level::Initial, &mut packet, pos.pn_offset, 0).is_err() {
            return false;
        }
        let told = self.stateless.answer(datagram, packet);
        if told {
            self.note_attempt(datagram.remote, AttemptEvent::Refused);
        }
        told
    }
}
