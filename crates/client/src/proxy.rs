//! HTTP proxy for programs that cannot be changed: plain requests are raced, tunnels use TCP.
//!
//! Clients of CONNECT do TLS with the origin, so the proxy cannot change the protocol: the tunnel uses TCP, and the response says so.
//! Requests with an absolute URI (RFC 9112 §3.2.2) go through the [`Client`]. Requests for `https` are raced; requests for `http` too if
//! the host is known to support `https`, otherwise they use TCP. Upgrades (WebSocket) are only possible within a tunnel.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tiderace_client::{
//!     Client, Trust,
//!     proxy::{self, Proxy, Secure},
//! };
//!
//! let (listener, address) = proxy::listen("127.0.0.1:8080".parse()?).await?;
//! println!("http_proxy=http://{address}");
//! let tell = |served: proxy::Served| println!("{} {} {}", served.method, served.uri, served.status);
//! let proxy = Proxy::new(Client::new(&Trust::Platform)?, Secure::Record, tell);
//! proxy.serve(listener, std::future::pending()).await;
//! # Ok(())
//! # }
//! ```

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use qmux::Lingering;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use crate::{
    dial,
    fetch::{Client, FetchError, ResponseBody, Route},
    link,
};

/// Programs that are served at a time; others wait.
const CONNECTIONS: u32 = 1_024;
/// A request's fields have to be there by then.
const FIELDS: Duration = Duration::from_secs(30);
/// Time limit for requests in progress when the proxy ends.
const DRAIN: Duration = Duration::from_secs(2);

/// Rule for asking `http` as `https`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Secure {
    /// Host has an HTTPS record (RFC 9460 §9.5).
    #[default]
    Record,
    /// Always: a port of 80 becomes 443, another one stays.
    Always,
    /// Never.
    Never,
}

/// Outcome of a proxied request.
#[derive(Clone, Debug)]
pub struct Served {
    /// Method of the request.
    pub method: Method,
    /// URI of the request; host and port of a tunnel.
    pub uri: Uri,
    /// The answer's status.
    pub status: StatusCode,
    /// `h3`, `h2` or `http/1.1`; `tcp` for a tunnel; `None` without a connection.
    pub protocol: Option<&'static str>,
}

/// Settings of the proxy.
pub struct Proxy {
    client: Client,
    secure: Secure,
    tell: Box<dyn Fn(Served) + Send + Sync>,
}

type Answer = Response<ResponseBody>;

impl Proxy {
    /// Creates a proxy that sends requests through `client`, and calls `tell` for each of them.
    pub fn new(client: Client, secure: Secure, tell: impl Fn(Served) + Send + Sync + 'static) -> Self {
        Self { client, secure, tell: Box::new(tell) }
    }

