//! Requests over QUIC: they begin sessions, request trains, and load the path.

use std::{net::IpAddr, sync::Arc, time::Duration};

use serde_json::json;
use tiderace::{Connection, Endpoint, ReadError, RecvStream, SendStream, WriteError};
use tokio::time::{Instant, timeout};

use super::{
    Server,
    session::{Session, lock},
};
use crate::{
    printable::printable,
    probe::{
        protocol::{self, Answer, ENOUGH, ExchangeError, Order, PROTOCOL_ERROR, Refusal, Request, Welcome},
        wire::{HEAD, Kind, Packet},
    },
    stdout::{write_json_line, write_out},
};

/// Timeout of the first request on a connection without a session.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest UDP payload of a train: that of a jumbo frame.
const SIZE_MAX: u16 = 9_000;
/// Shortest time between two packets of a train, which is 2.4 Gbit/s in packets of 1,228 bytes.
const GAP_MIN_NS: u64 = 4_000;

/// Accepts connections until the endpoint closes.
pub(super) async fn accept(server: &Arc<Server>, endpoint: &Endpoint) {
    // Not early: by then the address of the client is validated.
    while let Some(connection) = endpoint.accept().await {
        let server = server.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(&server, &connection).await {
                tracing::debug!("probe: {error}");
            }
            connection.close(0, b"");
        });
    }
}

/// Serves a connection until it has ended.
async fn serve(server: &Arc<Server>, connection: &Connection) -> Result<(), ExchangeError> {
    let Some(client) = connection.remote_address().map(|address| address.ip().to_canonical()) else { return Ok(()) };
    let first = async {
        let (send, mut recv) = connection.accept_bi().await?;
        Ok::<_, ExchangeError>((send, protocol::read(&mut recv).await?))
    };
    let (mut send, first) = timeout(PATIENCE, first).await.map_err(|_| ExchangeError::Silence)??;
    let begun = match first {
        Request::Begin { token } => begin(server, client, token.as_deref()),
        Request::Join { session } => join(server, client, &session),
        _ => Err(Refusal::Request),
    };
    let (member, answer) = match begun {
        Ok((member, answer)) => (member, answer),
        Err(refusal) => {
            protocol::write(&mut send, &Answer::Refused(refusal)).await?;
            send.finish()?;
            // Until the client has it, but no longer than a stranger may stay.
            let _ = timeout(PATIENCE, connection.closed()).await;
            return Ok(());
        }
    };
    protocol::write(&mut send, &answer).await?;
    send.finish()?;
    let ends = tokio::time::sleep_until(member.session.ends().into());
    tokio::pin!(ends);
    loop {
        tokio::select! {
            stream = connection.accept_bi() => {
                let (send, recv) = stream?;
                let (server, session, connection) = (server.clone(), member.session.clone(), connection.clone());
                tokio::spawn(async move {
                    if let Err(error) = answer_one(&server, &session, &connection, (send, recv)).await {
                        tracing::debug!("probe: {error}");
                    }
                });
            }
            () = &mut ends => return Ok(()),
        }
    }
}

/// Connection of a session. The session ends with the one that began it.
struct Member {
    server: Arc<Server>,
    session: Arc<Session>,
    has_begun: bool,
    since: Instant,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.session.leave();
        if !self.has_begun {
            return;
        }
        let mut sessions = lock(&self.server.sessions);
        for key in [self.session.join, self.session.udp, self.session.tcp] {
            sessions.remove(&key);
        }
        drop(sessions);
        let (client, left) = (self.session.client.to_string(), self.session.left());
        let seconds = self.since.elapsed().as_secs_f64();
        // Nobody reads the output any more: the measurements continue all the same.
        let _ = if self.server.is_json {
            write_json_line(&json!({"event": "session", "client": client, "duration_s": seconds, "bytes_left": left}))
        } else {
            let left = indicatif::DecimalBytes(left);
            write_out(&format!("{}: measured for {seconds:.1} s, {left} of its bytes left\n", printable(&client)))
        };
    }
}

/// Compares without telling by its time how much was right.
fn is_same(said: &str, token: &str) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(said.as_bytes(), token.as_bytes()).is_ok()
}

fn begin(server: &Arc<Server>, client: IpAddr, token: Option<&str>) -> Result<(Member, Answer), Refusal> {
    if !server.token.as_deref().is_none_or(|own| token.is_some_and(|said| is_same(said, own))) {
        return Err(Refusal::Token);
    }
    let session = Session::begin(client, &server.ledger, server.lasts)?;
    let mut sessions = lock(&server.sessions);
    for key in [session.join, session.udp, session.tcp] {
        sessions.insert(key, session.clone());
    }
    drop(sessions);
    let welcome = Welcome {
        session: session.join,
        udp: session.udp,
        tcp: session.tcp,
        udp_port: server.udp_port,
        tcp_port: server.tcp_port,
        bytes: session.left(),
        seconds: server.lasts.as_secs(),
    };
    Ok((Member { server: server.clone(), session, has_begun: true, since: Instant::now() }, Answer::Welcome(welcome)))
}

