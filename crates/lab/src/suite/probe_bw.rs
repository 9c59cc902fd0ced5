//! ProbeBW: up, down, and an application without data.

use super::clauses::{bps, found, goes, mbps};
use super::{Act, Case, Clause, Scene, Step, Verdict, When, millis, ms};

pub(super) static UP_PLATEAU: Case = Case {
    name: "Exiting PROBE_UP on Bandwidth Plateau",
    note: None,
    scenes: &[Scene {
        clauses: &[
            Clause {
                text: "nothing is lost during PROBE_UP",
                check: |seen| {
                    found(seen, "the end of PROBE_UP", || {
                        let (entered, change) = seen.first_entry("probe_bw_up", 0)?;
                        let (dropped, _) = seen.drops(seen.moment(entered).at, seen.moment(change.after).at);
                        Some(Verdict::of(dropped == 0, format!("{dropped} packets")))
                    })
                },
            },
            Clause {
                text: "PROBE_UP ends when full_bw_count reaches 3",
                check: |seen| {
                    found(seen, "the end of PROBE_UP", || {
                        let (_, change) = seen.first_entry("probe_bw_up", 0)?;
                        let (before, after) = (seen.model(change.before)?, seen.model(change.after)?);
                        let told = format!("{} → {}", before.plateau_rounds, after.plateau_rounds);
                        Some(Verdict::of(
                            after.full_now && (before.plateau_rounds, after.plateau_rounds) == (2, 3),
                            told,
                        ))
                    })
                },
            },
            Clause {
                text: "PROBE_UP is left for PROBE_DOWN",
                check: |seen| goes(seen, "probe_bw_up", "probe_bw_down", 0),
            },
        ],
        seconds: 6,
        ..Scene::PLAIN
    }],
};

pub(super) static UP_LOSS: Case = Case {
    name: "Exiting PROBE_UP on Loss When Application-Limited",
    note: None,
    scenes: &[Scene {
        steps: &[
            Step { when: When::Enters("probe_bw_up"), act: Act::Limit(12_000) },
            Step { when: When::After(200), act: Act::Lose(12) },
            Step { when: When::After(200), act: Act::Lose(0) },
        ],
        clauses: &[
            Clause {
                text: "PROBE_UP goes on until something is lost",
                check: |seen| {
                    found(seen, "PROBE_UP", || {
                        let state = seen.moment(seen.from(seen.step(1)?)).view.state;
                        Some(Verdict::of(state == "probe_bw_up", state))
                    })
                },
            },
            Clause {
                text: "the loss ends PROBE_UP",
                check: |seen| {
                    found(seen, "the end of PROBE_UP", || {
                        let (_, change) = seen.first_entry("probe_bw_up", 0)?;
                        let (at, lossy) = (seen.moment(change.after).at, seen.step(1)?);
                        let late = at.saturating_since(lossy);
                        let told = format!("{:.1} ms after the first loss", late.as_secs_f64() * 1e3);
                        Some(Verdict::of(at > lossy && late <= ms(250), told))
                    })
                },
            },
            Clause {
                text: "PROBE_UP is left for PROBE_DOWN",
                check: |seen| goes(seen, "probe_bw_up", "probe_bw_down", 0),
            },
            Clause {
                text: "inflight_longterm is not set from an application-limited flight",
                check: |seen| {
                    found(seen, "the end of PROBE_UP", || {
                        let (_, change) = seen.first_entry("probe_bw_up", 0)?;
                        let (before, after) = (seen.model(change.before)?, seen.model(change.after)?);
                        let told = format!("{:?} → {:?}", before.inflight_longterm, after.inflight_longterm);
                        Some(Verdict::of(before.inflight_longterm == after.inflight_longterm, told))
                    })
                },
            },
        ],
        seconds: 6,
        ..Scene::PLAIN
    }],
};

