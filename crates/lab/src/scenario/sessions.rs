//! User sessions over a connection: video, page, feed.

use serde::{Deserialize, Serialize};
use units::{Bitrate, DataSize, Duration};

use super::check::{Fault, fault};

/// A video in segments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct VideoTraffic {
    /// Playing time of a segment. By default 2 s.
    #[serde(with = "units::duration_text")]
    pub segment: Duration,
    /// Buffer of the player at most. By default 12 s.
    #[serde(with = "units::duration_text")]
    pub buffer: Duration,
    /// Available bitrates, rising. By default 0.4, 1, 2.5, 5 and 8 Mbit/s.
    pub ladder: Vec<Bitrate>,
}

impl Default for VideoTraffic {
    fn default() -> Self {
        let ladder = [400_000, 1_000_000, 2_500_000, 5_000_000, 8_000_000];
        Self {
            segment: Duration::from_secs(2),
            buffer: Duration::from_secs(12),
            ladder: ladder.map(Bitrate::from_bps).into(),
        }
    }
}

/// A page: a document, then styles and scripts, then images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PageTraffic {
    /// Size of the document. By default 40 kB.
    pub document: DataSize,
    /// Styles and scripts, which the document names. By default 8.
    pub styles: u32,
    /// Size of each. By default 30 kB.
    pub style_size: DataSize,
    /// Images, which are requested when all styles and scripts have arrived. By default 24.
    pub images: u32,
    /// Size of each. By default 40 kB.
    pub image_size: DataSize,
}

impl Default for PageTraffic {
    fn default() -> Self {
        let size = DataSize::from_bytes;
        Self { document: size(40_000), styles: 8, style_size: size(30_000), images: 24, image_size: size(40_000) }
    }
}

/// A feed: each screen requests answers of an interface and images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct FeedTraffic {
    /// Time that a screen is looked at. By default 1 s.
    #[serde(with = "units::duration_text")]
    pub every: Duration,
    /// Answers of the interface for each screen; they go first. By default 2.
    pub calls: u32,
    /// Size of each. By default 8 kB.
    pub call_size: DataSize,
    /// Images on each screen; those that have not arrived are cancelled with the next screen. By default 6.
    pub images: u32,
    /// Size of each. By default 60 kB.
    pub image_size: DataSize,
}

impl Default for FeedTraffic {
    fn default() -> Self {
        let size = DataSize::from_bytes;
        Self { every: Duration::from_secs(1), calls: 2, call_size: size(8_000), images: 6, image_size: size(60_000) }
    }
}

/// More objects at once than any page has.
const OBJECTS_MAX: u32 = 1_000;
/// A large object.
const SIZE_MAX: u64 = 1 << 30;

pub(super) fn size(field: &str, size: DataSize) -> Result<(), Fault> {
    if (1..=SIZE_MAX).contains(&size.as_bytes()) {
        return Ok(());
    }
    Err(fault(field, format!("{size} is out of range: 1 B to 1 GiB")))
}

fn count(field: &str, count: u32) -> Result<(), Fault> {
    if count <= OBJECTS_MAX {
        return Ok(());
    }
    Err(fault(field, format!("{count} is out of range: 0 to {OBJECTS_MAX}")))
}

pub(super) fn span(field: &str, span: Duration) -> Result<(), Fault> {
    if span >= Duration::from_millis(10) && span <= Duration::from_secs(3_600) {
        return Ok(());
    }
    Err(fault(field, "is out of range: 10 ms to 1 h"))
}

impl VideoTraffic {
    pub(super) fn check(&self) -> Result<(), Fault> {
        span("traffic.video.segment", self.segment)?;
        span("traffic.video.buffer", self.buffer)?;
        if self.buffer < self.segment * 2 {
            return Err(fault(
                "traffic.video.buffer",
                "has to hold two segments, or every one is played in doubt of the next",
            ));
        }
        let rising = self.ladder.windows(2).all(|pair| pair[0].as_bps() < pair[1].as_bps());
        if self.ladder.is_empty() || !rising || self.ladder[0].as_bps() < 1_000 {
            return Err(fault("traffic.video.ladder", "needs bitrates that rise, from 1 kbit/s on"));
        }
        let largest = self.ladder.iter().map(|rate| rate.in_time(self.segment)).max().unwrap_or_default();
        size("traffic.video.ladder", largest)
    }
}

impl PageTraffic {
    pub(super) fn check(&self) -> Result<(), Fault> {
        size("traffic.page.document", self.document)?;
        count("traffic.page.styles", self.styles)?;
        size("traffic.page.style-size", self.style_size)?;
        count("traffic.page.images", self.images)?;
        size("traffic.page.image-size", self.image_size)
    }
}

impl FeedTraffic {
    pub(super) fn check(&self) -> Result<(), Fault> {
        span("traffic.feed.every", self.every)?;
        count("traffic.feed.calls", self.calls)?;
        size("traffic.feed.call-size", self.call_size)?;
        count("traffic.feed.images", self.images)?;
        size("traffic.feed.image-size", self.image_size)?;
        if self.calls + self.images == 0 {
            return Err(fault("traffic.feed", "asks for nothing"));
        }
        Ok(())
    }
}
