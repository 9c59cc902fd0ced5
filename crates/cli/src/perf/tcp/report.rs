//! Statistics of TCP connections: of one, between the ends, and of a direction, in the report.

use std::time::Duration;

use serde::Serialize;

use super::watch::Info;
use crate::perf::{
    report::{Sender, share},
    samples::{Samples, Summary},
};

/// Statistics of one connection at its sending end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TcpReport {
    /// Congestion control that the kernel used.
    pub(super) congestion: String,
    pub(super) info: Info,
    /// Readings of the smoothed RTT.
    pub(super) smoothed_rtts: Samples,
}

impl TcpReport {
    /// More than any report takes, in bytes.
    pub(super) const MAX_LEN: usize = 64 * 1024;

    pub(super) fn encode(&self) -> Vec<u8> {
        // The kernel's names have 15 bytes at most.
        let name = &self.congestion.as_bytes()[..self.congestion.len().min(255)];
        let mut out = vec![u8::try_from(name.len()).unwrap_or(u8::MAX)];
        out.extend_from_slice(name);
        self.info.numbers().iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        self.smoothed_rtts.encode(&mut out);
        out
    }

    /// Reads what [`Self::encode`] wrote. `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&length, rest) = bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(length.into())?;
        let (numbers, rest) = rest.split_first_chunk::<{ 8 * Info::LEN }>()?;
        let number = |place: usize| u64::from_be_bytes(numbers[place * 8..][..8].try_into().expect("8 bytes"));
        Some(Self {
            congestion: String::from_utf8(name.to_vec()).ok()?,
            info: Info::from_numbers(std::array::from_fn(number)),
            smoothed_rtts: Samples::decode(rest)?,
        })
    }
}

/// Statistics of one direction: of all its connections, at their sending end.
#[derive(Debug, Serialize)]
pub(crate) struct Direction {
    /// `download` or `upload`.
    pub(crate) direction: &'static str,
    /// Connections in it.
    pub(crate) connections: usize,
    /// Congestion control that the kernel used.
    pub(crate) congestion_control: String,
    /// Packets with data, those sent again included.
    pub(crate) packets_sent: u64,
    pub(crate) packets_retransmitted: u64,
    /// Bytes of TLS records, those sent again included.
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_retransmitted: u64,
    /// Readings of the smoothed RTT, every 10 ms.
    pub(crate) smoothed_rtt: Option<Summary>,
    /// Smallest RTT of the connections.
    pub(crate) min_rtt_ms: Option<f64>,
    /// Congestion windows at the end, together.
    pub(crate) cwnd_bytes: u64,
    /// Delivery rates that the kernel saw last, together.
    pub(crate) delivery_rate_mbit_per_s: Option<f64>,
    #[serde(skip)]
    samples: Samples,
}

impl Direction {
    /// Statistics of a direction; `None` without a connection.
    #[expect(clippy::cast_precision_loss, reason = "figures for a report")]
    pub(super) fn new(direction: &'static str, reports: &[TcpReport]) -> Option<Self> {
        let first = reports.first()?;
        let sum = |of: fn(&Info) -> u64| reports.iter().map(|report| of(&report.info)).sum::<u64>();
        let mut samples = Samples::new();
        reports.iter().for_each(|report| samples.merge(report.smoothed_rtts.clone()));
        let min_rtt = reports.iter().map(|report| report.info.min_rtt).filter(|rtt| *rtt > 0).min();
        let rate = sum(|info| info.delivery_rate);
        Some(Self {
            direction,
            connections: reports.len(),
            congestion_control: first.congestion.clone(),
            packets_sent: sum(|info| info.packets_sent),
            packets_retransmitted: sum(|info| info.packets_resent),
            bytes_sent: sum(|info| info.bytes_sent),
            bytes_retransmitted: sum(|info| info.bytes_resent),
            smoothed_rtt: samples.summary(),
            min_rtt_ms: min_rtt.map(|rtt| Duration::from_nanos(rtt).as_secs_f64() * 1e3),
            cwnd_bytes: sum(|info| info.window),
            delivery_rate_mbit_per_s: (rate > 0).then(|| rate as f64 / 1e6),
            samples,
        })
    }

