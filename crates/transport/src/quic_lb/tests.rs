use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn parameters(config_id: u8, server_id_len: usize, nonce_len: usize, key: Option<[u8; 16]>) -> QuicLbParameters {
    QuicLbParameters { config_id, server_id_len, nonce_len, key, encodes_len: true }
}

/// Encodes and decodes one of the draft's examples.
fn agrees(config_id: u8, key: Option<[u8; 16]>, server_id: &str, nonce: &str, id: &str) {
    let (nonce, id, server_id) = (bytes(nonce), bytes(id), server_id.parse::<ServerId>().unwrap());
    let lb = QuicLb::new(&parameters(config_id, server_id.as_slice().len(), nonce.len(), key)).unwrap();
    assert_eq!(lb.encode(&server_id, &nonce, 0).unwrap().as_slice(), id);
    let decoded = lb.decode(&id).unwrap();
    assert_eq!((decoded.server_id(), decoded.nonce()), (server_id, &nonce[..]));
    assert_eq!(lb.server_id(&id), Some(server_id));
    assert_eq!((super::config_id(&id), lb.id_len()), (Some(config_id), id.len()));
}

/// Appendix B.1. The second example is printed there without the leading zero of its nonce.
#[test]
fn unencrypted_vectors_of_the_draft() {
    agrees(0, None, "c4605e", "4504cc4f", "07c4605e4504cc4f");
    agrees(1, None, "350d28b420", "03487d970b", "2a350d28b42003487d970b");
}

/// Appendix B.2: four passes with an odd number of bytes, with a server ID that is longer than the nonce, a single pass, and the
/// longest. The last example is printed as configuration 3, but its first octet names configuration 0.
#[test]
fn encrypted_vectors_of_the_draft() {
    let key = bytes("8f95f09245765f80256934e50c66207f").try_into().unwrap();
    agrees(0, Some(key), "ed793a", "ee080dbf", "0720b1d07b359d3c");
    agrees(1, Some(key), "ed793a51d49b8f5fab65", "ee080dbf48", "2fcc381bc74cb4fbad2823a3d1f8fed2");
    agrees(2, Some(key), "ed793a51d49b8f5f", "ee080dbf48c0d1e5", "504dd2d05a7b0de9b2b9907afb5ecf8cc3");
    agrees(0, Some(key), "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc");
}

/// Example of §5.4.2.4.
#[test]
fn the_worked_example_of_the_draft() {
    let key = bytes("fdf726a9893ec05c0632d3956680baf0").try_into().unwrap();
    agrees(0, Some(key), "31441a", "9c69c275", "0767947d29be054a");
}

#[test]
fn what_the_draft_forbids_is_refused() {
    let new = |config_id, server_id_len, nonce_len| {
        QuicLb::new(&parameters(config_id, server_id_len, nonce_len, None)).map(|_| ()).unwrap_err()
    };
    assert_eq!(new(7, 2, 8), QuicLbError::ConfigId(7));
    assert_eq!(new(200, 2, 8), QuicLbError::ConfigId(200));
    assert_eq!(new(0, 0, 8), QuicLbError::ServerIdLen(0));
    assert_eq!(new(0, 16, 4), QuicLbError::ServerIdLen(16));
    assert_eq!(new(0, 2, 3), QuicLbError::NonceLen(3));
    assert_eq!(new(0, 2, 18), QuicLbError::TooLong(20));
    assert_eq!(new(0, 15, 5), QuicLbError::TooLong(20));
    assert_eq!(new(0, 2, usize::MAX), QuicLbError::TooLong(usize::MAX));
    for error in [new(7, 2, 8), new(0, 0, 8), new(0, 2, 3), new(0, 2, 18)] {
        assert!(error.to_string().contains("\nhint: "), "{error}");
    }
    QuicLb::new(&parameters(6, 15, 4, None)).unwrap();
    QuicLb::new(&parameters(0, 1, 18, Some([0; 16]))).unwrap();
}

#[test]
fn keys_are_not_printed() {
    let parameters = parameters(0, 2, 8, Some([0xab; 16]));
    let printed = format!("{parameters:?} {:?}", QuicLb::new(&parameters).unwrap());
    assert!(!printed.contains("171") && !printed.contains("ab,"), "{printed}");
}

