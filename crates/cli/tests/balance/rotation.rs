//! Another key of connection IDs while connections are open: they replace their IDs, and the older key is taken away.

use std::path::Path;

use serde_json::Value;

use crate::{
    clients::{Nat, content, get, read_slowly},
    farm::{Balancer, Farm, key},
    fleet::large,
    gateway::edge,
    machine, machines_of_new,
};

/// Writes the keys that load balancers read, by their `config-id`, and lets the load balancer take them.
fn read_by(file: &Path, balancer: &mut Balancer, numbers: &[u8]) {
    let text = std::fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once("[[connection-ids]]").unwrap();
    let (_, machines) = rest.split_once("[[machine]]").unwrap();
    let ids = |number: &u8| format!("[[connection-ids]]\nconfig-id = {number}\nkey = \"{}\"\n", name(*number));
    let all: String = numbers.iter().map(ids).collect();
    std::fs::write(file, format!("{before}{all}[[machine]]{machines}")).unwrap();
    assert_eq!(balancer.reload(), "the new configuration is in use");
}

fn name(number: u8) -> String {
    if number == 0 { "lb.key".to_owned() } else { format!("lb-{number}.key") }
}

/// Lets a machine make its connection IDs with this key.
fn made_by(farm: &Farm, machine: usize, number: u8) {
    let file = &farm.machines[machine - 1].file;
    let text = std::fs::read_to_string(file).unwrap();
    let key = |number: u8| format!("config-id = {number}\nkey = \"{}\"\n", name(number));
    let text = text.replace("key = \"lb.key\"\n", &key(0)).replace("config-id = 0\nconfig-id = 0\n", "config-id = 0\n");
    std::fs::write(file, text.replace(&key(number - 1), &key(number))).unwrap();
    let output = edge("reload", file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn datagrams(status: &Value, name: &str) -> u64 {
    status["datagrams"][name].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_outlives_two_changes_of_the_key_and_the_end_of_the_older_ones() {
    let mut farm = Farm::new("rotation", 3);
    let file = farm.configure(&[1, 2, 3], &[]);
    let mut balancer = farm.balancer();
    // Each packet that the load balancer cannot read goes by the address of the client, which changes all the time.
    let nat = Nat::before(balancer.address).await;
    let (_endpoint, connection) = farm.site_at(nat.address).quic().await;
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    let own = machine(&mut h3).await;
    let response = h3.send(get("large")).await.unwrap();
    let (over, is_over) = tokio::sync::watch::channel(false);
    let download = tokio::spawn(async move { read_slowly(response, || *is_over.borrow()).await });
    // One that says nothing between its first request and its last.
    let (_quiet_endpoint, mut quiet) = farm.site(&balancer).h3().await;
    let of_quiet = machine(&mut quiet).await;
    for number in 1..=2 {
        key(&farm.folder.0.join(name(number)));
        read_by(&file, &mut balancer, &[number - 1, number]);
        (1..=3).for_each(|machine| made_by(&farm, machine, number));
        for _ in 0..3 {
            assert_eq!(machine(&mut h3).await, own, "while both keys are read");
            nat.rebind.send(()).await.unwrap();
        }
        read_by(&file, &mut balancer, &[number]);
        let before = balancer.status();
        for _ in 0..5 {
            assert_eq!(machine(&mut h3).await, own, "with key {number} alone");
            nat.rebind.send(()).await.unwrap();
        }
        let after = balancer.status();
        assert!(datagrams(&after, "routed") > datagrams(&before, "routed"));
        assert_eq!(datagrams(&after, "unroutable"), datagrams(&before, "unroutable"), "packets with an older ID");
    }
    assert_eq!(machine(&mut quiet).await, of_quiet);
    // The new process reads packets of the older one's connections.
    let output = edge("upgrade", &farm.machines[own - 1].file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    farm.pids.push(text.split_once("(PID ").unwrap().1.split_once(')').unwrap().0.parse().unwrap());
    assert_eq!((machine(&mut h3).await, machine(&mut quiet).await), (own, of_quiet));
    // New connections have IDs of the newest key from the start.
    let before = datagrams(&balancer.status(), "routed");
    assert_eq!(machines_of_new(&farm.site(&balancer), 4).await.values().sum::<usize>(), 4);
    assert!(datagrams(&balancer.status(), "routed") > before);
    over.send(true).unwrap();
    let got = download.await.unwrap();
    assert!(got == large(), "{} bytes", got.len());
    assert!(connection.close_reason().is_none());
    assert!(content(h3.send(get("large")).await.unwrap()).await == large());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_would_lose_connections_is_refused() {
    let farm = Farm::new("rotation-refused", 2);
    key(&farm.folder.0.join("lb-1.key"));
    let file = &farm.machines[0].file;
    let good = std::fs::read_to_string(file).unwrap();
    let other = |text: &str| good.replace("key = \"lb.key\"\n", text);
    let with_machine = format!(
        "config-id = 1\nkey = \"lb-1.key\"\n[[load-balancer.machine]]\nserver-id = \"0a02\"\naddress = \"{}\"\n",
        farm.machines[1].gateway.address
    );
    for text in [
        // The bits in the ID would not tell the keys apart.
        other("key = \"lb-1.key\"\n"),
        other("config-id = 1\nkey = \"lb-1.key\"\nnonce-length = 10\n"),
        good.replace("server-id = \"0a01\"", "server-id = \"0a03\"\nconfig-id = 1"),
        // The other machine could not read the new IDs.
        good.replace("key = \"lb.key\"\nnetworks = \"127.0.0.0/8\"\n", &with_machine),
    ] {
        assert_ne!(text, good);
        std::fs::write(file, &text).unwrap();
        let output = edge("reload", file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}\n{text}");
        assert!(said.contains("stay what they were at the start") && said.contains("config-id"), "{said}\n{text}");
    }
}
