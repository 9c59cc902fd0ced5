//! One direction of a path: the stages in a row.

use rand_core::RngCore;
use units::{Bitrate, DataSize, Duration, Instant, RandomStream, Seed};

use crate::{
    ConfigError, Forced, Histogram, LinkConfig, LinkCounters, Script,
    aqm::{Aqm, Departed},
    config::{EcnTreatment, Fate, Outage, Queue},
    delay::Propagation,
    draw::Chance,
    duplication::Duplication,
    loss::LossProcess,
    packet::{Delivery, DropReason, Ecn, PacketMeta, Ticket, Transit, Verdict},
    policer::Bucket,
    transmitter::Transmitter,
};

/// One direction of a path.
///
/// Offer packets in the order of time. The caller delivers a packet at the returned time. The answer is final, unless it is
/// [`Verdict::Held`]: then the queue decides when the packet leaves it, and the caller drains [`Link::poll`] at [`Link::deadline`], before
/// it offers later packets.
#[derive(Debug)]
pub struct Link {
    mtu: u32,
    /// Other MTUs from given moments on.
    mtus: Vec<(Instant, u32)>,
    policer: Option<Bucket>,
    transmitter: Sender,
    /// Spans in which what is sent is lost.
    outages: Vec<Outage>,
    loss: LossProcess,
    corruption: Option<(Chance, RandomStream)>,
    ecn: EcnTreatment,
    way: Propagation,
    duplication: Option<Duplication>,
    script: Option<Script>,
    counters: LinkCounters,
    queueing: Histogram,
    /// Time at which the latest packet so far arrives.
    latest: Instant,
}

/// Queue and transmitter.
#[derive(Debug)]
enum Sender {
    /// No rate: packets take no time to send.
    None,
    /// A queue that knows a packet's stay when it enters.
    Tail(Transmitter),
    /// A queue that decides when packets leave.
    Managed(Box<Aqm<Waiting>>),
}

/// Record of a packet that waits in a managed queue.
#[derive(Debug)]
struct Waiting {
    packet: PacketMeta,
    forced: Option<Forced>,
    draws: Draws,
    ticket: Ticket,
}

/// A held packet whose fate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Ticket of the packet.
    pub ticket: Ticket,
    /// Description, as it was offered.
    pub packet: PacketMeta,
    /// Dropped or delivered.
    pub transit: Transit,
}

/// Draws of a packet. Made for every packet before anything is decided.
#[derive(Clone, Copy, Debug)]
struct Draws {
    lost: bool,
    corrupt: Option<u64>,
}

impl Link {
    /// A link with these settings. The same settings and seed give the same fates.
    ///
    /// # Errors
    /// When the settings contradict themselves.
    pub fn new(config: &LinkConfig, seed: Seed) -> Result<Self, ConfigError> {
        config.check()?;
        let transmitter = match config.queue {
            Queue::Codel(_) | Queue::FqCodel(_) => {
                Aqm::new(config, &seed).map_or(Sender::None, |aqm| Sender::Managed(Box::new(aqm)))
            }
            Queue::Unlimited | Queue::DropTail { .. } => {
                Transmitter::new(config, &seed).map_or(Sender::None, Sender::Tail)
            }
        };
        let mtus = config.changes.iter().filter_map(|change| Some((Instant::ZERO + change.at, change.mtu?)));
        // Without a rate there is no queue that could hold packets: an outage loses them all the same.
        let lost = |outage: &&Outage| outage.packets == Fate::Lost || !config.has_rate();
        Ok(Self {
            mtu: config.mtu.unwrap_or(u32::MAX),
            mtus: mtus.collect(),
            policer: config.policer.as_ref().map(Bucket::new),
            transmitter,
            outages: config.outages.iter().filter(lost).copied().collect(),
            loss: LossProcess::new(&config.loss, &seed)?,
            corruption: (config.corrupt.get() > 0.0).then(|| (Chance::new(config.corrupt), seed.stream("corrupt"))),
            ecn: config.ecn,
            way: Propagation::new(config, &seed),
            duplication: config.duplicate.map(|duplicate| Duplication::new(&duplicate, &seed)),
            script: None,
            counters: LinkCounters::default(),
            queueing: Histogram::new(),
            latest: Instant::ZERO,
        })
    }

    /// Sets a script of a test. Replaces an earlier script.
    pub fn set_script(&mut self, script: Script) {
        self.script = Some(script);
    }

    /// Sets the rate, more than zero, of a link with a drop-tail queue, whatever the schedule of its settings. Waiting packets leave as if
    /// it had not changed.
    pub fn set_rate(&mut self, rate: Bitrate) {
        if let Sender::Tail(transmitter) = &mut self.transmitter {
            transmitter.set_rate(rate);
        }
    }

