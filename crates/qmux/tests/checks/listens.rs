//! Checks of what the end sends: it keeps to the rules and to the peer's limits, and its own limits count.

use tiderace_qmux::{
    parameters::Parameters,
    record::{self, Records, TooLarge},
};
use wire::{Dir, Frame, Frames, Reader, Side, StreamFrame, StreamId};

use super::{PARAMETERS, PING, PONG, Peer, at, bytes, content};

impl Peer<'_> {
    /// Takes in what the end has sent: it keeps to the rules, and what it allows counts.
    pub(super) fn listen(&mut self, sent: &[u8]) {
        let mut all = Vec::new();
        let mut records = std::mem::replace(&mut self.records, Records::new(record::DEFAULT_MAX));
        let fed = records.feed(sent, |record| {
            all.push(record.to_vec());
            Ok::<_, TooLarge>(())
        });
        assert_eq!((fed, records.kept()), (Ok(()), 0), "records are whole, and not too large");
        self.records = records;
        for record in all {
            let mut rest = &record[..];
            assert!(!rest.is_empty(), "a record without a frame");
            while !rest.is_empty() {
                let mut reader = Reader::new(rest);
                match reader.varint().expect("a type") {
                    PARAMETERS => {
                        assert!(!std::mem::replace(&mut self.greeted, true), "parameters come once");
                        Parameters::decode(reader.counted().expect("parameters")).expect("parameters");
                        rest = reader.rest();
                    }
                    PING => {
                        assert_eq!(reader.varint().ok(), Some(self.asked), "pings count");
                        self.asked += 1;
                        rest = reader.rest();
                    }
                    PONG => {
                        reader.varint().expect("a number");
                        rest = reader.rest();
                    }
                    _ => {
                        assert!(self.greeted, "parameters come first");
                        let mut frames = Frames::new(rest);
                        let frame = frames.next().expect("a frame").expect("that is well formed");
                        let position = frames.position();
                        self.on_frame(&frame);
                        rest = &rest[position..];
                    }
                }
            }
        }
    }

    fn on_frame(&mut self, frame: &Frame<'_>) {
        match *frame {
            Frame::MaxData(limit) => {
                assert!(limit > self.may_send, "a limit that says nothing");
                self.may_send = limit;
            }
            Frame::MaxStreamData { id, limit } => {
                let before = self.may_send_on.insert(id, limit);
                assert!(before.is_none_or(|before| before < limit), "a limit that says nothing");
            }
            Frame::MaxStreams { dir, limit } => {
                assert!(limit > self.may_open[at(dir)], "a limit that says nothing");
                self.may_open[at(dir)] = limit;
            }
            Frame::Stream(StreamFrame { id, offset, data, fin }) => {
                let limit = *self.allows_on.entry(id).or_insert_with(|| initial(&self.declared, self.side, id));
                let ours = self.ours.get_mut(&id).expect("the application has opened or accepted it");
                assert!(!ours.is_over && offset == ours.sent, "stream {id:?} at {offset}, {} were sent", ours.sent);
                ours.sent += data.len() as u64;
                ours.is_over = fin;
                self.reached.sent += data.len() as u64;
                assert!(ours.sent <= limit, "{} bytes on stream {id:?}, {limit} are allowed", ours.sent);
                assert!(self.reached.sent <= self.allows, "{} bytes, {} are allowed", self.reached.sent, self.allows);
                let expected = (0..data.len() as u64).map(|at| content(id, offset + at));
                assert!(expected.eq(data.iter().copied()), "stream {id:?} at {offset}");
                assert!(ours.sent <= ours.written);
            }
            Frame::ResetStream { id, final_size, .. } => {
                if let Some(ours) = self.ours.get_mut(&id) {
                    assert!(!ours.is_over && final_size == ours.sent, "a reset of {id:?} at {final_size}");
                    ours.is_over = true;
                }
            }
            Frame::Datagram { data } => {
                assert!(
                    bytes(frame).len() as u64 <= self.declared.max_datagram_frame_size.max(1),
                    "{} bytes",
                    data.len()
                );
            }
            Frame::StopSending { .. }
            | Frame::StreamDataBlocked { .. }
            | Frame::ConnectionClose { .. }
            | Frame::ApplicationClose { .. } => {}
            ref other => panic!("no place for {other:?}"),
        }
    }
}

/// Initial limit that a peer on this side has declared for a stream on which the other end sends.
pub(super) fn initial(declared: &Parameters, side: Side, id: StreamId) -> u64 {
    match id.dir() {
        Dir::Uni => declared.stream_data_uni,
        Dir::Bi if id.initiator() == side => declared.stream_data_bidi_local,
        Dir::Bi => declared.stream_data_bidi_remote,
    }
}
