//! State of another stack's controller: noq's BBRv3 derives `Debug`, with a field for each variable of the
//! draft, under the draft's names. Rates are bytes per second there, and a bound that is not set is infinite or the largest number.

use std::fmt::{self, Write};

use lab::view::SenderView;
use transport::congestion::PathModel;
use units::{Bitrate, Duration};

/// End of the read part: records of single packets follow, many of them.
const END: &str = " packets: ";
/// The draft's headroom, in per cent.
const HEADROOM: u64 = 15;

/// Takes in what a type shows of itself up to [`END`].
#[derive(Debug, Default)]
pub(crate) struct Head(String);

impl Head {
    /// The text of a value, cut where it gets long.
    pub(crate) fn of(value: &dyn fmt::Debug) -> String {
        let mut head = Self::default();
        // An error is how the writing ends early.
        let _ = write!(head, "{value:?}");
        head.0
    }
}

impl Write for Head {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(text);
        if self.0.ends_with(END) { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The value of a field of the outermost struct.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let at = text.find(&format!(" {name}: "))? + name.len() + 3;
    let rest = &text[at..];
    let mut depth = 0_i32;
    let end = rest.find(|c: char| {
        depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        depth < 0 || (depth == 0 && c == ',')
    });
    Some(rest[..end.unwrap_or(rest.len())].trim())
}

fn whole(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.parse().ok()
}

/// `None` also where nothing limits.
fn bound(text: &str, name: &str) -> Option<u64> {
    whole(text, name).filter(|value| *value < u64::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates of a simulation")]
fn rate(text: &str, name: &str) -> Option<Bitrate> {
    let bytes: f64 = field(text, name)?.parse().ok()?;
    bytes.is_finite().then(|| Bitrate::from_bps((bytes * 8.0) as u64))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "gains between 0 and 3")]
fn percent(text: &str, name: &str) -> Option<u64> {
    Some((field(text, name)?.parse::<f64>().ok()? * 100.0).round() as u64)
}

/// A span as `Debug` prints it.
fn span(text: &str, name: &str) -> Option<Duration> {
    let text = field(text, name)?;
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let value: f64 = text[..end].parse().ok()?;
    let seconds = match &text[end..] {
        "s" => value,
        "ms" => value / 1e3,
        "µs" => value / 1e6,
        "ns" => value / 1e9,
        _ => return None,
    };
    // Nothing measured: the longest span there is.
    (seconds < 1e6).then(|| Duration::from_secs_f64(seconds))
}

fn state(text: &str) -> Option<&'static str> {
    const STATES: [(&str, &str); 7] = [
        ("Startup", "startup"),
        ("Drain", "drain"),
        ("Down", "probe_bw_down"),
        ("Cruise", "probe_bw_cruise"),
        ("Refill", "probe_bw_refill"),
        ("Up", "probe_bw_up"),
        ("ProbeRtt", "probe_rtt"),
    ];
    let name = text.strip_prefix("ProbeBw(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(text);
    STATES.iter().find(|(shown, _)| *shown == name).map(|(_, ours)| *ours)
}

/// View of noq's BBRv3. `None` when the text is of another controller.
pub(crate) fn bbr3(text: &str) -> Option<SenderView> {
    if !text.starts_with("Bbr3 {") {
        return None;
    }
    let mtu = whole(text, "smss")?;
    let state = state(field(text, "state")?)?;
    let (bw, min_rtt) = (rate(text, "bw")?, span(text, "min_rtt"));
    let min_pipe = whole(text, "min_pipe_cwnd")?;
    let longterm = bound(text, "inflight_longterm");
    // Derived as the draft derives them: the stack keeps no variable for these two.
    let bdp = min_rtt.map_or(0, |rtt| bw.in_time(rtt).as_bytes());
    let target =
        bdp.max(whole(text, "offload_budget")?).max(min_pipe) + if state == "probe_bw_up" { 2 * mtu } else { 0 };
    let model = PathModel {
        max_bandwidth: rate(text, "max_bw")?,
        bandwidth: bw,
        bandwidth_shortterm: rate(text, "bw_shortterm"),
        inflight_shortterm: bound(text, "inflight_shortterm"),
        inflight_longterm: longterm,
        min_rtt,
        extra_acked: whole(text, "extra_acked")?,
        pacing_gain_percent: percent(text, "pacing_gain")?,
        cwnd_gain_percent: percent(text, "cwnd_gain")?,
        bdp,
        target,
        target_with_headroom: longterm
            .map(|bound| bound.saturating_sub((bound * HEADROOM / 100).max(mtu)).max(min_pipe)),
        state_entries: [
            "startup",
            "drain",
            "probe_bw_down",
            "probe_bw_cruise",
            "probe_bw_refill",
            "probe_bw_up",
            "probe_rtt",
        ]
        .map(|name| (name, 0)),
        rounds: whole(text, "round_count")?,
        plateau_rounds: u32::try_from(whole(text, "full_bw_count")?).unwrap_or(u32::MAX),
        full_now: field(text, "full_bw_now")? == "true",
        full_reached: field(text, "full_bw_reached")? == "true",
        idle_restart: field(text, "idle_restart")? == "true",
        undo_state: self::state(field(text, "undo_state")?),
        undo_bandwidth_shortterm: rate(text, "undo_bw_shortterm"),
        undo_inflight_shortterm: bound(text, "undo_inflight_shortterm"),
        undo_inflight_longterm: bound(text, "undo_inflight_longterm"),
    };
    Some(SenderView {
        state,
        window: whole(text, "cwnd")?,
        in_flight: whole(text, "inflight")?,
        pacing_rate: rate(text, "pacing_rate"),
        smoothed_rtt: None,
        counters: None,
        mtu,
        model: Some(model),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_names() {
        let text = "Bbr3 { smss: 1200, undo_state: Startup, state: ProbeBw(Up), bw: 1250000.0, min_rtt: 50.5ms, bw_shortterm: inf, \
                    inflight_longterm: 18446744073709551615, filter: F { bw: 7.0, x: [1, 2] }, cwnd: 12000, packets: ";
        assert_eq!(field(text, "state"), Some("ProbeBw(Up)"));
        assert_eq!(state(field(text, "state").unwrap()), Some("probe_bw_up"));
        assert_eq!(rate(text, "bw"), Some(Bitrate::from_bps(10_000_000)));
        assert_eq!(rate(text, "bw_shortterm"), None);
        assert_eq!(bound(text, "inflight_longterm"), None);
        assert_eq!(span(text, "min_rtt"), Some(Duration::from_micros(50_500)));
        assert_eq!((whole(text, "cwnd"), field(text, "x")), (Some(12_000), Some("[1, 2]")));
        assert!(bbr3("Cubic { window: 1 }").is_none());
    }

    #[test]
    fn a_long_text_is_cut() {
        #[derive(Debug)]
        #[expect(dead_code, reason = "shown")]
        struct Long {
            smss: u32,
            packets: Vec<u32>,
        }
        let text = Head::of(&Long { smss: 7, packets: vec![1; 1000] });
        assert_eq!(text, "Long { smss: 7, packets: ");
    }
}
