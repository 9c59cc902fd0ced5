//! The scenarios that are built in: the files of `scenarios/`.

/// A scenario that is built in.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name on the command line; the file is `scenarios/NAME.toml`.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All presets, in the order in which lists show them.
        pub const PRESETS: &[Preset] = &[$(Preset {
            name: $name,
            text: include_str!(concat!("../../../../scenarios/", $name, ".toml")),
        }),*];
    };
}

presets![
    "mobile",
    "production",
    "satellite",
    "high-loss",
    "okru-mobile",
    "uber-india",
    "wifi",
    "2g",
    "3g",
    "lte",
    "bufferbloat",
    "policer",
    "asymmetric",
    "datacenter",
    "scaling",
    "video",
    "page",
    "feed",
    "matrix-rtt-load",
    "claims-ack",
    "claims-fairness",
    "claims-fec",
    "claims-fec-bulk",
    "claims-loss",
    "claims-narrow",
    "claims-packet-rate",
    "claims-pacing",
    "claims-rtt",
    "fec-burst3",
    "fec-burst6",
    "fec-group",
    "fec-iid",
    "fec-noharm",
    "fec-tail",
    "full-stack",
];

#[cfg(test)]
mod tests {
    use netem::Queue;
    use units::Duration;

    use super::*;
    use crate::scenario::load;

    #[test]
    fn presets_are_what_they_promise() {
        for (name, loss, rtt_ms, connections) in [
            ("mobile", 0.05, 50, 20),
            ("production", 0.001, 20, 30),
            ("satellite", 0.01, 250, 5),
            ("high-loss", 0.1, 100, 10),
        ] {
            let scenario = load(name).unwrap();
            assert_eq!(scenario.name, name);
            assert_eq!(scenario.path.down.loss.mean(), loss);
            assert_eq!(scenario.path.base_rtt(), Duration::from_millis(rtt_ms));
            assert_eq!(scenario.traffic.connections, connections);
            for link in [&scenario.path.down, scenario.path.up()] {
                assert!(link.rate.is_some(), "{name} has a bottleneck");
                assert!(matches!(link.queue, Queue::DropTail { .. }), "{name} has a finite queue");
            }
        }
    }

    #[test]
    fn every_preset_can_be_run_and_names_its_source() {
        for preset in PRESETS {
            let scenario = load(preset.name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(scenario.name, preset.name);
            assert!(scenario.about.contains("Source: "), "{}", preset.name);
            crate::plan::Plan::new(scenario).unwrap_or_else(|error| panic!("{}: {error}", preset.name));
        }
    }
}
