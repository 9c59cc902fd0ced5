//! Errors of a connection.

use std::borrow::Cow;

/// A transport error code (RFC 9000 §20.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u64);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name that the standard gives to the code.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    0x0100..=0x01ff => Some("CRYPTO_ERROR"),
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Closed without an error.
    NO_ERROR = 0x00;
    /// Internal error of the endpoint, which cannot continue.
    INTERNAL_ERROR = 0x01;
    /// The server refuses the connection.
    CONNECTION_REFUSED = 0x02;
    /// More data than the limits that were advertised.
    FLOW_CONTROL_ERROR = 0x03;
    /// A stream beyond the limit that was advertised.
    STREAM_LIMIT_ERROR = 0x04;
    /// A frame for a stream whose state does not permit it.
    STREAM_STATE_ERROR = 0x05;
    /// Data beyond the final size, or a final size that changes.
    FINAL_SIZE_ERROR = 0x06;
    /// A frame that cannot be read.
    FRAME_ENCODING_ERROR = 0x07;
    /// Transport parameters that cannot be read, or that are missing, or that contradict the handshake.
    TRANSPORT_PARAMETER_ERROR = 0x08;
    /// More connection IDs than the limit that was advertised.
    CONNECTION_ID_LIMIT_ERROR = 0x09;
    /// A violation of the protocol that no other code names.
    PROTOCOL_VIOLATION = 0x0a;
    /// A token in a client's Initial packet that is not valid.
    INVALID_TOKEN = 0x0b;
    /// The application closed the connection during the handshake.
    APPLICATION_ERROR = 0x0c;
    /// More CRYPTO data than can be buffered.
    CRYPTO_BUFFER_EXCEEDED = 0x0d;
    /// A fault in a key update.
    KEY_UPDATE_ERROR = 0x0e;
    /// The limit of a key's use is reached.
    AEAD_LIMIT_REACHED = 0x0f;
    /// No path can carry the connection.
    NO_VIABLE_PATH = 0x10;
    /// The versions that the ends have chosen do not fit what they offered (RFC 9368).
    VERSION_NEGOTIATION_ERROR = 0x11;
}

impl Code {
    /// The code for a TLS alert (RFC 9001 §4.8).
    pub const fn crypto(alert: u8) -> Self {
        Self(0x0100 | alert as u64)
    }

    /// TLS alert that the code carries. `None` for codes that are no alert.
    pub fn alert(self) -> Option<u8> {
        self.0.checked_sub(0x0100).and_then(|alert| u8::try_from(alert).ok())
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some("CRYPTO_ERROR") => write!(f, "CRYPTO_ERROR (alert {})", self.0 & 0xff),
            Some(name) => f.write_str(name),
            None => write!(f, "error {:#x}", self.0),
        }
    }
}

/// The peer broke a rule of the standard; the connection closes with this code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {reason}")]
pub struct TransportError {
    /// Code that is sent to the peer.
    pub code: Code,
    /// The frame type that led to it, 0 when none did.
    pub frame_type: u64,
    /// Description of the fault.
    pub reason: Cow<'static, str>,
}

impl TransportError {
    /// An error that no single frame caused.
    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code, frame_type: 0, reason: reason.into() }
    }

    /// The same error, caused by a frame of this type.
    #[must_use]
    pub fn in_frame(mut self, frame_type: u64) -> Self {
        self.frame_type = frame_type;
        self
    }
}

/// Cause for which a connection does not move to another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Only clients migrate (RFC 9000 §9).
    #[error("only a client can migrate")]
    NotClient,
    /// The handshake is not confirmed, or the connection has ended.
    #[error("the connection is not established")]
    NotEstablished,
    /// The server has asked its clients to stay (`disable_active_migration`).
    #[error("the server does not want clients to migrate")]
    Disabled,
    /// The server has given no spare connection ID: moving would let observers link the paths.
    #[error("the server has left no connection ID for another path")]
    NoConnectionId,
}
