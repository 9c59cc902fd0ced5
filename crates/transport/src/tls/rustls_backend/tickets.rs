//! Stateless tickets of a server, and the acceptance of early data.
//!
//! rustls accepts early data only with stateful sessions: its ticket is then a random name under which the session is in a store, and the
//! store decides how often the session is found. A NewSessionTicket message is in no transcript, and no key depends on the name in it (RFC
//! 8446 §4.6.1: only on its nonce). So the name may be changed on the way out: we replace it by the session itself, sealed with a key of
//! the [`KeyRing`]. The client returns these bytes, the binder in its ClientHello covers exactly these bytes, and rustls asks the store for
//! them, which opens them again. So nothing is stored, and every machine with the ring can resume.
//!
//! The store would also have made each session usable once only. For early data a [`StrikeRegister`] does this. It is asked before rustls
//! sees the ClientHello, and the client may have to wait for its answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use rustls::{server::StoresServerSessions, time_provider::TimeProvider};
use wire::{Reader, Side, TransportParameters};

use super::{ConfigError, secrets::Secrets};
use crate::{
    ring::{KeyRing, MemoryRegister, OpenError, Purpose, Strike, StrikeRegister},
    tls::client_hello::OfferedTicket,
};

/// Time for which a ticket is good, in seconds, unless its key ends before. RFC 8446 §4.6.1 allows seven days.
const LIFETIME: u64 = 24 * 60 * 60;
/// A session that is longer than this gets no ticket; certificates of clients are in it.
pub(in crate::tls) const MAX_SESSION: usize = 8 * 1024;
/// Most bytes of the application's state: one byte has its length.
const MAX_APPLICATION: usize = 255;
/// Format of a ticket's content, its first byte.
const FORMAT: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
/// Bytes of a sealed ticket beside session and application's state: key and nonce, time, age, limits, lengths, tag.
const SEALED_MORE: usize = 128;
/// Transport parameters that early data depends on.
const LIMITS: usize = 10;

/// The transport parameters that a client uses with early data, as far as a server must not reduce them.
// RFC 9000 §7.4.1, and RFC 9221 §3 for DATAGRAM. `max_udp_payload_size` and `disable_active_migration` may be reduced, but
// packets would be lost by it.
pub(in crate::tls) type Limits = [u64; LIMITS];

/// Bits of the last of the limits: the client may migrate.
const MIGRATION: u64 = 1;
/// RESET_STREAM_AT is accepted (draft-ietf-quic-reliable-stream-reset §3).
const RESET_STREAM_AT: u64 = 2;

/// The limits that the encoded parameters of this end give its clients.
pub(in crate::tls) fn limits(parameters: &[u8]) -> Limits {
    let Ok(p) = TransportParameters::decode(Side::Server, parameters) else { return Limits::default() };
    [
        p.active_connection_id_limit,
        p.initial_max_data,
        p.initial_max_stream_data_bidi_local,
        p.initial_max_stream_data_bidi_remote,
        p.initial_max_stream_data_uni,
        p.initial_max_streams_bidi,
        p.initial_max_streams_uni,
        p.max_datagram_frame_size,
        p.max_udp_payload_size,
        if p.disable_active_migration { 0 } else { MIGRATION } | if p.reset_stream_at { RESET_STREAM_AT } else { 0 },
    ]
}

