//! Figures of runs in real time while they go on, for `--screen` and `--prometheus`, and their early end.

use std::{
    cell::RefCell,
    net::SocketAddr,
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use lab::record::Record;
use live::{Sender, Watch};

use crate::{
    failure::Failure,
    interrupt::Interrupt,
    meter::{Followed, Meter, Sample, TICK, exporter::Exporter, histogram::Histogram},
    runtime,
    screen::Shown,
    stop::Stop,
};

/// Connections of a contender that are followed each on its own. More are followed as one.
const SEPARATE_MAX: u32 = 8;

/// Options of those who watch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watching {
    /// On a screen.
    pub(super) screen: bool,
    /// As lines, since the report is JSON.
    pub(super) json: bool,
    /// As metrics, at this address.
    pub(super) prometheus: Option<SocketAddr>,
}

/// A run that begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning<'a> {
    /// Number of the run, from 0.
    pub(super) place: usize,
    /// Number of its contender.
    pub(super) contender: usize,
    /// Seed, and values of factors.
    pub(super) stage: &'a str,
    /// Streams carry its data.
    pub(super) has_streams: bool,
}

/// Figures of all runs, for those who watch.
pub(super) struct Figures {
    meter: Meter,
    shown: Option<Shown>,
    _exporter: Option<Exporter>,
    stop: Stop,
    /// Subjects of each contender: its connections, or all of them in one.
    subjects: Vec<Vec<Followed>>,
    /// Time that each run takes.
    spans: Vec<Duration>,
}

impl Figures {
    /// Starts what the options ask for, and listens for Ctrl-C. Starts threads: namespaces that need a process of one thread come first.
    /// Connections of a contender are followed each on its own if there are few, `connections` of them in every run.
    ///
    /// # Errors
    /// When the address of `--prometheus` or the terminal cannot be used.
    pub(super) fn start(
        watching: Watching,
        title: &str,
        names: &[String],
        connections: u32,
        spans: Vec<Duration>,
    ) -> Result<Self, Failure> {
        let meter = Meter::new(title, None);
        let exporter = watching.prometheus.map(|address| Exporter::start(address, meter.clone())).transpose()?;
        let stop = Stop::default();
        listen(stop.clone())?;
        let subjects = names.iter().map(|name| follow(&meter, name, connections)).collect();
        let shown = watching.screen.then(|| {
            let stop = stop.clone();
            Shown::start(meter.clone(), watching.json, move || stop.ask())
        });
        Ok(Self { meter, shown: shown.transpose()?, _exporter: exporter, stop, subjects, spans })
    }

    /// Returns whether it shows the progress.
    pub(super) const fn shows(&self) -> bool {
        self.shown.is_some()
    }

    /// Time that the runs from this one on take.
    pub(super) fn left(&self, place: usize) -> Duration {
        self.spans.iter().skip(place).sum()
    }

    /// Shows a run; `None` when somebody has asked to end.
    pub(super) fn run(&self, beginning: Beginning<'_>, run: impl FnOnce(&Watch<'_>) -> Record) -> Option<Record> {
        if self.stop.is_asked() {
            return None;
        }
        let Beginning { place, contender, stage, has_streams } = beginning;
        {
            let mut state = self.meter.state();
            // Networks take a moment to begin and to end.
            state.length = Some(state.begun.elapsed() + self.left(place));
            state.stage = Some(format!("run {} of {}, {stage}", place + 1, self.spans.len()));
        }
        let subjects = &self.subjects[contender];
        // Of this run: metrics begin anew with each, and those who read them expect that of counters.
        let rtts: RefCell<Vec<Histogram>> = RefCell::default();
        // A contender at rest has no figures.
        let at_rest = || subjects.iter().for_each(|subject| subject.bring(Instant::now(), Sample::default()));
        let see = |senders: &[Option<Sender>]| {
            if self.stop.is_asked() {
                return ControlFlow::Break(());
            }
            let mut rtts = rtts.borrow_mut();
            if senders.is_empty() {
                rtts.clear();
                at_rest();
                return ControlFlow::Continue(());
            }
            rtts.resize(senders.len(), Histogram::default());
            let samples =
                senders.iter().zip(&mut *rtts).map(|(sender, rtts)| sample(sender.as_ref(), has_streams, rtts));
            let samples: Vec<Sample> = samples.collect();
            let now = Instant::now();
            if subjects.len() == samples.len() {
                subjects.iter().zip(&samples).for_each(|(subject, sample)| subject.bring(now, sample.clone()));
            } else if let [all] = &subjects[..] {
                all.bring(now, together(&samples));
            }
            ControlFlow::Continue(())
        };
        let record = run(&Watch { every: TICK, see: &see });
        at_rest();
        (!self.stop.is_asked()).then_some(record)
    }
}

