//! A back end that answers at once, agrees to tunnels, and reads no content.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Starts it on a port of its own.
pub(crate) async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            // A byte at a time, so that content stays unread.
            head.push(stream.read_u8().await?);
            if head.len() > 64 * 1024 {
                return Ok(());
            }
        }
        let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
        if text.contains("\r\nupgrade: connect-udp") {
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: connect-udp\r\n\
                           capsule-protocol: ?1\r\n\r\n";
            stream.write_all(answer).await?;
            return std::future::pending().await;
        }
        if text.starts_with("post") {
            return std::future::pending().await;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?;
    }
}
