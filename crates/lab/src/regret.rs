//! Regret: the loss of a contender in each cell against the best fixed setting of that cell.
//!
//! The best setting is not known in advance. A setting that needs no choice is therefore judged by the largest and the mean loss
//! against the best choice in hindsight. The fixed settings have such losses as well, and are shown for comparison.
//!
//! | figure | own value over | counted where |
//! |---|---|---|
//! | [`Loss::Goodput`] | the largest goodput of a fixed setting | data without end, video |
//! | [`Loss::Queueing`] | the shortest queueing delay of those with at least 95 % of that goodput | the same |
//! | [`Loss::Time`] | the shortest time of requests, short flows or pages | these |
//!
//! With a rival, the goodput is twice that of the side that got less: neither starving nor being starved is a gain.

use serde::Serialize;

use crate::{
    figure::Figure,
    scenario::{Scenario, Workload},
    stats::interval::centre,
    summary::Summary,
};

/// Share of the largest goodput with which a fixed setting's queueing delay counts.
const ENOUGH_GOODPUT: f64 = 0.95;
/// Queueing delay in seconds below which differences do not matter.
const SHORT_QUEUE: f64 = 0.002;
/// Bounds of a ratio: one cell does not decide a mean.
const RATIOS: (f64, f64) = (0.01, 100.0);

/// Kind of loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Goodput: a ratio below 1 is a loss.
    Goodput,
    /// 95th percentile of the RTT less the propagation delay: a ratio above 1 is a loss.
    Queueing,
    /// 99th percentile of the time of requests (the 95th where samples are few, and of flows and pages): as `Queueing`.
    Time,
}

impl Loss {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Goodput, Self::Queueing, Self::Time];

    /// Name in reports.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Queueing => "queueing delay p95",
            Self::Time => "time p99",
        }
    }

    /// Loss of a ratio: 0.1 for nine tenths of the goodput and for 1.1 times the delay.
    fn lost(self, ratio: f64) -> f64 {
        if self == Self::Goodput { 1.0 - ratio } else { ratio - 1.0 }
    }
}

/// Values of all contenders in a cell; `None` where a contender has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellValues {
    /// Name of the cell.
    pub name: String,
    /// Goodput in bits per second.
    pub goodput: Vec<Option<f64>>,
    /// Queueing delay in seconds.
    pub queueing: Vec<Option<f64>>,
    /// Time of requests, flows or pages in seconds.
    pub time: Vec<Option<f64>>,
}

impl CellValues {
    /// Medians over the seeds at a point, whose scenario is given.
    fn of(summary: &Summary, point: usize, scenario: &Scenario) -> Self {
        let levels: Vec<&str> = summary.points[point].values().map(String::as_str).collect();
        let mut values = Self { name: levels.join(", "), ..Self::default() };
        let contenders = 0..summary.contenders.len();
        let median = |contender: usize, figure| Some(centre(&summary.values(point, contender, figure))?.0);
        match scenario.traffic.workload {
            Workload::Bulk | Workload::Tunnel | Workload::Video => {
                let figure =
                    if scenario.traffic.workload == Workload::Video { Figure::VideoRate } else { Figure::Goodput };
                values.goodput =
                    contenders.clone().map(|contender| shared(summary, point, contender, figure)).collect();
                let base = scenario.path.base_rtt().as_secs_f64();
                let queueing = |contender| Some((median(contender, Figure::RttP95)? - base).max(SHORT_QUEUE));
                values.queueing = contenders.map(queueing).collect();
            }
            Workload::Requests | Workload::Flows | Workload::Page => {
                let read = |figure| contenders.clone().map(|contender| median(contender, figure)).collect::<Vec<_>>();
                let candidates = [Figure::RequestP99, Figure::RequestP95, Figure::FlowP95, Figure::FlowP50].map(read);
                let complete = candidates.iter().find(|times| times.iter().all(Option::is_some));
                values.time = complete.or_else(|| candidates.first()).cloned().unwrap_or_default();
            }
            Workload::Datagrams | Workload::Messages | Workload::Feed | Workload::Webtransport => {}
        }
        values
    }

    fn values(&self, loss: Loss) -> &[Option<f64>] {
        match loss {
            Loss::Goodput => &self.goodput,
            Loss::Queueing => &self.queueing,
            Loss::Time => &self.time,
        }
    }

    /// The best of the fixed settings, with its value.
    fn best(&self, loss: Loss, fixed: &[usize]) -> Option<(usize, f64)> {
        let among = |loss: Loss, chosen: &dyn Fn(usize) -> bool| {
            let values = self.values(loss);
            let known = fixed.iter().filter(|&&one| chosen(one)).filter_map(|&one| Some((one, (*values.get(one)?)?)));
            known.reduce(|best, other| if loss.lost(other.1) < loss.lost(best.1) { other } else { best })
        };
        if loss != Loss::Queueing {
            return among(loss, &|_| true);
        }
        let (_, most) = among(Loss::Goodput, &|_| true)?;
        let is_enough = |one: usize| self.goodput[one].is_some_and(|goodput| goodput >= ENOUGH_GOODPUT * most);
        among(loss, &is_enough)
    }
}

