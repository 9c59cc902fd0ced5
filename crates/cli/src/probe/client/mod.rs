//! Measuring end: phases in order, from light to heavy.
//!
//! [`connect`] opens connection and session, [`phases`] has the order of measurements. [`path`] has session and datagrams, [`inbox`]
//! received packets, [`sample`] trains; [`mod@ecn`], [`mod@mtu`], [`rate`], [`load`], [`tcp`], [`nat`] and [`rivals`] are a measurement each.

mod connect;
mod ecn;
mod inbox;
mod load;
mod mtu;
mod nat;
mod path;
mod phases;
mod rate;
mod rivals;
mod sample;
mod tcp;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::time::timeout;

pub(super) use self::mtu::Mtu;
use self::{path::Path, phases::Probe};
use super::{
    ProbeArgs,
    consent::{self, Consent},
    results::{Cost, Results},
    verify,
};
use crate::{
    address,
    failure::Failure,
    meter::{Followed, Meter, Ticking},
    screen::Shown,
    stop::Stop,
};

/// Direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    Up,
    Down,
}

impl Direction {
    pub(super) const BOTH: [Self; 2] = [Self::Down, Self::Up];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// Bytes of the UDP payload of paced packets.
const SMALL: u16 = 72;

/// Measures the path to a server.
///
/// # Errors
/// When the server cannot be reached or refuses, or the terminal cannot be used.
pub(super) async fn run(host: &str, args: &ProbeArgs, plain: bool) -> Result<Results, Failure> {
    let target = address::resolve(host)?;
    args.trust.warn();
    let consent = consent::ask(args)?;
    let begun = Instant::now();
    let mut path = connect::connect(&target, args).await?;
    // Before this there is nothing to report, and Ctrl-C ends the program.
    let stop = Stop::on_interrupt()?;
    let verifies = if args.verify { verify::Plan::length(args) } else { Duration::ZERO };
    let length = args.time + args.nat_timeout.unwrap_or_default() + verifies;
    let watched = args.screen.then(|| Watched::start(&mut path, host, length, plain, &stop)).transpose()?;
    let results = Results::default();
    let mut probe = Probe { path: Arc::new(path), results, begun: Instant::now(), time: args.time, stop };
    probe.light().await;
    if consent == Consent::Given {
        probe.heavy().await;
    } else {
        probe.idle(args.time.mul_f64(0.3)).await;
        probe.note("rate, queue, policer, loaded round trips, TCP: not measured, since the path was not to be loaded");
    }
    if let Some(most) = args.nat_timeout {
        probe.nat(most).await;
    }
    if args.verify && consent == Consent::Given {
        probe.verify(args).await;
    }
    if probe.path.is_cut() {
        probe.note("a limit of bytes (`--bytes`, or the server's) has cut trains short");
    }
    drop(watched);
    let Probe { path, mut results, stop, .. } = probe;
    results.is_partial = stop.is_asked();
    results.cost = Cost { bytes: path.spent(), seconds: begun.elapsed().as_secs_f64() };
    path.connection.close(0, b"done");
    let _ = timeout(Duration::from_millis(100), path.endpoint.wait_idle()).await;
    Ok(results)
}

/// View of the measurement while it goes on: `--screen`.
struct Watched {
    _shown: Shown,
    _datagrams: Option<Followed>,
    _ticking: Ticking,
}

impl Watched {
    fn start(path: &mut Path, host: &str, length: Duration, plain: bool, stop: &Stop) -> Result<Self, Failure> {
        let (meter, stop) = (Meter::new(&format!("probe {host}"), Some(length)), stop.clone());
        path.meter = Some(meter.clone());
        let (ticking, datagrams) = (meter.ticking(), path.follow_datagrams());
        let shown = Shown::start(meter, plain, move || stop.ask())?;
        Ok(Self { _shown: shown, _datagrams: datagrams, _ticking: ticking })
    }
}
