//! Commands of the application.

use bytes::Bytes;
use wire::{Dir, StreamId, frame::datagram_header_len};

use super::{Closed, Mux, REASON, Refused, Stream, cost, kind};
use crate::{
    record,
    streams::{Read, Recv, Send},
};

impl Mux {
    /// Opens a stream; `None` when the peer does not allow it yet.
    pub fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let peer = self.peer.filter(|_| self.closed.is_none())?;
        let at = kind(dir);
        if self.opened[at] >= self.may_open[at] {
            return None;
        }
        let id = StreamId::new(self.side, dir, self.opened[at]);
        self.opened[at] += 1;
        let (limit, recv) = match dir {
            Dir::Bi => (peer.stream_data_bidi_remote, Some(Recv::new(self.config.stream_window))),
            Dir::Uni => (peer.stream_data_uni, None),
        };
        self.streams.insert(id, Stream { send: Some(Send::new(limit)), recv });
        Some(id)
    }

    /// The next stream that the peer has opened.
    pub fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.to_accept[kind(dir)].pop_front()
    }

    fn sender(&mut self, id: StreamId) -> Result<&mut Send, Refused> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone().into());
        }
        let send = self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut()).ok_or(Refused::StreamClosed)?;
        match send.stopped {
            Some(code) => {
                send.told = true;
                self.tidy(id);
                Err(Refused::Stopped(code))
            }
            None if !send.is_open() => Err(Refused::StreamClosed),
            None => self.streams.get_mut(&id).and_then(|stream| stream.send.as_mut()).ok_or(Refused::StreamClosed),
        }
    }

    /// Takes bytes from the front of `data`, as many as there is room for; returns their number. After 0,
    /// [`Event::Writable`](super::Event::Writable) follows when there is more room.
    ///
    /// # Errors
    /// When the stream cannot be written any more.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, Refused> {
        let send = self.sender(id)?;
        let part = data.split_to(send.room().min(data.len()));
        let len = part.len();
        if len > 0 {
            send.push(part);
            self.queue(id);
        }
        Ok(len)
    }

    /// Ends a stream after the written data.
    ///
    /// # Errors
    /// When it has ended.
    pub fn finish(&mut self, id: StreamId) -> Result<(), Refused> {
        self.sender(id)?.finish();
        self.queue(id);
        Ok(())
    }

    /// Gives a stream up.
    ///
    /// # Errors
    /// When it has ended.
    pub fn reset(&mut self, id: StreamId, code: u64) -> Result<(), Refused> {
        self.sender(id)?.give_up(code);
        self.queue(id);
        Ok(())
    }

    /// Reads up to `most` bytes of a stream; empty without data, `None` at its end.
    ///
    /// # Errors
    /// When the peer has given it up, or the stream or the connection has ended.
    pub fn read(&mut self, id: StreamId, most: usize) -> Result<Option<Bytes>, Refused> {
        let Some(recv) = self.streams.get_mut(&id).and_then(|stream| stream.recv.as_mut()) else {
            return Err(self.closed.clone().map_or(Refused::StreamClosed, Refused::Closed));
        };
        let before = recv.held();
        let read = recv.read(most);
        self.unread = self.unread + recv.held() - before;
        if let Read::Data(data) = &read {
            self.read += data.len() as u64;
        }
        self.tidy(id);
        self.relax();
        match (read, &self.closed) {
            (Read::Data(data), _) => Ok(Some(data)),
            (Read::End, _) => Ok(None),
            (Read::Reset(code), _) => Err(Refused::Reset(code)),
            (Read::Nothing, Some(closed)) => Err(closed.clone().into()),
            (Read::Nothing, None) => Ok(Some(Bytes::new())),
        }
    }

    /// Asks the peer to stop sending on a stream (STOP_SENDING).
    pub fn stop(&mut self, id: StreamId, code: u64) {
        if let Some(recv) = self.streams.get_mut(&id).and_then(|stream| stream.recv.as_mut()) {
            self.unread -= recv.held();
            self.read += recv.stop(code);
            self.tidy(id);
            self.relax();
        }
    }

    /// Returns whether a stream has data for a reader.
    pub fn is_readable(&self, id: StreamId) -> bool {
        self.streams.get(&id).and_then(|stream| stream.recv.as_ref()).is_none_or(Recv::is_readable)
    }

    /// The largest datagram that can be sent, in bytes; `None` when the peer takes none.
    pub fn max_datagram_size(&self) -> Option<usize> {
        let peer = self.peer.filter(|peer| peer.max_datagram_frame_size > 0)?;
        // draft-ietf-quic-qmux §9.1: the frame has to fit into a record, and its length takes up to 2 bytes here.
        let frame = peer.max_datagram_frame_size.min(peer.max_record_size).min(record::DEFAULT_MAX);
        usize::try_from(frame).ok()?.checked_sub(datagram_header_len(Some(usize::try_from(frame).ok()?)))
    }

    /// Queues a datagram. When the queue is full the oldest is dropped.
    ///
    /// # Errors
    /// When the peer takes none of this size, or the connection has ended.
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), Refused> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone().into());
        }
        if self.max_datagram_size().is_none_or(|most| data.len() > most) {
            return Err(Refused::Datagram);
        }
        self.push_datagram(1, data);
        Ok(())
    }

    /// The next datagram of the peer.
    pub fn recv_datagram(&mut self) -> Option<Bytes> {
        let data = self.datagrams_in.pop_front()?;
        self.queued[0] -= cost(&data);
        if self.datagrams_in.is_empty() {
            // What a flood has made it grow to is not kept.
            self.datagrams_in.shrink_to(8);
        }
        self.relax();
        Some(data)
    }

    /// Sends a PING.
    pub fn ping(&mut self) {
        self.ping_due = true;
    }

    /// Closes the connection.
    pub fn close(&mut self, code: u64, reason: &str) {
        if self.closed.is_none() {
            self.farewell = Some((code, true, reason.chars().take(REASON / 4).collect()));
            self.end(Closed::Local(code));
        }
    }
}
