//! Gateways to compare: ours, Caddy, nginx and HAProxy, with the same site and certificate, and before the same back end.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    Context,
    command::{Running, cargo},
};

/// Time that a build may take.
const LIMIT: Duration = Duration::from_secs(3_600);
/// Time that a server may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Caddy, from the Go module proxy.
pub(super) const CADDY: &str = "github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.4";
/// Prefix of the back end's paths at the gateways.
pub(super) const BACK: &str = "/back";

/// A server that is asked to end before it is made to: the workers of nginx outlive a master that is killed.
pub(super) struct Gentle(pub(super) Running);

impl Drop for Gentle {
    fn drop(&mut self) {
        let begun = Instant::now();
        let asked = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        while asked.as_ref().is_ok_and(ExitStatus::success) && self.0.alive() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Programs that have to be there, each with the package of Debian that has it, or the place to get it.
const PROGRAMS: [(&str, &str, &str); 4] = [
    ("nginx", "-v", "apt install nginx"),
    ("haproxy", "-v", "apt install haproxy"),
    ("openssl", "version", "apt install openssl"),
    ("go", "version", "Go 1.25 or later, https://go.dev/dl; it builds Caddy"),
];

/// An error that names every program that is missing.
pub(super) fn require_programs() -> Result<()> {
    let starts = |program: &str, argument: &str| Command::new(program).arg(argument).output().is_ok();
    let missing: Vec<String> = PROGRAMS
        .iter()
        .filter(|(program, argument, _)| !starts(program, argument))
        .map(|(program, _, source)| format!("{program} ({source})"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("not installed: {}", missing.join(", "))
}

/// Builds the gateway and the clients that load it, as they are distributed; returns the directory.
pub(super) fn build_ours(context: &Context) -> Result<PathBuf> {
    let mut build = cargo(&context.root, ["build", "--locked", "--profile", "dist"]);
    // All in one command: with other packages the dependencies would be built once more.
    build.args(["-p", "tiderace-cli", "-p", "tiderace-edge", "-p", "tiderace-client", "--bin", "tiderace"]);
    build.args(["--example", "load", "--example", "tunnel_load"]);
    context.commands.run("cost-build", &mut build, LIMIT)?.ok()?;
    Ok(context.commands.target().join("dist"))
}

/// Result of a closed loop, as the load says it.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Closed {
    pub(super) requests: f64,
    /// Bytes of content.
    pub(super) bytes: f64,
    pub(super) seconds: f64,
}

impl Closed {
    pub(super) fn read(said: &str) -> Result<Self> {
        serde_json::from_str(said).with_context(|| format!("the load said {said:?}"))
    }
}

/// Threads or processes of each gateway.
pub(super) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A port that nobody has, for TCP.
pub(super) fn port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits until somebody listens.
pub(super) fn wait(port: u16) -> Result<()> {
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(begun.elapsed() < Duration::from_secs(30), "nobody listens at port {port}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Kind of a key for [`certificate`]: ECDSA with P-256.
pub(super) const P256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// Certificate for `localhost`, with a key of this kind, as `openssl req -newkey` takes it.
pub(super) fn certificate(folder: &Path, key: &[&str]) -> Result<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey"])
        .args(key)
        .args(["-nodes", "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(folder)
        .output()
        .context("cannot start openssl")?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

/// Certificate and key for `localhost`, and files of so many bytes in `www`.
pub(super) fn site(scratch: &Path, files: &[(&str, usize)]) -> Result<()> {
    certificate(scratch, P256)?;
    let www = scratch.join("www");
    std::fs::create_dir_all(&www)?;
    for (name, size) in files {
        std::fs::write(www.join(name), vec![b'x'; *size])?;
    }
    Ok(())
}

/// Builds Caddy, once.
pub(super) fn build_caddy(context: &Context) -> Result<PathBuf> {
    let folder = context.commands.target().join("peers/caddy");
    let program = folder.join("caddy");
    if !program.exists() {
        eprintln!("gateway: building Caddy, once");
        std::fs::create_dir_all(&folder)?;
        let mut go = Command::new("go");
        go.args(["install", CADDY]).env("GOBIN", std::path::absolute(&folder)?).current_dir(&folder);
        context.commands.run("edge-cost-caddy-build", &mut go, LIMIT)?.ok()?;
    }
    Ok(program)
}

/// Starts our gateway.
pub(super) fn edge(context: &Context, program: &Path, scratch: &Path, port: u16, back: u16) -> Result<Running> {
    let (config, workers) = (scratch.join("edge.toml"), workers());
    let text = format!(
        "workers = {workers}\nlisten = \"127.0.0.1:{port}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n\
         [limits]\nconnections-per-address = 50000\n[[route]]\nfiles = \"www\"\n[[route]]\npath = \"{BACK}\"\n\
         strip = true\nto = \"http://127.0.0.1:{back}\"\n"
    );
    std::fs::write(&config, text)?;
    context.commands.start("edge-cost-tiderace", Command::new(program).args(["edge", "run", "--config"]).arg(config))
}

/// Starts Caddy, as it comes: it keeps connections to back ends, and passes on what they send as it arrives.
pub(super) fn caddy(context: &Context, program: &Path, scratch: &Path, port: u16, back: u16) -> Result<Running> {
    let config = scratch.join("Caddyfile");
    let text = format!(
        "{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {0}/caddy\n}}\nhttps://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {0}/cert.pem \
         {0}/key.pem\n\troot * {0}/www\n\thandle_path {BACK}/* {{\n\t\treverse_proxy 127.0.0.1:{back}\n\t}}\n\thandle {{\n\t\tfile_server\n\t}}\n}}\n",
        scratch.display()
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(program);
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(config)
        .env("HOME", scratch)
        .env("GOMAXPROCS", workers().to_string());
    context.commands.start("edge-cost-caddy", &mut command)
}

/// Starts nginx as a gateway, with connections to the back end that it keeps.
pub(super) fn nginx(context: &Context, scratch: &Path, port: u16, back: u16) -> Result<Running> {
    let http = format!(
        "  upstream back {{\n    server 127.0.0.1:{back};\n    keepalive 64;\n    keepalive_requests 1000000;\n  }}\n  server {{\n    listen \
         127.0.0.1:{port} ssl http2;\n    server_name localhost;\n    ssl_certificate {0}/cert.pem;\n    ssl_certificate_key {0}/key.pem;\n    \
         ssl_protocols TLSv1.3;\n    root {0}/www;\n    location {BACK}/ {{\n      proxy_pass http://back/;\n      proxy_http_version 1.1;\n      \
         proxy_set_header Connection \"\";\n      proxy_max_temp_file_size 0;\n    }}\n  }}\n",
        scratch.display()
    );
    start_nginx(context, scratch, "nginx", &http)
}

/// Starts HAProxy, which has no files: HTTP/2 to clients, connections to the back end that requests share.
pub(super) fn haproxy(context: &Context, scratch: &Path, port: u16, back: u16) -> Result<Running> {
    let read = |name: &str| std::fs::read_to_string(scratch.join(name));
    let identity = scratch.join("identity.pem");
    std::fs::write(&identity, read("cert.pem")? + &read("key.pem")?)?;
    let config = scratch.join("haproxy.cfg");
    let text = format!(
        "global\n  nbthread {}\n  tune.h2.max-concurrent-streams 100\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  \
         http-reuse aggressive\nfrontend clients\n  bind 127.0.0.1:{port} ssl crt {} alpn h2 ssl-min-ver TLSv1.3\n  default_backend back\n\
         backend back\n  http-request replace-path ^{BACK}/(.*) /\\1\n  server one 127.0.0.1:{back}\n",
        workers(),
        identity.display()
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new("haproxy");
    context.commands.start("edge-cost-haproxy", command.args(["-db", "-f"]).arg(config))
}

/// Starts the back end of all: nginx with the same files, over HTTP/1.1.
pub(super) fn back_end(context: &Context, scratch: &Path, port: u16) -> Result<Running> {
    let http = format!("  server {{\n    listen 127.0.0.1:{port};\n    root {}/www;\n  }}\n", scratch.display());
    start_nginx(context, scratch, "back", &http)
}

fn start_nginx(context: &Context, scratch: &Path, name: &str, http: &str) -> Result<Running> {
    let config = scratch.join(format!("{name}.conf"));
    let workers = workers();
    let user = if std::env::var("USER").is_ok_and(|user| user != "root") { "" } else { "user root;\n" };
    let text = format!(
        "{user}worker_processes {workers};\ndaemon off;\npid {0}/{name}.pid;\nerror_log {0}/{name}.log;\nworker_rlimit_nofile 20000;\nevents {{ worker_connections 16384; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  keepalive_requests 1000000;\n{http}}}\n",
        scratch.display()
    );
    std::fs::write(&config, text)?;
    context.commands.start(&format!("edge-cost-{name}"), Command::new("nginx").arg("-c").arg(config))
}
