//! Socket to which a client moves once its path works, on its way from the endpoint to the driver.

use std::net::IpAddr;

use tokio::sync::oneshot;

use crate::socket::Socket;

/// Socket that an application gives a client to move to.
pub(crate) struct NextSocket {
    pub(crate) socket: Socket,
    pub(crate) local: IpAddr,
    /// Interface that the socket in use stays on meanwhile.
    pub(crate) hold: Option<String>,
    /// Takes `true` when a connection has moved, and `false` when none does.
    pub(crate) outcome: oneshot::Sender<bool>,
}
