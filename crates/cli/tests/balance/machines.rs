//! Machines without a load balancer: packets of a connection arrive at another machine, which forwards them to the one that holds it.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use serde_json::Value;
use wire::ProxyHeader;

use crate::{
    clients::{Nat, content, get, read_slowly},
    farm::Farm,
    fleet::{LIMIT, large, signal},
    gateway::edge,
    machine,
};

/// Counter of a machine's status about the first other one.
fn count(status: &Value, name: &str) -> u64 {
    status["machines"][0][name].as_u64().unwrap_or_else(|| panic!("{status}"))
}

fn dropped(status: &Value, reason: &str) -> u64 {
    status["machine_datagrams_dropped"][reason].as_u64().unwrap_or_else(|| panic!("{status}"))
}

/// Waits until the status of a machine fits.
async fn wait_until(farm: &Farm, machine: usize, fits: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let status = farm.status(machine);
        if fits(&status) {
            return status;
        }
        assert!(begun.elapsed() < LIMIT, "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn address(farm: &Farm, machine: usize) -> std::net::SocketAddr {
    farm.machines[machine - 1].gateway.address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_that_arrive_at_the_wrong_machine_in_a_download_are_forwarded_and_nothing_is_lost() {
    forwards_all(&Farm::new("forwarded", 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_that_arrive_at_the_wrong_machine_over_ipv6_are_forwarded_and_nothing_is_lost() {
    if UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6");
        return;
    }
    forwards_all(&Farm::at("[::1]", "forwarded-ipv6", 2)).await;
}

/// Downloads in which packets arrive at the wrong one of two machines.
async fn forwards_all(farm: &Farm) {
    farm.tell(1, &[(2, 2)]);
    farm.tell(2, &[(1, 1)]);
    let addresses = vec![address(farm, 1), address(farm, 2)];
    // Routers change their choice, and clients change their port beside it.
    for nat in [Nat::rerouting(addresses.clone()).await, Nat::before_all(addresses.clone()).await] {
        let site = farm.site_at(nat.address);
        let (_endpoint, connection) = site.quic().await;
        let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        assert_eq!(machine(&mut h3).await, 1);
        let response = h3.send(get("large")).await.unwrap();
        let download = tokio::spawn(content(response));
        // To the wrong machine and back, ending at the wrong one.
        for _ in 0..5 {
            nat.rebind.send(()).await.unwrap();
            assert_eq!(machine(&mut h3).await, 1);
        }
        let got = download.await.unwrap();
        assert!(got == large(), "{} bytes", got.len());
        assert!(connection.close_reason().is_none());
        // At the wrong machine from the first byte to the last.
        let before = count(&farm.status(2), "answered");
        assert!(content(h3.send(get("large")).await.unwrap()).await == large());
        assert!(count(&farm.status(2), "answered") > before + large().len() as u64 / 1_500);
    }
    let (first, second) = (farm.status(1), farm.status(2));
    println!("measured datagrams forwarded: {}", count(&second, "forwarded"));
    println!("measured answers: {}", count(&second, "answered"));
    assert!(count(&first, "received") <= count(&second, "forwarded") && count(&first, "received") > 100, "{first}");
    assert_eq!((count(&first, "forwarded"), count(&second, "received")), (0, 0));
    for status in [first, second] {
        for reason in ["again", "rate", "stranger", "malformed", "untrusted"] {
            assert_eq!(dropped(&status, reason), 0, "{reason}: {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_send_packets_in_a_circle_drop_them_at_the_second_machine() {
    let farm = Farm::new("circle", 3);
    // Both say that the third machine is the other one.
    farm.tell(1, &[(3, 2)]);
    farm.tell(2, &[(3, 1)]);
    let nat = Nat::rerouting(vec![address(&farm, 3), address(&farm, 1)]).await;
    let (_endpoint, connection) = farm.site_at(nat.address).quic().await;
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    assert_eq!(machine(&mut h3).await, 3);
    nat.rebind.send(()).await.unwrap();
    let request = tokio::spawn(async move { (machine(&mut h3).await, h3) });
    let second = wait_until(&farm, 2, |status| dropped(status, "again") >= 3).await;
    let first = farm.status(1);
    assert!(count(&first, "forwarded") >= dropped(&second, "again"), "each is dropped once: {first} {second}");
    assert_eq!((count(&first, "received"), count(&second, "forwarded")), (0, 0), "nothing goes round");
    assert_eq!((dropped(&first, "again"), count(&first, "answered")), (0, 0), "nothing is answered");
    // Nobody has ended the connection.
    nat.rebind.send(()).await.unwrap();
    let (at, _h3) = request.await.unwrap();
    assert_eq!((at, connection.close_reason().is_none()), (3, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_names_a_client_is_refused() {
    let farm = Farm::new("stranger", 2);
    farm.tell(1, &[(2, 2)]);
    // A question for the versions, which any sender gets an answer to.
    let mut question = vec![0; 1_200];
    question[..15].copy_from_slice(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8]);
    let mut header = [0; ProxyHeader::MAX_LEN];
    let (client, server) = ("198.51.100.1:5000".parse().unwrap(), "203.0.113.1:443".parse().unwrap());
    let len = ProxyHeader { client, server, hint: Some(0) }.encode(&mut header);
    let datagram = [&header[..len], &question].concat();
    let mut buffer = [0; 2_048];
    // Another address than that of a machine: nothing is answered, to anyone.
    let stranger = UdpSocket::bind("127.0.0.9:0").unwrap();
    for _ in 0..3 {
        stranger.send_to(&datagram, address(&farm, 1)).unwrap();
    }
    wait_until(&farm, 1, |status| dropped(status, "untrusted") == 3).await;
    stranger.send_to(&question, address(&farm, 1)).unwrap();
    let (len, _) = stranger.recv_from(&mut buffer).unwrap();
    assert!(!ProxyHeader::begins(&buffer[..len]), "the first answer is that to the stranger itself");
    assert_eq!(count(&farm.status(1), "received"), 0);
    // The address of the other machine is believed.
    let trusted = UdpSocket::bind("127.0.0.1:0").unwrap();
    trusted.send_to(&datagram, address(&farm, 1)).unwrap();
    let (len, _) = trusted.recv_from(&mut buffer).unwrap();
    let (answered, _) = ProxyHeader::parse(&buffer[..len]).unwrap();
    assert_eq!((answered.client, count(&farm.status(1), "received")), (client, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_a_killed_machine_is_reset_by_another_one() {
    resets_for_the_dead(&Farm::new("dead", 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_a_killed_machine_is_reset_by_another_one_over_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6");
        return;
    }
    resets_for_the_dead(&Farm::at("[::1]", "dead-ipv6", 2)).await;
}

/// Two machines, the first of which is killed in the middle of a connection.
async fn resets_for_the_dead(farm: &Farm) {
    farm.tell(2, &[(1, 1)]);
    let nat = Nat::rerouting(vec![address(farm, 1), address(farm, 2)]).await;
    let (_endpoint, connection) = farm.site_at(nat.address).quic().await;
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    assert_eq!(machine(&mut h3).await, 1);
    signal(farm.machines[0].gateway.id(), "KILL");
    nat.rebind.send(()).await.unwrap();
    let begun = Instant::now();
    while connection.close_reason().is_none() {
        assert!(begun.elapsed() < LIMIT, "no stateless reset");
        let _ = connection.open_uni().await.map(|mut stream| stream.finish());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("measured time to a stateless reset, ms: {}", begun.elapsed().as_millis());
    assert!(format!("{:?}", connection.close_reason()).contains("Reset"));
    let status = farm.status(2);
    assert_eq!(status["machines"][0]["state"], "down", "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_of_the_machine_that_forwards_keeps_the_connection() {
    let mut farm = Farm::new("relay", 2);
    farm.tell(1, &[(2, 2)]);
    farm.tell(2, &[(1, 1)]);
    let nat = Nat::rerouting(vec![address(&farm, 1), address(&farm, 2)]).await;
    let (_endpoint, connection) = farm.site_at(nat.address).quic().await;
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    assert_eq!(machine(&mut h3).await, 1);
    nat.rebind.send(()).await.unwrap();
    let response = h3.send(get("large")).await.unwrap();
    let (over, is_over) = tokio::sync::watch::channel(false);
    let download = tokio::spawn(async move { read_slowly(response, || *is_over.borrow()).await });
    let old = farm.machines[1].gateway.id();
    let begun = Instant::now();
    for _ in 0..2 {
        assert_eq!(machine(&mut h3).await, 1);
        let output = edge("upgrade", &farm.machines[1].file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        farm.pids.push(text.split_once("(PID ").unwrap().1.split_once(')').unwrap().0.parse().unwrap());
        assert_eq!(machine(&mut h3).await, 1);
    }
    // No connection holds the first process, but answers may still lead there: it stays for three seconds after the last one.
    let stat = |pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    while !stat(old).contains(") Z ") {
        assert!(begun.elapsed() < LIMIT, "the first process does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
    over.send(true).unwrap();
    let got = download.await.unwrap();
    assert!(got == large(), "{} bytes", got.len());
    assert!(count(&farm.status(2), "forwarded") > 0 && connection.close_reason().is_none());
}

/// Settings of connection IDs: number, and length of the nonce.
type Form = (u8, u8);

/// Lets a machine make IDs of one form and read others. The command that makes it take the new configuration is `act`.
fn form(farm: &Farm, machine: usize, made: Form, read: &[Form], act: &str) -> std::process::Output {
    let file = &farm.machines[machine - 1].file;
    let text = std::fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once("[load-balancer]\n").unwrap();
    let (_, machines) = rest.split_once("[[load-balancer.machine]]").unwrap();
    let machines = machines.split("[[load-balancer.connection-ids]]").next().unwrap();
    let (machines, _) = machines.split_once("[[route]]").unwrap_or((machines, ""));
    let (_, route) = rest.split_once("[[route]]").unwrap();
    let settings = |(id, nonce): Form| format!("config-id = {id}\nnonce-length = {nonce}\nkey = \"lb-{id}.key\"\n");
    let read: String =
        read.iter().map(|form| format!("[[load-balancer.connection-ids]]\n{}", settings(*form))).collect();
    let id = crate::farm::server_id(machine);
    let text = format!(
        "{before}[load-balancer]\nserver-id = \"{id}\"\n{}[[load-balancer.machine]]{machines}{read}[[route]]{route}",
        settings(made)
    );
    std::fs::write(file, text).unwrap();
    edge(act, file).output().unwrap()
}

fn accepted(output: &std::process::Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_reach_their_machine_while_keys_and_lengths_of_ids_change() {
    const FIRST: Form = (0, 14);
    const SECOND: Form = (1, 14);
    const THIRD: Form = (2, 9);
    let mut farm = Farm::new("forms", 2);
    std::fs::copy(farm.folder.0.join("lb.key"), farm.folder.0.join("lb-0.key")).unwrap();
    (1..=2).for_each(|number| crate::farm::key(&farm.folder.0.join(format!("lb-{number}.key"))));
    farm.tell(1, &[(2, 2)]);
    farm.tell(2, &[(1, 1)]);
    let mut clients = Vec::new();
    let join = async |farm: &Farm, clients: &mut Vec<_>, at: usize| {
        let nat = Nat::rerouting(vec![address(farm, at), address(farm, 3 - at)]).await;
        let (endpoint, connection) = farm.site_at(nat.address).quic().await;
        let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        assert_eq!(machine(&mut h3).await, at);
        clients.push((at, nat, endpoint, connection, h3));
    };
    for at in [1, 2] {
        join(&farm, &mut clients, at).await;
    }
    // The machine that is asked changes with each request.
    macro_rules! ask {
        ($when:expr) => {
            for (at, nat, _, connection, h3) in &mut clients {
                for _ in 0..3 {
                    nat.rebind.send(()).await.unwrap();
                    assert_eq!(machine(h3).await, *at, "{}", $when);
                }
                assert!(connection.close_reason().is_none(), "{}", $when);
            }
        };
    }
    let refused = form(&farm, 1, SECOND, &[FIRST], "reload");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("[[load-balancer.connection-ids]]"), "{said}");
    // Another server ID, with which the table of the other machine does not know this one.
    accepted(&form(&farm, 1, FIRST, &[], "check"));
    let file = &farm.machines[0].file;
    let good = std::fs::read_to_string(file).unwrap();
    let own = format!("[load-balancer]\nserver-id = \"{}\"", crate::farm::server_id(1));
    std::fs::write(file, good.replace(&own, "[load-balancer]\nserver-id = \"0aff\"")).unwrap();
    for act in ["reload", "upgrade"] {
        let refused = edge(act, file).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{act}: {said}");
        assert!(said.matches("error").count() == 1 && said.contains("keep `server-id`"), "{act}: {said}");
    }
    std::fs::write(file, good).unwrap();
    ask!("another server ID is refused");
    for at in [1, 2] {
        accepted(&form(&farm, at, FIRST, &[SECOND], "reload"));
    }
    ask!("both read the second key");
    accepted(&form(&farm, 1, SECOND, &[FIRST, THIRD], "reload"));
    join(&farm, &mut clients, 1).await;
    ask!("the first machine makes IDs with the second key, the other one with the first");
    accepted(&form(&farm, 2, SECOND, &[FIRST, THIRD], "reload"));
    join(&farm, &mut clients, 2).await;
    ask!("both make IDs with the second key");
    let refused = form(&farm, 1, THIRD, &[FIRST, SECOND], "reload");
    assert_eq!(refused.status.code(), Some(2), "another length");
    let text = accepted(&form(&farm, 1, THIRD, &[FIRST, SECOND], "upgrade"));
    farm.pids.push(text.split_once("(PID ").unwrap().1.split_once(')').unwrap().0.parse().unwrap());
    join(&farm, &mut clients, 1).await;
    ask!("a newer process makes IDs of another length");
    for at in [1, 2] {
        let status = farm.status(at);
        assert!(count(&status, "forwarded") > 0, "{status}");
        assert_eq!(dropped(&status, "again"), 0, "{status}");
    }
}
