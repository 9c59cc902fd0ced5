//! One direction of a tunnel: bytes, or capsules and datagrams.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use h3_quic::{
    Datagrams,
    capsule::{self, Capsules},
};
use tiderace::Charge;

use super::ends::{Reader, Side, Writer};
use crate::ending::{BodyError, Ending, ErrorWithEnding};

/// The longest capsule that is carried, in bytes: any datagram fits.
const MAX_CAPSULE: usize = 128 * 1024;

/// Bytes that are looked at together for capsules.
const PIECE: usize = 4 * 1024;

/// Carries bytes until their end, and counts them.
pub(super) async fn bytes(from: &mut Reader, to: &mut Writer, count: &AtomicU64) -> Result<(), BodyError> {
    while let Some(data) = from.read().await? {
        let length = data.len();
        to.write(data).await?;
        count.fetch_add(length as u64, Ordering::Relaxed);
    }
    to.end().await
}

/// Returns whether few bytes of capsules are held, or half of the connection's memory is free: a large capsule that arrives slowly may be
/// dropped.
fn has_room(charge: &Charge) -> bool {
    charge.bytes() <= 4 * PIECE as u64 || charge.budget().held() <= charge.budget().limit() / 2
}

/// Sends a datagram to an end that takes datagrams of this size.
fn send(datagram: &[u8], to: Option<&Datagrams>, side: Side) -> Result<bool, BodyError> {
    let Some(to) = to.filter(|to| to.max_size().is_some_and(|max| datagram.len() <= max)) else { return Ok(false) };
    match (to.send(datagram), side) {
        (Ok(()), _) => Ok(true),
        (Err(error), Side::Client) => Err(super::by_client(error)),
        (Err(error), Side::BackEnd) => Err(error.into()),
    }
}

async fn next(datagrams: Option<&Datagrams>) -> Option<Bytes> {
    match datagrams {
        Some(datagrams) => datagrams.recv().await,
        None => std::future::pending().await,
    }
}

/// Carries capsules as wholes, so that datagrams fit between them. A datagram that does not fit into a packet goes on the stream, where it
/// arrives late rather than not at all.
// RFC 9297 §3.2 SHOULD-1, SHOULD-2: as they are, whatever their type
// RFC 9297 §3.3 MUST-1, MUST-5: what is wrong, or ends in the middle of one, breaks the tunnel off
pub(super) async fn capsules(
    (from, from_datagrams): (&mut Reader, Option<&Datagrams>),
    (to, to_datagrams): (&mut Writer, Option<&Datagrams>),
    count: &AtomicU64,
    mut charge: Charge,
) -> Result<(), BodyError> {
    let budget = charge.budget().clone();
    let mut capsules = Capsules::new(MAX_CAPSULE);
    let mut out = Vec::new();
    loop {
        let mut said = tokio::select! {
            data = from.read() => {
                let Some(data) = data? else { break };
                data
            }
            Some(datagram) = next(from_datagrams) => {
                let mut datagram = Some(datagram);
                // What came in one packet leaves with one call.
                while let Some(one) = datagram {
                    if !send(&one, to_datagrams, to.side())? {
                        capsule::write(&mut out, capsule::DATAGRAM, &one);
                    }
                    datagram = from_datagrams.filter(|_| out.len() < PIECE).and_then(Datagrams::try_recv);
                }
                Bytes::new()
            }
        };
        // By and by, so that little is held twice while the other end takes its time.
        loop {
            capsules.push(&said.split_to(said.len().min(PIECE)));
            while let Some(capsule) = capsules.take().map_err(|error| from.malformed(error))? {
                if capsule.ty != capsule::DATAGRAM || !send(&capsule.value, to_datagrams, to.side())? {
                    capsule::write(&mut out, capsule.ty, &capsule.value);
                }
            }
            let held = (capsules.held() + out.capacity()) as u64;
            if held != charge.bytes() && !(charge.try_set(held) && has_room(&charge)) {
                let what = "the connection holds too much for another capsule";
                return Err(ErrorWithEnding::error(Ending::Memory, what));
            }
            count.fetch_add(out.len() as u64, Ordering::Relaxed);
            to.write_out(&mut out, &budget).await?;
            // A large one was the exception.
            out.shrink_to(PIECE);
            if said.is_empty() {
                break;
            }
        }
    }
    if !capsules.is_between() {
        return Err(from.malformed("the stream ends in the middle of a capsule"));
    }
    to.end().await
}
