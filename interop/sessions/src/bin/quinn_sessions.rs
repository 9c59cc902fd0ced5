//! The peer on web-transport-quinn. See `contract` for what it does.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Result;
use clap::Parser;
use sessions_interop::{
    contract::{CLOSE_PATH, Close, Command, MAX, OFFERED, PROTOCOL, Role, STREAMS_PATH, conclude, ready, serve},
    script, tls,
};
use web_transport_quinn::{
    Client, RecvStream, SendStream, Server, SessionError, WebTransportError,
    proto::{ConnectRequest, ConnectResponse},
    quinn::{
        self,
        crypto::rustls::{QuicClientConfig, QuicServerConfig},
    },
};

#[derive(Clone)]
struct Session(web_transport_quinn::Session);

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
        Ok(self.0.send_datagram(payload.to_vec().into())?)
    }

    async fn read_datagram(&self) -> Result<Vec<u8>> {
        Ok(self.0.read_datagram().await?.to_vec())
    }

    fn close(&self, code: u32, reason: &str) {
        self.0.close(code, reason.as_bytes());
    }

    async fn closed(&self) -> Close {
        let end = self.0.closed().await;
        let how = end.to_string();
        match end {
            SessionError::WebTransportError(WebTransportError::Closed(code, reason)) => {
                Close { code: Some(code), reason, how }
            }
            _ => Close { how, ..Close::default() },
        }
    }

    fn draft(&self) -> Option<String> {
        None
    }

    fn protocol(&self) -> Option<String> {
        self.0.protocol().map(str::to_owned)
    }
}

fn main() -> ExitCode {
    conclude(async {
        match Command::parse().role {
            Role::Server { listen, cert, key } => {
                let tls = QuicServerConfig::try_from(tls::server(&cert, &key)?)?;
                let endpoint = quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(tls)), listen)?;
                ready(endpoint.local_addr()?);
                let mut server = Server::new(endpoint);
                let accept = async {
                    while let Some(request) = server.accept().await {
                        tokio::spawn(async move {
                            let path = request.url.path().to_owned();
                            let mut response = ConnectResponse::OK;
                            if request.protocols.iter().any(|offered| offered == PROTOCOL) {
                                response = response.with_protocol(PROTOCOL);
                            }
                            match request.respond(response).await {
                                Ok(session) => script::serve(Session(session), &path).await.print(),
                                Err(error) => eprintln!("a session failed: {error}"),
                            }
                        });
                    }
                };
                serve(accept).await;
                Ok(())
            }
            Role::Client { connect, ca } => {
                let tls = QuicClientConfig::try_from(tls::client(&ca)?)?;
                let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into())?;
                let client = Client::new(endpoint.clone(), quinn::ClientConfig::new(Arc::new(tls)));
                let begin = async |path: &str| {
                    let request = ConnectRequest::new(url::Url::parse(&format!("https://{connect}{path}"))?);
                    let request = request.with_protocols(OFFERED.map(str::to_owned));
                    anyhow::Ok(Session(client.connect(request).await?))
                };
                let session = begin(STREAMS_PATH).await?;
                script::request(session, STREAMS_PATH).await.print();
                // The stack sends the close from a task of its own, and ends the connection after it.
                tokio::time::sleep(Duration::from_millis(500)).await;
                let session = begin(CLOSE_PATH).await?;
                script::request_close(session, CLOSE_PATH).await.print();
                endpoint.wait_idle().await;
                Ok(())
            }
        }
    })
}
