//! A client on its way to another network: the second socket, until nothing is sent from the first one any more.

use std::{
    io,
    net::IpAddr,
    task::{Context, Poll},
};

use tokio::sync::oneshot;
use transport::{MoveState, Transmit};
use units::{Duration, Instant};

use super::{Driver, READS_PER_PASS};
use crate::{
    next_socket::NextSocket,
    shared::State,
    socket::{Socket, is_transient},
};

/// Time in which the first socket is still read after the move: packets of the server are under way to it.
const LINGER: Duration = Duration::from_secs(1);

/// Second socket of a client.
pub(super) struct Moving {
    socket: Socket,
    local: IpAddr,
    outcome: Option<oneshot::Sender<bool>>,
    /// End of the time in which both sockets are read; set when all connections have moved.
    until: Option<Instant>,
}

impl Moving {
    fn tell(&mut self, has_moved: bool) {
        if let Some(outcome) = self.outcome.take() {
            // The application may not wait for it.
            let _ = outcome.send(has_moved);
        }
    }
}

impl Driver {
    /// Begins to validate paths from a socket that the application has given. One that is being tried is given up.
    pub(super) fn begin_move(&mut self, state: &mut State) {
        let Some(next) = state.next.take() else { return };
        let NextSocket { socket, local, hold, outcome } = *next;
        let mut moving = Moving { socket, local, outcome: Some(outcome), until: None };
        self.finish_move(state);
        if !state.endpoint.migrate(self.shared.clock.now(), local) {
            moving.tell(false);
            return;
        }
        if let Some(device) = hold
            && let Err(error) = self.socket.stay_on(&device)
        {
            tracing::debug!("the socket in use follows the routes, and not {device} alone: {error}");
        }
        self.moving = Some(moving);
    }

    /// Uses the second socket alone, when connections have moved to it.
    fn finish_move(&mut self, state: &State) {
        let Some(mut moving) = self.moving.take() else { return };
        let has_moved = state.endpoint.move_states(moving.local).any(|one| one == MoveState::Arrived);
        moving.tell(has_moved);
        if has_moved {
            moving.socket.stats += self.socket.stats;
            self.socket = moving.socket;
        }
    }

    /// Looks how far a move is.
    pub(super) fn follow_move(&mut self, state: &State) {
        let Some(moving) = &mut self.moving else { return };
        let (mut arrived, mut under_way, mut abandoned) = (0, 0, 0);
        for one in state.endpoint.move_states(moving.local) {
            *match one {
                MoveState::Arrived => &mut arrived,
                MoveState::UnderWay => &mut under_way,
                MoveState::Abandoned => &mut abandoned,
            } += 1;
        }
        if arrived > 0 {
            moving.tell(true);
        }
        if arrived + under_way == 0 {
            moving.tell(false);
            self.moving = None;
        } else if under_way + abandoned == 0 {
            let now = self.shared.clock.now();
            if now >= *moving.until.get_or_insert(now + LINGER) {
                self.finish_move(state);
            }
        }
    }

    /// Time of the next look.
    pub(super) fn move_deadline(&self) -> Option<Instant> {
        self.moving.as_ref()?.until
    }

    /// Forgets a move, because the application has replaced the socket.
    pub(super) fn forget_move(&mut self) {
        self.moving = None;
    }

    /// Socket for a transmit: the second one for paths from its address.
    pub(super) fn socket_for(&mut self, transmit: &Transmit) -> &mut Socket {
        match &mut self.moving {
            Some(moving) if transmit.local == Some(moving.local) => &mut moving.socket,
            _ => &mut self.socket,
        }
    }

    /// Reads the second socket. `true` when there may be more.
    pub(super) fn receive_moving(&mut self, cx: &mut Context<'_>, state: &mut State) -> bool {
        let Some(moving) = &mut self.moving else { return false };
        let (tap, local) = (&self.tap, moving.local);
        for _ in 0..READS_PER_PASS {
            let read = moving.socket.poll_recv(cx, &self.shared.clock, |now, mut datagram, _| {
                datagram.local = Some(local);
                tap.received(&datagram, None);
                state.endpoint.handle_datagram(now, datagram);
            });
            match read {
                Poll::Pending => return false,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::WouldBlock || is_transient(&error) => {}
                Poll::Ready(Err(error)) => {
                    tracing::debug!("cannot read from the socket at {local}: {error}");
                    return false;
                }
            }
        }
        true
    }
}
