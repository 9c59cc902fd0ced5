//! Datagrams of one program to all of its targets with an IP address, over one tunnel (bound UDP).
//!
//! A proxy that has no bound UDP is asked once. After that, and for targets with a name or of an IP version that the proxy does not have, each
//! target has a tunnel of its own.

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use client::masque::{BoundTunnel, ProxyError};
use serde_json::json;
use tokio::{net::UdpSocket, sync::mpsc, time::Instant};

use super::codec::{self, Address, Host};
use crate::masque::{
    Tunnels,
    flow::{self, Counts, Ended, Queued, Waiting},
};

/// Bound UDP of the proxy, as far as it is known.
pub(super) struct BoundUdp {
    tunnels: Arc<Tunnels>,
    /// The proxy may have it, and the user wants it.
    is_offered: AtomicBool,
}

impl BoundUdp {
    pub(super) fn new(tunnels: &Arc<Tunnels>, is_wanted: bool) -> Self {
        Self { tunnels: tunnels.clone(), is_offered: AtomicBool::new(is_wanted) }
    }

    pub(super) fn is_offered(&self) -> bool {
        self.is_offered.load(Relaxed)
    }

    /// Opens a tunnel for a program, and reports the addresses from which the proxy sends. `None` without bound UDP, which is reported once,
    /// and when the proxy gives none at the moment.
    pub(super) async fn open(&self, program: SocketAddr) -> Result<Option<BoundTunnel>, ProxyError> {
        if !self.is_offered() {
            return Ok(None);
        }
        match self.tunnels.proxy.open_bound_udp().await {
            Ok(tunnel) => {
                let public: Vec<_> = tunnel.public_addresses().iter().map(ToString::to_string).collect();
                let event = json!({
                    "event": "bound", "peer": program.to_string(), "public": public, "protocol": tunnel.protocol(),
                });
                let text = format!("{program}: datagrams leave the proxy from {}", public.join(" and "));
                self.tunnels.report(&event, &text);
                Ok(Some(tunnel))
            }
            Err(ProxyError::NoBoundUdp) => {
                if self.is_offered.swap(false, Relaxed) {
                    let text = "the proxy has no bound UDP: each target of datagrams has a tunnel of its own";
                    self.tunnels.report(&json!({ "event": "bound", "public": null }), text);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// IP versions from which a proxy sends; both if it does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Versions {
    v4: bool,
    v6: bool,
}

impl Versions {
    // draft-ietf-masque-connect-udp-listen §7 SHOULD NOT: no datagrams to other versions
    pub(super) fn of(public: &[SocketAddr]) -> Self {
        let has = |is_v4: bool| public.is_empty() || public.iter().any(|address| address.is_ipv4() == is_v4);
        Self { v4: has(true), v6: has(false) }
    }

    pub(super) fn has(self, ip: IpAddr) -> bool {
        if ip.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// Datagrams of one program to all of its targets.
pub(super) struct BoundFlow {
    /// Address of the program.
    pub(super) program: SocketAddr,
    pub(super) local: Arc<UdpSocket>,
    pub(super) bound: Arc<BoundUdp>,
    pub(super) total: Arc<Counts>,
    pub(super) idle: Duration,
}

impl BoundFlow {
    /// Runs until the queue or the tunnel ends, and reports which.
    pub(super) async fn run(self, tunnel: Option<BoundTunnel>, waiting: Waiting) {
        let (mut datagrams, mut ended) = waiting.split();
        let counts = Counts::default();
        let mut protocol = None;
        let mut contexts = 0;
        let carrying = self.carry((tunnel, &mut protocol, &mut contexts), &mut datagrams, ended.as_mut(), &counts);
        let carried = carrying.await;
        self.total.add(&counts);
        let reason = carried.as_ref().map_or_else(ToString::to_string, |reason| (*reason).to_owned());
        let hint = carried.as_ref().err().map(ProxyError::hint);
        let event = json!({
            "event": "closed", "peer": self.program.to_string(), "kind": "bound", "reason": reason, "protocol": protocol,
            "contexts": contexts, "counts": counts.json(), "hint": hint,
        });
        let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        let text = format!("{} to all targets: {reason}{hint}; {}", self.program, counts.text());
        self.bound.tunnels.report(&event, &text);
        if carried.is_err() {
            flow::refuse(&mut datagrams, ended, &self.total).await;
        }
    }

    /// Carries datagrams until one side ends. Returns the reason.
    async fn carry(
        &self,
        (tunnel, protocol, contexts): (Option<BoundTunnel>, &mut Option<&'static str>, &mut usize),
        waiting: &mut mpsc::Receiver<Queued>,
        mut ended: Pin<&mut Ended>,
        counts: &Counts,
    ) -> Result<&'static str, ProxyError> {
        let opening = async {
            match tunnel {
                Some(tunnel) => Ok(Some(tunnel)),
                None => self.bound.open(self.program).await,
            }
        };
        let tunnel = tokio::select! {
            tunnel = opening => tunnel?.ok_or(ProxyError::NoBoundUdp)?,
            reason = &mut ended => return Ok(reason),
        };
        *protocol = Some(tunnel.protocol());
        let (mut sender, mut receiver) = tunnel.split();
        let mut silent = Instant::now() + self.idle;
        let reason = loop {
            tokio::select! {
                queued = waiting.recv() => {
                    let Some(queued) = queued else { break flow::given(ended).await };
                    if let Some(to) = queued.to {
                        counts.on_sent(queued.payload.len(), sender.send(to, &queued.payload));
                    }
                    silent = Instant::now() + self.idle;
                }
                received = receiver.recv() => {
                    let (from, payload) = match received {
                        Ok(Some(received)) => received,
                        Ok(None) => break "closed by the proxy",
                        Err(error) => {
                            sender.abort(&error.to_string());
                            return Err(error);
                        }
                    };
                    self.give(from, &payload, counts).await;
                    while let Some((from, payload)) = receiver.try_recv() {
                        self.give(from, &payload, counts).await;
                    }
                    silent = Instant::now() + self.idle;
                }
                reason = &mut ended => break reason,
                () = tokio::time::sleep_until(silent) => break "silent",
            }
        };
        *contexts = sender.compressed();
        receiver.close(sender).await;
        Ok(reason)
    }

    async fn give(&self, from: SocketAddr, payload: &Bytes, counts: &Counts) {
        let header = codec::datagram_header(&Address { host: Host::Ip(from.ip()), port: from.port() });
        let sent = self.local.send_to(&[&header, &payload[..]].concat(), self.program).await;
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
    fn versions_are_those_of_the_public_addresses() {
        let [v4, v6]: [SocketAddr; 2] = ["192.0.2.1:1".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap()];
        for (public, has_v4, has_v6) in
            [(&[v4][..], true, false), (&[v6], false, true), (&[v4, v6], true, true), (&[], true, true)]
        {
            let versions = Versions::of(public);
            assert_eq!((versions.has(v4.ip()), versions.has(v6.ip())), (has_v4, has_v6), "{public:?}");
        }
    }
}
