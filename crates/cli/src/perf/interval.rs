//! Interval lines during a transfer, and the rows of `--csv`.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::{sync::oneshot, task::JoinHandle, time::MissedTickBehavior};

use super::{
    datagrams::Datagrams,
    progress::{mbit_per_s, rate},
};
use crate::{failure::Failure, stdout::write_out};

/// Header of `--csv`. A cell is empty where nothing was measured.
pub(super) const CSV_HEADER: &str = "kind,transport,direction,start_s,end_s,bytes,mbit_per_s,rtt_ms,cwnd_bytes,packets_lost,packets_retransmitted,\
     datagrams_sent,datagrams_lost,datagrams_reordered,jitter_ms\n";

/// Form of the lines that are printed while the transfer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Csv,
    /// One document at the end, with the intervals in it.
    Json,
    /// As [`Form::Json`], without the intervals.
    Prometheus,
}

/// Counters of the transfer at one moment, over all connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Snapshot {
    /// Bytes that this end has received; `None` without a download.
    pub(super) received: Option<u64>,
    /// Bytes that this end has sent, each counted once; `None` without an upload.
    pub(super) sent: Option<u64>,
    /// Samples of the round-trip time so far.
    pub(super) rtt_samples: u64,
    /// Smoothed round-trip time, the mean of the connections.
    pub(super) rtt: Option<Duration>,
    /// Congestion windows of this end together.
    pub(super) cwnd: Option<u64>,
    /// Packets of this end that were declared lost; over TCP they are not counted.
    pub(super) lost: Option<u64>,
    /// Packets of this end that the kernel's TCP has sent again.
    pub(super) retransmitted: Option<u64>,
}

/// One direction during one interval. `None`: not measured at this end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Interval {
    pub(super) direction: &'static str,
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    pub(super) bytes: u64,
    pub(super) mbit_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rtt_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwnd_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) packets_lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) packets_retransmitted: Option<u64>,
}

impl Interval {
    /// The line for people.
    pub(super) fn text(&self) -> String {
        let span = Duration::from_secs_f64((self.end_s - self.start_s).max(0.0));
        let mut line = format!(
            "{:>7.2}-{:<7.2} s  {:<8}  {:>10}  {:>12}",
            self.start_s,
            self.end_s,
            self.direction,
            indicatif::DecimalBytes(self.bytes).to_string(),
            rate(self.bytes, span)
        );
        if let Some(rtt) = self.rtt_ms {
            line += &format!("  RTT {rtt:.3} ms");
        }
        if let Some(cwnd) = self.cwnd_bytes {
            line += &format!("  cwnd {}", indicatif::DecimalBytes(cwnd));
        }
        if let Some(lost) = self.packets_lost {
            line += &format!("  {lost} lost");
        }
        if let Some(resent) = self.packets_retransmitted {
            line += &format!("  {resent} sent again");
        }
        line + "\n"
    }

    /// The row of `--csv`.
    pub(super) fn csv(&self, transport: &str) -> String {
        row("interval", transport, self, None)
    }
}

/// A row of `--csv`.
pub(super) fn row(kind: &str, transport: &str, of: &Interval, datagrams: Option<&Datagrams>) -> String {
    let cell = |value: Option<String>| value.unwrap_or_default();
    format!(
        "{kind},{transport},{},{:.6},{:.6},{},{:.6},{},{},{},{},{},{},{},{}\n",
        of.direction,
        of.start_s,
        of.end_s,
        of.bytes,
        of.mbit_per_s,
        cell(of.rtt_ms.map(|rtt| format!("{rtt:.6}"))),
        cell(of.cwnd_bytes.map(|cwnd| cwnd.to_string())),
        cell(of.packets_lost.map(|lost| lost.to_string())),
        cell(of.packets_retransmitted.map(|resent| resent.to_string())),
        cell(datagrams.map(|of| of.offered.saturating_sub(of.unsent).to_string())),
        cell(datagrams.map(|of| of.lost.to_string())),
        cell(datagrams.map(|of| of.reordered.to_string())),
        cell(datagrams.map(|of| format!("{:.6}", of.jitter_ms))),
    )
}

