//! Live broadcast over WebTransport: each group of pictures on a stream of its own, audio in datagrams, and the newest wins.
//!
//! The client opens the session with a request; in a download the server publishes from then on. Streams and datagrams begin as those of
//! WebTransport over HTTP/3 do: signal value and session ID, and the quarter stream ID. Streams are bidirectional; the receiver ends its
//! half at once. Left out: the answer to the request, SETTINGS, and field compression.

mod publisher;
mod viewer;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use units::Instant;

use self::{publisher::Publisher, viewer::Viewer};
use super::{End, Scope, mismatches, pattern};
use crate::{
    contender::RunSpec,
    host::{Host, HostEvent, ReadEnd, Stream},
};

/// Bytes of the request that opens the session: extended CONNECT with the header fields of a browser.
const REQUEST: u64 = 200;

/// Signal value of a bidirectional WebTransport stream (0x41), and the session ID 0: what a receiver needs to know whose stream it is.
const STREAM_SIGNAL: [u8; 3] = [0x40, 0x41, 0];
/// Bytes before the pictures of a group: the signal, its number, and the capture time of its first picture.
const HEAD: u64 = 19;
/// Quarter stream ID of the session.
const DATAGRAM_SIGNAL: u8 = 0;
/// Bytes before the samples of an audio datagram: the signal, its number, and its capture time.
const AUDIO_HEAD: usize = 17;

/// One end of a connection with a broadcast.
#[derive(Debug)]
pub(super) struct Broadcast {
    end: End,
    role: Role,
    /// Stream of the request, and the bytes of it that have arrived.
    session: Option<(Stream, u64)>,
}

#[derive(Debug)]
enum Role {
    Publisher(Publisher),
    Viewer(Viewer),
}

impl Broadcast {
    pub(super) fn new(end: End, publishes: bool, spec: &RunSpec<'_>) -> Self {
        let role = match publishes {
            true => Role::Publisher(Publisher::new(spec)),
            false => Role::Viewer(Viewer::new(spec)),
        };
        Self { end, role, session: None }
    }

    pub(super) fn on_event(&mut self, host: &mut impl Host, event: &HostEvent, scope: &mut Scope<'_>) {
        match (event, self.end) {
            (HostEvent::Early, End::Client) => self.request(host),
            (HostEvent::Established, End::Client) => {
                self.request(host);
                if let Role::Publisher(publisher) = &mut self.role {
                    publisher.begin(scope.now);
                }
            }
            (HostEvent::Opened, _) => {
                while let Some(stream) = host.accept() {
                    if self.end == End::Server && self.session.is_none() {
                        self.session = Some((stream, 0));
                        self.read_request(host, scope);
                    } else if let Role::Viewer(viewer) = &mut self.role {
                        host.finish(stream);
                        viewer.read(host, stream, scope);
                    }
                }
            }
            (HostEvent::Readable(stream), _) => match (&mut self.role, self.session) {
                (_, Some((session, _))) if session == *stream => self.read_request(host, scope),
                (Role::Viewer(viewer), _) => viewer.read(host, *stream, scope),
                (Role::Publisher(_), _) => drop(host.read(*stream, &mut |_| {})),
            },
            (HostEvent::Datagram, _) => {
                while let Some(data) = host.receive_datagram() {
                    if let Role::Viewer(viewer) = &mut self.role {
                        viewer.hear(&data, scope);
                    }
                }
            }
            (HostEvent::Writable(_) | HostEvent::Available, _) => {
                if let Role::Publisher(publisher) = &mut self.role {
                    publisher.act(host, scope);
                }
            }
            _ => {}
        }
    }

    /// Opens the session. The stream stays open as long as the connection.
    fn request(&mut self, host: &mut impl Host) {
        if self.session.is_none()
            && let Some(stream) = host.open()
        {
            // It fits into a stream that has just been opened.
            host.write(stream, &mut pattern(0, REQUEST));
            self.session = Some((stream, 0));
        }
    }

    fn read_request(&mut self, host: &mut impl Host, scope: &mut Scope<'_>) {
        let Some((stream, received)) = &mut self.session else { return };
        let end = host.read(*stream, &mut |data| {
            scope.received(*received, data, false);
            *received += data.len() as u64;
        });
        let is_there = *received >= REQUEST && end != ReadEnd::Closed;
        if let Role::Publisher(publisher) = &mut self.role
            && self.end == End::Server
            && is_there
        {
            publisher.begin(scope.now);
        }
    }

    /// Publishes what is due; returns whether there was anything.
    pub(super) fn on_time(&mut self, host: &mut impl Host, scope: &mut Scope<'_>) -> bool {
        match &mut self.role {
            Role::Publisher(publisher) if publisher.deadline().is_some_and(|at| at <= scope.now) => {
                publisher.act(host, scope);
                true
            }
            _ => false,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.role {
            Role::Publisher(publisher) => publisher.deadline(),
            Role::Viewer(_) => None,
        }
    }
}

/// Bytes before the pictures of a group.
fn head(number: u64, captured: Instant) -> Bytes {
    let mut head = BytesMut::with_capacity(32);
    head.put_slice(&STREAM_SIGNAL);
    head.put_u64(number);
    head.put_u64(captured.as_nanos());
    debug_assert_eq!(head.len() as u64, HEAD);
    head.freeze()
}

/// Number and capture time of a group; `None` if this is not the begin of one.
fn parse_head(mut head: &[u8]) -> Option<(u64, Instant)> {
    head = head.strip_prefix(&STREAM_SIGNAL)?;
    (head.len() == 16).then(|| (head.get_u64(), Instant::from_nanos(head.get_u64())))
}

/// Audio datagram of `size` bytes.
fn audio(number: u64, captured: Instant, size: usize) -> Bytes {
    let mut data = BytesMut::with_capacity(size);
    data.put_u8(DATAGRAM_SIGNAL);
    data.put_u64(number);
    data.put_u64(captured.as_nanos());
    // The pattern is longer than any datagram from each of these places.
    data.extend_from_slice(&pattern(number % 1_000, (size - AUDIO_HEAD) as u64));
    data.freeze()
}

/// Number and capture time of an audio datagram; the wrong bytes of one that is not as it was sent.
fn parse_audio(mut data: &[u8], size: usize) -> Result<(u64, Instant), u64> {
    if data.len() != size || data.first() != Some(&DATAGRAM_SIGNAL) {
        return Err(data.len().abs_diff(size).max(1) as u64);
    }
    data.advance(1);
    let (number, captured) = (data.get_u64(), Instant::from_nanos(data.get_u64()));
    match mismatches(number % 1_000, data) {
        0 => Ok((number, captured)),
        wrong => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        let at = Instant::from_millis(1_240);
        assert_eq!(parse_head(&head(7, at)), Some((7, at)));
        assert_eq!(parse_head(&head(7, at)[..18]), None);
        let data = audio(12_345, at, 160);
        assert_eq!((data.len(), parse_audio(&data, 160)), (160, Ok((12_345, at))));
        let mut damaged = data.to_vec();
        damaged[100] ^= 1;
        assert_eq!(parse_audio(&damaged, 160), Err(1));
        assert_eq!(parse_audio(&data[..150], 160), Err(10));
    }
}
