//! Life of a request: check, route, response, log. The same for all versions of HTTP.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, Method, Request, Response, StatusCode, Version, header};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::{
    answer::{self, plain},
    body::{self, AnyBody, Pace, settle, trailing},
    ending::Ending,
    fields,
    generation::{Generation, RouteHandler, Shared, Target},
    guard,
    host::is_host,
    masque,
    observe::{self, Entry},
    path,
    peer::Peer,
    session_route::SessionRoute,
    upstream::{
        Failure, Place,
        switch::{self, SwitchForm, SwitchRequest},
        tunnel,
    },
};

/// Field with the reason why a client has fallen back, as one word. Between the client and the gateway: back ends do not get
/// it.
const QUIC_FALLBACK: HeaderName = HeaderName::from_static("quic-fallback");

/// Bytes that a field holds beside its name and value: its places in two maps, one of which is kept for another try.
const FIELD: usize = 256;
/// Bytes of fields included in the base charge of a request.
const INCLUDED: u64 = 8 * 1024;

/// Bytes that a request's fields hold, beyond what every request does.
fn size(request: &Request<AnyBody>) -> u64 {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD);
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    ((fields.sum::<usize>() + path) as u64).saturating_sub(INCLUDED)
}

/// 503, with when to come again.
fn busy() -> Response<AnyBody> {
    answer::later(StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO)
}

/// Answers a request. Its entry in the books is open from here on, whether the future is ever polled or not.
pub(crate) fn answer(
    shared: &Arc<Shared>,
    mut request: Request<AnyBody>,
    mut peer: Peer,
) -> impl Future<Output = Response<AnyBody>> + Send + use<> {
    let generation = shared.current();
    let is_forwarded = generation.trusted.client(request.headers(), peer.remote).is_some();
    // The address of a packet in early data may be forged, also as that of a proxy.
    let is_believed = peer.is_validated();
    if is_forwarded && is_believed {
        believe(&generation, &request, &mut peer);
    }
    let shared = shared.clone();
    let metrics = shared.metrics.clone();
    let mut entry = Entry::begin(&shared.books(), &generation.log, &request, &peer);
    if let Some(word) = request.headers_mut().remove(QUIC_FALLBACK)
        && generation.config.http3.fallback_reports
        && peer.protocol != "h3"
    {
        shared.metrics.fallbacks.count_report(word.as_bytes());
    }
    async move {
        #[cfg(debug_assertions)]
        crate::planted::check(request.uri().path().as_bytes());
        if is_forwarded && !is_believed && guard::is_validated(&peer, &mut entry).await {
            believe(&generation, &request, &mut peer);
            entry.set_client(&peer);
        }
        let mut alt_svc = peer.alt_svc.clone();
        let asked = switch::asked(&request);
        // Until there is an answer.
        let held = peer.memory.charge(size(&request));
        let found = find(&generation, &mut request, asked.as_ref(), &mut entry, &peer);
        // RFC 7838 §2: an alternative is one of an origin, so the host of the request decides, and not the name of the connection.
        let assignment = generation.withholding.assign(peer.listener, peer.remote.ip(), Some(&entry.record.host));
        if let Some(assignment) = assignment {
            alt_svc = assignment.alt_svc(peer.quic.is_some(), alt_svc);
            observe::take_part(&shared.trials, assignment, &request, &peer, &mut entry);
        }
        let refusal = guard::check_all(&generation, &peer, &mut entry, &metrics).await;
        let answered = match found {
            Ok(_) if held.is_none() => {
                entry.record.error = Some("the connection holds too much for another request".to_owned());
                entry.end(Ending::Memory);
                busy().into()
            }
            Ok(target) => {
                let asked_for = target.site.asked_for(request.method(), request.headers());
                let memory = peer.memory.clone();
                let refusal = match refusal {
                    None => guard::check_route(&target, &mut request, &peer, &mut entry, &metrics).await,
                    refused => refused,
                };
                let answer = match refusal {
                    None => respond(&target, request, asked, peer, &mut entry).await,
                    Some(response) => response.into(),
                };
                match answer {
                    GatewayResponse::Whole(response) => target.site.response(response, asked_for, &memory).await.into(),
                    tunnel => tunnel,
                }
            }
            Err((status, ending)) => {
                // The rate comes first.
                entry.end(ending);
                refusal.unwrap_or_else(|| plain(status)).into()
            }
        };
        drop(held);
        let mut response = match answered {
            GatewayResponse::Whole(response) => entry.around(response),
            GatewayResponse::Tunnel(response, tunnel) => {
                entry.begin_tunnel(response.status());
                tokio::spawn(tunnel.carry(entry));
                response
            }
            GatewayResponse::Proxied(response, tunnel) => {
                entry.begin_tunnel(response.status());
                tokio::spawn(tunnel.carry(entry));
                response
            }
        };
        if let Some(alt_svc) = alt_svc {
            response.headers_mut().insert(header::ALT_SVC, alt_svc);
        }
        response
    }
}

