//! Fuzz programs, and the tests on their corpus: bytes of a peer, parsed without a connection.
//!
//! The first byte selects the parser, the second one the size of the parts in which the rest arrives. Invariants: no panic; nothing is kept
//! beyond its bound; the split into parts makes no difference; an accepted message can be sent again, and is then parsed as the same
//! message.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use qpack::{Decoder, Field};

use crate::{
    capsule::{self, Capsules},
    error::Code,
    fields::{self, Collector, Protocol},
    frame::{self, Frames, Kind, Piece},
    priority,
    settings::Settings,
};

/// Bytes of a HEADERS frame, of a field section and of a capsule: little, so that the limits are met.
const MAX: u64 = 1_000;
/// Bytes of any other frame.
const MAX_OTHER: usize = 16 * 1024;
/// Bytes of the dynamic table.
const TABLE: usize = 400;
/// Instructions that fill it, so that sections can refer to it: `:path` and `cookie` from the static table, and a name.
const ENTRIES: &[u8] = b"\x3f\xf1\x02\xc1\x02/a\xc5\x03b=c\x41x\x01y";

/// Reach of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Frames and capsules that were whole.
    pub frames: usize,
    /// Messages that were taken.
    pub messages: usize,
}

/// Runs a program.
///
/// # Panics
/// When an invariant does not hold.
pub fn run(program: &[u8]) -> Reached {
    let Some((&[choice, size], stream)) = program.split_first_chunk::<2>() else { return Reached::default() };
    let size = usize::from(size) + 1;
    match choice % 4 {
        0 => messages(Kind::Request { max_headers: MAX }, stream, size),
        1 => messages(Kind::Response { max_headers: MAX }, stream, size),
        2 => control(stream, size),
        _ => capsules(stream, size),
    }
}

/// Frames read of a stream, with their payloads, parts of DATA put together; and how the stream ended.
type Found = (Vec<(u64, Vec<u8>)>, Result<bool, Code>);

fn read(kind: Kind, stream: &[u8], size: usize) -> Found {
    let mut frames = Frames::new(kind);
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    for part in stream.chunks(size) {
        frames.push(Bytes::copy_from_slice(part));
        loop {
            match frames.next() {
                Ok(None) => break,
                Ok(Some(Piece::Data(data))) => match found.last_mut() {
                    Some((frame::DATA, all)) => all.extend_from_slice(&data),
                    _ => found.push((frame::DATA, data.to_vec())),
                },
                Ok(Some(Piece::Frame { ty, payload })) => {
                    let limit = if ty == frame::HEADERS { MAX as usize } else { MAX_OTHER };
                    assert!(payload.len() <= limit, "{} bytes were kept of a frame", payload.len());
                    found.push((ty, payload.to_vec()));
                }
                Err(violation) => return (found, Err(violation.code)),
            }
        }
    }
    (found, Ok(frames.is_between()))
}

fn messages(kind: Kind, stream: &[u8], size: usize) -> Reached {
    let (found, end) = read(kind, stream, usize::MAX);
    assert_eq!(read(kind, stream, size), (found.clone(), end));
    let mut decoder = Decoder::new(TABLE);
    decoder.on_encoder_stream(ENTRIES, &mut Vec::new()).expect("they are right");
    let mut reached = Reached { frames: found.len(), messages: 0 };
    for (ty, section) in found {
        if ty != frame::HEADERS {
            continue;
        }
        let mut lines = Vec::new();
        let emit = |name: &[u8], value: &[u8], sensitive| lines.push((name.to_vec(), value.to_vec(), sensitive));
        if decoder.decode(0, &section, MAX, &mut Vec::new(), emit).is_err() {
            break;
        }
        reached.messages += usize::from(message(kind, &lines));
    }
    reached
}

type Line = (Vec<u8>, Vec<u8>, bool);

fn collect(lines: &[Line]) -> Collector {
    let mut collector = Collector::default();
    for (name, value, sensitive) in lines {
        collector.push(name, value, *sensitive);
    }
    collector
}

fn lines<'a>(fields: impl Iterator<Item = Field<'a>>) -> Vec<Line> {
    fields.map(|field| (field.name.to_vec(), field.value.to_vec(), field.sensitive)).collect()
}

/// Returns whether a section was accepted, as a head or as trailers.
fn message(kind: Kind, section: &[Line]) -> bool {
    let trailers = collect(section).trailers();
    if let Ok(trailers) = &trailers {
        assert!(section.iter().all(|(name, ..)| !name.starts_with(b":")));
        let again = collect(&lines(fields::ordinary(trailers))).trailers().expect("they were taken before");
        same(trailers, &again);
    }
    let head = match kind {
        Kind::Request { .. } => collect(section).request().map(|head| request(section, head)).is_ok(),
        _ => collect(section).response().map(|head| response(section, head)).is_ok(),
    };
    head || trailers.is_ok()
}

