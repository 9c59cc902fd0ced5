//! Factors, and the resulting points: every combination of the factors' levels is a scenario.

use std::collections::BTreeMap;

use netem::{LinkConfig, Loss};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use units::duration_text;

use super::{Fault, Overrides, Scenario, ScenarioError, check::fault, nearest, read};

/// Factors that set several fields at once, or one by a shorter name.
pub const SHORTHANDS: [(&str, &str); 7] = [
    ("path.rtt", "round-trip time: half of it as delay of each direction"),
    ("path.rate", "rate of each direction that has one"),
    ("path.loss", "independent loss in both directions"),
    ("path.queue", "drop-tail queue of each direction that has a rate, in bytes or as `2 BDP`"),
    ("path.loss-burst", "mean burst length of the loss of each direction that has loss; 1 is independent loss"),
    ("path.jitter", "jitter of both directions"),
    ("fec", "forward error correction of every contender: `off`, a code such as `rlc:1/5:40`, or `auto`"),
];

/// The values of a factor: a list, a range of whole numbers as `"1..5"`, or numbers between two ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Levels {
    /// List of values.
    List(Vec<Value>),
    /// Whole numbers from the first to the last: `"1..5"`.
    Range(String),
    /// Number of values from one to the other: `{ from = "5 ms", to = "500 ms", points = 7, scale = "log" }`.
    Spread(Spread),
}

/// Values between two ends. Both have the same unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Spread {
    /// The first value.
    pub from: Value,
    /// The last value.
    pub to: Value,
    /// Number of points, at least 2.
    pub points: u32,
    /// Equal distances, or equal ratios.
    #[serde(default)]
    pub scale: Scale,
}

/// Spacing of the values of a [`Spread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Equal distances.
    #[default]
    Linear,
    /// Equal ratios, rounded to three digits.
    Log,
}

/// Name of the factor whose levels are the cells of a scenario.
pub const CELL: &str = "cell";

/// A combination of levels: the value of each factor, as people write it.
pub type Point = BTreeMap<String, String>;

/// Largest number of points.
const POINTS_MAX: usize = 100_000;

impl Levels {
    /// The values, or the error.
    fn values(&self) -> Result<Vec<Value>, String> {
        let values = match self {
            Self::List(list) => list.clone(),
            Self::Range(text) => {
                let ends = text.split_once("..").map(|(a, b)| (a.trim().parse::<i64>(), b.trim().parse::<i64>()));
                match ends {
                    Some((Ok(a), Ok(b))) if a <= b && b - a < 10_000 => (a..=b).map(Value::from).collect(),
                    _ => return Err(format!("`{text}` is no range: expected for example \"1..5\"")),
                }
            }
            Self::Spread(spread) => spread.values()?,
        };
        if values.is_empty() {
            return Err("there are no values".to_owned());
        }
        let twice = values.iter().enumerate().find(|(index, value)| values[..*index].contains(value));
        match twice {
            Some((_, value)) => Err(format!("{} is named twice", text(value))),
            None => Ok(values),
        }
    }
}

impl Spread {
    fn values(&self) -> Result<Vec<Value>, String> {
        let ((a, unit), (b, other)) = (split(&self.from)?, split(&self.to)?);
        if unit != other {
            return Err(format!("both ends need the same unit: `{unit}` and `{other}`"));
        }
        if self.points < 2 || self.points > 10_000 || (self.scale == Scale::Log && (a <= 0.0 || b <= 0.0)) {
            return Err("needs at least 2 points, and values above zero for a logarithmic scale".to_owned());
        }
        let value = |index: u32| {
            let done = f64::from(index) / f64::from(self.points - 1);
            let value = match self.scale {
                Scale::Linear => a + (b - a) * done,
                Scale::Log => round(a * (b / a).powf(done)),
            };
            // The noise of binary fractions does not belong into a table.
            let value = (value * 1e9).round() / 1e9;
            match unit.as_str() {
                "" if value.fract() == 0.0 && value.abs() < 1e15 => {
                    format!("{value}").parse::<i64>().map_or(Value::Null, Value::from)
                }
                "" => Value::from(value),
                unit => Value::from(format!("{value} {unit}")),
            }
        };
        Ok((0..self.points).map(value).collect())
    }
}

/// Number and unit of a value.
fn split(value: &Value) -> Result<(f64, String), String> {
    if let Some(number) = value.as_f64() {
        return Ok((number, String::new()));
    }
    let text = value.as_str().unwrap_or_default().trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-')).unwrap_or(text.len());
    let number = text[..end].parse().map_err(|_| format!("{value} is no number with a unit"))?;
    Ok((number, text[end..].trim().to_owned()))
}

