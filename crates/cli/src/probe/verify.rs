//! Verification of the recommendation: the recommended controller and its rivals in interleaved rounds over the real path, and what the
//! rounds say with which certainty.

use std::{fmt::Write as _, time::Duration};

use lab::stats::{
    compare::{Better, Comparison, MARGIN, Pair, Rule, Scale, Tolerance, Verdict, compare},
    interval::{RUNS_MIN, centre},
};
use serde::Serialize;
use tiderace::transport::congestion::Algorithm;

use super::{
    ProbeArgs,
    recommend::recommend,
    results::{Cost, Results},
};

/// Rounds: the fewest from which a 95 % interval follows.
const ROUNDS: usize = RUNS_MIN;
/// Time between two transfers: handshake, last pings, empty queues.
const BETWEEN: Duration = Duration::from_millis(700);
/// Differences of round trips that do not matter, in ms.
const RTT_MARGIN: f64 = 1.0;

/// One of those that transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Quic(Algorithm),
    /// TCP of the server's kernel.
    Kernel,
}

impl Contender {
    pub(super) const ALL: [Self; 4] =
        [Self::Quic(Algorithm::Cubic), Self::Quic(Algorithm::Bbr3), Self::Quic(Algorithm::Auto), Self::Kernel];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Quic(algorithm) => algorithm.name(),
            Self::Kernel => "kernel TCP",
        }
    }
}

/// Rounds to run: every one has a transfer of each contender.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    pub(super) contenders: Vec<Contender>,
    /// Time of a transfer.
    pub(super) lasts: Duration,
    /// Largest number of bytes of a transfer.
    pub(super) share: u64,
}

impl Plan {
    /// Plan within `bytes` of a path of this rate (bit/s). Transfers become shorter where the bytes would end first, but not below 1 s.
    pub(super) fn new(args: &ProbeArgs, rate: Option<f64>, bytes: u64) -> Self {
        let contenders = Contender::ALL.to_vec();
        let share = bytes / (ROUNDS * contenders.len()) as u64;
        #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
        let fits = rate.map_or(f64::INFINITY, |rate| share as f64 * 8.0 * 0.8 / rate).clamp(1.0, 3_600.0);
        Self { rounds: ROUNDS, contenders, lasts: wanted(args).min(Duration::from_secs_f64(fits)), share }
    }

    /// Time and bytes that the rounds take at most, for people.
    pub(super) fn estimate(&self) -> String {
        let transfers = self.rounds * self.contenders.len();
        let seconds = ((self.lasts + BETWEEN) * u32::try_from(transfers).unwrap_or(u32::MAX)).as_secs();
        let bytes = indicatif::DecimalBytes(self.share.saturating_mul(transfers as u64));
        format!("{transfers} downloads in {} rounds, about {seconds} s, at most {bytes}", self.rounds)
    }

    /// Time that all rounds take at most, about.
    pub(super) fn length(args: &ProbeArgs) -> Duration {
        (wanted(args) + BETWEEN) * u32::try_from(ROUNDS * Contender::ALL.len()).unwrap_or(u32::MAX)
    }
}

/// Time of a transfer: a tenth of the probe's, 1 to 5 s.
fn wanted(args: &ProbeArgs) -> Duration {
    args.time.mul_f64(0.1).clamp(Duration::from_secs(1), Duration::from_secs(5))
}

/// A transfer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Transfer {
    /// In bit/s.
    pub(super) goodput: f64,
    /// Median of the round trips beside it; `None` when none came back.
    pub(super) rtt_ms: Option<f64>,
}

/// Transfers of all rounds, in the order of the plan's contenders.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    pub(super) list: Vec<Vec<Option<Transfer>>>,
    pub(super) is_partial: bool,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    notes: Vec<String>,
}

