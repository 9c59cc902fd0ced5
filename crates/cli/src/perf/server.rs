//! `perf server`: answers requests of clients, and reports the transfers of each connection.

use std::{
    net::SocketAddr,
    num::NonZeroU8,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::json;
use tiderace::{Connection, EndpointOptions, ReadError, RecvStream, SendStream, ServerConfig, Shards, WriteError};
use tokio::sync::Notify;

use super::{
    EndArgs,
    cpu::process_time,
    datagrams,
    ended::Ended,
    lines::{Line, Over, say_listening, say_shards},
    live, per_gib,
    progress::Moved,
    protocol::{self, PROTOCOL_ERROR, Receipt, Request, SenderReport, TIME_IS_UP, UNTIL_STOPPED},
    samples::RttSamples,
    tcp,
    transfer::TransferError,
};
use crate::{
    address::cannot_listen,
    failure::Failure,
    interrupt::Interrupt,
    meter::{Meter, exporter::Exporter, soak::Gathering},
    screen::Shown,
    stdout::{write_json_line, write_out},
    trust::{self, CertificateArgs},
};

/// Answer `tiderace perf client` until Ctrl-C.
///
/// Prints a line for each connection at its end, and totals when the server ends.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace perf server
  tiderace perf server --shards 4
  tiderace perf server --listen 0.0.0.0:4433 --cert cert.pem --key key.pem --cc bbr3
  tiderace perf server --listen 0.0.0.0:4433 --tcp --cc bbr --json
  tiderace perf server --listen 0.0.0.0:4433 --beside-tcp --cc bbr3 --tcp-cc bbr")]
pub(super) struct Args {
    /// Listen on this address (UDP, or TCP with --tcp); port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:4433")]
    pub(super) listen: SocketAddr,
    /// Drive so many sockets of the address, each on a thread of its own; the kernel passes each packet to the one that holds its
    /// connection
    #[arg(long, value_name = "NUMBER", default_value_t = NonZeroU8::MIN)]
    shards: NonZeroU8,
    /// Use the kernel's TCP with TLS 1.3 in place of QUIC
    #[arg(long, conflicts_with_all = ["shards", "mtu", "fec", "ack_frequency", "loss_tolerance", "qlog", "pcapng"])]
    tcp: bool,
    /// Answer over the kernel's TCP, too, at the same port: for `perf client --beside-tcp`
    #[arg(long, conflicts_with_all = ["tcp", "screen"])]
    beside_tcp: bool,
    /// With --beside-tcp: the kernel's congestion control of what this end sends [default: the kernel's]
    #[arg(long, value_name = "NAME", requires = "beside_tcp")]
    tcp_cc: Option<String>,
    /// Print lines of JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Serve metrics for Prometheus here while the server runs
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "tcp")]
    prometheus: Option<SocketAddr>,
    /// Print figures of each connection every 5 s, to the standard error
    #[arg(long, conflicts_with = "tcp")]
    live: bool,
    /// Show goodput, RTT, window, losses and state of each connection on a screen of its own; lines about connections that have ended
    /// follow at the end. Without a terminal, or with --json, figures as with --live
    #[arg(long, conflicts_with_all = ["tcp", "live"])]
    screen: bool,
    /// End by itself after so long, such as '6 h', with figures and memory over time
    #[arg(long, value_name = "TIME", value_parser = tiderace::units::duration_text::parse, conflicts_with = "tcp")]
    soak: Option<Duration>,
    #[command(flatten)]
    pub(super) certificate: CertificateArgs,
    #[command(flatten)]
    pub(super) end: EndArgs,
}

impl Args {
    /// Congestion control of the kernel for what this end sends.
    pub(super) fn kernel_congestion(&self) -> Option<&str> {
        if self.beside_tcp { self.tcp_cc.as_deref() } else { self.end.cc.as_deref() }
    }
}

