//! Choice of a machine: a function of the packet, the client's address, the configuration and the health of the machines. So load balancers
//! with one configuration choose the same machine.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use aws_lc_rs::cipher::{AES_128, EncryptingKey, UnboundCipherKey};
use tiderace::transport::quic_lb::{QuicLb, ServerId, config_id};

use super::config::Resolved;

/// Configurations of connection IDs that there may be.
const CONFIGS: usize = 7;

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

/// A machine that serves.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) server_id: ServerId,
    pub(crate) address: SocketAddr,
    pub(crate) drains: bool,
    /// Hash that orders the machines for a client.
    weight: u64,
    /// Shared with the machine of the configuration before.
    health: Arc<AtomicU8>,
}

impl Machine {
    pub(crate) fn health(&self) -> Health {
        match self.health.load(Ordering::Relaxed) {
            0 => Health::Up,
            1 => Health::Closing,
            _ => Health::Down,
        }
    }

    /// Notes what a health check has shown; returns the state before.
    pub(crate) fn set_health(&self, health: Health) -> Health {
        let before = self.health();
        self.health.store(health as u8, Ordering::Relaxed);
        before
    }

    fn takes_new(&self) -> bool {
        !self.drains && self.health() == Health::Up
    }
}

/// Machine for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index of the machine.
    pub(crate) machine: usize,
    /// Byte that is the same for all packets of the connection, for the threads of the machine.
    pub(crate) hint: u8,
    /// The connection ID names the machine.
    pub(crate) is_routed: bool,
}

/// Machines and configurations of connection IDs.
pub(crate) struct Table {
    codecs: [Option<QuicLb>; CONFIGS],
    machines: Vec<Machine>,
    by_id: HashMap<ServerId, usize>,
    addresses: HashSet<SocketAddr>,
    hash: FlowHash,
}

impl Table {
    /// The table of a configuration. Machines of `before` keep their health.
    pub(crate) fn new(config: &Resolved, before: Option<&Self>) -> Self {
        let mut codecs: [Option<QuicLb>; CONFIGS] = Default::default();
        for parameters in &config.codecs {
            // What cannot be was refused when the file was read.
            codecs[usize::from(parameters.config_id) % CONFIGS] = QuicLb::new(parameters).ok();
        }
        let hash = FlowHash::new(config.codecs.first().and_then(|first| first.key));
        let known = |id: &ServerId, address| {
            let mut all = before.into_iter().flat_map(|before| &before.machines);
            all.find(|machine| machine.server_id == *id && machine.address == address)
        };
        let machine = |machine: &super::config::ResolvedMachine| {
            let health =
                known(&machine.server_id, machine.address).map(|known| known.health.clone()).unwrap_or_default();
            let weight = hash.of_server(&machine.server_id);
            let super::config::ResolvedMachine { server_id, address, drains } = *machine;
            Machine { server_id, address, drains, weight, health }
        };
        let machines: Vec<Machine> = config.machines.iter().map(machine).collect();
        let by_id = machines.iter().enumerate().map(|(number, machine)| (machine.server_id, number)).collect();
        let addresses = machines.iter().map(|machine| machine.address).collect();
        Self { codecs, by_id, addresses, machines, hash }
    }

    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Returns whether a machine has this address.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.addresses.contains(&SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// Chooses the machine for a packet of a client. `None` when it is no packet.
    pub(crate) fn choose(&self, packet: &[u8], client: SocketAddr) -> Option<Choice> {
        let (first, rest) = packet.split_first()?;
        // The length of an ID in a short header follows from the configuration that the ID names.
        let id = if first & wire::bits::LONG_FORM == 0 {
            Some(rest).filter(|rest| !rest.is_empty())
        } else {
            wire::long_dcid(packet)
        }?;
        let machine = self.routed(id);
        if let Some((machine, hint)) = machine.filter(|(machine, _)| self.machines[*machine].health() != Health::Down) {
            return Some(Choice { machine, hint, is_routed: true });
        }
        // Both datagrams of a long ClientHello come from one address, and have a connection ID of the client's choice.
        let flow = self.hash.of_client(client);
        Some(Choice { machine: self.unrouted(flow), hint: flow.to_be_bytes()[7], is_routed: false })
    }

    /// The machine that an ID names, and the first byte of its nonce.
    fn routed(&self, id: &[u8]) -> Option<(usize, u8)> {
        let decoded = self.codecs.get(usize::from(config_id(id)?))?.as_ref()?.decode(id)?;
        let machine = self.by_id.get(&decoded.server_id())?;
        Some((*machine, decoded.nonce()[0]))
    }

    /// Rendezvous hashing: the machine with the highest weight for this client. When machines come or go, only the clients of these
    /// get another one.
    fn unrouted(&self, flow: u64) -> usize {
        let best = |accepts: fn(&Machine) -> bool| {
            let able = self.machines.iter().enumerate().filter(|(_, machine)| accepts(machine));
            able.max_by_key(|(_, machine)| (mix(flow ^ machine.weight), machine.server_id)).map(|(number, _)| number)
        };
        // A connection at a machine that is about to end is better than none; when none answers, the checks may be wrong.
        best(Machine::takes_new)
            .or_else(|| best(|machine| machine.health() != Health::Down))
            .or_else(|| best(|_| true))
            .unwrap_or(0)
    }
}

/// The finaliser of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Hash of addresses and server IDs under a key: without it, clients cannot choose their machine.
struct FlowHash(EncryptingKey);

impl FlowHash {
    /// A hash of the first key of the configuration, which all load balancers have.
    fn new(key: Option<[u8; 16]>) -> Self {
        let new = |key: &[u8; 16]| {
            let key = UnboundCipherKey::new(&AES_128, key).expect("the key has the cipher's length");
            Self(EncryptingKey::ecb(key).expect("AES has this mode"))
        };
        // A key of its own: what is encrypted here has nothing to do with connection IDs.
        let mut own = *b"tiderace balance";
        new(&key.unwrap_or_default()).encrypt(&mut own);
        new(&own)
    }

