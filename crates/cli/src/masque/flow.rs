//! Datagrams of one program to one target: a queue, and the tunnel that it feeds.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use client::masque::{ProxyError, SentPayload, UdpTunnel};
use serde_json::{Value, json};
use tokio::{
    net::UdpSocket,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::Instant,
};

use super::{Target, Tunnels};

/// Datagrams that wait for a tunnel. Beyond them, the newest are dropped.
const WAITING: usize = 256;
/// Bytes of a program's datagrams that wait for its tunnels, with [`OVERHEAD`] for each. Beyond them, the newest are dropped.
pub(super) const MAX_WAITING: usize = 1 << 20;
/// Memory of a waiting datagram beside its payload: its place in the queue, and its allocation.
const OVERHEAD: usize = 128;
/// The longest payload of UDP.
pub(super) const MAX_PAYLOAD: usize = 65_535;
/// Time after a tunnel failed in which datagrams to its target are dropped, so that each does not ask the proxy again.
const PAUSE: Duration = Duration::from_secs(1);

/// Datagrams carried and dropped.
#[derive(Debug, Default)]
pub(super) struct Counts {
    up: AtomicU64,
    up_bytes: AtomicU64,
    down: AtomicU64,
    down_bytes: AtomicU64,
    /// Of these sent up, those that went as capsules.
    capsules: AtomicU64,
    too_large: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    pub(super) fn on_sent(&self, bytes: usize, sent: SentPayload) {
        match sent {
            SentPayload::TooLarge => drop(self.too_large.fetch_add(1, Relaxed)),
            SentPayload::Dropped => drop(self.dropped.fetch_add(1, Relaxed)),
            SentPayload::Datagram | SentPayload::Capsule => {
                self.up.fetch_add(1, Relaxed);
                self.up_bytes.fetch_add(bytes as u64, Relaxed);
                self.capsules.fetch_add(u64::from(sent == SentPayload::Capsule), Relaxed);
            }
        }
    }

    pub(super) fn on_received(&self, bytes: usize) {
        self.down.fetch_add(1, Relaxed);
        self.down_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn on_dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    pub(super) fn add(&self, other: &Self) {
        let pairs = [
            (&self.up, &other.up),
            (&self.up_bytes, &other.up_bytes),
            (&self.down, &other.down),
            (&self.down_bytes, &other.down_bytes),
            (&self.capsules, &other.capsules),
            (&self.too_large, &other.too_large),
            (&self.dropped, &other.dropped),
        ];
        for (total, part) in pairs {
            total.fetch_add(part.load(Relaxed), Relaxed);
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "up_datagrams": self.up.load(Relaxed), "up_bytes": self.up_bytes.load(Relaxed),
            "down_datagrams": self.down.load(Relaxed), "down_bytes": self.down_bytes.load(Relaxed),
            "capsules": self.capsules.load(Relaxed), "too_large": self.too_large.load(Relaxed),
            "dropped": self.dropped.load(Relaxed),
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{} datagrams up, {} down", self.up.load(Relaxed), self.down.load(Relaxed));
        let lost = [(&self.too_large, "too large"), (&self.dropped, "dropped")];
        for (count, what) in lost.iter().filter(|(count, _)| count.load(Relaxed) > 0) {
            text.push_str(&format!(", {} {what}", count.load(Relaxed)));
        }
        text
    }
}

/// A datagram that waits for its tunnel.
pub(super) struct Queued {
    /// Target, if the tunnel has many.
    pub(super) to: Option<SocketAddr>,
    pub(super) payload: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Way to a flow. Dropped, it ends the flow when the queued datagrams were sent.
pub(super) struct Queue {
    datagrams: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    end: oneshot::Sender<&'static str>,
}

/// The other end of a [`Queue`].
pub(super) struct Waiting {
    datagrams: mpsc::Receiver<Queued>,
    end: oneshot::Receiver<&'static str>,
}

/// A queue whose datagrams take `room`, in bytes, while they wait.
pub(super) fn queue(room: &Arc<Semaphore>) -> (Queue, Waiting) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let (end, ended) = oneshot::channel();
    (Queue { datagrams: sender, room: room.clone(), end }, Waiting { datagrams: receiver, end: ended })
}

impl Queue {
    /// Queues a datagram for the target of the tunnel. Returns false if there is no room for it.
    pub(super) fn push(&self, payload: &[u8]) -> bool {
        self.push_to(None, payload)
    }

    /// Queues a datagram for one of many targets. Returns false if there is no room for it.
    pub(super) fn push_to(&self, to: Option<SocketAddr>, payload: &[u8]) -> bool {
        let size = u32::try_from(payload.len() + OVERHEAD).unwrap_or(u32::MAX);
        let Ok(room) = self.room.clone().try_acquire_many_owned(size) else { return false };
        self.datagrams.try_send(Queued { to, payload: Bytes::copy_from_slice(payload), _room: room }).is_ok()
    }

    /// Returns whether the flow has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.datagrams.is_closed()
    }

    /// Ends the flow at once, for this reason.
    pub(super) fn end(self, reason: &'static str) {
        let _ = self.end.send(reason);
    }
}

/// The reason that is given for the end of a queue before it is empty.
pub(super) type Ended = dyn Future<Output = &'static str> + Send;

impl Waiting {
    /// The datagrams, and the reason of an end before the queue is empty.
    pub(super) fn split(self) -> (mpsc::Receiver<Queued>, Pin<Box<Ended>>) {
        let Self { datagrams, end } = self;
        let ended = async {
            match end.await {
                Ok(reason) => reason,
                // The queue was dropped: it ends when it is empty.
                Err(_) => std::future::pending().await,
            }
        };
        (datagrams, Box::pin(ended))
    }
}

/// Drops datagrams for a while after a failure, so that each does not ask the proxy again.
pub(super) async fn refuse(datagrams: &mut mpsc::Receiver<Queued>, ended: Pin<Box<Ended>>, total: &Counts) {
    let refusing = async {
        while datagrams.recv().await.is_some() {
            total.on_dropped()
        }
    };
    tokio::select! {
        () = refusing => {}
        _ = ended => {}
        () = tokio::time::sleep(PAUSE) => {}
    }
}

/// The reason that was given for the end of a queue, if any was. The queue has been dropped, so that none will come.
pub(super) async fn given(ended: Pin<&mut Ended>) -> &'static str {
    tokio::select! {
        biased;
        reason = ended => reason,
        () = std::future::ready(()) => "ended",
    }
}