/// Runs the server until it is asked to end.
pub(super) async fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.tcp {
        return tcp::serve(&args).await;
    }
    let profile = args.end.profile()?;
    let watched = args.end.watch()?;
    let own = trust::own(&args.certificate)?;
    let fingerprint = own.fingerprint;
    let beside = args.beside_tcp.then(|| tcp::Beside::new(&args, &own)).transpose()?;
    let listen = beside.as_ref().map_or(args.listen, |beside| SocketAddr::new(args.listen.ip(), beside.port));
    let tls = trust::server_of(own, protocol::ALPN, watched.keys())?;
    let mut config = ServerConfig::new(Arc::new(tls), Arc::new(profile));
    config.observe = watched.observer();
    let mut interrupt = Interrupt::listen()?;
    let shards = Shards::new(args.shards);
    let options = EndpointOptions { server: Some(config), shards, ..EndpointOptions::default() };
    let endpoint = watched.endpoint(listen, options).map_err(|error| cannot_listen(listen, &error))?;
    let over = if args.beside_tcp { Over::Both } else { Over::Quic };
    say_listening(endpoint.local_addr(), fingerprint, over, args.json)?;
    let (sums, cpu_before) = (Arc::new(Sums::default()), process_time());
    let meter = Meter::new("perf server", args.soak);
    let is_watched = args.prometheus.is_some() || args.live || args.screen || args.soak.is_some();
    let ticking = is_watched.then(|| meter.ticking());
    let exporter = args.prometheus.map(|address| Exporter::start(address, meter.clone())).transpose()?;
    let gathering = args.soak.map(|length| Gathering::start(meter.clone(), length));
    let (asked, is_plain) = (Arc::new(Notify::new()), !args.screen || args.json);
    let end = {
        let asked = asked.clone();
        move || asked.notify_one()
    };
    let shown = (args.live || args.screen).then(|| Shown::start(meter.clone(), is_plain, end)).transpose()?;
    let ended = Arc::new(Ended::new(args.json, matches!(shown, Some(Shown::Screen(_)))));
    let accept = async {
        // Early data is answered before the handshake is complete.
        while let Some(connection) = endpoint.accept_early().await {
            let (sums, meter, ended) = (sums.clone(), meter.clone(), ended.clone());
            tokio::spawn(async move {
                let line = serve(connection, &sums, &meter).await;
                ended.tell(line.text(), &line.json());
            });
        }
    };
    let tcp = async {
        match beside {
            Some(beside) => beside.accept(&sums, &ended).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = accept => {}
        () = tcp => {}
        () = interrupt.wait() => {}
        () = asked.notified() => {}
        () = tokio::time::sleep(args.soak.unwrap_or(Duration::MAX)), if args.soak.is_some() => {}
    }
    drop(shown);
    let soak = match gathering {
        Some(gathering) => Some(gathering.finish().await),
        None => None,
    };
    endpoint.close(0, b"the server ends");
    // Long enough for the lines of the connections that this has closed.
    let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    watched.finish();
    drop((exporter, ticking));
    ended.release()?;
    if let Some(soak) = soak {
        if args.json {
            write_json_line(&json!({"event": "soak", "soak": soak}))?;
        } else {
            write_out(&format!("memory: {}\n", soak.text()))?;
        }
    }
    if args.shards > NonZeroU8::MIN {
        say_shards(&endpoint, args.json)?;
    }
    sums.print(args.json, cpu_before)
}

/// Totals over all connections.
#[derive(Default)]
pub(super) struct Sums {
    connections: AtomicU64,
    /// Bytes of the application, each counted once.
    received: AtomicU64,
    /// Of a connection that is open: bytes written. In sums: bytes sent, each counted once.
    sent: AtomicU64,
}

