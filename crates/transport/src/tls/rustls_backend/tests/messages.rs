//! Handshake messages and tickets that no implementation of the standards sends.

use super::*;

/// A handshake message without one of its extensions, which begin at `at`.
fn without_extension(message: &[u8], at: usize, ty: u16) -> Vec<u8> {
    let mut out = message[..at].to_vec();
    let mut rest = &message[at + 2..];
    let mut removed = 0;
    out.extend([0, 0]);
    while let [t0, t1, l0, l1, ..] = *rest {
        let len = 4 + usize::from(u16::from_be_bytes([l0, l1]));
        if u16::from_be_bytes([t0, t1]) == ty {
            removed += 1;
        } else {
            out.extend(&rest[..len]);
        }
        rest = &rest[len..];
    }
    assert_eq!(removed, 1, "the extension was there");
    let extensions = u16::try_from(out.len() - at - 2).unwrap();
    out[at..at + 2].copy_from_slice(&extensions.to_be_bytes());
    let body = u32::try_from(out.len() - 4).unwrap();
    out[1..4].copy_from_slice(&body.to_be_bytes()[1..]);
    out
}

/// Offset of the extensions of a ClientHello.
fn extensions_of_hello(hello: &[u8]) -> usize {
    let suites = 4 + 2 + 32 + 1 + usize::from(hello[38]);
    let compression = suites + 2 + usize::from(u16::from_be_bytes([hello[suites], hello[suites + 1]]));
    compression + 1 + usize::from(hello[compression])
}

/// Bytes that a session has written at a level.
fn written(session: &mut dyn Session, wanted: Level) -> Vec<u8> {
    let events = std::iter::from_fn(|| session.next_event());
    events
        .filter_map(|e| if let TlsEvent::Write { level, data } = e { (level == wanted).then_some(data) } else { None })
        .flatten()
        .collect()
}

// RFC 9001 §8.2 MUST-1, MUST-2
#[test]
fn transport_parameters_may_not_be_missing() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let hello = written(&mut *client, Level::Initial);
    let (_, mut other) = start(&self::client(&authority).build().unwrap(), &self::server(&authority).build().unwrap());
    let error = other.read(Level::Initial, &without_extension(&hello, extensions_of_hello(&hello), 0x39)).unwrap_err();
    assert_eq!(error.code, Code::crypto(109), "missing_extension: {error}");
    let _ = server.read(Level::Initial, &hello).unwrap();
    let mut said: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
    let mut at = |wanted: Level| {
        let data = said.iter_mut().filter_map(|e| match e {
            TlsEvent::Write { level, data } if *level == wanted => Some(std::mem::take(data)),
            _ => None,
        });
        data.flatten().collect::<Vec<u8>>()
    };
    let _ = client.read(Level::Initial, &at(Level::Initial)).unwrap();
    let flight = at(Level::Handshake);
    // EncryptedExtensions come first, and begin with the length of their list.
    let len = 4 + usize::from(u16::from_be_bytes([flight[2], flight[3]]));
    let error = client.read(Level::Handshake, &without_extension(&flight[..len], 4, 0x39)).unwrap_err();
    assert_eq!(error.code, Code::crypto(109), "missing_extension: {error}");
}

// RFC 9001 §8.1 MUST-2, MUST-3
#[test]
fn a_client_refuses_a_server_without_a_protocol() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let _ = server.read(Level::Initial, &written(&mut *client, Level::Initial)).unwrap();
    let said: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
    let at = |wanted: Level| -> Vec<u8> {
        let data = said.iter().filter_map(|e| match e {
            TlsEvent::Write { level, data } if *level == wanted => Some(data.clone()),
            _ => None,
        });
        data.flatten().collect()
    };
    let _ = client.read(Level::Initial, &at(Level::Initial)).unwrap();
    let flight = at(Level::Handshake);
    let len = 4 + usize::from(u16::from_be_bytes([flight[2], flight[3]]));
    let error = client.read(Level::Handshake, &without_extension(&flight[..len], 4, 16)).unwrap_err();
    assert_eq!(error.code, Code::crypto(120), "no_application_protocol: {error}");
}

// RFC 9001 §4.2 MUST NOT-1, MUST-1; RFC 9001 §5.3 MUST NOT-2; RFC 9001 §8.4 MUST NOT-1
#[test]
fn only_tls_13_is_spoken_without_its_compatibility_mode() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let hello = written(&mut *client, Level::Initial);
    assert_eq!(hello[38], 0, "no session ID");
    let versions = |hello: &[u8]| hello.windows(7).position(|w| w == [0, 43, 0, 3, 2, 3, 4]);
    let place = versions(&hello).expect("TLS 1.3 is offered, and nothing else");
    // A suite that nobody knows, before those that the server knows.
    let mut unknown = hello.clone();
    let suites = extensions_of_hello(&hello) - 2 - usize::from(u16::from_be_bytes([hello[39], hello[40]]));
    assert!(suites >= 41 && hello[39] == 0 && hello[40] >= 4, "two suites at least");
    unknown[41..43].copy_from_slice(&[0x13, 0xf7]);
    let _ = server.read(Level::Initial, &unknown).expect("an unknown suite does no harm");
    // A client of TLS 1.2 only.
    let (_, mut other) = start(&self::client(&authority).build().unwrap(), &self::server(&authority).build().unwrap());
    let mut old = hello;
    old[place + 6] = 3;
    let error = other.read(Level::Initial, &old).unwrap_err();
    assert_eq!(error.code, Code::crypto(70), "protocol_version: {error}");
}

