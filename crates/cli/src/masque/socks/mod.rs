//! A SOCKS5 proxy (RFC 1928) whose connections and datagrams are tunnels.
//!
//! In the order in which a program meets them: `handshake` reads its request, this file opens a tunnel for TCP, `association` has the tunnels
//! of its datagrams, and `bound` one for all of them. `codec` has the messages, `refusal` the codes of refused tunnels.

mod association;
mod bound;
mod codec;
mod handshake;
mod refusal;

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use self::{
    association::Association,
    bound::BoundUdp,
    codec::{Address, Command, Host, ReplyCode},
    handshake::{Asked, Users},
};
use super::{
    SocksArgs, Target, Tunnels, connections,
    flow::Counts,
    refused,
    tcp::{self, Broken, Carried},
};
use crate::{address, failure::Failure, interrupt::Interrupt, printable::printable, stdout::write_json_line};

/// A running proxy.
struct Server {
    tunnels: Arc<Tunnels>,
    bound: Arc<BoundUdp>,
    users: Users,
    handshake_within: Duration,
    idle: Duration,
    max_tunnels: usize,
    /// Datagrams of all programs.
    counts: Arc<Counts>,
    connections: AtomicU64,
    associations: AtomicU64,
    refused: AtomicU64,
}

impl From<Address> for Target {
    fn from(address: Address) -> Self {
        let host = match address.host {
            Host::Ip(ip) => ip.to_canonical().to_string(),
            Host::Name(name) => name,
        };
        Self { host, port: address.port }
    }
}

