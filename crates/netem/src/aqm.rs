//! Queues that decide when packets leave: CoDel (RFC 8289) and FQ-CoDel (RFC 8290).
//!
//! The fate of a packet in CoDel depends on the packets behind it when it leaves, so it is known only then. The owner offers packets and
//! calls [`Aqm::poll`] at [`Aqm::deadline`].

use std::collections::VecDeque;

use units::{Duration, Instant, Seed};

use crate::{
    config::{Codel, LinkConfig, Queue},
    pace::{Pace, Stay},
    packet::{DropReason, Ecn},
};

/// A waiting packet with its owner's data.
#[derive(Debug)]
struct Entry<T> {
    item: T,
    size: u32,
    ecn: Ecn,
    entered: Instant,
}

/// A packet that has left the queue.
#[derive(Debug)]
pub(crate) struct Departed<T> {
    pub(crate) item: T,
    pub(crate) entered: Instant,
    /// Stay at the transmitter and whether it was marked, or why it was dropped.
    pub(crate) fate: Result<(Stay, bool), DropReason>,
}

/// A managed queue and its transmitter.
#[derive(Debug)]
pub(crate) struct Aqm<T> {
    pace: Pace,
    room: u64,
    backlog: u64,
    config: Codel,
    /// One queue for all, or one per flow.
    flows: Vec<Flow<T>>,
    per_flow: bool,
    quantum: i64,
    /// Flows with packets, by number: new flows, and old flows (RFC 8290 §4.2).
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    /// Dropped on entry, to be reported.
    told: VecDeque<Departed<T>>,
    /// Latest time of a call: nothing is reported earlier.
    latest: Instant,
}

#[derive(Debug)]
struct Flow<T> {
    queue: VecDeque<Entry<T>>,
    bytes: u64,
    deficit: i64,
    listed: bool,
    codel: State,
}

/// CoDel's memory (RFC 8289 §5.3).
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Time at which the wait will have been too long for an interval; `None` while it is short enough.
    first_above: Option<Instant>,
    /// In the dropping state: when the next drop is due.
    drop_next: Instant,
    count: u32,
    last_count: u32,
    dropping: bool,
}

/// A packet of this size or less in the queue is no standing queue (RFC 8289 §4.4).
const MAX_PACKET: u64 = 1_500;

impl<T> Aqm<T> {
    /// `None` for a link without a rate or without such a queue.
    pub(crate) fn new(config: &LinkConfig, seed: &Seed) -> Option<Self> {
        let (codel, per_flow, quantum) = match config.queue {
            Queue::Codel(codel) => (codel, false, i64::from(u32::MAX)),
            Queue::FqCodel(fq) => (fq.codel, true, i64::from(fq.quantum)),
            Queue::Unlimited | Queue::DropTail { .. } => return None,
        };
        Some(Self {
            pace: Pace::new(config, seed)?,
            room: codel.bytes.as_bytes(),
            backlog: 0,
            config: codel,
            flows: Vec::new(),
            per_flow,
            quantum,
            new: VecDeque::new(),
            old: VecDeque::new(),
            told: VecDeque::new(),
            latest: Instant::ZERO,
        })
    }

    /// Takes a packet. When the room is used up, plain CoDel drops the packet that comes, FQ-CoDel the first of the longest
    /// queue (RFC 8290 §4.1.3): so that no flow takes the room of others.
    pub(crate) fn offer(&mut self, now: Instant, flow: u32, size: u32, ecn: Ecn, item: T) {
        self.latest = self.latest.max(now);
        let full = self.backlog + u64::from(size) > self.room && self.backlog > 0;
        if full && !self.per_flow {
            self.told.push_back(Departed { item, entered: now, fate: Err(DropReason::Queue) });
            return;
        }
        let index = if self.per_flow { flow as usize } else { 0 };
        while self.flows.len() <= index {
            self.flows.push(Flow {
                queue: VecDeque::new(),
                bytes: 0,
                deficit: 0,
                listed: false,
                codel: State::default(),
            });
        }
        let place = &mut self.flows[index];
        place.queue.push_back(Entry { item, size, ecn, entered: now });
        place.bytes += u64::from(size);
        self.backlog += u64::from(size);
        if !place.listed {
            (place.listed, place.deficit) = (true, self.quantum);
            self.new.push_back(index);
        }
        while self.backlog > self.room {
            let longest = (0..self.flows.len()).max_by_key(|&index| self.flows[index].bytes);
            let Some(entry) = longest.and_then(|index| self.pop(index)) else { break };
            self.told.push_back(Departed { item: entry.item, entered: entry.entered, fate: Err(DropReason::Queue) });
        }
    }

    /// Bytes that wait.
    pub(crate) const fn backlog(&self) -> u64 {
        self.backlog
    }

