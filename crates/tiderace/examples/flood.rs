//! Effect of a flood of handshakes on the latency of an established connection.
//!
//! ```sh
//! cargo run --profile dist -p tiderace --example flood              # 5,000 handshakes per second for 10 s, 3 rounds
//! cargo run --profile dist -p tiderace --example flood -- --in-place
//! ```
//!
//! Three processes on loopback. The *server* answers requests; the *probe* has one connection and sends a request of 100
//! bytes for an answer of 200 every 4 ms, whether the one before was answered or not; the *generator* starts handshakes
//! at a fixed rate, whether the earlier ones were answered or not, and closes each connection once it is complete. The
//! generator runs on the last processor, the probe and the thread that drives the server's endpoint on the first one; the
//! server's threads for TLS go where the system puts them. A round is a time without and a time with the flood; the
//! figures are medians over rounds. Before it, 300 handshakes one after the other show what they take when nothing else
//! happens. Clients of the generator check no certificate, and offer X25519 alone, so that more of the processors is left
//! for the server.
//!
//! A line of `name value` pairs for each round goes to the standard output, and a summary at the end.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, Handshakes, Identity, Profile, RustlsClient, RustlsServer,
    ServerConfig, transport::tls::rustls_backend::KeyExchange,
};

const INTERVAL: Duration = Duration::from_millis(4);
const REQUEST: [u8; 100] = [1; 100];
const ANSWER: [u8; 200] = [2; 200];

/// Options of the program.
struct Options {
    /// Handshakes per second.
    rate: u64,
    /// Of a time with, and of one without, the flood.
    seconds: u64,
    rounds: usize,
    in_place: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", place] => runtime()?.block_on(serve(place == "in-place")),
        ["probe", server, seconds] => runtime()?.block_on(probe(server.parse()?, seconds.parse()?)),
        ["connect", server, count] => runtime()?.block_on(connect(server.parse()?, count.parse()?)),
        ["generate", server, rate, seconds] => {
            pin(std::thread::available_parallelism()?.get() - 1)?;
            runtime()?.block_on(generate(server.parse()?, rate.parse()?, seconds.parse()?))
        }
        _ => measure(&options(&arguments)?),
    }
}

fn options(arguments: &[&str]) -> Result<Options> {
    let mut options = Options { rate: 5_000, seconds: 10, rounds: 3, in_place: false };
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        let mut number = || rest.next().context("a number is missing")?.parse::<u64>().context("not a number");
        match argument {
            "--rate" => options.rate = number()?,
            "--seconds" => options.seconds = number()?,
            "--rounds" => options.rounds = usize::try_from(number()?)?,
            "--in-place" => options.in_place = true,
            _ => bail!("unknown: {argument}\nhint: --rate N, --seconds N, --rounds N, --in-place"),
        }
    }
    ensure!(options.rate >= 1 && options.seconds >= 1 && options.rounds >= 1, "numbers begin at 1");
    Ok(options)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

// The measurement.

fn measure(options: &Options) -> Result<()> {
    let mode = if options.in_place { "in-place" } else { "pool" };
    let (mut quiet, mut flooded, mut rise) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let mut server = Program::start(&["serve", mode])?;
        let address = server.line()?;
        let alone = Program::start(&["connect", &address, "300"])?.end()?;
        let seconds = options.seconds.to_string();
        let before = Figures::of(&Program::start(&["probe", &address, &seconds])?.end()?)?;
        // The probe is there before the flood begins and after it ends.
        let longer = (options.seconds + 1).to_string();
        let probe = Program::start(&["probe", &address, &longer])?;
        std::thread::sleep(Duration::from_millis(500));
        let flood = Program::start(&["generate", &address, &options.rate.to_string(), &seconds])?.end()?;
        let during = Figures::of(&probe.end()?)?;
        let served = server.end()?;
        println!("round {round} {alone} quiet {before} flood {during} {flood} {served}");
        quiet.push(before.p99);
        flooded.push(during.p99);
        rise.push(during.p99 - before.p99);
    }
    println!(
        "summary mode {mode} rate {} seconds {} p99_quiet_us {:.0} p99_flood_us {:.0} p99_rise_us {:.0}",
        options.rate,
        options.seconds,
        median(&mut quiet),
        median(&mut flooded),
        median(&mut rise)
    );
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    f64::midpoint(low, high)
}

/// Latencies in microseconds.
struct Figures {
    p50: f64,
    p99: f64,
    max: f64,
    count: f64,
}

impl Figures {
    fn of(line: &str) -> Result<Self> {
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [p50, p99, max, count] = numbers[..] else { bail!("the probe said {line:?}") };
        ensure!(count >= 300.0, "a p99 needs 300 samples, not {count}");
        Ok(Self { p50, p99, max, count })
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50, p99, max, count } = self;
        write!(f, "p50_us {p50:.0} p99_us {p99:.0} max_us {max:.0} requests {count}")
    }
}

