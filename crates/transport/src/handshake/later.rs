//! Handshake bytes after the handshake, such as session tickets. TLS works for each message, so a rate limits the messages of a peer.

use units::{Duration, Instant};

use crate::error::{Code, TransportError};

/// Bytes that are taken at once: a thousand tickets of the usual size, …
pub(crate) const BURST: u64 = 256 * 1024;
/// … and bytes that are taken each second after that.
pub(crate) const RATE: u64 = 1024;

/// CRYPTO frame (RFC 9000 §19.6).
const FRAME_TYPE: u64 = 0x06;

/// Allowance of the peer for 1-RTT CRYPTO frames, in bytes; repetitions count.
#[derive(Debug)]
pub(crate) struct LaterBytes {
    left: u64,
    /// Time at which `left` was last raised.
    at: Option<Instant>,
}

impl Default for LaterBytes {
    fn default() -> Self {
        Self { left: BURST, at: None }
    }
}

impl LaterBytes {
    /// Counts the bytes of a frame.
    ///
    /// # Errors
    /// CRYPTO_BUFFER_EXCEEDED when it is more than the peer may send.
    pub(crate) fn take(&mut self, now: Instant, bytes: u64) -> Result<(), TransportError> {
        let since = self.at.map_or(Duration::ZERO, |at| now.saturating_since(at));
        let more = since.as_secs().saturating_mul(RATE);
        if more > 0 || self.at.is_none() {
            self.left = self.left.saturating_add(more).min(BURST);
            self.at = Some(now);
        }
        // RFC 9000 §7.5: an endpoint that does not want to take more CRYPTO data may close the connection.
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let reason = "more handshake bytes after the handshake than anybody needs";
            TransportError::new(Code::CRYPTO_BUFFER_EXCEEDED, reason).in_frame(FRAME_TYPE)
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_a_rate() {
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(seconds);
        let mut bytes = LaterBytes::default();
        assert!(bytes.take(at(5), BURST).is_ok() && bytes.take(at(5), 1).is_err());
        assert!(bytes.take(at(7), 2 * RATE).is_ok() && bytes.take(at(7), 1).is_err());
        assert!(bytes.take(at(1_000_000), BURST).is_ok(), "never more than a burst");
        assert_eq!(bytes.take(at(1_000_000), 1).unwrap_err().code, Code::CRYPTO_BUFFER_EXCEEDED);
    }
}
