//! UDP tunnel (RFC 9298): a connected socket, and on the client's side HTTP datagrams or capsules.
//!
//! - Towards the target: a datagram for which the socket has no room is dropped. There is no queue here.
//! - Towards the client: a datagram that does not fit into a QUIC datagram is dropped, unless it has 1,200 bytes or less. Such a datagram
//!   is sent as a capsule on the stream, together with others that have waited for it. Over HTTP/2 and HTTP/1.1 all datagrams are capsules, and the
//!   buffer of the socket is the queue.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use h3_quic::{
    Datagrams,
    capsule::{self, Capsules},
    connect_udp::{ALWAYS_CARRIED, Content, MAX_PAYLOAD, UDP_CONTEXT},
};
use http_body_util::{BodyExt, channel::Sender};
use tiderace::Charge;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::Instant,
};

use super::{capsule_queue::CapsuleQueue, clients::TunnelPlace, socket::TargetSocket};
use crate::{
    body::AnyBody,
    ending::{BodyError, Ending, ErrorWithEnding},
    observe::{Direction, DropReason, Traffic},
};

/// The longest DATAGRAM capsule: the longest UDP payload, and the longest form of its context ID.
const MAX_CAPSULE: usize = MAX_PAYLOAD + 8;
/// The longest payload for a client of HTTP/3 that takes no datagrams: its capsules wait on the stream.
pub(super) const MAX_H3_CAPSULE: usize = 1_500;
/// Bytes of capsules that are looked at together.
pub(super) const PIECE: usize = 4 * 1024;
/// Datagrams that are carried in one direction before the other gets its turn.
pub(super) const TURN: usize = 64;

/// Reason why a tunnel ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client has ended its side.
    Client,
    /// Idle timeout.
    Idle,
    /// The system reports that the target is unreachable.
    Target(io::Error),
    /// The client breaks the rules, or its connection broke off.
    Broken(BodyError),
}

impl End {
    pub(super) fn malformed(error: impl std::fmt::Display) -> Self {
        Self::Broken(ErrorWithEnding::error(Ending::Malformed, error.to_string()))
    }
}

/// A tunnel.
pub(super) struct UdpTunnel {
    pub(super) socket: TargetSocket,
    pub(super) traffic: Arc<Traffic>,
    pub(super) place: TunnelPlace,
    pub(super) idle_timeout: Duration,
}

/// Returns whether the target will not take datagrams after this error, an ICMP report.
// RFC 9298 §3.1 MUST-6
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
    )
}

impl UdpTunnel {
    /// Sends what an HTTP datagram has in it to the target.
    // RFC 9298 §6 SHOULD-1, SHOULD NOT-1: at once, and nothing waits for more
    fn up(&self, datagram: &[u8]) -> Result<(), End> {
        let payload = match Content::parse(datagram) {
            Content::Udp(payload) => payload,
            Content::Unknown => {
                self.traffic.on_drop(Direction::Up, DropReason::UnknownContext);
                return Ok(());
            }
            Content::TooLong => return Err(End::malformed("a UDP payload of more than 65,527 bytes")),
        };
        if !self.place.may_carry(payload.len()) {
            self.traffic.on_drop(Direction::Up, DropReason::Rate);
            return Ok(());
        }
        match self.socket.try_send(payload) {
            Ok(()) => self.traffic.on_datagram(Direction::Up, payload.len()),
            Err(error) if is_final(&error) => return Err(End::Target(error)),
            Err(error) => self.traffic.on_drop(Direction::Up, DropReason::of(&error)),
        }
        Ok(())
    }

