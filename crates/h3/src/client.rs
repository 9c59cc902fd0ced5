//! Client: sends requests over a connection, as many at a time as the server permits.
//!
//! ```no_run
//! # async fn example(connection: tiderace::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use bytes::Bytes;
//! use http_body_util::{BodyExt, Full};
//!
//! let mut requests = tiderace_h3::client::begin(connection).await?;
//! // Handles share the connection: requests run side by side.
//! let mut other = requests.clone();
//! let get = http::Request::get("https://www.example.org/a").body(Full::<Bytes>::default())?;
//! let post = http::Request::post("https://www.example.org/b").body(Full::from("content"))?;
//! let (a, b) = tokio::join!(requests.send(get), other.send(post));
//! println!("{} {}", a?.status(), b?.status());
//! # Ok(())
//! # }
//! ```

use std::{future::poll_fn, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use tiderace::StreamId;

use crate::{
    body::ResponseBody,
    datagram::Datagrams,
    driver::Driver,
    error::{Code, Error, Violation},
    fields::{self, Protocol, Target, promised},
    interim::OnInterim,
    priority,
    priority_changes::ChangePriority,
    session_handle::{GiveUp, SessionOffer, SessionStreams},
    sessions::SessionSupport,
    settings::{PeerSettings, Settings},
    shared::{Handle, Shared, Side, TABLE},
    stream::{Receiver, Sender},
};

/// Bytes that the fields of a response may have (RFC 9114 §4.2.2).
const MAX_FIELDS: u64 = 256 * 1024;

/// Interim responses that are taken before the one that counts: a server could send them for ever.
const MAX_INTERIM: usize = 16;

/// Sends requests. Clones share the connection; with the last of them, and the last body, it is closed.
#[derive(Clone)]
pub struct SendRequest {
    handle: Arc<Handle>,
}

/// Options of a connection's requests.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Support of WebTransport sessions. The response to an extended CONNECT then has a
    /// [`SessionOffer`] in its extensions.
    pub sessions: Option<SessionSupport>,
    /// Content of responses arrives as joined copies. Otherwise it arrives as slices of receive buffers, each of which stays in memory as a
    /// whole until its last slice is dropped. Copies are for applications that hand content to slow readers.
    pub copies: bool,
}

/// Stream of a request that is still to be sent. Dropped, it is reset.
pub struct Reserved {
    requests: SendRequest,
    send: Sender,
    recv: Receiver,
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reserved").field("stream", &self.send.id().0).finish_non_exhaustive()
    }
}

impl Reserved {
    /// Handle that changes the request's priority later, during its response too.
    pub fn change_priority(&self) -> ChangePriority {
        ChangePriority::new(&self.requests.handle.shared, self.send.id())
    }

    /// Sends the request, as [`SendRequest::send`] does.
    ///
    /// # Errors
    /// When the server or the connection fails the exchange; see [`Error::is_unprocessed`].
    pub async fn send<B>(self, request: Request<B>) -> Result<Response<ResponseBody>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let Self { requests, send, recv } = self;
        let (head, body) = request.into_parts();
        let target = requests.target(&head).await?;
        requests.exchange((send, recv), &head, &target, body).await
    }
}

/// Begins HTTP/3 on a connection whose application protocol is [`ALPN`](crate::ALPN), and drives it on a task. Must be called
/// within a tokio runtime.
///
/// The connection may be one before its handshake is complete ([`tiderace::Connecting::into_early`]): requests with a safe method
/// then leave as early data, and the others wait for the handshake (RFC 8470 §4).
///
/// # Errors
/// When the connection has ended.
pub async fn begin(quic: tiderace::Connection) -> Result<SendRequest, Error> {
    begin_with(quic, Options::default()).await
}

/// As [`begin`], with options.
///
/// # Errors
/// When the connection has ended.
pub async fn begin_with(quic: tiderace::Connection, options: Options) -> Result<SendRequest, Error> {
    let settings = Settings {
        table_capacity: TABLE as u64,
        max_fields: MAX_FIELDS,
        // RFC 9220 §3: it is the server that says so.
        connect_protocol: false,
        datagrams: true,
    };
    let Options { sessions, copies } = options;
    let shared = Shared::new(quic, Side::Client, settings, sessions, copies, Arc::default(), None);
    if let Some(reason) = shared.quic.close_reason() {
        return Err(reason.into());
    }
    let mut driver = Driver::new(shared.clone());
    tokio::spawn(async move {
        let end = poll_fn(|cx| driver.poll(cx)).await;
        tracing::debug!("the connection has ended: {end}");
    });
    Ok(SendRequest { handle: Arc::new(Handle { shared }) })
}

