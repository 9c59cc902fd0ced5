//! Health checks: a packet with an unsupported version, to which every QUIC server answers with Version Negotiation (RFC 9000 §6). This
//! needs no connection.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tiderace::transport::quic_lb::ServerId;
use tokio::{net::UdpSocket, time::Instant};

use crate::keys;

/// A version of the pattern that is reserved for this (RFC 9000 §15).
const VERSION: u32 = 0x1a2a_3a4a;
const RESERVED_MASK: u32 = 0x0f0f_0f0f;
const RESERVED: u32 = 0x0a0a_0a0a;
/// Least size of a first packet (RFC 9000 §14.1).
const LEN: usize = 1_200;

/// State of a machine by its answers to health checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Machine that offers versions of QUIC, or has not been asked yet.
    Up,
    /// Machine that answers and offers no version: new connections go elsewhere.
    Closing,
    /// Machine that does not answer.
    Down,
}

impl Health {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Closing => "closing",
            Self::Down => "down",
        }
    }
}

/// State of a machine that its health checks and others share. Machines of consecutive configurations may have the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthState(Arc<AtomicU8>);

impl HealthState {
    pub(crate) fn get(&self) -> Health {
        match self.0.load(Ordering::Relaxed) {
            0 => Health::Up,
            1 => Health::Closing,
            _ => Health::Down,
        }
    }

    /// Notes what a health check has shown; returns the state before.
    pub(crate) fn set(&self, health: Health) -> Health {
        let before = self.get();
        self.0.store(health as u8, Ordering::Relaxed);
        before
    }
}

/// Machine that is asked.
pub(crate) trait Asked {
    fn server_id(&self) -> ServerId;
    fn address(&self) -> SocketAddr;
    fn state(&self) -> &HealthState;
}

/// Question for a machine.
struct Question {
    id: [u8; 8],
    is_answered: bool,
    /// Questions in a row without an answer.
    failures: u32,
}

/// First packet of an unsupported version. The answer has its source connection ID.
fn question(id: [u8; 8]) -> Vec<u8> {
    let mut packet = vec![0; LEN];
    packet[0] = 0xc0;
    packet[1..5].copy_from_slice(&VERSION.to_be_bytes());
    packet[5] = 8;
    packet[6..14].copy_from_slice(&id);
    packet[14] = 8;
    packet[15..23].copy_from_slice(&id);
    packet
}

/// Reads a Version Negotiation packet: the ID of its question, and whether it offers a version.
fn answer(packet: &[u8]) -> Option<([u8; 8], bool)> {
    let (head, rest) = packet.split_first_chunk::<6>()?;
    if head[0] & 0x80 == 0 || head[1..5] != [0; 4] || head[5] != 8 {
        return None;
    }
    let (id, rest) = rest.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first()?;
    let versions = rest.get(usize::from(*len)..)?;
    let (versions, _) = versions.as_chunks::<4>();
    let offers = versions.iter().any(|version| u32::from_be_bytes(*version) & RESERVED_MASK != RESERVED);
    Some((*id, offers))
}

/// Sockets of the two address families, where the machines need them.
struct Sockets([Option<UdpSocket>; 2]);

impl Sockets {
    async fn open(machines: &[impl Asked]) -> Self {
        let needs = |is_v4: bool| machines.iter().any(|machine| machine.address().is_ipv4() == is_v4);
        let open = async |any: SocketAddr| match UdpSocket::bind(any).await {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::error!("machines cannot be asked from {any}: {error}");
                None
            }
        };
        let four = if needs(true) { open((Ipv4Addr::UNSPECIFIED, 0).into()).await } else { None };
        let six = if needs(false) { open((Ipv6Addr::UNSPECIFIED, 0).into()).await } else { None };
        Self([four, six])
    }

    fn of(&self, address: SocketAddr) -> Option<&UdpSocket> {
        self.0[usize::from(address.is_ipv6())].as_ref()
    }

    async fn receive(&self, four: &mut [u8], six: &mut [u8]) -> (usize, io::Result<(usize, SocketAddr)>) {
        let one = async |socket: &Option<UdpSocket>, buffer: &mut [u8]| match socket {
            Some(socket) => socket.recv_from(buffer).await,
            None => std::future::pending().await,
        };
        tokio::select! {
            got = one(&self.0[0], four) => (0, got),
            got = one(&self.0[1], six) => (1, got),
        }
    }
}

