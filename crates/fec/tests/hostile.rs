//! Symbols from someone who does not combine what was sent: errors instead of wrong bytes, and bounded memory.

#[allow(dead_code, reason = "the oracle's tests use the rest")]
mod support;

use fec::{Contradiction, Decoder, Encoder, Kernel, Repair, RepairError, Repaired, Sourced};
use support::Random;

const PACKET: usize = 1200;

fn decoder() -> Decoder {
    Decoder::new(Kernel::best(), 256)
}

fn xor_of(first: u64, count: u8) -> Repair {
    Repair { first, count, stride: 1, row: 0 }
}

#[test]
fn impossible_repairs_are_refused_before_anything_is_kept() {
    let repair = |first, count, stride, row| Repair { first, count, stride, row }.check();
    assert_eq!(repair(0, 0, 1, 0), Err(RepairError::Empty));
    assert_eq!(repair(0, 1, 0, 0), Err(RepairError::Empty));
    assert_eq!(repair(0, 193, 1, 0), Err(RepairError::TooWide));
    assert_eq!(repair(0, 65, 3, 0), Err(RepairError::TooWide));
    assert_eq!(repair(0, 255, 255, 63), Err(RepairError::TooWide));
    assert_eq!(repair(0, 1, 1, 64), Err(RepairError::NoSuchRow));
    assert_eq!(repair(u64::MAX, 1, 1, 0), Err(RepairError::Overflow));
    assert_eq!(repair(u64::MAX - 200, 192, 1, 63), Ok(()));
}

#[test]
fn a_symbol_id_is_used_once() {
    let mut d = decoder();
    assert_eq!(d.on_source(3, b"one"), Ok(Sourced::New));
    assert_eq!(d.on_source(3, b"one"), Err(Contradiction("a symbol ID was used twice")));
}

#[test]
fn a_symbol_that_contradicts_what_was_rebuilt_is_an_error() {
    let mut e = Encoder::new(Kernel::best(), 8);
    let contents = [b"first".as_slice(), b"second", b"third"];
    contents.iter().for_each(|c| {
        e.push(c);
    });
    for (late, expected) in [
        (b"second".as_slice(), Ok(Sourced::Known)),
        (b"sekond", Err(Contradiction("a symbol is not what repair symbols said"))),
    ] {
        let mut d = decoder();
        d.on_source(0, contents[0]).unwrap();
        d.on_source(2, contents[2]).unwrap();
        let repair = xor_of(0, 3);
        assert_eq!(d.on_repair(&repair, e.repair(&repair, None).unwrap()), Ok(Repaired::Used));
        assert_eq!(d.next_recovered(), Some((1, contents[1])));
        assert!(d.was_recovered(1));
        assert_eq!(d.on_source(1, late), expected);
        assert!(d.on_source(1, late).is_err(), "neither arrives twice");
    }
}

#[test]
fn repairs_that_contradict_each_other_are_an_error() {
    let mut d = decoder();
    d.on_source(0, b"known").unwrap();
    // Two unknowns and three equations of which the third does not follow.
    let value = |seed: u8| vec![seed; 64];
    assert_eq!(d.on_repair(&Repair { row: 1, ..xor_of(0, 3) }, &value(1)), Ok(Repaired::Used));
    let second = d.on_repair(&Repair { row: 2, ..xor_of(0, 3) }, &value(2));
    let third = second.and_then(|_| d.on_repair(&Repair { row: 3, ..xor_of(0, 3) }, &value(3)));
    assert!(third.is_err(), "{third:?}");
}

#[test]
fn what_decodes_to_no_symbol_is_an_error() {
    // A length beyond the end; bytes behind the end; a repair that is shorter than what it combines.
    for (value, what) in [
        (vec![0xff; 40], "what repair symbols say is no symbol"),
        (vec![0, 1, 7, 7], "what repair symbols say is no symbol"),
        (Vec::new(), "what repair symbols say is no symbol"),
    ] {
        assert_eq!(decoder().on_repair(&xor_of(0, 1), &value), Err(Contradiction(what)));
    }
    let mut d = decoder();
    d.on_source(0, &[9; 500]).unwrap();
    let short = d.on_repair(&xor_of(0, 2), &[0; 64]);
    assert_eq!(short, Err(Contradiction("a repair symbol is shorter than a symbol in it")));
}

/// Any input in any order: no panic, and memory for the symbols remembered and the equations, no more.
#[test]
fn memory_stays_bounded() {
    let bound = (256 + 4) * 1280 + 128 * (1280 + 192 * 16) + (1 << 16);
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut d = decoder();
        let mut most = 0;
        for step in 0..3_000u64 {
            // Mostly near the top, sometimes anywhere at all.
            let id = match random.below(40) {
                0 => random.next() >> random.below(64),
                _ => (d.next_id() + random.below(40)).saturating_sub(30),
            }
            .min(u64::MAX - 512);
            let data = vec![random.next() as u8; random.below(PACKET as u64) as usize];
            let before = d.next_id();
            let outcome = match random.below(4) {
                0 => d.on_source(id, &data).map(|_| ()),
                _ => {
                    let stride = 1 + random.below(3) as u8;
                    let count = 1 + random.below(64) as u8;
                    let repair = Repair { first: id, count, stride, row: random.below(64) as u8 };
                    repair.check().map_or(Ok(()), |()| d.on_repair(&repair, &data).map(|_| ()))
                }
            };
            while d.next_recovered().is_some() {}
            most = most.max(d.memory());
            assert!(d.next_id() >= before && d.missing() <= 256);
            if outcome.is_err() && step % 7 == 0 {
                // The connection would be closed; the attacker opens another.
                d = decoder();
            }
        }
        assert!(most <= bound, "{most} bytes, at most {bound} are allowed");
    }
}

#[test]
fn a_leap_costs_no_more_than_the_memory_is_wide() {
    let mut d = decoder();
    d.on_source(5, b"x").unwrap();
    d.on_source(u64::MAX - 1000, b"y").unwrap();
    assert_eq!(d.missing(), 255);
    assert_eq!(d.on_source(7, b"z"), Ok(Sourced::Old));
    assert_eq!(d.figures().unrecovered, u64::MAX - 1000 + 1 - 256 - 1);
    assert_eq!(d.on_repair(&xor_of(0, 10), &[0; 64]), Ok(Repaired::Late));
}
