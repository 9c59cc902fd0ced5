//! Causes of missing datagrams, and the account of the bytes of a run.

extern crate tiderace_lab as lab;

mod figures;

use figures::value;
use lab::{
    figure::Figure,
    record::{Record, RunOutcome},
    run::run_one,
    scenario::parse,
    tiderace,
};

/// A run of CUBIC with datagrams at this rate, over this path.
fn run(path: &str, rate: &str, profile: transport::Profile) -> Record {
    let text = format!(
        "name = \"datagrams\"\ntitle = \"t\"\nabout = \"a\"\n[path.down]\n{path}\ndelay = \"20 ms\"\n[traffic]\nworkload = \"datagrams\"\n\
         datagram-rate = \"{rate}\"\nconnections = 2\n[run]\nwarmup = \"1 s\"\nduration = \"5 s\"\nseeds = 1\n"
    );
    let record = run_one(&parse(&text, "test").unwrap(), tiderace::with_profile(profile).as_ref(), 1, None);
    assert_eq!(record.outcome, RunOutcome::Valid);
    record
}

const PARTS: [Figure; 4] =
    [Figure::ResidualNetwork, Figure::ResidualDropped, Figure::ResidualExpired, Figure::ResidualLate];

/// Each part of the residual loss, after their sum was compared with it.
fn parts(record: &Record) -> [f64; 4] {
    let parts = PARTS.map(|figure| value(record, figure));
    let whole = value(record, Figure::ResidualLoss);
    assert!((parts.iter().sum::<f64>() - whole).abs() < 1e-12, "{parts:?} and {whole}");
    parts
}

/// BBR keeps its rate in spite of the losses; CUBIC's datagrams wait for its window, and some are late.
#[test]
fn what_the_network_loses_is_its_own() {
    let with = |name: &str| transport::Profile { congestion: name.parse().unwrap(), ..transport::Profile::default() };
    let [network, dropped, expired, late] = parts(&run("loss = \"5 %\"", "1 Mbit/s", with("bbr3")));
    assert!((0.02..0.09).contains(&network), "{network}");
    assert!(dropped + expired == 0.0 && late < 0.01, "{dropped} {expired} {late}");
    let [network, _, _, late] = parts(&run("loss = \"5 %\"", "1 Mbit/s", with("cubic")));
    assert!((0.02..0.09).contains(&network) && late > 0.05, "{network} {late}");
}

/// Twice as much as the path carries: what the sender cannot send overflows its queue, or waits until the run ends.
#[test]
fn what_overflows_the_senders_queue_is_seen() {
    let narrow = "rate = \"2 Mbit/s\"\nqueue = \"15 kB\"";
    let small = transport::Profile { datagram_queue: 20_000, ..transport::Profile::default() };
    let [network, dropped, _, late] = parts(&run(narrow, "2 Mbit/s", small));
    assert!(dropped > 0.3 && late < 0.1 && network < 0.2, "{network} {dropped} {late}");
    let [_, dropped, _, late] = parts(&run(narrow, "2 Mbit/s", transport::Profile::default()));
    assert!(dropped == 0.0 && late > 0.2, "1 MiB holds it all: {dropped} {late}");
}

/// The record says where all bytes went, and the sums agree.
#[test]
fn records_have_books() {
    let record =
        run("rate = \"4 Mbit/s\"\nqueue = \"20 kB\"\nloss = \"2 %\"", "1 Mbit/s", transport::Profile::default());
    let books = &record.books;
    for (end, books) in [("clients", &books.clients), ("servers", &books.servers)] {
        for name in ["bytes_sent", "bytes_received", "stream_bytes_received", "datagrams_queued", "datagrams_received"]
        {
            let columns = &books.0[name];
            let sum: u64 = columns.iter().filter(|(column, _)| *column != "total").map(|(_, value)| value).sum();
            assert_eq!(sum, columns["total"], "{name} of {end}");
        }
    }
    assert!(books.servers.0["bytes_sent"]["datagrams"] > 1_000_000);
    assert!(books.network["dropped_loss"].packets > 0);
    let all: u64 = books
        .network
        .iter()
        .filter(|(name, _)| *name != "sent" && *name != "duplicated")
        .map(|(_, of)| of.packets)
        .sum();
    assert_eq!(books.network["sent"].packets + books.network["duplicated"].packets, all);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
}
