//! Diagnosis from records: events are collected, and evaluated when the total duration is known.

use std::{
    collections::BTreeMap,
    io::{BufRead, Error},
};

use serde_json::Value;

use super::{BURST, Burst, Diagnosis, KEPT, Milestone, PARTS, Part, STALL_LEAST, STALL_RTTS, Stall};

/// State kept until the end is known.
#[derive(Default)]
struct Seen {
    diagnosis: Diagnosis,
    events: u64,
    first: Option<f64>,
    /// Time at which packets that elicit acknowledgements left, and their bytes.
    sent: Vec<(f64, u64)>,
    received: Vec<(f64, u64)>,
    lost: Vec<(f64, String)>,
    rtts: Vec<f64>,
    /// Smoothed RTT in milliseconds, and window in bytes, when they changed.
    smoothed: Vec<(f64, f64)>,
    windows: Vec<(f64, u64)>,
    limits: Vec<(f64, String)>,
    probes: Vec<f64>,
}

pub(super) fn read(file: impl BufRead) -> Result<Diagnosis, Error> {
    let mut seen = Seen::default();
    for line in file.lines() {
        let line = line?;
        let text = line.trim_start_matches('\u{1e}').trim();
        if text.is_empty() {
            continue;
        }
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            // A program that was ended leaves half a record at the end.
            Err(error) if seen.events > 0 && error.is_eof() => break,
            Err(error) => return Err(Error::other(format!("no qlog: {error}"))),
        };
        if value.get("trace").is_some() {
            seen.header(&value);
        }
        if let (Some(millis), Some(name)) = (value["time"].as_f64(), value["name"].as_str()) {
            seen.event(millis / 1e3, name, &value["data"]);
        }
    }
    if seen.events == 0 {
        return Err(Error::other("no qlog: there is no event with a time and a name"));
    }
    Ok(seen.judge())
}

impl Seen {
    fn header(&mut self, header: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = &header["trace"]["common_fields"];
        self.diagnosis.title = text(&header["title"]);
        self.diagnosis.id = text(&fields["group_id"]);
        self.diagnosis.vantage = text(&header["trace"]["vantage_point"]["type"]);
        self.diagnosis.reference = fields["reference_time"]["wall_clock_time"].as_str().map(str::to_owned);
    }

    fn note(&mut self, at_s: f64, what: impl Into<String>) {
        if self.diagnosis.milestones.len() < KEPT {
            self.diagnosis.milestones.push(Milestone { at_s, what: what.into() });
        }
    }

    fn event(&mut self, at: f64, name: &str, data: &Value) {
        self.events += 1;
        self.first.get_or_insert(at);
        self.diagnosis.end_s = self.diagnosis.end_s.max(at);
        let text = |field: &str| data[field].as_str().unwrap_or("unknown");
        let totals = &mut self.diagnosis.totals;
        let size = data["raw"]["length"].as_u64().unwrap_or(0);
        match name.rsplit(':').next().unwrap_or(name) {
            "packet_sent" => {
                totals.packets_sent += 1;
                totals.bytes_sent += size;
                let frames = data["frames"].as_array().into_iter().flatten();
                let mut kinds = frames.filter_map(|frame| frame["frame_type"].as_str());
                if kinds.any(|kind| !matches!(kind, "ack" | "padding" | "connection_close")) {
                    self.sent.push((at, size));
                }
            }
            "packet_received" => {
                totals.packets_received += 1;
                totals.bytes_received += size;
                self.received.push((at, size));
            }
            "packet_dropped" => totals.packets_dropped += 1,
            "packet_lost" if data["is_mtu_probe_packet"] != true => {
                totals.packets_lost += 1;
                self.lost.push((at, text("trigger").to_owned()));
            }
            "recovery_metrics_updated" | "metrics_updated" => {
                if let Some(rtt) = data["latest_rtt"].as_f64() {
                    self.rtts.push(rtt);
                }
                if let Some(min) = data["min_rtt"].as_f64() {
                    self.diagnosis.min_rtt_ms = Some(min);
                }
                if let Some(rtt) = data["smoothed_rtt"].as_f64() {
                    self.smoothed.push((at, rtt));
                }
                if let Some(window) = data["congestion_window"].as_u64() {
                    self.windows.push((at, window));
                }
                if data["pto_count"].as_u64().is_some_and(|count| count > 0) {
                    totals.probe_timeouts += 1;
                    self.probes.push(at);
                }
            }
            "limited" => self.limits.push((at, text("by").to_owned())),
            "connection_started" => self.note(at, format!("begins, {}", peer(&data["remote"]))),
            "connection_state_updated" => self.note(at, format!("state: {}", text("new").replace('_', " "))),
            "congestion_state_updated" => {
                self.note(at, format!("congestion control: {}", text("new").replace('_', " ")))
            }
            "mtu_updated" => self.note(at, format!("datagrams of {} bytes", data["new"])),
            "migration_state_updated" => {
                self.note(at, format!("{}, {}", text("new").replace('_', " "), peer(&data["tuple_remote"])));
            }
            "connection_closed" => {
                let code = ["connection_error", "application_error"].iter().find_map(|field| data[*field].as_str());
                let mut what = format!("closed: {}", text("trigger").replace('_', " "));
                if let Some(code) = code.filter(|code| *code != "unknown") {
                    what += &format!(", {code}");
                }
                if let Some(code) = data["error_code"].as_u64() {
                    what += &format!(", code {code:#x}");
                }
                if let Some(reason) = data["reason"].as_str().filter(|reason| !reason.is_empty()) {
                    what += &format!(", `{}`", reason.escape_debug());
                }
                self.note(at, what);
            }
            _ => {}
        }
    }