    /// Serves until `end`. A connection that cannot be accepted is logged, and the next one is waited for.
    pub async fn serve(self, listener: TcpListener, end: impl Future<Output = ()>) {
        let this = Arc::new(self);
        let places = Arc::new(Semaphore::new(CONNECTIONS as usize));
        let mut programs = JoinSet::new();
        let mut end = std::pin::pin!(end);
        loop {
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place.expect("nobody closes the semaphore"),
                () = &mut end => break,
            };
            let (stream, _) = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of file descriptors, most likely: others have to end first.
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = &mut end => break,
            };
            while programs.try_join_next().is_some() {}
            let this = this.clone();
            programs.spawn(async move { this.program(stream, place).await });
        }
        let rest = async {
            while programs.join_next().await.is_some() {}
            // What was sent last has arrived when the programs have closed, too.
            let _ = places.acquire_many(CONNECTIONS).await;
        };
        let _ = tokio::time::timeout(DRAIN, rest).await;
        programs.abort_all();
        this.client.close().await;
    }

    /// Serves one connection of a program, with its tunnels. It keeps its place until the program has closed, too.
    async fn program(self: &Arc<Self>, stream: TcpStream, place: OwnedSemaphorePermit) {
        let _ = stream.set_nodelay(true);
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(FIELDS);
        let tunnels = Arc::new(tokio::sync::Mutex::new(JoinSet::new()));
        let service = service_fn(|request| {
            let (this, tunnels) = (self.clone(), tunnels.clone());
            async move { Ok::<_, std::convert::Infallible>(this.answer(request, &tunnels).await) }
        });
        if let Err(error) =
            builder.serve_connection(TokioIo::new(Lingering::new(stream, place)), service).with_upgrades().await
        {
            tracing::debug!("a program's connection has ended: {error}");
        }
        while tunnels.lock().await.join_next().await.is_some() {}
    }

    async fn answer(&self, request: Request<Incoming>, tunnels: &tokio::sync::Mutex<JoinSet<()>>) -> Answer {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let (answer, protocol) =
            if method == Method::CONNECT { self.tunnel(request, tunnels).await } else { self.fetch(request).await };
        (self.tell)(Served { method, uri, status: answer.status(), protocol });
        answer
    }

    /// RFC 9110 §9.3.6.
    async fn tunnel(
        &self,
        request: Request<Incoming>,
        tunnels: &tokio::sync::Mutex<JoinSet<()>>,
    ) -> (Answer, Option<&'static str>) {
        let uri = request.uri();
        let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
            return (plain(StatusCode::BAD_REQUEST, "CONNECT takes HOST:PORT"), None);
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let connected = async {
            let addresses = self.client.resolver().addresses(&host, port).await.map_err(|error| error.to_string())?;
            dial::connect_tcp(addresses).await.map_err(|error| error.to_string())
        };
        let mut back = match connected.await {
            Ok(stream) => stream,
            Err(error) => return (plain(StatusCode::BAD_GATEWAY, &format!("cannot reach {host}: {error}")), None),
        };
        tunnels.lock().await.spawn(async move {
            match hyper::upgrade::on(request).await {
                Ok(upgraded) => {
                    let mut program = TokioIo::new(upgraded);
                    // An end that breaks off is the other's to see.
                    let _ = tokio::io::copy_bidirectional(&mut program, &mut back).await;
                }
                Err(error) => tracing::debug!("no tunnel: {error}"),
            }
        });
        let mut answer = plain(StatusCode::OK, "");
        answer.headers_mut().remove(header::CONTENT_TYPE);
        (answer, Some("tcp"))
    }

    async fn fetch(&self, mut request: Request<Incoming>) -> (Answer, Option<&'static str>) {
        let asked = request.uri().clone();
        if !matches!(asked.scheme(), Some(scheme) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS) {
            let text = "this is a proxy: it takes requests with an absolute http or https URI, and CONNECT";
            return (plain(StatusCode::BAD_REQUEST, text), None);
        }
        if asked.scheme() == Some(&Scheme::HTTP) && self.means_https(&asked).await {
            match secured(asked) {
                Some(uri) => *request.uri_mut() = uri,
                None => return (plain(StatusCode::BAD_REQUEST, "the URI cannot be read"), None),
            }
        }
        link::strip(request.headers_mut());
        // RFC 9110 §7.6.3: a proxy says that it was there.
        request.headers_mut().append(header::VIA, HeaderValue::from_static("1.1 tiderace"));
        match self.client.send(request, &Route::default()).await {
            Ok(fetched) => {
                let protocol = fetched.protocol;
                let mut response = fetched.response;
                *response.version_mut() = http::Version::HTTP_11;
                link::strip(response.headers_mut());
                let via = match protocol {
                    "h3" => "3 tiderace",
                    "h2" => "2 tiderace",
                    _ => "1.1 tiderace",
                };
                response.headers_mut().append(header::VIA, HeaderValue::from_static(via));
                // RFC 9209 §2.1.5: over what it went on.
                let status = HeaderValue::from_str(&format!("tiderace; next-protocol=\"{protocol}\""));
                response.headers_mut().append("proxy-status", status.expect("letters"));
                // What the origin says about other ways is for the proxy, which has read it.
                response.headers_mut().remove(header::ALT_SVC);
                (response, Some(protocol))
            }
            Err(error @ FetchError::TimedOut { .. }) => (plain(StatusCode::GATEWAY_TIMEOUT, &error.to_string()), None),
            Err(error @ FetchError::Url(_)) => (plain(StatusCode::BAD_REQUEST, &error.to_string()), None),
            Err(error) => (plain(StatusCode::BAD_GATEWAY, &error.to_string()), None),
        }
    }

    async fn means_https(&self, uri: &Uri) -> bool {
        match self.secure {
            Secure::Always => true,
            Secure::Never => false,
            // The record is about the default port.
            Secure::Record => match (uri.host(), uri.port_u16().unwrap_or(80)) {
                (Some(host), 80) => self.client.has_https_record(host).await,
                _ => false,
            },
        }
    }
}

/// The same with `https`.
fn secured(uri: Uri) -> Option<Uri> {
    let authority = uri.authority()?.as_str();
    let authority = authority.strip_suffix(":80").unwrap_or(authority).parse().ok()?;
    let mut parts = uri.into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(authority);
    Uri::from_parts(parts).ok()
}

/// An answer of the proxy's own.
fn plain(status: StatusCode, text: &str) -> Answer {
    let text = if text.is_empty() { String::new() } else { format!("tiderace proxy: {text}\n") };
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// Address at which the proxy cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
#[non_exhaustive]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// Error of the system.
    pub source: io::Error,
}

/// Listens on `address`. Returns the listener and its address, which has the port if any free one was requested.
///
/// # Errors
/// When the address cannot be had.
pub async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ListenError> {
    let failed = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_taken_is_named_with_its_cause() {
        let (_listener, taken) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = listen(taken).await.unwrap_err();
        assert_eq!((error.address, error.source.kind()), (taken, io::ErrorKind::AddrInUse));
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.is::<io::Error>() && error.to_string().contains(&taken.to_string()), "{error}");
    }

    #[test]
    fn http_becomes_https_at_its_port() {
        for (http, https) in [
            ("http://a.example/x?y", "https://a.example/x?y"),
            ("http://a.example:80/", "https://a.example/"),
            ("http://a.example:8080/", "https://a.example:8080/"),
            ("http://[::1]:80/", "https://[::1]/"),
        ] {
            assert_eq!(secured(http.parse().unwrap()).unwrap().to_string(), https);
        }
    }
}
