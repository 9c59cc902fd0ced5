//! The peer on tiderace. See `contract` for what it does.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Result;
use clap::Parser;
use sessions_interop::{
    contract::{CLOSE_PATH, Close, Command, MAX, OFFERED, PROTOCOL, Role, STREAMS_PATH, conclude, ready, serve},
    script, tls,
};
use tiderace::{
    ClientConfig, Connection, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
    transport::streams::StreamsConfig,
};
use webtransport::{Client, Config, Origins, RecvStream, SendStream, SessionEnd, h3, server};

#[derive(Clone)]
struct Session(webtransport::Session);

impl script::Session for Session {
    type Send = SendStream;
    type Recv = RecvStream;

    async fn open_bi(&self) -> Result<(SendStream, RecvStream)> {
        Ok(self.0.open_bi().await?)
    }

    async fn open_uni(&self) -> Result<SendStream> {
        Ok(self.0.open_uni().await?)
    }

    async fn accept_bi(&self) -> Result<(SendStream, RecvStream)> {
        Ok(self.0.accept_bi().await?)
    }

    async fn accept_uni(&self) -> Result<RecvStream> {
        Ok(self.0.accept_uni().await?)
    }

    async fn send(mut stream: SendStream, data: Vec<u8>) -> Result<()> {
        stream.write_all(&data).await?;
        Ok(stream.finish()?)
    }

    async fn read(mut stream: RecvStream) -> Result<Vec<u8>> {
        Ok(stream.read_to_end(MAX).await?)
    }

    fn send_datagram(&self, payload: &[u8]) -> Result<()> {
        Ok(self.0.send_datagram(payload)?)
    }

    async fn read_datagram(&self) -> Result<Vec<u8>> {
        Ok(self.0.read_datagram().await?.to_vec())
    }

    fn close(&self, code: u32, reason: &str) {
        self.0.close(code, reason);
    }

    async fn closed(&self) -> Close {
        let end = self.0.closed().await;
        let how = end.to_string();
        match end {
            SessionEnd::ClosedByPeer { code, reason } => Close { code: Some(code), reason, how },
            SessionEnd::ClosedHere { code } => Close { code: Some(code), how, ..Close::default() },
            _ => Close { how, ..Close::default() },
        }
    }

    fn draft(&self) -> Option<String> {
        let flow = if self.0.has_flow_control() { "with flow control" } else { "without flow control" };
        Some(format!("{}, {flow}", self.0.draft().token()))
    }

    fn protocol(&self) -> Option<String> {
        self.0.protocol().map(str::to_owned)
    }
}

fn main() -> ExitCode {
    conclude(async {
        match Command::parse().role {
            Role::Server { listen, cert, key } => {
                let identity = Identity::from_pem(&std::fs::read(cert)?, &std::fs::read(key)?)?;
                let tls = RustlsServer::builder().identity(identity).alpn(h3::ALPN).build()?;
                let endpoint = Endpoint::server(listen, ServerConfig::new(Arc::new(tls), profile()))?;
                ready(endpoint.local_addr());
                let accept = async {
                    while let Some(connection) = endpoint.accept().await {
                        tokio::spawn(serve_connection(connection));
                    }
                };
                serve(accept).await;
                Ok(())
            }
            Role::Client { connect, ca } => {
                let roots: Vec<_> = tls::chain(&ca)?.into_iter().map(|cert| cert.to_vec()).collect();
                let tls = RustlsClient::builder().roots(roots).alpn(h3::ALPN).build()?;
                let config = ClientConfig::new(Arc::new(tls), profile());
                let endpoint = Endpoint::client_for(connect)?;
                let begin = async |path: &str| {
                    let connection = endpoint.connect(&config, connect, "localhost")?.await?;
                    let mut client = Client::begin(connection.clone(), Config::default()).await?;
                    let uri = format!("https://localhost:{}{path}", connect.port());
                    let session = client.connect(http::Request::get(uri).body(())?, &OFFERED).await?;
                    anyhow::Ok((connection, client, Session(session)))
                };
                let (connection, client, session) = begin(STREAMS_PATH).await?;
                script::request(session, STREAMS_PATH).await.print();
                // The close is on its way; the server ends its side of the request.
                tokio::time::sleep(Duration::from_millis(500)).await;
                connection.close(h3::Code::NO_ERROR.0, b"");
                drop(client);
                let (connection, _client, session) = begin(CLOSE_PATH).await?;
                script::request_close(session, CLOSE_PATH).await.print();
                connection.close(h3::Code::NO_ERROR.0, b"");
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(())
            }
        }
    })
}

fn profile() -> Arc<Profile> {
    let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
    Arc::new(Profile { streams, ..Profile::default() })
}

async fn serve_connection(connection: Connection) {
    let config = Config { origins: Origins::Any, ..Config::default() };
    let handler = |request: server::SessionRequest| async move {
        let path = request.head().uri.path().to_owned();
        let protocol = request.protocols().iter().position(|offered| offered == PROTOCOL);
        let (session, response) = request.accept(protocol);
        tokio::spawn(async move { script::serve(Session(session), &path).await.print() });
        response
    };
    let options = h3::server::Options::default();
    if let Err(error) = server::serve(connection, config, options, std::future::pending(), handler).await {
        eprintln!("a connection failed: {error}");
    }
}
