//! Replays every file of the fuzz corpora through the checks that the fuzzer runs, so that what it once found stays found,
//! and runs random programs, which shrink when one fails.

mod checks;
#[path = "checks/connected.rs"]
mod connected;
mod support;

use std::{fs, path::Path};

use checks::endpoints::Reached;
use proptest::{collection::vec, prelude::*};
use rand_core::RngCore;
use units::Seed;

/// Runs `check` on every file of the target's corpus; there have to be some.
fn replay<R>(target: &str, check: fn(&[u8]) -> R) {
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
        let _ = check(&fs::read(&file).unwrap());
    }
}

#[test]
fn endpoints() {
    replay("endpoints", checks::endpoints::endpoints);
}

#[test]
fn tokens() {
    replay("tokens", checks::tokens::tokens);
}

#[test]
fn connections_of_a_peer_with_keys() {
    replay("connected", connected::connected);
}

/// Random programs come to where something can go wrong, also behind the handshake.
#[test]
fn the_checks_reach_what_a_peer_with_keys_can_do() {
    let mut random = Seed::from_number(2).stream("programs");
    let mut all = Vec::new();
    for role in [0, 1] {
        for _ in 0..60 {
            let mut program = vec![0; 900];
            random.fill_bytes(&mut program);
            program[0] = program[0] & !0x43 | role;
            all.push(connected::connected(&program));
        }
    }
    for reached in &all {
        println!("{} packets: {}", reached.packets, reached.closed.as_deref().unwrap_or("open"));
    }
    let share = |wanted: fn(&connected::Reached) -> bool| all.iter().filter(|reached| wanted(reached)).count();
    let counts = [
        ("packets", share(|r| r.packets > 300)),
        ("read", share(|r| r.read > 1_000)),
        ("datagrams", share(|r| r.datagrams > 0)),
        ("open", share(|r| r.open)),
    ];
    println!("{counts:?}");
    println!(
        "{} packets, {} read",
        all.iter().map(|r| r.packets).sum::<usize>(),
        all.iter().map(|r| r.read).sum::<usize>()
    );
    assert!(counts.iter().all(|(_, count)| *count >= 20), "{counts:?}");
}

/// Random programs come to where something can go wrong.
#[test]
fn the_checks_reach_what_they_are_about() {
    let mut random = Seed::from_number(1).stream("programs");
    let mut program = |len: usize| {
        let mut program = vec![0; len];
        random.fill_bytes(&mut program);
        program
    };
    let all: Vec<_> = (0..200).map(|_| checks::endpoints::endpoints(&program(600))).collect();
    println!("{} bytes read", all.iter().map(|reached| reached.read).sum::<u64>());
    let share = |wanted: fn(&Reached) -> bool| all.iter().filter(|reached| wanted(reached)).count();
    let counts = [
        ("connected", share(|r| r.connected), 150),
        ("read", share(|r| r.read > 10_000), 60),
        ("ended", share(|r| r.ended > 3), 60),
        ("datagrams", share(|r| r.datagrams > 0), 40),
        ("moved", share(|r| r.moves > 0), 40),
    ];
    for (what, count, _) in counts {
        println!("{what}: {count} of 200");
    }
    assert!(counts.iter().all(|(_, count, least)| count >= least), "{counts:?}");
    let shown: Vec<_> = (0..200).map(|_| checks::tokens::tokens(&program(200))).collect();
    let [accepted, refused] = [0, 1].map(|n| shown.iter().map(|counts| counts[n]).sum::<u64>());
    println!("tokens accepted: {accepted}, not accepted: {refused}");
    assert!(accepted > 50 && refused > 500, "{accepted} {refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn endpoints_under_random_programs(program in vec(any::<u8>(), 0..700)) {
        checks::endpoints::endpoints(&program);
    }

    #[test]
    fn connections_under_random_programs(program in vec(any::<u8>(), 0..1_200)) {
        connected::connected(&program);
    }

    #[test]
    fn tokens_under_random_programs(program in vec(any::<u8>(), 0..200)) {
        checks::tokens::tokens(&program);
    }
}
