//! Unusual paths: aggregation, a tiny BDP, a rate that jumps, a policer.

use super::clauses::{bps, found, mbps, number};
use super::startup::bdps;
use super::{Act, Case, Clause, Scene, Seen, Step, Verdict, When, millis, ms};

/// Milliseconds between the moments at which acknowledgements come through.
const SLOT_MS: u64 = 25;

/// extra_acked is what comes together beyond what is in flight anyway: about what the path delivers in a slot.
fn extra_acked(seen: &Seen<'_>, from: usize, to: usize) -> Option<Verdict> {
    let most = (from..to).filter_map(|moment| seen.model(moment)).map(|model| model.extra_acked).max()?;
    let slot = seen.visible(seen.scene.kbps) / 8.0 * number(SLOT_MS) / 1e3;
    let share = number(most) / slot;
    Some(Verdict::of((0.5..=2.0).contains(&share), format!("{most} bytes, {share:.2} of what is delivered in a slot")))
}

pub(super) static STARTUP_AGGREGATION: Case = Case {
    name: "Achieving Expected STARTUP Bandwidth on a Link With Aggregation",
    note: None,
    scenes: &[Scene {
        steps: &[Step { when: When::At(0), act: Act::Aggregate(SLOT_MS) }],
        clauses: &[
            Clause {
                text: "extra_acked shows the bursts of acknowledgements",
                check: |seen| {
                    found(seen, "the end of STARTUP", || {
                        let (_, change) = seen.first_entry("startup", 0)?;
                        extra_acked(seen, 0, change.after)
                    })
                },
            },
            Clause {
                text: "cwnd is more than 2 BDP",
                check: |seen| {
                    found(seen, "the end of STARTUP", || {
                        let (_, change) = seen.first_entry("startup", 0)?;
                        let window = seen.moment(change.before).view.window;
                        Some(Verdict::of(bdps(seen, window) > 2.0, format!("{:.2} BDP", bdps(seen, window))))
                    })
                },
            },
            Clause {
                text: "samples do not exceed the rate of the path, and STARTUP finds it",
                check: |seen| {
                    found(seen, "the end of STARTUP", || {
                        let (_, change) = seen.first_entry("startup", 0)?;
                        let bandwidth = bps(seen.model(change.after)?.max_bandwidth);
                        let share = bandwidth / seen.visible(seen.scene.kbps);
                        let told = format!("{} at {:.0} ms", mbps(bandwidth), millis(seen.moment(change.after).at));
                        // An acknowledgement that waits up to a slot shifts a sample of about one round trip by as much.
                        Some(Verdict::of((0.95..=1.5).contains(&share), told))
                    })
                },
            },
        ],
        ..Scene::PLAIN
    }],
};

pub(super) static CRUISE_AGGREGATION: Case = Case {
    name: "Achieving Expected Cruise Bandwidth on a Link With Aggregation",
    note: None,
    scenes: &[Scene {
        steps: &[
            Step { when: When::Enters("probe_bw_cruise"), act: Act::Aggregate(SLOT_MS) },
            Step { when: When::After(1_800), act: Act::Wait },
        ],
        clauses: &[
            Clause {
                text: "extra_acked shows the bursts of acknowledgements",
                check: |seen| {
                    found(seen, "PROBE_CRUISE", || {
                        extra_acked(seen, seen.from(seen.step(0)? + ms(300)), seen.from(seen.step(1)?))
                    })
                },
            },
            Clause {
                text: "cwnd is augmented by extra_acked",
                check: |seen| {
                    found(seen, "PROBE_CRUISE", || {
                        let moment = seen.from(seen.step(1)?).checked_sub(1)?;
                        let (model, view) = (seen.model(moment)?, &seen.moment(moment).view);
                        let expected = 2 * model.bdp + model.extra_acked;
                        let told = format!("{} bytes, 2 BDP and extra_acked are {expected}", view.window);
                        Some(Verdict::of(view.window.abs_diff(expected) <= expected / 20, told))
                    })
                },
            },
            Clause {
                text: "the link stays utilised",
                check: |seen| {
                    found(seen, "PROBE_CRUISE", || {
                        let rate = seen.delivered(seen.step(0)? + ms(300), seen.step(1)?);
                        Some(Verdict::of(rate >= 0.95 * bps(seen.scene.rate()), mbps(rate)))
                    })
                },
            },
        ],
        ..Scene::PLAIN
    }],
};