/// Goodput over the seeds; with a rival, twice that of the side that got less.
fn shared(summary: &Summary, point: usize, contender: usize, figure: Figure) -> Option<f64> {
    let counting = (0..summary.seeds.len()).filter(|&seed| summary.counts(point, contender, seed));
    let value = |seed| {
        let all = summary.value(point, contender, seed, figure)?;
        let share = summary.value(point, contender, seed, Figure::Share);
        Some(share.map_or(all, |share| 2.0 * all * share.min(1.0 - share)))
    };
    Some(centre(&counting.map(value).collect::<Vec<_>>())?.0)
}

/// A contender in one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Index of the contender.
    pub contender: usize,
    /// Cell.
    pub cell: String,
    /// Figure.
    pub loss: Loss,
    /// Value of the contender in the base unit.
    pub own: f64,
    /// The best value of a fixed setting, and the index of that setting.
    pub best: (f64, usize),
    /// Own value over the best, between 0.01 and 100.
    pub ratio: f64,
}

impl Entry {
    /// Loss; negative where the contender is better than every fixed setting.
    pub fn lost(&self) -> f64 {
        self.loss.lost(self.ratio)
    }
}

/// A contender over all cells that have a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Total {
    /// Index of the contender.
    pub contender: usize,
    /// Figure.
    pub loss: Loss,
    /// Number of cells.
    pub cells: usize,
    /// Geometric mean of the ratios.
    pub mean: f64,
    /// Cells that lose more than 15 % of the goodput, or take more than 1.1 times as long.
    pub beyond: usize,
}

/// Regret of all contenders in all cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Regret {
    /// Names of the contenders.
    pub contenders: Vec<String>,
    /// Indices of the judged contenders; the others are the fixed settings.
    pub judged: Vec<usize>,
    /// Cells without a value of some contender: they have no ratios.
    pub incomplete: Vec<String>,
    /// Every contender in every complete cell.
    pub entries: Vec<Entry>,
}

impl Regret {
    /// Regret of a matrix; `None` if its scenario has no judged contenders.
    pub fn of(summary: &Summary) -> Option<Self> {
        let scenario = &summary.manifest.scenario;
        let named = &scenario.contenders.judged;
        let is_judged = |name: &String| named.iter().any(|one| one == name || *name == format!("tiderace {one}"));
        let judged: Vec<usize> =
            (0..summary.contenders.len()).filter(|&place| is_judged(&summary.contenders[place])).collect();
        if judged.is_empty() {
            return None;
        }
        let cell = |point| Some(CellValues::of(summary, point, &scenario.at(&summary.points[point]).ok()?));
        let cells: Vec<CellValues> = (0..summary.points.len()).filter_map(cell).collect();
        Some(Self::new(summary.contenders.clone(), judged, &cells))
    }

    /// Compares the contenders in each cell.
    pub fn new(contenders: Vec<String>, judged: Vec<usize>, cells: &[CellValues]) -> Self {
        let fixed: Vec<usize> = (0..contenders.len()).filter(|place| !judged.contains(place)).collect();
        let mut regret = Self { contenders, judged, ..Self::default() };
        for cell in cells {
            for loss in Loss::ALL {
                let values = cell.values(loss);
                if values.is_empty() {
                    continue;
                }
                let best = cell.best(loss, &fixed).filter(|_| values.iter().all(Option::is_some));
                let Some(best) = best else {
                    regret.incomplete.push(format!("{}: {}", cell.name, loss.label()));
                    continue;
                };
                regret.entries.extend(values.iter().enumerate().filter_map(|(contender, own)| {
                    let own = (*own)?;
                    // Two that never end are alike.
                    let ratio = if own == best.1 { 1.0 } else { (own / best.1).clamp(RATIOS.0, RATIOS.1) };
                    Some(Entry { contender, cell: cell.name.clone(), loss, own, best: (best.1, best.0), ratio })
                }));
            }
        }
        regret
    }

    fn of_contender(&self, contender: usize, loss: Loss) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.contender == contender && entry.loss == loss)
    }

    /// A contender over all cells; `None` where no cell has the figure.
    pub fn total(&self, contender: usize, loss: Loss) -> Option<Total> {
        let limit = if loss == Loss::Goodput { 0.15 } else { 0.1 };
        let (mut cells, mut beyond, mut sum) = (0, 0, 0.0);
        for entry in self.of_contender(contender, loss) {
            cells += 1;
            beyond += usize::from(entry.lost() > limit);
            sum += entry.ratio.ln();
        }
        #[expect(clippy::cast_precision_loss, reason = "a few hundred cells")]
        let mean = (sum / cells as f64).exp();
        (cells > 0).then_some(Total { contender, loss, cells, mean, beyond })
    }

    /// The cells with the largest losses of a contender, the worst first.
    pub fn worst(&self, contender: usize, loss: Loss) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.of_contender(contender, loss).collect();
        entries.sort_by(|a, b| b.lost().total_cmp(&a.lost()));
        entries
    }
}
