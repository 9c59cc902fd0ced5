//! Streams opened by the peer, counted until both halves are dropped.

use std::sync::Arc;

use tiderace::{Charge, Dir};

use crate::inner::Alive;

/// Place of a stream among those opened by the peer: released when both halves are dropped.
pub(crate) struct PeerStream {
    session: Arc<Alive>,
    dir: Dir,
    _charge: Charge,
}

impl PeerStream {
    pub(crate) fn new(session: Arc<Alive>, dir: Dir, charge: Charge) -> Arc<Self> {
        Arc::new(Self { session, dir, _charge: charge })
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        self.session.0.on_closed(self.dir as usize);
    }
}
