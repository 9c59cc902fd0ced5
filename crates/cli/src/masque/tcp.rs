//! A local TCP port whose connections are tunnels.

use std::{io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use client::masque::{ProxyError, TcpTunnel};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{PortArgs, Target, Tunnels, refused};
use crate::{address, failure::Failure, interrupt::Interrupt, stdout::write_json_line};

/// Connections at a time; further ones wait to be accepted.
const CONNECTIONS: usize = 256;
/// Bytes that are read at once.
const READ: usize = 16 * 1024;

/// Runs until it is interrupted.
pub(super) async fn run(
    args: &PortArgs,
    tunnels: &Arc<Tunnels>,
    mut interrupt: Interrupt,
) -> Result<ExitCode, Failure> {
    let listener = TcpListener::bind(args.listen).await.map_err(|error| address::cannot_listen(args.listen, &error))?;
    let bound = listener.local_addr().map_err(|error| address::cannot_listen(args.listen, &error))?;
    let target = args.target()?;
    if let Err(error) = tunnels.proxy.connect().await {
        return Ok(refused(&error));
    }
    args.announce(bound, tunnels)?;
    let mut tasks = tokio::task::JoinSet::new();
    let mut connections = 0_u64;
    loop {
        tokio::select! {
            accepted = listener.accept(), if tasks.len() < CONNECTIONS => match accepted {
                Ok((stream, peer)) => {
                    connections += 1;
                    tasks.spawn(tunnel(stream, peer, tunnels.clone(), target.clone()));
                }
                // No descriptor is free, or the client has gone.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = tasks.join_next() => {}
            () = interrupt.wait() => break,
        }
    }
    tasks.shutdown().await;
    tunnels.connections.end_reports().await;
    if tunnels.json {
        write_json_line(&json!({ "event": "total", "connections": connections }))?;
    } else {
        eprintln!("{connections} connections");
    }
    Ok(ExitCode::SUCCESS)
}

/// End of a connection before its time.
pub(super) enum Broken {
    /// The proxy refused the tunnel, or it broke off.
    Tunnel(ProxyError),
    /// Error of the connection of the program.
    Program(io::Error),
}

impl From<ProxyError> for Broken {
    fn from(error: ProxyError) -> Self {
        Self::Tunnel(error)
    }
}

impl Broken {
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Tunnel(error) => error.to_string(),
            Self::Program(error) => format!("the connection of the program broke off: {}", address::plain(error)),
        }
    }

    /// Advice for the user.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Tunnel(error) => Some(error.hint()),
            Self::Program(_) => None,
        }
    }
}

/// Opens the tunnel of one connection, carries it, and reports its outcome.
async fn tunnel(mut stream: TcpStream, peer: SocketAddr, tunnels: Arc<Tunnels>, target: Target) {
    let mut bytes = Carried::default();
    let carried = match tunnels.proxy.open_tcp(&target.host, target.port).await {
        Ok(tunnel) => carry(&mut stream, tunnel, Bytes::new(), &mut bytes).await,
        Err(error) => {
            reset(&stream);
            Err(error.into())
        }
    };
    let reason = carried.as_ref().map_or_else(Broken::reason, |()| "ended".to_owned());
    let hint = carried.as_ref().err().and_then(Broken::hint);
    let Carried { up, down, protocol } = bytes;
    let event = json!({
        "event": "closed", "peer": peer.to_string(), "reason": reason, "protocol": protocol, "up_bytes": up,
        "down_bytes": down, "hint": hint,
    });
    let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    tunnels.report(&event, &format!("{peer}: {reason}{hint}; {up} bytes up, {down} down"));
}

/// Makes the end of a connection a reset: what breaks off must not look complete.
pub(super) fn reset(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Bytes carried by a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) up: u64,
    pub(super) down: u64,
    /// Protocol of the tunnel, if one was opened.
    pub(super) protocol: Option<&'static str>,
}

/// Carries a connection both ways until both directions have ended. `first` was read from the program before. A connection that breaks off is
/// reset when it is dropped.
pub(super) async fn carry(
    stream: &mut TcpStream,
    tunnel: TcpTunnel,
    first: Bytes,
    carried: &mut Carried,
) -> Result<(), Broken> {
    carried.protocol = Some(tunnel.protocol());
    let ended = both_ways(stream, tunnel, first, carried).await;
    if ended.is_err() {
        reset(stream);
    }
    ended
}

async fn both_ways(
    stream: &mut TcpStream,
    tunnel: TcpTunnel,
    first: Bytes,
    Carried { up, down, .. }: &mut Carried,
) -> Result<(), Broken> {
    let (mut sender, mut receiver) = tunnel.split();
    let (mut from, mut to) = stream.split();
    let sending = async {
        if !first.is_empty() {
            let length = first.len() as u64;
            sender.send(first).await?;
            *up += length;
        }
        let mut read = BytesMut::new();
        loop {
            read.reserve(READ);
            match from.read_buf(&mut read).await {
                Ok(0) => {
                    drop(sender);
                    return Ok(());
                }
                Ok(length) => {
                    sender.send(read.split().freeze()).await?;
                    *up += length as u64;
                }
                Err(error) => {
                    sender.abort("the connection of the program broke off");
                    return Err(Broken::Program(error));
                }
            }
        }
    };
    let receiving = async {
        while let Some(data) = receiver.recv().await? {
            to.write_all(&data).await.map_err(Broken::Program)?;
            *down += data.len() as u64;
        }
        to.shutdown().await.map_err(Broken::Program)
    };
    tokio::try_join!(sending, receiving).map(drop)
}
