//! Running tunnels: on their own task for a stream of HTTP/3, behind an upgrade for HTTP/1.1 and HTTP/2.

use std::sync::Arc;

use h3_quic::Datagrams;
use http_body_util::{BodyExt, channel::Channel};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tiderace::Charge;
use tokio::sync::oneshot;

use super::{
    PARTS,
    bound::BoundTunnel,
    ip::IpTunnel,
    tcp::TcpTunnel,
    udp::{End, UdpTunnel},
};
use crate::{
    body::{self, AnyBody},
    ending::{BodyError, Cause, Ending, ErrorWithEnding},
    observe::{Entry, Traffic},
};

/// A tunnel to a target.
pub(super) enum Tunnel {
    Udp(Box<UdpTunnel>),
    BoundUdp(Box<BoundTunnel>),
    Ip(Box<IpTunnel>),
    Tcp(Box<TcpTunnel>),
}

/// A tunnel on a connection of HTTP/1.1 or a stream of HTTP/2.
pub(crate) struct Upgraded {
    pub(super) client: OnUpgrade,
    pub(super) tunnel: Tunnel,
    pub(super) charge: Charge,
}

impl Tunnel {
    pub(super) fn traffic(&self) -> &Arc<Traffic> {
        match self {
            Self::Udp(tunnel) => &tunnel.traffic,
            Self::BoundUdp(tunnel) => tunnel.traffic(),
            Self::Ip(tunnel) => &tunnel.traffic,
            Self::Tcp(tunnel) => &tunnel.traffic,
        }
    }

    /// Carries a tunnel on a stream of HTTP/3, on a task that ends with the stream. Gives the body of the answer to the client.
    pub(super) fn carry_stream(
        self,
        content: AnyBody,
        datagrams: Option<Datagrams>,
        charge: Charge,
        cause: Cause,
    ) -> AnyBody {
        let (mut answer, body) = Channel::new(PARTS);
        let (alive, gone) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let carrying = async {
                match (self, datagrams) {
                    (Self::Udp(tunnel), Some(datagrams)) => {
                        let end = tunnel.over_h3(content, &datagrams, &mut answer, charge).await;
                        result_of(end, &cause)
                    }
                    (Self::BoundUdp(tunnel), Some(datagrams)) => {
                        let end = tunnel.over_h3(content, &datagrams, &mut answer, charge).await;
                        result_of(end, &cause)
                    }
                    (Self::Ip(tunnel), Some(datagrams)) => {
                        let end = tunnel.over_h3(content, &datagrams, &mut answer, charge).await;
                        result_of(end, &cause)
                    }
                    (Self::Udp(_) | Self::BoundUdp(_) | Self::Ip(_), None) => {
                        Err(ErrorWithEnding::error(Ending::Fault, "a stream without datagrams"))
                    }
                    (Self::Tcp(tunnel), _) => tunnel.over_h3(content, &mut answer, charge.budget()).await,
                }
            };
            let carried = tokio::select! {
                carried = carrying => carried,
                // The client has given the answer up.
                _ = gone => return,
            };
            if let Err(error) = carried {
                tracing::debug!("a tunnel broke off: {error}");
                // What breaks off must not look complete.
                answer.abort(error);
            }
        });
        body::with(body.boxed_unsync(), alive)
    }
}

/// Result of a request whose tunnel for UDP or IP has ended. An unreachable target and the idle timeout end the stream cleanly.
// RFC 9298 §3.1 MUST-7, RFC 9484 §4.1 MUST-6: the stream is closed when the socket is, or the tunnel is idle
fn result_of(end: End, cause: &Cause) -> Result<(), BodyError> {
    match end {
        End::Client => {}
        End::Idle => cause.note(Ending::Idle),
        End::Target(error) => {
            tracing::debug!("the target of a tunnel: {error}");
            cause.note(Ending::Unreachable);
        }
        End::Broken(error) => return Err(error),
    }
    Ok(())
}

impl Upgraded {
    /// Carries the tunnel until it ends; then the entry of the request ends, too.
    pub(crate) async fn carry(self, entry: Entry) {
        let Self { client, tunnel, charge } = self;
        let carried = match client.await {
            Err(error) => Err(ErrorWithEnding::error(Ending::Cancelled, error.to_string())),
            Ok(client) => match tunnel {
                Tunnel::Udp(tunnel) => {
                    let end = tunnel.over_stream(TokioIo::new(client), charge).await;
                    result_of(end, &entry.cause())
                }
                Tunnel::BoundUdp(tunnel) => {
                    let end = tunnel.over_stream(TokioIo::new(client), charge).await;
                    result_of(end, &entry.cause())
                }
                Tunnel::Ip(tunnel) => {
                    let end = tunnel.over_stream(TokioIo::new(client), charge).await;
                    result_of(end, &entry.cause())
                }
                Tunnel::Tcp(tunnel) => tunnel.over_stream(TokioIo::new(client), charge.budget()).await,
            },
        };
        if let Err(error) = &carried {
            tracing::debug!("a tunnel broke off: {error}");
        }
        entry.end_tunnel(0, carried.err().as_ref());
    }
}
