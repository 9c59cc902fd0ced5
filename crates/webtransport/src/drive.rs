//! Task of a session: reads the capsules on its stream until it ends.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use h3_quic::Code;
use http_body::Body;

use crate::{
    capsules::{Capsule, Reader, Violation},
    error::{ConnectionFault, SessionEnd},
    inner::Inner,
};

/// Time for the peer to end its direction after the session was closed.
const PEER_ENDS: Duration = Duration::from_secs(5);

/// Error of a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The next part of the content; `None` at its end.
async fn next<B>(body: &mut B) -> Option<Result<Bytes, B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await? {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Reads a session's stream, and ends the session with it.
pub(crate) async fn run<B>(inner: Arc<Inner>, mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let mut reader = Reader::default();
    let (mut is_watching, mut is_going) = (true, false);
    let ended = loop {
        tokio::select! {
            biased;
            _ = inner.ended() => break Ended::Here,
            () = poll_fn(|cx| inner.streams.poll_exceeded(cx)), if is_watching => {
                is_watching = false;
                if inner.streams.connection().close_reason().is_none() && inner.lock().end.is_none() {
                    // draft-ietf-webtrans-http3 §5.6.2 MUST
                    let reason = "more streams than were allowed";
                    inner.fail(Violation::new(Code::WT_FLOW_CONTROL_ERROR, reason));
                }
            }
            refused = poll_fn(|cx| inner.streams.poll_refused(cx)) => {
                for (dir, count) in refused.streams.into_iter().enumerate() {
                    (0..count).for_each(|_| inner.on_closed(dir));
                }
                inner.on_read(0, refused.bytes);
            }
            part = next(&mut body) => match part {
                Some(Ok(mut data)) => match take(&inner, &mut reader, &mut data) {
                    Ok(None) => {}
                    Ok(Some(ended)) => break ended,
                    Err(violation) => inner.fail(violation),
                },
                Some(Err(error)) => {
                    let error = error.into();
                    inner.terminate(match error.downcast_ref() {
                        Some(h3_quic::Error::Reset(code)) => SessionEnd::Reset(*code),
                        _ => ConnectionFault::of_content(&*error).into(),
                    });
                    inner.outgoing.finish();
                    return;
                }
                None if !reader.is_between() => {
                    inner.fail(Violation::new(Code::MESSAGE_ERROR, "the session ends in the middle of a capsule"));
                }
                None => {
                    // draft-ietf-webtrans-http3 §6: as a close with code 0 and no message
                    inner.terminate(SessionEnd::ClosedByPeer { code: 0, reason: String::new() });
                    inner.outgoing.finish();
                    return;
                }
            },
            () = inner.outgoing.gone() => {
                inner.terminate(SessionEnd::Reset(inner.streams.stopped().unwrap_or(Code::REQUEST_CANCELLED)));
            }
            () = inner.streams.going_away(), if !is_going => {
                is_going = true;
                inner.change(|state| state.is_draining = true);
            }
        }
    };
    let is_reset = matches!(inner.lock().end, Some(SessionEnd::Violation { .. } | SessionEnd::BrokenOff));
    if is_reset {
        return;
    }
    // Dropped before its end, the body would have the stream reset before the last capsule has left.
    let rest = async {
        while let Some(Ok(data)) = next(&mut body).await {
            // draft-ietf-webtrans-http3 §6 MUST: nothing comes behind the close
            if matches!(ended, Ended::ByPeer) && !data.is_empty() {
                inner.streams.give_up(Code::MESSAGE_ERROR);
                inner.outgoing.abort();
                return;
            }
        }
    };
    let _ = tokio::time::timeout(PEER_ENDS, rest).await;
    inner.outgoing.finish();
}

/// Side that closed the session.
enum Ended {
    Here,
    ByPeer,
}

/// Obeys the capsules in a part of the content.
fn take(inner: &Inner, reader: &mut Reader, data: &mut Bytes) -> Result<Option<Ended>, Violation> {
    while let Some(capsule) = reader.next(data)? {
        match capsule {
            Capsule::MaxData(limit) => inner.change(|state| state.flow.on_max_data(limit))?,
            Capsule::MaxStreams(dir, limit) => inner.change(|state| state.flow.on_max_streams(dir, limit))?,
            Capsule::Drain => inner.change(|state| state.is_draining = true),
            Capsule::Blocked => tracing::debug!("the peer of session {} is blocked", inner.streams.id()),
            Capsule::Close { code, reason } => {
                if !data.is_empty() {
                    return Err(Violation::new(Code::MESSAGE_ERROR, "data behind the close of a session"));
                }
                inner.terminate(SessionEnd::ClosedByPeer { code, reason });
                return Ok(Some(Ended::ByPeer));
            }
        }
    }
    Ok(None)
}
