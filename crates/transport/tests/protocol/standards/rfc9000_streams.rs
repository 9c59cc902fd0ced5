//! RFC 9000 §2 to §4, §7.3, §18: streams, flow control, transport parameters.

use super::*;

// RFC 9000 §2.1 MUST NOT-1; RFC 9000 §4.6 MUST NOT-1, MUST-3, SHOULD-1; RFC 9000 §19.11 MUST-2, MUST NOT-1
// RFC 9000 §19.14 SHOULD-1
#[test]
fn streams_are_opened_as_the_peer_permits() {
    let mut puppet = server().connected();
    let handle = puppet.handle.unwrap();
    let open = |puppet: &mut Puppet| puppet.victim.connection_mut(handle).unwrap().open(Dir::Bi);
    let mut ids = BTreeSet::new();
    while let Some(id) = open(&mut puppet) {
        assert!(ids.insert(id));
    }
    assert_eq!(ids.len(), 10, "what the puppet offers");
    puppet.collect();
    assert_eq!(count(&puppet, |f| *f == Frame::StreamsBlocked { dir: Dir::Bi, limit: 10 }), 1);
    for (limit, opens) in [(9, 0), (0, 0), (11, 1), (10, 0), (11, 0), (13, 2)] {
        puppet.send(Level::OneRtt, &bytes(&[Frame::MaxStreams { dir: Dir::Bi, limit }]));
        let opened = std::iter::from_fn(|| open(&mut puppet)).inspect(|id| assert!(ids.insert(*id))).count();
        assert_eq!(opened, opens, "{limit}");
    }
}

// RFC 9000 §3.2 MUST-1
#[test]
fn a_stream_opens_those_before_it() {
    let mut puppet = client().connected();
    let frame = Frame::Stream(StreamFrame { id: StreamId(12), offset: 0, fin: false, data: b"x" });
    puppet.send(Level::OneRtt, &bytes(&[frame]));
    let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
    let accepted: Vec<_> = std::iter::from_fn(|| connection.accept(Dir::Bi)).collect();
    assert_eq!(accepted, [StreamId(0), StreamId(4), StreamId(8), StreamId(12)]);
    assert_eq!(connection.accept(Dir::Uni), None);
}

// RFC 9000 §2.2 MUST NOT-2; RFC 9000 §4.1 MUST NOT-1, MUST-2, SHOULD-1; RFC 9000 §4.5 MUST NOT-1
// RFC 9000 §19.10 MUST NOT-1; RFC 9000 §19.12 SHOULD-1; RFC 9000 §19.13 SHOULD-1
#[test]
fn data_stays_within_the_credit_and_before_the_end() {
    for (stream, whole) in [(100, 1_000), (1_000, 100)] {
        let mut puppet = Puppet::server(&Profile::default(), |p, _| {
            p.initial_max_stream_data_bidi_remote = stream;
            p.initial_max_data = whole;
        })
        .connected();
        let handle = puppet.handle.unwrap();
        let connection = puppet.victim.connection_mut(handle).unwrap();
        let id = connection.open(Dir::Bi).unwrap();
        connection.write(id, &mut Bytes::from(vec![1; 5_000])).unwrap();
        connection.finish(id).unwrap();
        assert!(connection.write(id, &mut Bytes::from_static(b"more")).is_err(), "nothing comes behind the end");
        let end = |puppet: &Puppet| {
            let ends = puppet.frames().filter_map(|(_, f)| match f {
                Frame::Stream(f) => Some(f.offset + f.data.len() as u64),
                _ => None,
            });
            ends.max()
        };
        for limit in [100, 90, 100, 350, 200] {
            puppet.send(Level::OneRtt, &bytes(&[Frame::MaxData(limit), Frame::MaxStreamData { id, limit }]));
            puppet.collect();
            puppet.wait(Duration::from_millis(200));
            puppet.acknowledge(Level::OneRtt);
        }
        assert_eq!(end(&puppet), Some(350));
        let blocked =
            if stream < whole { Frame::StreamDataBlocked { id, limit: 100 } } else { Frame::DataBlocked(100) };
        assert!(count(&puppet, |f| *f == blocked) > 0);
    }
}

// RFC 9000 §7.3 MUST-1; RFC 9000 §7.4 MUST NOT-1; RFC 9000 §18.2 MUST NOT-1, MUST-2, MUST NOT-5
#[test]
fn two_ends_accept_each_others_parameters() {
    for retry in [RetryPolicy::Never, RetryPolicy::Always] {
        let mut config = server_config(&Profile::default());
        config.retry = retry;
        let (mut client, handle, flight) = lonely_client();
        let mut server = server_endpoint(1, config);
        flight.iter().for_each(|d| give(&mut server, Instant::ZERO, client_address(0), d));
        converse(Instant::ZERO, (&mut client, client_address(0)), (&mut server, server_address(0)));
        assert!(client.connection(handle).unwrap().is_connected(), "{retry:?}");
    }
}
