//! One end of the test script: gives the commands of the plan to a peer and compares everything it sees.
//!
//! It acts on signals only, so a stack that forgets to say that a stream became readable or writable stalls here as it
//! would stall an application.

use std::collections::{BTreeMap, BTreeSet};

use units::Instant;

use crate::{
    pattern::Pattern,
    peer::{ALPN, Closed, Dir, Peer, Read, Side, Signal, Write, stream_kind},
    plan::{Ending, FAREWELL, Flow, FlowEnd, Plan, REASON},
};

/// The most that is offered to a stream in one write.
const WRITE_SIZE: usize = 16 * 1024;

/// Rest to be sent on a stream.
#[derive(Debug)]
struct Sending {
    flow: Flow,
    written: u64,
    done: bool,
}

/// Rest to be received on a stream.
#[derive(Debug)]
struct Receiving {
    flow: Flow,
    read: u64,
    done: bool,
}

/// One end of the script.
#[derive(Debug)]
pub struct Script {
    side: Side,
    plan: Plan,
    /// The other end's stack may send FIN on a stream that it resets.
    resets_may_finish: bool,
    /// Streams this end has yet to open, per direction, next last.
    unopened: [Vec<u64>; 2],
    sending: BTreeMap<u64, Sending>,
    receiving: BTreeMap<u64, Receiving>,
    /// Streams of the other end that were accepted.
    accepted: BTreeSet<u64>,
    connected: bool,
    read_bytes: u64,
    key_updates_asked: usize,
    farewell_sent: bool,
    closing: bool,
    closed: Option<Closed>,
    failure: Option<String>,
}

impl Script {
    /// The script of one side, against a stack that may or may not end a stream with FIN that it resets.
    pub fn new(side: Side, plan: &Plan, resets_may_finish: bool) -> Self {
        let mut script = Self {
            side,
            plan: plan.clone(),
            resets_may_finish,
            unopened: [vec![], vec![]],
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            accepted: BTreeSet::new(),
            connected: false,
            read_bytes: 0,
            key_updates_asked: 0,
            farewell_sent: false,
            closing: false,
            closed: None,
            failure: None,
        };
        for stream in &plan.streams {
            let (out, back) = if stream.initiator == side {
                script.unopened[stream.dir as usize].insert(0, stream.id);
                (Some(&stream.forward), stream.back.as_ref())
            } else {
                (stream.back.as_ref(), Some(&stream.forward))
            };
            if let Some(flow) = out {
                script.sending.insert(stream.id, Sending { flow: flow.clone(), written: 0, done: false });
            }
            if let Some(flow) = back {
                script.receiving.insert(stream.id, Receiving { flow: flow.clone(), read: 0, done: false });
            }
        }
        if plan.says_farewell(side.other()) {
            let flow = Flow { size: FAREWELL, end: FlowEnd::Finish };
            script.receiving.insert(plan.farewell_id(side.other()), Receiving { flow, read: 0, done: false });
        }
        script
    }

    /// Fault, if any.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// End of the connection; `None` while it lives, and for an end that closed it.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Returns whether this end has seen its handshake complete.
    pub fn connected(&self) -> bool {
        self.connected
    }

    /// Bytes read and compared.
    pub fn bytes_compared(&self) -> u64 {
        self.read_bytes
    }

    /// Returns whether this end has seen everything it must see, including the end of the connection.
    pub fn done(&self) -> bool {
        self.failure.is_none() && (self.closing || self.closed.is_some())
    }

    /// Returns whether this end's stack took bytes of a stream that the other end still waits for. A stack takes no more than flow
    /// control lets it send, so nothing but loss and its window may hold them up.
    pub fn owes(&self, other: &Self) -> bool {
        self.sending.iter().any(|(id, sending)| {
            !sending.done && other.receiving.get(id).is_some_and(|there| !there.done && there.read < sending.written)
        })
    }

