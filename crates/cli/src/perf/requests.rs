//! Connections for one request each, one after another: new ones, resumed ones, and those that send the request as early data.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::{
    outcome::Tally,
    progress::{Goal, Moved, Progress},
    samples::{Samples, Summary},
};
use crate::stop::Stop;

/// Kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A full handshake.
    New,
    /// A handshake that resumes a session by a ticket.
    Resumed,
    /// A resumed one whose request leaves with the first packets, as early data.
    #[value(name = "0-rtt")]
    EarlyData,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Resumed => "resumed",
            Self::EarlyData => "0-rtt",
        }
    }
}

/// Times of one connection, from its first packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// Until the handshake was complete.
    pub(super) handshake: Duration,
    /// Until the first byte of the answer was there.
    pub(super) first_response: Duration,
}

/// A client that opens connections.
pub(super) trait Requester {
    /// Opens a connection of this kind, sends one request and waits for the answer.
    ///
    /// # Errors
    /// When something fails, or the connection becomes one of another kind.
    async fn exchange(&self, kind: Kind) -> Result<Exchange, String>;
}

/// Connections of one kind.
#[derive(Debug, Serialize)]
pub(super) struct Connections {
    /// `new`, `resumed` or `0-rtt`.
    pub(super) kind: &'static str,
    pub(super) attempted: u32,
    /// Connections that became connections of this kind and were answered.
    pub(super) completed: u32,
    pub(super) handshake: Option<Summary>,
    pub(super) first_response: Option<Summary>,
}

impl Connections {
    /// Header of the table.
    pub(super) fn header() -> String {
        let times = format!("{:>11} {:>11} {:>11}", "p50", "p95", "p99");
        format!("{:<13} {:>11}  handshake {times}  first response {times}\n", "connections", "completed")
    }

    /// Row of the table. `–` stands for a percentile of too few samples.
    pub(super) fn row(&self) -> String {
        let times = |set: &Option<Summary>| {
            let time = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.3} ms"));
            let [p50, p95, p99] = percentiles(set).map(time);
            format!("{p50:>11} {p95:>11} {p99:>11}")
        };
        format!(
            "{:<13} {:>11}  {:9} {}  {:14} {}\n",
            self.kind,
            format!("{} of {}", self.completed, self.attempted),
            "",
            times(&self.handshake),
            "",
            times(&self.first_response)
        )
    }

    /// Header of `--csv` without a transfer.
    pub(super) const CSV_HEADER: &str = "kind,transport,attempted,completed,handshake_p50_ms,handshake_p95_ms,handshake_p99_ms,\
                                         first_response_p50_ms,first_response_p95_ms,first_response_p99_ms\n";

    /// Row of `--csv` without a transfer.
    pub(super) fn csv(&self, transport: &str) -> String {
        let mut row = format!("{},{transport},{},{}", self.kind, self.attempted, self.completed);
        for time in percentiles(&self.handshake).into_iter().chain(percentiles(&self.first_response)) {
            row.push(',');
            row += &time.map_or(String::new(), |ms| format!("{ms:.6}"));
        }
        row + "\n"
    }
}

fn percentiles(set: &Option<Summary>) -> [Option<f64>; 3] {
    set.as_ref().map_or([None; 3], |set| [Some(set.p50_ms), set.p95_ms, set.p99_ms])
}

/// Samples of one kind.
struct Measured {
    kind: Kind,
    attempted: u32,
    handshake: Samples,
    first_response: Samples,
}

impl Measured {
    fn add(&mut self, exchange: Result<Exchange, String>, tally: &mut Tally) {
        self.attempted += 1;
        match exchange {
            Ok(Exchange { handshake, first_response }) => {
                self.handshake.record(handshake);
                self.first_response.record(first_response);
                tally.established(handshake);
                tally.completed += 1;
            }
            Err(error) => {
                tally.attempted += 1;
                tally.error(&error);
            }
        }
    }
}

