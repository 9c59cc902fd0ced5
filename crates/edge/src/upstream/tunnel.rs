//! What a request has become (`switch`): bytes both ways between client and back end, or capsules and datagrams.

use bytes::{Buf, Bytes, BytesMut};
use h3_quic::{
    Datagrams,
    capsule::{self, Capsules},
};
use http::Request;
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::body::{AnyBody, BodyError, full};

/// The longest capsule that is carried, in bytes: any datagram fits.
const MAX_CAPSULE: usize = 128 * 1024;

/// What is read at once, in bytes.
const READ: usize = 16 * 1024;

/// Parts of an answer that wait for the client.
const PARTS: usize = 4;

/// The client's end of a tunnel.
pub(crate) enum Client {
    /// A connection of HTTP/1.1 or a stream of HTTP/2.
    Upgraded(OnUpgrade),
    /// A stream of HTTP/3: what it sends, and its datagrams.
    Stream(Box<(AnyBody, Option<Datagrams>)>),
}

impl Client {
    /// Takes the client's end from its request.
    pub(crate) fn of(request: &mut Request<AnyBody>) -> Self {
        if request.version() != http::Version::HTTP_3 {
            return Self::Upgraded(hyper::upgrade::on(request));
        }
        let datagrams = request.extensions_mut().remove();
        Self::Stream(Box::new((std::mem::replace(request.body_mut(), full("")), datagrams)))
    }

    /// Carries until both directions have ended, on a task. Gives the body of the answer to the client. With `capsules` the
    /// client's datagrams are capsules for the back end, and back (RFC 9297 §3.5).
    pub(crate) fn carry(self, back_end: OnUpgrade, capsules: bool) -> AnyBody {
        match self {
            Self::Upgraded(client) => {
                tokio::spawn(async move {
                    if let Err(error) = bytes(client, back_end).await {
                        tracing::debug!("a switched connection broke off: {error}");
                    }
                });
                full("")
            }
            Self::Stream(client) => {
                let (mut answer, body) = Channel::new(PARTS);
                tokio::spawn(async move {
                    let (content, datagrams) = *client;
                    // RFC 9297 §3.5 MUST NOT-1
                    let datagrams = datagrams.filter(|_| capsules);
                    if let Err(error) = stream(content, datagrams, &mut answer, back_end).await {
                        tracing::debug!("a switched stream broke off: {error}");
                        // What breaks off must not look complete.
                        answer.abort(error);
                    }
                });
                body.boxed_unsync()
            }
        }
    }
}

async fn bytes(client: OnUpgrade, back_end: OnUpgrade) -> Result<(), BodyError> {
    let (client, back_end) = tokio::try_join!(client, back_end)?;
    let (mut client, mut back_end) = (TokioIo::new(client), TokioIo::new(back_end));
    tokio::io::copy_bidirectional(&mut client, &mut back_end).await?;
    Ok(())
}

async fn stream(
    content: AnyBody,
    datagrams: Option<Datagrams>,
    answer: &mut Sender<Bytes, BodyError>,
    back_end: OnUpgrade,
) -> Result<(), BodyError> {
    let (read, write) = tokio::io::split(TokioIo::new(back_end.await?));
    let down = async {
        match &datagrams {
            None => bytes_down(read, answer).await,
            Some(datagrams) => capsules_down(read, answer, datagrams).await,
        }
    };
    let up = async {
        match &datagrams {
            None => bytes_up(content, write).await,
            Some(datagrams) => capsules_up(content, datagrams, write).await,
        }
    };
    tokio::try_join!(up, down)?;
    Ok(())
}

async fn bytes_up(mut content: AnyBody, mut back_end: impl AsyncWrite + Unpin) -> Result<(), BodyError> {
    while let Some(frame) = content.frame().await {
        if let Ok(data) = frame?.into_data() {
            back_end.write_all(&data).await?;
        }
    }
    Ok(back_end.shutdown().await?)
}

async fn bytes_down(
    mut back_end: impl AsyncRead + Unpin,
    answer: &mut Sender<Bytes, BodyError>,
) -> Result<(), BodyError> {
    let mut read = BytesMut::new();
    loop {
        read.reserve(READ);
        if back_end.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
        answer.send_data(read.split().freeze()).await?;
    }
}

/// Capsules are carried as wholes, so that datagrams fit between them.
// RFC 9297 §3.2 SHOULD-1, SHOULD-2: as they are, whatever their type
// RFC 9297 §3.3 MUST-1, MUST-5: what is wrong, or ends in the middle of one, breaks the tunnel off
async fn capsules_up(
    mut content: AnyBody,
    datagrams: &Datagrams,
    mut back_end: impl AsyncWrite + Unpin,
) -> Result<(), BodyError> {
    let mut capsules = Capsules::new(MAX_CAPSULE);
    let mut out = Vec::new();
    loop {
        tokio::select! {
            frame = content.frame() => {
                let Some(frame) = frame else { break };
                let Ok(data) = frame?.into_data() else { continue };
                capsules.push(&data);
                while let Some(capsule) = capsules.take()? {
                    capsule::write(&mut out, capsule.ty, &capsule.value);
                }
            }
            Some(datagram) = datagrams.recv() => capsule::write(&mut out, capsule::DATAGRAM, &datagram),
        }
        back_end.write_all(&out).await?;
        out.clear();
    }
    if !capsules.is_between() {
        return Err("the client's stream ends in the middle of a capsule".into());
    }
    Ok(back_end.shutdown().await?)
}

async fn capsules_down(
    mut back_end: impl AsyncRead + Unpin,
    answer: &mut Sender<Bytes, BodyError>,
    datagrams: &Datagrams,
) -> Result<(), BodyError> {
    let mut capsules = Capsules::new(MAX_CAPSULE);
    let mut read = BytesMut::new();
    loop {
        read.reserve(READ);
        if back_end.read_buf(&mut read).await? == 0 {
            break;
        }
        capsules.push(&read);
        read.advance(read.len());
        while let Some(capsule) = capsules.take()? {
            let is_datagram = capsule.ty == capsule::DATAGRAM;
            // One that does not fit into a packet goes on the stream, where it arrives late rather than not at all.
            if is_datagram && datagrams.max_size().is_some_and(|max| capsule.value.len() <= max) {
                datagrams.send(&capsule.value)?;
                continue;
            }
            let mut out = Vec::new();
            capsule::write(&mut out, capsule.ty, &capsule.value);
            answer.send_data(out.into()).await?;
        }
    }
    if !capsules.is_between() {
        return Err("the back end's stream ends in the middle of a capsule".into());
    }
    Ok(())
}
