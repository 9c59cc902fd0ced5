//! Connections of a client to one server, as one host of a workload: streams go to each in turn, as browsers and parallel uploads have it.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use lab::host::{Host, HostEvent, ReadEnd, Stream, Written};

/// Connection whose work is polled.
pub(crate) trait Link: Host {
    /// Lets the connection work; events tell what has happened. The waker of `cx` is called when there is more.
    fn poll(&mut self, cx: &mut Context<'_>);
}

/// A connection that is being made.
pub(crate) type Making = Pin<Box<dyn Future<Output = io::Result<Box<dyn Link>>>>>;

/// Connections, each of which carries a part of the streams.
pub(crate) struct Pool {
    /// Each connection by its place; `None` before it is made and when it could not be made.
    links: Vec<Option<Box<dyn Link>>>,
    making: Vec<Option<Making>>,
    events: VecDeque<HostEvent>,
    /// Connection that is asked first for the next stream.
    turn: usize,
    /// The application was told that there is a connection.
    is_established: bool,
}

impl Pool {
    /// Begins with connections that are being made.
    pub(crate) fn new(making: Vec<Making>) -> Self {
        Self {
            links: making.iter().map(|_| None).collect(),
            making: making.into_iter().map(Some).collect(),
            events: VecDeque::new(),
            turn: 0,
            is_established: false,
        }
    }

    /// Lets all of them work.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) {
        for (link, making) in self.links.iter_mut().zip(&mut self.making) {
            let Some(Poll::Ready(made)) = making.as_mut().map(|making| making.as_mut().poll(cx)) else { continue };
            *making = None;
            match made {
                Ok(made) => *link = Some(made),
                // A pool in which a connection is missing would be measured as if it were whole.
                Err(error) => self.events.push_back(HostEvent::Closed(error.to_string())),
            }
        }
        let count = self.links.len();
        for (place, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            link.poll(cx);
            while let Some(event) = link.poll_event() {
                self.events.push_back(match event {
                    HostEvent::Established if self.is_established => HostEvent::Available,
                    HostEvent::Established => {
                        self.is_established = true;
                        event
                    }
                    HostEvent::Readable(stream) => HostEvent::Readable(outer(stream, place, count)),
                    HostEvent::Writable(stream) => HostEvent::Writable(outer(stream, place, count)),
                    _ => event,
                });
            }
        }
    }

    /// The first stream that a connection has to give, beginning with the one whose turn it is.
    fn first(&mut self, from: usize, give: impl Fn(&mut dyn Link) -> Option<Stream>) -> Option<(usize, Stream)> {
        let count = self.links.len();
        (0..count).map(|step| (from + step) % count).find_map(|place| {
            let stream = give(self.links[place].as_deref_mut()?)?;
            Some((place, outer(stream, place, count)))
        })
    }

    fn link(&mut self, stream: Stream) -> Option<(&mut Box<dyn Link>, Stream)> {
        let (inner, place) = inner(stream, self.links.len());
        Some((self.links.get_mut(place)?.as_mut()?, inner))
    }
}

/// The number of a connection's stream among those of all.
fn outer(stream: Stream, place: usize, count: usize) -> Stream {
    stream * count as u64 + place as u64
}

/// The stream's number on its connection, and the connection's place.
#[expect(clippy::cast_possible_truncation, reason = "a place among at most eight")]
fn inner(stream: Stream, count: usize) -> (Stream, usize) {
    (stream / count as u64, (stream % count as u64) as usize)
}

impl Host for Pool {
    fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    fn open(&mut self) -> Option<Stream> {
        let (place, stream) = self.first(self.turn, |link| link.open())?;
        self.turn = place + 1;
        Some(stream)
    }

    fn accept(&mut self) -> Option<Stream> {
        self.first(0, |link| link.accept()).map(|(_, stream)| stream)
    }

    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written {
        self.link(stream).map_or(Written::Closed, |(link, stream)| link.write(stream, data))
    }

    fn finish(&mut self, stream: Stream) {
        if let Some((link, stream)) = self.link(stream) {
            link.finish(stream);
        }
    }

    fn cancel(&mut self, stream: Stream) -> bool {
        self.link(stream).is_some_and(|(link, stream)| link.cancel(stream))
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
        self.link(stream).map_or(ReadEnd::Closed, |(link, stream)| link.read(stream, sink))
    }

    fn send_datagram(&mut self, _data: Bytes) -> bool {
        false
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        None
    }
}
