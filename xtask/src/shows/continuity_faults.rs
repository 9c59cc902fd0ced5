//! Processes that are killed, signers that are slow, gone or wrong, and settings that contradict the machines: what each costs, and whom.

use anyhow::Result;

use super::{
    Context,
    command::load,
    continuity::{failures, measured, test, test_of},
    row::{Row, Target},
};

/// Value that 99 % do not exceed.
fn p99(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * 99).div_ceil(100) - 1]
}

/// Programs that cannot take over, settings that contradict the machines, and processes that are killed.
pub(super) fn refused(context: &Context) -> Result<Vec<Row>> {
    let crash = test(context, "continuity-refused", "cannot_take_over", &[])?;
    let ids = test_of("balance", context, "continuity-refused-ids", "keys_and_lengths_of_ids", &[])?;
    let balance = test_of("balance", context, "continuity-refused-balance", "a_wrong_configuration", &[])?;
    let killed = test(context, "continuity-killed", "that_is_killed_takes", &[])?;
    let reset = measured(&killed, "time to a stateless reset, ms")?[0];
    Ok(vec![
        failures(&crash, "upgrades to unusable programs that changed something"),
        failures(&ids, "connection IDs that contradict those of other machines and were taken"),
        failures(&balance, "wrong configurations of a load balancer that changed something"),
        failures(&killed, "connections of other processes that a killed one took with it"),
        Row::new("time to a stateless reset after kill -9", reset, "ms", Target::AtMost(1_000.0)),
    ])
}

/// Clients of one of two processes, which is killed.
pub(super) fn killed(context: &Context) -> Result<Vec<Row>> {
    let (rounds, clients) = if context.long { ("20", "10") } else { ("4", "5") };
    let settings = [("EDGE_KILLS", rounds), ("EDGE_KILLED_CLIENTS", clients)];
    let ended = test(context, "continuity-killed-clients", "served_again", &settings)?;
    let mut times = measured(&ended, "time until a client is served again, ms")?;
    let get = |what: &str| measured(&ended, what).map(|values| values[0]);
    let (rtt, worst) = (get("RTT, ms")?, p99(&mut times));
    Ok(vec![
        Row::new("time until a client is served again, p99", worst, "ms", Target::AtMost(2.0 * rtt + 100.0)).detail(format!(
            "{} clients with an RTT of {rtt} ms, {clients} at a time, which ask all the time; median {:.0}, least {:.0}, most {:.0}; target: \
             2 RTT + 100 ms; {}",
            times.len(),
            times[times.len() / 2],
            times[0],
            times[times.len() - 1],
            load()
        )),
        Row::new(
            "POST requests that arrived twice at the back end",
            get("POST requests that arrived twice")?,
            "",
            Target::Exactly(0.0),
        )
        .detail(format!(
            "of {}, from as many clients; {} had no answer: their process was killed",
            get("POST requests")?,
            get("POST requests without an answer")?
        )),
        failures(&ended, "failures of clients of the process that lives"),
    ])
}

/// Signers that are far away, gone and wrong.
pub(super) fn signer(context: &Context) -> Result<Vec<Row>> {
    let (rounds, requests) = if context.long { ("9", "2000") } else { ("3", "1000") };
    let settings = [("SIGNER_ROUNDS", rounds), ("SIGNER_REQUESTS", requests)];
    let run = |name: &str, filter: &str, settings: &[_]| test_of("remote_signer", context, name, filter, settings);
    let far = run("continuity-signer-far", "far_away", &settings)?;
    let mut rows = Vec::new();
    for delay in ["50 ms", "5000 ms"] {
        let of = |what: &str| {
            measured(
                &far,
                &format!("{what} with a signer at {delay}{}", if what == "handshakes" { "" } else { ", ms" }),
            )
        };
        let (near, handshakes) = (measured(&far, "p99 of requests with a signer at 0 ms, ms")?, of("handshakes")?);
        rows.push(
            Row::median(
                format!("p99 of requests on open connections, signer at {delay} − at 0 ms"),
                &of("p99 of requests more")?,
                "ms",
                Target::AtMost(2.0),
            )
            .detail(format!(
                "{rounds} rounds of {requests} requests over HTTP/3 and as many over HTTP/2, beside {:.0} full handshakes or more, one each 40 ms; the p99 \
                 at 0 ms is {:.1} ms or more; {}",
                handshakes.iter().copied().fold(f64::INFINITY, f64::min),
                near.iter().copied().fold(f64::INFINITY, f64::min),
                load()
            )),
        );
    }
    rows.push(failures(&far, "handshakes that did not wait for their signature, or failed"));
    for (name, filter, what) in [
        (
            "continuity-signer-gone",
            "without_a_signer",
            "a signer that is gone: sessions not resumed, failures not counted",
        ),
        (
            "continuity-signer-silent",
            "lost_silently",
            "a signer that is lost silently and is not left for the next one",
        ),
        (
            "continuity-signer-wrong",
            "what_is_wrong_with_a_signer",
            "wrong certificates of a signer without one clear message",
        ),
    ] {
        rows.push(failures(&run(name, filter, &[])?, what));
    }
    Ok(rows)
}
