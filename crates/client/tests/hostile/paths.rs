//! Hostile paths: Version Negotiation and Retry without end, addresses of others.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use tiderace::{PreferredAddresses, Profile};
use tiderace_client::{Leg, Pace, Timeouts};
use tokio::net::UdpSocket;

use crate::servers::{PATIENT, SHORT, ask, certificate, client, control, frame, headers, quic, read};

/// Panics of the code under test, which would otherwise only end a task.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.location().is_some_and(|at| !at.file().contains("tests/")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

/// The version and the connection IDs of a packet with a long header (RFC 8999 §5.1).
fn ids(datagram: &[u8]) -> Option<(u32, Vec<u8>, Vec<u8>)> {
    let version = u32::from_be_bytes(datagram.get(1..5)?.try_into().ok()?);
    let dcid_end = 6 + usize::from(*datagram.get(5)?);
    let dcid = datagram.get(6..dcid_end)?.to_vec();
    let scid_end = dcid_end + 1 + usize::from(*datagram.get(dcid_end)?);
    Some((version, dcid, datagram.get(dcid_end + 1..scid_end)?.to_vec()))
}

type Seen = Arc<Mutex<BTreeSet<(u32, Vec<u8>)>>>;

/// Answers each datagram with what `answer` makes of version and IDs; gives the attempts that were seen: versions, and IDs of the server.
async fn answers(answer: impl Fn(u32, &[u8], &[u8]) -> Vec<u8> + Send + 'static) -> (SocketAddr, Seen) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (socket.local_addr().unwrap(), Seen::default());
    let sees = seen.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let Some((version, dcid, scid)) = ids(&buffer[..length]) else { continue };
            let answer = answer(version, &dcid, &scid);
            sees.lock().unwrap().insert((version, dcid));
            let _ = socket.send_to(&answer, from).await;
        }
    });
    (address, seen)
}

/// The server always wants the version that the client did not choose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_negotiation_without_end_ends() {
    const V1: u32 = 1;
    const V2: u32 = 0x6b33_43cf;
    for offers in
        [|chosen: u32| vec![if chosen == V1 { V2 } else { V1 }], |_: u32| vec![V2], |_: u32| vec![0x0a0a_0a0a; 300]]
    {
        let (address, seen) = answers(move |version, dcid, scid| {
            let mut packet = vec![0x80, 0, 0, 0, 0, scid.len() as u8];
            packet.extend(scid);
            packet.push(dcid.len() as u8);
            packet.extend(dcid);
            offers(version).into_iter().for_each(|version| packet.extend(version.to_be_bytes()));
            packet
        })
        .await;
        let (.., trust) = certificate();
        let timeouts = Timeouts { connect: Duration::from_secs(2), ..PATIENT };
        assert!(ask(&client(&trust, timeouts), address, Leg::Quic).await.is_err());
        let attempts = seen.lock().unwrap().clone();
        assert!(attempts.len() <= 2, "one attempt, and one that follows from Version Negotiation: {attempts:?}");
    }
}

/// A Retry packet (RFC 9000 §17.2.5) whose integrity tag (RFC 9001 §5.8) is right.
fn retry(odcid: &[u8], scid: &[u8], token: &[u8], new: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xf0, 0, 0, 0, 1, scid.len() as u8];
    packet.extend(scid);
    packet.push(new.len() as u8);
    packet.extend(new);
    packet.extend(token);
    let key = 0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128.to_be_bytes();
    let nonce = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
    let pseudo = [&[odcid.len() as u8], odcid, &packet].concat();
    let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(pseudo), &mut []).unwrap();
    packet.extend(tag.as_ref());
    packet
}

/// One Retry is followed, and tokens may be as long as a datagram: one that leaves no room in the Initial packet ends the attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_without_end_and_with_enormous_tokens_ends() {
    count_panics();
    let lengths = [1, 512, 1_000].into_iter().chain((1_100..1_200).step_by(7)).chain([1_300, 1_400, 9_000, 60_000]);
    let tries = lengths.map(|length| {
        tokio::spawn(async move {
            let count = AtomicUsize::new(0);
            let (address, seen) = answers(move |_, dcid, scid| {
                let new = (count.fetch_add(1, Ordering::SeqCst) as u64 + 1).to_be_bytes();
                retry(dcid, scid, &vec![7; length], &new)
            })
            .await;
            let (.., trust) = certificate();
            let timeouts = Timeouts { connect: Duration::from_secs(2), ..PATIENT };
            assert!(ask(&client(&trust, timeouts), address, Leg::Quic).await.is_err());
            let attempts = seen.lock().unwrap().clone();
            assert!(attempts.len() <= 2, "{length}: one Initial packet, and one after the first Retry: {attempts:?}");
            attempts.len()
        })
    });
    let tries: Vec<_> = tries.collect();
    let mut followed = 0;
    for tried in tries {
        followed += tried.await.unwrap() - 1;
    }
    assert!(followed >= 2, "Retry packets with short tokens are followed");
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

/// A preferred address that is somebody else's gets the probes of one path validation, and the connection stays where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preferred_address_of_somebody_else_gets_a_validation_and_no_more() {
    let victim = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let SocketAddr::V4(preferred) = victim.local_addr().unwrap() else { unreachable!() };
    let (address, trust) = quic(
        Profile::default(),
        |config| config.preferred_address = PreferredAddresses { ipv4: Some(preferred), ipv6: None },
        |connection| async move {
            let _control = control(&connection, &[]).await;
            while let Ok((mut send, _recv)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    let _ = send.write_all(&headers(&[(":status", "200")])).await;
                    let part = frame(0, &[b'x'; 10_000]);
                    for _ in 0..100 {
                        let _ = send.write_all(&part).await;
                        tokio::time::sleep(SHORT / 30).await;
                    }
                    let _ = send.finish();
                    send.stopped().await;
                });
            }
        },
    );
    let pace = Pace::default();
    let fetched = ask(&client(&trust, Timeouts { content: pace, ..PATIENT }), address, Leg::Quic).await.unwrap();
    assert_eq!(read(fetched).await, Ok(1_000_000));
    let (mut datagrams, mut bytes, mut buffer) = (0, 0, [0; 65_536]);
    while let Ok(length) = victim.try_recv(&mut buffer) {
        datagrams += 1;
        bytes += length;
    }
    // A challenge, and its repetitions for three probe timeouts, which double.
    assert!((1..=4).contains(&datagrams) && bytes <= 4 * 1_500, "{datagrams} datagrams, {bytes} bytes");
}

/// One that is nobody's is not even asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preferred_address_that_is_no_hosts_is_ignored() {
    for preferred in ["224.0.0.251:5353", "255.255.255.255:9", "0.0.0.0:443", "127.0.0.1:0"] {
        let preferred = preferred.parse().unwrap();
        let (address, trust) = quic(
            Profile::default(),
            |config| config.preferred_address = PreferredAddresses { ipv4: Some(preferred), ipv6: None },
            |connection| async move {
                let _control = control(&connection, &[]).await;
                while let Ok((mut send, _recv)) = connection.accept_bi().await {
                    tokio::spawn(async move {
                        let _ = send.write_all(&[headers(&[(":status", "200")]), frame(0, b"hello")].concat()).await;
                        let _ = send.finish();
                        send.stopped().await;
                    });
                }
            },
        );
        assert_eq!(read(ask(&client(&trust, PATIENT), address, Leg::Quic).await.unwrap()).await, Ok(5));
    }
}
