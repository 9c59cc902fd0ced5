//! Tunnels for UDP with many peers (bound UDP, draft-ietf-masque-connect-udp-listen): HTTP datagrams in QUIC datagrams or in capsules.
//!
//! This file has the tunnel, `compression` decides which peers have a context ID of their own.

mod compression;
#[cfg(test)]
mod tests;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use h3_quic::{
    Datagrams,
    capsule::{self, Capsule, Capsules},
    connect_udp::{
        ALWAYS_CARRIED, MAX_PAYLOAD, PROTOCOL,
        bound::{BoundFault, CONNECT_UDP_BIND, Compression, Contexts, End, Received, is_bound, public_addresses},
    },
};
use http::{Request, header};

use self::compression::Repeated;
use super::{
    CAPSULE_PROTOCOL, Opened, ProxyClient, ProxyError, SentPayload,
    error::broken,
    stream::{RecvHalf, SendHalf},
};
use crate::error::Cause;

/// The longest DATAGRAM capsule: the longest UDP payload, with the longest context ID and an address.
const MAX_CAPSULE: usize = MAX_PAYLOAD + 8 + 19;
/// Contexts of each end at a time.
const CONTEXTS: usize = 64;
/// Bytes of capsules that wait for the stream.
const MAX_WAITING: usize = 4 * 1024;
/// Time for the proxy to answer the end of a tunnel.
const CLOSING: Duration = Duration::from_secs(1);

/// A tunnel for UDP with many peers. Dropped, it is cancelled; see [`BoundReceiver::close`].
pub struct BoundTunnel {
    sender: BoundSender,
    receiver: BoundReceiver,
    public: Vec<SocketAddr>,
}

/// Sending half of a tunnel with many peers. Dropped, it ends the tunnel.
pub struct BoundSender {
    shared: Arc<Shared>,
    /// Datagrams of HTTP/3; `None` over HTTP/2, where all payloads are capsules.
    datagrams: Option<Datagrams>,
    repeated: Repeated,
}

/// Receiving half of a tunnel with many peers.
pub struct BoundReceiver {
    content: RecvHalf,
    capsules: Capsules,
    datagrams: Option<Datagrams>,
    shared: Arc<Shared>,
}

/// State that both halves use.
struct Shared(Mutex<State>);

struct State {
    /// `None` when this end has ended its direction.
    stream: Option<SendHalf>,
    contexts: Contexts,
    /// Capsules that wait for the stream.
    waiting: Vec<u8>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Sends capsules, behind those that wait. Returns false when too many wait.
    fn say(&mut self, capsules: &[Compression]) -> bool {
        capsules.iter().for_each(|capsule| capsule.write(&mut self.waiting));
        if let Some(stream) = self.stream.as_mut().filter(|_| !self.waiting.is_empty())
            && stream.try_send(Bytes::copy_from_slice(&self.waiting))
        {
            self.waiting = Vec::new();
        }
        self.waiting.len() <= MAX_WAITING
    }
}

impl ProxyClient {
    /// Opens a tunnel for UDP with peers that each payload names. The proxy sends from its own addresses, which
    /// [`BoundTunnel::public_addresses`] has. Peers have IP addresses: the draft has no names.
    ///
    /// # Errors
    /// When the proxy cannot be reached, refuses, or has no bound UDP ([`ProxyError::NoBoundUdp`]).
    // draft-ietf-masque-connect-udp-listen §2
    pub async fn open_bound_udp(&self) -> Result<BoundTunnel, ProxyError> {
        let template = self.template.as_ref().ok_or(ProxyError::OtherTemplate)?;
        let request = Request::connect(template.expand_any()).header(CAPSULE_PROTOCOL, "?1");
        let request = request.header(CONNECT_UDP_BIND, "?1").body(()).map_err(ProxyError::Target)?;
        let opened = self.ask(request, Some(PROTOCOL), header::AUTHORIZATION).await.map_err(ProxyError::of_bound)?;
        // Both ends have to say it.
        if !is_bound(&opened.fields) {
            return Err(ProxyError::NoBoundUdp);
        }
        if opened.is_h3 && opened.datagrams.is_none() {
            return Err(ProxyError::NoTunnel(opened.status));
        }
        let mut tunnel = BoundTunnel::new(opened);
        let registered = tokio::time::timeout(self.limit, tunnel.register());
        registered.await.map_err(|_| ProxyError::TimedOut(self.limit))??;
        Ok(tunnel)
    }
}