    /// Fails when the stack has data of a stream that it has not signalled. For moments without traffic: they tell a stack that owes data
    /// from one that keeps it back.
    pub fn expect_nothing_unsignalled(&mut self, peer: &mut dyn Peer) {
        let mut buffer = [0; 1];
        for (&id, _) in self.receiving.iter().filter(|(_, receiving)| !receiving.done) {
            if let Ok(Read::Data(_)) = peer.read(id, &mut buffer) {
                self.failure = Some(format!("stream {id} had data that was never signalled"));
                return;
            }
        }
    }

    /// Takes all signals of the peer and gives the commands that follow from them.
    pub fn advance(&mut self, now: Instant, peer: &mut dyn Peer) {
        while self.failure.is_none() {
            let Some(signal) = peer.signal() else { break };
            if let Err(failure) = self.take(signal, peer) {
                self.failure = Some(failure);
            }
        }
        if self.failure.is_none()
            && let Err(failure) = self.conclude(now, peer)
        {
            self.failure = Some(failure);
        }
    }

    /// One signal.
    fn take(&mut self, signal: Signal, peer: &mut dyn Peer) -> Result<(), String> {
        match signal {
            Signal::Connected => {
                if std::mem::replace(&mut self.connected, true) {
                    return Err("signalled twice that the handshake is complete".into());
                }
                self.open(Dir::Bi, peer)?;
                self.open(Dir::Uni, peer)
            }
            Signal::StreamsAvailable(dir) => self.open(dir, peer),
            Signal::Opened(dir) => self.accept(dir, peer),
            Signal::Readable(id) => self.read(id, peer),
            Signal::Writable(id) => self.write(id, peer),
            Signal::Stopped { id, code } => self.stopped(id, code, peer),
            Signal::Closed(closed) => self.end(closed),
        }
    }

    /// Opens as many of the streams that are left as the other end allows.
    fn open(&mut self, dir: Dir, peer: &mut dyn Peer) -> Result<(), String> {
        while self.connected && !self.unopened[dir as usize].is_empty() {
            let Some(id) = peer.open(dir) else { return Ok(()) };
            let expected = self.unopened[dir as usize].pop();
            if expected != Some(id) {
                return Err(format!("opened stream {id}, expected {expected:?}"));
            }
            self.write(id, peer)?;
        }
        if dir == Dir::Uni && self.connected {
            self.say_farewell(peer)?;
        }
        Ok(())
    }

    /// Accepts what the other end opened and starts to answer.
    fn accept(&mut self, dir: Dir, peer: &mut dyn Peer) -> Result<(), String> {
        while let Some(id) = peer.accept(dir) {
            if stream_kind(id) != (self.side.other(), dir) || !self.receiving.contains_key(&id) {
                return Err(format!("accepted {dir:?} stream {id}, which nobody should have opened"));
            }
            if !self.accepted.insert(id) {
                return Err(format!("accepted stream {id} twice"));
            }
            if dir == Dir::Bi {
                self.write(id, peer)?;
            }
            self.read(id, peer)?;
        }
        Ok(())
    }

    /// Writes until the peer is full or everything is written, then ends the stream as planned.
    fn write(&mut self, id: u64, peer: &mut dyn Peer) -> Result<(), String> {
        let (initiator, dir) = stream_kind(id);
        if initiator == self.side && self.unopened[dir as usize].contains(&id) {
            return Err(format!("signalled that stream {id} is writable before it was opened"));
        }
        let Some(sending) = self.sending.get_mut(&id) else {
            return Err(format!("signalled that stream {id} is writable, which this end does not send on"));
        };
        let pattern = Pattern::new(id, self.side);
        let mut buffer = [0; WRITE_SIZE];
        while !sending.done && sending.written < sending.flow.size {
            let size = WRITE_SIZE.min(usize::try_from(sending.flow.size - sending.written).unwrap_or(WRITE_SIZE));
            pattern.fill(sending.written, &mut buffer[..size]);
            match peer.write(id, &buffer[..size]).map_err(|e| format!("write on stream {id}: {e}"))? {
                Write::Taken(taken) => sending.written += taken as u64,
                Write::Blocked => return Ok(()),
                Write::Stopped(code) => return self.stopped(id, code, peer),
            }
        }
        if sending.done {
            return Ok(());
        }
        match sending.flow.end {
            FlowEnd::Finish => {
                sending.done = true;
                peer.finish(id).map_err(|e| format!("finish of stream {id}: {e}"))
            }
            FlowEnd::Reset(code) => {
                sending.done = true;
                peer.reset(id, code).map_err(|e| format!("reset of stream {id}: {e}"))
            }
            FlowEnd::Stop { .. } => Ok(()),
        }
    }

