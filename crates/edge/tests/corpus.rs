//! Replays the corpus of the fuzz target `edge_h3`, and runs random programs, so that what it once found stays found.

#[path = "checks/bench.rs"]
mod bench;
#[path = "checks/client.rs"]
mod client;
mod site;

use std::{fs, path::Path};

#[test]
fn programs_of_a_client() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/edge_h3");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let heap = || 0;
    let bench = bench::Bench::new(&heap);
    let mut all = client::Reached::default();
    let mut add = |program: &[u8]| {
        let reached = bench.run(program, &heap);
        println!("{reached:?}");
        all.requests += reached.requests;
        all.answers += reached.answers;
        all.bytes += reached.bytes;
        all.resets += reached.resets;
    };
    for file in files {
        // Shown only when the check fails: names the input that did it.
        println!("{}", file.display());
        add(&fs::read(&file).unwrap());
    }
    bench.rest(&heap);
    assert!(
        all.requests > 30 && all.answers > 10 && all.resets > 0,
        "the corpus comes to where something can go wrong: {all:?}"
    );
}
