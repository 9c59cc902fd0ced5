//! Figures of a measurement while it runs.
//!
//! A [`Meter`] follows subjects (connections), and looks at them at each tick. [`lines`] prints them, [`crate::screen`] draws them,
//! [`exporter`] serves them to Prometheus, [`soak`] judges a run of hours. What a subject does not report is `None` everywhere.

pub(crate) mod exporter;
pub(crate) mod histogram;
pub(crate) mod lines;
pub(crate) mod memory;
pub(crate) mod soak;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use self::histogram::Histogram;

/// Subjects that are followed at a time: a server meets more clients than anybody watches.
const SUBJECTS_MAX: usize = 64;
/// Time between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// Figures of a subject at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Bytes of the application received so far.
    pub(crate) received: Option<u64>,
    /// Bytes of the application sent so far, each counted once.
    pub(crate) sent: Option<u64>,
    /// Smoothed RTT.
    pub(crate) rtt: Option<Duration>,
    /// Congestion window in bytes.
    pub(crate) window: Option<u64>,
    pub(crate) in_flight: Option<u64>,
    /// In bit/s.
    pub(crate) pacing_rate: Option<u64>,
    /// In bit/s, where the stack measures it.
    pub(crate) delivery_rate: Option<u64>,
    pub(crate) packets_sent: Option<u64>,
    pub(crate) packets_lost: Option<u64>,
    /// Packets that forward error correction rebuilt at either end.
    pub(crate) packets_repaired: Option<u64>,
    /// Acknowledgements received.
    pub(crate) acks: Option<u64>,
    /// State of the congestion controller.
    pub(crate) state: Option<&'static str>,
    pub(crate) rtts: Option<Histogram>,
}

impl Sample {
    /// Bytes of both directions.
    fn moved(&self) -> Option<u64> {
        match (self.received, self.sent) {
            (None, None) => None,
            (received, sent) => Some(received.unwrap_or(0) + sent.unwrap_or(0)),
        }
    }
}

/// A look at a subject; `None` once it is gone.
type Look = Box<dyn FnMut() -> Option<Sample> + Send>;

/// A subject and what was seen of it.
pub(crate) struct Subject {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) last: Sample,
    /// Bytes of the application in both directions since the tick before, in bit/s.
    pub(crate) rate: Option<f64>,
    /// Time of the last sample.
    pub(crate) seen: Option<Instant>,
    look: Option<Look>,
}

impl Subject {
    fn take(&mut self, now: Instant, sample: Sample) {
        let span = self.seen.map(|seen| now.saturating_duration_since(seen).as_secs_f64()).filter(|span| *span > 0.0);
        #[expect(clippy::cast_precision_loss, reason = "bytes of a quarter of a second")]
        let rate = sample.moved().zip(self.last.moved()).zip(span).map(|((after, before), span)| {
            // A subject that begins anew counts from zero.
            after.saturating_sub(before) as f64 * 8.0 / span
        });
        self.rate = rate;
        (self.last, self.seen) = (sample, Some(now));
    }
}

/// State of a measurement.
pub(crate) struct State {
    pub(crate) title: String,
    pub(crate) begun: Instant,
    /// Time that it takes, where it is known.
    pub(crate) length: Option<Duration>,
    /// Bytes of the application that it takes, where that decides.
    pub(crate) goal: Option<u64>,
    /// Part of the measurement that goes on, such as `run 3 of 12`.
    pub(crate) stage: Option<String>,
    pub(crate) subjects: Vec<Subject>,
    /// Subjects that found no room.
    pub(crate) unseen: u64,
    /// Resident memory of this process, in bytes.
    pub(crate) memory: Option<u64>,
    numbers: u64,
}

impl State {
    /// Time that is left; `None` where nobody knows.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        self.length.map(|length| length.saturating_sub(now.saturating_duration_since(self.begun)))
    }

    /// Bytes of the application that all subjects have moved; `None` where nobody reports any.
    pub(crate) fn moved(&self) -> Option<u64> {
        self.subjects.iter().filter_map(|subject| subject.last.moved()).reduce(|one, other| one + other)
    }
}

/// Figures of a measurement, shared by those who fill and those who show them.
#[derive(Clone)]
pub(crate) struct Meter(Arc<Mutex<State>>);

