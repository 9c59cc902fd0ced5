//! Settings of one direction of a path, as in a scenario file.
//!
//! ```toml
//! rate = "20 Mbit/s"
//! queue = "125 kB"                       # drop-tail, in bytes of IP packets
//! delay = "25 ms"                        # one way
//! loss = "1 %"                           # independent; or { burst = { mean = "1 %", length = 6 } }
//! ```

mod ecn;
mod loss;
mod queue;
mod schedule;
mod short;
mod varying;

use serde::{Deserialize, Serialize};
use units::{Bitrate, Duration, Probability};

use short::{Short, short_form};

pub use ecn::EcnTreatment;
pub use loss::{Loss, LossTrace, LossTraceError};
pub use queue::{Codel, FqCodel, Policer, Queue};
pub use schedule::{Change, Fate, Outage, RateTrace, RateTraceError};
pub use varying::VaryingRate;

/// One direction of a path. The default is an ideal wire: no rate limit, no delay, no loss.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LinkConfig {
    /// Bits of IP packets per second. Without it packets take no time to send and there is no queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bitrate>,
    /// Time at which a real link could send, in place of a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_trace: Option<RateTrace>,
    /// Rate by a distribution, in place of a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub varying_rate: Option<VaryingRate>,
    /// Policer: packets above its rate are dropped before the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policer: Option<Policer>,
    /// Queue for packets that come faster than the rate.
    pub queue: Queue,
    /// Propagation delay, one way.
    #[serde(with = "units::duration_text")]
    pub delay: Duration,
    /// Further delay, drawn evenly from zero to this.
    ///
    /// With the order kept (the default) a packet arrives no earlier than those sent before it. When packets follow one
    /// another faster than the jitter changes, each then waits for the slowest before it: the delay that is measured is
    /// the *maximum* of recent draws, near the upper end of the range, and not even. Set `jitter-period` to get delay
    /// that varies as asked although the order is kept.
    #[serde(with = "units::duration_text")]
    pub jitter: Duration,
    /// Zero: each packet draws its own jitter. Otherwise the jitter wanders with time: a new value is drawn at the end of
    /// each period, with a straight line in between. A period longer than `jitter` never needs to hold a packet back to
    /// keep the order.
    #[serde(with = "units::duration_text")]
    pub jitter_period: Duration,
    /// Let jitter alone change the order of packets.
    pub jitter_reorders: bool,
    /// Additional delay with a distribution, in place of `jitter`: pairs of a share and the delay that this share of the time does not
    /// exceed, interpolated linearly, from zero on. `[["50 %", "0 ms"], ["95 %", "375 ms"], ["100 %", "2 s"]]`: half of the time nothing is
    /// added. It is drawn again after each `jitter-period`, which is mandatory, and is constant in between.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "quantiles")]
    pub jitter_quantiles: Vec<(Probability, Duration)>,
    /// Packets that leave the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Reorder>,
    /// Packets that arrive twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<Duplicate>,
    /// Packets that are lost behind the queue.
    pub loss: Loss,
    /// Packets of which a few bits are flipped.
    pub corrupt: Probability,
    /// ECN marks that are rewritten behind the queue.
    #[serde(skip_serializing_if = "EcnTreatment::is_pass")]
    pub ecn: EcnTreatment,
    /// Largest IP packet in bytes that passes; larger ones are dropped without an ICMP message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Other values from given moments on, in the order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Outages, during which no packet passes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<Outage>,
}

/// Packets that leave the order. Such a packet is neither held back for those before it nor does it hold back others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reorder {
    /// Share of packets.
    pub probability: Probability,
    /// Delay beyond the propagation delay. Zero: they skip the jitter and overtake.
    #[serde(with = "units::duration_text", default)]
    pub delay: Duration,
}

/// Packets that arrive twice. In files a probability alone will do: `duplicate = "1 %"`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Duplicate {
    /// Share of packets.
    pub probability: Probability,
    /// The copy comes after the packet by a time drawn evenly from zero to this.
    #[serde(with = "units::duration_text")]
    pub delay: Duration,
}