/// Returns whether a client that uses the limits `then` could exceed those of `now`.
fn are_reduced(then: &Limits, now: &Limits) -> bool {
    let flags = |limits: &Limits| limits[LIMITS - 1];
    then.iter().zip(now).any(|(then, now)| now < then) || flags(then) & !flags(now) != 0
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of tickets and of early data, over all connections of a configuration since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TicketStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn read(&self) -> TicketStats {
                TicketStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Tickets sealed.
    issued,
    /// Tickets opened, to resume a session.
    opened,
    /// Tickets refused because the ring does not have their key any more: a full handshake followed.
    unknown_key,
    /// Tickets refused because they were too old: a full handshake followed.
    expired,
    /// Tickets refused because they are not ours, or of another version of QUIC: a full handshake followed.
    foreign,
    /// Handshakes whose early data was accepted.
    early_accepted,
    /// Early data refused because the ticket was used for some within the window: a replay, or a client that uses a
    /// ticket twice.
    early_replayed,
    /// Early data refused because the client's age of the ticket is not that of the server: it was held back, or
    /// replayed later.
    early_stale,
    /// Early data refused because the strike register had no room.
    early_register_full,
    /// Early data refused because the client counts on larger limits, or another application state, than there are.
    early_reduced,
    /// Early data refused because its ticket could not be opened, or by rustls: another protocol or cipher suite.
    early_unusable,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Decision on early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tls) enum Decision {
    Accept,
    Refuse,
    /// The register has no answer yet.
    Wait,
}

/// Seals and opens the tickets of a server configuration.
///
/// Several configurations, also of other processes, that share the ring and the register accept each other's tickets.
pub struct Tickets {
    ring: KeyRing,
    register: Arc<dyn StrikeRegister>,
    /// In seconds.
    window: u64,
    clock: Arc<dyn TimeProvider>,
    application: Vec<u8>,
    counters: Counters,
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tickets").field("ring", &self.ring).field("window", &self.window).finish_non_exhaustive()
    }
}

/// Contents of a ticket.
struct Content {
    /// Unix seconds.
    issued: u64,
    age_add: u32,
    limits: Limits,
    application: Vec<u8>,
    session: Vec<u8>,
    /// Names the ticket in the strike register.
    tag: [u8; 16],
}

/// Settings of [`Tickets`], with their defaults.
pub(in crate::tls) struct Settings {
    pub(in crate::tls) ring: Option<KeyRing>,
    pub(in crate::tls) register: Arc<dyn StrikeRegister>,
    pub(in crate::tls) window: std::time::Duration,
    pub(in crate::tls) application: Vec<u8>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ring: None,
            register: Arc::new(MemoryRegister::default()),
            window: std::time::Duration::from_secs(10),
            application: Vec::new(),
        }
    }
}

impl Settings {
    pub(in crate::tls) fn check(&self) -> Result<(), ConfigError> {
        let len = self.application.len();
        if len > MAX_APPLICATION {
            Err(ConfigError::EarlyDataStateTooLong { len, max: MAX_APPLICATION })
        } else {
            Ok(())
        }
    }
}

impl Tickets {
    pub(in crate::tls) fn new(settings: Settings, clock: Arc<dyn TimeProvider>) -> Option<Self> {
        let Settings { ring, register, window, application } = settings;
        let ring = match ring {
            Some(ring) => ring,
            None => {
                let mut secret = [0; 32];
                aws_lc_rs::rand::fill(&mut secret).ok()?;
                KeyRing::single(secret)
            }
        };
        Some(Self { ring, register, window: window.as_secs(), clock, application, counters: Counters::default() })
    }

    /// The counters of this configuration.
    pub fn stats(&self) -> TicketStats {
        self.counters.read()
    }

    fn now(&self) -> Option<u64> {
        Some(self.clock.current_time()?.as_secs())
    }

    /// Replaces the name of the session by the sealed session, in every NewSessionTicket message of `data`. `limits` are those of this
    /// endpoint.
    pub(in crate::tls) fn seal_all(
        &self,
        data: Vec<u8>,
        sessions: &mut Vec<(Vec<u8>, Vec<u8>)>,
        version: u32,
        limits: &Limits,
    ) -> Vec<u8> {
        let sealed = |session: &[u8]| self.application.len() + session.len() + SEALED_MORE;
        let mut out =
            Vec::with_capacity(data.len() + sessions.iter().map(|(_, session)| sealed(session)).sum::<usize>());
        let mut rest = &data[..];
        while let Some((head, after)) = rest.split_first_chunk::<4>() {
            let len = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
            let Some((body, next)) = after.split_at_checked(len) else { break };
            if head[0] == NEW_SESSION_TICKET {
                let start = out.len();
                // What could not be sealed is not sent: a client could do nothing with the name.
                if self.seal_message(body, sessions, version, limits, &mut out).is_none() {
                    out.truncate(start);
                }
            } else {
                out.extend_from_slice(&rest[..4 + len]);
            }
            rest = next;
        }
        out.extend_from_slice(rest);
        sessions.clear();
        out
    }

