//! WebTransport sessions over HTTP/3 (draft-ietf-webtrans-http3) to back ends: each bidirectional stream becomes a connection over TCP or
//! to a Unix socket, datagrams go over UDP; or the session goes to a back end that speaks WebTransport.
//!
//! The files, in the order in which a request meets them: `refusal` is the response to refused requests; `onward` begins the session at a back
//! end that speaks WebTransport; `session` is the life of a session. Its streams are `halves` for `crate::stream`, or go to the other session
//! through `relay`; `datagrams` forwards its datagrams; `ended` holds the end of the response until all of them have ended. `page` is a test
//! page for browsers.

mod datagrams;
mod ended;
mod halves;
mod onward;
mod page;
mod refusal;
mod relay;
mod session;

use std::sync::Arc;

use http::{HeaderMap, Request, Response, header};
use http_body_util::BodyExt;
use tiderace::Charge;
use tokio::{sync::oneshot, time::Instant};
use webtransport::server::{self, Received};

use self::{refusal::Refusal, session::SessionTask};
use crate::{
    admission,
    body::AnyBody,
    config::webtransport::ANY,
    context::ListenerContext,
    ending::Ending,
    generation::Target,
    masque::{ClientKey, TunnelPlace},
    metrics::{KindReasonLabels, TunnelKind},
    observe::{Entry, Traffic},
    peer::Peer,
    room::Rooms,
    session_route::SessionRoute,
    stream::StreamClient,
    upstream::switch::SwitchRequest,
};

/// Memory of a session: its task, its socket and its capsules. What its streams read is charged beside it.
const SESSION: u64 = 8 * 1024;

/// Resources of a session: its place among those of its client, and its charge.
struct Admitted {
    place: TunnelPlace,
    charge: Charge,
}

impl SessionRoute {
    /// Answers a request. Where it begins a session, the entry ends with that.
    pub(crate) async fn answer(
        &self,
        request: Request<AnyBody>,
        asked: Option<SwitchRequest>,
        target: &Target,
        peer: &Peer,
        entry: &mut Entry,
    ) -> Response<AnyBody> {
        let request = match (self.config.test_page, &asked) {
            (true, None) => match page::answer(request, entry).await {
                Ok(response) => return response,
                Err(request) => *request,
            },
            _ => request,
        };
        match self.begin(request, asked, target, peer, entry).await {
            Ok(response) => response,
            Err(refusal) => {
                let labels = KindReasonLabels { kind: TunnelKind::WebTransport.name(), reason: refusal.word() };
                self.metrics.tunnels.refused.get_or_create(&labels).inc();
                entry.end(refusal.ending());
                // A refusal because of the back end has said more.
                entry.record.error.get_or_insert_with(|| refusal.details().to_owned());
                refusal.response()
            }
        }
    }

    /// Checks a request by its fields, before any wait.
    fn admit(
        &self,
        request: &Request<AnyBody>,
        asked: Option<&SwitchRequest>,
        peer: &Peer,
    ) -> Result<Admitted, Refusal> {
        if !asked.is_some_and(|asked| Self::carries(&asked.protocol)) {
            return Err(Refusal::NoSession);
        }
        if !self.allows(request.headers()) {
            return Err(Refusal::Origin);
        }
        let key = ClientKey::Address(admission::key(peer.remote.ip()));
        let place = self.clients.enter(key, self.limits, Instant::now()).map_err(Refusal::NoPlace)?;
        let charge = peer.memory.charge(SESSION).ok_or(Refusal::Memory)?;
        Ok(Admitted { place, charge })
    }

    /// Returns whether the page that asks, if it is one, is of an allowed origin.
    // draft-ietf-webtrans-http3 §3.2 MUST: the origin is verified
    fn allows(&self, fields: &HeaderMap) -> bool {
        let mut given = fields.get_all(header::ORIGIN).iter();
        let Some(origin) = given.next() else { return true };
        let is_known = |known: &String| known == ANY || origin.as_bytes() == known.as_bytes();
        given.next().is_none() && self.config.origins.0.iter().any(is_known)
    }

    /// Begins a session.
    async fn begin(
        &self,
        mut request: Request<AnyBody>,
        asked: Option<SwitchRequest>,
        target: &Target,
        peer: &Peer,
        entry: &mut Entry,
    ) -> Result<Response<AnyBody>, Refusal> {
        let Admitted { place, charge } = self.admit(&request, asked.as_ref(), peer)?;
        let context = request.extensions_mut().remove::<ListenerContext>().ok_or(Refusal::Unsupported)?;
        let request = match server::receive(request, &self.settings).await {
            Received::Session(request) => request,
            Received::Refused(_, reason) => return Err(Refusal::of(reason)),
            Received::Other(_) => return Err(Refusal::Unsupported),
        };
        let permitted = &self.config.protocols.0;
        // A back end that speaks WebTransport has its own list.
        let is_permitted = |name: &&String| permitted.contains(name) || self.dialer.is_some() && permitted.is_empty();
        let offered: Vec<&str> = request.protocols().iter().filter(is_permitted).map(String::as_str).collect();
        if offered.is_empty() && !request.protocols().is_empty() {
            return Err(Refusal::Protocol);
        }
        let onward = self.begin_onward(request.head(), &offered, target, peer, entry).await?;
        let chosen = match &onward {
            Some(onward) => onward.session.protocol(),
            None => offered.first().copied(),
        };
        let protocol = chosen.and_then(|chosen| request.protocols().iter().position(|name| name == chosen));
        let (session, response) = request.accept(protocol);
        let name = if self.config.to.is_empty() { &self.config.datagrams_to } else { &self.config.to };
        let traffic = Arc::new(Traffic::new(TunnelKind::WebTransport, name.clone(), name.clone(), None, &self.metrics));
        entry.begin_traffic(traffic.clone());
        // The answer breaks off when the client violates the protocol.
        entry.set_fault(Ending::Malformed);
        let client = StreamClient {
            remote: peer.remote,
            alpn: session.protocol().unwrap_or_default().as_bytes().to_vec(),
            name: peer.quic.as_ref().and_then(tiderace::Connection::server_name),
            rooms: Rooms::new(&peer.memory),
        };
        let task = SessionTask {
            session,
            onward,
            config: self.config.clone(),
            route: target.route.clone(),
            target: self.target.clone(),
            context,
            client,
            traffic,
            cause: entry.cause(),
        };
        let (ended, has_ended) = oneshot::channel::<()>();
        tokio::spawn(async move {
            task.run().await;
            drop((ended, place, charge));
        });
        Ok(response.map(|body| ended::after(body.map_err(Into::into).boxed_unsync(), has_ended)))
    }
}