impl BoundTunnel {
    fn new(opened: Opened) -> Self {
        let types = [&[capsule::DATAGRAM][..], &Compression::TYPES].concat();
        let capsules = Capsules::among(&types, MAX_CAPSULE);
        let contexts = Contexts::new(End::Client, CONTEXTS, false);
        let state = State { stream: Some(opened.sender), contexts, waiting: Vec::new() };
        let shared = Arc::new(Shared(Mutex::new(state)));
        let datagrams = opened.datagrams;
        let sender =
            BoundSender { shared: shared.clone(), datagrams: datagrams.clone(), repeated: Repeated::new(CONTEXTS - 1) };
        let public = public_addresses(&opened.fields);
        Self { sender, receiver: BoundReceiver { content: opened.receiver, capsules, datagrams, shared }, public }
    }

    /// Registers the uncompressed context, and waits until the proxy has confirmed it, so that no datagram overtakes it.
    // draft-ietf-masque-connect-udp-listen §4 MUST
    async fn register(&mut self) -> Result<(), ProxyError> {
        {
            let mut state = self.receiver.shared.lock();
            let opened = state.contexts.open_uncompressed();
            state.say(opened.as_slice());
        }
        loop {
            while let Some(capsule) = self.receiver.capsules.take().map_err(broken)? {
                self.receiver.take(&capsule)?;
            }
            {
                let contexts = &self.receiver.shared.lock().contexts;
                match contexts.uncompressed() {
                    None => return Err(ProxyError::NoBoundUdp),
                    Some(id) if contexts.is_known(id) => return Ok(()),
                    Some(_) => {}
                }
            }
            let data = self.receiver.content.data().await?;
            self.receiver.capsules.push(&data.ok_or(ProxyError::NoBoundUdp)?);
        }
    }

    /// Addresses from which the proxy sends, one for each IP version that it has.
    pub fn public_addresses(&self) -> &[SocketAddr] {
        &self.public
    }

    /// Protocol of the connection that carries the tunnel: `h3` or `h2`.
    pub fn protocol(&self) -> &'static str {
        if self.sender.datagrams.is_some() { "h3" } else { "h2" }
    }

    /// Halves for two tasks.
    pub fn split(self) -> (BoundSender, BoundReceiver) {
        (self.sender, self.receiver)
    }
}

impl BoundSender {
    /// Sends a UDP payload to a peer, or drops it. A peer that is sent to repeatedly gets a context ID of its own.
    pub fn send(&mut self, peer: SocketAddr, payload: &[u8]) -> SentPayload {
        let mut state = self.shared.lock();
        let capsules = self.repeated.on_send(peer, &mut state.contexts);
        state.say(&capsules);
        let Some(header) = state.contexts.header(peer) else { return SentPayload::Dropped };
        if let Some(datagrams) = &self.datagrams {
            if datagrams.max_size().is_some_and(|max| header.len() + payload.len() <= max) {
                let sent = datagrams.send_parts(&[&header, payload]);
                return if sent.is_ok() { SentPayload::Datagram } else { SentPayload::Dropped };
            }
            // Nothing else may fill packets, so that a search would never begin.
            datagrams.discover_max_size();
            if payload.len() > ALWAYS_CARRIED {
                return SentPayload::TooLarge;
            }
        } else if payload.len() > MAX_PAYLOAD {
            return SentPayload::TooLarge;
        }
        let mut out = Vec::with_capacity(header.len() + payload.len() + 16);
        capsule::write_parts(&mut out, capsule::DATAGRAM, &[&header, payload]);
        let sent = state.stream.as_mut().is_some_and(|stream| stream.try_send(out.into()));
        if sent { SentPayload::Capsule } else { SentPayload::Dropped }
    }

    /// Number of peers with a context ID of their own, which the proxy has confirmed.
    pub fn compressed(&self) -> usize {
        let contexts = &self.shared.lock().contexts;
        self.repeated.peers().filter(|peer| contexts.context_of(*peer).is_some_and(|id| contexts.is_known(id))).count()
    }

