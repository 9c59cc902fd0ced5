//! UDP ports of one side, for stacks without their own sockets, and the events for which such a stack waits.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::BorrowedFd,
};

use netem::Ecn;
use socket2::SockAddr;
use units::Instant;

use super::Namespace;
use crate::{
    socket::UdpSocket,
    sys::{self, Inbox, Outgoing, Poll, Timer},
};

/// A UDP port on one side of a network: ECN bits in both directions, never fragmented, never waits.
#[derive(Debug)]
pub struct Port {
    socket: UdpSocket,
}

impl Port {
    /// Binds a port of a side.
    ///
    /// # Errors
    /// When the system refuses the socket.
    pub fn bind(side: &Namespace, port: u16) -> io::Result<Self> {
        let address = SocketAddr::new(side.address().into(), port);
        Ok(Self { socket: side.run(|| UdpSocket::listen(address))? })
    }

    /// Hands the packets that wait to `sink`: sender, ECN bits, payload. Returns how many there were; `buffer` may serve all ports.
    ///
    /// # Errors
    /// When the system cannot read the socket. An empty socket is no error.
    pub fn receive(&self, buffer: &mut Buffer, mut sink: impl FnMut(SocketAddr, Ecn, &[u8])) -> io::Result<usize> {
        match buffer.0.receive(self.socket.fd()) {
            Ok(count) => {
                for index in 0..count {
                    let packet = buffer.0.packet(index);
                    if let Some(from) = packet.from {
                        sink(from, packet.ecn, packet.payload);
                    }
                }
                Ok(count)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Sends one packet; `false` when the system did not take it: larger than the MTU, or no room.
    pub fn send(&self, to: SocketAddr, ecn: Ecn, payload: &[u8]) -> bool {
        let name = SockAddr::from(to);
        sys::send(self.socket.fd(), &[Outgoing { payload, to: Some(&name), ecn, ipv6: false }]).is_ok()
    }
}

/// Room for one batch of packets.
pub struct Buffer(Inbox);

impl core::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Buffer(..)")
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self(Inbox::new())
    }
}

/// Waits for ports and for a moment, exact to the nanosecond.
#[derive(Debug)]
pub struct Waiter {
    poll: Poll,
    timer: Timer,
}

/// Number of the timer in the poll.
const TIMER: u64 = u64::MAX;

impl Waiter {
    /// A waiter without ports.
    ///
    /// # Errors
    /// When the system refuses a descriptor.
    pub fn new() -> io::Result<Self> {
        let (poll, timer) = (Poll::new()?, Timer::new()?);
        poll.add(timer.fd(), TIMER)?;
        Ok(Self { poll, timer })
    }

    /// Waits for packets at a port as well. `number` is below 2^64 − 1.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn add(&self, port: &Port, number: u64) -> io::Result<()> {
        self.poll.add(fd(port), number)
    }

    /// Waits until packets have come or `at` has passed, by the clock of [`now`]; calls `sink` with the number of each port that has some.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(&mut self, at: Instant, mut sink: impl FnMut(u64)) -> io::Result<()> {
        self.timer.arm(Some(at))?;
        self.poll.wait(true)?;
        let mut index = 0;
        while let Some(number) = self.poll.ready(index) {
            index += 1;
            if number == TIMER {
                self.timer.fired();
            } else {
                sink(number);
            }
        }
        Ok(())
    }
}

fn fd(port: &Port) -> BorrowedFd<'_> {
    port.socket.fd()
}

/// The monotonic clock.
pub fn now() -> Instant {
    sys::now()
}

/// An address of the IPv4 Internet with a port.
pub fn address(ip: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}
