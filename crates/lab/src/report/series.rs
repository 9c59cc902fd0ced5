//! Time series of one end of a connection, from its qlog file, as one HTML page: window and bytes in flight, RTT, rates, spacing of
//! acknowledgements, states of the congestion controller.
//!
//! The events read are those of draft-ietf-quic-qlog-quic-events in JSON text sequences, so files of other stacks with these events work
//! too.

use core::fmt::Write;
use std::io::{BufRead, Error};

use serde_json::Value;

use super::{
    PAGE_STYLE,
    plot::{Axis, Band, Shape, TimeLine, escape, lines},
};

/// Heading of the picture of `cwnd` and `bytes_in_flight`.
const WINDOW: &str = "Window and flight";
/// Rates are means over this many seconds.
const BIN: f64 = 0.1;
/// Values kept of one series: a picture cannot show more.
const KEPT: usize = 200_000;

/// Time series of one end of a connection.
#[derive(Clone, Debug, Default)]
pub struct TimeSeries {
    title: String,
    /// Seconds and kilobytes, milliseconds, or megabits per second.
    window: Vec<(f64, f64)>,
    in_flight: Vec<(f64, f64)>,
    latest_rtt: Vec<(f64, f64)>,
    smoothed_rtt: Vec<(f64, f64)>,
    pacing: Vec<(f64, f64)>,
    /// For each [`BIN`]: bytes of packets that left, that were acknowledged, that were lost; packets that came in, and those of
    /// them that acknowledged something.
    sent: Vec<f64>,
    delivered: Vec<f64>,
    lost: Vec<f64>,
    received: Vec<f64>,
    acknowledgements: Vec<f64>,
    states: Vec<(f64, String)>,
    end: f64,
    /// Events that were read.
    events: u64,
}

impl TimeSeries {
    /// Reads a qlog file.
    ///
    /// # Errors
    /// When it cannot be read, or is no such file.
    pub fn read(file: impl BufRead) -> Result<Self, Error> {
        let mut series = Self::default();
        let mut sizes = std::collections::BTreeMap::new();
        for line in file.lines() {
            let line = line?;
            let text = line.trim_start_matches('\u{1e}').trim();
            if text.is_empty() {
                continue;
            }
            let value: Value = serde_json::from_str(text).map_err(|error| Error::other(format!("no qlog: {error}")))?;
            if let Some(title) = value.get("title").and_then(Value::as_str) {
                series.title = title.to_owned();
            }
            if let (Some(millis), Some(name)) = (value["time"].as_f64(), value["name"].as_str()) {
                series.events += 1;
                series.note(millis / 1e3, name.rsplit(':').next().unwrap_or(name), &value["data"], &mut sizes);
            }
        }
        if series.events == 0 {
            return Err(Error::other("no qlog: there is no event with a time and a name"));
        }
        Ok(series)
    }

    fn note(&mut self, at: f64, name: &str, data: &Value, sizes: &mut std::collections::BTreeMap<u64, f64>) {
        self.end = self.end.max(at);
        let number = |field: &str| data[field].as_f64();
        let push = |series: &mut Vec<(f64, f64)>, value: Option<f64>, factor: f64| {
            if let Some(value) = value.filter(|_| series.len() < KEPT) {
                series.push((at, value * factor));
            }
        };
        match name {
            "recovery_metrics_updated" | "metrics_updated" => {
                push(&mut self.window, number("congestion_window"), 1e-3);
                push(&mut self.in_flight, number("bytes_in_flight"), 1e-3);
                push(&mut self.latest_rtt, number("latest_rtt"), 1.0);
                push(&mut self.smoothed_rtt, number("smoothed_rtt"), 1.0);
                push(&mut self.pacing, number("pacing_rate"), 1e-6);
            }
            "congestion_state_updated" => {
                if let Some(state) = data["new"].as_str().filter(|_| self.states.len() < KEPT) {
                    self.states.push((at, state.to_owned()));
                }
            }
            "packet_sent" => {
                let size = data["raw"]["length"].as_f64().unwrap_or(0.0);
                add(&mut self.sent, at, size);
                if let Some(number) = application(data) {
                    sizes.insert(number, size);
                    if sizes.len() > 100_000 {
                        sizes.pop_first();
                    }
                }
            }
            "packet_lost" => {
                let known = application(data).and_then(|number| sizes.get(&number).copied());
                add(&mut self.lost, at, known.unwrap_or(0.0));
            }
            "packet_received" => {
                add(&mut self.received, at, 1.0);
                let frames = data["frames"].as_array().into_iter().flatten();
                let mut acknowledges = false;
                for frame in frames.filter(|frame| frame["frame_type"] == "ack") {
                    acknowledges = true;
                    // Packet numbers begin anew in each space: those of the handshake are few.
                    if application(data).is_some() {
                        add(&mut self.delivered, at, acknowledged(frame, sizes));
                    }
                }
                if acknowledges {
                    add(&mut self.acknowledgements, at, 1.0);
                }
            }
            _ => {}
        }
    }

