//! Choice of a machine: a function of the packet, the client's address, the configuration and the health of the machines. So load balancers
//! with one configuration choose the same machine.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use aws_lc_rs::cipher::{AES_128, EncryptingKey, UnboundCipherKey};
use tiderace::transport::quic_lb::{QuicLb, ServerId, config_id};

use super::{
    config::{Affinity, Resolved, TcpSettings},
    counters::MachineCounters,
    health::{Asked, Health, HealthState},
};

/// Configurations of connection IDs that there may be.
const CONFIGS: usize = 7;

/// A machine that serves.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) server_id: ServerId,
    pub(crate) address: SocketAddr,
    pub(crate) drains: bool,
    /// Hash that orders the machines for a client.
    weight: u64,
    /// Shared with the machine of the configuration before, as the counters are.
    health: HealthState,
    pub(crate) counters: Arc<MachineCounters>,
}

impl Machine {
    pub(crate) fn health(&self) -> Health {
        self.health.get()
    }

    fn takes_new(&self) -> bool {
        !self.drains && self.health() == Health::Up
    }
}

impl Asked for Machine {
    fn server_id(&self) -> ServerId {
        self.server_id
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn state(&self) -> &HealthState {
        &self.health
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
    by_address: HashMap<SocketAddr, usize>,
    hash: FlowHash,
    affinity: Affinity,
    /// Limits of connections of TCP.
    pub(crate) tcp: TcpSettings,
}

/// Machines for the packets of one client that were read together: each connection ID is decoded once.
pub(crate) struct Flow<'t> {
    table: &'t Table,
    client: SocketAddr,
    /// Choice for packets that name no machine.
    unrouted: Option<Choice>,
    /// The connection ID before, as far as it is decoded, and its choice if it names a machine.
    last: Option<([u8; MAX_ID], usize, Option<Choice>)>,
}

/// Most bytes of a connection ID that are decoded.
const MAX_ID: usize = 20;

impl Flow<'_> {
    /// Chooses the machine for a packet. `None` when it is no packet.
    pub(crate) fn choose(&mut self, packet: &[u8]) -> Option<Choice> {
        let (first, rest) = packet.split_first()?;
        // The length of an ID in a short header follows from the configuration that the ID names.
        let id = if first & wire::bits::LONG_FORM == 0 {
            Some(rest).filter(|rest| !rest.is_empty())
        } else {
            wire::long_dcid(packet)
        }?;
        let known = self.last.as_ref().filter(|(last, len, _)| id.get(..*len) == Some(&last[..*len]));
        let routed = match known {
            Some((_, _, choice)) => *choice,
            None => self.decode(id),
        };
        // Both datagrams of a long ClientHello come from one address, and have a connection ID of the client's choice.
        Some(routed.unwrap_or_else(|| *self.unrouted.get_or_insert_with(|| self.table.unrouted(self.client))))
    }

