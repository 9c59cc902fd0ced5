//! The client of a request.

use std::{net::SocketAddr, sync::Arc};

use http::{HeaderMap, HeaderValue};
use tiderace::ConnectionBudget;

use crate::{
    client_certificate::ClientCertificate, delivery::SentBytes, ending::Cause, fields, policy::PolicyProgress,
    setup_time::SetupTime,
};

/// Client of a request: address, protocol, connection.
#[derive(Clone)]
pub(crate) struct Peer {
    /// The last address at which the client has shown that it receives. For a request in early data it may be the one that the
    /// first packet claimed to come from: back ends see `early-data` beside it.
    pub(crate) remote: SocketAddr,
    /// The trusted proxy that named the client. `remote` is then the address that it named.
    pub(crate) proxy: Option<SocketAddr>,
    /// The certificate that the client has shown on its connection.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    pub(crate) protocol: &'static str,
    /// Address of the gateway to which the client has come.
    pub(crate) listener: SocketAddr,
    /// Connection over TCP: its set-up and its sent bytes.
    pub(crate) tcp: Option<(Arc<SetupTime>, Arc<SentBytes>)>,
    /// Set for the first request of a QUIC connection.
    pub(crate) is_first: bool,
    /// `alt-svc` for clients over TCP.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// The connection of HTTP/3.
    pub(crate) quic: Option<tiderace::Connection>,
    /// Set if the request arrived in early data: the handshake is not complete.
    pub(crate) early: bool,
    /// The way of a QUIC connection through the policies.
    pub(crate) progress: Option<Arc<PolicyProgress>>,
    /// Memory budget of the client's connection.
    pub(crate) memory: ConnectionBudget,
    /// Reason why this end closes the connection, once it does; QUIC has its own.
    pub(crate) cause: Cause,
}

impl Peer {
    /// Makes the fields of the client's request those for a back end: without what concerns the connection, and with what is said of the
    /// client.
    pub(crate) fn introduce(&self, fields: &mut HeaderMap, host: &str, early: bool, user: Option<&str>) {
        fields::strip(fields);
        fields::introduce(fields, self.remote.ip(), host, early);
        if let Some(certificate) = &self.certificate {
            certificate.introduce(fields);
        }
        let user = user.and_then(|user| HeaderValue::from_bytes(user.as_bytes()).ok());
        fields.extend(user.map(|user| (fields::FORWARDED_USER, user)));
    }

    /// Returns whether the client has shown that it receives at its address.
    pub(crate) fn is_validated(&self) -> bool {
        !self.early || self.quic.as_ref().is_none_or(|quic| quic.has_validated_address() == Some(true))
    }

    /// Waits until the address is validated. Returns whether the connection lives.
    pub(crate) async fn validated(&self) -> bool {
        match &self.quic {
            Some(quic) if !self.is_validated() => quic.established().await.is_ok(),
            _ => true,
        }
    }
}
