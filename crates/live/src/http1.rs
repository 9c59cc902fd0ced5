//! HTTP/1.1 for workloads: each stream of the workload is a request with its response, one at a time on a connection, which stays open.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, header::HOST};
use hyper::body::{Body as _, Frame, Incoming};
use hyper_util::rt::TokioIo;
use lab::host::{Host, HostEvent, ReadEnd, Stream, Written};
use tokio::net::TcpStream;

use crate::{pool::Link, tls::SERVER_NAME};

/// Bytes of a body that wait to be taken by the connection.
const WAITING: usize = 64 << 10;

type Client = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;
type Server = TokioIo<tokio_rustls::server::TlsStream<TcpStream>>;
type Answer = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>>>>;

/// Body that the workload writes and the connection takes.
#[derive(Clone, Default)]
struct Body(Rc<RefCell<Waiting>>);

/// Part of a body that waits.
#[derive(Default)]
struct Waiting {
    waiting: VecDeque<Bytes>,
    length: usize,
    /// The workload has written or finished: a response may begin.
    is_begun: bool,
    is_finished: bool,
    /// The connection has gone, and with it the reader.
    is_dropped: bool,
    /// Task of the connection, which waits for data or for the begin.
    reader: Option<Waker>,
    /// The workload waits for room.
    is_blocked: bool,
}

impl Waiting {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Body {
    fn write(&self, data: &mut Bytes) -> Written {
        let mut body = self.0.borrow_mut();
        if body.is_dropped || body.is_finished {
            return Written::Closed;
        }
        let room = (WAITING - body.length).min(data.len());
        if room == 0 {
            body.is_blocked = true;
            return Written::Blocked;
        }
        body.waiting.push_back(data.split_to(room));
        body.length += room;
        body.is_begun = true;
        body.wake();
        Written::Bytes(room)
    }

    fn finish(&self) {
        let mut body = self.0.borrow_mut();
        (body.is_begun, body.is_finished) = (true, true);
        body.wake();
    }

    /// Tells once that there is room again.
    fn take_room(&self) -> bool {
        let mut body = self.0.borrow_mut();
        let has_room = body.is_blocked && (body.length < WAITING || body.is_dropped);
        body.is_blocked &= !has_room;
        has_room
    }

