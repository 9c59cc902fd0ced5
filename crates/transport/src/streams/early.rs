//! Streams while only early data can be sent: data that the application has not named for early data waits.

use wire::StreamId;

use super::Streams;

impl Streams {
    /// From here on packets are 0-RTT packets: only streams that [`allow_early`](Self::allow_early) names may send.
    pub fn begin_early(&mut self) {
        self.early = true;
    }

    /// Permits a stream of this endpoint to send in 0-RTT packets.
    pub fn allow_early(&mut self, id: StreamId) {
        if let Some(slot) = self.slab.find(id).filter(|_| self.early) {
            self.release(slot);
        }
    }

    /// From here on packets are 1-RTT packets: all streams may send.
    pub fn end_early(&mut self) {
        if std::mem::take(&mut self.early) {
            for slot in self.slab.slots() {
                self.release(slot);
            }
        }
    }
}
