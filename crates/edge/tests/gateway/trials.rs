//! Policies that withhold HTTP/3 from a share of the clients: what clients are told, who is in which arm, and what is recorded.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tiderace::{ClientConfig, Endpoint, EndpointOptions, RustlsClient};
use tokio::net::TcpSocket;

use crate::site::{BackEnd, Body, Site, connect_tls_over, full, patient, until};

/// Address of a client of its own.
fn client(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 7, number))
}

fn request(path: &str) -> Request<Body> {
    Request::get(format!("https://localhost{path}")).header("ect", "3g").body(full("")).unwrap()
}

/// `alt-svc` of a response.
fn alt_svc<B>(response: &Response<B>) -> Option<String> {
    Some(response.headers().get("alt-svc")?.to_str().unwrap().to_owned())
}

/// A request over HTTP/2 from an address; gives `alt-svc`.
async fn over_tcp(site: &Site, from: IpAddr) -> Option<String> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    let stream = socket.connect(site.address).await.unwrap();
    let stream = connect_tls_over(stream, &site.certificate, &[b"h2"]).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let response = sender.send_request(request("/")).await.unwrap();
    let told = alt_svc(&response);
    response.into_body().collect().await.unwrap();
    told
}

/// A request over HTTP/3 from an address; gives `alt-svc`.
async fn over_quic(site: &Site, from: IpAddr) -> Option<String> {
    let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(b"h3").build().unwrap();
    let config = ClientConfig::new(Arc::new(tls), Arc::new(patient()));
    let endpoint = Endpoint::open(SocketAddr::new(from, 0), EndpointOptions::default()).unwrap();
    let connection = endpoint.connect(&config, site.address, "localhost").unwrap().await.unwrap();
    let mut h3 = h3_quic::client::begin(connection).await.unwrap();
    let response = h3.send(request("/")).await.unwrap();
    let told = alt_svc(&response);
    response.into_body().collect().await.unwrap();
    told
}

/// Record of a client.
fn record(site: &Site, of: IpAddr) -> Value {
    let trials = site.process.trials();
    let clients = trials["trials"]["live"]["clients"].as_array().cloned().unwrap_or_default();
    clients.into_iter().find(|record| record["client"] == *of.to_string()).unwrap_or_default()
}

fn config(share: &str, to: &str, more: &str) -> String {
    format!("[[policy]]\nname = \"live\"\nhttp3 = false\nshare = \"{share}\"\n{more}[[route]]\nto = \"{to}\"\n")
}

const CLIENTS: std::ops::RangeInclusive<u8> = 1..=24;

/// The arms of all clients: those in the TCP arm are told nothing.
async fn withheld(site: &Site) -> Vec<bool> {
    let mut arms = Vec::new();
    for number in CLIENTS {
        arms.push(over_tcp(site, client(number)).await.is_none());
    }
    arms
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_in_one_arm_and_its_requests_are_timed() {
    let back_end = BackEnd::start(|_| async { Response::new(full(vec![1; 20_000])) }).await;
    let site = Site::start("trial-arms", &config("50 %", &back_end.url(), ""));
    let arms = withheld(&site).await;
    // The arms of these addresses do not change: no chance is involved.
    assert!(arms.contains(&true) && arms.contains(&false), "{arms:?}");
    // Over connections, reloads, and at another gateway whose policy has the same name.
    site.configure(&config("50 %", &back_end.url(), "listen = []\n"));
    site.process.reload().await.unwrap();
    assert_eq!(withheld(&site).await, arms);
    let other = Site::start("trial-other", &config("50 %", &back_end.url(), ""));
    assert_eq!(withheld(&other).await, arms);
    let [tcp, quic] =
        [true, false].map(|arm| client(*CLIENTS.start() + arms.iter().position(|a| *a == arm).unwrap() as u8));
    // A client that has learned of HTTP/3 elsewhere is told to forget it, and served.
    assert_eq!(over_quic(&site, tcp).await.as_deref(), Some("clear"));
    assert_eq!(over_quic(&site, quic).await, None);
    let counts = |of| {
        let record = record(&site, of);
        let counts = [&record["counts"]["3g"][0], &record["counts"]["3g"][1], &record["off_arm"], &record["over_quic"]];
        (record["arm"].as_str().map(str::to_owned), counts.map(|count| count.as_u64().unwrap_or(0)))
    };
    until(|| counts(tcp), (Some("tcp".to_owned()), [2, 0, 1, 0])).await;
    until(|| counts(quic), (Some("quic".to_owned()), [3, 0, 0, 1])).await;
    for (of, times) in [(tcp, 2), (quic, 3)] {
        let record = record(&site, of);
        let all = record["times_ms"].as_array().unwrap();
        assert!(all.len() == times && all.iter().all(|time| time[0].as_f64().unwrap() > 0.0), "{record}");
    }
    // A client from which HTTP/3 is withheld is none that does not come.
    let told = site.figure("tiderace_edge_alt_svc_clients_total{protocol=\"h2\",result=\"advertised\"}");
    assert_eq!(told as usize, arms.iter().filter(|arm| !**arm).count());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_everybody_and_other_names() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let site = Site::start("trial-shares", &config("0 %", &back_end.url(), ""));
    let [one, two] = [client(1), client(2)];
    assert!(over_tcp(&site, one).await.is_some() && over_tcp(&site, two).await.is_some());
    site.configure(&config("100 %", &back_end.url(), ""));
    site.process.reload().await.unwrap();
    assert!(over_tcp(&site, one).await.is_none() && over_tcp(&site, two).await.is_none());
    // Whose arm changes is marked.
    until(|| record(&site, one)["in_both"].as_bool(), Some(true)).await;
    site.configure(&config("100 %", &back_end.url(), "sni = \"example.org\"\n"));
    site.process.reload().await.unwrap();
    assert!(over_tcp(&site, one).await.is_some(), "the host is another one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_lasts_until_the_client_has_the_response() {
    let back_end = BackEnd::start(|_| async { Response::new(full(vec![1; 300_000])) }).await;
    let site = Site::start("trial-delivery", &config("100 %", &back_end.url(), ""));
    // The receiver's buffer is small, and the gateway's kernel takes the rest at once.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.bind(SocketAddr::new(client(1), 0)).unwrap();
    let stream = socket.connect(site.address).await.unwrap();
    let mut stream = connect_tls_over(stream, &site.certificate, &[b"http/1.1"]).await.unwrap();
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let ended = "tiderace_edge_requests_total{protocol=\"http/1.1\",route=\"*/\",status=\"2xx\",ended_by=\"answer\"}";
    until(|| site.figure(ended), 1.0).await;
    // Longer would have the same effect.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(record(&site, client(1)), Value::Null, "the client does not have it");
    let mut content = Vec::new();
    stream.read_to_end(&mut content).await.unwrap();
    assert!(content.len() > 300_000);
    drop(stream);
    until(|| record(&site, client(1))["times_ms"].as_array().map(Vec::len), Some(1)).await;
    let time = record(&site, client(1))["times_ms"][0][0].as_f64().unwrap();
    assert!(time >= 300.0, "{time}");
}
