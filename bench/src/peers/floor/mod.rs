//! The floor: what kernel UDP and AES-GCM alone cost.
//!
//! The sender copies payload into a packet, seals and masks it, and sends 44 packets per system call. The receiver takes
//! what is there with one `recvmmsg`, opens each packet in place, and acknowledges once per MiB. There are no frames, no
//! handshake (both sides hold a fixed key), no recovery and no congestion control: the acknowledgements only keep the
//! sender from overrunning the socket buffer. A lost packet voids the run.

pub mod packet;

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use self::packet::{Keys, PACKET, PAYLOAD, Protection};
use super::{ANSWER, Announcement};
use crate::{
    content::{Check, Source},
    job::Job,
    meter::{Datagrams, Meter, Role, SideReport},
    stack::Settings,
    sys::{self, BATCH, BUFFER, Received},
};

/// Packets per send: as many full ones as fit the 64 KiB that the kernel takes at once.
const SEGMENTS: usize = 44;
/// One acknowledgement per this many bytes of payload.
const ACK_EVERY: u64 = 1 << 20;
/// Unacknowledged payload allowed, in bytes, when the socket buffer is as large as asked for.
const WINDOW: u64 = 4 << 20;
/// Buffers that the kernel may still read, when it does not copy them: twice the window.
const SHARED: usize = 2 * WINDOW as usize / 65_536;
/// Longest silence: on loopback it means that a packet was lost.
const SILENCE: Duration = Duration::from_secs(5);

/// Relation of the kernel to the sender's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The kernel copies them.
    Copied,
    /// The kernel reads them until it says that it is done (MSG_ZEROCOPY), unless the device makes it copy.
    Shared,
}

/// Buffers that are sent in turns.
struct Batches {
    sending: Sending,
    buffers: Vec<Vec<u8>>,
    /// Calls so far, and how many of them the kernel has done with, and of these how many it has copied after all.
    sent: usize,
    done: usize,
    copied: usize,
}

impl Batches {
    fn new(sending: Sending, socket: &UdpSocket) -> Result<Self> {
        let count = if sending == Sending::Shared { SHARED } else { 1 };
        if sending == Sending::Shared {
            sys::allow_shared_sends(socket.as_fd()).context("the kernel does not offer MSG_ZEROCOPY for UDP")?;
        }
        Ok(Self { sending, buffers: vec![vec![0; SEGMENTS * PACKET]; count], sent: 0, done: 0, copied: 0 })
    }

    /// Buffer that the kernel does not read any more.
    fn next(&mut self, socket: &UdpSocket) -> Result<&mut [u8]> {
        while self.sending == Sending::Shared && self.sent - self.done >= self.buffers.len() {
            self.wait(socket)?;
        }
        let count = self.buffers.len();
        Ok(&mut self.buffers[self.sent % count])
    }

    fn send(&mut self, socket: &UdpSocket, len: usize) -> Result<()> {
        let batch = &self.buffers[self.sent % self.buffers.len()][..len];
        match self.sending {
            Sending::Copied => socket.send(batch)?,
            Sending::Shared => sys::send_shared(socket, batch)?,
        };
        self.sent += 1;
        Ok(())
    }

    fn wait(&mut self, socket: &UdpSocket) -> Result<()> {
        let (count, copied) = sys::sends_done(socket, SILENCE)?;
        self.done += count;
        self.copied += if copied { count } else { 0 };
        Ok(())
    }

    /// Says how many sends the kernel has copied.
    fn end(mut self, socket: &UdpSocket) -> Result<()> {
        if self.sending == Sending::Shared {
            while self.done < self.sent {
                self.wait(socket)?;
            }
            eprintln!("floor-zerocopy: the kernel has copied {} of {} sends", self.copied, self.sent);
        }
        Ok(())
    }
}

fn socket(address: SocketAddr) -> Result<(UdpSocket, u64)> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let granted = sys::set_socket_buffers(socket.as_fd(), Settings::SOCKET_BUFFER)?;
    socket.set_read_timeout(Some(SILENCE))?;
    Ok((socket, granted))
}

