//! The sending side: the latest symbols, when repair is due, and what became of packets.

use std::{collections::VecDeque, ops::RangeInclusive};

use fec::{Encoder, Kernel, MAX_SPAN, Repair, Schedule, Scheme};
use units::{Duration, Instant};
use wire::{RepairFrame, source_symbol_len};

use super::{
    controller::{Controller, View},
    policy::FecPolicy,
};
use crate::sent::Verdict;

/// Symbols whose packets are remembered, for reports that come late.
const REMEMBERED: usize = 1024;
/// Repair symbols that wait for the congestion window at most: older ones have lost their worth.
const MAX_WAITING: usize = 16;
/// The shortest silence after which the end of a message is covered.
const TAIL_LEAST: Duration = Duration::from_millis(1);
/// The length of a symbol in front of it, inside a repair symbol.
const PREFIX: usize = 2;

/// A packet that carried a symbol.
#[derive(Clone, Copy, Debug)]
struct Carrier {
    pn: u64,
    /// The peer has the symbol, one way or the other; or its content has expired.
    settled: bool,
}

/// What a packet with a source symbol has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SymbolRoom {
    /// Its number.
    pub(crate) id: u64,
    /// PADDING in front of it, so that a packet with a repair symbol of the same length has the same size.
    pub(crate) padding: usize,
    /// Bytes of frames.
    pub(crate) bytes: usize,
}

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SenderFigures {
    pub(crate) symbols: u64,
    pub(crate) repairs: u64,
    pub(crate) repair_bytes: u64,
    /// Packets that were lost and that the peer rebuilt before they were declared lost.
    pub(crate) recovered: u64,
    /// Packets that had been declared lost before the peer said that it rebuilt them.
    pub(crate) recovered_late: u64,
    /// Repair symbols that were due and were never sent.
    pub(crate) dropped: u64,
    /// Times that the controller was asked.
    pub(crate) reviews: u64,
}

/// Owns what is protected.
pub(crate) struct Sender {
    encoder: Encoder,
    schedule: Schedule,
    controller: Option<Controller>,
    /// Symbols are made at the moment.
    on: bool,
    carriers: VecDeque<Carrier>,
    /// The symbol of the first carrier.
    first: u64,
    /// Symbols below are all settled.
    settled_below: u64,
    /// Repair symbols beyond the schedule: instead of copies after a probe timeout.
    extra: VecDeque<Repair>,
    last_at: Option<Instant>,
    /// Mean time between symbols while there is something to send.
    gap: Duration,
    smoothed_rtt: Duration,
    message_ended: bool,
    /// Repair symbols after the end of a message.
    tail: u8,
    pub(crate) figures: SenderFigures,
}

impl Sender {
    /// `None` when the policy protects nothing, or the peer remembers too little for it.
    pub(crate) fn new(policy: FecPolicy, window: u64) -> Option<Self> {
        let (scheme, controller) = match policy {
            FecPolicy::Off | FecPolicy::Receive => return None,
            FecPolicy::Fixed(scheme) => (scheme, None),
            FecPolicy::Auto => (Controller::LEAST, Some(Controller::default())),
        };
        if scheme.span() > window {
            return None;
        }
        // What a probe timeout may have to repair is wider than most codes.
        let capacity = usize::try_from(MAX_SPAN.min(window)).unwrap_or(1);
        Some(Self {
            encoder: Encoder::new(Kernel::best(), capacity),
            schedule: Schedule::new(scheme, 0),
            on: controller.is_none(),
            tail: if controller.is_none() { repairs_of(scheme) } else { 1 },
            controller,
            carriers: VecDeque::new(),
            first: 0,
            settled_below: 0,
            extra: VecDeque::new(),
            last_at: None,
            gap: Duration::ZERO,
            smoothed_rtt: Duration::ZERO,
            message_ended: false,
            figures: SenderFigures::default(),
        })
    }

    /// Whether packets carry symbols at the moment.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// The code in use.
    pub(crate) fn scheme(&self) -> Scheme {
        self.schedule.scheme()
    }