/// Asks the machines repeatedly. Does not end.
pub(crate) async fn check(machines: &[impl Asked], interval: Duration, failures: u32) {
    let sockets = Sockets::open(machines).await;
    let mut questions: HashMap<SocketAddr, Question> = HashMap::new();
    let mut buffers = [[0; 2_048]; 2];
    loop {
        for machine in machines {
            let address = machine.address();
            let Ok(id) = keys::random() else { continue };
            let unanswered = questions.get(&address).map_or(0, |question| match question.is_answered {
                true => 0,
                false => question.failures + 1,
            });
            if unanswered >= failures {
                note(machine, Health::Down);
            }
            questions.insert(address, Question { id, is_answered: false, failures: unanswered });
            if let Some(socket) = sockets.of(address) {
                // A question that does not leave has no answer either.
                let _ = socket.send_to(&question(id), address).await;
            }
        }
        let next = Instant::now() + interval;
        loop {
            let [four, six] = &mut buffers;
            let got = tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                got = sockets.receive(four, six) => got,
            };
            let (family, Ok((len, from))) = got else {
                // Nobody listens there; the question stays without an answer.
                tokio::task::yield_now().await;
                continue;
            };
            let Some((id, offers)) = answer(&buffers[family][..len]) else { continue };
            let Some(question) = questions.get_mut(&from).filter(|question| question.id == id) else { continue };
            (question.is_answered, question.failures) = (true, 0);
            if let Some(machine) = machines.iter().find(|machine| machine.address() == from) {
                note(machine, if offers { Health::Up } else { Health::Closing });
            }
        }
    }
}

fn note(machine: &impl Asked, health: Health) {
    if machine.state().set(health) != health {
        tracing::warn!("machine {} at {} is {}", machine.server_id(), machine.address(), health.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{
        config::{Resolved, ResolvedMachine},
        table::Table,
    };

    /// Version Negotiation of a server with these versions.
    fn negotiation(question: &[u8], versions: &[u32]) -> Vec<u8> {
        let mut packet = vec![0x80, 0, 0, 0, 0];
        packet.extend(&question[14..23]);
        packet.extend(&question[5..14]);
        packet.extend(versions.iter().flat_map(|version| version.to_be_bytes()));
        packet
    }

    #[test]
    fn answers_say_whether_there_is_a_version() {
        let question = question([7; 8]);
        assert_eq!(question.len(), LEN);
        assert_eq!(answer(&negotiation(&question, &[1])), Some(([7; 8], true)));
        assert_eq!(answer(&negotiation(&question, &[])), Some(([7; 8], false)));
        assert_eq!(
            answer(&negotiation(&question, &[0x5a6a_7a8a])),
            Some(([7; 8], false)),
            "reserved versions are none"
        );
        assert_eq!(answer(&question), None);
        let whole = negotiation(&question, &[1]);
        assert!((0..22).all(|len| answer(&whole[..len]).is_none()));
    }

    /// Waits until a machine has this state.
    async fn becomes(table: &Table, number: usize, health: Health) {
        while table.machines()[number].health() != health {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn states_follow_the_answers() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let machine = |id: &str, socket: &UdpSocket| ResolvedMachine {
            server_id: id.parse().unwrap(),
            address: socket.local_addr().unwrap(),
            drains: false,
        };
        let machines = vec![machine("01", &server), machine("02", &silent)];
        let table = std::sync::Arc::new(Table::new(&Resolved::of(machines), None));
        let checks = tokio::spawn({
            let table = table.clone();
            async move { check(table.machines(), Duration::from_millis(50), 2).await }
        });
        becomes(&table, 1, Health::Down).await;
        becomes(&table, 0, Health::Down).await;
        let mut buffer = [0; 2_048];
        for (versions, health) in [(&[1][..], Health::Up), (&[], Health::Closing), (&[1], Health::Up)] {
            let answering = async {
                loop {
                    let (len, from) = server.recv_from(&mut buffer).await.unwrap();
                    server.send_to(&negotiation(&buffer[..len], versions), from).await.unwrap();
                }
            };
            tokio::select! {
                () = answering => {}
                () = becomes(&table, 0, health) => {}
            }
        }
        assert_eq!(table.machines()[1].health(), Health::Down);
        checks.abort();
    }
}
