//! The stream of a tunnel at one end: request or response, then DATAGRAM capsules (RFC 9297 §3.5).

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::QUEUE;
use crate::{
    host::{Host, Stream, Written},
    workload::pattern,
};

/// Bytes of the request (extended CONNECT with target and credentials), and of its response.
const REQUEST: usize = 150;
const RESPONSE: usize = 50;
/// Bytes before a payload: type, length as a varint of two bytes, context ID 0.
const HEAD: usize = 4;
/// Largest capsule that is made: its length has 14 bits.
const PAYLOAD_MAX: usize = (1 << 14) - 2;

/// Stream of a tunnel at one end.
#[derive(Debug)]
pub(super) struct Capsules {
    stream: Option<Stream>,
    /// Bytes of request or response that precede the peer's capsules, and have not arrived.
    before: usize,
    /// Bytes that have arrived and are no whole capsule yet.
    arrived: BytesMut,
    /// Bytes that wait for the stream: request or response first.
    waiting: VecDeque<Bytes>,
    waiting_bytes: u64,
    written: u64,
    /// Bytes that the stream took and that have not left, when they were last counted.
    unsent: u64,
}

impl Capsules {
    pub(super) fn new(is_client: bool) -> Self {
        let (own, before) = if is_client { (REQUEST, RESPONSE) } else { (RESPONSE, REQUEST) };
        let own = pattern(0, own as u64);
        Self {
            stream: None,
            before,
            arrived: BytesMut::new(),
            waiting_bytes: own.len() as u64,
            waiting: VecDeque::from([own]),
            written: 0,
            unsent: 0,
        }
    }

    /// Opens the stream at the client.
    pub(super) fn open(&mut self, outer: &mut impl Host) {
        self.stream = outer.open();
        self.flush(outer);
    }

    /// Takes the stream at the proxy.
    pub(super) fn accept(&mut self, outer: &mut impl Host) {
        if self.stream.is_none() {
            self.stream = outer.accept();
            self.flush(outer);
        }
    }

    /// Bytes that wait at this end.
    pub(super) fn queued(&self) -> u64 {
        self.waiting_bytes + self.unsent
    }

    /// Takes a payload. `false` if there is no room for it.
    pub(super) fn push(&mut self, outer: &mut impl Host, payload: &[u8]) -> bool {
        let sent = self.stream.and_then(|stream| outer.sent(stream)).unwrap_or(self.written);
        self.unsent = self.written.saturating_sub(sent);
        let len = (HEAD + payload.len()) as u64;
        if payload.len() > PAYLOAD_MAX || self.queued() + len > QUEUE {
            return false;
        }
        let mut capsule = BytesMut::with_capacity(HEAD + payload.len());
        capsule.put_u8(0);
        capsule.put_u16(u16::try_from(payload.len() + 1).unwrap_or(0) | 0x4000);
        capsule.put_u8(0);
        capsule.put_slice(payload);
        self.waiting.push_back(capsule.freeze());
        self.waiting_bytes += len;
        true
    }

    /// Writes what the stream takes. Returns whether it took anything.
    pub(super) fn flush(&mut self, outer: &mut impl Host) -> bool {
        let Some(stream) = self.stream else { return false };
        let before = self.written;
        while let Some(next) = self.waiting.front_mut() {
            let Written::Bytes(taken) = outer.write(stream, next) else { break };
            self.written += taken as u64;
            self.waiting_bytes -= taken as u64;
            if next.is_empty() {
                self.waiting.pop_front();
            }
        }
        self.written > before
    }

    /// The payloads that are complete, in order.
    pub(super) fn read(&mut self, outer: &mut impl Host) -> Vec<Bytes> {
        let Some(stream) = self.stream else { return Vec::new() };
        let arrived = &mut self.arrived;
        outer.read(stream, &mut |data| arrived.extend_from_slice(data));
        let skipped = self.before.min(self.arrived.len());
        self.arrived.advance(skipped);
        self.before -= skipped;
        let mut payloads = Vec::new();
        while self.before == 0 && self.arrived.len() >= HEAD {
            let len = usize::from(u16::from_be_bytes([self.arrived[1], self.arrived[2]]) & 0x3fff);
            if self.arrived.len() < HEAD - 1 + len {
                break;
            }
            let mut capsule = self.arrived.split_to(HEAD - 1 + len);
            capsule.advance(HEAD);
            payloads.push(capsule.freeze());
        }
        payloads
    }
}