    /// States as parts of the time, and a colour for each name.
    fn bands(&self) -> (Vec<Band>, Vec<String>) {
        let mut names: Vec<String> = Vec::new();
        let mut bands = Vec::new();
        for (place, (from, state)) in self.states.iter().enumerate() {
            let to = self.states.get(place + 1).map_or(self.end, |next| next.0);
            let series = names.iter().position(|name| name == state).unwrap_or_else(|| {
                names.push(state.clone());
                names.len() - 1
            });
            bands.push(Band { from: *from, to, series, label: state.clone() });
        }
        (bands, names)
    }

    /// The page.
    pub fn html(&self) -> String {
        let title = if self.title.is_empty() { "A connection over time" } else { &self.title };
        let mut out = String::new();
        let _ = write!(
            out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\"><title>{0}</title><style>{PAGE_STYLE}</style></head><body><main><h1>{0}</h1><p class=\"sub\">{1} events of a qlog file; times in seconds since the run began</p>",
            escape(title),
            self.events
        );
        self.body(&mut out);
        out.push_str("</main></body></html>\n");
        out
    }

    /// The pictures, for a page that has other things as well.
    pub(super) fn body(&self, out: &mut String) {
        let (bands, states) = self.bands();
        if !states.is_empty() {
            out.push_str("<h3>States</h3><p class=\"note\">The colours behind the lines say in which state the congestion controller was.</p><p class=\"legend\">");
            for (index, state) in states.iter().enumerate() {
                let _ = write!(
                    out,
                    "<span class=\"s{}\"><span class=\"swatch\"></span>{}</span> ",
                    index % 8,
                    escape(state)
                );
            }
            out.push_str("</p>");
        }
        let rate = |bins: &[f64]| binned(bins, 8e-6 / BIN);
        let smallest = self.latest_rtt.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let wait: Vec<(f64, f64)> = self.latest_rtt.iter().map(|&(at, rtt)| (at, rtt - smallest)).collect();
        let pictures = [
            (
                WINDOW,
                "kB",
                vec![("congestion window", self.window.clone()), ("bytes in flight", self.in_flight.clone())],
            ),
            (
                "Rates",
                "Mbit/s",
                vec![
                    ("pacing rate", self.pacing.clone()),
                    ("sent", rate(&self.sent)),
                    ("delivered", rate(&self.delivered)),
                    ("lost", rate(&self.lost)),
                ],
            ),
            (
                "Round-trip time",
                "ms",
                vec![("latest", self.latest_rtt.clone()), ("smoothed", self.smoothed_rtt.clone())],
            ),
            ("Wait: latest RTT less the smallest", "ms", vec![("wait", wait)]),
            (
                "Rhythm of acknowledgements",
                "1/s",
                vec![
                    ("packets received", binned(&self.received, 1.0 / BIN)),
                    ("with an acknowledgement", binned(&self.acknowledgements, 1.0 / BIN)),
                ],
            ),
        ];
        for (heading, unit, series) in pictures {
            // A window, and what is in flight, hold until they change; the rest is samples and means.
            let shape = if heading == WINDOW { Shape::Steps } else { Shape::Joined };
            let series: Vec<TimeLine> = series
                .into_iter()
                .filter(|(_, points)| !points.is_empty())
                .map(|(name, points)| TimeLine { name: name.to_owned(), points, shape })
                .collect();
            if series.is_empty() {
                continue;
            }
            let _ = write!(out, "<section><h3>{}</h3><p class=\"legend\">", escape(heading));
            for (index, one) in series.iter().enumerate() {
                let _ = write!(
                    out,
                    "<span class=\"s{}\"><span class=\"swatch\"></span>{}</span> ",
                    index % 8,
                    escape(&one.name)
                );
            }
            out.push_str("</p>");
            out.push_str(&lines(&series, &bands, Axis { label: unit, log: false, reversed: false }, (0.0, self.end)));
            out.push_str("</section>");
        }
    }
}

/// The number of a packet with application data.
fn application(data: &Value) -> Option<u64> {
    let kind = data["header"]["packet_type"].as_str();
    data["header"]["packet_number"].as_u64().filter(|_| kind.is_none_or(|kind| kind == "1RTT" || kind == "0RTT"))
}

