//! Replays every file of the fuzz corpus through the check that the fuzzer runs, so that what it once found stays found, and runs
//! random programs, which shrink when one fails.

mod checks;

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*};

#[test]
fn the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/qmux");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let mut read = 0;
    for file in files {
        // Shown only when the check panics: names the input that did it.
        println!("{}", file.display());
        read += checks::qmux(&fs::read(&file).unwrap()).read;
    }
    assert!(read > 1_000, "the corpus comes to where something can go wrong: {read} bytes read");
}

proptest! {
    #[test]
    fn random_programs(program in vec(any::<u8>(), 0..2_000)) {
        checks::qmux(&program);
    }

    /// Without a peer that breaks rules: there is more to get wrong.
    #[test]
    fn random_programs_of_conforming_ends(program in vec((any::<u8>(), any::<u8>()), 0..2_000)) {
        let conforming = program.into_iter().filter(|(command, amount)| !matches!((command & 0x0f, amount), (14, _) | (15, 0 | 1)));
        let reached = checks::qmux(&conforming.flat_map(|(command, amount)| [command, amount]).collect::<Vec<_>>());
        prop_assert!(!reached.hostile);
    }
}
