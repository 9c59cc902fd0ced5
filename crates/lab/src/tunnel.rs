//! Tunnels: a connection whose packets an outer connection carries between client and proxy, as with CONNECT-UDP (RFC 9298).
//!
//! Client and proxy are the ends of the outer connection; the server is on the proxy's machine, without a path in between. Both
//! connections are those of one stack. Inner packets are DATAGRAM frames, or capsules on one stream: each end has 256 KiB for
//! those that wait, and drops further ones. Left out: HTTP/3 around the request, and ECN, which CONNECT-UDP does not carry.

mod capsules;

use bytes::{BufMut, Bytes, BytesMut};
use sim::{Datagram, Ecn, Outbox};
use units::{Duration, Instant};

use self::capsules::Capsules;
use crate::{
    books::EndBooks,
    contender::{BuildError, ConnectionSpec, Evidence, Factor, Identity, RunSpec},
    host::{DatagramFate, Host, HostEvent, ReadEnd, Stream, Written},
    stack::{Stack, StackBuilder, StackCounters},
    tunnelling::{Tunnel, TunnelCounters},
    view::SenderView,
};

/// Bytes that wait at each end of a tunnel, as many as the gateway's connections hold.
pub(crate) const QUEUE: u64 = 256 * 1024;

/// Largest payload that is sent as a capsule where no DATAGRAM frame holds it: the first packets of a QUIC connection (docs/masque.md).
const CAPSULE_MAX: usize = 1_200;

/// Quarter stream ID and context ID of each HTTP Datagram: both are 0.
const DATAGRAM_HEAD: [u8; 2] = [0, 0];

/// Contender inside a tunnel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InTunnel<B> {
    /// Builder of the ends of the inner connection.
    pub(crate) inner: B,
    /// Builder of client and proxy.
    pub(crate) outer: B,
    pub(crate) tunnel: Tunnel,
}

impl<B: StackBuilder> InTunnel<B> {
    fn end(
        &self,
        spec: &RunSpec<'_>,
        connection: &ConnectionSpec,
        of: impl Fn(&B, &RunSpec<'_>, &ConnectionSpec) -> Result<B::Stack, BuildError>,
        is_client: bool,
    ) -> Result<Tunnelled<B::Stack>, BuildError> {
        let inner = of(&self.inner, spec, connection)?;
        let outer = of(&self.outer, &RunSpec { seed: spec.seed.child("tunnel", 0), qlog: None, ..*spec }, connection)?;
        let (local, remote) = match is_client {
            true => (connection.client, connection.server),
            false => (connection.server, connection.client),
        };
        Ok(Tunnelled {
            inner,
            outer,
            tunnel: self.tunnel,
            is_client,
            local,
            remote,
            capsules: Capsules::new(is_client),
            given: 0,
            dropped: 0,
            closed: None,
            packets: Outbox::new(),
        })
    }
}

impl<B: StackBuilder> StackBuilder for InTunnel<B> {
    type Stack = Tunnelled<B::Stack>;

    fn identity(&self) -> Identity {
        let mut identity = self.inner.identity();
        identity.parameters.insert("tunnel".to_owned(), self.tunnel.name().to_owned());
        identity
    }

    fn factors(&self) -> Vec<Factor> {
        let mut factors = self.inner.factors();
        factors.push(Factor { name: "tunnel".to_owned(), value: self.tunnel.name().to_owned() });
        factors
    }

