//! Startup and Drain.

use super::clauses::{bps, found, goes, mbps, number};
use super::{Act, Case, Clause, Scene, Seen, Step, Verdict, When, millis};

/// Startup is left for Drain.
const TO_DRAIN: Clause = Clause { text: "STARTUP is left for DRAIN", check: |seen| goes(seen, "startup", "drain", 0) };

/// full_bw_now and full_bw_reached.
const FULL: Clause = Clause {
    text: "full_bw_now and full_bw_reached are set when STARTUP ends",
    check: |seen| {
        found(seen, "the end of STARTUP", || {
            let (_, change) = seen.first_entry("startup", 0)?;
            let model = seen.model(change.after)?;
            let texts = format!("now {}, reached {}", model.full_now, model.full_reached);
            Some(Verdict::of(model.full_now && model.full_reached, texts))
        })
    },
};

pub(super) static PLATEAU: Case = Case {
    name: "Exiting STARTUP on Bandwidth Plateau",
    note: None,
    scenes: &[Scene {
        clauses: &[
            Clause {
                text: "max_bw is within 2 % of the bottleneck's rate",
                check: |seen| {
                    found(seen, "the end of STARTUP", || {
                        let (_, change) = seen.first_entry("startup", 0)?;
                        let bandwidth = bps(seen.model(change.after)?.max_bandwidth);
                        let rate = seen.visible(seen.scene.kbps);
                        let seen = format!("{} of {}", mbps(bandwidth), mbps(rate));
                        Some(Verdict::of((bandwidth / rate - 1.0).abs() <= 0.02, seen))
                    })
                },
            },
            Clause {
                text: "full_bw_count has reached 3, and not before the end",
                check: |seen| {
                    found(seen, "the end of STARTUP", || {
                        let (_, change) = seen.first_entry("startup", 0)?;
                        let (before, after) = (seen.model(change.before)?, seen.model(change.after)?);
                        let counts = (before.plateau_rounds, after.plateau_rounds);
                        let early = before.full_now || before.full_reached;
                        Some(Verdict::of(counts == (2, 3) && !early, format!("{} → {}", counts.0, counts.1)))
                    })
                },
            },
            FULL,
            TO_DRAIN,
        ],
        ..Scene::PLAIN
    }],
};

pub(super) static LOSS: Case = Case {
    name: "Exiting STARTUP on Loss When Application-Limited",
    note: None,
    scenes: &[Scene {
        steps: &[
            Step { when: When::At(20), act: Act::Limit(12_000) },
            Step { when: When::At(1_000), act: Act::Lose(8) },
            Step { when: When::After(300), act: Act::Lose(0) },
        ],
        clauses: &[
            Clause {
                text: "STARTUP lasts while samples are application-limited and nothing is lost",
                check: |seen| {
                    found(seen, "a loss", || {
                        let lossy = seen.from(seen.step(1)?);
                        let model = seen.model(lossy)?;
                        let state = seen.moment(lossy).view.state;
                        let told = format!("{state} at 1 s, full_bw_count {}", model.plateau_rounds);
                        Some(Verdict::of(state == "startup" && !model.full_reached, told))
                    })
                },
            },
            Clause {
                text: "the loss ends STARTUP, without a plateau",
                check: |seen| {
                    found(seen, "the end of STARTUP", || {
                        let (_, change) = seen.first_entry("startup", 0)?;
                        let (at, lossy) = (seen.moment(change.after).at, seen.step(1)?);
                        let model = seen.model(change.after)?;
                        let soon = at >= lossy && at.saturating_since(lossy).as_millis() <= 300;
                        let told = format!(
                            "at {:.1} ms, inflight_longterm {:?}, full_bw_count {}",
                            millis(at),
                            model.inflight_longterm,
                            model.plateau_rounds
                        );
                        Some(Verdict::of(soon && model.inflight_longterm.is_some() && model.plateau_rounds < 3, told))
                    })
                },
            },
            FULL,
            TO_DRAIN,
        ],
        ..Scene::PLAIN
    }],
};