fn join(server: &Arc<Server>, client: IpAddr, key: &[u8; 16]) -> Result<(Member, Answer), Refusal> {
    let session = server.session(key).filter(|session| session.join == *key && session.client == client);
    let session = session.ok_or(Refusal::Over)?;
    if !session.join() {
        return Err(Refusal::Busy);
    }
    Ok((Member { server: server.clone(), session, has_begun: false, since: Instant::now() }, Answer::Done))
}

/// Answers one stream of a session.
async fn answer_one(
    server: &Arc<Server>,
    session: &Arc<Session>,
    connection: &Connection,
    (mut send, mut recv): (SendStream, RecvStream),
) -> Result<(), ExchangeError> {
    let request = timeout(PATIENCE, protocol::read(&mut recv)).await.map_err(|_| ExchangeError::Silence)??;
    match request {
        Request::Echo => protocol::write(&mut send, &Answer::Done).await?,
        Request::Records { train } => {
            let (records, dropped) = session.take_records(train);
            let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
            protocol::write(&mut send, &Answer::Records { count, dropped }).await?;
            // Piecewise, so that what is encoded is never more than the stream takes.
            for part in records.chunks(1_000) {
                let mut bytes = Vec::new();
                part.iter().for_each(|record| record.write(&mut bytes));
                send.write_all(&bytes).await?;
            }
        }
        Request::Send(order) => {
            let answer = train(server, session, order).await;
            protocol::write(&mut send, &answer).await?;
        }
        Request::SendLater { to, train, after_ms } => {
            let answer = match session.address(to) {
                Some(_) => Answer::Done,
                None => Answer::Refused(Refusal::Address),
            };
            protocol::write(&mut send, &answer).await?;
            let wait =
                Duration::from_millis(after_ms).min(session.ends().saturating_duration_since(Instant::now().into()));
            tokio::time::sleep(wait).await;
            let order = Order { to, train, size: HEAD as u16, count: 1, gap_ns: GAP_MIN_NS, ecn: 0 };
            self::train(server, session, order).await;
        }
        Request::Congestion { name } => {
            let known = name.parse().map(|algorithm| connection.set_congestion(algorithm));
            let answer = known.map_or(Answer::Refused(Refusal::Request), |()| Answer::Done);
            protocol::write(&mut send, &answer).await?;
        }
        Request::Download => download(session, &mut send).await?,
        Request::Upload => {
            upload(session, &mut recv).await?;
            protocol::write(&mut send, &Answer::Done).await?;
        }
        Request::Begin { .. } | Request::Join { .. } => {
            protocol::write(&mut send, &Answer::Refused(Refusal::Request)).await?;
        }
    }
    send.finish()?;
    send.finished().await?;
    Ok(())
}

/// Sends a train.
async fn train(server: &Arc<Server>, session: &Arc<Session>, order: Order) -> Answer {
    let Some((to, own)) = session.address(order.to) else { return Answer::Refused(Refusal::Address) };
    if usize::from(order.size) < HEAD || order.size > SIZE_MAX || order.gap_ns < GAP_MIN_NS || order.ecn > 3 {
        return Answer::Refused(Refusal::Request);
    }
    let packet = Packet { key: session.udp, kind: Kind::Data, train: order.train, number: 0, sent: 0, nonce: order.to };
    Answer::Sent(server.port.train(to, own, packet, order, |bytes| session.spend(bytes), |_| {}).await)
}

/// Sends until the client has enough, or the session's bytes are used up.
async fn download(session: &Session, send: &mut SendStream) -> Result<(), ExchangeError> {
    let payload = protocol::payload();
    while session.spend(payload.len() as u64) {
        match send.write_chunk(payload.clone()).await {
            Ok(()) => {}
            Err(WriteError::Stopped(_)) => return Ok(send.reset(ENOUGH)?),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Takes what the client sends.
async fn upload(session: &Session, recv: &mut RecvStream) -> Result<(), ExchangeError> {
    loop {
        match recv.read_chunk(usize::MAX).await {
            Ok(Some(chunk)) if session.spend(chunk.len() as u64) => {}
            Ok(Some(_)) => return Ok(recv.stop(PROTOCOL_ERROR)?),
            Ok(None) | Err(ReadError::Reset(ENOUGH)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
