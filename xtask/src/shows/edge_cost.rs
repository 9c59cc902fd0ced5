//! What requests and bytes cost the edge, beside nginx and Caddy, over HTTP/3 and HTTP/2. The same files, the same client, the
//! same connections; what is measured is the processor time of the server. Rounds are interleaved.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    Context,
    command::{Running, cargo, load},
    row::{Row, Target},
};

const LIMIT: Duration = Duration::from_secs(3_600);
/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Caddy, from the Go module proxy.
const CADDY: &str = "github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.4";
/// Bytes of the small file, and of the large one.
const SMALL: usize = 1_000;
const LARGE: usize = 64 << 20;

/// A server under load.
struct Server {
    name: &'static str,
    protocol: &'static str,
    port: u16,
    running: usize,
}

/// A server that is asked to end before it is made to: the workers of nginx outlive a master that is killed.
struct Gentle(Running);

impl Drop for Gentle {
    fn drop(&mut self) {
        let begun = Instant::now();
        let asked = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        while asked.as_ref().is_ok_and(ExitStatus::success) && self.0.alive() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut build =
        cargo(&context.root, ["build", "--locked", "--release", "-p", "tiderace-cli", "-p", "tiderace-edge"]);
    context.commands.run("edge-cost-build", build.args(["--bin", "tiderace", "--example", "load"]), LIMIT)?.ok()?;
    let release = context.commands.target().join("release");
    let (program, load_program) = (release.join("tiderace"), release.join("examples/load"));
    let caddy = caddy(context)?;
    let scratch = context.commands.scratch("edge-cost")?;
    site(&scratch, &[("small", SMALL), ("large", LARGE)])?;
    let ports = [port()?, port()?, port()?];
    let mut running = [
        Gentle(edge(context, &program, &scratch, ports[0])?),
        Gentle(start_caddy(context, &caddy, &scratch, ports[1])?),
        Gentle(nginx(context, &scratch, ports[2])?),
    ];
    let servers =
        [("tiderace", "h3", 0), ("tiderace", "h2", 0), ("caddy", "h3", 1), ("caddy", "h2", 1), ("nginx", "h2", 2)]
            .map(|(name, protocol, at)| Server { name, protocol, port: ports[at], running: at });
    for (at, port) in ports.iter().enumerate() {
        wait(*port).with_context(|| running[at].0.printed())?;
    }
    let rounds = if context.long { 11 } else { 7 };
    let mut cost: BTreeMap<(&str, &str, &str), Vec<f64>> = BTreeMap::new();
    let mut rate: BTreeMap<(&str, &str, &str), Vec<f64>> = BTreeMap::new();
    for round in 0..=rounds {
        for server in &servers {
            for (what, path, parallel, requests) in [("request", "/small", "16", "12000"), ("GiB", "/large", "1", "12")]
            {
                let mut command = Command::new(&load_program);
                command.args([server.protocol, &format!("127.0.0.1:{}", server.port)]).arg(scratch.join("cert.pem"));
                command.args([path, "4", parallel, requests]);
                let pid = running[server.running].0.id();
                let before = processor_seconds(pid)?;
                let ended = context.commands.run("edge-cost-load", &mut command, LIMIT)?.ok()?;
                let spent = processor_seconds(pid)? - before;
                let numbers: Vec<f64> = ended.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
                let [requests, bytes, seconds] = numbers[..] else { bail!("the load said {:?}", ended.stdout) };
                let size = if what == "GiB" { LARGE } else { SMALL };
                ensure!(bytes == requests * size as f64, "{}: {bytes} bytes in {requests} answers", server.name);
                let amount = if what == "GiB" { bytes / f64::from(1 << 30) } else { requests };
                // The first round fills caches.
                if round > 0 {
                    cost.entry((server.name, server.protocol, what)).or_default().push(spent / amount);
                    rate.entry((server.name, server.protocol, what)).or_default().push(amount / seconds);
                }
            }
        }
    }
    for server in &mut running {
        ensure!(server.0.alive(), "a server ended: {}", server.0.printed());
    }
    Ok(rows(&cost, &rate))
}

fn rows(cost: &BTreeMap<(&str, &str, &str), Vec<f64>>, rate: &BTreeMap<(&str, &str, &str), Vec<f64>>) -> Vec<Row> {
    let ratio = |a: (&str, &str, &str), b: (&str, &str, &str)| -> Vec<f64> {
        cost[&a].iter().zip(&cost[&b]).map(|(a, b)| a / b).collect()
    };
    let mut rows = Vec::new();
    for (what, own) in [("request", 1.1), ("GiB", 1.43)] {
        let per = if what == "GiB" { "per GiB of 64 MiB files" } else { "per request of 1 kB" };
        let (h3, h2) = (("tiderace", "h3", what), ("tiderace", "h2", what));
        rows.push(
            Row::median(format!("CPU {per}: HTTP/3 / own HTTP/2"), &ratio(h3, h2), "", Target::AtMost(own))
                .detail(load()),
        );
        rows.push(Row::median(
            format!("CPU {per}: Caddy's HTTP/3 / ours"),
            &ratio(("caddy", "h3", what), h3),
            "",
            Target::AtLeast(3.0),
        ).detail(if what == "GiB" { "sealing, and the kernel's share of sending datagrams, are work that both have to do; how much of the time they are is not measured here" } else { "" }));
        rows.push(Row::median(
            format!("CPU {per}: ours over HTTP/2 / nginx's"),
            &ratio(h2, ("nginx", "h2", what)),
            "",
            Target::Printed,
        ));
        rows.push(Row::median(
            format!("CPU {per}: ours over HTTP/3 / nginx's HTTP/2"),
            &ratio(h3, ("nginx", "h2", what)),
            "",
            Target::Printed,
        ));
        for (key, values) in cost.iter().filter(|(key, _)| key.2 == what) {
            let (scale, unit) = if what == "GiB" { (1.0, "s") } else { (1e6, "µs") };
            let values: Vec<f64> = values.iter().map(|value| value * scale).collect();
            let mut speeds = rate[key].clone();
            speeds.sort_by(f64::total_cmp);
            let speed = speeds[speeds.len() / 2];
            rows.push(
                Row::median(format!("CPU {per}: {} {}", key.0, key.1), &values, unit, Target::Printed)
                    .detail(format!("{speed:.1} {what}s per second, client and server on the same processors")),
            );
        }
    }
    rows
}

/// A port that nobody has, for TCP.
pub(super) fn port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn wait(port: u16) -> Result<()> {
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(begun.elapsed() < Duration::from_secs(30), "nobody listens at port {port}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Certificate and key for `localhost`, and files of so many bytes in `www`.
pub(super) fn site(scratch: &Path, files: &[(&str, usize)]) -> Result<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(scratch)
        .output()
        .context("cannot start openssl")?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let www = scratch.join("www");
    std::fs::create_dir_all(&www)?;
    for (name, size) in files {
        std::fs::write(www.join(name), vec![b'x'; *size])?;
    }
    Ok(())
}

fn caddy(context: &Context) -> Result<PathBuf> {
    let folder = context.commands.target().join("peers/caddy");
    let program = folder.join("caddy");
    if !program.exists() {
        std::fs::create_dir_all(&folder)?;
        let mut go = Command::new("go");
        go.args(["install", CADDY]).env("GOBIN", std::path::absolute(&folder)?).current_dir(&folder);
        context.commands.run("edge-cost-caddy-build", &mut go, LIMIT)?.ok()?;
    }
    Ok(program)
}

fn edge(context: &Context, program: &Path, scratch: &Path, port: u16) -> Result<Running> {
    let config = scratch.join("edge.toml");
    let text = format!(
        "listen = \"127.0.0.1:{port}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[route]]\nfiles = \"www\"\n"
    );
    std::fs::write(&config, text)?;
    context.commands.start("edge-cost-tiderace", Command::new(program).args(["edge", "run", "--config"]).arg(config))
}

fn start_caddy(context: &Context, program: &Path, scratch: &Path, port: u16) -> Result<Running> {
    let config = scratch.join("Caddyfile");
    let text = format!(
        "{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {0}/caddy\n}}\nhttps://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {0}/cert.pem \
         {0}/key.pem\n\troot * {0}/www\n\tfile_server\n}}\n",
        scratch.display()
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config).env("HOME", scratch);
    context.commands.start("edge-cost-caddy", &mut command)
}

fn nginx(context: &Context, scratch: &Path, port: u16) -> Result<Running> {
    let config = scratch.join("nginx.conf");
    let user = if std::env::var("USER").is_ok_and(|user| user != "root") { "" } else { "user root;\n" };
    let text = format!(
        "{user}worker_processes auto;\ndaemon off;\npid {0}/nginx.pid;\nerror_log {0}/nginx.log;\nevents {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  keepalive_requests 1000000;\n  server {{\n    listen 127.0.0.1:{port} \
         ssl http2;\n    server_name localhost;\n    ssl_certificate {0}/cert.pem;\n    ssl_certificate_key {0}/key.pem;\n    ssl_protocols \
         TLSv1.3;\n    root {0}/www;\n  }}\n}}\n",
        scratch.display()
    );
    std::fs::write(&config, text)?;
    context.commands.start("edge-cost-nginx", Command::new("nginx").arg("-c").arg(config))
}

/// Seconds of processor time that a process and its children have spent, threads that have ended included.
fn processor_seconds(pid: u32) -> Result<f64> {
    // The kernel counts in ticks of 10 ms, on all machines that people have.
    const TICKS: f64 = 100.0;
    let mut sum = 0.0;
    let mut found = false;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(other) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may have ended meanwhile.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{other}/stat")) else { continue };
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        if other == pid || number(1) == u64::from(pid) {
            found = true;
            sum += (number(11) + number(12)) as f64 / TICKS;
        }
    }
    ensure!(found, "process {pid} is not there");
    Ok(sum)
}
