//! Bound tunnel over a stream of HTTP/2 or a connection of HTTP/1.1: payloads are capsules.
//!
//! Both directions go on independently: a client that does not read while it sends, or the other way round, stops neither.

use std::time::Duration;

use bytes::BytesMut;
use tiderace::Charge;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{BoundTunnel, Held, State, in_capsule, new_capsules};
use crate::{
    masque::{
        socket::PeersSocket,
        udp::{End, Idle, PIECE, by_client, in_the_middle, on_written, write_some},
    },
    observe::{Direction, DropReason},
};

/// Bytes of capsules that may wait for the client before no more datagrams are taken for it.
const UNSENT: usize = 16 * 1024;

impl BoundTunnel {
    /// Carries capsules over a connection of HTTP/1.1 or a stream of HTTP/2 until one side ends.
    pub(in super::super) async fn over_stream(
        mut self,
        client: impl AsyncRead + AsyncWrite + Send,
        mut charge: Charge,
    ) -> End {
        let (mut from, mut to) = tokio::io::split(client);
        let mut out_charge = charge.budget().empty();
        let mut held = Held::new(&mut charge);
        let mut capsules = new_capsules();
        let mut idle = Idle::new(self.idle_timeout);
        let mut read = BytesMut::with_capacity(PIECE);
        let mut out = BytesMut::new();
        let mut is_flushed = true;
        let carried = async {
            loop {
                // Answers wait on their own, within their limit, until what is before them was written.
                if out.is_empty() && !self.state.answers.is_empty() {
                    out.extend_from_slice(&std::mem::take(&mut self.state.answers));
                }
                out_charge.set(out.capacity() as u64);
                tokio::select! {
                    length = from.read_buf(&mut read) => {
                        if length.map_err(by_client)? == 0 {
                            return Err(if capsules.is_between() { End::Client } else { in_the_middle() });
                        }
                        self.take_capsules(&mut capsules, &read, &mut held)?;
                        read.clear();
                        read.reserve(PIECE);
                    }
                    socket = self.sockets.readable(), if out.len() < UNSENT => {
                        let socket = socket.map_err(End::Target)?;
                        if !self.state.down_stream(socket, &mut out, &mut out_charge) {
                            continue;
                        }
                    }
                    written = write_some(&mut to, &out), if !out.is_empty() || !is_flushed => {
                        is_flushed = on_written(&mut out, written.map_err(by_client)?);
                        // What is written late is no traffic of its own.
                        continue;
                    }
                    () = idle.over() => return Err(End::Idle),
                }
                idle.on_traffic();
            }
        };
        let carried: Result<std::convert::Infallible, End> = carried.await;
        // The stream ends with the sockets; the client may have gone.
        let _ = tokio::time::timeout(Duration::from_secs(1), to.shutdown()).await;
        match carried {
            Err(end) => end,
        }
    }
}

impl State {
    /// Appends datagrams of peers, those of one system call. Returns whether any was for the client.
    pub(super) fn down_stream(&self, socket: &PeersSocket, out: &mut BytesMut, charge: &mut Charge) -> bool {
        let mut carried = 0;
        // An error is that nothing has come, or a report about one peer, which is none about others.
        let _ = socket.try_receive(|peer, payload| {
            let header = match self.judge_down(peer, payload) {
                Ok(header) => header,
                Err(reason) => return self.traffic.on_drop(Direction::Down, reason),
            };
            carried += 1;
            if !charge.try_set((out.len() + header.len() + payload.len()) as u64) {
                return self.traffic.on_drop(Direction::Down, DropReason::QueueFull);
            }
            out.extend_from_slice(&in_capsule(&header, payload));
            self.traffic.on_datagram(Direction::Down, payload.len());
        });
        carried > 0
    }
}
