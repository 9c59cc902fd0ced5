//! Losses, and spurious losses.

use super::clauses::{found, goes};
use super::{Act, Case, Clause, Scene, Step, Verdict, When, millis, ms};

pub(super) static SPURIOUS_FAST: Case = Case {
    name: "Handling Spurious Fast Recovery",
    note: None,
    scenes: &[Scene {
        steps: &[
            Step { when: When::Enters("probe_bw_up"), act: Act::Wait },
            // Once the flight consists of packets of the probe.
            Step { when: When::After(70), act: Act::Delay { packets: 6, ms: 20 } },
        ],
        clauses: &[
            Clause {
                text: "the reordering ends PROBE_UP, with the state saved",
                check: |seen| {
                    found(seen, "the reaction", || {
                        let from = seen.from(seen.step(1)?);
                        let change = seen.leaves(from)?;
                        let (before, after) = (seen.model(change.before)?, seen.model(change.after)?);
                        let saved = after.undo_state == Some("probe_bw_up")
                            && after.undo_inflight_longterm == before.inflight_longterm
                            && after.undo_inflight_shortterm == before.inflight_shortterm
                            && after.undo_bandwidth_shortterm == before.bandwidth_shortterm;
                        let told = format!(
                            "undo_state {:?}, inflight_longterm {:?} → {:?}",
                            after.undo_state, before.inflight_longterm, after.inflight_longterm
                        );
                        Some(Verdict::of(saved && after.inflight_longterm != before.inflight_longterm, told))
                    })
                },
            },
            Clause {
                text: "the saved parameters are restored",
                check: |seen| {
                    found(seen, "the restoration", || {
                        let from = seen.from(seen.step(1)?);
                        let change = seen.leaves(from)?;
                        let before = seen.model(change.before)?;
                        let (_, again) = seen.first_entry("probe_bw_down", change.after)?;
                        let after = seen.model(again.after)?;
                        let unbounded = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
                        let restored = unbounded(after.inflight_longterm) >= unbounded(before.inflight_longterm)
                            && after.bandwidth_shortterm >= before.bandwidth_shortterm
                            && after.undo_state.is_none();
                        let told = format!("inflight_longterm {:?}", after.inflight_longterm);
                        Some(Verdict::of(restored, told))
                    })
                },
            },
            Clause {
                text: "the probe goes on: PROBE_REFILL, then PROBE_UP",
                check: |seen| {
                    found(seen, "PROBE_UP again", || {
                        let from = seen.from(seen.step(1)?);
                        let change = seen.leaves(from)?;
                        let (_, refill) = seen.first_entry("probe_bw_down", change.after)?;
                        let up = seen.leaves(refill.after)?;
                        let states = (seen.moment(refill.after).view.state, seen.moment(up.after).view.state);
                        let told =
                            format!("{} at {:.1} ms, {}", states.0, millis(seen.moment(refill.after).at), states.1);
                        Some(Verdict::of(states == ("probe_bw_refill", "probe_bw_up"), told))
                    })
                },
            },
        ],
        seconds: 6,
        ..Scene::PLAIN
    }],
};

