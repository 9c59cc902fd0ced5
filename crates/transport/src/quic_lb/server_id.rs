//! Server IDs.

use std::{fmt, str::FromStr};

use super::{MAX_BLOCK, MIN_NONCE};

/// Most bytes of a server ID.
const MAX: usize = MAX_BLOCK - MIN_NONCE;

/// Server ID: 1 to 15 bytes, written in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId {
    bytes: [u8; MAX],
    len: u8,
}

/// Text that is no server ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a server ID of 1 to 15 bytes in hexadecimal, found `{0}`\nhint: two digits for each byte, as in `0a01`"
)]
pub struct ServerIdError(pub String);

impl ServerId {
    /// A server ID of these bytes; `None` when there are none or too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=MAX).contains(&bytes.len()).then(|| Self::of(bytes))
    }

    /// A server ID of bytes whose number has been checked.
    pub(super) fn of(from: &[u8]) -> Self {
        let mut bytes = [0; MAX];
        let len = from.len().min(MAX);
        bytes[..len].copy_from_slice(&from[..len]);
        Self { bytes, len: u8::try_from(len).unwrap_or_default() }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerId({self})")
    }
}

impl FromStr for ServerId {
    type Err = ServerIdError;

    fn from_str(text: &str) -> Result<Self, ServerIdError> {
        let wrong = || ServerIdError(text.to_owned());
        if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16);
        let bytes = (0..text.len()).step_by(2).map(byte).collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
        Self::new(&bytes).ok_or_else(wrong)
    }
}
