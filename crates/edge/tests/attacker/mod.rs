//! The attacks, as the process that makes them: each opens one connection, does its worst, says so, and goes when it is told.

mod tunnels;

use std::{io::Read, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use h3_quic::{Protocol, capsule};
use http::Request;
use http_body_util::channel::{Channel, Sender};
use hyper_util::rt::{TokioExecutor, TokioIo};
use qmux::{Mux, Side};
use tiderace::{ClientConfig, Connection, Dir, Endpoint, Profile, RustlsClient, StreamId, units::Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::site::{self, Error, full};

/// Line that the attacker prints once the attack is in progress.
pub(crate) const READY: &str = "the attack stands";

/// Parts of an attack that wait for credit which never comes are given up after this time.
const ENOUGH: Duration = Duration::from_secs(4);

struct Attack {
    address: SocketAddr,
    certificate: Vec<u8>,
    /// A target that reads nothing, and one that answers without end.
    silent: String,
    endless: String,
}

type Result<T = ()> = std::result::Result<T, Error>;

pub(crate) fn run(name: &str) {
    let variable = |name: &str| std::env::var(name).expect("set by who has started this");
    let attack = Attack {
        address: variable("TIDERACE_ADDRESS").parse().unwrap(),
        certificate: std::fs::read(variable("TIDERACE_CERTIFICATE")).unwrap(),
        silent: variable("TIDERACE_SILENT"),
        endless: variable("TIDERACE_ENDLESS"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(attack.run(name)).unwrap();
}

/// Says that the attack stands, and waits to be told to go.
async fn stand(what: &str) {
    println!("{READY}: {what}");
    let waiting = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]).map(drop));
    let _ = waiting.await;
}

/// A frame of HTTP/3: type and length in front.
fn frame(out: &mut Vec<u8>, ty: u64, payload: &[u8]) {
    capsule::write(out, ty, payload);
}

/// Fields of a GET or POST for a path, from the static table of QPACK (RFC 9204 Appendix A).
fn section(method: u8, path: &str) -> Vec<u8> {
    let mut section = vec![0, 0, method, 0xd7, 0x50, 9];
    section.extend_from_slice(b"localhost\x51");
    section.push(path.len() as u8);
    section.extend_from_slice(path.as_bytes());
    section
}

const POST: u8 = 0xd4;

impl Attack {
    async fn run(&self, name: &str) -> Result {
        match name {
            "datagrams-empty" => self.datagrams(0).await,
            "datagrams-1-byte" => self.datagrams(1).await,
            "datagrams-1200-bytes" => self.datagrams(1_200).await,
            "datagrams-nobody-takes" => self.private_datagrams().await,
            "capsules-cut-off" => self.capsules(100_000).await,
            "capsules-of-1-byte" => self.capsules(1).await,
            "header-blocks-cut-off" => self.header_blocks().await,
            "frames-unknown" => self.unknown_frames().await,
            "trailers-cut-off" => self.trailers().await,
            "uni-streams-unknown" => self.uni_streams().await,
            "priority-updates" => self.priority_updates().await,
            "h3-heads-unanswered" => self.h3_heads().await,
            "h3-uploads" => self.h3_uploads().await,
            "h3-answers-unread" => self.h3_answers().await,
            "qmux-1-byte-frames" => self.qmux(b"raw-qx", 100, 20_000, 0).await,
            "qmux-streams" => self.qmux(b"raw-qx", 100_000, 1, 0).await,
            "qmux-datagrams" => self.qmux(b"game-qx", 1, 1, 100_000).await,
            "h2-head-cut-off" => self.h2_head().await,
            "h2-heads-unanswered" => self.h2_heads().await,
            "h2-uploads" => self.h2_uploads().await,
            "h2-answers-unread" => self.h2_answers().await,
            "h1-head-cut-off" => self.h1_head().await,
            "session-datagrams-empty" => self.session_datagrams(0).await,
            "session-datagrams-1200-bytes" => self.session_datagrams(1_200).await,
            "session-uploads" => self.session_uploads().await,
            "session-answers-unread" => self.session_answers("/session-endless").await,
            "session-streams-reset" => self.session_churn().await,
            "proxy-datagrams-empty" => self.proxied_datagrams(0).await,
            "proxy-capsules-cut-off" => self.proxied_capsules().await,
            "proxy-answers-unread" => self.proxied_answers().await,
            other => Err(format!("there is no attack {other}").into()),
        }
    }

    async fn quic(&self, alpn: &[u8]) -> Result<(Endpoint, Connection)> {
        let tls = RustlsClient::builder().roots([self.certificate.clone()]).alpn(alpn).build()?;
        let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
        let endpoint = Endpoint::client_for(self.address)?;
        let connection = endpoint.connect(&config, self.address, "localhost")?.await?;
        Ok((endpoint, connection))
    }

    async fn end(connection: &Connection) {
        connection.close(0x100, b"");
        // Its last word leaves.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    /// An extended CONNECT that stands, and datagrams that nobody reads.
    async fn datagrams(&self, size: usize) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut h3 = h3_quic::client::begin(quic.clone()).await?;
        let (_say, body) = Channel::<Bytes, std::io::Error>::new(1);
        let connect = Request::connect("https://localhost/tunnel").extension(Protocol::from_static("connect-udp"));
        let response = h3.send(connect.header("capsule-protocol", "?1").body(body)?).await?;
        assert_eq!(response.status(), 200);
        // Of the first request, whose number is 0.
        let mut payload = vec![0];
        let most = quic.max_datagram_size().ok_or("no datagrams")?;
        payload.resize((size + 1).min(most), 7);
        let payload = Bytes::from(payload);
        let count = if size > 100 { 20_000 } else { 120_000 };
        let mut sent = 0;
        while sent < count && quic.send_datagram_wait(payload.clone()).await.is_ok() {
            sent += 1;
        }
        stand(&format!("{sent} datagrams")).await;
        drop(response);
        Self::end(&quic).await;
        Ok(())
    }

    async fn private_datagrams(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"raw").await?;
        let mut sent = 0;
        while sent < 120_000 && quic.send_datagram_wait(Bytes::from_static(b"x")).await.is_ok() {
            sent += 1;
        }
        stand(&format!("{sent} datagrams")).await;
        Self::end(&quic).await;
        Ok(())
    }

    /// On each of many tunnels capsules, the last of which does not end.
    async fn capsules(&self, size: usize) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let h3 = h3_quic::client::begin(quic.clone()).await?;
        let mut data = Vec::new();
        for _ in 0..100_000 / size {
            capsule::write(&mut data, 0x29, &vec![7; size]);
        }
        data.pop();
        let data = Bytes::from(data);
        let mut tunnels = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (mut h3, data) = (h3.clone(), data.clone());
            tunnels.spawn(tokio::time::timeout(ENOUGH, async move {
                let (mut say, body): (Sender<Bytes, std::io::Error>, _) = Channel::new(1);
                let connect =
                    Request::connect("https://localhost/tunnel").extension(Protocol::from_static("connect-udp"));
                let response = h3.send(connect.header("capsule-protocol", "?1").body(body)?).await?;
                say.send_data(data).await?;
                tokio::time::sleep(ENOUGH).await;
                drop((response, say));
                Ok::<_, Error>(())
            }));
        }
        tokio::time::sleep(ENOUGH / 2).await;
        stand(&format!("{} tunnels", tunnels.len())).await;
        Self::end(&quic).await;
        Ok(())
    }

    /// Half a header block on each stream.
    async fn header_blocks(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut half = vec![1, 0x80, 0x02, 0x00, 0x00];
        half.resize(70_000, 0);
        let (count, held) = self.spray(&quic, &half, 100).await;
        stand(&format!("{count} streams")).await;
        drop(held);
        Self::end(&quic).await;
        Ok(())
    }

    /// Writes `data` on so many streams, as far as credit goes, and keeps them open.
    async fn spray(&self, quic: &Connection, data: &[u8], count: usize) -> (usize, Vec<impl Sized + use<>>) {
        let mut held = Vec::new();
        for _ in 0..count {
            let Ok(Ok((mut send, recv))) = tokio::time::timeout(ENOUGH / 4, quic.open_bi()).await else { break };
            let _ = tokio::time::timeout(ENOUGH / 8, send.write_all(data)).await;
            held.push((send, recv));
        }
        (held.len(), held)
    }

    async fn unknown_frames(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut frames = Vec::new();
        for _ in 0..20_000 {
            frame(&mut frames, 0x21, b"x");
        }
        // And one that never ends.
        frames.extend_from_slice(&[0x21, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        frames.resize(100_000, 7);
        let (count, held) = self.spray(&quic, &frames, 50).await;
        stand(&format!("{count} streams")).await;
        drop(held);
        Self::end(&quic).await;
        Ok(())
    }

    /// Requests whose trailers never end.
    async fn trailers(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut frames = Vec::new();
        frame(&mut frames, 1, &section(POST, "/silent"));
        frame(&mut frames, 0, b"content");
        frames.extend_from_slice(&[1, 0x80, 0x02, 0x00, 0x00]);
        frames.resize(70_000, 0);
        let (count, held) = self.spray(&quic, &frames, 100).await;
        stand(&format!("{count} streams")).await;
        drop(held);
        Self::end(&quic).await;
        Ok(())
    }

    async fn uni_streams(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut held = Vec::new();
        let mut data = vec![0x40, 0x21];
        data.resize(20_000, 7);
        while let Ok(Ok(mut send)) = tokio::time::timeout(ENOUGH / 4, quic.open_uni()).await {
            let _ = tokio::time::timeout(ENOUGH / 8, send.write_all(&data)).await;
            held.push(send);
            if held.len() >= 1_000 {
                break;
            }
        }
        stand(&format!("{} streams", held.len())).await;
        drop(held);
        Self::end(&quic).await;
        Ok(())
    }

    async fn priority_updates(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut control = quic.open_uni().await?;
        let mut frames = vec![0, 4, 0];
        for number in 0..50_000_u32 {
            let mut payload = (0x8000_0000 | (number * 4)).to_be_bytes().to_vec();
            payload.extend_from_slice(b"u=1, i");
            frame(&mut frames, 0xf0700, &payload);
        }
        let _ = tokio::time::timeout(ENOUGH, control.write_all(&frames)).await;
        stand("50000 updates").await;
        drop(control);
        Self::end(&quic).await;
        Ok(())
    }

    /// Requests with as many fields as are allowed, to a back end that does not answer.
    async fn h3_heads(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut fields = section(0xd1, "/silent");
        for _ in 0..1_500 {
            fields.extend_from_slice(b"\x21x\x01y");
        }
        let mut frames = Vec::new();
        frame(&mut frames, 1, &fields);
        let (count, held) = self.spray(&quic, &frames, 100).await;
        stand(&format!("{count} requests")).await;
        drop(held);
        Self::end(&quic).await;
        Ok(())
    }

    async fn h3_uploads(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut uploads = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (mut send, recv) = quic.open_bi().await?;
            let mut frames = Vec::new();
            frame(&mut frames, 1, &section(POST, "/silent"));
            // DATA that continues for 1 GiB.
            frames.extend_from_slice(&[0, 0xc0, 0, 0, 0, 0x40, 0, 0, 0]);
            frames.resize(2 << 20, 7);
            uploads.spawn(async move {
                let _ = tokio::time::timeout(ENOUGH, send.write_all(&frames)).await;
                std::future::pending::<()>().await;
                drop(recv);
            });
        }
        tokio::time::sleep(ENOUGH).await;
        stand("100 uploads").await;
        Self::end(&quic).await;
        Ok(())
    }

    async fn h3_answers(&self) -> Result {
        let (_endpoint, quic) = self.quic(b"h3").await?;
        let mut frames = Vec::new();
        frame(&mut frames, 1, &section(0xd1, "/endless"));
        let (count, held) = self.spray(&quic, &frames, 100).await;
        tokio::time::sleep(ENOUGH / 2).await;
        stand(&format!("{count} requests")).await;
        drop(held);
        Self::end(&quic).await;
        Ok(())
    }

    /// Streams, writes of one byte on each, and datagrams of one byte, each in a record of its own.
    async fn qmux(&self, alpn: &[u8], streams: usize, writes: usize, datagrams: usize) -> Result {
        let mut tcp = site::connect_tls(self.address, &self.certificate, &[alpn]).await?;
        let now = Instant::ZERO;
        let mut mux = Mux::new(Side::Client, now, qmux::Config::default());
        let (mut out, mut buffer) = (Vec::new(), vec![0; 65_536]);
        let mut open: Vec<StreamId> = Vec::new();
        let (mut written, mut sent) = (0, 0);
        loop {
            while mux.poll_event().is_some() {}
            if open.len() < streams
                && let Some(id) = mux.open(Dir::Bi)
            {
                open.push(id);
                let _ = mux.write(id, &mut Bytes::from_static(b"x"));
            } else if written < writes * open.len() {
                let _ = mux.write(open[written % open.len()], &mut Bytes::from_static(b"x"));
                written += 1;
            } else if sent < datagrams && mux.send_datagram(Bytes::from_static(b"x")).is_ok() {
                sent += 1;
            }
            let any = mux.poll_transmit(now, &mut out);
            if out.len() >= 32_768 || !any {
                if tokio::time::timeout(ENOUGH, tcp.write_all(&out)).await.is_err() {
                    break;
                }
                out.clear();
                tcp.flush().await?;
            }
            if !any {
                // Credit may come.
                match tokio::time::timeout(ENOUGH / 4, tcp.read(&mut buffer)).await {
                    Ok(Ok(length @ 1..)) => mux.handle_bytes(now, &buffer[..length]),
                    _ => break,
                }
            }
        }
        stand(&format!("{} streams, {written} writes, {sent} datagrams, {:?}", open.len(), mux.closed())).await;
        Ok(())
    }

    async fn h2_head(&self) -> Result {
        let mut tcp = site::connect_tls(self.address, &self.certificate, &[b"h2"]).await?;
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        // HEADERS without their end, and two CONTINUATIONs.
        for ty in [1, 9, 9] {
            bytes.extend_from_slice(&[0, 0x3a, 0x98, ty, 0, 0, 0, 0, 1]);
            for _ in 0..3_000 {
                bytes.extend_from_slice(b"\0\x01x\x01y");
            }
        }
        tcp.write_all(&bytes).await?;
        tcp.flush().await?;
        tokio::time::sleep(ENOUGH / 4).await;
        stand("45000 bytes").await;
        Ok(())
    }

    async fn h2(&self) -> Result<hyper::client::conn::http2::SendRequest<site::Body>> {
        let tcp = site::connect_tls(self.address, &self.certificate, &[b"h2"]).await?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn h2_requests(&self, request: impl Fn() -> Request<site::Body>) -> Result {
        let sender = self.h2().await?;
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let mut sender = sender.clone();
            let request = request();
            waiting.spawn(async move {
                let response = sender.send_request(request).await;
                // Its body is not read.
                std::future::pending::<()>().await;
                drop(response);
            });
        }
        tokio::time::sleep(ENOUGH).await;
        stand("100 requests").await;
        Ok(())
    }

    async fn h2_heads(&self) -> Result {
        self.h2_requests(|| {
            let mut request = Request::get("https://localhost/silent").body(full("")).unwrap();
            for number in 0..1_000 {
                let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
                request.headers_mut().insert(name, http::HeaderValue::from_static("y"));
            }
            request
        })
        .await
    }

    async fn h2_uploads(&self) -> Result {
        self.h2_requests(|| Request::post("https://localhost/silent").body(full(vec![7; 1 << 20])).unwrap()).await
    }

    async fn h2_answers(&self) -> Result {
        self.h2_requests(|| Request::get("https://localhost/endless").body(full("")).unwrap()).await
    }

    async fn h1_head(&self) -> Result {
        let mut tcp = site::connect_tls(self.address, &self.certificate, &[b"http/1.1"]).await?;
        let mut bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
        bytes.resize(60_000, b'x');
        tcp.write_all(&bytes).await?;
        tcp.flush().await?;
        tokio::time::sleep(ENOUGH / 4).await;
        stand("60000 bytes").await;
        Ok(())
    }
}
