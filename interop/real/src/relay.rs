//! A UDP relay between one client and one server that looks for Retry packets, so that a Retry is shown by the wire and
//! not by either stack's word.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Result;
use tokio::{net::UdpSocket, task::JoinHandle};

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub struct Relay {
    /// Where the client connects to.
    pub address: SocketAddr,
    retries: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay to `server`.
    ///
    /// # Errors
    /// When no socket can be had.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        let front = UdpSocket::bind("127.0.0.1:0").await?;
        let back = UdpSocket::bind("127.0.0.1:0").await?;
        back.connect(server).await?;
        let (address, retries) = (front.local_addr()?, Arc::new(AtomicU64::new(0)));
        let seen = retries.clone();
        let task = tokio::spawn(async move {
            let mut client = None;
            let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                // Errors are those of one datagram (the other end not there yet): the next one may pass.
                tokio::select! {
                    received = front.recv_from(&mut up) => {
                        let Ok((len, from)) = received else { continue };
                        client = Some(from);
                        let _ = back.send(&up[..len]).await;
                    }
                    received = back.recv(&mut down) => {
                        let Ok(len) = received else { continue };
                        seen.fetch_add(u64::from(is_retry(&down[..len])), Ordering::Relaxed);
                        if let Some(client) = client {
                            let _ = front.send_to(&down[..len], client).await;
                        }
                    }
                }
            }
        });
        Ok(Self { address, retries, task })
    }

    /// Retry packets from the server so far.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// RFC 9000 §17.2.5: a long header of version 1 with packet type 3. Retry packets are not encrypted.
fn is_retry(datagram: &[u8]) -> bool {
    matches!(datagram, [first, 0, 0, 0, 1, ..] if first & 0xb0 == 0xb0)
}

#[cfg(test)]
mod tests {
    use super::is_retry;

    #[test]
    fn only_retry_packets_count() {
        assert!(is_retry(&[0xf5, 0, 0, 0, 1, 8]));
        assert!(!is_retry(&[0xc5, 0, 0, 0, 1, 8]), "Initial");
        assert!(!is_retry(&[0xe5, 0, 0, 0, 1, 8]), "Handshake");
        assert!(!is_retry(&[0x75, 0, 0, 0, 1, 8]), "short header");
        assert!(!is_retry(&[0xf5, 0, 0, 0, 0, 8]), "Version Negotiation");
    }
}
