//! Attacks on a running gateway, beside fifty ordinary clients: what each costs the clients, the processor and memory.
//!
//! A measurement, not a test of speed: it prints what it has seen, and `cargo xtask shows hardening` judges. It needs a release build
//! and a machine that does nothing else:
//!
//! ```sh
//! cargo test --profile dist -p tiderace-cli --test attacks -- --ignored --nocapture
//! ```
//!
//! `ATTACKS` names the attacks to run (all when unset), `ATTACK_SECONDS` how long each lasts (10).

mod back_end;
mod crowd;
#[path = "../gateway/mod.rs"]
mod gateway;
mod kinds;
mod meter;
#[path = "../scratch/mod.rs"]
mod scratch;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tiderace::{ClientConfig, Connection, Endpoint, Profile, RustlsClient};
use tokio::time::Instant;

use self::{crowd::Crowd, gateway::Gateway, kinds::Kind, meter::Meter, scratch::Scratch};

/// Clients that behave.
const CLIENTS: usize = 50;
/// Rate limit of an attacker, in bits per second.
const RATE: u64 = 100_000_000;
/// Between the end of an attack and the reading of the memory that is left.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// The gateway under attack.
#[derive(Clone)]
struct Target {
    address: SocketAddr,
    certificate: Arc<Vec<u8>>,
}

impl Target {
    /// A connection for this protocol, from an endpoint of its own.
    async fn connect(&self, alpn: &[u8]) -> Result<(Endpoint, Connection), Box<dyn std::error::Error + Send + Sync>> {
        let tls = RustlsClient::builder().roots([self.certificate.to_vec()]).alpn(alpn).build()?;
        let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
        let endpoint = Endpoint::client_for(self.address)?;
        let connection = endpoint.connect(&config, self.address, "localhost")?.await?;
        Ok((endpoint, connection))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of minutes that needs a machine for itself"]
async fn attacks_beside_ordinary_clients() {
    let seconds = std::env::var("ATTACK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let lasting = Duration::from_secs(seconds);
    let wanted = std::env::var("ATTACKS").ok();
    let names: Option<Vec<&str>> = wanted.as_ref().map(|names| names.split(',').map(str::trim).collect());
    for kind in Kind::ALL {
        if names.as_ref().is_none_or(|names| names.contains(&kind.name())) {
            measure(kind, lasting).await;
        }
    }
}

/// One attack on a gateway of its own, so that none inherits what another has left.
async fn measure(kind: Kind, lasting: Duration) {
    let back_end = back_end::start().await;
    let folder = Scratch::new(&format!("attack-{}", kind.name()));
    let certificate = Arc::new(folder.certificate("localhost").cert.der().to_vec());
    std::fs::create_dir_all(folder.0.join("www")).unwrap();
    std::fs::write(folder.0.join("www/small"), vec![b's'; 1_000]).unwrap();
    std::fs::write(folder.0.join("www/large"), vec![b'l'; 64 << 20]).unwrap();
    let file = folder.0.join("edge.toml");
    let config = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[files]\nmemory = \"0 B\"\n\
         [[route]]\npath = \"/back\"\nto = \"http://{back_end}\"\ntunnels = [\"connect-udp\"]\n\
         [[route]]\nfiles = \"www\"\n\
         [[stream]]\nalpn = \"private\"\nto = \"tcp://{back_end}\"\n"
    );
    // What the gateway keeps of files is no matter of attacks.
    std::fs::write(&file, config).unwrap();
    let gateway = Gateway::start(&file);
    let target = Target { address: gateway.address, certificate };
    let meter = Meter::new(gateway.id());

    // What a download costs is little beside the clients, and would drown in what they cost: it runs alone.
    let clients = if kind == Kind::Download { 0 } else { CLIENTS };
    let crowd = Crowd::start(&target, clients).await;
    // Caches and pools are filled before anything is counted.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let memory_before = meter.resident();
    crowd.take();
    let (cpu, begun) = (meter.cpu(), Instant::now());
    tokio::time::sleep(lasting).await;
    let quiet = crowd.take();
    let cpu_quiet = (meter.cpu() - cpu) / begun.elapsed().as_secs_f64();

    let (cpu, begun) = (meter.cpu(), Instant::now());
    let watching = meter.watch();
    let sent = kind.run_afar(target.clone(), lasting, RATE).await;
    let elapsed = begun.elapsed().as_secs_f64();
    let under_attack = crowd.take();
    let cpu_attack = ((meter.cpu() - cpu) / elapsed - cpu_quiet).max(0.0);
    let peak = watching.peak();
    tokio::time::sleep(AFTERWARDS).await;
    let memory_after = meter.resident();
    let left = crowd.take();

    let megabits = sent as f64 * 8.0 / 1e6 / elapsed;
    println!(
        "attacked: {} | Mbit/s {megabits:.2} | cpu {cpu_attack:.4} | cpu per Mbit/s {:.6} | p99 before {:.3} ms | p99 during {:.3} ms | \
         answers {} | failures {} | failures after {} | rss before {} | rss peak {peak} | rss after {memory_after}",
        kind.name(),
        if megabits > 0.0 { cpu_attack / megabits } else { 0.0 },
        quiet.p99() * 1e3,
        under_attack.p99() * 1e3,
        under_attack.count(),
        under_attack.failures,
        left.failures,
        memory_before,
    );
    drop(crowd);
}