/// A sample of the meter, whose RTT samples are all of the run: `rtts` has those before.
fn sample(sender: Option<&Sender>, has_streams: bool, rtts: &mut Histogram) -> Sample {
    let Some(sender) = sender else { return Sample::default() };
    sender.rtts.iter().flatten().for_each(|&rtt| rtts.record(rtt));
    Sample {
        received: None,
        sent: sender.bytes.filter(|_| has_streams),
        rtt: sender.smoothed_rtt,
        window: sender.window,
        in_flight: sender.in_flight,
        pacing_rate: sender.pacing_rate.map(|rate| rate.as_bps()),
        delivery_rate: sender.delivery_rate.map(|rate| rate.as_bps()),
        packets_sent: sender.packets_sent,
        packets_lost: sender.packets_lost,
        packets_repaired: sender.packets_repaired,
        acks: sender.acks,
        state: sender.state,
        rtts: sender.rtts.is_some().then_some(*rtts),
    }
}

/// Subjects of a contender.
fn follow(meter: &Meter, name: &str, connections: u32) -> Vec<Followed> {
    match connections {
        2..=SEPARATE_MAX => (1..=connections).map(|number| meter.subject(format!("{name} {number}"))).collect(),
        _ => vec![meter.subject(name.to_owned())],
    }
}

/// Figures of connections together: sums, the mean RTT, the state that all are in.
fn together(samples: &[Sample]) -> Sample {
    let sum = |of: fn(&Sample) -> Option<u64>| samples.iter().filter_map(of).reduce(|one, other| one + other);
    let rtts: Vec<Duration> = samples.iter().filter_map(|sample| sample.rtt).collect();
    let state = samples.first().and_then(|sample| sample.state);
    Sample {
        received: sum(|sample| sample.received),
        sent: sum(|sample| sample.sent),
        rtt: rtts.iter().sum::<Duration>().checked_div(u32::try_from(rtts.len()).unwrap_or(u32::MAX)),
        window: sum(|sample| sample.window),
        in_flight: sum(|sample| sample.in_flight),
        pacing_rate: sum(|sample| sample.pacing_rate),
        delivery_rate: sum(|sample| sample.delivery_rate),
        packets_sent: sum(|sample| sample.packets_sent),
        packets_lost: sum(|sample| sample.packets_lost),
        packets_repaired: sum(|sample| sample.packets_repaired),
        acks: sum(|sample| sample.acks),
        state: state.filter(|state| samples.iter().all(|sample| sample.state == Some(*state))),
        rtts: samples.iter().filter_map(|sample| sample.rtts).reduce(|mut sum, rtts| {
            sum.add(&rtts);
            sum
        }),
    }
}

/// Ends the runs at Ctrl-C and SIGTERM. On a thread with a runtime of its own: the runs have none.
fn listen(stop: Stop) -> Result<(), Failure> {
    let runtime = runtime::start()?;
    let mut interrupt = {
        let _entered = runtime.enter();
        Interrupt::listen()?
    };
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                interrupt.wait().await;
                stop.ask();
            }
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_connections_are_one_subject() {
        let meter = Meter::new("test", None);
        let held: Vec<_> = [1, 3, 20].map(|connections| follow(&meter, "tiderace cubic", connections)).into();
        let names: Vec<String> = meter.state().subjects.iter().map(|subject| subject.name.clone()).collect();
        let expected = ["tiderace cubic", "tiderace cubic 1", "tiderace cubic 2", "tiderace cubic 3", "tiderace cubic"];
        assert_eq!(names, expected);
        drop(held);
    }

    #[test]
    fn figures_together_are_sums_and_a_mean() {
        let one = |state, millis, lost| Sample {
            sent: Some(1_000),
            rtt: Some(Duration::from_millis(millis)),
            packets_lost: lost,
            state: Some(state),
            rtts: lost.map(|count| {
                let mut rtts = Histogram::default();
                (0..count).for_each(|_| rtts.record(Duration::from_millis(millis)));
                rtts
            }),
            ..Sample::default()
        };
        let both = together(&[one("startup", 20, Some(3)), one("startup", 40, None)]);
        assert_eq!((both.sent, both.rtt), (Some(2_000), Some(Duration::from_millis(30))));
        assert_eq!((both.packets_lost, both.state, both.window), (Some(3), Some("startup"), None));
        let three = together(&[one("startup", 20, Some(1)), one("startup", 40, Some(2)), one("startup", 1, None)]).rtts;
        assert_eq!(three.map(|rtts| (rtts.count(), rtts.sum())), Some((3, 0.1)));
        assert_eq!(together(&[one("startup", 20, None), one("drain", 20, None)]).state, None);
        assert_eq!(together(&[]), Sample::default());
    }
}
