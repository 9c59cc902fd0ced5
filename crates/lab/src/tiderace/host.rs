//! Streams and datagrams of an end, as workloads use them.

use bytes::Bytes;
use transport::{
    Connection, Event,
    streams::{Order, Priority, ReadError, StreamEvent, WriteError},
    tls::EarlyData,
};
use wire::{Dir, StreamId};

use super::End;
use crate::host::{DatagramFate, Host, HostEvent, ReadEnd, Stream, Written};

impl Host for End {
    fn poll_event(&mut self) -> Option<HostEvent> {
        if let Some(reason) = self.failed.take() {
            return Some(HostEvent::Closed(reason));
        }
        if std::mem::take(&mut self.early) {
            return Some(HostEvent::Early);
        }
        while let Some((handle, event)) = self.endpoint.poll_event() {
            if Some(handle) != self.handle {
                continue;
            }
            let event = match event {
                Event::Connected => HostEvent::Established,
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => HostEvent::Opened,
                Event::Stream(StreamEvent::Readable { id }) => HostEvent::Readable(id.0),
                Event::Stream(StreamEvent::Writable { id }) => HostEvent::Writable(id.0),
                Event::Stream(StreamEvent::StreamsAvailable { dir: Dir::Bi }) => HostEvent::Available,
                Event::DatagramsReadable => HostEvent::Datagram,
                Event::Closed(reason) => HostEvent::Closed(reason.to_string()),
                _ => continue,
            };
            return Some(event);
        }
        None
    }

    fn open(&mut self) -> Option<Stream> {
        let connection = self.connection()?;
        let id = match connection.early_data() {
            EarlyData::Offered => connection.open_early(Dir::Bi),
            _ => connection.open(Dir::Bi),
        };
        id.map(|id| id.0)
    }

    fn accept(&mut self) -> Option<Stream> {
        self.connection()?.accept(Dir::Bi).map(|id| id.0)
    }

    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written {
        match self.connection().map(|connection| connection.write(StreamId(stream), data)) {
            Some(Ok(taken)) => Written::Bytes(taken),
            Some(Err(WriteError::Blocked)) => Written::Blocked,
            _ => Written::Closed,
        }
    }

    fn finish(&mut self, stream: Stream) {
        if let Some(connection) = self.connection() {
            // A stream that the peer stopped has no end to send.
            let _ = connection.finish(StreamId(stream));
        }
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
        let Some(connection) = self.connection() else { return ReadEnd::Closed };
        loop {
            match connection.read(StreamId(stream), usize::MAX, Order::Ordered) {
                Ok(Some(chunk)) => sink(&chunk.data),
                Ok(None) => return ReadEnd::Finished,
                Err(ReadError::Blocked) => return ReadEnd::Blocked,
                Err(_) => return ReadEnd::Closed,
            }
        }
    }

    fn prioritise(&mut self, stream: Stream, urgency: u8) -> bool {
        // Objects are of use when they are complete: one after the other, not all at once.
        let priority = Priority { urgency, incremental: false };
        self.connection().is_some_and(|connection| connection.set_priority(StreamId(stream), priority).is_ok())
    }

    fn cancel(&mut self, stream: Stream) -> bool {
        self.connection().is_some_and(|connection| connection.stop_sending(StreamId(stream), 0).is_ok())
    }

    fn reset(&mut self, stream: Stream, keep: u64) -> bool {
        let Some(connection) = self.connection() else { return false };
        connection.reset_at(StreamId(stream), 0, keep).is_ok() || connection.reset(StreamId(stream), 0).is_ok()
    }

    fn sent(&mut self, stream: Stream) -> Option<u64> {
        // A stream without a sending part is one whose end was acknowledged.
        Some(self.connection()?.sent(StreamId(stream)).unwrap_or(u64::MAX))
    }

    fn send_datagram(&mut self, data: Bytes) -> bool {
        self.connection().is_some_and(|connection| connection.send_datagram(data).is_ok())
    }

    fn take_datagram_fates(&mut self, sink: &mut dyn FnMut(u64, DatagramFate)) -> bool {
        let fates = self.connection().map(Connection::take_datagram_fates).unwrap_or_default();
        for (number, fate) in fates {
            let fate = match fate {
                transport::datagrams::DatagramFate::Sent(at) => DatagramFate::Sent(at),
                transport::datagrams::DatagramFate::Dropped => DatagramFate::Dropped,
                transport::datagrams::DatagramFate::Expired => DatagramFate::Expired,
            };
            sink(number, fate);
        }
        true
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        self.connection()?.recv_datagram()
    }
}
