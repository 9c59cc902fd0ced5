//! Screens of a known measurement, and what keys change on them.

use std::time::{Duration, Instant};

use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{
    draw::draw,
    view::{Request, View},
};
use crate::meter::{Followed, Meter, Sample};

/// Sample `n` of a connection, at four a second.
fn sample(n: u64, is_known: bool) -> Sample {
    let known = |value: u64| is_known.then_some(value);
    Sample {
        received: Some(n * n * 10_000),
        rtt: Some(Duration::from_millis(20 + n)),
        window: Some(60_000 + 1_000 * n),
        in_flight: known(40_000),
        pacing_rate: known(12_000_000),
        delivery_rate: None,
        packets_sent: known(n * 100),
        packets_lost: Some(n / 4 * 3),
        packets_repaired: known(n / 8),
        acks: known(n * 50),
        state: is_known.then_some("probe_bw_cruise"),
        ..Sample::default()
    }
}

/// Measurement of a minute after ten seconds: a connection of ours, and one that reports little.
struct Measurement {
    meter: Meter,
    subjects: [Followed; 2],
    begun: Instant,
}

impl Measurement {
    fn new(length: Option<Duration>) -> Self {
        let meter = Meter::new("perf client 192.0.2.1:4433", length);
        let subjects = ["connection 1", "kernel TCP"].map(|name| meter.subject(name.to_owned()));
        let begun = meter.state().begun;
        Self { meter, subjects, begun }
    }

    /// Brings samples `from..to`, each seen by the view.
    fn bring(&self, view: &mut View, from: u64, to: u64) {
        for n in from..to {
            let now = self.begun + Duration::from_millis(250) * u32::try_from(n).unwrap();
            self.subjects[0].bring(now, sample(n, true));
            self.subjects[1].bring(now, sample(n / 2, false));
            assert_eq!(view.take(&self.meter.state(), now), !view.is_paused());
        }
    }
}

