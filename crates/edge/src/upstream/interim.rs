//! Interim responses of back ends (RFC 9110 §15.2), for clients of HTTP/3. The libraries of HTTP/2 and HTTP/1.1 send none to clients, and that
//! of HTTP/2 takes none from back ends.

use h3_quic::{InterimResponses, OnInterim};
use http::{HeaderMap, Request, Response, StatusCode, header};

use crate::fields;

/// Passes an interim response on, as far as there is room.
fn pass(to: &InterimResponses, status: StatusCode, fields: &HeaderMap) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = fields.clone();
    fields::strip(response.headers_mut());
    // A back end's own services are at its own address.
    response.headers_mut().remove(header::ALT_SVC);
    if let Err(error) = to.send(response) {
        tracing::debug!("an interim response ({status}) is not passed on: {error}");
    }
}

/// Takes the way to the client from a request, and makes it that of interim responses over QUIC.
pub(super) fn over_quic<B>(request: &mut Request<B>) {
    if let Some(to) = request.extensions_mut().remove::<InterimResponses>() {
        let on_interim = OnInterim::new(move |response| pass(&to, response.status(), response.headers()));
        request.extensions_mut().insert(on_interim);
    }
}

/// As [`over_quic`], over TCP.
pub(super) fn over_tcp<B>(request: &mut Request<B>) {
    if let Some(to) = request.extensions_mut().remove::<InterimResponses>() {
        hyper::ext::on_informational(request, move |response| pass(&to, response.status(), response.headers()));
    }
}
