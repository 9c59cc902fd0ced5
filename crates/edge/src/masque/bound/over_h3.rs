//! Bound tunnel over HTTP/3: payloads are QUIC datagrams.

use bytes::Bytes;
use h3_quic::{Datagrams, connect_udp::ALWAYS_CARRIED};
use http_body::Frame;
use http_body_util::{BodyExt, channel::Sender};
use tiderace::Charge;

use super::{BoundTunnel, Held, State, new_capsules};
use crate::{
    body::AnyBody,
    ending::{BodyError, Ending, ErrorWithEnding},
    masque::{
        capsule_queue::CapsuleQueue,
        socket::PeersSocket,
        udp::{End, Idle, MAX_H3_CAPSULE, PIECE, TURN, in_the_middle},
    },
    observe::{Direction, DropReason},
};

impl BoundTunnel {
    /// Carries datagrams over HTTP/3 until one side ends.
    // RFC 9298 §3.1 MUST-5: the sockets are open until then
    pub(in super::super) async fn over_h3(
        mut self,
        mut content: AnyBody,
        datagrams: &Datagrams,
        answer: &mut Sender<Bytes, BodyError>,
        mut charge: Charge,
    ) -> End {
        let mut down = CapsuleQueue::new(charge.budget());
        let mut held = Held::new(&mut charge);
        let mut capsules = new_capsules();
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
                            self.take_capsules(&mut capsules, piece, &mut held)?;
                            self.state.answer_h3(answer);
                        }
                        idle.on_traffic();
                    }
                    Some(datagram) = datagrams.recv() => {
                        let mut next = Some(datagram);
                        for _ in 0..TURN {
                            let Some(datagram) = next else { break };
                            self.up(&datagram)?;
                            next = datagrams.try_recv();
                        }
                        held.settle(&self.state, capsules.held())?;
                        idle.on_traffic();
                    }
                    socket = self.sockets.readable() => {
                        if self.state.down_h3(socket.map_err(End::Target)?, datagrams, &mut down) {
                            idle.on_traffic();
                        }
                    }
                    // The stream has had no room for all answers, or for payloads.
                    sent = async {
                        if self.state.answers.is_empty() {
                            return down.send(answer).await.map(|()| false);
                        }
                        let answers = Bytes::copy_from_slice(&self.state.answers);
                        answer.send(Frame::data(answers)).await.map(|()| true)
                    } => {
                        let answered = sent.map_err(|error| {
                            End::Broken(ErrorWithEnding::error(Ending::Cancelled, error.to_string()))
                        })?;
                        if answered {
                            self.state.answers = Vec::new();
                        }
                    }
                    () = idle.over() => return Err(End::Idle),
                }
            }
        };
        let carried: Result<std::convert::Infallible, End> = carried.await;
        self.state.traffic.on_drops(Direction::Up, DropReason::QueueFull, datagrams.dropped());
        match carried {
            Err(end) => end,
        }
    }
}

impl State {
    /// Sends the answers that wait, if the stream takes them at once.
    pub(super) fn answer_h3(&mut self, answer: &mut Sender<Bytes, BodyError>) {
        if self.answers.is_empty() {
            return;
        }
        let sent = answer.try_send(Frame::data(Bytes::copy_from_slice(&self.answers)));
        if sent.is_ok() {
            self.answers = Vec::new();
        }
    }

    /// Sends datagrams of peers to the client. Returns whether any was for it.
    fn down_h3(&self, socket: &PeersSocket, datagrams: &Datagrams, capsules: &mut CapsuleQueue) -> bool {
        let (mut count, mut carried, mut is_too_small) = (0, 0, false);
        while count < TURN {
            let room = datagrams.max_size();
            let received = socket.try_receive(|peer, payload| {
                let header = match self.judge_down(peer, payload) {
                    Ok(header) => header,
                    Err(reason) => return self.traffic.on_drop(Direction::Down, reason),
                };
                let most = if room.is_some() { ALWAYS_CARRIED } else { MAX_H3_CAPSULE };
                let fits = room.is_some_and(|room| header.len() + payload.len() <= room);
                is_too_small |= room.is_some() && !fits;
                let sent = if fits {
                    datagrams.send_parts(&[&header, payload]).map_err(|_| DropReason::NotSent)
                } else if payload.len() <= most {
                    if capsules.push(&header, payload) { Ok(()) } else { Err(DropReason::QueueFull) }
                } else {
                    // RFC 9298 §6.1 SHOULD NOT-1: without the privilege to send ICMP it is dropped, and that is all
                    Err(DropReason::TooLarge)
                };
                carried += 1;
                match sent {
                    Ok(()) => self.traffic.on_datagram(Direction::Down, payload.len()),
                    Err(reason) => self.traffic.on_drop(Direction::Down, reason),
                }
            });
            match received {
                Ok(received) => count += received,
                // Nothing more has come; or it is a report about one peer, which is none about others.
                Err(_) => break,
            }
        }
        // Nothing else may fill packets, so that a search would never begin.
        if is_too_small {
            datagrams.discover_max_size();
        }
        carried > 0
    }
}
