//! Errors in building a generation: files, certificates and names of a configuration.

use std::io;

use h3_quic::connect_udp::TemplateError;

use crate::{
    access::TokensError,
    certificate::CertificateError,
    config::AddressError,
    connection_id_key::KeyFileError,
    keys::{KeysError, RegisterError},
    password_file::PasswordsError,
    remote_signer::SignerLinkError,
    trust::RootsError,
};

/// Part of a configuration that does not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Unusable certificate or key of the gateway.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// Unusable ring of keys.
    #[error("{0}")]
    Keys(#[from] KeysError),
    /// Unusable URL of the register of early data.
    #[error("{0}")]
    StrikeRegister(#[from] RegisterError),
    /// Access log that cannot be opened.
    #[error("cannot open the access log {path}: {source}")]
    AccessLog {
        /// File or socket.
        path: String,
        /// Error of the system.
        source: io::Error,
    },
    /// Page for an error that cannot be read.
    #[error("route {route}: error page {path}: {source}")]
    ErrorPage {
        /// Name of the route.
        route: String,
        /// File of the page.
        path: String,
        /// Error of the system.
        source: io::Error,
    },
    /// Unusable root certificates for back ends over TLS.
    #[error("{0}")]
    Roots(#[from] RootsError),
    /// Back end whose TLS cannot be set up.
    #[error("route {route}: {to}: {source}")]
    BackEnd {
        /// Name of the route.
        route: String,
        /// URL of the back end.
        to: String,
        /// Fault of its root certificates.
        source: Box<RootsError>,
    },
    /// Unusable file of a proxy's tokens.
    #[error("{0}")]
    Tokens(#[from] TokensError),
    /// Unusable file of passwords.
    #[error("{0}")]
    Passwords(#[from] PasswordsError),
    /// Unusable URI template of a proxy.
    #[error("{0}")]
    Template(#[from] TemplateError),
    /// TUN device of a proxy that cannot be opened.
    #[error("cannot open the TUN device {device}: {source}")]
    Device {
        /// Number of the route, from 0.
        route: usize,
        /// Name of the device.
        device: String,
        /// Error of the system.
        source: io::Error,
    },
    /// Unusable key of connection IDs.
    #[error("{0}")]
    ConnectionIdKey(#[from] KeyFileError),
    /// Address of the metrics that is none.
    #[error("{0}")]
    MetricsAddress(#[from] AddressError),
    /// Link to a signer that cannot be set up.
    #[error("{0}")]
    SignerLink(#[from] SignerLinkError),
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::{ProcessError, access, access::TokenFault, keys, trust::Trust};

    #[test]
    fn causes_can_be_told_apart() {
        fn goes_anywhere<E: std::error::Error + Send + Sync + 'static>() {}
        goes_anywhere::<SetupError>();
        goes_anywhere::<ProcessError>();

        let register = keys::register("http://user:secret@host").err().unwrap();
        assert_eq!(register.url, "http://…@host");

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let path = file.display().to_string();
        let unreadable = Trust::read(&path).unwrap_err();
        assert!(
            matches!(&unreadable, RootsError::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
        );
        fs::write(&file, "a\n").unwrap();
        let empty = Trust::read(&path).unwrap_err();
        assert!(matches!(empty, RootsError::Empty { .. }), "{empty:?}");
        assert_eq!(empty.to_string(), format!("{path}: expected certificates in PEM, found none"));

        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        let exposed = access::read(&file).unwrap_err();
        assert!(matches!(exposed, TokensError::Exposed(_)), "{exposed:?}");
        mode(0o600);
        let line = access::read(&file).unwrap_err();
        assert!(matches!(line, TokensError::Line { line: 1, fault: TokenFault::Words, .. }), "{line:?}");
    }
}