fn request(section: &[Line], request: Request<()>) {
    let count = |name: &[u8]| section.iter().filter(|line| line.0 == name).count();
    assert_eq!(count(b":method"), 1);
    assert_eq!(count(b":status"), 0);
    let authority = request.uri().authority().expect("it is for somebody");
    assert!(!authority.as_str().is_empty() && !authority.as_str().contains('@'));
    assert!(request.headers().get_all(header::COOKIE).iter().count() <= 1);
    let (mut head, ()) = request.into_parts();
    let protocol = head.extensions.get::<Protocol>().cloned();
    let target = fields::target(&head, protocol.as_ref()).expect("it says where");
    let sent = lines(fields::of_request(&head, &target, protocol.as_ref()));
    let (again, ()) = collect(&sent).request().expect("it was taken before").into_parts();
    assert_eq!((&again.method, &again.uri), (&head.method, &head.uri));
    assert_eq!(again.extensions.get::<Protocol>(), protocol.as_ref());
    head.headers.remove(header::HOST);
    same(&head.headers, &again.headers);
}

fn response(section: &[Line], response: Response<()>) {
    assert!(response.status() != 101 && section.iter().filter(|line| line.0.starts_with(b":")).count() == 1);
    let (head, ()) = response.into_parts();
    let (again, ()) = collect(&lines(fields::of_response(&head))).response().expect("it was taken before").into_parts();
    assert_eq!(again.status, head.status);
    same(&head.headers, &again.headers);
}

/// The same fields, and as secret.
fn same(one: &HeaderMap, other: &HeaderMap) {
    assert_eq!(one, other);
    let secret = |fields: &HeaderMap| fields.values().filter(|value| value.is_sensitive()).count();
    assert_eq!(secret(one), secret(other));
    assert!(!one.contains_key(header::CONNECTION) && !one.contains_key(header::TRANSFER_ENCODING));
}

fn control(stream: &[u8], size: usize) -> Reached {
    let (found, end) = read(Kind::Control, stream, usize::MAX);
    assert_eq!(read(Kind::Control, stream, size), (found.clone(), end));
    assert!(found.first().is_none_or(|(ty, _)| *ty == frame::SETTINGS));
    let reached = Reached { frames: found.len(), messages: 0 };
    for (ty, payload) in found {
        match ty {
            frame::SETTINGS => {
                let Ok((settings, _)) = Settings::read(&payload) else { continue };
                let mut out = Vec::new();
                settings.write(&[], &mut out);
                let (frames, end) = read(Kind::Control, &out, usize::MAX);
                assert_eq!(end, Ok(true));
                let (mut said, _) = Settings::read(&frames[0].1).expect("it is ours");
                // No limit is as the largest one.
                said.max_fields = said.max_fields.max(settings.max_fields);
                assert_eq!(said, settings);
            }
            frame::PRIORITY_UPDATE => {
                let Some(update) = priority::read_update(&payload) else { continue };
                assert!(update.priority.urgency <= 7 && update.stream <= wire::varint::MAX);
            }
            _ => {
                let Ok(number) = frame::read_number(&payload) else { continue };
                let again = frame::number_frame(frame::GOAWAY, number);
                assert_eq!(frame::read_number(&again[2..]).ok(), Some(number));
            }
        }
    }
    reached
}

fn capsules(stream: &[u8], size: usize) -> Reached {
    let read = |size: usize| {
        let mut capsules = Capsules::new(MAX as usize);
        let mut found = Vec::new();
        for part in stream.chunks(size) {
            capsules.push(part);
            loop {
                match capsules.take() {
                    Ok(None) => break,
                    Ok(Some(capsule)) => {
                        assert!(capsule.value.len() <= MAX as usize);
                        found.push(capsule);
                    }
                    Err(_) => return (found, None),
                }
            }
        }
        (found, Some(capsules.is_between()))
    };
    let (found, end) = read(usize::MAX);
    assert_eq!(read(size), (found.clone(), end));
    for capsule in &found {
        let mut out = Vec::new();
        capsule::write(&mut out, capsule.ty, &capsule.value);
        let mut again = Capsules::new(MAX as usize);
        again.push(&out);
        assert_eq!(again.take().ok().flatten().as_ref(), Some(capsule));
        assert!(again.is_between());
    }
    Reached { frames: found.len(), messages: 0 }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Found once by a fuzzer, found for ever.
    #[test]
    fn the_corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/h3");
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let (mut frames, mut messages) = (0, 0);
        for file in files {
            // Shown only when the check panics: names the input that did it.
            println!("{}", file.display());
            let reached = run(&fs::read(&file).unwrap());
            frames += reached.frames;
            messages += reached.messages;
        }
        assert!(frames > 60 && messages > 18, "the corpus comes to where something can go wrong: {frames}, {messages}");
    }
}
