//! Datagrams between this process and others at the same address: forwarded to them, forwarded by one that reads, or steered here by the
//! kernel.

use std::task::Context;

use super::Driver;
use crate::{
    shared::State,
    siblings::{Handed, Inbox},
    socket::Socket,
    steering::{Steered, SteeredSocket},
};

impl Driver {
    /// Takes a socket of the shard's own, in place of a copy of the first shard's.
    pub(super) fn take_joined(&mut self, state: &mut State) {
        let Some(joined) = state.joined.take() else { return };
        match Socket::new(joined) {
            Ok(mut socket) => {
                (socket.stats, socket.balancers) = (self.socket.stats, self.socket.balancers.take());
                self.socket = socket;
                self.reading = true;
            }
            Err(error) => tracing::error!("cannot read a socket that has joined: {error}"),
        }
    }

    /// Hands datagrams for other processes to them.
    pub(super) fn hand_to_siblings(&mut self, state: &mut State) {
        while let Some((to, datagram)) = state.endpoint.poll_foreign() {
            let way = self.socket.balancers.as_ref().and_then(|all| all.way_back(datagram.local));
            let stats = &mut self.socket.stats;
            match state.links.send(to, &datagram, way.as_ref()) {
                Handed::Over => stats.sibling_sent += 1,
                Handed::NoRoom => stats.sibling_dropped += 1,
                Handed::Gone => {
                    stats.sibling_gone += 1;
                    state.endpoint.answer_unclaimed(self.shared.clock.now(), &datagram);
                }
            }
        }
    }

    /// Takes datagrams that another process has read for this one. `true` when there may be more.
    pub(super) fn receive_from_siblings(&mut self, cx: &mut Context<'_>, state: &mut State) -> bool {
        if let Some(inbox) = state.inbox.take() {
            match Inbox::new(inbox) {
                Ok(inbox) => self.inbox = Some(inbox),
                Err(error) => tracing::error!("cannot take datagrams from another process: {error}"),
            }
        }
        let Some(inbox) = &mut self.inbox else { return false };
        let now = self.shared.clock.now();
        let (stats, tap, balancers) = (&mut self.socket.stats, &self.tap, &self.socket.balancers);
        let received = inbox.receive(cx, now, |mut datagram, way| {
            if let (Some(way), Some(balancers)) = (way, balancers) {
                datagram.local = Some(balancers.intern(way));
            }
            stats.sibling_received += 1;
            stats.sibling_payloads += datagram.payload.len().div_ceil(datagram.segment_size) as u64;
            tap.received(&datagram, balancers.as_ref());
            state.endpoint.handle_datagram(now, datagram);
        });
        received.unwrap_or_else(|error| {
            // The process that read is gone, and so is everything that it had for this one.
            tracing::debug!("no more datagrams from another process: {error}");
            self.inbox = None;
            false
        })
    }

    /// Reads what the kernel has steered to this process. `true` when there may be more.
    pub(super) fn receive_steered(&mut self, cx: &mut Context<'_>, state: &mut State) -> bool {
        if let Some(own) = state.own_socket.take() {
            self.steered = SteeredSocket::new(own);
        }
        let Some(steered) = &mut self.steered else { return false };
        let (tap, stats) = (&self.tap, &mut self.socket.stats);
        let outcome = steered.receive(cx, &self.shared.clock, |now, datagram, own| {
            stats.steered += 1;
            tap.received(&datagram, None);
            let misdirected = state.endpoint.handle_steered(now, datagram, own);
            stats.misdirected += misdirected;
            misdirected
        });
        self.hand_to_siblings(state);
        match outcome {
            Steered::More => true,
            Steered::Waiting => false,
            Steered::GivenUp => {
                self.steered = None;
                false
            }
        }
    }
}
