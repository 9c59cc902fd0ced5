//! The receiving part of a stream (RFC 9000 §3.2): states, final size, and what is checked before data is taken.

use std::borrow::Cow;

use bytes::Bytes;

use super::{
    application::Order,
    assembler::{Assembler, Holdings},
    flow::ReceiveWindow,
};
use crate::error::{Code, TransportError};

/// States of RFC 9000 §3.2, as far as they differ here: "Recv", "Size Known" and "Data Recvd" are `Open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The stream has no receiving part.
    Absent,
    Open,
    /// The application does not want the data; the final size is awaited.
    Stopped {
        code: u64,
    },
    /// "Reset Recvd": the application has to be told.
    Reset {
        code: u64,
    },
    /// "Data Read", "Reset Read", or stopped with the final size known.
    Over,
}

/// What an accepted frame changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Bytes by which the stream's highest offset grew: credit of the connection that the peer used.
    pub(super) used: u64,
    /// Bytes whose credit can be given back at once, because nobody will read them.
    pub(super) discarded: u64,
}

/// What is known of data that has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outstanding {
    /// Offset behind the highest byte seen.
    pub(super) arrived: u64,
    /// There is a hole, or the final size is not reached: the peer has sent what is missing.
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
    /// The application waits to be told of the next data.
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

    /// Returns whether nothing of this part has to be remembered any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Absent | Phase::Over)
    }

    /// Returns whether data that arrives is kept to be read.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Returns whether the peer can use more credit of the stream.
    #[inline]
    pub(super) fn wants_credit(&self) -> bool {
        self.phase == Phase::Open && self.final_size.is_none()
    }

    /// What is still to come. `None` when nothing is, or nobody wants it.
    pub(super) fn outstanding(&self) -> Option<Outstanding> {
        let prefix = self.assembler.prefix();
        if self.phase != Phase::Open || self.final_size == Some(prefix) {
            return None;
        }
        let certain = self.final_size.is_some() || prefix < self.highest;
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
            Phase::Open => {
                for part in parts {
                    let next = offset.saturating_add(part.len() as u64);
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

    /// Takes a RESET_STREAM frame.
    pub(super) fn on_reset(
        &mut self,
        code: u64,
        size: u64,
        connection_credit: u64,
        held: &mut Holdings,
    ) -> Result<Received, TransportError> {
        if matches!(self.phase, Phase::Over | Phase::Absent) {
            return Ok(Received::default());
        }
        // RFC 9000 §4.5 MUST-1: a stream that ends counts with its final size against the connection's credit
        let used = self.check(size, true, connection_credit)?;
        // RFC 9000 §3.2: in "Data Recvd" the data may be delivered and the reset ignored.
        let all_received = self.final_size.is_some() && self.assembler.prefix() == size;
        self.highest = size;
        self.final_size = Some(size);
        match self.phase {
            Phase::Open if all_received => Ok(Received { used, discarded: 0 }),
            Phase::Open => {
                self.phase = Phase::Reset { code };
                Ok(Received { used, discarded: self.discard(held) })
            }
            Phase::Stopped { .. } => Ok(Received { used, discarded: self.discard(held) }),
            _ => Ok(Received { used, discarded: 0 }),
        }
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
                Some(0)
            }
            Phase::Stopped { .. } | Phase::Over | Phase::Absent => None,
        }
    }

    /// Returns whether the application should be told that it can read; at most once until it has read everything.
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
            Phase::Reset { .. } => true,
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
            Phase::Open => {
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
                if self.final_size == Some(self.assembler.read()) {
                    self.phase = Phase::Over;
                    self.assembler.finish(held);
                    return Reading::End;
                }
                self.armed = true;
                Reading::Blocked
            }
            Phase::Reset { code } => {
                self.phase = Phase::Over;
                Reading::Reset(code)
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
