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
        ended::Ended,
        lines::{Line, Over, say_listening},
        server::{Args, Sums},
    },
    trust::{self, Own},
};

/// Time that a client may take for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// Time before another try, when the system has no more file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Server over TCP beside one over QUIC, at the same port.
pub(crate) struct Beside {
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    /// Port that both have.
    pub(crate) port: u16,
}

/// Ports that are tried until one is free for both.
const TRIES: u32 = 32;

impl Beside {
    /// Listens, with this certificate.
    ///
    /// # Errors
    /// When the port, or the congestion control, cannot be used.
    pub(crate) fn new(args: &Args, own: &Own) -> Result<Self, Failure> {
        if let Some(name) = args.kernel_congestion() {
            super::check_congestion(name)?;
        }
        let tls = super::tls::server(own)?;
        let unusable = |error| cannot_listen(args.listen, &error);
        let mut tries = 0;
        loop {
            tries += 1;
            let listener = listen(args).map_err(unusable)?;
            let address = listener.local_addr().map_err(unusable)?;
            // A port that the system has chosen may be taken for UDP.
            let is_free = args.listen.port() != 0 || std::net::UdpSocket::bind(address).is_ok();
            if is_free || tries == TRIES {
                return Ok(Self { listener, tls, port: address.port() });
            }
        }
    }

    /// Serves until it is dropped.
    pub(crate) async fn accept(self, sums: &Arc<Sums>, ended: &Arc<Ended>) {
        loop {
            let Ok((stream, peer)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (sums, tls, ended) = (sums.clone(), self.tls.clone(), ended.clone());
            tokio::spawn(async move {
                if let Some(line) = serve(stream, tls, &sums, peer.to_string()).await {
                    ended.tell(line.text(), &line.json());
                }
            });
        }
    }
}

/// Runs the server until it is asked to end.
pub(crate) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let own = trust::own(&args.certificate)?;
    let server = Beside::new(args, &own)?;
    let mut interrupt = Interrupt::listen()?;
    let address = server.listener.local_addr().map_err(|error| cannot_listen(args.listen, &error))?;
    say_listening(address, own.fingerprint, Over::Tcp, args.json)?;
    let (sums, cpu_before) = (Arc::new(Sums::default()), process_time());
    let ended = Arc::new(Ended::new(args.json, false));
    tokio::select! {
        () = server.accept(&sums, &ended) => {}
        () = interrupt.wait() => {}
    }
    sums.print(args.json, cpu_before)
}

/// Connections that are accepted have the congestion control of the socket that listens.
fn listen(args: &Args) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(args.listen), Type::STREAM, None)?;
    socket.set_reuse_address(cfg!(unix))?;
    socket.set_nonblocking(true)?;
    if let Some(name) = args.kernel_congestion() {
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