    /// Carries datagrams over HTTP/3 until one side ends.
    // RFC 9298 §3.1 MUST-5: the socket is open until then
    pub(super) async fn over_h3(
        &self,
        mut content: AnyBody,
        datagrams: &Datagrams,
        answer: &mut Sender<Bytes, BodyError>,
        mut charge: Charge,
    ) -> End {
        let base = charge.bytes();
        let mut down = CapsuleQueue::new(charge.budget());
        let mut capsules = Capsules::only(capsule::DATAGRAM, MAX_CAPSULE);
        let mut idle = Idle::new(self.idle_timeout);
        let carried = async {
            loop {
                tokio::select! {
                    frame = content.frame() => {
                        let Some(frame) = frame else {
                            return if capsules.is_between() { Err(End::Client) } else { Err(in_the_middle()) };
                        };
                        let frame = frame.map_err(|error| End::Broken(ErrorWithEnding::error(Ending::of_content(&error), error.to_string())))?;
                        let Ok(data) = frame.into_data() else { continue };
                        for piece in data.chunks(PIECE) {
                            self.take_capsules(&mut capsules, piece, &mut charge, base)?;
                        }
                        idle.on_traffic();
                    }
                    Some(datagram) = datagrams.recv() => {
                        self.up(&datagram)?;
                        for _ in 1..TURN {
                            let Some(datagram) = datagrams.try_recv() else { break };
                            self.up(&datagram)?;
                        }
                        idle.on_traffic();
                    }
                    ready = self.socket.readable() => {
                        ready.map_err(End::Target)?;
                        if self.down_h3(datagrams, &mut down)? {
                            idle.on_traffic();
                        }
                    }
                    sent = down.send(answer) => sent.map_err(|error| {
                        End::Broken(ErrorWithEnding::error(Ending::Cancelled, error.to_string()))
                    })?,
                    () = idle.over() => return Err(End::Idle),
                }
            }
        };
        let carried: Result<std::convert::Infallible, End> = carried.await;
        let dropped = datagrams.dropped();
        self.traffic.on_drops(Direction::Up, DropReason::QueueFull, dropped);
        match carried {
            Err(end) => end,
        }
    }

    fn take_capsules(&self, capsules: &mut Capsules, piece: &[u8], charge: &mut Charge, base: u64) -> Result<(), End> {
        capsules.push(piece);
        while let Some(capsule) = capsules.take().map_err(End::malformed)? {
            self.up(&capsule.value)?;
        }
        if !charge.try_set(base + capsules.held() as u64) {
            let what = "the connection holds too much for another capsule";
            return Err(End::Broken(ErrorWithEnding::error(Ending::Memory, what)));
        }
        Ok(())
    }

    /// Sends datagrams of the target to a client of HTTP/3. Returns whether there were any.
    fn down_h3(&self, datagrams: &Datagrams, capsules: &mut CapsuleQueue) -> Result<bool, End> {
        let (mut count, mut is_too_small) = (0, false);
        while count < TURN {
            let room = datagrams.max_size();
            let received = self.socket.try_receive(|payload| {
                if !self.place.may_carry(payload.len()) {
                    return self.traffic.on_drop(Direction::Down, DropReason::Rate);
                }
                let most = if room.is_some() { ALWAYS_CARRIED } else { MAX_H3_CAPSULE };
                let fits = room.is_some_and(|room| payload.len() < room);
                is_too_small |= room.is_some() && !fits;
                let is_sent = if fits {
                    datagrams.send_parts(&[&[UDP_CONTEXT], payload]).map_err(|_| DropReason::NotSent)
                } else if payload.len() <= most {
                    if capsules.push(&[UDP_CONTEXT], payload) { Ok(()) } else { Err(DropReason::QueueFull) }
                } else {
                    // RFC 9298 §6.1 SHOULD NOT-1: without the privilege to send ICMP it is dropped, and that is all
                    Err(DropReason::TooLarge)
                };
                match is_sent {
                    Ok(()) => self.traffic.on_datagram(Direction::Down, payload.len()),
                    Err(reason) => self.traffic.on_drop(Direction::Down, reason),
                }
            });
            match received {
                Ok(received) => count += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_final(&error) => return Err(End::Target(error)),
                Err(_) => break,
            }
        }
        // Nothing else may fill packets, so that a search would never begin.
        if is_too_small {
            datagrams.discover_max_size();
        }
        Ok(count > 0)
    }

