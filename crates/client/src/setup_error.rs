//! Errors of settings: URLs, trusted roots, files of tickets.

use std::{io, path::PathBuf};

use http::uri::InvalidUri;
use rustls::pki_types::pem;
use tiderace::transport::tls::rustls_backend::ConfigError;

/// URL that cannot be requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Text that is no URL.
    #[error("`{url}` is no URL: {source}")]
    Malformed {
        /// The text.
        url: String,
        /// Fault of its syntax.
        source: InvalidUri,
    },
    /// URL of another scheme, or without one.
    #[error("`{url}` is no {expected} URL")]
    Scheme {
        /// The URL.
        url: String,
        /// Expected schemes, in words.
        expected: &'static str,
    },
    /// URL without a host.
    #[error("`{url}` has no host")]
    NoHost {
        /// The URL.
        url: String,
    },
}

/// Roots of certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// Text with broken PEM.
    #[error("the certificates cannot be read: {source}")]
    Pem {
        /// Fault of the text.
        source: pem::Error,
    },
    /// Text without a certificate.
    #[error("the certificates cannot be read: there are none in the text")]
    Empty,
    /// Certificate that is no root.
    #[error("a root certificate cannot be read: {source}")]
    NoRoot {
        /// Fault of the certificate.
        source: rustls::Error,
    },
    /// Roots of the platform that cannot be had.
    #[error("the roots of the platform cannot be used: {source}")]
    Platform {
        /// Error of the TLS library.
        source: rustls::Error,
    },
    /// Certificate or private key of the client that cannot be used.
    #[error("the client's certificate cannot be used: {source}")]
    Identity {
        /// Fault of the certificate or of the key.
        source: ConfigError,
    },
    /// Settings of TLS for QUIC that the TLS library refuses, such as the name of a protocol.
    #[error(transparent)]
    Quic(#[from] ConfigError),
    /// Settings of TLS for TCP that the TLS library refuses.
    #[error("TLS cannot be set up: {source}")]
    Tcp {
        /// Error of the TLS library.
        source: rustls::Error,
    },
}

