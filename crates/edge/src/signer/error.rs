//! Errors of a signer's start.

use std::{io, net::SocketAddr};

use super::token::TokenError;
use crate::{certificate::CertificateError, config::ConfigError, trust::RootsError};

/// A signer cannot start, or cannot take a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignerStartError {
    /// The configuration is not valid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Unusable certificate or key.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// Unusable token, or key in it.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// Unusable roots of the gateways' certificates.
    #[error("{0}")]
    Roots(#[from] RootsError),
    /// An address cannot be served.
    #[error("cannot listen at {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        #[source]
        why: io::Error,
    },
    /// Setting that takes effect at the start only, and differs from the one in use.
    #[error("`{0}` stays what it was at the start")]
    Fixed(&'static str),
}

impl SignerStartError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.hint.clone(),
            Self::Certificate(error) => error.hint(),
            Self::Token(error) => Some(error.hint().to_owned()),
            Self::Fixed(_) => Some("end the signer, and start it again".to_owned()),
            Self::Listen { .. } | Self::Roots(_) => None,
        }
    }
}