    /// Takes a packet at `now`, which is not before that of the previous call, and returns its fate.
    pub fn offer(&mut self, now: Instant, packet: &PacketMeta) -> Transit {
        self.counters.offered.add(packet.size);
        let forced = self.script.as_mut().and_then(|script| script.decide(now, packet));
        let draws = self.draw(now, packet);
        let mtu = if self.mtus.is_empty() { self.mtu } else { self.mtu_at(now) };
        if packet.size > mtu {
            return self.drop(packet, DropReason::Mtu, Duration::ZERO, now);
        }
        if self.policer.as_mut().is_some_and(|bucket| !bucket.passes(now, packet)) {
            return self.drop(packet, DropReason::Policer, Duration::ZERO, now);
        }
        match &mut self.transmitter {
            Sender::None => self.sent(packet, forced, draws, (Duration::ZERO, now), packet.ecn),
            Sender::Tail(transmitter) => {
                let Some(stay) = transmitter.accept(now, packet.size) else {
                    return self.drop(packet, DropReason::Queue, Duration::ZERO, now);
                };
                let queued = stay.starts - now;
                self.counters.queue_peak_bytes =
                    self.counters.queue_peak_bytes.max(transmitter.backlog(now).as_bytes());
                self.queueing.record_duration(queued);
                self.sent(packet, forced, draws, (queued, stay.ends), packet.ecn)
            }
            Sender::Managed(aqm) => {
                let ticket = Ticket(self.counters.offered.packets);
                aqm.offer(
                    now,
                    packet.flow,
                    packet.size,
                    packet.ecn,
                    Waiting { packet: *packet, forced, draws, ticket },
                );
                self.counters.queue_peak_bytes = self.counters.queue_peak_bytes.max(aqm.backlog());
                Transit { queued: Duration::ZERO, verdict: Verdict::Held(ticket) }
            }
        }
    }

    /// Deadline of [`Self::poll`]; `None` when the link holds no packet. Ask again after each offer.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match &self.transmitter {
            Sender::Managed(aqm) => aqm.deadline(),
            _ => None,
        }
    }

    /// The next held packet whose fate is known by `now`. Call it until it answers `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Released> {
        let Sender::Managed(aqm) = &mut self.transmitter else { return None };
        let Departed { item: Waiting { packet, forced, draws, ticket }, entered, fate } = aqm.poll(now)?;
        let transit = match fate {
            Ok((stay, marked)) => {
                let queued = stay.starts - entered;
                self.queueing.record_duration(queued);
                let ecn = if marked { Ecn::Ce } else { packet.ecn };
                self.sent(&packet, forced, draws, (queued, stay.ends), ecn)
            }
            Err(reason) => self.drop(&packet, reason, now - entered, now),
        };
        Some(Released { ticket, packet, transit })
    }

    /// Processes a packet after the transmitter.
    #[inline]
    fn sent(
        &mut self,
        packet: &PacketMeta,
        forced: Option<Forced>,
        draws: Draws,
        (queued, sent): (Duration, Instant),
        ecn: Ecn,
    ) -> Transit {
        match forced {
            Some(Forced::Drop) => return self.drop(packet, DropReason::Script, queued, sent),
            None if draws.lost => return self.drop(packet, DropReason::Loss, queued, sent),
            _ => {}
        }
        if self.outages.iter().any(|outage| outage.end(sent).is_some()) {
            return self.drop(packet, DropReason::Outage, queued, sent);
        }
        let mut at = self.way.arrival(sent);
        let copy_at = self.duplication.as_mut().and_then(|duplication| duplication.copy(at));
        let mut corrupt = draws.corrupt;
        match forced {
            Some(Forced::Delay(span)) => at += span,
            Some(Forced::Corrupt) => corrupt = corrupt.or(Some(packet.number)),
            _ => {}
        }
        self.deliver(packet, queued, Delivery { at, corrupt, ecn: self.ecn.apply(ecn) }, copy_at)
    }

    /// The MTU at a moment.
    #[cold]
    fn mtu_at(&self, now: Instant) -> u32 {
        let passed = self.mtus.partition_point(|(from, _)| *from <= now);
        passed.checked_sub(1).map_or(self.mtu, |place| self.mtus[place].1)
    }

    /// Counters of the link.
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Time that packets waited in the queue, in nanoseconds; every packet that found room counts.
    pub const fn queueing(&self) -> &Histogram {
        &self.queueing
    }

    /// Takes [`Self::queueing`] out and begins a new one, for example when a warm-up has ended.
    pub fn take_queueing(&mut self) -> Histogram {
        core::mem::take(&mut self.queueing)
    }

    /// Bytes that wait in the queue at `now`, without the packet that is being sent.
    pub fn backlog(&mut self, now: Instant) -> DataSize {
        match &mut self.transmitter {
            Sender::None => DataSize::from_bytes(0),
            Sender::Tail(transmitter) => transmitter.backlog(now),
            Sender::Managed(aqm) => DataSize::from_bytes(aqm.backlog()),
        }
    }

    /// The draws behind loss and corruption, the same number for every packet.
    #[inline]
    fn draw(&mut self, now: Instant, packet: &PacketMeta) -> Draws {
        let lost = self.loss.next(now, packet);
        let corrupt = self.corruption.as_mut().and_then(|(chance, draws)| {
            let (decision, places) = (draws.next_u64(), draws.next_u64());
            chance.decides(decision).then_some(places)
        });
        Draws { lost, corrupt }
    }

    /// Drops a packet. The remaining draws are made nevertheless: draws belong to the n-th packet.
    fn drop(&mut self, packet: &PacketMeta, reason: DropReason, queued: Duration, sent: Instant) -> Transit {
        self.way.skip(sent);
        if let Some(duplication) = &mut self.duplication {
            duplication.copy(sent);
        }
        self.counters.count_drop(reason, packet.size);
        Transit { queued, verdict: Verdict::Dropped(reason) }
    }

    #[inline]
    fn deliver(&mut self, packet: &PacketMeta, queued: Duration, first: Delivery, copy_at: Option<Instant>) -> Transit {
        self.counters.delivered.add(packet.size);
        self.counters.corrupted += u64::from(first.corrupt.is_some());
        self.counters.reordered += u64::from(first.at < self.latest);
        self.counters.duplicated += u64::from(copy_at.is_some());
        self.latest = self.latest.max(first.at);
        let copy = copy_at.map(|at| Delivery { at: at.max(first.at), ..first });
        Transit { queued, verdict: Verdict::Delivered { first, copy } }
    }
}
