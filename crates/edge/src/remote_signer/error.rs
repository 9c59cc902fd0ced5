//! Errors of signatures that another machine makes, and of the link to it.

use std::{io, sync::Arc};

use rustls::pki_types::InvalidDnsNameError;

use crate::{certificate::CertificateError, trust::RootsError};

/// Link to a signer that cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignerLinkError {
    /// Unusable certificate or key of this gateway for the signer.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// Unusable roots of the signer's certificate.
    #[error("{0}")]
    Roots(#[from] RootsError),
    /// Section without roots: those of the system are not asked.
    #[error("[signer] has no `roots`")]
    NoRoots,
    /// Neither a name nor an address.
    #[error("expected a name of the signer, found `{name}`")]
    Name {
        /// Value of the setting.
        name: String,
        /// Fault of the name.
        source: InvalidDnsNameError,
    },
    /// Refusal of the TLS library.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// Thread of the link that the system does not start.
    #[error("cannot start the thread that asks the signer: {0}")]
    Thread(#[source] io::Error),
}

/// Cause for which a signer has not signed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignerError {
    /// No connection: nobody listens there, or a network is down.
    #[error("the signer at {address} cannot be reached: {why}")]
    Unreachable {
        /// Host and port of the signer.
        address: String,
        /// Error of the system.
        #[source]
        why: Arc<io::Error>,
    },
    /// Certificate of the signer that the roots of `[signer]` do not vouch for, or with another name.
    #[error("the signer at {address} shows a certificate that is not accepted: {why}")]
    NotTrusted {
        /// Host and port of the signer.
        address: String,
        /// Words of the TLS library.
        why: String,
    },
    /// Certificate of this gateway that the signer does not accept.
    #[error("the signer at {address} does not accept this gateway's certificate: {why}")]
    NotAdmitted {
        /// Host and port of the signer.
        address: String,
        /// Words of the TLS library.
        why: String,
    },
    /// Server that is no signer, or one of another version.
    #[error("no signer of this version is at {address}: {why}")]
    Protocol {
        /// Host and port.
        address: String,
        /// Fault of what it sent.
        why: String,
    },
    /// No answer within the time limit.
    #[error("the signer does not answer within its time limit")]
    TimeLimit,
    /// As many signatures as may be are under way.
    #[error("too many signatures are under way")]
    Busy,
    /// Key that the signer does not have.
    #[error("the signer has no key for this certificate")]
    UnknownKey,
    /// Message that the signer does not sign.
    #[error("the signer does not sign this message")]
    Refused,
    /// Device of the signer that does not sign.
    #[error("the device with the key does not sign")]
    Failed,
}

impl SignerError {
    /// Value of the label in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::NotTrusted { .. } => "not_trusted",
            Self::NotAdmitted { .. } => "not_admitted",
            Self::Protocol { .. } => "protocol",
            Self::TimeLimit => "time_limit",
            Self::Busy => "busy",
            Self::UnknownKey => "unknown_key",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }

    /// Advice for the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "is `tiderace edge signer` running there, and may this machine connect to it?",
            Self::NotTrusted { .. } => {
                "`roots` of [signer] has to have the root of its certificate, and `name` a name in it"
            }
            Self::NotAdmitted { .. } => {
                "`clients` of the signer's configuration has to have the root of [signer] `certificate`"
            }
            Self::Protocol { .. } => "use one version of tiderace on both sides",
            Self::TimeLimit | Self::Busy => {
                "the signer, or the way to it, is slow; [signer] has `time-limit` and `waiting`"
            }
            Self::UnknownKey => "add an [[identity]] with this certificate to the signer's configuration",
            Self::Refused => "only handshakes of TLS servers are signed",
            Self::Failed => "the log of the signer has the reason",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::{
        config::{Many, Signer},
        metrics::Metrics,
        remote_signer::Link,
        setup::SetupError,
    };

    #[test]
    fn each_fault_of_a_link_has_its_variant() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let good = Signer {
            address: Many(vec!["signer.test:1".to_owned()]),
            roots: file("roots", &made.cert.pem()),
            certificate: file("chain", &made.cert.pem()),
            key: file("key", &made.signing_key.serialize_pem()),
            ..Signer::default()
        };
        let metrics = Metrics::default().signatures;
        let started = |section: &Signer| section.link().and_then(|link| Link::start(&link, &metrics));
        drop(started(&good).unwrap());
        let error = |section: Signer| started(&section).err().unwrap();

        let name = error(Signer { name: "-".to_owned(), ..good.clone() });
        assert!(matches!(&name, SignerLinkError::Name { name, .. } if name == "-"), "{name:?}");
        assert!(name.source().unwrap().is::<InvalidDnsNameError>());
        let none = error(Signer { roots: String::new(), ..good.clone() });
        assert!(matches!(none, SignerLinkError::NoRoots), "{none:?}");
        let roots = error(Signer { roots: file("nothing", ""), ..good.clone() });
        assert!(matches!(roots, SignerLinkError::Roots(RootsError::Empty { .. })), "{roots:?}");
        let key = error(Signer { key: good.certificate.clone(), ..good });
        assert!(matches!(key, SignerLinkError::Certificate(CertificateError::NoKey(_))), "{key:?}");
        let setup = SetupError::from(key);
        assert!(setup.source().unwrap().is::<SignerLinkError>());
    }
}
