//! Tunnels (`switch`): bytes both ways between client and back end, or capsules and datagrams.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use h3_quic::{
    Datagrams,
    capsule::{self, Capsules},
};
use http::Request;
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tiderace::{Charge, ConnectionBudget};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::Place;
use crate::{
    body::{AnyBody, full},
    ending::{BodyError, Ending, ErrorWithEnding},
    observe::Entry,
    room::ReadRoom,
};

/// The longest capsule that is carried, in bytes: any datagram fits.
const MAX_CAPSULE: usize = 128 * 1024;

/// Bytes of a client that are looked at together for capsules.
const PIECE: usize = 4 * 1024;

/// Parts of an answer that wait for the client.
const PARTS: usize = 4;

/// The client's end of a tunnel.
pub(crate) enum Client {
    /// A connection of HTTP/1.1 or a stream of HTTP/2.
    Upgraded(OnUpgrade),
    /// Stream of HTTP/3: its content, and its datagrams.
    Stream(Box<(AnyBody, Option<Datagrams>)>),
}

impl Client {
    /// Takes the client's end from its request. Datagrams go with `capsules` alone.
    pub(crate) fn of(request: &mut Request<AnyBody>, capsules: bool) -> Self {
        if request.version() != http::Version::HTTP_3 {
            return Self::Upgraded(hyper::upgrade::on(request));
        }
        // RFC 9297 §3.5 MUST NOT-1: without capsules there is no way for datagrams, and none is kept
        let datagrams = request.extensions_mut().remove().filter(|_| capsules);
        Self::Stream(Box::new((std::mem::replace(request.body_mut(), full("")), datagrams)))
    }
}

/// A tunnel on a connection of HTTP/1.1 or a stream of HTTP/2.
pub(crate) struct Upgraded {
    pub(crate) client: OnUpgrade,
    pub(crate) back_end: OnUpgrade,
    /// The request's place with its back end.
    pub(crate) place: Place,
    /// Budget of the client's connection.
    pub(crate) memory: ConnectionBudget,
}

impl Upgraded {
    /// Carries bytes until both directions have ended; then the entry of the request ends, too.
    pub(crate) async fn carry(self, entry: Entry) {
        let down = AtomicU64::new(0);
        let carried = bytes(self.client, self.back_end, &down, &self.memory).await;
        if let Err(error) = &carried {
            tracing::debug!("a switched connection broke off: {error}");
        }
        drop(self.place);
        entry.end_tunnel(down.into_inner(), carried.err().as_ref());
    }
}

/// Carries a tunnel on a stream of HTTP/3 until both directions have ended, on a task. Gives the body of the answer to the client. The
/// client's datagrams are capsules for the back end, and back (RFC 9297 §3.5). What is held is charged, and the request's place kept.
pub(crate) fn carry_stream(
    (content, datagrams): (AnyBody, Option<Datagrams>),
    back_end: OnUpgrade,
    memory: &ConnectionBudget,
    place: Place,
) -> AnyBody {
    let charge = memory.empty();
    let (mut answer, body) = Channel::new(PARTS);
    tokio::spawn(async move {
        let _place = place;
        if let Err(error) = stream(content, datagrams, &mut answer, back_end, charge).await {
            tracing::debug!("a switched stream broke off: {error}");
            // What breaks off must not look complete.
            answer.abort(error);
        }
    });
    body.boxed_unsync()
}

/// Error for a client that breaks the rules of capsules on a tunnel.
fn malformed(error: impl std::fmt::Display) -> BodyError {
    ErrorWithEnding::error(Ending::Malformed, error.to_string())
}

/// Error in a client's data on a tunnel.
fn of_content(error: &BodyError) -> BodyError {
    ErrorWithEnding::error(Ending::of_content(error), error.to_string())
}

/// An error of the client's side of a tunnel.
fn by_client(error: impl std::fmt::Display) -> BodyError {
    ErrorWithEnding::error(Ending::Cancelled, error.to_string())
}

/// Carries bytes both ways, and counts those to the client.
async fn bytes(
    client: OnUpgrade,
    back_end: OnUpgrade,
    down: &AtomicU64,
    memory: &ConnectionBudget,
) -> Result<(), BodyError> {
    let [mut room_up, mut room_down] = [ReadRoom::new(memory, 1)?, ReadRoom::new(memory, 1)?];
    let client = async { client.await.map_err(by_client) };
    let back_end = async { back_end.await.map_err(BodyError::from) };
    let (client, back_end) = tokio::try_join!(client, back_end)?;
    let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(client));
    let (mut from_back_end, mut to_back_end) = tokio::io::split(TokioIo::new(back_end));
    let up = async {
        let mut read = BytesMut::new();
        loop {
            let length = room_up.read(&mut from_client, &mut read).await.map_err(by_client)?;
            if length == 0 {
                return Ok(to_back_end.shutdown().await?);
            }
            to_back_end.write_all_buf(&mut read).await?;
            // TLS may keep the end of what was written.
            to_back_end.flush().await?;
        }
    };
    let down = async {
        let mut read = BytesMut::new();
        loop {
            let length = room_down.read(&mut from_back_end, &mut read).await?;
            if length == 0 {
                return to_client.shutdown().await.map_err(by_client);
            }
            to_client.write_all_buf(&mut read).await.map_err(by_client)?;
            to_client.flush().await.map_err(by_client)?;
            down.fetch_add(length as u64, Ordering::Relaxed);
        }
    };
    tokio::try_join!(up, down)?;
    Ok(())
}

