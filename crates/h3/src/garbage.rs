//! Random and nearly valid bytes: nothing panics, and nothing grows beyond its bounds.

use bytes::Bytes;
use proptest::prelude::*;

use crate::{
    capsule::Capsules,
    fields::Collector,
    frame::{self, Frames, Kind, Piece},
    priority,
    settings::Settings,
};

const MAX: u64 = 1_000;

/// Bytes in which frames and their lengths are likely.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let ty = prop_oneof![
        prop::sample::select(vec![0, 1, 3, 4, 5, 7, 0xd, 0x21, frame::PRIORITY_UPDATE, frame::PRIORITY_UPDATE_PUSH]),
        0..wire::varint::MAX,
    ];
    let frame = (ty, prop::collection::vec(any::<u8>(), 0..200), prop_oneof![9 => Just(0_i64), 1 => -3..100_000_i64]);
    prop::collection::vec(frame, 0..8).prop_map(|frames| {
        let mut out = Vec::new();
        for (ty, payload, lie) in frames {
            let length = (payload.len() as i64 + lie).max(0).cast_unsigned();
            frame::write_head(&mut out, ty, length);
            out.extend(payload);
        }
        out
    })
}

/// One of these words, or up to `most` bytes.
fn word(likely: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<u8>> {
    let likely = prop::sample::select(likely).prop_map(|word| word.as_bytes().to_vec());
    prop_oneof![likely, prop::collection::vec(any::<u8>(), 0..most)]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    const LIKELY: &[&str] = &[
        ":method",
        ":path",
        ":scheme",
        ":authority",
        ":status",
        ":protocol",
        "host",
        "cookie",
        "te",
        "content-length",
        "connection",
        "x",
    ];
    word(LIKELY, 10)
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    const LIKELY: &[&str] =
        &["GET", "CONNECT", "/", "*", "https", "a.example", "a@b", "200", "101", "", "trailers", "5"];
    word(LIKELY, 20)
}

proptest! {
    #[test]
    fn frames(bytes in stream(), cuts in prop::collection::vec(1..50_usize, 1..50)) {
        for kind in [Kind::Request { max_headers: MAX }, Kind::Response { max_headers: MAX }, Kind::Control] {
            let (mut frames, mut rest, mut cuts) = (Frames::new(kind), &bytes[..], cuts.iter().cycle());
            if matches!(kind, Kind::Control) {
                frames.push(Bytes::from_static(&[0x04, 0x00]));
                let settings = Piece::Frame { ty: frame::SETTINGS, payload: Bytes::new() };
                prop_assert_eq!(frames.next().unwrap(), Some(settings));
            }
            'stream: while !rest.is_empty() {
                let (part, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                frames.push(Bytes::copy_from_slice(part));
                rest = after;
                loop {
                    match frames.next() {
                        Ok(Some(Piece::Frame { payload, .. })) => prop_assert!(payload.len() <= 16 * 1024),
                        Ok(Some(Piece::Data(data))) => prop_assert!(data.len() <= part.len()),
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
            }
        }
    }

    #[test]
    fn payloads(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Settings::read(&bytes);
        let _ = frame::read_number(&bytes);
        let _ = priority::read_update(&bytes);
        let mut capsules = Capsules::new(50);
        for part in bytes.chunks(7) {
            capsules.push(part);
            loop {
                match capsules.take() {
                    Ok(Some(capsule)) => prop_assert!(capsule.value.len() <= 50),
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
        }
    }

    #[test]
    fn messages(fields in prop::collection::vec((name(), value(), any::<bool>()), 0..12)) {
        let collect = || {
            let mut collector = Collector::default();
            for (name, value, sensitive) in &fields {
                collector.push(name, value, *sensitive);
            }
            collector
        };
        if let Ok(request) = collect().request() {
            // What a request is said to be for is what its fields have said, and nothing that concerns one connection is in it.
            prop_assert!(request.uri().authority().is_some_and(|authority| !authority.as_str().is_empty()));
            prop_assert!(request.headers().get_all("host").iter().count() <= 1);
            prop_assert!(request.headers().get_all("cookie").iter().count() <= 1);
            prop_assert!(!request.headers().contains_key("connection"));
            prop_assert_eq!(fields.iter().filter(|field| field.0 == b":method").count(), 1);
        }
        if let Ok(response) = collect().response() {
            prop_assert!(response.status() != 101);
            prop_assert!(!fields.iter().any(|field| field.0 == b":path"));
        }
        if collect().trailers().is_ok() {
            prop_assert!(!fields.iter().any(|field| field.0.starts_with(b":")));
        }
    }
}
