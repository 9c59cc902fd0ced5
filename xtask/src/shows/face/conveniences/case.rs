//! Form of a comparison: two configurations, requests, what both gateways have to answer, and where they differ.

use super::ask::{Ask, Part, Version};

/// Configuration of Caddy for the same.
#[derive(Clone, Copy, Debug)]
pub(super) enum Caddy {
    /// Directives of the site.
    Site(&'static str),
    /// Options for all sites, then directives of the site.
    Global(&'static str, &'static str),
    /// Directives of the site, then further sites.
    Sites(&'static str, &'static str),
    /// Another listener's options in place of the usual `tls` line, then directives of the site.
    Tls(&'static str, &'static str),
    /// Caddy has it in none of its standard modules.
    Missing(&'static str),
}

/// Purpose of a site's configuration, once in the words of each gateway.
#[derive(Debug)]
pub(super) struct Convenience {
    /// Wish of a user.
    pub(super) name: &'static str,
    /// Settings of `edge.toml` below `listen`, `certificate` and `key`.
    pub(super) ours: &'static str,
    pub(super) caddy: Caddy,
    pub(super) versions: &'static [Version],
    pub(super) steps: Vec<Step>,
}

/// Request, and what its answer has to be.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) ask: Ask,
    pub(super) expected: Vec<Expected>,
}

/// Part of an answer.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) part: Part,
    /// Value at our gateway, and at Caddy unless there is another.
    pub(super) value: String,
    /// Value at Caddy, and why it is another.
    pub(super) at_caddy: Option<(&'static str, &'static str)>,
}

/// TLS and HTTP/3 alike.
pub(super) const ALL: &[Version] = &[Version::Http1, Version::Http2, Version::Http3];
/// Request that `tiderace get` cannot make: cookies, certificates.
pub(super) const TCP: &[Version] = &[Version::Http1, Version::Http2];

impl Step {
    /// `METHOD /target`.
    pub(super) fn new(request: &'static str) -> Self {
        let (method, target) = request.split_once(' ').unwrap_or(("GET", request));
        Self { ask: Ask { method, target, times: 1, ..Ask::default() }, expected: Vec::new() }
    }

    /// Adds a field to the request: `name: value`.
    pub(super) fn with(mut self, field: &'static str) -> Self {
        self.ask.fields.push(field);
        self
    }

    /// Accepts a coding, and undoes it.
    pub(super) fn accepting(mut self, coding: &'static str) -> Self {
        self.ask.coding = Some(coding);
        self
    }

    /// Asks under another name than `localhost`.
    pub(super) fn at(mut self, host: &'static str) -> Self {
        self.ask.host = Some(host);
        self
    }

    /// Shows the certificate of a client.
    pub(super) fn certified(mut self) -> Self {
        self.ask.certificate = true;
        self
    }

    /// Asks several times.
    pub(super) fn times(mut self, times: usize) -> Self {
        self.ask.times = times;
        self
    }

    /// Keeps cookies.
    pub(super) fn with_jar(mut self) -> Self {
        self.ask.jar = true;
        self
    }

    /// Asks while a back end holds a request.
    pub(super) fn beside_held(mut self) -> Self {
        self.ask.beside_held = true;
        self
    }

    /// Adds what both have to answer.
    pub(super) fn gives(mut self, part: Part, value: impl Into<String>) -> Self {
        self.expected.push(Expected { part, value: value.into(), at_caddy: None });
        self
    }

    /// Says that Caddy answers otherwise in the last part, and why.
    pub(super) fn but_caddy(mut self, value: &'static str, why: &'static str) -> Self {
        if let Some(last) = self.expected.last_mut() {
            last.at_caddy = Some((value, why));
        }
        self
    }
}