pub(super) static NEVER_WITHOUT_DATA: Case = Case {
    name: "Never Exiting PROBE_UP (or STARTUP) When Application-Limited With No Loss",
    note: Some("watched for as long as PROBE_RTT, which interrupts every state, is not due"),
    scenes: &[
        Scene {
            steps: &[Step { when: When::At(20), act: Act::Limit(6_000) }],
            clauses: &[Clause {
                text: "STARTUP lasts",
                check: |seen| {
                    found(seen, "STARTUP", || {
                        let last = seen.moments.last()?;
                        let told = format!("{} after {:.0} ms", last.view.state, millis(last.at));
                        Some(Verdict::of(seen.leaves(0).is_none() && last.view.state == "startup", told))
                    })
                },
            }],
            ..Scene::PLAIN
        },
        Scene {
            steps: &[
                Step { when: When::Enters("probe_rtt"), act: Act::Wait },
                Step { when: When::Enters("probe_bw_up"), act: Act::Limit(6_000) },
                Step { when: When::After(2_000), act: Act::Wait },
            ],
            clauses: &[Clause {
                text: "PROBE_UP lasts",
                check: |seen| {
                    found(seen, "PROBE_UP", || {
                        let (from, to) = (seen.from(seen.step(1)?), seen.from(seen.step(2)?));
                        let other = (from..to).find(|&moment| seen.moment(moment).view.state != "probe_bw_up");
                        let told = other.map_or_else(
                            || "for 2 s, 40 round trips".to_owned(),
                            |moment| format!("left at {:.1} ms", millis(seen.moment(moment).at)),
                        );
                        Some(Verdict::of(other.is_none(), told))
                    })
                },
            }],
            seconds: 11,
            ..Scene::PLAIN
        },
    ],
};

/// The first PROBE_DOWN that follows a probe.
fn down_after_up(seen: &super::Seen<'_>) -> Option<(usize, super::clauses::Change)> {
    let (_, change) = seen.first_entry("probe_bw_up", 0)?;
    seen.first_entry("probe_bw_down", change.after)
}

pub(super) static DOWN_INFLIGHT: Case = Case {
    name: "Exiting PROBE_DOWN on Inflight",
    note: None,
    scenes: &[Scene {
        // A buffer that is short enough for the probe to lose something, so that there is a bound to leave headroom under.
        buffer: 90_000,
        clauses: &[
            Clause {
                text: "pacing_gain is ProbeDownPacingGain (0.90)",
                check: |seen| {
                    found(seen, "PROBE_DOWN", || {
                        let (entered, _) = down_after_up(seen)?;
                        let gain = seen.model(entered)?.pacing_gain_percent;
                        Some(Verdict::of(gain == 90, format!("{gain} %")))
                    })
                },
            },
            Clause {
                text: "PROBE_DOWN ends when no more than InflightWithHeadroom() and Inflight(1.0) is in flight",
                check: |seen| {
                    found(seen, "the end of PROBE_DOWN", || {
                        let (entered, change) = down_after_up(seen)?;
                        let bound = |moment: usize| {
                            let model = seen.model(moment)?;
                            Some(model.target_with_headroom.map_or(model.target, |bound| bound.min(model.target)))
                        };
                        let lasted = (entered..=change.before).all(|moment| {
                            bound(moment).is_some_and(|bound| seen.moment(moment).view.in_flight + 2 * 1500 > bound)
                        });
                        let view = &seen.moment(change.after).view;
                        let limit = bound(change.before)?;
                        let told = format!("{} bytes in flight, bound {limit}", view.in_flight);
                        Some(Verdict::of(lasted && view.in_flight <= limit + 3 * view.mtu, told))
                    })
                },
            },
            Clause {
                text: "PROBE_DOWN is left for PROBE_CRUISE",
                check: |seen| {
                    found(seen, "the end of PROBE_DOWN", || {
                        let (_, change) = down_after_up(seen)?;
                        let next = seen.moment(change.after).view.state;
                        Some(Verdict::of(next == "probe_bw_cruise", next))
                    })
                },
            },
        ],
        seconds: 6,
        ..Scene::PLAIN
    }],
};