/// Makes `count` connections of each kind, in turns. `first` is a new one that there is already.
pub(super) async fn measure(
    requester: &impl Requester,
    kinds: &[Kind],
    count: u32,
    first: Option<Result<Exchange, String>>,
    tally: &mut Tally,
    stop: &Stop,
) -> Vec<Connections> {
    let new = |&kind: &Kind| Measured { kind, attempted: 0, handshake: Samples::new(), first_response: Samples::new() };
    let mut measured: Vec<Measured> = kinds.iter().map(new).collect();
    if let (Some(first), Some(new)) = (first, measured.iter_mut().find(|of| of.kind == Kind::New)) {
        new.add(first, tally);
    }
    let total = count.saturating_mul(u32::try_from(kinds.len()).unwrap_or(u32::MAX));
    let made = Moved::default();
    let bar = Progress::start(Goal::Handshakes(total), made.clone());
    for kind in kinds.iter().filter(|kind| **kind != Kind::New) {
        // A session to resume. That this connection is no resumed one is no failure.
        let _ = requester.exchange(*kind).await;
    }
    'rounds: for _ in 0..count {
        for of in measured.iter_mut().filter(|of| of.attempted < count) {
            let exchange = tokio::select! {
                exchange = requester.exchange(of.kind) => exchange,
                () = stop.wait() => break 'rounds,
            };
            of.add(exchange, tally);
            made.add(1);
        }
    }
    drop(bar);
    let report = |of: Measured| Connections {
        kind: of.kind.name(),
        attempted: of.attempted,
        completed: u32::try_from(of.handshake.seen()).unwrap_or(u32::MAX),
        handshake: of.handshake.summary(),
        first_response: of.first_response.summary(),
    };
    measured.into_iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Resumes from the second connection on, and never with early data.
    #[derive(Default)]
    struct Fake(RefCell<Vec<Kind>>);

    impl Requester for Fake {
        async fn exchange(&self, kind: Kind) -> Result<Exchange, String> {
            let before = self.0.borrow().iter().filter(|other| **other == kind).count() as u64;
            self.0.borrow_mut().push(kind);
            match kind {
                Kind::Resumed if before == 0 => Err("not resumed".to_owned()),
                Kind::EarlyData => Err("refused".to_owned()),
                _ => Ok(Exchange {
                    handshake: Duration::from_millis(10 + before),
                    first_response: Duration::from_millis(20 + before),
                }),
            }
        }
    }

    #[tokio::test]
    async fn kinds_take_turns_and_priming_does_not_count() {
        let (fake, mut tally) = (Fake::default(), Tally::default());
        let kinds = [Kind::New, Kind::Resumed, Kind::EarlyData];
        let first = Exchange { handshake: Duration::from_millis(1), first_response: Duration::from_millis(2) };
        let made = measure(&fake, &kinds, 3, Some(Ok(first)), &mut tally, &Stop::default()).await;
        let counts: Vec<_> = made.iter().map(|of| (of.kind, of.attempted, of.completed)).collect();
        assert_eq!(counts, [("new", 3, 3), ("resumed", 3, 3), ("0-rtt", 3, 0)]);
        let asked = |kind| fake.0.borrow().iter().filter(|other| **other == kind).count();
        assert_eq!(kinds.map(asked), [2, 4, 4]);
        assert_eq!((tally.attempted, tally.completed, tally.errors["refused"]), (9, 6, 3));
        insta::assert_snapshot!(Connections::header() + &made.iter().map(Connections::row).collect::<String>(), @"
        connections     completed  handshake         p50         p95         p99  first response         p50         p95         p99
        new                3 of 3              10.000 ms           –           –                   20.000 ms           –           –
        resumed            3 of 3              12.000 ms           –           –                   22.000 ms           –           –
        0-rtt              0 of 3                      –           –           –                           –           –           –
        ");
        assert_eq!(made[0].csv("quic"), "new,quic,3,3,10.000000,,,20.000000,,\n");
        assert_eq!(made[2].csv("tcp"), "0-rtt,tcp,3,0,,,,,,\n");
        let cells = |text: &str| text.split(',').count();
        assert_eq!(cells(Connections::CSV_HEADER), cells(&made[0].csv("quic")));
    }
}