async fn stream(
    content: AnyBody,
    datagrams: Option<Datagrams>,
    answer: &mut Sender<Bytes, BodyError>,
    back_end: OnUpgrade,
    charge: Charge,
) -> Result<(), BodyError> {
    // Those in the channel, and the one in hand.
    let room = ReadRoom::new(charge.budget(), PARTS + 1)?;
    let (read, write) = tokio::io::split(TokioIo::new(back_end.await?));
    let down = async {
        match &datagrams {
            None => bytes_down(read, answer, room).await,
            Some(datagrams) => capsules_down(read, answer, datagrams, room).await,
        }
    };
    let up = async {
        match &datagrams {
            None => bytes_up(content, write).await,
            Some(datagrams) => capsules_up(content, datagrams, write, charge).await,
        }
    };
    tokio::try_join!(up, down)?;
    Ok(())
}

async fn bytes_up(mut content: AnyBody, mut back_end: impl AsyncWrite + Unpin) -> Result<(), BodyError> {
    while let Some(frame) = content.frame().await {
        if let Ok(data) = frame.map_err(|error| of_content(&error))?.into_data() {
            back_end.write_all(&data).await?;
            back_end.flush().await?;
        }
    }
    Ok(back_end.shutdown().await?)
}

async fn bytes_down(
    mut back_end: impl AsyncRead + Unpin,
    answer: &mut Sender<Bytes, BodyError>,
    mut room: ReadRoom,
) -> Result<(), BodyError> {
    let mut read = BytesMut::new();
    loop {
        let length = room.read(&mut back_end, &mut read).await?;
        if length == 0 {
            return Ok(());
        }
        answer.send_data(read.split().freeze()).await.map_err(by_client)?;
    }
}

/// Returns whether few bytes of capsules are held, or half of the connection's memory is free: a large capsule that arrives slowly may be
/// dropped.
fn has_room(charge: &Charge) -> bool {
    charge.bytes() <= 4 * PIECE as u64 || charge.budget().held() <= charge.budget().limit() / 2
}

/// Capsules are carried as wholes, so that datagrams fit between them.
// RFC 9297 §3.2 SHOULD-1, SHOULD-2: as they are, whatever their type
// RFC 9297 §3.3 MUST-1, MUST-5: what is wrong, or ends in the middle of one, breaks the tunnel off
async fn capsules_up(
    mut content: AnyBody,
    datagrams: &Datagrams,
    mut back_end: impl AsyncWrite + Unpin,
    mut charge: Charge,
) -> Result<(), BodyError> {
    let mut capsules = Capsules::new(MAX_CAPSULE);
    let mut out = Vec::new();
    loop {
        let mut said = tokio::select! {
            frame = content.frame() => {
                let Some(frame) = frame else { break };
                let Ok(data) = frame.map_err(|error| of_content(&error))?.into_data() else { continue };
                data
            }
            Some(datagram) = datagrams.recv() => {
                capsule::write(&mut out, capsule::DATAGRAM, &datagram);
                // What came in one packet leaves with one call.
                while out.len() < PIECE && let Some(datagram) = datagrams.try_recv() {
                    capsule::write(&mut out, capsule::DATAGRAM, &datagram);
                }
                Bytes::new()
            }
        };
        // By and by, so that little is held twice while the back end takes its time.
        loop {
            capsules.push(&said.split_to(said.len().min(PIECE)));
            while let Some(capsule) = capsules.take().map_err(malformed)? {
                capsule::write(&mut out, capsule.ty, &capsule.value);
            }
            let held = (capsules.held() + out.capacity()) as u64;
            if held != charge.bytes() && !(charge.try_set(held) && has_room(&charge)) {
                let what = "the connection holds too much for another capsule";
                return Err(ErrorWithEnding::error(Ending::Memory, what));
            }
            back_end.write_all(&out).await?;
            back_end.flush().await?;
            out.clear();
            // A large one was the exception.
            out.shrink_to(PIECE);
            if said.is_empty() {
                break;
            }
        }
    }
    if !capsules.is_between() {
        return Err(malformed("the client's stream ends in the middle of a capsule"));
    }
    Ok(back_end.shutdown().await?)
}

async fn capsules_down(
    mut back_end: impl AsyncRead + Unpin,
    answer: &mut Sender<Bytes, BodyError>,
    datagrams: &Datagrams,
    mut room: ReadRoom,
) -> Result<(), BodyError> {
    let mut capsules = Capsules::new(MAX_CAPSULE);
    let mut read = BytesMut::new();
    loop {
        let length = room.read(&mut back_end, &mut read).await?;
        if length == 0 {
            break;
        }
        capsules.push(&read);
        read.advance(read.len());
        while let Some(capsule) = capsules.take()? {
            let is_datagram = capsule.ty == capsule::DATAGRAM;
            // One that does not fit into a packet goes on the stream, where it arrives late rather than not at all.
            if is_datagram && datagrams.max_size().is_some_and(|max| capsule.value.len() <= max) {
                datagrams.send(&capsule.value).map_err(by_client)?;
                continue;
            }
            let mut out = Vec::new();
            capsule::write(&mut out, capsule.ty, &capsule.value);
            answer.send_data(out.into()).await.map_err(by_client)?;
        }
    }
    if !capsules.is_between() {
        return Err("the back end's stream ends in the middle of a capsule".into());
    }
    Ok(())
}
