//! Settings from the command line that replace those of the file.

use core::str::FromStr;

use netem::{LinkConfig, Loss, Queue, VaryingRate};
use transport::ack_frequency::AckFrequency;
use units::{Bitrate, DataSize, Duration, ParseUnitError, Probability, duration_text::display};

use super::{Fault, Scenario, ScenarioError};

/// Settings that replace the file's. `None` leaves them.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Independent loss, in both directions.
    pub loss: Option<Probability>,
    /// One-way delay of both directions.
    pub delay: Option<Duration>,
    /// Rate of each direction that has one.
    pub rate: Option<Bitrate>,
    /// Queue of each direction that has a rate.
    pub queue: Option<QueueSize>,
    /// Connections that share the path.
    pub connections: Option<u32>,
    /// Streams, or requests in flight, per connection.
    pub streams: Option<u32>,
    /// Measured time after the warm-up.
    pub duration: Option<Duration>,
    /// Number of seeds.
    pub seeds: Option<u32>,
    /// First seed.
    pub seed: Option<u64>,
    /// Congestion controllers that replace those of the file and of its profiles; empty keeps both.
    pub congestion: Vec<String>,
    /// Acknowledgement frequencies; empty keeps those of the file.
    pub ack: Vec<AckFrequency>,
}

/// A queue in bytes (`"125 kB"`) or in bandwidth-delay products (`"2 BDP"`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueSize {
    /// In bytes.
    Bytes(DataSize),
    /// Multiples of rate × base round-trip time.
    Bdp(f64),
}

impl FromStr for QueueSize {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_ascii_lowercase();
        let products = lower.strip_suffix("bdp").and_then(|number| number.trim().parse::<f64>().ok());
        match products {
            Some(products) if (0.0..=1e6).contains(&products) => Ok(Self::Bdp(products)),
            _ => text.parse().map(Self::Bytes),
        }
    }
}

impl core::fmt::Display for QueueSize {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bytes(size) => write!(f, "{size}"),
            Self::Bdp(products) => write!(f, "{products} BDP"),
        }
    }
}

impl QueueSize {
    /// The size on a link of this rate and base round-trip time.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "at most a million products of a checked rate and delay"
    )]
    pub fn in_bytes(self, rate: Bitrate, base_rtt: Duration) -> DataSize {
        match self {
            Self::Bytes(size) => size,
            Self::Bdp(products) => {
                DataSize::from_bytes((products * rate.in_time(base_rtt).as_bytes() as f64).round() as u64)
            }
        }
    }
}

/// The option behind each field that can be replaced, for errors and titles.
const OPTIONS: [(&str, &str); 11] = [
    ("loss", "--loss"),
    ("delay", "--delay"),
    ("rate", "--rate"),
    ("queue", "--queue"),
    ("traffic.connections", "--connections"),
    ("traffic.streams", "--streams"),
    ("run.duration", "--duration"),
    ("run.seeds", "--seeds"),
    ("run.seed", "--seed"),
    ("contenders.congestion", "--cc"),
    ("contenders.ack", "--ack"),
];

/// Names of a factor that varies the field of a link, or of the contenders, beside the field itself.
const ALSO_VARIED_BY: [(&str, &[&str]); 5] = [
    ("loss", &["path.loss", "path.down.loss", "path.up.loss"]),
    ("delay", &["path.rtt", "path.down.delay", "path.up.delay"]),
    ("rate", &["path.rate", "path.down.rate", "path.up.rate"]),
    ("queue", &["path.queue", "path.down.queue", "path.up.queue"]),
    ("contenders.ack", &["profile.ack_frequency"]),
];

impl Overrides {
    /// Scenario with these settings, checked again. A factor of a replaced field is dropped. The title names each effective option.
    ///
    /// # Errors
    /// When the result makes no sense; the error names the option.
    pub fn apply(&self, before: Scenario) -> Result<Scenario, ScenarioError> {
        let given = self.given();
        let mut after = before.clone();
        let mut fixed = Vec::new();
        for (field, _) in &given {
            let names = ALSO_VARIED_BY.iter().find(|(name, _)| name == field).map_or(&[][..], |(_, names)| names);
            if names.iter().chain([field]).filter(|name| after.factors.remove(**name).is_some()).count() > 0 {
                fixed.push(*field);
            }
        }
        let mut after = self.replace(after)?;
        let replaced: Vec<String> = given
            .iter()
            .filter(|(field, _)| fixed.contains(field) || differs(field, &before, &after))
            .filter_map(|(field, value)| {
                let (_, option) = OPTIONS.iter().find(|(name, _)| name == field)?;
                Some(if value.contains(' ') { format!("{option} '{value}'") } else { format!("{option} {value}") })
            })
            .collect();
        if !replaced.is_empty() {
            after.add_to_title(&format!("replaced: {}", replaced.join(" ")));
        }
        Ok(after)
    }

