//! Runs of an experiment, in order: scenario × contenders × seeds.

/// One run of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Contender, by its place in the list.
    pub contender: usize,
    /// The seed, as a person writes it.
    pub seed: u64,
}

/// All runs, seed by seed, with the contenders in turning order: A B, B A, A B, …
///
/// Drift during an experiment in real time (temperature, other load) therefore affects all contenders equally. In virtual time nothing
/// drifts; the order is the same for both kinds of experiment.
pub fn cells(contenders: usize, seeds: impl IntoIterator<Item = u64>) -> Vec<Cell> {
    let forward = |seed| (0..contenders).map(move |contender| Cell { contender, seed });
    let turning = seeds.into_iter().enumerate().flat_map(|(round, seed)| {
        let mut cells: Vec<Cell> = forward(seed).collect();
        if round % 2 == 1 {
            cells.reverse();
        }
        cells
    });
    turning.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved() {
        let order: Vec<(usize, u64)> = cells(2, 5..8).iter().map(|cell| (cell.contender, cell.seed)).collect();
        assert_eq!(order, [(0, 5), (1, 5), (1, 6), (0, 6), (0, 7), (1, 7)]);
        assert!(cells(0, 0..10).is_empty());
    }
}
