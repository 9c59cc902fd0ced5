//! Server over TCP.

use std::{
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use rustls::ServerConfig;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    io::{self, Counts},
    watch::Watch,
};
use crate::{
    address::cannot_listen,
    failure::Failure,
    interrupt::Interrupt,
    perf::{
        cpu::process_time,
        server::{Args, Line, Sums, say_listening},
    },
    stdout::{write_json_line, write_out},
};

/// Time that a client may take for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// Time before another try, when the system has no more file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs the server until it is asked to end.
pub(crate) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(name) = &args.end.cc {
        super::check_congestion(name)?;
    }
    let (tls, fingerprint) = super::tls::server(&args.certificate)?;
    let mut interrupt = Interrupt::listen()?;
    let unusable = |error| cannot_listen(args.listen, &error);
    let listener = listen(args).map_err(unusable)?;
    say_listening(listener.local_addr().map_err(unusable)?, fingerprint, true, args.json)?;
    let (sums, cpu_before) = (Arc::new(Sums::default()), process_time());
    let accept = async {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (sums, tls, json) = (sums.clone(), tls.clone(), args.json);
            tokio::spawn(async move {
                if let Some(line) = serve(stream, tls, &sums, peer.to_string()).await {
                    // Nobody reads the output any more: the measurements of clients continue all the same.
                    let _ = if json { write_json_line(&line.json()) } else { write_out(&line.text()) };
                }
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = interrupt.wait() => {}
    }
    sums.print(args.json, cpu_before)
}

/// Connections that are accepted have the congestion control of the socket that listens.
fn listen(args: &Args) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(args.listen), Type::STREAM, None)?;
    socket.set_reuse_address(cfg!(unix))?;
    socket.set_nonblocking(true)?;
    if let Some(name) = &args.end.cc {
        super::set_congestion(&socket, name)?;
    }
    socket.bind(&args.listen.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves a connection until it has ended; `None` when there was no handshake.
async fn serve(stream: TcpStream, tls: Arc<ServerConfig>, sums: &Sums, peer: String) -> Option<Line> {
    let started = Instant::now();
    SockRef::from(&stream).set_tcp_nodelay(true).ok()?;
    let watch = Watch::start(&stream).ok()?;
    let stream = match timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!("{peer}: {error}");
            return None;
        }
        Err(_) => return None,
    };
    let counts = Counts::default();
    let reason = match io::answer(stream, &counts, async || watch.last_report().await).await {
        Ok(()) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    let [received, sent] = [&counts.received, &counts.sent].map(|count| count.load(Ordering::Relaxed));
    sums.add(received, sent);
    Some(Line { peer, received, sent, duration: started.elapsed(), rtt: watch.smoothed_rtts(), reason })
}
