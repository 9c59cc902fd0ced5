//! First record: type of the file, point of view, and reference time.

use serde::Serialize;
use units::Duration;

use super::value::Hex;

const FILE_SCHEMA: &str = "urn:ietf:params:qlog:file:sequential";
const SERIALIZATION_FORMAT: &str = "application/qlog+json-seq";
// quic-events §2.1 MUST: until it is an RFC, the URI ends in the number of the draft.
pub(super) const EVENT_SCHEMA: &str = "urn:ietf:params:qlog:events:quic-13";
/// Events of forward error correction, `fec:…` (docs/fec.md).
pub(super) const FEC_SCHEMA: &str = "urn:tiderace:qlog:events:fec-1";
/// `sender:limited`: limit of the sender (docs/edge.md).
pub(super) const SENDER_SCHEMA: &str = "urn:tiderace:qlog:events:sender-1";

/// End of the connection that writes the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Vantage {
    /// The end that opened the connection.
    Client,
    /// The end that accepted it.
    Server,
}

impl Vantage {
    /// `client` or `server`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

impl From<wire::Side> for Vantage {
    fn from(side: wire::Side) -> Self {
        match side {
            wire::Side::Client => Self::Client,
            wire::Side::Server => Self::Server,
        }
    }
}

/// `QlogFileSeq`.
#[derive(Serialize)]
pub(super) struct FileHeader<'a> {
    // Main schema §3: these two are within the first 256 bytes.
    file_schema: &'static str,
    serialization_format: &'static str,
    title: &'a str,
    trace: Trace<'a>,
}

#[derive(Serialize)]
struct Trace<'a> {
    common_fields: CommonFields<'a>,
    vantage_point: VantagePoint,
    event_schemas: [&'static str; 3],
}

#[derive(Serialize)]
struct CommonFields<'a> {
    group_id: Hex<'a>,
    time_format: &'static str,
    reference_time: ReferenceTime<'a>,
}

#[derive(Serialize)]
struct ReferenceTime<'a> {
    clock_type: &'static str,
    epoch: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_clock_time: Option<&'a str>,
}

#[derive(Serialize)]
struct VantagePoint {
    #[serde(rename = "type")]
    ty: Vantage,
}

impl<'a> FileHeader<'a> {
    /// quic-events §1.1: both endpoints group by the ID that the client addressed first.
    pub(super) fn new(title: &'a str, vantage: Vantage, odcid: &'a [u8], wall_clock: Option<&'a str>) -> Self {
        Self {
            file_schema: FILE_SCHEMA,
            serialization_format: SERIALIZATION_FORMAT,
            title,
            trace: Trace {
                common_fields: CommonFields {
                    group_id: Hex(odcid),
                    time_format: "relative_to_epoch",
                    // Main schema §7.1 MUST: a monotonic clock has no known epoch; where it is in the calendar is told
                    // beside it.
                    reference_time: ReferenceTime {
                        clock_type: "monotonic",
                        epoch: "unknown",
                        wall_clock_time: wall_clock,
                    },
                },
                vantage_point: VantagePoint { ty: vantage },
                event_schemas: [EVENT_SCHEMA, FEC_SCHEMA, SENDER_SCHEMA],
            },
        }
    }
}

/// A point in time as RFC 3339 writes it, in UTC with milliseconds.
pub(super) fn rfc3339(since_1970: Duration) -> String {
    // The format ends with the year 9999.
    let seconds = since_1970.as_secs().min(253_402_300_799);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    let mut day = days;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Centuries and years one by one: the year is not far, and this is read more easily than it is computed.
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while month < 11 && day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let (month, day) = (month + 1, day + 1);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since_1970.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(seconds)), text);
        }
        assert_eq!(rfc3339(Duration::from_millis(1_700_000_000_042)), "2023-11-14T22:13:20.042Z");
        assert!(rfc3339(Duration::MAX).starts_with("9999-12-31T23:59:59."));
    }
}
