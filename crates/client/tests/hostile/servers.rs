//! Servers that speak the protocols below HTTP well, and leave to the test what they say on them.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tiderace::{Connection, Endpoint, Identity, Profile, RecvStream, RustlsServer, SendStream, ServerConfig};
use tiderace_client::{Client, FetchError, Fetched, Leg, Pace, Route, Settings, Timeouts, Trust};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

/// Time limit for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// No limit of the client is met by chance.
pub(crate) const PATIENT: Timeouts =
    Timeouts { connect: LIMIT, response: LIMIT, content: Pace { bytes: 1, within: LIMIT } };
/// Short timeout, for what never comes.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// A certificate for 127.0.0.1, its key, and a client's trust in it.
pub(crate) fn certificate() -> (Vec<u8>, Vec<u8>, Trust) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    (made.cert.der().to_vec(), made.signing_key.serialize_der(), Trust::Pem(made.cert.pem().into_bytes()))
}

/// A client that trusts, and has so much timeouts.
pub(crate) fn client(trust: &Trust, timeouts: Timeouts) -> Client {
    Client::with(&Settings { trust: trust.clone(), timeouts, ..Settings::default() }).unwrap()
}

/// Asks over one way; fails the test when nothing comes of it.
pub(crate) async fn ask(client: &Client, at: SocketAddr, only: Leg) -> Result<Fetched, FetchError> {
    let route = Route { only: Some(only), fresh: true, udp: None };
    let url = format!("https://{at}/");
    tokio::time::timeout(LIMIT, client.get_by(&url, &route)).await.expect("a request ends")
}

/// Reads content to its end, or to the error.
pub(crate) async fn read(fetched: Fetched) -> Result<usize, String> {
    let mut body = fetched.response.into_body();
    let mut length = 0;
    loop {
        let frame = tokio::time::timeout(LIMIT, http_body_util::BodyExt::frame(&mut body)).await.expect("content ends");
        match frame {
            Some(Ok(frame)) => length += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(error)) => return Err(error.to_string()),
            None => return Ok(length),
        }
    }
}

/// A server over QUIC, whose connections `script` serves.
pub(crate) fn quic<F, S>(profile: Profile, change: impl FnOnce(&mut ServerConfig), script: S) -> (SocketAddr, Trust)
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(Connection) -> F + Send + 'static,
{
    let (certificate, key, trust) = certificate();
    let identity = Identity::from_der(vec![certificate], key).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).build().unwrap();
    let mut config = ServerConfig::new(Arc::new(tls), Arc::new(profile));
    change(&mut config);
    let endpoint = Endpoint::server("127.0.0.1:0".parse().unwrap(), config).unwrap();
    let address = endpoint.local_addr();
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            tokio::spawn(script(connection));
        }
    });
    (address, trust)
}

/// A server of HTTP/3 that has sent its settings, and says on each request's stream what `script` wants.
pub(crate) fn http3<F, S>(script: S) -> (SocketAddr, Trust)
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(SendStream, RecvStream) -> F + Clone + Send + 'static,
{
    quic(
        Profile::default(),
        |_| {},
        move |connection| {
            let script = script.clone();
            async move {
                let _control = control(&connection, &[]).await;
                while let Ok((send, mut recv)) = connection.accept_bi().await {
                    let script = script.clone();
                    tokio::spawn(async move {
                        while let Ok(Some(_)) = recv.read_chunk(65_536).await {}
                        script(send, recv).await;
                    });
                }
            }
        },
    )
}

/// Opens the control stream: no settings, and then `more`. It has to stay.
pub(crate) async fn control(connection: &Connection, more: &[u8]) -> Option<SendStream> {
    let mut control = connection.open_uni().await.ok()?;
    control.write_all(&[&[0x00, 0x04, 0x00], more].concat()).await.ok()?;
    Some(control)
}

/// A frame of HTTP/3.
pub(crate) fn frame(ty: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![ty];
    out.extend((payload.len() as u32 | 0x8000_0000).to_be_bytes());
    out.extend(payload);
    out
}

/// A HEADERS frame with literal fields alone (RFC 9204 §4.5.6).
pub(crate) fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        integer(&mut section, 0x20, 3, name.len());
        section.extend(name.as_bytes());
        integer(&mut section, 0, 7, value.len());
        section.extend(value.as_bytes());
    }
    frame(1, &section)
}

/// An integer with a prefix (RFC 7541 §5.1).
pub(crate) fn integer(out: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let most = (1_usize << bits) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A server over TLS on TCP, whose connections `script` serves.
pub(crate) async fn tls<F, S>(protocol: &[u8], script: S) -> (SocketAddr, Trust)
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(TlsStream<TcpStream>) -> F + Clone + Send + 'static,
{
    let (certificate, key, trust) = certificate();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], rustls::pki_types::PrivateKeyDer::try_from(key).unwrap())
        .unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, script) = (acceptor.clone(), script.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    script(stream).await;
                }
            });
        }
    });
    (address, trust)
}
