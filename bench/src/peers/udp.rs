//! Raw UDP sockets: what datagrams cost without a protocol.
//!
//! Three ways: a system call per datagram; batches (GSO and GRO); and batches of which each datagram is sealed as a packet of the
//! floor. The receiver says now and then how many have arrived, which only keeps the sender from overrunning the socket
//! buffer. A lost datagram voids the run.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    Announcement,
    floor::packet::{Keys, OVERHEAD, Protection},
};
use crate::{
    content::Source,
    job::{DATAGRAM, Job},
    meter::{Datagrams, Meter, Role, SideReport},
    stack::Settings,
    sys::{self, BATCH, BUFFER, Received},
};

/// Datagrams per send at most; as many as fit the 64 KiB that the kernel takes at once.
const SEGMENTS: usize = 53;
/// The receiver reports each time that this many have arrived.
const REPORT_EVERY: u64 = 256;
/// Bytes that the kernel counts for one datagram of this size in a socket buffer, at most.
const KERNEL_COST: u64 = 4_096;
/// Longest silence: on loopback it means that a datagram was lost.
const SILENCE: Duration = Duration::from_secs(5);

/// Mode of sending and receiving datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// One per system call.
    Single,
    /// Many per system call.
    Batched,
    /// Many per system call, each sealed and opened.
    Sealed,
}

fn socket(address: SocketAddr) -> Result<(UdpSocket, u64)> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let granted = sys::set_socket_buffers(socket.as_fd(), Settings::SOCKET_BUFFER)?;
    Ok((socket, granted))
}

/// Counts and looks at what arrives.
struct Arrivals<'a> {
    socket: &'a UdpSocket,
    source: Source,
    keys: Option<Keys>,
    count: u64,
    reports: u64,
    meter: Option<Meter>,
}

impl Arrivals<'_> {
    fn take(&mut self, datagram: &mut [u8]) -> Result<()> {
        self.meter.get_or_insert_with(Meter::start);
        let payload = match &self.keys {
            Some(keys) => {
                let (number, payload) = keys.open(datagram, self.count)?;
                ensure!(number == self.count, "datagram {} is missing", self.count);
                payload
            }
            None => datagram,
        };
        ensure!(payload.len() == DATAGRAM && payload[8..40] == *self.source.at(8, 32), "a datagram with wrong content");
        self.count += 1;
        Ok(())
    }

    /// Tells the sender how many there are, when it is time.
    fn report(&mut self, total: u64) -> Result<()> {
        if self.count >= (self.reports + 1) * REPORT_EVERY || self.count >= total {
            self.reports = self.count / REPORT_EVERY;
            self.socket.send(&self.count.to_be_bytes())?;
        }
        Ok(())
    }
}

/// Receives.
pub fn serve(
    way: SendMode,
    job: Job,
    listen: SocketAddr,
    announce: impl FnOnce(&Announcement) -> Result<()>,
) -> Result<SideReport> {
    let (socket, socket_buffer) = socket(listen)?;
    if way != SendMode::Single {
        sys::coalesce_receives(socket.as_fd()).context("the kernel does not offer GRO for UDP")?;
    }
    announce(&Announcement::new(socket.local_addr()?, &[]))?;
    let (_, client) = socket.recv_from(&mut [0; 1])?;
    socket.connect(client)?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.send(&[0])?;

    let keys = (way == SendMode::Sealed).then(|| Keys::fixed(Protection::Sealed));
    let mut arrivals = Arrivals { socket: &socket, source: Source::new(), keys, count: 0, reports: 0, meter: None };
    let mut calls = 0;
    let mut storage = vec![0; BATCH * BUFFER];
    let mut received = [Received::default(); BATCH];
    while arrivals.count < job.amount {
        let silent = || format!("nothing for {SILENCE:?}: a datagram was lost");
        if way == SendMode::Single {
            let len = socket.recv(&mut storage).with_context(silent)?;
            arrivals.take(&mut storage[..len])?;
        } else {
            let filled = sys::receive_batch(&socket, &mut storage, &mut received).with_context(silent)?;
            for (buffer, received) in storage.chunks_exact_mut(BUFFER).zip(&received[..filled]) {
                for datagram in buffer[..received.len].chunks_mut(received.segment) {
                    arrivals.take(datagram)?;
                }
            }
        }
        calls += 1;
        arrivals.report(job.amount)?;
    }
    let mut meter = arrivals.meter.context("nothing to receive")?;
    meter.stop();
    let datagrams = Datagrams { received: arrivals.count, receive_calls: Some(calls), ..Datagrams::default() };
    Ok(SideReport {
        content_samples: arrivals.count,
        socket_buffer: Some(socket_buffer),
        datagrams: Some(datagrams),
        ..meter.report(Role::Server, arrivals.count)
    })
}

/// Sends.
pub fn run(way: SendMode, job: Job, to: SocketAddr) -> Result<SideReport> {
    let (socket, socket_buffer) = socket(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.send(&[0])?;
    socket.recv(&mut [0; 1]).context("the server does not answer")?;
    let keys = (way == SendMode::Sealed).then(|| Keys::fixed(Protection::Sealed));
    let size = DATAGRAM + if keys.is_some() { OVERHEAD } else { 0 };
    if way != SendMode::Single {
        sys::segment_sends(socket.as_fd(), u16::try_from(size)?).context("the kernel does not offer GSO for UDP")?;
    }
    let window = (socket_buffer / 2 / KERNEL_COST).max(REPORT_EVERY + SEGMENTS as u64);

    let source = Source::new();
    let mut batch = vec![0; SEGMENTS * size];
    let (mut sent, mut arrived, mut calls) = (0, 0, 0);
    let mut reports = 0;
    let mut receive_report = || -> Result<u64> {
        let mut report = [0; 8];
        let len = socket.recv(&mut report).with_context(|| format!("nothing for {SILENCE:?}: a datagram was lost"))?;
        ensure!(len == report.len(), "the server sent something that is no report");
        reports += 1;
        Ok(u64::from_be_bytes(report))
    };
    let mut meter = Meter::start();
    while sent < job.amount {
        while sent - arrived > window {
            arrived = receive_report()?;
        }
        if way == SendMode::Single {
            socket.send(source.at(0, DATAGRAM))?;
            sent += 1;
        } else {
            let mut len = 0;
            for datagram in batch.chunks_exact_mut(size).take(usize::try_from(job.amount - sent).unwrap_or(usize::MAX))
            {
                match &keys {
                    Some(keys) => _ = keys.seal(datagram, sent, source.at(0, DATAGRAM))?,
                    None => datagram.copy_from_slice(source.at(0, DATAGRAM)),
                }
                sent += 1;
                len += size;
            }
            socket.send(&batch[..len])?;
        }
        calls += 1;
    }
    while arrived < job.amount {
        arrived = receive_report()?;
    }
    meter.stop();
    let datagrams = Datagrams { sent, send_calls: Some(calls), received: reports, ..Datagrams::default() };
    Ok(SideReport {
        socket_buffer: Some(socket_buffer),
        datagrams: Some(datagrams),
        ..meter.report(Role::Client, job.amount)
    })
}
