//! Example test cases of draft-ietf-ccwg-bbr ("BBR Example Test Cases"), as executable scenarios.
//!
//! A [`Case`] has the draft's name and is data: one or more [`Scene`]s, each with a path, a list of [`Step`]s ("when it enters Drain,
//! reduce the rate by a tenth") and the [`Clause`]s that the draft verifies. [`run_case`] runs the scenes with a contender on the modelled
//! path, records the visible state of the sender after each step ([`Moment`]), and evaluates every clause. State that a contender does not
//! report makes a clause unsupported, never passed.
//!
//! The draft leaves some paths and numbers open: each scene states its own.

mod clauses;
mod paths;
mod probe_bw;
mod probe_rtt;
mod recovery;
mod stage;
mod startup;

use transport::{Profile, congestion::Algorithm, streams::StreamsConfig};
use units::{Bitrate, Duration, Instant};

use crate::{contender::Contender, tiderace::with_profile, view::SenderView};

pub use stage::run_case;

/// One of the draft's cases.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name in the draft.
    pub name: &'static str,
    /// Departure of the scene from the draft's words, with the reason.
    pub note: Option<&'static str>,
    /// Scenes; every clause of every scene counts.
    pub scenes: &'static [Scene],
}

/// A path, the steps on it, and the expected observations.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Rate of the bottleneck in kilobits per second of IP packets.
    pub kbps: u64,
    /// Two-way propagation delay in milliseconds.
    pub rtt_ms: u64,
    /// Drop-tail buffer in bytes.
    pub buffer: u64,
    /// Seconds of virtual time.
    pub seconds: u64,
    /// The seed of the connection: it decides how long ProbeBW waits between probes.
    pub seed: u64,
    /// Steps, in this order: a step waits for the one before it.
    pub steps: &'static [Step],
    /// Verified clauses.
    pub clauses: &'static [Clause],
}

impl Scene {
    /// 20 Mbit/s, 50 ms and a buffer without loss.
    pub const PLAIN: Self =
        Self { kbps: 20_000, rtt_ms: 50, buffer: 500_000, seconds: 4, seed: 1, steps: &[], clauses: &[] };

    /// The rate of the bottleneck at the start.
    pub fn rate(&self) -> Bitrate {
        Bitrate::from_bps(self.kbps * 1000)
    }
}

/// Step of a scene: an act at one time.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Time.
    pub when: When,
    /// Act of the step.
    pub act: Act,
}

/// Time at which a step happens, at the earliest after the step before it.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// At this time of the run, in milliseconds.
    At(u64),
    /// Milliseconds after the step before.
    After(u64),
    /// Time after this many rounds in a row without growth.
    Plateau(u32),
    /// Time at which the sender is seen to be in this state, having been in another one at the step before.
    Enters(&'static str),
}

/// Change by a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// No action: the step only waits.
    Wait,
    /// The application writes no faster than this many kilobits per second; 0: it pauses.
    Limit(u64),
    /// The application writes as fast as it can.
    Free,
    /// The bottleneck has this rate in kilobits per second.
    Rate(u64),
    /// Every n-th data packet is lost; 0: none.
    Lose(u64),
    /// Acknowledgements arrive in bursts at this interval in milliseconds; 0: as they come.
    Aggregate(u64),
    /// A token bucket with this rate in kilobits per second and this burst in bytes drops what exceeds it.
    Police {
        /// Rate of the tokens.
        kbps: u64,
        /// Size of the bucket.
        burst: u64,
    },
    /// Each of the next data packets arrives late.
    Delay {
        /// Number.
        packets: u64,
        /// Delay in milliseconds.
        ms: u64,
    },
    /// All data packets of the next span arrive together, later.
    Hold {
        /// The span in milliseconds.
        span: u64,
        /// Time at which they arrive at the bottleneck's far end, in milliseconds from now.
        until: u64,
    },
}

/// Clause of the draft that is verified.
#[derive(Clone, Copy)]
pub struct Clause {
    /// Text of the clause, in few words.
    pub text: &'static str,
    /// Evaluates the observations.
    pub check: fn(&Seen<'_>) -> Verdict,
}

impl core::fmt::Debug for Clause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text)
    }
}

/// Verdict on a clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Holds, with the observation.
    Pass(String),
    /// Does not hold, with the observation.
    Fail(String),
    /// The contender does not report what the clause needs.
    Unsupported,
}

impl Verdict {
    /// Passes when `holds`.
    fn of(holds: bool, seen: impl Into<String>) -> Self {
        if holds { Self::Pass(seen.into()) } else { Self::Fail(seen.into()) }
    }
}

/// State of the sender after one of its steps.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Time.
    pub at: Instant,
    /// View of the sender.
    pub view: SenderView,
}