pub(super) static SPURIOUS_RTO: Case = Case {
    name: "Handling Spurious RTO Recovery",
    note: Some(
        "QUIC has no retransmission timeout; persistent congestion (RFC 9002 §7.6) is what it establishes in the same case, \
         and what is provoked here: everything is held back for so long that a probe overtakes it",
    ),
    scenes: &[Scene {
        steps: &[
            Step { when: When::Enters("probe_bw_cruise"), act: Act::Wait },
            Step { when: When::After(300), act: Act::Hold { span: 700, until: 1_330 } },
        ],
        clauses: &[
            Clause {
                text: "everything in flight counts as lost, and the window collapses",
                check: |seen| {
                    found(seen, "the reaction", || {
                        let at = seen.step(1)?;
                        let (from, to) = (seen.from(at), seen.from(at + ms(1_320)));
                        let before = seen.moment(from).view.window;
                        let least = (from..to).map(|moment| seen.moment(moment).view.window).min()?;
                        Some(Verdict::of(least * 4 <= before, format!("{before} → {least} bytes")))
                    })
                },
            },
            Clause {
                text: "window, bw_shortterm, inflight_shortterm and inflight_longterm are restored",
                check: |seen| {
                    found(seen, "the restoration", || {
                        let at = seen.step(1)?;
                        let (from, to) = (seen.from(at), seen.from(at + ms(1_450)));
                        let (before, after) = (seen.model(from)?, seen.model(to)?);
                        let unbounded = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
                        let windows = (seen.moment(from).view.window, seen.moment(to).view.window);
                        let restored = windows.1 * 10 >= windows.0 * 9
                            && unbounded(after.inflight_shortterm) >= unbounded(before.inflight_shortterm)
                            && unbounded(after.inflight_longterm) >= unbounded(before.inflight_longterm)
                            && after.bandwidth_shortterm.is_none() == before.bandwidth_shortterm.is_none();
                        Some(Verdict::of(restored, format!("window {} → {} bytes", windows.0, windows.1)))
                    })
                },
            },
            Clause {
                text: "the connection is in PROBE_BW and sends as before",
                check: |seen| {
                    found(seen, "the time after", || {
                        let at = seen.step(1)?;
                        let state = seen.moment(seen.from(at + ms(1_450))).view.state;
                        let rate = seen.delivered(at + ms(1_600), at + ms(2_100));
                        let told = format!("{state}, {:.2} Mbit/s", rate / 1e6);
                        Some(Verdict::of(state.starts_with("probe_bw") && rate >= 18e6, told))
                    })
                },
            },
        ],
        ..Scene::PLAIN
    }],
};

pub(super) static LOSS_IN_UP: Case = Case {
    name: "Handling Loss During PROBE_UP After inflight_longterm is Set",
    note: None,
    scenes: &[Scene {
        // Half a BDP: STARTUP loses packets and sets the bound.
        buffer: 62_500,
        steps: &[
            Step { when: When::Enters("probe_bw_up"), act: Act::Lose(16) },
            Step { when: When::Enters("probe_bw_down"), act: Act::Lose(0) },
        ],
        clauses: &[
            Clause {
                text: "inflight_longterm is set before",
                check: |seen| {
                    found(seen, "PROBE_UP", || {
                        let bound = seen.model(seen.from(seen.step(0)?))?.inflight_longterm;
                        Some(Verdict::of(bound.is_some(), format!("{bound:?}")))
                    })
                },
            },
            Clause {
                text: "the loss ends PROBE_UP before a plateau does",
                check: |seen| {
                    found(seen, "the end of PROBE_UP", || {
                        let (_, change) = seen.first_entry("probe_bw_up", 0)?;
                        let model = seen.model(change.after)?;
                        let told = format!(
                            "at {:.1} ms, full_bw_count {}",
                            millis(seen.moment(change.after).at),
                            model.plateau_rounds
                        );
                        Some(Verdict::of(!model.full_now, told))
                    })
                },
            },
            Clause {
                text: "inflight_longterm becomes what was in flight, not less than Beta (0.7) of the target",
                check: |seen| {
                    found(seen, "the end of PROBE_UP", || {
                        let (_, change) = seen.first_entry("probe_bw_up", 0)?;
                        let (before, after) = (seen.model(change.before)?, seen.model(change.after)?);
                        let bounds = (before.inflight_longterm?, after.inflight_longterm?);
                        let floor = before.bdp.min(seen.moment(change.before).view.window) * 69 / 100;
                        let told = format!("{} → {} bytes, floor {floor}", bounds.0, bounds.1);
                        Some(Verdict::of(bounds.1 != bounds.0 && bounds.1 >= floor, told))
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