#[test]
fn ids_of_another_kind_are_not_decoded() {
    let lb = QuicLb::new(&parameters(2, 2, 6, Some([1; 16]))).unwrap();
    let id = lb.encode(&"0102".parse().unwrap(), &[7; 6], 0).unwrap();
    assert_eq!(lb.encode(&"010203".parse().unwrap(), &[7; 6], 0), None);
    assert_eq!(lb.encode(&"0102".parse().unwrap(), &[7; 5], 0), None);
    for len in 0..id.len() {
        assert_eq!((lb.decode(&id[..len]), lb.server_id(&id[..len])), (None, None), "{len} bytes");
    }
    let mut longer = id.to_vec();
    longer.extend([1, 2, 3]);
    assert_eq!(lb.server_id(&longer), lb.server_id(&id), "a server may append bytes");
    let mut other = id.to_vec();
    other[0] ^= 0x20;
    assert_eq!(lb.decode(&other), None, "another configuration");
    let mut other = id.to_vec();
    other[0] ^= 1;
    assert_eq!(lb.decode(&other), None, "another length of its own");
}

#[test]
fn unroutable_ids_say_their_length_and_name_no_configuration() {
    let id = unroutable(&[9; 7]).unwrap();
    assert_eq!((id.len(), id[0], config_id(&id)), (8, 0xe7, Some(UNROUTABLE)));
    assert_eq!((unroutable(&[9; 6]), unroutable(&[9; 20])), (None, None));
    for config in 0..UNROUTABLE {
        assert_eq!(QuicLb::new(&parameters(config, 1, 4, None)).unwrap().decode(&id), None);
    }
}

#[test]
fn server_ids_are_read_from_hexadecimal() {
    let id: ServerId = "0A1b".parse().unwrap();
    assert_eq!((id.as_slice(), id.to_string()), (&[0x0a, 0x1b][..], "0a1b".to_owned()));
    for wrong in ["", "0", "0a1", "0x01", "+1", "é", "00112233445566778899aabbccddeeff"] {
        assert!(wrong.parse::<ServerId>().is_err(), "{wrong}");
    }
    assert_ne!(ServerId::new(&[0]), ServerId::new(&[0, 0]));
}

/// Lengths that the draft permits.
fn lengths() -> impl Strategy<Value = (usize, usize)> {
    (1..=15usize).prop_flat_map(|server| (Just(server), 4..=19 - server))
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        (server_len, nonce_len) in lengths(), config in 0..7u8, key: Option<[u8; 16]>, random: [u8; 20], encodes_len: bool,
    ) {
        let parameters = QuicLbParameters { config_id: config, server_id_len: server_len, nonce_len, key, encodes_len };
        let lb = QuicLb::new(&parameters).unwrap();
        let server = ServerId::new(&random[..server_len]).unwrap();
        let nonce = &random[server_len..server_len + nonce_len];
        let id = lb.encode(&server, nonce, random[19]).unwrap();
        prop_assert_eq!(id.len(), lb.id_len());
        prop_assert_eq!(config_id(&id), Some(config));
        let low = if encodes_len { u8::try_from(id.len() - 1).unwrap() } else { random[19] & 0x1f };
        prop_assert_eq!(id[0] & 0x1f, low);
        let decoded = lb.decode(&id).unwrap();
        prop_assert_eq!(decoded.server_id(), server);
        prop_assert_eq!(decoded.nonce(), nonce);
        prop_assert_eq!(lb.server_id(&id), Some(server));
    }

    /// A permutation under each key: two blocks never become the same ID, and a changed ID has another content.
    #[test]
    fn no_two_blocks_have_the_same_id((server_len, nonce_len) in lengths(), key: [u8; 16], random: [u8; 19], bit in 0..152usize) {
        let lb = QuicLb::new(&parameters(0, server_len, nonce_len, Some(key))).unwrap();
        let server = ServerId::new(&random[..server_len]).unwrap();
        let id = lb.encode(&server, &random[server_len..server_len + nonce_len], 0).unwrap();
        let mut other = id.to_vec();
        let bit = bit % (8 * (id.len() - 1));
        other[1 + bit / 8] ^= 1 << (bit % 8);
        prop_assert_ne!(lb.decode(&other), lb.decode(&id));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        (server_len, nonce_len) in lengths(), key: Option<[u8; 16]>, bytes in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        for config in 0..7 {
            let lb = QuicLb::new(&parameters(config, server_len, nonce_len, key)).unwrap();
            prop_assert_eq!(lb.decode(&bytes).map(|decoded| decoded.server_id()), lb.server_id(&bytes));
        }
    }
}
