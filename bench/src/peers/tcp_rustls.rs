//! Kernel TCP with TLS 1.3 in user space by rustls: blocking sockets, the system's congestion control.
//!
//! Bulk data is written 256 KiB at a time, with a thread per connection where there are many. TCP has no streams and no
//! datagrams, so the modes that need them do not exist.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Barrier, OnceLock},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use super::{ANSWER, Announcement};
use crate::{
    content::{Check, Source},
    identity::{self, Operations, SERVER_NAME, ServerIdentity},
    job::{HANDSHAKES_BEFORE, IDLE_BEFORE, Job},
    meter::{Meter, Role, SideReport, resident_bytes},
    mode::Mode,
};

/// Most bytes taken per read.
const READ: usize = 256 << 10;
/// Before memory is read, as for the other contenders.
const SETTLE: Duration = Duration::from_millis(1_500);

type ServerStream = StreamOwned<ServerConnection, TcpStream>;
type ClientStream = StreamOwned<ClientConnection, TcpStream>;

/// Plays the server.
pub fn serve(job: Job, listen: SocketAddr, announce: impl FnOnce(&Announcement) -> Result<()>) -> Result<SideReport> {
    let identity = ServerIdentity::generate()?;
    let tls = Arc::new(identity.server_config(job.resumes(), false)?);
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    announce(&Announcement::new(listener.local_addr()?, &identity.authority))?;
    match job.mode {
        Mode::Bulk | Mode::BulkConnections => receive_bulk(&listener, &tls, job),
        Mode::Handshake | Mode::Resumed | Mode::PostQuantum => accept_handshakes(&listener, &tls, job),
        Mode::Idle => keep_idle(&listener, &tls, job),
        Mode::BulkStreams | Mode::Requests | Mode::Datagrams | Mode::Latency => {
            bail!("TCP has no streams and no datagrams")
        }
    }
}

/// Plays the client.
pub fn run(job: Job, to: SocketAddr, trust: &[u8]) -> Result<SideReport> {
    let tls = Arc::new(identity::client_config(trust, job.resumes(), false)?);
    match job.mode {
        Mode::Bulk | Mode::BulkConnections => send_bulk(&tls, job, to),
        Mode::Handshake | Mode::Resumed | Mode::PostQuantum => connect_handshakes(&tls, job, to),
        Mode::Idle => open_idle(&tls, job, to),
        Mode::BulkStreams | Mode::Requests | Mode::Datagrams | Mode::Latency => {
            bail!("TCP has no streams and no datagrams")
        }
    }
}

/// The next connection, its handshake complete.
fn accept(listener: &TcpListener, tls: &Arc<ServerConfig>) -> Result<ServerStream> {
    let (mut socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let mut connection = ServerConnection::new(tls.clone())?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(connection, socket))
}

/// A connection, its handshake complete.
fn connect(tls: &Arc<ClientConfig>, to: SocketAddr) -> Result<ClientStream> {
    let mut socket = TcpStream::connect(to).with_context(|| format!("cannot reach {to}"))?;
    socket.set_nodelay(true)?;
    let mut connection = ClientConnection::new(tls.clone(), SERVER_NAME.try_into()?)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(connection, socket))
}

fn receive_bulk(listener: &TcpListener, tls: &Arc<ServerConfig>, job: Job) -> Result<SideReport> {
    let bytes = job.bytes_per_stream()?;
    let block = Check::block();
    let began = OnceLock::new();
    let streams = (0..job.connections()).map(|_| accept(listener, tls)).collect::<Result<Vec<_>>>()?;
    let (samples, mut streams) = thread::scope(|scope| {
        let receivers: Vec<_> = streams
            .into_iter()
            .map(|stream| {
                let (began, check) = (&began, Check::new(block.clone()));
                scope.spawn(move || receive(stream, check, bytes, began))
            })
            .collect();
        let mut samples = 0;
        let mut streams = Vec::new();
        for receiver in receivers {
            let (more, stream) = receiver.join().expect("a receiver does not panic")?;
            samples += more;
            streams.push(stream);
        }
        Ok::<_, anyhow::Error>((samples, streams))
    })?;
    let mut meter: Meter = *began.get().context("nothing to receive")?;
    meter.stop();
    for stream in &mut streams {
        stream.write_all(ANSWER)?;
        stream.conn.send_close_notify();
        stream.flush()?;
    }
    Ok(SideReport { content_samples: samples, ..meter.report(Role::Server, bytes * job.connections()) })
}

fn receive(
    mut stream: ServerStream,
    mut check: Check,
    bytes: u64,
    began: &OnceLock<Meter>,
) -> Result<(u64, ServerStream)> {
    let mut buffer = vec![0; READ];
    while check.bytes() < bytes {
        let len = stream.read(&mut buffer)?;
        ensure!(len > 0, "the stream ended at byte {} of {bytes}", check.bytes());
        began.get_or_init(Meter::start);
        check.take(&buffer[..len])?;
    }
    Ok((check.finish(bytes)?, stream))
}

