//! noq-proto. What it shares with quinn-proto, from which it descends, is in `family`; here is what differs.

use std::{num::NonZeroUsize, sync::Arc, time::Instant};

use anyhow::Result;
use bytes::BytesMut;
use noq_proto as proto;

use super::tls;
use crate::peer::{Peer, Settings, Side};

#[path = "family.rs"]
mod family;

/// One end of a connection.
pub(super) fn peer(side: Side, settings: &Settings) -> Result<Box<dyn Peer>> {
    Ok(Box::new(family::Family::new(side, settings)?))
}

fn client_crypto(settings: &Settings) -> Result<Arc<dyn proto::crypto::ClientConfig>> {
    Ok(Arc::new(proto::crypto::rustls::QuicClientConfig::try_from(tls::kept_client(settings)?)?))
}

fn server_crypto(settings: &Settings) -> Result<Arc<dyn proto::crypto::ServerConfig>> {
    Ok(Arc::new(proto::crypto::rustls::QuicServerConfig::try_from(tls::kept_server(settings)?)?))
}

fn endpoint(config: Arc<proto::EndpointConfig>, server: Option<Arc<proto::ServerConfig>>) -> proto::Endpoint {
    proto::Endpoint::new(config, server, true)
}

fn handle(
    endpoint: &mut proto::Endpoint,
    now: Instant,
    data: BytesMut,
    response: &mut Vec<u8>,
) -> Option<proto::DatagramEvent> {
    endpoint.handle(now, proto::FourTuple::new(family::OTHER, None), None, data, response)
}

fn poll_transmit(
    connection: &mut proto::Connection,
    now: Instant,
    segments: usize,
    buffer: &mut Vec<u8>,
) -> Option<proto::Transmit> {
    connection.poll_transmit(now, NonZeroUsize::new(segments)?, buffer)
}

/// BBR waits for random times between probes, and they come from the system: only its own tests can seed them.
fn bbr() -> proto::congestion::Bbr3Config {
    proto::congestion::Bbr3Config::default()
}

fn shown(connection: &proto::Connection) -> Option<String> {
    connection.congestion_state(proto::PathId::ZERO).map(|controller| crate::shown::Head::of(&controller))
}
