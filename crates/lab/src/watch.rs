//! A run while it goes on: what the loaded link and the senders do at regular moments.

use core::ops::ControlFlow;

use netem::LinkCounters;
use sim::{LinkId, Node, Outcome, Simulation};
use units::{DataSize, Duration, Instant};

use crate::view::{SenderView, Viewer};

/// State of a run at one moment of virtual time.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Time since the run began.
    pub at: Instant,
    /// Counters of the loaded link since then.
    pub link: LinkCounters,
    /// Bytes that wait in its queue.
    pub backlog: DataSize,
    /// Congestion control of each connection's sender; `None` before there is a connection.
    pub senders: Vec<Option<SenderView>>,
}

/// Observer of a run. Observation changes nothing: the packets are those of a run that nobody watches.
pub struct Watch<'a> {
    every: Duration,
    next: Instant,
    see: &'a mut dyn FnMut(Moment) -> ControlFlow<()>,
}

impl core::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watch").field("every", &self.every).field("next", &self.next).finish_non_exhaustive()
    }
}

impl<'a> Watch<'a> {
    /// Calls `see` at each multiple of `every` (at least 1 ms) until the run ends. A run that `see` breaks off is a failed run.
    pub fn new(every: Duration, see: &'a mut dyn FnMut(Moment) -> ControlFlow<()>) -> Self {
        let every = every.max(Duration::from_millis(1));
        Self { every, next: Instant::ZERO + every, see }
    }
}

/// Lets time pass until `until`, in steps where somebody watches.
pub(crate) fn advance(
    simulation: &mut Simulation<Box<dyn Node>>,
    until: Instant,
    link: LinkId,
    views: &[Viewer],
    watch: Option<&mut Watch<'_>>,
) -> Result<Outcome, String> {
    let fault = |error: sim::SimError| error.to_string();
    let Some(watch) = watch else { return simulation.run_until(until).map_err(fault) };
    while watch.next < until {
        let at = watch.next;
        // A simulation that has stalled says so again at the end.
        let _outcome = simulation.run_until(at).map_err(fault)?;
        let moment = Moment {
            at,
            link: *simulation.counters(link),
            backlog: simulation.network_mut().link_mut(link).backlog(at),
            senders: views.iter().map(|view| view()).collect(),
        };
        if (watch.see)(moment).is_break() {
            return Err("the run was broken off".to_owned());
        }
        watch.next = at + watch.every;
    }
    simulation.run_until(until).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::RunOutcome,
        run::{run_one, run_watched},
        scenario::load,
        tiderace::contender,
    };

    #[test]
    fn a_run_that_is_watched_is_the_run_that_is_not() {
        let mut scenario = load("mobile").unwrap();
        scenario.traffic.connections = 3;
        (scenario.run.warmup, scenario.run.duration) = (Duration::from_millis(500), Duration::from_secs(1));
        let cubic = contender("cubic").unwrap();
        let alone = run_one(&scenario, cubic.as_ref(), 7, None);
        let mut moments = Vec::new();
        let mut see = |moment| {
            moments.push(moment);
            ControlFlow::Continue(())
        };
        let watched = run_watched(&scenario, cubic.as_ref(), 7, &mut Watch::new(Duration::from_millis(70), &mut see));
        assert_eq!(watched, alone);
        // The last multiple of 70 ms before 1.5 s.
        assert_eq!((moments.len(), moments.last().unwrap().at.as_nanos()), (21, 1_470_000_000));
        let last = moments.last().unwrap();
        assert!(last.link.delivered.bytes > 100_000 && last.senders.iter().flatten().count() == 3, "{last:?}");
        assert!(moments.iter().any(|moment| moment.backlog.as_bytes() > 0));

        let mut stop = |_| ControlFlow::Break(());
        let broken = run_watched(&scenario, cubic.as_ref(), 7, &mut Watch::new(Duration::ZERO, &mut stop));
        assert_eq!(broken.outcome, RunOutcome::Failed("the run was broken off".to_owned()));
    }
}
