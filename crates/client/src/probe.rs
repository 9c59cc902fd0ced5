//! UDP probe: a first packet of an unsupported version, which every QUIC server answers at once and without state with Version Negotiation
//! (RFC 9000 §6). It distinguishes an unreachable UDP port from a slow one.
//!
//! ```no_run
//! # async fn example() -> Result<(), tiderace_client::probe::ProbeError> {
//! use std::time::Duration;
//! use tiderace_client::probe::Prober;
//!
//! let prober = Prober::new("192.0.2.1:443".parse().unwrap()).await?;
//! prober.ask().await;
//! let answered = tokio::time::timeout(Duration::from_secs(1), prober.answered()).await.is_ok();
//! println!("UDP port 443 {}", if answered { "answers" } else { "is silent" });
//! # Ok(())
//! # }
//! ```

use std::{io, net::SocketAddr};

use crate::local;

/// RFC 9000 §15: a version of the pattern 0x?a?a?a?a is never spoken.
const VERSION: u32 = 0x5a6a_7a8a;
/// RFC 9000 §14.1: servers pass over smaller ones.
const SIZE: usize = 1_200;

/// The question. `id` is unpredictable, and shows that an answer is one to this question.
pub fn question(id: [u8; 8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(SIZE);
    // A long header.
    packet.push(0xc0);
    packet.extend(VERSION.to_be_bytes());
    packet.push(8);
    packet.extend(id);
    packet.push(8);
    packet.extend(id.map(|byte| !byte));
    packet.resize(SIZE, 0);
    packet
}

/// Returns whether a datagram answers the probe with this `id`.
pub fn is_answer(datagram: &[u8], id: [u8; 8]) -> bool {
    // RFC 8999 §6: version 0, and the identifiers of the question the other way round.
    datagram.len() >= 23
        && datagram[0] & 0x80 != 0
        && datagram[1..5] == [0; 4]
        && datagram[5] == 8
        && datagram[6..14] == id.map(|byte| !byte)
        && datagram[14] == 8
        && datagram[15..23] == id
}

/// Cause for which nothing can be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The system has no socket, or no route to the server.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
}

/// A socket that asks.
#[derive(Debug)]
pub struct Prober {
    socket: tokio::net::UdpSocket,
    id: [u8; 8],
}

impl Prober {
    /// For questions to `remote`.
    ///
    /// # Errors
    /// When the system has no socket, or no random numbers.
    pub async fn new(remote: SocketAddr) -> Result<Self, ProbeError> {
        Self::on(std::net::UdpSocket::bind(local::any(remote))?, remote)
    }

    /// For questions to `remote` from this socket, which [`new`](Self::new) would choose itself. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the socket has no route to `remote`, or the system no random numbers.
    pub fn on(socket: std::net::UdpSocket, remote: SocketAddr) -> Result<Self, ProbeError> {
        socket.connect(remote)?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        let mut id = [0; 8];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| ProbeError::NoRandomness)?;
        Ok(Self { socket, id })
    }

    /// Asks once.
    pub async fn ask(&self) {
        // What the system refuses to send is a question without an answer.
        let _ = self.socket.send(&question(self.id)).await;
    }

    /// Waits for an answer.
    pub async fn answered(&self) {
        let mut buffer = [0; 2_048];
        loop {
            match self.socket.recv(&mut buffer).await {
                Ok(length) if is_answer(&buffer[..length], self.id) => return,
                Ok(_) => {}
                // An ICMP message: nobody is at the port. It is no answer of a server.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    }

    /// The address from which it asks.
    ///
    /// # Errors
    /// When the system does not return it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_the_question_counts() {
        let id = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(question(id).len(), 1_200);
        let mut answer = vec![0x80, 0, 0, 0, 0, 8];
        answer.extend(id.map(|byte| !byte));
        answer.push(8);
        answer.extend(id);
        answer.extend([0, 0, 0, 1]);
        assert!(is_answer(&answer, id));
        assert!(!is_answer(&answer, [0; 8]));
        assert!(!is_answer(&answer[..22], id));
        answer[4] = 1;
        assert!(!is_answer(&answer, id));
        assert!(!is_answer(&question(id), id));
    }
}
