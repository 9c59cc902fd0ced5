//! Tap: observer of the payloads that pass a socket, as they are on the wire.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use transport::{Datagram, Ecn, Transmit};
use units::Instant;

use crate::load_balancers::LoadBalancers;

/// UDP payloads that one system call has carried.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// Time, on the clock of the endpoint, whose instants count from the Unix epoch.
    pub at: Instant,
    /// Direction: `true` for sent payloads, `false` for received ones.
    pub sent: bool,
    /// Address of this end, when the system reports it.
    pub local: Option<IpAddr>,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// ECN codepoint of the payloads.
    pub ecn: Option<Ecn>,
    /// Bytes of each payload but the last.
    pub segment_size: usize,
    /// Payloads, one after the other.
    pub payload: &'a [u8],
}

impl<'a> Tapped<'a> {
    /// Iterates over the payloads.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.payload.chunks(self.segment_size.max(1))
    }
}

/// Observer of the payloads that pass the sockets of an endpoint. The task that drives the endpoint calls it, so it must not
/// block.
pub trait Tap: Send + Sync {
    /// Returns whether payloads are of interest at the moment. Called for every system call.
    fn is_open(&self) -> bool;

    /// Takes payloads that were received, before they are processed, or that were sent.
    fn pass(&self, tapped: &Tapped<'_>);
}

/// The address of this end, as clients of load balancers see it.
fn shown(local: Option<IpAddr>, balancers: Option<&LoadBalancers>) -> Option<IpAddr> {
    balancers.and_then(|balancers| balancers.way_back(local)).map(|way| way.server.ip()).or(local)
}

/// Tap that may be absent.
#[derive(Clone, Default)]
pub(crate) struct MaybeTap(pub(crate) Option<Arc<dyn Tap>>);

impl MaybeTap {
    #[inline]
    fn open(&self) -> Option<&dyn Tap> {
        self.0.as_deref().filter(|tap| tap.is_open())
    }

    #[inline]
    pub(crate) fn received(&self, datagram: &Datagram, balancers: Option<&LoadBalancers>) {
        if let Some(tap) = self.open() {
            tap.pass(&Tapped {
                at: datagram.received_at,
                sent: false,
                local: shown(datagram.local, balancers),
                remote: datagram.remote,
                ecn: datagram.ecn,
                segment_size: datagram.segment_size,
                payload: &datagram.payload,
            });
        }
    }

    #[inline]
    pub(crate) fn sent(
        &self,
        at: impl FnOnce() -> Instant,
        transmit: &Transmit,
        buffer: &[u8],
        balancers: Option<&LoadBalancers>,
    ) {
        if let Some(tap) = self.open() {
            tap.pass(&Tapped {
                at: at(),
                sent: true,
                local: shown(transmit.local, balancers),
                remote: transmit.remote,
                ecn: transmit.ecn,
                segment_size: transmit.segment_size,
                payload: &buffer[..transmit.len],
            });
        }
    }
}
