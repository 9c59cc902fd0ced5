//! A diagnosis for a terminal.

use std::fmt::Write;

use super::Diagnosis;

/// Lines of losses and of stalls that are printed.
const PRINTED: usize = 10;

impl Diagnosis {
    /// The diagnosis as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let t = &self.totals;
        let reference = self.reference.as_deref().map_or(String::new(), |at| format!(", times count from {at}"));
        let _ = writeln!(out, "connection {} ({}){reference}", self.id, self.vantage);
        let _ = writeln!(
            out,
            "  {:.3} s; sent {} packets, {}; received {} packets, {}; lost {}, dropped {}, probe timeouts {}",
            self.seconds(),
            t.packets_sent,
            bytes(t.bytes_sent),
            t.packets_received,
            bytes(t.bytes_received),
            t.packets_lost,
            t.packets_dropped,
            t.probe_timeouts
        );
        if let (Some(min), Some(median), Some(p95)) = (self.min_rtt_ms, self.median_rtt_ms, self.p95_rtt_ms) {
            let _ = writeln!(out, "  RTT {min:.2} ms at least, median {median:.2}, p95 {p95:.2}");
        }
        self.write_limits(&mut out);
        let _ = writeln!(out, "\nmilestones");
        for milestone in &self.milestones {
            let _ = writeln!(out, "  {:>9.3} s  {}", milestone.at_s, milestone.what);
        }
        self.write_timeline(&mut out);
        self.write_troubles(&mut out);
        out
    }

    fn write_limits(&self, out: &mut String) {
        let _ = writeln!(out, "\nwhat limited the sender");
        let Some(limits) = &self.limited_s else {
            let _ = writeln!(out, "  the file does not say (it has no event `sender:limited`)");
            return;
        };
        let all: f64 = limits.values().sum();
        let mut sorted: Vec<_> = limits.iter().collect();
        sorted.sort_by(|a, b| b.1.total_cmp(a.1));
        for (name, seconds) in sorted {
            let share = if all > 0.0 { seconds / all * 100.0 } else { 0.0 };
            let _ = writeln!(out, "  {:<18} {seconds:>9.3} s  {share:>5.1} %", name.replace('_', " "));
        }
    }

    fn write_timeline(&self, out: &mut String) {
        if self.timeline.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "\ntimeline\n  {:>9}  {:>10}  {:>10}  {:>5}  {:>8}  {:>10}  limited by",
            "from s", "sent", "received", "lost", "RTT ms", "window"
        );
        for part in &self.timeline {
            let limit =
                part.limited_s.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or("–", |(name, _)| name.as_str());
            let _ = writeln!(
                out,
                "  {:>9.3}  {:>10}  {:>10}  {:>5}  {:>8}  {:>10}  {}",
                part.from_s,
                bytes(part.bytes_sent),
                bytes(part.bytes_received),
                part.packets_lost,
                part.rtt_ms.map_or("–".to_owned(), |rtt| format!("{rtt:.2}")),
                part.window.map_or("–".to_owned(), bytes),
                limit.replace('_', " ")
            );
        }
    }

    fn write_troubles(&self, out: &mut String) {
        let _ = writeln!(out, "\nlosses: {} bursts", self.losses.len());
        let mut largest: Vec<_> = self.losses.iter().collect();
        largest.sort_by_key(|burst| std::cmp::Reverse(burst.packets));
        for burst in largest.iter().take(PRINTED) {
            let triggers: Vec<String> =
                burst.triggers.iter().map(|(name, count)| format!("{count} by {}", name.replace('_', " "))).collect();
            let _ = writeln!(out, "  {:>9.3} s  {} packets: {}", burst.at_s, burst.packets, triggers.join(", "));
        }
        let _ = writeln!(out, "\nstalls: {}", self.stalls.len());
        let mut longest: Vec<_> = self.stalls.iter().collect();
        longest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        for stall in longest.iter().take(PRINTED) {
            let _ = writeln!(
                out,
                "  {:>9.3} s  {:.3} s behind {}, probe timeouts {}",
                stall.at_s,
                stall.seconds,
                stall.limit.replace('_', " "),
                stall.probe_timeouts
            );
        }
    }
}

/// Bytes with a unit.
fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}
