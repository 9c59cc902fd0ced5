//! Forwarded datagrams: with a header towards machines, without one towards clients.

use std::net::{IpAddr, SocketAddr};

use quinn_udp::EcnCodepoint;
use wire::ProxyHeader;

use super::{
    counters::{Counters, add},
    table::{Choice, Machine, Table},
};

/// The most that one send carries.
const LARGEST: usize = 65_507;

/// Payloads of one read, all from one address.
pub(crate) struct Read<'a> {
    /// The sender.
    pub(crate) remote: SocketAddr,
    /// Address to which the client has sent.
    pub(crate) local: SocketAddr,
    pub(crate) ecn: Option<EcnCodepoint>,
    /// Bytes of each payload but the last.
    pub(crate) segment_size: usize,
    pub(crate) payload: &'a [u8],
}

/// Datagrams for one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) to: SocketAddr,
    /// The address to send from, where that matters.
    pub(crate) from: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) segment_size: usize,
    pub(crate) segments: usize,
    start: usize,
    len: usize,
    /// Bytes of the header in each of them.
    header: usize,
}

/// Sends that wait, with their content one after the other.
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    all: Vec<Outgoing>,
    /// Payloads that one send may carry.
    most: usize,
}

impl Outbox {
    pub(crate) fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), all: Vec::new(), most: most.max(1) }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.all.clear();
    }

    pub(crate) fn sends(&self) -> impl Iterator<Item = (&Outgoing, &[u8])> {
        self.all.iter().map(|out| (out, &self.bytes[out.start..out.start + out.len]))
    }

    /// Adds a datagram, to the send before where that is for the same connection.
    pub(crate) fn push(
        &mut self,
        to: SocketAddr,
        from: Option<IpAddr>,
        ecn: Option<EcnCodepoint>,
        header: &[u8],
        payload: &[u8],
    ) {
        let len = header.len() + payload.len();
        let most = self.most;
        let bytes = &self.bytes;
        // What is sent together arrives together: a machine looks at the first header alone to choose a thread.
        let fits = self.all.last_mut().filter(|last| {
            (last.to, last.from, last.ecn, last.header) == (to, from, ecn, header.len())
                && bytes[last.start..last.start + last.header] == *header
                && last.segments < most
                && last.len == last.segments * last.segment_size
                && len <= last.segment_size
                && last.len + len <= LARGEST
        });
        match fits {
            Some(last) => (last.segments, last.len) = (last.segments + 1, last.len + len),
            None => self.all.push(Outgoing {
                to,
                from,
                ecn,
                segment_size: len,
                segments: 1,
                start: self.bytes.len(),
                len,
                header: header.len(),
            }),
        }
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(payload);
    }
}

/// Packets in a row for one machine, which are counted together.
#[derive(Default)]
struct Run<'t> {
    machine: Option<&'t Machine>,
    routed: u64,
    unroutable: u64,
}

