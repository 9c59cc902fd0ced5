//! Processing around the handler of a route: redirections, header fields, compression, error pages.
//!
//! A [`Site`] is made once for each route of a configuration. [`Site::request`] processes a request before a back end receives it, and
//! [`Site::response`] a response before it is counted, so that sent bytes are counted.

mod compression;
mod cors;
mod redirect;
mod rules;

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tiderace::ConnectionBudget;

pub(crate) use self::redirect::{Redirect, to_https};
use self::{
    compression::{Accepted, Compressor},
    cors::Cors,
    rules::Rules,
};
use crate::{
    answer::OwnPage,
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
    cors: Option<Cors>,
    /// Content and media type of error pages, by status.
    pages: BTreeMap<StatusCode, (Bytes, &'static str)>,
}

/// Answer of the gateway to a preflight, in the extensions of a response.
#[derive(Clone, Copy, Debug)]
struct Preflight;

/// Facts about a request on which the form of its response depends.
pub(crate) struct AskedFor {
    accepted: Accepted,
    /// Origin of the script that asks.
    origin: Option<HeaderValue>,
}

impl Site {
    /// Builds the site of `route`.
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
            cors: route.cors.as_ref().map(Cors::new),
            pages: route.error_pages.iter().filter_map(page).collect::<Result<_, _>>()?,
        })
    }

    /// The facts about a request with these fields on which the form of its response depends.
    pub(crate) fn asked_for(&self, method: &Method, fields: &HeaderMap) -> AskedFor {
        let none = Accepted::none;
        let accepted = self.compressor.as_ref().map_or_else(none, |compressor| compressor.accepted(method, fields));
        AskedFor { accepted, origin: self.cors.as_ref().and_then(|_| fields.get(header::ORIGIN).cloned()) }
    }

    /// Answers a preflight of a browser, where other origins have rules; `None` for other requests.
    pub(crate) fn preflight(&self, method: &Method, fields: &HeaderMap) -> Option<Response<AnyBody>> {
        let mut response = self.cors.as_ref()?.preflight(method, fields)?;
        response.extensions_mut().insert(Preflight);
        Some(response)
    }

    /// Applies the rules for requests.
    pub(crate) fn request(&self, fields: &mut HeaderMap) {
        self.request.apply(fields);
    }

    /// Makes the response of a handler the one that leaves. `memory` is charged for the compression.
    pub(crate) async fn response(
        &self,
        mut response: Response<AnyBody>,
        asked_for: AskedFor,
        memory: &ConnectionBudget,
    ) -> Response<AnyBody> {
        let AskedFor { accepted, origin } = asked_for;
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
        if let Some(cors) = &self.cors {
            let is_preflight = response.extensions_mut().remove::<Preflight>().is_some();
            cors.response(response.headers_mut(), origin.as_ref(), is_preflight);
        }
        if let Some(hsts) = &self.hsts {
            response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, hsts.clone());
        }
        self.response.apply(response.headers_mut());
        response
    }
}
