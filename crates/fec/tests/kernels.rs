//! Every kernel that the processor has computes what the table says.

use fec::{Kernel, Term};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn kernels_agree_with_the_table(
        sum in proptest::collection::vec(any::<u8>(), 0..1600),
        terms in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..1600), any::<bool>()), 0..20),
    ) {
        // Half of the strings are as long as the sum, as neighbouring packets are.
        let full = |data: &Vec<u8>| {
            let mut data = data.clone();
            data.resize(sum.len(), 0x5a);
            data
        };
        let strings: Vec<_> =
            terms.iter().map(|(c, data, fit)| (*c, if *fit { full(data) } else { data.clone() })).collect();
        let terms: Vec<_> = strings.iter().map(|(coefficient, data)| Term { coefficient: *coefficient, data }).collect();
        let mut expected = sum.clone();
        Kernel::Table.add_products(&mut expected, &terms);
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
            let mut got = sum.clone();
            kernel.add_products(&mut got, &terms);
            prop_assert_eq!(&got, &expected, "{}", kernel.name());
            let (mut scaled, mut slow) = (sum.clone(), sum.clone());
            kernel.scale(&mut scaled, 0x53);
            slow.iter_mut().for_each(|byte| *byte = fec::gf::mul(*byte, 0x53));
            prop_assert_eq!(scaled, slow);
        }
    }
}

/// The table itself is what the field says.
#[test]
fn the_table_is_multiplication() {
    for coefficient in 0..=255 {
        let data: Vec<u8> = (0..=255).collect();
        let mut sum = vec![0; 256];
        Kernel::Table.add_product(&mut sum, coefficient, &data);
        assert!((0..=255u8).all(|byte| sum[usize::from(byte)] == fec::gf::mul(coefficient, byte)));
    }
}

#[test]
fn the_plain_one_is_always_there() {
    assert!(Kernel::Table.is_available() && Kernel::best().is_available());
}
