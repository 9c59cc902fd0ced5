//! A worker that panics takes its own connections with it, and neither those of the others nor the service.
#![cfg(all(target_os = "linux", debug_assertions))]

#[path = "upgrade/clients.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod clients;
#[path = "upgrade/fleet.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod fleet;
mod gateway;
mod scratch;

use std::{
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use clients::{Site, content, get};
use fleet::{Fleet, LIMIT, large};
use http_body_util::BodyExt;
use tiderace::Connection;
use tokio::task::JoinHandle;

/// Text that panics the gateway: at the end of a datagram, or of a path.
const TRAP: &str = "trap-of-a-test";

/// Downloads at the same time. The kernel chooses the worker by a random byte of each, so that all are at one in one run of ten million.
const CLIENTS: usize = 24;

fn fleet(name: &str) -> Fleet {
    Fleet::start_in(name, "", &[("TIDERACE_PLANTED_PANIC", TRAP)])
}

/// Panics the task that drives the socket of a worker: the first byte of the connection ID names the worker.
fn spring(fleet: &Fleet, worker: u8) {
    let packet = [&[0x40, worker], &[0; 40][..], TRAP.as_bytes()].concat();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&packet, fleet.address).unwrap();
}

/// Sends a packet every few milliseconds: each may be the one that a stateless reset answers.
async fn send_on(connection: Connection) {
    while connection.close_reason().is_none() {
        let _ = connection.open_uni().await.map(|mut stream| stream.finish());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Downloads the large file, most of it when `is_over`.
async fn download(site: Site, is_over: Arc<AtomicBool>) -> Result<Vec<u8>, String> {
    let (_endpoint, connection) = site.quic().await;
    let lost = |error: &dyn std::fmt::Debug| format!("{error:?}, {:?}", connection.close_reason());
    let mut h3 = h3_quic::client::begin(connection.clone()).await.map_err(|error| lost(&error))?;
    let mut body = h3.send(get("large")).await.map_err(|error| lost(&error))?.into_body();
    tokio::spawn(send_on(connection.clone()));
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        all.extend_from_slice(&frame.map_err(|error| lost(&error))?.into_data().unwrap());
        while !is_over.load(Ordering::Relaxed) && connection.close_reason().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(all)
}

/// Waits until the process of this number serves; returns its process ID.
async fn serving(fleet: &Fleet, number: u64) -> u32 {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LIMIT, "process {number} does not serve");
        let status = fleet.try_status().unwrap_or_default();
        if status["process"] == number {
            let last = status["processes"].as_array().unwrap().last().unwrap().clone();
            return u32::try_from(last["pid"].as_u64().unwrap()).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_panics_takes_only_its_own_connections_with_it() {
    let mut fleet = fleet("worker");
    let site = Site::of(&fleet);
    let is_over = Arc::new(AtomicBool::new(false));
    let downloads: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(download(site.clone(), is_over.clone()))).collect();
    let mut h2 = site.h2().await;
    let over_tcp = h2.send_request(get("large")).await.unwrap();
    let begun = Instant::now();
    while fleet.status()["requests"]["h3"] != CLIENTS as u64 {
        assert!(begun.elapsed() < LIMIT, "the downloads do not begin");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let begun = Instant::now();
    spring(&fleet, 0);
    let second = serving(&fleet, 2).await;
    fleet.note(second);
    assert_eq!(fleet.status()["worker_panics"], 1);
    // Those of the lost worker learn of it from the new process, one packet later, and the others know nothing of it.
    while !downloads.iter().any(JoinHandle::is_finished) {
        assert!(begun.elapsed() < LIMIT, "no stateless reset");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("measured time from a panic to a stateless reset, ms: {}", begun.elapsed().as_millis());
    is_over.store(true, Ordering::Relaxed);
    let (mut completed, mut lost) = (0, 0);
    for download in downloads {
        match download.await.unwrap() {
            Ok(all) => {
                assert!(all == large(), "{} bytes", all.len());
                completed += 1;
            }
            Err(reason) => {
                assert!(reason.contains("Reset"), "{reason}");
                lost += 1;
                // And is served again at once.
                let (_endpoint, mut h3) = site.h3().await;
                assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
            }
        }
    }
    println!("measured connections of the lost worker: {lost}");
    println!("measured connections of the other worker: {completed}");
    assert!(completed > 0 && lost > 0, "{completed} completed, {lost} lost");
    assert!(content(over_tcp).await == large(), "connections over TCP are in other tasks");
    drop(h2);
    fleet.wait_for_end(fleet.first_id());
    // Another one so soon would begin a circle.
    spring(&fleet, 1);
    fleet.wait_for_end(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_new_process_a_panic_of_a_worker_ends_the_old_one() {
    let fleet = fleet("worker-alone");
    std::fs::write(&fleet.file, "nonsense").unwrap();
    spring(&fleet, 0);
    fleet.wait_for_end(fleet.first_id());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_panics_is_lost_alone() {
    let fleet = fleet("request");
    let site = Site::of(&fleet);
    let ((_endpoint, mut h3), mut h2) = (site.h3().await, site.h2().await);
    assert!(h3.send(get(TRAP)).await.is_err(), "over HTTP/3");
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small", "on the same connection");
    assert!(h2.send_request(get(TRAP)).await.is_err(), "over HTTP/2");
    let mut h2 = site.h2().await;
    assert_eq!(content(h2.send_request(get("small")).await.unwrap()).await, "small");
    let status = fleet.status();
    assert_eq!((&status["process"], &status["worker_panics"]), (&1.into(), &0.into()));
    assert_eq!((&status["requests"]["h3"], &status["requests"]["h2"]), (&0.into(), &0.into()), "all are accounted for");
}