    fn judge(mut self) -> Diagnosis {
        self.diagnosis.begin_s = self.first.unwrap_or(0.0);
        self.rtts.sort_by(f64::total_cmp);
        self.diagnosis.median_rtt_ms = quantile(&self.rtts, 0.5);
        self.diagnosis.p95_rtt_ms = quantile(&self.rtts, 0.95);
        self.diagnosis.losses = bursts(&self.lost);
        if !self.limits.is_empty() {
            let whole = self.limited(self.diagnosis.begin_s, self.diagnosis.end_s);
            self.diagnosis.limited_s = Some(whole);
        }
        self.diagnosis.stalls = self.stalls();
        self.diagnosis.timeline = self.timeline();
        self.diagnosis
    }

    /// Seconds that each limit held between two times.
    fn limited(&self, from: f64, to: f64) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        // The one that holds at the beginning stands before it.
        let first = self.limits.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        for (place, (at, limit)) in self.limits.iter().enumerate().skip(first) {
            if *at >= to {
                break;
            }
            let end = self.limits.get(place + 1).map_or(to, |next| next.0);
            let seconds = end.min(to) - at.max(from);
            if seconds > 0.0 {
                *sums.entry(limit.clone()).or_insert(0.0) += seconds;
            }
        }
        sums
    }

    /// Gaps between packets that count, in which the sender was kept from sending.
    fn stalls(&self) -> Vec<Stall> {
        let ends = self.sent.iter().skip(1).map(|(at, _)| *at).chain([self.diagnosis.end_s]);
        let mut stalls: Vec<Stall> = self
            .sent
            .iter()
            .zip(ends)
            .filter_map(|(&(from, _), to)| {
                let rtt = last(&self.smoothed, from).map_or(0.1, |rtt| rtt / 1e3);
                if to - from < (STALL_RTTS * rtt).max(STALL_LEAST) {
                    return None;
                }
                let mut limits = self.limited(from, to);
                // Who has nothing to say does not stand still.
                limits.remove("application");
                let seconds: f64 = limits.values().sum();
                let (limit, _) = limits.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
                let enough = seconds >= (STALL_RTTS * rtt).max(STALL_LEAST);
                let probe_timeouts = self.probes.iter().filter(|at| (from..=to).contains(*at)).count() as u64;
                enough.then_some(Stall { at_s: from, seconds, limit, probe_timeouts })
            })
            .collect();
        if stalls.len() > KEPT {
            stalls.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
            stalls.truncate(KEPT);
            stalls.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        }
        stalls
    }

    fn timeline(&self) -> Vec<Part> {
        let (begin, seconds) = (self.diagnosis.begin_s, self.diagnosis.seconds());
        if seconds <= 0.0 {
            return Vec::new();
        }
        let width = seconds / PARTS as f64;
        let in_part = |at: f64, from: f64, last: bool| at >= from && (last || at < from + width);
        let part = |number: usize| {
            let (from, is_last) = (begin + width * number as f64, number + 1 == PARTS);
            let sum = |list: &[(f64, u64)]| {
                list.iter().filter(|(at, _)| in_part(*at, from, is_last)).map(|(_, bytes)| bytes).sum()
            };
            Part {
                from_s: from,
                bytes_sent: sum(&self.sent),
                bytes_received: sum(&self.received),
                packets_lost: self.lost.iter().filter(|(at, _)| in_part(*at, from, is_last)).count() as u64,
                rtt_ms: last(&self.smoothed, from + width),
                window: last(&self.windows, from + width),
                limited_s: self.limited(from, from + width),
            }
        };
        (0..PARTS).map(part).collect()
    }
}

fn bursts(lost: &[(f64, String)]) -> Vec<Burst> {
    let mut bursts: Vec<Burst> = Vec::new();
    let mut before = f64::NEG_INFINITY;
    for (at, trigger) in lost {
        if at - before > BURST {
            bursts.push(Burst { at_s: *at, packets: 0, triggers: BTreeMap::new() });
        }
        before = *at;
        if let Some(burst) = bursts.last_mut() {
            burst.packets += 1;
            *burst.triggers.entry(trigger.clone()).or_default() += 1;
        }
    }
    if bursts.len() > KEPT {
        bursts.sort_by_key(|burst| std::cmp::Reverse(burst.packets));
        bursts.truncate(KEPT);
        bursts.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    }
    bursts
}