/// Bytes of the packets that an ACK frame acknowledges for the first time.
fn acknowledged(frame: &Value, sizes: &mut std::collections::BTreeMap<u64, f64>) -> f64 {
    let mut bytes = 0.0;
    for range in frame["acked_ranges"].as_array().into_iter().flatten() {
        // One number stands for itself.
        let (Some(low), high) = (range[0].as_u64(), range[1].as_u64()) else { continue };
        let high = high.unwrap_or(low);
        if low > high {
            continue;
        }
        let known: Vec<u64> = sizes.range(low..=high).map(|(number, _)| *number).collect();
        bytes += known.iter().filter_map(|number| sizes.remove(number)).sum::<f64>();
    }
    bytes
}

/// Adds to the bin of this moment. A time that no run reaches does not make a million bins.
fn add(bins: &mut Vec<f64>, at: f64, value: f64) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by the next line")]
    let bin = (at / BIN).max(0.0) as usize;
    if bin < KEPT {
        if bins.len() <= bin {
            bins.resize(bin + 1, 0.0);
        }
        bins[bin] += value;
    }
}

fn binned(bins: &[f64], factor: f64) -> Vec<(f64, f64)> {
    (0u32..).zip(bins).map(|(index, value)| ((f64::from(index) + 0.5) * BIN, value * factor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = concat!(
        "\u{1e}{\"title\":\"a <test>\"}\n",
        "\u{1e}{\"time\":100.0,\"name\":\"quic:congestion_state_updated\",\"data\":{\"new\":\"startup\"}}\n",
        "\u{1e}{\"time\":150.0,\"name\":\"quic:packet_sent\",\"data\":{\"header\":{\"packet_number\":7},\"raw\":{\"length\":1250}}}\n",
        "\u{1e}{\"time\":200.0,\"name\":\"quic:recovery_metrics_updated\",\"data\":{\"congestion_window\":12000,\"latest_rtt\":50.5}}\n",
        "\u{1e}{\"time\":250.0,\"name\":\"quic:packet_lost\",\"data\":{\"header\":{\"packet_number\":7}}}\n",
        "\u{1e}{\"time\":300.0,\"name\":\"quic:congestion_state_updated\",\"data\":{\"new\":\"drain\"}}\n",
        "\u{1e}{\"time\":310.0,\"name\":\"quic:packet_sent\",\"data\":{\"header\":{\"packet_number\":8},\"raw\":{\"length\":500}}}\n",
        "\u{1e}{\"time\":320.0,\"name\":\"quic:packet_received\",\"data\":{\"header\":{\"packet_number\":0},\"frames\":[{\"frame_type\":\"ack\",\"acked_ranges\":[[8,9]]}]}}\n",
        "\u{1e}{\"time\":330.0,\"name\":\"quic:packet_received\",\"data\":{\"header\":{\"packet_number\":1},\"frames\":[{\"frame_type\":\"ack\",\"acked_ranges\":[[8]]}]}}\n",
    );

    #[test]
    fn a_file_is_read() {
        let series = TimeSeries::read(FILE.as_bytes()).unwrap();
        assert_eq!((series.window.as_slice(), series.latest_rtt.as_slice()), (&[(0.2, 12.0)][..], &[(0.2, 50.5)][..]));
        // 1250 bytes within 0.1 s: 0.1 Mbit/s, sent in the second bin and lost in the third.
        assert!((binned(&series.sent, 8e-6 / BIN)[1].1 - 0.1).abs() < 1e-12);
        assert!((binned(&series.lost, 8e-6 / BIN)[2].1 - 0.1).abs() < 1e-12);
        // Acknowledged twice, delivered once.
        assert!((series.delivered.iter().sum::<f64>() - 500.0).abs() < 1e-9);
        assert!((series.acknowledgements.iter().sum::<f64>() - 2.0).abs() < 1e-9);
        let (bands, names) = series.bands();
        assert_eq!(names, ["startup", "drain"]);
        assert_eq!((bands[0].from, bands[0].to), (0.1, 0.3));
        let page = series.html();
        assert!(page.contains("a &lt;test&gt;") && !page.contains("<test>") && page.contains("congestion window"));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(TimeSeries::read("hello".as_bytes()).is_err());
        assert!(TimeSeries::read("{}\n".as_bytes()).is_err());
        // A time that makes no sense takes no memory.
        let far = "{\"time\":1e300,\"name\":\"quic:packet_received\",\"data\":{}}";
        assert!(TimeSeries::read(far.as_bytes()).unwrap().received.is_empty());
    }
}
