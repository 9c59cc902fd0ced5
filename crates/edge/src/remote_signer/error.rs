//! Errors of signatures that another machine makes.

use std::{io, sync::Arc};

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
        }
    }
}
