//! Frames of the peer: some that the rules allow, others that break them.

use wire::{Dir, Frame, StreamFrame, StreamId, varint};

use super::{IDLE_FRAMES, PING, PONG, Peer, at, bytes, content, listens::initial};

impl Peer<'_> {
    /// A frame; empty when there is none that the rules allow.
    pub(super) fn frame(&mut self, kind: u8, word: u16, amount: u8) -> Vec<u8> {
        match kind {
            0..=4 => self.stream(word, amount),
            5 | 6 => {
                let len = usize::from(amount) * if kind == 5 { 1 } else { 16 };
                if self.config.datagram_queue == 0 && !self.wild || len == 0 && !self.may_idle() {
                    return Vec::new();
                }
                bytes(&Frame::Datagram { data: &vec![amount; len] })
            }
            7 => self.reset(word),
            8 => match self.sending(word) {
                Some(id) => bytes(&Frame::StopSending { id, code: amount.into() }),
                None => Vec::new(),
            },
            9 => match self.sending(word) {
                Some(id) if self.may_idle() => {
                    let limit = u64::from(word) << (amount & 0x3f).min(45);
                    let allowed = self.allows_on.entry(id).or_insert_with(|| initial(&self.declared, self.side, id));
                    *allowed = limit.max(*allowed);
                    bytes(&Frame::MaxStreamData { id, limit })
                }
                _ => Vec::new(),
            },
            10 if self.may_idle() => {
                let limit = u64::from(word) << (amount & 0x3f).min(45);
                self.allows = self.allows.max(limit);
                bytes(&Frame::MaxData(limit))
            }
            11 if self.may_idle() => {
                // One more, or a number.
                let dir = if word & 1 == 0 { Dir::Bi } else { Dir::Uni };
                let now = self.allows_streams[at(dir)];
                let limit = if word & 2 == 0 { now + 1 } else { u64::from(word) << (amount & 0x3f).min(44) };
                let limit = limit.min(StreamId::MAX_STREAMS);
                self.allows_streams[at(dir)] = now.max(limit);
                bytes(&Frame::MaxStreams { dir, limit })
            }
            12 if self.may_idle() => {
                let dir = if word & 1 == 0 { Dir::Bi } else { Dir::Uni };
                bytes(&match word >> 14 {
                    0 => Frame::DataBlocked(word.into()),
                    1 => Frame::StreamsBlocked { dir, limit: word.into() },
                    _ => Frame::StreamDataBlocked { id: self.receiving(word), limit: amount.into() },
                })
            }
            13 if self.may_idle() => {
                let mut out = Vec::new();
                varint::push(&mut out, PING);
                self.pings += 1 + u64::from(amount);
                varint::push(&mut out, if self.wild && word & 7 == 7 { word.into() } else { self.pings });
                out
            }
            14 if self.asked > 0 || self.wild => {
                let mut out = Vec::new();
                varint::push(&mut out, PONG);
                varint::push(&mut out, if self.wild { word.into() } else { u64::from(word) % self.asked });
                out
            }
            // What has no place here, or ends the connection.
            15 if self.wild => {
                let words = vec![amount; usize::from(amount) * 60];
                bytes(&match word % 6 {
                    0 => Frame::Crypto { offset: word.into(), data: &[0; 30] },
                    1 => Frame::HandshakeDone,
                    2 => Frame::RetireConnectionId { sequence: word.into() },
                    3 => Frame::ConnectionClose { error: word.into(), frame_type: 0, reason: &words },
                    4 => Frame::ApplicationClose { error: word.into(), reason: &words },
                    _ => Frame::PathChallenge([amount; 8]),
                })
            }
            16 if self.wild => self.last.clone(),
            _ if self.may_idle() => vec![0],
            _ => Vec::new(),
        }
    }

    /// Returns whether a frame that may change nothing is allowed still.
    fn may_idle(&mut self) -> bool {
        self.idle += 1;
        self.wild || self.idle < IDLE_FRAMES
    }

    /// A stream on which the peer sends: opened by it, or answered.
    fn receiving(&mut self, word: u16) -> StreamId {
        let answers: Vec<StreamId> =
            self.ours.keys().copied().filter(|id| id.initiator() != self.side && id.dir() == Dir::Bi).collect();
        if word & 0x20 != 0 && !answers.is_empty() {
            return answers[usize::from(word >> 6) % answers.len()];
        }
        let dir = if word & 1 == 0 { Dir::Bi } else { Dir::Uni };
        let most = if self.wild { u64::MAX } else { self.may_open[at(dir)].saturating_sub(1) };
        // The last that may be opened, so that ever new ones are.
        let index =
            if word & 0x10 == 0 { u64::from(word >> 1 & 7) } else { most.saturating_sub(u64::from(word >> 1 & 7)) };
        StreamId::new(self.side, dir, index.min(most).min(StreamId::MAX_STREAMS - 1))
    }

    /// A stream on which the end sends.
    fn sending(&mut self, word: u16) -> Option<StreamId> {
        // Streams that the end has opened, as far as it has said so.
        let known: Vec<StreamId> = self.ours.iter().filter(|(_, ours)| ours.sent > 0).map(|(id, _)| *id).collect();
        if word & 0x20 != 0 && !known.is_empty() {
            return Some(known[usize::from(word >> 6) % known.len()]);
        }
        let index = u64::from(word & 7);
        if self.wild {
            return Some(StreamId(u64::from(word & 0x1f)));
        }
        (index < self.may_open[0]).then(|| StreamId::new(self.side, Dir::Bi, index))
    }

    fn stream(&mut self, word: u16, amount: u8) -> Vec<u8> {
        let id = self.receiving(word);
        let window = self.config.stream_window;
        let limit = *self.may_send_on.entry(id).or_insert(window);
        let theirs = self.theirs.entry(id).or_default();
        let room = (limit - theirs.sent.min(limit)).min(self.may_send - self.sent.min(self.may_send));
        let (fin, len) = (word & 0x0e00 == 0x0e00, u64::from(amount) * if word & 0x1000 == 0 { 1 } else { 40 });
        let (mut offset, mut len) = (theirs.sent, len.min(room).min(15_000));
        if self.wild && word & 0x8000 != 0 && word & 0x700 == 0x700 {
            offset += u64::from(amount & 3);
            len += 1_000;
        } else if theirs.is_over {
            return Vec::new();
        }
        theirs.sent += len;
        theirs.is_over |= fin;
        self.sent += len;
        if len == 0 && !fin && !self.may_idle() {
            return Vec::new();
        }
        let data: Vec<u8> = (0..len).map(|at| content(id, offset + at)).collect();
        bytes(&Frame::Stream(StreamFrame { id, offset, data: &data, fin }))
    }

    fn reset(&mut self, word: u16) -> Vec<u8> {
        let id = self.receiving(word);
        let theirs = self.theirs.entry(id).or_default();
        let final_size = theirs.sent + if self.wild { u64::from(word >> 12) } else { 0 };
        theirs.is_over = true;
        bytes(&Frame::ResetStream { id, code: word.into(), final_size })
    }
}
