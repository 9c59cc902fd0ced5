//! Certificates: the server's own, and whom the client trusts.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Parser;
use rustls::{
    CertificateError, OtherError,
    pki_types::{CertificateDer, pem::PemObject},
};
use tiderace::{Identity, RustlsClient, RustlsServer, transport::tls::rustls_backend::CertificateCheck};

use super::protocol::ALPN;
use crate::failure::Failure;

/// The certificate of a server.
#[derive(Debug, Parser)]
pub(super) struct CertificateArgs {
    /// Certificate chain (PEM), the server's own first [default: a new self-signed one for localhost]
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// Whom a client trusts. Without any of these: what this system trusts.
#[derive(Debug, Parser)]
pub(super) struct TrustArgs {
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Trust the one certificate with this SHA-256 fingerprint, as the server prints it
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "ca")]
    pin: Option<Fingerprint>,
    /// Trust anybody. Whoever is on the path can pose as the server
    #[arg(long, conflicts_with_all = ["ca", "pin"])]
    insecure: bool,
}

/// The SHA-256 of a certificate (DER).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(certificate: &[u8]) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate);
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = String;

    /// Hexadecimal digits, with or without colons.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(|&c| c != ':')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let bytes = digits.filter(|digits| digits.len() == 64).map(|digits| {
            let mut bytes = [0; 32];
            for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                *byte = pair[0] << 4 | pair[1];
            }
            Self(bytes)
        });
        bytes.ok_or_else(|| "a fingerprint has 64 hexadecimal digits".to_owned())
    }
}

/// The server's side of TLS, and the fingerprint of its certificate.
pub(super) fn server(args: &CertificateArgs) -> Result<(RustlsServer, Fingerprint), Failure> {
    let (identity, fingerprint) = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => {
            let (cert_pem, key_pem) = (read(cert)?, read(key)?);
            let unusable = |error: &dyn std::fmt::Display| {
                Failure::new(format_args!("cannot use {} with {}: {error}", cert.display(), key.display()))
                    .hint("both are PEM files: `-----BEGIN CERTIFICATE-----`, `-----BEGIN PRIVATE KEY-----`")
            };
            let identity = Identity::from_pem(&cert_pem, &key_pem).map_err(|error| unusable(&error))?;
            let own = CertificateDer::from_pem_slice(&cert_pem).map_err(|error| unusable(&error))?;
            (identity, Fingerprint::of(&own))
        }
        _ => self_signed()?,
    };
    let server = RustlsServer::builder().identity(identity).alpn(ALPN).build();
    let server = server.map_err(|error| Failure::new(format_args!("cannot use the certificate: {error}")))?;
    Ok((server, fingerprint))
}

fn self_signed() -> Result<(Identity, Fingerprint), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format_args!("cannot make a certificate: {error}"));
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| failed(&error))?;
    let certificate = made.cert.der().to_vec();
    let fingerprint = Fingerprint::of(&certificate);
    let identity = Identity::from_der(vec![certificate], made.signing_key.serialize_der());
    Ok((identity.map_err(|error| failed(&error))?, fingerprint))
}

/// The client's side of TLS. Every handshake is a full one.
pub(super) fn client(args: &TrustArgs) -> Result<RustlsClient, Failure> {
    let builder = RustlsClient::builder().alpn(ALPN).without_resumption();
    let builder = if let Some(path) = &args.ca {
        builder.roots_pem(&read(path)?).map_err(|error| {
            Failure::new(format_args!("cannot use {}: {error}", path.display()))
                .hint("it has to be a PEM file with `-----BEGIN CERTIFICATE-----`")
        })?
    } else if let Some(fingerprint) = args.pin {
        builder.verifier(Arc::new(CertificateCheck::new(move |certificate| pinned(fingerprint, certificate))))
    } else if args.insecure {
        eprintln!("WARNING: --insecure: the server's certificate is not checked. Anybody on the path can pose as the");
        eprintln!("WARNING: server, and read and change what is transferred. Use it only for tests.");
        builder.verifier(Arc::new(CertificateCheck::new(|_| Ok(()))))
    } else {
        builder.platform_roots()
    };
    builder.build().map_err(|error| {
        Failure::new(format_args!("cannot set up TLS: {error}"))
            .hint("say whom to trust with `--ca FILE`, `--pin FINGERPRINT` or `--insecure`")
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| {
        Failure::new(format_args!("cannot read {}: {}", path.display(), crate::address::plain(&error)))
    })
}

/// The server has another certificate than the pinned one.
#[derive(thiserror::Error)]
#[error("its fingerprint is {0}")]
struct AnotherCertificate(Fingerprint);

impl std::fmt::Debug for AnotherCertificate {
    // The error that rustls makes of it shows this one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Accepts one certificate.
fn pinned(fingerprint: Fingerprint, certificate: &[u8]) -> Result<(), rustls::Error> {
    let own = Fingerprint::of(certificate);
    if own == fingerprint {
        return Ok(());
    }
    Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(AnotherCertificate(own))))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_read_back() {
        let fingerprint = Fingerprint::of(b"a certificate");
        let text = fingerprint.to_string();
        assert_eq!(text.parse(), Ok(fingerprint));
        let colons: Vec<&str> = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
        assert_eq!(colons.join(":").to_uppercase().parse(), Ok(fingerprint));
        assert!("abc".parse::<Fingerprint>().is_err());
        assert!("g".repeat(64).parse::<Fingerprint>().is_err());
    }
}
