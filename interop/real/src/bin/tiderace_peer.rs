//! The peer on tiderace. See `contract` for what it does.

use std::{process::ExitCode, sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use real_interop::contract::{
    ALPN, Client, Command, Digest, Figures, Pattern, Request, Role, SERVER_NAME, Server, conclude,
};
use tiderace::{
    ClientConfig, Connection, Endpoint, Identity, Profile, RecvStream, RetryPolicy, RustlsClient, RustlsServer,
    SendStream, ServerConfig,
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
    Arc::new(profile)
}

async fn serve(arguments: Server) -> Result<Figures> {
    let identity = Identity::from_pem(&std::fs::read(&arguments.cert)?, &std::fs::read(&arguments.key)?)?;
    let tls = RustlsServer::builder().identity(identity).alpn(ALPN).build()?;
    let mut config = ServerConfig::new(Arc::new(tls), profile());
    config.retry = if arguments.retry { RetryPolicy::Always } else { RetryPolicy::Never };
    let endpoint = Endpoint::server(arguments.listen, config)?;
    println!("{}", serde_json::json!({ "ready": true, "address": endpoint.local_addr().to_string() }));

    let accept = async {
        while let Some(connection) = endpoint.accept().await {
            tokio::spawn(async move {
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
    Ok(Figures::default())
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
        Request::Get(len) => write_pattern(&mut send, len).await?,
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
    let tls = RustlsClient::builder().roots_pem(&std::fs::read(&arguments.ca)?)?.alpn(ALPN).build()?;
    let config = ClientConfig::new(Arc::new(tls), profile());
    let endpoint = Endpoint::client_for(arguments.connect)?;
    let start = Instant::now();
    let connection = endpoint.connect(&config, arguments.connect, SERVER_NAME)?.await.context("handshake")?;

    let mut streams = tokio::task::JoinSet::new();
    for _ in 0..arguments.streams {
        let (connection, arguments) = (connection.clone(), arguments.clone());
        streams.spawn(async move {
            if arguments.get > 0 {
                get(&connection, arguments.get, arguments.key_update).await?;
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
    let key_updates = connection.stats().map(|stats| stats.key_updates);
    let figures = Figures {
        bytes_received: arguments.get * arguments.streams,
        bytes_sent: arguments.put * arguments.streams,
        seconds: start.elapsed().as_secs_f64(),
        key_updates,
        ..Figures::default()
    };
    ensure!(!arguments.key_update || key_updates != Some(0), "the keys were not updated");
    connection.close(0, b"done");
    endpoint.wait_idle().await;
    Ok(figures)
}

async fn get(connection: &Connection, len: u64, key_update: bool) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
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
