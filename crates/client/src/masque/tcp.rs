//! Tunnels for TCP (CONNECT, RFC 9110 §9.3.6).

use bytes::Bytes;

use super::{
    ProxyError,
    stream::{RecvHalf, SendHalf},
};

/// A tunnel for TCP.
pub struct TcpTunnel {
    sender: TcpSender,
    receiver: TcpReceiver,
}

/// Sending half of a tunnel for TCP. Dropping it ends this direction.
pub struct TcpSender {
    stream: SendHalf,
}

/// Half of a tunnel for TCP that comes from the target.
pub struct TcpReceiver {
    content: RecvHalf,
}

impl TcpTunnel {
    pub(super) fn new(stream: SendHalf, content: RecvHalf) -> Self {
        Self { sender: TcpSender { stream }, receiver: TcpReceiver { content } }
    }

    /// Protocol of the connection that carries the tunnel: `h3` or `h2`.
    pub fn protocol(&self) -> &'static str {
        self.sender.stream.protocol()
    }

    /// Halves for two tasks.
    pub fn split(self) -> (TcpSender, TcpReceiver) {
        (self.sender, self.receiver)
    }
}

impl TcpSender {
    /// Sends all of `data`, as soon as there is room.
    ///
    /// # Errors
    /// When the tunnel accepts no more data.
    pub async fn send(&mut self, data: Bytes) -> Result<(), ProxyError> {
        self.stream.send(data).await
    }

    /// Gives this direction up, so that it does not look complete.
    pub fn abort(self, reason: &str) {
        self.stream.abort(reason);
    }
}

impl TcpReceiver {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When the tunnel broke off.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ProxyError> {
        self.content.data().await
    }
}