    fn client(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<Self::Stack, BuildError> {
        self.end(spec, connection, B::client, true)
    }

    fn server(&self, spec: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<Self::Stack, BuildError> {
        self.end(spec, connection, B::server, false)
    }
}

/// One end of a connection, and of the tunnel around it.
#[derive(Debug)]
pub struct Tunnelled<S> {
    inner: S,
    outer: S,
    tunnel: Tunnel,
    is_client: bool,
    local: core::net::SocketAddr,
    remote: core::net::SocketAddr,
    capsules: Capsules,
    /// Inner packets given to the tunnel.
    given: u64,
    /// Inner packets that the tunnel dropped before they were sent.
    dropped: u64,
    /// Reason why the outer connection has ended, until the application knows it.
    closed: Option<String>,
    /// Packets of the inner connection that leave.
    packets: Outbox,
}

impl<S: Stack> Tunnelled<S> {
    /// Processes the events of the outer connection. Returns whether there was any.
    fn settle(&mut self, now: Instant) -> bool {
        let mut acted = false;
        while let Some(event) = self.outer.poll_event() {
            acted = true;
            match event {
                HostEvent::Established if self.is_client => {
                    // Packets follow the request at once (RFC 9298 §5).
                    self.capsules.open(&mut self.outer);
                    self.inner.start(now);
                }
                HostEvent::Opened if !self.is_client => self.capsules.accept(&mut self.outer),
                HostEvent::Closed(reason) => self.closed = Some(format!("tunnel: {reason}")),
                HostEvent::Datagram => {
                    while let Some(mut data) = self.outer.receive_datagram() {
                        if data.starts_with(&DATAGRAM_HEAD) {
                            let payload = data.split_off(DATAGRAM_HEAD.len());
                            self.deliver(now, &payload);
                        }
                    }
                }
                _ => {}
            }
        }
        for payload in self.capsules.read(&mut self.outer) {
            self.deliver(now, &payload);
        }
        acted
    }

    fn deliver(&mut self, now: Instant, payload: &[u8]) {
        self.inner.receive(
            now,
            Datagram {
                from: self.remote,
                to: self.local,
                ecn: Ecn::NotEct,
                payload: BytesMut::from(payload),
                segment_size: None,
                tag: 0,
            },
        );
    }

    /// Gives the packets of the inner connection to the tunnel. Returns whether there was any.
    fn carry(&mut self, now: Instant) -> bool {
        let mut packets = std::mem::take(&mut self.packets);
        self.inner.transmit(now, &mut packets);
        let carried = !packets.is_empty();
        for datagram in packets.drain() {
            let size = datagram.segment_size.unwrap_or(datagram.payload.len()).max(1);
            for packet in datagram.payload.chunks(size) {
                self.given += 1;
                let is_taken = match self.tunnel {
                    Tunnel::Stream => self.capsules.push(&mut self.outer, packet),
                    _ => {
                        self.outer.send_datagram(http_datagram(packet)) || {
                            packet.len() <= CAPSULE_MAX && self.capsules.push(&mut self.outer, packet)
                        }
                    }
                };
                self.dropped += u64::from(!is_taken);
            }
        }
        self.packets = packets;
        carried
    }
}

fn http_datagram(payload: &[u8]) -> Bytes {
    let mut data = BytesMut::with_capacity(DATAGRAM_HEAD.len() + payload.len());
    data.put_slice(&DATAGRAM_HEAD);
    data.put_slice(payload);
    data.freeze()
}

impl<S: Stack> Stack for Tunnelled<S> {
    fn start(&mut self, now: Instant) {
        self.outer.start(now);
    }

    fn receive(&mut self, now: Instant, datagram: Datagram) {
        self.outer.receive(now, datagram);
        self.settle(now);
    }

    fn timeout(&self) -> Option<(Instant, &'static str)> {
        [self.inner.timeout(), self.outer.timeout()].into_iter().flatten().min_by_key(|&(at, _)| at)
    }

    fn on_timeout(&mut self, now: Instant) {
        for stack in [&mut self.inner, &mut self.outer] {
            if stack.timeout().is_some_and(|(at, _)| at <= now) {
                stack.on_timeout(now);
            }
        }
        self.settle(now);
    }

    fn transmit(&mut self, now: Instant, out: &mut Outbox) {
        loop {
            let carried = self.carry(now);
            let written = self.capsules.flush(&mut self.outer);
            let before = out.len();
            self.outer.transmit(now, out);
            let settled = self.settle(now);
            let dropped = &mut self.dropped;
            self.outer.take_datagram_fates(&mut |_, fate| *dropped += u64::from(fate == DatagramFate::Dropped));
            if !carried && !written && !settled && out.len() == before {
                return;
            }
        }
    }

    fn take_rtt_samples(&mut self, sink: &mut dyn FnMut(Duration)) -> bool {
        self.outer.take_rtt_samples(&mut |_| {});
        self.inner.take_rtt_samples(sink)
    }

    fn take_loss_delays(&mut self, sink: &mut dyn FnMut(Duration)) -> bool {
        self.outer.take_loss_delays(&mut |_| {});
        self.inner.take_loss_delays(sink)
    }

    fn counters(&self) -> StackCounters {
        let (inner, outer) = (self.inner.counters(), self.outer.counters());
        StackCounters {
            memory: inner.memory.zip(outer.memory).map(|(inner, outer)| inner + outer + self.capsules.queued()),
            tunnel: Some(TunnelCounters {
                given: self.given,
                dropped: self.dropped,
                packets_sent: outer.packets_sent,
                packets_lost: outer.packets_lost,
            }),
            ..inner
        }
    }

    fn evidence(&self) -> Vec<Evidence> {
        let mut shown = self.inner.evidence();
        shown.push(Evidence {
            factor: "tunnel".to_owned(),
            value: self.tunnel.name().to_owned(),
            counter: "packets that the tunnel took".to_owned(),
            count: self.given - self.dropped,
        });
        shown
    }

    fn evidence_at_receiver(&self) -> Vec<Evidence> {
        self.inner.evidence_at_receiver()
    }

    fn evidence_at_client(&self) -> Vec<Evidence> {
        self.inner.evidence_at_client()
    }

    /// Books of the outer connection: the network carries its packets alone.
    fn books(&self) -> Option<Result<EndBooks, String>> {
        self.outer.books()
    }

    fn view(&self) -> Option<SenderView> {
        self.inner.view()
    }
}

impl<S: Stack> Host for Tunnelled<S> {
    fn poll_event(&mut self) -> Option<HostEvent> {
        self.closed.take().map(HostEvent::Closed).or_else(|| self.inner.poll_event())
    }

    fn open(&mut self) -> Option<Stream> {
        self.inner.open()
    }

    fn accept(&mut self) -> Option<Stream> {
        self.inner.accept()
    }

    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written {
        self.inner.write(stream, data)
    }

    fn finish(&mut self, stream: Stream) {
        self.inner.finish(stream);
    }

    fn prioritise(&mut self, stream: Stream, urgency: u8) -> bool {
        self.inner.prioritise(stream, urgency)
    }

    fn cancel(&mut self, stream: Stream) -> bool {
        self.inner.cancel(stream)
    }

    fn reset(&mut self, stream: Stream, keep: u64) -> bool {
        self.inner.reset(stream, keep)
    }

    fn sent(&mut self, stream: Stream) -> Option<u64> {
        self.inner.sent(stream)
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
        self.inner.read(stream, sink)
    }

    fn send_datagram(&mut self, data: Bytes) -> bool {
        self.inner.send_datagram(data)
    }

    fn take_datagram_fates(&mut self, sink: &mut dyn FnMut(u64, DatagramFate)) -> bool {
        self.inner.take_datagram_fates(sink)
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        self.inner.receive_datagram()
    }
}