/// Runs until it is interrupted.
pub(super) async fn run(
    args: &SocksArgs,
    tunnels: &Arc<Tunnels>,
    mut interrupt: Interrupt,
) -> Result<ExitCode, Failure> {
    let users = args.users.as_deref().map(Users::read).transpose()?;
    check_listen(args, users.is_some())?;
    let listener = TcpListener::bind(args.listen).await.map_err(|error| address::cannot_listen(args.listen, &error))?;
    let bound = listener.local_addr().map_err(|error| address::cannot_listen(args.listen, &error))?;
    if let Err(error) = tunnels.proxy.connect().await {
        return Ok(refused(&error));
    }
    if tunnels.json {
        write_json_line(&json!({ "event": "listening", "address": bound.to_string(), "proxy": args.proxy.proxy }))?;
    } else {
        eprintln!("SOCKS5 on {bound} leads through {}, Ctrl-C ends", printable(&args.proxy.proxy));
    }
    connections::begin_reports(tunnels);
    let server = Arc::new(Server {
        tunnels: tunnels.clone(),
        bound: Arc::new(BoundUdp::new(tunnels, !args.no_bound)),
        users: users.unwrap_or_default(),
        handshake_within: Duration::from_secs(args.handshake_within),
        idle: Duration::from_secs(args.idle),
        max_tunnels: args.max_tunnels.into(),
        counts: Arc::default(),
        connections: AtomicU64::new(0),
        associations: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    let (end, ended) = watch::channel(false);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if tasks.len() < args.max_connections.into() => match accepted {
                Ok((stream, peer)) => drop(tasks.spawn(server.clone().serve(stream, peer, ended.clone()))),
                // No descriptor is free, or the program has gone.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = tasks.join_next() => {}
            () = interrupt.wait() => break,
        }
    }
    // Each ends its tunnels, and reports what they have carried.
    end.send_replace(true);
    while tasks.join_next().await.is_some() {}
    tunnels.connections.end_reports().await;
    server.total()?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses an address that other machines reach, unless the user permits it.
fn check_listen(args: &SocksArgs, has_users: bool) -> Result<(), Failure> {
    if args.listen.ip().is_loopback() {
        return Ok(());
    }
    if !args.allow_remote {
        let failure = Failure::new(format_args!("{} is no address of this machine alone", args.listen));
        return Err(failure
            .hint("listen at 127.0.0.1 or [::1]; with --allow-remote whoever reaches the port may use the proxy"));
    }
    if !has_users {
        eprintln!("WARNING: --allow-remote without --users: whoever reaches {} may use the proxy.", args.listen);
    }
    Ok(())
}

impl Server {
    /// Serves one connection of a program.
    async fn serve(self: Arc<Self>, mut stream: TcpStream, peer: SocketAddr, mut ended: watch::Receiver<bool>) {
        // A failure costs some latency and nothing else.
        let _ = stream.set_nodelay(true);
        let asking = tokio::time::timeout(self.handshake_within, handshake::accept(&mut stream, &self.users));
        let asked = tokio::select! {
            asked = asking => asked,
            _ = ended.wait_for(|ended| *ended) => return,
        };
        let reason = match asked {
            Ok(Ok(Asked { request, rest })) => match request.command {
                Command::UdpAssociate => return self.associate(stream, peer, request.address, ended).await,
                _ => return self.connect(stream, peer, (request.address.into(), rest), ended).await,
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the program sent no request within {} s", self.handshake_within.as_secs()),
        };
        self.refused.fetch_add(1, Relaxed);
        let event = json!({ "event": "refused", "peer": peer.to_string(), "reason": reason });
        self.tunnels.report(&event, &format!("{peer}: {reason}"));
        tokio::select! {
            () = handshake::close(stream) => {}
            _ = ended.wait_for(|ended| *ended) => {}
        }
    }

    /// Carries a connection, and reports its outcome.
    async fn connect(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        (target, rest): (Target, bytes::Bytes),
        mut ended: watch::Receiver<bool>,
    ) {
        self.connections.fetch_add(1, Relaxed);
        let mut carried = Carried::default();
        let mut code = None;
        let carrying = async {
            let tunnel = match self.tunnels.proxy.open_tcp(&target.host, target.port).await {
                Ok(tunnel) => tunnel,
                Err(error) => {
                    code = Some(refusal::code_of(&error));
                    return Err(error.into());
                }
            };
            code = Some(ReplyCode::Succeeded);
            handshake::reply(&mut stream, ReplyCode::Succeeded).await.map_err(Broken::Program)?;
            tcp::carry(&mut stream, tunnel, rest, &mut carried).await
        };
        let outcome = tokio::select! {
            outcome = carrying => Some(outcome),
            _ = ended.wait_for(|ended| *ended) => None,
        };
        let (reason, hint) = match &outcome {
            Some(Ok(())) => ("ended".to_owned(), None),
            Some(Err(error)) => (error.reason(), error.hint()),
            None => ("the command was interrupted".to_owned(), None),
        };
        let Carried { up, down, protocol } = carried;
        let event = json!({
            "event": "closed", "peer": peer.to_string(), "target": target.to_string(), "kind": "tcp", "reason": reason,
            "reply": code.map(|code| code as u8), "protocol": protocol, "up_bytes": up, "down_bytes": down, "hint": hint,
        });
        let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        self.tunnels.report(&event, &format!("{peer} to {target}: {reason}{hint}; {up} bytes up, {down} down"));
        match code {
            Some(ReplyCode::Succeeded) if outcome.is_some() => {}
            Some(code) if outcome.is_some() => {
                if handshake::reply(&mut stream, code).await.is_ok() {
                    handshake::close(stream).await;
                }
            }
            // What was interrupted must not look complete.
            _ => tcp::reset(&stream),
        }
    }

    /// Carries the datagrams of a program as long as its connection is open.
    async fn associate(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        announced: Address,
        mut ended: watch::Receiver<bool>,
    ) {
        self.associations.fetch_add(1, Relaxed);
        let opened = tokio::select! {
            opened = Association::open(self, &mut stream, peer, announced.port) => opened,
            _ = ended.wait_for(|ended| *ended) => return,
        };
        let event = |reason: &str, drops: serde_json::Value| json!({ "event": "closed", "peer": peer.to_string(), "kind": "association", "reason": reason, "drops": drops });
        let mut association = match opened {
            Ok(association) => association,
            Err(error) => {
                let reason = format!("there is no port for datagrams: {}", address::plain(&error));
                self.tunnels.report(&event(&reason, serde_json::Value::Null), &format!("{peer}: {reason}"));
                return;
            }
        };
        let reason = tokio::select! {
            reason = association.run(&mut stream) => reason,
            _ = ended.wait_for(|ended| *ended) => "the command was interrupted",
        };
        let drops = association.end(reason).await;
        self.tunnels.report(&event(reason, drops.json()), &format!("{peer}: {reason}{}", drops.text()));
    }

    /// Reports sums at the end.
    fn total(&self) -> Result<(), Failure> {
        let [connections, associations, refused] =
            [&self.connections, &self.associations, &self.refused].map(|count| count.load(Relaxed));
        if self.tunnels.json {
            return write_json_line(&json!({
                "event": "total", "connections": connections, "associations": associations, "refused": refused,
                "counts": self.counts.json(),
            }));
        }
        let datagrams = self.counts.text();
        eprintln!("{connections} connections, {associations} associations, {refused} refused; {datagrams}");
        Ok(())
    }
}
