//! Race of QUIC against TCP: order of the attempts, choice of the connection, and the verdict on the network.
//!
//! Contract: the caller executes the actions of [`Race::poll_action`] until there are none, reports their outcomes with [`Race::handle`],
//! waits for the next outcome or for [`Race::poll_timeout`], and then calls [`Race::handle_timeout`]. Time is an argument.
//!
//! The first connection that is ready is used. The verdict may come later: evidence is collected beside the request. A lost race does not
//! prove that UDP is blocked. The proof is that many probes, which every QUIC server answers at once, remain unanswered while TCP to the
//! same host works.
//!
//! ```
//! use tiderace_client::race::{Action, Leg, Plan, Race};
//! use units::{Duration, Instant};
//!
//! let plan = Plan { head_start: Duration::from_millis(200), ..Plan::default() };
//! let mut race = Race::new(Instant::ZERO, plan);
//! // QUIC begins; TCP waits for its head start.
//! assert_eq!(race.poll_action(), Some(Action::Start(Leg::Quic)));
//! assert!(race.poll_timeout().is_some() && race.verdict().is_none());
//! ```

use std::collections::VecDeque;

use units::{Duration, Instant};

/// A way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leg {
    /// QUIC, and HTTP/3 on it.
    Quic,
    /// TCP and TLS, and HTTP/2 or HTTP/1.1 on it.
    Tcp,
}

/// Plan of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Admission of QUIC to the race; otherwise the reason against it, for the verdict.
    pub quic: Result<(), SkipReason>,
    /// Head start of QUIC over TCP. It is also the most by which a fall-back can be slower than TCP alone.
    pub head_start: Duration,
    /// Questions to the UDP port, until it is taken to be blocked.
    pub questions: u32,
    /// Time between them.
    pub question_interval: Duration,
    /// Time after which the verdict is made from the evidence so far.
    pub judge_after: Duration,
}

/// With 30 % loss each way, a question goes unanswered with a probability of 0.51: all 12 with 0.03 %.
const QUESTIONS: u32 = 12;

impl Default for Plan {
    fn default() -> Self {
        Self {
            quic: Ok(()),
            head_start: Duration::from_millis(200),
            questions: QUESTIONS,
            question_interval: Duration::from_millis(60),
            judge_after: Duration::from_secs(8),
        }
    }
}

/// Reason why QUIC was not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// UDP was blocked in this network a short time ago.
    BlockedBefore,
    /// The server refused a short time ago.
    RefusedBefore,
    /// The caller wants none.
    Unwanted,
    /// The HTTPS record of the origin does not offer HTTP/3.
    NotOffered,
}

/// Event for the race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// UDP packet of the server: of the connection, or an answer to a probe.
    PacketReceived,
    /// The QUIC connection is ready.
    QuicReady,
    /// The server has refused QUIC.
    QuicRefused,
    /// The QUIC connection failed without an answer of the server.
    QuicFailed,
    /// The server has answered on TCP (SYN-ACK).
    TcpConnected,
    /// TCP and TLS are ready.
    TcpReady,
    /// TCP or TLS failed.
    TcpFailed,
}

/// Action for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin to connect.
    Start(Leg),
    /// Send a question to the UDP port.
    Ask,
    /// Send the request here. Returned once.
    Use(Leg),
    /// Fail, because no attempt is left. Returned once.
    Fail,
    /// The verdict is known: unused connections can be closed. Returned once, last.
    Done,
}

/// Verdict on QUIC over this path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// QUIC works, and was first.
    Works,
    /// QUIC works, and TCP was there first.
    Slower {
        /// By how much TCP was earlier.
        by: Duration,
    },
    /// UDP is blocked: TCP works, and none of these questions was answered.
    Blocked {
        /// Questions without an answer, the connection's own first packets not counted.
        questions: u32,
        /// Round-trip time of TCP, which shows that the path works.
        tcp_rtt: Duration,
    },
    /// UDP gets through, but QUIC does not complete: the path loses too much.
    BadPath,
    /// The server does not want to.
    Refused,
    /// QUIC was not tried.
    NotTried(SkipReason),
    /// Neither way leads to the server.
    Unreachable,
}

/// Reason of a deadline of the race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// TCP has waited long enough.
    HeadStart,
    /// The next question is due.
    Question,
    /// The verdict is due.
    Judgement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Trying(Instant),
    Ready(Instant),
    Failed,
}

impl State {
    fn ready_at(self) -> Option<Instant> {
        match self {
            Self::Ready(at) => Some(at),
            _ => None,
        }
    }
}

/// One race.
#[derive(Debug)]
pub struct Race {
    plan: Plan,
    begun: Instant,
    quic: State,
    tcp: State,
    tcp_connected: Option<(Instant, Duration)>,
    refused: bool,
    heard: bool,
    asked: u32,
    next_question: Option<Instant>,
    used: Option<Leg>,
    verdict: Option<Verdict>,
    actions: VecDeque<Action>,
}

