//! Causes of failed handshakes, which callers can distinguish beside the error code and the message of the TLS library.

use super::alert;
use crate::error::Code;

/// Cause of a failed handshake.
///
/// [`CloseReason::HandshakeFailed`](crate::CloseReason::HandshakeFailed) has it beside the error. Of a handshake that the peer ended only
/// the alert is known: [`HandshakeFault::of`] maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandshakeFault {
    /// Certificate of the peer not accepted.
    Certificate(CertificateFault),
    /// No application protocol (ALPN) in common.
    NoApplicationProtocol,
    /// No TLS version, cipher suite, key exchange or signature scheme in common.
    NoCommonParameters,
    /// Server that does not serve the name.
    UnrecognizedName,
    /// Server name that is neither a DNS name nor an IP address; only before the first packet.
    InvalidServerName,
    /// Handshake message that cannot be read.
    Malformed,
    /// Handshake message that violates TLS: not expected, incomplete, or contradicting another one.
    Violation,
    /// Fault of the end that names it.
    Internal,
    /// Any other cause; the code of the error has the alert.
    Other,
}

/// Fault of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CertificateFault {
    /// No certificate where one is required.
    Missing,
    /// Issuer that is not among the roots.
    UnknownIssuer,
    /// Certificate for other names.
    WrongName,
    /// Period of validity that has ended.
    Expired,
    /// Period of validity that has not begun.
    NotYetValid,
    /// Revoked certificate.
    Revoked,
    /// Invalid signature: the issuer's, or the peer's proof of its key.
    BadSignature,
    /// Any other fault, as far as the peer names it.
    Other,
}

impl HandshakeFault {
    /// Cause that a connection error code names: a TLS alert. `None` for other codes.
    ///
    /// An alert has less information than its sender: `bad_certificate` (42) also stands for a wrong name.
    ///
    /// ```
    /// use transport::{Code, tls::HandshakeFault};
    ///
    /// assert_eq!(HandshakeFault::of(Code::crypto(120)), Some(HandshakeFault::NoApplicationProtocol));
    /// assert_eq!(HandshakeFault::of(Code::PROTOCOL_VIOLATION), None);
    /// ```
    pub fn of(code: Code) -> Option<Self> {
        code.alert().map(Self::of_alert)
    }

    // RFC 8446 §6.2
    pub(crate) fn of_alert(number: u8) -> Self {
        use CertificateFault as Certificate;
        match number {
            alert::HANDSHAKE_FAILURE | 70 | 71 => Self::NoCommonParameters,
            42 | 43 | 46 | 113 => Self::Certificate(Certificate::Other),
            44 => Self::Certificate(Certificate::Revoked),
            45 => Self::Certificate(Certificate::Expired),
            48 => Self::Certificate(Certificate::UnknownIssuer),
            51 => Self::Certificate(Certificate::BadSignature),
            116 => Self::Certificate(Certificate::Missing),
            alert::DECODE_ERROR => Self::Malformed,
            alert::UNEXPECTED_MESSAGE | 20 | 22 | 47 | 109 | 110 => Self::Violation,
            alert::INTERNAL_ERROR => Self::Internal,
            alert::UNRECOGNIZED_NAME => Self::UnrecognizedName,
            alert::NO_APPLICATION_PROTOCOL => Self::NoApplicationProtocol,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_about_certificates_are_told_from_others() {
        let about = |number| matches!(HandshakeFault::of(Code::crypto(number)), Some(HandshakeFault::Certificate(_)));
        let numbers: Vec<u8> = (0..=u8::MAX).filter(|&number| about(number)).collect();
        assert_eq!(numbers, [42, 43, 44, 45, 46, 48, 51, 113, 116]);
        assert_eq!(HandshakeFault::of(Code(0x200)), None);
        assert_eq!(HandshakeFault::of(Code::NO_ERROR), None);
    }
}
