//! Critical streams of this endpoint: the control stream (RFC 9114 §6.2.1), and the QPACK streams (RFC 9204 §4.2).

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tiderace::SendStream;

use crate::error::Error;

/// Bytes that may wait for a peer that gives no credit to such a stream.
const MAX_WAITING: usize = 64 * 1024;

/// A stream that is opened with its first data, if necessary before the handshake is complete, and never ends. The control stream has data
/// at once; without a table the QPACK streams never have.
pub(crate) struct CriticalStream {
    /// Stream type, sent first.
    ty: u8,
    // RFC 9114 §6.2.1 MUST NOT-1, RFC 9204 §4.2 MUST-1, MUST NOT-1: one stream, which never ends
    stream: Option<SendStream>,
    waiting: Vec<u8>,
}

/// Error of a peer that does not read a critical stream.
pub(crate) struct Blocked;

impl CriticalStream {
    pub(crate) fn new(ty: u8) -> Self {
        Self { ty, stream: None, waiting: Vec::new() }
    }

    /// Bytes are appended here, and leave with [`flush`](Self::flush).
    pub(crate) fn waiting(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// Returns whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> usize {
        self.waiting.capacity()
    }

    /// Writes what waits. Returns whether some is left, for which a task has to [`poll`](Self::poll).
    pub(crate) fn flush(&mut self) -> Result<bool, Blocked> {
        if self.waiting.is_empty() {
            return Ok(false);
        }
        if self.stream.is_some() {
            // An error is one of the connection, which those hear of who read from it.
            let _ = self.write(&mut Context::from_waker(Waker::noop()));
        }
        if self.waiting.len() > MAX_WAITING {
            // RFC 9114 §10.5 SHOULD-2
            return Err(Blocked);
        }
        Ok(!self.waiting.is_empty())
    }

    /// Opens the stream if there is data, and writes it.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, quic: &tiderace::Connection) -> Result<(), Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        if self.stream.is_none() {
            let Poll::Ready(stream) = quic.poll_open_uni_early(cx) else { return Ok(()) };
            let mut stream = stream?;
            // RFC 9218 §9: what governs the connection is not held up by responses.
            stream.set_priority(tiderace::Priority { urgency: 0, incremental: true })?;
            self.stream = Some(stream);
            self.waiting.insert(0, self.ty);
        }
        self.write(cx)
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut data = Bytes::from(std::mem::take(&mut self.waiting));
        while !data.is_empty() {
            match stream.poll_write_chunk(cx, &mut data) {
                Poll::Ready(written) => {
                    written?;
                }
                Poll::Pending => {
                    self.waiting = data.into();
                    break;
                }
            }
        }
        Ok(())
    }
}
