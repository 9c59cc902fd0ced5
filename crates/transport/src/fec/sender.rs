//! Sender: the latest symbols, the time of repair, and the fate of packets.

use std::{collections::VecDeque, ops::RangeInclusive};

use fec::{Allowed, Encoder, Kernel, MAX_SPAN, Repair, Schedule, Scheme};
use units::{Duration, Instant};
use wire::{RepairFrame, source_symbol_len};

use super::{
    carriers::Carriers,
    content::{Content, SenderFigures, SymbolRoom},
    controller::{Controller, Demand, LEAST_RTT, View},
    estimate::Estimate,
    policy::FecPolicy,
    protection::Tolerance,
    tail::Ends,
};
use crate::sent::Verdict;

/// Largest number of repair symbols that wait for the congestion window: older ones are of no use any more.
const MAX_WAITING: usize = 16;
/// Shortest time for which window or pacing hold back a bulk transfer. Shorter holds are messages, or the pause in which a
/// controller measures the delay of an empty path.
const BULK_LEAST: Duration = Duration::from_millis(250);
/// The shortest silence after which the end of a message is covered.
const TAIL_LEAST: Duration = Duration::from_millis(1);
/// Packets that a copy waits for while only the ends of messages are covered: about what follows in a short message.
const ENDS_PATIENCE: u64 = 24;
/// The length of a symbol in front of it, inside a repair symbol.
const PREFIX: usize = 2;

/// Symbols over which the strictest content decides how much may stay lost.
const STRICT_SPAN: u32 = 256;

/// Owner of the latest symbols and of the schedule of repair.
pub(crate) struct Sender {
    encoder: Encoder,
    schedule: Schedule,
    estimate: Estimate,
    controller: Option<Controller>,
    /// Symbols are made at the moment.
    on: bool,
    carriers: Carriers,
    /// Content of the packet that is being built.
    content: Content,
    /// The strictest of the latest symbols and of those before them, and how many are the latest.
    strictest: [Tolerance; 2],
    strict_symbols: u32,
    /// Repair symbols beyond the schedule: instead of copies after a probe timeout.
    extra: VecDeque<Repair>,
    /// Time at which the last symbol left, while its end may have to be covered.
    last_at: Option<Instant>,
    last_packet_at: Option<Instant>,
    /// Mean time between packets with data while there is data to send.
    gap: Duration,
    /// Since when window or pacing have held data back without a break.
    held_since: Option<Instant>,
    smoothed_rtt: Duration,
    message_ended: bool,
    /// Repair symbols after the end of a message.
    tail: u8,
    /// Ends of short messages, where the controller decides.
    ends: Option<Ends>,
    pub(crate) figures: SenderFigures,
}