impl Rounds {
    /// Enters the reason of a transfer without a result, each once.
    pub(super) fn note(&mut self, contender: Contender, why: &str) {
        let note = format!("{}: {why}", contender.name());
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Answer for one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Standing {
    /// No rival is better, by intervals that say so.
    BestOrEquivalent,
    /// At least one rival is better.
    Beaten,
    /// The rounds do not decide against at least one rival.
    Undecided,
}

impl Standing {
    fn of(verdicts: impl Iterator<Item = Option<Verdict>>) -> Self {
        let mut standing = Self::BestOrEquivalent;
        for verdict in verdicts {
            match verdict {
                Some(Verdict::Worse) => return Self::Beaten,
                Some(Verdict::Better | Verdict::Equivalent) => {}
                Some(Verdict::Undecided | Verdict::Different) | None => standing = Self::Undecided,
            }
        }
        standing
    }

    const fn text(self) -> &'static str {
        match self {
            Self::BestOrEquivalent => "best or equivalent",
            Self::Beaten => "a rival is better",
            Self::Undecided => "undecided",
        }
    }
}

/// Medians of a contender.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Medians {
    name: &'static str,
    goodput_bps: Option<f64>,
    rtt_loaded_ms: Option<f64>,
    transfers: Vec<Option<Transfer>>,
}

/// The recommended controller beside a rival.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Against {
    rival: &'static str,
    goodput: Option<Comparison>,
    latency: Option<Comparison>,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Verification {
    recommended: &'static str,
    rounds: usize,
    transfer_s: f64,
    goodput: Standing,
    latency: Standing,
    contenders: Vec<Medians>,
    against: Vec<Against>,
    cost: Cost,
    notes: Vec<String>,
}

/// Controller among the recommended settings; that of the defaults where they name none.
pub(super) fn recommended(results: &Results) -> Option<Algorithm> {
    let advice = recommend(results)?;
    let named = advice.settings.iter().find_map(|setting| setting.strip_prefix("congestion = \""));
    Some(named.and_then(|name| name.trim_end_matches('"').parse().ok()).unwrap_or_default())
}

impl Verification {
    /// Judges rounds.
    pub(super) fn new(recommended: Algorithm, plan: &Plan, rounds: Rounds) -> Self {
        let own = plan.contenders.iter().position(|one| *one == Contender::Quic(recommended));
        let values = |index: usize, of: fn(Transfer) -> Option<f64>| -> Vec<Option<f64>> {
            rounds.list.iter().map(|round| round[index].and_then(of)).collect()
        };
        let goodput = |transfer: Transfer| Some(transfer.goodput);
        let latency = |transfer: Transfer| transfer.rtt_ms;
        let median = |values: Vec<Option<f64>>| {
            let known: Vec<_> = values.into_iter().filter(Option::is_some).collect();
            centre(&known).map(|(value, _)| value)
        };
        let medians = plan.contenders.iter().enumerate().map(|(index, one)| Medians {
            name: one.name(),
            goodput_bps: median(values(index, goodput)),
            rtt_loaded_ms: median(values(index, latency)),
            transfers: rounds.list.iter().map(|round| round[index]).collect(),
        });
        let contenders = medians.collect();
        let rule = |better, absolute| Rule {
            better: Some(better),
            scale: Scale::Ratio,
            tolerance: Tolerance { relative: MARGIN, absolute },
        };
        let beside = |index: usize, of: fn(Transfer) -> Option<f64>, rule: &Rule| {
            let pairs: Vec<Pair> = values(own?, of).into_iter().zip(values(index, of)).collect();
            compare(&pairs, rule)
        };
        let against: Vec<Against> = (0..plan.contenders.len())
            .filter(|index| Some(*index) != own)
            .map(|index| Against {
                rival: plan.contenders[index].name(),
                goodput: beside(index, goodput, &rule(Better::Higher, 0.0)),
                latency: beside(index, latency, &rule(Better::Lower, RTT_MARGIN)),
            })
            .collect();
        // A rival without any transfer has a note, and decides nothing.
        let standing = |of: fn(&Against) -> Option<Comparison>| {
            let met = against.iter().map(|one| of(one).map(|found| found.verdict));
            let met: Vec<_> = met.filter(Option::is_some).collect();
            if met.is_empty() { Standing::Undecided } else { Standing::of(met.into_iter()) }
        };
        Self {
            recommended: recommended.name(),
            rounds: rounds.list.len(),
            transfer_s: plan.lasts.as_secs_f64(),
            goodput: standing(|one| one.goodput),
            latency: standing(|one| one.latency),
            contenders,
            against,
            cost: Cost { bytes: rounds.bytes, seconds: rounds.seconds },
            notes: rounds.notes,
        }
    }

