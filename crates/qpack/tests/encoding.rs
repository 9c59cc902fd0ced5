//! Encoder decisions: entries of the table, and references.

use tiderace_qpack::{Decoder, Encoder, Field};

/// Two ends; everything arrives at once.
struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    stream: u64,
}

/// A section on its way.
struct Sent {
    block: Vec<u8>,
    instructions: Vec<u8>,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        let mut encoder = Encoder::new(capacity);
        encoder.set_peer_capacity(capacity as u64);
        Self { encoder, decoder: Decoder::new(capacity), stream: 0 }
    }

    fn encode(&mut self, fields: &[(&str, &str)]) -> Sent {
        self.stream += 4;
        let (mut block, mut instructions) = (Vec::new(), Vec::new());
        let fields = fields.iter().map(|(name, value)| Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
            sensitive: false,
        });
        self.encoder.encode(self.stream, fields, &mut block, &mut instructions);
        Sent { block, instructions }
    }

    /// Decodes a section of the last stream; what the decoder answers.
    fn decode(&mut self, sent: &Sent, expected: &[(&str, &str)]) -> Vec<u8> {
        let mut answer = Vec::new();
        let mut fields = Vec::new();
        let emit = |name: &[u8], value: &[u8], _: bool| fields.push((name.to_vec(), value.to_vec()));
        self.decoder.decode(self.stream, &sent.block, u64::MAX, &mut answer, emit).unwrap();
        let expected: Vec<_> =
            expected.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
        assert_eq!(fields, expected);
        self.decoder.on_encoder_stream(&sent.instructions, &mut answer).unwrap();
        answer
    }

    fn exchange(&mut self, fields: &[(&str, &str)]) -> Sent {
        let sent = self.encode(fields);
        let answer = self.decode(&sent, fields);
        self.encoder.on_decoder_stream(&answer).unwrap();
        sent
    }

    /// Number of times that a field is sent before it is in the table; `None` when it is not after four times.
    fn sights(&mut self, name: &str, value: &str) -> Option<usize> {
        (1..=4).find(|_| !self.exchange(&[(name, value)]).instructions.is_empty())
    }
}

#[test]
fn what_is_stable_goes_in_at_first_sight_and_what_is_unknown_at_the_second() {
    let cookie = "session=0123456789abcdef";
    for (name, value, sights) in [
        ("user-agent", "somebody/1.0", Some(1)),
        ("accept", "text/html", Some(1)),
        (":authority", "example.org", Some(1)),
        ("server", "something", Some(1)),
        ("sec-ch-ua-platform", "\"Linux\"", Some(1)),
        ("x-unknown", "value", Some(2)),
        (":path", "/index.html", Some(2)),
        ("referer", "https://example.org/", Some(2)),
        ("cookie", cookie, Some(2)),
        ("cookie", "pin=1234", None),
        ("authorization", "Basic 0123456789abcdef", None),
        ("set-cookie", cookie, None),
        ("content-length", "1234", None),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT", None),
        ("etag", "\"abc\"", None),
        ("last-modified", "Mon, 21 Oct 2013 20:13:21 GMT", None),
        ("age", "12", None),
        ("expires", "0", None),
        ("content-range", "bytes 0-1/2", None),
        ("range", "bytes=0-1", None),
        ("if-none-match", "\"abc\"", None),
        ("if-match", "\"abc\"", None),
        ("if-whatever", "value", None),
        // In the static table as they are.
        (":method", "GET", None),
        ("accept-encoding", "gzip, deflate, br", None),
    ] {
        assert_eq!(Pair::new(4_096).sights(name, value), sights, "{name}: {value}");
    }
}

#[test]
fn larger_fields_than_a_quarter_of_the_table_stay_out() {
    let value = "v".repeat(400);
    let at_most = 400 - 32 - "x-unknown".len();
    assert_eq!(Pair::new(1_600).sights("x-unknown", &value[..at_most]), Some(2));
    assert_eq!(Pair::new(1_600).sights("x-unknown", &value[..=at_most]), None);
}

