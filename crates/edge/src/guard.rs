//! Conditions of a route: rate limits of the client, password, certificate.

use std::time::Instant;

use http::{Request, Response, StatusCode, header};

use crate::{
    answer::{later, plain},
    body::AnyBody,
    ending::Ending,
    generation::{Generation, Target},
    metrics::{AuthenticationLabels, LimitLabel, Metrics},
    observe::Entry,
    peer::Peer,
    rate::{RateKey, RateLimit},
};

/// Checks the rate of a client to all routes together, whether there is a route for its request or not. Gives the answer to a request
/// that is one too many.
pub(crate) async fn check_all(
    generation: &Generation,
    peer: &Peer,
    entry: &mut Entry,
    metrics: &Metrics,
) -> Option<Response<AnyBody>> {
    check_rate(generation.rates.get(&RateKey::All)?, &RateKey::All, peer, entry, metrics).await
}

/// Checks what a route asks of a request. Gives the answer to one that does not meet it, and to a preflight.
pub(crate) async fn check_route(
    target: &Target,
    request: &mut Request<AnyBody>,
    peer: &Peer,
    entry: &mut Entry,
    metrics: &Metrics,
) -> Option<Response<AnyBody>> {
    if let Some(limit) = &target.rate {
        let key = RateKey::Route(target.name.clone());
        let refused = check_rate(limit, &key, peer, entry, metrics).await;
        if refused.is_some() {
            return refused;
        }
    }
    // Browsers send no password with it.
    if let Some(response) = target.site.preflight(request.method(), request.headers()) {
        return Some(response);
    }
    if target.route.client_certificate {
        if peer.certificate.is_none() {
            entry.end(Ending::Refused);
            entry.record.error = Some("a certificate of the client is needed".to_owned());
            return Some(plain(StatusCode::FORBIDDEN));
        }
        // Somebody else may have sent the client's first packets again.
        if let Some(quic) = peer.quic.as_ref().filter(|_| peer.early) {
            entry.record.early = false;
            if quic.established().await.is_err() {
                return Some(gone(entry));
            }
        }
    }
    let auth = target.auth.as_ref()?;
    if !is_validated(peer, entry).await {
        return Some(gone(entry));
    }
    let count = |result| {
        let labels = AuthenticationLabels { route: target.name.clone(), result };
        metrics.requests.authentications.get_or_create(&labels).inc();
    };
    match auth.find(request.headers(), peer.remote.ip()).await {
        Ok(user) => {
            count(if user.is_remembered { "remembered" } else { "verified" });
            // It is the gateway's, and concerns nobody behind it.
            request.headers_mut().remove(header::AUTHORIZATION);
            entry.record.user = Some(user.name);
            None
        }
        Err(denied) => {
            count(denied.word());
            entry.end(denied.ending());
            Some(auth.response(denied))
        }
    }
}

/// Waits until the client's address is validated. Returns whether the connection lives.
pub(crate) async fn is_validated(peer: &Peer, entry: &mut Entry) -> bool {
    if peer.is_validated() {
        return true;
    }
    // Whatever waits for the handshake is no replay.
    entry.record.early = false;
    peer.validated().await
}

/// The answer on a connection that is gone.
fn gone(entry: &Entry) -> Response<AnyBody> {
    entry.end(Ending::Cancelled);
    plain(StatusCode::TOO_EARLY)
}

async fn check_rate(
    limit: &RateLimit,
    key: &RateKey,
    peer: &Peer,
    entry: &mut Entry,
    metrics: &Metrics,
) -> Option<Response<AnyBody>> {
    // Packets with a forged source would use up what is another client's.
    if !is_validated(peer, entry).await {
        return Some(gone(entry));
    }
    let wait = limit.take(peer.remote.ip(), Instant::now()).err()?;
    metrics.requests.rate_limited.get_or_create(&LimitLabel { limit: key.label() }).inc();
    entry.end(Ending::Rate);
    Some(later(StatusCode::TOO_MANY_REQUESTS, wait))
}
