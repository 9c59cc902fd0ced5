//! Replays every file of the fuzz corpus through the check that the fuzzer runs, so that what it once found stays found, and runs
//! random programs, which shrink when one fails.

mod checks;

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*};

#[test]
fn the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/qpack");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let (mut sections, mut dynamic) = (0, 0);
    for file in files {
        // Shown only when the check panics: names the input that did it.
        println!("{}", file.display());
        let reached = checks::qpack(&fs::read(&file).unwrap());
        sections += reached.sections;
        dynamic += reached.dynamic;
    }
    assert!(
        sections > 1_000 && dynamic > 200,
        "the corpus comes to where something can go wrong: {sections}, {dynamic}"
    );
}

/// Commands without a peer that breaks rules: there is more to get wrong.
fn conforming() -> impl Strategy<Value = Vec<u8>> {
    let command = prop_oneof![
        // A section of fields of which many come again.
        4 => (0..=4_u8, 1..16_u8, any::<u8>()).prop_flat_map(|(kind, count, stream)| {
            let pairs = vec((any::<u8>(), prop_oneof![0..20_u8, any::<u8>()]), usize::from(count));
            pairs.prop_map(move |pairs| {
                let mut bytes = vec![count * 16 + kind, stream];
                bytes.extend(pairs.into_iter().flat_map(|(name, value)| [name, value]));
                bytes
            })
        }),
        2 => (5..=8_u8, any::<u8>()).prop_map(|(command, amount)| vec![command, amount]),
        4 => (9..=11_u8, any::<u8>()).prop_map(|(command, amount)| vec![command, amount]),
        1 => (0..16_u8, any::<u8>()).prop_map(|(high, amount)| vec![high * 16 + 9, amount]),
        1 => (0..16_u8, any::<u8>()).prop_map(|(high, amount)| vec![high * 16 + 12, amount]),
        3 => Just(vec![13, 0]),
        1 => Just(vec![15, 0]),
    ];
    ((any::<u8>(), any::<u8>()), vec(command, 0..300)).prop_map(|((ours, theirs), commands)| {
        let mut program = vec![ours, theirs];
        program.extend(commands.into_iter().flatten());
        program
    })
}

proptest! {
    #[test]
    fn random_programs(program in vec(any::<u8>(), 0..4_000)) {
        checks::qpack(&program);
    }

    #[test]
    fn random_programs_of_conforming_ends(program in conforming()) {
        prop_assert!(!checks::qpack(&program).hostile);
    }
}
