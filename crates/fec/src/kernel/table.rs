//! Plain form: a table of products, byte by byte.

use super::Term;
use crate::gf::PRODUCTS;

pub(super) fn add_products(sum: &mut [u8], terms: &[Term<'_>]) {
    for term in terms {
        let products = &PRODUCTS[usize::from(term.coefficient)];
        for (sum, byte) in sum.iter_mut().zip(term.data) {
            *sum ^= products[usize::from(*byte)];
        }
    }
}
