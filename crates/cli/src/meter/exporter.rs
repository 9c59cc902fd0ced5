//! Figures for Prometheus, over plain HTTP, while a measurement runs.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Meter, Sample, State};
use crate::{address, failure::Failure};

/// Longest request that is read.
const REQUEST_MAX: usize = 4_096;
/// Time in which a request has to be there, and its answer taken.
const PATIENCE: Duration = Duration::from_secs(2);

/// A server of figures. Ends when it is dropped.
pub(crate) struct Exporter {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Exporter {
    /// Serves `/metrics` at an address of this host, or of a private network.
    ///
    /// # Errors
    /// When the address is public, or cannot be listened at.
    pub(crate) fn start(at: SocketAddr, meter: Meter) -> Result<Self, Failure> {
        if !is_private(at.ip()) {
            return Err(Failure::new(format_args!("`--prometheus {at}` would show the figures to everybody"))
                .hint("give an address of this host or of a private network, such as 127.0.0.1:9465"));
        }
        let failed = |error: io::Error| Failure::new(format_args!("cannot listen at {at}: {}", address::plain(&error)));
        let listener = TcpListener::bind(at).map_err(|error| address::cannot_listen(at, &error))?;
        let address = listener.local_addr().map_err(failed)?;
        let ended = Arc::new(AtomicBool::new(false));
        let over = ended.clone();
        // A thread of its own: the runtime of a measurement does not wait for those who watch.
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                // One after the other. Who is slow is given up soon.
                if let Ok(stream) = stream {
                    let _ = answer(stream, &meter);
                }
            }
        });
        eprintln!("figures for Prometheus: http://{address}/metrics");
        Ok(Self { address, ended, thread: Some(thread) })
    }

    /// Address that is listened at.
    #[cfg(test)]
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the thread.
        let woken = TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Returns whether an address is one of this host or of a private network.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

