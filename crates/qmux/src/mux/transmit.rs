//! Outgoing records.

use units::Instant;
use wire::{
    Dir, Frame, StreamFrame, StreamId, Writer,
    frame::{datagram_header_len, encode_datagram_header},
    varint,
};

use super::{Closed, Config, Event, Mux, PARAMETERS, PING, PONG, REASON, cost, kind};
use crate::{parameters::Parameters, record};

impl Mux {
    /// Next event; `None` when there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        match &event {
            Some(Event::Readable(id)) => {
                if let Some(recv) = self.streams.get_mut(id).and_then(|stream| stream.recv.as_mut()) {
                    recv.told = false;
                }
            }
            Some(Event::Datagram) => self.datagram_told = false,
            Some(Event::Available(dir)) => self.available_told[kind(*dir)] = false,
            Some(_) => {}
            None => self.events.shrink_to(16),
        }
        event
    }

    /// Appends a record to `out`; returns false without data to send.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut w = Writer::new(&mut scratch);
        self.fill(&mut w);
        let some = w.position() > 0;
        if some {
            record::push(out, w.written());
            self.heard_or_sent = now;
        }
        self.scratch = scratch;
        some
    }

    fn fill(&mut self, w: &mut Writer<'_>) {
        if !self.greeted {
            self.greeted = true;
            // draft-ietf-quic-qmux §4.2 MUST: the parameters are the first frame, and leave at once.
            let mut parameters = Vec::new();
            self.parameters().encode(&mut parameters);
            w.varint(PARAMETERS);
            w.varint(parameters.len() as u64);
            w.bytes(&parameters);
            return;
        }
        if let Some((code, by_application, reason)) = self.farewell.take() {
            let reason = reason.as_bytes();
            let reason = &reason[..reason.len().min(REASON)];
            match by_application {
                true => Frame::ApplicationClose { error: code, reason }.encode(w),
                false => Frame::ConnectionClose { error: code, frame_type: 0, reason }.encode(w),
            }
            return;
        }
        if self.closed.is_some() {
            return;
        }
        self.write_notices(w);
        self.write_datagrams(w);
        self.write_streams(w);
    }

    fn parameters(&self) -> Parameters {
        let Config { window, stream_window, streams_bidi, streams_uni, datagram_queue, idle_timeout, .. } = self.config;
        Parameters {
            max_idle_timeout: idle_timeout,
            initial_max_data: window,
            stream_data_bidi_local: stream_window,
            stream_data_bidi_remote: stream_window,
            stream_data_uni: stream_window,
            streams_bidi,
            streams_uni,
            max_datagram_frame_size: if datagram_queue > 0 { record::DEFAULT_MAX } else { 0 },
            max_record_size: record::DEFAULT_MAX,
        }
    }

    fn write_notices(&mut self, w: &mut Writer<'_>) {
        if std::mem::take(&mut self.pong_due) {
            w.varint(PONG);
            w.varint(self.ping_seen.unwrap_or(0));
        }
        if std::mem::take(&mut self.ping_due) {
            w.varint(PING);
            w.varint(self.pings);
            self.pings += 1;
        }
        let next = (self.read + self.config.window).min(varint::MAX);
        if next - self.told_data >= self.config.window / 2 {
            self.told_data = next;
            Frame::MaxData(next).encode(w);
        }
        for (dir, limit) in [(Dir::Bi, self.config.streams_bidi), (Dir::Uni, self.config.streams_uni)] {
            let at = kind(dir);
            let next = (self.peer_over[at] + limit).min(StreamId::MAX_STREAMS);
            if next - self.told[at] >= (limit / 4).max(1) {
                self.told[at] = next;
                Frame::MaxStreams { dir, limit: next }.encode(w);
            }
        }
        // Nothing here is longer.
        while w.remaining() > 64
            && let Some(id) = self.notices.pop_front()
        {
            let Some(recv) = self.streams.get_mut(&id).and_then(|stream| stream.recv.as_mut()) else { continue };
            if let Some((code, told)) = &mut recv.stop {
                if !*told {
                    *told = true;
                    Frame::StopSending { id, code: *code }.encode(w);
                }
            } else if let Some(limit) = recv.next_limit() {
                recv.limit = limit;
                Frame::MaxStreamData { id, limit }.encode(w);
            }
        }
    }

    fn write_datagrams(&mut self, w: &mut Writer<'_>) {
        while let Some(next) = self.datagrams_out.front() {
            if datagram_header_len(Some(next.len())) + next.len() > w.remaining() {
                break;
            }
            encode_datagram_header(w, Some(next.len()));
            w.bytes(next);
            self.queued[1] -= cost(next);
            self.datagrams_out.pop_front();
        }
    }

    fn write_streams(&mut self, w: &mut Writer<'_>) {
        for _ in 0..self.line.len() {
            // What headers take at most, and something worth them.
            if w.remaining() < 64 {
                return;
            }
            let Some(id) = self.line.pop_front() else { return };
            let credit = self.may_send - self.sent;
            let Some(send) = self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut()) else { continue };
            if let Some(code) = send.reset {
                send.over = true;
                Frame::ResetStream { id, code, final_size: send.sent }.encode(w);
                self.tidy(id);
                continue;
            }
            if send.has_something(credit) {
                let offset = send.sent;
                let space = StreamFrame::capacity(id, offset, w.remaining() - 32).unwrap_or(0);
                let (len, fin) = send.next(space.min(usize::try_from(credit).unwrap_or(usize::MAX)));
                StreamFrame::encode_header(w, id, offset, fin, Some(len));
                send.take(w.reserve(len));
                self.sent += len as u64;
                self.events.push_back(Event::Writable(id));
            }
            // Whoever waits for the limit of the connection keeps a place; the stream's own limit queues it again.
            send.in_line = send.has_something(u64::MAX);
            if send.in_line {
                self.line.push_back(id);
            } else if send.is_blocked() {
                Frame::StreamDataBlocked { id, limit: send.limit }.encode(w);
            }
            self.tidy(id);
        }
    }

    /// Returns whether all has been sent: the sending side of the stream below is to be shut down.
    pub fn is_finished(&self) -> bool {
        self.closed.is_some() && self.farewell.is_none()
    }

    /// Reason why the connection has ended, if it is.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Bytes that are kept for the application and of the peer, records that are not complete included.
    pub fn kept(&self) -> u64 {
        self.received - self.read + (self.queued[0] + self.records.kept()) as u64
    }
}
