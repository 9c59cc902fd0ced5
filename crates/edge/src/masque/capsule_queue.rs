//! Capsules that wait for a client's stream of HTTP/3.
//!
//! At the very beginning the packets of the path are as small as the standard permits, and most payloads of QUIC inside need a capsule. All
//! that come while the stream is busy go on it in one piece: pieces of their own would fill its queue with the first few.

use bytes::Bytes;
use h3_quic::capsule;
use http_body::Frame;
use http_body_util::channel::{SendError, Sender};
use tiderace::{Charge, ConnectionBudget};

use crate::{ending::BodyError, room::charged};

/// Most bytes of a capsule around its content: type and length.
const HEAD: usize = 16;
/// Bytes that wait while the stream is busy. Payloads beyond them are dropped.
const MAX: usize = 64 * 1024;

/// DATAGRAM capsules, charged to the connection of their client until the stream has sent them.
pub(super) struct CapsuleQueue {
    waiting: Vec<u8>,
    charge: Charge,
    /// Piece for which the stream has no room.
    next: Option<Bytes>,
}

impl CapsuleQueue {
    pub(super) fn new(budget: &ConnectionBudget) -> Self {
        Self { waiting: Vec::new(), charge: budget.empty(), next: None }
    }

    /// Adds a payload behind its `header`, its context ID at least. Returns `false` if too much waits, or the connection holds too much.
    pub(super) fn push(&mut self, header: &[u8], payload: &[u8]) -> bool {
        let length = self.waiting.len() + header.len() + payload.len() + HEAD;
        let capacity = self.waiting.capacity();
        // The buffer doubles when it grows.
        let capacity = if length > capacity { length.next_power_of_two() } else { capacity };
        if length > MAX || !self.charge.try_set(capacity as u64) {
            return false;
        }
        self.waiting.reserve_exact(capacity - self.waiting.len());
        capsule::write_parts(&mut self.waiting, capsule::DATAGRAM, &[header, payload]);
        true
    }

    fn take(&mut self) -> Option<Bytes> {
        if self.waiting.is_empty() {
            return None;
        }
        let empty = self.charge.budget().empty();
        Some(charged(std::mem::take(&mut self.waiting), std::mem::replace(&mut self.charge, empty)))
    }

    /// Hands one piece to the stream; waits while there is none. Cancelled, it loses nothing.
    ///
    /// # Errors
    /// When the client has given the stream up.
    pub(super) async fn send(&mut self, answer: &mut Sender<Bytes, BodyError>) -> Result<(), SendError> {
        if self.next.is_none() {
            self.next = self.take();
        }
        let Some(next) = &self.next else { return std::future::pending().await };
        answer.send(Frame::data(next.clone())).await?;
        self.next = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use h3_quic::connect_udp::UDP_CONTEXT;
    use http_body_util::{BodyExt, channel::Channel};
    use tiderace::ProcessBudget;

    use super::*;

    #[test]
    fn what_waits_is_bounded_and_charged_until_its_bytes_are_gone() {
        for (limit, most) in [(10_000, 8), (1 << 20, MAX / 1_200)] {
            let budget = ConnectionBudget::new(limit, &ProcessBudget::default());
            let mut queue = CapsuleQueue::new(&budget);
            let taken = (0..1_000).filter(|_| queue.push(&[UDP_CONTEXT], &[7; 1_200])).count();
            assert!((most / 2..=most).contains(&taken), "{taken}");
            assert!(budget.held() >= queue.waiting.capacity() as u64, "{} held", budget.held());
            let bytes = queue.take().unwrap();
            assert!(queue.push(&[UDP_CONTEXT], &[]));
            drop(queue);
            let copy = bytes.clone();
            drop(bytes);
            assert!(budget.held() >= copy.len() as u64);
            drop(copy);
            assert_eq!(budget.held(), 0);
        }
    }

    /// Nothing is lost and nothing comes twice, whenever the wait for a busy stream is cancelled.
    #[tokio::test]
    async fn a_cancelled_wait_loses_nothing() {
        let budget = ConnectionBudget::new(1 << 20, &ProcessBudget::default());
        let mut queue = CapsuleQueue::new(&budget);
        let (mut answer, mut body) = Channel::<Bytes, BodyError>::new(1);
        let mut expected = Vec::new();
        for number in 0..20 {
            assert!(queue.push(&[UDP_CONTEXT], &[number; 10]));
            capsule::write_parts(&mut expected, capsule::DATAGRAM, &[&[UDP_CONTEXT], &[number; 10]]);
            tokio::select! {
                biased;
                sent = queue.send(&mut answer) => sent.unwrap(),
                () = tokio::task::yield_now() => {}
            }
        }
        let mut got = Vec::new();
        while got.len() < expected.len() {
            tokio::select! {
                sent = queue.send(&mut answer) => sent.unwrap(),
                frame = body.frame() => got.extend(frame.unwrap().unwrap().into_data().unwrap()),
            }
        }
        assert!(got == expected);
    }
}
