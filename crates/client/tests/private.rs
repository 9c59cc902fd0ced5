//! A private protocol in front of a gateway in stream mode: the same streams and datagrams over QUIC, and over QMux where UDP is
//! cut.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use edge::Process;
use tiderace_client::{
    Leg, Route, Settings, Trust, Verdict,
    private::{Channel, PrivateClient},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
};

/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Site {
    directory: PathBuf,
    process: Arc<Process>,
    settings: Settings,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A back end that sends everything back, over TCP and UDP, behind a gateway.
async fn site(name: &str) -> Site {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (streams, datagrams) = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    tokio::spawn(async move {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
            let _ = udp.send_to(&buffer[..length], from).await;
        }
    });
    let directory = std::env::temp_dir().join(format!("tiderace-private-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let file = directory.join("edge.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 1\n[[stream]]\nalpn = \"echo\"\n\
         qmux = \"echo-qx\"\nto = \"tcp://{streams}\"\ndatagrams-to = \"udp://{datagrams}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let process = Process::start(&file).unwrap();
    let settings = Settings { trust: Trust::Pem(made.cert.pem().into_bytes()), ..Settings::default() };
    Site { directory, process, settings }
}

/// Streams of several sizes at the same time, and datagrams, come back.
async fn echo(channel: &Channel) {
    let mut tasks = Vec::new();
    for length in [0, 1, 70_000, 3_000_000] {
        let channel = channel.clone();
        tasks.push(tokio::spawn(async move {
            let sent: Bytes = (0..length).map(|at: u32| (at % 251) as u8).collect();
            let (mut send, mut recv) = channel.open_bi().await.unwrap();
            let whole = sent.clone();
            let writes = tokio::spawn(async move {
                send.write_chunk(whole).await.unwrap();
                send.finish().unwrap();
            });
            let mut got = Vec::new();
            while let Some(data) = recv.read_chunk(usize::MAX).await.unwrap() {
                got.extend_from_slice(&data);
            }
            writes.await.unwrap();
            assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
        }));
    }
    for task in tasks {
        tokio::time::timeout(LIMIT, task).await.unwrap().unwrap();
    }
    // Datagrams may be lost: asked again until one comes back.
    let answer = async {
        loop {
            channel.send_datagram(Bytes::from_static(b"datagram")).unwrap();
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(500), channel.read_datagram()).await {
                return answer.unwrap();
            }
        }
    };
    assert_eq!(tokio::time::timeout(LIMIT, answer).await.unwrap(), "datagram");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_datagrams_go_over_quic_and_without_udp_over_qmux() {
    let site = site("echo").await;
    let port = site.process.addresses()[0].port();
    // QUIC wins, however busy the machine is.
    let patient = Settings { head_start: LIMIT, ..site.settings.clone() };
    let client = PrivateClient::new(&patient, b"echo", b"echo-qx").unwrap();
    let connected = client.connect("127.0.0.1", port, &Route::default()).await.unwrap();
    assert_eq!(connected.channel.protocol(), "quic");
    echo(&connected.channel).await;
    assert_eq!(connected.verdict.await.unwrap(), Some(Verdict::Works));
    connected.channel.close(0, "").await;

    // UDP leads nowhere.
    let client = PrivateClient::new(&site.settings, b"echo", b"echo-qx").unwrap();
    let hole = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let route = Route { udp: Some(hole.local_addr().unwrap()), ..Route::default() };
    let connected = client.connect("127.0.0.1", port, &route).await.unwrap();
    assert_eq!(connected.channel.protocol(), "qmux");
    echo(&connected.channel).await;
    let verdict = tokio::time::timeout(LIMIT, connected.verdict).await.unwrap().unwrap();
    assert!(matches!(verdict, Some(Verdict::Blocked { questions: 12, .. })), "{verdict:?}");
    connected.channel.close(0, "").await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_protocol_that_the_server_does_not_speak_over_tcp_is_refused() {
    let site = site("other").await;
    let port = site.process.addresses()[0].port();
    let client = PrivateClient::new(&site.settings, b"echo", b"other-qx").unwrap();
    let route = Route { only: Some(Leg::Tcp), ..Route::default() };
    assert!(client.connect("127.0.0.1", port, &route).await.is_err());
}

/// Sends bytes as a client; returns the gateway's bytes until it hangs up.
async fn raw(site: &Site, bytes: &[u8]) -> Vec<u8> {
    let Trust::Pem(pem) = &site.settings.trust else { unreachable!() };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls::pki_types::pem::PemObject::pem_slice_iter(pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut tls = tls.with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"echo-qx".to_vec()];
    let stream = tokio::net::TcpStream::connect(site.process.addresses()[0]).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
    let mut said = Vec::new();
    tokio::time::timeout(LIMIT, stream.read_to_end(&mut said)).await.expect("the gateway hangs up").unwrap();
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_tells_hostile_clients_what_they_did() {
    let site = site("hostile").await;
    // The type and an empty list of parameters.
    let greeting = [9, 0xff, 0x51, 0x53, 0x30, 0x0d, 0x0a, 0x0d, 0x0a, 0];
    for (what, bytes, code) in [
        ("no parameters", vec![1, 0], 0x0a),
        ("a record too large", vec![0x7f, 0xff], 0x07),
        ("PING", [&greeting[..], &[1, 1]].concat(), 0x07),
        ("parameters again", [greeting, greeting].concat(), 0x0a),
        // STREAM with a length, of stream 0, that is cut off.
        ("a frame cut off", [&greeting[..], &[4, 0x0a, 0, 5, 0]].concat(), 0x07),
        ("a stream of the gateway's", [&greeting[..], &[3, 0x0a, 1, 0]].concat(), 0x05),
    ] {
        let said = raw(&site, &bytes).await;
        // Its own parameters, and then a record with CONNECTION_CLOSE, of type 0x1c, and the code.
        let first = usize::from(said[0]) + 1;
        assert_eq!(said[first + 1..first + 3], [0x1c, code], "{what}: {said:?}");
    }
}
