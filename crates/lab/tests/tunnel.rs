//! Connections inside tunnels against what follows from the path.

extern crate tiderace_lab as lab;

mod figures;

use figures::value;
use lab::{
    figure::Figure,
    measure::Provenance,
    record::{Record, RunOutcome},
    run::run_one,
    scenario::parse,
};

/// Runs over 10 Mbit/s and 50 ms with this loss and traffic: without a tunnel, in datagrams, in a stream.
fn runs(loss: &str, controller: &str, traffic: &str) -> [Record; 3] {
    let text = format!(
        r#"
name = "tunnel"
title = "Known tunnels"
about = "For tests."
[path.down]
rate = "10 Mbit/s"
queue = "62500 B"
delay = "25 ms"
loss = "{loss}"
[traffic]
{traffic}
[run]
warmup = "4 s"
duration = "20 s"
seeds = 1
[contenders]
congestion = ["{controller}"]
tunnel = ["none", "datagrams", "stream"]
"#
    );
    let scenario = parse(&text, "test").unwrap();
    let contenders = lab::roster::contenders(&scenario.contenders).unwrap();
    let records = contenders.iter().map(|contender| {
        let record = run_one(&scenario, contender.as_ref(), 1, None);
        assert_eq!(record.outcome, RunOutcome::Valid);
        record
    });
    records.collect::<Vec<_>>().try_into().unwrap()
}

const BULK: &str = "workload = \"tunnel\"\nconnections = 1";

#[test]
fn without_loss_a_tunnel_costs_its_headers() {
    let [direct, datagrams, stream] = runs("0 %", "cubic", BULK);
    // Packets of 1,452 bytes of UDP payload. In a tunnel some 32 of them are headers of the outer packet and of the datagram, and as many
    // fewer carry data: 2.3 %. CUBIC's queue does not fill at once, which costs another percent or two in all of them.
    for tunnel in [&datagrams, &stream] {
        let ratio = value(tunnel, Figure::Goodput) / value(&direct, Figure::Goodput);
        assert!((0.94..0.99).contains(&ratio), "{ratio}");
        // Handshakes one after the other: a round trip of 50 ms each, and packets that take a millisecond.
        let (with, without) = (value(tunnel, Figure::Handshake), value(&direct, Figure::Handshake));
        assert!((0.050..0.065).contains(&(with - without)), "{with} {without}");
    }
    // Nothing but full queues loses packets, and a lost packet of a reliable tunnel is not one of the inner connection: what it misses
    // are those that the tunnel's own queue had no room for.
    for end in [Figure::InnerLostBack, Figure::OuterLostBack] {
        assert!(value(&datagrams, end) < 0.001);
    }
    let (missed, dropped) = (value(&stream, Figure::InnerLost), value(&stream, Figure::TunnelDropped));
    assert!((missed - dropped).abs() < 0.001, "{missed} {dropped}");
    // CUBIC fills the tunnel's queue as well as that of the path: 256 KiB take 0.22 s at 9.5 Mbit/s.
    let rtt = value(&stream, Figure::RttP95);
    assert!((0.25..0.36).contains(&rtt), "{rtt}");
    // Without a tunnel there are no figures of one.
    for figure in [Figure::OuterLost, Figure::OuterLostBack, Figure::TunnelDropped] {
        assert_eq!(direct.figures[&figure].provenance, Provenance::Unsupported);
    }
}

#[test]
fn a_reliable_tunnel_hides_losses_and_shows_delay() {
    let [direct, datagrams, stream] = runs("2 %", "bbr3", BULK);
    // The path takes 2 % of the packets of the outer connection; in datagrams those of the inner one are lost with them.
    for (record, figure) in [
        (&direct, Figure::InnerLost),
        (&datagrams, Figure::InnerLost),
        (&datagrams, Figure::OuterLostBack),
        (&stream, Figure::OuterLost),
    ] {
        let lost = value(record, figure);
        assert!((0.014..0.028).contains(&lost), "{figure:?} {lost}");
    }
    assert!(value(&stream, Figure::InnerLost) < 0.002);
    // Each of these losses holds up what follows for a round trip and more.
    let (held_up, direct_rtt) = (value(&stream, Figure::RttP50), value(&direct, Figure::RttP50));
    assert!((0.0500..0.056).contains(&direct_rtt), "{direct_rtt}");
    assert!(held_up > direct_rtt + 0.05, "{held_up}");
    // Both congestion controllers react to the same loss.
    let (nested, alone) = (value(&datagrams, Figure::Goodput), value(&direct, Figure::Goodput));
    assert!(nested < 0.95 * alone, "{nested} {alone}");
}

#[test]
fn every_workload_goes_through_a_tunnel() {
    let traffic = "workload = \"requests\"\nconnections = 2\nresponse-size = \"6 kB\"";
    for record in runs("0 %", "cubic", traffic) {
        // 6 kB fit into the first window: one round trip, and 6 ms to send them, and the other connection's.
        let p50 = value(&record, Figure::RequestP50);
        assert!((0.055..0.066).contains(&p50), "{p50}");
    }
}
