//! Discovery of the largest datagram size of a path, by probes (RFC 8899, RFC 9000 §14.3).
//!
//! A path begins with a size that needs no proof. After so many full datagrams that a larger size pays off, probes search for the largest
//! size that arrives: first the upper bound, which is most often right, then by bisection. There is no timer: a search that is due begins
//! when data flows.

use units::{Duration, Instant};

// RFC 8899 §5.1.1 MUST NOT-2: there is no timer for confirmation, as acknowledgements confirm
// RFC 9000 §14.2 SHOULD-1: the largest datagram is found by probing
// RFC 9000 §14.3 SHOULD-1: the search for the largest datagram starts from 1200 bytes
// RFC 8899 §5.1.2 RECOMMENDED-1: the base size is 1200 bytes
/// RFC 9000 §14.1, RFC 8899 §5.1.2 (BASE_PLPMTU): what every path for QUIC carries, in bytes of UDP payload.
pub(crate) const BASE: u16 = 1200;

// RFC 8899 §3 REQUIRED-4: one that is lost may have been lost for another reason
/// RFC 8899 §5.1.2 (MAX_PROBES): lost probes of a size after which it counts as too large.
const MAX_PROBES: u8 = 3;
/// Differences below this are not worth a probe, in bytes.
const GRANULARITY: u16 = 8;
/// Full datagrams after which a search begins. A connection that only asks a question never probes.
const WORTH_A_SEARCH: u32 = 8;
/// The second time that a size stops to arrive, the next search waits this long, and twice as long each time after.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// State of the discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for data that fills datagrams.
    Waiting,
    /// Tries `size`, of which `failures` probes were lost; `in_flight` while a probe is in progress.
    Searching { size: u16, failures: u8, in_flight: bool },
    /// The search has ended; the next one may begin at this time.
    Settled { until: Instant },
}

/// Owns the search for the datagram size of one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MtuDiscovery {
    phase: Phase,
    /// The size in use: it has arrived, or is trusted.
    current: u16,
    /// The largest size that this search has not ruled out.
    high: u16,
    /// Never more than this.
    max: u16,
    /// RFC 8899 §5.1.1 (PMTU_RAISE_TIMER): how long a result holds.
    interval: Duration,
    /// Full datagrams since the present phase began.
    full: u32,
    /// Number of times a size that had arrived stopped arriving.
    black_holes: u32,
}

impl MtuDiscovery {
    /// A path that begins with `start` bytes and may go up to `max`; a result is questioned after `interval`.
    pub(crate) fn new(start: u16, max: u16, interval: Duration) -> Self {
        let current = start.max(BASE);
        let max = max.max(current);
        Self { phase: Phase::Waiting, current, high: max, max, interval, full: 0, black_holes: 0 }
    }

    /// The size in use.
    #[inline]
    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    /// The size that was trusted may be what does not arrive. Returns the size in use from here on.
    ///
    /// Probes for the size whatever the traffic: an application whose datagrams fit only the configured size has no full datagrams to send.
    pub(crate) fn distrust(&mut self) -> u16 {
        if self.current > BASE {
            self.try_size(self.current);
        }
        self.current = BASE;
        self.current
    }

    /// The peer, or a buffer, takes no more than `max` bytes. Returns the size in use from here on.
    pub(crate) fn limit(&mut self, max: u16) -> u16 {
        self.max = self.max.min(max.max(BASE));
        self.high = self.high.min(self.max);
        self.current = self.current.min(self.max);
        if let Phase::Searching { in_flight: false, size, .. } = self.phase
            && size > self.high
        {
            self.phase = Phase::Waiting;
        }
        self.current
    }

    /// Takes the number of full-sized datagrams that were sent.
    #[inline]
    pub(crate) fn on_full_datagrams(&mut self, now: Instant, count: u32) {
        if self.high > self.current {
            self.note_traffic(now, count);
        }
    }

    /// Begins a search that full datagrams would begin, for an application whose datagrams do not fit.
    pub(crate) fn search(&mut self, now: Instant) {
        self.on_full_datagrams(now, WORTH_A_SEARCH);
    }

    fn note_traffic(&mut self, now: Instant, count: u32) {
        self.full = self.full.saturating_add(count);
        if self.full < WORTH_A_SEARCH {
            return;
        }
        match self.phase {
            Phase::Waiting => self.try_size(self.high),
            Phase::Settled { until } if until <= now => {
                self.high = self.max;
                self.try_size(self.high);
            }
            Phase::Searching { .. } | Phase::Settled { .. } => {}
        }
    }

    /// The size of the probe that is to be sent.
    #[inline]
    pub(crate) fn due(&self) -> Option<u16> {
        match self.phase {
            Phase::Searching { size, in_flight: false, .. } => Some(size),
            _ => None,
        }
    }

