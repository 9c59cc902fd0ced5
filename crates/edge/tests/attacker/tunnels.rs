//! Attacks through tunnels: sessions of WebTransport, and proxies of UDP and TCP.

use std::time::Duration;

use bytes::Bytes;
use h3_quic::{Protocol, capsule};
use http::{Request, Response};
use http_body_util::channel::{Channel, Sender};
use tiderace::{ClientConfig, Connection, Endpoint, Profile, RustlsClient, transport::streams::StreamsConfig};
use tokio::task::JoinSet;
use webtransport::{Client, Config, Limits, Session};

use super::{Attack, ENOUGH, Result, stand};
use crate::site::Error;

/// A tunnel that stands: what keeps it open.
type Open = (Sender<Bytes, std::io::Error>, Response<h3_quic::ResponseBody>);

impl Attack {
    /// A session whose flow control is the gateway's alone.
    async fn session(&self, path: &str) -> Result<(Endpoint, Connection, Session)> {
        let tls = RustlsClient::builder().roots([self.certificate.clone()]).alpn(b"h3").build()?;
        let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
        let profile = Profile { streams, ..Profile::default() };
        let config = ClientConfig::new(std::sync::Arc::new(tls), std::sync::Arc::new(profile));
        let endpoint = Endpoint::client_for(self.address)?;
        let quic = endpoint.connect(&config, self.address, "localhost")?.await?;
        let config = Config { limits: Limits::NONE, ..Config::default() };
        let mut client = Client::begin(quic.clone(), config).await?;
        let session = client.connect(Request::get(format!("https://localhost{path}")).body(())?, &[]).await?;
        // What keeps the connection lives as long as this process.
        std::mem::forget(client);
        Ok((endpoint, quic, session))
    }

    /// Datagrams of a session whose back end reads nothing.
    pub(super) async fn session_datagrams(&self, size: usize) -> Result {
        let (_endpoint, quic, session) = self.session("/session").await?;
        // RFC 9297 §2.1: quarter of the stream's number, which is 0.
        let most = quic.max_datagram_size().ok_or("no datagrams")?;
        let payload = Bytes::from(vec![0; (size + 1).min(most)]);
        let count = if size > 100 { 20_000 } else { 120_000 };
        let mut sent = 0;
        while sent < count && quic.send_datagram_wait(payload.clone()).await.is_ok() {
            sent += 1;
        }
        stand(&format!("{sent} datagrams")).await;
        drop(session);
        Self::end(&quic).await;
        Ok(())
    }

    /// As many streams as a session may have, with content that its back ends do not read.
    pub(super) async fn session_uploads(&self) -> Result {
        let (_endpoint, quic, session) = self.session("/session").await?;
        let mut uploads = JoinSet::new();
        while uploads.len() < 200
            && let Ok(Ok((mut send, recv))) = tokio::time::timeout(ENOUGH / 8, session.open_bi()).await
        {
            uploads.spawn(async move {
                let _ = tokio::time::timeout(ENOUGH, send.write_all(&vec![7; 2 << 20])).await;
                std::future::pending::<()>().await;
                drop(recv);
            });
        }
        tokio::time::sleep(ENOUGH).await;
        stand(&format!("{} streams", uploads.len())).await;
        Self::end(&quic).await;
        Ok(())
    }

    /// As many streams as a session may have, with answers that nobody reads.
    pub(super) async fn session_answers(&self, path: &str) -> Result {
        let (_endpoint, quic, session) = self.session(path).await?;
        let mut held = Vec::new();
        while held.len() < 200
            && let Ok(Ok((mut send, recv))) = tokio::time::timeout(ENOUGH / 8, session.open_bi()).await
        {
            let _ = tokio::time::timeout(ENOUGH / 8, send.write_all(b"endless")).await;
            held.push((send, recv));
        }
        tokio::time::sleep(ENOUGH).await;
        stand(&format!("{} streams", held.len())).await;
        Self::end(&quic).await;
        Ok(())
    }

    /// Streams of a session that are reset as soon as they are there.
    pub(super) async fn session_churn(&self) -> Result {
        let (_endpoint, quic, session) = self.session("/session").await?;
        let mut count = 0;
        while count < 5_000
            && let Ok(Ok((mut send, recv))) = tokio::time::timeout(ENOUGH / 8, session.open_bi()).await
        {
            let _ = send.write_all(b"x").await;
            send.reset(7);
            drop(recv);
            count += 1;
        }
        stand(&format!("{count} streams")).await;
        Self::end(&quic).await;
        Ok(())
    }

    /// The target that reads nothing, for CONNECT-UDP.
    fn udp_uri(&self) -> Result<String> {
        let (host, port) = self.silent.rsplit_once(':').ok_or("no port")?;
        Ok(format!("https://localhost/udp/{host}/{port}/"))
    }

    /// Tunnels to a target, by the method CONNECT with this protocol or none.
    async fn tunnels(
        &self,
        quic: &Connection,
        protocol: Option<&'static str>,
        uri: &str,
        count: usize,
    ) -> Result<Vec<Open>> {
        let mut h3 = h3_quic::client::begin(quic.clone()).await?;
        let mut open = Vec::new();
        for _ in 0..count {
            let (say, body) = Channel::new(1);
            let mut request = Request::connect(uri);
            if let Some(protocol) = protocol {
                request = request.extension(Protocol::from_static(protocol)).header("capsule-protocol", "?1");
            }
            let response = h3.send(request.body(body)?).await?;
            if response.status() != 200 {
                break;
            }
            open.push((say, response));
        }
        std::mem::forget(h3);
        if open.is_empty() {
            return Err("no tunnel was opened".into());
        }
        Ok(open)
    }

    /// Datagrams through a proxy to a target that reads nothing.
    pub(super) async fn proxied_datagrams(&self, size: usize) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let uri = self.udp_uri()?;
        let open = self.tunnels(&quic, Some("connect-udp"), &uri, 1).await?;
        // Quarter of the stream's number, and the context of UDP payloads (RFC 9298 §4).
        let payload = Bytes::from(vec![0; size + 2]);
        let mut sent = 0;
        while sent < 120_000 && quic.send_datagram_wait(payload.clone()).await.is_ok() {
            sent += 1;
        }
        stand(&format!("{sent} datagrams")).await;
        drop(open);
        Self::end(&quic).await;
        Ok(())
    }

    /// On each of many tunnels of a proxy a capsule that does not end.
    pub(super) async fn proxied_capsules(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let uri = self.udp_uri()?;
        let mut open = self.tunnels(&quic, Some("connect-udp"), &uri, 60).await?;
        let mut data = Vec::new();
        capsule::write(&mut data, 0, &vec![0; 60_000]);
        data.pop();
        for (say, _) in &mut open {
            let _ = tokio::time::timeout(ENOUGH / 8, say.send_data(Bytes::from(data.clone()))).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        stand(&format!("{} tunnels", open.len())).await;
        drop(open);
        Self::end(&quic).await;
        Ok(())
    }

    /// Tunnels of TCP whose target answers without end, and nobody reads.
    pub(super) async fn proxied_answers(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut open = self.tunnels(&quic, None, &self.endless, 60).await?;
        for (say, _) in &mut open {
            let _ = tokio::time::timeout(ENOUGH / 8, say.send_data(Bytes::from_static(b"endless"))).await;
        }
        tokio::time::sleep(ENOUGH).await;
        stand(&format!("{} tunnels", open.len())).await;
        drop(open);
        Self::end(&quic).await;
        Ok::<_, Error>(())
    }
}