    /// Closes the uncompressed context: from then on only peers with a context ID of their own are sent to and heard.
    // draft-ietf-masque-connect-udp-listen §8.1
    pub fn close_uncompressed(&mut self) {
        let mut state = self.shared.lock();
        if let Some(id) = state.contexts.uncompressed() {
            let closed = state.contexts.close(id);
            state.say(closed.as_slice());
        }
    }

    /// Gives the tunnel up, so that its end does not look like a regular one: after an error of the receiving half.
    pub fn abort(self, reason: &str) {
        let stream = self.shared.lock().stream.take();
        if let Some(stream) = stream {
            stream.abort(reason);
        }
    }
}

impl Drop for BoundSender {
    fn drop(&mut self) {
        self.shared.lock().stream = None;
    }
}

impl BoundReceiver {
    /// The next UDP payload, and the peer that sent it; `None` when the proxy has closed the tunnel. Cancel safe.
    ///
    /// # Errors
    /// When the tunnel broke off.
    pub async fn recv(&mut self) -> Result<Option<(SocketAddr, Bytes)>, ProxyError> {
        loop {
            while let Some(capsule) = self.capsules.take().map_err(broken)? {
                if let Some(received) = self.take(&capsule)? {
                    return Ok(Some(received));
                }
            }
            tokio::select! {
                Some(datagram) = next(&self.datagrams) => {
                    if let Some(received) = self.payload(&datagram)? {
                        return Ok(Some(received));
                    }
                }
                data = self.content.data() => match data? {
                    None => return Ok(None),
                    Some(data) => self.capsules.push(&data),
                },
            }
        }
    }

    /// Next UDP payload, if one has arrived in a QUIC datagram.
    pub fn try_recv(&mut self) -> Option<(SocketAddr, Bytes)> {
        while let Some(datagram) = self.datagrams.as_ref()?.try_recv() {
            if let Ok(Some(received)) = self.payload(&datagram) {
                return Some(received);
            }
        }
        None
    }

    fn take(&self, capsule: &Capsule) -> Result<Option<(SocketAddr, Bytes)>, ProxyError> {
        if capsule.ty == capsule::DATAGRAM {
            return self.payload(&capsule.value);
        }
        let parsed = Compression::parse(capsule.ty, &capsule.value).map_err(malformed)?;
        let (mut state, mut answers) = (self.shared.lock(), Vec::new());
        state.contexts.take(&parsed, |_| true, &mut answers).map_err(malformed)?;
        // draft-ietf-masque-connect-udp-listen §9 MUST: answers that wait are bounded
        if state.say(&answers) {
            return Ok(None);
        }
        Err(ProxyError::Broken(Cause::other("the proxy does not read the capsules of the tunnel")))
    }

    /// Peer and payload of an HTTP datagram; `None` when it is of an unknown context, or malformed.
    fn payload(&self, datagram: &Bytes) -> Result<Option<(SocketAddr, Bytes)>, ProxyError> {
        let received = self.shared.lock().contexts.receive(datagram).map_err(malformed)?;
        Ok(match received {
            Received::Payload(peer, payload) => Some((peer, datagram.slice_ref(payload))),
            Received::Target(_) | Received::Unknown | Received::Malformed => None,
        })
    }

    /// Closes the tunnel, and waits for the proxy to close it, too, for at most a second. A tunnel whose halves are dropped is cancelled
    /// instead.
    pub async fn close(mut self, sender: BoundSender) {
        drop(sender);
        let closed = async { while let Ok(Some(_)) = self.content.data().await {} };
        let _ = tokio::time::timeout(CLOSING, closed).await;
    }
}

/// Next datagram of HTTP/3. Never over HTTP/2.
async fn next(datagrams: &Option<Datagrams>) -> Option<Bytes> {
    match datagrams {
        Some(datagrams) => datagrams.recv().await,
        None => std::future::pending().await,
    }
}

fn malformed(fault: BoundFault) -> ProxyError {
    let reason = format!("the proxy breaks the rules of bound UDP: {fault}");
    ProxyError::Broken(Cause::Protocol { code: None, reason })
}
