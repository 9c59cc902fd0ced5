//! Cost of a packet whose connection belongs to another process than the one that reads.

use std::{
    io::Read,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tiderace::Connection;

use crate::{
    clients::Site,
    fleet::{Fleet, LIMIT},
    number,
};

/// A back end that reads everything, and counts it.
fn sink() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let read = Arc::new(AtomicU64::new(0));
    let count = read.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let count = count.clone();
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 18];
                while let Ok(len @ 1..) = stream.read(&mut buffer) {
                    count.fetch_add(len as u64, Ordering::Relaxed);
                }
            });
        }
    });
    (address, read)
}

/// Time on processors of a process so far, in nanoseconds.
fn processor_time(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let times = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    times.sum()
}

/// Sends so many bytes on one stream; returns the number of packets that it took.
async fn upload(connection: &Connection, bytes: u64, read: &AtomicU64) -> u64 {
    let (before, packets) = (read.load(Ordering::Relaxed), connection.stats().unwrap().packets_sent);
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    let piece = vec![7; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(piece.len() as u64);
        send.write_all(&piece[..len as usize]).await.unwrap();
        left -= len;
    }
    send.finish().unwrap();
    let arrived = async {
        while read.load(Ordering::Relaxed) < before + bytes {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LIMIT, arrived).await.expect("all of it arrives");
    connection.stats().unwrap().packets_sent - packets
}

/// Processor time of packets before and after an upgrade, printed with `kind` in the names.
async fn measure(name: &str, extra: &str, kind: &str) {
    let (rounds, bytes) = (number("EDGE_ROUNDS", 2), number("EDGE_UPLOAD", 8_000_000));
    let (address, read) = sink();
    let mut fleet = Fleet::with(name, extra, &format!("[[stream]]\nalpn = \"sink\"\nto = \"tcp://{address}\"\n"));
    let site = Site::of(&fleet);
    let mut newest = fleet.first_id();
    for _ in 0..rounds {
        let (_endpoint, connection) = site.quic_for("sink").await;
        // The window opens first.
        upload(&connection, bytes, &read).await;
        let begun = processor_time(newest);
        let packets = upload(&connection, bytes, &read).await;
        let direct = (processor_time(newest) - begun) as f64 / packets as f64;
        let owner = newest;
        newest = fleet.upgrade().1;
        upload(&connection, bytes, &read).await;
        let begun = (processor_time(newest), processor_time(owner));
        let packets = upload(&connection, bytes, &read).await;
        let reading = (processor_time(newest) - begun.0) as f64 / packets as f64;
        let owning = (processor_time(owner) - begun.1) as f64 / packets as f64;
        println!("measured ns of a packet before it is {kind}: {direct}");
        println!("measured ns of a {kind} packet at the newest process: {reading}");
        println!("measured ns of a {kind} packet at its owner: {owning}");
        println!("measured ratio of a {kind} packet: {}", (reading + owning) / direct);
        connection.close(0, b"");
        fleet.wait_for_end(owner);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_packet_for_another_process_costs_little_more() {
    measure("forwarding", "[upgrade]\nkernel-steering = false\n", "forwarded").await;
    let fleet = Fleet::start("steering-cost", "");
    if fleet.status()["kernel_steering"]["on"] == true {
        measure("steering", "", "steered").await;
    } else {
        println!("skipped: {}", fleet.status()["kernel_steering"]["reason"]);
    }
}