    /// Whether a repair symbol is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.schedule.is_due() || !self.extra.is_empty()
    }

    /// Whether repair symbols wait that stand in for copies after a probe timeout.
    #[inline]
    pub(crate) fn has_probe(&self) -> bool {
        !self.extra.is_empty()
    }

    /// Packets that may follow a lost one until what repairs it has been sent: so long a copy waits.
    pub(crate) fn patience(&self) -> u64 {
        match self.schedule.scheme() {
            Scheme::Block { sources, repairs, depth } => {
                (u64::from(sources) + u64::from(repairs)) * u64::from(depth) + 1
            }
            Scheme::Window { repairs, sources, .. } => 2 * u64::from(sources.div_ceil(repairs) + 1) + 1,
        }
    }

    /// How long a copy waits beyond what reordering explains.
    pub(crate) fn patience_time(&self) -> Duration {
        let packets = u32::try_from(self.patience()).unwrap_or(u32::MAX);
        (self.gap * packets).min(self.smoothed_rtt / 4)
    }

    /// Room for a symbol in a packet of which `remaining` bytes of `capacity` are left for frames, `pn_len` bytes being its
    /// number. `None` when there is too little.
    #[inline]
    pub(crate) fn room(&self, capacity: usize, remaining: usize, pn_len: usize) -> Option<SymbolRoom> {
        let id = self.encoder.next_id();
        // The repair symbol of the longest content has to fit into a packet with the longest number.
        let most = capacity.checked_sub(RepairFrame::header_len(id) + PREFIX + (4 - pn_len))?;
        let left = remaining.checked_sub(source_symbol_len(id))?;
        let bytes = left.min(most);
        (bytes >= 32).then_some(SymbolRoom { id, padding: left - bytes, bytes })
    }

    /// A packet with a symbol is about to leave.
    pub(crate) fn on_sent(&mut self, now: Instant, pn: u64, content: &[u8]) {
        let id = self.encoder.push(content);
        if self.carriers.len() == REMEMBERED {
            self.carriers.pop_front();
            self.first += 1;
        }
        self.carriers.push_back(Carrier { pn, settled: false });
        self.schedule.on_source(id);
        self.figures.symbols += 1;
        if let Some(last) = self.last_at.replace(now) {
            let gap = now - last;
            // Silence between messages is no distance between packets.
            if self.smoothed_rtt.is_zero() || gap < self.smoothed_rtt / 2 {
                self.gap = (self.gap * 15 + gap) / 16;
            }
        }
    }

    /// The application ended a message with what is being sent.
    pub(crate) fn on_message_end(&mut self) {
        self.message_ended = true;
    }

    /// There is nothing to send. True when repair symbols are due that cover the end of what was sent.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        if self.schedule.uncovered() == 0 {
            self.message_ended = false;
            return false;
        }
        let block = match self.schedule.scheme() {
            // A short block has few symbols for its repair: that waits until it is sure that no more come.
            Scheme::Block { sources, depth, .. } => u64::from(sources) * u64::from(depth) / 2,
            Scheme::Window { .. } => 0,
        };
        let ended = self.message_ended && self.schedule.uncovered() >= block;
        if !ended && self.tail_deadline().is_none_or(|at| now < at) {
            return false;
        }
        self.message_ended = false;
        let made = self.schedule.flush(self.tail);
        if made == 0 {
            // The rate does not permit it: the next symbol pays.
            self.last_at = None;
        }
        made > 0
    }

    /// When what was sent last has to be covered.
    pub(crate) fn tail_deadline(&self) -> Option<Instant> {
        let last = self.last_at.filter(|_| self.schedule.uncovered() > 0)?;
        Some(last + (self.gap * 4).max(self.smoothed_rtt / 8).max(TAIL_LEAST))
    }

    /// The next repair symbol that is worth sending, what it combines and its bytes, if they are no more than `room`.
    pub(crate) fn next_repair(&mut self, room: impl Fn(u64) -> usize) -> Option<(Repair, &[u8])> {
        loop {
            let mut repair = self.extra.pop_front().or_else(|| self.schedule.take_due())?;
            if repair.stride == 1 {
                self.leave_out_settled(&mut repair);
            }
            let len = self.encoder.repair_len(&repair);
            if repair.count == 0 || len.is_none_or(|len| len > room(repair.first)) {
                self.figures.dropped += 1;
                continue;
            }
            self.figures.repairs += 1;
            let next = self.schedule.peek_due().copied();
            return Some((repair, self.encoder.repair(&repair, next.as_ref())?));
        }
    }

    /// A window begins with what the peer may lack.
    fn leave_out_settled(&mut self, repair: &mut Repair) {
        while self.settled_below < self.encoder.next_id() && self.is_settled(self.settled_below) {
            self.settled_below += 1;
        }
        let end = repair.first + u64::from(repair.count);
        if matches!(self.schedule.scheme(), Scheme::Window { .. }) || repair.count > 64 {
            let mut first = repair.first.max(self.settled_below.min(end)).max(self.encoder.first_id());
            while first < end && self.is_settled(first) {
                first += 1;
            }
            repair.count = u8::try_from(end.saturating_sub(first)).unwrap_or(u8::MAX);
            repair.first = first;
        }
    }

    fn is_settled(&self, id: u64) -> bool {
        match id.checked_sub(self.first) {
            None => true,
            Some(place) => {
                usize::try_from(place).ok().and_then(|place| self.carriers.get(place)).is_some_and(|c| c.settled)
            }
        }
    }

    /// Instead of copies of what is in flight: `count` repair symbols over all symbols that the peer may lack. False when there
    /// are none.
    pub(crate) fn probe(&mut self, count: u8) -> bool {
        let oldest = self.encoder.first_id().max(self.first);
        let Some(first) = (oldest..self.encoder.next_id()).find(|id| !self.is_settled(*id)) else { return false };
        self.extra.clear();
        for _ in 0..count {
            if let Some(repair) = self.schedule.extra(first) {
                self.extra.push_back(repair);
            }
        }
        !self.extra.is_empty()
    }

    /// What became of the packet that carried a symbol.
    pub(crate) fn on_verdict(&mut self, verdict: Verdict, id: u64) {
        if matches!(verdict, Verdict::Acked | Verdict::AckedLate | Verdict::Recovered)
            && let Some(place) = id.checked_sub(self.first).and_then(|place| usize::try_from(place).ok())
            && let Some(carrier) = self.carriers.get_mut(place)
        {
            carrier.settled = true;
        }
    }

    /// A packet was declared lost.
    pub(crate) fn on_packet_lost(&mut self, pn: u64) {
        if let Some(controller) = &mut self.controller {
            controller.on_lost(pn);
        }
    }

    /// The packets of the symbols that the peer says it has rebuilt, as far as they are remembered.
    ///
    /// # Errors
    /// `Err(())` when it names a symbol that was never sent.
    pub(crate) fn on_recovered(&self, range: RangeInclusive<u64>, mut on: impl FnMut(u64, u64)) -> Result<(), ()> {
        if *range.end() >= self.encoder.next_id() {
            return Err(());
        }
        let start = (*range.start()).max(self.first);
        for id in start..=*range.end() {
            let carrier = &self.carriers[usize::try_from(id - self.first).unwrap_or(usize::MAX)];
            if !carrier.settled {
                on(id, carrier.pn);
            }
        }
        Ok(())
    }

    /// Looks at the path, after acknowledgements and losses: which code is worth its bytes.
    pub(crate) fn review(&mut self, now: Instant, view: &View) {
        self.smoothed_rtt = view.smoothed_rtt;
        if let Some(controller) = &mut self.controller {
            let symbol_rate = if self.gap.is_zero() { f64::INFINITY } else { 1.0 / self.gap.as_secs_f64() };
            self.figures.reviews += 1;
            let choice = controller.review(now, view, symbol_rate);
            self.on = choice.is_some();
            if let Some((scheme, tail)) = choice {
                self.schedule.change(scheme);
                self.tail = tail;
            }
        }
        // What waits for long has lost its worth.
        while self.schedule.waiting() > MAX_WAITING {
            self.schedule.take_due();
            self.figures.dropped += 1;
        }
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.encoder.memory() + self.carriers.capacity() * size_of::<Carrier>()
    }
}

/// Repair symbols that end a message.
fn repairs_of(scheme: Scheme) -> u8 {
    match scheme {
        Scheme::Block { repairs, .. } => repairs,
        Scheme::Window { .. } => 1,
    }
}
