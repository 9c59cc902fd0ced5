//! Fates of single packets, set by a test.

use units::Instant;

use crate::PacketMeta;

/// Verdict of a test on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// Lost behind the queue, with [`DropReason::Script`](crate::DropReason::Script).
    Drop,
    /// Passes, whatever the loss model decides. Queue and MTU still apply.
    Keep,
    /// Passes, with damaged bits.
    Corrupt,
    /// Arrives later by this span, outside of the order.
    Delay(units::Duration),
}

/// Inspects each packet and may decide its fate.
type Rule = dyn FnMut(Instant, &PacketMeta) -> Option<Forced> + Send;

/// Fates of packets, set by a test.
///
/// ```
/// # use tiderace_netem as netem;
/// use netem::{Forced, Script};
/// // The first and the third packet of flow 0 vanish.
/// let drops = Script::drop_numbers(0, [0, 2]);
/// // Every packet that the test marked with tag 7 is damaged.
/// let damage = Script::new(|packet| (packet.tag == 7).then_some(Forced::Corrupt));
/// ```
pub struct Script(Box<Rule>);

impl Script {
    /// A script from a function.
    pub fn new(rule: impl FnMut(&PacketMeta) -> Option<Forced> + Send + 'static) -> Self {
        let mut rule = rule;
        Self::timed(move |_, packet| rule(packet))
    }

    /// A script from a function that also gets the time at which the packet is offered.
    pub fn timed(rule: impl FnMut(Instant, &PacketMeta) -> Option<Forced> + Send + 'static) -> Self {
        Self(Box::new(rule))
    }

    /// Drops the packets of a flow with these numbers (the first packet has number 0).
    pub fn drop_numbers(flow: u32, numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut numbers: Vec<u64> = numbers.into_iter().collect();
        numbers.sort_unstable();
        Self::new(move |packet| {
            (packet.flow == flow && numbers.binary_search(&packet.number).is_ok()).then_some(Forced::Drop)
        })
    }

    #[inline]
    pub(crate) fn decide(&mut self, now: Instant, packet: &PacketMeta) -> Option<Forced> {
        (self.0)(now, packet)
    }
}

impl core::fmt::Debug for Script {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Script(..)")
    }
}
