//! The example test cases of draft-ietf-ccwg-bbr, each under its name, with our BBRv3.

use tiderace_lab::suite::{CASES, contender, run_case, text};

/// Plays one case; shows clause by clause what was seen when it fails.
fn passes(name: &str) {
    let case = CASES.into_iter().find(|case| case.name == name).expect("the suite has this case");
    let contender = contender("bbr3").expect("there is a controller of this name");
    let result = run_case(case, contender.as_ref()).expect("the scene can be played");
    assert!(result.passed(), "\n{}", text("tiderace bbr3", &[result], true));
}

macro_rules! cases {
    ($($test:ident: $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                passes($name);
            }
        )*

        #[test]
        fn no_case_is_left_out() {
            let tested = [$($name,)*];
            assert_eq!(CASES.map(|case| case.name), tested);
        }
    };
}

cases! {
    exiting_startup_on_bandwidth_plateau: "Exiting STARTUP on Bandwidth Plateau";
    exiting_startup_on_loss_when_application_limited: "Exiting STARTUP on Loss When Application-Limited";
    exiting_drain_based_on_inflight: "Exiting DRAIN Based on Inflight";
    exiting_drain_based_on_time: "Exiting DRAIN Based on Time";
    exiting_probe_up_on_bandwidth_plateau: "Exiting PROBE_UP on Bandwidth Plateau";
    exiting_probe_up_on_loss_when_application_limited: "Exiting PROBE_UP on Loss When Application-Limited";
    never_exiting_when_application_limited_with_no_loss:
        "Never Exiting PROBE_UP (or STARTUP) When Application-Limited With No Loss";
    exiting_probe_down_on_inflight: "Exiting PROBE_DOWN on Inflight";
    exiting_probe_down_after_max_time: "Exiting PROBE_DOWN After Max Time";
    entering_and_exiting_probe_rtt: "Entering and Exiting PROBE_RTT";
    skipping_probe_rtt_due_to_application_limited_sending: "Skipping PROBE_RTT Due to Application-Limited Sending";
    startup_bandwidth_with_aggregation: "Achieving Expected STARTUP Bandwidth on a Link With Aggregation";
    cruise_bandwidth_with_aggregation: "Achieving Expected Cruise Bandwidth on a Link With Aggregation";
    sub_packet_bdps: "Correctly Managing Sub-Packet BDPs";
    increasing_bandwidth_tenfold: "Increasing Bandwidth 10x and Ensuring Full Bandwidth is Reached";
    decreasing_bandwidth_tenfold: "Decreasing Bandwidth 10x and Ensuring Max Bandwidth Adapts Down";
    token_bucket_policers: "Handling Token Bucket Policers";
    spurious_fast_recovery: "Handling Spurious Fast Recovery";
    spurious_rto_recovery: "Handling Spurious RTO Recovery";
    entering_and_exiting_probe_rtt_during_startup: "Entering and Exiting PROBE_RTT During STARTUP";
    loss_during_probe_up_after_inflight_longterm_is_set:
        "Handling Loss During PROBE_UP After inflight_longterm is Set";
    application_limited_sending_during_probe_refill: "Handling Application-Limited Sending During PROBE_REFILL";
}

/// A suite that a controller without the draft's states passes would show nothing.
#[test]
fn cubic_fails() {
    let contender = contender("cubic").expect("there is a controller of this name");
    let result = run_case(CASES[0], contender.as_ref()).expect("the scene can be played");
    assert_eq!(result.count(), 0, "{}", text("tiderace cubic", std::slice::from_ref(&result), true));
}
