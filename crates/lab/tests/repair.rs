//! Forward error correction in the laboratory: codes against theory, in short. The full measure: `cargo xtask shows fec`.

use tiderace_lab::{
    figure::Figure,
    reference::fec::{DATAGRAMS, GROUPS, MESSAGES, REQUESTS, Setting, measured, records},
};

#[test]
fn repair_leaves_less_missing_and_shows_evidence() {
    let setting = Setting { seconds: 6, seeds: 1, ..DATAGRAMS };
    let missing = |code| measured(&setting, code, Figure::ResidualLoss).unwrap().0;
    let (off, block, window) = (missing("off"), missing("rs:10+2"), missing("rlc:1/5:40"));
    println!("{off} {block} {window}");
    assert!((0.04..0.08).contains(&off), "{off}");
    assert!(block < 0.012 && window < 0.001, "{block} {window}");
}

#[test]
fn one_loss_of_each_group_is_always_rebuilt() {
    let setting = Setting { seconds: 6, seeds: 1, ..GROUPS };
    let missing = |code| measured(&setting, code, Figure::ResidualLoss).unwrap().0;
    assert_eq!(missing("xor:10"), 0.0);
    assert!(missing("off") > 0.08);
}

#[test]
fn messages_wait_less() {
    let setting = Setting { seconds: 6, seeds: 1, ..MESSAGES };
    let p99 = |code| measured(&setting, code, Figure::DelayP99).unwrap().0;
    let (off, window) = (p99("off"), p99("rlc:1/5:40"));
    assert!(window < 0.7 * off, "{window} {off}");
}

#[test]
fn the_end_of_a_request_does_not_wait_for_a_copy() {
    let setting = Setting { seconds: 40, seeds: 1, ..REQUESTS };
    for code in ["rlc:1/5:40", "auto"] {
        let p99 = measured(&setting, code, Figure::RequestP99).unwrap().0;
        assert!(p99 < 0.120, "{code}: {p99}");
    }
}

/// Counters of both ends are in the records, and agree.
#[test]
fn records_tell_what_repair_did() {
    let setting = Setting { seconds: 6, seeds: 1, ..DATAGRAMS };
    let record = &records(&setting, "rlc:1/5:40").unwrap()[0];
    let repair = record.connections[0].repair.unwrap();
    assert!(repair.symbols_sent.abs_diff(5 * repair.repairs_sent) < 10, "{repair:?}");
    let lost = (repair.recovered + repair.unrecovered) as f64 / repair.symbols_sent as f64;
    assert!((0.04..0.06).contains(&lost) && repair.repairs_spurious < repair.repairs_received, "{repair:?}");
    let value = |figure| record.figures[&figure].value.unwrap();
    assert!((value(Figure::Repair) - 1.0 / 6.0).abs() < 0.01 && value(Figure::Recovered) > 0.99);
    assert!((0.0..0.05).contains(&value(Figure::RecoveryDelay)), "{}", value(Figure::RecoveryDelay));
    let plain = &records(&setting, "off").unwrap()[0];
    assert!(plain.connections[0].repair.is_none() && !plain.figures.contains_key(&Figure::Repair));
}