impl Race {
    /// Begins.
    pub fn new(now: Instant, plan: Plan) -> Self {
        let mut this = Self {
            begun: now,
            quic: State::Idle,
            tcp: State::Idle,
            tcp_connected: None,
            refused: false,
            heard: false,
            asked: 0,
            next_question: None,
            used: None,
            verdict: None,
            actions: VecDeque::new(),
            plan,
        };
        if this.plan.quic.is_ok() {
            this.quic = State::Trying(now);
            this.actions.push_back(Action::Start(Leg::Quic));
        }
        if this.plan.quic.is_err() || this.plan.head_start.is_zero() {
            this.start_tcp(now);
        }
        this
    }

    fn start_tcp(&mut self, now: Instant) {
        if self.tcp == State::Idle {
            self.tcp = State::Trying(now);
            self.actions.push_back(Action::Start(Leg::Tcp));
        }
    }

    fn use_leg(&mut self, leg: Leg) {
        if self.used.is_none() {
            self.used = Some(leg);
            self.actions.push_back(Action::Use(leg));
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::PacketReceived => self.heard = true,
            Input::QuicReady => {
                self.heard = true;
                self.quic = State::Ready(now);
                self.use_leg(Leg::Quic);
            }
            Input::QuicRefused => {
                self.heard = true;
                self.refused = true;
                self.quic = State::Failed;
                self.start_tcp(now);
            }
            Input::QuicFailed => {
                self.quic = State::Failed;
                self.start_tcp(now);
            }
            Input::TcpConnected => self.on_tcp_connected(now),
            Input::TcpReady => {
                // Whoever is told of both at once may hear of the second first.
                self.on_tcp_connected(now);
                self.tcp = State::Ready(now);
                self.use_leg(Leg::Tcp);
            }
            Input::TcpFailed => self.tcp = State::Failed,
        }
        self.advance(now);
    }

    fn on_tcp_connected(&mut self, now: Instant) {
        let State::Trying(since) = self.tcp else { return };
        if self.tcp_connected.is_some() {
            return;
        }
        self.tcp_connected = Some((now, now.saturating_since(since)));
        // TCP gets through where UDP was not heard of: the questions begin.
        if !self.heard && self.plan.quic.is_ok() {
            self.next_question = Some(now);
        }
    }

