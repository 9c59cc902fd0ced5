//! ProbeRTT: conditions under which it occurs and does not occur.

use super::clauses::{bps, found, goes, mbps};
use super::startup::bdps;
use super::{Act, Case, Clause, Scene, Step, Verdict, When, millis, ms};

pub(super) static ENTER_AND_EXIT: Case = Case {
    name: "Entering and Exiting PROBE_RTT",
    note: None,
    scenes: &[Scene {
        clauses: &[
            Clause {
                text: "PROBE_RTT is entered 5 s after the last new minimum",
                check: |seen| {
                    found(seen, "PROBE_RTT", || {
                        let entered = seen.enters("probe_rtt", 0)?;
                        // The minimum shrinks for the last time within the first round trips.
                        let low = seen.model(entered)?.min_rtt?;
                        let first =
                            (0..entered).find(|&moment| seen.model(moment).is_some_and(|m| m.min_rtt == Some(low)))?;
                        let waited = seen.moment(entered).at.saturating_since(seen.moment(first).at);
                        let told = format!("after {:.3} s", waited.as_secs_f64());
                        Some(Verdict::of(waited >= ms(5_000) && waited <= ms(5_250), told))
                    })
                },
            },
            Clause {
                text: "cwnd_gain is ProbeRTTCwndGain (0.5), and so much is in flight",
                check: |seen| {
                    found(seen, "the end of PROBE_RTT", || {
                        let (entered, change) = seen.first_entry("probe_rtt", 0)?;
                        let gain = seen.model(entered)?.cwnd_gain_percent;
                        let low = (entered..=change.before).map(|moment| seen.moment(moment).view.in_flight).min()?;
                        let told = format!("{gain} %, {:.2} BDP at the least", bdps(seen, low));
                        Some(Verdict::of(gain == 50 && bdps(seen, low) <= 0.55, told))
                    })
                },
            },
            Clause {
                text: "it lasts for 200 ms and a round trip with the flight that low",
                check: |seen| {
                    found(seen, "the end of PROBE_RTT", || {
                        let (entered, change) = seen.first_entry("probe_rtt", 0)?;
                        let low = (entered..=change.before)
                            .find(|&moment| bdps(seen, seen.moment(moment).view.in_flight) <= 0.55)?;
                        let span = seen.moment(change.after).at.saturating_since(seen.moment(low).at);
                        let rounds = seen.model(change.after)?.rounds - seen.model(low)?.rounds;
                        let told = format!("{:.0} ms, {rounds} rounds", span.as_secs_f64() * 1e3);
                        Some(Verdict::of(span >= ms(199) && span <= ms(350) && rounds >= 1, told))
                    })
                },
            },
            Clause {
                text: "it is left for PROBE_BW, and sending goes on",
                check: |seen| {
                    found(seen, "the end of PROBE_RTT", || {
                        let (_, change) = seen.first_entry("probe_rtt", 0)?;
                        let (at, next) = (seen.moment(change.after).at, seen.moment(change.after).view.state);
                        let reached = seen.model(change.after)?.full_reached;
                        let rate = seen.delivered(at + ms(200), at + ms(1_200));
                        let told = format!("{next}, then {}", mbps(rate));
                        Some(Verdict::of(
                            reached && next.starts_with("probe_bw") && rate > 0.9 * bps(seen.scene.rate()),
                            told,
                        ))
                    })
                },
            },
        ],
        seconds: 8,
        ..Scene::PLAIN
    }],
};

pub(super) static SKIPPED: Case = Case {
    name: "Skipping PROBE_RTT Due to Application-Limited Sending",
    note: None,
    scenes: &[Scene {
        steps: &[
            Step { when: When::Enters("probe_bw_cruise"), act: Act::Limit(0) },
            Step { when: When::After(6_000), act: Act::Free },
        ],
        clauses: &[
            Clause {
                text: "nothing is in flight while the application pauses",
                check: |seen| {
                    found(seen, "the pause", || {
                        let last = seen.from(seen.step(1)?).checked_sub(1)?;
                        let view = &seen.moment(last).view;
                        Some(Verdict::of(view.in_flight == 0, format!("{} bytes", view.in_flight)))
                    })
                },
            },
            Clause {
                text: "idle_restart is true when it sends again",
                check: |seen| {
                    found(seen, "the restart", || {
                        let first = seen.from(seen.step(1)?);
                        let restarted =
                            (first..seen.moments.len()).find(|&moment| seen.moment(moment).view.in_flight > 0)?;
                        let model = seen.model(restarted)?;
                        let told = format!("at {:.1} ms", millis(seen.moment(restarted).at));
                        Some(Verdict::of(model.idle_restart, told))
                    })
                },
            },
            Clause {
                text: "PROBE_RTT is skipped",
                check: |seen| {
                    found(seen, "the restart", || {
                        let from = seen.from(seen.step(0)?);
                        let until = seen.from(seen.step(1)? + ms(3_000));
                        let entered = (from..until).any(|moment| seen.moment(moment).view.state == "probe_rtt");
                        Some(Verdict::of(!entered, "for 3 s after the pause"))
                    })
                },
            },
        ],
        seconds: 11,
        ..Scene::PLAIN
    }],
};

pub(super) static IN_STARTUP: Case = Case {
    name: "Entering and Exiting PROBE_RTT During STARTUP",
    note: None,
    scenes: &[Scene {
        steps: &[
            Step { when: When::At(20), act: Act::Limit(6_000) },
            Step { when: When::Enters("probe_rtt"), act: Act::Wait },
            Step { when: When::Enters("startup"), act: Act::Free },
        ],
        clauses: &[
            Clause {
                text: "PROBE_RTT comes before full_bw_reached",
                check: |seen| {
                    found(seen, "PROBE_RTT", || {
                        let entered = seen.enters("probe_rtt", 0)?;
                        let told = format!("at {:.0} ms", millis(seen.moment(entered).at));
                        Some(Verdict::of(!seen.model(entered)?.full_reached, told))
                    })
                },
            },
            Clause { text: "PROBE_RTT is left for STARTUP", check: |seen| goes(seen, "probe_rtt", "startup", 0) },
            Clause {
                text: "STARTUP finds the full bandwidth",
                check: |seen| {
                    found(seen, "the end of STARTUP", || {
                        let from = seen.from(seen.step(2)?);
                        let (_, change) = seen.first_entry("startup", from)?;
                        let bandwidth = bps(seen.model(change.after)?.max_bandwidth);
                        let rate = seen.visible(seen.scene.kbps);
                        Some(Verdict::of(bandwidth >= 0.95 * rate, format!("{} of {}", mbps(bandwidth), mbps(rate))))
                    })
                },
            },
        ],
        seconds: 8,
        ..Scene::PLAIN
    }],
};
