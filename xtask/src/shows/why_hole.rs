//! A relay for UDP behind which large datagrams vanish once some bytes of a connection have passed: an MTU black hole that begins in the
//! middle of a transfer, for servers that discover the MTU at its start.

use std::{
    collections::HashMap,
    net::{SocketAddr, UdpSocket},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use clap::Parser;

/// Relay UDP, and drop large datagrams of a server that has sent some bytes (internal, for `shows realtime`).
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Listen here
    listen: SocketAddr,
    /// Server
    to: SocketAddr,
    /// Bytes that pass whatever their size
    after: u64,
    /// Largest payload that passes after them
    largest: usize,
}

/// A client that is silent for longer is forgotten.
const IDLE: Duration = Duration::from_secs(30);

/// Runs until it is killed.
pub(crate) fn run(args: &Args) -> ExitCode {
    match relay(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn relay(args: &Args) -> std::io::Result<()> {
    let socket = Arc::new(UdpSocket::bind(args.listen)?);
    println!("listening");
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = [0; 2_048];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        let upstream = match clients.get(&from) {
            Some(upstream) => upstream.clone(),
            None => {
                let upstream = Arc::new(UdpSocket::bind((args.listen.ip(), 0))?);
                upstream.connect(args.to)?;
                upstream.set_read_timeout(Some(IDLE))?;
                clients.insert(from, upstream.clone());
                let (down, socket, after, largest) = (upstream.clone(), socket.clone(), args.after, args.largest);
                thread::spawn(move || back(&down, &socket, from, after, largest));
                upstream
            }
        };
        // A server that is not there yet is like a loss.
        let _ = upstream.send(&buffer[..length]);
    }
}

fn back(upstream: &UdpSocket, socket: &UdpSocket, client: SocketAddr, after: u64, largest: usize) {
    let (mut passed, mut buffer) = (0, [0; 2_048]);
    while let Ok(length) = upstream.recv(&mut buffer) {
        passed += length as u64;
        if passed <= after || length <= largest {
            let _ = socket.send_to(&buffer[..length], client);
        }
    }
}
