//! quinn-proto. What it shares with noq-proto, which descends from it, is in `family`; here is what differs.

use std::{sync::Arc, time::Instant};

use anyhow::Result;
use bytes::BytesMut;
use quinn_proto as proto;

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
    proto::Endpoint::new(config, server, true, None)
}

fn handle(
    endpoint: &mut proto::Endpoint,
    now: Instant,
    data: BytesMut,
    response: &mut Vec<u8>,
) -> Option<proto::DatagramEvent> {
    endpoint.handle(now, family::OTHER, None, None, data, response)
}

fn poll_transmit(
    connection: &mut proto::Connection,
    now: Instant,
    segments: usize,
    buffer: &mut Vec<u8>,
) -> Option<proto::Transmit> {
    connection.poll_transmit(now, segments, buffer)
}

/// BBR draws from the system's randomness, which cannot be seeded.
fn bbr() -> proto::congestion::BbrConfig {
    proto::congestion::BbrConfig::default()
}

/// The controllers show their window and nothing else.
fn shown(_connection: &proto::Connection) -> Option<String> {
    None
}
