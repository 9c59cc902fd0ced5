//! Tunnels (`switch`): bytes both ways between client and back end, or capsules and datagrams.
//!
//! `ends` reads and writes connections and streams, `directions` carries what they say.

mod directions;
mod ends;

use std::sync::atomic::AtomicU64;

use h3_quic::Datagrams;
use http::{Request, Response};
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use hyper::upgrade::OnUpgrade;
use tiderace::ConnectionBudget;

use self::ends::{Reader, Side, Writer};
use super::{
    Place,
    quic::{BackEndStream, take_stream},
};
use crate::{
    body::{AnyBody, full},
    ending::{BodyError, Ending, ErrorWithEnding},
    observe::Entry,
};

/// Pieces that wait in a stream.
pub(super) const PARTS: usize = 4;

/// The client's end of a tunnel.
pub(crate) enum Client {
    /// A connection of HTTP/1.1 or a stream of HTTP/2. With capsules or without.
    Upgraded(OnUpgrade, bool),
    /// Stream of HTTP/3: its content, and its datagrams.
    Stream(Box<(AnyBody, Option<Datagrams>)>),
}

impl Client {
    /// Takes the client's end from its request. Datagrams go with `capsules` alone.
    pub(crate) fn of(request: &mut Request<AnyBody>, capsules: bool) -> Self {
        if request.version() != http::Version::HTTP_3 {
            return Self::Upgraded(hyper::upgrade::on(request), capsules);
        }
        // RFC 9297 §3.5 MUST NOT-1: without capsules there is no way for datagrams, and none is kept
        let datagrams = request.extensions_mut().remove().filter(|_| capsules);
        Self::Stream(Box::new((std::mem::replace(request.body_mut(), full("")), datagrams)))
    }
}

/// The back end's end of a tunnel.
pub(crate) enum BackEnd {
    /// A connection of HTTP/1.1.
    Upgraded(OnUpgrade),
    /// Stream of HTTP/3.
    Stream(Box<BackEndStream>),
}

impl BackEnd {
    /// Takes the back end's end from its response.
    // RFC 9484 §11 MUST NOT-1: nothing of the client has been read before
    pub(crate) fn of(response: &mut Response<AnyBody>) -> Self {
        match take_stream(response) {
            Some(stream) => Self::Stream(Box::new(stream)),
            None => Self::Upgraded(hyper::upgrade::on(response)),
        }
    }

    /// Pieces of the client that wait for it.
    fn waiting(&self) -> usize {
        if let Self::Stream(_) = self { PARTS } else { 0 }
    }

    /// Its ends, and its datagrams. Of its pieces, `wait` wait for the client.
    async fn open(
        self,
        memory: &ConnectionBudget,
        wait: usize,
    ) -> Result<(Reader, Writer, Option<Datagrams>), BodyError> {
        match self {
            Self::Upgraded(upgraded) => {
                let (reader, writer) = ends::of_connection(Side::BackEnd, upgraded.await?, memory, wait)?;
                Ok((reader, writer, None))
            }
            Self::Stream(stream) => {
                let BackEndStream { to, from, datagrams } = *stream;
                let (reader, writer) = ends::of_stream(Side::BackEnd, from, to);
                Ok((reader, writer, datagrams))
            }
        }
    }
}

/// A tunnel on a connection of HTTP/1.1 or a stream of HTTP/2.
pub(crate) struct Upgraded {
    pub(crate) client: OnUpgrade,
    /// Capsules are carried.
    pub(crate) capsules: bool,
    pub(crate) back_end: BackEnd,
    /// The request's place with its back end.
    pub(crate) place: Place,
    /// Budget of the client's connection.
    pub(crate) memory: ConnectionBudget,
}