    /// The fields that are to be replaced, with their values as on the command line.
    fn given(&self) -> Vec<(&'static str, String)> {
        let joined = |list: Vec<String>| (!list.is_empty()).then(|| list.join(","));
        let fields = [
            ("loss", self.loss.map(|loss| loss.to_string())),
            ("delay", self.delay.map(|delay| display(delay).to_string())),
            ("rate", self.rate.map(|rate| rate.to_string())),
            ("queue", self.queue.map(|queue| queue.to_string())),
            ("traffic.connections", self.connections.map(|count| count.to_string())),
            ("traffic.streams", self.streams.map(|count| count.to_string())),
            ("run.duration", self.duration.map(|duration| display(duration).to_string())),
            ("run.seeds", self.seeds.map(|count| count.to_string())),
            ("run.seed", self.seed.map(|seed| seed.to_string())),
            ("contenders.congestion", joined(self.congestion.clone())),
            ("contenders.ack", joined(self.ack.iter().map(ToString::to_string).collect())),
        ];
        fields.into_iter().filter_map(|(field, value)| Some((field, value?))).collect()
    }

    /// The scenario with these settings under its own title, checked again.
    pub(super) fn replace(&self, mut scenario: Scenario) -> Result<Scenario, ScenarioError> {
        // The delay first: a queue in bandwidth-delay products depends on it.
        self.each_link(&mut scenario, |link, _| link.delay = self.delay.unwrap_or(link.delay));
        let base_rtt = scenario.path.base_rtt();
        self.each_link(&mut scenario, |link, overrides| overrides.apply_to(link, base_rtt));
        let (traffic, run) = (&mut scenario.traffic, &mut scenario.run);
        traffic.connections = self.connections.unwrap_or(traffic.connections);
        traffic.streams = self.streams.unwrap_or(traffic.streams);
        run.duration = self.duration.unwrap_or(run.duration);
        run.seeds = self.seeds.unwrap_or(run.seeds);
        run.seed = self.seed.unwrap_or(run.seed);
        if !self.congestion.is_empty() {
            scenario.contenders.congestion.clone_from(&self.congestion);
            // Who names controllers wants these and nobody else.
            scenario.contenders.profiles.clear();
        }
        if !self.ack.is_empty() {
            scenario.contenders.ack.clone_from(&self.ack);
        }
        scenario.check().map_err(|Fault { field, message, hint }| {
            let matches = |name: &str| {
                field == name
                    || field.strip_prefix("path.down.").is_some_and(|rest| rest == name)
                    || field.strip_prefix("path.up.").is_some_and(|rest| rest == name)
            };
            let option = OPTIONS.iter().find(|(name, _)| matches(name)).map(|&(_, option)| option);
            ScenarioError {
                origin: option.unwrap_or(&scenario.name).to_owned(),
                line: None,
                field: option.is_none().then_some(field),
                message,
                hint,
            }
        })?;
        Ok(scenario)
    }

    fn each_link(&self, scenario: &mut Scenario, change: impl Fn(&mut LinkConfig, &Self)) {
        change(&mut scenario.path.down, self);
        if let Some(up) = &mut scenario.path.up {
            change(up, self);
        }
    }

    fn apply_to(&self, link: &mut LinkConfig, base_rtt: Duration) {
        if let Some(p) = self.loss {
            link.loss = if p == Probability::ZERO { Loss::None } else { Loss::Iid { p } };
        }
        if link.rate.is_some() {
            link.rate = self.rate.or(link.rate);
        }
        if let Some(rate) = self.rate
            && link.varying_rate.take().is_some()
        {
            link.rate = Some(rate);
        }
        let rate = link.rate.or_else(|| link.varying_rate.as_ref().map(VaryingRate::mean));
        if let (Some(rate), Some(queue)) = (rate, self.queue) {
            link.queue = Queue::DropTail { bytes: queue.in_bytes(rate, base_rtt) };
        }
    }
}