/// Receives one flow of bytes, whatever streams and connections others make of them.
pub fn serve(
    protection: Protection,
    job: Job,
    listen: SocketAddr,
    announce: impl FnOnce(&Announcement) -> Result<()>,
) -> Result<SideReport> {
    let bytes = job.amount;
    let (socket, socket_buffer) = socket(listen)?;
    sys::coalesce_receives(socket.as_fd()).context("the kernel does not offer GRO for UDP")?;
    // The client comes when the driver has started it, which may take longer than a silence within the transfer.
    socket.set_read_timeout(None)?;
    announce(&Announcement::new(socket.local_addr()?, &[]))?;
    let mut hello = [0; 1];
    let (_, client) = socket.recv_from(&mut hello)?;
    socket.connect(client)?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.send(&hello)?;

    let keys = Keys::fixed(protection);
    let mut check = Check::new(Check::block());
    let mut counts = Datagrams::default();
    let (mut send_calls, mut receive_calls) = (0, 0);
    let mut storage = vec![0; BATCH * BUFFER];
    let mut received = [Received::default(); BATCH];
    let mut meter = None;
    let mut next_ack = ACK_EVERY;
    while check.bytes() < bytes {
        let filled = sys::receive_batch(&socket, &mut storage, &mut received)
            .with_context(|| format!("no packet for {SILENCE:?} at byte {} of {bytes}", check.bytes()))?;
        meter.get_or_insert_with(Meter::start);
        receive_calls += 1;
        for (buffer, received) in storage.chunks_exact_mut(BUFFER).zip(&received[..filled]) {
            for packet in buffer[..received.len].chunks_mut(received.segment) {
                let (number, payload) = keys.open(packet, counts.received)?;
                ensure!(number == counts.received, "packet {} is missing: {number} came in its place", counts.received);
                check.take(payload)?;
                counts.received += 1;
            }
        }
        if check.bytes() >= next_ack || check.bytes() >= bytes {
            next_ack = check.bytes() + ACK_EVERY;
            send_ack(&socket, check.bytes())?;
            counts.sent += 1;
            send_calls += 1;
        }
    }
    let mut meter = meter.context("nothing to receive")?;
    meter.stop();
    let bytes = check.bytes();
    Ok(SideReport {
        content_samples: check.finish(bytes)?,
        socket_buffer: Some(socket_buffer),
        datagrams: Some(Datagrams { send_calls: Some(send_calls), receive_calls: Some(receive_calls), ..counts }),
        ..meter.report(Role::Server, bytes)
    })
}

/// An acknowledgement: how many bytes of payload have arrived. The last one is the answer to the stream.
fn send_ack(socket: &UdpSocket, bytes: u64) -> Result<()> {
    let mut ack = [0; 16];
    ack[..8].copy_from_slice(ANSWER);
    ack[8..].copy_from_slice(&bytes.to_be_bytes());
    socket.send(&ack)?;
    Ok(())
}

fn receive_ack(socket: &UdpSocket) -> Result<u64> {
    let mut ack = [0; 16];
    let len = socket.recv(&mut ack).with_context(|| format!("no acknowledgement for {SILENCE:?}"))?;
    let (answer, bytes) = ack.split_at(8);
    if len != ack.len() || answer != ANSWER {
        bail!("the server sent something that is no acknowledgement");
    }
    Ok(u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
}

/// Sends one flow of bytes.
pub fn run(protection: Protection, sending: Sending, job: Job, to: SocketAddr) -> Result<SideReport> {
    let bytes = job.amount;
    ensure!(bytes > 0, "nothing to send");
    let (socket, socket_buffer) = socket(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.connect(to)?;
    socket.send(&[0])?;
    socket.recv(&mut [0; 1]).context("the server does not answer")?;
    sys::segment_sends(socket.as_fd(), Settings::UDP_PAYLOAD).context("the kernel does not offer GSO for UDP")?;
    // Both sides run under the same limits, so this side's grant tells what the receiver's buffer holds.
    let window = WINDOW.min(socket_buffer / 4);

    let keys = Keys::fixed(protection);
    let source = Source::new();
    let mut counts = Datagrams::default();
    let mut batches = Batches::new(sending, &socket)?;
    let (mut sent, mut acknowledged) = (0_u64, 0_u64);
    let mut send_calls = 0;
    let mut meter = Meter::start();
    while sent < bytes {
        while sent - acknowledged > window {
            acknowledged = receive_ack(&socket)?;
            counts.received += 1;
        }
        let mut len = 0;
        for packet in batches.next(&socket)?.chunks_exact_mut(PACKET) {
            let payload = usize::try_from(bytes - sent).map_or(PAYLOAD, |rest| rest.min(PAYLOAD));
            if payload == 0 {
                break;
            }
            len += keys.seal(packet, counts.sent, source.at(sent, payload))?;
            sent += payload as u64;
            counts.sent += 1;
        }
        batches.send(&socket, len)?;
        send_calls += 1;
    }
    while acknowledged < bytes {
        acknowledged = receive_ack(&socket)?;
        counts.received += 1;
    }
    batches.end(&socket)?;
    meter.stop();
    Ok(SideReport {
        socket_buffer: Some(socket_buffer),
        // One acknowledgement per call.
        datagrams: Some(Datagrams { send_calls: Some(send_calls), receive_calls: Some(counts.received), ..counts }),
        ..meter.report(Role::Client, bytes)
    })
}
