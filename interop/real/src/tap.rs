//! A UDP relay between the client and the server that watches the wire, so that what a case is about is shown by the wire and not
//! by either stack's word. Where a case wants it, it also is the NAT that gives the client another port or address.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::Result;
use tokio::{
    net::UdpSocket,
    task::{AbortHandle, JoinHandle},
};
use wire::{Header, LongType, version};

use crate::spoil::{Spoil, Spoiler};

/// Rebinding by the NAT on the path, once some data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebind {
    /// The client has another port.
    Port,
    /// The client has another address and port.
    Address,
}

/// Bytes from the server before a NAT gives the client another port or address.
const REBIND_AFTER: u64 = 1_000_000;

/// Counts of packets.
#[derive(Debug, Default)]
struct Counts {
    retries: AtomicU64,
    early: AtomicU64,
    second_version: [AtomicU64; 2],
    handshake_bytes_down: AtomicU64,
    down: AtomicU64,
    clients: AtomicU64,
    rebinds: AtomicU64,
    /// Worst of bytes down for bytes up before the client's address was proven, in per mille.
    amplification: AtomicU64,
    /// Server datagrams before that.
    unproven: AtomicU64,
    /// Packets lost and damaged here.
    spoiled: AtomicU64,
    /// Initial packets that have passed to the server since its last one.
    initials_unanswered: AtomicU64,
}

/// Counts on the wire.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Seen {
    /// Retry packets.
    pub retries: u64,
    /// 0-RTT packets.
    pub early: u64,
    /// Long headers of QUIC version 2, from the client and from the server.
    pub second_version: [u64; 2],
    /// Bytes of the server's Handshake packets.
    pub handshake_bytes_down: u64,
    /// Addresses that the client sent from.
    pub clients: u64,
    /// Times that the NAT changed the client's address.
    pub rebinds: u64,
    /// The most that the server sent for what the client had sent, before the client's address was proven.
    pub amplification: f64,
    /// Datagrams of the server in that time.
    pub unproven: u64,
    /// Packets that the tap lost or damaged.
    pub spoiled: u64,
    /// Datagrams with Initial packets that have passed to the server, as they were, since it sent its last one.
    pub initials_unanswered: u64,
}