/// The gain of Drain.
const DRAIN_GAIN: Clause = Clause {
    text: "pacing_gain is DrainPacingGain (0.5)",
    check: |seen| {
        found(seen, "DRAIN", || {
            let drain = seen.enters("drain", 0)?;
            let gain = seen.model(drain)?.pacing_gain_percent;
            Some(Verdict::of(gain == 50, format!("{gain} %")))
        })
    },
};

/// Bytes that may be sent in the step that ends a state.
fn slack(seen: &Seen<'_>, moment: usize) -> u64 {
    2 * seen.moment(moment).view.mtu
}

pub(super) static DRAIN_INFLIGHT: Case = Case {
    name: "Exiting DRAIN Based on Inflight",
    note: None,
    scenes: &[Scene {
        clauses: &[
            DRAIN_GAIN,
            Clause {
                text: "DRAIN lasts while more than Inflight(1.0) is in flight, and ends when it is not",
                check: |seen| {
                    found(seen, "the end of DRAIN", || {
                        let (entered, change) = seen.first_entry("drain", 0)?;
                        let over = |moment: usize| {
                            let view = &seen.moment(moment).view;
                            Some(view.in_flight > seen.model(moment)?.target)
                        };
                        let lasted = (entered..=change.before).all(|moment| over(moment) == Some(true));
                        let view = &seen.moment(change.after).view;
                        let target = seen.model(change.before)?.target;
                        let told = format!("{} bytes in flight, Inflight(1.0) is {target}", view.in_flight);
                        Some(Verdict::of(lasted && view.in_flight <= target + slack(seen, change.after), told))
                    })
                },
            },
            Clause { text: "DRAIN is left for PROBE_BW", check: |seen| goes(seen, "drain", "probe_bw_down", 0) },
        ],
        ..Scene::PLAIN
    }],
};

pub(super) static DRAIN_TIME: Case = Case {
    name: "Exiting DRAIN Based on Time",
    note: Some(
        "the rate falls to 40 % instead of 90 %: DRAIN sends at half the rate, so that 90 % of it drain the flight of two \
         BDPs within two rounds, and the condition that the draft asks for does not arise. It falls one round early: what \
         waits in the modelled queue leaves at the old rate",
    ),
    scenes: &[Scene {
        steps: &[Step { when: When::Plateau(2), act: Act::Rate(8_000) }],
        clauses: &[
            Clause {
                text: "more than Inflight(1.0) is in flight all the time",
                check: |seen| {
                    found(seen, "the end of DRAIN", || {
                        let (entered, change) = seen.first_entry("drain", 0)?;
                        let low = (entered..=change.after).find(|&moment| {
                            seen.model(moment).is_some_and(|model| seen.moment(moment).view.in_flight <= model.target)
                        });
                        let told = low.map_or_else(String::new, |moment| {
                            format!("not at {:.1} ms", millis(seen.moment(moment).at))
                        });
                        Some(Verdict::of(low.is_none(), told))
                    })
                },
            },
            Clause {
                text: "after 3 rounds DRAIN is left all the same",
                check: |seen| {
                    found(seen, "the end of DRAIN", || {
                        let (entered, change) = seen.first_entry("drain", 0)?;
                        let rounds = seen.model(change.after)?.rounds - seen.model(entered)?.rounds;
                        Some(Verdict::of((3..=4).contains(&rounds), format!("{rounds} rounds began in it")))
                    })
                },
            },
            Clause { text: "DRAIN is left for PROBE_BW", check: |seen| goes(seen, "drain", "probe_bw_down", 0) },
            Clause {
                text: "the estimate of the bandwidth follows later",
                check: |seen| {
                    found(seen, "a model", || {
                        let model = seen.model(seen.moments.len() - 1)?;
                        let rate = seen.visible(8_000);
                        let told = format!("{} after {} s", mbps(bps(model.max_bandwidth)), seen.scene.seconds);
                        Some(Verdict::of(bps(model.max_bandwidth) <= 1.1 * rate, told))
                    })
                },
            },
        ],
        seconds: 10,
        ..Scene::PLAIN
    }],
};

/// Used by other files: a number of bytes as multiples of the scene's bandwidth-delay product.
pub(super) fn bdps(seen: &Seen<'_>, bytes: u64) -> f64 {
    number(bytes) / (number(seen.scene.kbps) * number(seen.scene.rtt_ms) / 8.0)
}
