//! Answers of other machines: the header names the client, and they leave from the socket that clients send to.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};

use super::Machines;
use crate::balance::{
    counters::add,
    forward::{Outbox, Outgoing, Read, unwrap},
    port::{BATCH, BUFFER, Port, transmit},
};

/// Reads before other tasks of the worker get their turn.
const CALLS_PER_TURN: usize = 16;

/// Copy of a socket that clients send to. It is not read here.
pub(super) struct ClientSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    pub(super) local: SocketAddr,
}

impl ClientSocket {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let (state, local) = (UdpSocketState::new(UdpSockRef::from(&socket))?, socket.local_addr()?);
        Ok(Self { socket, state, local })
    }

    fn send(&self, out: &Outgoing, contents: &[u8]) -> io::Result<()> {
        self.state.try_send(UdpSockRef::from(&self.socket), &transmit(out, contents, self.local))
    }
}

/// Sends the answers of machines to the clients. Does not end.
pub(super) async fn take_answers(port: Arc<Port>, clients: Arc<ClientSocket>, all: Arc<Machines>) {
    let mut buffers: [Vec<u8>; BATCH] = std::array::from_fn(|_| vec![0; BUFFER]);
    let mut metas = [RecvMeta::default(); BATCH];
    let mut outbox = Outbox::new(clients.state.max_gso_segments());
    for call in 1_usize.. {
        let count = match port.receive(&mut buffers, &mut metas).await {
            Ok(count) => count,
            // An ICMP message about an earlier datagram: health checks find out by themselves.
            Err(error) => {
                tracing::debug!("cannot read answers of other machines: {error}");
                tokio::task::yield_now().await;
                continue;
            }
        };
        outbox.clear();
        for (buffer, meta) in buffers.iter().zip(&metas).take(count) {
            let read = Read {
                remote: meta.addr,
                local: clients.local,
                ecn: meta.ecn,
                segment_size: meta.stride,
                payload: &buffer[..meta.len],
            };
            pass_on(&all, &read, &mut outbox);
        }
        for (out, contents) in outbox.sends() {
            if let Err(error) = clients.send(out, contents) {
                tracing::debug!("cannot send {} bytes to {}: {error}", contents.len(), out.to);
                add(&all.drops.unsent, out.segments as u64);
            }
        }
        if call % CALLS_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Removes the headers of answers. Only a machine of the table may send through this: another sender could use the address of the service
/// for any datagrams to any host.
fn pass_on(all: &Machines, read: &Read<'_>, outbox: &mut Outbox) {
    let (table, drops) = (all.table(), &all.drops);
    let Some(machine) = table.at(read.remote) else {
        return add(&drops.stranger, read.payload.chunks(read.segment_size.max(1)).len() as u64);
    };
    let (answered, malformed) = unwrap(read, outbox);
    add(&machine.counters.answered, answered);
    add(&drops.malformed, malformed);
    if answered > 0 {
        all.note_answer();
    }
}

#[cfg(test)]
mod tests {
    use wire::ProxyHeader;

    use super::*;
    use crate::{
        balance::counters::get,
        config::{LoadBalancer, OtherMachine},
    };

    fn answer(server: &str, content: &[u8]) -> Vec<u8> {
        let mut header = [0; ProxyHeader::MAX_LEN];
        let (client, server) = ("198.51.100.1:5000".parse().unwrap(), server.parse().unwrap());
        let len = ProxyHeader { client, server, hint: None }.encode(&mut header);
        [&header[..len], content].concat()
    }

    #[tokio::test]
    async fn only_answers_of_machines_reach_clients() {
        let machine = OtherMachine { server_id: "0a02".to_owned(), address: "10.0.0.2:443".to_owned() };
        let all = Machines::default();
        all.set(&LoadBalancer { machines: vec![machine], ..LoadBalancer::default() });
        let sent = |from: &str, payload: &[u8]| {
            let mut outbox = Outbox::new(64);
            let (remote, local) = (from.parse().unwrap(), "203.0.113.1:443".parse().unwrap());
            let read = Read { remote, local, ecn: None, segment_size: payload.len(), payload };
            pass_on(&all, &read, &mut outbox);
            outbox.sends().map(|(out, bytes)| (out.to, out.from, bytes.to_vec())).collect::<Vec<_>>()
        };
        let good = answer("203.0.113.1:443", &[7; 100]);
        assert!(!all.is_answering());
        let client = ("198.51.100.1:5000".parse().unwrap(), Some([203, 0, 113, 1].into()), vec![7; 100]);
        assert_eq!(sent("10.0.0.2:443", &good), std::slice::from_ref(&client));
        assert_eq!(sent("[::ffff:10.0.0.2]:443", &good), [client]);
        assert!(all.is_answering());
        for stranger in ["10.0.0.2:444", "10.0.0.3:443"] {
            assert!(sent(stranger, &good).is_empty());
        }
        // Another port of the service, nothing behind the header, and no header.
        for bad in [answer("203.0.113.1:444", &[7; 100]), answer("203.0.113.1:443", &[]), vec![7; 100]] {
            assert!(sent("10.0.0.2:443", &bad).is_empty());
        }
        let counters = &all.table().all[0].counters;
        assert_eq!((get(&counters.answered), get(&all.drops.stranger), get(&all.drops.malformed)), (2, 2, 3));
    }
}