/// The value that holds at a time.
fn last<T: Copy>(list: &[(f64, T)], at: f64) -> Option<T> {
    let place = list.partition_point(|(time, _)| *time <= at);
    place.checked_sub(1).map(|place| list[place].1)
}

fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the list")]
    let place = ((sorted.len() as f64 * part) as usize).min(sorted.len().checked_sub(1)?);
    Some(sorted[place])
}

fn peer(tuple: &Value) -> String {
    let field = |v4: &str, v6: &str| tuple.get(v4).or_else(|| tuple.get(v6)).cloned();
    match (field("ip_v4", "ip_v6"), field("port_v4", "port_v6")) {
        (Some(Value::String(ip)), Some(port)) if ip.contains(':') => format!("peer at [{ip}]:{port}"),
        (Some(Value::String(ip)), Some(port)) => format!("peer at {ip}:{port}"),
        _ => "peer unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn file(events: &[(f64, &str, Value)]) -> Diagnosis {
        let mut text = "\u{1e}{\"title\":\"t\",\"trace\":{\"common_fields\":{\"group_id\":\"ab\"},\"vantage_point\":{\"type\":\"server\"}}}\n".to_owned();
        for (millis, name, data) in events {
            let _ = writeln!(text, "\u{1e}{}", serde_json::json!({"time": millis, "name": name, "data": data}));
        }
        read(text.as_bytes()).unwrap()
    }

    fn sent(at: f64) -> (f64, &'static str, Value) {
        (at, "quic:packet_sent", serde_json::json!({"raw": {"length": 1200}, "frames": [{"frame_type": "stream"}]}))
    }

    fn limited(at: f64, by: &str) -> (f64, &'static str, Value) {
        (at, "sender:limited", serde_json::json!({ "by": by }))
    }

    #[test]
    fn each_limit_has_its_time_and_a_stall_its_reason() {
        let rtt = serde_json::json!({"smoothed_rtt": 40.0, "latest_rtt": 40.0, "min_rtt": 40.0});
        let diagnosis = file(&[
            sent(0.0),
            (10.0, "quic:recovery_metrics_updated", rtt),
            sent(20.0),
            limited(20.0, "pacing"),
            sent(30.0),
            limited(30.0, "flow_control"),
            sent(530.0),
            limited(530.0, "application"),
            sent(1_030.0),
        ]);
        let limits = diagnosis.limited_s.unwrap();
        let near = |name: &str, seconds: f64| assert!((limits[name] - seconds).abs() < 1e-9, "{limits:?}");
        near("pacing", 0.01);
        near("flow_control", 0.5);
        near("application", 0.5);
        // Half a second behind a limit of the peer is a stall, half a second with nothing to say is none.
        let [stall] = &diagnosis.stalls[..] else { panic!("{:?}", diagnosis.stalls) };
        assert_eq!((stall.at_s, stall.limit.as_str(), stall.probe_timeouts), (0.03, "flow_control", 0));
        assert!((stall.seconds - 0.5).abs() < 1e-9);
        assert_eq!(diagnosis.timeline.len(), PARTS);
        assert_eq!(diagnosis.timeline.iter().map(|part| part.bytes_sent).sum::<u64>(), 5 * 1200);
        let parts: f64 = diagnosis.timeline.iter().flat_map(|part| part.limited_s.values()).sum();
        assert!((parts - 1.01).abs() < 1e-9, "{parts}");
        assert_eq!((diagnosis.id.as_str(), diagnosis.vantage.as_str()), ("ab", "server"));
    }

    #[test]
    fn losses_close_to_each_other_are_one_burst() {
        let lost = |at: f64, trigger: &str| (at, "quic:packet_lost", serde_json::json!({ "trigger": trigger }));
        let probe = (60.0, "quic:packet_lost", serde_json::json!({"is_mtu_probe_packet": true}));
        let threshold = "packet_reordering_threshold";
        let diagnosis = file(&[lost(5.0, threshold), lost(6.0, "time_threshold"), lost(50.0, threshold), probe]);
        let bursts: Vec<_> = diagnosis.losses.iter().map(|burst| (burst.at_s, burst.packets)).collect();
        assert_eq!(bursts, [(0.005, 2), (0.05, 1)]);
        assert_eq!(diagnosis.totals.packets_lost, 3);
        assert!(diagnosis.limited_s.is_none() && diagnosis.stalls.is_empty(), "nobody has said what limits the sender");
    }

    #[test]
    fn what_is_no_qlog_is_refused_and_half_a_record_is_not_missed() {
        assert!(read(&b"nonsense"[..]).is_err() && read(&b""[..]).is_err());
        let whole = "\u{1e}{\"time\":1.0,\"name\":\"quic:packet_sent\",\"data\":{}}\n\u{1e}{\"time\":2.0,\"na";
        assert_eq!(read(whole.as_bytes()).unwrap().totals.packets_sent, 1);
    }
}