    /// Waits until the workload has something to say.
    async fn begun(&self) {
        poll_fn(|cx| {
            let mut body = self.0.borrow_mut();
            if body.is_begun {
                return Poll::Ready(());
            }
            body.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// The connection's end of a body.
struct Taken(Body);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.0.borrow_mut().is_dropped = true;
    }
}

impl hyper::body::Body for Taken {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut body = self.0.0.borrow_mut();
        if let Some(data) = body.waiting.pop_front() {
            body.length -= data.len();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if body.is_finished {
            return Poll::Ready(None);
        }
        body.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Requests that a server's connection has read and the workload has not accepted.
type Arrived = Rc<RefCell<VecDeque<(Incoming, Body)>>>;

enum Role {
    Client {
        connection: Pin<Box<dyn Future<Output = hyper::Result<()>>>>,
        requests: hyper::client::conn::http1::SendRequest<Taken>,
        /// A stream was refused and is to be offered again.
        wanted: bool,
    },
    Server {
        connection: Pin<Box<dyn Future<Output = hyper::Result<()>>>>,
        arrived: Arrived,
    },
}

/// One end of an HTTP/1.1 connection.
pub(crate) struct Http1 {
    role: Role,
    events: VecDeque<HostEvent>,
    streams: BTreeMap<Stream, Exchange>,
    opened: Stream,
    accepted: VecDeque<Stream>,
    closed: bool,
}

struct Exchange {
    response: Option<Answer>,
    send: Option<Body>,
    receive: Option<Incoming>,
    /// Bytes that have arrived and were not read.
    arrived: VecDeque<Bytes>,
    end: Option<ReadEnd>,
}

impl Http1 {
    /// The client's end, over a connection whose TLS handshake is complete.
    pub(crate) async fn client(stream: tokio_rustls::client::TlsStream<TcpStream>) -> io::Result<Self> {
        let stream: Client = TokioIo::new(stream);
        let (requests, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(io::Error::other)?;
        Ok(Self::new(Role::Client { connection: Box::pin(connection), requests, wanted: false }))
    }

    /// The server's end.
    pub(crate) fn server(stream: tokio_rustls::server::TlsStream<TcpStream>) -> Self {
        let stream: Server = TokioIo::new(stream);
        let arrived = Arrived::default();
        let requests = Rc::clone(&arrived);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let body = Body::default();
            requests.borrow_mut().push_back((request.into_body(), body.clone()));
            async move {
                // The head leaves with the first data, so that a request is read whole where the answer is for all of it.
                body.begun().await;
                Ok::<_, Infallible>(Response::new(Taken(body)))
            }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().header_read_timeout(None).serve_connection(stream, service);
        Self::new(Role::Server { connection: Box::pin(connection), arrived })
    }

    fn new(role: Role) -> Self {
        Self {
            role,
            events: VecDeque::from([HostEvent::Established]),
            streams: BTreeMap::new(),
            opened: 0,
            accepted: VecDeque::new(),
            closed: false,
        }
    }

    fn poll_connection(&mut self, cx: &mut Context<'_>) {
        let (Role::Client { connection, .. } | Role::Server { connection, .. }) = &mut self.role;
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            self.closed = true;
            let reason =
                ended.err().map_or_else(|| "the peer has closed the connection".to_owned(), |error| error.to_string());
            self.events.push_back(HostEvent::Closed(reason));
        }
        let Role::Server { arrived, .. } = &self.role else { return };
        for (receive, send) in arrived.borrow_mut().drain(..) {
            let exchange = Exchange { receive: Some(receive), ..Exchange::new(send) };
            self.streams.insert(self.opened, exchange);
            self.accepted.push_back(self.opened);
            self.opened += 1;
            self.events.push_back(HostEvent::Opened);
        }
    }
}

impl Link for Http1 {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if self.closed {
            return;
        }
        self.poll_connection(cx);
        for (&number, exchange) in &mut self.streams {
            exchange.poll(number, cx, &mut self.events);
        }
        self.streams.retain(|_, exchange| !exchange.is_over());
        if let Role::Client { requests, wanted: wanted @ true, .. } = &mut self.role
            && matches!(requests.poll_ready(cx), Poll::Ready(Ok(())))
        {
            *wanted = false;
            self.events.push_back(HostEvent::Available);
        }
    }
}

impl Exchange {
    fn new(send: Body) -> Self {
        Self { response: None, send: Some(send), receive: None, arrived: VecDeque::new(), end: None }
    }

    fn poll(&mut self, number: Stream, cx: &mut Context<'_>, events: &mut VecDeque<HostEvent>) {
        if let Some(response) = &mut self.response
            && let Poll::Ready(answer) = response.as_mut().poll(cx)
        {
            self.response = None;
            match answer {
                Ok(answer) => self.receive = Some(answer.into_body()),
                Err(_) => {
                    self.end = Some(ReadEnd::Closed);
                    events.push_back(HostEvent::Readable(number));
                }
            }
        }
        let mut news = false;
        while let Some(receive) = &mut self.receive {
            match Pin::new(receive).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.arrived.extend(frame.into_data()),
                Poll::Ready(Some(Err(_))) => self.end_receiving(ReadEnd::Closed),
                Poll::Ready(None) => self.end_receiving(ReadEnd::Finished),
                Poll::Pending => break,
            }
            news = true;
        }
        if news {
            events.push_back(HostEvent::Readable(number));
        }
        if self.send.as_ref().is_some_and(Body::take_room) {
            events.push_back(HostEvent::Writable(number));
        }
    }

    fn end_receiving(&mut self, end: ReadEnd) {
        self.receive = None;
        self.end = Some(end);
    }

    /// True once both directions have ended and everything was read.
    fn is_over(&self) -> bool {
        self.send.is_none() && self.receive.is_none() && self.response.is_none() && self.end.is_none()
    }
}

impl Host for Http1 {
    fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    fn open(&mut self) -> Option<Stream> {
        let Role::Client { requests, wanted, .. } = &mut self.role else { return None };
        // Asked again with the waker of the connection's task when this says no.
        if !matches!(requests.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(()))) {
            *wanted = true;
            return None;
        }
        let body = Body::default();
        let request = Request::post("/").header(HOST, SERVER_NAME).body(Taken(body.clone())).ok()?;
        let number = self.opened;
        self.opened += 1;
        let response: Answer = Box::pin(requests.send_request(request));
        self.streams.insert(number, Exchange { response: Some(response), ..Exchange::new(body) });
        Some(number)
    }

    fn accept(&mut self) -> Option<Stream> {
        self.accepted.pop_front()
    }

    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written {
        let Some(send) = self.streams.get(&stream).and_then(|exchange| exchange.send.as_ref()) else {
            return Written::Closed;
        };
        send.write(data)
    }

    fn finish(&mut self, stream: Stream) {
        if let Some(send) = self.streams.get_mut(&stream).and_then(|exchange| exchange.send.take()) {
            send.finish();
        }
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
        let Some(exchange) = self.streams.get_mut(&stream) else { return ReadEnd::Closed };
        exchange.arrived.drain(..).for_each(|data| sink(&data));
        exchange.end.take().unwrap_or(ReadEnd::Blocked)
    }

    fn send_datagram(&mut self, _data: Bytes) -> bool {
        false
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        None
    }
}