impl Meter {
    /// A meter of a measurement that begins now.
    pub(crate) fn new(title: &str, length: Option<Duration>) -> Self {
        Self(Arc::new(Mutex::new(State {
            title: title.to_owned(),
            begun: Instant::now(),
            length,
            goal: None,
            stage: None,
            subjects: Vec::new(),
            unseen: 0,
            memory: None,
            numbers: 0,
        })))
    }

    /// The state at the moment.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a subject until the returned guard is dropped. `look` runs at each tick.
    pub(crate) fn follow(&self, name: String, look: impl FnMut() -> Option<Sample> + Send + 'static) -> Followed {
        self.add(name, Some(Box::new(look)))
    }

    /// A subject whose samples are brought by [`Followed::bring`].
    #[cfg(any(target_os = "linux", test))]
    pub(crate) fn subject(&self, name: String) -> Followed {
        self.add(name, None)
    }

    fn add(&self, name: String, look: Option<Look>) -> Followed {
        let mut state = self.state();
        state.numbers += 1;
        let number = state.numbers;
        if state.subjects.len() == SUBJECTS_MAX {
            state.unseen += 1;
        } else {
            state.subjects.push(Subject { number, name, last: Sample::default(), rate: None, seen: None, look });
        }
        Followed { meter: self.clone(), number }
    }

    /// Looks at all subjects.
    pub(crate) fn tick(&self, now: Instant) {
        let mut state = self.state();
        state.memory = memory::resident();
        for subject in &mut state.subjects {
            let sample = subject.look.as_mut().and_then(|look| look());
            if let Some(sample) = sample {
                subject.take(now, sample);
            }
        }
    }

    /// Ticks until it is dropped.
    pub(crate) fn ticking(&self) -> Ticking {
        let meter = self.clone();
        Ticking(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                meter.tick(Instant::now());
            }
        }))
    }
}

/// A subject that is followed.
pub(crate) struct Followed {
    meter: Meter,
    number: u64,
}

impl Followed {
    /// Brings a sample.
    #[cfg(any(target_os = "linux", test))]
    pub(crate) fn bring(&self, now: Instant, sample: Sample) {
        let mut state = self.meter.state();
        state.memory = memory::resident();
        if let Some(subject) = state.subjects.iter_mut().find(|subject| subject.number == self.number) {
            subject.take(now, sample);
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let number = self.number;
        self.meter.state().subjects.retain(|subject| subject.number != number);
    }
}

/// A task that ticks.
pub(crate) struct Ticking(tokio::task::JoinHandle<()>);

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_ticks() {
        let meter = Meter::new("test", Some(Duration::from_secs(10)));
        let subject = meter.subject("one".to_owned());
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let sample =
            |received, lost| Sample { received: Some(received), packets_lost: Some(lost), ..Sample::default() };
        subject.bring(at(0), sample(0, 2));
        assert_eq!(meter.state().subjects[0].rate, None);
        subject.bring(at(500), sample(125_000, 5));
        assert_eq!(meter.state().subjects[0].rate, Some(2e6));
        // One that begins anew has no negative rate, and one that reports nothing has none.
        subject.bring(at(1_000), sample(10, 0));
        assert_eq!(meter.state().subjects[0].rate, Some(0.0));
        subject.bring(at(1_500), Sample::default());
        assert_eq!(meter.state().subjects[0].rate, None);
        drop(subject);
        assert!(meter.state().subjects.is_empty());
        assert!(meter.state().left(Instant::now()).unwrap() <= Duration::from_secs(10));
    }

    #[test]
    fn subjects_are_looked_at_until_they_are_dropped_and_are_bounded() {
        let meter = Meter::new("test", None);
        let mut count = 0;
        let one = meter.follow("one".to_owned(), move || {
            count += 1;
            Some(Sample { sent: Some(count * 1_000), ..Sample::default() })
        });
        let begun = Instant::now();
        meter.tick(begun);
        meter.tick(begun + Duration::from_secs(1));
        assert_eq!(meter.state().subjects[0].rate, Some(8_000.0));
        let many: Vec<Followed> = (0..1_000).map(|n| meter.subject(n.to_string())).collect();
        assert_eq!(meter.state().subjects.len(), SUBJECTS_MAX);
        assert_eq!(meter.state().unseen, 937);
        drop((one, many));
        assert!(meter.state().subjects.is_empty());
    }
}