impl Sums {
    /// Adds a connection that has ended.
    pub(super) fn add(&self, received: u64, sent: u64) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.received.fetch_add(received, Ordering::Relaxed);
        self.sent.fetch_add(sent, Ordering::Relaxed);
    }

    pub(super) fn print(&self, json: bool, cpu_before: Option<Duration>) -> Result<ExitCode, Failure> {
        let [connections, received, sent] =
            [&self.connections, &self.received, &self.sent].map(|count| count.load(Ordering::Relaxed));
        let cpu = cpu_before.zip(process_time()).map(|(before, after)| after.saturating_sub(before));
        let each = cpu.and_then(|cpu| per_gib(cpu, received + sent));
        if json {
            write_json_line(&json!({
                "event": "total", "connections": connections, "received_bytes": received, "sent_bytes": sent,
                "cpu_s": cpu.map(|cpu| cpu.as_secs_f64()), "cpu_s_per_gib": each,
            }))?;
        } else {
            let each = each.map_or("–".to_owned(), |each| format!("{each:.2} s"));
            write_out(&format!(
                "total: {connections} connections, {} received, {} sent, {each} CPU per GiB\n",
                indicatif::DecimalBytes(received),
                indicatif::DecimalBytes(sent),
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Serves a connection until it has ended.
async fn serve(connection: Connection, sums: &Sums, meter: &Meter) -> Line {
    let (started, rtt) = (Instant::now(), RttSamples::new());
    connection.set_observer(Box::new(rtt.clone()));
    let peer = connection.remote_address().map_or_else(|| "?".to_owned(), |peer| peer.to_string());
    let (looked_at, samples) = (connection.clone(), rtt.clone());
    let _followed = meter.follow(peer.clone(), move || Some(live::sample(&looked_at.stats()?, Some(&samples))));
    let counts = Arc::new(Sums::default());
    let reason = loop {
        match connection.accept_bi().await {
            Ok((send, recv)) => {
                let (connection, counts, rtt) = (connection.clone(), counts.clone(), rtt.clone());
                tokio::spawn(async move {
                    if let Err(error) = answer(send, recv, &connection, &counts, &rtt).await {
                        // What ends a stream ends the measurement, and the client reports it.
                        tracing::debug!("stream: {error}");
                    }
                });
            }
            Err(reason) => break reason,
        }
    };
    let [received, written] = [&counts.received, &counts.sent].map(|count| count.load(Ordering::Relaxed));
    // What was written and given up before it went out was not sent.
    let sent = connection.stats().map_or(written, |stats| {
        let new = stats.stream_bytes_sent.saturating_sub(stats.stream_bytes_retransmitted);
        written.min(new + stats.datagram_bytes_sent)
    });
    sums.add(received, sent);
    Line { peer, received, sent, duration: started.elapsed(), rtt: rtt.get(), reason: reason.to_string() }
}

/// Reason why a stream is not answered to its end.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("{0}")]
    Write(#[from] WriteError),
    #[error("{0}")]
    Datagrams(#[from] TransferError),
}

/// Answers one stream.
async fn answer(
    mut send: SendStream,
    mut recv: RecvStream,
    connection: &Connection,
    counts: &Sums,
    rtt: &RttSamples,
) -> Result<(), StreamError> {
    match Request::read(&mut recv).await? {
        None => send.reset(PROTOCOL_ERROR)?,
        Some(Request::Report) => {
            if let Some(stats) = connection.stats() {
                send.write_all(&SenderReport::new(&stats, rtt.get()).encode()).await?;
            }
            send.finish()?;
        }
        Some(Request::CpuTime) => {
            send.write_all(&protocol::own_cpu_time()).await?;
            send.finish()?;
        }
        Some(Request::DatagramsUp) => {
            let moved = Moved::default();
            let taken = datagrams::take(&mut send, &mut recv, connection, &moved).await;
            counts.received.fetch_add(moved.get(), Ordering::Relaxed);
            taken?;
            send.finish()?;
        }
        Some(Request::DatagramsDown(plan)) => {
            let moved = Moved::default();
            let given = datagrams::give(&mut send, &mut recv, connection, plan, &moved).await;
            counts.sent.fetch_add(moved.get(), Ordering::Relaxed);
            given?;
            send.finish()?;
        }
        Some(Request::Transfer { upload, download }) => {
            let (received, sent) =
                tokio::join!(receive(&mut recv, upload, &counts.received), give(&mut send, download, &counts.sent));
            let receipt = received?;
            if !sent? {
                return Ok(());
            }
            if upload > 0 {
                send.write_all(&receipt.encode()).await?;
            }
            send.finish()?;
        }
    }
    // Until the peer has it all: dropping the handle before would not take it back, but a connection without handles is
    // closed.
    send.finished().await?;
    Ok(())
}

/// Takes what the client sends.
async fn receive(recv: &mut RecvStream, upload: u64, count: &AtomicU64) -> Result<Receipt, ReadError> {
    let (started, mut bytes) = (Instant::now(), 0);
    loop {
        match recv.read_chunk(usize::MAX).await {
            Ok(Some(chunk)) => {
                bytes += chunk.len() as u64;
                count.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                if bytes > upload {
                    recv.stop(PROTOCOL_ERROR)?;
                    break;
                }
            }
            Ok(None) => break,
            // A client that has sent enough, or is interrupted, wants to know what came.
            Err(ReadError::Reset(code)) if code == TIME_IS_UP || upload == UNTIL_STOPPED => break,
            Err(error) => return Err(error),
        }
    }
    let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(Receipt { bytes, nanos })
}

/// Sends data to the client. Returns whether the client still read it at the end.
async fn give(send: &mut SendStream, download: u64, count: &AtomicU64) -> Result<bool, WriteError> {
    let payload = protocol::payload();
    let mut left = download;
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(payload.len());
        match send.write_chunk(payload.slice(..size)).await {
            Ok(()) => {}
            Err(WriteError::Stopped(_)) => {
                // RFC 9000 §3.5: the stream is still to be ended from this side.
                send.reset(PROTOCOL_ERROR).ok();
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        count.fetch_add(size as u64, Ordering::Relaxed);
        if download != UNTIL_STOPPED {
            left -= size as u64;
        }
    }
    Ok(true)
}
