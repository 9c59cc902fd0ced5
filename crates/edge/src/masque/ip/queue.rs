//! Packets that wait for a tunnel: bounded in number and bytes, and charged to the connection of its client.

use std::sync::Arc;

use h3_quic::connect_ip::Packet;
use tiderace::{Charge, ConnectionBudget};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::observe::{Direction, DropReason, Traffic};

/// Packets that wait for a tunnel. Beyond them, the newest are dropped.
const WAITING: usize = 256;
/// Bytes that wait for a tunnel, with [`OVERHEAD`] for each packet.
const MAX_WAITING: usize = 256 * 1024;
/// Memory of a waiting packet beside its bytes.
const OVERHEAD: usize = 256;
/// A packet that waits for its tunnel.
pub(super) struct Queued {
    pub(super) packet: Vec<u8>,
    pub(super) header: Packet,
    _charge: Charge,
    _room: OwnedSemaphorePermit,
}

/// Queue of a tunnel, whose packets are charged to the connection of its client.
#[derive(Clone)]
pub(super) struct Inbox {
    packets: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    memory: ConnectionBudget,
    traffic: Arc<Traffic>,
}

impl Inbox {
    /// An empty queue, and its end at the tunnel.
    pub(super) fn new(memory: &ConnectionBudget, traffic: &Arc<Traffic>) -> (Self, mpsc::Receiver<Queued>) {
        let (packets, waiting) = mpsc::channel(WAITING);
        let room = Arc::new(Semaphore::new(MAX_WAITING));
        (Self { packets, room, memory: memory.clone(), traffic: traffic.clone() }, waiting)
    }

    /// Queues a packet, or drops it.
    pub(super) fn push(&self, packet: &[u8], header: Packet) {
        let size = packet.len() + OVERHEAD;
        let room = u32::try_from(size).ok().and_then(|size| self.room.clone().try_acquire_many_owned(size).ok());
        let charge = self.memory.charge(size as u64);
        let is_queued = room.zip(charge).is_some_and(|(room, charge)| {
            let queued = Queued { packet: packet.to_vec(), header, _charge: charge, _room: room };
            self.packets.try_send(queued).is_ok()
        });
        if !is_queued {
            self.traffic.on_drop(Direction::Down, DropReason::QueueFull);
        }
    }
}

#[cfg(test)]
mod tests {
    use tiderace::ProcessBudget;

    use super::*;
    use crate::metrics::{Metrics, TunnelKind};

    /// A client that reads nothing: what waits for it is bounded in number and bytes, charged, and given back.
    #[tokio::test]
    async fn packets_that_wait_are_bounded_and_charged() {
        let packet = |length: usize| {
            let mut packet = vec![0; length];
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
            packet
        };
        let process = ProcessBudget::default();
        for (length, limit, count) in [
            (20, 1 << 30, WAITING),
            (9_000, 1 << 30, MAX_WAITING / (9_000 + OVERHEAD)),
            (1_000, 10 * (1_000 + OVERHEAD) as u64, 10),
        ] {
            let memory = ConnectionBudget::new(limit, &process);
            let traffic =
                Traffic::new(TunnelKind::Ip, String::new(), String::new(), None, &Arc::new(Metrics::default()));
            let (inbox, mut waiting) = Inbox::new(&memory, &Arc::new(traffic));
            let packet = packet(length);
            for _ in 0..1_000 {
                inbox.push(&packet, Packet::parse(&packet).unwrap());
            }
            assert_eq!(waiting.len(), count, "{length}");
            assert_eq!(memory.held(), (count * (length + OVERHEAD)) as u64);
            while waiting.try_recv().is_ok() {}
            assert_eq!(memory.held(), 0);
            inbox.push(&packet, Packet::parse(&packet).unwrap());
            assert_eq!(waiting.len(), 1, "there is room again");
        }
    }
}
