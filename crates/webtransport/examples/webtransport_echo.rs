//! A server that echoes streams and datagrams, and a client of it.
//!
//! ```text
//! cargo run -p tiderace-webtransport --example webtransport_echo
//! ```

use std::{error::Error, net::SocketAddr, sync::Arc};

use tiderace::{
    ClientConfig, Connection, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
    transport::streams::StreamsConfig,
};
use tiderace_webtransport::{Client, Config, Origins, Session, h3, server};

// docs begin
/// Serves the sessions of a connection: one echo for each stream.
async fn serve(connection: Connection) -> Result<(), h3::Error> {
    // Pages of this origin, and clients that are no browsers.
    let origins = Origins::List(vec!["https://www.example.org".to_owned()]);
    let config = Config { origins, ..Config::default() };
    let handler = |request: server::SessionRequest| async move {
        let protocol = request.protocols().iter().position(|name| name == "echo-1");
        let (session, response) = request.accept(protocol);
        tokio::spawn(async move { echo(session).await });
        response
    };
    server::serve(connection, config, h3::server::Options::default(), std::future::pending(), handler).await
}

/// Sends streams and datagrams back until the session is over.
async fn echo(session: Session) {
    loop {
        tokio::select! {
            Ok((mut send, mut recv)) = session.accept_bi() => {
                tokio::spawn(async move {
                    while let Ok(Some(part)) = recv.read_chunk(64 * 1024).await {
                        if send.write_chunk(part).await.is_err() {
                            return;
                        }
                    }
                    let _ = send.finish();
                });
            }
            Ok(datagram) = session.read_datagram() => drop(session.send_datagram(&datagram)),
            end = session.closed() => return println!("the session is over: {end}"),
        }
    }
}

/// Begins a session and asks.
async fn ask(connection: Connection, question: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut client = Client::begin(connection, Config::default()).await?;
    let request = http::Request::get("https://localhost/echo").body(())?;
    let session = client.connect(request, &["echo-1"]).await?;
    let (mut send, mut recv) = session.open_bi().await?;
    send.write_all(question).await?;
    send.finish()?;
    let answer = recv.read_to_end(10_000).await?;
    session.close(0, "thank you");
    Ok(answer)
}
// docs end

/// The question, as the server sends it back.
pub async fn demonstrate(question: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der())?;
    // docs: profile begin
    let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
    let profile = Arc::new(Profile { streams, ..Profile::default() });
    // docs: profile end
    let tls = RustlsServer::builder().identity(identity).alpn(h3::ALPN).build()?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint = Endpoint::server(any, ServerConfig::new(Arc::new(tls), profile.clone()))?;
    let address = endpoint.local_addr();
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            tokio::spawn(serve(connection));
        }
    });
    let tls = RustlsClient::builder().roots([made.cert.der().to_vec()]).alpn(h3::ALPN).build()?;
    let endpoint = Endpoint::client_for(address)?;
    let connection = endpoint.connect(&ClientConfig::new(Arc::new(tls), profile), address, "localhost")?.await?;
    ask(connection, question).await
}

#[tokio::main]
#[allow(clippy::allow_attributes, dead_code, reason = "the test of the example calls only `demonstrate`")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", String::from_utf8_lossy(&demonstrate(b"hello").await?));
    Ok(())
}
