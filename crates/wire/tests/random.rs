//! Random bytes, and valid bytes with damage, through the checks that the fuzzer runs.

// The name by which every other crate knows it, the fuzz targets among them.
extern crate tiderace_wire as wire;

mod checks;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

/// Bytes with many small values and zeros, which get further into the grammar than even noise does.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), 0..0x40u8, Just(0u8), Just(0xffu8)];
    prop::collection::vec(byte, 0..300)
}

/// A seed of the target's corpus with some bytes overwritten and the end cut off.
fn damaged(target: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (prop::sample::select(seeds), damage, 0..20usize).prop_map(|(mut bytes, damage, cut)| {
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(10)));
        for (at, value) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn frames(noise in any_bytes(), near in damaged("frames")) {
        checks::frames(&noise);
        checks::frames(&near);
    }

    #[test]
    fn headers(noise in any_bytes(), version in prop::sample::select(vec![0, 1, 0x6b33_43cf_u32]), near in damaged("headers")) {
        checks::headers(&noise);
        checks::headers(&near);
        // With a version that is known, noise gets beyond the first five bytes.
        if noise.len() > 6 {
            let mut known = noise;
            known[1] |= 0x80;
            known[2..6].copy_from_slice(&version.to_be_bytes());
            checks::headers(&known);
        }
    }

    #[test]
    fn transport_parameters(noise in any_bytes(), near in damaged("transport_parameters")) {
        checks::transport_parameters(&noise);
        checks::transport_parameters(&near);
    }
}
