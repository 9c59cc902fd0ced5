//! Errors of an order, and of a stored certificate.

use std::{fmt, io, path::PathBuf, time::Duration};

use instant_acme::{AuthorizationStatus, OrderStatus};
use rustls::pki_types::pem;
use x509_parser::{error::X509Error, nom};

use crate::{certificate::CertificateError, trust::RootsError};

/// Failed order.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    /// Roots for the connection to the authority that cannot be used.
    #[error("{0}")]
    Roots(#[from] RootsError),
    /// Failure of an exchange with the authority.
    #[error("{step}: {source}")]
    Exchange {
        step: Step,
        /// Error of the authority or of the connection to it.
        source: instant_acme::Error,
    },
    /// Account that cannot be stored.
    #[error("the account cannot be kept: {0}")]
    Account(#[source] serde_json::Error),
    /// Authorization that is neither valid nor pending.
    #[error("an authorization is {0:?}")]
    Authorization(AuthorizationStatus),
    /// Authority without TLS-ALPN-01.
    #[error("the authority does not offer validation by TLS-ALPN-01")]
    NoChallenge,
    /// Challenge for a name outside of the order.
    #[error("the authority asks for a proof for `{0}`, which was not ordered")]
    NotOrdered(String),
    /// Challenge whose digest is not one of SHA-256.
    #[error("the challenge has a digest of {0} bytes, expected 32")]
    Digest(usize),
    /// Certificate for the validation that cannot be made.
    #[error("the answer to the challenge: {0}")]
    Proof(#[source] rcgen::Error),
    /// Key of the certificate for the validation that TLS refuses.
    #[error("the answer to the challenge: {0}")]
    ProofKey(#[source] rustls::Error),
    /// Order that is not ready after the validation.
    #[error("the order is {status:?}: the authority has not found {} here", names.join(", "))]
    NotReady { status: OrderStatus, names: Vec<String> },
    /// Certificate request that cannot be made.
    #[error("the request for the certificate: {0}")]
    Request(#[source] rcgen::Error),
    /// Result that is no certificate.
    #[error("the authority's answer is no certificate: {0}")]
    NoCertificate(#[source] ValidityError),
    /// Certificate for other names.
    #[error("the authority's certificate is for {}", .0.join(", "))]
    OtherNames(Vec<String>),
    /// Certificate whose time is over.
    #[error("the authority's certificate has expired")]
    Expired,
    /// Certificate that TLS refuses, or that does not belong to the key.
    #[error("the authority's certificate cannot be used: {0}")]
    Unusable(#[source] CertificateError),
    /// Configuration without a name.
    #[error("no name is configured")]
    NoName,
    /// File that the system does not let be written.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    /// Order without a result in time.
    #[error("no certificate within {} s", .0.as_secs())]
    Late(Duration),
}

/// Step of an order that is an exchange with the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Account,
    Order,
    Authorization,
    Challenge,
    Validation,
    Request,
    Certificate,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Account => "the account",
            Self::Order => "the order",
            Self::Authorization => "an authorization",
            Self::Challenge => "the challenge",
            Self::Validation => "the validation",
            Self::Request => "the request",
            Self::Certificate => "the certificate",
        })
    }
}

impl Step {
    /// Error of this step.
    pub(super) fn failed(self) -> impl Fn(instant_acme::Error) -> OrderError {
        move |source| OrderError::Exchange { step: self, source }
    }
}

/// Certificate whose names and time cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValidityError {
    /// Configuration without a name.
    #[error("no name is configured")]
    NoName,
    /// Certificate and key that TLS refuses.
    #[error("{0}")]
    Unusable(#[from] CertificateError),
    /// File that the system does not let be read.
    #[error("{0}")]
    Unreadable(#[source] io::Error),
    /// Text without a certificate, or with broken PEM.
    #[error("{0}")]
    Pem(#[source] pem::Error),
    /// Bytes that are no certificate.
    #[error("{0}")]
    Malformed(#[source] nom::Err<X509Error>),
    /// Certificate with broken alternative names.
    #[error("{0}")]
    Names(#[source] X509Error),
}