/// Difference of two snapshots, a line for each direction.
fn between(before: &Snapshot, after: &Snapshot, start: Duration, end: Duration) -> Vec<Interval> {
    // A smoothed value that nothing was added to was not measured in this interval.
    let rtt = after.rtt.filter(|_| after.rtt_samples > before.rtt_samples).map(|rtt| rtt.as_secs_f64() * 1e3);
    let moved = |before: Option<u64>, after: Option<u64>| after.map(|after| after.saturating_sub(before.unwrap_or(0)));
    let line = |direction, bytes: u64, sends: bool| Interval {
        direction,
        start_s: start.as_secs_f64(),
        end_s: end.as_secs_f64(),
        bytes,
        mbit_per_s: mbit_per_s(bytes, end.saturating_sub(start)),
        rtt_ms: rtt,
        cwnd_bytes: after.cwnd.filter(|_| sends),
        packets_lost: moved(before.lost, after.lost).filter(|_| sends),
        packets_retransmitted: moved(before.retransmitted, after.retransmitted).filter(|_| sends),
    };
    let received = moved(before.received, after.received).map(|bytes| line("download", bytes, false));
    received.into_iter().chain(moved(before.sent, after.sent).map(|bytes| line("upload", bytes, true))).collect()
}

/// Prints lines until it is asked to end.
pub(super) struct Intervals {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Vec<Interval>, Failure>>,
}

impl Intervals {
    /// Looks at the transfer every `period`.
    pub(super) fn start(
        period: Duration,
        form: Form,
        transport: &'static str,
        mut look: impl FnMut() -> Snapshot + Send + 'static,
    ) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let started = Instant::now();
        let mut before = (Duration::ZERO, look());
        let task = tokio::spawn(async move {
            let mut lines = Vec::new();
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick is at once.
            ticks.tick().await;
            loop {
                let ends = tokio::select! {
                    _ = ticks.tick() => false,
                    _ = &mut stopped => true,
                };
                let after = (started.elapsed(), look());
                let rest = between(&before.1, &after.1, before.0, after.0);
                // A transfer that ends with an interval leaves nothing to say of the next.
                let is_empty = rest.iter().all(|line| line.bytes == 0);
                if ends && is_empty && after.0 - before.0 < period / 10 {
                    return Ok(lines);
                }
                for line in rest {
                    match form {
                        Form::Text => write_out(&line.text())?,
                        Form::Csv => write_out(&line.csv(transport))?,
                        // The report has them. What was printed is not kept: a transfer may take days.
                        Form::Json => lines.push(line),
                        Form::Prometheus => {}
                    }
                }
                before = after;
                if ends {
                    return Ok(lines);
                }
            }
        });
        Self { stop, task }
    }

    /// Prints the rest, which may be a short interval. Returns all lines of [`Form::Json`].
    pub(super) async fn finish(self) -> Result<Vec<Interval>, Failure> {
        let _ = self.stop.send(());
        self.task.await.expect("it does not panic, and nobody cancels it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(of: u64) -> Duration {
        Duration::from_secs(of)
    }

    #[test]
    fn a_line_has_what_was_measured() {
        let before = Snapshot { sent: Some(1_000_000), rtt_samples: 3, lost: Some(2), ..Snapshot::default() };
        let rtt = Some(Duration::from_millis(20));
        let after = Snapshot {
            sent: Some(3_500_000),
            rtt_samples: 9,
            rtt,
            cwnd: Some(50_000),
            lost: Some(7),
            ..Snapshot::default()
        };
        let lines = between(&before, &after, seconds(1), seconds(2));
        insta::assert_snapshot!(lines[0].text(), @"   1.00-2.00    s  upload       2.50 MB   20.0 Mbit/s  RTT 20.000 ms  cwnd 50.00 kB  5 lost");
        assert_eq!(
            lines[0].csv("quic"),
            "interval,quic,upload,1.000000,2.000000,2500000,20.000000,20.000000,50000,5,,,,,\n"
        );
        assert_eq!(CSV_HEADER.split(',').count(), lines[0].csv("quic").split(',').count());
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let rtt = Some(Duration::from_millis(20));
        let before = Snapshot { received: Some(0), rtt_samples: 3, rtt, ..Snapshot::default() };
        let after = Snapshot { received: Some(125_000), cwnd: Some(12_000), lost: Some(1), ..before };
        let lines = between(&before, &after, seconds(0), seconds(1));
        // The window and the losses are those of the end that sends; no sample has come.
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].rtt_ms, lines[0].cwnd_bytes, lines[0].packets_lost), (None, None, None));
        assert_eq!(lines[0].csv("quic"), "interval,quic,download,0.000000,1.000000,125000,1.000000,,,,,,,,\n");
        let json = serde_json::to_string(&lines[0]).unwrap();
        assert!(!json.contains("rtt") && !json.contains("null"), "{json}");
    }
}