impl<'t> Run<'t> {
    fn count(&mut self, machine: &'t Machine, choice: Choice) {
        if !self.machine.is_some_and(|before| std::ptr::eq(before, machine)) {
            *self = Self { machine: Some(machine), ..Self::default() };
        }
        if choice.is_routed {
            self.routed += 1;
        } else {
            self.unroutable += 1;
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if let Some(machine) = self.machine {
            add(&machine.counters.routed, self.routed);
            add(&machine.counters.unroutable, self.unroutable);
        }
    }
}

/// Adds a header to a client's datagrams, and sends them to their machines.
pub(crate) fn to_machines(table: &Table, read: &Read<'_>, counters: &Counters, outbox: &mut Outbox) {
    let (mut flow, mut run, mut malformed) = (table.flow(read.remote), Run::default(), 0);
    let mut bytes = [0; ProxyHeader::MAX_LEN];
    // Header of the packet before, by its hint.
    let mut header = None;
    for payload in read.payload.chunks(read.segment_size.max(1)) {
        let Some(choice) = flow.choose(payload) else {
            malformed += 1;
            continue;
        };
        let machine = &table.machines()[choice.machine];
        run.count(machine, choice);
        let len = match header {
            Some((hint, len)) if hint == choice.hint => len,
            _ => ProxyHeader { client: read.remote, server: read.local, hint: Some(choice.hint) }.encode(&mut bytes),
        };
        header = Some((choice.hint, len));
        outbox.push(machine.address, None, read.ecn, &bytes[..len], payload);
    }
    add(&counters.malformed, malformed);
}

/// Sends a machine's answers to the clients that their headers name. Returns how many payloads were answers, and how many were not.
pub(crate) fn unwrap(read: &Read<'_>, outbox: &mut Outbox) -> (u64, u64) {
    let (mut answered, mut malformed) = (0, 0);
    for payload in read.payload.chunks(read.segment_size.max(1)) {
        let is_good =
            |(header, len): &(ProxyHeader, usize)| header.server.port() == read.local.port() && *len < payload.len();
        let Some((header, len)) = ProxyHeader::parse(payload).filter(is_good) else {
            malformed += 1;
            continue;
        };
        answered += 1;
        let from = Some(header.server.ip()).filter(|ip| !ip.is_unspecified());
        outbox.push(header.client, from, read.ecn, &[], &payload[len..]);
    }
    (answered, malformed)
}

/// Removes the headers of a machine's answers, and sends them to the clients. Only machines may send through this: another sender could use
/// the address of the service for any datagrams to any host.
pub(crate) fn to_clients(table: &Table, read: &Read<'_>, counters: &Counters, outbox: &mut Outbox) {
    let Some(machine) = table.machine_at(read.remote) else {
        add(&counters.refused, read.payload.chunks(read.segment_size.max(1)).len() as u64);
        return;
    };
    let (answered, malformed) = unwrap(read, outbox);
    add(&machine.counters.answered, answered);
    add(&counters.malformed, malformed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{
        config::{Resolved, ResolvedMachine},
        counters::get,
    };

    fn table() -> Table {
        let machine = |number: u8| ResolvedMachine {
            server_id: format!("0a0{number}").parse().unwrap(),
            address: ([10, 0, 0, number], 443).into(),
            drains: false,
        };
        let machines = vec![machine(1), machine(2)];
        Table::new(&Resolved::of(machines), None)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn read<'a>(remote: &str, segment_size: usize, payload: &'a [u8]) -> Read<'a> {
        let (remote, local) = (address(remote), address("203.0.113.1:443"));
        Read { remote, local, ecn: Some(EcnCodepoint::Ect0), segment_size, payload }
    }

    fn sent(outbox: &Outbox) -> Vec<(Outgoing, Vec<u8>)> {
        outbox.sends().map(|(out, bytes)| (*out, bytes.to_vec())).collect()
    }

    #[test]
    fn a_train_goes_out_as_a_train_and_comes_back_as_one() {
        let (table, counters, mut outbox) = (table(), Counters::default(), Outbox::new(64));
        to_machines(&table, &read("198.51.100.1:5000", 100, &[0x40; 350]), &counters, &mut outbox);
        let out = sent(&outbox);
        assert_eq!((out.len(), out[0].0.segments, out[0].0.segment_size), (1, 4, 132));
        assert!(table.machine_at(out[0].0.to).is_some() && out[0].0.ecn == Some(EcnCodepoint::Ect0));
        let segments: Vec<_> = out[0].1.chunks(132).map(|segment| ProxyHeader::parse(segment).unwrap()).collect();
        assert!(segments.iter().all(|(header, len)| header.client == address("198.51.100.1:5000") && *len == 32));

        let answers = Read { remote: out[0].0.to, ..read("10.0.0.1:443", 132, &out[0].1) };
        outbox.clear();
        to_clients(&table, &answers, &counters, &mut outbox);
        let back = sent(&outbox);
        assert_eq!((back.len(), back[0].0.to, back[0].0.segment_size), (1, address("198.51.100.1:5000"), 100));
        assert_eq!((back[0].0.from, &back[0].1[..]), (Some(IpAddr::from([203, 0, 113, 1])), &[0x40; 350][..]));
        let machine = |address: &str| table.machine_at(address.parse().unwrap()).unwrap();
        let sent_to = table.machine_at(out[0].0.to).unwrap();
        assert_eq!((get(&sent_to.counters.unroutable), get(&sent_to.counters.routed)), (4, 0));
        assert_eq!(get(&machine("10.0.0.1:443").counters.answered), 4);
    }

    #[test]
    fn nobody_but_a_machine_sends_through_it() {
        let (table, counters, mut outbox) = (table(), Counters::default(), Outbox::new(64));
        let mut header = [0; ProxyHeader::MAX_LEN];
        let victim = ProxyHeader { client: address("192.0.2.66:53"), server: address("203.0.113.1:443"), hint: None };
        let len = victim.encode(&mut header);
        let answer = [&header[..len], &[7; 100]].concat();
        for stranger in ["198.51.100.9:443", "10.0.0.1:444"] {
            to_clients(&table, &read(stranger, answer.len(), &answer), &counters, &mut outbox);
        }
        assert!(sent(&outbox).is_empty());
        to_clients(&table, &read("10.0.0.1:443", answer.len(), &answer), &counters, &mut outbox);
        assert_eq!(sent(&outbox).len(), 1);
        // Without a header, with nothing behind it, and for an address that clients do not send to.
        outbox.clear();
        to_clients(&table, &read("10.0.0.1:443", 100, &[0x40; 100]), &counters, &mut outbox);
        to_clients(&table, &read("10.0.0.1:443", len, &header[..len]), &counters, &mut outbox);
        let other = ProxyHeader { server: address("203.0.113.1:444"), ..victim };
        let len = other.encode(&mut header);
        to_clients(&table, &read("10.0.0.1:443", 200, &[&header[..len], &[7; 100]].concat()), &counters, &mut outbox);
        assert!(sent(&outbox).is_empty());
        assert_eq!((counters.refused.into_inner(), counters.malformed.into_inner()), (2, 3));
    }

    #[test]
    fn sends_have_one_client_and_no_more_than_the_system_takes() {
        let mut outbox = Outbox::new(4);
        let (to, ecn) = (address("10.0.0.1:443"), None);
        for _ in 0..6 {
            outbox.push(to, None, ecn, b"one", &[1; 50]);
        }
        outbox.push(to, None, ecn, b"two", &[2; 50]);
        outbox.push(to, None, ecn, b"two", &[2; 40]);
        outbox.push(to, None, ecn, b"two", &[2; 40]);
        outbox.push(to, None, ecn, b"two", &[2; 60]);
        let sizes: Vec<_> = sent(&outbox).iter().map(|(out, bytes)| (out.segments, bytes.len())).collect();
        assert_eq!(sizes, [(4, 212), (2, 106), (2, 96), (1, 43), (1, 63)]);
        outbox.clear();
        let mut outbox = Outbox::new(64);
        (0..64).for_each(|_| outbox.push(to, None, ecn, b"one", &[1; 1_400]));
        assert!(sent(&outbox).iter().all(|(_, bytes)| bytes.len() <= LARGEST));
    }
}
