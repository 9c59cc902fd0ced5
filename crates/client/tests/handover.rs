//! Hosts with two networks, in namespaces of their own: a network that goes, one that is silent, one that comes and goes.
//!
//! For each handover in the middle of a download a line is printed: `handover: KIND | gap MILLISECONDS`. `HANDOVERS` says how many of
//! each kind there are; `cargo xtask shows continuity --only handover` judges them.
#![cfg(target_os = "linux")]

use std::{
    collections::BTreeMap,
    fmt::Display,
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, channel::Channel};
use tiderace::{Connection, Endpoint, Identity, Profile, RustlsServer, ServerConfig};
use tiderace_client::{Client, KnownAddresses, Leg, OtherNetworks, Route, Settings, Trust};
use tokio::task::JoinSet;

/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Variable with the part of the test that this process plays.
const PART: &str = "HANDOVER_PART";
/// File with the server's certificate.
const CERTIFICATE: &str = "HANDOVER_CERTIFICATE";
/// The server, behind both networks.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PORT: u16 = 4_433;
/// The client in the network that is preferred, and in the other.
const WIFI: &str = "10.1.0.2";
const CELLULAR: &str = "10.2.0.2";
/// Connections of a client, where many move at a time.
const CONNECTIONS: usize = 20;
/// Bytes of a piece of a download, and the time between two.
const PIECE: usize = 8 * 1_024;
const PACE: Duration = Duration::from_millis(10);

/// Two namespaces with two networks between them. The first network has the better route.
const NETWORKS: &str = r#"
set -e
ip link set lo up
HANDOVER_PART=server unshare --net "$0" --exact part --nocapture &
server=$!
trap 'kill $server' EXIT
until [ "$(readlink /proc/$server/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
there() { nsenter --net=/proc/$server/ns/net "$@"; }
there ip link set lo up
# As providers do: what comes from an address of another network is dropped.
there sh -c 'echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter'
there ip address add 10.9.0.1/32 dev lo
for number in 1 2; do
    ip link add near$number type veth peer name far$number
    ip link set far$number netns $server
    ip address add 10.$number.0.2/24 dev near$number
    ip link set near$number up
    there ip address add 10.$number.0.1/24 dev far$number
    there ip link set far$number up
    ip route add 10.9.0.1 via 10.$number.0.1 metric ${number}00
done
export HANDOVER_SERVER=$server
"$0" --exact part --nocapture
"#;

/// Counts, so that every byte can be checked.
fn piece(number: u64) -> Bytes {
    (0..PIECE as u64 / 8).flat_map(|word| (number * (PIECE as u64 / 8) + word).to_be_bytes()).collect()
}

/// Names of the server, as many as connections that a client has to it.
fn names() -> impl Iterator<Item = String> {
    (0..CONNECTIONS).map(|number| format!("server-{number}.test"))
}

/// Answers with the client's address, with those of all clients for `/all`, or with as many paced pieces as the path says.
async fn server() {
    let path = std::env::var(CERTIFICATE).unwrap();
    let made = rcgen::generate_simple_self_signed(names().collect::<Vec<_>>()).unwrap();
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).build().unwrap();
    let config = ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let endpoint = Endpoint::server((Ipv4Addr::UNSPECIFIED, PORT).into(), config).unwrap();
    std::fs::write(format!("{path}.new"), made.cert.pem()).unwrap();
    std::fs::rename(format!("{path}.new"), path).unwrap();
    let all = Arc::new(Mutex::new(Vec::new()));
    while let Some(connection) = endpoint.accept().await {
        let (quic, all) = (connection.clone(), all.clone());
        all.lock().unwrap().push(connection.clone());
        let service = move |request: Request<h3_quic::RequestBody>| {
            let addresses = |all: &[Connection]| -> Vec<String> {
                let open = all.iter().filter(|connection| connection.close_reason().is_none());
                open.map(|connection| connection.remote_address().unwrap().ip().to_string()).collect()
            };
            let from = match request.uri().path() {
                "/all" => addresses(&all.lock().unwrap()),
                _ => addresses(std::slice::from_ref(&quic)),
            };
            async move {
                let (mut sender, body) = Channel::<Bytes, std::convert::Infallible>::new(4);
                tokio::spawn(async move {
                    let Ok(count) = request.uri().path()[1..].parse::<u64>() else {
                        let _ = sender.send_data(Bytes::from(from.join(" "))).await;
                        return;
                    };
                    for number in 0..count {
                        if sender.send_data(piece(number)).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(PACE).await;
                    }
                });
                Response::new(body.map_err(|never| match never {}))
            }
        };
        let options = h3_quic::server::Options::default();
        tokio::spawn(h3_quic::server::serve(connection, options, std::future::pending(), service));
    }
}

