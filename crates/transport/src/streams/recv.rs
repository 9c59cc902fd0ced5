//! Receiving part of a stream (RFC 9000 §3.2): states, final size, and checks on received data.

use std::borrow::Cow;

use bytes::Bytes;

use super::{
    application::Order,
    assembler::{Assembler, Holdings},
    flow::ReceiveWindow,
};
use crate::error::{Code, TransportError};

/// States of RFC 9000 §3.2, as far as they differ here: "Recv", "Size Known" and "Data Recvd" are `Open`. After RESET_STREAM_AT
/// they are `Reset` (draft-ietf-quic-reliable-stream-reset §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The stream has no receiving part.
    Absent,
    Open,
    /// The application does not want the data; the final size is awaited.
    Stopped {
        code: u64,
    },
    /// "Reset Recvd", or before it: the application learns of the reset after the data below the reliable size.
    Reset {
        code: u64,
        /// Zero after RESET_STREAM.
        reliable: u64,
        /// Set by a RESET_STREAM_AT frame.
        at: bool,
    },
    /// "Data Read", "Reset Read", or stopped with the final size known.
    Over,
}

/// Effect of an accepted frame on flow control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Bytes by which the stream's highest offset grew: credit of the connection that the peer used.
    pub(super) used: u64,
    /// Bytes whose credit can be returned at once, because they will not be read.
    pub(super) discarded: u64,
}

/// State of the data that has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outstanding {
    /// Offset behind the highest byte seen.
    pub(super) arrived: u64,
    /// The peer has sent what is missing: a hole is left, or the final size is not reached.
    pub(super) certain: bool,
    /// The stream's window lets the peer send more.
    pub(super) credit: bool,
}

/// The receiving part of a stream.
#[derive(Debug)]
pub(super) struct RecvPart {
    phase: Phase,
    assembler: Assembler,
    pub(super) window: ReceiveWindow,
    /// Offset behind the highest byte seen.
    highest: u64,
    final_size: Option<u64>,
    /// Set while the application waits for the next data.
    armed: bool,
    /// The application has read out of order: data behind a hole is news, too.
    unordered: bool,
}

impl RecvPart {
    pub(super) fn absent() -> Self {
        Self { phase: Phase::Absent, ..Self::open(ReceiveWindow::new(0, 0, 0, units::Instant::ZERO)) }
    }

    pub(super) fn open(window: ReceiveWindow) -> Self {
        Self {
            phase: Phase::Open,
            assembler: Assembler::default(),
            window,
            highest: 0,
            final_size: None,
            armed: true,
            unordered: false,
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.phase != Phase::Absent
    }

    /// Returns whether the application may read, and has not been told the end.
    pub(super) fn is_readable(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Reset { .. })
    }

