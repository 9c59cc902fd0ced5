//! Bulk: streams that always have data to send.
//!
//! The client opens the streams. For a download it sends one byte and the end, and the server sends without end; for an upload the client
//! sends without end.

use std::collections::BTreeMap;

use units::Instant;

use super::{End, Scope, pattern};
use crate::{
    host::{Host, HostEvent, ReadEnd, Stream, Written},
    throttle::Throttle,
};

/// One end of a bulk connection.
#[derive(Debug)]
pub(super) struct Bulk {
    end: End,
    sends: bool,
    /// Streams that the client has still to open.
    to_open: u32,
    sent: BTreeMap<Stream, u64>,
    received: BTreeMap<Stream, u64>,
    /// Holds the application back.
    throttle: Option<Throttle>,
    /// Streams that take data and were not given all they would take.
    held_back: Vec<Stream>,
}

impl Bulk {
    pub(super) fn new(end: End, sends: bool, streams: u32, throttle: Option<Throttle>) -> Self {
        let to_open = if end == End::Client { streams } else { 0 };
        let throttle = throttle.filter(|_| sends);
        Self { end, sends, to_open, sent: BTreeMap::new(), received: BTreeMap::new(), throttle, held_back: Vec::new() }
    }

    /// Time at which the application may write although the connection does not call for it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.throttle.as_ref().filter(|_| !self.held_back.is_empty())?.next()
    }

    /// Writes the delayed data; returns whether there was any.
    pub(super) fn on_time(&mut self, host: &mut impl Host, now: Instant) -> bool {
        if self.held_back.is_empty() || self.throttle.as_ref().is_some_and(|throttle| throttle.allowed(now) == 0) {
            return false;
        }
        for stream in std::mem::take(&mut self.held_back) {
            self.send(host, stream, now);
        }
        true
    }

    pub(super) fn on_event(&mut self, host: &mut impl Host, event: &HostEvent, scope: &mut Scope<'_>) {
        match *event {
            HostEvent::Early | HostEvent::Established | HostEvent::Available => self.open(host, scope.now),
            HostEvent::Opened => {
                while let Some(stream) = host.accept() {
                    if self.sends {
                        self.send(host, stream, scope.now);
                    }
                    self.receive(host, stream, scope);
                }
            }
            HostEvent::Writable(stream) if self.sends => self.send(host, stream, scope.now),
            HostEvent::Readable(stream) => self.receive(host, stream, scope),
            _ => {}
        }
    }

    fn open(&mut self, host: &mut impl Host, now: Instant) {
        while self.to_open > 0 {
            let Some(stream) = host.open() else { return };
            self.to_open -= 1;
            if self.sends {
                self.send(host, stream, now);
            } else {
                // One byte always fits into a stream that has just been opened: the peer's limit would have to be zero.
                host.write(stream, &mut pattern(0, 1));
                host.finish(stream);
            }
        }
    }

    fn send(&mut self, host: &mut impl Host, stream: Stream, now: Instant) {
        let offset = self.sent.entry(stream).or_default();
        loop {
            let allowed = self.throttle.as_ref().map_or(u64::MAX, |throttle| throttle.allowed(now));
            if allowed == 0 {
                self.held_back.push(stream);
                return;
            }
            let Written::Bytes(taken) = host.write(stream, &mut pattern(*offset, allowed)) else { return };
            *offset += taken as u64;
            if let Some(throttle) = &self.throttle {
                throttle.wrote(taken as u64);
            }
        }
    }

    fn receive(&mut self, host: &mut impl Host, stream: Stream, scope: &mut Scope<'_>) {
        let offset = self.received.entry(stream).or_default();
        // What the server of a download reads is the request.
        let counts = !self.sends;
        let end = host.read(stream, &mut |data| {
            scope.received(*offset, data, counts);
            *offset += data.len() as u64;
        });
        if end != ReadEnd::Blocked && self.end == End::Server {
            self.received.remove(&stream);
        }
    }
}
