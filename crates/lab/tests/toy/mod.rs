//! A transport that is just good enough to test the laboratory with: reliable streams, datagrams, an AIMD window, one
//! acknowledgement per packet. It has no security and is not QUIC.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use lab::{
    contender::{BuildError, ConnectionSpec, Evidence, Factor, Identity, RunSpec},
    host::{Host, HostEvent, ReadEnd, Stream, Written},
    stack::{SansIo, Stack, StackBuilder, StackCounters},
};
use sim::{Datagram, Outbox};
use units::{Duration, Instant};

const HELLO: u8 = 0;
const WELCOME: u8 = 1;
const DATA: u8 = 2;
const ACK: u8 = 3;
const LOOSE: u8 = 4;
const PAYLOAD: usize = 1_200;
const BUFFER: usize = 128 << 10;
const RTO: Duration = Duration::from_millis(600);

/// Trick of a toy that a conforming one would not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trick {
    /// Nothing.
    None,
    /// Claims another congestion controller than the one it was set up with.
    OtherController,
    /// Does not tell its RTT samples or what it sent again.
    Silent,
    /// Changes a byte now and then.
    Corrupts,
    /// Refuses to be set up.
    Unbuildable,
    /// Never answers.
    Deaf,
}

/// A toy whose window shrinks to this share (in percent) on loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Toy {
    pub(crate) percent: u32,
    pub(crate) trick: Trick,
}

impl Toy {
    pub(crate) fn contender(percent: u32, trick: Trick) -> Box<dyn lab::contender::Contender> {
        Box::new(SansIo(Self { percent, trick }))
    }

    fn connection(self, client: bool, from: std::net::SocketAddr, to: std::net::SocketAddr) -> Connection {
        Connection {
            toy: self,
            client,
            from,
            to,
            established: false,
            events: VecDeque::new(),
            hello_at: None,
            opened: 0,
            accepted: VecDeque::new(),
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            datagrams: (VecDeque::new(), VecDeque::new()),
            acks: Vec::new(),
            flight: BTreeMap::new(),
            lost: VecDeque::new(),
            number: 0,
            window: 10.0,
            threshold: f64::MAX,
            recovery: 0,
            progress: Instant::ZERO,
            rtt: Vec::new(),
            rtt_min: None,
            counters: [0; 4],
        }
    }
}

impl StackBuilder for Toy {
    type Stack = Connection;

    fn identity(&self) -> Identity {
        let parameters = [("decrease".to_owned(), format!("{} %", self.percent))].into();
        let trick = if self.trick == Trick::None { String::new() } else { format!(" {:?}", self.trick).to_lowercase() };
        Identity { name: format!("toy {}{trick}", self.percent), version: "1".to_owned(), parameters }
    }

    fn factors(&self) -> Vec<Factor> {
        vec![Factor { name: "congestion".to_owned(), value: format!("aimd-{}", self.percent) }]
    }

    fn client(&self, _: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<Connection, BuildError> {
        if self.trick == Trick::Unbuildable {
            return Err(BuildError("the toy is broken".to_owned()));
        }
        Ok(self.connection(true, connection.client, connection.server))
    }

    fn server(&self, _: &RunSpec<'_>, connection: &ConnectionSpec) -> Result<Connection, BuildError> {
        Ok(self.connection(false, connection.server, connection.client))
    }
}

#[derive(Clone, Debug)]
struct Segment {
    stream: Stream,
    offset: u64,
    data: Bytes,
    fin: bool,
    sent: Instant,
}

#[derive(Debug, Default)]
struct Sending {
    offset: u64,
    unsent: VecDeque<Bytes>,
    fin: bool,
    blocked: bool,
}

#[derive(Debug, Default)]
struct Receiving {
    next: u64,
    parts: BTreeMap<u64, Bytes>,
    end: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    toy: Toy,
    client: bool,
    from: std::net::SocketAddr,
    to: std::net::SocketAddr,
    established: bool,
    events: VecDeque<HostEvent>,
    hello_at: Option<Instant>,
    opened: u64,
    accepted: VecDeque<Stream>,
    sending: BTreeMap<Stream, Sending>,
    receiving: BTreeMap<Stream, Receiving>,
    datagrams: (VecDeque<Bytes>, VecDeque<Bytes>),
    acks: Vec<u64>,
    flight: BTreeMap<u64, Segment>,
    lost: VecDeque<Segment>,
    number: u64,
    window: f64,
    threshold: f64,
    recovery: u64,
    progress: Instant,
    rtt: Vec<Duration>,
    rtt_min: Option<Duration>,
    /// Acknowledgements, stream bytes sent, of them sent again, packets.
    counters: [u64; 4],
}

impl Connection {
    fn send(&mut self, kind: u8, out: &mut Outbox, fill: impl FnOnce(&mut BytesMut)) {
        let mut payload = BytesMut::with_capacity(PAYLOAD + 32);
        payload.put_u8(kind);
        fill(&mut payload);
        self.counters[3] += 1;
        out.send(Datagram::new(self.from, self.to, payload));
    }

