//! The exchange of RFC 9204 appendix B, byte by byte.

use tiderace_qpack::{Decoder, SectionError};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

struct Peer {
    decoder: Decoder,
    answer: Vec<u8>,
}

impl Peer {
    fn instructions(&mut self, hex: &str, expected: &str) {
        self.answer.clear();
        self.decoder.on_encoder_stream(&bytes(hex), &mut self.answer).unwrap();
        assert_eq!(self.answer, bytes(expected));
    }

    fn section(&mut self, stream: u64, hex: &str, expected: &str) -> Result<Vec<(String, String)>, SectionError> {
        self.answer.clear();
        let mut fields = Vec::new();
        self.decoder.decode(stream, &bytes(hex), u64::MAX, &mut self.answer, |name, value, sensitive| {
            assert!(!sensitive);
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            fields.push((text(name), text(value)));
        })?;
        assert_eq!(self.answer, bytes(expected));
        Ok(fields)
    }
}

fn pairs(fields: &[(&str, &str)]) -> Result<Vec<(String, String)>, SectionError> {
    Ok(fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
}

/// RFC 9204 §2.1.2 MUST-2, RFC 9204 §2.2 MUST-1, RFC 9204 §2.2.2.1 MUST-1, RFC 9204 §3.2 MUST NOT-1
#[test]
fn appendix_b() {
    let mut peer = Peer { decoder: Decoder::new(220), answer: Vec::new() };
    // B.1: literal field line with name reference.
    let fields = peer.section(0, "0000 510b 2f69 6e64 6578 2e68 746d 6c", "");
    assert_eq!(fields, pairs(&[(":path", "/index.html")]));

    // B.2: dynamic table. Entries are acknowledged when they come, before the section is.
    peer.instructions("3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468", "02");
    assert_eq!(peer.decoder.table_size(), 106);
    let fields = peer.section(4, "0381 10 11", "84");
    assert_eq!(fields, pairs(&[(":authority", "www.example.com"), (":path", "/sample/path")]));

    // B.3: speculative insert.
    peer.instructions("4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565", "01");
    assert_eq!(peer.decoder.table_size(), 160);

    // B.4: duplicate instruction, stream cancellation.
    let mut answer = Vec::new();
    peer.decoder.cancel(8, &mut answer);
    assert_eq!(answer, bytes("48"));
    // The section of stream 8 needs what has not come: with no blocked streams allowed this is an error.
    assert!(matches!(peer.section(8, "0500 80 c1 81", ""), Err(SectionError::Malformed(_))));
    peer.instructions("02", "01");
    assert_eq!(peer.decoder.table_size(), 217);
    let fields = peer.section(8, "0500 80 c1 81", "88");
    assert_eq!(fields, pairs(&[(":authority", "www.example.com"), (":path", "/"), ("custom-key", "custom-value")]));

    // B.5: dynamic table insert, eviction.
    peer.instructions("810d 6375 7374 6f6d 2d76 616c 7565 32", "01");
    assert_eq!(peer.decoder.table_size(), 215);
    // What has left is not to be referred to; what is still there is: entries 1 and 4, with a Base of 5.
    assert!(matches!(peer.section(12, "0600 84", ""), Err(SectionError::Malformed(_))));
    let fields = peer.section(12, "0600 83 80", "8c");
    assert_eq!(fields, pairs(&[(":path", "/sample/path"), ("custom-key", "custom-value2")]));
}

/// A table of 100 bytes counts modulo 6; all ways to refer to the same entries.
/// RFC 9204 §2.2.1 MUST-1, RFC 9204 §2.2.3 MUST-1, RFC 9204 §3.1 MUST-1, RFC 9204 §4.5.1.1 MUST-1, RFC 9204 §4.5.1.2 MUST-1
#[test]
fn required_insert_count_and_base() {
    let mut peer = Peer { decoder: Decoder::new(100), answer: Vec::new() };
    peer.instructions("3f45", "");
    for digit in 0..10 {
        // Insert with literal name: "n", and a digit.
        peer.instructions(&format!("416e 013{digit}"), "01");
    }
    // Entries 8 and 9 are there. An encoded 4 is a Required Insert Count of 9; Sign 1 and Delta Base 2 make a Base of 6.
    let eight = pairs(&[("n", "8")]);
    assert_eq!(peer.section(0, "0482 12", "80"), eight);
    assert_eq!(peer.section(0, "0400 80", "80"), eight);
    assert_eq!(peer.section(0, "0401 81", "80"), eight);
    assert_eq!(peer.section(0, "0488 18", "80"), eight);
    // Names alone: before and behind the Base.
    assert_eq!(peer.section(0, "0401 41 0178", "80"), pairs(&[("n", "x")]));
    assert_eq!(peer.section(0, "0482 02 0178", "80"), pairs(&[("n", "x")]));
    for wrong in [
        // A Base below zero; an entry that the prefix does not cover; one that has left; one before the first.
        "0489 10",
        "0482 13",
        "0401 82",
        "0400 89",
        "0400 bf ff ff ff 7f",
        // Counts that cannot be: above 2 * MaxEntries, and beyond what has been inserted.
        "0700",
        "ff00 00",
        "0600 80",
        "0600",
        // A Sign of 1 without references.
        "0080",
        // The static table ends at 98.
        "0000 ff24",
        "0000 5f54 00",
        // Cut off.
        "",
        "00",
        "0400 ",
        "0000 51",
        "0000 5105 61",
        "0000 2761",
    ] {
        let result = peer.section(0, wrong, "80");
        // A Required Insert Count without a reference is larger than needed, and taken.
        let is_taken = wrong == "0400 ";
        assert_eq!(matches!(result, Err(SectionError::Malformed(_))), !is_taken, "{wrong}: {result:?}");
    }
}

/// RFC 9204 §4.5.1.1: zero is encoded as zero, whatever wraps.
#[test]
fn a_count_of_zero_has_one_form() {
    let mut peer = Peer { decoder: Decoder::new(100), answer: Vec::new() };
    assert_eq!(peer.section(0, "0000", ""), Ok(Vec::new()));
    for wrong in ["0100", "0200", "0600"] {
        assert!(matches!(peer.section(0, wrong, ""), Err(SectionError::Malformed(_))), "{wrong}");
    }
    // Without a table there is nothing else.
    let mut peer = Peer { decoder: Decoder::new(0), answer: Vec::new() };
    assert!(matches!(peer.section(0, "0100", ""), Err(SectionError::Malformed(_))));
}
