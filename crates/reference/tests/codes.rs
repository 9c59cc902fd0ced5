//! The decoder beside elimination over GF(256): it repairs exactly the losses that the equations at hand determine.

use fec::{Decoder, Encoder, Kernel, Repair, coefficient};
use tiderace_reference::{day, draws::Draws, field};

fn content(id: u64, draws: &mut Draws) -> Vec<u8> {
    let len = 20 + draws.below(60);
    (0..len).map(|at| (draws.bits() ^ at ^ id) as u8).collect()
}

/// Symbols that elimination determines, of those lost.
fn solvable(lost: &[u64], repairs: &[Repair]) -> Vec<u64> {
    let row = |repair: &Repair| -> Vec<u8> {
        let factor = |id: &u64| {
            let place = id.checked_sub(repair.first)?;
            let inside =
                place % u64::from(repair.stride) == 0 && place / u64::from(repair.stride) < repair.count.into();
            inside.then(|| coefficient(repair.row, *id))
        };
        lost.iter().map(|id| factor(id).unwrap_or(0)).collect()
    };
    let rows: Vec<Vec<u8>> = repairs.iter().map(row).collect();
    let mut ids: Vec<u64> = field::determined(rows).into_iter().map(|column| lost[column]).collect();
    ids.sort_unstable();
    ids
}

/// Random windows, blocks and interleaved blocks over random losses.
#[test]
fn what_is_repaired_is_what_the_rank_says() {
    let mut draws = day::draws(4);
    let (mut whole, mut part, mut none) = (0, 0, 0);
    for cell in 0..400 {
        let count = 20 + draws.below(60);
        let loss = 0.02 + 0.3 * draws.unit();
        let kernel = Kernel::best();
        let (mut encoder, mut decoder) = (Encoder::new(kernel, 128), Decoder::new(kernel, 128));
        let mut symbols = Vec::new();
        let mut lost = Vec::new();
        for id in 0..count {
            symbols.push(content(id, &mut draws));
            encoder.push(&symbols[id as usize]);
            if draws.unit() < loss {
                lost.push(id);
            } else {
                decoder.on_source(id, &symbols[id as usize]).unwrap();
            }
        }
        let repairs: Vec<Repair> = (0..draws.below(lost.len() as u64 + 3))
            .map(|index| {
                let stride = draws.one_of(&[1, 1, 1, 2, 5]);
                let first = draws.below(count);
                let most = (count - 1 - first) / u64::from(stride) + 1;
                Repair { first, count: (1 + draws.below(most)) as u8, stride, row: (index % 64) as u8 }
            })
            .collect();
        for repair in &repairs {
            let value = encoder.repair(repair, None).unwrap().to_vec();
            decoder.on_repair(repair, &value).unwrap();
        }
        let mut back = Vec::new();
        while let Some((id, value)) = decoder.next_recovered() {
            assert_eq!(value, symbols[id as usize], "cell {cell}, symbol {id}");
            back.push(id);
        }
        back.sort_unstable();
        let expected = solvable(&lost, &repairs);
        assert_eq!(back, expected, "cell {cell}: lost {lost:?}, repairs {repairs:?}");
        match expected.len() {
            0 => none += 1,
            len if len == lost.len() => whole += 1,
            _ => part += 1,
        }
    }
    // Each kind of outcome is among the cells of every day: 400 draws of wide ranges.
    assert!(whole > 0 && part > 0 && none > 0, "{whole} whole, {part} in part, {none} not at all");
}

/// The project's multiplication beside the one by definition, and a day's square minors of its matrix: none is singular.
#[test]
fn coefficients_are_a_cauchy_matrix() {
    let mut draws = day::draws(5);
    for _ in 0..20_000 {
        let (a, b) = (draws.bits() as u8, draws.bits() as u8);
        assert_eq!(fec::gf::mul(a, b), field::product(a, b), "{a} x {b}");
    }
    for _ in 0..300 {
        let size = 1 + draws.below(12) as usize;
        let mut rows: Vec<u8> = (0..fec::ROWS).collect();
        let mut columns: Vec<u64> = (0..u64::from(fec::COLUMNS)).collect();
        let mut take = |len: usize| draws.below(len as u64) as usize;
        while rows.len() > size {
            rows.swap_remove(take(rows.len()));
        }
        while columns.len() > size {
            columns.swap_remove(take(columns.len()));
        }
        let mut minor: Vec<Vec<u8>> =
            rows.iter().map(|row| columns.iter().map(|id| coefficient(*row, *id)).collect()).collect();
        assert_eq!(field::eliminate(&mut minor).len(), size, "rows {rows:?}, columns {columns:?}");
    }
}
