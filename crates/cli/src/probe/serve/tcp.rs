//! The kernel's TCP beside QUIC: bytes in one direction, for an existing session.
//!
//! A connection begins with the session's key for TCP and one byte. 0: bytes to the client, until it closes. 1: bytes from the client,
//! until it closes; the number of bytes so far (64 bits) is sent to the client 20 times a second.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::{Server, session::Session};

/// Connections at a time.
const CONNECTIONS: usize = 64;
/// Time that a stranger has to name its session.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two counts.
const TELL: Duration = Duration::from_millis(50);
/// Bytes that are written and read at a time.
const CHUNK: usize = 64 * 1024;

/// Listens at the address of the endpoint.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Serves connections.
pub(super) async fn serve(server: Arc<Server>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let server = server.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Err(error) = one(&server, stream, from.ip().to_canonical()).await {
                        tracing::debug!("probe over TCP: {error}");
                    }
                });
            }
            // Out of descriptors: others may close meanwhile.
            Err(error) => {
                tracing::debug!("probe over TCP: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn one(server: &Server, mut stream: TcpStream, client: IpAddr) -> io::Result<()> {
    let mut head = [0; 17];
    timeout(PATIENCE, stream.read_exact(&mut head)).await??;
    let (key, way) = head.split_first_chunk::<16>().expect("17 bytes");
    let Some(session) = server.session(key).filter(|session| session.tcp == *key && session.client == client) else {
        return Ok(());
    };
    let left = session.ends().saturating_duration_since(Instant::now());
    let work = async {
        match way {
            [0] => give(&session, &mut stream).await,
            _ => take(&session, &mut stream).await,
        }
    };
    timeout(left, work).await?
}

async fn give(session: &Session, stream: &mut TcpStream) -> io::Result<()> {
    let payload = vec![0; CHUNK];
    while session.spend(CHUNK as u64) {
        stream.write_all(&payload).await?;
    }
    stream.shutdown().await
}

async fn take(session: &Session, stream: &mut TcpStream) -> io::Result<()> {
    let (mut buffer, mut all, mut told) = (vec![0; CHUNK], 0_u64, Instant::now());
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 || !session.spend(read as u64) {
            return Ok(());
        }
        all += read as u64;
        if told.elapsed() >= TELL {
            told = Instant::now();
            stream.write_all(&all.to_be_bytes()).await?;
        }
    }
}