    /// Takes the time: a deadline has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.used.is_none() && now.saturating_since(self.begun) >= self.plan.head_start {
            self.start_tcp(now);
        }
        self.advance(now);
    }

    fn advance(&mut self, now: Instant) {
        // Whatever is known by then of the path: who waits for a leg has to hear that there is none.
        let quic_is_out = self.quic == State::Failed || self.plan.quic.is_err();
        if quic_is_out && self.tcp == State::Failed && self.used.is_none() {
            self.used = Some(Leg::Tcp);
            self.actions.push_back(Action::Fail);
        }
        if self.verdict.is_some() {
            return;
        }
        if let Some(at) = self.next_question {
            if self.heard || self.asked >= self.plan.questions {
                self.next_question = None;
            } else if at <= now {
                self.asked += 1;
                self.next_question = Some(now + self.plan.question_interval);
                self.actions.push_back(Action::Ask);
            }
        }
        if let Some(verdict) = self.judge(now) {
            self.verdict = Some(verdict);
            self.next_question = None;
            self.actions.push_back(Action::Done);
        }
    }

    /// Verdict, once the evidence suffices.
    fn judge(&self, now: Instant) -> Option<Verdict> {
        let late = now.saturating_since(self.begun) >= self.plan.judge_after;
        if let Err(avoided) = self.plan.quic {
            return match self.tcp {
                State::Failed => Some(Verdict::Unreachable),
                State::Ready(_) => Some(Verdict::NotTried(avoided)),
                _ => None,
            };
        }
        match (self.quic.ready_at(), self.tcp.ready_at()) {
            (Some(quic), Some(tcp)) if tcp < quic => return Some(Verdict::Slower { by: quic.saturating_since(tcp) }),
            (Some(_), _) => return Some(Verdict::Works),
            _ => {}
        }
        if self.refused {
            return match self.tcp {
                State::Failed => Some(Verdict::Unreachable),
                State::Ready(_) => Some(Verdict::Refused),
                _ => None,
            };
        }
        match self.tcp_connected {
            Some((_, tcp_rtt)) if !self.heard => {
                // The last question had the time of three round trips, and what a busy server adds.
                let unanswered = self.asked >= self.plan.questions
                    && self.last_question_was(now) >= tcp_rtt * 3 + Duration::from_millis(200);
                unanswered.then_some(Verdict::Blocked { questions: self.asked, tcp_rtt })
            }
            // What fails over both, as a certificate does, says nothing about the path.
            Some(_) if self.quic == State::Failed && self.tcp == State::Failed => Some(Verdict::Unreachable),
            Some(_) => {
                let only_quic = self.quic == State::Failed && self.tcp.ready_at().is_some();
                (late || only_quic).then_some(Verdict::BadPath)
            }
            None => {
                let lost = self.quic == State::Failed && self.tcp == State::Failed;
                (lost || late && self.tcp == State::Failed).then_some(Verdict::Unreachable)
            }
        }
    }

    /// Time since the last question.
    fn last_question_was(&self, now: Instant) -> Duration {
        let Some((connected, _)) = self.tcp_connected else { return Duration::ZERO };
        // They are sent at this rhythm from when TCP was connected on, so at the latest then.
        let last = connected + self.plan.question_interval * (self.asked.saturating_sub(1));
        now.saturating_since(last)
    }

    /// Returns the next action; `None` when there is none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the time to call [`handle_timeout`](Self::handle_timeout), and the reason.
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        if self.verdict.is_some() {
            return None;
        }
        let head_start = (self.tcp == State::Idle && self.used.is_none())
            .then(|| (self.begun + self.plan.head_start, Reason::HeadStart));
        let question = self.next_question.map(|at| (at, Reason::Question));
        let silent = match self.tcp_connected {
            Some((connected, rtt)) if !self.heard && self.asked >= self.plan.questions => {
                let last = connected + self.plan.question_interval * (self.asked.saturating_sub(1));
                Some((last + rtt * 3 + Duration::from_millis(200), Reason::Judgement))
            }
            _ => None,
        };
        let end = Some((self.begun + self.plan.judge_after, Reason::Judgement));
        [head_start, question, silent, end].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Returns the verdict, once it is known.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// Number of probes sent.
    pub fn questions(&self) -> u32 {
        self.asked
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Works => f.write_str("QUIC works"),
            Self::Slower { by } => write!(f, "QUIC works, {:.0} ms later than TCP", by.as_secs_f64() * 1e3),
            Self::Blocked { questions, tcp_rtt } => write!(
                f,
                "UDP is blocked: TCP answered within {:.1} ms, and none of {questions} questions over UDP was answered",
                tcp_rtt.as_secs_f64() * 1e3
            ),
            Self::BadPath => {
                f.write_str("the path is bad: UDP gets through, and a QUIC handshake did not come to an end in time")
            }
            Self::Refused => f.write_str("the server refuses QUIC"),
            Self::NotTried(SkipReason::BlockedBefore) => {
                f.write_str("QUIC was not tried: UDP was blocked in this network before")
            }
            Self::NotTried(SkipReason::RefusedBefore) => {
                f.write_str("QUIC was not tried: the server has refused before")
            }
            Self::NotTried(SkipReason::NotOffered) => {
                f.write_str("QUIC was not tried: the HTTPS record of the site does not offer it")
            }
            Self::NotTried(SkipReason::Unwanted) => f.write_str("QUIC was not tried: it is not wanted"),
            Self::Unreachable => f.write_str("neither QUIC nor TCP leads to the server"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An untrusted certificate fails over both legs, at about the same time.
    #[test]
    fn two_legs_that_fail_end_the_race_in_any_order() {
        use Input::{PacketReceived, QuicFailed, TcpConnected, TcpFailed};
        for order in [
            [PacketReceived, QuicFailed, TcpConnected, TcpFailed],
            [PacketReceived, TcpConnected, QuicFailed, TcpFailed],
            [TcpConnected, PacketReceived, TcpFailed, QuicFailed],
            [TcpConnected, TcpFailed, PacketReceived, QuicFailed],
            [TcpConnected, TcpFailed, QuicFailed, PacketReceived],
        ] {
            for head_start in [Duration::ZERO, Duration::from_millis(10)] {
                let now = Instant::ZERO;
                let mut race = Race::new(now, Plan { head_start, ..Plan::default() });
                race.handle_timeout(now + head_start);
                order.into_iter().for_each(|input| race.handle(now + Duration::from_millis(20), input));
                let fails = std::iter::from_fn(|| race.poll_action()).filter(|action| *action == Action::Fail).count();
                assert_eq!((fails, race.verdict()), (1, Some(Verdict::Unreachable)), "{order:?}");
            }
        }
    }

    /// Two tasks report the connection and its handshake, in random order.
    #[test]
    fn a_verdict_comes_whichever_is_heard_first() {
        for order in [[Input::TcpConnected, Input::TcpReady], [Input::TcpReady, Input::TcpConnected]] {
            let mut now = Instant::ZERO;
            let mut race = Race::new(now, Plan::default());
            let mut told = false;
            while race.verdict().is_none() {
                let (at, _) = race.poll_timeout().expect("a race without a verdict waits for something");
                now = now.max(at);
                assert!(now < Instant::ZERO + Duration::from_secs(3), "no verdict");
                race.handle_timeout(now);
                while let Some(action) = race.poll_action() {
                    told |= action == Action::Start(Leg::Tcp);
                }
                if std::mem::take(&mut told) {
                    order.into_iter().for_each(|input| race.handle(now, input));
                }
            }
            assert!(matches!(race.verdict(), Some(Verdict::Blocked { questions: 12, .. })), "{order:?}");
        }
    }
}