    fn establish(&mut self, now: Instant) {
        if !self.established {
            (self.established, self.progress) = (true, now);
            self.events.push_back(HostEvent::Established);
        }
    }

    fn stream(&mut self, stream: Stream) -> &mut Receiving {
        let new = !self.receiving.contains_key(&stream);
        if new && stream % 2 != u64::from(!self.client) {
            self.accepted.push_back(stream);
            self.events.push_back(HostEvent::Opened);
        }
        self.receiving.entry(stream).or_default()
    }

    fn on_data(&mut self, mut data: Bytes) {
        let (number, stream, offset, fin) = (data.get_u64(), data.get_u64(), data.get_u64(), data.get_u8() == 1);
        if self.toy.trick == Trick::Corrupts && number % 100 == 99 && !data.is_empty() {
            let mut changed = data.to_vec();
            changed[0] ^= 1;
            data = changed.into();
        }
        self.acks.push(number);
        let state = self.stream(stream);
        if fin {
            state.end = Some(offset + data.len() as u64);
        }
        if offset >= state.next && !data.is_empty() {
            state.parts.insert(offset, data);
        }
        if state.parts.contains_key(&state.next) || state.end == Some(state.next) {
            self.events.push_back(HostEvent::Readable(stream));
        }
    }

    fn on_ack(&mut self, now: Instant, number: u64) {
        let Some(segment) = self.flight.remove(&number) else { return };
        let sample = now - segment.sent;
        self.counters[0] += 1;
        self.progress = now;
        self.rtt.push(sample);
        self.rtt_min = Some(self.rtt_min.map_or(sample, |least| least.min(sample)));
        self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        let late: Vec<u64> = self.flight.range(..number.saturating_sub(2)).map(|(&number, _)| number).collect();
        self.lose(&late);
        for (&stream, state) in &mut self.sending {
            let waiting: usize = state.unsent.iter().map(Bytes::len).sum();
            if state.blocked && waiting < BUFFER / 2 {
                state.blocked = false;
                self.events.push_back(HostEvent::Writable(stream));
            }
        }
    }

    fn lose(&mut self, numbers: &[u64]) {
        for number in numbers {
            let segment = self.flight.remove(number).expect("it is in flight");
            self.lost.push_back(segment);
            if *number >= self.recovery {
                self.window = (self.window * f64::from(self.toy.percent) / 100.0).max(2.0);
                (self.threshold, self.recovery) = (self.window, self.number);
            }
        }
    }

    /// Next segment: one that was lost, or else new data.
    fn next_segment(&mut self, now: Instant) -> Option<Segment> {
        if let Some(segment) = self.lost.pop_front() {
            self.counters[2] += segment.data.len() as u64;
            return Some(Segment { sent: now, ..segment });
        }
        for (&stream, state) in &mut self.sending {
            if let Some(mut chunk) = state.unsent.pop_front() {
                let data = chunk.split_to(chunk.len().min(PAYLOAD));
                if !chunk.is_empty() {
                    state.unsent.push_front(chunk);
                }
                let fin = state.fin && state.unsent.is_empty();
                state.fin &= !fin;
                let offset = state.offset;
                state.offset += data.len() as u64;
                return Some(Segment { stream, offset, data, fin, sent: now });
            } else if state.fin {
                state.fin = false;
                return Some(Segment { stream, offset: state.offset, data: Bytes::new(), fin: true, sent: now });
            }
        }
        None
    }
}

impl Stack for Connection {
    fn start(&mut self, now: Instant) {
        if self.client {
            self.hello_at = Some(now);
        }
    }

    fn receive(&mut self, now: Instant, datagram: Datagram) {
        let mut data = datagram.payload.freeze();
        if self.toy.trick == Trick::Deaf || data.is_empty() {
            return;
        }
        match data.get_u8() {
            HELLO if !self.client => {
                self.hello_at = Some(now);
                self.establish(now);
            }
            WELCOME => {
                self.hello_at = None;
                self.establish(now);
            }
            DATA => self.on_data(data),
            ACK => self.on_ack(now, data.get_u64()),
            LOOSE => {
                self.datagrams.1.push_back(data);
                self.events.push_back(HostEvent::Datagram);
            }
            _ => {}
        }
    }

