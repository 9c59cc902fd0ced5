//! Secrets of Initial packets, which any observer of the first packet can compute (RFC 9001 §5.2).

use aws_lc_rs::hkdf::Prk;
use wire::Side;

use super::hkdf::expand_label_of;
use super::{CipherSuite, Labels, Secret};

/// The secrets with which client and server protect their Initial packets: see [`initial_secret`].
pub(crate) fn initial_secrets(labels: &Labels, dcid: &[u8]) -> [Secret; 2] {
    let prk = labels.initial_prk(dcid);
    [Side::Client, Side::Server].map(|sender| secret_of(&prk, sender))
}

/// The secret with which `sender` protects its Initial packets, given the Destination Connection ID of the client's
/// first Initial packet (after a Retry: of the first one that answers it). The suite is AES-128-GCM.
// RFC 9001 §5.2 MUST-1: HKDF-Extract with the version's salt, then the labels "client in" and "server in".
pub fn initial_secret(labels: &Labels, dcid: &[u8], sender: Side) -> Secret {
    secret_of(&labels.initial_prk(dcid), sender)
}

fn secret_of(prk: &Prk, sender: Side) -> Secret {
    let label = match sender {
        Side::Client => "client in",
        Side::Server => "server in",
    };
    let mut secret = [0; CipherSuite::Aes128Gcm.secret_len()];
    expand_label_of(prk, label, &mut secret);
    Secret::new(&secret).expect("32 bytes fit")
}
