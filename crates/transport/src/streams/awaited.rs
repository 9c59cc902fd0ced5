//! Data that the peer still owes, which decides whether silence matters.

use wire::Dir;

use super::{Streams, recv::Outstanding};

/// Bytes that arrive without a pause before more of them are expected on a stream that the peer began: less than this may be
/// a message on a stream that is open for ever, as the control streams of HTTP/3 are.
const BULK: u64 = 16 << 10;

/// Data that an end waits for on its streams, in the order of urgency.
///
/// - A bidirectional stream of this endpoint with sent data is a request. Its answer is awaited until the receiving part has all data up to
///   the final size, was reset, or was stopped by the application.
/// - On a stream opened by the peer more data is awaited if that is certain, because there is a hole or the final size is known and not
///   reached; or while data arrives in bulk: [`BULK`] bytes of the stream, and as many since the last pause.
/// - Data that flow control blocks is not awaited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    /// No data.
    #[default]
    Nothing,
    /// More data of a stream that has begun to arrive.
    Rest,
    /// An answer without any data.
    Answer,
}

impl Streams {
    /// Returns what this end waits for when `burst` bytes of stream data have arrived since the last pause. Walks over all
    /// streams.
    pub(crate) fn awaited(&self, burst: u64) -> Awaited {
        if self.slab.len() == 0 {
            return Awaited::Nothing;
        }
        let connection_credit = self.received < self.window.limit();
        let of = |slot| {
            let stream = &self.slab[slot];
            let Some(Outstanding { arrived, certain, credit }) = stream.recv.outstanding() else {
                return Awaited::Nothing;
            };
            let ours = stream.id.initiator() == self.side && stream.id.dir() == Dir::Bi;
            let may_come = certain || credit && connection_credit;
            match (ours, arrived) {
                _ if !may_come => Awaited::Nothing,
                (true, 0) if stream.send.has_sent() => Awaited::Answer,
                (true, 0) => Awaited::Nothing,
                (true, _) => Awaited::Rest,
                (false, _) if certain || arrived.min(burst) >= BULK => Awaited::Rest,
                (false, _) => Awaited::Nothing,
            }
        };
        self.slab.slots().map(of).max().unwrap_or_default()
    }
}
