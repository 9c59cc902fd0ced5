//! Unreliable datagrams at a constant rate (RFC 9221), or as many messages in order on a stream. Each carries its number and the time at
//! which it was handed to the stack, so the receiver computes missing ones and delays.
//!
//! A returning client announces the messages on a stream, as early data; datagrams follow the handshake.

use bytes::{BufMut, Bytes, BytesMut};
use units::{DataSize, Duration, Instant};

use super::{Scope, mismatches, pattern};
use crate::{
    contender::RunSpec,
    host::{DatagramFate, Host, HostEvent, Stream, Written},
    scenario::Workload,
    tally::Missing,
};

/// Bytes of number and time at the front of each datagram.
const HEAD: usize = 16;
/// Bytes of an announcement.
const ANNOUNCEMENT: u64 = 256;

/// One end of a connection with datagrams.
#[derive(Debug)]
pub(super) struct Datagrams {
    sends: bool,
    size: usize,
    interval: Duration,
    /// Time at which the next one leaves; `None` before the connection is established, and at the receiver.
    next: Option<Instant>,
    number: u64,
    /// Datagrams handed over before this are due to arrive before the run ends, even through a full queue.
    due_until: Instant,
    end: Instant,
    /// Numbers that have arrived, one bit each.
    seen: Vec<u64>,
    /// On a stream, when these are messages.
    in_order: bool,
    stream: Option<Stream>,
    /// Bytes that the stream's buffer has no room for yet, or the part of a message received so far.
    rest: BytesMut,
    /// Bytes of an announcement received so far.
    announced: u64,
    /// Due ones, by number; each with its outcome at this end.
    sent: Vec<Due>,
    /// The numbers of the datagrams that the stack accepted, in order.
    taken: Vec<u64>,
    /// The stack reports the fate of datagrams.
    tells: bool,
}

/// A datagram at its sender.
#[derive(Clone, Copy, Debug)]
struct Due {
    counts: bool,
    fate: Option<DatagramFate>,
}

impl Datagrams {
    pub(super) fn new(sends: bool, spec: &RunSpec<'_>) -> Self {
        let traffic = &spec.scenario.traffic;
        let size = traffic.datagram_size();
        let interval = traffic.datagram_interval().unwrap_or(Duration::MAX);
        let link = spec.scenario.loaded_link();
        let queued = match (link.least_rate(), link.queue.bytes()) {
            (Some(rate), Some(bytes)) => rate.time_for(DataSize::from_bytes(bytes.as_bytes() + 1_500)),
            _ => Duration::ZERO,
        };
        let reordered = link.reorder.map_or(Duration::ZERO, |reorder| reorder.delay);
        let slowest = link.delay + link.jitter_max() + reordered + queued;
        // Of messages in order none is missed, if those that are sent again have time to arrive.
        let in_order = traffic.workload == Workload::Messages;
        let slowest = if in_order { (6 * slowest).min((spec.end - spec.measure_from) / 4) } else { slowest };
        Self {
            sends,
            size: usize::try_from(size.as_bytes()).unwrap_or(HEAD).max(HEAD),
            interval,
            next: None,
            number: 0,
            due_until: spec.end.saturating_sub(slowest),
            end: spec.end,
            seen: Vec::new(),
            in_order,
            stream: None,
            rest: BytesMut::new(),
            announced: 0,
            sent: Vec::new(),
            taken: Vec::new(),
            tells: true,
        }
    }

    /// Outcome of the datagrams that are due and have not arrived. Of messages on a stream none is lost: what is missing is late.
    pub(super) fn missing(&self, receiver: &Self, is_over: bool) -> Option<Missing> {
        if !self.tells && !self.in_order {
            return None;
        }
        let mut missing = Missing::default();
        for (number, due) in self.sent.iter().enumerate().filter(|(_, due)| due.counts) {
            if !receiver.has_seen(number as u64) {
                // What waits at the sender of a connection that has ended will not be sent.
                let unsent = is_over.then_some(DatagramFate::Dropped);
                missing.add(due.fate.or(unsent), self.due_until);
            }
        }
        Some(missing)
    }

