//! Peers that break rules, in every way that has a name.

use tiderace_qpack::{Decoder, Encoder, Field, SectionError};

const CAPACITY: usize = 4_096;

fn field<'a>(name: &'a [u8], value: &'a [u8]) -> Field<'a> {
    Field { name, value, sensitive: false }
}

/// An encoder with entries that were sent, and a section that refers to one.
fn encoder() -> (Encoder, Vec<u8>) {
    let mut encoder = Encoder::new(CAPACITY);
    encoder.set_peer_capacity(CAPACITY as u64);
    let (mut block, mut instructions) = (Vec::new(), Vec::new());
    let fields = [field(b"user-agent", b"somebody"), field(b"server", b"something")];
    encoder.encode(0, fields, &mut block, &mut instructions);
    assert!(!instructions.is_empty());
    assert_eq!(encoder.outstanding(), 0, "nothing is referred to before it is acknowledged");
    encoder.on_decoder_stream(&[0x01]).unwrap();
    encoder.encode(4, fields, &mut block, &mut instructions);
    assert_eq!(encoder.outstanding(), 1);
    (encoder, instructions)
}

/// RFC 9204 §4.4.1 MUST-1, RFC 9204 §4.4.3 MUST-1
#[test]
fn answers_to_what_was_never_sent() {
    for wrong in [
        // Sections: of another stream; of one without references.
        &[0x88][..],
        &[0x80],
        // The same twice.
        &[0x84, 0x84],
        // After it was cancelled.
        &[0x44, 0x84],
        // Entries: none; more than there are.
        &[0x00],
        &[0x02],
        &[0x01, 0x01],
        &[0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f],
        // Integers that are too long.
        &[0x3f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    ] {
        let (mut encoder, _) = encoder();
        assert!(encoder.on_decoder_stream(wrong).is_err(), "{wrong:x?}");
        let (mut encoder, _) = self::encoder();
        let result = wrong.iter().try_for_each(|byte| encoder.on_decoder_stream(&[*byte]));
        assert!(result.is_err(), "{wrong:x?} byte by byte");
    }
    let (mut encoder, _) = encoder();
    // A stream without sections may be cancelled, and one more than once.
    encoder.on_decoder_stream(&[0x7f, 0x00, 0x44, 0x44, 0x01]).unwrap();
    assert_eq!(encoder.outstanding(), 0);
}

/// A section acknowledges entries too: an increment for the same ones is too much.
#[test]
fn acknowledgments_count_once() {
    let mut encoder = Encoder::new(CAPACITY);
    encoder.set_peer_capacity(CAPACITY as u64);
    assert!(encoder.on_decoder_stream(&[0x01]).is_err());
    let (mut encoder, _) = self::encoder();
    encoder.on_decoder_stream(&[0x84, 0x01]).unwrap();
    assert!(encoder.on_decoder_stream(&[0x01]).is_err());
}

#[test]
fn sections_that_are_never_acknowledged_are_bounded() {
    let (mut encoder, _) = encoder();
    let fields = [field(b"user-agent", b"somebody")];
    let mut is_static = 0;
    for stream in 2..1_000 {
        let (mut block, mut instructions) = (Vec::new(), Vec::new());
        encoder.encode(4 * stream, fields, &mut block, &mut instructions);
        is_static += usize::from(block[0] == 0);
    }
    assert_eq!(encoder.outstanding(), 256);
    assert_eq!(is_static, 998 - 255);
    encoder.on_decoder_stream(&[0x84]).unwrap();
    let mut block = Vec::new();
    encoder.encode(9_000, fields, &mut block, &mut Vec::new());
    assert_ne!(block[0], 0);
}

/// RFC 9204 §2.2.3 MUST-2, RFC 9204 §3.1 MUST-2, RFC 9204 §3.2.2 MUST-1, RFC 9204 §4.3.1 MUST-2
#[test]
fn instructions_that_are_refused() {
    // Where an insertion begins after the capacity has been set: a name of 4000 bytes, then a value of 65.
    let mut large = vec![0x3f, 0xe1, 0x1f, 0x5f, 0x81, 0x1f];
    large.extend([b'a'; 4_000]);
    large.push(65);
    for (wrong, at) in [
        // More than was promised: 4097.
        (&[0x3f, 0xe2, 0x1f][..], 3),
        (&[0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f], 10),
        // Entries before there is room for any, and larger than there is: found by the length, before the text is there.
        (&[0xc0, 0x00], 2),
        (&[0x40, 0x00], 1),
        (&[0x00], 1),
        (&[0x3f, 0xe1, 0x1f, 0xc0, 0x7f, 0xe2, 0x1f], 7),
        (&[0x3f, 0xe1, 0x1f, 0x5f, 0xc2, 0x1f], 6),
        (&large, 4_007),
        // Huffman codes that mean at least 4092 bytes.
        (&[0x3f, 0xe1, 0x1f, 0xc0, 0xff, 0x81, 0x77], 7),
        // References to nothing.
        (&[0x3f, 0xe1, 0x1f, 0x80, 0x00], 5),
        (&[0x3f, 0xe1, 0x1f, 0x00], 4),
        (&[0x3f, 0xe1, 0x1f, 0xff, 0x24, 0x00], 6),
        // A table of 64 bytes, of which the second entry drives the first one out: a name, and a whole entry.
        (&[0x3f, 0x21, 0x41, b'n', 0x01, b'0', 0x41, b'n', 0x01, b'1', 0x81, 0x01, b'2'], 13),
        (&[0x3f, 0x21, 0x41, b'n', 0x01, b'0', 0x41, b'n', 0x01, b'1', 0x01], 11),
        // Huffman codes with an end inside.
        (&[0x3f, 0xe1, 0x1f, 0xc0, 0x84, 0xff, 0xff, 0xff, 0xff], 9),
    ] {
        let mut decoder = Decoder::new(CAPACITY);
        assert!(decoder.on_encoder_stream(wrong, &mut Vec::new()).is_err(), "{wrong:x?}");
        let mut decoder = Decoder::new(CAPACITY);
        let accepted = wrong.iter().take_while(|byte| decoder.on_encoder_stream(&[**byte], &mut Vec::new()).is_ok());
        assert_eq!(accepted.count() + 1, at, "{wrong:x?} byte by byte");
    }
}

/// Instructions of any size up to that of the table are taken, in pieces of any size, and what is kept of them is bounded.
#[test]
fn an_instruction_that_never_ends_is_bounded() {
    // 4024 line feeds, whose codes have 30 bits: four of them are 15 bytes, all are 15090.
    let mut decoder = Decoder::new(CAPACITY);
    let mut data = vec![0x3f, 0xe1, 0x1f, 0x41, b'n', 0xff, 0xf3, 0x74];
    let four = [0xff, 0xff, 0xff, 0xf3, 0xff, 0xff, 0xff, 0xcf, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0xfc];
    data.extend(four.iter().cycle().take(15_090));
    let mut most = 0;
    let mut answer = Vec::new();
    for piece in data.chunks(7) {
        assert!(answer.is_empty());
        decoder.on_encoder_stream(piece, &mut answer).unwrap();
        most = most.max(decoder.kept());
    }
    assert_eq!(answer, [0x01]);
    assert!(most > 3 * CAPACITY && most < 4 * CAPACITY, "{most}");
    assert_eq!((decoder.kept(), decoder.table_size()), (0, 1 + 4_024 + 32));
}

/// One byte can stand for a whole entry: the limit holds, whatever the block's length.
#[test]
fn a_section_that_unfolds_is_cut() {
    let mut decoder = Decoder::new(CAPACITY);
    // :authority with a value of 4000 bytes.
    let mut data = vec![0x3f, 0xe1, 0x1f, 0xc0, 0x7f, 0xa1, 0x1e];
    data.extend([b'a'; 4_000]);
    let mut answer = Vec::new();
    decoder.on_encoder_stream(&data, &mut answer).unwrap();
    let entry = 10 + 4_000 + 32;
    assert_eq!(decoder.table_size() as u64, entry);
    let block = [&[0x02, 0x00][..], &[0x80; 10_000]].concat();
    let mut seen = 0;
    answer.clear();
    let result =
        decoder.decode(0, &block, 64 << 10, &mut answer, |name, value, _| seen += name.len() + value.len() + 32);
    assert_eq!(result, Err(SectionError::TooLarge { size: 10_000 * entry, limit: 64 << 10 }));
    assert!(seen <= 64 << 10);
    assert_eq!(answer, [0x80], "what it referred to is free");
    // What is malformed is found behind the limit too.
    let block = [&block[..], &[0x81]].concat();
    answer.clear();
    let result = decoder.decode(0, &block, 64 << 10, &mut answer, |_, _, _| {});
    assert!(matches!(result, Err(SectionError::Malformed(_))));
    assert!(answer.is_empty());
}

/// A conforming exchange, cut off at each byte, and with each byte changed: errors, never a panic.
#[test]
fn every_cut_and_every_changed_byte() {
    let (mut encoder, instructions) = encoder();
    let mut block = Vec::new();
    let fields = [
        field(b":path", b"/some/where"),
        field(b"user-agent", b"somebody"),
        field(b"x-unknown", b"value of it"),
        Field { name: b"authorization", value: b"secret", sensitive: true },
    ];
    encoder.encode(8, fields, &mut block, &mut Vec::new());
    let mut decoder = Decoder::new(CAPACITY);
    decoder.on_encoder_stream(&instructions, &mut Vec::new()).unwrap();
    let mut whole = 0;
    for cut in 0..=block.len() {
        let mut count = 0;
        let result = decoder.decode(8, &block[..cut], u64::MAX, &mut Vec::new(), |_, _, _| count += 1);
        assert!(result.is_ok() || cut < block.len());
        whole += usize::from(result.is_ok());
    }
    // At the ends of lines, and behind the prefix.
    assert_eq!(whole, 1 + fields.len());
    for at in 0..block.len() {
        for byte in 0..=255 {
            let mut changed = block.clone();
            changed[at] = byte;
            let _ = decoder.decode(8, &changed, u64::MAX, &mut Vec::new(), |_, _, _| {});
        }
    }
    for at in 0..instructions.len() {
        for byte in 0..=255 {
            let mut changed = instructions.clone();
            changed[at] = byte;
            let mut decoder = Decoder::new(CAPACITY);
            let _ = decoder.on_encoder_stream(&changed, &mut Vec::new());
            assert!(decoder.table_size() <= CAPACITY && decoder.kept() < 4 * CAPACITY);
        }
    }
}
