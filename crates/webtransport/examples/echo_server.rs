//! A server for browsers and other clients: echoes streams and datagrams, and answers a stream of each kind with its own.
//!
//! ```text
//! cargo run -p tiderace-webtransport --example echo_server -- 127.0.0.1:4433 cert.pem key.pem
//! ```
//!
//! A unidirectional stream is echoed on a unidirectional stream. Text `close` on one closes the session with code 7 and message `bye`; text
//! `reset` on a bidirectional stream resets it with code 42; text `open` on one has the server open a bidirectional stream that says `hi`.

use std::{error::Error, net::SocketAddr, sync::Arc};

use tiderace::{
    Connection, Endpoint, Identity, Profile, RustlsServer, ServerConfig, transport::streams::StreamsConfig,
};
use tiderace_webtransport::{Config, Origins, RecvStream, SendStream, Session, h3, server};

/// Bytes that are echoed of a stream at most.
const MAX: usize = 10_000_000;

async fn bidirectional(session: Session, mut send: SendStream, mut recv: RecvStream) -> Result<(), Box<dyn Error>> {
    let all = recv.read_to_end(MAX).await?;
    match &all[..] {
        b"reset" => send.reset(42),
        b"open" => {
            let (mut other, _) = session.open_bi().await?;
            other.write_all(b"hi").await?;
            other.finish()?;
            send.finish()?;
        }
        all => {
            send.write_all(all).await?;
            send.finish()?;
        }
    }
    Ok(())
}

async fn unidirectional(session: Session, mut recv: RecvStream) -> Result<(), Box<dyn Error>> {
    let all = recv.read_to_end(MAX).await?;
    if all == b"close" {
        session.close(7, "bye");
        return Ok(());
    }
    let mut send = session.open_uni().await?;
    send.write_all(&all).await?;
    Ok(send.finish()?)
}

fn report(ended: Result<(), Box<dyn Error>>) {
    if let Err(error) = ended {
        eprintln!("a stream failed: {error}");
    }
}

async fn echo(session: Session) {
    loop {
        tokio::select! {
            Ok((send, recv)) = session.accept_bi() => {
                let session = session.clone();
                tokio::spawn(async move { report(bidirectional(session, send, recv).await.map_err(|e| e.to_string().into())) });
            }
            Ok(recv) = session.accept_uni() => {
                let session = session.clone();
                tokio::spawn(async move { report(unidirectional(session, recv).await.map_err(|e| e.to_string().into())) });
            }
            Ok(datagram) = session.read_datagram() => drop(session.send_datagram(&datagram)),
            end = session.closed() => return println!("the session is over: {end}"),
        }
    }
}

async fn serve(connection: Connection) {
    let config = Config { origins: Origins::Any, ..Config::default() };
    let handler = |request: server::SessionRequest| async move {
        println!("a session from {}", request.origin().unwrap_or("no browser"));
        let protocol = (!request.protocols().is_empty()).then_some(0);
        let (session, response) = request.accept(protocol);
        tokio::spawn(echo(session));
        response
    };
    let options = h3::server::Options::default();
    if let Err(error) = server::serve(connection, config, options, std::future::pending(), handler).await {
        eprintln!("a connection failed: {error}");
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(cert), Some(key)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: echo_server ADDRESS CERT.pem KEY.pem".into());
    };
    let identity = Identity::from_pem(&std::fs::read(cert)?, &std::fs::read(key)?)?;
    let tls = RustlsServer::builder().identity(identity).alpn(h3::ALPN).build()?;
    let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
    let profile = Profile { streams, ..Profile::default() };
    let address: SocketAddr = address.parse()?;
    let endpoint = Endpoint::server(address, ServerConfig::new(Arc::new(tls), Arc::new(profile)))?;
    println!("listening on {}", endpoint.local_addr());
    while let Some(connection) = endpoint.accept().await {
        tokio::spawn(serve(connection));
    }
    Ok(())
}