    fn decode(&mut self, id: &[u8]) -> Option<Choice> {
        let codec = self.table.codecs.get(usize::from(config_id(id)?))?.as_ref()?;
        let whole = id.get(..codec.id_len())?;
        let choice = self.table.routed(codec, id);
        let mut last = [0; MAX_ID];
        last[..whole.len()].copy_from_slice(whole);
        self.last = Some((last, whole.len(), choice));
        choice
    }
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
            let counters =
                known(&machine.server_id, machine.address).map(|known| known.counters.clone()).unwrap_or_default();
            let super::config::ResolvedMachine { server_id, address, drains } = *machine;
            Machine { server_id, address, drains, weight, health, counters }
        };
        let machines: Vec<Machine> = config.machines.iter().map(machine).collect();
        let by_id = machines.iter().enumerate().map(|(number, machine)| (machine.server_id, number)).collect();
        let by_address = machines.iter().enumerate().map(|(number, machine)| (machine.address, number)).collect();
        Self { codecs, by_id, by_address, machines, hash, affinity: config.affinity, tcp: config.tcp }
    }

    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// The machine that has this address.
    pub(crate) fn machine_at(&self, address: SocketAddr) -> Option<&Machine> {
        let number = self.by_address.get(&SocketAddr::new(address.ip().to_canonical(), address.port()))?;
        self.machines.get(*number)
    }

    /// Packets of a client that were read together.
    pub(crate) fn flow(&self, client: SocketAddr) -> Flow<'_> {
        Flow { table: self, client, unrouted: None, last: None }
    }

    /// The machine that an ID names, unless it is down, and the first byte of its nonce.
    fn routed(&self, codec: &QuicLb, id: &[u8]) -> Option<Choice> {
        let decoded = codec.decode(id)?;
        let machine = *self.by_id.get(&decoded.server_id())?;
        let is_down = self.machines[machine].health() == Health::Down;
        (!is_down).then(|| Choice { machine, hint: decoded.nonce()[0], is_routed: true })
    }

    /// Machine for a client's packets that name none.
    fn unrouted(&self, client: SocketAddr) -> Choice {
        let flow = self.hash.of_client(client);
        let machine = self.preferred(self.of_affinity(client), &[]);
        Choice { machine: machine.unwrap_or(0), hint: flow.to_be_bytes()[7], is_routed: false }
    }

    /// The machine for a connection of TCP, which none of those that were `tried` has taken. `None` when no other is left.
    pub(crate) fn for_connection(&self, client: SocketAddr, tried: &[usize]) -> Option<usize> {
        self.preferred(self.of_affinity(client), tried)
    }

    fn of_affinity(&self, client: SocketAddr) -> u64 {
        match self.affinity {
            Affinity::AddressAndPort => self.hash.of_client(client),
            Affinity::Address => self.hash.of_client(SocketAddr::new(client.ip(), 0)),
        }
    }

    /// Rendezvous hashing: the machine with the highest weight for this client. When machines come or go, only the clients of these
    /// get another one.
    fn preferred(&self, flow: u64, tried: &[usize]) -> Option<usize> {
        let best = |accepts: fn(&Machine) -> bool| {
            let able = self
                .machines
                .iter()
                .enumerate()
                .filter(|(number, machine)| accepts(machine) && !tried.contains(number));
            able.max_by_key(|(_, machine)| (mix(flow ^ machine.weight), machine.server_id)).map(|(number, _)| number)
        };
        // A connection at a machine that is about to end is better than none; when none answers, the checks may be wrong.
        best(Machine::takes_new).or_else(|| best(|machine| machine.health() != Health::Down)).or_else(|| best(|_| true))
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
        let machines = machines.iter().enumerate().map(machine).collect();
        Resolved { codecs: vec![parameters(0, 1), parameters(3, 2)], ..Resolved::of(machines) }
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
                        (table.flow(client).choose(&short(&id)), table.flow(client).choose(&long(&id))),
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
        let expected = table.flow(client).choose(&long(&[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
        assert!(!expected.is_routed);
        for id in [&other_key, &unknown_server, &unknown_config, &unroutable, &vec![0; 8], &vec![7; 20]] {
            assert_eq!(table.flow(client).choose(&long(id)), Some(expected));
            assert_eq!(table.flow(client).choose(&short(id)), Some(expected));
        }
        let mapped: SocketAddr = "[::ffff:198.51.100.1]:5000".parse().unwrap();
        assert_eq!(table.flow(mapped).choose(&long(&[9; 8])), Some(expected));
        for broken in [&[][..], &[0x40], &[0xc0, 0, 0, 0, 1], &[0xc0, 0, 0, 0, 1, 9, 1, 2]] {
            assert_eq!(table.flow(client).choose(broken), None);
        }
    }

    #[test]
    fn load_balancers_with_one_configuration_choose_alike() {
        let (one, other) = (table(&THREE), table(&[THREE[2], THREE[0], THREE[1]]));
        let machine = |table: &Table, client| {
            let choice = table.flow(client).choose(&long(&[5; 8])).unwrap();
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
        let machine = |client| table.flow(client).choose(&long(&[5; 8])).unwrap().machine;
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
        let machine = |table: &Table, packet: &[u8]| table.flow(client).choose(packet).unwrap().machine;
        assert_eq!(machine(&table, &packet), 2);
        table.machines()[2].state().set(Health::Closing);
        assert_eq!(machine(&table, &packet), 2);
        table.machines()[2].state().set(Health::Down);
        assert_ne!(machine(&table, &packet), 2);
        assert_eq!(Table::new(&config, Some(&table)).machines()[2].health(), Health::Down, "health outlives a reload");

        for other in table.machines() {
            other.state().set(Health::Down);
        }
        assert!(machine(&table, &long(&[5; 8])) < 3, "when none answers, one gets it all the same");
        table.machines()[2].state().set(Health::Up);
        assert_eq!(machine(&table, &long(&[5; 8])), 2, "one that drains is better than one that does not answer");
    }

    #[test]
    fn only_machines_are_known_by_address() {
        let table = table(&THREE);
        let has = |address: &str| table.machine_at(address.parse().unwrap()).is_some();
        assert!(has("10.0.0.1:443") && has("[::ffff:10.0.0.1]:443"));
        assert!(!has("10.0.0.1:444") && !has("10.0.0.9:443"));
    }

    #[test]
    fn packets_that_are_read_together_are_decoded_once_and_chosen_alike() {
        let table = table(&THREE);
        let client = "198.51.100.1:5000".parse().unwrap();
        let unknown = id(0, 9, "0a01", 7);
        let ids = [id(0, 1, "0a01", 7), id(0, 1, "0a01", 7), id(3, 2, "0a02", 9), unknown.clone(), unknown, vec![5; 8]];
        let mut flow = table.flow(client);
        let mut decoded = Vec::new();
        for id in &ids {
            for packet in [short(id), long(id), short(id)] {
                let alone = table.flow(client).choose(&packet);
                assert_eq!(flow.choose(&packet), alone, "{id:?}");
            }
            decoded.push(flow.last.map(|(last, _, choice)| (last, choice.map(|choice| choice.machine))));
        }
        assert_eq!((decoded[0], decoded[3]), (decoded[1], decoded[4]));
        assert_eq!(decoded[3].unwrap().1, None, "an ID that names nobody is not decoded again");
        // A client may cut an ID that the table has seen whole.
        assert_eq!(flow.choose(&long(&ids[0][..8])), table.flow(client).choose(&long(&[1; 8])));
    }

    #[test]
    fn affinity_by_address_brings_all_connections_of_a_client_to_one_machine() {
        let by = |affinity| Table::new(&Resolved { affinity, ..config(&THREE) }, None);
        let (address, port) = (by(Affinity::Address), by(Affinity::AddressAndPort));
        let machines = |table: &Table| -> std::collections::BTreeSet<usize> {
            let client = |port: u16| SocketAddr::new([198, 51, 100, 7].into(), port);
            let quic = (1..50).map(|port| table.flow(client(port)).choose(&long(&[5; 8])).unwrap().machine);
            quic.chain((50..100).map(|port| table.for_connection(client(port), &[]).unwrap())).collect()
        };
        assert_eq!((machines(&address).len(), machines(&port).len()), (1, 3));
        let hints: std::collections::BTreeSet<u8> = (1..50)
            .map(|port| {
                address.flow(SocketAddr::new([198, 51, 100, 7].into(), port)).choose(&long(&[5; 8])).unwrap().hint
            })
            .collect();
        assert!(hints.len() > 10, "the threads of a machine share the connections of one client: {hints:?}");
    }

    #[test]
    fn a_connection_that_a_machine_does_not_take_goes_to_the_next_one() {
        let table = table(&[THREE[0], THREE[1], ("0a03", true)]);
        let client = "198.51.100.1:5000".parse().unwrap();
        let first = table.for_connection(client, &[]).unwrap();
        let second = table.for_connection(client, &[first]).unwrap();
        assert!(first < 2 && second < 2 && first != second);
        assert_eq!(table.for_connection(client, &[first, second]), Some(2), "one that drains is the last");
        assert_eq!(table.for_connection(client, &[0, 1, 2]), None);
        table.machines()[first].state().set(Health::Closing);
        assert_eq!(table.for_connection(client, &[]), Some(second));
    }
}
