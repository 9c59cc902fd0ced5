//! Kernel TCP with TLS 1.3 in user space by rustls: blocking sockets, writes of 256 KiB, the system's congestion control.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::{ANSWER, Announcement};
use crate::{
    content::{Check, Source},
    identity::{self, Identity, SERVER_NAME},
    meter::{Meter, Role, SideReport},
};

/// Most bytes taken per read.
const READ: usize = 256 << 10;

/// Receives a stream.
pub fn serve(listen: SocketAddr, bytes: u64, announce: impl FnOnce(&Announcement) -> Result<()>) -> Result<SideReport> {
    let identity = Identity::generate()?;
    let trust = identity.authority.clone();
    let tls = Arc::new(identity.server_config()?);
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    announce(&Announcement::new(listener.local_addr()?, &trust))?;

    let (socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let mut stream = StreamOwned::new(ServerConnection::new(tls)?, socket);
    let mut buffer = vec![0; READ];
    let mut check = Check::new();
    let mut meter = None;
    while check.bytes() < bytes {
        let len = stream.read(&mut buffer)?;
        ensure!(len > 0, "the stream ended at byte {} of {bytes}", check.bytes());
        meter.get_or_insert_with(Meter::first_byte);
        check.take(&buffer[..len])?;
    }
    let mut meter = meter.context("nothing to receive")?;
    meter.last_byte();
    stream.write_all(ANSWER)?;
    stream.conn.send_close_notify();
    stream.flush()?;
    Ok(SideReport { content_samples: check.finish(bytes)?, ..meter.report(Role::Receiver, bytes) })
}

/// Sends a stream.
pub fn send(to: SocketAddr, trust: &[u8], bytes: u64) -> Result<SideReport> {
    let tls = Arc::new(identity::client_config(trust)?);
    let socket = TcpStream::connect(to).with_context(|| format!("cannot reach {to}"))?;
    socket.set_nodelay(true)?;
    let mut stream = StreamOwned::new(ClientConnection::new(tls, SERVER_NAME.try_into()?)?, socket);
    stream.conn.complete_io(&mut stream.sock)?;
    let source = Source::new();
    let mut sent = 0;
    let mut meter = Meter::first_byte();
    while sent < bytes {
        let len = Source::write_len(sent, bytes);
        stream.write_all(source.at(sent, len))?;
        sent += len as u64;
    }
    stream.flush()?;
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer)?;
    meter.last_byte();
    ensure!(&answer == ANSWER, "the server's answer is wrong");
    Ok(meter.report(Role::Sender, bytes))
}