    /// The other end does not want more.
    fn stopped(&mut self, id: u64, code: Option<u64>, peer: &mut dyn Peer) -> Result<(), String> {
        let Some(sending) = self.sending.get_mut(&id) else {
            return Err(format!("asked to stop sending on stream {id}, on which this end does not send"));
        };
        match sending.flow.end {
            FlowEnd::Stop { code: expected, .. } if code.is_none_or(|code| expected == code) => {
                if !std::mem::replace(&mut sending.done, true) {
                    // RFC 9000 §3.5: who is asked to stop resets the stream. Some stacks do so by themselves.
                    let _ = peer.reset(id, expected);
                }
                Ok(())
            }
            end => Err(format!("asked to stop sending on stream {id} with code {code:?}, but the plan is {end:?}")),
        }
    }

    /// Reads and compares until nothing is left.
    fn read(&mut self, id: u64, peer: &mut dyn Peer) -> Result<(), String> {
        let Some(receiving) = self.receiving.get_mut(&id) else {
            return Err(format!("signalled that stream {id} is readable, which this end does not receive on"));
        };
        let pattern = Pattern::new(id, self.side.other());
        let mut buffer = [0; 8 * 1024];
        while !receiving.done {
            if let FlowEnd::Stop { after, code } = receiving.flow.end
                && receiving.read >= after
            {
                receiving.done = true;
                return peer.stop_sending(id, code).map_err(|e| format!("stop_sending on stream {id}: {e}"));
            }
            match peer.read(id, &mut buffer).map_err(|e| format!("read on stream {id}: {e}"))? {
                Read::Data(len) => {
                    pattern
                        .check(receiving.read, &buffer[..len])
                        .map_err(|wrong| format!("wrong byte on stream {id}: {wrong:?}"))?;
                    receiving.read += len as u64;
                    self.read_bytes += len as u64;
                    if receiving.read > receiving.flow.size {
                        return Err(format!("{} bytes on stream {id}, more than were sent", receiving.read));
                    }
                }
                Read::Blocked => break,
                end => {
                    let good = match receiving.flow.end {
                        FlowEnd::Finish => end == Read::Finished && receiving.read == receiving.flow.size,
                        FlowEnd::Reset(code) => {
                            end == Read::Reset(code) || (self.resets_may_finish && end == Read::Finished)
                        }
                        FlowEnd::Stop { .. } => false,
                    };
                    if !good {
                        return Err(format!(
                            "stream {id} ended with {end:?} after {} bytes, the plan is {:?}",
                            receiving.read, receiving.flow
                        ));
                    }
                    receiving.done = true;
                }
            }
        }
        while let Some(&point) = self.plan.key_updates[self.side as usize].get(self.key_updates_asked)
            && self.read_bytes >= point
        {
            self.key_updates_asked += 1;
            peer.update_keys();
        }
        Ok(())
    }

    /// Concludes once everything was received: the farewell, and the close if this end is the one to close.
    fn conclude(&mut self, now: Instant, peer: &mut dyn Peer) -> Result<(), String> {
        if self.closed.is_some() || self.closing || !self.connected {
            return Ok(());
        }
        self.say_farewell(peer)?;
        if let Ending::Close { by, code } = self.plan.ending
            && by == self.side
            && self.everything_received(true)
        {
            self.closing = true;
            peer.close(now, code, REASON);
        }
        Ok(())
    }