fn screen(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal.backend().to_string()
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn shown() -> (Measurement, View) {
    let (measurement, mut view) = (Measurement::new(Some(Duration::from_secs(60))), View::default());
    measurement.bring(&mut view, 0, 41);
    (measurement, view)
}

#[test]
fn a_usual_terminal_shows_everything() {
    insta::assert_snapshot!(screen(&shown().1, 80, 24));
}

#[test]
fn a_small_terminal_shows_the_main_figures() {
    insta::assert_snapshot!(screen(&shown().1, 40, 12));
}

#[test]
fn no_size_is_too_small_or_too_large() {
    let (_measurement, mut view) = shown();
    for has_help in [false, true] {
        view.has_help = has_help;
        for (width, height) in [(1, 1), (3, 40), (200, 2), (11, 5), (39, 19), (300, 100)] {
            let drawn = screen(&view, width, height);
            assert_eq!(drawn.lines().count(), usize::from(height));
        }
    }
}

#[test]
fn nothing_measured_is_a_dash() {
    let measurement = Measurement::new(None);
    let mut view = View::default();
    let now = measurement.begun;
    view.take(&measurement.meter.state(), now);
    let drawn = screen(&view, 80, 24);
    assert!(drawn.contains("0 s, – left") && drawn.contains("goodput –") && !drawn.contains('%'), "{drawn}");
    measurement.subjects[1].bring(now, sample(1, false));
    view.take(&measurement.meter.state(), now);
    let drawn = screen(&view, 80, 24);
    let row = drawn.lines().find(|line| line.contains("kernel TCP")).unwrap();
    // Goodput needs two samples; this one knows neither repair nor a state.
    let figures: Vec<&str> = row.trim_matches('"').split_whitespace().skip(2).collect();
    assert_eq!(figures, ["–", "21.0", "ms", "61.00", "kB", "0", "–", "–"], "{drawn}");
}

#[test]
fn bytes_have_a_share_and_no_time_left() {
    let (measurement, mut view) = (Measurement::new(None), View::default());
    measurement.meter.state().goal = Some(40 * 40 * 10_000 * 5);
    measurement.bring(&mut view, 0, 41);
    let drawn = screen(&view, 80, 24);
    // The second connection has moved a quarter of the first.
    assert!(drawn.contains(" 25 % ") && drawn.contains("– left"), "{drawn}");
}

#[test]
fn keys_select_connections_and_figures() {
    let (_measurement, mut view) = shown();
    let chart = |view: &View| screen(view, 80, 24).lines().nth(6).unwrap().to_owned();
    assert!(chart(&view).contains("RTT 60.0 ms  highest 60.0 ms  connection 1"), "{}", chart(&view));
    view.press(key(KeyCode::Tab));
    assert!(chart(&view).contains("RTT 40.0 ms  highest 40.0 ms  kernel TCP"), "{}", chart(&view));
    view.press(key(KeyCode::Down));
    assert!(chart(&view).contains("connection 1"), "{}", chart(&view));
    view.press(key(KeyCode::Up));
    assert!(chart(&view).contains("kernel TCP"), "{}", chart(&view));
    view.press(key(KeyCode::BackTab));
    view.press(key(KeyCode::Right));
    assert!(chart(&view).contains("cwnd 100.00 kB"), "{}", chart(&view));
    for _ in 0..4 {
        view.press(key(KeyCode::Right));
    }
    assert!(chart(&view).contains("lost 30  highest 3 at once"), "{}", chart(&view));
    for _ in 0..2 {
        view.press(key(KeyCode::Right));
    }
    assert!(chart(&view).contains("RTT"), "{}", chart(&view));
    view.press(key(KeyCode::Left));
    assert!(chart(&view).contains("repaired 5"), "{}", chart(&view));
    assert!(!screen(&view, 80, 24).contains("another figure"));
    view.press(key(KeyCode::Char('?')));
    assert!(screen(&view, 80, 24).contains("another figure"));
    view.press(key(KeyCode::Esc));
    assert!(!screen(&view, 80, 24).contains("another figure"));
}

#[test]
fn a_paused_display_stands_still_and_nothing_is_lost() {
    let (measurement, mut view) = shown();
    let before = screen(&view, 80, 24);
    view.press(key(KeyCode::Char('p')));
    let paused = screen(&view, 80, 24);
    assert!(paused.contains("paused"), "{paused}");
    measurement.bring(&mut view, 41, 60);
    assert_eq!(screen(&view, 80, 24), paused);
    view.press(key(KeyCode::Char('p')));
    let after = screen(&view, 80, 24);
    assert!(after != before && after.contains("RTT 79.0 ms"), "{after}");
    // The series has the points of the pause.
    let mut unpaused = View::default();
    let other = Measurement::new(Some(Duration::from_secs(60)));
    other.bring(&mut unpaused, 0, 60);
    assert_eq!(after, screen(&unpaused, 80, 24));
}

#[test]
fn q_and_ctrl_c_end_and_other_keys_do_not() {
    let (_measurement, mut view) = shown();
    for code in [KeyCode::Char('x'), KeyCode::Char('c'), KeyCode::Enter, KeyCode::F(5)] {
        assert_eq!(view.press(key(code)), None);
    }
    assert!(!screen(&view, 80, 24).contains("ending"));
    assert_eq!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(Request::End));
    assert_eq!(view.press(key(KeyCode::Char('q'))), Some(Request::End));
    assert!(screen(&view, 80, 24).contains("ending, q again ends at once"));
}

#[test]
fn memory_of_series_is_bounded_and_who_is_gone_is_not_shown() {
    let (measurement, mut view) = shown();
    measurement.bring(&mut view, 41, 1_000);
    assert_eq!(view.line().unwrap().series(super::model::Figure::Rtt, usize::MAX).count(), 300);
    view.press(key(KeyCode::Tab));
    let Measurement { meter, subjects: [first, second], begun } = measurement;
    drop(second);
    view.take(&meter.state(), begun + Duration::from_secs(250));
    assert_eq!(view.line().unwrap().name, "connection 1");
    drop(first);
    view.take(&meter.state(), begun + Duration::from_secs(251));
    assert!(view.line().is_none());
    screen(&view, 80, 24);
}
