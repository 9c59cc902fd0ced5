//! The peer on quinn. See `contract` for what it does.

use std::{process::ExitCode, sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use quinn::{
    VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use real_interop::{
    contract::{ALPN, Client, Command, Digest, Figures, Pattern, Request, Role, SERVER_NAME, Server, conclude},
    credentials,
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
    conclude(result, "quinn 0.11")
}

fn transport() -> Arc<quinn::TransportConfig> {
    let mut config = quinn::TransportConfig::default();
    config.max_concurrent_bidi_streams(VarInt::from_u32(200));
    Arc::new(config)
}

async fn serve(arguments: Server) -> Result<Figures> {
    let mut tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(credentials::read_chain(&arguments.cert)?, credentials::read_key(&arguments.key)?)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport());
    let endpoint = quinn::Endpoint::server(config, arguments.listen)?;
    println!("{}", serde_json::json!({ "ready": true, "address": endpoint.local_addr()?.to_string() }));

    let accept = async {
        while let Some(incoming) = endpoint.accept().await {
            if arguments.retry && !incoming.remote_address_validated() {
                incoming.retry().context("Retry refused")?;
                continue;
            }
            tokio::spawn(async move {
                let connection = incoming.await?;
                while let Ok((send, receive)) = connection.accept_bi().await {
                    tokio::spawn(async move {
                        if let Err(error) = answer(send, receive).await {
                            eprintln!("stream: {error:#}");
                        }
                    });
                }
                anyhow::Ok(())
            });
        }
        anyhow::Ok(())
    };
    let (mut stdin, mut ignored) = (tokio::io::stdin(), vec![]);
    tokio::select! {
        result = accept => result?,
        _ = stdin.read_to_end(&mut ignored) => {}
    }
    endpoint.close(VarInt::from_u32(0), b"done");
    Ok(Figures::default())
}

/// One stream of a server.
async fn answer(mut send: quinn::SendStream, mut receive: quinn::RecvStream) -> Result<()> {
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
            while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
                digest.update(&chunk.bytes);
            }
            send.write_all(digest.answer().as_bytes()).await?;
        }
    }
    send.finish()?;
    Ok(())
}

async fn write_pattern(send: &mut quinn::SendStream, len: u64) -> Result<()> {
    let (pattern, mut sent) = (Pattern::default(), 0);
    while sent < len {
        let piece = pattern.at(sent, len - sent);
        send.write_all(piece).await?;
        sent += piece.len() as u64;
    }
    Ok(())
}

async fn request(arguments: Client) -> Result<Figures> {
    let mut tls = rustls::ClientConfig::builder()
        .with_root_certificates(credentials::read_roots(&arguments.ca)?)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport());
    let endpoint = quinn::Endpoint::client("0.0.0.0:0".parse()?)?;
    let start = Instant::now();
    let connection = endpoint.connect_with(config, arguments.connect, SERVER_NAME)?.await.context("handshake")?;

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
    let figures = Figures {
        bytes_received: arguments.get * arguments.streams,
        bytes_sent: arguments.put * arguments.streams,
        seconds: start.elapsed().as_secs_f64(),
        ..Figures::default()
    };
    connection.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    Ok(figures)
}

async fn get(connection: &quinn::Connection, len: u64, key_update: bool) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(Request::Get(len).line().as_bytes()).await?;
    send.finish()?;
    let (pattern, mut got, mut updated) = (Pattern::default(), 0, !key_update);
    while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
        pattern.check(got, &chunk.bytes)?;
        got += chunk.bytes.len() as u64;
        if !updated && got >= len / 2 {
            updated = true;
            connection.force_key_update();
        }
    }
    ensure!(got == len, "got {got} of {len} bytes");
    Ok(())
}

async fn put(connection: &quinn::Connection, len: u64) -> Result<()> {
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
