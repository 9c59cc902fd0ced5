//! tiderace as an implementation for the QUIC interop runner: HTTP/0.9 over QUIC (`hq-interop`), told what to do by the
//! environment as the runner does it. `runner/run_endpoint.sh` starts it.
//!
//! | variable | meaning |
//! |---|---|
//! | `ROLE` | `server` or `client` |
//! | `TESTCASE` | which behaviour is asked for; exit code 127 says that we do not have it |
//! | `REQUESTS` | a client's URLs, separated by spaces |
//! | `WWW`, `DOWNLOADS`, `CERTS` | folders, with the runner's as default |
//! | `SSLKEYLOGFILE`, `QLOGDIR` | where secrets and events are written |
//! | `PORT`, `CONNECT` | for runs without Docker: a server's port, and the address that a client uses whatever the URL says |

use std::{
    collections::BTreeMap,
    env,
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tiderace::{
    ClientConfig, Connection, EarlyData, Endpoint, Identity, Profile, QlogDir, RecvStream, RetryPolicy, RustlsClient,
    RustlsServer, SendStream, ServerConfig, transport::KeyUpdatePolicy, transport::crypto::CipherSuite,
};

const ALPN: &[u8] = b"hq-interop";
/// Exit code that the runner takes for "not supported".
const UNSUPPORTED: u8 = 127;
/// A request line that is longer is none.
const LONGEST_REQUEST: usize = 4096;
const SERVER_CASES: &[&str] = &[
    "handshake",
    "transfer",
    "longrtt",
    "chacha20",
    "multiplexing",
    "retry",
    "resumption",
    "zerortt",
    "blackhole",
    "keyupdate",
    "ecn",
    "amplificationlimit",
    "multiconnect",
    "v2",
    "rebind-port",
    "rebind-addr",
    "connectionmigration",
    "ipv6",
    "goodput",
    "crosstraffic",
];

fn main() -> ExitCode {
    let case = env::var("TESTCASE").unwrap_or_default();
    if !SERVER_CASES.contains(&case.as_str()) {
        eprintln!("unsupported test case `{case}`");
        return ExitCode::from(UNSUPPORTED);
    }
    let result = tokio::runtime::Runtime::new().context("start").and_then(|runtime| {
        runtime.block_on(async {
            match env::var("ROLE").as_deref() {
                Ok("server") => serve(&case).await,
                Ok("client") => fetch(&case).await,
                other => bail!("ROLE is {other:?}"),
            }
        })
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn folder(variable: &str, usual: &str) -> PathBuf {
    env::var_os(variable).map_or_else(|| PathBuf::from(usual), PathBuf::from)
}

fn profile(case: &str, client: bool) -> Arc<Profile> {
    let mut profile = Profile::default();
    profile.streams.max_streams_bidi = 1_000;
    if case == "keyupdate" && client {
        // The runner wants to see one in the first MB.
        profile.key_update = KeyUpdatePolicy { packets: Some(50), bytes: None };
    }
    Arc::new(profile)
}

fn key_log() -> Arc<dyn rustls::KeyLog> {
    Arc::new(rustls::KeyLogFile::new())
}

async fn serve(case: &str) -> Result<()> {
    let (certs, www) = (folder("CERTS", "/certs"), folder("WWW", "/www"));
    let identity =
        Identity::from_pem(&std::fs::read(certs.join("cert.pem"))?, &std::fs::read(certs.join("priv.key"))?)?;
    let tls = RustlsServer::builder().identity(identity).alpn(ALPN).key_log(key_log());
    let tls = tls.early_data(case == "zerortt").build()?;
    let mut config = ServerConfig::new(Arc::new(tls), profile(case, false));
    config.retry = if case == "retry" { RetryPolicy::Always } else { RetryPolicy::Never };
    config.upgrade_to = (case == "v2").then_some(wire::version::V2);
    if let Ok(dir) = env::var("QLOGDIR") {
        config.observe = Some(Arc::new(QlogDir::new(dir)?));
    }
    let port = env::var("PORT").map_or(Ok(443), |port| port.parse())?;
    let any: SocketAddr = ([0_u16; 8], port).into();
    let endpoint =
        Endpoint::server(any, config.clone()).or_else(|_| Endpoint::server(([0; 4], port).into(), config))?;
    eprintln!("serving {} at {}", www.display(), endpoint.local_addr());
    while let Some(connection) = endpoint.accept_early().await {
        let www = www.clone();
        tokio::spawn(async move {
            while let Ok((send, receive)) = connection.accept_bi().await {
                let www = www.clone();
                tokio::spawn(async move {
                    if let Err(error) = answer(&www, send, receive).await {
                        eprintln!("stream: {error:#}");
                    }
                });
            }
        });
    }
    Ok(())
}

/// `GET /path` and the end of the stream; the file and the end of the stream.
async fn answer(www: &Path, mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    let request = receive.read_to_end(LONGEST_REQUEST).await?;
    let request = String::from_utf8(request)?;
    let name = request.trim_end().strip_prefix("GET /").context("not a GET")?;
    let plain = name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    ensure!(plain, "`{name}` names no file");
    let file = tokio::fs::read(www.join(name)).await.with_context(|| format!("read {name}"))?;
    send.write_all(&file).await?;
    send.finish()?;
    send.finished().await?;
    Ok(())
}

/// Address and file of a URL.
fn target(url: &str) -> Result<(SocketAddr, String, String)> {
    let rest = url.strip_prefix("https://").with_context(|| format!("`{url}` is no https URL"))?;
    let (authority, path) = rest.split_once('/').with_context(|| format!("`{url}` names no file"))?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse()?),
        _ => (authority, 443),
    };
    let address = match env::var("CONNECT") {
        Ok(address) => address.parse()?,
        Err(_) => (host.trim_matches(['[', ']']), port).to_socket_addrs()?.next().context("no address")?,
    };
    Ok((address, host.to_owned(), path.to_owned()))
}

async fn fetch(case: &str) -> Result<()> {
    let (downloads, certs) = (folder("DOWNLOADS", "/downloads"), folder("CERTS", "/certs"));
    let urls: Vec<_> = env::var("REQUESTS")?.split_whitespace().map(str::to_owned).collect();
    let (address, host, _) = target(urls.first().context("nothing is requested")?)?;
    let mut files = Vec::new();
    for url in &urls {
        files.push(target(url)?.2);
    }
    // The runner gives the chain of the server's certificate, whose last one is the root.
    let roots = std::fs::read(certs.join("ca.pem")).or_else(|_| std::fs::read(certs.join("cert.pem")))?;
    let mut tls = RustlsClient::builder().roots_pem(&roots)?.alpn(ALPN).key_log(key_log());
    tls = tls.early_data(case == "zerortt");
    if case == "chacha20" {
        tls = tls.cipher_suites([CipherSuite::ChaCha20Poly1305]);
    }
    let mut config = ClientConfig::new(Arc::new(tls.build()?), profile(case, true));
    if let Ok(dir) = env::var("QLOGDIR") {
        config.observe = Some(Arc::new(QlogDir::new(dir)?));
    }
    let endpoint = Endpoint::client_for(address)?;
    let connect = || endpoint.connect(&config, address, &host);
    match case {
        // A connection for each file.
        "multiconnect" => {
            for file in &files {
                let connection = connect()?.await.context("handshake")?;
                download(&connection, std::slice::from_ref(file), &downloads).await?;
                connection.close(0, b"");
            }
        }
        // The first file on the first connection, the others on one that resumes it.
        "resumption" | "zerortt" => {
            let (first, others) = files.split_at(1);
            let connection = connect()?.await.context("handshake")?;
            download(&connection, first, &downloads).await?;
            // The ticket may come behind the file.
            tokio::time::sleep(Duration::from_millis(100)).await;
            connection.close(0, b"");
            let connection = match (case, connect()?) {
                ("zerortt", connecting) => {
                    connecting.into_early().map_err(|_| anyhow::anyhow!("there is no session for early data"))?
                }
                (_, connecting) => connecting.await.context("handshake")?,
            };
            download(&connection, others, &downloads).await?;
            if case == "zerortt" {
                connection.established().await?;
                ensure!(connection.early_data() == EarlyData::Accepted, "early data was refused");
            }
            connection.close(0, b"");
        }
        _ => {
            let connection = connect()?.await.context("handshake")?;
            let moving = case == "connectionmigration";
            let work = download(&connection, &files, &downloads);
            let movement = async {
                if moving {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                    endpoint.rebind(std::net::UdpSocket::bind(any)?)?;
                }
                anyhow::Ok(())
            };
            tokio::try_join!(work, movement)?;
            connection.close(0, b"");
        }
    }
    endpoint.wait_idle().await;
    Ok(())
}

/// All files at once, each on a stream of its own.
async fn download(connection: &Connection, files: &[String], downloads: &Path) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let mut sizes = BTreeMap::new();
    for file in files {
        let (connection, file, downloads) = (connection.clone(), file.clone(), downloads.to_owned());
        tasks.spawn(async move {
            let (mut send, mut receive) = connection.open_bi_early().await?;
            send.write_all(format!("GET /{file}\r\n").as_bytes()).await?;
            send.finish()?;
            let mut data = Vec::new();
            while let Some(chunk) = receive.read_chunk(usize::MAX).await? {
                data.extend_from_slice(&chunk);
            }
            let name = Path::new(&file).file_name().context("no name")?;
            tokio::fs::write(downloads.join(name), &data).await?;
            anyhow::Ok((file, data.len()))
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (file, size) = done??;
        sizes.insert(file, size);
    }
    eprintln!("{} files, {} bytes", sizes.len(), sizes.values().sum::<usize>());
    Ok(())
}