    /// The probe left. Until it has arrived or is lost there is no other.
    // RFC 8899 §8 MUST-1: so probes are a round trip apart, and rounds of them `interval`
    pub(crate) fn on_probe_sent(&mut self) {
        if let Phase::Searching { in_flight, .. } = &mut self.phase {
            *in_flight = true;
        }
    }

    /// A probe of `size` bytes arrived. Returns the size in use from here on.
    pub(crate) fn on_probe_acked(&mut self, now: Instant, size: u16) -> u16 {
        // RFC 8899 §3 REQUIRED-5, REQUIRED-6: answers may come late, twice and out of order.
        // A probe from before a change says nothing that still holds.
        if matches!(self.phase, Phase::Searching { size: tried, in_flight: true, .. } if tried == size) {
            self.current = size.min(self.max);
            self.go_on(now);
        }
        self.current
    }

    /// A probe of `size` bytes was lost.
    pub(crate) fn on_probe_lost(&mut self, now: Instant, size: u16) {
        match &mut self.phase {
            Phase::Searching { size: tried, failures, in_flight } if *tried == size && *in_flight => {
                *failures += 1;
                *in_flight = false;
                if *failures < MAX_PROBES {
                    return;
                }
            }
            _ => return,
        }
        self.high = size - 1;
        self.go_on(now);
    }

    /// Datagrams above the base size do not arrive any more. Returns the size in use from here on.
    // RFC 8899 §4.3, §5.2: back to the base size, and search again.
    pub(crate) fn on_black_hole(&mut self, now: Instant) -> u16 {
        self.current = BASE;
        self.black_holes = self.black_holes.saturating_add(1);
        self.full = 0;
        self.high = self.max;
        // The first may have been an outage of everything; a path that plays this again is asked ever more rarely.
        self.phase = match self.black_holes {
            1 => Phase::Waiting,
            n => Phase::Settled { until: now + FIRST_WAIT.saturating_mul(1 << (n - 2).min(10)).min(self.interval) },
        };
        self.current
    }

    /// Chooses the next size, between the largest that has arrived and the smallest that was ruled out.
    fn go_on(&mut self, now: Instant) {
        let left = self.high.saturating_sub(self.current);
        if left < GRANULARITY {
            self.full = 0;
            self.phase = Phase::Settled { until: now + self.interval };
            // There is nothing to look for before `until`, but then there is.
            self.high = self.max;
        } else {
            self.try_size(self.current + left.div_ceil(2));
        }
    }