    /// Returns whether a rival is better in a figure.
    pub(super) fn is_beaten(&self) -> bool {
        [self.goodput, self.latency].contains(&Standing::Beaten)
    }

    /// Lines below the report.
    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "\nVerified over this path, downloads: {} of {} rounds, {:.1} s each transfer; {}, {:.0} s\n",
            self.rounds,
            ROUNDS,
            self.transfer_s,
            indicatif::DecimalBytes(self.cost.bytes),
            self.cost.seconds
        );
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        for one in &self.contenders {
            let _ = writeln!(
                out,
                "  {:<11} {:>9} Mbit/s  {:>9} ms under load",
                one.name,
                number(one.goodput_bps.map(|rate| rate / 1e6)),
                number(one.rtt_loaded_ms)
            );
        }
        let ratio = |found: &Option<Comparison>| {
            let Some(found) = found else { return "-".to_owned() };
            let verdict = match found.verdict {
                Verdict::Better => "better",
                Verdict::Worse => "worse",
                Verdict::Equivalent => "equivalent",
                Verdict::Undecided | Verdict::Different => "undecided",
            };
            found.ratio.map_or_else(
                || verdict.to_owned(),
                |ratio| format!("× {:.2} [{:.2}, {:.2}] {verdict}", ratio.value, ratio.low, ratio.high),
            )
        };
        for one in &self.against {
            let (goodput, latency) = (ratio(&one.goodput), ratio(&one.latency));
            let _ = writeln!(
                out,
                "  {} beside {}: goodput {goodput}; round trips under load {latency}",
                self.recommended, one.rival
            );
        }
        let (goodput, latency) = (self.goodput.text(), self.latency.text());
        let _ = writeln!(out, "  recommended, {}: goodput {goodput}; latency {latency}", self.recommended);
        for note in &self.notes {
            let _ = writeln!(out, "  note: {}", crate::printable::printable(note));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(own: [f64; 2], cubic: [f64; 2], rounds: usize) -> Verification {
        let transfer = |[goodput, rtt]: [f64; 2]| Some(Transfer { goodput, rtt_ms: Some(rtt) });
        let plan = Plan { rounds, contenders: Contender::ALL.to_vec(), lasts: Duration::from_secs(1), share: 1 };
        let round = vec![transfer(cubic), transfer(own), transfer(own), None];
        let list = vec![round; rounds];
        Verification::new(Algorithm::Auto, &plan, Rounds { list, ..Rounds::default() })
    }

    #[test]
    fn rounds_say_who_is_better() {
        let better = judged([20e6, 40.0], [10e6, 80.0], 6);
        assert_eq!((better.goodput, better.latency), (Standing::BestOrEquivalent, Standing::BestOrEquivalent));
        assert!(!better.is_beaten() && better.text().contains("kernel TCP          - Mbit/s"), "{}", better.text());
        let slower = judged([10e6, 40.0], [20e6, 80.0], 6);
        assert_eq!((slower.goodput, slower.latency), (Standing::Beaten, Standing::BestOrEquivalent));
        assert!(slower.is_beaten());
        // Five rounds have no interval of 95 %.
        assert_eq!(judged([20e6, 40.0], [10e6, 80.0], 5).goodput, Standing::Undecided);
    }
}
