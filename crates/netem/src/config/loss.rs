//! Loss behind the queue.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use units::{Duration, Probability};

use super::{
    ConfigError,
    short::{Short, short_form},
};

/// Loss process. In files a probability alone means independent loss: `loss = "1 %"`.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Independent and identically distributed (i.i.d.).
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
    /// A fixed number of each group of consecutive packets of a flow, at places that the seed chooses: a code that repairs this many losses
    /// of a group must recover all of them.
    Group {
        /// Packets in a group.
        size: u32,
        /// Number of of them that are lost.
        drop: u32,
        /// Packets with fewer bytes (acknowledgements, for example) belong to no group and are never lost.
        min_bytes: u32,
        /// The first group begins with the first packet at least this long after the start of the run, so that groups can match those of a
        /// code; earlier packets are not lost.
        #[serde(with = "units::duration_text", skip_serializing_if = "Duration::is_zero")]
        after: Duration,
    },
    /// Losses of a real path, over and over. Each seed starts at another place of it.
    Trace(LossTrace),
}

/// Losses of a real path.
///
/// In a scenario file `{ trace = { file = "loss.txt" } }`; the laboratory reads the file, so that stored scenarios hold the trace itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossTrace {
    /// Origin, for people.
    pub file: String,
    /// For each packet in turn whether it was lost. Empty before the file has been read.
    pub lost: Arc<Vec<bool>>,
}

/// A loss trace that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossTraceError {
    /// Character that no loss trace has.
    #[error("line {line}: `{found}` is neither 0 (arrived) nor 1 (lost)")]
    Symbol {
        /// From 1.
        line: usize,
        /// Character found there.
        found: char,
    },
    /// Nothing in it.
    #[error("there is no packet in it")]
    Empty,
}

impl LossTrace {
    /// Reads a trace: 0 for a packet that arrived and 1 for one that was lost, in the order of sending. White space, commas
    /// and lines that start with `#` are skipped.
    ///
    /// # Errors
    /// When it has other characters, or is empty.
    pub fn parse(file: &str, text: &str) -> Result<Self, LossTraceError> {
        let mut lost = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#')) {
            for symbol in line.chars().filter(|symbol| !symbol.is_whitespace() && *symbol != ',') {
                match symbol {
                    '0' => lost.push(false),
                    '1' => lost.push(true),
                    found => return Err(LossTraceError::Symbol { line: index + 1, found }),
                }
            }
        }
        if lost.is_empty() {
            return Err(LossTraceError::Empty);
        }
        Ok(Self { file: file.to_owned(), lost: Arc::new(lost) })
    }

    /// The share of packets lost.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub fn mean(&self) -> f64 {
        self.lost.iter().filter(|lost| **lost).count() as f64 / self.lost.len().max(1) as f64
    }
}

/// A trace in a file: its name, and when it has been read its runs, beginning with packets that arrived.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TraceTable {
    file: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    runs: Vec<u64>,
}

impl Serialize for LossTrace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut runs: Vec<u64> = Vec::new();
        let mut state = false;
        for &lost in self.lost.iter() {
            if runs.is_empty() || lost != state {
                if runs.is_empty() && lost {
                    runs.push(0);
                }
                runs.push(0);
                state = lost;
            }
            if let Some(run) = runs.last_mut() {
                *run += 1;
            }
        }
        TraceTable { file: self.file.clone(), runs }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LossTrace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// More than any file that people keep: half a gigabyte of packets.
        const PACKETS_MAX: u64 = 1 << 29;
        let TraceTable { file, runs } = TraceTable::deserialize(deserializer)?;
        if runs.iter().try_fold(0u64, |sum, run| sum.checked_add(*run)).is_none_or(|sum| sum > PACKETS_MAX) {
            return Err(de::Error::custom("the runs of the loss trace are too long"));
        }
        let mut lost = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            lost.resize(lost.len() + usize::try_from(*run).unwrap_or(0), index % 2 == 1);
        }
        Ok(Self { file, lost: Arc::new(lost) })
    }
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

    /// The share of packets that this model loses in the long run ([`Loss::Group`]: of the packets that belong to groups).
    pub fn mean(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Iid { p } => p.get(),
            Self::Burst { mean, .. } => mean.get(),
            Self::GilbertElliott { p, r, loss_good, loss_bad } => {
                let bad = p.get() / (p.get() + r.get());
                bad * loss_bad.get() + (1.0 - bad) * loss_good.get()
            }
            Self::Group { size, drop, .. } => f64::from(drop) / f64::from(size.max(1)),
            Self::Trace(ref trace) => trace.mean(),
        }
    }

    /// Checks that the model is consistent.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match *self {
            Self::Burst { mean, length } => Self::from_bursts(mean, length).map(drop),
            Self::GilbertElliott { p, r, .. } if p.get() + r.get() <= 0.0 => Err(ConfigError::FrozenChain),
            Self::Group { size, drop, .. } if size == 0 || drop > size => {
                Err(ConfigError::ImpossibleGroup { size, drop })
            }
            Self::Trace(ref trace) if trace.lost.is_empty() => Err(ConfigError::TraceNotRead(trace.file.clone())),
            _ => Ok(()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum LossTable {
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
    Group {
        size: u32,
        #[serde(default = "one")]
        drop: u32,
        #[serde(default = "full_size")]
        min_bytes: u32,
        #[serde(with = "units::duration_text", default)]
        after: Duration,
    },
    Trace(LossTrace),
}

const fn always() -> Probability {
    Probability::ONE
}

const fn one() -> u32 {
    1
}

/// Acknowledgements are smaller than this, packets full of data larger.
const fn full_size() -> u32 {
    600
}

impl From<LossTable> for Loss {
    fn from(table: LossTable) -> Self {
        match table {
            LossTable::Iid { p } => Self::Iid { p },
            LossTable::Burst { mean, length } => Self::Burst { mean, length },
            LossTable::GilbertElliott { p, r, loss_good, loss_bad } => {
                Self::GilbertElliott { p, r, loss_good, loss_bad }
            }
            LossTable::Group { size, drop, min_bytes, after } => Self::Group { size, drop, min_bytes, after },
            LossTable::Trace(trace) => Self::Trace(trace),
        }
    }
}

impl Short<'_> for Loss {
    type Table = LossTable;
    const EXPECTED: &'static str =
        "a probability such as \"1 %\", or a table with one of `iid`, `burst`, `gilbert-elliott`, `group` and `trace`";
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            probability => probability.parse().map(|p| Self::Iid { p }).map_err(|error| format!("{error}")),
        }
    }
}

short_form!(Loss);
