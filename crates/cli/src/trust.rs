//! Certificates: the server's certificate, and the trust of clients.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Parser;
use rustls::{
    CertificateError, KeyLog, OtherError,
    client::danger::ServerCertVerifier,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
};
use tiderace::{
    Identity, RustlsClient, RustlsServer,
    transport::tls::{
        MemoryTickets,
        rustls_backend::{CertificateCheck, KeyExchange},
    },
};

use crate::failure::Failure;

/// The certificate of a server.
#[derive(Debug, Parser)]
pub(crate) struct CertificateArgs {
    /// Certificate chain (PEM), the server's certificate first [default: a new self-signed one for localhost]
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// Roots that a client trusts; without any of these options, those of the system.
#[derive(Debug, Parser)]
pub(crate) struct TrustArgs {
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Trust only the certificate with this SHA-256 fingerprint, which the server prints
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "ca")]
    pin: Option<Fingerprint>,
    /// Accept any certificate. An attacker on the path can impersonate the server
    #[arg(long, conflicts_with_all = ["ca", "pin"])]
    insecure: bool,
}

/// The SHA-256 of a certificate (DER).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

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

/// The server's certificate, its key and its fingerprint.
pub(crate) struct Own {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) fingerprint: Fingerprint,
}

/// The certificate that the options name, or a new one.
///
/// # Errors
/// When files cannot be read or are no certificate and key.
pub(crate) fn own(args: &CertificateArgs) -> Result<Own, Failure> {
    let (Some(cert), Some(key)) = (&args.cert, &args.key) else { return self_signed() };
    let (cert_pem, key_pem) = (read(cert)?, read(key)?);
    let unusable = |error: &dyn std::fmt::Display| {
        Failure::new(format_args!("cannot use {} with {}: {error}", cert.display(), key.display()))
            .hint("both are PEM files: `-----BEGIN CERTIFICATE-----`, `-----BEGIN PRIVATE KEY-----`")
    };
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(&cert_pem).collect::<Result<_, _>>().map_err(|error| unusable(&error))?;
    let Some(own) = chain.first() else { return Err(unusable(&"there is no certificate in the file")) };
    let fingerprint = Fingerprint::of(own);
    let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| unusable(&error))?;
    Ok(Own { chain, key, fingerprint })
}

fn self_signed() -> Result<Own, Failure> {
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|error| Failure::new(format_args!("cannot make a certificate: {error}")))?;
    let chain = vec![made.cert.der().clone()];
    let fingerprint = Fingerprint::of(&chain[0]);
    Ok(Own { chain, key: PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into(), fingerprint })
}

/// The server's side of TLS, and the fingerprint of its certificate. Sessions can be resumed, with early data: what a copy of it asks for
/// is a transfer that measures, and it is refused.
///
/// # Errors
/// When certificate or key cannot be used.
pub(crate) fn server(
    args: &CertificateArgs,
    alpn: &str,
    keys: Option<Arc<dyn KeyLog>>,
) -> Result<(RustlsServer, Fingerprint), Failure> {
    let own = own(args)?;
    let fingerprint = own.fingerprint;
    Ok((server_of(own, alpn, keys)?, fingerprint))
}

/// The server's side of TLS with this certificate, as [`server`] makes it.
///
/// # Errors
/// When certificate or key cannot be used.
pub(crate) fn server_of(own: Own, alpn: &str, keys: Option<Arc<dyn KeyLog>>) -> Result<RustlsServer, Failure> {
    let unusable = |error: &dyn std::fmt::Display| Failure::new(format_args!("cannot use the certificate: {error}"));
    let Own { chain, key, .. } = own;
    let chain = chain.iter().map(|certificate| certificate.to_vec()).collect();
    let identity = Identity::from_der(chain, key.secret_der().to_vec()).map_err(|error| unusable(&error))?;
    let server = RustlsServer::builder().identity(identity).alpn(alpn).early_data(true);
    let server = match keys {
        Some(keys) => server.key_log(keys),
        None => server,
    };
    server.build().map_err(|error| unusable(&error))
}

/// Sessions of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sessions {
    /// Every handshake is a full one.
    New,
    /// Handshakes resume the session before.
    Resumed,
    /// … and may offer early data.
    EarlyData,
}

/// Judge of the server's certificate.
pub(crate) enum Trust {
    Platform,
    /// Root certificates in a PEM file.
    Roots {
        path: PathBuf,
        pem: Vec<u8>,
    },
    Verifier(Arc<dyn ServerCertVerifier>),
}

impl TrustArgs {
    /// Judge that the options ask for.
    ///
    /// # Errors
    /// When the file of `--ca` cannot be read.
    pub(crate) fn trust(&self) -> Result<Trust, Failure> {
        Ok(if let Some(path) = &self.ca {
            Trust::Roots { path: path.clone(), pem: read(path)? }
        } else if let Some(fingerprint) = self.pin {
            Trust::Verifier(Arc::new(CertificateCheck::new(move |certificate| pinned(fingerprint, certificate))))
        } else if self.insecure {
            Trust::Verifier(Arc::new(CertificateCheck::new(|_| Ok(()))))
        } else {
            Trust::Platform
        })
    }

    /// Warns of `--insecure`.
    pub(crate) fn warn(&self) {
        if self.insecure {
            eprintln!(
                "WARNING: --insecure: the server's certificate is not checked. Anybody on the path can pose as the"
            );
            eprintln!("WARNING: server, and read and change what is transferred. Use it only for tests.");
        }
    }
}

/// The client's side of TLS, with its tickets. The first of `exchanges` has a key share in the ClientHello.
///
/// # Errors
/// When nobody can be trusted: a file that holds no certificates, a platform without a store.
pub(crate) fn client(
    args: &TrustArgs,
    alpn: &str,
    sessions: Sessions,
    exchanges: &[KeyExchange],
    keys: Option<Arc<dyn KeyLog>>,
) -> Result<(RustlsClient, Arc<MemoryTickets>), Failure> {
    let tickets = Arc::new(MemoryTickets::default());
    let builder =
        RustlsClient::builder().alpn(alpn).early_data(sessions == Sessions::EarlyData).key_exchanges(exchanges);
    let builder = match keys {
        Some(keys) => builder.key_log(keys),
        None => builder,
    };
    let builder = match sessions {
        Sessions::New => builder.without_resumption(),
        Sessions::Resumed | Sessions::EarlyData => builder.ticket_store(tickets.clone()),
    };
    let builder = match args.trust()? {
        Trust::Platform => builder.platform_roots(),
        Trust::Roots { path, pem } => builder.roots_pem(&pem).map_err(|error| no_roots(&path, &error))?,
        Trust::Verifier(verifier) => builder.verifier(verifier),
    };
    Ok((builder.build().map_err(|error| cannot_set_up(&error))?, tickets))
}

/// The client's side of TLS cannot be had.
pub(crate) fn cannot_set_up(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format_args!("cannot set up TLS: {error}"))
        .hint("say whom to trust with `--ca FILE`, `--pin FINGERPRINT` or `--insecure`")
}

/// The file of `--ca` holds no certificates.
pub(crate) fn no_roots(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format_args!("cannot use {}: {error}", path.display()))
        .hint("it has to be a PEM file with `-----BEGIN CERTIFICATE-----`")
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
