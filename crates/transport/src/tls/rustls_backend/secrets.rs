//! Export of traffic secrets from rustls.
//!
//! rustls gives QUIC finished keys, never their secrets. But it passes each secret to its key log interface, in the call that derives it.
//! So every configuration has a key log of ours, which stores secrets in a thread-local slot while a session is inside rustls. Nothing is
//! shared between threads or connections.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::KeyLog;
use rustls::crypto::cipher::AeadKey;

use crate::{
    crypto::{KeyMaterial, Labels, Secret},
    tls::TicketVersions,
};

/// The secrets of one connection, as far as they were derived.
#[derive(Default)]
pub(super) struct Secrets {
    pub(super) client_early: Option<Secret>,
    pub(super) client_handshake: Option<Secret>,
    pub(super) server_handshake: Option<Secret>,
    pub(super) client_one_rtt: Option<Secret>,
    pub(super) server_one_rtt: Option<Secret>,
    /// Versions of QUIC that tickets belong to.
    pub(super) ticket_versions: TicketVersions,
    /// Sessions that a server wants to find again, each with the name that it gave them.
    pub(super) sessions: Vec<(Vec<u8>, Vec<u8>)>,
    /// Secret from which key material for the application is derived (RFC 8446 §7.5).
    pub(super) exporter: Option<Secret>,
    /// The random bytes of the ClientHello, by which key logs name the connection.
    pub(super) client_random: Option<[u8; 32]>,
    /// Labels of the version that rustls derives keys of packets for.
    labels: Option<&'static Labels>,
    /// A header protection key whose packet protection key is derived next.
    header_key: Option<AeadKey>,
    /// Keys of packets as they were derived last: those of this end first.
    keys: [Option<KeyMaterial>; 2],
}

thread_local! {
    /// The secrets of the session that is inside rustls on this thread.
    static SLOT: RefCell<Option<Secrets>> = const { RefCell::new(None) };
}

impl Secrets {
    /// Runs `inside`, which calls rustls, and captures the secrets that it derives.
    pub(super) fn capture<T>(&mut self, inside: impl FnOnce() -> T) -> T {
        /// Empties the slot even when `inside` panics, so that no secret is left for another session to find.
        struct Occupied;
        impl Drop for Occupied {
            fn drop(&mut self) {
                SLOT.take();
            }
        }
        let occupied = Occupied;
        SLOT.set(Some(std::mem::take(self)));
        let result = inside();
        if let Some(secrets) = SLOT.take() {
            *self = secrets;
        }
        drop(occupied);
        result
    }

    /// Leaves a session with the connection that is inside rustls on this thread. `false` when there is none.
    pub(super) fn leave_session(name: Vec<u8>, session: Vec<u8>) -> bool {
        SLOT.with_borrow_mut(|slot| slot.as_mut().map(|secrets| secrets.sessions.push((name, session))).is_some())
    }

    /// Leaves the header protection key of a direction with the session that is inside rustls on this thread.
    pub(super) fn leave_header_key(key: AeadKey) {
        SLOT.with_borrow_mut(|slot| {
            if let Some(secrets) = slot {
                secrets.header_key = Some(key);
            }
        });
    }

    /// Leaves the other keys of the direction.
    pub(super) fn leave_packet_key(key: &[u8], iv: [u8; 12]) {
        SLOT.with_borrow_mut(|slot| {
            let Some(secrets) = slot else { return };
            if let (Some(labels), Some(header)) = (secrets.labels, secrets.header_key.take()) {
                let [local, remote] = &mut secrets.keys;
                let place = if local.is_none() { local } else { remote };
                *place = KeyMaterial::new(labels, key, iv, header.as_ref());
            }
        });
    }

    /// Takes the keys of both directions that were left since the last call: of this end, and of the peer.
    pub(super) fn take_keys(&mut self) -> [Option<KeyMaterial>; 2] {
        std::mem::take(&mut self.keys)
    }

    /// The versions that tickets belong to, of the session that is inside rustls on this thread.
    pub(super) fn ticket_versions() -> Option<TicketVersions> {
        SLOT.with_borrow(|slot| slot.as_ref().map(|secrets| secrets.ticket_versions))
    }

    /// No secrets, of a session that is for this version of QUIC.
    pub(super) fn for_version(version: u32) -> Self {
        Self { ticket_versions: TicketVersions::both(version), labels: Labels::of(version), ..Self::default() }
    }

    fn named(&mut self, label: &str) -> Option<&mut Option<Secret>> {
        match label {
            "CLIENT_EARLY_TRAFFIC_SECRET" => Some(&mut self.client_early),
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET" => Some(&mut self.client_handshake),
            "SERVER_HANDSHAKE_TRAFFIC_SECRET" => Some(&mut self.server_handshake),
            "CLIENT_TRAFFIC_SECRET_0" => Some(&mut self.client_one_rtt),
            "SERVER_TRAFFIC_SECRET_0" => Some(&mut self.server_one_rtt),
            "EXPORTER_SECRET" => Some(&mut self.exporter),
            _ => None,
        }
    }
}

/// Key log of every configuration. It also passes secrets to the user's key log.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) user: Arc<dyn KeyLog>,
}

impl KeyLog for Capture {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        SLOT.with_borrow_mut(|slot| {
            let Some(secrets) = slot else { return };
            secrets.client_random = client_random.try_into().ok();
            if let Some(place) = secrets.named(label) {
                *place = Secret::new(secret);
            }
        });
        if self.user.will_log(label) {
            self.user.log(label, client_random, secret);
        }
    }
}