impl Sender {
    /// `None` if the policy protects nothing, or the peer remembers too few symbols for it.
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
            estimate: Estimate::default(),
            on: controller.is_none(),
            tail: if controller.is_none() { repairs_of(scheme) } else { 1 },
            ends: controller.is_some().then(Ends::default),
            controller,
            carriers: Carriers::default(),
            content: Content::EMPTY,
            strictest: [Tolerance::ALL; 2],
            strict_symbols: 0,
            extra: VecDeque::new(),
            last_at: None,
            last_packet_at: None,
            held_since: None,
            gap: Duration::ZERO,
            smoothed_rtt: Duration::ZERO,
            message_ended: false,
            figures: SenderFigures::default(),
        })
    }

    /// Starts after the handshake, with the times of its packets; `bytes` were sent. If the controller decides, the first message is
    /// protected.
    pub(crate) fn start(&mut self, min_rtt: Option<Duration>, smoothed_rtt: Duration, bytes: u64) {
        let Some(ends) = &mut self.ends else { return };
        ends.active = min_rtt.is_some_and(|rtt| rtt >= LEAST_RTT);
        ends.budget.earn(bytes);
        self.on = ends.active;
        self.smoothed_rtt = smoothed_rtt;
        self.schedule.change(Controller::ENDS);
    }

    /// Returns whether the ends of short messages may be covered: the controller decides.
    pub(crate) fn may_cover_ends(&self) -> bool {
        self.ends.is_some()
    }

    /// Returns whether only the ends of messages are covered.
    #[inline]
    pub(crate) fn covers_ends_only(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.active)
    }

    /// Returns whether packets carry symbols at the moment.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on && self.ends.as_ref().is_none_or(|ends| !ends.active || ends.is_short())
    }

    /// Returns whether content with this tolerance is protected at this time.
    #[inline]
    pub(crate) fn protects(&self, tolerance: Tolerance) -> bool {
        self.is_on() && (tolerance == Tolerance::NONE || tolerance.share() < self.estimate.loss())
    }

    /// Code in use; `None` without protection.
    pub(crate) fn code(&self) -> Option<Scheme> {
        (self.on && !self.covers_ends_only()).then(|| self.schedule.scheme())
    }

    /// The code in use.
    pub(crate) fn scheme(&self) -> Scheme {
        self.schedule.scheme()
    }

    /// Returns whether a repair symbol is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.schedule.is_due() || !self.extra.is_empty()
    }

    /// Returns whether repair symbols wait that replace copies after a probe timeout.
    #[inline]
    pub(crate) fn has_probe(&self) -> bool {
        !self.extra.is_empty()
    }

    /// Packets that may follow a lost one until its repair has been sent: a retransmission waits for them.
    pub(crate) fn patience(&self) -> u64 {
        if self.covers_ends_only() {
            return ENDS_PATIENCE;
        }
        match self.schedule.scheme() {
            Scheme::Block { sources, repairs, depth } => {
                (u64::from(sources) + u64::from(repairs)) * u64::from(depth) + 1
            }
            Scheme::Window { repairs, sources, .. } => 2 * u64::from(sources.div_ceil(repairs) + 1) + 1,
        }
    }

    /// Time for which a copy waits beyond what reordering explains.
    pub(crate) fn patience_time(&self) -> Duration {
        let packets = u32::try_from(self.patience()).unwrap_or(u32::MAX);
        (self.gap * packets).min(self.smoothed_rtt / 4)
    }

    /// Room for a symbol in a packet of which `remaining` bytes of `capacity` are left for frames, with a packet number of `pn_len` bytes.
    /// `None` if it is too little. `unsent` bytes of streams wait, and no other data.
    #[inline]
    pub(crate) fn room(
        &mut self,
        unsent: Option<u64>,
        capacity: usize,
        remaining: usize,
        pn_len: usize,
    ) -> Option<SymbolRoom> {
        let id = self.encoder.next_id();
        // The repair symbol of the longest content has to fit into a packet with the longest number.
        let most = capacity.checked_sub(RepairFrame::header_len(id) + PREFIX + (4 - pn_len))?;
        let left = remaining.checked_sub(source_symbol_len(id))?;
        if let Some(ends) = self.ends.as_mut().filter(|ends| ends.active) {
            let bytes = ends.symbol_size(unsent).min(left.min(most));
            return (bytes >= 32).then_some(SymbolRoom { id, padding: 0, bytes });
        }
        let bytes = left.min(most);
        (bytes >= 32).then_some(SymbolRoom { id, padding: left - bytes, bytes })
    }

    /// A packet with data is about to leave.
    pub(crate) fn on_packet(&mut self, now: Instant) {
        if let Some(last) = self.last_packet_at.replace(now) {
            let gap = now - last;
            // Silence between messages is no distance between packets.
            if self.smoothed_rtt.is_zero() || gap < self.smoothed_rtt / 2 {
                self.gap = (self.gap * 15 + gap) / 16;
            }
        }
        let pause = self.ends.is_some().then(|| self.pause());
        if let (Some(ends), Some(pause)) = (&mut self.ends, pause) {
            ends.on_packet(now, pause);
        }
    }

    /// Content of the symbol of the packet that is being built.
    pub(crate) fn begin(&mut self, content: Content) {
        self.content = content;
    }

    /// A packet with a symbol is about to leave.
    pub(crate) fn on_sent(&mut self, now: Instant, pn: u64, content: &[u8]) {
        let id = self.encoder.push(content);
        let Content { tolerance, expires } = self.content;
        self.carriers.push(pn, expires);
        self.strictest[0] = self.strictest[0].min(tolerance);
        self.strict_symbols += 1;
        if self.strict_symbols >= STRICT_SPAN {
            self.strict_symbols = 0;
            self.strictest = [Tolerance::ALL, self.strictest[0]];
        }
        self.schedule.on_source(id);
        if let Some(ends) = &mut self.ends {
            ends.on_symbol(content.len());
        }
        self.figures.symbols += 1;
        self.last_at = Some(now);
    }

    /// Called when window or pacing limit the sender, or when no data waits.
    pub(crate) fn on_held(&mut self, now: Instant, held: bool) {
        self.held_since = if held { self.held_since.or(Some(now)) } else { None };
    }

    /// Notes that the application's message ends with the data that is being sent.
    pub(crate) fn on_message_end(&mut self) {
        self.message_ended = true;
    }

    /// Called when no data is left to send. Returns whether repair symbols are due for the end of the sent data.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        if let Some(ends) = &mut self.ends {
            ends.on_silence(now);
        }
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
        let allowed = if self.controller.is_some() { Allowed::ByCap } else { Allowed::ByRate };
        let most = match &mut self.ends {
            Some(ends) if ends.active && !ends.is_short() => 0,
            Some(ends) if ends.active => ends.pay(&self.estimate),
            _ => self.tail,
        };
        let made = self.schedule.flush(most, allowed);
        if made == 0 {
            // The rate does not permit it: the next symbol pays.
            self.last_at = None;
        }
        made > 0
    }

    /// Time at which the last sent symbols have to be covered.
    pub(crate) fn tail_deadline(&self) -> Option<Instant> {
        let last = self.last_at.filter(|_| self.schedule.uncovered() > 0)?;
        Some(last + self.pause())
    }

    /// Silence that ends a message.
    fn pause(&self) -> Duration {
        (self.gap * 4).max(self.smoothed_rtt / 8).max(TAIL_LEAST)
    }

    /// The next repair symbol that is worth sending, what it combines and its bytes, if they are no more than `room`.
    pub(crate) fn next_repair(&mut self, now: Instant, room: impl Fn(u64) -> usize) -> Option<(Repair, &[u8])> {
        loop {
            let mut repair = self.extra.pop_front().or_else(|| self.schedule.take_due())?;
            self.leave_out_done(now, &mut repair);
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

    /// Moves the start of a window to the first symbol that the peer may lack and that is still needed; others are not repaired.
    fn leave_out_done(&mut self, now: Instant, repair: &mut Repair) {
        let window = matches!(self.schedule.scheme(), Scheme::Window { .. }) || repair.count > 64;
        if repair.stride == 1 && window {
            let end = repair.first + u64::from(repair.count);
            let first = self.carriers.first_wanted(now, repair.first.max(self.encoder.first_id()).min(end), end);
            repair.count = u8::try_from(end - first).unwrap_or(u8::MAX);
            repair.first = first;
        } else if repair.terms().all(|(id, _)| self.carriers.is_done(now, id)) {
            repair.count = 0;
        }
    }

    /// Makes `count` repair symbols over all symbols that the peer may lack, instead of copies of packets in flight. Returns false without
    /// such symbols.
    pub(crate) fn probe(&mut self, now: Instant, count: u8) -> bool {
        let (oldest, end) = (self.encoder.first_id().max(self.carriers.first()), self.encoder.next_id());
        let first = self.carriers.first_wanted(now, oldest.min(end), end);
        if first == end {
            return false;
        }
        self.extra.clear();
        for _ in 0..count {
            if let Some(repair) = self.schedule.extra(first) {
                self.extra.push_back(repair);
            }
        }
        !self.extra.is_empty()
    }

    /// Fate of the packet that carried a symbol.
    pub(crate) fn on_verdict(&mut self, verdict: Verdict, id: u64) {
        if matches!(verdict, Verdict::Acked | Verdict::AckedLate | Verdict::Recovered) {
            self.carriers.settle(id);
        }
    }

    /// A packet was declared lost.
    pub(crate) fn on_packet_lost(&mut self, pn: u64) {
        self.estimate.on_lost(pn);
    }

    /// Passes the packets of symbols that the peer reports as rebuilt to `on`, as far as they are remembered.
    ///
    /// # Errors
    /// `Err(())` when it names a symbol that was never sent.
    pub(crate) fn on_recovered(&self, range: RangeInclusive<u64>, mut on: impl FnMut(u64, u64)) -> Result<(), ()> {
        if *range.end() >= self.encoder.next_id() {
            return Err(());
        }
        for id in (*range.start()).max(self.carriers.first())..=*range.end() {
            if let Some(pn) = self.carriers.unsettled(id) {
                on(id, pn);
            }
        }
        Ok(())
    }

    /// Chooses the code for the state of the path, after acknowledgements and losses.
    pub(crate) fn review(&mut self, now: Instant, view: &View) {
        self.smoothed_rtt = view.smoothed_rtt;
        self.estimate.on_outcome(view.acked, view.lost);
        if let Some(controller) = &mut self.controller {
            let rate = if self.gap.is_zero() { f64::INFINITY } else { 1.0 / self.gap.as_secs_f64() };
            self.figures.reviews += 1;
            let demand = Demand {
                rate,
                tolerated: self.strictest[0].min(self.strictest[1]).share(),
                bulk: self.held_since.is_some_and(|since| now - since >= (view.smoothed_rtt * 2).max(BULK_LEAST)),
            };
            let choice = controller.review(now, view, &self.estimate, &demand);
            let short = choice.is_none() || self.ends.as_ref().is_some_and(Ends::is_short);
            let ends = short && controller.permits_ends(now, view, &self.estimate);
            self.on = choice.is_some() || ends;
            if ends {
                self.schedule.change(Controller::ENDS);
            } else if let Some((scheme, tail)) = choice {
                self.schedule.change(scheme);
                self.tail = tail;
            }
            if let Some(state) = &mut self.ends {
                state.active = ends;
            }
        }
        // What waits for long has lost its worth.
        while self.schedule.waiting() > MAX_WAITING {
            self.schedule.take_due();
            self.figures.dropped += 1;
        }
    }

    /// Forgets all symbols, and makes no more.
    pub(crate) fn forget(&mut self) {
        self.on = false;
        self.encoder = Encoder::new(Kernel::best(), 1);
        self.carriers = Carriers::default();
        self.extra = VecDeque::new();
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.encoder.memory() + self.carriers.memory()
    }
}

/// Repair symbols that end a message.
fn repairs_of(scheme: Scheme) -> u8 {
    match scheme {
        Scheme::Block { repairs, .. } => repairs,
        Scheme::Window { .. } => 1,
    }
}