/// Observations of a scene.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The scene.
    pub scene: &'a Scene,
    /// The sender, step by step. Empty if it reports no state.
    pub moments: &'a [Moment],
    /// Time at which each step of the scene happened; `None` when it never did.
    pub steps: &'a [Option<Instant>],
    /// The bottleneck, at the end of every millisecond.
    pub link: &'a [LinkMoment],
}

/// The counters of the bottleneck at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkMoment {
    /// Time.
    pub at: Instant,
    /// Bytes of IP packets that have passed.
    pub delivered: u64,
    /// … and how many packets.
    pub packets: u64,
    /// Packets dropped for any reason.
    pub dropped: u64,
}

/// Outcome of a case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The case.
    pub case: &'static Case,
    /// Each clause with its verdict.
    pub clauses: Vec<(&'static str, Verdict)>,
}

impl CaseResult {
    /// Every clause passed.
    pub fn passed(&self) -> bool {
        self.clauses.iter().all(|(_, verdict)| matches!(verdict, Verdict::Pass(_)))
    }

    /// Clauses that passed.
    pub fn count(&self) -> usize {
        self.clauses.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Pass(_))).count()
    }
}

/// The cases in the draft's order.
pub static CASES: [&Case; 22] = [
    &startup::PLATEAU,
    &startup::LOSS,
    &startup::DRAIN_INFLIGHT,
    &startup::DRAIN_TIME,
    &probe_bw::UP_PLATEAU,
    &probe_bw::UP_LOSS,
    &probe_bw::NEVER_WITHOUT_DATA,
    &probe_bw::DOWN_INFLIGHT,
    &probe_bw::DOWN_TIME,
    &probe_rtt::ENTER_AND_EXIT,
    &probe_rtt::SKIPPED,
    &paths::STARTUP_AGGREGATION,
    &paths::CRUISE_AGGREGATION,
    &paths::SUB_PACKET,
    &paths::TENFOLD_UP,
    &paths::TENFOLD_DOWN,
    &paths::POLICER,
    &recovery::SPURIOUS_FAST,
    &recovery::SPURIOUS_RTO,
    &probe_rtt::IN_STARTUP,
    &recovery::LOSS_IN_UP,
    &probe_bw::QUIET_REFILL,
];

/// Our stack with a congestion controller, for the suite: an application that is held back is to be felt within a round
/// trip, so that the connection buffers no more than it has in flight. `None` when there is no controller of this name.
pub fn contender(controller: &str) -> Option<Box<dyn Contender>> {
    let congestion: Algorithm = controller.parse().ok()?;
    // Flow control is no part of the scenes: a window of 512 KiB would hold the sender back while a scene holds packets back.
    let streams =
        StreamsConfig { send_buffer: 16 << 10, receive_window_connection: 1 << 20, ..StreamsConfig::default() };
    let profile = Profile { name: congestion.name().to_owned(), congestion, streams, ..Profile::default() };
    // The scenes are about rates and round trips: packets keep their size. They end a silence of the network by the sender's own
    // timers, and a receiver that asks for its data would do it before.
    Some(with_profile(Profile { max_mtu: profile.initial_mtu, silence_pings: false, ..profile }))
}

/// Plays all cases with a contender.
///
/// # Errors
/// When the contender cannot be set up or a simulation goes wrong.
pub fn run(contender: &dyn Contender) -> Result<Vec<CaseResult>, String> {
    CASES.iter().map(|case| run_case(case, contender)).collect()
}

/// The results clause by clause, for people. With `details`, what was seen stands under each clause.
pub fn text(name: &str, results: &[CaseResult], details: bool) -> String {
    use core::fmt::Write as _;
    let mut out = String::new();
    let passed = results.iter().filter(|result| result.passed()).count();
    let _ = writeln!(out, "{name}: {passed} of {} cases of draft-ietf-ccwg-bbr pass\n", results.len());
    for (number, result) in (1..).zip(results) {
        let mark = if result.passed() { "pass" } else { "FAIL" };
        let _ = writeln!(out, "{mark}  {number:>2}  {}", result.case.name);
        if let Some(note) = result.case.note.filter(|_| details) {
            let _ = writeln!(out, "          note: {note}");
        }
        for (text, verdict) in &result.clauses {
            let (mark, seen) = match verdict {
                Verdict::Pass(seen) => ("pass", seen.as_str()),
                Verdict::Fail(seen) => ("FAIL", seen.as_str()),
                Verdict::Unsupported => ("   –", "the contender does not show it"),
            };
            let _ = writeln!(out, "    {mark}  {text}");
            if !seen.is_empty() && (details || mark != "pass") {
                let _ = writeln!(out, "          {seen}");
            }
        }
    }
    out
}

/// Time of a run in milliseconds, for texts.
fn millis(at: Instant) -> f64 {
    at.as_secs_f64() * 1e3
}

/// A span as the scene writes it.
const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}
