//! Clients that come back, to any of three gateways that share a ring of keys and a register of early data: nearly all of their
//! requests leave as early data, and no copy of them is served. Keys are rotated and a gateway is replaced meanwhile.

mod gateway;
mod scratch;

use std::{
    collections::{HashMap, HashSet},
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use tiderace::{ClientConfig, EarlyData, Endpoint, Profile, RustlsClient};

use gateway::{Gateway, redis};
use scratch::{Program, Scratch};

/// Clients of the population; many when asked for.
fn population() -> usize {
    std::env::var("EDGE_POPULATION").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// Number of returns of each client, in each of three parts.
const RETURNS: usize = 4;
/// Datagrams of a client's first flight.
const FLIGHT: usize = 4;

/// Redis itself where it is installed; otherwise the one command that is needed of it.
fn register() -> (String, Option<Program>) {
    if let Some((program, port)) = redis() {
        println!("measured registers that are a real Redis: 1");
        return (format!("redis://127.0.0.1:{port}/"), Some(program));
    }
    println!("measured registers that are a real Redis: 0");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let known: Arc<Mutex<HashSet<String>>> = Arc::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let known = known.clone();
            std::thread::spawn(move || little_redis(stream, &known));
        }
    });
    (format!("redis://{address}/"), None)
}

