//! Sockets, and what goes in and out through them.

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    task::Poll,
    time::Duration,
};

use anyhow::{Context, Result};
use quiche::RecvInfo;
use tokio::{net::UdpSocket, time::timeout};

/// Time that to wait when no timer runs.
const LONG: Duration = Duration::from_secs(1);
/// Datagrams taken before connections get to answer.
const AT_A_TIME: usize = 64;

/// The sockets of an end: one, and after a migration a second.
#[derive(Default)]
pub(crate) struct Wires(Vec<(SocketAddr, UdpSocket)>);

impl Wires {
    /// Another socket. Its address has to be one that packets really leave from, because quiche compares it.
    pub(crate) async fn open(&mut self, address: SocketAddr) -> Result<SocketAddr> {
        let socket = UdpSocket::bind(address).await.with_context(|| format!("cannot bind to {address}"))?;
        // The runtime lets nothing be sent before it has heard that there is room.
        socket.writable().await?;
        let address = socket.local_addr()?;
        self.0.push((address, socket));
        Ok(address)
    }

    /// The address from which this machine reaches another.
    pub(crate) async fn address_towards(peer: SocketAddr) -> Result<IpAddr> {
        let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(peer).await?;
        Ok(socket.local_addr()?.ip())
    }

    /// Waits until a datagram is there, but no longer than a timer allows.
    pub(crate) async fn wait(&self, timer: Option<Duration>) {
        let arrives = poll_fn(|cx| {
            let ready = self.0.iter().any(|(_, socket)| socket.poll_recv_ready(cx).is_ready());
            if ready { Poll::Ready(()) } else { Poll::Pending }
        });
        // That time has passed is no error.
        let _ = timeout(timer.unwrap_or(LONG).min(LONG), arrives).await;
    }

    /// Hands what has arrived to `take`.
    pub(crate) fn receive(&self, mut take: impl FnMut(&mut [u8], RecvInfo)) -> io::Result<()> {
        let mut buffer = [0; 65_536];
        for (to, socket) in &self.0 {
            for _ in 0..AT_A_TIME {
                match socket.try_recv_from(&mut buffer) {
                    Ok((len, from)) => take(&mut buffer[..len], RecvInfo { from, to: *to }),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    // What a send before met.
                    Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// One datagram. What the socket has no room for is lost, as on any network.
    pub(crate) fn send(&self, datagram: &[u8], from: SocketAddr, to: SocketAddr) {
        if let Some((_, socket)) = self.0.iter().find(|(address, _)| *address == from) {
            let _ = socket.try_send_to(datagram, to);
        }
    }

    /// Sends all datagrams that a connection has ready.
    pub(crate) fn send_all(&self, quic: &mut quiche::Connection) -> Result<()> {
        let mut buffer = [0; 1_500];
        loop {
            match quic.send(&mut buffer) {
                Ok((len, info)) => self.send(&buffer[..len], info.from, info.to),
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error).context("send"),
            }
        }
    }
}
