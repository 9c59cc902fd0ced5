use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn peer(number: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], number))
}

fn assign(context: u64, peer: Option<SocketAddr>) -> Compression {
    Compression::Assign { context, peer }
}

fn proxy(max: usize) -> Contexts {
    Contexts::new(End::Proxy, max, false)
}

/// A client with an uncompressed context.
fn client() -> Contexts {
    let mut client = Contexts::new(End::Client, 4, false);
    assert_eq!(client.open_uncompressed(), Some(assign(2, None)));
    assert_eq!(taken(&mut client, Compression::Ack(2)), Ok(vec![]));
    client
}

fn taken(contexts: &mut Contexts, capsule: Compression) -> Result<Vec<Compression>, BoundFault> {
    let mut answers = Vec::new();
    contexts.take(&capsule, |peer| peer.port() != 25, &mut answers).map(|()| answers)
}

/// The example of draft-ietf-masque-connect-udp-listen, appendix A.
#[test]
fn the_example_of_the_draft() {
    let (mut client, mut proxy) = (client(), proxy(8));
    assert_eq!(taken(&mut proxy, assign(2, None)), Ok(vec![Compression::Ack(2)]));
    let [target, other] = [peer(50_000), peer(60_000)];
    for (from, to) in [(&proxy, &client), (&client, &proxy)] {
        let datagram = [&from.header(target).unwrap()[..], b"hello"].concat();
        assert_eq!(datagram.len(), 8 + 5);
        assert_eq!(to.receive(&datagram), Ok(Received::Payload(target, b"hello")));
    }
    let registration = client.open_compressed(other).unwrap();
    assert_eq!(registration, assign(4, Some(other)));
    // Until the proxy confirms it, the uncompressed one is in use.
    assert_eq!(client.header(other).unwrap().len(), 8);
    assert_eq!(taken(&mut proxy, registration), Ok(vec![Compression::Ack(4)]));
    assert_eq!(taken(&mut client, Compression::Ack(4)), Ok(vec![]));
    for (from, to) in [(&proxy, &client), (&client, &proxy)] {
        let datagram = [&from.header(other).unwrap()[..], b"hello"].concat();
        assert_eq!(datagram, b"\x04hello");
        assert_eq!(to.receive(&datagram), Ok(Received::Payload(other, b"hello")));
    }
    let close = client.close(2).unwrap();
    assert_eq!(taken(&mut proxy, close), Ok(vec![]));
    for end in [&client, &proxy] {
        assert_eq!((end.header(target), end.open()), (None, 1));
        assert!(end.header(other).is_some(), "compressed contexts stay");
        // What comes late is discarded silently.
        assert_eq!(end.receive(b"\x02\x04\xc0\0\x02\x01\xc3\x50late"), Ok(Received::Unknown));
    }
    // With another ID it may be opened again.
    assert_eq!(client.open_uncompressed(), Some(assign(6, None)));
    assert_eq!(taken(&mut proxy, assign(6, None)), Ok(vec![Compression::Ack(6)]));
}

/// draft-ietf-masque-connect-udp-listen §3.1: parity, repeated IDs; §4: one uncompressed context, of the client
#[test]
fn violations_of_a_client_abort_the_stream() {
    let [one, two] = [Some(peer(1)), Some(peer(2))];
    for (before, capsule, fault) in [
        (&[][..], assign(3, one), BoundFault::Parity(3)),
        (&[assign(2, one)], assign(2, two), BoundFault::RepeatedContext(2)),
        (&[assign(2, None)], assign(2, None), BoundFault::RepeatedContext(2)),
        // Closed and rejected IDs are used up, too.
        (&[assign(2, one), Compression::Close(2)], assign(2, one), BoundFault::RepeatedContext(2)),
        (&[assign(2, Some(peer(25)))], assign(2, one), BoundFault::RepeatedContext(2)),
        (&[assign(2, None)], assign(4, None), BoundFault::SecondUncompressed),
        (&[assign(2, one)], assign(4, one), BoundFault::RepeatedTarget(peer(1))),
        (&[], Compression::Ack(1), BoundFault::UnknownAck(1)),
        (&[assign(2, one)], Compression::Ack(2), BoundFault::UnknownAck(2)),
    ] {
        let mut proxy = proxy(8);
        before.iter().for_each(|capsule| drop(taken(&mut proxy, *capsule).unwrap()));
        assert_eq!(taken(&mut proxy, capsule), Err(fault), "{capsule:?} after {before:?}");
    }
    // A peer whose context was closed may get another one.
    let mut proxy = proxy(8);
    for capsule in [assign(2, one), Compression::Close(2)] {
        taken(&mut proxy, capsule).unwrap();
    }
    assert_eq!(taken(&mut proxy, assign(4, one)), Ok(vec![Compression::Ack(4)]));
    // One that never was is closed in vain.
    assert_eq!(taken(&mut proxy, Compression::Close(40)), Ok(vec![]));
}

