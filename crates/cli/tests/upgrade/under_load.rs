//! Upgrades and reloads under load: with an eBPF program that steers packets, and without any privilege.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    clients::{Site, content, get1},
    downloads::{self, Downloads},
    fleet::{Fleet, privileges},
    load::{self, Load},
    mix::{Kind, Mix},
    number, private,
};

/// Older processes that have a connection of their own, beside the first one.
const SIDE_BY_SIDE: usize = 5;

/// New connections all the time, over QUIC and TCP.
async fn new_connections(site: Site, load: Load) {
    while load.goes_on() {
        match load.http3(&site).await {
            Ok(mut quic) => match quic.h3.send(crate::clients::get("small")).await {
                Ok(response) => {
                    assert_eq!(content(response).await, "small");
                    load.answered();
                }
                Err(error) => load.failed("new connection", &error.to_string()),
            },
            Err(why) => load.lost("new connection", &why),
        }
        let mut h1 = site.h1().await;
        load.counters.opened.fetch_add(1, Ordering::Relaxed);
        assert_eq!(content(h1.send_request(get1("small")).await.unwrap()).await, "small");
        load.answered();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads of packets of older processes, by the process that read them first.
#[derive(Default)]
struct Reads {
    /// Last known numbers of reads that the kernel steered, by process.
    steered: BTreeMap<u64, u64>,
    /// Reads that the serving processes forwarded.
    forwarded: u64,
}

impl Reads {
    /// Takes the counters of a process that is about to be replaced.
    fn add(&mut self, fleet: &Fleet, is_steered: bool) {
        let status = fleet.status();
        assert_eq!(status["kernel_steering"]["on"], is_steered, "{status}");
        for process in status["processes"].as_array().unwrap() {
            if let Some(steered) = process["steered"].as_u64() {
                self.steered.insert(process["process"].as_u64().unwrap(), steered);
            }
        }
        self.forwarded += status["kernel_steering"]["forwarded"].as_u64().unwrap();
    }

    fn print(&self) {
        let steered: u64 = self.steered.values().sum();
        println!("measured reads steered by the kernel: {steered}");
        println!("measured reads forwarded: {}", self.forwarded);
    }

    fn check(&self, is_steered: bool) {
        let steered: u64 = self.steered.values().sum();
        // The newest process forwards only those that came too soon for the kernel, and long headers.
        match is_steered {
            true => assert!(steered > 10 * self.forwarded, "{steered} reads steered, {} forwarded", self.forwarded),
            false => assert!(steered == 0 && self.forwarded > 0, "{steered} reads steered, {}", self.forwarded),
        }
    }
}

/// Upgrades and reloads of a gateway, with a connection at each process until some more have followed it.
struct Operations<'a> {
    fleet: &'a mut Fleet,
    /// Settings that all configurations have.
    settings: [&'a str; 2],
    is_steered: bool,
    reads: Reads,
    /// Most processes at the same time.
    most: usize,
    /// Sockets of each kind at the address: as many as the process with the most workers had.
    sockets: u8,
}

/// Workers of the process after so many upgrades: in each three one more than ever, up to six, then one, then two.
fn workers(upgrades: u64) -> u8 {
    match upgrades % 3 {
        1 => 3 + (upgrades / 3).min(3) as u8,
        2 => 1,
        _ => 2,
    }
}

impl Operations<'_> {
    async fn run(&mut self, clients: &mut JoinSet<()>, site: &Site, load: &Load) {
        let (upgrades, reloads) = (number("EDGE_UPGRADES", 7), number("EDGE_RELOADS", 14));
        let (mut upgraded, mut reloaded, mut own) = (0, 0, VecDeque::new());
        let (begun, busy) = (Instant::now(), processors());
        while upgraded < upgrades {
            self.reads.add(self.fleet, self.is_steered);
            upgraded += 1;
            self.fleet.set_workers(workers(upgraded));
            let (number, pid) = self.fleet.upgrade();
            assert_eq!(number, upgraded + 1);
            self.check_workers(workers(upgraded));
            assert!(self.is_steered || privileges(pid) == 0, "process {number} has privileges");
            load.counters.upgrades.store(upgraded, Ordering::Relaxed);
            while reloaded * upgrades < reloads * upgraded {
                reloaded += 1;
                self.fleet.reload_with(reloaded, self.settings[0], self.settings[1]);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let apart = load.apart();
            clients.spawn(load::hold(apart.clone(), site.clone(), Kind::Http3, u64::MAX, Duration::from_millis(20)));
            own.push_back(apart);
            if own.len() > SIDE_BY_SIDE {
                own.pop_front().unwrap().end();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.most = self.most.max(self.fleet.running().len());
            while let Some(ended) = clients.try_join_next() {
                ended.unwrap();
            }
        }
        // Older processes report their counters every 500 ms.
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.reads.add(self.fleet, self.is_steered);
        own.iter().for_each(Load::end);
        println!("measured upgrades: {upgraded}");
        println!("measured sockets at the end: {}", self.sockets);
        println!("measured reloads: {reloaded}");
        println!("measured processes side by side: {}", self.most);
        println!("measured seconds: {}", begun.elapsed().as_secs_f64());
        let (all, idle) = (processors().0 - busy.0, processors().1 - busy.1);
        println!("measured processors busy, %: {:.0}", 100.0 * (1.0 - idle as f64 / all as f64));
        assert!(self.most as u64 > upgrades.min(3), "{} processes side by side", self.most);
    }

    /// Asserts that the process that serves has so many workers, and a socket for each that any process has had.
    fn check_workers(&mut self, workers: u8) {
        let status = self.fleet.status();
        self.sockets = self.sockets.max(workers);
        assert_eq!((&status["workers"], &status["sockets"]), (&workers.into(), &self.sockets.into()), "{status}");
    }
}

/// Time of all processors together so far, and the idle part of it, in ticks (proc(5)).
fn processors() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let times = text.lines().next().unwrap().split_whitespace().skip(1).take(8);
    let times: Vec<u64> = times.map(|time| time.parse().unwrap()).collect();
    (times.iter().sum(), times[3] + times[4])
}

/// Runs all of it. The settings are those of the gateway, before and after its sections.
async fn lose_nothing(mut fleet: Fleet, settings: [&str; 2], is_steered: bool) {
    let (mix, pause) = (Mix::of(number("EDGE_CONNECTIONS", 20)), number("EDGE_PAUSE_MS", 50));
    let (site, load) = (Site::of(&fleet), Load::new(Duration::from_millis(pause)));
    let (mut clients, downloads) = (JoinSet::new(), Downloads::default());
    load::start(&mut clients, &load, &site, mix);
    for number in 0..mix.downloads {
        let kind = if number % 2 == 0 { Kind::Http3 } else { Kind::Http2 };
        clients.spawn(downloads.clone().run(load.clone(), site.clone(), kind));
    }
    clients.spawn(new_connections(site.clone(), load.clone()));
    // All clients begin.
    tokio::time::sleep(load::SPACING * mix.total() as u32 + Duration::from_millis(500)).await;
    let mut operations =
        Operations { fleet: &mut fleet, settings, is_steered, reads: Reads::default(), most: 0, sockets: workers(0) };
    operations.run(&mut clients, &site, &load).await;
    let reads = operations.reads;
    load.end();
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    mix.print();
    println!("measured shortest pause between requests of a connection, ms: {pause}");
    let long = downloads.print();
    load.print();
    load.initials.print();
    reads.print();
    load.check();
    load.initials.check();
    reads.check(is_steered);
    let (counters, upgrades) = (&load.counters, load.upgrades());
    for (what, counter) in [("rebindings", &counters.rebindings), ("migrations", &counters.migrations)] {
        assert!(counter.load(Ordering::Relaxed) > 0, "no {what}");
    }
    assert!(long >= mix.downloads * (upgrades / (downloads::UPGRADES + 1)).min(1), "{long} long downloads");
    // Without connections the older processes end.
    for pid in fleet.running() {
        if Some(u64::from(pid)) != fleet.status()["processes"].as_array().unwrap().last().unwrap()["pid"].as_u64() {
            fleet.wait_for_end(pid);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_under_load_lose_nothing_with_kernel_steering() {
    let private = private::section().await;
    let fleet = Fleet::with("load", "", &private);
    let steering = fleet.status()["kernel_steering"].clone();
    if steering["on"] != true {
        println!("skipped: no kernel steering: {}", steering["reason"]);
        return;
    }
    lose_nothing(fleet, ["", &private], true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_under_load_lose_nothing_without_privilege() {
    let (upgrade, private) = ("[upgrade]\nkernel-steering = false\n", private::section().await);
    let fleet = Fleet::unprivileged("load-unprivileged", upgrade, &private);
    lose_nothing(fleet, [upgrade, &private], false).await;
}
