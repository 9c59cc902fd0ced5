//! IP tunnel over HTTP/3: packets are QUIC datagrams.

use bytes::Bytes;
use h3_quic::{
    Datagrams, capsule,
    connect_ip::{
        IP_CONTEXT, MIN_IPV6_MTU,
        icmp::{self, Report},
    },
};
use http_body::Frame;
use http_body_util::{BodyExt, channel::Sender};
use tiderace::Charge;
use tokio::time::Instant;

use super::{
    super::udp::{End, Idle, in_the_middle},
    queue::Queued,
    tunnel::{IpTunnel, Reply, held_too_much, new_capsules},
};
use crate::{
    body::AnyBody,
    ending::{BodyError, Ending, ErrorWithEnding},
    observe::{Direction, DropReason},
};

/// The longest packet for a client that takes no datagrams: its capsules wait on the stream.
const MAX_CAPSULE: usize = 1_500;
/// Bytes of capsules that are looked at together.
const PIECE: usize = 4 * 1024;
/// Packets that are carried in one direction before the other gets its turn.
const TURN: usize = 64;

impl IpTunnel {
    /// Carries packets over HTTP/3 until one side ends.
    // RFC 9484 §4.1 MUST-5: addresses and routes are kept until then
    pub(in super::super) async fn over_h3(
        mut self,
        mut content: AnyBody,
        datagrams: &Datagrams,
        answer: &mut Sender<Bytes, BodyError>,
        mut charge: Charge,
    ) -> End {
        let base = charge.bytes();
        let mut capsules = new_capsules();
        let mut idle = Idle::new(self.idle_timeout);
        let carried = async {
            for capsule in self.introduction() {
                self.reply_h3(datagrams, answer, capsule)?;
            }
            loop {
                tokio::select! {
                    frame = content.frame() => {
                        let Some(frame) = frame else {
                            return if capsules.is_between() { Err(End::Client) } else { Err(in_the_middle()) };
                        };
                        let frame = frame.map_err(|error| End::Broken(ErrorWithEnding::error(Ending::of_content(&error), error.to_string())))?;
                        let Ok(data) = frame.into_data() else { continue };
                        for piece in data.chunks(PIECE) {
                            self.take_capsules(&mut capsules, piece, (&mut charge, base), |this, reply| {
                                this.reply_h3(datagrams, answer, reply)
                            })?;
                        }
                    }
                    Some(datagram) = datagrams.recv() => {
                        let mut next = Some(datagram);
                        for _ in 0..TURN {
                            let Some(datagram) = next else { break };
                            if let Some(reply) = self.up(&datagram) {
                                self.reply_h3(datagrams, answer, reply)?;
                            }
                            next = datagrams.try_recv();
                        }
                    }
                    Some(queued) = self.waiting.recv() => {
                        let mut next = Some(queued);
                        for _ in 0..TURN {
                            let Some(queued) = next else { break };
                            self.down_h3(datagrams, answer, &queued)?;
                            next = self.waiting.try_recv().ok();
                        }
                    }
                    () = idle.over() => return Err(End::Idle),
                }
                idle.on_traffic();
            }
        };
        let carried: Result<std::convert::Infallible, End> = carried.await;
        self.traffic.on_drops(Direction::Up, DropReason::QueueFull, datagrams.dropped());
        match carried {
            Err(end) => end,
        }
    }

    /// Sends a message of the gateway to a client of HTTP/3.
    fn reply_h3(
        &mut self,
        datagrams: &Datagrams,
        answer: &mut Sender<Bytes, BodyError>,
        reply: Reply,
    ) -> Result<(), End> {
        match reply {
            // A report that does not get through is lost, like any packet.
            Reply::Packet(packet) => drop(send_h3(datagrams, answer, &packet)),
            Reply::Capsule(ty, value) => {
                let mut out = Vec::with_capacity(value.len() + 16);
                capsule::write(&mut out, ty, &value);
                let sent = answer.try_send(Frame::data(Bytes::from(out)));
                sent.map_err(|_| held_too_much("the client does not read the capsules of its tunnel"))?;
            }
        }
        Ok(())
    }

    /// Sends a packet to a client of HTTP/3.
    fn down_h3(
        &mut self,
        datagrams: &Datagrams,
        answer: &mut Sender<Bytes, BodyError>,
        queued: &Queued,
    ) -> Result<(), End> {
        // RFC 9484 §7.2 MUST-3: IPv6 needs 1,280 bytes, or the stream ends
        let room = datagrams.max_size().map(|max| max.saturating_sub(1));
        if self.has_ipv6() && room.is_some_and(|room| room < MIN_IPV6_MTU) {
            let what = "the path to the client does not carry IPv6 packets of 1280 bytes any more";
            return Err(End::Broken(ErrorWithEnding::error(Ending::Refused, what)));
        }
        if !self.may_go_down(queued) {
            return Ok(());
        }
        match send_h3(datagrams, answer, &queued.packet) {
            Ok(()) => self.traffic.on_datagram(Direction::Down, queued.packet.len()),
            Err(reason) => {
                self.traffic.on_drop(Direction::Down, reason);
                if let (DropReason::TooLarge, Some(mtu)) = (reason, room) {
                    self.report_too_big(queued, mtu);
                }
            }
        }
        Ok(())
    }

    /// Tells the sender of a packet that the client does not get packets of its size.
    // RFC 9484 §10.1 SHOULD-1
    fn report_too_big(&mut self, Queued { packet, header, .. }: &Queued, mtu: usize) {
        // From the client: the kernel takes no packet from an address of this machine.
        let report = icmp::report(packet, header, Report::TooBig { mtu }, header.destination)
            .filter(|_| self.reports.may_send(Instant::now()));
        if let Some(report) = report {
            let _ = self.lease.device().write(&report);
        }
    }
}

/// Sends a packet in a QUIC datagram, or in a capsule where the client takes no datagrams.
// RFC 9484 §10.1 SHOULD NOT-1: a packet that does not fit into a datagram is not sent in a capsule
fn send_h3(datagrams: &Datagrams, answer: &mut Sender<Bytes, BodyError>, packet: &[u8]) -> Result<(), DropReason> {
    match datagrams.max_size() {
        Some(room) if packet.len() < room => {
            datagrams.send_parts(&[&[IP_CONTEXT], packet]).map_err(|_| DropReason::NotSent)
        }
        None if packet.len() <= MAX_CAPSULE => {
            let mut out = Vec::with_capacity(packet.len() + 16);
            capsule::write_parts(&mut out, capsule::DATAGRAM, &[&[IP_CONTEXT], packet]);
            answer.try_send(Frame::data(Bytes::from(out))).map_err(|_| DropReason::QueueFull)
        }
        _ => Err(DropReason::TooLarge),
    }
}
