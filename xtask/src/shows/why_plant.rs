//! Planted causes for `tiderace why`: a path, servers, and what stands between them, drawn from a seed.

use std::fmt::Write as _;

use rand_core::RngCore;
use units::{RandomStream, Seed};

/// Causes in the words of the program's JSON.
pub(super) const CAUSES: [&str; 12] = [
    "congestion_control",
    "flow_control",
    "shaped",
    "udp_blocked",
    "mtu_black_hole",
    "send_pace",
    "client_cpu",
    "handshake",
    "reordering",
    "few_acks",
    "bufferbloat",
    "head_of_line",
];

/// Relay in front of the UDP port.
#[derive(Clone, Debug)]
pub(super) enum Between {
    /// Links of the emulator, downwards and upwards, as lines of a scenario.
    Links(String, String),
    /// Large datagrams vanish after so many bytes.
    Hole(u64),
}

/// A planted cause.
#[derive(Clone, Debug)]
pub(super) struct Plant {
    /// Bit/s in both directions.
    rate: f64,
    /// Milliseconds.
    rtt: f64,
    /// Bytes.
    queue: f64,
    /// Share of packets lost downwards, in percent.
    loss: f64,
    /// Bytes of the object.
    pub(super) size: usize,
    /// Controllers of QUIC and TCP on the server.
    pub(super) congestion: [&'static str; 2],
    /// Bytes that the kernel takes of TCP beyond what it can send; `None`: as many as it likes.
    pub(super) unsent: Option<u32>,
    pub(super) between: Option<Between>,
    /// QUIC is served by a process of its own, which is stopped and continues after so many seconds.
    pub(super) pauses: Option<[f64; 2]>,
    /// The client shares a CPU with a busy program, with this niceness, and writes qlog.
    pub(super) busy: Option<u32>,
    /// Further options of `why`.
    pub(super) options: Vec<String>,
}

/// A draw between two values.
fn between(random: &mut RandomStream, low: f64, high: f64) -> f64 {
    low + (high - low) * f64::from(random.next_u32()) / f64::from(u32::MAX)
}

impl Plant {
    /// A path without a cause.
    fn clean(random: &mut RandomStream) -> Self {
        let (rate, rtt) = (between(random, 15e6, 40e6), between(random, 20.0, 60.0));
        Self {
            rate,
            rtt,
            queue: 4.0 * (rate * rtt / 8e3).max(60e3),
            loss: 0.0,
            size: 2_000_000,
            // Neither fills the queue: without a loss nothing blocks the head of the line.
            congestion: ["bbr3", "bbr"],
            unsent: Some(16_384),
            between: None,
            pauses: None,
            busy: None,
            options: Vec::new(),
        }
    }