    /// A line of the table.
    pub(crate) fn text(&self) -> String {
        let some = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        format!(
            "{}: {}, min RTT {}, delivery rate {}, cwnd {} over {} connection{}",
            self.direction,
            self.congestion_control,
            some(self.min_rtt_ms.map(|ms| format!("{ms:.3} ms"))),
            some(self.delivery_rate_mbit_per_s.map(|rate| format!("{rate:.1} Mbit/s"))),
            indicatif::DecimalBytes(self.cwnd_bytes),
            self.connections,
            if self.connections == 1 { "" } else { "s" },
        )
    }
}

/// Both directions, with the statistics of their senders.
pub(super) fn sender(directions: &[Direction]) -> Option<Sender> {
    let end = match directions {
        [] => return None,
        [one] if one.direction == "upload" => "the client",
        [_] => "the server",
        _ => "both ends",
    };
    let sum = |of: fn(&Direction) -> u64| directions.iter().map(of).sum::<u64>();
    let mut samples = Samples::new();
    directions.iter().for_each(|direction| samples.merge(direction.samples.clone()));
    Some(Sender {
        end,
        packets_sent: sum(|direction| direction.packets_sent),
        packets_lost: None,
        packets_retransmitted: Some(sum(|direction| direction.packets_retransmitted)),
        retransmitted_share: share(
            sum(|direction| direction.bytes_retransmitted),
            sum(|direction| direction.bytes_sent),
        ),
        cwnd_bytes: Some(sum(|direction| direction.cwnd_bytes)),
        rtt: samples.summary(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(resent: u64, rtt_ms: u64) -> TcpReport {
        let mut smoothed_rtts = Samples::new();
        smoothed_rtts.record(Duration::from_millis(rtt_ms));
        let info = Info {
            smoothed_rtt: rtt_ms * 1_000_000,
            min_rtt: rtt_ms * 1_000_000,
            window: 10_000,
            packets_sent: 100,
            packets_resent: resent,
            bytes_sent: 100_000,
            bytes_resent: resent * 1_000,
            delivery_rate: 5_000_000,
        };
        TcpReport { congestion: "cubic".to_owned(), info, smoothed_rtts }
    }

    #[test]
    fn reports_read_back() {
        let mut original = report(3, 20);
        (0..100_000).for_each(|ms| original.smoothed_rtts.record(Duration::from_millis(ms)));
        let bytes = original.encode();
        assert!(bytes.len() <= TcpReport::MAX_LEN);
        assert_eq!(TcpReport::decode(&bytes), Some(original));
        assert_eq!(TcpReport::decode(&bytes[..20]), None);
        assert_eq!(TcpReport::decode(&[]), None);
        assert_eq!(TcpReport::decode(&[9, 1]), None);
    }

    #[test]
    fn connections_add_up() {
        let up = Direction::new("upload", &[report(1, 20), report(4, 10)]).unwrap();
        insta::assert_snapshot!(up.text(), @"upload: cubic, min RTT 10.000 ms, delivery rate 10.0 Mbit/s, cwnd 20.00 kB over 2 connections");
        let down = Direction::new("download", &[report(0, 30)]).unwrap();
        assert!(Direction::new("upload", &[]).is_none() && sender(&[]).is_none());
        let both = sender(&[up, down]).unwrap();
        assert_eq!((both.end, both.packets_sent, both.packets_retransmitted), ("both ends", 300, Some(5)));
        assert_eq!((both.packets_lost, both.retransmitted_share), (None, Some(5_000.0 / 300_000.0)));
        assert_eq!(both.rtt.unwrap().p50_ms, 20.0);
    }
}
