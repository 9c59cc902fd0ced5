//! Memory that one connection of a hostile client makes the gateway hold, measured by the allocator, and its release.
//!
//! The attacker is another process, this one started again, so that the heap of this one is the gateway's alone; the back ends here
//! are bare sockets. For each attack a line is printed: `attack: NAME | budget BYTES | heap BYTES`.

mod attacker;
mod site;

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use site::Directory;
use tiderace_edge::Process;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Bytes that a connection may hold at first, and over TCP.
const FIRST: usize = 1 << 20;
/// Requests that may be with back ends at a time, and what each of them adds.
const WITH_BACK_END: usize = FIRST + 100 * (16 << 10);
/// HTTP/2 decodes the fields of requests that have come before anybody sees the first of them, about 160 KiB for a thousand fields.
const H2_HEADS: usize = 4 << 20;
/// Bytes that a QUIC connection may hold when its windows have grown, as they do when the gateway reads what comes.
const GROWN: usize = 4 << 20;
const GROWN_WITH_BACK_END: usize = GROWN + 100 * (16 << 10);
/// Tunnels of a proxy are charged 8 KiB each.
const GROWN_WITH_TUNNELS: usize = GROWN + 60 * (8 << 10);
/// Bytes that may stay: tables and pools that have grown.
const LEFT: usize = 768 << 10;
/// Receive buffers that a socket keeps. A busy machine may fill them during any attack, but once: an attack after which more stays than
/// [`LEFT`] is made again, and no more than this is forgiven in all.
const RECEIVE_BUFFERS: usize = 1 << 20;

/// Attacks, and what the connection is said to hold at most meanwhile.
const ATTACKS: [(&str, usize); 30] = [
    ("datagrams-empty", FIRST),
    ("datagrams-1-byte", FIRST),
    ("datagrams-1200-bytes", FIRST),
    ("datagrams-nobody-takes", FIRST),
    ("capsules-cut-off", GROWN_WITH_BACK_END),
    ("capsules-of-1-byte", GROWN_WITH_BACK_END),
    ("header-blocks-cut-off", GROWN),
    ("frames-unknown", FIRST),
    ("trailers-cut-off", GROWN_WITH_BACK_END),
    ("uni-streams-unknown", FIRST),
    ("priority-updates", FIRST),
    ("h3-heads-unanswered", WITH_BACK_END),
    ("h3-uploads", GROWN),
    ("h3-answers-unread", GROWN),
    ("qmux-1-byte-frames", FIRST),
    ("qmux-streams", FIRST),
    ("qmux-datagrams", FIRST),
    ("h2-head-cut-off", FIRST),
    ("h2-heads-unanswered", H2_HEADS),
    ("h2-uploads", WITH_BACK_END),
    ("h2-answers-unread", GROWN),
    ("h1-head-cut-off", FIRST),
    ("session-datagrams-empty", FIRST),
    ("session-datagrams-1200-bytes", FIRST),
    ("session-uploads", GROWN_WITH_BACK_END),
    ("session-answers-unread", GROWN_WITH_BACK_END),
    ("session-streams-reset", GROWN_WITH_BACK_END),
    ("proxy-datagrams-empty", FIRST),
    ("proxy-capsules-cut-off", GROWN_WITH_TUNNELS),
    ("proxy-answers-unread", GROWN_WITH_TUNNELS),
];

/// For the first attack, which fills the pools of the listener.
const NOT_COUNTED: usize = usize::MAX / 2;

#[derive(Clone, Copy)]
enum Back {
    /// Reads nothing, says nothing.
    Silent,
    /// Agrees to become something else, and reads nothing.
    Switching,
    /// Answers without end.
    Endless,
}

/// A back end with small buffers in the kernel.
async fn back_end(kind: Back) -> String {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = socket.listen(1_024).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 256];
                match kind {
                    // Until the connection is reset: what this process holds is counted as the gateway's.
                    Back::Silent => drop(stream.ready(tokio::io::Interest::ERROR).await),
                    Back::Switching => {
                        let _ = stream.read(&mut head).await;
                        let agreed = "HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: connect-udp\r\n\r\n";
                        let _ = stream.write_all(agreed.as_bytes()).await;
                        std::future::pending::<()>().await;
                    }
                    Back::Endless => {
                        let _ = stream.read(&mut head).await;
                        let _ = stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\n\r\n").await;
                        while stream.write_all(&[b'x'; 4_096]).await.is_ok() {}
                    }
                }
            });
        }
    });
    address.to_string()
}

/// Does nothing when it is not started by the test below.
#[test]
fn attacker() {
    if let Ok(name) = std::env::var("TIDERACE_ATTACK") {
        attacker::run(&name);
    }
}

fn heap() -> usize {
    dhat::HeapStats::get().curr_bytes
}

