//! Connections of TCP by the load balancer, to gateways and to machines that the test plays itself.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
};

use socket2::{Domain, SockRef, Socket, Type};
use wire::{ProxyHeader, StreamOrigin};

use crate::{
    clients::{content, get, get1},
    farm::{Balancer, Farm, server_id},
    fleet::{LIMIT, large, signal},
    machine, number,
    scratch::Scratch,
};

/// A load balancer in front of machines that the test plays.
struct Played {
    folder: Scratch,
    machines: Vec<TcpListener>,
}

impl Played {
    fn new(name: &str, machines: usize) -> Self {
        let folder = Scratch::new(&format!("balance-tcp-{name}"));
        std::fs::write(folder.0.join("lb.key"), "000102030405060708090a0b0c0d0e0f\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(folder.0.join("lb.key"), mode).unwrap();
        Self { folder, machines: (0..machines).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect() }
    }

    /// Writes the configuration, with machines at these addresses, and no health checks.
    fn write(&self, extra: &str, addresses: &[SocketAddr]) -> PathBuf {
        let mut text = format!(
            "listen = \"127.0.0.1:0\"\nworkers = 2\n{extra}\n[health]\ninterval = \"0 s\"\n\
             [[connection-ids]]\nkey = \"lb.key\"\n"
        );
        for (number, address) in addresses.iter().enumerate() {
            let _ = write!(text, "[[machine]]\nserver-id = \"{}\"\naddress = \"{address}\"\n", server_id(number + 1));
        }
        let file = self.folder.0.join("balance.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    fn balancer(&self, extra: &str) -> Balancer {
        let addresses: Vec<_> = self.machines.iter().map(|machine| machine.local_addr().unwrap()).collect();
        Balancer::start(&self.write(extra, &addresses))
    }

    /// Accepts a connection at a machine; it has been told this client.
    fn accept(&self, machine: usize) -> (TcpStream, SocketAddr) {
        let (mut stream, _) = self.machines[machine].accept().unwrap();
        patient(&stream);
        let mut header = vec![0; ProxyHeader::FIXED_LEN];
        stream.read_exact(&mut header).unwrap();
        let rest = ProxyHeader::stream_rest(header.first_chunk().unwrap()).unwrap();
        header.resize(ProxyHeader::FIXED_LEN + rest, 0);
        stream.read_exact(&mut header[ProxyHeader::FIXED_LEN..]).unwrap();
        match ProxyHeader::parse_stream(&header) {
            Some(StreamOrigin::Client(named)) => (stream, named.client),
            other => panic!("{other:?}"),
        }
    }
}

/// Fails in place of waiting for ever.
fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
}

/// A connection from this address of the loopback network.
fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    patient(&stream);
    stream
}

fn is_reset(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 8]) {
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
        Ok(len) => panic!("{len} bytes in place of a reset"),
    }
}

#[test]
fn a_machine_is_told_the_client_and_gets_its_bytes() {
    let played = Played::new("header", 1);
    let mut balancer = played.balancer("");
    let mut client = connect_from(7, balancer.address);
    let (mut machine, named) = played.accept(0);
    assert_eq!(named, client.local_addr().unwrap());
    client.write_all(b"question").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    machine.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"question");
    machine.write_all(b"answer").unwrap();
    drop(machine);
    got.clear();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"answer", "a half-close is no end");
    let status = balancer.wait_until(|status| status["tcp"]["completed"] == 1);
    let of_machine = &status["machines"][0]["tcp"];
    assert_eq!((&of_machine["bytes_in"], &of_machine["bytes_out"]), (&8.into(), &6.into()), "{status}");
    assert_eq!((&of_machine["connections"], &of_machine["open"]), (&1.into(), &0.into()), "{status}");
}

