//! The settings of one direction of a path, as they stand in a scenario file.
//!
//! ```toml
//! rate = "20 Mbit/s"
//! queue = "125 kB"                       # drop-tail, in bytes of IP packets
//! delay = "25 ms"                        # one way
//! loss = "1 %"                           # independent; or { burst = { mean = "1 %", length = 6 } }
//! ```

use serde::{Deserialize, Deserializer, Serialize};
use units::{Bitrate, DataSize, Duration, Probability};

/// One direction of a path. The default is a wire of no length: no rate limit, no delay, nothing lost.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LinkConfig {
    /// Bits of IP packets per second. Without it packets take no time to send and there is no queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bitrate>,
    /// What waits when packets come faster than the rate.
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
    /// Largest IP packet in bytes that passes; larger ones vanish without a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

/// What happens to packets that come faster than the rate. In files a size means drop-tail: `queue = "125 kB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// No bound. Only for a link without a rate, where nothing ever waits.
    #[default]
    Unlimited,
    /// First in, first out. A packet that does not fit is dropped.
    DropTail {
        /// Room for packets that wait, in bytes of IP packets. The packet being sent is not in the queue.
        bytes: DataSize,
    },
}

/// Packets that leave the order. Such a packet is neither held back for those before it nor does it hold back others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reorder {
    /// How many packets.
    pub probability: Probability,
    /// How much longer than the propagation delay they take. Zero: they skip the jitter and overtake.
    #[serde(with = "units::duration_text", default)]
    pub delay: Duration,
}

/// Packets that arrive twice. In files a probability alone will do: `duplicate = "1 %"`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Duplicate {
    /// How many packets.
    pub probability: Probability,
    /// The copy comes after the packet by a time drawn evenly from zero to this.
    #[serde(with = "units::duration_text")]
    pub delay: Duration,
}

/// Which packets are lost. In files a probability alone means independent loss: `loss = "1 %"`.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each packet for itself.
    Iid {
        /// Share of packets lost.
        p: Probability,
    },
    /// Losses that come in bursts whose lengths are geometric: [`Loss::GilbertElliott`] with everything lost in the bad
    /// state and nothing in the good one, given by what one can measure.
    Burst {
        /// Share of packets lost.
        mean: Probability,
        /// Mean number of packets in a burst, at least 1.
        length: f64,
    },
    /// A chain of two states, good and bad, that makes one step per packet and starts in its stationary distribution.
    GilbertElliott {
        /// From good to bad, per packet.
        p: Probability,
        /// From bad to good, per packet.
        r: Probability,
        /// Share of packets lost in the good state.
        loss_good: Probability,
        /// Share of packets lost in the bad state.
        loss_bad: Probability,
    },
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
    /// A queue where nothing can wait.
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
    /// Nothing would change places.
    #[error("`reorder` has no effect without its `delay` or the link's `jitter`")]
    ReorderWithoutDelay,
    /// A period of what?
    #[error("`jitter-period` and `jitter-reorders` need `jitter`")]
    NoJitter,
    /// Nothing would pass.
    #[error("an MTU of {0} bytes lets no QUIC packet pass (RFC 9000 §14: at least 1200 bytes of UDP payload)")]
    TinyMtu(u32),
}

impl Loss {
    /// The chain of [`Loss::Burst`]: leaves the bad state with `r = 1 / length`, enters it with `p = r · mean / (1 - mean)`.
    ///
    /// # Errors
    /// When no chain has this mean and length.
    pub fn from_bursts(mean: Probability, length: f64) -> Result<Self, ConfigError> {
        let impossible = || ConfigError::ImpossibleBurst { mean, length };
        if !length.is_finite() || length < 1.0 || mean.get() >= 1.0 {
            return Err(impossible());
        }
        let r = 1.0 / length;
        let p = r * mean.get() / (1.0 - mean.get());
        Ok(Self::GilbertElliott {
            p: Probability::new(p).map_err(|_| impossible())?,
            r: Probability::new(r).map_err(|_| impossible())?,
            loss_good: Probability::ZERO,
            loss_bad: Probability::ONE,
        })
    }

    /// The share of packets that this model loses in the long run.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Iid { p } => p.get(),
            Self::Burst { mean, .. } => mean.get(),
            Self::GilbertElliott { p, r, loss_good, loss_bad } => {
                let bad = p.get() / (p.get() + r.get());
                bad * loss_bad.get() + (1.0 - bad) * loss_good.get()
            }
        }
    }
}

