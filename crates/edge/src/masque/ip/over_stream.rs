//! IP tunnel over a stream of HTTP/2 or a connection of HTTP/1.1: packets are capsules.
//!
//! Both directions go on independently: a client that does not read while it sends, or the other way round, stops neither.

use std::time::Duration;

use bytes::BytesMut;
use h3_quic::{capsule, connect_ip::IP_CONTEXT};
use tiderace::Charge;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    super::udp::{End, Idle, by_client, in_the_middle, on_written, write_some},
    tunnel::{IpTunnel, MAX_CAPSULE, Reply, held_too_much, new_capsules},
};
use crate::observe::Direction;

/// Bytes that are read at once.
const PIECE: usize = 4 * 1024;
/// Bytes of capsules that may wait for the client before no more packets are taken for it.
const UNSENT: usize = 16 * 1024;
/// Bytes of such capsules at most: the gateway's own messages come beside packets.
const MAX_UNSENT: usize = 4 * MAX_CAPSULE;

impl IpTunnel {
    /// Carries capsules over a connection of HTTP/1.1 or a stream of HTTP/2 until one side ends.
    pub(in super::super) async fn over_stream(
        mut self,
        client: impl AsyncRead + AsyncWrite + Send,
        mut charge: Charge,
    ) -> End {
        let (mut from, mut to) = tokio::io::split(client);
        let base = charge.bytes();
        let mut out_charge = charge.budget().empty();
        let mut capsules = new_capsules();
        let mut idle = Idle::new(self.idle_timeout);
        let mut read = BytesMut::with_capacity(PIECE);
        let mut out = BytesMut::new();
        let mut is_flushed = true;
        for reply in self.introduction() {
            let _ = write_reply(&mut out, reply);
        }
        let carried = async {
            loop {
                out_charge.set(out.capacity() as u64);
                tokio::select! {
                    length = from.read_buf(&mut read) => {
                        if length.map_err(by_client)? == 0 {
                            return Err(if capsules.is_between() { End::Client } else { in_the_middle() });
                        }
                        self.take_capsules(&mut capsules, &read, (&mut charge, base), |_, reply| write_reply(&mut out, reply))?;
                        read.clear();
                        read.reserve(PIECE);
                    }
                    Some(queued) = self.waiting.recv(), if out.len() < UNSENT => {
                        if self.may_go_down(&queued) {
                            let _ = write_reply(&mut out, Reply::Packet(queued.packet.clone()));
                            self.traffic.on_datagram(Direction::Down, queued.packet.len());
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
        // The stream ends with the tunnel; the client may have gone.
        let _ = tokio::time::timeout(Duration::from_secs(1), to.shutdown()).await;
        match carried {
            Err(end) => end,
        }
    }
}

/// Appends a message to those that wait for the stream.
fn write_reply(out: &mut BytesMut, reply: Reply) -> Result<(), End> {
    let mut bytes = Vec::new();
    match reply {
        Reply::Packet(packet) => {
            // A client that sends and does not read loses the reports about what it sends.
            if out.len() < MAX_UNSENT {
                capsule::write_parts(&mut bytes, capsule::DATAGRAM, &[&[IP_CONTEXT], &packet]);
            }
        }
        Reply::Capsule(..) if out.len() >= MAX_UNSENT => {
            return Err(held_too_much("the client does not read the capsules of its tunnel"));
        }
        Reply::Capsule(ty, value) => capsule::write(&mut bytes, ty, &value),
    }
    out.extend_from_slice(&bytes);
    Ok(())
}
