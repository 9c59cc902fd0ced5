//! Change to a network that the system has announced.
//!
//! While the network in use still leads to the server, a connection first validates the path from the new address (PATH_CHALLENGE), and moves
//! when the server answers there: a new network may lead nowhere. Where the network in use is gone, or the server does not answer over it any
//! more, there is nothing to lose, and the connection moves at once.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    pin::pin,
    time::{Duration, Instant},
};

use tiderace::{Connection, Endpoint};
use tokio::sync::watch;

use crate::roaming::{activity, interface_of, patience};

/// Time after which a network that did not lead to the server is asked again.
const PAUSE: Duration = Duration::from_secs(10);
/// Interval between looks whether the network in use is still there.
const LOOK: Duration = Duration::from_millis(500);

/// Moves of one connection.
#[derive(Debug)]
pub(crate) struct Handover {
    remote: SocketAddr,
    /// Address from which the server did not answer, and the time at which it is asked again.
    unanswered: Option<(IpAddr, Instant)>,
}

impl Handover {
    pub(crate) fn new(remote: SocketAddr) -> Self {
        Self { remote, unanswered: None }
    }

    /// Time until a network is asked again.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let left = self.unanswered.map(|(_, again)| again.saturating_duration_since(Instant::now()));
        left.filter(|left| !left.is_zero())
    }

    /// Notes that the system chooses the network in use.
    pub(crate) fn settle(&mut self) {
        self.unanswered = None;
    }

    /// Moves a connection to `new`. `old` is the address in use, if its network is one that the system chose. Returns whether the connection
    /// has moved, or has begun to.
    pub(crate) async fn go(
        &mut self,
        (endpoint, connection): (&Endpoint, &Connection),
        old: Option<IpAddr>,
        new: IpAddr,
        changes: &mut watch::Receiver<u64>,
    ) -> bool {
        let interface = || old.and_then(|old| interface_of(old, self.remote));
        let Some(in_use) = interface() else {
            self.unanswered = None;
            return move_at_once(endpoint, new);
        };
        if self.unanswered.is_some_and(|(address, again)| address == new && Instant::now() < again) {
            return false;
        }
        let Some(socket) = bind(new) else { return false };
        // An answer shows that the network in use leads to the server.
        let (begun, heard) = (Instant::now(), activity(connection).1);
        let patience = patience(connection.rtt());
        connection.ping();
        // The new route must not lead packets of the network in use into the other one, with an address that is not of it.
        let mut moving = pin!(endpoint.migrate(socket, Some(&in_use)));
        let look = LOOK.min(patience);
        let has_moved = loop {
            tokio::select! {
                moved = &mut moving => break moved.unwrap_or_else(|error| {
                    tracing::debug!("the connection cannot move to {new}: {error}");
                    false
                }),
                _ = changes.changed() => {}
                () = tokio::time::sleep(look) => {}
            }
            let is_silent = begun.elapsed() >= patience && activity(connection).1 == heard;
            if is_silent || interface().is_none() {
                break move_at_once(endpoint, new);
            }
        };
        self.unanswered = (!has_moved).then(|| (new, Instant::now() + PAUSE));
        match has_moved {
            true => tracing::debug!("the connection is at {new} from here on"),
            false => tracing::info!("{} does not answer over the new network: the connection stays", self.remote),
        }
        has_moved
    }
}

fn move_at_once(endpoint: &Endpoint, address: IpAddr) -> bool {
    tracing::debug!("this host is at {address} from here on");
    if let Some(socket) = bind(address) {
        continue_on(endpoint, socket);
    }
    true
}

fn bind(address: IpAddr) -> Option<UdpSocket> {
    let socket = UdpSocket::bind((address, 0));
    socket.inspect_err(|error| tracing::debug!("the connection cannot move to {address}: {error}")).ok()
}

/// Continues on another socket, whatever lies behind it.
pub(crate) fn continue_on(endpoint: &Endpoint, socket: UdpSocket) {
    if let Err(error) = endpoint.rebind(socket) {
        tracing::debug!("the connection cannot move: {error}");
    }
}