/// File of tickets that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TicketsError {
    /// File that the system does not let be read or written, or with other content.
    #[error("cannot keep tickets in {}: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Tickets of a server whose certificate is not checked ([`Trust::Anyone`](crate::Trust::Anyone)).
    #[error("tickets in a file need a server whose certificate is checked")]
    Unchecked,
    /// Tickets of a client that shows a certificate.
    #[error("tickets are not kept in a file for a client with a certificate")]
    WithIdentity,
    /// Build without the feature `boringssl`.
    #[error(
        "this build cannot write tickets to a file: rustls keeps parts of a session to itself, and the backend that does not, \
         BoringSSL, is not built in"
    )]
    NotBuiltIn,
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::{Client, FetchError, Settings, Trust};

    /// Error of a client with these settings.
    fn error(settings: &Settings) -> FetchError {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _context = runtime.enter();
        Client::with(settings).err().unwrap()
    }

    fn of_roots(pem: &str) -> TrustError {
        let settings = Settings { trust: Trust::Pem(pem.as_bytes().to_vec()), ..Settings::default() };
        match error(&settings) {
            FetchError::Trust(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_fault_of_roots_has_its_variant() {
        let broken = of_roots("-----BEGIN CERTIFICATE-----\nAAAA\n");
        assert!(matches!(broken, TrustError::Pem { source: pem::Error::MissingSectionEnd { .. } }), "{broken:?}");
        assert!(broken.source().unwrap().is::<pem::Error>());
        let empty = of_roots("nothing");
        assert!(matches!(empty, TrustError::Empty) && empty.source().is_none(), "{empty:?}");
        let no_root = of_roots("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(matches!(no_root, TrustError::NoRoot { .. }), "{no_root:?}");
        assert!(no_root.source().unwrap().is::<rustls::Error>());
        // QUIC needs the name of a protocol.
        let nameless = crate::tls::quic((&Trust::Anyone, None), b"", None, false, None).err().unwrap();
        assert!(matches!(nameless, FetchError::Trust(TrustError::Quic(ConfigError::BadAlpn))), "{nameless:?}");
    }

    #[test]
    fn each_fault_of_a_file_of_tickets_has_its_variant() {
        let path = PathBuf::from("/nowhere/tickets");
        let settings = Settings { trust: Trust::Anyone, tickets: Some(path.clone()), ..Settings::default() };
        let FetchError::Tickets(unchecked) = error(&settings) else { panic!("another error") };
        let FetchError::Tickets(unusable) = error(&Settings { trust: Trust::Platform, ..settings }) else {
            panic!("another error")
        };
        if cfg!(feature = "boringssl") {
            assert!(matches!(unchecked, TicketsError::Unchecked), "{unchecked:?}");
            assert!(matches!(&unusable, TicketsError::Unusable { path: at, .. } if *at == path), "{unusable:?}");
            assert!(unusable.source().unwrap().is::<io::Error>());
        } else {
            assert!(matches!(unchecked, TicketsError::NotBuiltIn), "{unchecked:?}");
            assert!(matches!(unusable, TicketsError::NotBuiltIn), "{unusable:?}");
        }
    }

    #[test]
    fn each_fault_of_a_url_has_its_variant() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = {
            let _context = runtime.enter();
            Client::with(&Settings { trust: Trust::Anyone, ..Settings::default() }).unwrap()
        };
        let of = |url: &str| match runtime.block_on(client.get(url, None, None)).err().unwrap() {
            FetchError::Url(error) => error,
            other => panic!("{url}: {other:?}"),
        };
        let malformed = of("https://a b/");
        assert!(matches!(&malformed, UrlError::Malformed { url, .. } if url == "https://a b/"), "{malformed:?}");
        assert!(malformed.source().unwrap().is::<InvalidUri>());
        let scheme = of("gopher://a/");
        assert!(matches!(&scheme, UrlError::Scheme { url, expected: "https" } if url == "gopher://a/"), "{scheme:?}");
        let send = |uri: &'static str| {
            let request = http::Request::new(http_body_util::Empty::<bytes::Bytes>::new());
            let (mut head, body) = request.into_parts();
            head.uri = http::Uri::from_static(uri);
            let route = crate::Route::default();
            runtime.block_on(client.send(http::Request::from_parts(head, body), &route)).err().unwrap()
        };
        let none = send("/path");
        assert!(matches!(none, FetchError::Url(UrlError::Scheme { expected: "http or https", .. })), "{none:?}");
        let hostless = of("https://:443/");
        assert!(matches!(&hostless, UrlError::NoHost { url } if url == "https://:443/"), "{hostless:?}");
    }

    /// Set in a process of its own, because variables of the environment belong to all tests of one.
    #[cfg(target_os = "linux")]
    const CHILD: &str = "TIDERACE_CLIENT_TEST_WITHOUT_ROOTS";

    #[cfg(target_os = "linux")]
    #[test]
    fn a_platform_without_roots_has_its_variants() {
        if std::env::var_os(CHILD).is_none() {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["setup_error::tests::a_platform_without_roots_has_its_variants", "--exact"])
                .env(CHILD, "1")
                .env("SSL_CERT_FILE", "/dev/null")
                .env_remove("SSL_CERT_DIR")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let tcp = crate::tls::tcp((&Trust::Platform, None), &[b"h2"], None).err().unwrap();
        assert!(matches!(tcp, FetchError::Trust(TrustError::Platform { .. })), "{tcp:?}");
        // A client sets QUIC up first.
        let quic = error(&Settings { trust: Trust::Platform, ..Settings::default() });
        let is_quic = matches!(quic, FetchError::Trust(TrustError::Quic(ConfigError::PlatformRoots { .. })));
        assert!(is_quic, "{quic:?}");
    }
}