/// Datagrams of one program to one target.
pub(super) struct Flow {
    pub(super) peer: SocketAddr,
    pub(super) target: Target,
    /// Bytes before each payload to the program.
    pub(super) header: Vec<u8>,
    pub(super) local: Arc<UdpSocket>,
    pub(super) tunnels: Arc<Tunnels>,
    pub(super) total: Arc<Counts>,
    pub(super) idle: Duration,
}

impl Flow {
    /// Runs until the queue or the tunnel ends, and reports which.
    pub(super) async fn run(self, tunnel: Option<UdpTunnel>, waiting: Waiting) {
        let (mut datagrams, mut ended) = waiting.split();
        let counts = Counts::default();
        let mut protocol = None;
        let carried = self.carry((tunnel, &mut protocol), &mut datagrams, ended.as_mut(), &counts).await;
        self.total.add(&counts);
        let reason = carried.as_ref().map_or_else(ToString::to_string, |reason| (*reason).to_owned());
        let event = json!({
            "event": "closed", "peer": self.peer.to_string(), "target": self.target.to_string(), "reason": reason,
            "protocol": protocol, "counts": counts.json(), "hint": carried.as_ref().err().map(ProxyError::hint),
        });
        let hint = carried.as_ref().err().map(|error| format!(" ({})", error.hint())).unwrap_or_default();
        let (peer, target) = (self.peer, &self.target);
        self.tunnels.report(&event, &format!("{peer} to {target}: {reason}{hint}; {}", counts.text()));
        if carried.is_err() {
            refuse(&mut datagrams, ended, &self.total).await;
        }
    }

    /// Carries datagrams until one side ends. Returns the reason.
    async fn carry(
        &self,
        (tunnel, protocol): (Option<UdpTunnel>, &mut Option<&'static str>),
        waiting: &mut mpsc::Receiver<Queued>,
        mut ended: Pin<&mut Ended>,
        counts: &Counts,
    ) -> Result<&'static str, ProxyError> {
        let opening = async {
            match tunnel {
                Some(tunnel) => Ok(tunnel),
                None => self.tunnels.proxy.open_udp(&self.target.host, self.target.port).await,
            }
        };
        let tunnel = tokio::select! {
            tunnel = opening => tunnel?,
            reason = &mut ended => return Ok(reason),
        };
        *protocol = Some(tunnel.protocol());
        let (mut sender, mut receiver) = tunnel.split();
        let mut silent = Instant::now() + self.idle;
        let reason = loop {
            tokio::select! {
                queued = waiting.recv() => {
                    let Some(Queued { payload, .. }) = queued else { break given(ended).await };
                    counts.on_sent(payload.len(), sender.send(&payload));
                    silent = Instant::now() + self.idle;
                }
                payload = receiver.recv() => {
                    let Some(payload) = payload? else { break "closed by the proxy" };
                    self.give(&payload, counts).await;
                    while let Some(payload) = receiver.try_recv() {
                        self.give(&payload, counts).await;
                    }
                    silent = Instant::now() + self.idle;
                }
                reason = &mut ended => break reason,
                () = tokio::time::sleep_until(silent) => break "silent",
            }
        };
        receiver.close(sender).await;
        Ok(reason)
    }

    async fn give(&self, payload: &Bytes, counts: &Counts) {
        let sent = if self.header.is_empty() {
            self.local.send_to(payload, self.peer).await
        } else {
            self.local.send_to(&[&self.header, &payload[..]].concat(), self.peer).await
        };
        // A program that has gone is noticed by its silence.
        if sent.is_ok() {
            counts.on_received(payload.len());
        } else {
            counts.on_dropped();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_datagrams_take_the_room_that_they_hold() {
        let room = Arc::new(Semaphore::new(10 * OVERHEAD));
        let (queue, mut waiting) = queue(&room);
        for _ in 0..10 {
            assert!(queue.push(b""));
        }
        assert!(!queue.push(b""));
        drop(waiting.datagrams.try_recv().unwrap());
        assert!(queue.push(b""));
    }
}