pub(super) static DOWN_TIME: Case = Case {
    name: "Exiting PROBE_DOWN After Max Time",
    note: None,
    scenes: &[Scene {
        seed: 1,
        steps: &[
            Step { when: When::Enters("probe_bw_up"), act: Act::Wait },
            Step { when: When::Enters("probe_bw_down"), act: Act::Rate(9_000) },
        ],
        clauses: &[
            Clause {
                text: "the flight does not fall to Inflight(1.0)",
                check: |seen| {
                    found(seen, "the end of PROBE_DOWN", || {
                        let (entered, change) = down_after_up(seen)?;
                        let low = (entered..=change.before).find(|&moment| {
                            seen.model(moment).is_some_and(|model| seen.moment(moment).view.in_flight <= model.target)
                        });
                        Some(Verdict::of(low.is_none(), ""))
                    })
                },
            },
            Clause {
                text: "IsTimeToProbeBW() is true after the wait",
                check: |seen| {
                    found(seen, "the end of PROBE_DOWN", || {
                        let (entered, change) = down_after_up(seen)?;
                        let lasted = seen.moment(change.after).at.saturating_since(seen.moment(entered).at);
                        let told = format!("after {:.2} s", lasted.as_secs_f64());
                        Some(Verdict::of(lasted >= ms(500) && lasted <= ms(3_200), told))
                    })
                },
            },
            Clause {
                text: "PROBE_DOWN is left for PROBE_REFILL, without PROBE_CRUISE",
                check: |seen| {
                    found(seen, "the end of PROBE_DOWN", || {
                        let (_, change) = down_after_up(seen)?;
                        let next = seen.moment(change.after).view.state;
                        Some(Verdict::of(next == "probe_bw_refill", next))
                    })
                },
            },
        ],
        // A short path: Reno's time scale of one round per packet of the BDP is below the two seconds.
        kbps: 10_000,
        rtt_ms: 40,
        seconds: 6,
        ..Scene::PLAIN
    }],
};

pub(super) static QUIET_REFILL: Case = Case {
    name: "Handling Application-Limited Sending During PROBE_REFILL",
    note: None,
    scenes: &[Scene {
        steps: &[
            Step { when: When::Enters("probe_bw_refill"), act: Act::Limit(1_000) },
            Step { when: When::After(150), act: Act::Free },
        ],
        clauses: &[
            Clause {
                text: "max_bw does not fall with samples of an application without data",
                check: |seen| {
                    found(seen, "PROBE_REFILL", || {
                        let (from, to) = (seen.from(seen.step(0)?), seen.from(seen.step(1)? + ms(200)));
                        let before = bps(seen.model(from)?.max_bandwidth);
                        let low =
                            (from..to).filter_map(|moment| seen.model(moment)).map(|model| bps(model.max_bandwidth));
                        let low = low.fold(f64::INFINITY, f64::min);
                        Some(Verdict::of(low >= 0.99 * before, format!("{} → {}", mbps(before), mbps(low))))
                    })
                },
            },
            Clause {
                text: "PROBE_REFILL is left for PROBE_UP",
                check: |seen| goes(seen, "probe_bw_refill", "probe_bw_up", 0),
            },
            Clause {
                text: "probing goes on: PROBE_UP is left for PROBE_DOWN, with the full rate delivered",
                check: |seen| {
                    found(seen, "the end of PROBE_UP", || {
                        let (_, change) = seen.first_entry("probe_bw_up", 0)?;
                        let (at, next) = (seen.moment(change.after).at, seen.moment(change.after).view.state);
                        let rate = seen.delivered(at, at + ms(1_000));
                        let told = format!("{next}, then {}", mbps(rate));
                        Some(Verdict::of(next == "probe_bw_down" && rate > 0.8 * bps(seen.scene.rate()), told))
                    })
                },
            },
        ],
        seconds: 6,
        ..Scene::PLAIN
    }],
};
