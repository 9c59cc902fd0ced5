//! Two endpoints and the packets between them. The test decides on the fate and the time of each packet.

use bytes::Bytes;
use wire::{Frame, Frames, Side, TransportParameters, Writer};

use crate::{
    error::TransportError,
    sent::SentFrame,
    streams::{Streams, StreamsConfig},
};

/// Packet between the two ends, with the frames written into it.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) payload: Bytes,
    pub(super) frames: Vec<SentFrame>,
    pub(super) delivered: bool,
    pub(super) acked: bool,
    pub(super) lost: bool,
}

/// Client (0) and server (1).
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) ends: [Streams; 2],
    /// By sender.
    pub(super) packets: [Vec<Packet>; 2],
}

/// Gives the frames of a payload to an end.
pub(super) fn dispatch(end: &mut Streams, payload: &Bytes) -> Result<(), TransportError> {
    for frame in Frames::new(payload) {
        match frame.expect("an end writes valid frames") {
            Frame::Stream(s) => end.on_stream(s.id, s.offset, payload.slice_ref(s.data), s.fin)?,
            Frame::ResetStream { id, code, final_size } => end.on_reset_stream(id, code, final_size)?,
            Frame::ResetStreamAt { id, code, final_size, reliable_size } => {
                end.on_reset_stream_at(id, code, final_size, reliable_size)?;
            }
            Frame::StopSending { id, code } => end.on_stop_sending(id, code)?,
            Frame::MaxData(limit) => end.on_max_data(limit),
            Frame::MaxStreamData { id, limit } => end.on_max_stream_data(id, limit)?,
            Frame::MaxStreams { dir, limit } => end.on_max_streams(dir, limit)?,
            Frame::DataBlocked(limit) => end.on_data_blocked(limit),
            Frame::StreamDataBlocked { id, limit } => end.on_stream_data_blocked(id, limit)?,
            Frame::StreamsBlocked { dir, limit } => end.on_streams_blocked(dir, limit),
            other => panic!("streams do not write {other:?}"),
        }
    }
    Ok(())
}

impl Pair {
    pub(super) fn new(client: &StreamsConfig, server: &StreamsConfig) -> Self {
        let mut ends = [Streams::new(Side::Client, client), Streams::new(Side::Server, server)];
        for (to, from) in [(0, 1), (1, 0)] {
            let mut parameters = TransportParameters::default();
            ends[from].local_parameters(&mut parameters);
            ends[to].set_peer_parameters(&parameters).unwrap();
        }
        Self { ends, packets: [Vec::new(), Vec::new()] }
    }

    pub(super) fn same(config: &StreamsConfig) -> Self {
        Self::new(config, config)
    }

    /// Has an end fill a packet of `size` bytes; `None` when it wrote nothing.
    pub(super) fn send(&mut self, from: usize, size: usize) -> Option<usize> {
        let wanted = self.ends[from].wants_to_send();
        let mut buf = vec![0; size];
        let mut w = Writer::new(&mut buf);
        let mut frames = Vec::new();
        self.ends[from].write_frames(&mut w, &mut |frame| frames.push(frame));
        let len = w.position();
        assert_eq!(len > 0, !frames.is_empty());
        assert!(wanted || len == 0, "nothing wanted to be sent, and yet {frames:?}");
        assert!(!wanted || size < 100 || len > 0, "something wanted to be sent, and yet nothing was");
        buf.truncate(len);
        if len == 0 {
            return None;
        }
        let payload = buf.into();
        self.packets[from].push(Packet { payload, frames, delivered: false, acked: false, lost: false });
        Some(self.packets[from].len() - 1)
    }

    /// A packet arrives, perhaps not for the first time.
    pub(super) fn deliver(&mut self, from: usize, index: usize) -> Result<(), TransportError> {
        let packet = &mut self.packets[from][index];
        packet.delivered = true;
        dispatch(&mut self.ends[1 - from], &packet.payload)
    }

    /// The sender learns that a packet has arrived. Nothing happens when it has not, or when the sender knows.
    pub(super) fn ack(&mut self, from: usize, index: usize) {
        let packet = &mut self.packets[from][index];
        if packet.delivered && !std::mem::replace(&mut packet.acked, true) {
            for frame in &packet.frames {
                self.ends[from].on_acked(frame);
            }
        }
        packet.acked &= packet.delivered;
    }

    /// The sender takes a packet for lost. Nothing happens when it has a verdict already.
    pub(super) fn lose(&mut self, from: usize, index: usize) {
        let packet = &mut self.packets[from][index];
        if !packet.acked && !std::mem::replace(&mut packet.lost, true) {
            for frame in &packet.frames {
                self.ends[from].on_lost(frame);
            }
        }
    }

    /// Sends, delivers and acknowledges until neither end has anything to send. True when anything was sent.
    pub(super) fn exchange(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut progress = false;
            for from in 0..2 {
                while let Some(index) = self.send(from, 1200) {
                    self.deliver(from, index).unwrap();
                    self.ack(from, index);
                    progress = true;
                }
            }
            if !progress {
                return any;
            }
            any = true;
        }
    }
}