fn little_redis(stream: TcpStream, known: &Mutex<HashSet<String>>) {
    let mut answers = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(count) = lines.next().and_then(|line| line.strip_prefix('*')?.parse::<usize>().ok()) {
        let words: Vec<String> = (0..count).filter_map(|_| lines.nth(1)).collect();
        let answer = match words.first().map(String::as_str) {
            Some("SET") if known.lock().unwrap().insert(words[1].clone()) => "+OK\r\n",
            Some("SET") => "$-1\r\n",
            _ => "+OK\r\n",
        };
        if answers.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A back end that counts how often each path was asked for.
fn back_end() -> (SocketAddr, Arc<Mutex<HashMap<String, u32>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let count = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = count.clone();
            std::thread::spawn(move || {
                let mut answers = stream.try_clone().unwrap();
                let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
                while let Some(first) = lines.next() {
                    let path = first.split_whitespace().nth(1).unwrap_or_default().to_owned();
                    *count.lock().unwrap().entry(path).or_default() += 1;
                    while lines.next().is_some_and(|line| !line.is_empty()) {}
                    if answers.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, asked)
}

fn note(seen: &Mutex<Vec<Vec<u8>>>, datagram: &[u8]) {
    let mut seen = seen.lock().unwrap();
    if seen.len() < FLIGHT {
        seen.push(datagram.to_vec());
    }
}

/// Stands on the path of one connection, and keeps what the client sends first.
async fn tap(server: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<Vec<u8>>>>, tokio::task::JoinHandle<()>) {
    let front = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let back = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    back.connect(server).await.unwrap();
    let address = front.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let keep = seen.clone();
    let task = tokio::spawn(async move {
        let (mut there, mut here) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            tokio::select! {
                Ok((len, from)) = front.recv_from(&mut there) => {
                    client = Some(from);
                    note(&keep, &there[..len]);
                    let _ = back.send(&there[..len]).await;
                }
                Ok(len) = back.recv(&mut here) => {
                    if let Some(client) = client {
                        let _ = front.send_to(&here[..len], client).await;
                    }
                }
            }
        }
    });
    (address, seen, task)
}

/// Result of a connection of a returning client.
struct Connected {
    early: bool,
    flight: Vec<Vec<u8>>,
}

async fn connect_again(config: &ClientConfig, server: SocketAddr, path: &str) -> Connected {
    let (through, seen, task) = tap(server).await;
    let endpoint = Endpoint::client_for(through).unwrap();
    let connecting = endpoint.connect(config, through, "localhost").unwrap();
    let connection = match connecting.into_early() {
        Ok(connection) => connection,
        Err(connecting) => connecting.await.unwrap(),
    };
    let mut sender = h3_quic::client::begin(connection.clone()).await.unwrap();
    let request = Request::get(format!("https://localhost{path}")).body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    connection.established().await.unwrap();
    let early = connection.early_data() == EarlyData::Accepted;
    // Tickets come with the end of the handshake, or right after it.
    tokio::time::sleep(Duration::from_millis(40)).await;
    connection.close(0x100, b"");
    tokio::time::sleep(Duration::from_millis(5)).await;
    task.abort();
    let flight = std::mem::take(&mut *seen.lock().unwrap());
    Connected { early, flight }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_clients_use_early_data_at_any_gateway_and_no_copy_is_served() {
    let folder = Scratch::new("returning");
    let certified = folder.certificate("localhost");
    let rotate = |lead: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["edge", "keys", "--lead", lead, "--file"]).arg(folder.0.join("ring"));
        assert!(command.output().unwrap().status.success());
    };
    rotate("0 s");
    let (strikes, _redis) = register();
    let (back_end, asked) = back_end();
    let config = folder.0.join("edge.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 2\n\
         [transport]\nearly-data = true\n[keys]\nfile = \"ring\"\nstrikes = \"{strikes}\"\n\
         [[route]]\nto = \"http://{back_end}\"\nearly-data = true\nretries = 0\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut gateways: Vec<Gateway> = (0..3).map(|_| Gateway::start(&config)).collect();
    let root = certified.cert.der().to_vec();
    let clients: Vec<ClientConfig> = (0..population())
        .map(|_| {
            let tls = RustlsClient::builder().roots([root.clone()]).alpn("h3").early_data(true).build().unwrap();
            ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()))
        })
        .collect();
    let (mut returns, mut early, mut copies) = (0_u32, 0_u32, 0_u32);
    for part in 0..3 {
        match part {
            1 => {
                // The new key is used when all have it; what the old one has sealed stays good.
                rotate("6 s");
                tokio::time::sleep(Duration::from_secs(9)).await;
            }
            2 => gateways[2] = Gateway::start(&config),
            _ => {}
        }
        let addresses: Vec<SocketAddr> = gateways.iter().map(|gateway| gateway.address).collect();
        // A few at a time, as on a quiet evening: what is measured is not speed.
        for (chunk, some) in clients.chunks(4).enumerate() {
            let mut under_way = tokio::task::JoinSet::new();
            for (at, client) in some.iter().enumerate() {
                let (client, addresses, number) = (client.clone(), addresses.clone(), chunk * 4 + at);
                under_way.spawn(async move {
                    let mut results = Vec::new();
                    if part == 0 {
                        connect_again(&client, addresses[number % 3], &format!("/first/{number}")).await;
                    }
                    for turn in 0..RETURNS {
                        // Each comes to another gateway than the time before.
                        let server = addresses[(number + part + turn + 1) % 3];
                        results.push(connect_again(&client, server, &format!("/again/{number}/{part}/{turn}")).await);
                    }
                    results
                });
            }
            while let Some(results) = under_way.join_next().await {
                for Connected { early: accepted, flight } in results.unwrap() {
                    returns += 1;
                    early += u32::from(accepted);
                    // Somebody who has seen it sends it again, to all of them.
                    for server in &addresses {
                        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                        for datagram in &flight {
                            socket.send_to(datagram, server).unwrap();
                        }
                        copies += 1;
                    }
                }
            }
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = asked.lock().unwrap();
    let twice: Vec<_> = asked.iter().filter(|(_, count)| **count > 1).collect();
    println!("measured returns: {returns}");
    println!("measured share with early data: {}", f64::from(early) / f64::from(returns));
    println!("measured copies sent: {copies}");
    println!("measured requests served twice: {}", twice.len());
    assert_eq!(asked.len(), returns as usize + clients.len(), "every request was served");
    assert!(twice.is_empty(), "{twice:?}");
    assert!(f64::from(early) >= 0.97 * f64::from(returns), "{early} of {returns}");
}
