//! Scenarios of `scenarios/real-time`, the figures that answer their claims, with the connections of the scenario and with 20 of
//! them, and the order of the runs.

/// A figure of one contender over that of another; shares, which may be zero, as a difference.
pub(super) struct Ratio {
    pub(super) figure: &'static str,
    pub(super) of: &'static str,
    pub(super) over: &'static str,
}

const fn ratio(figure: &'static str, of: &'static str, over: &'static str) -> Ratio {
    Ratio { figure, of, over }
}

const CUBIC: &str = "tiderace cubic";
const AUTO: &str = "tiderace auto";
pub(super) const KERNEL: &str = "kernel-cubic";
const HTTP1: &str = "kernel-cubic:http1:6";

/// A scenario, and the ratios that answer its claim.
pub(super) struct Claim {
    pub(super) scenario: &'static str,
    pub(super) ratios: &'static [Ratio],
    /// Options beside `--connections 20` for the opposite condition: many connections that fill the path.
    pub(super) twenty: Option<&'static [&'static str]>,
}

/// The claims, in the order of the table.
pub(super) const CLAIMS: [Claim; 10] = [
    Claim {
        scenario: "api",
        ratios: &[
            ratio("request_p50", CUBIC, KERNEL),
            ratio("request_p50", AUTO, KERNEL),
            ratio("request_p95", CUBIC, KERNEL),
            ratio("request_p95", AUTO, KERNEL),
            ratio("request_p95", "kernel-bbr", KERNEL),
            ratio("request_p99", CUBIC, KERNEL),
            ratio("request_p99", AUTO, KERNEL),
        ],
        twenty: Some(&["--duration", "16 s"]),
    },
    Claim {
        scenario: "feed",
        ratios: &[
            ratio("request_p50", CUBIC, KERNEL),
            ratio("request_p50", AUTO, KERNEL),
            ratio("request_p50", AUTO, HTTP1),
            ratio("feed_seen", AUTO, KERNEL),
            ratio("feed_seen", HTTP1, KERNEL),
        ],
        // Each client asks for 3 Mbit/s: the path carries all answers, and a third of the images.
        twenty: Some(&["--duration", "10 s", "--rate", "20 Mbit/s", "--queue", "250 kB"]),
    },
    Claim {
        scenario: "proxy",
        ratios: &[ratio("goodput", CUBIC, KERNEL), ratio("goodput", AUTO, KERNEL)],
        twenty: Some(&["--duration", "5 s"]),
    },
    Claim {
        scenario: "uploads",
        ratios: &[
            ratio("goodput", "kernel-cubic:4", KERNEL),
            ratio("goodput", CUBIC, KERNEL),
            ratio("goodput", AUTO, KERNEL),
            ratio("goodput", AUTO, "kernel-cubic:4"),
        ],
        twenty: Some(&["--duration", "8 s"]),
    },
    Claim {
        scenario: "blocking",
        ratios: &[
            ratio("request_p50", CUBIC, KERNEL),
            ratio("request_p95", CUBIC, KERNEL),
            ratio("request_p95", AUTO, KERNEL),
            ratio("request_p95", HTTP1, KERNEL),
            ratio("request_p95", "kernel-bbr", KERNEL),
        ],
        twenty: Some(&["--duration", "8 s"]),
    },
    Claim {
        scenario: "setup",
        ratios: &[
            ratio("flow_p50", "tiderace new connection", KERNEL),
            ratio("flow_p50", "tiderace 0-RTT", KERNEL),
            ratio("flow_p50", "tiderace new connection", "kernel-cubic:tls1.2"),
            ratio("flow_p50", "kernel-cubic:tls1.2", KERNEL),
            ratio("flow_p50", "kernel-cubic:fast-open", KERNEL),
            ratio("flow_p50", "kernel-cubic:fast-open:x25519", KERNEL),
            ratio("flow_p50", "tiderace 0-RTT", "kernel-cubic:fast-open:x25519"),
            ratio("flow_p95", "tiderace new connection", KERNEL),
            ratio("flow_p95", "tiderace 0-RTT", KERNEL),
            ratio("flow_p95", "kernel-cubic:fast-open:x25519", KERNEL),
        ],
        // Has 60 connections.
        twenty: None,
    },
    Claim {
        scenario: "buffer",
        ratios: &[ratio("goodput", "kernel-cubic:buffer=128KiB", KERNEL), ratio("goodput", CUBIC, KERNEL)],
        twenty: Some(&["--duration", "5 s"]),
    },
    Claim {
        scenario: "mtu",
        ratios: &[
            ratio("goodput", "kernel-cubic:mss=1310", KERNEL),
            ratio("goodput", "tiderace 1350 bytes", "tiderace 1500 bytes"),
            ratio("goodput", "tiderace auto, 1350 bytes", "tiderace auto, 1500 bytes"),
            ratio("goodput", "tiderace 1350 bytes", "kernel-cubic:mss=1310"),
        ],
        // The window of each is limited by loss with eight; 20 fill the path.
        twenty: Some(&["--duration", "5 s"]),
    },
    Claim {
        scenario: "home",
        ratios: &[
            ratio("goodput", CUBIC, KERNEL),
            ratio("goodput", AUTO, KERNEL),
            ratio("cpu", CUBIC, KERNEL),
            ratio("cpu", AUTO, KERNEL),
        ],
        twenty: Some(&["--duration", "4 s"]),
    },
    Claim {
        scenario: "video",
        ratios: &[ratio("video_stalled", CUBIC, KERNEL), ratio("video_stalled", AUTO, KERNEL)],
        // A path of 20 times the rate and queue: on that of the scenario every player would stall.
        twenty: Some(&["--duration", "30 s", "--rate", "22 Mbit/s", "--queue", "1280 kB"]),
    },
];

