//! The field of 256 elements by its definition, and linear systems over it by elimination: no tables, no vectors.

/// The product modulo x^8 + x^4 + x^3 + x^2 + 1, bit by bit.
pub const fn product(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1d;
        }
        b >>= 1;
    }
    sum
}

/// The element whose product with `a` is 1: the 254th power. 0 for 0.
pub const fn inverse(a: u8) -> u8 {
    let (mut power, mut result, mut exponent) = (a, 1, 254u8);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = product(result, power);
        }
        power = product(power, power);
        exponent >>= 1;
    }
    result
}

/// Brings a matrix into reduced row echelon form; returns the columns of its pivots.
pub fn eliminate(rows: &mut [Vec<u8>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    let mut pivots = Vec::new();
    for column in 0..columns {
        let rank = pivots.len();
        let Some(found) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
        rows.swap(rank, found);
        let factor = inverse(rows[rank][column]);
        rows[rank].iter_mut().for_each(|element| *element = product(*element, factor));
        let pivot = rows[rank].clone();
        for (index, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if index != rank && factor != 0 {
                row.iter_mut().zip(&pivot).for_each(|(element, pivot)| *element ^= product(*pivot, factor));
            }
        }
        pivots.push(column);
    }
    pivots
}

/// Unknowns, as columns, that a system determines: those whose row in reduced form names no other.
pub fn determined(mut rows: Vec<Vec<u8>>) -> Vec<usize> {
    let pivots = eliminate(&mut rows);
    let alone = |row: &Vec<u8>| row.iter().filter(|element| **element != 0).count() == 1;
    pivots.iter().zip(&rows).filter(|(_, row)| alone(row)).map(|(column, _)| *column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field() {
        assert!((1..=255).all(|a| product(a, inverse(a)) == 1));
        assert_eq!((product(2, 0x80), product(3, 7)), (0x1d, 9));
    }

    #[test]
    fn what_a_system_determines() {
        // x + y = …, z = …: z alone.
        assert_eq!(determined(vec![vec![1, 1, 0], vec![0, 0, 5]]), [2]);
        // x + y, x + 2 y: both.
        assert_eq!(determined(vec![vec![1, 1], vec![1, 2]]), [0, 1]);
        assert_eq!(determined(vec![vec![1, 1], vec![2, 2]]), [0usize; 0]);
    }
}
