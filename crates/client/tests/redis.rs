//! A real Redis behind a gateway in stream mode, and our client in front: its protocol over QUIC streams.

use std::{
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use edge::Process;
use tiderace_client::{
    Route, Settings, Trust,
    private::{Channel, PrivateClient},
};

/// What a machine with much else to do may need.
const LIMIT: Duration = Duration::from_secs(60);

struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Redis, where it is installed (Debian: `redis-server`).
fn redis() -> Option<(Redis, u16)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let redis = Redis(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?);
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < LIMIT, "Redis does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some((redis, port))
}

/// A command of Redis as it is sent.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(*word);
        out.extend(b"\r\n");
    }
    out
}

/// What is answered to these commands, on a stream of their own that ends behind them.
async fn ask(channel: &Channel, commands: &[Vec<u8>]) -> Vec<u8> {
    let (mut send, mut recv) = channel.open_bi().await.unwrap();
    send.write_chunk(commands.concat().into()).await.unwrap();
    let mut answer = Vec::new();
    // Redis closes when it is told to; the end of what is sent would make it forget its answers.
    send.write_chunk(command(&[b"QUIT"]).into()).await.unwrap();
    while let Some(part) = recv.read_chunk(65_536).await.unwrap() {
        answer.extend_from_slice(&part);
    }
    send.finish().unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_redis_speaks_over_quic() {
    let Some((_redis, port)) = redis() else {
        println!("measured real Redis behind the gateway: 0 (not installed)");
        return;
    };
    let directory: PathBuf = std::env::temp_dir().join(format!("tiderace-redis-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let file = directory.join("edge.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n[[stream]]\nalpn = \"redis\"\nqmux = \"redis-qx\"\n\
         to = \"tcp://127.0.0.1:{port}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let process = Process::start(&file).unwrap();
    let settings =
        Settings { trust: Trust::Pem(made.cert.pem().into_bytes()), head_start: LIMIT, ..Settings::default() };
    let client = PrivateClient::new(&settings, b"redis", b"redis-qx").unwrap();
    let port = process.addresses()[0].port();
    let channel = client.connect("127.0.0.1", port, &Route::default()).await.unwrap().channel;
    assert_eq!(channel.protocol(), "quic");
    let large: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(ask(&channel, &[command(&[b"SET", b"large", &large])]).await, b"+OK\r\n+OK\r\n");
    let expected = [format!("${}\r\n", large.len()).as_bytes(), &large, b"\r\n+OK\r\n"].concat();
    assert!(ask(&channel, &[command(&[b"GET", b"large"])]).await == expected, "the value comes back");
    let mut tasks = Vec::new();
    for number in 0..100 {
        let channel = channel.clone();
        tasks.push(tokio::spawn(async move {
            ask(&channel, &[command(&[b"INCR", b"count"]), command(&[b"ECHO", format!("{number}").as_bytes()])]).await
        }));
    }
    for (number, task) in tasks.into_iter().enumerate() {
        let answer = String::from_utf8(tokio::time::timeout(LIMIT, task).await.unwrap().unwrap()).unwrap();
        let text = number.to_string();
        assert!(answer.ends_with(&format!("${}\r\n{text}\r\n+OK\r\n", text.len())), "{answer:?}");
    }
    assert_eq!(ask(&channel, &[command(&[b"GET", b"count"])]).await, b"$3\r\n100\r\n+OK\r\n");
    println!("measured real Redis behind the gateway: 1");
    drop(process);
    let _ = std::fs::remove_dir_all(&directory);
}
