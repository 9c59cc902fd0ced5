//! Responsiveness under working conditions (draft-ietf-ippm-responsiveness): round trips per minute while the path is loaded.

use lab::stats::distribution::student_quantile;

use super::{Estimate, to_f64};

/// Milliseconds of a minute.
const MINUTE_MS: f64 = 60_000.0;
/// Share of samples that is kept: the largest 5 % are trimmed.
const KEPT: f64 = 0.95;

/// Samples in ms.
#[derive(Clone, Debug, Default)]
pub(in crate::probe) struct Probes {
    /// Handshakes of connections of their own. Over QUIC transport and TLS take this round trip together.
    pub(in crate::probe) handshakes: Vec<f64>,
    /// Requests on these connections.
    pub(in crate::probe) foreign: Vec<f64>,
    /// Requests on a connection that loads the path.
    pub(in crate::probe) own: Vec<f64>,
}

/// Mean of a list without its largest values, and the interval of the mean.
fn trimmed(samples: &[f64]) -> Option<(f64, f64)> {
    let mut ascending = samples.to_vec();
    ascending.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the length")]
    let kept = (to_f64(ascending.len()) * KEPT).ceil() as usize;
    let kept = ascending.get(..kept)?;
    if kept.len() < 2 {
        return None;
    }
    let count = to_f64(kept.len());
    let mean = kept.iter().sum::<f64>() / count;
    let variance = kept.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    Some((mean, student_quantile(0.975, kept.len() - 1) * (variance / count).sqrt()))
}

impl Probes {
    /// Round trips per minute: the mean of foreign and own responsiveness. `None` with fewer than two samples of a kind.
    pub(in crate::probe) fn responsiveness(&self) -> Option<Estimate> {
        let (handshake, request, own) = (trimmed(&self.handshakes)?, trimmed(&self.foreign)?, trimmed(&self.own)?);
        let foreign = (f64::midpoint(handshake.0, request.0), f64::midpoint(handshake.1, request.1));
        // A mean that may be 0 bounds nothing.
        let of = |sign: f64| {
            let each =
                [foreign, own].map(|(mean, half)| (mean + sign * half > 0.0).then(|| MINUTE_MS / (mean + sign * half)));
            Some(f64::midpoint(each[0]?, each[1]?))
        };
        let samples = self.handshakes.len() + self.foreign.len() + self.own.len();
        Some(Estimate { value: of(0.0)?, low: of(1.0)?, high: of(-1.0), samples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_path_has_its_round_trips_per_minute() {
        let probes = Probes { handshakes: vec![50.0; 10], foreign: vec![50.0; 10], own: vec![100.0; 10] };
        let found = probes.responsiveness().unwrap();
        // 1,200 round trips of 50 ms and 600 of 100 ms in a minute.
        assert!((found.value - 900.0).abs() < 1e-9 && (found.low - found.value).abs() < 1e-6, "{found:?}");
        assert_eq!(found.samples, 30);
    }

    #[test]
    fn the_largest_samples_are_trimmed_and_the_spread_widens_the_interval() {
        let mut own = [40.0, 60.0].repeat(10);
        own.push(5_000.0);
        let probes = Probes { handshakes: vec![50.0; 4], foreign: vec![50.0; 4], own };
        let found = probes.responsiveness().unwrap();
        assert!((found.value - 1_200.0).abs() < 40.0, "{found:?}");
        assert!(found.low < found.value - 20.0 && found.high.unwrap() > found.value + 20.0, "{found:?}");
    }

    #[test]
    fn a_spread_beyond_the_mean_has_no_upper_end() {
        let own = vec![1.0, 1.0, 1.0, 400.0, 5_000.0];
        let found = Probes { handshakes: vec![50.0; 4], foreign: vec![50.0; 4], own }.responsiveness().unwrap();
        assert!(found.high.is_none() && found.low > 0.0, "{found:?}");
    }

    #[test]
    fn too_few_samples_say_nothing() {
        assert_eq!(Probes { handshakes: vec![1.0], foreign: vec![1.0; 5], own: vec![1.0; 5] }.responsiveness(), None);
    }
}