    /// Time of the next decision: at once, or when the transmitter is free.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if !self.told.is_empty() {
            return Some(self.latest);
        }
        (self.backlog > 0).then(|| Instant::from_nanos(self.pace.free_at()).max(self.latest))
    }

    /// The next packet whose fate is known by `now`.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Departed<T>> {
        self.latest = self.latest.max(now);
        if let Some(left) = self.told.pop_front() {
            return Some(left);
        }
        if self.backlog == 0 || self.pace.free_at() > now.as_nanos() {
            return None;
        }
        self.pace.idle(now.as_nanos());
        let (entry, marked) = self.schedule(now)?;
        let stay = self.pace.send(entry.size);
        let left = Departed { item: entry.item, entered: entry.entered, fate: Ok((stay, marked)) };
        // What CoDel dropped on the way to this packet left before it.
        self.told.push_back(left);
        self.told.pop_front()
    }

    /// Deficit round robin over the flows, new ones first (RFC 8290 §4.2).
    fn schedule(&mut self, now: Instant) -> Option<(Entry<T>, bool)> {
        loop {
            let from_new = !self.new.is_empty();
            let index = *if from_new { self.new.front() } else { self.old.front() }?;
            if self.flows[index].deficit <= 0 {
                self.flows[index].deficit += self.quantum;
                self.rotate(from_new);
                self.old.push_back(index);
                continue;
            }
            if let Some((entry, marked)) = self.dequeue(index, now) {
                self.flows[index].deficit -= i64::from(entry.size);
                return Some((entry, marked));
            }
            // An empty new flow goes through the list of old ones once, so that it cannot come back as new at once and starve
            // the others; an empty old flow is forgotten.
            self.rotate(from_new);
            if from_new && !self.old.is_empty() {
                self.old.push_back(index);
            } else {
                self.flows[index].listed = false;
            }
        }
    }

    fn rotate(&mut self, from_new: bool) {
        if from_new {
            self.new.pop_front();
        } else {
            self.old.pop_front();
        }
    }

    fn pop(&mut self, index: usize) -> Option<Entry<T>> {
        let flow = &mut self.flows[index];
        let entry = flow.queue.pop_front()?;
        flow.bytes -= u64::from(entry.size);
        self.backlog -= u64::from(entry.size);
        Some(entry)
    }

    /// Takes the first packet and says whether waiting has been too long for long enough that it may be dropped
    /// (RFC 8289 §5.6).
    fn look(&mut self, index: usize, now: Instant) -> (Option<Entry<T>>, bool) {
        let entry = self.pop(index);
        let flow = &mut self.flows[index];
        let Some(waited) = entry.as_ref().map(|entry| now - entry.entered) else {
            flow.codel.first_above = None;
            return (None, false);
        };
        if waited < self.config.target || flow.bytes <= MAX_PACKET {
            flow.codel.first_above = None;
            return (entry, false);
        }
        match flow.codel.first_above {
            None => {
                flow.codel.first_above = Some(now + self.config.interval);
                (entry, false)
            }
            Some(above) => (entry, now >= above),
        }
    }

    /// The next packet of a flow, after CoDel has dropped or marked what it has to (RFC 8289 §5.5).
    fn dequeue(&mut self, index: usize, now: Instant) -> Option<(Entry<T>, bool)> {
        let (mut entry, mut late) = self.look(index, now);
        let mut marked = false;
        let interval = self.config.interval;
        if self.flows[index].codel.dropping {
            if !late {
                self.flows[index].codel.dropping = false;
            }
            while self.flows[index].codel.dropping && now >= self.flows[index].codel.drop_next {
                let state = &mut self.flows[index].codel;
                state.count = state.count.saturating_add(1);
                state.drop_next = control_law(state.drop_next, interval, state.count);
                let Some(due) = entry.take() else { break };
                match self.mark_or_drop(due) {
                    Some(kept) => {
                        (entry, marked) = (Some(kept), true);
                        break;
                    }
                    None => (entry, late) = self.look(index, now),
                }
                if !late {
                    self.flows[index].codel.dropping = false;
                }
            }
        } else if late {
            if let Some(due) = entry.take() {
                match self.mark_or_drop(due) {
                    Some(kept) => (entry, marked) = (Some(kept), true),
                    None => entry = self.look(index, now).0,
                }
            }
            let state = &mut self.flows[index].codel;
            state.dropping = true;
            // Soon after the last time the pace of dropping continues where it was.
            let lately = now.saturating_since(state.drop_next) < 16 * interval;
            let more = state.count.saturating_sub(state.last_count);
            state.count = if more > 1 && lately { more } else { 1 };
            state.drop_next = control_law(now, interval, state.count);
            state.last_count = state.count;
        }
        entry.map(|entry| (entry, marked))
    }

    /// Gives a packet back that can be marked; drops any other.
    fn mark_or_drop(&mut self, entry: Entry<T>) -> Option<Entry<T>> {
        if self.config.ecn && entry.ecn != Ecn::NotEct {
            return Some(entry);
        }
        self.told.push_back(Departed { item: entry.item, entered: entry.entered, fate: Err(DropReason::Aqm) });
        None
    }
}

/// The distance to the next drop shrinks with the root of their number (RFC 8289 §5.2).
fn control_law(from: Instant, interval: Duration, count: u32) -> Instant {
    from + interval.div_f64(f64::from(count.max(1)).sqrt())
}
