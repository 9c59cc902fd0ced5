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
    /// Connections that have had a stream: while others are being made, they get no second one, which would be one less for those.
    used: Vec<bool>,
    /// The application was told that there is a connection.
    is_established: bool,
}

impl Pool {
    /// Begins with connections that are being made.
    pub(crate) fn new(making: Vec<Making>) -> Self {
        Self {
            links: making.iter().map(|_| None).collect(),
            used: vec![false; making.len()],
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
    fn first(
        &mut self,
        from: usize,
        may: impl Fn(usize) -> bool,
        give: impl Fn(&mut dyn Link) -> Option<Stream>,
    ) -> Option<(usize, Stream)> {
        let count = self.links.len();
        (0..count).map(|step| (from + step) % count).filter(|place| may(*place)).find_map(|place| {
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
        let are_made = self.making.iter().all(Option::is_none);
        let used = self.used.clone();
        let (place, stream) = self.first(self.turn, |place| are_made || !used[place], |link| link.open())?;
        (self.turn, self.used[place]) = (place + 1, true);
        Some(stream)
    }

    fn accept(&mut self) -> Option<Stream> {
        self.first(0, |_| true, |link| link.accept()).map(|(_, stream)| stream)
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

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc, task::Waker};

    use super::*;

    /// A connection whose every request for a stream is granted.
    struct Willing(Stream);

    impl Link for Willing {
        fn poll(&mut self, _cx: &mut Context<'_>) {}
    }

    impl Host for Willing {
        fn poll_event(&mut self) -> Option<HostEvent> {
            None
        }

        fn open(&mut self) -> Option<Stream> {
            self.0 += 1;
            Some(self.0 - 1)
        }

        fn accept(&mut self) -> Option<Stream> {
            None
        }

        fn write(&mut self, _stream: Stream, _data: &mut Bytes) -> Written {
            Written::Closed
        }

        fn finish(&mut self, _stream: Stream) {}

        fn read(&mut self, _stream: Stream, _sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
            ReadEnd::Blocked
        }

        fn send_datagram(&mut self, _data: Bytes) -> bool {
            false
        }

        fn receive_datagram(&mut self) -> Option<Bytes> {
            None
        }
    }

    #[test]
    fn streams_wait_for_connections_that_are_being_made() {
        let is_late = Rc::new(Cell::new(true));
        let late = Rc::clone(&is_late);
        let second = std::future::poll_fn(move |_| match late.get() {
            true => Poll::Pending,
            false => Poll::Ready(Ok(Box::new(Willing(0)) as Box<dyn Link>)),
        });
        let first: Making = Box::pin(async { Ok(Box::new(Willing(0)) as Box<dyn Link>) });
        let mut pool = Pool::new(vec![first, Box::pin(second)]);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(pool.open(), None);
        pool.poll(&mut cx);
        assert_eq!([pool.open(), pool.open()], [Some(0), None], "the second is for the other connection");
        is_late.set(false);
        pool.poll(&mut cx);
        assert_eq!([pool.open(), pool.open(), pool.open()], [Some(1), Some(2), Some(3)], "in turn");
        assert_eq!((inner(5, 2), outer(2, 1, 2)), ((2, 1), 5));
    }
}