/// Runs an attack; gives the most that was in use meanwhile.
fn attack(name: &str, address: &str, certificate: &str, targets: [&str; 2]) -> usize {
    let most = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let sampling = {
        let (most, done) = (most.clone(), done.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(heap(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let mut child = Command::new("/proc/self/exe")
        .args(["--exact", "attacker", "--nocapture"])
        .env("TIDERACE_ATTACK", name)
        .env("TIDERACE_ADDRESS", address)
        .env("TIDERACE_CERTIFICATE", certificate)
        .env("TIDERACE_SILENT", targets[0])
        .env("TIDERACE_ENDLESS", targets[1])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.by_ref().map_while(Result::ok).find(|line| line.contains(attacker::READY));
    // Its last packets are taken in.
    std::thread::sleep(Duration::from_millis(300));
    drop(child.stdin.take());
    let ended = child.wait().unwrap();
    done.store(true, Ordering::Relaxed);
    sampling.join().unwrap();
    assert!(ready.is_some() && ended.success(), "{name}: the attacker has failed");
    println!("{}", ready.unwrap());
    most.load(Ordering::Relaxed)
}

#[test]
fn a_connection_holds_what_is_said_and_gives_it_back() {
    let _profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(2)).build();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let directory = Directory::new("attacks");
    let certificate = site::write_certificate(&directory, "localhost");
    let certificate = directory.write("cert.der", certificate);
    let (process, (silent, _unread), endless) = runtime.block_on(async {
        let [silent, switching, endless] =
            [back_end(Back::Silent).await, back_end(Back::Switching).await, back_end(Back::Endless).await];
        // Datagrams for it are taken by the kernel until its buffer is full, and nobody reads them.
        let unread = std::net::UdpSocket::bind(&silent).unwrap();
        let file = directory.write(
            "edge.toml",
            format!(
                "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n\
                 [[route]]\npath = \"/tunnel\"\nto = \"http://{switching}\"\ntunnels = [\"connect-udp\"]\n\
                 [[route]]\npath = \"/silent\"\nto = \"http://{silent}\"\n\
                 [[route]]\npath = \"/endless\"\nto = \"http://{endless}\"\n\
                 [[route]]\npath = \"/session\"\n[route.webtransport]\norigins = \"*\"\n\
                 to = \"tcp://{silent}\"\ndatagrams-to = \"udp://{silent}\"\n\
                 [[route]]\npath = \"/session-endless\"\n[route.webtransport]\norigins = \"*\"\nto = \"tcp://{endless}\"\n\
                 [[route]]\npath = \"/udp\"\n[route.proxy]\nopen = true\ntcp = true\nallow = \"127.0.0.1\"\nopened-per-second = 1000\n\
                 [[stream]]\nalpn = \"raw\"\nqmux = \"raw-qx\"\nto = \"tcp://{silent}\"\n\
                 [[stream]]\nalpn = \"game\"\nqmux = \"game-qx\"\nto = \"tcp://{silent}\"\ndatagrams-to = \"udp://127.0.0.1:9\"\n"
            ),
        );
        (Process::start(&file).unwrap_or_else(|error| panic!("{error}")), (silent, unread), endless)
    });
    let address = process.addresses()[0].to_string();
    let wanted = std::env::var("ATTACK").unwrap_or_default();
    let (mut failures, mut unfilled) = (Vec::new(), RECEIVE_BUFFERS);
    // The first fills the pools of the listener.
    let first = ("datagrams-empty", NOT_COUNTED);
    for (name, budget) in std::iter::once(first).chain(ATTACKS.into_iter().filter(|(name, _)| name.contains(&wanted))) {
        let left = loop {
            let before = heap();
            let most = attack(name, &address, certificate.to_str().unwrap(), [&silent, &endless]);
            let used = most.saturating_sub(before);
            if budget < NOT_COUNTED {
                println!("attack: {name} | budget {budget} | heap {used}");
            }
            if used > budget.saturating_mul(2) {
                failures.push(format!("{name}: {used} bytes of heap for a budget of {budget}"));
            }
            // Bounded by the idle timeout, should its last word be lost.
            let mut patience = 1_000;
            // What the first has filled stays.
            let most = if budget < NOT_COUNTED { before + LEFT } else { usize::MAX };
            while (process.status()["connections"] != 0 || heap() > most) && patience > 0 {
                std::thread::sleep(Duration::from_millis(50));
                patience -= 1;
            }
            let left = heap().saturating_sub(before);
            if budget == NOT_COUNTED || left <= LEFT || left > LEFT + unfilled {
                break left;
            }
            println!("{name}: {left} bytes have stayed");
            unfilled = unfilled.saturating_sub(left);
        };
        if budget < NOT_COUNTED && left > LEFT {
            failures.push(format!("{name}: {left} bytes were not given back"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
