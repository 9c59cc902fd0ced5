//! The peer on wtransport. See `contract` for what it does.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use sessions_interop::{
    contract::{CLOSE_PATH, Close, Command, MAX, PROTOCOL, Role, STREAMS_PATH, conclude, ready, serve},
    script, tls,
};
use tokio::io::AsyncReadExt;
use wtransport::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig, VarInt, error::ConnectionError,
};

/// A session, and its application protocol. The stack has none: the server reads and writes the fields itself; the client offers none,
/// because it is not shown the fields of the response.
#[derive(Clone)]
struct Session(std::sync::Arc<Connection>, Option<&'static str>);

impl script::Session for Session {
    type Send = SendStream;
    type Recv = RecvStream;

    async fn open_bi(&self) -> Result<(SendStream, RecvStream)> {
        Ok(self.0.open_bi().await?.await?)
    }

    async fn open_uni(&self) -> Result<SendStream> {
        Ok(self.0.open_uni().await?.await?)
    }

    async fn accept_bi(&self) -> Result<(SendStream, RecvStream)> {
        Ok(self.0.accept_bi().await?)
    }

    async fn accept_uni(&self) -> Result<RecvStream> {
        Ok(self.0.accept_uni().await?)
    }

    async fn send(mut stream: SendStream, data: Vec<u8>) -> Result<()> {
        stream.write_all(&data).await?;
        Ok(stream.finish().await?)
    }

    async fn read(stream: RecvStream) -> Result<Vec<u8>> {
        let mut data = vec![];
        stream.take(MAX as u64).read_to_end(&mut data).await?;
        Ok(data)
    }

    fn send_datagram(&self, payload: &[u8]) -> Result<()> {
        Ok(self.0.send_datagram(payload)?)
    }

    async fn read_datagram(&self) -> Result<Vec<u8>> {
        Ok(self.0.receive_datagram().await?.to_vec())
    }

    fn close(&self, code: u32, reason: &str) {
        self.0.close(VarInt::from_u32(code), reason.as_bytes());
    }

    async fn closed(&self) -> Close {
        let end = self.0.closed().await;
        // A close of the session is known to those who wait for streams; `closed` tells of the connection only.
        let end = match self.0.accept_uni().await {
            Err(end) => end,
            Ok(_) => end,
        };
        let how = end.to_string();
        match end {
            ConnectionError::ApplicationClosed(close) => Close {
                code: u32::try_from(close.code().into_inner()).ok(),
                reason: String::from_utf8_lossy(close.reason()).into_owned(),
                how,
            },
            _ => Close { how, ..Close::default() },
        }
    }

    fn draft(&self) -> Option<String> {
        None
    }

    fn protocol(&self) -> Option<String> {
        self.1.map(str::to_owned)
    }
}

fn main() -> ExitCode {
    conclude(async {
        match Command::parse().role {
            Role::Server { listen, cert, key } => {
                let tls = tls::server(&cert, &key)?;
                let config = ServerConfig::builder().with_bind_address(listen).with_custom_tls(tls).build();
                let endpoint = Endpoint::server(config)?;
                ready(endpoint.local_addr()?);
                let accept = async {
                    loop {
                        let incoming = endpoint.accept().await;
                        tokio::spawn(async move {
                            let serve = async {
                                let request = incoming.await?;
                                let path = request.path().to_owned();
                                // A string of a structured field (RFC 9651 §3.3.3).
                                let quoted = format!("\"{PROTOCOL}\"");
                                let offered =
                                    request.headers().get("wt-available-protocols").map_or("", String::as_str);
                                let chosen = offered.split(',').any(|one| one.trim() == quoted).then_some(PROTOCOL);
                                let fields = chosen.map(|_| ("wt-protocol", quoted));
                                let session = request.accept_with_headers(fields).await?;
                                script::serve(Session(session.into(), chosen), &path).await.print();
                                anyhow::Ok(())
                            };
                            if let Err(error) = serve.await {
                                eprintln!("a session failed: {error:#}");
                            }
                        });
                    }
                };
                serve(accept).await;
                Ok(())
            }
            Role::Client { connect, ca } => {
                let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
                let config = ClientConfig::builder().with_bind_address(any).with_custom_tls(tls::client(&ca)?).build();
                let endpoint = Endpoint::client(config)?;
                let begin = async |path: &str| {
                    let session = endpoint.connect(format!("https://{connect}{path}")).await?;
                    anyhow::Ok(Session(session.into(), None))
                };
                let session = begin(STREAMS_PATH).await?;
                script::request(session, STREAMS_PATH).await.print();
                tokio::time::sleep(Duration::from_millis(500)).await;
                let session = begin(CLOSE_PATH).await?;
                script::request_close(session, CLOSE_PATH).await.print();
                Ok(())
            }
        }
    })
}