/// Replaces the proxy by the client that a trusted proxy names.
fn believe(generation: &Generation, request: &Request<AnyBody>, peer: &mut Peer) {
    if let Some(client) = generation.trusted.client(request.headers(), peer.remote) {
        peer.proxy = Some(std::mem::replace(&mut peer.remote, client));
    }
}

/// Response to a client.
enum GatewayResponse {
    /// An answer with its content.
    Whole(Response<AnyBody>),
    /// The head of an answer, behind which the connection or stream is a tunnel.
    Tunnel(Response<AnyBody>, tunnel::Upgraded),
    /// The same, for a tunnel to a target that the client has named.
    Proxied(Response<AnyBody>, masque::Upgraded),
}

impl From<Response<AnyBody>> for GatewayResponse {
    fn from(response: Response<AnyBody>) -> Self {
        Self::Whole(response)
    }
}

/// Finds the handler of a request, or the reason for a refusal. From here on the request has the path by which this was decided.
fn find(
    generation: &Generation,
    request: &mut Request<AnyBody>,
    asked: Option<&SwitchRequest>,
    entry: &mut Entry,
    peer: &Peer,
) -> Result<Arc<Target>, (StatusCode, Ending)> {
    let malformed = || (StatusCode::BAD_REQUEST, Ending::Malformed);
    let refused = |status| (status, Ending::Refused);
    let host = host(request).ok_or_else(malformed)?;
    entry.record.host.clone_from(&host);
    if *request.method() == Method::CONNECT
        && asked.is_none()
        && let Some(target) = &generation.connect
    {
        entry.record.route.clone_from(&target.name);
        return Ok(target.clone());
    }
    // RFC 9114 §4.4 SHOULD-3: a gateway is no tunnel to anywhere, and says nothing about the way here (RFC 9110 §9.3.8)
    if *request.method() == Method::TRACE || *request.method() == Method::CONNECT && asked.is_none() {
        return Err(refused(StatusCode::METHOD_NOT_ALLOWED));
    }
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let name = name.map_or(host.as_str(), |(name, _)| name).trim_end_matches('.').to_ascii_lowercase();
    let path = path::of(request.method(), request.uri()).map_err(|_| malformed())?;
    let target = generation.routes.find_for(&name, &path).map_err(|_| malformed())?.cloned();
    let target = target.ok_or_else(|| refused(StatusCode::NOT_FOUND))?;
    if path.path != request.uri().path() {
        let uri = path::with_path(request.uri(), &path.path).ok_or_else(malformed)?;
        *request.uri_mut() = uri;
    }
    entry.record.route.clone_from(&target.name);
    // RFC 9220 §3
    if asked.is_some_and(|asked| asked.form == SwitchForm::Connect && !is_carried(&target, asked)) {
        return Err(refused(StatusCode::NOT_IMPLEMENTED));
    }
    if let Some(progress) = &peer.progress {
        progress.on_route(&target.name);
    }
    Ok(target)
}

/// Returns whether requests of a route may become this.
fn is_carried(target: &Target, asked: &SwitchRequest) -> bool {
    if let RouteHandler::Proxy(proxy) = &target.handler {
        return proxy.carries(&asked.protocol);
    }
    if let RouteHandler::IpProxy(proxy) = &target.handler {
        return proxy.carries(&asked.protocol);
    }
    if let RouteHandler::Sessions(_) = &target.handler {
        return SessionRoute::carries(&asked.protocol);
    }
    target.route.tunnels.0.iter().any(|protocol| protocol.eq_ignore_ascii_case(&asked.protocol))
}

/// Host that a request is for, with its port as it was written; `None` when it names none, or two different ones.
fn host(request: &Request<AnyBody>) -> Option<String> {
    let mut given = request.headers().get_all(header::HOST).iter();
    let field = match (given.next(), given.next()) {
        (None, _) => None,
        (Some(host), None) => Some(host.to_str().ok()?),
        // RFC 9112 §3.2: more than one is an error.
        (Some(_), Some(_)) => return None,
    };
    let host = match (request.uri().authority(), field) {
        // RFC 9114 §4.3.1, RFC 9113 §8.3.1: they may not contradict each other. In HTTP/1.1 the target wins (RFC 9112 §3.2.2).
        (Some(authority), Some(field)) if request.version() >= Version::HTTP_2 && authority.as_str() != field => {
            return None;
        }
        (Some(authority), _) => authority.as_str(),
        (None, Some(field)) => field,
        (None, None) => return None,
    };
    is_host(host).then(|| host.to_owned())
}