pub(super) static SUB_PACKET: Case = Case {
    name: "Correctly Managing Sub-Packet BDPs",
    note: None,
    scenes: &[Scene {
        // 400 kbit/s over 10 ms hold 500 bytes.
        kbps: 400,
        rtt_ms: 10,
        buffer: 30_000,
        seconds: 12,
        clauses: &[
            Clause {
                text: "PROBE_BW is reached",
                check: |seen| {
                    found(seen, "PROBE_BW", || {
                        let entered = seen.enters("probe_bw_down", 0)?;
                        Some(Verdict::of(true, format!("at {:.0} ms", millis(seen.moment(entered).at))))
                    })
                },
            },
            Clause {
                text: "MinPipeCwnd (4 packets) is the floor of cwnd",
                check: |seen| {
                    found(seen, "PROBE_CRUISE", || {
                        let entered = seen.enters("probe_bw_cruise", 0)?;
                        let least =
                            (entered..seen.moments.len()).map(|moment| seen.moment(moment).view.window).min()?;
                        let floor = 4 * seen.moment(entered).view.mtu;
                        Some(Verdict::of(least == floor, format!("{least} bytes at the least, 4 packets are {floor}")))
                    })
                },
            },
            Clause {
                text: "the pacing rate is that of the path",
                check: |seen| {
                    found(seen, "PROBE_CRUISE", || {
                        let last =
                            (0..seen.moments.len()).rev().find(|&m| seen.moment(m).view.state == "probe_bw_cruise")?;
                        let rate = bps(seen.moment(last).view.pacing_rate?);
                        let share = rate / seen.visible(seen.scene.kbps);
                        Some(Verdict::of((0.9..=1.05).contains(&share), format!("{} ({share:.3})", mbps(rate))))
                    })
                },
            },
            Clause {
                text: "the pipeline does not stall",
                check: |seen| {
                    let rate = seen.delivered(seen.end().saturating_sub(ms(6_000)), seen.end());
                    Verdict::of(rate >= 0.93 * bps(seen.scene.rate()), mbps(rate))
                },
            },
        ],
        ..Scene::PLAIN
    }],
};

pub(super) static TENFOLD_UP: Case = Case {
    name: "Increasing Bandwidth 10x and Ensuring Full Bandwidth is Reached",
    note: None,
    scenes: &[Scene {
        kbps: 10_000,
        // Half a BDP: STARTUP loses packets, so that there is a long-term bound to grow.
        buffer: 31_250,
        seconds: 20,
        steps: &[
            Step { when: When::Enters("probe_bw_cruise"), act: Act::Rate(100_000) },
            Step { when: When::Enters("probe_bw_up"), act: Act::Wait },
        ],
        clauses: &[
            Clause {
                text: "the step of inflight_longterm doubles in each round of PROBE_UP",
                check: |seen| {
                    found(seen, "PROBE_UP with inflight_longterm", || {
                        let mut steps = longterm_steps(seen, seen.from(seen.step(1)?))?;
                        steps.retain(|&step| step > 0);
                        let doubled = steps.windows(2).filter(|pair| {
                            let growth = number(pair[1]) / number(pair[0]);
                            (1.4..=3.0).contains(&growth)
                        });
                        let doubled = doubled.count();
                        let told = format!("bytes added per round: {steps:?}");
                        Some(Verdict::of(doubled >= 3, told))
                    })
                },
            },
            Clause {
                text: "the full bandwidth is found, within O(log(BDP)) rounds of probing",
                check: |seen| {
                    found(seen, "the full bandwidth", || {
                        let from = seen.from(seen.step(1)?);
                        let rate = seen.visible(100_000);
                        let reached = (from..seen.moments.len())
                            .find(|&m| seen.model(m).is_some_and(|model| bps(model.max_bandwidth) >= 0.9 * rate))?;
                        let rounds = seen.model(reached)?.rounds - seen.model(from)?.rounds;
                        let told = format!("{rounds} rounds, at {:.1} s", millis(seen.moment(reached).at) / 1e3);
                        // Some ten doublings, the rounds in which the bandwidth follows, and a wait of two to three seconds.
                        Some(Verdict::of(rounds <= 120, told))
                    })
                },
            },
            Clause {
                text: "and it is used",
                check: |seen| {
                    let rate = seen.delivered(seen.end().saturating_sub(ms(2_000)), seen.end());
                    Verdict::of(rate >= 80e6, mbps(rate))
                },
            },
        ],
        ..Scene::PLAIN
    }],
};

