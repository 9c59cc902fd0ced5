//! Replays every file of the fuzz corpora through the checks that the fuzzer runs, so that what it once found stays
//! found.

// The name by which every other crate knows it, the fuzz targets among them.
extern crate tiderace_wire as wire;

mod checks;

use std::fs;
use std::path::Path;

/// Runs `check` on every file of the target's corpus; there have to be some.
fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        // Shown only when the check panics: names the input that did it.
        println!("{}", file.display());
        check(&fs::read(&file).unwrap());
    }
}

#[test]
fn frames() {
    replay("frames", checks::frames);
}

#[test]
fn headers() {
    replay("headers", checks::headers);
}

#[test]
fn transport_parameters() {
    replay("transport_parameters", checks::transport_parameters);
}