impl LinkConfig {
    /// Says whether a link can be made of these settings.
    ///
    /// # Errors
    /// When they contradict themselves.
    pub fn check(&self) -> Result<(), ConfigError> {
        match (self.rate, self.queue) {
            (Some(rate), _) if rate.as_bps() == 0 => return Err(ConfigError::ZeroRate),
            (Some(_), Queue::Unlimited) => return Err(ConfigError::RateWithoutQueue),
            (None, Queue::DropTail { .. }) => return Err(ConfigError::QueueWithoutRate),
            _ => {}
        }
        match self.loss {
            Loss::Burst { mean, length } => drop(Loss::from_bursts(mean, length)?),
            Loss::GilbertElliott { p, r, .. } if p.get() + r.get() <= 0.0 => return Err(ConfigError::FrozenChain),
            _ => {}
        }
        if self.jitter.is_zero() {
            if !self.jitter_period.is_zero() || self.jitter_reorders {
                return Err(ConfigError::NoJitter);
            }
            if self.reorder.is_some_and(|reorder| reorder.delay.is_zero()) {
                return Err(ConfigError::ReorderWithoutDelay);
            }
        }
        match self.mtu {
            Some(mtu) if mtu < 1200 + crate::IPV4_OVERHEAD => Err(ConfigError::TinyMtu(mtu)),
            _ => Ok(()),
        }
    }
}

/// A setting that is written as one value where that says it all, or else as a table.
mod short {
    use core::{fmt, marker::PhantomData};

    use serde::{Deserialize, Deserializer, de};

    /// What text or a number alone means, and the table that stands for everything else.
    pub(super) trait Short<'de>: Sized {
        type Table: Deserialize<'de> + Into<Self>;
        const EXPECTED: &'static str;
        fn from_text(text: &str) -> Result<Self, String>;
    }

    pub(super) fn read<'de, T: Short<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Short<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
                T::from_text(text).map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
                T::from_text(&value.to_string()).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
                T::from_text(&value.to_string()).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
                T::from_text(&value.to_string()).map_err(E::custom)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::Table::deserialize(de::value::MapAccessDeserializer::new(map)).map(Into::into)
            }
        }
        deserializer.deserialize_any(Visitor(PhantomData))
    }
}

/// The tables behind the short forms.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum QueueTable {
    DropTail { bytes: DataSize },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DuplicateTable {
    probability: Probability,
    #[serde(with = "units::duration_text", default)]
    delay: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
enum LossTable {
    Iid {
        p: Probability,
    },
    Burst {
        mean: Probability,
        length: f64,
    },
    GilbertElliott {
        p: Probability,
        r: Probability,
        #[serde(default)]
        loss_good: Probability,
        #[serde(default = "always")]
        loss_bad: Probability,
    },
}

const fn always() -> Probability {
    Probability::ONE
}

impl From<QueueTable> for Queue {
    fn from(QueueTable::DropTail { bytes }: QueueTable) -> Self {
        Self::DropTail { bytes }
    }
}

impl From<DuplicateTable> for Duplicate {
    fn from(DuplicateTable { probability, delay }: DuplicateTable) -> Self {
        Self { probability, delay }
    }
}

impl From<LossTable> for Loss {
    fn from(table: LossTable) -> Self {
        match table {
            LossTable::Iid { p } => Self::Iid { p },
            LossTable::Burst { mean, length } => Self::Burst { mean, length },
            LossTable::GilbertElliott { p, r, loss_good, loss_bad } => {
                Self::GilbertElliott { p, r, loss_good, loss_bad }
            }
        }
    }
}

impl short::Short<'_> for Queue {
    type Table = QueueTable;
    const EXPECTED: &'static str = "the size of a drop-tail queue such as \"125 kB\", or { drop-tail = { bytes = … } }";
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            size => size.parse().map(|bytes| Self::DropTail { bytes }).map_err(|error| format!("{error}")),
        }
    }
}

impl short::Short<'_> for Duplicate {
    type Table = DuplicateTable;
    const EXPECTED: &'static str = "a probability such as \"1 %\", or { probability = …, delay = … }";
    fn from_text(text: &str) -> Result<Self, String> {
        let probability = text.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { probability, delay: Duration::ZERO })
    }
}

impl short::Short<'_> for Loss {
    type Table = LossTable;
    const EXPECTED: &'static str =
        "a probability such as \"1 %\", or a table with one of `iid`, `burst` and `gilbert-elliott`";
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            probability => probability.parse().map(|p| Self::Iid { p }).map_err(|error| format!("{error}")),
        }
    }
}

macro_rules! short_form {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                short::read(deserializer)
            }
        }
    };
}
short_form!(Queue);
short_form!(Duplicate);
short_form!(Loss);
