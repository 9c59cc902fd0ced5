//! Erasure codes compared with algebra: repairable losses do not depend on chance.

use fec::{COLUMNS, Decoder, Encoder, Kernel, ROWS, Repair, Schedule, Scheme, coefficient, gf};

use super::{Check, card::Card};

/// All of them.
pub(super) fn checks() -> Vec<Check> {
    vec![field(), any_losses_of_a_block(), window(), rates()]
}

/// The field: 2 has order 255, products distribute, the Cauchy matrix has no zero and no two equal rows.
fn field() -> Check {
    let mut value = 1u8;
    let mut order = 0;
    loop {
        value = gf::mul(value, 2);
        order += 1;
        if value == 1 || order > 255 {
            break;
        }
    }
    let triples = (1..=255u8).map(|a| (a, a.rotate_left(3) ^ 0x5a, a.wrapping_mul(7) | 1));
    let linear = triples.clone().all(|(a, b, c)| gf::mul(a, b ^ c) == gf::mul(a, b) ^ gf::mul(a, c));
    let inverse = (1..=255u8).all(|a| gf::mul(a, gf::inverse(a)) == 1);
    let columns = u64::from(COLUMNS);
    let zeros =
        (0..ROWS).flat_map(|row| (0..columns).map(move |id| (row, id))).filter(|(row, id)| coefficient(*row, *id) == 0);
    let independent = (0..ROWS - 1).all(|row| {
        // a d ≠ b c for neighbouring rows and columns.
        (0..columns - 1).all(|id| {
            let product = |a: u8, b: u8| gf::mul(a, b);
            product(coefficient(row, id), coefficient(row + 1, id + 1))
                != product(coefficient(row, id + 1), coefficient(row + 1, id))
        })
    });
    Card::new("V9 field of 256 elements")
        .equal("order of 2", order, 255)
        .holds("products distribute over sums", linear)
        .holds("every element has an inverse", inverse)
        .equal("zeros among the coefficients", zeros.count(), 0)
        .holds("neighbouring rows are independent", independent)
        .done()
}

fn content(id: u64) -> Vec<u8> {
    (0..40 + id as usize % 7).map(|at| (id as u8).wrapping_mul(31).wrapping_add(at as u8 ^ 0x3c)).collect()
}

/// Symbols of a block of ten and `repairs` of it that arrive: how many of the lost ones come back right.
fn back(lost: u16, repairs: u8) -> Option<u32> {
    let kernel = Kernel::best();
    let (mut encoder, mut decoder) = (Encoder::new(kernel, 64), Decoder::new(kernel, 64));
    for id in 0..10 {
        encoder.push(&content(id));
        if lost >> id & 1 == 0 {
            decoder.on_source(id, &content(id)).ok()?;
        }
    }
    for row in (0..3).filter(|row| repairs >> row & 1 == 1) {
        let repair = Repair { first: 0, count: 10, stride: 1, row };
        let value = encoder.repair(&repair, None)?.to_vec();
        decoder.on_repair(&repair, &value).ok()?;
    }
    let mut right = 0;
    while let Some((id, value)) = decoder.next_recovered() {
        right += u32::from(lost >> id & 1 == 1 && value == content(id));
    }
    Some(right)
}

/// Ten and three: each of the 1024 × 8 loss patterns is recovered if and only if there are at least as many repairs as losses.
fn any_losses_of_a_block() -> Check {
    let (mut wrong, mut patterns) = (0, 0);
    for lost in 0..1_024u16 {
        for repairs in 0..8u8 {
            let expected = if lost.count_ones() <= repairs.count_ones() { lost.count_ones() } else { 0 };
            patterns += 1;
            wrong += u32::from(back(lost, repairs) != Some(expected));
        }
    }
    Card::new("V9 every loss of a block")
        .equal("of 8192 patterns of loss in 10 + 3 not as the rank says", wrong, 0)
        .equal("patterns", patterns, 8_192)
        .done()
}

/// A sliding window: repairs over overlapping windows solve together what none solves alone.
fn window() -> Check {
    let kernel = Kernel::best();
    let (mut encoder, mut decoder) = (Encoder::new(kernel, 64), Decoder::new(kernel, 64));
    let lost = [3u64, 4, 9, 14];
    let mut right = 0;
    let mut trouble = 0;
    for id in 0..20 {
        encoder.push(&content(id));
        if !lost.contains(&id) {
            trouble += u32::from(decoder.on_source(id, &content(id)).is_err());
        }
    }
    for (row, (first, count)) in (0..).zip([(0, 10), (2, 10), (5, 10), (8, 12)]) {
        let repair = Repair { first, count, stride: 1, row };
        let value = encoder.repair(&repair, None).map(<[u8]>::to_vec).unwrap_or_default();
        trouble += u32::from(decoder.on_repair(&repair, &value).is_err());
    }
    while let Some((id, value)) = decoder.next_recovered() {
        right += u32::from(lost.contains(&id) && value == content(id));
    }
    Card::new("V9 window")
        .equal("of 4 losses under 4 overlapping windows come back", right, 4)
        .equal("contradictions", trouble, 0)
        .done()
}

/// A schedule sends as many repairs as its name says.
fn rates() -> Check {
    let mut card = Card::new("V9 rates of codes");
    for (name, expected) in
        [("xor:10", 1_000), ("rs:10+2", 2_000), ("rs:20+4/2", 2_000), ("rlc:1/5:40", 2_000), ("rlc:3/20:40", 1_500)]
    {
        let Ok(scheme) = name.parse::<Scheme>() else { return card.holds("a code has a name", false).done() };
        let mut schedule = Schedule::new(scheme, 0);
        let mut made = 0u64;
        for id in 0..10_000 {
            schedule.on_source(id);
            while schedule.take_due().is_some() {
                made += 1;
            }
        }
        card = card.equal(&format!("{name}: repairs for 10000"), made, expected);
    }
    card.done()
}
