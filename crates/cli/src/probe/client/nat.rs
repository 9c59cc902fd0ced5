//! Timeout of a NAT: sockets that are silent for different times.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::phases::Probe;
use crate::probe::results::{Cost, Measured, NatTimeout};

/// Times of silence after which a packet should still come, in seconds.
const SILENCES: [u64; 14] = [5, 10, 15, 20, 25, 30, 45, 60, 90, 120, 180, 240, 300, 600];

impl Probe {
    /// Sockets that are silent for different times.
    pub(super) async fn nat(&mut self, most: Duration) {
        let path = self.path.clone();
        let (bytes, begun) = (path.spent(), Instant::now());
        let mut waits = JoinSet::new();
        for silence in SILENCES.into_iter().filter(|silence| Duration::from_secs(*silence) <= most) {
            let path = path.clone();
            waits.spawn(async move { (silence, path.comes_after(Duration::from_secs(silence)).await) });
        }
        let mut found = Vec::new();
        let stop = self.stop.clone();
        while let Some(joined) = tokio::select! {
            joined = waits.join_next() => joined,
            () = stop.wait() => None,
        } {
            match joined {
                Ok((silence, Ok(comes))) => found.push((silence, comes)),
                Ok((silence, Err(error))) => self.note(format!("NAT: {silence} s not measured: {error}")),
                Err(_) => {}
            }
        }
        let survives_s = found.iter().filter(|(_, comes)| *comes).map(|(silence, _)| *silence).max();
        // One packet may be lost on the way: the shortest silence behind the longest that was survived counts.
        let survives_s = survives_s.unwrap_or(0);
        let forgets_s =
            found.iter().filter(|(silence, comes)| !comes && *silence > survives_s).map(|(silence, _)| *silence).min();
        if found.is_empty() {
            let reason = if stop.is_asked() {
                "the run was interrupted"
            } else {
                "`--nat-timeout` is below 5 s, or no packet came back"
            };
            return self.note(format!("NAT: not measured: {reason}"));
        }
        let cost = Cost { bytes: path.spent() - bytes, seconds: begun.elapsed().as_secs_f64() };
        self.results.nat = Some(Measured { value: NatTimeout { survives_s, forgets_s }, cost });
    }
}
