//! Cost of a datagram at a load balancer, beside a relay that reads and writes one datagram at a time and does nothing else.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::Value;

use crate::{
    clients::{Nat, Site, content, get},
    farm::Farm,
    fleet::large,
    number,
};

/// Time on processors of the tasks of a process whose names begin so, in nanoseconds.
fn processor_time(pid: &str, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let times = tasks.filter_map(|task| {
        let is_named = std::fs::read_to_string(task.path().join("comm")).ok()?.starts_with(name);
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok().filter(|_| is_named)
    });
    times.sum()
}

/// A relay in two threads, for one client.
struct RawRelay {
    address: SocketAddr,
    datagrams: Arc<AtomicU64>,
}

impl RawRelay {
    /// Starts it; its threads end with the test.
    fn before(server: SocketAddr) -> Self {
        let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(server).unwrap();
        let (address, datagrams) = (front.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let client = Arc::new(Mutex::new(None));
        let (front2, back2) = (front.try_clone().unwrap(), back.try_clone().unwrap());
        let (client2, count, count2) = (client.clone(), datagrams.clone(), datagrams.clone());
        let up = move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((len, from)) = front.recv_from(&mut buffer) {
                *client.lock().unwrap() = Some(from);
                let _ = back.send(&buffer[..len]);
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let down = move || {
            let mut buffer = vec![0; 65_536];
            while let Ok(len) = back2.recv(&mut buffer) {
                let to = *client2.lock().unwrap();
                let _ = to.map(|to| front2.send_to(&buffer[..len], to));
                count2.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("raw-relay-up".to_owned()).spawn(up).unwrap();
        std::thread::Builder::new().name("raw-relay-down".to_owned()).spawn(down).unwrap();
        Self { address, datagrams }
    }
}

/// Downloads the large file so many times on one connection.
async fn downloads(site: &Site, times: u64) {
    let (_endpoint, mut h3) = site.h3().await;
    for _ in 0..times {
        assert!(content(h3.send(get("large")).await.unwrap()).await.len() == large().len());
    }
}

fn datagrams(status: &Value) -> u64 {
    ["routed", "unroutable", "answered"].iter().map(|name| status["datagrams"][name].as_u64().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datagram_at_the_load_balancer_costs() {
    let (rounds, times) = (number("BALANCE_COST_ROUNDS", 1), number("BALANCE_DOWNLOADS", 5));
    let farm = Farm::new("cost", 1);
    farm.configure(&[1], &[]);
    let mut balancer = farm.balancer();
    let relay = RawRelay::before(farm.machines[0].gateway.address);
    let (balanced, pid) = (farm.site(&balancer), balancer.id().to_string());
    let relayed = balanced.at(relay.address);
    for _ in 0..rounds {
        let (before, count) = (processor_time(&pid, "balance"), datagrams(&balancer.status()));
        downloads(&balanced, times).await;
        let (time, count) = (processor_time(&pid, "balance") - before, datagrams(&balancer.status()) - count);
        let (before, raw) = (processor_time("self", "raw-relay"), relay.datagrams.load(Ordering::Relaxed));
        downloads(&relayed, times).await;
        let raw_time = processor_time("self", "raw-relay") - before;
        let raw = relay.datagrams.load(Ordering::Relaxed) - raw;
        assert!(count > 1_000 && raw > 1_000, "{count} and {raw} datagrams");
        let (own, raw) = (time as f64 / count as f64, raw_time as f64 / raw as f64);
        println!("measured ns of a datagram at the load balancer: {own:.0}");
        println!("measured ns of a datagram at a raw relay: {raw:.0}");
        println!("measured ratio of a datagram: {:.3}", own / raw);
    }
}

/// Processor time of machines by their numbers, in nanoseconds.
fn time_of(farm: &Farm, machines: &[usize]) -> u64 {
    let time = |machine: &usize| processor_time(&farm.machines[machine - 1].gateway.id().to_string(), "");
    machines.iter().map(time).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_packet_that_is_forwarded_between_machines_costs() {
    let (rounds, times) = (number("BALANCE_COST_ROUNDS", 1), number("BALANCE_DOWNLOADS", 5));
    let farm = Farm::new("cost-forwarded", 2);
    farm.tell(1, &[(2, 2)]);
    farm.tell(2, &[(1, 1)]);
    let addresses = [1, 2].map(|machine: usize| farm.machines[machine - 1].gateway.address);
    for _ in 0..rounds {
        // One relay for both ways: it sends to the machine of the connection first, and then to the other one.
        let nat = Nat::rerouting(addresses.to_vec()).await;
        let (_endpoint, connection) = farm.site_at(nat.address).quic().await;
        let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        let mut costs = Vec::new();
        for machines in [&[1][..], &[1, 2]] {
            // The path is validated, and its window opens.
            assert!(content(h3.send(get("large")).await.unwrap()).await.len() == large().len());
            let packets = || connection.stats().map_or(0, |stats| stats.packets_sent + stats.packets_received);
            let (before, count) = (time_of(&farm, machines), packets());
            for _ in 0..times {
                assert!(content(h3.send(get("large")).await.unwrap()).await.len() == large().len());
            }
            let (time, count) = (time_of(&farm, machines) - before, packets() - count);
            assert!(count > 1_000, "{count} packets");
            costs.push(time as f64 / count as f64);
            nat.rebind.send(()).await.unwrap();
        }
        let forwarded = farm.status(2)["machines"][0]["forwarded"].as_u64().unwrap();
        assert!(forwarded > 100, "{forwarded} packets were forwarded");
        println!("measured ns of a packet at its machine: {:.0}", costs[0]);
        println!("measured ns of a packet by another machine: {:.0}", costs[1]);
        println!("measured ratio of a packet between machines: {:.3}", costs[1] / costs[0]);
        connection.close(0, b"");
    }
}
