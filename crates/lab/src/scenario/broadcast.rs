//! Live broadcasts over WebTransport: settings of the workload `webtransport`.

use serde::{Deserialize, Serialize};
use units::{DataSize, Duration, Instant};

use super::{
    check::{Fault, fault},
    sessions::{size, span},
};

/// A live broadcast: a stream for each group of pictures, and audio in datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct BroadcastTraffic {
    /// Latency budget: a picture or audio datagram that takes longer is of no use. By default 500 ms.
    #[serde(with = "units::duration_text")]
    pub latency: Duration,
    /// Pictures in a group, the key picture included. By default 30.
    pub group: u32,
    /// Time between pictures. By default 40 ms.
    #[serde(with = "units::duration_text")]
    pub picture_interval: Duration,
    /// Size of the key picture, with which a group begins. By default 40 kB.
    pub key_size: DataSize,
    /// Size of each other picture, which needs those before it. By default 8 kB.
    pub delta_size: DataSize,
    /// Time between audio datagrams. By default 20 ms.
    #[serde(with = "units::duration_text")]
    pub audio_interval: Duration,
    /// Payload of each. By default 160 B.
    pub audio_size: DataSize,
}

impl Default for BroadcastTraffic {
    fn default() -> Self {
        Self {
            latency: Duration::from_millis(500),
            group: 30,
            picture_interval: Duration::from_millis(40),
            key_size: DataSize::from_bytes(40_000),
            delta_size: DataSize::from_bytes(8_000),
            audio_interval: Duration::from_millis(20),
            audio_size: DataSize::from_bytes(160),
        }
    }
}

impl BroadcastTraffic {
    /// Size of the picture with this number in its group, in bytes.
    pub fn picture(&self, number: u32) -> u64 {
        if number == 0 { self.key_size.as_bytes() } else { self.delta_size.as_bytes() }
    }

    /// Time from the capture of a group's first picture to that of its last.
    pub fn group_span(&self) -> Duration {
        self.picture_interval * self.group.saturating_sub(1)
    }

    /// Capture times before this are due: twice the budget remains until the run ends.
    pub fn due_until(&self, end: Instant) -> Instant {
        end.saturating_sub(self.latency * 2)
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        span("traffic.webtransport.latency", self.latency)?;
        if self.group == 0 || self.group > 1_000 {
            let message = format!("{} is out of range: 1 to 1000", self.group);
            return Err(fault("traffic.webtransport.group", message));
        }
        for (field, interval) in [("picture-interval", self.picture_interval), ("audio-interval", self.audio_interval)]
        {
            if interval < Duration::from_millis(1) || interval > Duration::from_secs(60) {
                return Err(fault(&format!("traffic.webtransport.{field}"), "is out of range: 1 ms to 60 s"));
            }
        }
        size("traffic.webtransport.key-size", self.key_size)?;
        size("traffic.webtransport.delta-size", self.delta_size)?;
        if !(20..=1_150).contains(&self.audio_size.as_bytes()) {
            let message = format!("{} is out of range: 20 B to 1150 B", self.audio_size);
            return Err(fault("traffic.webtransport.audio-size", message));
        }
        Ok(())
    }
}
