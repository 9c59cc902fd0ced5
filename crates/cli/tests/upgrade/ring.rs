//! Another ring of keys while downloads run: connections replace their IDs, so that the next process can reset them.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    clients::{Site, content, get, read_slowly},
    fleet::{Fleet, LIMIT, large, signal},
};

/// Makes a ring with nothing of the one before.
fn make_ring(file: &Path) {
    let _ = std::fs::remove_file(file);
    let made = std::process::Command::new(env!("CARGO_BIN_EXE_tiderace"))
        .args(["edge", "keys", "--file"])
        .arg(file)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_outlive_a_changed_ring_and_an_upgrade_and_are_reset_by_it() {
    const RING: &str = "[keys]\nfile = \"ring\"\n";
    let mut fleet = Fleet::start("ring", "");
    let ring = fleet.folder.0.join("ring");
    make_ring(&ring);
    fleet.reload(1, RING);
    let site = Site::of(&fleet);
    let (_download, mut download) = site.h3().await;
    let response = download.send(get("large")).await.unwrap();
    let (over, is_over) = tokio::sync::watch::channel(false);
    let downloaded = tokio::spawn(async move { read_slowly(response, || *is_over.borrow()).await });
    let (_endpoint, connection) = site.quic().await;
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    // The ring is another one, and no key of the older one is left.
    make_ring(&ring);
    fleet.reload(2, RING);
    for _ in 0..3 {
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    fleet.upgrade();
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    over.send(true).unwrap();
    let got = downloaded.await.unwrap();
    assert!(got == large(), "{} bytes", got.len());
    // The newest process has only the present ring, from which the tokens of its stateless resets are made.
    signal(fleet.first_id(), "KILL");
    let begun = Instant::now();
    while connection.close_reason().is_none() {
        assert!(begun.elapsed() < LIMIT, "no stateless reset of the present ring");
        let _ = connection.open_uni().await.map(|mut stream| stream.finish());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reason = format!("{:?}", connection.close_reason());
    assert!(reason.contains("Reset"), "{reason}");
}