// RFC 9001 §4.4 MUST-2; RFC 9001 §6 MUST-1
#[test]
fn messages_that_have_no_place_after_the_handshake_are_refused() {
    let authority = Authority::new();
    let key_update = &[24, 0, 0, 1, 0][..];
    let certificate_request = &[13, 0, 0, 11, 0, 0, 8, 0, 13, 0, 4, 0, 2, 8, 7][..];
    for (side, message, code) in [
        (Side::Client, key_update, Code::crypto(10)),
        (Side::Server, key_update, Code::crypto(10)),
        (Side::Client, certificate_request, Code::PROTOCOL_VIOLATION),
    ] {
        let (mut client, mut server) =
            start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
        converse(&mut *client, &mut *server).unwrap();
        let session = if side == Side::Client { &mut client } else { &mut server };
        assert_eq!(session.read(Level::OneRtt, message).unwrap_err().code, code, "{side:?} {message:?}");
    }
}

// RFC 9001 §4.1.3 MUST-2
#[test]
fn data_beyond_the_end_of_a_level_is_refused() {
    let authority = Authority::new();
    let (mut client, mut server) = start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
    let hello = written(&mut *client, Level::Initial);
    let error = server.read(Level::Initial, &[&hello[..], &[1, 0]].concat()).unwrap_err();
    assert_eq!(error.code, Code::PROTOCOL_VIOLATION, "{error}");
}

// RFC 9001 §4.6.1 MUST-1
#[test]
fn tickets_limit_early_data_by_nothing() {
    let authority = Authority::new();
    let ticket = |size: Option<u32>| {
        let mut extensions = Vec::new();
        if let Some(size) = size {
            extensions.extend([0, 42, 0, 4]);
            extensions.extend(size.to_be_bytes());
        }
        let mut body = vec![0, 0, 14, 16, 1, 2, 3, 4, 1, 7, 0, 3, 9, 9, 9, 0, extensions.len() as u8];
        body.extend(extensions);
        [&[4, 0, 0, body.len() as u8][..], &body].concat()
    };
    let refused = Some(Code::PROTOCOL_VIOLATION);
    for (size, expected) in
        [(None, None), (Some(u32::MAX), None), (Some(0), refused), (Some(1), refused), (Some(u32::MAX - 1), refused)]
    {
        // Whole, byte by byte, and behind another one.
        let cuts: [Vec<Vec<u8>>; 3] = [
            vec![ticket(size)],
            ticket(size).into_iter().map(|byte| vec![byte]).collect(),
            vec![[ticket(None), ticket(size)].concat()],
        ];
        for pieces in cuts {
            let (mut client, mut server) =
                start(&client(&authority).build().unwrap(), &server(&authority).build().unwrap());
            converse(&mut *client, &mut *server).unwrap();
            let error = pieces.iter().find_map(|piece| client.read(Level::OneRtt, piece).err());
            assert_eq!(error.map(|e| e.code), expected, "{size:?}");
        }
    }
}

// RFC 9369 §5 MUST NOT-1, MUST-1
#[test]
fn tickets_do_not_pass_from_one_version_to_another() {
    let authority = Authority::new();
    let server_config = server(&authority).early_data(true).build().unwrap();
    let visited = |given: u32| {
        let config = client(&authority).early_data(true).build().unwrap();
        let (mut client, mut server) = start(&config, &server_config);
        for session in [&mut client, &mut server] {
            session.set_ticket_versions(TicketVersions { offered: V1, given });
        }
        converse(&mut *client, &mut *server).unwrap();
        config
    };
    for given in [V1, V2] {
        for (version, offers) in [(given, true), (V1 ^ V2 ^ given, false)] {
            let client = visited(given).start(version, "host.test", b"of the client".to_vec()).unwrap();
            assert_eq!(client.early_data() == EarlyData::Offered, offers);
        }
        // A client that offers it all the same.
        let mut client = visited(given).start(given, "host.test", b"of the client".to_vec()).unwrap();
        let mut server = server_config.start(V1 ^ V2 ^ given, b"of the server".to_vec()).unwrap();
        let foreign = server_config.ticket_stats().foreign;
        converse(&mut *client, &mut *server).unwrap();
        assert_eq!(client.early_data(), EarlyData::Rejected);
        assert!(server_config.ticket_stats().foreign > foreign);
    }
}
