//! Settings that depend on time: a rate from a trace, changes, and outages.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::{Bitrate, Duration, Instant};

/// Time at which a real link could send, in the format of Mahimahi: each line the millisecond of an opportunity to send
/// [`RateTrace::OPPORTUNITY`] bytes, ascending; the last one is also the period after which the trace begins again.
///
/// In a scenario file `rate-trace = { file = "lte.down" }`; the laboratory reads the file, so that stored scenarios hold the trace itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateTrace {
    /// Origin, for people.
    pub file: String,
    /// Milliseconds, ascending. Empty before the file has been read.
    pub opportunities: Arc<Vec<u32>>,
}

/// A rate trace that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateTraceError {
    /// A line that is no time.
    #[error("line {line}: `{found}` is no number of milliseconds")]
    Line {
        /// From 1.
        line: usize,
        /// Text found there.
        found: String,
    },
    /// Time runs backwards.
    #[error("line {0}: earlier than the line before")]
    Order(usize),
    /// No entries, or a total duration of zero.
    #[error("it has no period: the last line must be later than millisecond 0")]
    NoPeriod,
}

impl RateTrace {
    /// Bytes of an opportunity.
    pub const OPPORTUNITY: u32 = 1_500;

    /// Reads a trace. Empty lines and lines that start with `#` are skipped.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(file: &str, text: &str) -> Result<Self, RateTraceError> {
        let mut opportunities: Vec<u32> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let millis = line
                .parse()
                .map_err(|_| RateTraceError::Line { line: index + 1, found: line.chars().take(40).collect() })?;
            if opportunities.last().is_some_and(|last| *last > millis) {
                return Err(RateTraceError::Order(index + 1));
            }
            opportunities.push(millis);
        }
        if opportunities.last().is_none_or(|last| *last == 0) {
            return Err(RateTraceError::NoPeriod);
        }
        Ok(Self { file: file.to_owned(), opportunities: Arc::new(opportunities) })
    }

    /// The mean rate.
    pub fn mean(&self) -> Bitrate {
        let period = u64::from(self.opportunities.last().copied().unwrap_or(0)).max(1);
        Bitrate::from_bps(self.opportunities.len() as u64 * u64::from(Self::OPPORTUNITY) * 8 * 1_000 / period)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TraceTable {
    file: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    opportunities: Vec<u32>,
}

impl Serialize for RateTrace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TraceTable { file: self.file.clone(), opportunities: self.opportunities.to_vec() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RateTrace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let TraceTable { file, opportunities } = TraceTable::deserialize(deserializer)?;
        if !opportunities.is_sorted() {
            return Err(serde::de::Error::custom("the opportunities are not in the order of time"));
        }
        Ok(Self { file, opportunities: Arc::new(opportunities) })
    }
}

/// From a moment on, other values. What is left out stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Change {
    /// Time from the start of the run.
    #[serde(with = "units::duration_text")]
    pub at: Duration,
    /// The new rate. Only for a link that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bitrate>,
    /// The new propagation delay.
    #[serde(with = "units::duration_text::option", default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// The new MTU: below that of packets in use it is a black hole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

/// An outage: no packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Outage {
    /// Time at which it begins, from the start of the run.
    #[serde(with = "units::duration_text")]
    pub at: Duration,
    /// Time that it lasts.
    #[serde(with = "units::duration_text")]
    pub lasts: Duration,
    /// Period, counted from begin to begin. Without it the outage comes once.
    #[serde(with = "units::duration_text::option", default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// Outcome of packets.
    #[serde(default)]
    pub packets: Fate,
}

/// Outcome of the packets of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Packets leave the sender and are lost: no radio coverage.
    #[default]
    Lost,
    /// Packets wait in the queue until it has ended: a base station that hands over its buffer.
    Held,
}

impl Outage {
    /// End of the outage, if `at` lies in it.
    pub(crate) fn end(&self, at: Instant) -> Option<Instant> {
        let since = (at - Instant::ZERO).checked_sub(self.at)?;
        let turn = match self.every {
            Some(every) if !every.is_zero() => nanos(since) / nanos(every) * nanos(every),
            _ => 0,
        };
        let begin = Instant::ZERO + self.at + Duration::from_nanos(turn);
        (at < begin + self.lasts).then(|| begin + self.lasts)
    }

    /// The first moment from `at` on at which it is on; `None` when it never is again.
    pub(crate) fn begin(&self, at: Instant) -> Option<Instant> {
        if self.end(at).is_some() {
            return Some(at);
        }
        let first = Instant::ZERO + self.at;
        if at < first {
            return Some(first);
        }
        let every = self.every.filter(|every| !every.is_zero())?;
        let turns = nanos(at - first) / nanos(every) + 1;
        Some(first + Duration::from_nanos(turns.saturating_mul(nanos(every))))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