    /// Appends the message with the sealed session to `out`. After `None` the end of `out` is of no use.
    // RFC 8446 §4.6.1: lifetime, age_add, nonce, ticket, extensions.
    fn seal_message(
        &self,
        body: &[u8],
        sessions: &mut Vec<(Vec<u8>, Vec<u8>)>,
        version: u32,
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut r = Reader::new(body);
        let lifetime = u32::from_be_bytes(r.bytes(4).ok()?.try_into().ok()?);
        let age_add = u32::from_be_bytes(r.bytes(4).ok()?.try_into().ok()?);
        let nonce_len = r.u8().ok()?;
        let nonce = r.bytes(nonce_len.into()).ok()?;
        let name_len = r.u16().ok()?;
        let name = r.bytes(name_len.into()).ok()?;
        let extensions = r.bytes(r.remaining()).ok()?;
        let place = sessions.iter().position(|(known, _)| known == name)?;
        let (_, session) = sessions.swap_remove(place);
        let now = self.now()?;
        let lifetime = u64::from(lifetime).min(LIFETIME).min(self.ring.seals_for(now).unwrap_or(LIFETIME));
        if lifetime == 0 {
            return None;
        }

        let start = out.len();
        // The length of the message follows when the ticket is in it.
        out.extend_from_slice(&[NEW_SESSION_TICKET, 0, 0, 0]);
        out.extend_from_slice(&u32::try_from(lifetime).ok()?.to_be_bytes());
        out.extend_from_slice(&age_add.to_be_bytes());
        out.push(nonce_len);
        out.extend_from_slice(nonce);
        let ticket = out.len() + 2;
        out.extend_from_slice(&[0; 2]);
        self.seal((now, version), age_add, limits, &session, out)?;
        let len = u16::try_from(out.len() - ticket).ok()?;
        out[ticket - 2..ticket].copy_from_slice(&len.to_be_bytes());
        out.extend_from_slice(extensions);
        let len = u32::try_from(out.len() - start - 4).ok()?;
        out[start + 1..start + 4].copy_from_slice(&len.to_be_bytes()[1..]);
        count(&self.counters.issued);
        Some(())
    }

    /// Appends the ticket of a session to `out`.
    fn seal(
        &self,
        (now, version): (u64, u32),
        age_add: u32,
        limits: &Limits,
        session: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let application_len = u8::try_from(self.application.len()).ok()?;
        let mut nonce = [0; 12];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        self.ring.seal(Purpose::Tickets, now, nonce, &version.to_be_bytes(), out, |content| {
            content.push(FORMAT);
            content.extend_from_slice(&now.to_be_bytes());
            content.extend_from_slice(&age_add.to_be_bytes());
            limits.iter().for_each(|limit| content.extend_from_slice(&limit.to_be_bytes()));
            content.push(application_len);
            content.extend_from_slice(&self.application);
            content.extend_from_slice(session);
        });
        Some(())
    }

    // RFC 9369 §5 MUST-1: a ticket is bound to the version of the connection that it came with.
    fn open(&self, now: u64, version: u32, ticket: &[u8]) -> Result<Content, OpenError> {
        let content = self.ring.open(Purpose::Tickets, now, &version.to_be_bytes(), ticket)?;
        let tag = *ticket.last_chunk().ok_or(OpenError::Forged)?;
        read(&content, tag).ok_or(OpenError::Forged)
    }

