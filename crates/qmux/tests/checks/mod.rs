//! Two ends of QMux under random commands, beside a model of what each reader must get; a program may also let one of them meet a
//! peer that breaks rules.
//!
//! A program is bytes: each first one chooses what is done and by whom, those that follow say how much. What always holds: no panic,
//! and what an end keeps has its bound. As long as nobody breaks rules, no end finds a fault, and streams are read as they were
//! written.

use std::collections::HashMap;

use bytes::Bytes;
use tiderace_qmux::{Closed, Config, Mux, record};
use units::{Duration, Instant};
use wire::{Dir, Side, StreamId};

const WINDOW: u64 = 4_000;
const DATAGRAMS: u64 = 2_000;

/// Small, so that limits are met soon.
fn config() -> Config {
    Config {
        window: WINDOW,
        stream_window: 1_000,
        streams_bidi: 4,
        streams_uni: 2,
        datagram_queue: DATAGRAMS as usize,
        keep_alive: Some(Duration::from_secs(10)),
        ..Config::default()
    }
}

/// Beside the limits of the configuration one record that is not complete.
const KEPT: u64 = WINDOW + DATAGRAMS + record::DEFAULT_MAX + 8;
/// Bytes that are in progress in each direction.
const UNDER_WAY: usize = 64 << 10;

/// The byte of a stream at an offset.
fn content(id: StreamId, offset: usize) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 16) as u8 ^ id.0 as u8
}

/// One end, and what it has done.
struct End {
    mux: Mux,
    /// Bytes sent and not arrived.
    out: Vec<u8>,
    streams: Vec<StreamId>,
    written: HashMap<StreamId, usize>,
    read: HashMap<StreamId, usize>,
}

impl End {
    fn new(side: Side) -> Self {
        let mux = Mux::new(side, Instant::ZERO, config());
        Self { mux, out: Vec::new(), streams: Vec::new(), written: HashMap::new(), read: HashMap::new() }
    }

    /// The stream that `choice` means.
    fn stream(&self, choice: u8) -> Option<StreamId> {
        let at = usize::from(choice).checked_rem(self.streams.len())?;
        Some(self.streams[at])
    }

    fn poll(&mut self, now: Instant) {
        while self.mux.poll_event().is_some() {}
        while self.out.len() < UNDER_WAY && self.mux.poll_transmit(now, &mut self.out) {}
        assert!(self.mux.kept() <= KEPT, "{} bytes are kept", self.mux.kept());
    }

    fn read(&mut self, id: StreamId, most: usize, is_conforming: bool) {
        let Ok(Some(data)) = self.mux.read(id, most) else { return };
        assert!(data.len() <= most);
        let offset = self.read.entry(id).or_default();
        if is_conforming {
            let expected = (0..data.len()).map(|at| content(id, *offset + at));
            assert!(expected.eq(data.iter().copied()), "stream {} at {offset}", id.0);
        }
        *offset += data.len();
    }
}

/// Reach of a program.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    /// Bytes of streams that were read.
    pub(crate) read: usize,
    /// A peer broke rules.
    pub(crate) hostile: bool,
    /// Both ends were there at the end.
    pub(crate) open: bool,
}

/// Runs a program.
pub(crate) fn qmux(program: &[u8]) -> Reached {
    let mut ends = [End::new(Side::Client), End::new(Side::Server)];
    let mut now = Instant::ZERO;
    let mut reached = Reached::default();
    let mut rest = program.iter().copied();
    while let (Some(command), Some(amount)) = (rest.next(), rest.next()) {
        let who = usize::from(command >> 7);
        let [one, other] = &mut ends;
        let (end, peer) = if who == 0 { (one, other) } else { (other, one) };
        let stream = end.stream(amount);
        match command & 0x0f {
            0 => end.streams.extend(end.mux.open(Dir::Bi)),
            1 => end.streams.extend(end.mux.open(Dir::Uni)),
            2 => end.streams.extend([Dir::Bi, Dir::Uni].into_iter().find_map(|dir| end.mux.accept(dir))),
            3 | 4 => {
                let Some(id) = stream else { continue };
                let offset = end.written.entry(id).or_default();
                let len = usize::from(amount) * 8;
                let mut data: Bytes = (0..len).map(|at| content(id, *offset + at)).collect();
                *offset += end.mux.write(id, &mut data).unwrap_or(0);
            }
            5 | 6 => {
                let Some(id) = stream else { continue };
                end.read(id, usize::from(amount) * 16, !reached.hostile);
            }
            // Bytes arrive in pieces.
            7 | 8 => {
                let length = (usize::from(amount) * 16).min(end.out.len());
                let piece: Vec<u8> = end.out.drain(..length).collect();
                peer.mux.handle_bytes(now, &piece);
            }
            9 => {
                if let Some(id) = stream {
                    let _ = end.mux.finish(id);
                }
            }
            10 => {
                if let Some(id) = stream {
                    let _ = end.mux.reset(id, u64::from(amount));
                }
            }
            11 => {
                if let Some(id) = stream {
                    end.mux.stop(id, u64::from(amount));
                }
            }
            12 => {
                let size = usize::from(amount) * 8;
                let _ = end.mux.send_datagram(vec![amount; size].into());
                let _ = peer.mux.recv_datagram();
            }
            13 => {
                now += Duration::from_millis(u64::from(amount) * 20);
                end.mux.handle_timeout(now);
                peer.mux.handle_timeout(now);
            }
            14 => {
                // What the peer is made to hear: a record of the program's own bytes, or bytes without one.
                reached.hostile = true;
                let bytes: Vec<u8> = rest.by_ref().take(usize::from(amount)).collect();
                let mut framed = Vec::new();
                if command & 0x40 == 0 {
                    record::push(&mut framed, &bytes);
                } else {
                    framed = bytes;
                }
                peer.mux.handle_bytes(now, &framed);
            }
            _ => match amount {
                0 => end.mux.close(7, "enough"),
                1 => end.mux.handle_end(),
                _ => end.mux.ping(),
            },
        }
        for end in &mut ends {
            end.poll(now);
            let is_fault = matches!(end.mux.closed(), Some(Closed::Fault(_) | Closed::Peer { .. }));
            assert!(reached.hostile || !is_fault, "{:?}", end.mux.closed());
        }
    }
    reached.read = ends.iter().flat_map(|end| end.read.values()).sum();
    reached.open = ends.iter().all(|end| end.mux.closed().is_none());
    reached
}
