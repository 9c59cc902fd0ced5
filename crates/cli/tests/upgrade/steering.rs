//! Packets of older processes that the kernel passes to them, and the same without it.

use crate::{
    clients::{Site, content, get, read_slowly},
    fleet::{Fleet, large},
};

/// Reads that the serving process has forwarded, and whether the kernel steers.
fn state(fleet: &Fleet) -> (u64, bool) {
    let steering = fleet.status()["kernel_steering"].clone();
    let is_on = steering["on"].as_bool().expect("on or off");
    assert_eq!(is_on, steering["reason"].is_null(), "{steering}");
    (steering["forwarded"].as_u64().expect("a count"), is_on)
}

/// Reads that the kernel has steered to the older processes, as they report.
fn steered(fleet: &Fleet) -> u64 {
    let status = fleet.status();
    status["processes"].as_array().unwrap().iter().filter_map(|process| process["steered"].as_u64()).sum()
}

/// Requests and a download over two connections of different processes, through two upgrades. Returns the reads that were forwarded and
/// those that were steered.
async fn forwarded(fleet: &mut Fleet, is_on: bool) -> (u64, u64) {
    let site = Site::of(fleet);
    let (_first, mut of_first) = site.h3().await;
    let (_download, mut download) = site.h3().await;
    let response = download.send(get("large")).await.unwrap();
    fleet.upgrade();
    assert_eq!(state(fleet).1, is_on, "after an upgrade");
    let (_second, mut of_second) = site.h3().await;
    fleet.upgrade();
    assert_eq!(state(fleet).1, is_on, "after another upgrade");
    let before = state(fleet).0;
    // Most of it waits at the first process, behind flow control.
    let all = read_slowly(response, || true);
    let asking = async {
        for _ in 0..100 {
            for h3 in [&mut of_first, &mut of_second] {
                assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
            }
        }
    };
    let (all, ()) = tokio::join!(all, asking);
    assert!(all == large(), "{} bytes", all.len());
    // The older processes report every 500 ms.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    (state(fleet).0 - before, steered(fleet))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_passes_packets_to_older_processes() {
    let mut fleet = Fleet::start("steered", "");
    if !state(&fleet).1 {
        println!("skipped: {}", fleet.status()["kernel_steering"]["reason"]);
        return;
    }
    let (count, steered) = forwarded(&mut fleet, true).await;
    println!("measured forwarded reads with kernel steering: {count}");
    assert!(count < 10, "{count} reads were forwarded");
    assert!(steered >= 200, "{steered} reads were steered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_for_older_processes_are_forwarded_without_the_kernel() {
    let mut fleet = Fleet::start("unsteered", "[upgrade]\nkernel-steering = false\n");
    let (count, steered) = forwarded(&mut fleet, false).await;
    println!("measured forwarded reads without kernel steering: {count}");
    assert!(count >= 200, "{count} reads were forwarded");
    assert_eq!(steered, 0);
}
