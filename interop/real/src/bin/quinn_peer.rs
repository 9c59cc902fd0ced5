//! The peer on quinn. See `contract` for what it does.

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Instant,
};

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
    tls.max_early_data_size = if arguments.early { u32::MAX } else { 0 };
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
        Request::Get(len) => {
            // Its end may come in a packet of its own. A stream that is dropped before it asks the client to stop.
            while receive.read_chunk(usize::MAX, true).await?.is_some() {}
            write_pattern(&mut send, len).await?;
        }
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

/// The suites on offer; quinn protects Initial packets with the first of the provider that can.
fn provider(chacha20: bool) -> Arc<rustls::crypto::CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if chacha20 {
        provider.cipher_suites.retain(|suite| suite.suite() == rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    }
    Arc::new(provider)
}

async fn request(arguments: Client) -> Result<Figures> {
    ensure!(!arguments.v2, "quinn does not speak version 2");
    let mut tls = rustls::ClientConfig::builder_with_provider(provider(arguments.chacha20))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(credentials::read_roots(&arguments.ca)?)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.enable_early_data = arguments.early;
    if !arguments.resume {
        tls.resumption = rustls::client::Resumption::disabled();
    }
    let initial = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let initial = initial.tls13().and_then(|suite| suite.quic_suite()).context("AES-128-GCM for Initial packets")?;
    let crypto = QuicClientConfig::with_initial(Arc::new(tls), initial)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport());
    let endpoint = quinn::Endpoint::client("0.0.0.0:0".parse()?)?;
    let start = Instant::now();
    for number in 0..arguments.connections {
        let connecting = endpoint.connect_with(config.clone(), arguments.connect, SERVER_NAME)?;
        let (connection, accepted) = if arguments.early && number > 0 {
            let early = connecting.into_0rtt();
            let (connection, accepted) = early.map_err(|_| anyhow::anyhow!("there is no session for early data"))?;
            (connection, Some(accepted))
        } else {
            (connecting.await.context("handshake")?, None)
        };
        exchange(&endpoint, &connection, &arguments).await?;
        if let Some(accepted) = accepted {
            ensure!(accepted.await, "early data was refused");
        }
        connection.close(VarInt::from_u32(0), b"done");
    }
    let figures = Figures {
        bytes_received: arguments.get * arguments.streams,
        bytes_sent: arguments.put * arguments.streams,
        seconds: start.elapsed().as_secs_f64(),
        ..Figures::default()
    };
    endpoint.wait_idle().await;
    Ok(figures)
}

/// All streams of one connection.
async fn exchange(endpoint: &quinn::Endpoint, connection: &quinn::Connection, arguments: &Client) -> Result<()> {
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

async fn get(
    connection: &quinn::Connection,
    len: u64,
    key_update: bool,
    moves: &Mutex<Option<quinn::Endpoint>>,
) -> Result<()> {
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
        let moving = if got >= len / 4 { moves.lock().expect("nobody panics with it").take() } else { None };
        if let Some(endpoint) = moving {
            endpoint.rebind(std::net::UdpSocket::bind("0.0.0.0:0")?)?;
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
