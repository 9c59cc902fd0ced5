//! `tiderace stream`: standard input and output on a QUIC stream, for private protocols.

use std::{
    io::{Read, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use bytes::Bytes;
use clap::Parser;
use client::{
    FetchError, Leg, Route, Settings, Timeouts, Trust,
    private::{Channel, Ended, PrivateClient, Receiver, Sender},
};
use tokio::sync::mpsc;

use crate::{
    address,
    failure::{Failure, UNSOUND},
    printable::printable,
    runtime,
};

/// Send standard input on a QUIC stream, and print the answer.
///
/// The command opens a connection and one bidirectional stream. It sends standard input on the stream, ends its direction at the end of
/// the input, and writes received data to standard output. It ends when the server has ended the other direction. The server sees the
/// stream with its first byte, or with the end of the input.
///
/// The connection uses QUIC only, without a race. SSLKEYLOGFILE=FILE writes the secrets of the connection to FILE.
///
/// Exit code 0: the server has ended its answer. 1: no connection, or an incomplete answer. 2: an option is wrong.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  echo hello | tiderace stream chat.example.org:4433 --alpn chat/1
  tiderace stream localhost:4433 --alpn echo --ca cert.pem < request.bin > answer.bin")]
pub(crate) struct Args {
    /// Server to connect to
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// Protocol name (ALPN); the server has to support it
    #[arg(long, value_name = "NAME")]
    alpn: String,
    /// Trust the root certificates in this file (PEM) and no others
    #[arg(long, value_name = "FILE", visible_alias = "cacert")]
    ca: Option<PathBuf>,
    /// Accept any certificate. An attacker on the path can impersonate the server
    #[arg(short = 'k', long, conflicts_with = "ca")]
    insecure: bool,
    /// Wait for a connection for at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    connect_within: u64,
    /// Print the duration of the handshake, and bytes sent and received, to standard error
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = runtime::start()?;
    runtime.block_on(stream(args))
}

async fn stream(args: &Args) -> Result<ExitCode, Failure> {
    let (host, port) = address::split(&args.server)?;
    // RFC 7301 §3.1: a name has 1 to 255 bytes.
    if !(1..=255).contains(&args.alpn.len()) {
        return Err(
            Failure::new("a protocol has a name of 1 to 255 bytes").hint("give `--alpn NAME`, as the server has it")
        );
    }
    let trust = match &args.ca {
        None if args.insecure => Trust::Anyone,
        None => Trust::Platform,
        Some(path) => Trust::Pem(std::fs::read(path).map_err(|error| {
            Failure::new(format_args!("cannot read {}: {}", path.display(), address::plain(&error)))
                .hint("--ca takes a PEM file")
        })?),
    };
    if args.insecure {
        eprintln!(
            "WARNING: --insecure: the server's certificate is not checked. Anybody on the path can pose as the server."
        );
    }
    let timeouts = Timeouts { connect: Duration::from_secs(args.connect_within), ..Timeouts::default() };
    let settings = Settings { trust, timeouts, key_log: true, ..Settings::default() };
    let alpn = args.alpn.as_bytes();
    let client = PrivateClient::new(&settings, alpn, alpn)
        .map_err(|error| Failure::new(error).hint("--ca takes a PEM file with `-----BEGIN CERTIFICATE-----`"))?;
    let route = Route { only: Some(Leg::Quic), ..Route::default() };
    let connected = match client.connect(&host, port, &route).await {
        Ok(connected) => connected,
        Err(error @ FetchError::Resolve { .. }) => {
            return Err(Failure::new(error).hint("check the spelling, or give an IP address"));
        }
        Err(error) => return Ok(broken(&error)),
    };
    if args.verbose {
        eprintln!("connected to {} in {:.1} ms", args.server, connected.handshake.as_secs_f64() * 1e3);
    }
    let code = exchange(args, &connected.channel).await;
    connected.channel.close(0, "").await;
    client.close().await;
    code
}

/// Reports why there is no whole answer.
fn broken(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("error: {}", printable(&error.to_string()));
    ExitCode::from(UNSOUND)
}

/// Standard input to the stream, and the stream to the standard output.
async fn exchange(args: &Args, channel: &Channel) -> Result<ExitCode, Failure> {
    let (mut send, mut recv) = match channel.open_bi().await {
        Ok(halves) => halves,
        Err(error) => return Ok(broken(&error)),
    };
    let (mut sent, mut received, mut at_end) = (0, 0, false);
    let outcome = {
        let mut sending = std::pin::pin!(give(&mut send, &mut sent, &mut at_end));
        let mut receiving = std::pin::pin!(take(&mut recv, &mut received));
        tokio::select! {
            biased;
            given = &mut sending => {
                match given {
                    // A server that wants no more may still answer.
                    Err(Broken::Stream(Ended::Stopped(code))) => {
                        eprintln!("note: the server takes no more of the input (code {code})");
                        receiving.await
                    }
                    Ok(()) | Err(Broken::Stream(_)) => receiving.await,
                    Err(failure) => Err(failure),
                }
            }
            taken = &mut receiving => taken,
        }
    };
    if args.verbose {
        eprintln!("{sent} bytes sent, {received} received");
    }
    match outcome {
        // What was read to its end is delivered before the connection is closed.
        Ok(()) => {
            if at_end && let Sender::Quic(stream) = &mut send {
                let _ = stream.finished().await;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(Broken::Unread) => Ok(ExitCode::SUCCESS),
        Err(Broken::Local(failure)) => Err(failure),
        Err(Broken::Stream(error)) => Ok(broken(&format_args!("the answer broke off after {received} bytes: {error}"))),
    }
}

/// Reason why an exchange ended early.
enum Broken {
    Stream(Ended),
    /// The reader of the standard output is gone.
    Unread,
    Local(Failure),
}

impl From<Ended> for Broken {
    fn from(ended: Ended) -> Self {
        Self::Stream(ended)
    }
}

/// Pieces of the standard input, read by a thread that ends with the program: the system cannot interrupt a read of a terminal.
fn input() -> mpsc::Receiver<std::io::Result<Bytes>> {
    let (sender, pieces) = mpsc::channel(2);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let piece = std::io::stdin().read(&mut buffer).map(|length| Bytes::copy_from_slice(&buffer[..length]));
            let last = piece.as_ref().is_ok_and(Bytes::is_empty);
            match &piece {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                _ if last => return,
                _ => {}
            }
            let failed = piece.is_err();
            if sender.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    pieces
}

/// Sends the standard input on the stream. `at_end` is set when all of it was sent.
async fn give(send: &mut Sender, sent: &mut u64, at_end: &mut bool) -> Result<(), Broken> {
    let mut pieces = input();
    while let Some(piece) = pieces.recv().await {
        let piece = piece.map_err(|error| {
            Broken::Local(Failure::new(format_args!("cannot read the standard input: {}", address::plain(&error))))
        })?;
        let length = piece.len() as u64;
        send.write_chunk(piece).await?;
        *sent += length;
    }
    send.finish()?;
    *at_end = true;
    Ok(())
}

/// The stream to the standard output.
async fn take(recv: &mut Receiver, received: &mut u64) -> Result<(), Broken> {
    while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
        *received += chunk.len() as u64;
        let mut output = std::io::stdout().lock();
        match output.write_all(&chunk).and_then(|()| output.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Err(Broken::Unread),
            Err(error) => {
                return Err(Broken::Local(Failure::new(format_args!("cannot write: {}", address::plain(&error)))));
            }
        }
    }
    Ok(())
}