/// Spoiler of the packets to all clients.
type Down = Option<Arc<Mutex<Spoiler>>>;

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub struct Tap {
    /// Address that the client connects to.
    pub address: SocketAddr,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

/// One client: the socket towards the server, and who reads from it.
struct Client {
    back: Arc<UdpSocket>,
    reader: AbortHandle,
    account: Arc<Account>,
}

/// Bytes of one client's connection before its address is proven.
#[derive(Debug, Default)]
struct Account {
    up: AtomicU64,
    down: AtomicU64,
    proven: AtomicU64,
}

impl Tap {
    /// Starts a relay to `server`, which may rebind a client and spoil packets of both directions.
    ///
    /// # Errors
    /// When no socket can be had.
    pub async fn start(server: SocketAddr, rebind: Option<Rebind>, spoil: Option<Spoil>) -> Result<Self> {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
        let address = front.local_addr()?;
        let counts = Arc::new(Counts::default());
        let seen = counts.clone();
        let task = tokio::spawn(async move {
            let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
            let mut buffer = vec![0; 65_536];
            let mut up = spoil.map(|how| Spoiler::new(how, 0));
            let down: Down = spoil.map(|how| Arc::new(Mutex::new(Spoiler::new(how, 1))));
            loop {
                // Errors are those of one datagram (the other end not there yet): the next one may pass.
                let Ok((len, from)) = front.recv_from(&mut buffer).await else { continue };
                let due = rebind.filter(|_| seen.rebinds.load(Relaxed) == 0 && seen.down.load(Relaxed) > REBIND_AFTER);
                if let Some(how) = due
                    && let Some(client) = clients.remove(&from)
                {
                    // What is still sent to the old address is lost.
                    client.reader.abort();
                    seen.rebinds.fetch_add(1, Relaxed);
                    let host = if how == Rebind::Address { 2 } else { 1 };
                    let Ok(moved) =
                        Client::new(host, server, from, &front, (&seen, &down), client.account.clone()).await
                    else {
                        return;
                    };
                    clients.insert(from, moved);
                }
                let client = match clients.entry(from) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => {
                        seen.clients.fetch_add(1, Relaxed);
                        let Ok(new) = Client::new(1, server, from, &front, (&seen, &down), Arc::default()).await else {
                            return;
                        };
                        place.insert(new)
                    }
                };
                client.account.up.fetch_add(len as u64, Relaxed);
                seen.note_up(&buffer[..len], &client.account);
                let has_initial = has_initial(&buffer[..len]);
                let fate = seen.spoils(up.as_mut(), &mut buffer[..len]);
                seen.initials_unanswered.fetch_add(u64::from(has_initial && fate.is_none()), Relaxed);
                if fate != Some(Spoil::Drop) {
                    let _ = client.back.send(&buffer[..len]).await;
                }
            }
        });
        Ok(Self { address, counts, task })
    }

    /// Counts so far.
    pub fn seen(&self) -> Seen {
        let Counts { retries, early, second_version, handshake_bytes_down, clients, rebinds, .. } = &*self.counts;
        Seen {
            retries: retries.load(Relaxed),
            early: early.load(Relaxed),
            second_version: [second_version[0].load(Relaxed), second_version[1].load(Relaxed)],
            handshake_bytes_down: handshake_bytes_down.load(Relaxed),
            clients: clients.load(Relaxed),
            rebinds: rebinds.load(Relaxed),
            amplification: self.counts.amplification.load(Relaxed) as f64 / 1_000.0,
            unproven: self.counts.unproven.load(Relaxed),
            spoiled: self.counts.spoiled.load(Relaxed),
            initials_unanswered: self.counts.initials_unanswered.load(Relaxed),
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    async fn new(
        host: u8,
        server: SocketAddr,
        client: SocketAddr,
        front: &Arc<UdpSocket>,
        (seen, down): (&Arc<Counts>, &Down),
        account: Arc<Account>,
    ) -> Result<Self> {
        let back = Arc::new(UdpSocket::bind((IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0)).await?);
        back.connect(server).await?;
        let (socket, front, seen, its) = (back.clone(), front.clone(), seen.clone(), account.clone());
        let down = down.clone();
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 65_536];
            loop {
                let Ok(len) = socket.recv(&mut buffer).await else { continue };
                its.down.fetch_add(len as u64, Relaxed);
                seen.note_down(&buffer[..len], &its);
                let is_lost = {
                    let mut down = down.as_ref().map(|down| down.lock().expect("nobody panics with it"));
                    seen.spoils(down.as_deref_mut(), &mut buffer[..len]) == Some(Spoil::Drop)
                };
                if !is_lost {
                    let _ = front.send_to(&buffer[..len], client).await;
                }
            }
        });
        Ok(Self { back, reader: reader.abort_handle(), account })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The packets with long headers in a datagram: type (`None` for Retry), version, size.
fn long_packets(mut datagram: &[u8]) -> Vec<(Option<LongType>, u32, usize)> {
    let mut all = Vec::new();
    while let Ok(header) = Header::parse(datagram, 8) {
        let len = header.packet_len();
        match header {
            Header::Long { ty, version, .. } => all.push((Some(ty), version, len)),
            Header::Retry { version, .. } => all.push((None, version, len)),
            _ => break,
        }
        datagram = &datagram[len..];
    }
    all
}

fn has_initial(datagram: &[u8]) -> bool {
    long_packets(datagram).iter().any(|(ty, ..)| *ty == Some(LongType::Initial))
}

impl Counts {
    /// Damages a packet where its turn has come, and tells what becomes of it.
    fn spoils(&self, spoiler: Option<&mut Spoiler>, packet: &mut [u8]) -> Option<Spoil> {
        let fate = spoiler.and_then(|spoiler| spoiler.treat(packet));
        self.spoiled.fetch_add(u64::from(fate.is_some()), Relaxed);
        fate
    }

    fn note_up(&self, datagram: &[u8], account: &Account) {
        for (ty, version, _) in long_packets(datagram) {
            self.early.fetch_add(u64::from(ty == Some(LongType::ZeroRtt)), Relaxed);
            self.second_version[0].fetch_add(u64::from(version == version::V2), Relaxed);
            if ty == Some(LongType::Handshake) {
                account.proven.store(1, Relaxed);
            }
        }
    }

    fn note_down(&self, datagram: &[u8], account: &Account) {
        self.down.fetch_add(datagram.len() as u64, Relaxed);
        if has_initial(datagram) {
            self.initials_unanswered.store(0, Relaxed);
        }
        for (ty, version, len) in long_packets(datagram) {
            self.retries.fetch_add(u64::from(ty.is_none()), Relaxed);
            self.second_version[1].fetch_add(u64::from(version == version::V2), Relaxed);
            if ty == Some(LongType::Handshake) {
                self.handshake_bytes_down.fetch_add(len as u64, Relaxed);
            }
        }
        if account.proven.load(Relaxed) == 0 {
            self.unproven.fetch_add(1, Relaxed);
            let ratio = account.down.load(Relaxed) * 1_000 / account.up.load(Relaxed).max(1);
            self.amplification.fetch_max(ratio, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::long_packets;

    #[test]
    fn packets_are_told_apart() {
        assert_eq!(long_packets(&[0x75, 0, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), [], "short header");
        assert_eq!(long_packets(&[0xf5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), [], "Version Negotiation");
        let mut retry = vec![0xf5, 0, 0, 0, 1, 0, 1, 7, 9, 9];
        retry.extend([0; 16]);
        assert_eq!(long_packets(&retry), [(None, 1, 26)]);
    }
}