    fn encrypt(&self, block: &mut [u8; 16]) {
        self.0.encrypt(block).expect("a whole block");
    }

    fn first(block: &[u8; 16]) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|at| block[at]))
    }

    /// Hash of address and port of a client. The rest of the 4-tuple does not differ between packets of a client, and load balancers at
    /// different addresses choose the same machine without it.
    fn of_client(&self, client: SocketAddr) -> u64 {
        let mut block = match client.ip().to_canonical() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        self.encrypt(&mut block);
        block.iter_mut().zip(client.port().to_be_bytes()).for_each(|(byte, port)| *byte ^= port);
        self.encrypt(&mut block);
        Self::first(&block)
    }

    fn of_server(&self, server_id: &ServerId) -> u64 {
        let mut block = [0xff; 16];
        let id = server_id.as_slice();
        block[..id.len()].copy_from_slice(id);
        self.encrypt(&mut block);
        Self::first(&block)
    }
}

#[cfg(test)]
mod tests {
    use tiderace::transport::quic_lb::QuicLbParameters;

    use super::*;
    use crate::balance::config::ResolvedMachine;

    fn parameters(config_id: u8, key: u8) -> QuicLbParameters {
        QuicLbParameters { config_id, server_id_len: 2, nonce_len: 14, key: Some([key; 16]), encodes_len: false }
    }

    fn config(machines: &[(&str, bool)]) -> Resolved {
        let machine = |(number, (id, drains)): (usize, &(&str, bool))| ResolvedMachine {
            server_id: id.parse().unwrap(),
            address: ([10, 0, 0, u8::try_from(number).unwrap()], 443).into(),
            drains: *drains,
        };
        Resolved {
            listen: Vec::new(),
            workers: 1,
            codecs: vec![parameters(0, 1), parameters(3, 2)],
            machines: machines.iter().enumerate().map(machine).collect(),
            interval: None,
            failures: 3,
        }
    }

    fn table(machines: &[(&str, bool)]) -> Table {
        Table::new(&config(machines), None)
    }

    fn clients() -> impl Iterator<Item = SocketAddr> {
        (0..3_000u16).map(|number| ([198, 51, 100, number.to_be_bytes()[1]], 1_000 + number).into())
    }

    fn id(config: u8, key: u8, server_id: &str, nonce: u8) -> Vec<u8> {
        let codec = QuicLb::new(&parameters(config, key)).unwrap();
        codec.encode(&server_id.parse().unwrap(), &[nonce; 14], 9).unwrap().to_vec()
    }

    fn short(id: &[u8]) -> Vec<u8> {
        [&[0x40], id, &[0; 30]].concat()
    }

    fn long(id: &[u8]) -> Vec<u8> {
        [&[0xc0, 0, 0, 0, 1, u8::try_from(id.len()).unwrap()], id, &[0; 30]].concat()
    }

    const THREE: [(&str, bool); 3] = [("0a01", false), ("0a02", false), ("0a03", false)];