fn answer(mut stream: TcpStream, meter: &Meter) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let until = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut part = [0; 1_024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_MAX {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", text(&meter.state(), Instant::now())),
        (Some(b"GET"), _) => ("404 Not Found", "figures are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "figures are read with GET\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// A metric of subjects.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    of: fn(&Sample) -> Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "figures for a graph")]
fn number(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// Metrics of each subject.
const METRICS: [Metric; 11] = [
    Metric {
        name: "received_bytes_total",
        kind: "counter",
        help: "Bytes of the application received",
        of: |s| number(s.received),
    },
    Metric {
        name: "sent_bytes_total",
        kind: "counter",
        help: "Bytes of the application sent, each counted once",
        of: |s| number(s.sent),
    },
    Metric {
        name: "smoothed_rtt_seconds",
        kind: "gauge",
        help: "Smoothed round-trip time",
        of: |s| s.rtt.map(|rtt| rtt.as_secs_f64()),
    },
    Metric { name: "congestion_window_bytes", kind: "gauge", help: "Congestion window", of: |s| number(s.window) },
    Metric { name: "in_flight_bytes", kind: "gauge", help: "Bytes in flight", of: |s| number(s.in_flight) },
    Metric {
        name: "pacing_rate_bits_per_second",
        kind: "gauge",
        help: "Rate at which packets are released",
        of: |s| number(s.pacing_rate),
    },
    Metric {
        name: "delivery_rate_bits_per_second",
        kind: "gauge",
        help: "Delivery rate as the stack measures it",
        of: |s| number(s.delivery_rate),
    },
    Metric { name: "packets_sent_total", kind: "counter", help: "Packets sent", of: |s| number(s.packets_sent) },
    Metric {
        name: "packets_lost_total",
        kind: "counter",
        help: "Packets declared lost, or sent again by the kernel",
        of: |s| number(s.packets_lost),
    },
    Metric {
        name: "packets_repaired_total",
        kind: "counter",
        help: "Packets rebuilt by forward error correction",
        of: |s| number(s.packets_repaired),
    },
    Metric { name: "acks_received_total", kind: "counter", help: "Acknowledgements received", of: |s| number(s.acks) },
];

/// Prefix of all names.
const PREFIX: &str = "tiderace_live_";

/// Labels that tell a subject.
fn labels(state: &State, subject: &str, more: &str) -> String {
    format!("{{run=\"{}\",subject=\"{}\"{more}}}", escaped(&state.title), escaped(subject))
}

/// Text of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The exposition format of Prometheus. What is not reported has no series.
pub(crate) fn text(state: &State, now: Instant) -> String {
    let mut out = String::new();
    let mut head = |name: &str, kind: &str, help: &str, lines: &str| {
        if !lines.is_empty() {
            let _ = write!(out, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n{lines}");
        }
    };
    for metric in &METRICS {
        let mut lines = String::new();
        for subject in &state.subjects {
            if let Some(value) = (metric.of)(&subject.last) {
                let _ = writeln!(lines, "{PREFIX}{}{} {value}", metric.name, labels(state, &subject.name, ""));
            }
        }
        head(metric.name, metric.kind, metric.help, &lines);
    }
    let mut lines = String::new();
    for subject in &state.subjects {
        if let Some(rate) = subject.rate {
            let _ = writeln!(lines, "{PREFIX}goodput_bits_per_second{} {rate}", labels(state, &subject.name, ""));
        }
    }
    head("goodput_bits_per_second", "gauge", "Bytes of the application in the last quarter of a second", &lines);
    head("rtt_seconds", "histogram", "Samples of the round-trip time", &histograms(state));
    let mut lines = String::new();
    for subject in &state.subjects {
        if let Some(controller) = subject.last.state {
            let label = format!(",state=\"{}\"", escaped(controller));
            let _ = writeln!(lines, "{PREFIX}controller_state{} 1", labels(state, &subject.name, &label));
        }
    }
    head("controller_state", "gauge", "State of the congestion controller", &lines);
    let run = format!("{{run=\"{}\"}}", escaped(&state.title));
    let one = |name: &str, value: Option<f64>| {
        value.map_or_else(String::new, |value| format!("{PREFIX}{name}{run} {value}\n"))
    };
    let memory = one("resident_memory_bytes", number(state.memory));
    head("resident_memory_bytes", "gauge", "Resident memory of the program", &memory);
    let left = one("seconds_left", state.left(now).map(|left| left.as_secs_f64()));
    head("seconds_left", "gauge", "Time until the run ends", &left);
    let unseen = one("subjects_unseen_total", number(Some(state.unseen)));
    head("subjects_unseen_total", "counter", "Subjects beyond those that are followed", &unseen);
    out
}

fn histograms(state: &State) -> String {
    let mut lines = String::new();
    for subject in &state.subjects {
        let Some(rtts) = &subject.last.rtts else { continue };
        for (bound, count) in rtts.cumulative() {
            let label = format!(",le=\"{bound}\"");
            let _ = writeln!(lines, "{PREFIX}rtt_seconds_bucket{} {count}", labels(state, &subject.name, &label));
        }
        let all = rtts.count();
        let _ = writeln!(lines, "{PREFIX}rtt_seconds_bucket{} {all}", labels(state, &subject.name, ",le=\"+Inf\""));
        let _ = writeln!(lines, "{PREFIX}rtt_seconds_sum{} {}", labels(state, &subject.name, ""), rtts.sum());
        let _ = writeln!(lines, "{PREFIX}rtt_seconds_count{} {all}", labels(state, &subject.name, ""));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{super::histogram::Histogram, *};

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // A server that has read enough may reset the connection.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn figures_are_served_and_what_is_not_reported_has_no_series() {
        let meter = Meter::new("perf \"x\"", Some(Duration::from_secs(60)));
        let one = meter.subject("connection 1".to_owned());
        let mut rtts = Histogram::default();
        rtts.record(Duration::from_millis(30));
        let begun = meter.state().begun;
        let sample = |received| Sample {
            received: Some(received),
            rtts: Some(rtts),
            state: Some("startup"),
            ..Sample::default()
        };
        one.bring(begun, sample(0));
        one.bring(begun + Duration::from_secs(1), sample(1_000));
        let exporter = Exporter::start(([127, 0, 0, 1], 0).into(), meter).unwrap();
        let text = ask(exporter.address(), "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        for line in [
            "HTTP/1.1 200 OK\r\n",
            "# TYPE tiderace_live_received_bytes_total counter\n",
            "tiderace_live_received_bytes_total{run=\"perf \\\"x\\\"\",subject=\"connection 1\"} 1000\n",
            "tiderace_live_goodput_bits_per_second{run=\"perf \\\"x\\\"\",subject=\"connection 1\"} 8000\n",
            "tiderace_live_rtt_seconds_bucket{run=\"perf \\\"x\\\"\",subject=\"connection 1\",le=\"0.02\"} 0\n",
            "tiderace_live_rtt_seconds_bucket{run=\"perf \\\"x\\\"\",subject=\"connection 1\",le=\"+Inf\"} 1\n",
            "subject=\"connection 1\",state=\"startup\"} 1\n",
            "tiderace_live_seconds_left{run=",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("congestion_window") && !text.contains("sent_bytes"), "{text}");
        assert!(ask(exporter.address(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(exporter.address(), "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        // One that sends more than a request is given up, and others are served.
        assert_eq!(ask(exporter.address(), &"x".repeat(3 * REQUEST_MAX)), "");
        assert!(ask(exporter.address(), "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn public_addresses_are_refused() {
        let refused = |address: &str| Exporter::start(address.parse().unwrap(), Meter::new("x", None)).is_err();
        assert!(refused("0.0.0.0:0") && refused("203.0.113.7:9465") && refused("[2001:db8::1]:9465"));
        assert!(is_private("10.0.0.1".parse().unwrap()) && is_private("fd00::1".parse().unwrap()));
    }
}
