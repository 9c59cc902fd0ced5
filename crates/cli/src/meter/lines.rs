//! Progress in plain lines.

use std::{
    fmt::Write as _,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use super::{Meter, State, Subject};

/// Time between two lines.
pub(crate) const EVERY: Duration = Duration::from_secs(5);

/// A line for each subject.
pub(crate) fn text(state: &State, now: Instant) -> String {
    let elapsed = now.saturating_duration_since(state.begun).as_secs_f64();
    let left = state.left(now).map_or_else(String::new, |left| format!(", {:.0} s left", left.as_secs_f64()));
    let mut out = String::new();
    for subject in &state.subjects {
        let _ = writeln!(out, "{elapsed:.0} s{left}  {}  {}", subject.name, figures(subject));
    }
    if state.subjects.is_empty() {
        let _ = writeln!(out, "{elapsed:.0} s{left}");
    }
    out
}

/// Figures that a subject reports.
fn figures(subject: &Subject) -> String {
    let last = &subject.last;
    let mut parts = Vec::new();
    parts.extend(subject.rate.map(|rate| format!("{:.2} Mbit/s", rate / 1e6)));
    parts.extend(last.rtt.map(|rtt| format!("RTT {:.1} ms", rtt.as_secs_f64() * 1e3)));
    parts.extend(last.window.map(|window| format!("window {}", indicatif::DecimalBytes(window))));
    parts.extend(last.packets_lost.map(|lost| format!("{lost} lost")));
    parts.extend(last.packets_repaired.filter(|repaired| *repaired > 0).map(|repaired| format!("{repaired} repaired")));
    parts.extend(last.state.map(str::to_owned));
    parts.join("  ")
}

/// Prints lines to the standard error until it is dropped.
pub(crate) struct Lines {
    /// Closed when it is dropped, which ends the thread.
    _open: mpsc::Sender<()>,
}

impl Lines {
    pub(crate) fn start(meter: Meter) -> Self {
        let (open, closed) = mpsc::channel();
        // A thread: not every measurement has a runtime.
        thread::spawn(move || {
            while closed.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                eprint!("{}", text(&meter.state(), Instant::now()));
            }
        });
        Self { _open: open }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Sample, *};

    #[test]
    fn a_line_has_what_is_reported_and_nothing_else() {
        let meter = Meter::new("test", Some(Duration::from_secs(100)));
        let one = meter.subject("connection 1".to_owned());
        let begun = meter.state().begun;
        let sample = |received| Sample {
            received: Some(received),
            rtt: Some(Duration::from_millis(42)),
            window: Some(60_000),
            packets_lost: Some(7),
            packets_repaired: Some(0),
            state: Some("slow_start"),
            ..Sample::default()
        };
        one.bring(begun, sample(0));
        one.bring(begun + Duration::from_secs(1), sample(1_250_000));
        let two = meter.subject("connection 2".to_owned());
        two.bring(begun, Sample::default());
        let now = begun + Duration::from_secs(10);
        assert_eq!(
            text(&meter.state(), now),
            "10 s, 90 s left  connection 1  10.00 Mbit/s  RTT 42.0 ms  window 60.00 kB  7 lost  slow_start\n10 s, 90 s left  connection 2  \n"
        );
    }
}
