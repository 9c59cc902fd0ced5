//! Limits of a scenario that its records exceed.

use serde::Serialize;

use crate::{stats::interval::centre, summary::Summary};

/// A limit that is exceeded, or without a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Breach {
    /// The limit.
    pub limit: String,
    /// Place.
    pub place: String,
    /// Measured value, if there is one.
    pub value: Option<f64>,
}

/// Exceeded limits of the scenario. A limit without a measurement counts as exceeded.
pub fn breaches(summary: &Summary) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for threshold in &summary.manifest.scenario.thresholds {
        let Some(figure) = threshold.of() else { continue };
        let (least, most) = threshold.limits();
        let words = [("at least", &threshold.at_least), ("at most", &threshold.at_most)];
        let words: Vec<String> =
            words.iter().filter_map(|(word, limit)| limit.as_ref().map(|limit| format!("{word} {limit}"))).collect();
        let limit = format!("{} {}", figure.label().trim(), words.join(" and "));
        let named = |name: &String| {
            threshold.contender.as_ref().is_none_or(|wanted| wanted == name || *name == format!("tiderace {wanted}"))
        };
        let chosen: Vec<usize> = (0..summary.contenders.len()).filter(|&i| named(&summary.contenders[i])).collect();
        if chosen.is_empty() {
            let place = format!("there is no contender `{}`", threshold.contender.as_deref().unwrap_or_default());
            breaches.push(Breach { limit: limit.clone(), place, value: None });
        }
        for point in 0..summary.points.len() {
            for &contender in &chosen {
                let values = summary.values(point, contender, figure);
                let complete = values.len() == summary.seeds.len();
                let value = centre(&values).filter(|_| complete).map(|(median, _)| median);
                let holds = value.is_some_and(|value| {
                    least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most)
                });
                if !holds {
                    let levels: Vec<String> =
                        summary.points[point].iter().map(|(name, level)| format!("{name} {level}")).collect();
                    let place = [&[summary.contenders[contender].clone()][..], &levels].concat().join(", ");
                    breaches.push(Breach { limit: limit.clone(), place, value });
                }
            }
        }
    }
    breaches
}
