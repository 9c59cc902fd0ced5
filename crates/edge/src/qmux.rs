//! Private protocols over TLS on TCP, for clients whose network blocks UDP: streams and datagrams of QMux go to the back ends of QUIC.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use qmux::{Config, Connection, RecvStream, Refused, SendStream, Side};
use tiderace::ConnectionBudget;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};
use tokio_rustls::server::TlsStream;

use crate::{
    config,
    context::ListenerContext,
    ending::{Cause, Ending},
    room::Rooms,
    stream::{self, Datagrams, Incoming, Outgoing, StreamClient, StreamClosed},
    stream_target::StreamTarget,
};

/// Bytes that a client may send beyond what was read, on all streams: with their overhead they fit into its memory.
const WINDOW: u64 = 256 * 1024;
/// Bytes of datagrams that wait.
const DATAGRAMS: usize = 128 * 1024;

/// Code with which a connection is closed when its time has ended.
const DRAINED: u64 = 0;

fn closed(refused: &Refused) -> StreamClosed {
    match refused {
        Refused::Stopped(_) | Refused::StreamClosed => StreamClosed::Unwanted,
        _ => StreamClosed::Failed,
    }
}

impl Outgoing for SendStream {
    async fn write_chunk(&mut self, data: Bytes) -> Result<(), StreamClosed> {
        Self::write_chunk(self, data).await.map_err(|refused| closed(&refused))
    }

    fn finish(&mut self) {
        // Only a stream that has ended cannot be ended.
        let _ = Self::finish(self);
    }

    fn reset(&mut self, code: u64) {
        let _ = Self::reset(self, code);
    }
}

impl Incoming for RecvStream {
    async fn read_chunk(&mut self, most: usize) -> Result<Option<Bytes>, StreamClosed> {
        Self::read_chunk(self, most).await.map_err(|refused| closed(&refused))
    }

    fn stop(&mut self, code: u64) {
        Self::stop(self, code);
    }
}

impl Datagrams for Connection {
    async fn read(&self) -> Option<Bytes> {
        self.read_datagram().await.ok()
    }

    fn send(&self, data: Bytes) {
        // One that is too large is lost, as datagrams are.
        let _ = self.send_datagram(data);
    }
}

/// The limits of QUIC hold for QMux, too.
fn settings(config: &config::Config, takes_datagrams: bool, memory: &ConnectionBudget) -> Config {
    Config {
        window: WINDOW,
        stream_window: WINDOW / 2,
        // What nobody takes is not offered.
        datagram_queue: if takes_datagrams { DATAGRAMS } else { 0 },
        memory: Some(memory.clone()),
        streams_bidi: u64::from(config.limits.requests_per_connection),
        streams_uni: 0,
        idle_timeout: config.transport.idle_timeout.0,
        ..Config::default()
    }
}

/// Serves a connection until it has ended. A drain lets its streams end, and takes no more.
pub(crate) async fn serve(
    tls: TlsStream<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
    remote: SocketAddr,
    context: &ListenerContext,
    memory: &ConnectionBudget,
) {
    let generation = context.shared.current();
    let session = tls.get_ref().1;
    let who = StreamClient {
        remote,
        alpn: session.alpn_protocol().unwrap_or_default().to_vec(),
        name: session.server_name().map(str::to_owned),
        rooms: Rooms::new(memory),
    };
    let target = generation.streams.iter().find(|target| target.fits_qmux(&who.alpn, who.name.as_deref()));
    let target: Option<Arc<StreamTarget>> = target.cloned();
    let connection = Connection::start(
        tls,
        Side::Server,
        settings(&generation.config, target.as_ref().is_some_and(|target| target.takes_datagrams()), memory),
    );
    let Some(target) = target else {
        connection.close(stream::NOBODY, "nobody answers for this name");
        connection.closed().await;
        return;
    };
    if target.takes_datagrams() {
        stream::carry_datagrams(connection.clone(), &target);
    }
    let mut drain = std::pin::pin!(context.drain());
    let (cause, mut streams) = (Cause::default(), JoinSet::new());
    loop {
        let halves = tokio::select! {
            accepted = connection.accept_bi() => accepted,
            () = &mut drain => break,
            Some(_) = streams.join_next() => continue,
        };
        // The connection has ended, and its streams notice by themselves.
        let Ok((send, recv)) = halves else {
            while streams.join_next().await.is_some() {}
            return;
        };
        streams.spawn(stream::carry(send, recv, who.clone(), "qmux", target.clone(), context.clone(), &cause));
    }
    let patience = context.shared.current().config.drain.0;
    let rest = async { while streams.join_next().await.is_some() {} };
    if tokio::time::timeout(patience, rest).await.is_err() {
        cause.note(Ending::Drained);
    }
    drop(streams);
    connection.close(DRAINED, "");
    connection.closed().await;
}