/// By how much inflight_longterm rises in each round of the PROBE_UP at `start`.
fn longterm_steps(seen: &Seen<'_>, start: usize) -> Option<Vec<u64>> {
    let end = seen.leaves(start).map_or(seen.moments.len(), |change| change.after);
    let mut steps = Vec::new();
    let first = seen.model(start)?;
    let (mut round, mut bound) = (first.rounds, first.inflight_longterm?);
    for moment in start..end {
        let model = seen.model(moment)?;
        if model.rounds != round {
            let now = model.inflight_longterm?;
            steps.push(now.saturating_sub(bound));
            (round, bound) = (model.rounds, now);
        }
    }
    Some(steps)
}

pub(super) static TENFOLD_DOWN: Case = Case {
    name: "Decreasing Bandwidth 10x and Ensuring Max Bandwidth Adapts Down",
    note: None,
    scenes: &[Scene {
        kbps: 100_000,
        buffer: 200_000,
        seconds: 16,
        steps: &[Step { when: When::Enters("probe_bw_cruise"), act: Act::Rate(10_000) }],
        clauses: &[
            Clause {
                text: "bw_shortterm falls rapidly with the losses",
                check: |seen| {
                    found(seen, "bw_shortterm", || {
                        let at = seen.step(0)?;
                        let (from, to) = (seen.from(at), seen.from(at + ms(3_000)));
                        let rate = seen.visible(10_000);
                        let low = (from..to).find(|&m| {
                            seen.model(m)
                                .and_then(|model| model.bandwidth_shortterm)
                                .is_some_and(|bw| bps(bw) <= 2.0 * rate)
                        })?;
                        let late = seen.moment(low).at.saturating_since(at);
                        Some(Verdict::of(true, format!("at twice the new rate after {:.2} s", late.as_secs_f64())))
                    })
                },
            },
            Clause {
                text: "max_bw follows when its window of 2 cycles is over",
                check: |seen| {
                    found(seen, "a lower max_bw", || {
                        let at = seen.step(0)?;
                        let rate = seen.visible(10_000);
                        let low = (seen.from(at)..seen.moments.len())
                            .find(|&m| seen.model(m).is_some_and(|model| bps(model.max_bandwidth) <= 1.1 * rate))?;
                        let last = bps(seen.model(seen.moments.len() - 1)?.max_bandwidth);
                        let told = format!(
                            "after {:.1} s; {} in the end",
                            seen.moment(low).at.saturating_since(at).as_secs_f64(),
                            mbps(last)
                        );
                        Some(Verdict::of((0.8..=1.1).contains(&(last / rate)), told))
                    })
                },
            },
            Clause {
                text: "the new rate is used",
                check: |seen| {
                    let rate = seen.delivered(seen.end().saturating_sub(ms(4_000)), seen.end());
                    Verdict::of(rate >= 8.5e6, mbps(rate))
                },
            },
        ],
        ..Scene::PLAIN
    }],
};

pub(super) static POLICER: Case = Case {
    name: "Handling Token Bucket Policers",
    note: None,
    scenes: &[Scene {
        kbps: 100_000,
        seconds: 24,
        steps: &[Step { when: When::At(0), act: Act::Police { kbps: 10_000, burst: 125_000 } }],
        clauses: &[
            Clause {
                text: "the losses lower bw_shortterm and inflight_shortterm",
                check: |seen| {
                    found(seen, "short-term bounds in PROBE_BW", || {
                        let from = seen.enters("probe_bw_down", 0)?;
                        let bound = (from..seen.moments.len()).find(|&m| {
                            seen.model(m).is_some_and(|model| {
                                model.bandwidth_shortterm.is_some() && model.inflight_shortterm.is_some()
                            })
                        })?;
                        let model = seen.model(bound)?;
                        let told = format!(
                            "{:?} and {:?} bytes at {:.0} ms",
                            model.bandwidth_shortterm.map(|bw| mbps(bps(bw))),
                            model.inflight_shortterm,
                            millis(seen.moment(bound).at)
                        );
                        Some(Verdict::of(true, told))
                    })
                },
            },
            Clause {
                text: "the token rate is reached",
                check: |seen| {
                    let rate = seen.delivered(seen.end().saturating_sub(ms(12_000)), seen.end());
                    Verdict::of((8e6..=10.2e6).contains(&rate), mbps(rate))
                },
            },
            Clause {
                text: "without excessive continuous loss",
                check: |seen| {
                    let (dropped, passed) = seen.drops(seen.end().saturating_sub(ms(12_000)), seen.end());
                    let share = number(dropped) / number(dropped + passed).max(1.0);
                    Verdict::of(share <= 0.05, format!("{:.2} % of packets", share * 100.0))
                },
            },
        ],
        ..Scene::PLAIN
    }],
};
