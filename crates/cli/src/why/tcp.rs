//! Statistics of the kernel about the TCP connection of an exchange, read while it transfers.

use std::sync::{Arc, Mutex, PoisonError};

use client::TcpObserver;
use socket2::{SockRef, Socket};
use tokio::net::TcpStream;

use super::evidence::TcpFacts;

/// Keeps a descriptor of the last socket that was connected.
#[derive(Debug, Default)]
pub(super) struct LastSocket(Mutex<Option<Arc<Socket>>>);

impl TcpObserver for LastSocket {
    fn connected(&self, stream: &TcpStream) {
        // Without a descriptor to spare there are no facts, and the exchange continues.
        let socket = SockRef::from(stream).try_clone().ok().map(Arc::new);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = socket;
    }
}

impl LastSocket {
    fn get(&self) -> Option<Arc<Socket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives the descriptor back.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Readings of one transfer.
#[derive(Debug, Default)]
pub(super) struct Readings {
    rtts: Vec<f64>,
    last: TcpFacts,
}

/// Readings that are kept.
const READINGS_MAX: usize = 60_000;

impl Readings {
    /// Reads once.
    #[cfg(target_os = "linux")]
    pub(super) fn read(&mut self, socket: &LastSocket) {
        use std::os::fd::AsFd;

        let Some(info) = socket.get().and_then(|socket| emu::network::TcpInfo::of(socket.as_fd()).ok()) else { return };
        let millis = |span: std::time::Duration| span.as_secs_f64() * 1e3;
        if !info.receive_rtt.is_zero() && self.rtts.len() < READINGS_MAX {
            self.rtts.push(millis(info.receive_rtt));
        }
        // All ones, in microseconds: no sample yet.
        let is_known = info.min_rtt < std::time::Duration::from_secs(4_000);
        self.last = TcpFacts {
            rtt_min_ms: is_known.then(|| millis(info.min_rtt)),
            rtt_median_ms: None,
            packets: info.data_packets_received,
            out_of_order: info.out_of_order_packets,
        };
    }

    /// Other systems have no such statistics.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn read(&mut self, socket: &LastSocket) {
        let _ = (socket.get(), &self.rtts, READINGS_MAX);
    }

    /// Facts of the transfer; `None` where nothing could be read.
    pub(super) fn facts(mut self) -> Option<TcpFacts> {
        self.rtts.sort_by(f64::total_cmp);
        let rtt_median_ms = lab::stats::quantile::median(&self.rtts);
        (self.last.packets > 0).then_some(TcpFacts { rtt_median_ms, ..self.last })
    }
}
