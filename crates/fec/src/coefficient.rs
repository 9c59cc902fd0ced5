//! Matrix of coefficients: Cauchy, scaled so that row 0 is all ones.
//!
//! Every square submatrix with different rows and columns is invertible, so r repair symbols over the same source symbols replace any r of
//! these. Scaled columns do not change that, and make one repair symbol per block plain XOR.

use crate::gf;

/// Different rows. A repair symbol names one.
pub const ROWS: u8 = 64;
/// Different columns. A source symbol has that of its number, modulo this.
pub const COLUMNS: u8 = 192;

/// Rows by columns. The element 0 to 191 stands for a column, 192 to 255 for a row, so that no sum of both is 0.
static MATRIX: [[u8; COLUMNS as usize]; ROWS as usize] = {
    let mut matrix = [[0; COLUMNS as usize]; ROWS as usize];
    let mut row = 0;
    while row < ROWS as usize {
        let mut column = 0;
        while column < COLUMNS as usize {
            let (x, y) = ((COLUMNS as usize + row) as u8, column as u8);
            matrix[row][column] = gf::mul(COLUMNS ^ y, gf::inverse(x ^ y));
            column += 1;
        }
        row += 1;
    }
    matrix
};

/// The factor of source symbol `id` in a repair symbol of this row; never 0.
///
/// # Panics
/// When the row is not below [`ROWS`].
#[inline]
pub fn coefficient(row: u8, id: u64) -> u8 {
    MATRIX[usize::from(row)][(id % u64::from(COLUMNS)) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_0_is_xor_and_nothing_is_left_out() {
        assert!((0..192).all(|id| coefficient(0, id) == 1));
        assert!((0..ROWS).all(|row| (0..192).all(|id| coefficient(row, id) != 0)));
    }

    /// All minors of size 2, and with them every pair of losses: a·d ≠ b·c.
    #[test]
    fn any_two_rows_and_two_columns_are_independent() {
        for (r, s) in (0..ROWS).flat_map(|r| (r + 1..ROWS).map(move |s| (r, s))) {
            for (i, j) in (0..192).flat_map(|i| (i + 1..192).map(move |j| (i, j))) {
                let product = |r, i, s, j| gf::mul(coefficient(r, i), coefficient(s, j));
                assert_ne!(product(r, i, s, j), product(r, j, s, i));
            }
        }
    }
}
