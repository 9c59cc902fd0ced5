//! The field of 256 elements, modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d). Addition is exclusive or.

/// The polynomial, its highest bit left out.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator 2; twice, so that a sum of two logarithms needs no reduction.
const EXP: [u8; 510] = {
    let mut table = [0; 510];
    let (mut value, mut i) = (1u8, 0);
    while i < 510 {
        table[i] = value;
        value = double(value);
        i += 1;
    }
    table
};

/// Logarithms; the entry of 0 is unused.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// All products: a row of 256 for each factor.
pub(crate) static PRODUCTS: [[u8; 256]; 256] = {
    let mut table = [[0; 256]; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b < 256 {
            table[a][b] = mul(a as u8, b as u8);
            b += 1;
        }
        a += 1;
    }
    table
};

/// For each factor its products with 0 to 15, and with 16 times these: what a shuffle of bytes looks up.
pub(crate) static NIBBLES: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b < 16 {
            table[a][b] = mul(a as u8, b as u8);
            table[a][16 + b] = mul(a as u8, (b << 4) as u8);
            b += 1;
        }
        a += 1;
    }
    table
};

/// For each factor the matrix over bits that multiplies by it, as GF2P8AFFINEQB reads it: byte `7 - i` has the bits of the
/// source that make bit `i` of the product.
#[cfg(target_arch = "x86_64")]
pub(crate) static MATRICES: [u64; 256] = {
    let mut table = [0; 256];
    let mut a = 0;
    while a < 256 {
        let (mut matrix, mut bit) = (0u64, 0);
        while bit < 8 {
            let product = mul(a as u8, 1 << bit);
            let mut i = 0;
            while i < 8 {
                if product >> i & 1 == 1 {
                    matrix |= 1 << (8 * (7 - i) + bit);
                }
                i += 1;
            }
            bit += 1;
        }
        table[a] = matrix;
        a += 1;
    }
    table
};

const fn double(a: u8) -> u8 {
    let shifted = a << 1;
    if a & 0x80 == 0 { shifted } else { shifted ^ POLYNOMIAL }
}

/// The product of two elements.
#[inline]
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The element whose product with `a` is 1.
///
/// # Panics
/// For 0, which has none.
#[inline]
pub const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    EXP[255 - LOG[a as usize] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication bit by bit, as the definition has it.
    fn slow(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 == 1 {
                product ^= a;
            }
            a = double(a);
            b >>= 1;
        }
        product
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow(a, b), "{a} * {b}");
                assert_eq!(PRODUCTS[usize::from(a)][usize::from(b)], slow(a, b));
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        assert!((1..=255).all(|a| mul(a, inverse(a)) == 1));
    }
}
