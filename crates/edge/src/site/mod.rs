//! The site around the handler of a route: redirections, header fields, compression, pages for errors.
//!
//! A [`Site`] is made once for each route of a configuration. [`Site::request`] sees a request before a back end does, and
//! [`Site::response`] an answer before its entry in the books, so that the books count what leaves.

mod compression;
mod redirect;
mod rules;

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tiderace::ConnectionBudget;

use self::{compression::Compressor, rules::Rules};
pub(crate) use self::{
    compression::{Accepted, Coding, preferred},
    redirect::{Redirect, to_https},
};
use crate::{
    body::{AnyBody, full},
    config::Route,
    setup::SetupError,
};

/// Settings of a route around its handler, ready for use.
pub(crate) struct Site {
    request: Rules,
    response: Rules,
    hsts: Option<HeaderValue>,
    compressor: Option<Compressor>,
    /// Content and media type of pages, by the status that they stand for.
    pages: BTreeMap<StatusCode, (Bytes, &'static str)>,
}

/// A page of the gateway's own, in the extensions of a response: a page of the site may replace it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnPage;

impl Site {
    /// Makes what `route` asks for.
    ///
    /// # Errors
    /// When a page for an error cannot be read.
    pub(crate) fn new(route: &Route) -> Result<Self, SetupError> {
        let page = |(status, path): (&String, &String)| {
            // The configuration has checked that it is a status.
            let status: StatusCode = status.parse().ok()?;
            let page = std::fs::read(path).map(|content| (status, (content.into(), crate::files::kind(path.as_ref()))));
            Some(page.map_err(|source| SetupError::ErrorPage { route: route.name(), path: path.clone(), source }))
        };
        let hsts = route.hsts.map(|time| format!("max-age={}", time.0.as_secs()));
        Ok(Self {
            request: Rules::new(&route.request_headers),
            response: Rules::new(&route.response_headers),
            hsts: hsts.and_then(|value| HeaderValue::from_str(&value).ok()),
            compressor: route.compression.as_ref().map(Compressor::new),
            pages: route.error_pages.iter().filter_map(page).collect::<Result<_, _>>()?,
        })
    }

    /// The coding in which a response to a request with these fields leaves, if this site compresses.
    pub(crate) fn accepted(&self, method: &Method, fields: &HeaderMap) -> Accepted {
        self.compressor.as_ref().map_or_else(Accepted::none, |compressor| compressor.accepted(method, fields))
    }

    /// Applies the rules for requests.
    pub(crate) fn request(&self, fields: &mut HeaderMap) {
        self.request.apply(fields);
    }

    /// Makes the response of a handler the one that leaves. `memory` is charged for the compression.
    pub(crate) async fn response(
        &self,
        mut response: Response<AnyBody>,
        accepted: Accepted,
        memory: &ConnectionBudget,
    ) -> Response<AnyBody> {
        if response.extensions_mut().remove::<OwnPage>().is_some()
            && let Some((content, kind)) = self.pages.get(&response.status())
        {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(content.len()));
            response = response.map(|_| full(if accepted.is_head { Bytes::new() } else { content.clone() }));
        }
        if let Some(compressor) = &self.compressor {
            response = compressor.compress(response, accepted, memory).await;
        }
        if let Some(hsts) = &self.hsts {
            response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, hsts.clone());
        }
        self.response.apply(response.headers_mut());
        response
    }
}