    /// Carries capsules over a connection of HTTP/1.1 or a stream of HTTP/2 until one side ends.
    pub(super) async fn over_stream(&self, client: impl AsyncRead + AsyncWrite + Send, mut charge: Charge) -> End {
        let (mut from, mut to) = tokio::io::split(client);
        let base = charge.bytes();
        let mut down_charge = charge.budget().empty();
        let idle = std::sync::Mutex::new(Idle::new(self.idle_timeout));
        let on_traffic = || idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).on_traffic();
        let up = async {
            let mut capsules = Capsules::only(capsule::DATAGRAM, MAX_CAPSULE);
            let mut read = BytesMut::with_capacity(PIECE);
            loop {
                read.clear();
                read.reserve(PIECE);
                let length = from.read_buf(&mut read).await.map_err(by_client)?;
                if length == 0 {
                    return Err(if capsules.is_between() { End::Client } else { in_the_middle() });
                }
                on_traffic();
                self.take_capsules(&mut capsules, &read, &mut charge, base)?;
            }
        };
        let down = async {
            let mut out = Vec::new();
            loop {
                self.socket.readable().await.map_err(End::Target)?;
                let received = self.socket.try_receive(|payload| {
                    if !self.place.may_carry(payload.len()) {
                        return self.traffic.on_drop(Direction::Down, DropReason::Rate);
                    }
                    if !down_charge.try_set((out.len() + payload.len()) as u64) {
                        return self.traffic.on_drop(Direction::Down, DropReason::QueueFull);
                    }
                    out.extend(in_capsule(payload));
                    self.traffic.on_datagram(Direction::Down, payload.len());
                });
                match received {
                    Ok(_) => {}
                    Err(error) if is_final(&error) => return Err(End::Target(error)),
                    Err(_) => continue,
                }
                to.write_all(&out).await.map_err(by_client)?;
                to.flush().await.map_err(by_client)?;
                on_traffic();
                out.clear();
                out.shrink_to(PIECE);
                down_charge.set(out.capacity() as u64);
            }
        };
        let over = async {
            loop {
                let until = idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).until();
                if until <= Instant::now() {
                    return Err(End::Idle);
                }
                tokio::time::sleep_until(until).await;
            }
        };
        let carried: Result<((), (), ()), End> = tokio::try_join!(up, down, over);
        let end = carried.map_or_else(|end| end, |_| End::Client);
        // The stream ends with the socket; the client may have gone.
        let _ = tokio::time::timeout(Duration::from_secs(1), to.shutdown()).await;
        end
    }
}

pub(super) fn in_the_middle() -> End {
    End::malformed("the client's stream ends in the middle of a capsule")
}

pub(super) fn by_client(error: io::Error) -> End {
    End::Broken(ErrorWithEnding::error(Ending::Cancelled, error.to_string()))
}

/// Writes some of the bytes, or flushes the stream when there are none. Cancel safe.
pub(super) async fn write_some(to: &mut (impl AsyncWrite + Unpin), out: &[u8]) -> io::Result<usize> {
    if out.is_empty() {
        return to.flush().await.map(|()| 0);
    }
    match to.write(out).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        written => Ok(written),
    }
}

/// Removes what [`write_some`] has written, and the buffer when nothing is left. Returns whether the stream was flushed.
pub(super) fn on_written(out: &mut BytesMut, written: usize) -> bool {
    out.advance(written);
    if out.is_empty() {
        *out = BytesMut::new();
    }
    written == 0
}

/// A UDP payload as a DATAGRAM capsule.
fn in_capsule(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 16);
    capsule::write_parts(&mut out, capsule::DATAGRAM, &[&[UDP_CONTEXT], payload]);
    out
}

/// Time without traffic.
pub(super) struct Idle {
    last: Instant,
    timeout: Duration,
}

impl Idle {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { last: Instant::now(), timeout }
    }

    pub(super) fn on_traffic(&mut self) {
        self.last = Instant::now();
    }

    fn until(&self) -> Instant {
        self.last + self.timeout
    }

    /// Waits for the idle timeout.
    pub(super) async fn over(&self) {
        tokio::time::sleep_until(self.until()).await;
    }
}
