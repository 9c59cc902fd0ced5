//! Code points: settings, upgrade tokens, capsules, and application error codes in the error space of HTTP/3.

use h3_quic::Code;

/// SETTINGS_WT_ENABLED (draft-ietf-webtrans-http3 §9.2).
pub(crate) const WT_ENABLED: u64 = 0x2c7c_f000;
/// Initial limits of a session's flow control (draft-ietf-webtrans-http3 §5.5).
pub(crate) const WT_INITIAL_MAX_STREAMS: [u64; 2] = [0x2b65, 0x2b64];
pub(crate) const WT_INITIAL_MAX_DATA: u64 = 0x2b61;
/// SETTINGS_ENABLE_WEBTRANSPORT of draft 02, which browsers speak.
pub(crate) const DRAFT02_ENABLE: u64 = 0x2b60_3742;
/// SETTINGS_WEBTRANSPORT_MAX_SESSIONS of drafts 07 to 12.
pub(crate) const DRAFT07_MAX_SESSIONS: u64 = 0xc671_706a;

/// Upgrade token of the current draft.
pub(crate) const TOKEN: &str = "webtransport-h3";
/// Upgrade token of drafts 02 to 14.
pub(crate) const EARLIER_TOKEN: &str = "webtransport";

pub(crate) const CLOSE_SESSION: u64 = 0x2843;
pub(crate) const DRAIN_SESSION: u64 = 0x78ae;
pub(crate) const MAX_DATA: u64 = 0x190b_4d3d;
/// Capsules that exist over HTTP/2 only.
pub(crate) const MAX_STREAM_DATA: u64 = 0x190b_4d3e;
pub(crate) const STREAM_DATA_BLOCKED: u64 = 0x190b_4d42;
/// By direction: bidirectional, unidirectional.
pub(crate) const MAX_STREAMS: [u64; 2] = [0x190b_4d3f, 0x190b_4d40];
pub(crate) const DATA_BLOCKED: u64 = 0x190b_4d41;
pub(crate) const STREAMS_BLOCKED: [u64; 2] = [0x190b_4d43, 0x190b_4d44];

const FIRST: u64 = Code::WT_APPLICATION_FIRST.0;
const LAST: u64 = Code::WT_APPLICATION_LAST.0;

/// Code of HTTP/3 for an application's error code (draft-ietf-webtrans-http3 §4.4).
///
/// ```
/// use tiderace_webtransport::{from_http3, to_http3};
///
/// assert_eq!(to_http3(0), 0x52e4_a40f_a8db);
/// assert_eq!(from_http3(to_http3(42)), Some(42));
/// assert_eq!(from_http3(0x10c), None);
/// ```
pub const fn to_http3(code: u32) -> u64 {
    let code = code as u64;
    // Each 31st code of the range is reserved by RFC 9114 §8.1.
    FIRST + code + code / 0x1e
}

/// Application's error code for a code of HTTP/3; `None` outside of the range, and for reserved codes.
pub const fn from_http3(code: u64) -> Option<u32> {
    if code < FIRST || code > LAST || (code - 0x21).is_multiple_of(0x1f) {
        return None;
    }
    let shifted = code - FIRST;
    Some((shifted - shifted / 0x1f) as u32)
}

/// Code for streams of a session that has ended.
pub(crate) const GONE: u64 = Code::WT_SESSION_GONE.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// draft-ietf-webtrans-http3 §4.4 MUST
    #[test]
    fn application_codes_map_to_a_range_without_reserved_codes() {
        assert_eq!((to_http3(0), to_http3(u32::MAX)), (FIRST, LAST));
        let samples = (0..200).chain((0..1000).map(|n| n * 4_294_967)).chain(u32::MAX - 200..=u32::MAX);
        for code in samples {
            let mapped = to_http3(code);
            assert!(!(mapped - 0x21).is_multiple_of(0x1f), "{code}: {mapped:#x} is reserved");
            assert_eq!(from_http3(mapped), Some(code));
        }
        let reserved = (FIRST..FIRST + 0x1f).filter(|code| from_http3(*code).is_none()).count();
        assert_eq!(reserved, 1);
        assert_eq!((from_http3(FIRST - 1), from_http3(LAST + 1), from_http3(0)), (None, None, None));
    }
}
