//! A deterministic handshake without cryptography.
//!
//! The flights have the shape of TLS 1.3: ClientHello; ServerHello at Initial, one flight at Handshake; the client's Finished; a ticket. A
//! message is a type, a length of three bytes, and a body: transport parameters and protocol name where they belong, then zeros up to the
//! wanted size.

use std::collections::VecDeque;

use wire::{Reader, Side, Truncated};

use crate::crypto::{CipherSuite, Secret};
use crate::tls::{ClientTls, Direction, EarlyData, Level, Progress, ServerTls, Session, TlsError, TlsEvent, alert};

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const SERVER_FLIGHT: u8 = 8;
const CLIENT_FLIGHT: u8 = 20;
const TICKET: u8 = 4;

/// Configuration for both sides. The sizes are in bytes and include the message header; a message is never smaller than its content.
#[derive(Clone, Debug)]
pub struct Toy {
    /// Size of the ClientHello.
    pub client_hello: usize,
    /// Size of the server's message at the Initial level.
    pub server_hello: usize,
    /// Size of the server's flight at the Handshake level: certificates.
    pub server_flight: usize,
    /// Size of the client's flight at the Handshake level.
    pub client_flight: usize,
    /// Size of the server's message at the 1-RTT level; 0 for none.
    pub ticket: usize,
    /// The one application protocol.
    pub alpn: Vec<u8>,
    /// The suite that is agreed.
    pub suite: CipherSuite,
}

impl Default for Toy {
    fn default() -> Self {
        Self {
            client_hello: 1500,
            server_hello: 1200,
            server_flight: 3000,
            client_flight: 52,
            ticket: 200,
            alpn: b"toy".to_vec(),
            suite: CipherSuite::Aes128Gcm,
        }
    }
}

impl Toy {
    /// The secret that `sender` uses at a level, the same in every connection.
    pub fn secret(suite: CipherSuite, level: Level, sender: Side) -> Secret {
        let fill = 1 + 2 * level as u8 + u8::from(sender == Side::Server);
        Secret::new(&vec![fill; suite.secret_len()]).expect("no suite has longer secrets")
    }

    fn session(&self, side: Side, server_name: Option<String>, parameters: Vec<u8>) -> ToySession {
        ToySession {
            toy: self.clone(),
            side,
            server_name,
            parameters,
            received: Vec::new(),
            read_level: Level::Initial,
            alpn: None,
            complete: false,
            events: VecDeque::new(),
        }
    }
}

impl ClientTls for Toy {
    fn start(&self, _version: u32, server_name: &str, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        let mut session = self.session(Side::Client, Some(server_name.to_owned()), parameters);
        let body = fields(&[&session.parameters, &self.alpn, server_name.as_bytes()]);
        session.write(Level::Initial, CLIENT_HELLO, body, self.client_hello);
        Ok(Box::new(session))
    }
}

impl ServerTls for Toy {
    fn start(&self, _version: u32, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError> {
        Ok(Box::new(self.session(Side::Server, None, parameters)))
    }
}

/// Fields with their lengths in two bytes before them.
fn fields(fields: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for field in fields {
        body.extend_from_slice(&(field.len() as u16).to_be_bytes());
        body.extend_from_slice(field);
    }
    body
}

fn field<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], TlsError> {
    let unreadable = |_: Truncated| TlsError::alert(alert::DECODE_ERROR, "a message of the toy handshake is too short");
    let len = r.u16().map_err(unreadable)?;
    r.bytes(usize::from(len)).map_err(unreadable)
}

struct ToySession {
    toy: Toy,
    side: Side,
    server_name: Option<String>,
    parameters: Vec<u8>,
    received: Vec<u8>,
    read_level: Level,
    alpn: Option<Vec<u8>>,
    complete: bool,
    events: VecDeque<TlsEvent>,
}

impl ToySession {
    fn write(&mut self, level: Level, ty: u8, mut body: Vec<u8>, size: usize) {
        body.resize(body.len().max(size.saturating_sub(4)), 0);
        let mut data = vec![ty];
        data.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
        data.extend_from_slice(&body);
        self.events.push_back(TlsEvent::Write { level, data });
    }

    fn tell_secret(&mut self, level: Level, direction: Direction) {
        let sender = match direction {
            Direction::Local => self.side,
            Direction::Remote => self.side.peer(),
        };
        let suite = self.toy.suite;
        let secret = Toy::secret(suite, level, sender);
        self.events.push_back(TlsEvent::Secret { level, direction, suite, secret, keys: None });
    }

    fn finish(&mut self) {
        self.complete = true;
        self.read_level = Level::OneRtt;
        self.tell_secret(Level::OneRtt, Direction::Remote);
        self.events.push_back(TlsEvent::Complete);
    }

    fn agree_on(&mut self, protocol: &[u8]) -> Result<(), TlsError> {
        if protocol != self.toy.alpn {
            return Err(TlsError::alert(alert::NO_APPLICATION_PROTOCOL, "no common application protocol"));
        }
        self.alpn = Some(protocol.to_vec());
        Ok(())
    }

