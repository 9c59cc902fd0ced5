//! Connection to the serving end, its session, and the explanation of a failure.

use std::{sync::Arc, time::Duration};

use tiderace::{
    ClientConfig, CloseReason, ConnectError, Connection, Endpoint, HandshakeFault, Profile,
    transport::tls::rustls_backend::KeyExchange,
};
use tokio::time::timeout;

use super::{path::Path, tcp};
use crate::{
    address::{self, Target},
    failure::Failure,
    probe::{
        ProbeArgs,
        protocol::{self, ALPN, Answer, ExchangeError, Refusal, Request, Welcome},
    },
    trust::{self, Sessions},
};

/// Time that the answer to the first message may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens connection, session and datagrams.
pub(super) async fn connect(target: &Target, args: &ProbeArgs) -> Result<Path, Failure> {
    let mut profile =
        Profile { name: "probe".to_owned(), keep_alive: Some(Duration::from_secs(10)), ..Profile::default() };
    profile.handshake_timeout = args.timeout;
    let (tls, _) = trust::client(&args.trust, ALPN, Sessions::New, &KeyExchange::ALL, None)?;
    let config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
    let name = args.server_name.clone().unwrap_or_else(|| target.host.clone());
    let no_socket =
        |error: std::io::Error| Failure::new(format_args!("cannot open a socket: {}", address::plain(&error)));
    let endpoint = Endpoint::client_for(target.address).map_err(no_socket)?;
    let connecting = endpoint.connect(&config, target.address, &name);
    let connected = async { connecting?.await };
    let connection = match connected.await {
        Ok(connection) => connection,
        Err(error) => return Err(explain(&error, target, args.timeout).await),
    };
    let begin = Request::Begin { token: args.token.clone() };
    let welcome = match timeout(PATIENCE, welcome(&connection, &begin)).await {
        Ok(Ok(welcome)) => welcome,
        Ok(Err(error)) => return Err(refused(&error)),
        Err(_) => return Err(refused(&ExchangeError::Silence)),
    };
    let (tools, peer) = ((endpoint, config), (target.address, name));
    Path::open(tools, peer, connection, welcome, args.bytes.as_bytes()).map_err(no_socket)
}

async fn welcome(connection: &Connection, begin: &Request) -> Result<Welcome, ExchangeError> {
    let (mut send, mut recv) = connection.open_bi().await?;
    protocol::request(&mut send, begin).await?;
    match protocol::read(&mut recv).await? {
        Answer::Welcome(welcome) => Ok(welcome),
        Answer::Refused(refusal) => Err(refusal.into()),
        _ => Err(ExchangeError::Protocol),
    }
}

/// The server did not begin a session.
fn refused(error: &ExchangeError) -> Failure {
    let failure = Failure::new(format_args!("cannot measure: {error}"));
    match error {
        ExchangeError::Refused(Refusal::Token) => failure.hint("give `--token TOKEN`, which the server has printed"),
        ExchangeError::Refused(Refusal::Busy) => failure.hint("try again when others have finished"),
        ExchangeError::Refused(Refusal::Client | Refusal::Total) => {
            failure.hint("try again in an hour, or raise the server's `--client-bytes` and `--total-bytes`")
        }
        _ => failure.hint("the server's own output may say more"),
    }
}

/// Explains a failed connection: reports whether UDP is blocked.
async fn explain(error: &ConnectError, target: &Target, within: Duration) -> Failure {
    let failure = Failure::new(format_args!("cannot connect to {}: {error}", target.address));
    match error {
        ConnectError::Closed(CloseReason::HandshakeTimeout) => {
            if tcp::connects(target.address, within.min(Duration::from_secs(5))).await {
                return Failure::new(format_args!("UDP does not pass to {}, while TCP connects there", target.address))
                    .hint("a firewall blocks UDP, or `tiderace probe --serve` is not what listens at this port");
            }
            failure.hint("does `tiderace probe --serve` run there, and do firewalls let UDP through?")
        }
        ConnectError::Closed(CloseReason::HandshakeFailed { fault: HandshakeFault::Certificate(_), .. }) => {
            failure.hint("say whom to trust: `--pin FINGERPRINT` (the server prints it), `--ca FILE` or `--insecure`")
        }
        ConnectError::Closed(CloseReason::PeerClosed { error } | CloseReason::HandshakeFailed { error, .. })
            if HandshakeFault::of(error.code) == Some(HandshakeFault::NoApplicationProtocol) =>
        {
            failure.hint("the server has to be `tiderace probe --serve` of the same version")
        }
        _ => failure.hint("the server's own output may say more"),
    }
}
