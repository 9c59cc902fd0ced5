//! Errors of a peer.

/// The peer broke the rules of its encoder stream or its decoder stream; the connection ends.
///
/// The stream determines the error code (RFC 9204 §6): QPACK_ENCODER_STREAM_ERROR (0x201) from
/// [`Decoder::on_encoder_stream`](crate::Decoder::on_encoder_stream), QPACK_DECODER_STREAM_ERROR (0x202) from
/// [`Encoder::on_decoder_stream`](crate::Encoder::on_decoder_stream).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StreamError {
    /// For logs.
    pub reason: &'static str,
}

/// A field section was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SectionError {
    /// More than the receiver wants; of no consequence for other sections (RFC 9114 §4.2.2).
    #[error("a field section of {size} bytes, {limit} are allowed")]
    TooLarge {
        /// Bytes of all fields, 32 added for each.
        size: u64,
        /// Bytes that were allowed.
        limit: u64,
    },
    /// The connection ends with QPACK_DECOMPRESSION_FAILED (0x200, RFC 9204 §6). The text is for logs.
    #[error("{0}")]
    Malformed(&'static str),
}

/// Cause of an unreadable primitive. The caller adds its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes end before it does.
    Truncated,
    /// More bytes will not help.
    Wrong(&'static str),
}

impl From<Fault> for SectionError {
    fn from(fault: Fault) -> Self {
        Self::Malformed(match fault {
            Fault::Truncated => "a field section is cut off",
            Fault::Wrong(reason) => reason,
        })
    }
}