    fn on_message(&mut self, ty: u8, body: &[u8]) -> Result<(), TlsError> {
        let mut r = Reader::new(body);
        match (self.side, self.read_level, ty) {
            (Side::Server, Level::Initial, CLIENT_HELLO) => {
                self.events.push_back(TlsEvent::PeerParameters(field(&mut r)?.to_vec()));
                self.agree_on(field(&mut r)?)?;
                self.server_name = Some(String::from_utf8_lossy(field(&mut r)?).into_owned());
                self.write(Level::Initial, SERVER_HELLO, Vec::new(), self.toy.server_hello);
                self.tell_secret(Level::Handshake, Direction::Local);
                self.tell_secret(Level::Handshake, Direction::Remote);
                self.read_level = Level::Handshake;
                let body = fields(&[&self.parameters, &self.toy.alpn]);
                self.write(Level::Handshake, SERVER_FLIGHT, body, self.toy.server_flight);
                self.tell_secret(Level::OneRtt, Direction::Local);
            }
            (Side::Client, Level::Initial, SERVER_HELLO) => {
                self.tell_secret(Level::Handshake, Direction::Local);
                self.tell_secret(Level::Handshake, Direction::Remote);
                self.read_level = Level::Handshake;
            }
            (Side::Client, Level::Handshake, SERVER_FLIGHT) => {
                self.events.push_back(TlsEvent::PeerParameters(field(&mut r)?.to_vec()));
                self.agree_on(field(&mut r)?)?;
                self.write(Level::Handshake, CLIENT_FLIGHT, Vec::new(), self.toy.client_flight);
                self.tell_secret(Level::OneRtt, Direction::Local);
                self.finish();
            }
            (Side::Server, Level::Handshake, CLIENT_FLIGHT) => {
                self.finish();
                if self.toy.ticket > 0 {
                    self.write(Level::OneRtt, TICKET, Vec::new(), self.toy.ticket);
                }
            }
            (Side::Client, Level::OneRtt, TICKET) => {}
            _ => return Err(TlsError::alert(alert::UNEXPECTED_MESSAGE, "a message that is not due")),
        }
        Ok(())
    }
}

impl Session for ToySession {
    fn read(&mut self, level: Level, data: &[u8]) -> Result<Progress, TlsError> {
        if level != self.read_level {
            return Err(TlsError::alert(alert::UNEXPECTED_MESSAGE, "handshake data at the wrong level"));
        }
        self.received.extend_from_slice(data);
        while let Some((&[ty, high, middle, low], rest)) = self.received.split_first_chunk() {
            let len = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            let Some(body) = rest.get(..len).map(<[u8]>::to_vec) else { break };
            self.received.drain(..4 + len);
            self.on_message(ty, &body)?;
        }
        // RFC 9001 §4.1.3 MUST-2: handshake data left unread when newer keys come is PROTOCOL_VIOLATION
        if self.read_level != level && !self.received.is_empty() {
            return Err(TlsError::violation("handshake data beyond the end of its level"));
        }
        Ok(Progress::Ready)
    }

    fn resume(&mut self) -> Result<Progress, TlsError> {
        Ok(Progress::Ready)
    }

    fn next_event(&mut self) -> Option<TlsEvent> {
        self.events.pop_front()
    }

    fn read_level(&self) -> Level {
        self.read_level
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }

    fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    fn peer_certificates(&self) -> Vec<&[u8]> {
        Vec::new()
    }

    fn early_data(&self) -> EarlyData {
        EarlyData::None
    }

    fn cipher_suite(&self) -> Option<CipherSuite> {
        (self.read_level > Level::Initial).then_some(self.toy.suite)
    }

    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError> {
        if !self.complete {
            return Err(TlsError::internal("the handshake is not complete"));
        }
        let sum = label.iter().chain(context.unwrap_or_default()).fold(1u8, |sum, byte| sum.wrapping_add(*byte));
        out.fill(sum);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::converse;
    use super::*;

    fn pair(client: &Toy, server: &Toy) -> (Box<dyn Session>, Box<dyn Session>) {
        (
            ClientTls::start(client, 1, "host.test", b"client parameters".to_vec()).unwrap(),
            ServerTls::start(server, 1, b"server parameters".to_vec()).unwrap(),
        )
    }

    #[test]
    fn a_toy_handshake_completes_with_matching_secrets() {
        let toy = Toy::default();
        let (mut client, mut server) = pair(&toy, &toy);
        let (client_said, server_said) = converse(&mut *client, &mut *server).unwrap();
        assert!(client.is_complete() && server.is_complete());
        assert_eq!(server.server_name(), Some("host.test"));
        assert_eq!(server.alpn(), Some(&b"toy"[..]));
        let parameters = |said: &[TlsEvent]| {
            said.iter().find_map(|event| match event {
                TlsEvent::PeerParameters(parameters) => Some(parameters.clone()),
                _ => None,
            })
        };
        assert_eq!(parameters(&client_said).unwrap(), b"server parameters");
        assert_eq!(parameters(&server_said).unwrap(), b"client parameters");
    }

    #[test]
    fn messages_may_be_cut_anywhere() {
        let toy = Toy::default();
        let (mut client, mut server) = pair(&toy, &toy);
        let Some(TlsEvent::Write { level, data }) = client.next_event() else { panic!("a ClientHello is due") };
        assert_eq!(data.len(), toy.client_hello);
        for byte in &data[..data.len() - 1] {
            assert_eq!(server.read(level, &[*byte]), Ok(Progress::Ready));
            assert!(server.next_event().is_none());
        }
        assert_eq!(server.read(level, &data[data.len() - 1..]), Ok(Progress::Ready));
        assert!(server.next_event().is_some());
    }

    #[test]
    fn other_protocols_are_refused() {
        let other = Toy { alpn: b"other".to_vec(), ..Toy::default() };
        let (mut client, mut server) = pair(&other, &Toy::default());
        let (side, error) = converse(&mut *client, &mut *server).unwrap_err();
        assert_eq!(side, Side::Server);
        assert_eq!(error.code, crate::error::Code::crypto(alert::NO_APPLICATION_PROTOCOL));
    }
}