/// Child process of this program. It ends when its standard input does.
struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("a pipe was asked for")?);
        Ok(Self { child, stdin, stdout })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn end(mut self) -> Result<String> {
        self.stdin = None;
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest)?;
        ensure!(self.child.wait()?.success(), "a part of the measurement failed");
        Ok(rest.trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only when it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// The server.

async fn serve(in_place: bool) -> Result<()> {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let identity = Identity::from_der(vec![certified.cert.der().to_vec()], certified.signing_key.serialize_der())?;
    let tls = RustlsServer::builder().identity(identity).alpn("flood").build()?;
    let server = ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let handshakes = if in_place { Handshakes::InPlace } else { Handshakes::default() };
    let options = EndpointOptions { server: Some(server), handshakes, ..EndpointOptions::default() };
    let endpoint = Endpoint::open("127.0.0.1:0".parse()?, options)?;
    println!("{}", endpoint.local_addr());
    let accepted = Arc::new(AtomicU64::new(0));
    let mut input = Vec::new();
    let mut stdin = tokio::task::spawn_blocking(move || std::io::stdin().read_to_end(&mut input));
    loop {
        tokio::select! {
            connection = endpoint.accept() => {
                if accepted.fetch_add(1, Relaxed) == 0 {
                    // The threads for TLS run, and keep the choice.
                    pin(0)?;
                }
                tokio::spawn(answer(connection.context("the endpoint was closed")?));
            }
            _ = &mut stdin => break,
        }
    }
    let stats = endpoint.stats();
    println!(
        "accepted {} dropped_overloaded {} retries {} refused {} server_cpu_s {:.2}",
        accepted.load(Relaxed),
        stats.overloaded,
        stats.retries,
        stats.refused,
        cpu_time()?
    );
    Ok(())
}

async fn answer(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        tokio::spawn(async move {
            if recv.read_to_end(1_000).await.is_ok() && send.write_all(&ANSWER).await.is_ok() {
                let _ = send.finish();
            }
        });
    }
}

/// Seconds of processor time that this process has used, all threads together.
fn cpu_time() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in parentheses, may contain blanks.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).context("an unknown format");
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

// The probe.

async fn probe(server: SocketAddr, seconds: u64) -> Result<()> {
    pin(0)?;
    let client = Endpoint::client_for(server)?;
    let connection = client.connect(&client_config(Duration::from_secs(10))?, server, "localhost")?.await?;
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let mut ticks = tokio::time::interval(INTERVAL);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut requests = tokio::task::JoinSet::new();
    while Instant::now() < end {
        ticks.tick().await;
        let (connection, latencies) = (connection.clone(), latencies.clone());
        requests.spawn(async move {
            let started = Instant::now();
            let (mut send, mut recv) = connection.open_bi().await?;
            send.write_all(&REQUEST).await?;
            send.finish()?;
            let answer = recv.read_to_end(1_000).await?;
            ensure!(answer == ANSWER, "a wrong answer");
            latencies.lock().expect("no request panics").push(started.elapsed());
            Ok(())
        });
        while let Some(done) = requests.try_join_next() {
            done??;
        }
    }
    while let Some(done) = requests.join_next().await {
        done??;
    }
    connection.close(0, b"");
    client.wait_idle().await;
    let mut latencies = std::mem::take(&mut *latencies.lock().expect("no request panics"));
    latencies.sort_unstable();
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list")]
        let place = (share * latencies.len() as f64) as usize;
        latencies[place.min(latencies.len() - 1)].as_secs_f64() * 1e6
    };
    println!("{} {} {} {}", at(0.5), at(0.99), at(1.0), latencies.len());
    Ok(())
}

/// Handshakes one after the other.
async fn connect(server: SocketAddr, count: usize) -> Result<()> {
    let client = Endpoint::client_for(server)?;
    let config = client_config(Duration::from_secs(10))?;
    let mut took = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        drop(client.connect(&config, server, "localhost")?.await?);
        took.push(started.elapsed().as_secs_f64() * 1e6);
    }
    client.wait_idle().await;
    println!("handshake_p50_us {:.0}", median(&mut took));
    Ok(())
}

// The generator.

async fn generate(server: SocketAddr, rate: u64, seconds: u64) -> Result<()> {
    let client = Endpoint::client_for(server)?;
    // A client that got no answer to two first packets gives up.
    let config = client_config(Duration::from_secs(2))?;
    let (completed, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let mut attempted = 0;
    while started.elapsed() < Duration::from_secs(seconds) {
        ticks.tick().await;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of handshakes")]
        let due = (started.elapsed().as_secs_f64() * rate as f64) as u64;
        while attempted < due.min(rate * seconds) {
            attempted += 1;
            let connecting = client.connect(&config, server, "localhost")?;
            let (completed, failed) = (completed.clone(), failed.clone());
            tokio::spawn(async move {
                match connecting.await {
                    Ok(_) => completed.fetch_add(1, Relaxed),
                    Err(_) => failed.fetch_add(1, Relaxed),
                }
            });
        }
    }
    let took = started.elapsed().as_secs_f64();
    let in_time = completed.load(Relaxed);
    client.wait_idle().await;
    println!(
        "attempted_per_s {:.0} completed {in_time} completed_later {} gave_up {} generator_cpu_s {:.2}",
        attempted as f64 / took,
        completed.load(Relaxed) - in_time,
        failed.load(Relaxed),
        cpu_time()?
    );
    std::io::stdout().flush()?;
    Ok(())
}

fn client_config(patience: Duration) -> Result<ClientConfig> {
    let tls = RustlsClient::builder()
        .verifier(Arc::new(Anyone))
        .key_exchanges([KeyExchange::X25519])
        .without_resumption()
        .alpn("flood")
        .build()?;
    let profile = Profile { handshake_timeout: patience, ..Profile::default() };
    Ok(ClientConfig::new(Arc::new(tls), Arc::new(profile)))
}

/// Verifier that accepts any certificate.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519, SignatureScheme::RSA_PSS_SHA256]
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "sched_setaffinity has no safe wrapper")]
fn pin(core: usize) -> Result<()> {
    // SAFETY: `set` is a plain set of bits that is valid when zeroed, and outlives the call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    ensure!(result == 0, "cannot pin a thread: {}", std::io::Error::last_os_error());
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn pin(_: usize) -> Result<()> {
    Ok(())
}
