//! A tunnel for TCP (CONNECT, RFC 9110 §9.3.6): bytes both ways, with back-pressure, until both directions have ended.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, channel::Sender};
use tiderace::ConnectionBudget;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use super::{PARTS, clients::TunnelPlace};
use crate::{
    activity::Activity,
    body::AnyBody,
    ending::{BodyError, Ending, ErrorWithEnding},
    observe::{Direction, Traffic},
    room::ReadRoom,
};

/// A tunnel.
pub(super) struct TcpTunnel {
    pub(super) target: TcpStream,
    pub(super) traffic: Arc<Traffic>,
    place: TunnelPlace,
    idle_timeout: Duration,
}

fn by_client(error: impl std::fmt::Display) -> BodyError {
    ErrorWithEnding::error(Ending::Cancelled, error.to_string())
}

fn by_target(error: io::Error) -> BodyError {
    ErrorWithEnding::of_target(format!("the target: {error}"))
}

fn idle() -> BodyError {
    ErrorWithEnding::error(Ending::Idle, "nothing was carried for the idle timeout")
}

impl TcpTunnel {
    /// A tunnel to a connected target.
    pub(super) fn new(target: TcpStream, traffic: Arc<Traffic>, place: TunnelPlace, idle_timeout: Duration) -> Self {
        // RFC 9114 §4.4 MUST-3, MUST-4, SHOULD-1, SHOULD-2: what the client gives up ends in both directions, and must not look complete. With
        // the client's connection the tunnel is dropped where it stands.
        let _ = socket2::SockRef::from(&target).set_linger(Some(Duration::ZERO));
        Self { target, traffic, place, idle_timeout }
    }

    /// Carries a stream of HTTP/3.
    pub(super) async fn over_h3(
        mut self,
        mut content: AnyBody,
        answer: &mut Sender<Bytes, BodyError>,
        memory: &ConnectionBudget,
    ) -> Result<(), BodyError> {
        // Those in the channel, and the one in hand.
        let mut room = ReadRoom::new(memory, PARTS + 1)?;
        let activity = Activity::new();
        let (mut from, mut to) = self.target.split();
        let place = &self.place;
        let carried = |direction, length| {
            activity.note();
            self.traffic.on_bytes(direction, length);
        };
        let up = async {
            while let Some(frame) = content.frame().await {
                let error = |error: BodyError| ErrorWithEnding::error(Ending::of_content(&error), error.to_string());
                let Ok(mut data) = frame.map_err(error)?.into_data() else { continue };
                while data.has_remaining() {
                    let length = to.write_buf(&mut data).await.map_err(by_target)?;
                    carried(Direction::Up, length);
                    place.pace(length).await;
                }
            }
            to.shutdown().await.map_err(by_target)
        };
        let down = async {
            let mut read = BytesMut::new();
            loop {
                let length = room.read(&mut from, &mut read).await.map_err(by_target)?;
                if length == 0 {
                    return Ok(());
                }
                place.pace(length).await;
                answer.send_data(read.split().freeze()).await.map_err(by_client)?;
                carried(Direction::Down, length);
            }
        };
        // Half of a tunnel may continue for long after the other has ended; the end of the client's stream says nothing about the target's.
        let both = async { tokio::try_join!(up, down).map(drop) };
        let carried = tokio::select! {
            carried = both => carried,
            () = activity.over(self.idle_timeout) => Err(idle()),
        };
        self.finish(carried)
    }

    /// Carries a connection of HTTP/1.1 or a stream of HTTP/2.
    pub(super) async fn over_stream(
        mut self,
        client: impl AsyncRead + AsyncWrite + Send,
        memory: &ConnectionBudget,
    ) -> Result<(), BodyError> {
        let (room_up, room_down) = (ReadRoom::new(memory, 1)?, ReadRoom::new(memory, 1)?);
        let activity = Activity::new();
        let (from_client, to_client) = tokio::io::split(client);
        let (from_target, to_target) = self.target.split();
        let place = &self.place;
        let carried = |direction, length| {
            activity.note();
            self.traffic.on_bytes(direction, length);
        };
        let up = copy(
            (from_client, by_client_io),
            (to_target, by_target),
            |length| carried(Direction::Up, length),
            (room_up, place),
        );
        let down = copy(
            (from_target, by_target),
            (to_client, by_client_io),
            |length| carried(Direction::Down, length),
            (room_down, place),
        );
        let both = async { tokio::try_join!(up, down).map(drop) };
        let carried = tokio::select! {
            carried = both => carried,
            () = activity.over(self.idle_timeout) => Err(idle()),
        };
        self.finish(carried)
    }

    /// Lets a complete tunnel end as such. One that broke off resets the connection to the target when it is dropped.
    fn finish(self, carried: Result<(), BodyError>) -> Result<(), BodyError> {
        if carried.is_ok() {
            let _ = socket2::SockRef::from(&self.target).set_linger(None);
        }
        carried
    }
}

fn by_client_io(error: io::Error) -> BodyError {
    by_client(error)
}

/// Copies one direction, and its end. Each side has a function that classifies its errors.
async fn copy(
    (mut from, read_error): (impl AsyncRead + Unpin, fn(io::Error) -> BodyError),
    (mut to, write_error): (impl AsyncWrite + Unpin, fn(io::Error) -> BodyError),
    carried: impl Fn(usize),
    (mut room, place): (ReadRoom, &TunnelPlace),
) -> Result<(), BodyError> {
    let mut read = BytesMut::new();
    loop {
        let length = room.read(&mut from, &mut read).await.map_err(read_error)?;
        if length == 0 {
            return to.shutdown().await.map_err(write_error);
        }
        place.pace(length).await;
        to.write_all_buf(&mut read).await.map_err(write_error)?;
        to.flush().await.map_err(write_error)?;
        carried(length);
    }
}
