//! HTTP/2 for workloads: each stream of the workload is a request with its response, each in the body.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::{RecvStream, SendStream, client, server};
use http::{Request, Response};
use lab::host::{Host, HostEvent, ReadEnd, Stream, Written};
use tokio::net::TcpStream;

use crate::pool::Link;

/// Receive windows, as browsers have them: 6 MiB for a stream, 15 MiB for a connection.
pub(crate) const WINDOWS: (u32, u32) = (6 << 20, 15 << 20);
/// Bytes that are asked for at a time to be sent.
const PIECE: usize = 64 << 10;

type Client = tokio_rustls::client::TlsStream<TcpStream>;
type Server = tokio_rustls::server::TlsStream<TcpStream>;

/// One end of an HTTP/2 connection.
pub(crate) struct Http2 {
    role: Role,
    events: VecDeque<HostEvent>,
    streams: BTreeMap<Stream, Exchange>,
    opened: Stream,
    accepted: VecDeque<Stream>,
    closed: bool,
}

enum Role {
    Client {
        connection: Pin<Box<client::Connection<Client, Bytes>>>,
        requests: client::SendRequest<Bytes>,
        /// A stream was refused and is to be offered again.
        wanted: bool,
    },
    Server(Box<server::Connection<Server, Bytes>>),
}

#[derive(Default)]
struct Exchange {
    response: Option<client::ResponseFuture>,
    send: Option<SendStream<Bytes>>,
    receive: Option<RecvStream>,
    /// Bytes that have arrived and were not read.
    arrived: VecDeque<Bytes>,
    end: Option<ReadEnd>,
    blocked: bool,
}

impl Http2 {
    /// The client's end, over a connection whose TLS handshake is complete.
    pub(crate) async fn client(stream: Client) -> Result<Self, h2::Error> {
        let (requests, connection) = client::Builder::new()
            .initial_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .enable_push(false)
            .handshake(stream)
            .await?;
        Ok(Self::new(Role::Client { connection: Box::pin(connection), requests, wanted: false }))
    }

    /// The server's end.
    pub(crate) async fn server(stream: Server) -> Result<Self, h2::Error> {
        let connection = server::Builder::new()
            .initial_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .handshake(stream)
            .await?;
        Ok(Self::new(Role::Server(Box::new(connection))))
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
        let ended = match &mut self.role {
            Role::Client { connection, .. } => match connection.as_mut().poll(cx) {
                Poll::Ready(ended) => Some(ended.err()),
                Poll::Pending => None,
            },
            Role::Server(connection) => loop {
                match connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok((request, mut respond)))) => {
                        let mut exchange = Exchange { receive: Some(request.into_body()), ..Exchange::default() };
                        exchange.send = respond.send_response(Response::new(()), false).ok();
                        self.streams.insert(self.opened, exchange);
                        self.accepted.push_back(self.opened);
                        self.opened += 1;
                        self.events.push_back(HostEvent::Opened);
                    }
                    Poll::Ready(Some(Err(error))) => break Some(Some(error)),
                    Poll::Ready(None) => break Some(None),
                    Poll::Pending => break None,
                }
            },
        };
        if let Some(error) = ended {
            self.closed = true;
            let reason =
                error.map_or_else(|| "the peer has closed the connection".to_owned(), |error| error.to_string());
            self.events.push_back(HostEvent::Closed(reason));
        }
    }
}

impl Link for Http2 {
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
    fn poll(&mut self, number: Stream, cx: &mut Context<'_>, events: &mut VecDeque<HostEvent>) {
        if let Some(response) = &mut self.response
            && let Poll::Ready(answer) = Pin::new(response).poll(cx)
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
            match receive.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => self.arrived.push_back(data),
                Poll::Ready(Some(Err(_))) => self.end_receiving(ReadEnd::Closed),
                Poll::Ready(None) => self.end_receiving(ReadEnd::Finished),
                Poll::Pending => break,
            }
            news = true;
        }
        if news {
            events.push_back(HostEvent::Readable(number));
        }
        if self.blocked
            && let Some(send) = &mut self.send
            && let Poll::Ready(capacity) = send.poll_capacity(cx)
        {
            self.blocked = false;
            if !matches!(capacity, Some(Ok(_))) {
                self.send = None;
            }
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

impl Host for Http2 {
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
        let request = Request::post("https://server.lab.tiderace.test/").body(()).ok()?;
        let (response, send) = requests.send_request(request, false).ok()?;
        let number = self.opened;
        self.opened += 1;
        let exchange = Exchange { response: Some(response), send: Some(send), ..Exchange::default() };
        self.streams.insert(number, exchange);
        Some(number)
    }

    fn accept(&mut self) -> Option<Stream> {
        self.accepted.pop_front()
    }

    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written {
        let Some(exchange) = self.streams.get_mut(&stream) else { return Written::Closed };
        let Some(send) = &mut exchange.send else { return Written::Closed };
        let room = send.capacity().min(data.len());
        if room == 0 {
            send.reserve_capacity(PIECE);
            let now = send.capacity().min(data.len());
            if now == 0 {
                exchange.blocked = true;
                return Written::Blocked;
            }
        }
        let room = send.capacity().min(data.len());
        match send.send_data(data.split_to(room), false) {
            Ok(()) => Written::Bytes(room),
            Err(_) => {
                exchange.send = None;
                Written::Closed
            }
        }
    }

    fn finish(&mut self, stream: Stream) {
        if let Some(mut send) = self.streams.get_mut(&stream).and_then(|exchange| exchange.send.take()) {
            // That the peer has given up the stream is told where it is read.
            let _ = send.send_data(Bytes::new(), true);
        }
    }

    fn cancel(&mut self, stream: Stream) -> bool {
        if let Some(mut exchange) = self.streams.remove(&stream)
            && let Some(send) = &mut exchange.send
        {
            send.send_reset(h2::Reason::CANCEL);
        }
        // Without its last handle, h2 resets a stream that has not ended.
        true
    }

    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd {
        let Some(exchange) = self.streams.get_mut(&stream) else { return ReadEnd::Closed };
        let mut length = 0;
        for data in exchange.arrived.drain(..) {
            length += data.len();
            sink(&data);
        }
        if let Some(receive) = &mut exchange.receive {
            // Fails only when the stream has ended.
            let _ = receive.flow_control().release_capacity(length);
        }
        exchange.end.take().unwrap_or(ReadEnd::Blocked)
    }

    fn send_datagram(&mut self, _data: Bytes) -> bool {
        false
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        None
    }
}
