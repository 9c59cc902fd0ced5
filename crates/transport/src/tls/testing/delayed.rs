//! Sessions that wait at chosen points, in front of any backend.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::crypto::CipherSuite;
use crate::tls::{
    ClientTls, EarlyData, Level, Progress, ServerTls, Session, TicketVersions, TlsError, TlsEvent, Waiting,
};

/// One wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The first bytes at this level meet the wait.
    pub level: Level,
    /// Result that the session reports to wait for.
    pub waiting: Waiting,
    /// The session is resumed this many times without effect before it continues.
    pub refusals: u32,
}

/// A configuration whose sessions wait, each at the same points, one after the other.
#[derive(Clone)]
pub struct Delayed<T: ?Sized> {
    delays: Vec<Delay>,
    inner: Arc<T>,
}

impl<T: ?Sized> Delayed<T> {
    /// Adds waits to the sessions of `inner`.
    pub fn new(inner: Arc<T>, delays: impl Into<Vec<Delay>>) -> Self {
        Self { delays: delays.into(), inner }
    }

    fn wrap(&self, inner: Box<dyn Session>) -> Box<dyn Session> {
        Box::new(DelayedSession { inner, delays: self.delays.iter().copied().collect(), held: None })
    }
}

impl<T: ClientTls + ?Sized> ClientTls for Delayed<T> {
    fn start(&self, version: u32, server_name: &str, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        Ok(self.wrap(self.inner.start(version, server_name, parameters)?))
    }
}

impl<T: ServerTls + ?Sized> ServerTls for Delayed<T> {
    fn start(&self, version: u32, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        Ok(self.wrap(self.inner.start(version, parameters)?))
    }
}

struct DelayedSession {
    inner: Box<dyn Session>,
    delays: VecDeque<Delay>,
    /// The bytes that met a wait, with their level.
    held: Option<(Level, Vec<u8>)>,
}

impl DelayedSession {
    fn delay_at(&mut self, level: Level) -> Option<&mut Delay> {
        self.delays.front_mut().filter(|delay| delay.level == level)
    }
}

impl Session for DelayedSession {
    fn read(&mut self, level: Level, data: &[u8]) -> Result<Progress, TlsError> {
        if self.held.is_some() {
            return Err(TlsError::internal("bytes were given to a session that waits"));
        }
        match self.delay_at(level) {
            Some(delay) => {
                let waiting = delay.waiting;
                self.held = Some((level, data.to_vec()));
                Ok(Progress::Pending(waiting))
            }
            None => self.inner.read(level, data),
        }
    }

    fn client_random(&self) -> Option<[u8; 32]> {
        self.inner.client_random()
    }

    fn resume(&mut self) -> Result<Progress, TlsError> {
        let Some((level, data)) = self.held.take() else { return self.inner.resume() };
        match self.delay_at(level) {
            Some(delay) if delay.refusals > 0 => {
                delay.refusals -= 1;
                let waiting = delay.waiting;
                self.held = Some((level, data));
                Ok(Progress::Pending(waiting))
            }
            _ => {
                self.delays.pop_front();
                // The next wait may be at the same level.
                self.read(level, &data)
            }
        }
    }

    fn next_event(&mut self) -> Option<TlsEvent> {
        self.inner.next_event()
    }

    fn read_level(&self) -> Level {
        self.inner.read_level()
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.inner.alpn()
    }

    fn server_name(&self) -> Option<&str> {
        self.inner.server_name()
    }

    fn peer_certificates(&self) -> Vec<&[u8]> {
        self.inner.peer_certificates()
    }

    fn early_data(&self) -> EarlyData {
        self.inner.early_data()
    }

    fn is_resumed(&self) -> bool {
        self.inner.is_resumed()
    }

    fn cipher_suite(&self) -> Option<CipherSuite> {
        self.inner.cipher_suite()
    }

    fn set_ticket_versions(&mut self, versions: TicketVersions) {
        self.inner.set_ticket_versions(versions);
    }

    fn set_waker(&mut self, waker: &std::task::Waker) {
        self.inner.set_waker(waker);
    }

    fn settle(&mut self) -> Option<Box<dyn Session>> {
        self.inner.settle()
    }

    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError> {
        self.inner.export_keying_material(out, label, context)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Toy, converse};
    use super::*;

    const DELAYS: [Delay; 3] = [
        Delay { level: Level::Initial, waiting: Waiting::Signature, refusals: 2 },
        Delay { level: Level::Initial, waiting: Waiting::Ticket, refusals: 0 },
        Delay { level: Level::Handshake, waiting: Waiting::Signature, refusals: 1 },
    ];

    #[test]
    fn a_session_waits_where_it_was_told_to_and_then_goes_on() {
        let toy = Arc::new(Toy::default());
        let delayed: Delayed<dyn ServerTls> = Delayed::new(toy.clone(), DELAYS);
        let mut client = ClientTls::start(&*toy, 1, "host.test", b"c".to_vec()).unwrap();
        let mut server = delayed.start(1, b"s".to_vec()).unwrap();
        let Some(TlsEvent::Write { level, data }) = client.next_event() else { panic!("a ClientHello is due") };

        let pending = |waiting| Ok(Progress::Pending(waiting));
        assert_eq!(server.read(level, &data), pending(Waiting::Signature));
        assert!(server.next_event().is_none());
        assert!(server.read(level, &data).is_err());
        assert_eq!(server.resume(), pending(Waiting::Signature));
        assert_eq!(server.resume(), pending(Waiting::Signature));
        assert_eq!(server.resume(), pending(Waiting::Ticket));
        assert!(server.next_event().is_none());
        assert_eq!(server.resume(), Ok(Progress::Ready));

        converse(&mut *client, &mut *server).unwrap();
        assert!(client.is_complete() && server.is_complete());
    }
}
