//! The peer on s2n-quic, with its default TLS (s2n-tls). See `contract` for what it does.

use std::{process::ExitCode, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use real_interop::contract::{
    ALPN, Client, Command, Digest, Figures, Pattern, Request, Role, SERVER_NAME, Server, conclude,
};
use s2n_quic::{
    client::Connect,
    connection::Handle,
    provider::{
        endpoint_limits::{ConnectionAttempt, Limiter, Outcome},
        limits::Limits,
        tls::default as tls,
    },
    stream::{ReceiveStream, SendStream},
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
    conclude(result, "s2n-quic 1.91")
}

fn limits() -> Result<Limits> {
    Ok(Limits::new()
        .with_max_open_remote_bidirectional_streams(200)?
        .with_max_open_local_bidirectional_streams(1_000)?)
}

/// Sends every client back for a token, or none.
struct Validation {
    retry: bool,
}

impl Limiter for Validation {
    fn on_connection_attempt(&mut self, _: &ConnectionAttempt<'_>) -> Outcome {
        if self.retry { Outcome::retry() } else { Outcome::allow() }
    }
}

async fn serve(arguments: Server) -> Result<Figures> {
    let tls = tls::Server::builder()
        .with_certificate(arguments.cert.as_path(), arguments.key.as_path())
        .and_then(|builder| builder.with_application_protocols([ALPN].iter()))
        .and_then(tls::server::Builder::build)
        .map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut server = s2n_quic::Server::builder()
        .with_tls(tls)?
        .with_io(arguments.listen)?
        .with_limits(limits()?)?
        .with_endpoint_limits(Validation { retry: arguments.retry })?
        .start()?;
    println!("{}", serde_json::json!({ "ready": true, "address": server.local_addr()?.to_string() }));
    let accept = async {
        while let Some(mut connection) = server.accept().await {
            tokio::spawn(async move {
                while let Ok(Some(stream)) = connection.accept_bidirectional_stream().await {
                    tokio::spawn(async move {
                        let (receive, send) = stream.split();
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
        () = accept => bail!("the endpoint closed"),
        _ = stdin.read_to_end(&mut ignored) => {}
    }
    Ok(Figures::default())
}

/// One stream of a server.
async fn answer(mut send: SendStream, mut receive: ReceiveStream) -> Result<()> {
    let mut begun = Vec::new();
    let end = loop {
        if let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
            break end;
        }
        ensure!(begun.len() <= Request::MAX_LINE, "the request is too long");
        begun.extend_from_slice(&receive.receive().await?.context("the request ended early")?);
    };
    match Request::parse(&begun[..end])? {
        Request::Get(len) => {
            // Its end may come in a packet of its own. A stream that is dropped before it asks the client to stop.
            while receive.receive().await?.is_some() {}
            write_pattern(&mut send, len).await?;
        }
        Request::Put(_) => {
            let mut digest = Digest::default();
            digest.update(&begun[end + 1..]);
            while let Some(chunk) = receive.receive().await? {
                digest.update(&chunk);
            }
            send.send(digest.answer().into_bytes().into()).await?;
        }
    }
    send.finish()?;
    Ok(())
}

async fn write_pattern(send: &mut SendStream, len: u64) -> Result<()> {
    let (pattern, mut sent) = (Pattern::default(), 0);
    while sent < len {
        let piece = pattern.at(sent, len - sent).to_vec();
        sent += piece.len() as u64;
        send.send(piece.into()).await?;
    }
    Ok(())
}

async fn request(arguments: Client) -> Result<Figures> {
    let special = arguments.resume || arguments.early || arguments.chacha20 || arguments.v2 || arguments.migrate;
    ensure!(!special && !arguments.key_update, "s2n-quic's clients cannot be told to do that");
    let tls = tls::Client::builder()
        .with_certificate(arguments.ca.as_path())
        .and_then(|builder| builder.with_application_protocols([ALPN].iter()))
        .and_then(tls::client::Builder::build)
        .map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let any: std::net::SocketAddr = "0.0.0.0:0".parse()?;
    let mut client = s2n_quic::Client::builder().with_tls(tls)?.with_io(any)?.with_limits(limits()?)?.start()?;
    let start = Instant::now();
    for _ in 0..arguments.connections {
        let connect = Connect::new(arguments.connect).with_server_name(SERVER_NAME);
        let mut connection = client.connect(connect).await.context("handshake")?;
        connection.keep_alive(true)?;
        let handle = connection.handle();
        let mut streams = tokio::task::JoinSet::new();
        for _ in 0..arguments.streams {
            let (handle, arguments) = (handle.clone(), arguments.clone());
            streams.spawn(async move {
                if arguments.get > 0 {
                    get(handle.clone(), arguments.get).await?;
                }
                if arguments.put > 0 {
                    put(handle, arguments.put).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(result) = streams.join_next().await {
            result??;
        }
        connection.close(0_u32.into());
    }
    let figures = Figures {
        bytes_received: arguments.get * arguments.streams,
        bytes_sent: arguments.put * arguments.streams,
        seconds: start.elapsed().as_secs_f64(),
        ..Figures::default()
    };
    // Its CONNECTION_CLOSE has to leave; that it did is not what is asked here.
    if tokio::time::timeout(std::time::Duration::from_secs(5), client.wait_idle()).await.is_err() {
        eprintln!("the connection did not end within five seconds");
    }
    Ok(figures)
}

async fn get(mut handle: Handle, len: u64) -> Result<()> {
    let (mut receive, mut send) = handle.open_bidirectional_stream().await?.split();
    send.send(Request::Get(len).line().into_bytes().into()).await?;
    send.finish()?;
    let (pattern, mut got) = (Pattern::default(), 0);
    while let Some(chunk) = receive.receive().await? {
        pattern.check(got, &chunk)?;
        got += chunk.len() as u64;
    }
    ensure!(got == len, "got {got} of {len} bytes");
    Ok(())
}

async fn put(mut handle: Handle, len: u64) -> Result<()> {
    let (mut receive, mut send) = handle.open_bidirectional_stream().await?.split();
    send.send(Request::Put(len).line().into_bytes().into()).await?;
    write_pattern(&mut send, len).await?;
    send.finish()?;
    let mut answer = Vec::new();
    while let Some(chunk) = receive.receive().await? {
        answer.extend_from_slice(&chunk);
        ensure!(answer.len() <= 200, "the answer is too long");
    }
    let expected = Pattern::default().digest(len).answer();
    let said = String::from_utf8_lossy(&answer);
    ensure!(answer == expected.as_bytes(), "the server got something else: {}", said.trim());
    Ok(())
}
