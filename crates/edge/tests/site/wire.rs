//! A path to the gateway that an attacker sits on, and requests as nobody's library writes them.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tiderace::{ClientConfig, Connection, Endpoint};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
    task::JoinHandle,
};

use super::Site;

/// Script of the attacker.
#[derive(Default)]
pub struct Will {
    /// The client's datagrams leave from another address, which answers nothing.
    pub forges: AtomicBool,
    /// Drops packets of the gateway.
    pub is_mute: AtomicBool,
    /// Datagrams that left from the other address, and those that came back there.
    pub forged: AtomicUsize,
    pub asked: AtomicUsize,
    /// All that the client has sent.
    pub seen: Mutex<Vec<Vec<u8>>>,
}

/// A path between one client and the gateway.
pub struct Wire {
    /// Address at which the client finds the gateway, and the gateway the client.
    pub address: SocketAddr,
    pub near: SocketAddr,
    pub will: Arc<Will>,
    task: JoinHandle<()>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    pub async fn new(gateway: SocketAddr) -> Self {
        Self::from("127.0.0.1:0", gateway).await
    }

    /// One whose client comes from this address.
    pub async fn from(client: &str, gateway: SocketAddr) -> Self {
        let bind = async |address: &str| UdpSocket::bind(address).await.unwrap();
        let front = bind("127.0.0.1:0").await;
        let (near, far) = (bind(client).await, bind("127.0.0.2:0").await);
        let (address, own) = (front.local_addr().unwrap(), near.local_addr().unwrap());
        let will = Arc::new(Will::default());
        let wills = will.clone();
        let task = tokio::spawn(async move {
            let (mut there, mut here, mut lost) = (vec![0; 65_536], vec![0; 65_536], vec![0; 65_536]);
            let mut client = None;
            loop {
                tokio::select! {
                    Ok((length, from)) = front.recv_from(&mut there) => {
                        client = Some(from);
                        wills.seen.lock().unwrap().push(there[..length].to_vec());
                        let forges = wills.forges.load(Ordering::SeqCst);
                        let socket = if forges { &far } else { &near };
                        let _ = socket.send_to(&there[..length], gateway).await;
                        wills.forged.fetch_add(forges.into(), Ordering::SeqCst);
                    }
                    Ok((length, _)) = near.recv_from(&mut here) => {
                        if let Some(client) = client.filter(|_| !wills.is_mute.load(Ordering::SeqCst)) {
                            let _ = front.send_to(&here[..length], client).await;
                        }
                    }
                    Ok(_) = far.recv_from(&mut lost) => {
                        wills.asked.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        });
        Self { address, near: own, will, task }
    }

    pub async fn connect(&self, config: &ClientConfig) -> (Endpoint, Connection) {
        let endpoint = Endpoint::client_for(self.address).unwrap();
        let connection = endpoint.connect(config, self.address, "localhost").unwrap().await.unwrap();
        (endpoint, connection)
    }

    /// Waits until the gateway asks at the forged address whether somebody is there.
    pub async fn asked(&self) {
        while self.will.asked.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

/// Sends raw HTTP/1.1 and returns the answer; the gateway closes, or has been told to.
pub async fn raw_h1(site: &Site, bytes: &[u8]) -> String {
    let mut stream = site.tls(&[b"http/1.1"]).await;
    let mut answer = Vec::new();
    // A gateway that has refused may have closed meanwhile.
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// The content of the answer to a GET for `path` over HTTP/2; empty when the stream is reset.
pub async fn raw_h2(site: &Site, path: &[u8]) -> String {
    let mut stream = site.tls(&[b"h2"]).await;
    // RFC 7541: GET and https from the static table; literals with the names of `:authority` and `:path`.
    let mut fields = b"\x82\x87\x01\x09localhost\x04".to_vec();
    fields.push(u8::try_from(path.len()).unwrap().min(126));
    fields.extend_from_slice(path);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0".to_vec();
    bytes.extend([u8::try_from(fields.len()).unwrap(), 1, 5, 0, 0, 0, 1]);
    bytes.extend(fields);
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    let mut content = Vec::new();
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            break;
        }
        let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        let is_end = matches!(head[3], 0 | 1) && head[4] & 1 == 1;
        if head[3] == 0 {
            content.extend(payload);
        }
        // RST_STREAM, GOAWAY.
        if is_end || matches!(head[3], 3 | 7) {
            break;
        }
    }
    String::from_utf8_lossy(&content).into_owned()
}

/// All that a GET for `path` is answered over HTTP/3; what came before a reset.
pub async fn raw_h3(connection: &Connection, path: &[u8]) -> String {
    // RFC 9204: no dynamic table; GET and https from the static one; literals with the names of `:path` and `:authority`.
    let mut section = vec![0, 0, 0xd1, 0xd7, 0x51, u8::try_from(path.len()).unwrap().min(126)];
    section.extend_from_slice(path);
    section.extend_from_slice(b"\x50\x09localhost");
    let mut frame = vec![1, 0x40, u8::try_from(section.len()).unwrap()];
    frame.extend(section);
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&frame).await.unwrap();
    let _ = send.finish();
    let mut answer = Vec::new();
    while let Ok(Some(data)) = recv.read_chunk(65_536).await {
        answer.extend_from_slice(&data);
    }
    String::from_utf8_lossy(&answer).into_owned()
}
