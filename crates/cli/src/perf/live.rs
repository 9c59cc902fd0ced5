//! Figures of a transfer while it runs: `--live`, `--prometheus=ADDRESS` and `--soak`.

use std::time::Duration;

use tiderace::{Connection, Stats};

use super::{options::Args, progress::Moved, samples::RttSamples};
use crate::{
    failure::Failure,
    meter::{
        Followed, Meter, Sample, Ticking,
        exporter::Exporter,
        lines::Lines,
        soak::{Gathering, Soak},
    },
};

/// Nanoseconds as a time; `None` for none.
fn span(nanos: u64) -> Option<Duration> {
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

/// Figures of a connection of ours.
pub(super) fn sample(stats: &Stats, rtt: Option<&RttSamples>) -> Sample {
    let (rtts, state) = rtt.map(|rtt| (rtt.histogram(), rtt.state())).unzip();
    Sample {
        received: Some(stats.stream_bytes_delivered),
        sent: Some(stats.stream_bytes_sent.saturating_sub(stats.stream_bytes_retransmitted)),
        rtt: span(stats.smoothed_rtt),
        window: Some(stats.congestion_window),
        in_flight: Some(stats.bytes_in_flight),
        pacing_rate: Some(stats.pacing_rate).filter(|rate| *rate > 0),
        delivery_rate: None,
        packets_sent: Some(stats.packets_sent),
        packets_lost: Some(stats.packets_lost),
        packets_repaired: Some(stats.fec_symbols_recovered + stats.fec_packets_recovered),
        acks: Some(stats.ack_frames_received),
        state: state.flatten(),
        rtts,
    }
}

/// Watchers of a client's transfer.
#[derive(Default)]
pub(super) struct Live {
    meter: Option<Meter>,
    lines: Option<Lines>,
    exporter: Option<Exporter>,
    gathering: Option<Gathering>,
    followed: Vec<Followed>,
    ticking: Option<Ticking>,
}

impl Live {
    /// Starts what the options ask for.
    ///
    /// # Errors
    /// When the address of `--prometheus` cannot be used.
    pub(super) fn start(args: &Args, length: Option<Duration>) -> Result<Self, Failure> {
        let address = args.prometheus.flatten();
        if !args.live && address.is_none() && args.soak.is_none() {
            return Ok(Self::default());
        }
        let meter = Meter::new(&format!("perf client {}", args.server), length);
        let mut live = Self { ticking: Some(meter.ticking()), meter: Some(meter.clone()), ..Self::default() };
        live.exporter = address.map(|address| Exporter::start(address, meter.clone())).transpose()?;
        live.gathering = args.soak.map(|length| Gathering::start(meter.clone(), length));
        live.lines = (args.live || args.soak.is_some()).then(|| Lines::start(meter));
        Ok(live)
    }

    /// Returns whether it shows the progress.
    pub(super) const fn shows(&self) -> bool {
        self.lines.is_some()
    }

    /// Follows connections of ours.
    pub(super) fn follow<'a>(&mut self, lines: impl IntoIterator<Item = (&'a Connection, &'a RttSamples)>) {
        let Some(meter) = &self.meter else { return };
        for (place, (connection, rtt)) in lines.into_iter().enumerate() {
            let (connection, rtt) = (connection.clone(), rtt.clone());
            let look = move || Some(sample(&connection.stats()?, Some(&rtt)));
            self.followed.push(meter.follow(format!("connection {}", place + 1), look));
        }
    }

    /// Follows all connections over TCP together.
    pub(super) fn follow_tcp(&mut self, mut look: impl FnMut() -> super::interval::Snapshot + Send + 'static) {
        let Some(meter) = &self.meter else { return };
        let look = move || {
            let seen = look();
            Some(Sample {
                received: seen.received,
                sent: seen.sent,
                rtt: seen.rtt.filter(|rtt| !rtt.is_zero()),
                window: seen.cwnd,
                packets_lost: seen.lost.or(seen.retransmitted),
                ..Sample::default()
            })
        };
        self.followed.push(meter.follow("kernel TCP".to_owned(), look));
    }

    /// Follows a transfer of datagrams by what it has moved.
    pub(super) fn follow_moved(&mut self, moved: Moved, connection: &Connection, rtt: &RttSamples) {
        let Some(meter) = &self.meter else { return };
        let (connection, rtt) = (connection.clone(), rtt.clone());
        let look = move || {
            let stats = connection.stats()?;
            Some(Sample { received: Some(moved.get()), sent: None, ..sample(&stats, Some(&rtt)) })
        };
        self.followed.push(meter.follow("datagrams".to_owned(), look));
    }

    /// Ends everything, and judges the memory where that was asked for.
    pub(super) async fn finish(self) -> Option<Soak> {
        let Self { meter: _, lines, exporter, gathering, followed, ticking } = self;
        drop(lines);
        let soak = match gathering {
            Some(gathering) => Some(gathering.finish().await),
            None => None,
        };
        drop((exporter, followed, ticking));
        soak
    }
}