fn send_bulk(tls: &Arc<ClientConfig>, job: Job, to: SocketAddr) -> Result<SideReport> {
    let bytes = job.bytes_per_stream()?;
    let source = Source::new();
    let streams = (0..job.connections()).map(|_| connect(tls, to)).collect::<Result<Vec<_>>>()?;
    let ready = Barrier::new(streams.len() + 1);
    let mut meter = Meter::start();
    thread::scope(|scope| {
        let senders: Vec<_> = streams
            .into_iter()
            .map(|stream| {
                let (source, ready) = (&source, &ready);
                scope.spawn(move || {
                    ready.wait();
                    send(stream, source, bytes)
                })
            })
            .collect();
        // The threads exist: what they cost to start is no part of sending.
        meter = Meter::start();
        ready.wait();
        senders.into_iter().try_for_each(|sender| sender.join().expect("a sender does not panic"))
    })?;
    meter.stop();
    Ok(meter.report(Role::Client, bytes * job.connections()))
}

fn send(mut stream: ClientStream, source: &Source, bytes: u64) -> Result<()> {
    let mut sent = 0;
    while sent < bytes {
        let len = Source::write_len(sent, bytes);
        stream.write_all(source.at(sent, len))?;
        sent += len as u64;
    }
    stream.flush()?;
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == ANSWER, "the server's answer is wrong");
    Ok(())
}

/// Reads one byte and answers with one.
fn answer(stream: &mut ServerStream) -> Result<()> {
    let mut request = [0; 1];
    stream.read_exact(&mut request)?;
    ensure!(&request == b"?", "the client's request is wrong");
    stream.write_all(b"!")?;
    Ok(stream.flush()?)
}

/// Asks one byte and reads the answer.
fn ask(stream: &mut ClientStream) -> Result<()> {
    stream.write_all(b"?")?;
    stream.flush()?;
    let mut answer = [0; 1];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"!", "the server's answer is wrong");
    Ok(())
}

fn accept_handshakes(listener: &TcpListener, tls: &Arc<ServerConfig>, job: Job) -> Result<SideReport> {
    let mut meter = Meter::start();
    let mut before = Operations::read();
    for number in 0..HANDSHAKES_BEFORE + job.amount {
        if number == HANDSHAKES_BEFORE {
            meter = Meter::start();
            before = Operations::read();
        }
        let mut stream = accept(listener, tls)?;
        answer(&mut stream)?;
        // The client closes.
        ensure!(stream.read(&mut [0; 1])? == 0, "the client goes on");
    }
    meter.stop();
    let operations = Operations::read().since(before);
    Ok(SideReport {
        signatures: Some(operations.signatures),
        key_agreements: Some(operations.key_agreements),
        ..meter.report(Role::Server, job.amount)
    })
}

fn connect_handshakes(tls: &Arc<ClientConfig>, job: Job, to: SocketAddr) -> Result<SideReport> {
    let mut meter = Meter::start();
    for number in 0..HANDSHAKES_BEFORE + job.amount {
        if number == HANDSHAKES_BEFORE {
            meter = Meter::start();
        }
        let mut stream = connect(tls, to)?;
        ask(&mut stream)?;
        stream.conn.send_close_notify();
        stream.flush()?;
    }
    meter.stop();
    Ok(meter.report(Role::Client, job.amount))
}

/// The sockets themselves are in the kernel, and not in what is measured.
fn keep_idle(listener: &TcpListener, tls: &Arc<ServerConfig>, job: Job) -> Result<SideReport> {
    let mut streams = Vec::with_capacity(usize::try_from(IDLE_BEFORE + job.amount)?);
    let mut memory = [0; 2];
    let mut meter = Meter::start();
    for (stage, count) in [IDLE_BEFORE, job.amount].into_iter().enumerate() {
        meter = Meter::start();
        for _ in 1..count {
            let mut stream = accept(listener, tls)?;
            answer(&mut stream)?;
            streams.push(stream);
        }
        // The client waits for the last answer before it continues.
        let mut stream = accept(listener, tls)?;
        thread::sleep(SETTLE);
        meter.stop();
        memory[stage] = resident_bytes()?;
        answer(&mut stream)?;
        streams.push(stream);
    }
    for stream in &mut streams {
        ensure!(stream.read(&mut [0; 1])? == 0, "a client goes on");
    }
    let memory_growth = Some(memory[1].saturating_sub(memory[0]));
    Ok(SideReport { memory_growth, ..meter.report(Role::Server, job.amount) })
}

fn open_idle(tls: &Arc<ClientConfig>, job: Job, to: SocketAddr) -> Result<SideReport> {
    let mut streams = Vec::new();
    let mut meter = Meter::start();
    for number in 0..IDLE_BEFORE + job.amount {
        if number == IDLE_BEFORE {
            meter = Meter::start();
        }
        let mut stream = connect(tls, to)?;
        ask(&mut stream)?;
        streams.push(stream);
    }
    meter.stop();
    for stream in &mut streams {
        stream.conn.send_close_notify();
        stream.flush()?;
    }
    Ok(meter.report(Role::Client, job.amount))
}
