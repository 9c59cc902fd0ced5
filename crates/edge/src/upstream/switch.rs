//! Requests that switch to another protocol (WebSocket, and others that a route allows), in the form of clients and in that of back ends.
//! `tunnel` carries the content.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::ext::Protocol;

/// Fields that describe content.
const CONTENT: [header::HeaderName; 3] = [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::TRANSFER_ENCODING];

/// Removes the fields that announce capsules in an answer, when it begins no tunnel.
// RFC 9297 §3.4 MUST NOT-1
pub(crate) fn strip_refusal(fields: &mut HeaderMap) {
    fields.remove("capsule-protocol");
}

/// Form of a request for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwitchForm {
    /// By `upgrade` (RFC 9110 §7.8).
    Upgrade,
    /// By an extended CONNECT (RFC 8441, RFC 9220).
    Connect,
}

/// Request for another protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwitchRequest {
    pub(crate) form: SwitchForm,
    /// The protocol's name, in small letters.
    pub(crate) protocol: String,
}

/// Parses a request for another protocol on its connection or stream.
pub(crate) fn asked<B>(request: &Request<B>) -> Option<SwitchRequest> {
    if request.method() == Method::CONNECT {
        let protocol = match (request.extensions().get::<Protocol>(), request.extensions().get::<h3_quic::Protocol>()) {
            (Some(protocol), _) => protocol.as_str(),
            (None, protocol) => protocol?.as_str(),
        };
        return Some(SwitchRequest { form: SwitchForm::Connect, protocol: protocol.to_ascii_lowercase() });
    }
    let upgrade = request.headers().get(header::UPGRADE)?.to_str().ok()?;
    let named = request.headers().get_all(header::CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case("upgrade")))
    });
    let is_one = named && request.version() == http::Version::HTTP_11;
    is_one.then(|| SwitchRequest { form: SwitchForm::Upgrade, protocol: upgrade.trim().to_ascii_lowercase() })
}

impl SwitchRequest {
    /// Returns whether capsules are carried (RFC 9297 §3.2): the request announces them, or its protocol implies them.
    pub(crate) fn has_capsules(&self, fields: &HeaderMap) -> bool {
        // RFC 9297 §3.4 MUST-1, MUST-2, MUST-3: one item that is true, whatever its parameters are
        let mut items = fields.get_all("capsule-protocol").iter().map(|item| item.as_bytes().trim_ascii());
        let item = items.next().filter(|_| items.next().is_none());
        let says = item.and_then(|item| item.strip_prefix(b"?1")).is_some_and(|rest| matches!(rest, [] | [b';', ..]));
        says || matches!(self.protocol.as_str(), "connect-udp" | "connect-ip")
    }

    /// Returns whether a request with capsules breaks the rules for such.
    // RFC 9297 §3.2 MUST NOT-1, MUST-2: what describes content has no place beside them
    pub(crate) fn is_malformed(fields: &HeaderMap) -> bool {
        CONTENT.iter().any(|name| fields.contains_key(name))
    }

    /// Makes a request, from which [`strip`](crate::fields::strip) has taken its wish away, ask a back end for the same.
    pub(crate) fn ask<B>(&self, request: &mut Request<B>) {
        let Ok(protocol) = HeaderValue::from_str(&self.protocol) else { return };
        if self.form == SwitchForm::Connect {
            *request.method_mut() = Method::GET;
            // The key proves nothing to the client, which has not spoken HTTP/1.1; the back end wants one.
            let mut random = [0; 16];
            let _ = aws_lc_rs::rand::fill(&mut random);
            if self.protocol == "websocket"
                && let Ok(key) = HeaderValue::from_str(&STANDARD.encode(random))
            {
                request.headers_mut().insert(header::SEC_WEBSOCKET_KEY, key);
            }
        }
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(header::UPGRADE, protocol);
    }

    /// Returns whether a back end that switches protocols switches to this one (RFC 9110 §15.2.2).
    pub(crate) fn is_answered_by(&self, fields: &HeaderMap) -> bool {
        let mut names = fields.get_all(header::UPGRADE).iter();
        let name = names.next().and_then(|name| name.to_str().ok());
        names.next().is_none() && name.is_some_and(|name| name.trim().eq_ignore_ascii_case(&self.protocol))
    }

    /// The answer for the client, when the back end has agreed.
    pub(crate) fn answer<B>(&self, response: &mut Response<B>) {
        // RFC 9297 §3.2 MUST NOT-1, MUST NOT-2: a tunnel has no content to be described, and is 101 or 200
        for name in CONTENT {
            response.headers_mut().remove(name);
        }
        match self.form {
            SwitchForm::Upgrade => {
                let Ok(protocol) = HeaderValue::from_str(&self.protocol) else { return };
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
                response.headers_mut().insert(header::UPGRADE, protocol);
            }
            SwitchForm::Connect => {
                *response.status_mut() = StatusCode::OK;
                response.headers_mut().remove(header::SEC_WEBSOCKET_ACCEPT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_what() {
        let request = |connection: &str, upgrade: &str| {
            Request::get("/").header("connection", connection).header("upgrade", upgrade).body(()).unwrap()
        };
        let found = |request: &Request<()>| asked(request).map(|asked| (asked.form, asked.protocol));
        let websocket = |how| Some((how, "websocket".to_owned()));
        assert_eq!(found(&request("keep-alive, Upgrade", "WebSocket")), websocket(SwitchForm::Upgrade));
        assert_eq!(found(&request("keep-alive", "websocket")), None);
        let connect = Request::connect("example.org").extension(Protocol::from_static("websocket")).body(()).unwrap();
        assert_eq!(found(&connect), websocket(SwitchForm::Connect));
        let protocol = h3_quic::Protocol::from_static("websocket");
        let connect = Request::connect("example.org").extension(protocol).body(()).unwrap();
        assert_eq!(found(&connect), websocket(SwitchForm::Connect));
        assert_eq!(found(&Request::connect("example.org:443").body(()).unwrap()), None);
    }

    /// RFC 9297 §3.4 MUST-1, MUST-2, MUST-3
    #[test]
    fn what_has_capsules() {
        let has = |protocol: &str, says: Option<&'static str>| {
            let asked = SwitchRequest { form: SwitchForm::Connect, protocol: protocol.to_owned() };
            let says = says.map(HeaderValue::from_static);
            asked.has_capsules(&says.map(|says| ("capsule-protocol".parse().unwrap(), says)).into_iter().collect())
        };
        assert!(has("connect-udp", None) && has("other", Some("?1")) && has("other", Some("?1;a=b")));
        assert!(!has("websocket", None));
        for other in ["?0", "?10", "1", "?1, ?1", "\"?1\"", ""] {
            assert!(!has("websocket", Some(other)), "{other}");
        }
        let twice = ["?1", "?1"].map(|item| ("capsule-protocol".parse().unwrap(), HeaderValue::from_static(item)));
        let mut fields = HeaderMap::new();
        for (name, item) in twice {
            let name: http::HeaderName = name;
            fields.append(name, item);
        }
        let asked = SwitchRequest { form: SwitchForm::Connect, protocol: "websocket".to_owned() };
        assert!(!asked.has_capsules(&fields));
    }
}
