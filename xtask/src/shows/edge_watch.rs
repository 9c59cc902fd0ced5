//! View of operators: a real Prometheus scrapes a gateway, evaluates the rules of `deploy/`, and answers every question that the
//! dashboard asks.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::cargo,
    edge_servers::{port, site},
    row::{Row, Target},
};

const LIMIT: Duration = Duration::from_secs(1_800);
/// Panels that stay empty while nothing fails, no client gives up or moves, no health check runs, no policy asks for repair, and no
/// client says why it
/// fell back.
const QUIET: [&str; 11] = [
    "ended_by!=\"answer\"",
    "ended_by=\"client\"",
    "connections_refused",
    "connection_errors",
    "streams_total",
    "back_end",
    "quic_loss_ratio",
    "reloads",
    "early_data_register",
    "quic_repair",
    "fallbacks_reported",
];

/// Asks over HTTP; gives the body.
pub(super) fn ask(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok(body.to_owned())
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Every expression of the dashboard, with Grafana's variables filled in.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().map(Vec::as_slice).unwrap_or_default();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets
        .filter_map(|target| target["expr"].as_str())
        .map(|text| text.replace("$__rate_interval", "1m").replace("$instance", ".*"))
        .collect()
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let deploy = context.root.join("deploy");
    let mut tested = Command::new("promtool");
    tested.args(["test", "rules", "rules.test.yml"]).current_dir(deploy.join("prometheus"));
    let tested = context.commands.run("edge-watch-rules", &mut tested, LIMIT)?;
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("edge-watch-build", &mut build, LIMIT)?.ok()?;
    let program = context.commands.target().join("debug/tiderace");
    let scratch = context.commands.scratch("edge-watch")?;
    site(&scratch, &[("small", 1_000)])?;
    let (serve, figures, prometheus) = (port()?, port()?, port()?);
    let text = format!(
        "listen = \"127.0.0.1:{serve}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[transport]\nidle-timeout = \"2 s\"\n[metrics]\nlisten = \"127.0.0.1:{figures}\"\n\
         [[policy]]\nname = \"half\"\nnetwork = \"127.0.0.0/8\"\nshare = \"50 %\"\ncongestion = \"bbr3\"\n\
         [[route]]\nfiles = \"www\"\n"
    );
    let config = scratch.join("edge.toml");
    std::fs::write(&config, text)?;
    let mut command = Command::new(&program);
    let edge = context.commands.start("edge-watch-edge", command.args(["edge", "run", "--config"]).arg(&config))?;
    let text = std::fs::read_to_string(deploy.join("prometheus/prometheus.yml"))?
        .replace("15s", "1s")
        .replace("127.0.0.1:9464", &format!("127.0.0.1:{figures}"))
        .replace("rules.yml", &deploy.join("prometheus/rules.yml").display().to_string());
    std::fs::write(scratch.join("prometheus.yml"), text)?;
    let mut command = Command::new("prometheus");
    command.arg(format!("--web.listen-address=127.0.0.1:{prometheus}")).arg("--storage.tsdb.path=data");
    let server = context
        .commands
        .start("edge-watch-prometheus", command.arg("--config.file=prometheus.yml").current_dir(&scratch))?;
    let get = |way: &str| -> Result<()> {
        let mut get = Command::new(&program);
        get.args(["get", "--only", way, "--ca"])
            .arg(scratch.join("cert.pem"))
            .arg(format!("https://localhost:{serve}/small"));
        context.commands.run("edge-watch-get", &mut get, LIMIT)?.ok()?;
        Ok(())
    };
    // Traffic of both kinds until there is something to see.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        get("quic")?;
        get("tcp")?;
        std::thread::sleep(Duration::from_millis(300));
    }
    // A client that spoke QUIC, and is then seen over TCP alone for longer than it takes to be judged.
    let counted = "tiderace_edge_fallbacks_total{client=\"spoke\"}";
    let fallbacks = format!("count_over_time({counted}[1m]) >= 2");
    let begun = Instant::now();
    let fell = loop {
        let answer: Value =
            serde_json::from_str(&ask(prometheus, &format!("/api/v1/query?query={}", encoded(&fallbacks)))?)?;
        let fell = answer["data"]["result"].as_array().is_some_and(|found| !found.is_empty());
        if fell || begun.elapsed() > Duration::from_secs(40) {
            break fell;
        }
        get("quic")?;
        get("tcp")?;
        std::thread::sleep(Duration::from_secs(7));
    };
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(deploy.join("grafana/tiderace-edge.json"))?)?;
    let (mut faults, mut empty, mut all) = (Vec::new(), Vec::new(), 0);
    for expression in expressions(&dashboard) {
        let answer: Value =
            serde_json::from_str(&ask(prometheus, &format!("/api/v1/query?query={}", encoded(&expression)))?)?;
        all += 1;
        if answer["status"] != "success" {
            faults.push(format!("{expression}: {}", answer["error"]));
        } else if answer["data"]["result"].as_array().is_none_or(Vec::is_empty) {
            empty.push(expression);
        }
    }
    let rules: Value = serde_json::from_str(&ask(prometheus, "/api/v1/rules")?)?;
    let groups = rules["data"]["groups"].as_array().context("there are no rules")?;
    let rules: Vec<&Value> = groups.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
    let unwell = rules.iter().filter(|rule| rule["health"] != "ok").count();
    let firing: Vec<&str> =
        rules.iter().filter(|rule| rule["state"] == "firing").filter_map(|rule| rule["name"].as_str()).collect();
    let unexplained: Vec<&String> = empty.iter().filter(|text| !QUIET.iter().any(|name| text.contains(name))).collect();
    ensure!(rules.len() > 5, "{}{}", server.printed(), edge.printed());
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    Ok(vec![
        Row::new("failed tests of the alerts", if tested.succeeded() { 0.0 } else { 1.0 }, "", Target::Exactly(0.0))
            .detail("promtool test rules deploy/prometheus/rules.test.yml"),
        Row::new("rules that Prometheus cannot evaluate", number(unwell), "", Target::Exactly(0.0))
            .detail(format!("of {}, over a gateway at work", rules.len())),
        Row::new("alerts of a gateway that is well", number(firing.len()), "", Target::Exactly(0.0))
            .detail(firing.join(", ")),
        Row::new("questions of the dashboard that are wrong", number(faults.len()), "", Target::Exactly(0.0))
            .detail(format!("of {all}\n{}", faults.join("\n"))),
        Row::new("clients whose fall-back was overlooked", if fell { 0.0 } else { 1.0 }, "", Target::Exactly(0.0))
            .detail(format!("a client that spoke QUIC comes over TCP: {counted}")),
        Row::new("questions without an answer", number(unexplained.len()), "", Target::Exactly(0.0)).detail(format!(
            "beside {} about what has not happened\n{}",
            empty.len() - unexplained.len(),
            unexplained.iter().map(|text| text.as_str()).collect::<Vec<_>>().join("\n")
        )),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_found_and_filled_in() {
        let dashboard = serde_json::json!({"panels": [{"type": "row"}, {"targets": [
            {"expr": "rate(a{instance=~\"$instance\"}[$__rate_interval])"}
        ]}]});
        assert_eq!(expressions(&dashboard), ["rate(a{instance=~\".*\"}[1m])"]);
        assert_eq!(encoded("a{b}"), "a%7Bb%7D");
    }
}