    /// Offset behind the highest byte seen; the final size once that is known.
    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// Returns whether no state of this part is needed any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Absent | Phase::Over)
    }

    /// Number of bytes that the application may read, of `len` bytes from `offset` on.
    #[inline]
    pub(super) fn wanted(&self, offset: u64, len: u64) -> u64 {
        match self.phase {
            Phase::Open => len,
            Phase::Reset { reliable, .. } => reliable.saturating_sub(offset).min(len),
            Phase::Stopped { .. } | Phase::Over | Phase::Absent => 0,
        }
    }

    /// Returns whether the peer can use more credit of the stream.
    #[inline]
    pub(super) fn wants_credit(&self) -> bool {
        self.phase == Phase::Open && self.final_size.is_none()
    }

    /// Data that is still to come. `None` when all has arrived, or the application does not read it.
    pub(super) fn outstanding(&self) -> Option<Outstanding> {
        let prefix = self.assembler.prefix();
        let end = match self.phase {
            Phase::Open => self.final_size,
            Phase::Reset { reliable, .. } => Some(reliable),
            Phase::Stopped { .. } | Phase::Over | Phase::Absent => return None,
        };
        if end.is_some_and(|end| end <= prefix) {
            return None;
        }
        let certain = end.is_some() || prefix < self.highest;
        Some(Outstanding { arrived: self.highest, certain, credit: self.highest < self.window.limit() })
    }

    /// Order in which the application reads.
    pub(super) fn order(&self) -> Order {
        if self.unordered { Order::Unordered } else { Order::Ordered }
    }

    /// The code of the STOP_SENDING frame that has to arrive.
    pub(super) fn stop_to_send(&self) -> Option<u64> {
        match self.phase {
            // RFC 9000 §3.5: with the final size known the frame is unnecessary (the phase is `Over` then).
            Phase::Stopped { code } => Some(code),
            _ => None,
        }
    }

    /// RFC 9000 §4.1, §4.5: data beyond the limit of the stream or of the connection, beyond the final size, or a final
    /// size that is not the one known, closes the connection.
    #[inline]
    fn check(&self, end: u64, is_final: bool, connection_credit: u64) -> Result<u64, TransportError> {
        // RFC 9000 §4.5 SHOULD-1: an end that moves is answered with FINAL_SIZE_ERROR
        if let Some(size) = self.final_size
            && (end > size || is_final && end != size)
        {
            return Err(final_size(format!("data up to {end} on a stream whose final size is {size}")));
        }
        if is_final && end < self.highest {
            return Err(final_size(format!("final size {end} after data up to {}", self.highest)));
        }
        // RFC 9000 §4.1 MUST-1: data beyond a limit that we gave ends the connection with FLOW_CONTROL_ERROR
        // RFC 9000 §19.10 MUST-3: more than the stream's limit is FLOW_CONTROL_ERROR
        if end > self.window.limit() {
            let limit = self.window.limit();
            return Err(TransportError::new(
                Code::FLOW_CONTROL_ERROR,
                format!("data up to {end}, the stream's limit is {limit}"),
            ));
        }
        let used = end.saturating_sub(self.highest);
        // RFC 9000 §4.1 MUST-1: data beyond a limit that we gave ends the connection with FLOW_CONTROL_ERROR
        // RFC 9000 §19.9 MUST-1: more than the connection's limit is FLOW_CONTROL_ERROR
        if used > connection_credit {
            return Err(TransportError::new(
                Code::FLOW_CONTROL_ERROR,
                format!("{used} more bytes, the connection's limit allows {connection_credit}"),
            ));
        }
        Ok(used)
    }

    /// Takes the content of STREAM frames that follow one another: `len` bytes from `offset`, in `parts`.
    #[inline]
    pub(super) fn on_data(
        &mut self,
        mut offset: u64,
        len: u64,
        parts: impl Iterator<Item = Bytes>,
        fin: bool,
        connection_credit: u64,
        held: &mut Holdings,
    ) -> Result<Received, TransportError> {
        if matches!(self.phase, Phase::Over | Phase::Absent) {
            return Ok(Received::default());
        }
        // An offset near 2^64 cannot come from a frame, but nothing depends on that here.
        let end = offset.saturating_add(len);
        let used = self.check(end, fin, connection_credit)?;
        self.highest += used;
        if fin {
            self.final_size = Some(end);
        }
        match self.phase {
            // RFC 9000 §21.7 SHOULD-1: holes in many streams do not exhaust memory
            Phase::Open | Phase::Reset { .. } => {
                for mut part in parts {
                    let next = offset.saturating_add(part.len() as u64);
                    if let Phase::Reset { reliable, .. } = self.phase {
                        // What lies behind it is not read, and its credit has been given back.
                        part.truncate(usize::try_from(reliable.saturating_sub(offset)).unwrap_or(usize::MAX));
                    }
                    if !self.assembler.insert(offset, part, held) {
                        let what = "stream data is scattered over too many holes";
                        return Err(TransportError::new(Code::INTERNAL_ERROR, what));
                    }
                    offset = next;
                }
                Ok(Received { used, discarded: 0 })
            }
            Phase::Stopped { .. } => Ok(Received { used, discarded: self.discard(held) }),
            _ => Ok(Received { used, discarded: 0 }),
        }
    }

    /// Takes a RESET_STREAM frame, or a RESET_STREAM_AT frame with its reliable size.
    pub(super) fn on_reset(
        &mut self,
        code: u64,
        size: u64,
        reliable_size: Option<u64>,
        connection_credit: u64,
        held: &mut Holdings,
    ) -> Result<Received, TransportError> {
        if matches!(self.phase, Phase::Over | Phase::Absent) {
            return Ok(Received::default());
        }
        // draft-ietf-quic-reliable-stream-reset §5.2: another code is STREAM_STATE_ERROR. RFC 9000 does not say what two
        // RESET_STREAM frames with different codes are; the first one counts.
        if let Phase::Reset { code: known, at, .. } = self.phase
            && known != code
            && (at || reliable_size.is_some())
        {
            let what = format!("a reset with code {code} after one with code {known}");
            return Err(TransportError::new(Code::STREAM_STATE_ERROR, what));
        }
        // RFC 9000 §4.5 MUST-1: a stream that ends counts with its final size against the connection's credit
        let used = self.check(size, true, connection_credit)?;
        // RFC 9000 §3.2: in "Data Recvd" the data may be delivered and the reset ignored.
        // draft-ietf-quic-reliable-stream-reset §5: the same holds for RESET_STREAM_AT.
        let all_received = self.final_size.is_some() && self.assembler.prefix() == size;
        self.highest = size;
        self.final_size = Some(size);
        match self.phase {
            Phase::Open if all_received => Ok(Received { used, discarded: 0 }),
            Phase::Open => {
                let reliable = reliable_size.unwrap_or(0);
                self.phase = Phase::Reset { code, reliable, at: reliable_size.is_some() };
                Ok(Received { used, discarded: self.give_up(reliable, size, held) })
            }
            // draft-ietf-quic-reliable-stream-reset §5.2: a smaller reliable size counts, a larger one is ignored.
            Phase::Reset { code, reliable: known, at } => {
                let reliable = reliable_size.unwrap_or(0).min(known);
                self.phase = Phase::Reset { code, reliable, at: at || reliable_size.is_some() };
                Ok(Received { used, discarded: self.give_up(reliable, known, held) })
            }
            Phase::Stopped { .. } => Ok(Received { used, discarded: self.discard(held) }),
            Phase::Over | Phase::Absent => Ok(Received { used, discarded: 0 }),
        }
    }

    /// Discards the data from `reliable` to `end`, the last received byte; returns the credit of the connection that this frees.
    fn give_up(&mut self, reliable: u64, end: u64, held: &mut Holdings) -> u64 {
        if reliable == 0 {
            return self.discard(held);
        }
        let freed = self.assembler.truncate(reliable, end, held);
        self.window.consume(freed);
        freed
    }

    /// Returns whether the application has all data below the reliable size of a reset.
    #[inline]
    fn is_reset_due(&self, reliable: u64) -> bool {
        self.assembler.prefix() >= reliable && !self.assembler.has_any()
    }

    /// Throws away all data up to the highest offset; returns how much credit of the connection that frees.
    fn discard(&mut self, held: &mut Holdings) -> u64 {
        self.assembler.clear(held);
        let freed = self.highest - self.window.consumed();
        self.window.consume(freed);
        if matches!(self.phase, Phase::Stopped { .. }) && self.final_size.is_some() {
            self.phase = Phase::Over;
        }
        freed
    }

    /// The application wants no more. Returns the credit of the connection that this frees, or `None` when it was over.
    pub(super) fn stop(&mut self, code: u64, held: &mut Holdings) -> Option<u64> {
        match self.phase {
            Phase::Open => {
                self.phase = Phase::Stopped { code };
                Some(self.discard(held))
            }
            // RFC 9000 §3.5 SHOULD-4: no STOP_SENDING for a stream that the peer has reset already
            Phase::Reset { .. } => {
                self.phase = Phase::Over;
                Some(self.discard(held))
            }
            Phase::Stopped { .. } | Phase::Over | Phase::Absent => None,
        }
    }

    /// Returns whether to announce readable data to the application; at most once until it has read everything.
    #[inline]
    pub(super) fn announce(&mut self) -> bool {
        if !self.armed {
            return false;
        }
        let news = match self.phase {
            Phase::Open => {
                self.assembler.has_ready()
                    || self.unordered && self.assembler.has_any()
                    || self.final_size == Some(self.assembler.read())
            }
            Phase::Reset { reliable, .. } => {
                self.assembler.has_ready() || self.unordered && self.assembler.has_any() || self.is_reset_due(reliable)
            }
            Phase::Absent | Phase::Stopped { .. } | Phase::Over => false,
        };
        if news {
            self.armed = false;
        }
        news
    }

    /// Reads. The caller returns the credit for the bytes.
    #[inline]
    pub(super) fn read(&mut self, max: usize, unordered: bool, held: &mut Holdings) -> Reading {
        match self.phase {
            Phase::Open | Phase::Reset { .. } => {
                self.unordered |= unordered;
                let chunk = if unordered {
                    self.assembler.read_unordered(max, held)
                } else {
                    // RFC 9000 §2.2 MUST-1: the application can read a stream's bytes in their order
                    self.assembler.read_ordered(max, held)
                };
                if let Some((offset, data)) = chunk {
                    return Reading::Data(offset, data);
                }
                let end = match self.phase {
                    Phase::Reset { code, reliable, .. } => self.is_reset_due(reliable).then_some(Reading::Reset(code)),
                    _ => (self.final_size == Some(self.assembler.read())).then_some(Reading::End),
                };
                if let Some(end) = end {
                    self.phase = Phase::Over;
                    self.assembler.finish(held);
                    return end;
                }
                self.armed = true;
                Reading::Blocked
            }
            Phase::Stopped { .. } | Phase::Over | Phase::Absent => Reading::Closed,
        }
    }

    /// Copies the slices that pin buffers for little.
    pub(super) fn compact(&mut self, held: &mut Holdings) {
        self.assembler.compact(held);
    }
}

/// Outcome of a read.
#[derive(Debug)]
pub(super) enum Reading {
    Data(u64, Bytes),
    End,
    Blocked,
    Reset(u64),
    Closed,
}

#[cold]
fn final_size(reason: impl Into<Cow<'static, str>>) -> TransportError {
    TransportError::new(Code::FINAL_SIZE_ERROR, reason)
}