/// RFC 9204 §4.5.4 MUST-1
#[test]
fn sensitive_fields_say_so_and_are_never_in_the_table() {
    let mut pair = Pair::new(4_096);
    for name in ["user-agent", "x-unknown", ":method"] {
        for _ in 0..4 {
            let (mut block, mut instructions) = (Vec::new(), Vec::new());
            let field = Field { name: name.as_bytes(), value: b"GET", sensitive: true };
            pair.encoder.encode(0, [field], &mut block, &mut instructions);
            assert!(instructions.is_empty());
            let mut seen = false;
            pair.decoder.decode(0, &block, 1_000, &mut Vec::new(), |_, _, sensitive| seen = sensitive).unwrap();
            assert!(seen, "{name}");
        }
    }
}

/// RFC 9204 §2.1 MUST-1, RFC 9204 §2.1.2 MUST-1, RFC 9204 §4.3.1 MUST NOT-1
#[test]
fn nothing_is_referred_to_before_it_is_acknowledged() {
    let mut pair = Pair::new(4_096);
    let fields = [("user-agent", "somebody/1.0"), ("x-unknown", "value")];
    let first = pair.encode(&fields);
    let second = pair.encode(&fields);
    assert_eq!((first.block[0], second.block[0]), (0, 0));
    // Set Dynamic Table Capacity comes once, before the first insertion.
    assert_eq!(first.instructions[..3], [0x3f, 0xe1, 0x1f]);
    assert!(!second.instructions.is_empty());
    let third = pair.encode(&fields);
    assert!(third.instructions.is_empty() && third.block[0] == 0, "on its way already");
    // One of two has arrived.
    let mut answer = Vec::new();
    pair.decoder.on_encoder_stream(&first.instructions, &mut answer).unwrap();
    pair.encoder.on_decoder_stream(&answer).unwrap();
    let fourth = pair.encode(&fields);
    assert_ne!(fourth.block[0], 0);
    pair.decode(&fourth, &fields);
    answer.clear();
    pair.decoder.on_encoder_stream(&second.instructions, &mut answer).unwrap();
    pair.encoder.on_decoder_stream(&answer).unwrap();
    // Two indices, behind a prefix of two bytes.
    assert_eq!(pair.encode(&fields).block.len(), 4);
}

/// RFC 9204 §3.2.3 MUST NOT-2, MUST NOT-3
#[test]
fn before_settings_and_without_a_table_nothing_is_written() {
    let mut without = Encoder::new(0);
    without.set_peer_capacity(4_096);
    let mut refused = Encoder::new(4_096);
    refused.set_peer_capacity(0);
    for mut encoder in [Encoder::new(4_096), without, refused] {
        for _ in 0..3 {
            let (mut block, mut instructions) = (Vec::new(), Vec::new());
            let field = Field { name: b"user-agent", value: b"somebody", sensitive: false };
            encoder.encode(0, [field], &mut block, &mut instructions);
            assert!(instructions.is_empty());
            assert_eq!(block[..2], [0, 0]);
        }
    }
}

/// RFC 9204 §3.2.3 MUST NOT-1, RFC 9204 §4.3.1 MUST-1
#[test]
fn less_room_at_the_peer_than_could_be_used() {
    let mut pair = Pair { decoder: Decoder::new(200), ..Pair::new(0) };
    pair.encoder = Encoder::new(4_096);
    pair.encoder.set_peer_capacity(200);
    // Set Dynamic Table Capacity: 200.
    assert_eq!(pair.exchange(&[("server", "something")]).instructions[..3], [0x3f, 0xa9, 0x01]);
    for round in 0..50 {
        let value = format!("value {round}");
        pair.exchange(&[("x", &value)]);
        pair.exchange(&[("x", &value)]);
        assert!(pair.encoder.table_size() <= 200);
    }
}

/// The smaller of both capacities is used, but counts are encoded by what the peer allows.
#[test]
fn more_room_at_the_peer_than_is_used() {
    let mut encoder = Encoder::new(200);
    encoder.set_peer_capacity(1 << 40);
    let mut decoder = Decoder::new(1 << 40);
    let mut dynamic = 0;
    for round in 0..400_u64 {
        let value = (round / 4).to_string();
        let (mut block, mut instructions, mut answer) = (Vec::new(), Vec::new(), Vec::new());
        let field = Field { name: b"x", value: value.as_bytes(), sensitive: false };
        encoder.encode(round, [field], &mut block, &mut instructions);
        decoder.on_encoder_stream(&instructions, &mut answer).unwrap();
        assert!(decoder.table_size() <= 200);
        let mut seen = Vec::new();
        decoder.decode(round, &block, 1_000, &mut answer, |_, value, _| seen = value.to_vec()).unwrap();
        assert_eq!(seen, value.as_bytes());
        encoder.on_decoder_stream(&answer).unwrap();
        dynamic += usize::from(block[0] != 0);
    }
    assert!(dynamic >= 200, "{dynamic}");
}

