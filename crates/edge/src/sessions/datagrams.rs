//! Datagrams of a session, to a back end over UDP or to another session. There is no queue: datagrams that a socket or a connection does not accept at once are
//! dropped and counted.

use std::{io, net::SocketAddr};

use bytes::Bytes;
use webtransport::Session;

use super::halves::Counters;
use crate::{
    config::{host_port, webtransport::ECHO},
    masque::TargetSocket,
    observe::{Direction, DropReason},
    resolve::{self, Resolve},
};

/// Datagrams that are carried in one direction before the other gets its turn.
const TURN: usize = 64;

/// Carries datagrams both ways until the session has ended. The socket is opened with the first one.
pub(super) async fn carry(session: &Session, to: &str, resolver: &dyn Resolve, counters: &Counters) {
    let mut dropped = Dropped::new(Direction::Up);
    let Ok(first) = session.read_datagram().await else { return };
    if to.is_empty() {
        return discard(session, DropReason::NoTarget, counters).await;
    }
    if to == ECHO {
        return echo(session, first, counters).await;
    }
    let socket = match connect(to, resolver).await {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!("datagrams to {to}: {error}");
            return discard(session, DropReason::NotSent, counters).await;
        }
    };
    up(&socket, &first, counters);
    loop {
        tokio::select! {
            datagram = session.read_datagram() => match datagram {
                Ok(datagram) => up(&socket, &datagram, counters),
                Err(_) => break,
            },
            ready = socket.readable() => match ready {
                Ok(()) => down(&socket, session, counters),
                // The runtime ends.
                Err(_) => return,
            },
        }
        dropped.count(session, counters);
    }
    dropped.count(session, counters);
}

/// Reads datagrams that go nowhere, the first of which was read before.
async fn discard(session: &Session, reason: DropReason, counters: &Counters) {
    loop {
        counters.traffic.on_drop(Direction::Up, reason);
        if session.read_datagram().await.is_err() {
            return;
        }
    }
}

/// Sends datagrams back, the first of which was read before.
async fn echo(session: &Session, first: Bytes, counters: &Counters) {
    let mut next = Ok(first);
    while let Ok(payload) = next {
        counters.on_datagram(Direction::Up, payload.len());
        to_session(session, &payload, Direction::Down, counters);
        next = session.read_datagram().await;
    }
}

/// Carries datagrams from one session to another until the first has ended.
pub(super) async fn pass_on(from: &Session, to: &Session, direction: Direction, counters: &Counters) {
    let mut dropped = Dropped::new(direction);
    loop {
        for _ in 0..TURN {
            let datagram = from.read_datagram().await;
            dropped.count(from, counters);
            match datagram {
                Ok(payload) => to_session(to, &payload, direction, counters),
                Err(_) => return,
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Datagrams of a direction dropped because too many waited, as far as counted.
struct Dropped {
    direction: Direction,
    counted: u64,
}

impl Dropped {
    fn new(direction: Direction) -> Self {
        Self { direction, counted: 0 }
    }

    fn count(&mut self, session: &Session, counters: &Counters) {
        let all = session.datagrams_dropped().max(self.counted);
        counters.traffic.on_drops(self.direction, DropReason::QueueFull, all - self.counted);
        self.counted = all;
    }
}

/// Opens a socket to a back end by name.
async fn connect(to: &str, resolver: &dyn Resolve) -> io::Result<TargetSocket> {
    let target = host_port(to, "udp://").and_then(|rest| rest.rsplit_once(':'));
    let (host, port) = target.ok_or(io::ErrorKind::InvalidInput)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().map_err(io::Error::other)?;
    let found = resolve::addresses(resolver, host, port).await?;
    let address: SocketAddr = found.into_iter().next().ok_or(io::ErrorKind::NotFound)?;
    TargetSocket::connect(address).await
}

fn up(socket: &TargetSocket, payload: &[u8], counters: &Counters) {
    match socket.try_send(payload) {
        Ok(()) => counters.on_datagram(Direction::Up, payload.len()),
        Err(error) => counters.traffic.on_drop(Direction::Up, DropReason::of(&error)),
    }
}

fn to_session(session: &Session, payload: &[u8], direction: Direction, counters: &Counters) {
    let is_too_large = session.max_datagram_size().is_some_and(|max| payload.len() > max);
    match session.send_datagram(payload) {
        Ok(()) => counters.on_datagram(direction, payload.len()),
        Err(_) if is_too_large => counters.traffic.on_drop(direction, DropReason::TooLarge),
        Err(_) => counters.traffic.on_drop(direction, DropReason::NotSent),
    }
}

fn down(socket: &TargetSocket, session: &Session, counters: &Counters) {
    let mut count = 0;
    while count < TURN {
        match socket.try_receive(|payload| to_session(session, payload, Direction::Down, counters)) {
            Ok(received) => count += received,
            // Nothing more waits; or the back end is not there at the moment, which the next datagram shows again.
            Err(_) => return,
        }
    }
}