/// draft-ietf-masque-connect-udp-listen §3.1, §3.2, §4
#[test]
fn violations_of_a_proxy_abort_the_stream() {
    for (capsule, fault) in [
        (assign(2, Some(peer(1))), BoundFault::Parity(2)),
        (assign(1, None), BoundFault::UncompressedByProxy),
        (Compression::Ack(4), BoundFault::UnknownAck(4)),
        (Compression::Ack(1), BoundFault::UnknownAck(1)),
    ] {
        assert_eq!(taken(&mut client(), capsule), Err(fault), "{capsule:?}");
    }
    let mut client = client();
    assert_eq!(taken(&mut client, assign(1, Some(peer(1)))), Ok(vec![Compression::Ack(1)]));
    assert_eq!(taken(&mut client, assign(3, Some(peer(1)))), Err(BoundFault::RepeatedTarget(peer(1))));
    // A confirmation that crosses the end of its context is late, and no fault.
    client.open_compressed(peer(2)).unwrap();
    client.close(4).unwrap();
    assert_eq!(taken(&mut client, Compression::Ack(4)), Ok(vec![]));
    assert!(!client.is_known(4));
}

/// draft-ietf-masque-connect-udp-listen §3.1 MUST: of two contexts for one peer, that of the proxy is closed.
#[test]
fn contexts_that_cross_leave_that_of_the_client() {
    let (mut client, mut proxy) = (client(), proxy(8));
    taken(&mut proxy, assign(2, None)).unwrap();
    let [from_client, from_proxy] = [&mut client, &mut proxy].map(|end| end.open_compressed(peer(1)).unwrap());
    assert_eq!(taken(&mut client, from_proxy), Ok(vec![Compression::Close(1)]));
    assert_eq!(taken(&mut proxy, from_client), Ok(vec![Compression::Close(1), Compression::Ack(4)]));
    assert_eq!(taken(&mut client, Compression::Close(1)), Ok(vec![]));
    assert_eq!(taken(&mut client, Compression::Ack(4)), Ok(vec![]));
    assert_eq!(taken(&mut proxy, Compression::Close(1)), Ok(vec![]));
    for end in [&client, &proxy] {
        assert_eq!((end.context_of(peer(1)), end.open()), (Some(4), 2));
    }
}

/// draft-ietf-masque-connect-udp-listen §3.1 MUST NOT
#[test]
fn a_proxy_opens_no_context_without_an_uncompressed_one() {
    let (mut client, mut proxy) = (client(), proxy(8));
    assert_eq!(proxy.open_compressed(peer(1)), None);
    taken(&mut proxy, assign(2, None)).unwrap();
    let late = proxy.open_compressed(peer(1)).unwrap();
    assert_eq!(proxy.open_compressed(peer(1)), None, "one context for a peer");
    assert_eq!(proxy.open_uncompressed(), None);
    client.close(2).unwrap();
    // It crosses the end on the way.
    assert_eq!(taken(&mut client, late), Ok(vec![Compression::Close(1)]));
}

/// draft-ietf-masque-connect-udp-listen §3 MUST NOT, MUST; RFC 9298 §5
#[test]
fn context_0_has_the_payloads_of_the_target_if_there_is_one() {
    let with = Contexts::new(End::Proxy, 8, true);
    assert_eq!(with.receive(b"\0hello"), Ok(Received::Target(b"hello")));
    assert_eq!(proxy(8).receive(b"\0hello"), Err(BoundFault::NoTarget));
    let mut long = vec![0; MAX_PAYLOAD + 2];
    assert_eq!(with.receive(&long), Err(BoundFault::TooLong));
    assert!(with.receive(&long[1..]).is_ok());
    let mut proxy = proxy(8);
    taken(&mut proxy, assign(2, Some(peer(1)))).unwrap();
    long[0] = 2;
    assert_eq!(proxy.receive(&long), Err(BoundFault::TooLong));
    taken(&mut proxy, assign(4, None)).unwrap();
    for datagram in [&b"\x04"[..], b"\x04\x04\xc0\0\x02\x01\0", b"\x04\x05\xc0\0\x02\x01\0\x01x"] {
        assert_eq!(proxy.receive(datagram), Ok(Received::Malformed));
    }
    for datagram in [&b""[..], b"\x06x", b"\x01x", b"\xc0\0"] {
        assert_eq!(proxy.receive(datagram), Ok(Received::Unknown), "{datagram:?}");
    }
}

