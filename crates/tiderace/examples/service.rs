//! A server that answers in the pass of its driver, without a task for each stream, and a client that asks.
//!
//! `cargo run -p tiderace --example service`

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;
use tiderace::{
    ClientConfig, Endpoint, Identity, Profile, ReadError, RustlsClient, RustlsServer, ServedStream, ServerConfig,
    Service,
};

/// Longest question, in bytes.
const LIMIT: usize = 64 * 1024;
/// Code for questions that are longer.
const TOO_LONG: u64 = 1;

/// Answers each question with itself in capital letters.
struct Shouting;

impl Service for Shouting {
    /// The question so far.
    type Stream = Vec<u8>;

    fn stream(&mut self, stream: &mut ServedStream<'_>, kept: &mut Option<Vec<u8>>) {
        let question = kept.get_or_insert_default();
        match stream.read(|part| question.extend_from_slice(&part)) {
            Ok(true) => {
                question.make_ascii_uppercase();
                let mut answer = std::mem::take(question).into();
                // Within the limit the send buffer takes all of it at once.
                let _ = stream.write_last(&mut answer);
            }
            Ok(false) if question.len() > LIMIT => {
                let _ = stream.stop(TOO_LONG);
                let _ = stream.reset(TOO_LONG);
            }
            // The rest of the question is under way.
            Ok(false) => {}
            Err(ReadError::Reset(code)) => {
                let _ = stream.reset(code);
            }
            Err(_) => {}
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![certificate.clone()], certified.signing_key.serialize_der())?;
    let tls = RustlsServer::builder().identity(identity).alpn("shout").build()?;
    let config = ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let server = Endpoint::server(SocketAddr::from(([127, 0, 0, 1], 0)), config)?;
    server.serve(|_shard| Shouting);

    let tls = RustlsClient::builder().roots([certificate]).alpn("shout").build()?;
    let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let endpoint = Endpoint::client_for(server.local_addr())?;
    let connection = endpoint.connect(&config, server.local_addr(), "localhost")?.await?;
    let (send, mut recv) = connection.open_bi().await?;
    send.write_last("is anybody there?".into()).await?;
    println!("{}", String::from_utf8(recv.read_to_end(LIMIT).await?)?);
    Ok(())
}