/// Returns whether two scenarios differ in a field of [`OPTIONS`].
fn differs(field: &str, one: &Scenario, other: &Scenario) -> bool {
    let links = |differ: fn(&LinkConfig, &LinkConfig) -> bool| {
        differ(&one.path.down, &other.path.down) || differ(one.path.up(), other.path.up())
    };
    match field {
        "loss" => links(|one, other| one.loss != other.loss),
        "delay" => links(|one, other| one.delay != other.delay),
        "rate" => links(|one, other| one.rate != other.rate),
        "queue" => links(|one, other| one.queue != other.queue),
        "traffic.connections" => one.traffic.connections != other.traffic.connections,
        "traffic.streams" => one.traffic.streams != other.traffic.streams,
        "run.duration" => one.run.duration != other.run.duration,
        "run.seeds" => one.run.seeds != other.run.seeds,
        "run.seed" => one.run.seed != other.run.seed,
        _ => one.contenders != other.contenders,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    #[test]
    fn the_title_names_every_option_that_has_changed_something() {
        let mobile = load("mobile").unwrap();
        let title = |overrides: &Overrides| overrides.apply(mobile.clone()).unwrap().title;
        let told = |overrides: &Overrides| title(overrides).strip_prefix(mobile.title.as_str()).unwrap().to_owned();
        let cases: [(Overrides, &str); 11] = [
            (Overrides { loss: "1 %".parse().ok(), ..Overrides::default() }, "--loss '1 %'"),
            (Overrides { delay: Some(Duration::from_millis(50)), ..Overrides::default() }, "--delay '50 ms'"),
            (Overrides { rate: Some(Bitrate::from_mbps(50)), ..Overrides::default() }, "--rate '50 Mbit/s'"),
            (Overrides { queue: "2 BDP".parse().ok(), ..Overrides::default() }, "--queue '2 BDP'"),
            (Overrides { connections: Some(1), ..Overrides::default() }, "--connections 1"),
            (Overrides { streams: Some(3), ..Overrides::default() }, "--streams 3"),
            (Overrides { duration: Some(Duration::from_secs(5)), ..Overrides::default() }, "--duration '5 s'"),
            (Overrides { seeds: Some(6), ..Overrides::default() }, "--seeds 6"),
            (Overrides { seed: Some(7), ..Overrides::default() }, "--seed 7"),
            (Overrides { congestion: vec!["cubic".into(), "bbr3".into()], ..Overrides::default() }, "--cc cubic,bbr3"),
            (Overrides { ack: vec![AckFrequency::Adaptive], ..Overrides::default() }, "--ack adaptive"),
        ];
        for (overrides, option) in &cases {
            assert_eq!(told(overrides), format!("; replaced: {option}"));
        }
        let both = Overrides { connections: Some(1), seeds: Some(6), ..Overrides::default() };
        assert_eq!(told(&both), "; replaced: --connections 1 --seeds 6");
        let same = Overrides { connections: Some(20), ..Overrides::default() };
        assert_eq!(told(&same), "", "what the preset says already is replaced by nothing");
        // Replaced twice, as by a program that passes a scenario on.
        assert_eq!(both.apply(both.apply(mobile.clone()).unwrap()).unwrap().title, title(&both));
    }

    #[test]
    fn a_replaced_field_is_no_longer_varied() {
        let scaling = load("scaling").unwrap();
        assert!(scaling.factors.contains_key("traffic.connections"));
        let one = Overrides { connections: Some(1), ..Overrides::default() }.apply(scaling.clone()).unwrap();
        assert_eq!((one.traffic.connections, one.points().unwrap().len()), (1, 1));
        assert!(one.title.ends_with("; replaced: --connections 1"), "{}", one.title);
        let rtt = load("claims-rtt").unwrap();
        let fixed =
            Overrides { delay: Some(Duration::from_millis(10)), ..Overrides::default() }.apply(rtt.clone()).unwrap();
        assert_eq!(fixed.factors.len() + 1, rtt.factors.len(), "{:?}", rtt.factors.keys());
    }

    #[test]
    fn options_replace_settings() {
        let overrides = Overrides {
            loss: Some("1 %".parse().unwrap()),
            delay: Some(Duration::from_millis(50)),
            rate: Some(Bitrate::from_mbps(50)),
            queue: Some("2 BDP".parse().unwrap()),
            connections: Some(1),
            seeds: Some(30),
            congestion: vec!["cubic".to_owned()],
            ..Overrides::default()
        };
        let before = load("mobile").unwrap();
        let scenario = overrides.apply(before.clone()).unwrap();
        let down = &scenario.path.down;
        assert_eq!(down.loss.mean(), 0.01);
        assert_eq!(scenario.path.base_rtt(), Duration::from_millis(100));
        assert_eq!(down.queue, Queue::DropTail { bytes: DataSize::from_bytes(1_250_000) });
        assert_eq!((scenario.traffic.connections, scenario.run.seeds), (1, 30));
        assert_eq!(scenario.contenders.congestion, ["cubic"]);
        assert!(!before.contenders.profiles.is_empty() && scenario.contenders.profiles.is_empty());
        assert_ne!(scenario.digest(), before.digest());
        assert_eq!(Overrides::default().apply(before.clone()).unwrap(), before);
    }

    #[test]
    fn errors_name_the_option() {
        let mobile = || load("mobile").unwrap();
        let wrong = Overrides { connections: Some(0), ..Overrides::default() };
        assert_eq!(wrong.apply(mobile()).unwrap_err().to_string(), "--connections: 0 is out of range: 1 to 1000");
        let wrong = Overrides { queue: Some("10 B".parse().unwrap()), ..Overrides::default() };
        assert!(wrong.apply(mobile()).unwrap_err().to_string().starts_with("--queue: 10 B has no room"));
        let wrong = Overrides { congestion: vec!["cubic".to_owned(); 2], ..Overrides::default() };
        assert_eq!(wrong.apply(mobile()).unwrap_err().to_string(), "--cc: `cubic` is named twice");
    }

    #[test]
    fn queue_sizes() {
        assert_eq!("1.5bdp".parse(), Ok(QueueSize::Bdp(1.5)));
        assert_eq!("125 kB".parse(), Ok(QueueSize::Bytes(DataSize::from_bytes(125_000))));
        for bad in ["", "BDP", "-1 BDP", "NaN BDP", "1e300 BDP"] {
            assert!(bad.parse::<QueueSize>().is_err(), "{bad}");
        }
    }
}