#[test]
fn resets_go_both_ways() {
    let played = Played::new("resets", 1);
    let mut balancer = played.balancer("");
    let client = connect_from(1, balancer.address);
    let (mut machine, _) = played.accept(0);
    SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    assert!(is_reset(&mut machine));
    let mut client = connect_from(1, balancer.address);
    let (machine, _) = played.accept(0);
    SockRef::from(&machine).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(machine);
    assert!(is_reset(&mut client));
    balancer.wait_until(|status| status["tcp"]["client_reset"] == 1 && status["tcp"]["machine_reset"] == 1);
}

#[test]
fn a_machine_that_takes_no_connection_costs_the_client_nothing() {
    let played = Played::new("next", 2);
    let addresses: Vec<_> = played.machines.iter().map(|machine| machine.local_addr().unwrap()).collect();
    let file = played.write("", &addresses);
    let gone = Played { machines: played.machines.into_iter().take(1).collect(), folder: played.folder };
    let mut balancer = Balancer::start(&file);
    for _ in 0..12 {
        let mut client = connect_from(1, balancer.address);
        let (mut machine, named) = gone.accept(0);
        assert_eq!(named, client.local_addr().unwrap());
        machine.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    let status = balancer.status();
    assert!(status["machines"][1]["tcp"]["failed"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(status["tcp"]["untaken"], 0);
    // Not only dropped: a program that another test starts at this moment would still hold the socket, and the kernel take a connection for it.
    SockRef::from(&gone.machines[0]).shutdown(Shutdown::Both).unwrap();
    let mut client = connect_from(1, balancer.address);
    assert!(is_reset(&mut client), "nobody is left");
    balancer.wait_until(|status| status["tcp"]["untaken"] == 1);
}

#[test]
fn connections_beyond_the_limit_are_reset_and_silent_ones_end() {
    let played = Played::new("limits", 1);
    let mut balancer = played.balancer("tcp = { connections = 2, idle-timeout = \"1 s\" }");
    let mut clients: Vec<_> = (0..2).map(|_| connect_from(1, balancer.address)).collect();
    let machines: Vec<_> = (0..2).map(|_| played.accept(0)).collect();
    let mut third = connect_from(1, balancer.address);
    assert!(is_reset(&mut third));
    assert_eq!(balancer.status()["tcp"]["over_limit"], 1);
    for (client, (mut machine, _)) in clients.iter_mut().zip(machines) {
        assert!(is_reset(client) && is_reset(&mut machine));
    }
    assert_eq!(balancer.wait_until(|status| status["tcp"]["open"] == 0)["tcp"]["idle"], 2);
    drop((connect_from(1, balancer.address), played.accept(0)));
}

#[test]
fn a_load_balancer_that_is_asked_to_end_waits_for_its_connections() {
    let played = Played::new("end", 1);
    let balancer = played.balancer("drain = \"100 s\"");
    let (address, id) = (balancer.address, balancer.id());
    let mut client = connect_from(1, address);
    let (mut machine, _) = played.accept(0);
    signal(id, "TERM");
    // It is no longer there for others when it has seen the signal.
    while let Ok(stream) = TcpStream::connect(address) {
        SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(stream);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    machine.write_all(b"the end").unwrap();
    drop(machine);
    let mut got = String::new();
    client.read_to_string(&mut got).unwrap();
    assert_eq!(got, "the end");
    drop(client);
    let status = balancer.ended();
    assert_eq!((&status["tcp"]["cut"], &status["tcp"]["open"]), (&0.into(), &0.into()), "{status}");

    let played = Played::new("cut", 1);
    let balancer = played.balancer("drain = \"100 ms\"");
    let mut client = connect_from(1, balancer.address);
    let (mut machine, _) = played.accept(0);
    signal(balancer.id(), "TERM");
    assert!(is_reset(&mut client) && is_reset(&mut machine));
    assert_eq!(balancer.ended()["tcp"]["cut"], 1);
}

#[test]
fn metrics_tell_of_every_machine() {
    let played = Played::new("metrics", 2);
    let mut balancer = played.balancer("metrics = \"127.0.0.1:0\"");
    let line = balancer.line();
    let address = line.strip_prefix("metrics at http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    patient(&stream);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for machine in ["0a01", "0a02"] {
        assert!(text.contains(&format!("tiderace_balance_connections_open{{machine=\"{machine}\"}} 0")), "{text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_over_tcp_comes_to_the_machines_and_drains_with_them() {
    let farm = Farm::new("tcp", 2);
    farm.configure(&[1, 2], &[]);
    let mut balancer = farm.balancer();
    let site = farm.site(&balancer);
    let mut seen = BTreeSet::new();
    let mut held = Vec::new();
    while seen.len() < 2 {
        let mut h2 = site.h2().await;
        let response = h2.send_request(get("small")).await.unwrap();
        let machine = response.headers()["x-machine"].to_str().unwrap().to_owned();
        assert_eq!(content(response).await, "small");
        if seen.insert(machine.clone()) {
            held.push((machine, h2));
        }
    }
    let mut h1 = site.h1().await;
    assert!(content(h1.send_request(get1("large")).await.unwrap()).await == large());
    farm.configure(&[1, 2], &[1]);
    assert_eq!(balancer.reload(), "the new configuration is in use");
    for _ in 0..number("BALANCE_TCP_CONNECTIONS", 8) {
        let mut h2 = site.h2().await;
        assert_eq!(h2.send_request(get("small")).await.unwrap().headers()["x-machine"], "2");
    }
    for (machine, h2) in &mut held {
        let response = h2.send_request(get("small")).await.unwrap();
        assert_eq!(response.headers()["x-machine"], machine.as_str(), "a connection stays where it is");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_and_tcp_of_an_address_meet_at_one_machine() {
    let farm = Farm::new("affinity", 3);
    farm.configure_with("affinity = \"address\"\n", &[1, 2, 3], &[]);
    let balancer = farm.balancer();
    let site = farm.site(&balancer);
    let mut machines = BTreeSet::new();
    for _ in 0..6 {
        let (_endpoint, mut h3) = site.h3().await;
        machines.insert(machine(&mut h3).await.to_string());
        let response = site.h2().await.send_request(get("small")).await.unwrap();
        machines.insert(response.headers()["x-machine"].to_str().unwrap().to_owned());
    }
    assert_eq!(machines.len(), 1, "{machines:?}");
}

#[test]
fn a_gateway_serves_no_load_balancer_that_names_no_client() {
    let farm = Farm::new("demand", 1);
    let to = farm.machines[0].gateway.address;
    let begins = |bytes: &[u8]| {
        let mut stream = connect_from(1, to);
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // A reset, too, is a refusal.
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    // A ClientHello that is none: TLS answers with an alert, where it is asked.
    let hello = [0x16, 3, 1, 0, 20, 9, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(begins(&hello).is_empty(), "without a header nothing is served");
    let client = SocketAddr::from(([198, 51, 100, 7], 4_711));
    let mut header = [0; ProxyHeader::MAX_LEN];
    let named = ProxyHeader { client, server: to, hint: None };
    let len = named.encode(&mut header);
    assert!(begins(&[&header[..len], &hello].concat()).is_empty(), "the header of a datagram is none");
    let len = named.encode_stream(&mut header);
    assert!(!begins(&[&header[..len], &hello].concat()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_a_gateway_name_the_client_of_a_connection() {
    let farm = Farm::new("named", 1);
    farm.configure(&[1], &[]);
    let balancer = farm.balancer();
    let mut h1 = farm.site(&balancer).coming_from([127, 0, 0, 9]).h1().await;
    assert_eq!(content(h1.send_request(get1("small")).await.unwrap()).await, "small");
    let file = farm.folder.0.join("access-1.log");
    let begun = std::time::Instant::now();
    loop {
        let log = std::fs::read_to_string(&file).unwrap_or_default();
        if log.contains("/small") {
            assert!(log.contains("127.0.0.9"), "{log}");
            return;
        }
        assert!(begun.elapsed() < LIMIT, "no line: {log}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
