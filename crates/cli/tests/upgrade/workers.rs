//! Another number of workers after an upgrade.

use std::{os::unix::fs::MetadataExt, process::Command, time::Duration};

use tokio::{task::JoinSet, time::timeout};

use crate::{
    clients::{Nat, Site, content, get, get1},
    fleet::{Fleet, LIMIT, give, signal},
    gateway::edge,
    load::{Load, hold},
    mix::Kind,
    scratch::Scratch,
    script,
};

/// Asserts the numbers of workers and of sockets, and whether the kernel steers.
fn check(fleet: &Fleet, workers: u8, sockets: u8, is_steered: bool) {
    let status = fleet.status();
    assert_eq!((&status["workers"], &status["sockets"]), (&workers.into(), &sockets.into()), "{status}");
    assert_eq!(status["kernel_steering"]["on"], is_steered, "{status}");
}

/// A client whose packets are found by their connection IDs alone: its address changes after each request.
struct Client {
    nat: Nat,
    h3: h3_quic::client::SendRequest,
    _endpoint: tiderace::Endpoint,
}

impl Client {
    async fn new(fleet: &Fleet) -> Self {
        let nat = Nat::before(fleet.address).await;
        let (endpoint, h3) = Site::of(fleet).at(nat.address).h3().await;
        let mut this = Self { nat, h3, _endpoint: endpoint };
        this.ask().await;
        this
    }

    async fn ask(&mut self) {
        for _ in 0..3 {
            let answer = async { content(self.h3.send(get("small")).await.unwrap()).await };
            assert_eq!(timeout(LIMIT, answer).await.expect("an answer"), "small");
            self.nat.rebind.send(()).await.unwrap();
        }
    }
}

/// Clients over QUIC, so many that the kernel passes some to each socket, and as many over TCP.
async fn come(fleet: &Fleet, clients: &mut Vec<Client>) {
    let site = Site::of(fleet);
    for _ in 0..12 {
        clients.push(Client::new(fleet).await);
        assert_eq!(content(site.h1().await.send_request(get1("small")).await.unwrap()).await, "small");
    }
}

/// Changes the number of workers from two in both directions.
async fn change(mut fleet: Fleet, is_steered: bool) {
    let mut clients = Vec::new();
    check(&fleet, 2, 2, is_steered);
    come(&fleet, &mut clients).await;
    for (workers, sockets) in [(3, 3), (1, 3), (2, 3), (4, 4)] {
        fleet.set_workers(workers);
        // A reload changes nothing.
        let output = edge("reload", &fleet.file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fleet.upgrade();
        check(&fleet, workers, sockets, is_steered);
        come(&fleet, &mut clients).await;
        for client in &mut clients {
            client.ask().await;
        }
    }
    // The process before has three sockets, and reads for its own clients and those of older ones.
    let newest = fleet.status()["processes"][4]["pid"].as_u64().unwrap();
    let newest = u32::try_from(newest).unwrap();
    signal(newest, "KILL");
    fleet.wait_for_end(newest);
    clients.truncate(4 * 12);
    for client in &mut clients {
        client.ask().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_workers_changes_with_kernel_steering() {
    let fleet = Fleet::start("workers", "");
    let steering = fleet.status()["kernel_steering"].clone();
    if steering["on"] != true {
        println!("skipped: no kernel steering: {}", steering["reason"]);
        return;
    }
    change(fleet, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_workers_changes_without_privilege() {
    let upgrade = "[upgrade]\nkernel-steering = false\n";
    change(Fleet::unprivileged("workers-unprivileged", upgrade, ""), false).await;
}

/// With encrypted connection IDs the kernel does not know the worker, and any socket may get a packet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_workers_changes_with_connection_ids_for_load_balancers() {
    let keys = Scratch::new("upgrade-workers-keys");
    let (key, ring) = (keys.0.join("key"), keys.0.join("ring"));
    for arguments in [&["balance", "key"][..], &["edge", "keys", "--file"]] {
        let file = if arguments.len() == 2 { &key } else { &ring };
        let made = Command::new(env!("CARGO_BIN_EXE_tiderace")).args(arguments).arg(file).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let section = format!(
        "[load-balancer]\nserver-id = \"0a01\"\nkey = \"{}\"\n[keys]\nfile = \"{}\"\n",
        key.display(),
        ring.display()
    );
    change(Fleet::with("workers-balancer", "", &section), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_socket_can_join_workers_share_those_that_are_there() {
    let mut fleet = Fleet::start("workers-share", "");
    if fleet.status()["kernel_steering"]["on"] != true {
        println!("skipped: {}", fleet.status()["kernel_steering"]["reason"]);
        return;
    }
    let mut clients = Vec::new();
    come(&fleet, &mut clients).await;
    // Sockets of the first process stay beside the shared ones, and the kernel's table is not used any more.
    fleet.reload(1, "[upgrade]\nkernel-steering = false\n");
    for workers in [3, 4] {
        fleet.set_workers(workers);
        fleet.upgrade();
        check(&fleet, workers, 2, false);
        come(&fleet, &mut clients).await;
        for client in &mut clients {
            client.ask().await;
        }
    }
}

/// The sockets of a user other than that of the first process may not share its address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_by_another_user_keeps_the_number_of_sockets() {
    const NOBODY: u32 = 65_534;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("skipped: it needs root");
        return;
    }
    let mut fleet = Fleet::start("workers-user", "[upgrade]\nkernel-steering = false\n");
    let (site, pause) = (Site::of(&fleet), Duration::from_millis(2));
    let (load, mut running) = (Load::new(pause), JoinSet::new());
    for kind in [Kind::Http3, Kind::Http3, Kind::Http2, Kind::Rebinding] {
        running.spawn(hold(load.clone(), site.clone(), kind, u64::MAX, pause));
    }
    let program = fleet.folder.0.join("tiderace");
    std::fs::copy(env!("CARGO_BIN_EXE_tiderace"), &program).unwrap();
    let other =
        format!("exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups -- {} \"$@\"", program.display());
    let other = script(&fleet, "other-user", &other);
    give(&fleet.folder.0, NOBODY);
    fleet.set_workers(3);
    let mut clients = Vec::new();
    // The second one is an upgrade by that user.
    for (process, arguments) in [(2, &["--program", &other][..]), (3, &[])] {
        let output = fleet.try_upgrade(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        check(&fleet, 3, 2, false);
        assert_eq!(fleet.status()["process"], process);
        come(&fleet, &mut clients).await;
        for client in &mut clients {
            client.ask().await;
        }
    }
    load.end();
    while let Some(client) = running.join_next().await {
        client.unwrap();
    }
    load.check();
}
