//! Vectors for known mistakes of implementations (Project Wycheproof), and the same bytes as AWS-LC.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use gcm::{Key, TAG_LEN};
use proptest::prelude::*;
use wycheproof::{TestResult, aead::TestName, aead::TestSet};

/// Returns whether the processor lacks what this crate needs, and says so.
fn is_absent() -> bool {
    let is_absent = Key::new(&[0; 16]).is_none();
    if is_absent {
        eprintln!("not run: this processor has no VAES with AVX-512");
    }
    is_absent
}

/// Without this, the other tests would pass where no key exists although it should.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn a_processor_with_the_instructions_has_keys() {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let flags: Vec<&str> = text.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().collect();
    let has_all = ["vaes", "vpclmulqdq", "avx512f", "avx512bw", "avx512vl"].iter().all(|flag| flags.contains(flag));
    assert_eq!(Key::new(&[0; 16]).is_some(), has_all);
}

fn theirs(key: &[u8]) -> LessSafeKey {
    let algorithm = if key.len() == 16 { &AES_128_GCM } else { &AES_256_GCM };
    LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap())
}

/// The text and tag that AWS-LC makes.
fn sealed_by_theirs(key: &LessSafeKey, nonce: [u8; 12], header: &[u8], text: &[u8]) -> (Vec<u8>, [u8; TAG_LEN]) {
    let mut text = text.to_vec();
    let tag =
        key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(header), &mut text).unwrap();
    (text, tag.as_ref().try_into().unwrap())
}

/// Seals and opens, and compares with AWS-LC.
fn agrees(key: &[u8], nonce: [u8; 12], header: &[u8], text: &[u8], tail: usize) {
    let (ours, other) = (Key::new(key).unwrap(), theirs(key));
    let (expected, tag) = sealed_by_theirs(&other, nonce, header, text);
    let (head, tail) = text.split_at(text.len() - tail);
    let mut sealed = [head, &vec![0xee; tail.len()]].concat();
    assert_eq!(ours.seal(&nonce, header, &mut sealed, tail), tag, "{} of {}, {}", tail.len(), text.len(), header.len());
    assert!(sealed == expected, "{} bytes, {} of them elsewhere", text.len(), tail.len());
    assert!(ours.open(&nonce, header, &mut sealed, &tag));
    assert!(sealed == text, "{} bytes opened", text.len());
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 7 + seed) as u8).collect()
}

#[test]
fn vectors_of_wycheproof_agree() {
    if is_absent() {
        return;
    }
    let mut tried = 0;
    for group in TestSet::load(TestName::AesGcm).unwrap().test_groups {
        for test in group.tests {
            let (Some(key), Ok(nonce)) = (Key::new(&test.key), <[u8; 12]>::try_from(&test.nonce[..])) else { continue };
            let tag: [u8; TAG_LEN] = test.tag[..].try_into().unwrap();
            let mut text = test.ct.to_vec();
            let opened = key.open(&nonce, &test.aad, &mut text, &tag);
            assert_eq!(opened, test.result != TestResult::Invalid, "{}: {}", test.tc_id, test.comment);
            if opened {
                assert_eq!(text, test.pt[..], "{}", test.tc_id);
                assert_eq!(key.seal(&nonce, &test.aad, &mut text, &[]), tag, "{}", test.tc_id);
                assert_eq!(text, test.ct[..], "{}", test.tc_id);
            } else {
                assert!(text.iter().all(|&byte| byte == 0), "{}: something is left of a forged text", test.tc_id);
            }
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried} vectors fit");
}

#[test]
fn every_length_of_a_packet_agrees() {
    if is_absent() {
        return;
    }
    for len in 0..2_100 {
        for header in [0, 13, 16, 25] {
            agrees(&bytes(16, len), bytes(12, len).try_into().unwrap(), &bytes(header, 3), &bytes(len, header), 0);
        }
        agrees(&bytes(32, len), bytes(12, len).try_into().unwrap(), &bytes(13, 3), &bytes(len, 1), 0);
    }
    for header in 0..400 {
        agrees(&bytes(16, header), [5; 12], &bytes(header, 9), &bytes(1_200, header), 0);
    }
    agrees(&[1; 16], [2; 12], &[], &bytes(70_000, 4), 0);
}

#[test]
fn a_tail_from_elsewhere_of_any_length_agrees() {
    if is_absent() {
        return;
    }
    for len in [1, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1_200, 1_439] {
        for tail in 0..=len {
            agrees(&[8; 16], [2; 12], &bytes(13, 1), &bytes(len, tail), tail);
        }
    }
}

#[test]
fn every_changed_bit_is_found() {
    let Some(key) = Key::new(&[3; 16]) else {
        assert!(is_absent());
        return;
    };
    for len in [0, 1, 40, 300] {
        let (nonce, header, plain) = ([7; 12], bytes(20, 1), bytes(len, 2));
        let mut text = plain.clone();
        let tag = key.seal(&nonce, &header, &mut text, &[]);
        let opens = |nonce: &[u8; 12], header: &[u8], text: &[u8], tag: &[u8; 16]| {
            let mut text = text.to_vec();
            let is_authentic = key.open(nonce, header, &mut text, tag);
            assert!(is_authentic || text.iter().all(|&byte| byte == 0));
            is_authentic
        };
        assert!(opens(&nonce, &header, &text, &tag));
        let flipped = |bytes: &[u8], bit: usize| {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        for bit in 0..8 * len {
            assert!(!opens(&nonce, &header, &flipped(&text, bit), &tag), "bit {bit} of {len} bytes");
        }
        for bit in 0..8 * 16 {
            assert!(!opens(&nonce, &header, &text, &flipped(&tag, bit).try_into().unwrap()), "bit {bit} of the tag");
        }
        for bit in 0..8 * 12 {
            assert!(!opens(&flipped(&nonce, bit).try_into().unwrap(), &header, &text, &tag), "bit {bit} of the nonce");
        }
        for bit in 0..8 * header.len() {
            assert!(!opens(&nonce, &flipped(&header, bit), &text, &tag), "bit {bit} of the header");
        }
        // Lengths are part of the tag.
        assert!(!opens(&nonce, &[&header[..], &[0]].concat(), &text, &tag));
        assert!(!opens(&nonce, &header, &[&text[..], &[0]].concat(), &tag));
    }
}

#[test]
fn other_lengths_of_keys_are_refused() {
    for len in [0, 15, 17, 24, 31, 33] {
        assert!(Key::new(&bytes(len, 1)).is_none(), "{len} bytes");
    }
}

proptest! {
    #[test]
    fn anything_agrees(
        key in prop_oneof![prop::collection::vec(any::<u8>(), 16), prop::collection::vec(any::<u8>(), 32)],
        nonce: [u8; 12],
        header in prop::collection::vec(any::<u8>(), 0..80),
        text in prop::collection::vec(any::<u8>(), 0..1_600),
        tail: prop::sample::Index,
    ) {
        if Key::new(&key).is_some() {
            agrees(&key, nonce, &header, &text, tail.index(text.len() + 1));
        }
    }
}
