//! Settings from the command line that replace those of the file.

use core::str::FromStr;

use netem::{LinkConfig, Loss, Queue};
use transport::ack_frequency::AckFrequency;
use units::{Bitrate, DataSize, Duration, ParseUnitError, Probability};

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
    /// Congestion controllers, in place of those of the file and of its profiles; empty leaves both.
    pub congestion: Vec<String>,
    /// Policies of acknowledging; empty leaves those of the file.
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

/// The option behind each field that can be replaced, for errors.
const OPTIONS: [(&str, &str); 9] = [
    ("loss", "--loss"),
    ("delay", "--delay"),
    ("rate", "--rate"),
    ("queue", "--queue"),
    ("traffic.connections", "--connections"),
    ("traffic.streams", "--streams"),
    ("run.duration", "--duration"),
    ("run.seeds", "--seeds"),
    ("run.seed", "--seed"),
];

impl Overrides {
    /// The scenario with these settings, checked again.
    ///
    /// # Errors
    /// When the result makes no sense; the error names the option.
    pub fn apply(&self, mut scenario: Scenario) -> Result<Scenario, ScenarioError> {
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
            let option = match field.as_str() {
                "contenders.congestion" => Some("--cc"),
                "contenders.ack" => Some("--ack"),
                _ => option,
            };
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
        if let (Some(rate), Some(queue)) = (link.rate, self.queue) {
            link.queue = Queue::DropTail { bytes: queue.in_bytes(rate, base_rtt) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

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
