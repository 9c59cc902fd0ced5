//! TCP connection to the back end of a stream.

use std::time::Duration;

use tokio::net::{
    TcpStream,
    tcp::{ReadHalf, WriteHalf},
};

/// A connection that is reset when it is dropped before both directions have ended: what breaks off with the client, its connection or
/// its session must not look complete.
pub(crate) struct TcpBackEnd {
    stream: TcpStream,
    is_complete: bool,
}

impl TcpBackEnd {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // A failure costs some latency and nothing else.
        let _ = stream.set_nodelay(true);
        Self { stream, is_complete: false }
    }

    pub(crate) fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.stream.split()
    }

    /// Both directions have ended.
    pub(crate) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for TcpBackEnd {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}