    fn timeout(&self) -> Option<(Instant, &'static str)> {
        let hello = self.hello_at.filter(|_| self.client).map(|at| (at, "the hello is sent again"));
        let flight = (!self.flight.is_empty()).then(|| (self.progress + RTO, "the oldest packet counts as lost"));
        hello.into_iter().chain(flight).min()
    }

    fn on_timeout(&mut self, now: Instant) {
        if !self.flight.is_empty() && self.progress + RTO <= now {
            let all: Vec<u64> = self.flight.keys().copied().collect();
            self.lose(&all);
            self.progress = now;
        }
    }

    fn transmit(&mut self, now: Instant, out: &mut Outbox) {
        if self.hello_at.is_some_and(|at| at <= now) {
            self.hello_at = self.client.then(|| now + RTO);
            self.send(if self.client { HELLO } else { WELCOME }, out, |_| {});
        }
        for number in std::mem::take(&mut self.acks) {
            self.send(ACK, out, |packet| packet.put_u64(number));
        }
        while let Some(data) = self.datagrams.0.pop_front() {
            self.send(LOOSE, out, |packet| packet.extend_from_slice(&data));
        }
        #[expect(clippy::cast_precision_loss)]
        while self.established && (self.flight.len() as f64) < self.window {
            let Some(segment) = self.next_segment(now) else { break };
            let number = self.number;
            self.number += 1;
            self.counters[1] += segment.data.len() as u64;
            if self.flight.is_empty() {
                self.progress = now;
            }
            self.send(DATA, out, |packet| {
                packet.put_u64(number);
                packet.put_u64(segment.stream);
                packet.put_u64(segment.offset);
                packet.put_u8(segment.fin.into());
                packet.extend_from_slice(&segment.data);
            });
            self.flight.insert(number, segment);
        }
    }

    fn take_rtt_samples(&mut self, sink: &mut dyn FnMut(Duration)) -> bool {
        self.rtt.drain(..).for_each(sink);
        self.toy.trick != Trick::Silent
    }

    fn counters(&self) -> StackCounters {
        let told = self.toy.trick != Trick::Silent;
        StackCounters {
            rtt_min: self.rtt_min,
            stream_bytes_sent: Some(self.counters[1]),
            stream_bytes_resent: told.then_some(self.counters[2]),
            packets_sent: Some(self.counters[3]),
            ..StackCounters::default()
        }
    }

    fn evidence(&self) -> Vec<Evidence> {
        let percent = if self.toy.trick == Trick::OtherController { 99 } else { self.toy.percent };
        let (factor, counter) = ("congestion".to_owned(), "acknowledgements processed".to_owned());
        // A workload of datagrams has no acknowledgements; the window is then not in use and shows nothing.
        vec![Evidence {
            factor,
            value: format!("aimd-{percent}"),
            counter,
            count: self.counters[0].max(u64::from(self.number == 0)),
        }]
    }
}

impl Host for Connection {
    fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    fn open(&mut self) -> Option<Stream> {
        let stream = self.opened * 2 + u64::from(!self.client);
        self.opened += 1;
        self.receiving.insert(stream, Receiving::default());
        Some(stream)
    }

    fn accept(&mut self) -> Option<Stream> {
        self.accepted.pop_front()
    }

    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written {
        let state = self.sending.entry(stream).or_default();
        let waiting: usize = state.unsent.iter().map(Bytes::len).sum();
        if waiting >= BUFFER {
            state.blocked = true;
            return Written::Blocked;
        }
        let taken = data.split_to(data.len().min(BUFFER - waiting));
        let len = taken.len();
        state.unsent.push_back(taken);
        Written::Bytes(len)
    }

    fn finish(&mut self, stream: Stream) {
        self.sending.entry(stream).or_default().fin = true;
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
        let Some(state) = self.receiving.get_mut(&stream) else { return ReadEnd::Closed };
        while let Some(data) = state.parts.remove(&state.next) {
            state.next += data.len() as u64;
            sink(&data);
        }
        if state.end == Some(state.next) { ReadEnd::Finished } else { ReadEnd::Blocked }
    }

    fn send_datagram(&mut self, data: Bytes) -> bool {
        self.datagrams.0.push_back(data);
        true
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        self.datagrams.1.pop_front()
    }
}