impl SendRequest {
    /// Sends a request with an absolute URI, and returns the response as soon as its header section has arrived. A task sends the request's
    /// body.
    ///
    /// With a [`Protocol`] in its extensions, a CONNECT is an extended one (RFC 9220): what the bodies carry then is up to that
    /// protocol, and the response has [`Datagrams`] in its extensions.
    ///
    /// # Errors
    /// When the server or the connection fails the exchange; see [`Error::is_unprocessed`].
    pub async fn send<B>(&mut self, request: Request<B>) -> Result<Response<ResponseBody>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let quic = &self.handle.shared.quic;
        // RFC 9114 §10.9 MUST-1 (RFC 8470 §4): what may not happen twice does not leave early
        if !request.method().is_safe() && !quic.is_established() {
            quic.established().await?;
        }
        let (head, body) = request.into_parts();
        let target = self.target(&head).await?;
        self.exchange(self.open().await?, &head, &target, body).await
    }

    /// Opens the stream of a request that is sent later, as soon as the server's limit allows. So a program can tell a wait for the limit
    /// from a wait for the response, and has its request still when the connection takes none. Waits for the handshake.
    ///
    /// # Errors
    /// When the server takes no more requests on this connection, or the connection has ended. No request was sent.
    pub async fn reserve(&self) -> Result<Reserved, Error> {
        self.handle.shared.quic.established().await?;
        let (send, recv) = self.open().await?;
        Ok(Reserved { requests: self.clone(), send, recv })
    }

    /// Returns whether requests can be sent: the connection is open, and the server has not announced its end (GOAWAY).
    pub fn is_open(&self) -> bool {
        let shared = &self.handle.shared;
        shared.quic.close_reason().is_none() && shared.lock().goaway.is_none()
    }

    /// Target of a request that can be sent on this connection.
    async fn target<'a>(&self, head: &'a Parts) -> Result<Target<'a>, Error> {
        let protocol = head.extensions.get::<Protocol>();
        if protocol.is_some() {
            // RFC 9220 §3: only to who has said that it understands.
            let peer = self.handle.shared.heard(|state| state.peer).await?;
            if !peer.connect_protocol {
                return Err(Error::NoConnectProtocol);
            }
        }
        fields::target(head, protocol)
    }

    /// Opens the stream of a request.
    async fn open(&self) -> Result<(Sender, Receiver), Error> {
        let shared = &self.handle.shared;
        // RFC 9114 §7.2.4.2 SHOULD NOT-1: the server's settings are not waited for
        // RFC 9114 §5.2 MUST NOT-1: a server that takes its leave gets no more requests, whatever number it names
        let is_going = || shared.lock().goaway.is_some();
        if is_going() {
            return Err(Error::GoingAway);
        }
        let (send, recv) = tokio::select! {
            biased;
            opened = shared.quic.open_bi_early() => opened.map_err(|reason| self.not_sent(reason.into()))?,
            going = shared.heard(|state| state.goaway) => return Err(going.err().unwrap_or(Error::GoingAway)),
        };
        // RFC 9114 §4.1 MUST-1: a stream of its own
        let (send, recv) = (Sender::new(send, shared.clone()), Receiver::new(recv, shared.clone()));
        if is_going() {
            return Err(Error::GoingAway);
        }
        Ok((send, recv))
    }

    /// Sends a request on its stream, and returns the response.
    async fn exchange<B>(
        &self,
        (mut send, mut recv): (Sender, Receiver),
        head: &Parts,
        target: &Target<'_>,
        body: B,
    ) -> Result<Response<ResponseBody>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let shared = &self.handle.shared;
        let protocol = head.extensions.get::<Protocol>();
        let id = send.id();
        shared.quic.set_priority(id, priority::of(&head.headers));
        let datagrams = protocol.map(|_| Datagrams::new(shared, id));
        if datagrams.is_some() {
            send.has_datagrams();
            recv.has_datagrams();
        }
        let session = protocol.filter(|_| shared.support.is_some()).map(|_| SessionStreams::new(shared, id));
        let give_up = session.as_ref().map(SessionStreams::given_up).unwrap_or_default();
        send.fields(|| fields::of_request(head, target, protocol))?;
        let is_connect = head.method == http::Method::CONNECT;
        if is_connect && !body.is_end_stream() {
            send.become_tunnel();
        }
        self.send_content(send, &mut recv, body, give_up.clone()).await?;
        let response = self.final_response(&mut recv, id, head.extensions.get()).await?;
        // RFC 9110 §8.6: what would have come to another request, or before; nothing comes.
        let is_empty = head.method == http::Method::HEAD || matches!(response.status().as_u16(), 204 | 304);
        let length = if is_connect && response.status().is_success() {
            // A tunnel has no length, whatever its head says (RFC 9110 §9.3.6).
            recv.agreement().seal();
            None
        } else if is_empty {
            Some(0)
        } else {
            promised(response.headers()).map_err(|violation| recv.malformed(violation))?
        };
        let mut response = response.map(|()| ResponseBody::new(recv, length, self.handle.clone(), give_up));
        if let Some(datagrams) = datagrams {
            response.extensions_mut().insert(datagrams);
        }
        if let Some(session) = session {
            response.extensions_mut().insert(SessionOffer::new(session));
        }
        Ok(response)
    }

    /// Ends a request without content, or sends its content by a task.
    async fn send_content<B>(
        &self,
        mut send: Sender,
        recv: &mut Receiver,
        body: B,
        give_up: GiveUp,
    ) -> Result<(), Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        if body.is_end_stream() {
            return match send.finish().await {
                // RFC 9114 §4.1 MUST NOT-3, RFC 9114 §8 MUST-1: a server that has answered may need no more of the
                // request, whatever it says about that. Its answer counts.
                Err(Error::Reset(_)) => Ok(()),
                ended => ended,
            };
        }
        let (handle, given_up) = (self.handle.clone(), recv.given_up());
        // RFC 9114 §4.1 MUST NOT-2, SHOULD-4: whether or not it is answered meanwhile
        tokio::spawn(async move {
            tokio::select! {
                sent = send_body(&mut send, body, &give_up) => if let Err(error) = sent {
                    tracing::debug!("the body of a request was not sent to its end: {error}");
                },
                // RFC 9114 §4.1.1 SHOULD-1: whoever gives the response up ends both directions
                code = given_up => send.reset(give_up.get().unwrap_or(code)),
            }
            drop(handle);
        });
        Ok(())
    }

    /// Reads the fields of the response that counts, after any interim ones (RFC 9114 §4.1).
    async fn final_response(
        &self,
        recv: &mut Receiver,
        id: StreamId,
        on_interim: Option<&OnInterim>,
    ) -> Result<Response<()>, Error> {
        let shared = &self.handle.shared;
        let mut interim = 0;
        loop {
            let collector = tokio::select! {
                biased;
                collector = recv.head() => collector,
                // The server says (RFC 9114 §5.2) that it has not acted on the request, and will not.
                going = shared.heard(|state| state.goaway.filter(|number| id.0 >= *number)) => {
                    Err(going.err().unwrap_or(Error::GoingAway))
                }
            };
            match collector?.response() {
                Ok(response) if response.status().is_informational() => {
                    interim += 1;
                    if interim > MAX_INTERIM {
                        let reason = format!("more than {MAX_INTERIM} interim responses");
                        return Err(recv.malformed(Violation { code: Code::EXCESSIVE_LOAD, reason }));
                    }
                    if let Some(on_interim) = on_interim {
                        on_interim.call(response);
                    }
                }
                Ok(response) => return Ok(response),
                // RFC 9114 §4.1.2 MUST-1, MUST NOT-2: what is malformed is no response
                Err(violation) => return Err(recv.malformed(violation)),
            }
        }
    }

    /// Classifies the failure of a request that could not even be begun.
    fn not_sent(&self, error: Error) -> Error {
        let shared = &self.handle.shared;
        if shared.lock().goaway.is_some() { Error::GoingAway } else { shared.end(error) }
    }

    /// Settings of the server, when they have come.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn peer_settings(&self) -> Result<PeerSettings, Error> {
        self.handle.shared.peer_settings().await
    }

    /// The connection below.
    pub fn connection(&self) -> &tiderace::Connection {
        &self.handle.shared.quic
    }
}

async fn send_body<B>(send: &mut Sender, body: B, give_up: &GiveUp) -> Result<(), Error>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    // In this scope, so that whoever watches the body learns of its end's cause before it goes.
    let mut body = std::pin::pin!(body);
    let sent = send.body(body.as_mut(), std::future::pending()).await;
    if let Err(error) = &sent {
        give_up.on_end(error);
    }
    if let Err(error @ Error::Body(_)) = &sent {
        // What breaks off must not look complete.
        send.reset(give_up.get().unwrap_or_else(|| error.reset_code()));
    }
    sent
}