impl Upgraded {
    /// Carries bytes until both directions have ended; then the entry of the request ends, too.
    pub(crate) async fn carry(self, entry: Entry) {
        let down = AtomicU64::new(0);
        let Self { client, capsules, back_end, place, memory } = self;
        let carried = match open_both(client, back_end, &memory).await {
            Ok((client, (reader, writer, datagrams))) => {
                // Without datagrams, capsules are bytes like any others.
                let datagrams = Both { client: None, back_end: datagrams.filter(|_| capsules) };
                carry(client, (reader, writer), &datagrams, &down, &memory).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &carried {
            tracing::debug!("a switched connection broke off: {error}");
        }
        drop(place);
        entry.end_tunnel(down.into_inner(), carried.err().as_ref());
    }
}

/// Ends of a tunnel at a client and at a back end, and the back end's datagrams.
type Ends = ((Reader, Writer), (Reader, Writer, Option<Datagrams>));

/// Opens both ends. What a client leaves before its end is open does not look complete to the back end.
async fn open_both(client: OnUpgrade, back_end: BackEnd, memory: &ConnectionBudget) -> Result<Ends, BodyError> {
    let wait = back_end.waiting();
    let client = async {
        let client = client.await.map_err(by_client)?;
        ends::of_connection(Side::Client, client, memory, wait)
    };
    match tokio::join!(client, back_end.open(memory, 0)) {
        (Ok(client), Ok(back_end)) => Ok((client, back_end)),
        (Err(error), Ok((_, to_back_end, _))) => {
            to_back_end.abort("the client left before the tunnel was open".into());
            Err(error)
        }
        (_, Err(error)) => Err(error),
    }
}

/// Carries a tunnel on a stream of HTTP/3 until both directions have ended, on a task. Gives the body of the answer to the client. The
/// client's datagrams are datagrams for a back end that takes such, or capsules, and back (RFC 9297 §3.5). What is held is charged, and the
/// request's place kept.
pub(crate) fn carry_stream(
    (content, datagrams): (AnyBody, Option<Datagrams>),
    back_end: BackEnd,
    memory: &ConnectionBudget,
    place: Place,
) -> AnyBody {
    let memory = memory.clone();
    let (answer, body) = Channel::new(PARTS);
    tokio::spawn(async move {
        let _place = place;
        let answered: Result<_, (Sender<_, _>, BodyError)> = match back_end.open(&memory, PARTS).await {
            Ok(back_end) => Ok((ends::of_stream(Side::Client, content, answer), back_end)),
            Err(error) => Err((answer, error)),
        };
        let (client, (reader, writer, of_back_end)) = match answered {
            Ok(ends) => ends,
            Err((answer, error)) => return answer.abort(error),
        };
        let datagrams = Both { back_end: of_back_end.filter(|_| datagrams.is_some()), client: datagrams };
        if let Err(error) = carry(client, (reader, writer), &datagrams, &AtomicU64::new(0), &memory).await {
            tracing::debug!("a switched stream broke off: {error}");
        }
    });
    body.boxed_unsync()
}

/// Datagrams of both ends of a tunnel; of none where capsules are not carried.
struct Both {
    client: Option<Datagrams>,
    back_end: Option<Datagrams>,
}

/// Carries a tunnel until both directions have ended. `down` counts bytes for the client. What breaks off does not look complete to either
/// end.
async fn carry(
    (mut from_client, mut to_client): (Reader, Writer),
    (mut from_back_end, mut to_back_end): (Reader, Writer),
    datagrams: &Both,
    down: &AtomicU64,
    memory: &ConnectionBudget,
) -> Result<(), BodyError> {
    let Both { client, back_end } = datagrams;
    let up = AtomicU64::new(0);
    let carried = if client.is_none() && back_end.is_none() {
        let up = directions::bytes(&mut from_client, &mut to_back_end, &up);
        tokio::try_join!(up, directions::bytes(&mut from_back_end, &mut to_client, down))
    } else {
        let (client, back_end) = (client.as_ref(), back_end.as_ref());
        let [for_up, for_down] = [memory.empty(), memory.empty()];
        let up = directions::capsules((&mut from_client, client), (&mut to_back_end, back_end), &up, for_up);
        let down = directions::capsules((&mut from_back_end, back_end), (&mut to_client, client), down, for_down);
        tokio::try_join!(up, down)
    };
    let Err(error) = carried else { return Ok(()) };
    to_back_end.abort("the client's side of the tunnel broke off".into());
    let copy = ErrorWithEnding::error(Ending::of_content(&error), error.to_string());
    to_client.abort(error);
    Err(copy)
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

#[cfg(test)]
mod tests {
    use tiderace::ProcessBudget;

    use super::*;

    #[tokio::test]
    async fn a_client_that_leaves_before_its_tunnel_is_open_breaks_the_back_end_s_stream_off() {
        let memory = ConnectionBudget::new(1 << 20, &ProcessBudget::default());
        let (to, sent) = Channel::<bytes::Bytes, BodyError>::new(PARTS);
        let stream = BackEndStream { to, from: full(""), datagrams: None };
        // Nothing upgrades this request: as when its connection has gone.
        let client = hyper::upgrade::on(Request::new(()));
        let opened = open_both(client, BackEnd::Stream(Box::new(stream)), &memory).await;
        assert_eq!(Ending::of_content(&opened.err().unwrap()), Ending::Cancelled);
        assert!(sent.collect().await.is_err(), "the stream looks complete");
    }
}