/// draft-ietf-masque-connect-udp-listen §9 MUST: registrations beyond the limit are rejected.
#[test]
fn a_million_registrations_hold_a_bounded_number() {
    let mut in_order = proxy(8);
    let mut closed = 0;
    for number in 1..=1_000_000_u64 {
        let peer = SocketAddr::from((std::net::Ipv4Addr::from(number as u32), 53));
        let answers = taken(&mut in_order, assign(2 * number, Some(peer))).unwrap();
        closed += usize::from(answers == [Compression::Close(2 * number)]);
    }
    assert_eq!((in_order.open(), closed), (8, 999_992));
    assert!(in_order.held() <= 8 * CONTEXT + RANGE, "{}", in_order.held());
    // IDs with gaps between them.
    let mut scattered = proxy(8);
    for number in 1..=1_000_000_u64 {
        let answers = taken(&mut scattered, assign(4 * number, Some(peer(1)))).unwrap();
        if answers == [Compression::Ack(4 * number)] {
            assert_eq!(taken(&mut scattered, Compression::Close(4 * number)), Ok(vec![]));
        }
    }
    assert!(scattered.held() <= MAX_RANGES * RANGE, "{}", scattered.held());
    // Own ones, too.
    let mut client = client();
    let opened = (0..1_000).filter(|port| client.open_compressed(peer(*port)).is_some()).count();
    assert_eq!((opened, client.open()), (3, 4));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open(bool, u16),
    Uncompressed,
    Close(bool, prop::sample::Index),
    Deliver(bool),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), 20..30_u16).prop_map(|(by_client, port)| Step::Open(by_client, port)),
        Just(Step::Uncompressed),
        (any::<bool>(), any::<prop::sample::Index>()).prop_map(|(by_client, which)| Step::Close(by_client, which)),
        any::<bool>().prop_map(Step::Deliver),
        any::<bool>().prop_map(Step::Deliver),
    ]
}

/// Two ends with the capsules that are on the way between them.
struct Pair {
    ends: [Contexts; 2],
    /// On the way to each end.
    ways: [VecDeque<Compression>; 2],
}

impl Pair {
    fn send(&mut self, from: usize, capsule: Option<Compression>) {
        self.ways[1 - from].extend(capsule);
    }

    fn deliver(&mut self, to: usize) {
        let Some(capsule) = self.ways[to].pop_front() else { return };
        let answers = taken(&mut self.ends[to], capsule).unwrap_or_else(|fault| panic!("{fault}: {capsule:?}"));
        self.ways[1 - to].extend(answers);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open(by_client, port) => {
                let by = usize::from(!by_client);
                let opened = self.ends[by].open_compressed(peer(port));
                self.send(by, opened);
            }
            Step::Uncompressed => {
                let opened = self.ends[0].open_uncompressed();
                self.send(0, opened);
            }
            Step::Close(by_client, which) => {
                let by = usize::from(!by_client);
                let ids: Vec<u64> = self.ends[by].open.keys().copied().collect();
                if !ids.is_empty() {
                    let closed = self.ends[by].close(*which.get(&ids));
                    self.send(by, closed);
                }
            }
            Step::Deliver(to_client) => self.deliver(usize::from(!to_client)),
        }
    }
}

proptest! {
    /// Two ends that keep the rules find no fault with each other, and agree when all capsules have arrived.
    #[test]
    fn two_ends_agree(steps in proptest::collection::vec(any_step(), 0..80)) {
        let ends = [End::Client, End::Proxy].map(|end| Contexts::new(end, 5, false));
        let mut pair = Pair { ends, ways: Default::default() };
        for step in steps {
            pair.step(step);
        }
        while pair.ways.iter().any(|way| !way.is_empty()) {
            pair.deliver(0);
            pair.deliver(1);
        }
        let [client, proxy] = &pair.ends;
        prop_assert_eq!(&client.by_peer, &proxy.by_peer);
        prop_assert_eq!(client.uncompressed, proxy.uncompressed);
        prop_assert!(client.open.values().chain(proxy.open.values()).all(|context| context.is_known));
        prop_assert!(client.open() <= 10);
        for (peer, id) in &client.by_peer {
            prop_assert!(peer.port() != 25, "a peer that one end does not permit");
            let datagram = [&client.header(*peer).unwrap()[..], b"x"].concat();
            prop_assert_eq!(proxy.receive(&datagram), Ok(Received::Payload(*peer, b"x")));
            prop_assert_eq!(client.open[id].peer, Some(*peer));
        }
    }
}
