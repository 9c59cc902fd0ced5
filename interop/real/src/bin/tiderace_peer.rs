//! The peer on tiderace. See `contract` for what it does.

use std::{
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use real_interop::contract::{
    ALPN, Client, Command, Digest, Figures, Pattern, Request, Role, SERVER_NAME, Server, conclude,
};
use tiderace::{
    ClientConfig, Connection, EarlyData, Endpoint, Identity, Profile, QlogDir, RecvStream, RetryPolicy, RustlsClient,
    RustlsServer, SendStream, ServerConfig, transport::crypto::CipherSuite,
};
use tokio::io::AsyncReadExt;

fn main() -> ExitCode {
    let result = tokio::runtime::Runtime::new().context("start").and_then(|runtime| {
        runtime.block_on(async {
            match Command::parse().role {
                Role::Server(arguments) => serve(arguments).await,
                Role::Client(arguments) => request(arguments).await,
            }
        })
    });
    conclude(result, concat!("tiderace ", env!("CARGO_PKG_VERSION")))
}

fn profile() -> Arc<Profile> {
    let mut profile = Profile::default();
    profile.streams.max_streams_bidi = 200;
    // With a third of the packets lost or corrupt, one handshake in many takes longer than the usual 10 s. Whether it comes about is
    // the question here; the case has a limit of its own.
    profile.handshake_timeout = tiderace::units::Duration::from_secs(60);
    Arc::new(profile)
}

async fn serve(arguments: Server) -> Result<Figures> {
    let identity = Identity::from_pem(&std::fs::read(&arguments.cert)?, &std::fs::read(&arguments.key)?)?;
    let tls = RustlsServer::builder().identity(identity).alpn(ALPN).early_data(arguments.early).build()?;
    let mut config = ServerConfig::new(Arc::new(tls), profile());
    config.retry = if arguments.retry { RetryPolicy::Always } else { RetryPolicy::Never };
    if let Ok(dir) = std::env::var("QLOGDIR") {
        config.observe = Some(Arc::new(QlogDir::new(dir)?));
    }
    let endpoint = Endpoint::server(arguments.listen, config)?;
    println!("{}", serde_json::json!({ "ready": true, "address": endpoint.local_addr().to_string() }));

    let marks = Arc::new(AtomicU64::new(0));
    let accept = async {
        while let Some(connection) = endpoint.accept_early().await {
            let marks = marks.clone();
            tokio::spawn(async move {
                let its = connection.clone();
                tokio::spawn(async move {
                    its.closed().await;
                    marks.fetch_add(its.stats().map_or(0, |stats| stats.ecn_confirmed), Ordering::Relaxed);
                });
                while let Ok((send, receive)) = connection.accept_bi().await {
                    tokio::spawn(async move {
                        if let Err(error) = answer(send, receive).await {
                            eprintln!("stream: {error:#}");
                        }
                    });
                }
            });
        }
    };
    let (mut stdin, mut ignored) = (tokio::io::stdin(), vec![]);
    tokio::select! {
        () = accept => {}
        _ = stdin.read_to_end(&mut ignored) => {}
    }
    endpoint.close(0, b"done");
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    Ok(Figures { ecn_confirmed: Some(marks.load(Ordering::Relaxed)), ..Figures::default() })
}

/// One stream of a server.
async fn answer(mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    let mut line = vec![];
    loop {
        let byte = receive.read_u8().await.context("the request ended early")?;
        if byte == b'\n' {
            break;
        }
        line.push(byte);
        ensure!(line.len() <= Request::MAX_LINE, "the request is too long");
    }
    match Request::parse(&line)? {
        Request::Get(len) => {
            // Its end may come in a packet of its own. A stream that is dropped before it asks the client to stop.
            while receive.read_chunk(usize::MAX).await?.is_some() {}
            write_pattern(&mut send, len).await?;
        }
        Request::Put(_) => {
            let mut digest = Digest::default();
            while let Some(chunk) = receive.read_chunk(usize::MAX).await? {
                digest.update(&chunk);
            }
            send.write_all(digest.answer().as_bytes()).await?;
        }
    }
    send.finish()?;
    send.finished().await?;
    Ok(())
}

async fn write_pattern(send: &mut SendStream, len: u64) -> Result<()> {
    let (pattern, mut sent) = (Pattern::default(), 0);
    while sent < len {
        let piece = pattern.at(sent, len - sent);
        send.write_all(piece).await?;
        sent += piece.len() as u64;
    }
    Ok(())
}

async fn request(arguments: Client) -> Result<Figures> {
    let mut tls = RustlsClient::builder().roots_pem(&std::fs::read(&arguments.ca)?)?.alpn(ALPN);
    if arguments.chacha20 {
        tls = tls.cipher_suites([CipherSuite::ChaCha20Poly1305]);
    }
    tls = if arguments.resume { tls.early_data(arguments.early) } else { tls.without_resumption() };
    let mut config = ClientConfig::new(Arc::new(tls.build()?), profile());
    if arguments.v2 {
        config.version = wire::version::V2;
        config.versions = vec![wire::version::V2, wire::version::V1];
    }
    if let Ok(dir) = std::env::var("QLOGDIR") {
        config.observe = Some(Arc::new(QlogDir::new(dir)?));
    }
    let endpoint = Arc::new(Endpoint::client_for(arguments.connect)?);
    let start = Instant::now();
    let (mut key_updates, mut marks) = (0, 0);
    for number in 0..arguments.connections {
        let early = arguments.early && number > 0;
        let connecting = endpoint.connect(&config, arguments.connect, SERVER_NAME)?;
        let connection = if early {
            connecting.into_early().map_err(|_| anyhow::anyhow!("there is no session for early data"))?
        } else {
            connecting.await.context("handshake")?
        };
        exchange(&endpoint, &connection, &arguments).await?;
        if early {
            connection.established().await?;
            ensure!(connection.early_data() == EarlyData::Accepted, "early data was {:?}", connection.early_data());
        }
        let stats = connection.stats();
        key_updates += stats.map_or(0, |stats| stats.key_updates);
        marks += stats.map_or(0, |stats| stats.ecn_confirmed);
        ensure!(!arguments.v2 || connection.stats().is_some(), "the connection is over");
        connection.close(0, b"done");
    }
    let figures = Figures {
        bytes_received: arguments.get * arguments.streams,
        bytes_sent: arguments.put * arguments.streams,
        seconds: start.elapsed().as_secs_f64(),
        key_updates: Some(key_updates),
        ecn_confirmed: Some(marks),
        ..Figures::default()
    };
    ensure!(!arguments.key_update || key_updates != 0, "the keys were not updated");
    endpoint.wait_idle().await;
    Ok(figures)
}

/// All streams of one connection.
async fn exchange(endpoint: &Arc<Endpoint>, connection: &Connection, arguments: &Client) -> Result<()> {
    let mut streams = tokio::task::JoinSet::new();
    // The one stream that has something special to do in its middle.
    let special = Arc::new(Mutex::new(arguments.migrate.then(|| endpoint.clone())));
    for _ in 0..arguments.streams {
        let (connection, arguments, special) = (connection.clone(), arguments.clone(), special.clone());
        streams.spawn(async move {
            if arguments.get > 0 {
                get(&connection, arguments.get, arguments.key_update, &special).await?;
            }
            if arguments.put > 0 {
                put(&connection, arguments.put).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(result) = streams.join_next().await {
        result??;
    }
    Ok(())
}

async fn get(connection: &Connection, len: u64, key_update: bool, moves: &Mutex<Option<Arc<Endpoint>>>) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi_early().await?;
    send.write_all(Request::Get(len).line().as_bytes()).await?;
    send.finish()?;
    let (pattern, mut got, mut updated) = (Pattern::default(), 0, !key_update);
    while let Some(chunk) = receive.read_chunk(usize::MAX).await? {
        pattern.check(got, &chunk)?;
        got += chunk.len() as u64;
        if !updated && got >= len / 2 {
            updated = true;
            connection.update_keys();
        }
        let moving = if got >= len / 4 { moves.lock().expect("nobody panics with it").take() } else { None };
        if let Some(endpoint) = moving {
            let here = if endpoint.local_addr().is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            endpoint.rebind(std::net::UdpSocket::bind(here)?)?;
        }
    }
    ensure!(got == len, "got {got} of {len} bytes");
    Ok(())
}

async fn put(connection: &Connection, len: u64) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(Request::Put(len).line().as_bytes()).await?;
    write_pattern(&mut send, len).await?;
    send.finish()?;
    let answer = receive.read_to_end(200).await?;
    let expected = Pattern::default().digest(len).answer();
    ensure!(
        answer == expected.as_bytes(),
        "the server got something else: {}",
        String::from_utf8_lossy(&answer).trim()
    );
    Ok(())
}
