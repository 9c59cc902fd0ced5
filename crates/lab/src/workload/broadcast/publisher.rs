//! Sender of a broadcast: captures pictures and audio by the clock, gives newer groups the precedence, and resets late ones.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use units::{Duration, Instant};

use super::{HEAD, Scope, audio, head};
use crate::{
    contender::RunSpec,
    host::{Host, Stream, Written},
    scenario::BroadcastTraffic,
    workload::pattern,
};

/// Urgency of the newest group, and of those before it (RFC 9218 §4.1).
const NEWEST: u8 = 2;
const OLDER: u8 = 5;

/// Publisher of one broadcast.
#[derive(Debug)]
pub(super) struct Publisher {
    traffic: BroadcastTraffic,
    end: Instant,
    due_until: Instant,
    /// Capture time of the first picture; `None` before the session is open.
    began: Option<Instant>,
    /// Pictures captured so far.
    pictures: u64,
    /// Audio datagrams captured so far.
    audio: u64,
    /// Groups of which something has not left yet, the oldest first.
    groups: VecDeque<Group>,
    /// Time at which the oldest picture that has not left is late.
    late_at: Option<Instant>,
}

/// A group of pictures under way.
#[derive(Debug)]
struct Group {
    number: u64,
    captured: Instant,
    /// Pictures captured so far.
    pictures: u32,
    stream: Option<Stream>,
    /// Part of the head that the stream has not taken.
    head: Bytes,
    /// Bytes that the stream has taken.
    written: u64,
    finished: bool,
    /// Bytes that have left in packets, as far as is known.
    sent: u64,
}

impl Group {
    /// Offset of the end of the picture with this number.
    fn end_of(traffic: &BroadcastTraffic, picture: u32) -> u64 {
        HEAD + traffic.picture(0) + u64::from(picture) * traffic.picture(1)
    }

    /// Offset of the end of what has been captured.
    fn captured_bytes(&self, traffic: &BroadcastTraffic) -> u64 {
        self.pictures.checked_sub(1).map_or(HEAD, |last| Self::end_of(traffic, last))
    }

    /// Number of the first captured picture that has not left as a whole.
    fn waiting(&self, traffic: &BroadcastTraffic) -> Option<u32> {
        let beyond = self.sent.saturating_sub(HEAD + traffic.picture(0));
        let left = match self.sent < HEAD + traffic.picture(0) {
            true => 0,
            false => 1 + beyond / traffic.picture(1),
        };
        u32::try_from(left).ok().filter(|left| *left < self.pictures)
    }

    /// Writes what has been captured as far as the stream takes it, and ends the stream after the last picture.
    fn write(&mut self, host: &mut impl Host, traffic: &BroadcastTraffic) {
        let Some(stream) = self.stream else { return };
        let captured = self.captured_bytes(traffic);
        while self.written < captured && !self.finished {
            let taken = match self.head.has_remaining() {
                true => host.write(stream, &mut self.head),
                false => host.write(stream, &mut pattern(self.written, captured - self.written)),
            };
            match taken {
                Written::Bytes(taken) => self.written += taken as u64,
                Written::Blocked | Written::Closed => return,
            }
        }
        if self.pictures == traffic.group && !self.finished {
            self.finished = true;
            host.finish(stream);
        }
    }
}

impl Publisher {
    pub(super) fn new(spec: &RunSpec<'_>) -> Self {
        let traffic = spec.scenario.traffic.webtransport();
        Self {
            traffic,
            end: spec.end,
            due_until: traffic.due_until(spec.end),
            began: None,
            pictures: 0,
            audio: 0,
            groups: VecDeque::new(),
            late_at: None,
        }
    }

