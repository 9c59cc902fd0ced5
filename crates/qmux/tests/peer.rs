//! Replays the corpus of the fuzz target of the same name, and runs random programs, with every byte on the heap counted. One test, so
//! that nothing else allocates meanwhile.

#[path = "checks/heap.rs"]
mod heap;
#[path = "checks/peer.rs"]
mod peer;

use std::{fs, path::Path};

use rand_core::RngCore;
use units::Seed;

#[test]
fn programs_of_a_peer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/qmux_peer");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        // Shown only when the check panics: names the input that did it.
        println!("{}", file.display());
        peer::peer(&fs::read(&file).unwrap(), &heap::live);
    }
    // Random programs, half of them without broken rules, come to where something can go wrong.
    let mut random = Seed::from_number(3).stream("programs");
    let mut all = Vec::new();
    for number in 0..400 {
        let mut program = vec![0; 1_500];
        random.fill_bytes(&mut program);
        if number % 2 == 0 {
            program[0] &= !0xc2;
        }
        // Shown only when a check fails.
        println!("program {number} of the seed");
        let reached = peer::peer(&program, &heap::live);
        all.push(reached);
    }
    let share = |wanted: fn(&peer::Reached) -> bool| all.iter().filter(|reached| wanted(reached)).count();
    let counts = [
        ("frames", share(|reached| reached.frames > 1_000)),
        ("read", share(|reached| reached.read > 3_000)),
        ("datagrams", share(|reached| reached.datagrams > 0)),
        ("sent", share(|reached| reached.sent > 1_000)),
        ("open", share(|reached| reached.closed.is_none())),
        ("held", share(|reached| reached.held > 3_000)),
    ];
    assert!(counts.iter().all(|(_, count)| *count >= 60), "{counts:?}");
}
