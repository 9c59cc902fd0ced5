//! A server that looks at the ClientHello before it decides which configuration serves the client.

use std::borrow::Cow;
use std::sync::Arc;

use super::client_hello::{ClientHello, MAX_CLIENT_HELLO};
use super::{
    CipherSuite, EarlyData, Level, Progress, ServerTls, Session, TicketVersions, TlsError, TlsEvent, Waiting, alert,
};

/// The decision about a client.
pub enum Choice {
    /// This configuration serves it.
    Use(Arc<dyn ServerTls>),
    /// The answer is not there yet: ask again when the session is resumed.
    Pending,
    /// The client gets this TLS alert; see [`alert`].
    Refuse {
        /// Number of the alert.
        alert: u8,
        /// What the log says.
        reason: Cow<'static, str>,
    },
}

/// Decides which configuration serves a client.
pub trait ChooseConfig: Send + Sync {
    /// Called once the ClientHello is complete, and again at each [`Session::resume`] while it answers
    /// [`Choice::Pending`].
    fn choose(&self, hello: &ClientHello) -> Choice;
}

impl<F: Fn(&ClientHello) -> Choice + Send + Sync> ChooseConfig for F {
    fn choose(&self, hello: &ClientHello) -> Choice {
        self(hello)
    }
}

/// A server configuration that stands for many: each client's is chosen by its ClientHello.
pub struct ChoosingServer {
    chooser: Arc<dyn ChooseConfig>,
}

impl ChoosingServer {
    /// A server that asks `chooser` about each client.
    pub fn new(chooser: Arc<dyn ChooseConfig>) -> Self {
        Self { chooser }
    }
}

impl ServerTls for ChoosingServer {
    fn start(&self, version: u32, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        Ok(Box::new(ChoosingSession {
            state: State::Collecting,
            chooser: Arc::clone(&self.chooser),
            version,
            ticket_versions: TicketVersions::both(version),
            parameters,
            received: Vec::new(),
        }))
    }
}

enum State {
    /// The ClientHello is not complete.
    Collecting,
    /// The decision is pending.
    Asking(ClientHello),
    /// The chosen configuration's session does the rest.
    Chosen(Box<dyn Session>),
}

struct ChoosingSession {
    state: State,
    chooser: Arc<dyn ChooseConfig>,
    version: u32,
    ticket_versions: TicketVersions,
    parameters: Vec<u8>,
    /// Bytes at the Initial level until the choice is made.
    received: Vec<u8>,
}

impl ChoosingSession {
    fn chosen(&self) -> Option<&dyn Session> {
        match &self.state {
            State::Chosen(session) => Some(&**session),
            State::Collecting | State::Asking(_) => None,
        }
    }

    fn ask(&mut self, hello: ClientHello) -> Result<Progress, TlsError> {
        match self.chooser.choose(&hello) {
            Choice::Pending => {
                self.state = State::Asking(hello);
                Ok(Progress::Pending(Waiting::Configuration))
            }
            Choice::Refuse { alert, reason } => Err(TlsError::alert(alert, reason)),
            Choice::Use(config) => {
                let mut session = config.start(self.version, std::mem::take(&mut self.parameters))?;
                session.set_ticket_versions(self.ticket_versions);
                let progress = session.read(Level::Initial, &std::mem::take(&mut self.received))?;
                self.state = State::Chosen(session);
                Ok(progress)
            }
        }
    }
}

impl Session for ChoosingSession {
    fn client_random(&self) -> Option<[u8; 32]> {
        match &self.state {
            State::Chosen(session) => session.client_random(),
            State::Asking(_) | State::Collecting => None,
        }
    }

    fn read(&mut self, level: Level, data: &[u8]) -> Result<Progress, TlsError> {
        match &mut self.state {
            State::Chosen(session) => session.read(level, data),
            State::Asking(_) => Err(TlsError::internal("bytes were given to a session that waits")),
            State::Collecting => {
                if level != Level::Initial {
                    return Err(TlsError::alert(alert::UNEXPECTED_MESSAGE, "handshake bytes before a ClientHello"));
                }
                if self.received.len() + data.len() > 2 * MAX_CLIENT_HELLO {
                    return Err(TlsError::alert(alert::DECODE_ERROR, "too much data before a ClientHello is complete"));
                }
                self.received.extend_from_slice(data);
                match ClientHello::peek(&self.received)? {
                    Some(hello) => self.ask(hello),
                    None => Ok(Progress::Ready),
                }
            }
        }
    }

    fn resume(&mut self) -> Result<Progress, TlsError> {
        match &mut self.state {
            State::Chosen(session) => session.resume(),
            State::Collecting => Ok(Progress::Ready),
            State::Asking(hello) => {
                let hello = std::mem::take(hello);
                self.ask(hello)
            }
        }
    }

    fn next_event(&mut self) -> Option<TlsEvent> {
        match &mut self.state {
            State::Chosen(session) => session.next_event(),
            State::Collecting | State::Asking(_) => None,
        }
    }

    fn read_level(&self) -> Level {
        self.chosen().map_or(Level::Initial, Session::read_level)
    }

    fn is_complete(&self) -> bool {
        self.chosen().is_some_and(Session::is_complete)
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.chosen().and_then(Session::alpn)
    }

    fn server_name(&self) -> Option<&str> {
        match &self.state {
            State::Chosen(session) => session.server_name(),
            State::Asking(hello) => hello.server_name.as_deref(),
            State::Collecting => None,
        }
    }

    fn peer_certificates(&self) -> Vec<&[u8]> {
        self.chosen().map_or_else(Vec::new, Session::peer_certificates)
    }

    fn early_data(&self) -> EarlyData {
        self.chosen().map_or(EarlyData::None, Session::early_data)
    }

    fn is_resumed(&self) -> bool {
        self.chosen().is_some_and(Session::is_resumed)
    }

    fn cipher_suite(&self) -> Option<CipherSuite> {
        self.chosen().and_then(Session::cipher_suite)
    }

    fn set_ticket_versions(&mut self, versions: TicketVersions) {
        self.ticket_versions = versions;
        if let State::Chosen(session) = &mut self.state {
            session.set_ticket_versions(versions);
        }
    }

    fn settle(&mut self) -> Option<Box<dyn Session>> {
        match &mut self.state {
            State::Chosen(session) => session.settle(),
            State::Collecting | State::Asking(_) => None,
        }
    }

    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError> {
        match self.chosen() {
            Some(session) => session.export_keying_material(out, label, context),
            None => Err(TlsError::internal("the handshake is not complete")),
        }
    }
}
