use serde_json::{Value, json};

use super::*;
use crate::stats::compare::Verdict;

/// A client with an address of 10/8 and four requests of about 100 ms, and what `change` makes of it.
fn client(number: u32, arm: &str, ms: f64, change: impl FnOnce(&mut Value)) -> Value {
    let times: Vec<Value> =
        (0..4).map(|n| json!([ms * (1.0 + 0.01 * f64::from(n * (number % 7))), "unreported"])).collect();
    let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
    let mut client = json!({
        "client": address.to_string(), "arm": arm, "in_both": false, "off_arm": 0, "over_quic": 0,
        "counts": {"unreported": [4, 0]}, "times_ms": times,
    });
    change(&mut client);
    client
}

fn records(share: f64, clients: &[Value]) -> Records {
    let json = json!({
        "share": share, "since": 1, "requests": 4 * clients.len(), "clients_seen": clients.len(), "clients": clients,
    });
    serde_json::from_value(json).unwrap()
}

/// `count` clients of each arm; `ms` of the QUIC arm.
fn even(count: u32, ms: f64) -> Vec<Value> {
    (0..count)
        .flat_map(|n| {
            [
                client(2 * n, "tcp", 100.0 + f64::from(n % 5), |_| {}),
                client(2 * n + 1, "quic", ms + f64::from(n % 5), |_| {}),
            ]
        })
        .collect()
}

fn reason(records: &Records) -> String {
    let report = compare(records, None);
    assert!(report.tables.is_empty());
    let reasons: Vec<String> = report.not_comparable.into_iter().map(|doubt| doubt.reason).collect();
    reasons.join("; ")
}

#[test]
fn a_difference_has_the_name_of_its_arm() {
    for (ms, verdict) in [(80.0, Verdict::Better), (100.0, Verdict::Equivalent), (130.0, Verdict::Worse)] {
        let report = compare(&records(0.5, &even(200, ms)), None);
        assert_eq!((report.not_comparable.len(), report.tables.len()), (0, 1));
        let figures = &report.tables[0].rows[0].figures;
        assert_eq!(figures[0].result.unwrap().verdict, verdict, "{ms}");
        assert_eq!(figures[3].figure, "failures");
    }
}

#[test]
fn arms_that_are_not_comparable_have_no_verdict() {
    let uneven: Vec<Value> =
        even(200, 100.0).into_iter().enumerate().filter(|(n, _)| n % 2 == 0 || n % 4 == 1).map(|(_, c)| c).collect();
    assert!(reason(&records(0.5, &uneven)).contains("200 of 300 clients are in the TCP arm"));
    assert!(reason(&records(0.5, &[])).contains("no client is in the TCP arm"));
    // Everybody comes from one address.
    let one = client(1, "quic", 100.0, |client| client["counts"]["unreported"] = json!([1_000_000, 3]));
    assert!(reason(&records(0.5, &[one])).contains("no client is in the TCP arm (share 50 %)"));
    let tcp: Vec<Value> = (0..300).map(|n| client(n, "tcp", 100.0, |_| {})).collect();
    assert_eq!(reason(&records(1.0, &tcp)), "no client is in the QUIC arm (share 100 %)");
    let moved: Vec<Value> = even(200, 100.0)
        .into_iter()
        .enumerate()
        .map(|(n, mut client)| {
            client["in_both"] = json!(n % 50 == 0);
            client
        })
        .collect();
    assert!(reason(&records(0.5, &moved)).contains("8 of 400 clients were seen in both arms"));
    let strayed: Vec<Value> = even(200, 100.0)
        .into_iter()
        .map(|mut client| {
            client["off_arm"] = json!(if client["arm"] == "tcp" { 1 } else { 0 });
            client
        })
        .collect();
    assert!(reason(&records(0.5, &strayed)).contains("200 of 1000 requests of the TCP arm came over QUIC"));
}

#[test]
fn few_clients_give_no_verdict_and_the_reason() {
    let report = compare(&records(0.5, &even(20, 80.0)), None);
    let figures = &report.tables[0].rows[0].figures;
    assert!(figures.iter().all(|row| row.result.is_none()));
    assert_eq!(figures[0].not_comparable.as_deref(), Some("20 clients in an arm, 30 at least"));
}

#[test]
fn one_busy_client_does_not_decide() {
    let mut clients = even(200, 100.0);
    // A million requests of one client of the QUIC arm, half of which fail, and all of which are slow.
    clients[1] = client(1, "quic", 5_000.0, |client| {
        client["counts"]["unreported"] = json!([1_000_000, 500_000]);
        client["times_ms"] = json!(vec![json!([5_000.0, "unreported"]); 32]);
    });
    let report = compare(&records(0.5, &clients), None);
    let figures = &report.tables[0].rows[0].figures;
    assert_eq!(figures[0].result.unwrap().verdict, Verdict::Equivalent);
    // 16 of 828 requests.
    assert!((figures[3].values.quic.unwrap() - 16.0 / 828.0).abs() < 1e-9);
    assert!(matches!(figures[3].result.unwrap().verdict, Verdict::Undecided), "{:?}", figures[3]);
}

#[test]
fn by_network_and_by_network_type() {
    let clients: Vec<Value> = even(200, 100.0)
        .into_iter()
        .enumerate()
        .map(|(n, mut client)| {
            // In every second pair, QUIC is faster on 3g.
            if n % 4 >= 2 {
                let ms = if client["arm"] == "quic" { 150.0 } else { 300.0 };
                client["times_ms"] = json!([[ms + n as f64 * 0.01, "3g"], [ms, "3g"]]);
                client["counts"] = json!({"3g": [2, 0]});
            }
            client
        })
        .collect();
    let networks = NetworkTable::parse("10.0.0.0/25 low\n10.0.0.128/25 high\n").unwrap();
    let report = compare(&records(0.5, &clients), Some(&networks));
    let names = |table: &Table| table.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(report.tables.iter().map(|table| table.by).collect::<Vec<_>>(), ["all", "network", "network type"]);
    assert_eq!(names(&report.tables[1]), ["not in the table", "high", "low"]);
    assert_eq!(report.tables[1].rows[2].clients, PerArm { tcp: 64, quic: 64 });
    assert_eq!(names(&report.tables[2]), ["unreported", "3g"]);
    let verdict = |row: &Row| row.figures[0].result.unwrap().verdict;
    assert_eq!(verdict(&report.tables[2].rows[0]), Verdict::Equivalent);
    assert_eq!(verdict(&report.tables[2].rows[1]), Verdict::Better);
    assert!((report.tables[1].confidence_each - (1.0 - 0.01 / 12.0)).abs() < 1e-12);
}
