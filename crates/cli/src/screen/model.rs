//! Series of a measurement: what the [`Meter`](crate::meter::Meter) has seen lately.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use indicatif::DecimalBytes;

use crate::meter::{Sample, State, Subject};

/// Points that are kept of a series: at four a second more than a minute.
const POINTS: usize = 300;

/// Figure of a subject that has a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Figure {
    Goodput,
    #[default]
    Rtt,
    Window,
    InFlight,
    PacingRate,
    DeliveryRate,
    Lost,
    Repaired,
}

impl Figure {
    pub(super) const ALL: [Self; 8] = [
        Self::Goodput,
        Self::Rtt,
        Self::Window,
        Self::InFlight,
        Self::PacingRate,
        Self::DeliveryRate,
        Self::Lost,
        Self::Repaired,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Rtt => "RTT",
            Self::Window => "cwnd",
            Self::InFlight => "in flight",
            Self::PacingRate => "pacing rate",
            Self::DeliveryRate => "delivery rate",
            Self::Lost => "lost",
            Self::Repaired => "repaired",
        }
    }

    /// Value of the moment: bit/s, seconds, bytes, or packets so far.
    #[expect(clippy::cast_precision_loss, reason = "figures for a screen")]
    pub(super) fn of(self, line: &Line) -> Option<f64> {
        let last = &line.last;
        let whole = match self {
            Self::Goodput => return line.rate,
            Self::Rtt => return last.rtt.map(|rtt| rtt.as_secs_f64()),
            Self::Window => last.window,
            Self::InFlight => last.in_flight,
            Self::PacingRate => last.pacing_rate,
            Self::DeliveryRate => last.delivery_rate,
            Self::Lost => last.packets_lost,
            Self::Repaired => last.packets_repaired,
        };
        whole.map(|whole| whole as f64)
    }

    /// Value with its unit; a dash for one that was not measured.
    pub(super) fn text(self, value: Option<f64>) -> String {
        let Some(value) = value else { return "–".to_owned() };
        match self {
            Self::Goodput | Self::PacingRate | Self::DeliveryRate => rate(value),
            Self::Rtt => format!("{:.1} ms", value * 1e3),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
            Self::Window | Self::InFlight => DecimalBytes(value as u64).to_string(),
            Self::Lost | Self::Repaired => format!("{value:.0}"),
        }
    }

    /// Returns whether the series has what was added between two looks, and not the value of the moment.
    pub(super) const fn is_count(self) -> bool {
        matches!(self, Self::Lost | Self::Repaired)
    }

    /// The next figure with a chart of its own, or the one before. Goodput always has one.
    pub(super) fn turned(self, forwards: bool) -> Self {
        let charts = &Self::ALL[1..];
        let place = charts.iter().position(|figure| *figure == self).unwrap_or(0);
        let step = if forwards { 1 } else { charts.len() - 1 };
        charts[(place + step) % charts.len()]
    }
}

/// Bits per second in three digits or so.
fn rate(bits: f64) -> String {
    match bits {
        bits if bits >= 1e10 => format!("{:.1} Gbit/s", bits / 1e9),
        bits if bits >= 1e8 => format!("{:.0} Mbit/s", bits / 1e6),
        bits if bits >= 1e7 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{:.2} Mbit/s", bits / 1e6),
    }
}

/// A subject with its series.
#[derive(Clone, Debug)]
pub(super) struct Line {
    number: u64,
    pub(super) name: String,
    pub(super) last: Sample,
    pub(super) rate: Option<f64>,
    seen: Option<Instant>,
    series: [VecDeque<Option<f64>>; Figure::ALL.len()],
}

impl Line {
    fn new(subject: &Subject) -> Self {
        Self {
            number: subject.number,
            name: subject.name.clone(),
            last: Sample::default(),
            rate: None,
            seen: None,
            series: Default::default(),
        }
    }

    /// Takes a sample that is new. One that reports nothing ends the figures, and leaves the series.
    fn take(&mut self, subject: &Subject) {
        let before = std::mem::replace(&mut self.last, subject.last.clone());
        let before = Self { last: before, series: Default::default(), name: String::new(), ..*self };
        (self.rate, self.seen) = (subject.rate, subject.seen);
        if self.last == Sample::default() {
            return;
        }
        for (place, figure) in Figure::ALL.into_iter().enumerate() {
            let value = figure.of(self);
            let point = if figure.is_count() {
                value.zip(figure.of(&before)).map(|(after, before)| (after - before).max(0.0))
            } else {
                value
            };
            let series = &mut self.series[place];
            if series.len() == POINTS {
                series.pop_front();
            }
            series.push_back(point);
        }
    }

    /// The newest points of a figure, oldest first.
    pub(super) fn series(&self, figure: Figure, count: usize) -> impl Iterator<Item = Option<f64>> + '_ {
        let series = &self.series[figure as usize];
        series.iter().skip(series.len().saturating_sub(count)).copied()
    }
}

/// A measurement as far as it is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) title: String,
    pub(super) stage: Option<String>,
    pub(super) elapsed: Duration,
    pub(super) left: Option<Duration>,
    /// Part of the measurement that is done, of 1.
    pub(super) done: Option<f64>,
    pub(super) lines: Vec<Line>,
    /// Subjects that the meter had no room for.
    pub(super) unseen: u64,
}

impl Model {
    /// Takes what the meter has. Returns whether anything was new.
    pub(super) fn take(&mut self, state: &State, now: Instant) -> bool {
        let before = (self.elapsed.as_secs(), self.stage.clone(), self.lines.len());
        self.title.clone_from(&state.title);
        self.stage.clone_from(&state.stage);
        self.elapsed = now.saturating_duration_since(state.begun);
        self.left = state.left(now);
        self.done = share(state, self.elapsed);
        self.unseen = state.unseen;
        self.lines.retain(|line| state.subjects.iter().any(|subject| subject.number == line.number));
        let mut is_new = false;
        for subject in &state.subjects {
            let place = self.lines.iter().position(|line| line.number == subject.number).unwrap_or_else(|| {
                self.lines.push(Line::new(subject));
                self.lines.len() - 1
            });
            let line = &mut self.lines[place];
            if subject.seen != line.seen {
                line.take(subject);
                is_new = true;
            }
        }
        is_new || before != (self.elapsed.as_secs(), self.stage.clone(), self.lines.len())
    }
}

/// Part that is done: of the time, or of the bytes.
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(state: &State, elapsed: Duration) -> Option<f64> {
    let share = match (state.length, state.goal) {
        (Some(length), _) => elapsed.as_secs_f64() / length.as_secs_f64(),
        (None, Some(goal)) => state.moved()? as f64 / goal as f64,
        (None, None) => return None,
    };
    Some(share).filter(|share| share.is_finite()).map(|share| share.min(1.0))
}
