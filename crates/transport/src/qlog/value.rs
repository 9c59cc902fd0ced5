//! Single values in the form of the drafts.

use std::fmt::{self, Display};

use serde::{Serialize, Serializer};
use units::Duration;

use crate::error::Code;

/// Bytes in lower-case hexadecimal, without allocating.
#[derive(Clone, Copy)]
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A version of QUIC in hexadecimal.
#[derive(Clone, Copy)]
pub(super) struct Version(pub(super) u32);

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:08x}", self.0))
    }
}

/// A number only where it is not the default.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
pub(super) fn is_false(value: &bool) -> bool {
    !*value
}

/// Milliseconds, as spans are written.
#[expect(clippy::cast_possible_truncation, reason = "float32 is what the draft asks for")]
pub(super) fn millis(span: Duration) -> f32 {
    (span.as_secs_f64() * 1e3) as f32
}

/// Nanoseconds as milliseconds, as points in time are written. Exact to the nanosecond within 100 days of the reference.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(super) fn time(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// The name of a transport error code: `TransportError` or `CryptoError` of the draft.
#[derive(Clone, Copy)]
pub(super) struct ErrorName(pub(super) u64);

impl ErrorName {
    /// Code, if the name does not contain it.
    pub(super) fn code_if_unknown(self) -> Option<u64> {
        Code(self.0).name().is_none().then_some(self.0)
    }
}

impl Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        match Code(self.0).name() {
            _ if (0x0100..=0x01ff).contains(&self.0) => write!(f, "crypto_error_{:#05x}", self.0),
            Some(name) => name.chars().try_for_each(|c| f.write_char(c.to_ascii_lowercase())),
            None => f.write_str("unknown"),
        }
    }
}

impl Serialize for ErrorName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `RawInfo`: sizes in bytes, without contents.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Raw {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload_length: Option<usize>,
}

impl Raw {
    /// The size of the whole.
    pub(super) fn of(length: usize) -> Self {
        Self { length: Some(length), payload_length: None }
    }

    /// Sizes of a frame whose length field on the wire counts the payload alone.
    pub(super) fn of_payload(len: usize) -> Self {
        Self { length: Some(len), payload_length: Some(len) }
    }
}
