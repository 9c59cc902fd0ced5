//! Progress of a transfer on standard error, at a terminal.

use std::{
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use tiderace::units::Bitrate;

/// Between two looks at the counter.
const TICK: Duration = Duration::from_millis(200);

/// Bytes that were moved so far (or handshakes that were made), by all tasks together.
#[derive(Clone, Debug, Default)]
pub(super) struct Moved {
    own: Arc<AtomicU64>,
    /// Counter that this one is a part of.
    whole: Option<Arc<AtomicU64>>,
}

impl Moved {
    pub(super) fn add(&self, amount: usize) {
        for counter in [Some(&self.own), self.whole.as_ref()].into_iter().flatten() {
            counter.fetch_add(amount as u64, Ordering::Relaxed);
        }
    }

    /// A counter of its own whose amounts count here, too.
    pub(super) fn part(&self) -> Self {
        Self { own: Arc::default(), whole: Some(self.own.clone()) }
    }

    pub(super) fn get(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }
}

/// Goal of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    Bytes(u64),
    After(Duration),
    Handshakes(u32),
}

/// Draws a bar until it is dropped.
pub(super) struct Progress {
    bar: ProgressBar,
    ticker: Option<tokio::task::JoinHandle<()>>,
}

impl Progress {
    pub(super) fn start(goal: Goal, moved: Moved) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden(), ticker: None };
        }
        let length = match goal {
            Goal::Bytes(bytes) => bytes,
            Goal::Handshakes(count) => count.into(),
            Goal::After(span) => u64::try_from(span.as_millis()).unwrap_or(u64::MAX),
        };
        let bar = ProgressBar::new(length);
        let template = match goal {
            Goal::Bytes(_) => "{bar:40} {bytes} of {total_bytes}, {msg}, {eta} left",
            Goal::After(_) => "{bar:40} {elapsed}, {msg}",
            Goal::Handshakes(_) => "{bar:40} {pos} of {len} handshakes, {eta} left",
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        let ticker = tokio::spawn(draw(bar.clone(), goal, moved));
        Self { bar, ticker: Some(ticker) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(ticker) = &self.ticker {
            ticker.abort();
        }
        self.bar.finish_and_clear();
    }
}

async fn draw(bar: ProgressBar, goal: Goal, moved: Moved) {
    let (started, mut before, mut looked) = (Instant::now(), 0, Instant::now());
    loop {
        tokio::time::sleep(TICK).await;
        let (bytes, now) = (moved.get(), Instant::now());
        bar.set_message(rate(bytes - before, now - looked));
        (before, looked) = (bytes, now);
        bar.set_position(match goal {
            Goal::Bytes(_) | Goal::Handshakes(_) => bytes,
            Goal::After(_) => u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
}

/// Bits per second in three digits or so.
pub(super) fn rate(bytes: u64, span: Duration) -> String {
    let mbps = mbit_per_s(bytes, span);
    let digits = if mbps >= 100.0 {
        0
    } else if mbps >= 10.0 {
        1
    } else {
        2
    };
    format!("{mbps:.digits$} Mbit/s")
}

/// Bytes in a time as Mbit/s; 0 for no time.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a figure")]
pub(super) fn mbit_per_s(bytes: u64, span: Duration) -> f64 {
    if span.is_zero() {
        return 0.0;
    }
    Bitrate::from_bps((bytes as f64 * 8.0 / span.as_secs_f64()) as u64).as_mbps()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits() {
        let of = |bytes| rate(bytes, Duration::from_secs(1));
        assert_eq!(
            [of(125_000), of(1_250_000), of(12_500_000), of(1_250_000_000)],
            ["1.00 Mbit/s", "10.0 Mbit/s", "100 Mbit/s", "10000 Mbit/s"]
        );
        assert!((mbit_per_s(1_000_000, Duration::from_secs(2)) - 4.0).abs() < 1e-9);
        assert!(mbit_per_s(1, Duration::ZERO).abs() < 1e-9);
    }
}
