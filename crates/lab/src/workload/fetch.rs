//! Objects of different sizes over one connection, the basis of video, pages and feeds.
//!
//! Each object has a stream. The request has size and urgency of the answer; the server answers with this number of bytes of the pattern. A
//! fetch may be cancelled before it is complete.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use units::{Duration, Instant};

use super::{End, Scope, pattern};
use crate::host::{Host, HostEvent, ReadEnd, Stream, Written};

/// Bytes of a request: size, urgency, and headers as a browser sends them.
const REQUEST: usize = 200;

/// A requested object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// Tag by which the script knows it.
    pub(super) tag: u64,
    pub(super) bytes: u64,
    /// RFC 9218 §4.1: 0 goes first, 7 last.
    pub(super) urgency: u8,
}

/// An object that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fetched {
    pub(super) object: Object,
    /// From the request to the last byte.
    pub(super) took: Duration,
}

/// One end of a connection with fetches.
#[derive(Debug)]
pub(super) struct Fetches {
    end: End,
    streams: BTreeMap<Stream, Exchange>,
    /// Objects for which the peer permits no stream yet.
    waiting: Vec<Object>,
    done: Vec<Fetched>,
}

/// One stream, as seen from one end.
#[derive(Debug)]
struct Exchange {
    object: Object,
    since: Instant,
    received: u64,
    sent: u64,
    /// The request as far as it has not left, or has arrived.
    request: BytesMut,
    sending: bool,
    /// The application has given the object up.
    given_up: bool,
}

impl Fetches {
    pub(super) fn new(end: End) -> Self {
        Self { end, streams: BTreeMap::new(), waiting: Vec::new(), done: Vec::new() }
    }

    /// Requests an object as soon as a stream is available.
    pub(super) fn fetch(&mut self, host: &mut impl Host, object: Object, now: Instant) {
        let Some(stream) = host.open() else {
            self.waiting.push(object);
            return;
        };
        let mut request = BytesMut::with_capacity(REQUEST);
        request.put_u64(object.bytes);
        request.put_u8(object.urgency);
        request.resize(REQUEST, 0);
        let exchange = Exchange { object, since: now, received: 0, sent: 0, request, sending: true, given_up: false };
        self.streams.insert(stream, exchange);
        self.send_request(host, stream);
    }

    /// Cancels every matching object. Returns the bytes of them that have arrived and are wasted.
    pub(super) fn give_up(&mut self, host: &mut impl Host, which: impl Fn(&Object) -> bool) -> (u64, u64) {
        self.waiting.retain(|object| !which(object));
        let (mut objects, mut wasted) = (0, 0);
        let unwanted: Vec<Stream> = self
            .streams
            .iter()
            .filter(|(_, exchange)| !exchange.given_up && which(&exchange.object))
            .map(|(&stream, _)| stream)
            .collect();
        for stream in unwanted {
            let cancelled = host.cancel(stream);
            let Some(exchange) = self.streams.get_mut(&stream) else { continue };
            objects += 1;
            wasted += exchange.received;
            exchange.given_up = true;
            if cancelled {
                self.streams.remove(&stream);
            }
        }
        (objects, wasted)
    }

    /// Objects that have become complete since the last call.
    pub(super) fn take_done(&mut self) -> Vec<Fetched> {
        std::mem::take(&mut self.done)
    }

    /// Fetches that are neither complete nor cancelled.
    pub(super) fn pending(&self) -> usize {
        self.waiting.len() + self.streams.values().filter(|exchange| !exchange.given_up).count()
    }

    pub(super) fn on_event(&mut self, host: &mut impl Host, event: &HostEvent, scope: &mut Scope<'_>) {
        match (event, self.end) {
            (HostEvent::Available, End::Client) => {
                for object in std::mem::take(&mut self.waiting) {
                    self.fetch(host, object, scope.now);
                }
            }
            (HostEvent::Opened, End::Server) => {
                while let Some(stream) = host.accept() {
                    let object = Object { tag: 0, bytes: 0, urgency: 0 };
                    let request = BytesMut::new();
                    let exchange = Exchange {
                        object,
                        since: scope.now,
                        received: 0,
                        sent: 0,
                        request,
                        sending: false,
                        given_up: false,
                    };
                    self.streams.insert(stream, exchange);
                    self.read_request(host, stream);
                }
            }
            (HostEvent::Readable(stream), End::Client) => self.read_answer(host, *stream, scope),
            (HostEvent::Readable(stream), End::Server) => self.read_request(host, *stream),
            (HostEvent::Writable(stream), End::Client) => self.send_request(host, *stream),
            (HostEvent::Writable(stream), End::Server) => self.answer(host, *stream),
            _ => {}
        }
    }

    fn send_request(&mut self, host: &mut impl Host, stream: Stream) {
        let Some(exchange) = self.streams.get_mut(&stream).filter(|exchange| exchange.sending) else { return };
        while exchange.request.has_remaining() {
            let mut data = Bytes::copy_from_slice(&exchange.request);
            match host.write(stream, &mut data) {
                Written::Bytes(taken) => exchange.request.advance(taken),
                Written::Blocked => return,
                Written::Closed => break,
            }
        }
        exchange.sending = false;
        host.finish(stream);
    }

    fn read_request(&mut self, host: &mut impl Host, stream: Stream) {
        let Some(exchange) = self.streams.get_mut(&stream).filter(|exchange| !exchange.sending) else { return };
        let request = &mut exchange.request;
        // A request is of no use after its head; what is longer than any is dropped.
        let end = host.read(stream, &mut |data| {
            request.extend_from_slice(&data[..data.len().min(REQUEST.saturating_sub(request.len()))]);
        });
        match end {
            ReadEnd::Blocked => {}
            ReadEnd::Finished if request.len() == REQUEST => {
                exchange.object.bytes = request.get_u64();
                exchange.object.urgency = request.get_u8();
                exchange.sending = true;
                host.prioritise(stream, exchange.object.urgency);
                self.answer(host, stream);
            }
            ReadEnd::Finished | ReadEnd::Closed => drop(self.streams.remove(&stream)),
        }
    }

    fn answer(&mut self, host: &mut impl Host, stream: Stream) {
        let Some(exchange) = self.streams.get_mut(&stream).filter(|exchange| exchange.sending) else { return };
        while exchange.sent < exchange.object.bytes {
            match host.write(stream, &mut pattern(exchange.sent, exchange.object.bytes - exchange.sent)) {
                Written::Bytes(taken) => exchange.sent += taken as u64,
                Written::Blocked => return,
                Written::Closed => break,
            }
        }
        host.finish(stream);
        self.streams.remove(&stream);
    }

    fn read_answer(&mut self, host: &mut impl Host, stream: Stream, scope: &mut Scope<'_>) {
        let Some(exchange) = self.streams.get_mut(&stream) else { return };
        let (received, counts) = (&mut exchange.received, !exchange.given_up);
        let end = host.read(stream, &mut |data| {
            scope.received(*received, data, counts);
            *received += data.len() as u64;
        });
        if end == ReadEnd::Blocked {
            return;
        }
        let Some(exchange) = self.streams.remove(&stream) else { return };
        if end == ReadEnd::Finished && !exchange.given_up {
            // An answer that is shorter or longer than asked for is wrong in as many bytes.
            scope.tally.wrong_bytes += exchange.received.abs_diff(exchange.object.bytes);
            self.done.push(Fetched { object: exchange.object, took: scope.now - exchange.since });
        }
    }
}
