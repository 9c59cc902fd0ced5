//! Causes of the end of requests, and the side that caused it.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use http::StatusCode;
use tiderace::CloseReason;

use crate::admission::EXCESSIVE_LOAD;

/// Status of a request whose client gave up before the head of the answer, as nginx and others log it. It is never sent.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Reason why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    /// The complete answer of the back end, or of the directory, was sent.
    Complete = 1,
    /// The client reset the stream, closed the connection, or was lost with it.
    Cancelled,
    /// Header section or content of the request break the rules of HTTP.
    Malformed,
    /// The header section is larger than `limits.fields`.
    FieldsTooLarge,
    /// Content was slower than `limits.content-progress`.
    SlowContent,
    /// The client did not read the answer for `limits.read-timeout`.
    Unread,
    /// The client gave up more requests than `limits.cancelled-requests`, or opened too many connections.
    Excess,
    /// The client sent more requests than its rate limit.
    Rate,
    /// Memory: `limits.memory` or `limits.connection-memory`.
    Memory,
    /// No place with a back end within `queue-timeout`.
    Queued,
    /// No route, or a method or protocol that is not carried.
    Refused,
    /// The time for a stop, or for an address that is gone, was over.
    Drained,
    /// A file could not be read to its end, or a worker failed.
    Fault,
    /// The back end could not be reached.
    Unreachable,
    /// The back end sent no head of an answer, or no content, in time.
    Timeout,
    /// The back end broke off, or its answer breaks the rules of HTTP.
    Broken,
    /// The idle timeout of a tunnel.
    Idle,
}

impl Ending {
    const ALL: [Self; 17] = [
        Self::Complete,
        Self::Cancelled,
        Self::Malformed,
        Self::FieldsTooLarge,
        Self::SlowContent,
        Self::Unread,
        Self::Excess,
        Self::Rate,
        Self::Memory,
        Self::Queued,
        Self::Refused,
        Self::Drained,
        Self::Fault,
        Self::Unreachable,
        Self::Timeout,
        Self::Broken,
        Self::Idle,
    ];

    /// Party that ended the request: a label of metrics.
    pub(crate) fn by(self) -> &'static str {
        match self {
            Self::Complete => "answer",
            Self::Cancelled | Self::Malformed => "client",
            Self::FieldsTooLarge
            | Self::SlowContent
            | Self::Unread
            | Self::Excess
            | Self::Rate
            | Self::Memory
            | Self::Queued
            | Self::Idle => "limit",
            Self::Refused | Self::Drained | Self::Fault => "gateway",
            Self::Unreachable | Self::Timeout | Self::Broken => "back_end",
        }
    }

    /// Reason as one word, for the access log.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cancelled => "cancelled",
            Self::Malformed => "malformed",
            Self::FieldsTooLarge => "fields-too-large",
            Self::SlowContent => "slow-content",
            Self::Unread => "unread",
            Self::Excess => "excess",
            Self::Rate => "rate",
            Self::Memory => "memory",
            Self::Queued => "queued",
            Self::Refused => "refused",
            Self::Drained => "drained",
            Self::Fault => "fault",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Idle => "idle",
        }
    }

    /// The status of a request that ended before the head of its answer.
    pub(crate) fn status(self) -> StatusCode {
        let status = match self {
            Self::Cancelled => CLIENT_CLOSED_REQUEST,
            Self::Malformed => 400,
            Self::SlowContent | Self::Unread | Self::Idle => 408,
            Self::Excess | Self::Rate => 429,
            Self::FieldsTooLarge => 431,
            Self::Complete | Self::Refused | Self::Fault => 500,
            Self::Unreachable | Self::Broken => 502,
            Self::Memory | Self::Queued | Self::Drained => 503,
            Self::Timeout => 504,
        };
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Ending of the requests on a QUIC connection that closed.
    pub(crate) fn of_close(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::ThisApplication { code } if *code == h3_quic::Code::NO_ERROR.0 => Self::Drained,
            CloseReason::ThisApplication { code } if *code == EXCESSIVE_LOAD => Self::Excess,
            // Every other code of this end says that the client broke a rule.
            CloseReason::ThisApplication { .. } | CloseReason::PeerMisbehaved(_) => Self::Malformed,
            CloseReason::Memory { .. } => Self::Memory,
            CloseReason::StateLost => Self::Fault,
            _ => Self::Cancelled,
        }
    }

    /// Ending for an error in the content of a request.
    pub(crate) fn of_content(error: &BodyError) -> Self {
        if let Some(blamed) = error.downcast_ref::<ErrorWithEnding>() {
            return blamed.on;
        }
        if let Some(error) = error.downcast_ref::<h3_quic::Error>() {
            return match error {
                h3_quic::Error::Protocol { code: h3_quic::Code::EXCESSIVE_LOAD, .. } => Self::Memory,
                h3_quic::Error::Protocol { .. } => Self::Malformed,
                _ => Self::Cancelled,
            };
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<h2::Error>() {
                // What the library has objected to; all else is the peer's reset or the end of the connection.
                return if error.is_library() { Self::Malformed } else { Self::Cancelled };
            }
            if let Some(error) = error.downcast_ref::<std::io::Error>() {
                let is_malformed =
                    matches!(error.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData);
                return if is_malformed { Self::Malformed } else { Self::Cancelled };
            }
            cause = error.source();
        }
        Self::Cancelled
    }
}

/// Error of a body that broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// An error with the ending that it is for a request.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct ErrorWithEnding {
    pub(crate) on: Ending,
    what: String,
    /// Code of the reset over HTTP/3, if it is another one than that of a cancelled request.
    #[source]
    reset_with: Option<h3_quic::ResetWith>,
}

impl ErrorWithEnding {
    pub(crate) fn error(on: Ending, what: impl Into<String>) -> BodyError {
        Self { on, what: what.into(), reset_with: None }.into()
    }

    /// Error of the TCP connection to the target of a tunnel.
    pub(crate) fn of_target(what: impl Into<String>) -> BodyError {
        // RFC 9114 §4.4: a reset of the TCP connection is a stream error of this type.
        let reset_with = Some(h3_quic::ResetWith(h3_quic::Code::CONNECT_ERROR));
        Self { on: Ending::Broken, what: what.into(), reset_with }.into()
    }
}

/// First known cause of an end, of one request or of all on a connection. Later causes do not replace it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cause(Arc<AtomicU8>);

impl Cause {
    /// Notes a cause, if none is known.
    pub(crate) fn note(&self, ending: Ending) {
        let _ = self.0.compare_exchange(0, ending as u8, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn get(&self) -> Option<Ending> {
        let number = self.0.load(Ordering::Acquire);
        Ending::ALL.into_iter().find(|ending| *ending as u8 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays() {
        for ending in Ending::ALL {
            let cause = Cause::default();
            assert_eq!(cause.get(), None);
            cause.note(ending);
            cause.note(Ending::Cancelled);
            assert_eq!(cause.get(), Some(ending));
        }
    }

    /// Alerts use statuses: no action of a client may look like an error of the site.
    #[test]
    fn no_end_by_a_client_is_an_error_of_the_site() {
        for ending in Ending::ALL.into_iter().filter(|ending| ending.by() == "client") {
            assert!(ending.status().is_client_error(), "{ending:?}");
        }
    }
}
