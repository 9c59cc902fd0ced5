//! Request and response: each slot of the client has one request in flight and sends the next when the response is complete. Every request
//! has its own stream.

use std::collections::BTreeMap;

use units::Instant;

use super::{End, Scope, pattern};
use crate::{
    host::{Host, HostEvent, ReadEnd, Stream, Written},
    scenario::Traffic,
};

/// One end of a connection with requests.
#[derive(Debug)]
pub(super) struct Requests {
    end: End,
    /// Set if this end receives the measured bytes.
    counts: bool,
    /// Bytes that this end sends on each stream, and that it expects.
    sends: u64,
    expects: u64,
    /// Size of the first of them, in the direction that is measured.
    warm: Option<u64>,
    /// Slots without a request.
    idle: u32,
    /// Requests still to be made; `None`: without end.
    left: Option<u32>,
    streams: BTreeMap<Stream, Exchange>,
}

/// One stream, as seen from one end.
#[derive(Debug)]
struct Exchange {
    since: Instant,
    sends: u64,
    expects: u64,
    sent: u64,
    received: u64,
    /// Permission to send: always at the client, at the server when the request is complete.
    sending: bool,
    complete: bool,
}

impl Requests {
    pub(super) fn new(end: End, counts: bool, traffic: &Traffic, left: Option<u32>) -> Self {
        let (request, response) = (traffic.request_size().as_bytes(), traffic.response_size().as_bytes());
        let (sends, expects, idle) = match end {
            End::Client => (request, response, traffic.streams),
            End::Server => (response, request, 0),
        };
        let warm = traffic.warm_bytes.map(|bytes| bytes.as_bytes());
        Self { end, counts, sends, expects, warm, idle, left, streams: BTreeMap::new() }
    }

    pub(super) fn on_event(&mut self, host: &mut impl Host, event: &HostEvent, scope: &mut Scope<'_>) {
        match *event {
            HostEvent::Early | HostEvent::Established | HostEvent::Available => self.fill(host, scope),
            HostEvent::Opened => {
                while let Some(stream) = host.accept() {
                    self.begin(stream, false, scope.now);
                    self.receive(host, stream, scope);
                }
            }
            HostEvent::Writable(stream) => self.send(host, stream),
            HostEvent::Readable(stream) => {
                self.receive(host, stream, scope);
                self.fill(host, scope);
            }
            _ => {}
        }
    }

    /// Gives every idle slot its next request.
    fn fill(&mut self, host: &mut impl Host, scope: &Scope<'_>) {
        while self.idle > 0 && self.left != Some(0) {
            let Some(stream) = host.open() else { return };
            self.idle -= 1;
            self.left = self.left.map(|left| left - 1);
            self.begin(stream, true, scope.now);
            self.send(host, stream);
        }
    }

    fn begin(&mut self, stream: Stream, sending: bool, now: Instant) {
        let (mut sends, mut expects) = (self.sends, self.expects);
        if let Some(bytes) = self.warm.take() {
            *if self.counts { &mut expects } else { &mut sends } = bytes;
        }
        let exchange = Exchange { since: now, sends, expects, sent: 0, received: 0, sending, complete: false };
        self.streams.insert(stream, exchange);
    }

    fn send(&mut self, host: &mut impl Host, stream: Stream) {
        let Some(exchange) = self.streams.get_mut(&stream) else { return };
        if !exchange.sending {
            return;
        }
        while exchange.sent < exchange.sends {
            match host.write(stream, &mut pattern(exchange.sent, exchange.sends - exchange.sent)) {
                Written::Bytes(taken) => exchange.sent += taken as u64,
                Written::Blocked => return,
                Written::Closed => break,
            }
        }
        exchange.sending = false;
        host.finish(stream);
        self.forget_if_done(stream);
    }

    fn receive(&mut self, host: &mut impl Host, stream: Stream, scope: &mut Scope<'_>) {
        let counts = self.counts;
        let Some(exchange) = self.streams.get_mut(&stream) else { return };
        let received = &mut exchange.received;
        let end = host.read(stream, &mut |data| {
            scope.received(*received, data, counts);
            *received += data.len() as u64;
        });
        if end == ReadEnd::Blocked || exchange.complete {
            return;
        }
        exchange.complete = true;
        if end == ReadEnd::Finished {
            // A message that is shorter or longer than agreed is wrong in as many bytes.
            scope.tally.wrong_bytes += exchange.received.abs_diff(exchange.expects);
        }
        match self.end {
            End::Client => {
                if end == ReadEnd::Finished {
                    scope.tally.answered = Some(scope.now);
                }
                if end == ReadEnd::Finished && scope.window.contains(scope.now) {
                    scope.tally.requests.push(scope.now - exchange.since);
                }
                self.idle += 1;
                self.forget_if_done(stream);
            }
            End::Server => {
                exchange.sending = true;
                self.send(host, stream);
            }
        }
    }

    fn forget_if_done(&mut self, stream: Stream) {
        if self.streams.get(&stream).is_some_and(|exchange| exchange.complete && !exchange.sending) {
            self.streams.remove(&stream);
        }
    }
}