/// Runs a command of ip(8), in the server's namespace with `there`.
fn ip(there: bool, arguments: &str) {
    let mut command = if there {
        let mut command = Command::new("nsenter");
        let server = std::env::var("HANDOVER_SERVER").unwrap();
        command.arg(format!("--net=/proc/{server}/ns/net")).arg("ip");
        command
    } else {
        Command::new("ip")
    };
    assert!(command.args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

/// Adds or deletes the system's route to the server over the preferred network.
fn set_route(is_there: bool) {
    ip(false, &format!("route {} 10.9.0.1 via 10.1.0.1 metric 100", if is_there { "add" } else { "del" }));
}

/// Loses the server's packets to this address, or no longer.
fn set_silent(address: &str, is_silent: bool) {
    ip(true, &format!("route {} blackhole {address}/32", if is_silent { "add" } else { "del" }));
}

/// A client, and its connection to one of the server's names.
struct Host {
    client: Client,
    route: Route,
    name: String,
}

impl Host {
    async fn new(other_networks: OtherNetworks) -> Self {
        let trust = Trust::Pem(std::fs::read(std::env::var(CERTIFICATE).unwrap()).unwrap());
        let known = |host| KnownAddresses { host, port: PORT, addresses: vec![SERVER.into()] };
        let addresses = names().map(known).collect();
        let settings = Settings { trust, addresses, other_networks, ..Settings::default() };
        let route = Route { only: Some(Leg::Quic), ..Route::default() };
        let this = Self { client: Client::with(&settings).unwrap(), route, name: names().next().unwrap() };
        this.wait_for(WIFI).await;
        this
    }

    /// The same client with a connection to another name.
    fn with_name(&self, name: String) -> Self {
        Self { client: self.client.clone(), route: self.route.clone(), name }
    }

    fn url(&self, path: impl Display) -> String {
        format!("https://{}:{PORT}/{path}", self.name)
    }

    /// The server's answer for a path, on the connection that is open.
    async fn ask(&self, path: &str) -> String {
        let fetched = self.client.get_by(&self.url(path), &self.route).await.unwrap();
        let text = fetched.response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(text.to_vec()).unwrap()
    }

    /// Waits until the server sees this host at `address`.
    async fn wait_for(&self, address: &str) {
        self.wait_until("", address).await;
    }

    async fn wait_until(&self, path: &str, expected: &str) -> Duration {
        let begun = Instant::now();
        loop {
            let answer = self.ask(path).await;
            if answer == expected {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < LIMIT, "{answer}, not {expected}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Downloads for `length`, and does `what` after half a second. Returns the longest time without a byte.
    async fn download(&self, length: Duration, what: impl AsyncFnOnce()) -> Duration {
        let count = u64::try_from(length.as_millis() / PACE.as_millis()).unwrap();
        let fetched = self.client.get_by(&self.url(count), &self.route).await.unwrap();
        assert!(fetched.reused);
        let mut body = fetched.response.into_body();
        let read = async {
            let (mut last, mut gap, mut held) = (Instant::now(), Duration::ZERO, Vec::new());
            let mut number = 0;
            while let Some(frame) = body.frame().await {
                gap = gap.max(last.elapsed());
                last = Instant::now();
                held.extend_from_slice(&frame.unwrap().into_data().unwrap());
                while held.len() >= PIECE {
                    assert!(held[..PIECE] == piece(number)[..], "piece {number} is wrong");
                    held.drain(..PIECE);
                    number += 1;
                }
            }
            assert_eq!(number, count, "the download is whole");
            gap
        };
        let act = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            what().await;
        };
        tokio::join!(read, act).0
    }
}

impl Host {
    /// Checks that the connection waits where it is, and goes on there.
    async fn stays_through_silence_of(&self, addresses: &[&str]) {
        const SILENCE: Duration = Duration::from_secs(3);
        let silence = async || {
            addresses.iter().for_each(|address| set_silent(address, true));
            tokio::time::sleep(SILENCE).await;
            addresses.iter().for_each(|address| set_silent(address, false));
        };
        let gap = self.download(Duration::from_secs(2), silence).await;
        assert!(gap >= SILENCE, "{gap:?}");
        assert_eq!(self.ask("").await, WIFI);
    }
}

impl Host {
    /// Announces a network that does not lead to the server, in the middle of a download, and has it lead there later.
    async fn leaves_a_dead_network_alone(&self) {
        set_route(false);
        self.wait_for(CELLULAR).await;
        set_silent(WIFI, true);
        // A connection that moves at once hears nothing any more, and the download does not end.
        let gap = self.download(Duration::from_secs(6), async || set_route(true)).await;
        println!("handover: announced, dead | gap {}", gap.as_millis());
        assert_eq!(self.ask("").await, CELLULAR, "it stays");
        set_silent(WIFI, false);
        self.wait_for(WIFI).await;
    }
}

/// Number of handovers of each kind, once the server is ready.
async fn runs() -> u32 {
    while !std::path::Path::new(&std::env::var(CERTIFICATE).unwrap()).exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::env::var("HANDOVERS").map_or(1, |count| count.parse().unwrap())
}

async fn announced() {
    let runs = runs().await;
    let host = Host::new(OtherNetworks::Never).await;
    for _ in 0..runs {
        let gap = host.download(Duration::from_secs(2), async || set_route(false)).await;
        println!("handover: announced | gap {}", gap.as_millis());
        host.wait_for(CELLULAR).await;
        let gap = host.download(Duration::from_secs(2), async || set_route(true)).await;
        println!("handover: announced, back | gap {}", gap.as_millis());
        host.wait_for(WIFI).await;
    }
    for _ in 0..runs {
        let flap = async || {
            for is_there in [false, true].into_iter().cycle().take(10) {
                set_route(is_there);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let gap = host.download(Duration::from_secs(4), flap).await;
        println!("handover: flapping | gap {}", gap.as_millis());
        host.wait_for(WIFI).await;
    }
    for _ in 0..runs {
        host.leaves_a_dead_network_alone().await;
    }
    // The system sends from the new address by itself; an idle connection sends nothing before it hears of the change.
    let other = Host::new(OtherNetworks::Never).await;
    for _ in 0..runs {
        set_route(false);
        let gap = other.wait_until("all", &format!("{CELLULAR} {CELLULAR}")).await;
        println!("handover: idle | gap {}", gap.as_millis());
        set_route(true);
        other.wait_until("all", &format!("{WIFI} {WIFI}")).await;
    }
    host.client.close().await;
    other.client.close().await;
}

async fn silent() {
    let runs = runs().await;
    let host = Host::new(OtherNetworks::OnSilence).await;
    for _ in 0..runs {
        let gap = host.download(Duration::from_secs(4), async || set_silent(WIFI, true)).await;
        println!("handover: silent | gap {}", gap.as_millis());
        host.wait_for(CELLULAR).await;
        set_silent(WIFI, false);
        host.wait_for(WIFI).await;
    }
    // All connections of a client at once.
    let all: Vec<Host> = names().map(|name| host.with_name(name)).collect();
    for host in &all {
        host.wait_for(WIFI).await;
    }
    let mut downloads = JoinSet::new();
    for host in all {
        downloads.spawn(async move { host.download(Duration::from_secs(4), async || ()).await });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    set_silent(WIFI, true);
    while let Some(gap) = downloads.join_next().await {
        println!("handover: silent, {CONNECTIONS} connections | gap {}", gap.unwrap().as_millis());
    }
    set_silent(WIFI, false);
    host.client.close().await;
}

/// Silences for a connection that may not leave, and for one that finds nobody elsewhere.
async fn waits() {
    runs().await;
    for (other_networks, silent) in
        [(OtherNetworks::Never, &[WIFI][..]), (OtherNetworks::OnSilence, &[WIFI, CELLULAR][..])]
    {
        let host = Host::new(other_networks).await;
        host.stays_through_silence_of(silent).await;
        host.client.close().await;
    }
}

/// Entry of the processes that the tests below start; passes at once otherwise.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        match &*part {
            "server" => server().await,
            "announced" => announced().await,
            "silent" => silent().await,
            "waits" => waits().await,
            other => panic!("no part {other}"),
        }
    });
}

/// Runs a part in namespaces of its own. Returns the longest gap of each kind, or `None` where the system gives no namespaces.
fn run(part: &str) -> Option<BTreeMap<String, u64>> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command
    };
    let pair = ["ip", "link", "add", "near", "type", "veth", "peer", "name", "far"];
    if !unshare().args(pair).stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("not run: this system gives no namespaces or no veth(4), or has no unshare(1) and ip(8)");
        return None;
    }
    let folder = std::env::temp_dir().join(format!("tiderace-handover-{part}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let output = unshare()
        .args(["sh", "-c", NETWORKS])
        .arg(std::env::current_exe().unwrap())
        .env(CERTIFICATE, folder.join("certificate"))
        .env(PART, part)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    println!("{said}");
    let mut gaps = BTreeMap::new();
    for (kind, gap) in said.lines().filter_map(|line| line.split_once("handover: ")?.1.split_once(" | gap ")) {
        let longest: &mut u64 = gaps.entry(kind.to_owned()).or_default();
        *longest = gap.parse::<u64>().unwrap().max(*longest);
    }
    Some(gaps)
}

// Bounds for a busy machine. Without notices of the system an idle connection would take half a minute.

#[test]
fn downloads_survive_a_change_of_the_network() {
    let Some(gaps) = run("announced") else { return };
    assert_eq!(gaps.len(), 5, "{gaps:?}");
    assert!(gaps.values().all(|gap| *gap < 10_000), "{gaps:?}");
}

#[test]
fn downloads_leave_a_silent_network_and_return() {
    let Some(gaps) = run("silent") else { return };
    assert_eq!(gaps.len(), 2, "{gaps:?}");
    assert!(gaps.values().all(|gap| *gap < 10_000), "{gaps:?}");
}

#[test]
fn a_connection_waits_where_it_may_not_leave_and_where_nobody_answers() {
    run("waits");
}