    #[test]
    fn connection_ids_name_their_machine_wherever_the_client_is() {
        let table = table(&THREE);
        for (config, key) in [(0, 1), (3, 2)] {
            for (number, (server, _)) in THREE.iter().enumerate() {
                let id = id(config, key, server, 7);
                for client in clients().take(50) {
                    let expected = Some(Choice { machine: number, hint: 7, is_routed: true });
                    assert_eq!(
                        (table.choose(&short(&id), client), table.choose(&long(&id), client)),
                        (expected, expected)
                    );
                }
            }
        }
    }

    #[test]
    fn what_has_no_routable_id_goes_by_the_clients_address() {
        let table = table(&THREE);
        let client: SocketAddr = "198.51.100.1:5000".parse().unwrap();
        let other_key = id(0, 9, "0a01", 7);
        let unknown_server = id(0, 1, "0b01", 7);
        let unknown_config = id(2, 1, "0a01", 7);
        let mut unroutable = id(0, 1, "0a01", 7);
        unroutable[0] |= 0xe0;
        let expected = table.choose(&long(&[1, 2, 3, 4, 5, 6, 7, 8]), client).unwrap();
        assert!(!expected.is_routed);
        for id in [&other_key, &unknown_server, &unknown_config, &unroutable, &vec![0; 8], &vec![7; 20]] {
            assert_eq!(table.choose(&long(id), client), Some(expected));
            assert_eq!(table.choose(&short(id), client), Some(expected));
        }
        let mapped: SocketAddr = "[::ffff:198.51.100.1]:5000".parse().unwrap();
        assert_eq!(table.choose(&long(&[9; 8]), mapped), Some(expected));
        for broken in [&[][..], &[0x40], &[0xc0, 0, 0, 0, 1], &[0xc0, 0, 0, 0, 1, 9, 1, 2]] {
            assert_eq!(table.choose(broken, client), None);
        }
    }

    #[test]
    fn load_balancers_with_one_configuration_choose_alike() {
        let (one, other) = (table(&THREE), table(&[THREE[2], THREE[0], THREE[1]]));
        let machine = |table: &Table, client| {
            let choice = table.choose(&long(&[5; 8]), client).unwrap();
            (table.machines()[choice.machine].server_id, choice.hint)
        };
        let mut counts: HashMap<ServerId, u32> = HashMap::new();
        for client in clients() {
            assert_eq!(machine(&one, client), machine(&other, client));
            *counts.entry(machine(&one, client).0).or_default() += 1;
        }
        assert!(counts.len() == 3 && counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    /// Machines of all clients that have no connection yet.
    fn choices(table: &Table) -> Vec<ServerId> {
        let machine = |client| table.choose(&long(&[5; 8]), client).unwrap().machine;
        clients().map(|client| table.machines()[machine(client)].server_id).collect()
    }

    #[test]
    fn only_clients_of_a_machine_that_comes_or_goes_get_another_one() {
        let (three, two) = (choices(&table(&THREE)), choices(&table(&THREE[..2])));
        let last: ServerId = "0a03".parse().unwrap();
        assert!(three.iter().zip(&two).all(|(before, after)| before == after || *before == last));
        // A machine that drains gets the same clients less.
        assert_eq!(choices(&table(&[THREE[0], THREE[1], ("0a03", true)])), two);
    }

    #[test]
    fn machines_that_drain_keep_their_connections_and_those_that_are_down_do_not() {
        let config = config(&[THREE[0], THREE[1], ("0a03", true)]);
        let table = Table::new(&config, None);
        let packet = short(&id(0, 1, "0a03", 7));
        let client = "198.51.100.1:5000".parse().unwrap();
        let machine = |table: &Table, packet: &[u8]| table.choose(packet, client).unwrap().machine;
        assert_eq!(machine(&table, &packet), 2);
        table.machines()[2].set_health(Health::Closing);
        assert_eq!(machine(&table, &packet), 2);
        table.machines()[2].set_health(Health::Down);
        assert_ne!(machine(&table, &packet), 2);
        assert_eq!(Table::new(&config, Some(&table)).machines()[2].health(), Health::Down, "health outlives a reload");

        for other in table.machines() {
            other.set_health(Health::Down);
        }
        assert!(machine(&table, &long(&[5; 8])) < 3, "when none answers, one gets it all the same");
        table.machines()[2].set_health(Health::Up);
        assert_eq!(machine(&table, &long(&[5; 8])), 2, "one that drains is better than one that does not answer");
    }

    #[test]
    fn only_machines_are_known_by_address() {
        let table = table(&THREE);
        assert!(table.has("10.0.0.1:443".parse().unwrap()) && table.has("[::ffff:10.0.0.1]:443".parse().unwrap()));
        assert!(!table.has("10.0.0.1:444".parse().unwrap()) && !table.has("10.0.0.9:443".parse().unwrap()));
    }
}