/// Waits for the handshake before a request of early data that may not happen twice (RFC 8470 §3). Returns whether the connection
/// lives to have an answer.
async fn is_in_time(target: &Target, is_safe: bool, peer: &Peer, entry: &mut Entry) -> bool {
    let Some(connection) = peer.quic.as_ref().filter(|_| peer.early) else { return true };
    // RFC 9114 §10.9 MUST-1: the handshake shows who asks
    let by_policy = peer.progress.as_ref().is_none_or(|progress| progress.takes_early_data());
    if is_safe && target.route.early_data && by_policy {
        return true;
    }
    entry.record.early = false;
    connection.established().await.is_ok()
}

/// Returns whether the end of a request without content may still arrive: in HTTP/3 it may be in a separate packet.
fn may_end_apart(request: &Request<AnyBody>) -> bool {
    let is_without = match request.headers().get(header::CONTENT_LENGTH) {
        Some(length) => length == "0",
        None => request.method().is_safe() || *request.method() == Method::DELETE,
    };
    is_without && !request.body().is_end_stream() && request.version() == Version::HTTP_3
}

/// The response of a proxy.
fn proxied(answer: masque::Answer) -> GatewayResponse {
    match answer {
        masque::Answer::Whole(response) => response.into(),
        masque::Answer::Upgraded(response, tunnel) => GatewayResponse::Proxied(response, tunnel),
    }
}

async fn respond(
    target: &Target,
    mut request: Request<AnyBody>,
    asked: Option<SwitchRequest>,
    peer: Peer,
    entry: &mut Entry,
) -> GatewayResponse {
    if !is_in_time(target, request.method().is_safe(), &peer, entry).await {
        return plain(StatusCode::TOO_EARLY).into();
    }
    let upstream = match &target.handler {
        RouteHandler::Files(files) => return files.answer(&request).into(),
        RouteHandler::Redirect(redirect) => return redirect.answer(request.uri()).into(),
        // Boxed: their futures are large, and room for the largest would be in that of every request.
        RouteHandler::Proxy(proxy) => {
            return proxied(Box::pin(proxy.answer(request, asked, &peer, entry)).await);
        }
        RouteHandler::IpProxy(proxy) => {
            return proxied(Box::pin(proxy.answer(request, asked, &peer, entry)).await);
        }
        RouteHandler::Sessions(sessions) => {
            return Box::pin(sessions.answer(request, asked, target, &peer, entry)).await.into();
        }
        RouteHandler::Upstream(upstream) => upstream,
    };
    entry.set_fault(Ending::Broken);
    let asked = asked.filter(|asked| is_carried(target, asked));
    if may_end_apart(&request) {
        let (head, body) = request.into_parts();
        request = Request::from_parts(head, settle(body).await);
    }
    let capsules = asked.as_ref().is_some_and(|asked| asked.has_capsules(request.headers()));
    if capsules && SwitchRequest::is_malformed(request.headers()) {
        entry.end(Ending::Malformed);
        return plain(StatusCode::BAD_REQUEST).into();
    }
    let tunnel = asked.map(|asked| (asked, tunnel::Client::of(&mut request, capsules)));
    let answered = request.extensions_mut().remove::<body::Answered>();
    let headers = request.headers_mut();
    peer.introduce(headers, &entry.record.host, entry.record.early, entry.record.user.as_deref());
    if let Some((asked, ..)) = &tunnel {
        asked.ask(&mut request);
    }
    target.direct(request.uri_mut());
    target.site.request(request.headers_mut());
    let answer = match upstream.send(request).await {
        Ok(answer) => answer,
        Err(failure) => return unanswered(failure, entry),
    };
    if let Some(answered) = answered {
        answered.set();
    }
    entry.record.back_end = Some(answer.back_end);
    entry.record.tries = answer.tries;
    let mut response = answer.response;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switched(response, tunnel, answer.place, &peer, entry);
    }
    if tunnel.is_some() && !response.status().is_success() {
        switch::strip_refusal(response.headers_mut());
    }
    if tunnel.is_some_and(|(asked, ..)| asked.form == SwitchForm::Connect) && response.status().is_success() {
        // The client would take it for the beginning of its tunnel (RFC 8441 §4, RFC 9220 §3).
        return bad_gateway(entry, "the back end answered a request for another protocol as one for itself");
    }
    fields::strip(response.headers_mut());
    // A back end's own services are at its own address.
    response.headers_mut().remove(header::ALT_SVC);
    let pace = Pace { interval: target.route.content_timeout.0, progress: target.route.content_progress.0 };
    response
        .map(|body| {
            let body = trailing(body.map_err(Into::into), fields::strip_trailers).boxed_unsync();
            body::with(body::paced(body, pace), answer.place)
        })
        .into()
}

