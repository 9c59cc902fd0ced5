//! Counters of forward error correction of both ends, combined for each direction.

use serde::Serialize;
use tiderace::Stats;

/// Counters of one end, for sent and received symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts([u64; Counts::LEN]);

impl Counts {
    /// Numbers in it.
    pub(super) const LEN: usize = 12;

    pub(super) fn new(stats: &Stats) -> Self {
        Self([
            stats.bytes_sent,
            stats.fec_symbols_sent,
            stats.fec_repairs_sent,
            stats.fec_repair_bytes_sent,
            stats.fec_packets_recovered,
            stats.fec_packets_recovered_late,
            stats.fec_symbols_recovered,
            stats.fec_symbols_unrecovered,
            stats.fec_repairs_late,
            stats.fec_repairs_spare,
            stats.fec_symbols_recovered_needlessly,
            stats.fec_recovery_delay,
        ])
    }

    /// Adds those of another connection.
    pub(super) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum = sum.saturating_add(count));
    }

    pub(super) fn numbers(&self) -> [u64; Self::LEN] {
        self.0
    }

    pub(super) fn from_numbers(numbers: [u64; Self::LEN]) -> Self {
        Self(numbers)
    }
}

/// Forward error correction of one direction.
#[derive(Debug, Serialize)]
pub(super) struct Direction {
    /// `download` or `upload`.
    pub(super) direction: &'static str,
    /// Packets that repair protects.
    pub(super) source_packets: u64,
    /// Packets with a repair symbol.
    pub(super) repair_packets: u64,
    /// Packets that were lost and rebuilt at the receiver.
    pub(super) recovered_packets: u64,
    /// Packets that were lost and neither arrived nor could be rebuilt.
    pub(super) unrecoverable_packets: u64,
    /// Repair packets that came when their source symbols were forgotten.
    pub(super) late_repair_packets: u64,
    /// Repair packets without new information: nothing was missing.
    pub(super) spurious_repair_packets: u64,
    /// Packets that were rebuilt and arrived after all.
    pub(super) needless_recoveries: u64,
    /// Packets reported as rebuilt, in time not to be sent again.
    pub(super) not_sent_again_packets: u64,
    /// Share of repair in the UDP payload that was sent.
    pub(super) repair_share_of_wire: f64,
    /// Share of the protected packets that was lost and not rebuilt. On streams, retransmissions make up for it later.
    pub(super) residual_loss_share: f64,
    /// From missing a packet to having rebuilt it, in the mean.
    pub(super) recovery_delay_ms: Option<f64>,
}

impl Direction {
    /// Counters of what `sender` sent and `receiver` received; `None` when nothing was protected.
    #[expect(clippy::cast_precision_loss, reason = "figures for a report")]
    pub(super) fn new(direction: &'static str, sender: &Counts, receiver: &Counts) -> Option<Self> {
        let [bytes, sources, repairs, repair_bytes, in_time, ..] = sender.0;
        let [.., recovered, unrecovered, late, spare, needless, delay] = receiver.0;
        (sources > 0).then(|| Self {
            direction,
            source_packets: sources,
            repair_packets: repairs,
            recovered_packets: recovered,
            unrecoverable_packets: unrecovered,
            late_repair_packets: late,
            spurious_repair_packets: spare,
            needless_recoveries: needless,
            not_sent_again_packets: in_time,
            repair_share_of_wire: repair_bytes as f64 / bytes.max(1) as f64,
            residual_loss_share: unrecovered as f64 / sources as f64,
            recovery_delay_ms: (recovered > 0).then(|| delay as f64 / 1e6 / recovered as f64),
        })
    }

    /// A line of the table.
    pub(super) fn text(&self) -> String {
        let delay = self.recovery_delay_ms.map_or(String::new(), |ms| format!(" after {ms:.1} ms"));
        format!(
            "{}: {} packets protected, {} repair ({:.2} % of the wire); {} rebuilt{delay}, {} not ({:.3} %); {} repair late, {} spurious",
            self.direction,
            self.source_packets,
            self.repair_packets,
            self.repair_share_of_wire * 100.0,
            self.recovered_packets,
            self.unrecoverable_packets,
            self.residual_loss_share * 100.0,
            self.late_repair_packets,
            self.spurious_repair_packets
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_was_sent() {
        let sender = Stats {
            bytes_sent: 120_000,
            fec_symbols_sent: 100,
            fec_repairs_sent: 20,
            fec_repair_bytes_sent: 20_000,
            ..Stats::default()
        };
        let receiver = Stats {
            fec_symbols_recovered: 4,
            fec_symbols_unrecovered: 1,
            fec_repairs_spare: 16,
            fec_recovery_delay: 20_000_000,
            ..Stats::default()
        };
        let (sender, receiver) = (Counts::new(&sender), Counts::new(&receiver));
        assert!(Direction::new("download", &receiver, &sender).is_none(), "nothing was protected");
        let line = Direction::new("upload", &sender, &receiver).unwrap();
        assert_eq!((line.residual_loss_share, line.recovery_delay_ms), (0.01, Some(5.0)));
        let text = "upload: 100 packets protected, 20 repair (16.67 % of the wire); 4 rebuilt after 5.0 ms, 1 not (1.000 %); \
                    0 repair late, 16 spurious";
        assert_eq!(line.text(), text);
        assert_eq!(Counts::from_numbers(sender.numbers()), sender);
    }
}