/// A share of the connections of a contender, in percent, with the share that a claim has.
pub(super) struct Share {
    pub(super) figure: &'static str,
    pub(super) of: &'static str,
    pub(super) claimed: Option<f64>,
}

/// Scenario that counts connections, and the shares of them that answer its claims.
pub(super) const LOSSES: (&str, &[Share]) = (
    "losses",
    &[
        Share { figure: "resent", of: KERNEL, claimed: Some(45.0) },
        Share { figure: "resent_setup", of: KERNEL, claimed: Some(30.0) },
        Share { figure: "resent_after", of: KERNEL, claimed: None },
        Share { figure: "resent", of: "kernel-cubic:x25519", claimed: Some(45.0) },
        Share { figure: "resent_setup", of: "kernel-cubic:x25519", claimed: Some(30.0) },
    ],
);

/// Runs of one scenario: with its own connections, or with 20.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) scenario: &'static str,
    pub(super) is_twenty: bool,
}

impl Set {
    /// Name in the rows and in the files of the runs.
    pub(super) fn name(self) -> String {
        if self.is_twenty { format!("{}-20", self.scenario) } else { self.scenario.to_owned() }
    }

    /// Options of `lab run` that make these runs of the scenario.
    pub(super) fn options(self) -> Vec<&'static str> {
        let claim = CLAIMS.iter().find(|claim| self.is_twenty && claim.scenario == self.scenario);
        let options = claim.and_then(|claim| claim.twenty);
        options.map_or_else(Vec::new, |options| [&["--connections", "20"], options].concat())
    }
}

const fn own(scenario: &'static str) -> Set {
    Set { scenario, is_twenty: false }
}

const fn twenty(scenario: &'static str) -> Set {
    Set { scenario, is_twenty: true }
}

/// Sets that run one after another, beside those of the other lanes: they take little of a CPU.
pub(super) const LANES: [&[Set]; 3] = [
    &[own("api"), own("feed"), twenty("video"), twenty("buffer")],
    &[own("setup"), own("video"), own("losses"), twenty("feed"), twenty("mtu"), twenty("blocking")],
    &[
        own("buffer"),
        own("uploads"),
        own("blocking"),
        own("mtu"),
        own("proxy"),
        twenty("api"),
        twenty("uploads"),
        twenty("proxy"),
    ],
];
/// Sets that run alone, because CPU time is compared.
pub(super) const ALONE: &[Set] = &[own("home"), twenty("home")];

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use lab::scenario::{Scenario, load};

    use super::*;

    /// Start and end of a run: the network, the handshakes, the simulator beside our stacks.
    const BESIDE_A_RUN: Duration = Duration::from_millis(500);

    fn scenario(name: &str) -> Scenario {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        load(root.join(format!("scenarios/real-time/{name}.toml")).to_str().unwrap()).unwrap()
    }

    fn contenders(scenario: &Scenario) -> Vec<String> {
        let settings = &scenario.contenders;
        let ours = settings
            .congestion
            .iter()
            .cloned()
            .chain(settings.profiles.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
        ours.map(|name| format!("tiderace {name}")).chain(settings.stacks.iter().cloned()).collect()
    }

    fn takes(set: Set) -> Duration {
        let scenario = scenario(set.scenario);
        let options = set.options();
        let at = options.iter().position(|option| *option == "--duration");
        let seconds = |text: &str| Duration::from_secs(text.trim_end_matches(" s").parse().unwrap());
        let measured = at.map_or(scenario.run.duration, |at| seconds(options[at + 1]));
        let runs = u32::try_from(contenders(&scenario).len()).unwrap() * scenario.run.seeds;
        (scenario.run.warmup + measured + BESIDE_A_RUN) * runs
    }

    #[test]
    fn every_set_runs_once() {
        let all: Vec<Set> = LANES.concat().into_iter().chain(ALONE.iter().copied()).collect();
        let own_sets = CLAIMS.iter().map(|claim| own(claim.scenario)).chain([own(LOSSES.0)]);
        let expected: Vec<Set> = own_sets
            .chain(CLAIMS.iter().filter(|claim| claim.twenty.is_some()).map(|claim| twenty(claim.scenario)))
            .collect();
        for set in &expected {
            assert_eq!(all.iter().filter(|one| *one == set).count(), 1, "{}", set.name());
        }
        assert_eq!(all.len(), expected.len());
    }

    #[test]
    fn ratios_are_of_contenders_of_the_scenario() {
        let shares = LOSSES.1.iter().map(|share| (LOSSES.0, share.of));
        let ratios = CLAIMS.iter().flat_map(|claim| claim.ratios.iter().map(move |ratio| (claim.scenario, ratio)));
        let of_ratios = ratios.flat_map(|(name, ratio)| [(name, ratio.of), (name, ratio.over)]);
        for (name, contender) in of_ratios.chain(shares) {
            assert!(contenders(&scenario(name)).iter().any(|one| one == contender), "{name}: {contender}");
        }
    }

    #[test]
    fn all_sets_take_less_than_an_hour() {
        let of = |sets: &[Set]| sets.iter().map(|set| takes(*set)).sum::<Duration>();
        let together = LANES.iter().map(|lane| of(lane)).max().unwrap() + of(ALONE);
        assert!(together < Duration::from_secs(60 * 60), "{together:?}");
    }
}