    /// The plant of a cause, or none for `none`.
    pub(super) fn draw(cause: &str, seed: u64) -> Self {
        let mut random = Seed::from_number(seed).stream(cause);
        let random = &mut random;
        let mut plant = Self::clean(random);
        let bdp = plant.rate * plant.rtt / 8e3;
        if cause != "none" {
            (plant.congestion, plant.queue) = (["cubic", "bbr"], bdp.max(60e3));
        }
        let links = |down: String| Some(Between::Links(down, String::new()));
        match cause {
            "congestion_control" => {
                (plant.loss, plant.congestion) = (between(random, 0.7, 2.0), ["newreno", "bbr"]);
            }
            "flow_control" => {
                let window = (bdp * between(random, 0.2, 0.5)).max(8e3);
                plant.options = vec!["--receive-window".to_owned(), format!("{window:.0} B")];
            }
            "shaped" => {
                let (rate, burst) = (plant.rate * between(random, 0.2, 0.5), between(random, 15e3, 60e3));
                plant.between = links(format!("policer = {{ rate = \"{rate:.0} bit/s\", burst = \"{burst:.0} B\" }}"));
            }
            "udp_blocked" => {
                plant.between = links(if seed.is_multiple_of(2) {
                    let burst = between(random, 8e3, 40e3);
                    format!("policer = {{ rate = \"1 kbit/s\", burst = \"{burst:.0} B\" }}")
                } else {
                    "outages = [{ at = \"0 s\", lasts = \"10000 s\" }]".to_owned()
                });
                plant.options = vec!["--connect-timeout".to_owned(), "2 s".to_owned()];
            }
            "mtu_black_hole" => {
                (plant.rtt, plant.size) = (between(random, 80.0, 140.0), 2_000_000);
                plant.queue = 2.0 * plant.rate * plant.rtt / 8e3;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a positive number of bytes"
                )]
                let after = between(random, 0.5e6, 1e6) as u64;
                plant.between = Some(Between::Hole(after));
            }
            "send_pace" => {
                plant.rtt = between(random, 15.0, 30.0);
                (plant.queue, plant.congestion) = (4.0 * plant.rate * plant.rtt / 8e3, ["bbr3", "bbr"]);
                plant.pauses = Some([between(random, 0.06, 0.1), between(random, 0.015, 0.025)]);
            }
            "client_cpu" => {
                (plant.rate, plant.queue, plant.size) = (300e6, 8e6, 12_000_000);
                (plant.rtt, plant.busy) = (between(random, 4.0, 10.0), Some(5));
            }
            "handshake" => (plant.size, plant.rtt) = (10_000, between(random, 80.0, 150.0)),
            "reordering" => {
                let (share, delay) = (between(random, 3.0, 8.0), plant.rtt * between(random, 1.2, 2.0));
                plant.between = links(format!(
                    "delay = \"1 ms\"\nreorder = {{ probability = \"{share:.1} %\", delay = \"{delay:.0} ms\" }}"
                ));
            }
            "few_acks" => {
                let loss = between(random, 40.0, 55.0);
                plant.between = Some(Between::Links(String::new(), format!("loss = \"{loss:.0} %\"")));
                plant.options = vec!["--connect-timeout".to_owned(), "20 s".to_owned()];
            }
            "bufferbloat" => {
                plant.rate = between(random, 8e6, 15e6);
                plant.queue = plant.rate / 8.0 * between(random, 0.5, 1.0);
            }
            "head_of_line" => (plant.unsent, plant.congestion) = (None, ["bbr3", "bbr"]),
            _ => {}
        }
        plant
    }

    /// Scenario of the path.
    pub(super) fn scenario(&self) -> String {
        let rate = format!("rate = \"{:.0} bit/s\"\nqueue = \"{:.0} B\"\n", self.rate, self.queue);
        let delay = format!("delay = \"{:.0} us\"\n", self.rtt * 500.0);
        let loss = if self.loss > 0.0 { format!("loss = \"{:.3} %\"\n", self.loss) } else { String::new() };
        scenario(&format!("{rate}{delay}{loss}"), &delay)
    }

    /// Description, for the line under a value.
    pub(super) fn told(&self) -> String {
        let mut text = format!(
            "{:.1} Mbit/s, {:.0} ms, queue {:.0} kB, loss {:.2} %, {} B, {} and {}",
            self.rate / 1e6,
            self.rtt,
            self.queue / 1e3,
            self.loss,
            self.size,
            self.congestion[0],
            self.congestion[1]
        );
        if let Some(between) = &self.between {
            let _ = write!(text, ", {between:?}");
        }
        if let Some([off, on]) = self.pauses {
            let _ = write!(text, ", stopped {off:.3} s of {:.3} s", off + on);
        }
        if !self.options.is_empty() {
            let _ = write!(text, ", {}", self.options.join(" "));
        }
        text
    }
}

/// A scenario with these links.
pub(super) fn scenario(down: &str, up: &str) -> String {
    format!(
        "name = \"planted\"\ntitle = \"Planted\"\nabout = \"Planted.\"\n[path.down]\n{down}\n[path.up]\n{up}\n\
         [traffic]\nworkload = \"bulk\"\nconnections = 1\n[run]\nwarmup = \"1 s\"\nduration = \"1 s\"\n"
    )
}