/// RFC 9204 §3.2.2 MUST NOT-1
#[test]
fn what_a_section_refers_to_stays_until_it_is_acknowledged() {
    let mut pair = Pair::new(400);
    let held = [("x-held", "value")];
    pair.exchange(&held);
    pair.exchange(&held);
    let sent = pair.encode(&held);
    let stream = pair.stream;
    assert_eq!((sent.block[0] != 0, pair.encoder.outstanding()), (true, 1));
    // Much else comes and goes, as far as there is room.
    for round in 0..100 {
        let value = format!("value {round}");
        pair.exchange(&[("x-other", &value)]);
        pair.exchange(&[("x-other", &value)]);
    }
    pair.stream = stream;
    let answer = pair.decode(&sent, &held);
    pair.encoder.on_decoder_stream(&answer).unwrap();
    assert_eq!(pair.encoder.outstanding(), 0);
    // Nothing holds it: the table turns over.
    pair.stream = 10_000;
    let last = ("x-other", "the last");
    pair.exchange(&[last]);
    assert!(!pair.exchange(&[last]).instructions.is_empty());
    for round in 0..20 {
        let value = format!("more {round}");
        pair.exchange(&[("x-other", &value)]);
        pair.exchange(&[("x-other", &value)]);
    }
    assert_eq!(pair.encode(&held).block[0], 0, "it has left");
}

/// RFC 9204 §2.1.1 MUST NOT-1: what the peer may not have yet does not leave.
#[test]
fn what_is_not_acknowledged_stays() {
    let mut pair = Pair::new(400);
    let mut instructions = Vec::new();
    for round in 0..50 {
        let value = format!("value {round:2}");
        instructions.extend((0..2).flat_map(|_| pair.encode(&[("x", &value)]).instructions));
    }
    // 41 bytes each.
    assert_eq!(pair.encoder.table_size(), 9 * 41);
    let mut answer = Vec::new();
    pair.decoder.on_encoder_stream(&instructions, &mut answer).unwrap();
    assert_eq!((pair.decoder.table_size(), &answer[..]), (9 * 41, &[9][..]));
    let next = [("x", "something new")];
    pair.exchange(&next);
    assert!(pair.exchange(&next).instructions.is_empty(), "there is no room before they are acknowledged");
    pair.encoder.on_decoder_stream(&answer).unwrap();
    assert!(!pair.exchange(&next).instructions.is_empty());
}

/// Entries that are used stay, by duplicates, whatever passes through the table. RFC 9204 §4.5.1.2 MUST NOT-1: all of it is decoded.
#[test]
fn what_is_used_is_inserted_again_before_it_leaves() {
    let mut pair = Pair::new(1_000);
    let hot = ("user-agent", "somebody/1.0");
    pair.exchange(&[hot]);
    let (mut misses, mut duplicates) = (0, 0);
    for round in 0..200 {
        let value = format!("value {round}");
        let sent = pair.exchange(&[hot, ("x-other", &value)]);
        duplicates += usize::from(sent.instructions.first().is_some_and(|first| *first < 0x20));
        // The second time the other field goes in, and the hot one is an index: 2 bytes of prefix and 1.
        let sent = pair.exchange(&[hot, ("x-other", &value)]);
        duplicates += usize::from(sent.instructions.first().is_some_and(|first| *first < 0x20));
        misses += usize::from(sent.block[0] == 0);
    }
    assert_eq!(misses, 0);
    assert!((5..40).contains(&duplicates), "{duplicates}");
}

/// A name that only the dynamic table has serves other values.
#[test]
fn names_are_referred_to() {
    let mut pair = Pair::new(4_096);
    let name = "x-a-name-that-is-rather-long";
    assert_eq!(pair.sights(name, "value"), Some(2));
    let sent = pair.exchange(&[(name, "other")]);
    assert!(sent.block.len() < name.len() / 2, "{:x?}", sent.block);
    let sent = pair.exchange(&[(name, "other")]);
    // Insert with name reference: the dynamic table, relative index 0.
    assert_eq!(sent.instructions[0], 0x80);
}
