//! The stream of a tunnel, over HTTP/3 or HTTP/2.

use std::future::poll_fn;

use bytes::Bytes;
use h2::Reason;
use http_body::Frame;
use http_body_util::{BodyExt, channel::Sender};

use super::{
    ProxyError,
    error::{broken, broken_h2},
};
use crate::error::Cause;

pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Half of a stream to the proxy. Dropping it ends this direction.
pub(super) enum SendHalf {
    H3(Sender<Bytes, BodyError>),
    H2(H2Send),
}

/// Half of a stream from the proxy.
pub(super) enum RecvHalf {
    H3(Box<h3_quic::ResponseBody>),
    H2(h2::RecvStream),
}

/// Sending half over HTTP/2.
pub(super) struct H2Send(h2::SendStream<Bytes>);

impl H2Send {
    pub(super) fn new(stream: h2::SendStream<Bytes>) -> Self {
        Self(stream)
    }
}

impl Drop for H2Send {
    fn drop(&mut self) {
        // The stream may have ended, or have been reset.
        let _ = self.0.send_data(Bytes::new(), true);
    }
}

fn takes_no_more() -> ProxyError {
    ProxyError::Broken(Cause::Reset { code: None, reason: "the proxy takes no more data".to_owned() })
}

impl SendHalf {
    /// `h3` or `h2`.
    pub(super) fn protocol(&self) -> &'static str {
        match self {
            Self::H3(_) => "h3",
            Self::H2(_) => "h2",
        }
    }

    /// Sends all of `data`, as soon as there is room.
    pub(super) async fn send(&mut self, mut data: Bytes) -> Result<(), ProxyError> {
        let stream = match self {
            Self::H3(stream) => return stream.send_data(data).await.map_err(|_| takes_no_more()),
            Self::H2(H2Send(stream)) => stream,
        };
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let room = match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(0)) => continue,
                Some(Ok(room)) => room.min(data.len()),
                Some(Err(error)) => return Err(broken_h2(&error)),
                None => return Err(takes_no_more()),
            };
            stream.send_data(data.split_to(room), false).map_err(|error| broken_h2(&error))?;
        }
        Ok(())
    }

    /// Sends all of `data` at once, or nothing. Returns whether there was room.
    pub(super) fn try_send(&mut self, data: Bytes) -> bool {
        match self {
            Self::H3(stream) => stream.try_send(Frame::data(data)).is_ok(),
            Self::H2(H2Send(stream)) => {
                // Capacity is assigned here if the windows have it. What is kept would be missing to other streams.
                stream.reserve_capacity(data.len());
                let has_room = stream.capacity() >= data.len();
                if !has_room {
                    stream.reserve_capacity(0);
                }
                has_room && stream.send_data(data, false).is_ok()
            }
        }
    }

    /// Gives this direction up, so that it does not look complete.
    pub(super) fn abort(self, reason: &str) {
        match self {
            Self::H3(stream) => stream.abort(reason.into()),
            // RFC 9113 §8.5: an error of the TCP connection is CONNECT_ERROR. A stream that is cancelled may look complete.
            Self::H2(mut stream) => stream.0.send_reset(Reason::CONNECT_ERROR),
        }
    }
}

impl RecvHalf {
    /// The next bytes; `None` at the end. Cancel safe.
    pub(super) async fn data(&mut self) -> Result<Option<Bytes>, ProxyError> {
        match self {
            Self::H3(content) => loop {
                let Some(frame) = content.frame().await else { return Ok(None) };
                if let Ok(data) = frame.map_err(broken)?.into_data() {
                    return Ok(Some(data));
                }
            },
            Self::H2(content) => match content.data().await {
                None => Ok(None),
                Some(Err(error)) => Err(broken_h2(&error)),
                Some(Ok(data)) => {
                    // The caller has one piece at a time: this much may follow.
                    let _ = content.flow_control().release_capacity(data.len());
                    Ok(Some(data))
                }
            },
        }
    }
}
