//! Built-in scenarios: the files of `scenarios/`.

/// A scenario that is built in.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name on the command line; the file is `scenarios/NAME.toml`.
    pub name: &'static str,
    /// Group of the preset in lists.
    pub group: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($group:literal: $($name:literal)*;)*) => {
        /// All presets, in the order of lists; those of a group are adjacent.
        pub const PRESETS: &[Preset] = &[$($(Preset {
            name: $name,
            group: $group,
            text: include_str!(concat!("../../../../scenarios/", $name, ".toml")),
        }),*),*];
    };
}

presets! {
    "Mobile and wireless": "mobile" "lte" "3g" "2g" "okru-mobile" "uber-india" "wifi";
    "Networks: LTE and 5G": "lte-rest" "lte-walking" "lte-driving" "5g-rest" "5g-walking" "5g-driving";
    "Networks: Wi-Fi": "wifi-busy" "wifi-roaming" "hotel";
    "Networks: satellite": "leo" "geo";
    "Networks: wired uplinks, and a proxy": "docsis-uplink" "docsis-uplink-aqm" "dsl-uplink" "far-proxy";
    "Wired": "production" "production-paced" "bufferbloat" "policer" "asymmetric" "datacenter" "scaling";
    "Satellite and heavy loss": "satellite" "high-loss";
    "Applications": "page" "video" "feed" "webtransport" "tunnel";
    "Repair (forward error correction)": "fec-iid" "fec-burst3" "fec-burst6" "fec-group" "fec-tail" "fec-noharm" "full-stack";
    "Claims of others, and matrices": "claims-rtt" "claims-loss" "claims-narrow" "claims-fairness" "claims-ack" "claims-pacing"
        "claims-packet-rate" "claims-fec" "claims-fec-bulk" "claims-features" "claims-keys" "claims-nat" "claims-setup"
        "claims-tunnel" "claims-tunnel-live"
        "matrix-rtt-load" "auto-regret" "auto-regret-holdout";
}

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
    fn every_file_is_a_preset_and_groups_stand_together() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            // A folder has scenarios for other purposes.
            .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
            .collect();
        let mut names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        files.sort_unstable();
        names.sort_unstable();
        assert_eq!(files, names);
        let mut groups: Vec<&str> = PRESETS.iter().map(|preset| preset.group).collect();
        groups.dedup();
        let count = groups.len();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), count, "a group is in two places");
    }

    #[test]
    fn every_preset_can_be_run_and_names_its_source() {
        for preset in PRESETS {
            let scenario = load(preset.name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(scenario.name, preset.name);
            assert!(scenario.about.contains("Source: "), "{}", preset.name);
            let is_network = preset.group.starts_with("Networks: ");
            assert!(!is_network || scenario.about.contains("Leaves out: "), "{}", preset.name);
            let plan = crate::plan::Plan::new(scenario).unwrap_or_else(|error| panic!("{}: {error}", preset.name));
            assert!(plan.contender_count() > 1 || plan.points().len() > 1, "{} compares nothing", preset.name);
        }
    }
}
