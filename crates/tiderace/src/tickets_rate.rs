//! Rate limit of the ticket file: how often a server can make a client write it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Tickets of a server that are written at once: twice as many as are kept of it, …
pub(crate) const BURST: u32 = 8;
/// … and one more after each of these.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);
/// Largest number of servers remembered. A client chooses whom to ask, but servers can redirect it to others.
const SERVERS: usize = 256;

/// Writes for each server, by its name.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    servers: HashMap<String, Allowed>,
}

#[derive(Clone, Copy, Debug)]
struct Allowed {
    left: u32,
    since: Instant,
}

impl Writes {
    /// Returns whether a ticket of the server may be written.
    pub(crate) fn allow(&mut self, server_name: &str, now: Instant) -> bool {
        if !self.servers.contains_key(server_name) && self.servers.len() >= SERVERS {
            let oldest = self.servers.iter().min_by_key(|(_, allowed)| allowed.since).map(|(name, _)| name.clone());
            oldest.and_then(|name| self.servers.remove(&name));
        }
        let allowed = self.servers.entry(server_name.to_owned()).or_insert(Allowed { left: BURST, since: now });
        let intervals = now.saturating_duration_since(allowed.since).as_secs() / INTERVAL.as_secs();
        if intervals > 0 {
            // The sum is bounded by the burst.
            let more = u32::try_from(intervals).unwrap_or(BURST);
            *allowed = Allowed { left: allowed.left.saturating_add(more).min(BURST), since: now };
        }
        let may = allowed.left > 0;
        allowed.left -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_a_rate_and_a_bounded_table() {
        let start = Instant::now();
        let mut writes = Writes::default();
        let mut count =
            |name: &str, seconds| (0..100).filter(|_| writes.allow(name, start + Duration::from_secs(seconds))).count();
        assert_eq!((count("a.test", 0), count("a.test", 9), count("b.test", 9)), (8, 0, 8));
        assert_eq!((count("a.test", 25), count("a.test", 34), count("a.test", 35)), (2, 0, 1));
        assert_eq!(count("a.test", 100_000), 8);
        for number in 0..2 * SERVERS {
            assert!(writes.allow(&format!("{number}.test"), start + Duration::from_secs(100_001)));
        }
        assert_eq!(writes.servers.len(), SERVERS);
    }
}
