//! Receiver of a broadcast: notes when each picture and each audio datagram is complete.

use std::collections::BTreeMap;

use bytes::BytesMut;
use units::Instant;

use super::{HEAD, Scope, parse_audio, parse_head};
use crate::{
    contender::RunSpec,
    host::{Host, ReadEnd, Stream},
    scenario::BroadcastTraffic,
};

/// Viewer of one broadcast.
#[derive(Debug)]
pub(super) struct Viewer {
    traffic: BroadcastTraffic,
    due_until: Instant,
    streams: BTreeMap<Stream, Incoming>,
    /// Audio datagrams that have arrived, one bit each.
    heard: Vec<u64>,
}

/// A group of pictures that arrives.
#[derive(Debug, Default)]
struct Incoming {
    head: BytesMut,
    /// Capture time of the first picture, once the head is complete.
    captured: Option<Instant>,
    received: u64,
    /// Pictures that are complete.
    complete: u32,
    /// Offset of the end of the next picture.
    next_end: u64,
}

impl Viewer {
    pub(super) fn new(spec: &RunSpec<'_>) -> Self {
        let traffic = spec.scenario.traffic.webtransport();
        Self { traffic, due_until: traffic.due_until(spec.end), streams: BTreeMap::new(), heard: Vec::new() }
    }

    fn is_due(&self, captured: Instant, scope: &Scope<'_>) -> bool {
        scope.window.contains(captured) && captured < self.due_until
    }

    /// Reads a group.
    pub(super) fn read(&mut self, host: &mut impl Host, stream: Stream, scope: &mut Scope<'_>) {
        let first_end = HEAD + self.traffic.picture(0);
        let mut group =
            self.streams.remove(&stream).unwrap_or_else(|| Incoming { next_end: first_end, ..Incoming::default() });
        let end = host.read(stream, &mut |data| group.take(data, scope));
        self.count(&mut group, scope);
        match end {
            ReadEnd::Blocked => drop(self.streams.insert(stream, group)),
            // A group that ends has all its pictures.
            ReadEnd::Finished => {
                let rest = u64::from(self.traffic.group - group.complete.min(self.traffic.group));
                scope.tally.wrong_bytes += rest;
            }
            ReadEnd::Closed => {}
        }
    }

    /// Counts the pictures that have become complete.
    fn count(&self, group: &mut Incoming, scope: &mut Scope<'_>) {
        let traffic = &self.traffic;
        let Some(first) = group.captured else { return };
        let is_whole_due = self.is_due(first, scope) && self.is_due(first + traffic.group_span(), scope);
        while group.received >= group.next_end && group.complete < traffic.group {
            let captured = first + traffic.picture_interval * group.complete;
            let latency = scope.now.saturating_since(captured);
            let tally = &mut scope.tally.broadcast;
            if scope.window.contains(captured) && captured < self.due_until {
                tally.latencies.push(latency);
                tally.pictures_in_time += u64::from(latency <= traffic.latency);
            }
            if is_whole_due && latency <= traffic.latency {
                tally.useful_bytes += traffic.picture(group.complete);
            }
            group.complete += 1;
            group.next_end += traffic.picture(1);
        }
    }

    /// Takes an audio datagram.
    pub(super) fn hear(&mut self, data: &[u8], scope: &mut Scope<'_>) {
        let size = usize::try_from(self.traffic.audio_size.as_bytes()).unwrap_or(usize::MAX);
        let (number, captured) = match parse_audio(data, size) {
            Ok((number, captured)) if captured <= scope.now => (number, captured),
            Ok(_) => {
                scope.tally.wrong_bytes += 1;
                return;
            }
            Err(wrong) => {
                scope.tally.wrong_bytes += wrong;
                return;
            }
        };
        // Numbers count up from zero, one per interval: one that is beyond what time allows is not kept.
        let most =
            scope.now.as_nanos() / u64::try_from(self.traffic.audio_interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let Some(word) = usize::try_from(number / 64).ok().filter(|_| number <= most) else { return };
        if self.heard.len() <= word {
            self.heard.resize(word + 1, 0);
        }
        let bit = 1 << (number % 64);
        let is_first = self.heard[word] & bit == 0;
        self.heard[word] |= bit;
        if !is_first {
            return;
        }
        if scope.window.contains(scope.now) {
            scope.tally.delivered += data.len() as u64;
        }
        if self.is_due(captured, scope) && scope.now.saturating_since(captured) <= self.traffic.latency {
            scope.tally.broadcast.audio_in_time += 1;
        }
    }
}

impl Incoming {
    /// Takes bytes of the stream: the head, then pictures.
    fn take(&mut self, mut data: &[u8], scope: &mut Scope<'_>) {
        if self.captured.is_none() {
            let missing = usize::try_from(HEAD).unwrap_or(0) - self.head.len();
            let (head, rest) = data.split_at(data.len().min(missing));
            self.head.extend_from_slice(head);
            self.received += head.len() as u64;
            data = rest;
            if self.received < HEAD {
                return;
            }
            match parse_head(&self.head) {
                Some((_, captured)) if captured <= scope.now => self.captured = Some(captured),
                _ => {
                    scope.tally.wrong_bytes += HEAD;
                    self.captured = Some(scope.now);
                }
            }
        }
        scope.received(self.received, data, true);
        self.received += data.len() as u64;
    }
}