    /// Opens the last stream once all else was received and opened.
    fn say_farewell(&mut self, peer: &mut dyn Peer) -> Result<(), String> {
        let ready = self.plan.says_farewell(self.side)
            && !self.farewell_sent
            && self.unopened.iter().all(Vec::is_empty)
            && self.everything_received(false);
        if !ready {
            return Ok(());
        }
        let Some(id) = peer.open(Dir::Uni) else { return Ok(()) };
        self.farewell_sent = true;
        if id != self.plan.farewell_id(self.side) {
            return Err(format!("opened stream {id}, expected {}", self.plan.farewell_id(self.side)));
        }
        let flow = Flow { size: FAREWELL, end: FlowEnd::Finish };
        self.sending.insert(id, Sending { flow, written: 0, done: false });
        self.write(id, peer)
    }

    /// Every stream was read to its end, and every stop was heard of.
    fn everything_received(&self, with_farewell: bool) -> bool {
        let farewell = self.plan.farewell_id(self.side.other());
        self.receiving.iter().all(|(id, r)| r.done || (!with_farewell && *id == farewell))
            && self.sending.values().all(|s| s.done || s.flow.end == FlowEnd::Finish)
    }

    /// The connection has ended: was it time?
    fn end(&mut self, closed: Closed) -> Result<(), String> {
        let complete = self.everything_received(true)
            && self.sending.values().all(|s| s.done)
            && (self.farewell_sent || !self.plan.says_farewell(self.side));
        let fits = match (self.plan.ending, &closed) {
            (Ending::Close { by, code }, Closed::ByPeer { code: got, reason }) => {
                by != self.side && *got == code && reason == REASON
            }
            // The close itself can get lost: nobody acknowledges it, and the end that sent it forgets the connection.
            (Ending::Close { by, .. }, Closed::Idle | Closed::Reset) => by != self.side,
            (Ending::Idle, Closed::Idle) => true,
            _ => false,
        };
        let text = format!("{closed:?}");
        self.closed = Some(closed);
        if !fits {
            let (plan, waits_for) = (self.plan.ending, self.waits_for());
            return Err(format!("the connection ended with {text}, the plan is {plan:?}; it waited for {waits_for}"));
        }
        if !complete {
            return Err(format!("the connection ended with {text} too early: {}", self.waits_for()));
        }
        Ok(())
    }

    /// In words, what this end still waits for.
    pub fn waits_for(&self) -> String {
        if !self.connected {
            return format!("the handshake (ALPN {})", String::from_utf8_lossy(ALPN));
        }
        let mut parts = vec![];
        for (dir, unopened) in ["bidirectional", "unidirectional"].iter().zip(&self.unopened) {
            if let Some(next) = unopened.last() {
                parts.push(format!("credit to open {} {dir} streams, first {next}", unopened.len()));
            }
        }
        let opened = |id: &u64| !self.unopened.iter().any(|list| list.contains(id));
        for (id, s) in self.sending.iter().filter(|(id, s)| !s.done && opened(id)).take(6) {
            parts.push(format!("sending on {id}: {} of {} written, then {:?}", s.written, s.flow.size, s.flow.end));
        }
        for (id, r) in self.receiving.iter().filter(|(_, r)| !r.done).take(6) {
            parts.push(format!("reading {id}: {} of {}, then {:?}", r.read, r.flow.size, r.flow.end));
        }
        if parts.is_empty() {
            parts.push(match self.plan.ending {
                _ if self.plan.says_farewell(self.side) && !self.farewell_sent => "credit for its farewell".into(),
                _ if self.done() => "nothing".into(),
                ending => format!("the end of the connection: {ending:?}"),
            });
        }
        parts.join("; ")
    }
}