/// The settings contradict themselves.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A link that never sends.
    #[error("the rate must be more than zero")]
    ZeroRate,
    /// Packets could pile up without end.
    #[error("a link with a rate needs a queue, for example `queue = \"125 kB\"` (50 ms at 20 Mbit/s)")]
    RateWithoutQueue,
    /// A queue on a link where nothing waits.
    #[error("a queue needs a rate, for example `rate = \"20 Mbit/s\"`")]
    QueueWithoutRate,
    /// The two numbers do not describe a chain.
    #[error(
        "loss of {mean} in bursts of {length} packets is impossible: the length must be a number of at least 1, the mean \
         below 100 %, and the gaps between bursts at least one packet long (mean / (1 - mean) at most the length)"
    )]
    ImpossibleBurst {
        /// Share of packets lost.
        mean: Probability,
        /// Mean burst length in packets.
        length: f64,
    },
    /// The chain would stay where it starts, so that one run has all the loss and the next one none.
    #[error("a Gilbert-Elliott loss model needs p + r above zero")]
    FrozenChain,
    /// Reordering without a delay has no effect.
    #[error("`reorder` has no effect without its `delay` or the link's `jitter`")]
    ReorderWithoutDelay,
    /// A jitter period without jitter.
    #[error("`jitter-period` and `jitter-reorders` need `jitter`")]
    NoJitter,
    /// No group has this many packets to lose.
    #[error("{drop} of each group of {size} packets cannot be lost")]
    ImpossibleGroup {
        /// Packets in a group.
        size: u32,
        /// Number of packets that should be lost.
        drop: u32,
    },
    /// The file of a trace has not been read.
    #[error("the trace `{0}` has not been read")]
    TraceNotRead(String),
    /// Two rates.
    #[error("`rate`, `rate-trace` and `varying-rate` exclude one another")]
    TwoRates,
    /// No distribution.
    #[error(
        "`varying-rate` needs quantiles that ascend in both columns, from more than zero and up to 100 %, a `period`, and `stays` of at \
         most 99 %"
    )]
    BadVaryingRate,
    /// The bucket is smaller than a packet.
    #[error("a policer needs a rate and a burst of at least one packet of 1500 bytes")]
    TinyPolicer,
    /// CoDel without its numbers.
    #[error("CoDel needs a target, an interval and a quantum above zero")]
    ZeroCodel,
    /// No distribution.
    #[error(
        "`jitter-quantiles` must ascend in both columns and end with 100 %, and needs `jitter-period` and no `jitter`"
    )]
    BadQuantiles,
    /// Changes that cannot be made.
    #[error(
        "`changes` must be in the order of time; a change of the rate needs a link with `rate`, and the new one must be \
         more than zero"
    )]
    BadChange,
    /// An outage that never ends or never is.
    #[error("an outage must last for some time, and for less than `every`; only one outage may come again")]
    BadOutage,
    /// Nothing would pass.
    #[error("an MTU of {0} bytes lets no QUIC packet pass (RFC 9000 §14: at least 1200 bytes of UDP payload)")]
    TinyMtu(u32),
}