    fn has_seen(&self, number: u64) -> bool {
        let word = usize::try_from(number / 64).ok().and_then(|word| self.seen.get(word));
        word.is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    /// Learns what has become of datagrams.
    fn learn(&mut self, host: &mut impl Host) {
        let (sent, taken) = (&mut self.sent, &self.taken);
        self.tells &= host.take_datagram_fates(&mut |number, fate| {
            let number = usize::try_from(number).ok().and_then(|number| taken.get(number));
            if let Some(due) = number.and_then(|&number| sent.get_mut(usize::try_from(number).ok()?)) {
                due.fate = Some(fate);
            }
        });
    }

    pub(super) fn on_event(&mut self, host: &mut impl Host, event: &HostEvent, scope: &mut Scope<'_>) {
        match event {
            HostEvent::Early if self.in_order && self.sends => self.begin(host, scope.now),
            HostEvent::Early if !self.in_order => {
                // It fits into a stream that has just been opened, and a peer that permits none goes without.
                if let Some(stream) = host.open() {
                    host.write(stream, &mut pattern(0, ANNOUNCEMENT));
                    host.finish(stream);
                }
            }
            HostEvent::Established if self.sends && self.next.is_none() => self.begin(host, scope.now),
            HostEvent::Opened if !self.in_order => {
                while let Some(stream) = host.accept() {
                    self.hear(host, stream, scope);
                }
            }
            HostEvent::Readable(stream) if !self.in_order => self.hear(host, *stream, scope),
            HostEvent::Opened if self.in_order => {
                self.stream = host.accept();
                self.read(host, scope);
            }
            HostEvent::Readable(_) if self.in_order && !self.sends => self.read(host, scope),
            HostEvent::Writable(_) if self.in_order && self.sends => self.write(host),
            HostEvent::Datagram => {
                while let Some(data) = host.receive_datagram() {
                    self.receive(&data, scope);
                }
            }
            _ => {}
        }
    }

    /// Sends from now on.
    fn begin(&mut self, host: &mut impl Host, now: Instant) {
        self.next = Some(now);
        if self.in_order {
            self.stream = host.open();
        }
    }

    /// Takes an announcement.
    fn hear(&mut self, host: &mut impl Host, stream: Stream, scope: &mut Scope<'_>) {
        let announced = &mut self.announced;
        host.read(stream, &mut |data| {
            scope.received(*announced, data, false);
            *announced += data.len() as u64;
        });
    }

    /// Sends what is due; returns whether there was anything.
    pub(super) fn on_time(&mut self, host: &mut impl Host, scope: &mut Scope<'_>) -> bool {
        if self.sends && !self.in_order && self.number > 0 {
            self.learn(host);
        }
        let before = self.number;
        while let Some(at) = self.next.filter(|&at| at <= scope.now) {
            let mut data = BytesMut::with_capacity(self.size);
            data.put_u64(self.number);
            data.put_u64(at.as_nanos());
            data.extend_from_slice(&Self::filling(self.number, self.size - HEAD));
            let counts = self.is_due(at, scope);
            scope.tally.due += u64::from(counts);
            let mut fate = None;
            if self.in_order {
                self.rest.extend_from_slice(&data);
            } else if host.send_datagram(data.freeze()) {
                self.taken.push(self.number);
            } else {
                // A datagram that the stack refuses was due all the same: the application misses it.
                fate = Some(DatagramFate::Dropped);
            }
            self.sent.push(Due { counts, fate });
            self.number += 1;
            self.next = Some(at + self.interval).filter(|&next| next < self.end);
        }
        if self.number > before && self.in_order {
            self.write(host);
        }
        self.number > before
    }

    /// Gives the stream what it has room for.
    fn write(&mut self, host: &mut impl Host) {
        let Some(stream) = self.stream else { return };
        while !self.rest.is_empty() {
            let mut data = self.rest.split().freeze();
            match host.write(stream, &mut data) {
                Written::Bytes(_) => self.rest = BytesMut::from(data),
                Written::Blocked | Written::Closed => {
                    self.rest = BytesMut::from(data);
                    return;
                }
            }
        }
    }

    /// Takes messages from the stream.
    fn read(&mut self, host: &mut impl Host, scope: &mut Scope<'_>) {
        let Some(stream) = self.stream else { return };
        let rest = &mut self.rest;
        host.read(stream, &mut |data| rest.extend_from_slice(data));
        while self.rest.len() >= self.size {
            let message = self.rest.split_to(self.size);
            self.receive(&message, scope);
        }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.next
    }

    fn is_due(&self, sent: Instant, scope: &Scope<'_>) -> bool {
        scope.window.contains(sent) && sent < self.due_until
    }

    /// The bytes after the head. Different for each number, so that mixed-up datagrams are noticed.
    fn filling(number: u64, len: usize) -> Bytes {
        let mut offset = number % 1_000;
        // The pattern ends at its period: start where enough is left.
        while pattern(offset, len as u64).len() < len {
            offset += 1;
        }
        pattern(offset, len as u64)
    }

    fn receive(&mut self, data: &[u8], scope: &mut Scope<'_>) {
        if data.len() != self.size {
            scope.tally.wrong_bytes += data.len().abs_diff(self.size) as u64;
            return;
        }
        let (head, rest) = data.split_at(HEAD);
        let word = |at: usize| head[at..at + 8].iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        let (number, sent) = (word(0), Instant::from_nanos(word(8)));
        let wrong = mismatches(number % 1_000, rest);
        // Numbers count up from zero, one per interval: one beyond what time allows is a wrong byte in the head.
        if wrong > 0 || sent > scope.now || number > sent.as_nanos() / nanos(self.interval) {
            scope.tally.wrong_bytes += wrong.max(1);
            return;
        }
        if self.first_time(number) {
            if scope.window.contains(scope.now) {
                scope.tally.delivered += data.len() as u64;
            }
            if self.is_due(sent, scope) {
                scope.tally.delays.push(scope.now - sent);
            }
        }
    }

    /// Returns whether this number has not arrived before. It is known to be bounded by the run's length.
    fn first_time(&mut self, number: u64) -> bool {
        let Ok(word) = usize::try_from(number / 64) else { return false };
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        let bit = 1 << (number % 64);
        let first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        first
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(1)
}