/// Three digits that count.
fn round(value: f64) -> f64 {
    let scale = 10f64.powf(2.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

/// A value as people write it.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Scenario {
    /// Every cell, or else the scenario itself, with every combination of the factors' levels, the last factor changing fastest.
    /// One point without values when nothing is varied.
    ///
    /// # Errors
    /// When a factor has no values, or there are too many points.
    pub fn points(&self) -> Result<Vec<Point>, Fault> {
        let mut points: Vec<Point> =
            self.cells.keys().map(|cell| Point::from([(CELL.to_owned(), cell.clone())])).collect();
        if points.is_empty() {
            points.push(Point::new());
        }
        for (name, levels) in &self.factors {
            let field = format!("factors.{name}");
            let values = levels.values().map_err(|message| fault(&field, message))?;
            if points.len() * values.len() > POINTS_MAX {
                let message = format!("more than {POINTS_MAX} combinations");
                return Err(fault(&field, message).hint("vary fewer factors at a time, or give them fewer levels"));
            }
            let extended = points.iter().flat_map(|point| {
                values.iter().map(|value| {
                    let mut point = point.clone();
                    point.insert(name.clone(), text(value));
                    point
                })
            });
            points = extended.collect();
        }
        Ok(points)
    }

    /// Adds a factor. The title names its field.
    pub fn vary(&mut self, name: &str, values: Vec<Value>) {
        self.factors.insert(name.to_owned(), Levels::List(values));
        self.add_to_title(&format!("varied: {name}"));
    }

    /// The scenario at a point, checked. It has no factors any more.
    ///
    /// # Errors
    /// When a factor names no field, or the scenario makes no sense with these values.
    pub fn at(&self, point: &Point) -> Result<Self, ScenarioError> {
        let mut scenario = Self { factors: BTreeMap::new(), cells: BTreeMap::new(), ..self.clone() };
        let mut overrides = Overrides::default();
        let (mut burst, mut jitter) = (None, None);
        let mut json = None;
        let settings = self.settings_at(point)?;
        for (name, value) in &settings {
            let chosen = text(value);
            let wrong = |error: &dyn core::fmt::Display| error_at(self, name, error.to_string(), None);
            match name.as_str() {
                "path.rtt" => overrides.delay = Some(duration_text::parse(&chosen).map_err(|e| wrong(&e))? / 2),
                "path.rate" => overrides.rate = Some(chosen.parse().map_err(|e| wrong(&e))?),
                "path.loss" => overrides.loss = Some(chosen.parse().map_err(|e| wrong(&e))?),
                "path.queue" => overrides.queue = Some(chosen.parse().map_err(|e| wrong(&e))?),
                "path.loss-burst" => burst = Some(chosen.parse::<f64>().map_err(|e| wrong(&e))?),
                "path.jitter" => jitter = Some(duration_text::parse(&chosen).map_err(|e| wrong(&e))?),
                field => {
                    let field = match field.strip_prefix("profile.") {
                        Some(field) => format!("contenders.settings.{field}"),
                        None if field == "fec" => "contenders.settings.fec".to_owned(),
                        None => field.to_owned(),
                    };
                    let json = json.get_or_insert_with(|| serde_json::to_value(&scenario).unwrap_or_default());
                    put(json, &field, value.clone()).map_err(|message| error_at(self, name, message, None))?;
                }
            }
        }
        if let Some(json) = json {
            scenario = serde_json::from_value(json).map_err(|error| {
                let names = settings.iter().map(|(name, _)| name);
                let names = names.filter(|name| !SHORTHANDS.iter().any(|(short, _)| short == name));
                let names = names.cloned().collect::<Vec<_>>().join(", ");
                let message = error.to_string();
                let hint = read::suggestion_of(&message);
                error_at(self, &names, message, hint)
            })?;
        }
        if let Some(jitter) = jitter {
            each_link(&mut scenario, |link| link.jitter = jitter);
        }
        // A factor's shorthand for one direction leaves no second one behind.
        let scenario = overrides.replace(scenario)?;
        with_burst(scenario, burst, self)
    }

    /// The fields that a point sets, with their values: those of its cell first, so that a factor may replace them.
    fn settings_at(&self, point: &Point) -> Result<Vec<(String, Value)>, ScenarioError> {
        let mut settings = Vec::new();
        if let Some(name) = point.get(CELL) {
            let missing = || error_at(self, name, "there is no such cell".to_owned(), None);
            let cell = self.cells.get(name).ok_or_else(missing)?;
            settings.extend(cell.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        for (name, chosen) in point.iter().filter(|(name, _)| *name != CELL) {
            // The value with its type: a number is no text.
            let typed = self.factors.get(name).and_then(|levels| levels.values().ok());
            let value = typed.and_then(|values| values.into_iter().find(|value| text(value) == *chosen));
            settings.push((name.clone(), value.unwrap_or_else(|| Value::from(chosen.as_str()))));
        }
        Ok(settings)
    }
}

fn with_burst(mut scenario: Scenario, burst: Option<f64>, origin: &Scenario) -> Result<Scenario, ScenarioError> {
    let Some(length) = burst else { return Ok(scenario) };
    each_link(&mut scenario, |link| {
        if let Ok(mean) = units::Probability::new(link.loss.mean())
            && mean.get() > 0.0
        {
            link.loss = if length <= 1.0 { Loss::Iid { p: mean } } else { Loss::Burst { mean, length } };
        }
    });
    scenario.check().map_err(|Fault { field, message, hint }| {
        error_at(origin, "path.loss-burst", format!("{field}: {message}"), hint)
    })?;
    Ok(scenario)
}

fn each_link(scenario: &mut Scenario, change: impl Fn(&mut LinkConfig)) {
    change(&mut scenario.path.down);
    if let Some(up) = &mut scenario.path.up {
        change(up);
    }
}

fn error_at(scenario: &Scenario, name: &str, message: String, hint: Option<String>) -> ScenarioError {
    let shorthands = SHORTHANDS.iter().map(|(name, _)| *name);
    let tables = ["path", "traffic", "run", "profile"];
    let known = name.split('.').next().is_some_and(|table| tables.contains(&table));
    let hint = hint.or_else(|| match nearest(name, shorthands) {
        Some(meant) if meant != name => Some(format!("did you mean `{meant}`?")),
        _ if !known => {
            Some("a factor is a field such as `traffic.connections`, `profile.acks.every` or `path.rtt`".to_owned())
        }
        _ => None,
    });
    ScenarioError { origin: scenario.name.clone(), line: None, field: Some(format!("factors.{name}")), message, hint }
}

/// Sets a field of a table by its dotted name. Missing tables are created; whether the field exists is checked when the whole is read.
pub(crate) fn put(table: &mut Value, name: &str, value: Value) -> Result<(), String> {
    let mut place = table;
    for part in name.split('.') {
        let Some(fields) = place.as_object_mut() else {
            return Err(format!("`{part}` of `{name}` is no field of a table"));
        };
        place = fields.entry(part).or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    *place = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{load, parse};

    fn with(factors: &str) -> Result<Scenario, ScenarioError> {
        let preset = super::super::PRESETS.iter().find(|preset| preset.name == "mobile").unwrap();
        parse(&format!("{}\n[factors]\n{factors}", preset.text), "test.toml")
    }

    #[test]
    fn every_combination_is_a_point() {
        let scenario = with(
            "\"path.rtt\" = [\"20 ms\", \"200 ms\"]\n\"traffic.connections\" = \"1..3\"\n\"profile.acks.every\" = [2, 10]",
        )
        .unwrap();
        let points = scenario.points().unwrap();
        assert_eq!(points.len(), 12);
        let last = scenario.at(&points[11]).unwrap();
        assert_eq!(last.path.base_rtt(), units::Duration::from_millis(200));
        assert_eq!(last.traffic.connections, 3);
        assert_eq!(last.contenders.settings["acks"]["every"], 10);
        assert!(last.factors.is_empty() && last.digest() != scenario.at(&points[0]).unwrap().digest());
        assert_eq!(load("mobile").unwrap().points().unwrap(), [Point::new()]);
    }

    #[test]
    fn spreads_and_bursts() {
        let values = |text: &str| {
            let scenario = with(&format!("\"path.rtt\" = {text}")).unwrap();
            scenario
                .points()
                .unwrap()
                .into_iter()
                .map(|mut point| point.remove("path.rtt").unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            values("{ from = \"5 ms\", to = \"500 ms\", points = 3, scale = \"log\" }"),
            ["5 ms", "50 ms", "500 ms"]
        );
        assert_eq!(values("{ from = \"10 ms\", to = \"40 ms\", points = 4 }"), ["10 ms", "20 ms", "30 ms", "40 ms"]);
        let bursts = with("\"path.loss-burst\" = [1, 6]").unwrap();
        let losses: Vec<Loss> =
            bursts.points().unwrap().iter().map(|point| bursts.at(point).unwrap().path.down.loss).collect();
        let mean = "5 %".parse().unwrap();
        assert_eq!(losses, [Loss::Iid { p: mean }, Loss::Burst { mean, length: 6.0 }]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (factors, place, hint) in [
            ("\"path.rtt\" = []", "factors.path.rtt: there are no values", None),
            ("\"path.rtt\" = \"5..x\"", "factors.path.rtt: `5..x` is no range", None),
            ("\"traffic.connections\" = [1, 1]", "factors.traffic.connections: 1 is named twice", None),
        ] {
            let error = with(factors).unwrap_err();
            assert!(error.to_string().contains(place), "{error}");
            assert!(error.line.is_some(), "{error:?}");
            assert_eq!(error.hint.as_deref(), hint);
        }
        for (factors, part, hint) in [
            (
                "\"trafic.connections\" = [1]",
                "factors.trafic.connections: unknown field `trafic`",
                "did you mean `traffic`?",
            ),
            ("\"path.rt\" = [\"5 ms\"]", "factors.path.rt: unknown field `rt`", "path.rtt"),
            ("\"path.rtt\" = [\"5\"]", "factors.path.rtt: cannot read `5`", ""),
        ] {
            let scenario = with(factors).unwrap();
            let error = scenario.at(&scenario.points().unwrap()[0]).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.hint.clone().unwrap_or_default().contains(hint), "{error:?}");
        }
    }
}
