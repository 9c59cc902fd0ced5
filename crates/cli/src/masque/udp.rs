//! A local UDP port with a tunnel for each source address.

use std::{
    collections::HashMap,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use client::masque::{ProxyError, SentPayload, UdpTunnel};
use serde_json::{Value, json};
use tokio::{net::UdpSocket, sync::mpsc, time::Instant};

use super::{Tunnels, UdpArgs, refused};
use crate::{address, failure::Failure, interrupt::Interrupt, stdout::write_json_line};

/// Datagrams of a program that wait for its tunnel. Beyond them, the newest are dropped.
const WAITING: usize = 256;
/// The longest payload of UDP.
const MAX_PAYLOAD: usize = 65_535;

/// Datagrams carried and dropped.
#[derive(Debug, Default)]
struct Counts {
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
    fn on_sent(&self, bytes: usize, sent: SentPayload) {
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

    fn on_received(&self, bytes: usize) {
        self.down.fetch_add(1, Relaxed);
        self.down_bytes.fetch_add(bytes as u64, Relaxed);
    }

    fn add(&self, other: &Self) {
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

    fn json(&self) -> Value {
        json!({
            "up_datagrams": self.up.load(Relaxed), "up_bytes": self.up_bytes.load(Relaxed),
            "down_datagrams": self.down.load(Relaxed), "down_bytes": self.down_bytes.load(Relaxed),
            "capsules": self.capsules.load(Relaxed), "too_large": self.too_large.load(Relaxed),
            "dropped": self.dropped.load(Relaxed),
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{} datagrams up, {} down", self.up.load(Relaxed), self.down.load(Relaxed));
        let lost = [(&self.too_large, "too large"), (&self.dropped, "dropped")];
        for (count, what) in lost.iter().filter(|(count, _)| count.load(Relaxed) > 0) {
            text.push_str(&format!(", {} {what}", count.load(Relaxed)));
        }
        text
    }
}

/// Runs until it is interrupted.
pub(super) async fn run(args: &UdpArgs, tunnels: &Arc<Tunnels>, mut interrupt: Interrupt) -> Result<ExitCode, Failure> {
    let listen = args.common.listen;
    let local = UdpSocket::bind(listen).await.map_err(|error| address::cannot_listen(listen, &error))?;
    let local = Arc::new(local);
    let mut first = match tunnels.proxy.open_udp(&tunnels.host, tunnels.port).await {
        Ok(tunnel) => Some(tunnel),
        Err(error) => return Ok(refused(&error)),
    };
    let bound = local.local_addr().map_err(|error| address::cannot_listen(listen, &error))?;
    args.common.announce(bound)?;
    let total = Arc::new(Counts::default());
    let mut peers: HashMap<SocketAddr, mpsc::Sender<Bytes>> = HashMap::new();
    let mut tasks = tokio::task::JoinSet::new();
    let mut ignored = 0_u64;
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let received = tokio::select! {
            received = local.recv_from(&mut buffer) => received,
            Some(_) = tasks.join_next() => {
                peers.retain(|_, queue| !queue.is_closed());
                continue;
            }
            () = interrupt.wait() => break,
        };
        // An error is a report about what was sent before; the port stays open.
        let Ok((length, peer)) = received else { continue };
        let payload = Bytes::copy_from_slice(&buffer[..length]);
        let queue = match peers.get(&peer).filter(|queue| !queue.is_closed()) {
            Some(queue) => queue,
            None if peers.len() >= args.max_peers => {
                ignored += 1;
                continue;
            }
            None => {
                let (queue, waiting) = mpsc::channel(WAITING);
                let flow = Flow {
                    peer,
                    local: local.clone(),
                    tunnels: tunnels.clone(),
                    total: total.clone(),
                    idle: Duration::from_secs(args.idle),
                };
                tasks.spawn(flow.run(first.take(), waiting));
                peers.insert(peer, queue);
                &peers[&peer]
            }
        };
        if queue.try_send(payload).is_err() {
            total.dropped.fetch_add(1, Relaxed);
        }
    }
    // Each ends its tunnel, and says what it has carried.
    drop(peers);
    while tasks.join_next().await.is_some() {}
    if args.common.json {
        write_json_line(&json!({ "event": "total", "counts": total.json(), "ignored": ignored }))?;
    } else {
        eprintln!(
            "{}{}",
            total.text(),
            if ignored > 0 { format!(", {ignored} of further programs") } else { String::new() }
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Datagrams of one program.
struct Flow {
    peer: SocketAddr,
    local: Arc<UdpSocket>,
    tunnels: Arc<Tunnels>,
    total: Arc<Counts>,
    idle: Duration,
}

impl Flow {
    async fn run(self, tunnel: Option<UdpTunnel>, waiting: mpsc::Receiver<Bytes>) {
        let counts = Counts::default();
        let carried = self.carry(tunnel, waiting, &counts).await;
        self.total.add(&counts);
        let reason = carried.as_ref().map_or_else(ToString::to_string, |reason| (*reason).to_owned());
        let event = json!({
            "event": "closed", "peer": self.peer.to_string(), "reason": reason, "counts": counts.json(),
            "hint": carried.as_ref().err().map(ProxyError::hint),
        });
        let hint = carried.as_ref().err().map(|error| format!(" ({})", error.hint())).unwrap_or_default();
        self.tunnels.report(&event, &format!("{}: {reason}{hint}; {}", self.peer, counts.text()));
    }

    /// Carries datagrams until one side ends. Returns which.
    async fn carry(
        &self,
        tunnel: Option<UdpTunnel>,
        mut waiting: mpsc::Receiver<Bytes>,
        counts: &Counts,
    ) -> Result<&'static str, ProxyError> {
        let tunnel = match tunnel {
            Some(tunnel) => tunnel,
            None => self.tunnels.proxy.open_udp(&self.tunnels.host, self.tunnels.port).await?,
        };
        let (mut sender, mut receiver) = tunnel.split();
        let mut silent = Instant::now() + self.idle;
        let ended = loop {
            tokio::select! {
                payload = waiting.recv() => {
                    let Some(payload) = payload else { break "ended" };
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
                () = tokio::time::sleep_until(silent) => break "silent",
            }
        };
        receiver.close(sender).await;
        Ok(ended)
    }

    async fn give(&self, payload: &Bytes, counts: &Counts) {
        // A program that has gone is noticed by its silence.
        if self.local.send_to(payload, self.peer).await.is_ok() {
            counts.on_received(payload.len());
        } else {
            counts.dropped.fetch_add(1, Relaxed);
        }
    }
}
