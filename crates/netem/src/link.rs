//! One direction of a path: the stages in a row.

use rand_core::RngCore;
use units::{Bitrate, DataSize, Duration, Instant, RandomStream, Seed};

use crate::{
    ConfigError, Forced, Histogram, LinkConfig, LinkCounters, Script,
    delay::Way,
    draw::Chance,
    duplication::Duplication,
    loss::LossProcess,
    packet::{Delivery, DropReason, PacketMeta, Transit, Verdict},
    transmitter::Transmitter,
};

/// One direction of a path.
///
/// Offer packets in the order of time. The answer to each is final; the caller delivers the packet at the time said.
#[derive(Debug)]
pub struct Link {
    mtu: u32,
    transmitter: Option<Transmitter>,
    loss: LossProcess,
    corruption: Option<(Chance, RandomStream)>,
    way: Way,
    duplication: Option<Duplication>,
    script: Option<Script>,
    counters: LinkCounters,
    queueing: Histogram,
    /// When the latest packet so far arrives.
    latest: Instant,
}

/// What chance has in store for a packet. Drawn for every packet before anything is decided.
struct Lot {
    lost: bool,
    corrupt: Option<u64>,
}

impl Link {
    /// A link with these settings. The same settings and seed give the same fates.
    ///
    /// # Errors
    /// When the settings contradict themselves.
    pub fn new(config: &LinkConfig, seed: Seed) -> Result<Self, ConfigError> {
        Ok(Self {
            mtu: config.mtu.unwrap_or(u32::MAX),
            transmitter: Transmitter::new(config)?,
            loss: LossProcess::new(&config.loss, &seed)?,
            corruption: (config.corrupt.get() > 0.0).then(|| (Chance::new(config.corrupt), seed.stream("corrupt"))),
            way: Way::new(config, &seed),
            duplication: config.duplicate.map(|duplicate| Duplication::new(&duplicate, &seed)),
            script: None,
            counters: LinkCounters::default(),
            queueing: Histogram::new(),
            latest: Instant::ZERO,
        })
    }

    /// Gives a test its say. Replaces an earlier script.
    pub fn set_script(&mut self, script: Script) {
        self.script = Some(script);
    }

    /// Gives a link that has a rate another one, more than zero. Packets that wait already leave as if it had not changed.
    pub fn set_rate(&mut self, rate: Bitrate) {
        if let Some(transmitter) = &mut self.transmitter {
            transmitter.set_rate(rate);
        }
    }

    /// Takes a packet at `now`, which is not before that of the previous call, and says what becomes of it.
    pub fn offer(&mut self, now: Instant, packet: &PacketMeta) -> Transit {
        self.counters.offered.add(packet.size);
        let forced = self.script.as_mut().and_then(|script| script.decide(now, packet));
        let lot = self.draw();
        if packet.size > self.mtu {
            return self.drop(packet, DropReason::Mtu, Duration::ZERO, now);
        }
        let Some((queued, sent)) = self.transmit(now, packet.size) else {
            return self.drop(packet, DropReason::Queue, Duration::ZERO, now);
        };
        match forced {
            Some(Forced::Drop) => return self.drop(packet, DropReason::Script, queued, sent),
            None if lot.lost => return self.drop(packet, DropReason::Loss, queued, sent),
            _ => {}
        }
        let mut at = self.way.arrival(sent);
        let copy_at = self.duplication.as_mut().and_then(|duplication| duplication.copy(at));
        let mut corrupt = lot.corrupt;
        match forced {
            Some(Forced::Delay(span)) => at += span,
            Some(Forced::Corrupt) => corrupt = corrupt.or(Some(packet.number)),
            _ => {}
        }
        self.deliver(packet, queued, Delivery { at, corrupt, ecn: packet.ecn }, copy_at)
    }

    /// What the link has done so far.
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// How long packets waited in the queue, in nanoseconds; every packet that found room counts.
    pub const fn queueing(&self) -> &Histogram {
        &self.queueing
    }

    /// Takes [`Self::queueing`] out and begins a new one, for example when a warm-up is over.
    pub fn take_queueing(&mut self) -> Histogram {
        core::mem::take(&mut self.queueing)
    }

    /// Bytes that wait in the queue at `now`, without the packet that is being sent.
    pub fn backlog(&mut self, now: Instant) -> DataSize {
        self.transmitter.as_mut().map_or(DataSize::from_bytes(0), |transmitter| transmitter.backlog(now))
    }

    /// The draws behind loss and corruption, the same number for every packet.
    #[inline]
    fn draw(&mut self) -> Lot {
        let lost = self.loss.next();
        let corrupt = self.corruption.as_mut().and_then(|(chance, draws)| {
            let (decision, places) = (draws.next_u64(), draws.next_u64());
            chance.decides(decision).then_some(places)
        });
        Lot { lost, corrupt }
    }

    /// Queue and transmitter: how long the packet waits and when its last bit has been sent.
    #[inline]
    fn transmit(&mut self, now: Instant, size: u32) -> Option<(Duration, Instant)> {
        let Some(transmitter) = &mut self.transmitter else { return Some((Duration::ZERO, now)) };
        let stay = transmitter.accept(now, size)?;
        let queued = stay.starts - now;
        self.queueing.record_duration(queued);
        self.counters.queue_peak_bytes = self.counters.queue_peak_bytes.max(transmitter.backlog(now).as_bytes());
        Some((queued, stay.ends))
    }

    /// A packet that does not arrive. It makes the remaining draws all the same: they are those of the n-th packet.
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