impl LinkConfig {
    /// Checks that a link can be made of these settings.
    ///
    /// # Errors
    /// When they contradict themselves.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rates = [self.rate.is_some(), self.rate_trace.is_some(), self.varying_rate.is_some()];
        if rates.into_iter().filter(|given| *given).count() > 1 {
            return Err(ConfigError::TwoRates);
        }
        if self.varying_rate.as_ref().is_some_and(|varying| !varying.is_sound()) {
            return Err(ConfigError::BadVaryingRate);
        }
        match (self.has_rate(), self.queue) {
            _ if self.rate.is_some_and(|rate| rate.as_bps() == 0) => return Err(ConfigError::ZeroRate),
            (true, Queue::Unlimited) => return Err(ConfigError::RateWithoutQueue),
            (false, Queue::DropTail { .. } | Queue::Codel(_) | Queue::FqCodel(_)) => {
                return Err(ConfigError::QueueWithoutRate);
            }
            (true, Queue::Codel(codel) | Queue::FqCodel(FqCodel { codel, .. }))
                if codel.target.is_zero() || codel.interval.is_zero() =>
            {
                return Err(ConfigError::ZeroCodel);
            }
            (true, Queue::FqCodel(fq)) if fq.quantum == 0 => return Err(ConfigError::ZeroCodel),
            _ => {}
        }
        if let Some(trace) = &self.rate_trace
            && trace.opportunities.last().is_none_or(|last| *last == 0)
        {
            return Err(ConfigError::TraceNotRead(trace.file.clone()));
        }
        if self.policer.is_some_and(|policer| policer.rate.as_bps() == 0 || policer.burst.as_bytes() < 1_500) {
            return Err(ConfigError::TinyPolicer);
        }
        self.loss.check()?;
        self.check_schedule()?;
        if !self.jitter_quantiles.is_empty() {
            let ascends = self.jitter_quantiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
            let ends = self.jitter_quantiles.last().is_some_and(|last| last.0 == Probability::ONE);
            if !ascends || !ends || self.jitter_period.is_zero() || !self.jitter.is_zero() {
                return Err(ConfigError::BadQuantiles);
            }
        }
        if self.jitter.is_zero() && self.jitter_quantiles.is_empty() {
            if !self.jitter_period.is_zero() || self.jitter_reorders {
                return Err(ConfigError::NoJitter);
            }
            if self.reorder.is_some_and(|reorder| reorder.delay.is_zero()) {
                return Err(ConfigError::ReorderWithoutDelay);
            }
        }
        let mtus = self.changes.iter().filter_map(|change| change.mtu).chain(self.mtu);
        match mtus.min() {
            Some(mtu) if mtu < 1200 + crate::IPV4_OVERHEAD => Err(ConfigError::TinyMtu(mtu)),
            _ => Ok(()),
        }
    }

    fn check_schedule(&self) -> Result<(), ConfigError> {
        let ordered = self.changes.is_sorted_by_key(|change| change.at);
        let rates = self.changes.iter().filter_map(|change| change.rate);
        if !ordered || rates.clone().any(|rate| rate.as_bps() == 0) || (self.rate.is_none() && rates.count() > 0) {
            return Err(ConfigError::BadChange);
        }
        let bad = |outage: &Outage| {
            outage.lasts.is_zero() || outage.every.is_some_and(|every| every <= outage.lasts || every.is_zero())
        };
        // Two that come again may together leave no gap.
        let again = self.outages.iter().filter(|outage| outage.every.is_some()).count();
        if self.outages.iter().any(bad) || again > 1 { Err(ConfigError::BadOutage) } else { Ok(()) }
    }

    /// Returns whether packets take time to send.
    pub const fn has_rate(&self) -> bool {
        self.rate.is_some() || self.rate_trace.is_some() || self.varying_rate.is_some()
    }

    /// The rate, or that of the trace or of the distribution on average.
    pub fn mean_rate(&self) -> Option<Bitrate> {
        let varying = || self.varying_rate.as_ref().map(VaryingRate::mean);
        self.rate.or_else(|| self.rate_trace.as_ref().map(RateTrace::mean)).or_else(varying)
    }

    /// The lowest rate that lasts: that of the distribution, or else the mean.
    pub fn least_rate(&self) -> Option<Bitrate> {
        self.varying_rate.as_ref().map(VaryingRate::least).or_else(|| self.mean_rate())
    }

    /// The most that jitter adds.
    pub fn jitter_max(&self) -> Duration {
        self.jitter_quantiles.last().map_or(self.jitter, |last| last.1)
    }
}

/// Quantiles as pairs of texts.
mod quantiles {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
    use units::{Duration, Probability, duration_text};

    #[derive(Serialize, Deserialize)]
    struct Pair(Probability, #[serde(with = "duration_text")] Duration);

    pub(super) fn serialize<S: Serializer>(
        pairs: &[(Probability, Duration)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(pairs.iter().map(|&(share, delay)| Pair(share, delay)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(Probability, Duration)>, D::Error> {
        let pairs = Vec::<Pair>::deserialize(deserializer).map_err(de::Error::custom)?;
        Ok(pairs.into_iter().map(|Pair(share, delay)| (share, delay)).collect())
    }
}

/// The table behind the short form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct DuplicateTable {
    probability: Probability,
    #[serde(with = "units::duration_text", default)]
    delay: Duration,
}

impl From<DuplicateTable> for Duplicate {
    fn from(DuplicateTable { probability, delay }: DuplicateTable) -> Self {
        Self { probability, delay }
    }
}

impl Short<'_> for Duplicate {
    type Table = DuplicateTable;
    const EXPECTED: &'static str = "a probability such as \"1 %\", or { probability = …, delay = … }";
    fn from_text(text: &str) -> Result<Self, String> {
        let probability = text.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { probability, delay: Duration::ZERO })
    }
}

short_form!(Duplicate);