/// Joins client and back end after the back end has switched to the protocol of the request.
fn switched(
    mut response: Response<AnyBody>,
    tunnel: Option<(SwitchRequest, tunnel::Client)>,
    place: Place,
    peer: &Peer,
    entry: &mut Entry,
) -> GatewayResponse {
    let Some((asked, client)) = tunnel else {
        // It agrees to what nobody has asked for.
        return bad_gateway(entry, "the back end switched protocols unasked");
    };
    if !asked.is_answered_by(response.headers()) {
        return bad_gateway(entry, "the back end switched to another protocol than was asked for");
    }
    let back_end = tunnel::BackEnd::of(&mut response);
    fields::strip(response.headers_mut());
    asked.answer(&mut response);
    match client {
        tunnel::Client::Upgraded(client, capsules) => {
            let tunnel = tunnel::Upgraded { client, capsules, back_end, place, memory: peer.memory.clone() };
            GatewayResponse::Tunnel(response.map(|_| body::full("")), tunnel)
        }
        tunnel::Client::Stream(client) => {
            entry.set_tunnel();
            let body = tunnel::carry_stream(*client, back_end, &peer.memory, place);
            response.map(|_| body).into()
        }
    }
}

/// Answers a request to which the back end's response does not belong.
fn bad_gateway(entry: &mut Entry, why: &str) -> GatewayResponse {
    entry.end(Ending::Broken);
    entry.record.error = Some(why.to_owned());
    plain(StatusCode::BAD_GATEWAY).into()
}

/// Answers a request that no back end has answered.
fn unanswered(failure: Failure, entry: &mut Entry) -> GatewayResponse {
    tracing::debug!("{}", failure.reason);
    entry.end(failure.ending);
    entry.record.error = Some(failure.reason);
    (entry.record.back_end, entry.record.tries) = (failure.back_end, failure.tries);
    let status = failure.ending.status();
    if status == StatusCode::SERVICE_UNAVAILABLE { busy() } else { plain(status) }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::full;

    fn request(version: Version, uri: &str, hosts: &[&str]) -> Request<AnyBody> {
        let mut builder = Request::builder().uri(uri).version(version);
        for host in hosts {
            builder = builder.header("host", *host);
        }
        builder.body(full("")).unwrap()
    }

    #[test]
    fn one_host_and_no_contradiction() {
        let v1 = Version::HTTP_11;
        for (version, uri, hosts, expected) in [
            (v1, "/x", &["example.org:8443"][..], Some("example.org:8443")),
            (v1, "/x", &[], None),
            (v1, "/x", &["a", "b"], None),
            (v1, "http://a/x", &["b"], Some("a")),
            (v1, "/x", &["a/b"], None),
            (v1, "/x", &[""], None),
            (v1, "/x", &["[::1]:1"], Some("[::1]:1")),
            (v1, "/x", &["a b"], None),
            (v1, "/x", &["[::ffff:192.0.2.1]"], Some("[::ffff:192.0.2.1]")),
            (v1, "/x", &["a:"], Some("a:")),
            (v1, "/x", &["::1"], None),
            (v1, "/x", &["[::1"], None),
            (v1, "/x", &["[::1]a"], None),
            (v1, "/x", &["[a]:1"], None),
            (v1, "/x", &["a[b]"], None),
            (v1, "/x", &["[fe80::1%25eth0]"], None),
            (v1, "/x", &["a:1:2"], None),
            (v1, "/x", &["a:b"], None),
            (v1, "/x", &[":443"], None),
            (Version::HTTP_2, "https://a/x", &[], Some("a")),
            (Version::HTTP_2, "https://a/x", &["a"], Some("a")),
            (Version::HTTP_2, "https://a/x", &["b"], None),
            (Version::HTTP_3, "https://user@a/x", &[], None),
        ] {
            assert_eq!(host(&request(version, uri, hosts)).as_deref(), expected, "{uri} {hosts:?}");
        }
    }
}
