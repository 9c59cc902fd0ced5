//! Fairness between flows that share a link.

use super::distribution::to_f64;

/// Jain's index of the flows' goodputs: 1 when all got the same, 1/n when one got everything.
///
/// `None` without flows, or if nothing was delivered.
pub fn jain(goodputs: &[f64]) -> Option<f64> {
    let sum: f64 = goodputs.iter().sum();
    let squares: f64 = goodputs.iter().map(|x| x * x).sum();
    (squares > 0.0).then(|| sum * sum / (to_f64(goodputs.len()) * squares))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_flows() {
        // The known answers of unequal shares between two flows.
        for (share, expected) in [(0.5, 1.0), (0.6, 0.962), (0.7, 0.862), (0.8, 0.735), (0.9, 0.610), (1.0, 0.5)] {
            let index = jain(&[share, 1.0 - share]).unwrap();
            assert!((index - expected).abs() < 5e-4, "{share}: {index}");
        }
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    proptest! {
        #[test]
        fn between_one_nth_and_one(flows in prop::collection::vec(0.0f64..1e9, 1..50), scale in 0.001f64..1000.0) {
            let Some(index) = jain(&flows) else { return Ok(()) };
            prop_assert!(index <= 1.0 + 1e-9 && index >= 1.0 / to_f64(flows.len()) - 1e-9);
            let scaled: Vec<f64> = flows.iter().map(|x| x * scale).collect();
            prop_assert!((jain(&scaled).unwrap() - index).abs() < 1e-9);
        }
    }
}
