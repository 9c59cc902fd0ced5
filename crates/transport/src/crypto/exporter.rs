//! Key material for the application, from the exporter secret of a session (RFC 8446 §7.5).

use aws_lc_rs::{
    digest::{SHA256, SHA384, digest},
    hkdf::Prk,
};

use super::{
    CipherSuite, Secret,
    hkdf::{expand_label_with, hash},
};

/// The longest label: with its prefix it has to fit into 255 bytes.
const MAX_LABEL: usize = 249;

/// Fills `out` with key material for `label` and `context`.
///
/// # Errors
/// When more is requested than the derivation permits.
// RFC 8446 §7.5: HKDF-Expand-Label(Derive-Secret(secret, label, ""), "exporter", Hash(context), length).
pub(crate) fn export(
    suite: CipherSuite,
    secret: &Secret,
    label: &[u8],
    context: &[u8],
    out: &mut [u8],
) -> Result<(), &'static str> {
    if label.len() > MAX_LABEL || out.len() > 255 * suite.secret_len() {
        return Err("the label is too long, or more key material is asked for than there is");
    }
    let algorithm = match suite {
        CipherSuite::Aes128Gcm | CipherSuite::ChaCha20Poly1305 => &SHA256,
        CipherSuite::Aes256Gcm => &SHA384,
    };
    let mut derived = [0; 48];
    let derived = &mut derived[..suite.secret_len()];
    let prk = |secret: &[u8]| Prk::new_less_safe(hash(suite), secret);
    expand_label_with(&prk(secret.as_slice()), label, digest(algorithm, &[]).as_ref(), derived);
    expand_label_with(&prk(derived), b"exporter", digest(algorithm, context).as_ref(), out);
    derived.fill(0);
    Ok(())
}
