//! Counters of a relay, and the validity of its times.

use core::fmt;

use netem::{DropReason, Histogram, LinkCounters};
use units::{Duration, duration_text};

/// Counters of a relay since its start.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// The link from clients to the server: packets offered, delivered, dropped and why.
    pub up: LinkCounters,
    /// The link from the server to clients.
    pub down: LinkCounters,
    /// Delay of the sending of each packet behind its time, in nanoseconds.
    pub lateness: Histogram,
    /// Packets handed to the system for sending, copies included.
    pub sent: u64,
    /// Waiting packets.
    pub held: u64,
    /// Client addresses seen, counted again when one has lost its place in between.
    pub clients: u64,
    /// Packets of clients for whom there was no place.
    pub refused: u64,
    /// Packets dropped because the relay held too many bytes.
    pub overflowed: u64,
    /// Packets that the kernel dropped because the relay did not read fast enough. Not the link's doing: a run with any
    /// of these does not show what was configured.
    pub kernel_dropped: u64,
    /// Packets that the system refused to send (for example because they are larger than the interface's MTU).
    pub send_failed: u64,
    /// Times that the system reported an unreachable port at the far end.
    pub unreachable: u64,
    /// The thread runs before all ordinary ones (real-time priority): the system allowed it.
    pub preferred: bool,
    /// Packets whose client had lost its place before they were due.
    pub orphaned: u64,
    /// Mappings that the NAT replaced: at scheduled times and after silences, each when the client next sends.
    pub rebindings: u64,
    /// Packets of the server that the NAT dropped, because their mapping was gone.
    pub unmapped: u64,
}

/// Limit for the 99th percentile of lateness: above it, the delays are not the configured ones.
const TRUSTED_LATENESS: Duration = Duration::from_millis(1);

impl Statistics {
    /// Reason why this run does not show what was configured, if so: the machine was too slow or too busy.
    pub fn doubt(&self) -> Option<String> {
        if self.kernel_dropped > 0 {
            return Some(format!(
                "the system dropped {} packets that the relay could not read in time",
                self.kernel_dropped
            ));
        }
        if self.overflowed > 0 {
            return Some(format!("{} packets were dropped because the relay held too many bytes", self.overflowed));
        }
        let late = self.lateness.quantile_duration(0.99)?;
        (late > TRUSTED_LATENESS)
            .then(|| format!("1 % of the packets were sent more than {} late", duration_text::display(late)))
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, link) in [("up", &self.up), ("down", &self.down)] {
            write!(f, "{name:<5} {} packets in, {} delivered", link.offered.packets, link.delivered.packets)?;
            for reason in DropReason::ALL {
                if link.dropped(reason).packets > 0 {
                    write!(f, ", {} dropped ({})", link.dropped(reason).packets, reason.name())?;
                }
            }
            for (count, what) in
                [(link.duplicated, "duplicated"), (link.corrupted, "corrupted"), (link.reordered, "reordered")]
            {
                if count > 0 {
                    write!(f, ", {count} {what}")?;
                }
            }
            writeln!(f)?;
        }
        let late = |q| duration_text::display(self.lateness.quantile_duration(q).unwrap_or_default());
        write!(f, "late  {} at the median, {} p99, {} p99.9", late(0.5), late(0.99), late(0.999))?;
        if self.rebindings > 0 || self.unmapped > 0 {
            write!(f, "\nnat   {} rebindings, {} packets to mappings that were gone", self.rebindings, self.unmapped)?;
        }
        for (count, what) in [
            (self.refused, "of clients without a place"),
            (self.overflowed, "over the memory limit"),
            (self.kernel_dropped, "dropped by the system before the relay"),
            (self.send_failed, "refused by the system"),
            (self.orphaned, "of clients that lost their place"),
        ] {
            if count > 0 {
                write!(f, "\nlost  {count} packets {what}")?;
            }
        }
        Ok(())
    }
}