    /// Decides whether early data that comes with this ticket may be accepted. `version` is the version of the client's first
    /// packet, `limits` are those of this end.
    pub(in crate::tls) fn decide(
        &self,
        offer: Option<&OfferedTicket>,
        version: u32,
        limits: &Limits,
        waker: &Waker,
    ) -> Decision {
        let opened = self.now().zip(offer).and_then(|(now, offer)| {
            let content = self.open(now, version, &offer.identity).ok()?;
            Some((now, offer, content))
        });
        let Some((now, offer, ticket)) = opened else {
            count(&self.counters.early_unusable);
            return Decision::Refuse;
        };
        // RFC 9000 §7.4.1 MUST-4, MUST NOT-2, MUST NOT-3, RFC 9221 §3 MUST-3: refuse when the limits that the client
        // goes by cannot be supported.
        // draft-ietf-quic-reliable-stream-reset §3 MUST NOT: the extension is among them.
        if are_reduced(&ticket.limits, limits) || ticket.application != self.application {
            count(&self.counters.early_reduced);
            return Decision::Refuse;
        }
        // RFC 8446 §8.3: a ClientHello whose age of the ticket differs from ours by more than the window is not fresh.
        // Both ages count whole seconds, so they may differ by one more.
        let window = self.window + 1;
        let age = u64::from(offer.obfuscated_age_ms.wrapping_sub(ticket.age_add)) / 1000;
        if age.abs_diff(now.saturating_sub(ticket.issued)) > window {
            count(&self.counters.early_stale);
            return Decision::Refuse;
        }
        // A copy of this ClientHello is fresh no longer than that.
        let expires = ticket.issued + age + window + 1;
        // RFC 9001 §9.2 MUST-1: the replay protection of TLS 1.3 is used
        match self.register.strike(&ticket.tag, now, expires, waker) {
            Strike::First => Decision::Accept,
            Strike::Pending => Decision::Wait,
            Strike::Again => {
                count(&self.counters.early_replayed);
                Decision::Refuse
            }
            Strike::Full => {
                count(&self.counters.early_register_full);
                Decision::Refuse
            }
        }
    }

    /// The session in a ticket that a client shows in a first packet of this version.
    pub(in crate::tls) fn find(&self, version: u32, ticket: &[u8]) -> Option<Vec<u8>> {
        let now = self.now()?;
        let (counter, session) = match self.open(now, version, ticket) {
            Ok(content) if now.saturating_sub(content.issued) > LIFETIME => (&self.counters.expired, None),
            Ok(content) => (&self.counters.opened, Some(content.session)),
            Err(OpenError::UnknownKey(_)) => (&self.counters.unknown_key, None),
            Err(OpenError::Forged) => (&self.counters.foreign, None),
        };
        count(counter);
        session
    }

    /// Counts the verdict of TLS on early data that [`Tickets::decide`] accepted.
    pub(in crate::tls) fn count_verdict(&self, accepted: bool) {
        count(if accepted { &self.counters.early_accepted } else { &self.counters.early_unusable });
    }
}

fn read(content: &[u8], tag: [u8; 16]) -> Option<Content> {
    let mut r = Reader::new(content);
    if r.u8().ok()? != FORMAT {
        return None;
    }
    let issued = u64::from_be_bytes(r.bytes(8).ok()?.try_into().ok()?);
    let age_add = u32::from_be_bytes(r.bytes(4).ok()?.try_into().ok()?);
    let mut limits = Limits::default();
    for limit in &mut limits {
        *limit = u64::from_be_bytes(r.bytes(8).ok()?.try_into().ok()?);
    }
    let len = r.u8().ok()?;
    let application = r.bytes(len.into()).ok()?.to_vec();
    let session = r.bytes(r.remaining()).ok()?.to_vec();
    Some(Content { issued, age_add, limits, application, session, tag })
}

impl StoresServerSessions for Tickets {
    fn put(&self, name: Vec<u8>, session: Vec<u8>) -> bool {
        session.len() <= MAX_SESSION && Secrets::leave_session(name, session)
    }

    // For TLS 1.2, which QUIC does not use.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.find(Secrets::ticket_versions()?.offered, ticket)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the flags counts by itself: what one gains does not make up for what another loses.
    #[test]
    fn a_flag_that_is_lost_is_a_reduced_limit() {
        let limits = |disable_active_migration, reset_stream_at| {
            let parameters = TransportParameters { disable_active_migration, reset_stream_at, ..Default::default() };
            let mut encoded = Vec::new();
            parameters.encode(&mut encoded, Side::Server, None);
            limits(&encoded)
        };
        let (none, migration) = (limits(true, false), limits(false, false));
        let (reset_stream_at, both) = (limits(true, true), limits(false, true));
        for (then, now, reduced) in [
            (&none, &both, false),
            (&migration, &both, false),
            (&both, &both, false),
            (&migration, &reset_stream_at, true),
            (&reset_stream_at, &migration, true),
            (&both, &reset_stream_at, true),
        ] {
            assert_eq!(are_reduced(then, now), reduced, "{then:?} {now:?}");
        }
    }
}