    fn try_size(&mut self, size: u16) {
        self.phase = Phase::Searching { size, failures: 0, in_flight: false };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(600);
    const NOW: Instant = Instant::ZERO;

    /// Lets a search run over a path that carries `carries` bytes; returns the number of probes.
    fn search(discovery: &mut MtuDiscovery, now: Instant, carries: u16) -> u32 {
        discovery.on_full_datagrams(now, WORTH_A_SEARCH);
        let mut probes = 0;
        while let Some(size) = discovery.due() {
            probes += 1;
            assert!(size > discovery.current() && size <= discovery.max, "{size} {discovery:?}");
            discovery.on_probe_sent();
            assert_eq!(discovery.due(), None, "one at a time");
            if size <= carries {
                assert_eq!(discovery.on_probe_acked(now, size), size);
            } else {
                discovery.on_probe_lost(now, size);
            }
        }
        probes
    }

    // RFC 8899 §8 MUST-1
    #[test]
    fn finds_what_the_path_carries() {
        for carries in (1200..=1600).chain([8952, 9000]) {
            for max in [1200, 1203, 1452, 9000] {
                let mut discovery = MtuDiscovery::new(1200, max, INTERVAL);
                let probes = search(&mut discovery, NOW, carries);
                let best = carries.min(max);
                assert!(discovery.current() <= best && best - discovery.current() < GRANULARITY, "{carries} {max}");
                assert!(probes <= 40, "{carries} {max}: {probes}");
            }
        }
    }

    #[test]
    fn the_upper_bound_takes_one_probe() {
        let mut discovery = MtuDiscovery::new(1200, 1452, INTERVAL);
        assert_eq!(search(&mut discovery, NOW, 1452), 1);
        assert_eq!(discovery.current(), 1452);
    }

    #[test]
    fn little_data_starts_no_search() {
        let mut discovery = MtuDiscovery::new(1200, 1452, INTERVAL);
        discovery.on_full_datagrams(NOW, WORTH_A_SEARCH - 1);
        assert_eq!(discovery.due(), None);
        let mut fixed = MtuDiscovery::new(1452, 1200, INTERVAL);
        fixed.on_full_datagrams(NOW, 1000);
        assert_eq!((fixed.due(), fixed.current()), (None, 1452));
    }

    #[test]
    fn a_trusted_size_that_was_doubted_is_asked_for_without_traffic() {
        for (max, carries, best) in [(1452, 1452, 1452), (1452, 1200, 1200), (1500, 1500, 1500)] {
            let mut discovery = MtuDiscovery::new(1452, max, INTERVAL);
            assert_eq!((discovery.distrust(), discovery.due()), (BASE, Some(1452)));
            assert_eq!((discovery.distrust(), discovery.due()), (BASE, Some(1452)), "a second timeout");
            let mut probes = 0;
            while let Some(size) = discovery.due() {
                probes += 1;
                discovery.on_probe_sent();
                if size <= carries {
                    discovery.on_probe_acked(NOW, size);
                } else {
                    discovery.on_probe_lost(NOW, size);
                }
            }
            assert!(best - discovery.current() < GRANULARITY && probes <= 40, "{max} {carries}: {discovery:?}");
        }
        let mut base = MtuDiscovery::new(1200, 1452, INTERVAL);
        assert_eq!((base.distrust(), base.due()), (BASE, None));
    }

    #[test]
    fn an_application_begins_a_search_and_no_second_one() {
        let mut discovery = MtuDiscovery::new(1200, 1452, INTERVAL);
        discovery.search(NOW);
        assert_eq!(discovery.due(), Some(1452));
        discovery.on_probe_sent();
        discovery.search(NOW);
        assert_eq!((discovery.due(), discovery.on_probe_acked(NOW, 1452)), (None, 1452));
        discovery.search(NOW);
        assert_eq!(discovery.due(), None, "the largest size is in use");
    }

    #[test]
    fn a_result_is_questioned_after_a_while() {
        let mut discovery = MtuDiscovery::new(1200, 1452, INTERVAL);
        search(&mut discovery, NOW, 1300);
        let settled = discovery.current();
        assert_eq!(search(&mut discovery, NOW + INTERVAL / 2, 1452), 0);
        assert_eq!(discovery.current(), settled);
        assert_eq!(search(&mut discovery, NOW + INTERVAL, 1452), 1);
        assert_eq!(discovery.current(), 1452);
    }

    #[test]
    fn after_a_black_hole_the_base_size_and_ever_rarer_searches() {
        let mut discovery = MtuDiscovery::new(1200, 1452, INTERVAL);
        search(&mut discovery, NOW, 1452);
        assert_eq!(discovery.on_black_hole(NOW), BASE);
        assert!(search(&mut discovery, NOW, 1452) > 0, "the first may have been an outage");
        discovery.on_black_hole(NOW);
        assert_eq!(search(&mut discovery, NOW + FIRST_WAIT / 2, 1452), 0);
        assert_eq!(search(&mut discovery, NOW + FIRST_WAIT, 1452), 1);
        for _ in 0..100 {
            discovery.on_black_hole(NOW);
        }
        assert_eq!(search(&mut discovery, NOW + INTERVAL, 1452), 1);
    }

    #[test]
    fn the_peer_may_take_less() {
        let mut discovery = MtuDiscovery::new(1400, 1452, INTERVAL);
        assert_eq!(discovery.limit(1300), 1300);
        assert_eq!(discovery.limit(60_000), 1300);
        assert_eq!(search(&mut discovery, NOW, 1452), 0);
        assert_eq!(discovery.limit(100), BASE);
    }

    // RFC 8899 §3 REQUIRED-5, REQUIRED-6
    #[test]
    fn answers_that_come_late_or_twice_do_no_harm() {
        let mut discovery = MtuDiscovery::new(1200, 1452, INTERVAL);
        discovery.on_full_datagrams(NOW, WORTH_A_SEARCH);
        discovery.on_probe_sent();
        // Overtaken by so many others that it counts as lost; then it is acknowledged. It is asked again.
        discovery.on_probe_lost(NOW, 1452);
        assert_eq!((discovery.on_probe_acked(NOW, 1452), discovery.due()), (1200, Some(1452)));
        discovery.on_probe_sent();
        assert_eq!([0; 2].map(|_| discovery.on_probe_acked(NOW, 1452)), [1452; 2]);
        discovery.on_probe_lost(NOW, 1452);
        assert_eq!((discovery.current(), discovery.due()), (1452, None));
    }

    // RFC 8899 §4.1 MUST-1
    #[test]
    fn an_answer_to_an_older_question_changes_nothing() {
        let mut discovery = MtuDiscovery::new(1200, 1452, INTERVAL);
        discovery.on_full_datagrams(NOW, WORTH_A_SEARCH);
        discovery.on_probe_sent();
        discovery.on_black_hole(NOW);
        assert_eq!(discovery.on_probe_acked(NOW, 1452), BASE);
        discovery.on_probe_lost(NOW, 1452);
        assert_eq!(discovery.current(), BASE);
    }
}
