//! Which figures a workload is about, the most important first, and the conditions of a scenario in a few words.

use netem::Loss;
use units::duration_text::display;

use crate::{
    figure::Figure,
    scenario::{Scenario, Workload},
};

/// The headline figures of a scenario. The first that the runs have decides who wins.
pub(super) fn headlines(scenario: &Scenario) -> Vec<Figure> {
    let mut figures = Vec::new();
    if !scenario.contenders.rivals.is_empty() {
        figures.extend([Figure::Share, Figure::HarmFirst, Figure::HarmSecond]);
    }
    let many = scenario.traffic.connections > 1 || scenario.factors.contains_key("traffic.connections");
    figures.extend(match scenario.traffic.workload {
        Workload::Bulk => vec![Figure::Goodput, Figure::RttP95, Figure::LinkLoss],
        Workload::Requests => {
            vec![Figure::RequestP99, Figure::RequestP95, Figure::RequestP50, Figure::RequestRate]
        }
        Workload::Flows => vec![Figure::FlowP99, Figure::FlowP95, Figure::FlowP50, Figure::FlowsUnfinished],
        Workload::Page => vec![Figure::FlowP95, Figure::FlowP50, Figure::FlowsUnfinished],
        Workload::Datagrams | Workload::Messages => {
            vec![Figure::ResidualLoss, Figure::DelayP99, Figure::DelayP95, Figure::Goodput]
        }
        Workload::Video => {
            vec![Figure::VideoStalled, Figure::VideoRate, Figure::VideoStart, Figure::VideoSwitches]
        }
        Workload::Feed => vec![Figure::RequestP95, Figure::RequestP50, Figure::FeedSeen, Figure::FeedWasted],
    });
    if many && scenario.traffic.workload == Workload::Bulk {
        figures.push(Figure::Jain);
    }
    figures.push(Figure::Overhead);
    figures
}

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
