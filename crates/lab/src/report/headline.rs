//! The conditions of a scenario in a few words.

use netem::Loss;
use units::duration_text::display;

use crate::scenario::Scenario;

/// The conditions under which a result was found: connections, RTT, law of loss. `varied` names fields that are not fixed.
pub(super) fn conditions(scenario: &Scenario, varied: &dyn Fn(&[&str]) -> bool) -> Vec<String> {
    let mut words = Vec::new();
    if !varied(&["traffic.connections"]) {
        words.push(match scenario.traffic.connections {
            1 => "1 connection".to_owned(),
            count => format!("{count} connections"),
        });
    }
    if !varied(&["path.rtt", "path.down.delay", "path.up.delay"]) {
        words.push(format!("RTT {}", display(scenario.path.base_rtt())));
    }
    if !varied(&["path.loss", "path.loss-burst", "path.down.loss", "path.up.loss"]) {
        words.push(law(&scenario.loaded_link().loss));
    }
    words
}

/// The law of loss of a link.
fn law(loss: &Loss) -> String {
    match loss {
        Loss::None => "no random loss".to_owned(),
        Loss::Iid { p } => format!("{p} independent loss"),
        Loss::Burst { mean, length } => format!("{mean} loss in bursts of {length}"),
        Loss::GilbertElliott { .. } => format!("{:.2} % Gilbert-Elliott loss", loss.mean() * 100.0),
        Loss::Group { size, drop, .. } => format!("{drop} of each {size} packets lost"),
        Loss::Trace(trace) => format!("{:.2} % loss by trace {}", trace.mean() * 100.0, trace.file),
    }
}

/// The seeds in words.
pub(super) fn seeds(scenario: &Scenario) -> String {
    let (first, count) = (scenario.run.seed, u64::from(scenario.run.seeds));
    if count == 1 { format!("seed {first}") } else { format!("seeds {first} to {}", first + count - 1) }
}
