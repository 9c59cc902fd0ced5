//! Bulk: streams that always have something to send.
//!
//! The client opens the streams. For a download it sends one byte and the end, upon which the server sends without
//! end; for an upload it sends without end itself.

use std::collections::BTreeMap;

use super::{End, Scope, pattern};
use crate::host::{Host, HostEvent, ReadEnd, Stream, Written};

/// One end of a bulk connection.
#[derive(Debug)]
pub(super) struct Bulk {
    end: End,
    sends: bool,
    /// Streams that the client has still to open.
    to_open: u32,
    sent: BTreeMap<Stream, u64>,
    received: BTreeMap<Stream, u64>,
}

impl Bulk {
    pub(super) fn new(end: End, sends: bool, streams: u32) -> Self {
        let to_open = if end == End::Client { streams } else { 0 };
        Self { end, sends, to_open, sent: BTreeMap::new(), received: BTreeMap::new() }
    }

    pub(super) fn on_event(&mut self, host: &mut impl Host, event: &HostEvent, scope: &mut Scope<'_>) {
        match *event {
            HostEvent::Established | HostEvent::Available => self.open(host),
            HostEvent::Opened => {
                while let Some(stream) = host.accept() {
                    if self.sends {
                        self.send(host, stream);
                    }
                    self.receive(host, stream, scope);
                }
            }
            HostEvent::Writable(stream) if self.sends => self.send(host, stream),
            HostEvent::Readable(stream) => self.receive(host, stream, scope),
            _ => {}
        }
    }

    fn open(&mut self, host: &mut impl Host) {
        while self.to_open > 0 {
            let Some(stream) = host.open() else { return };
            self.to_open -= 1;
            if self.sends {
                self.send(host, stream);
            } else {
                // One byte always fits into a stream that has just been opened: the peer's limit would have to be zero.
                host.write(stream, &mut pattern(0, 1));
                host.finish(stream);
            }
        }
    }

    fn send(&mut self, host: &mut impl Host, stream: Stream) {
        let offset = self.sent.entry(stream).or_default();
        while let Written::Bytes(taken) = host.write(stream, &mut pattern(*offset, u64::MAX)) {
            *offset += taken as u64;
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
