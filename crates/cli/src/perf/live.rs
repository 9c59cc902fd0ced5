//! Figures of a transfer while it runs: `--screen`, `--live`, `--prometheus=ADDRESS` and `--soak`.

use std::time::Duration;

use tiderace::{Connection, Stats};

use super::{
    options::{Args, Volume},
    progress::Moved,
    samples::RttSamples,
};
use crate::{
    failure::Failure,
    meter::{
        Followed, Meter, Sample, Ticking,
        exporter::Exporter,
        soak::{Gathering, Soak},
    },
    screen::Shown,
    stop::Stop,
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
        delivery_rate: Some(stats.delivery_rate).filter(|rate| *rate > 0),
        packets_sent: Some(stats.packets_sent),
        packets_lost: Some(stats.packets_lost),
        packets_repaired: Some(stats.fec_symbols_recovered + stats.fec_packets_recovered),
        acks: Some(stats.ack_frames_received),
        state: state.flatten(),
        rtts,
    }
}

/// Figures of a connection on which this end sends no data: its congestion control has nothing to decide.
fn of_receiver(sample: Sample) -> Sample {
    Sample {
        window: None,
        in_flight: None,
        pacing_rate: None,
        delivery_rate: None,
        packets_lost: None,
        state: None,
        ..sample
    }
}

/// Watchers of a client's transfer.
#[derive(Default)]
pub(super) struct Live {
    meter: Option<Meter>,
    shown: Option<Shown>,
    exporter: Option<Exporter>,
    gathering: Option<Gathering>,
    followed: Vec<Followed>,
    ticking: Option<Ticking>,
    /// Something else shows the progress.
    is_shown_elsewhere: bool,
    /// Connections over TCP are shown as well, at other times.
    is_beside_tcp: bool,
}

/// Several transfers that one request ends, and that are shown together.
pub(super) struct Together {
    pub(super) stop: Stop,
    meter: Option<Meter>,
    is_shown: bool,
}

impl Live {
    /// Starts what the options ask for. The screen passes a request to end to `stop`.
    ///
    /// # Errors
    /// When the address of `--prometheus` or the terminal cannot be used.
    pub(super) fn start(args: &Args, volume: Volume, stop: &Stop) -> Result<Self, Failure> {
        let address = args.prometheus.flatten();
        let is_shown = args.screen || args.live || args.soak.is_some();
        if !is_shown && address.is_none() {
            return Ok(Self::default());
        }
        let length = if let Volume::For(span) = volume { Some(span) } else { None };
        let meter = Meter::new(&format!("perf client {}", args.server), length);
        if let Volume::Bytes(bytes) = volume {
            let (upload, download) = args.directions();
            meter.state().goal = Some(bytes.saturating_mul(u64::from(upload) + u64::from(download)));
        }
        let mut live = Self { ticking: Some(meter.ticking()), meter: Some(meter.clone()), ..Self::default() };
        live.exporter = address.map(|address| Exporter::start(address, meter.clone())).transpose()?;
        live.gathering = args.soak.map(|length| Gathering::start(meter.clone(), length));
        if is_shown {
            let (plain, stop) = (!args.screen || args.json, stop.clone());
            live.shown = Some(Shown::start(meter, plain, move || stop.ask())?);
        }
        Ok(live)
    }

    /// Watchers of one of several transfers. Those of all of them stay.
    pub(super) fn within(together: &Together) -> Self {
        let Together { meter, is_shown, .. } = together;
        Self { meter: meter.clone(), is_shown_elsewhere: *is_shown, is_beside_tcp: true, ..Self::default() }
    }

    /// Transfers that these watchers follow, one after the other.
    pub(super) fn together(&self, stop: &Stop) -> Together {
        Together { stop: stop.clone(), meter: self.meter.clone(), is_shown: self.shown.is_some() }
    }

    /// Returns whether it shows the progress, or something else does.
    pub(super) const fn shows(&self) -> bool {
        self.shown.is_some() || self.is_shown_elsewhere
    }

    /// Follows connections of ours. `sends`: this end sends data.
    pub(super) fn follow<'a>(
        &mut self,
        sends: bool,
        lines: impl IntoIterator<Item = (&'a Connection, &'a RttSamples)>,
    ) {
        let Some(meter) = &self.meter else { return };
        for (place, (connection, rtt)) in lines.into_iter().enumerate() {
            let (connection, rtt) = (connection.clone(), rtt.clone());
            let look = move || {
                let sample = sample(&connection.stats()?, Some(&rtt));
                Some(if sends { sample } else { of_receiver(sample) })
            };
            let name = if self.is_beside_tcp { "QUIC connection" } else { "connection" };
            self.followed.push(meter.follow(format!("{name} {}", place + 1), look));
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
        let Self { shown, exporter, gathering, followed, ticking, .. } = self;
        drop(shown);
        let soak = match gathering {
            Some(gathering) => Some(gathering.finish().await),
            None => None,
        };
        drop((exporter, followed, ticking));
        soak
    }
}