    /// Captures from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    fn captured(&self, every: Duration, number: u64) -> Option<Instant> {
        let nanos = u64::try_from(every.as_nanos()).ok()?.checked_mul(number)?;
        Some(self.began? + Duration::from_nanos(nanos)).filter(|at| *at < self.end)
    }

    fn next_picture(&self) -> Option<Instant> {
        self.captured(self.traffic.picture_interval, self.pictures)
    }

    fn next_audio(&self) -> Option<Instant> {
        self.captured(self.traffic.audio_interval, self.audio)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.next_picture(), self.next_audio(), self.late_at].into_iter().flatten().min()
    }

    /// Captures what is due, writes what streams take, and resets groups that are late.
    pub(super) fn act(&mut self, host: &mut impl Host, scope: &mut Scope<'_>) {
        while let Some(at) = self.next_audio().filter(|at| *at <= scope.now) {
            let size = usize::try_from(self.traffic.audio_size.as_bytes()).unwrap_or(usize::MAX);
            host.send_datagram(audio(self.audio, at, size));
            scope.tally.broadcast.audio_due += u64::from(self.is_due(at, scope));
            self.audio += 1;
        }
        while let Some(at) = self.next_picture().filter(|at| *at <= scope.now) {
            self.capture(host, at, scope);
        }
        for group in &mut self.groups {
            if group.stream.is_none() {
                group.stream = Self::open(host, scope);
            }
            group.write(host, &self.traffic);
        }
        self.reset_late(host, scope);
        self.retire(scope);
    }

    fn is_due(&self, captured: Instant, scope: &Scope<'_>) -> bool {
        scope.window.contains(captured) && captured < self.due_until
    }

    /// Returns whether all pictures of a group are due.
    fn is_whole_due(&self, group: &Group, scope: &Scope<'_>) -> bool {
        self.is_due(group.captured, scope) && self.is_due(group.captured + self.traffic.group_span(), scope)
    }

    /// Opens the stream of a group.
    fn open(host: &mut impl Host, scope: &mut Scope<'_>) -> Option<Stream> {
        let stream = host.open()?;
        // A stack that tells what has left can also take it back.
        if host.sent(stream).is_some() {
            scope.tally.broadcast.groups_reset.get_or_insert(0);
        }
        host.prioritise(stream, NEWEST);
        Some(stream)
    }

    fn capture(&mut self, host: &mut impl Host, at: Instant, scope: &mut Scope<'_>) {
        let per_group = u64::from(self.traffic.group);
        if self.pictures.is_multiple_of(per_group) {
            for stream in self.groups.iter().filter_map(|group| group.stream) {
                host.prioritise(stream, OLDER);
            }
            let number = self.pictures / per_group;
            let group = Group {
                number,
                captured: at,
                pictures: 0,
                stream: Self::open(host, scope),
                head: head(number, at),
                written: 0,
                finished: false,
                sent: 0,
            };
            scope.tally.broadcast.groups_due += u64::from(self.is_whole_due(&group, scope));
            self.groups.push_back(group);
        }
        scope.tally.broadcast.pictures_due += u64::from(self.is_due(at, scope));
        // A group that was reset stays so; its later pictures are of no use without the earlier ones.
        if let Some(group) = self.groups.back_mut().filter(|group| group.number == self.pictures / per_group) {
            group.pictures += 1;
        }
        self.pictures += 1;
    }

    /// Resets each group with a picture that has not left within the latency budget.
    fn reset_late(&mut self, host: &mut impl Host, scope: &mut Scope<'_>) {
        self.late_at = None;
        let mut kept = VecDeque::with_capacity(self.groups.len());
        for mut group in std::mem::take(&mut self.groups) {
            let told = group.stream.and_then(|stream| host.sent(stream));
            group.sent = told.map_or(group.written, |sent| sent.min(group.written));
            let Some(waiting) = group.waiting(&self.traffic) else {
                kept.push_back(group);
                continue;
            };
            let late_at = group.captured + self.traffic.picture_interval * waiting + self.traffic.latency;
            if late_at > scope.now {
                self.late_at = Some(self.late_at.map_or(late_at, |at| at.min(late_at)));
                kept.push_back(group);
                continue;
            }
            let is_reset = group.stream.is_none_or(|stream| host.reset(stream, HEAD.min(group.written)));
            if !is_reset {
                // The stack cannot: the group goes on, late as it is.
                scope.tally.broadcast.groups_reset = None;
                kept.push_back(group);
                continue;
            }
            if self.is_whole_due(&group, scope) {
                if let Some(reset) = &mut scope.tally.broadcast.groups_reset {
                    *reset += 1;
                }
                scope.tally.broadcast.group_bytes += group.sent.saturating_sub(HEAD);
            }
        }
        self.groups = kept;
    }

    /// Forgets groups that have left to their last byte.
    fn retire(&mut self, scope: &mut Scope<'_>) {
        let last = Group::end_of(&self.traffic, self.traffic.group - 1);
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.groups).into_iter().partition(|group| group.finished && group.sent >= last);
        self.groups = kept;
        let counted = gone.iter().filter(|group| self.is_whole_due(group, scope));
        let bytes: u64 = counted.map(|group| group.sent - HEAD).sum();
        scope.tally.broadcast.group_bytes += bytes;
    }
}
