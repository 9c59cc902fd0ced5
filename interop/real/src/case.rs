//! The cases: what the client and the server are told, what lies between them, who can take part, and what has to be seen.

use std::time::Duration as StdDuration;

use anyhow::{Result, ensure};
use netem::{LinkConfig, Loss, Outage, Queue};
use serde::Serialize;
use units::{Bitrate, DataSize, Duration, Probability};

use crate::{matrix::Cell, peers::Peer, spoil::Spoil, tap::Rebind};

/// The size of the large file.
const FILE: u64 = 10 * 1024 * 1024;
/// The size of a file for slow links.
const SMALL_FILE: u64 = 2 * 1024 * 1024;
/// Connections of the cases that lose or corrupt handshakes.
const HANDSHAKES: u64 = 10;
/// No certificate chain of [`crate::credentials`] that is called large has fewer bytes.
pub const LARGE_CHAIN: u64 = 8_000;

/// Case between two peers. All but the first five are cases of the QUIC interop runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// 10 MiB from server to client.
    Get,
    /// 10 MiB from client to server.
    Put,
    /// 100 streams at once, 20 kB each way on each.
    Streams,
    /// One handshake, 1 kB.
    Handshake,
    /// 2 MiB over 10 Mbit/s and 15 ms.
    Transfer,
    /// A round trip of 1.5 s.
    Longrtt,
    /// The client insists on ChaCha20-Poly1305.
    Chacha20,
    /// 1,000 streams of 32 bytes.
    Multiplexing,
    /// The server validates the client's address with a Retry packet, which must be seen on the wire.
    Retry,
    /// A second connection resumes the session of the first.
    Resumption,
    /// The request of the second connection leaves as early data, over a round trip of 1.5 s.
    Zerortt,
    /// Nothing passes for two seconds, repeatedly with five seconds between, in a transfer of 10 MiB.
    Blackhole,
    /// The client updates its keys in the middle of 10 MiB.
    Keyupdate,
    /// tiderace sends marked packets, and the peer counts the marks in its acknowledgements.
    Ecn,
    /// The server's chain is larger than three times the client's first flight.
    Amplificationlimit,
    /// 30 % of packets are lost, at most three in a row, ten connections.
    Handshakeloss,
    /// 2 % of packets are lost, 2 MiB.
    Transferloss,
    /// Bits are flipped in 30 % of packets, at most three in a row, ten connections.
    Handshakecorruption,
    /// Bits are flipped in 2 % of packets, 2 MiB.
    Transfercorruption,
    /// QUIC version 2.
    V2,
    /// A NAT gives the client another port in the middle of 10 MiB.
    RebindPort,
    /// A NAT gives the client another address in the middle of 10 MiB.
    RebindAddr,
    /// The client continues from another socket in the middle of 10 MiB.
    Connectionmigration,
}

fn link(change: impl FnOnce(&mut LinkConfig)) -> LinkConfig {
    let mut link = LinkConfig {
        rate: Some(Bitrate::from_mbps(10)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(37_500) },
        delay: Duration::from_millis(15),
        ..LinkConfig::default()
    };
    change(&mut link);
    link
}

fn share(percent: f64) -> Probability {
    Probability::new(percent / 100.0).expect("a share")
}

impl Case {
    /// Every case.
    pub const ALL: &[Self] = &[
        Self::Get,
        Self::Put,
        Self::Streams,
        Self::Handshake,
        Self::Transfer,
        Self::Longrtt,
        Self::Chacha20,
        Self::Multiplexing,
        Self::Retry,
        Self::Resumption,
        Self::Zerortt,
        Self::Blackhole,
        Self::Keyupdate,
        Self::Ecn,
        Self::Amplificationlimit,
        Self::Handshakeloss,
        Self::Transferloss,
        Self::Handshakecorruption,
        Self::Transfercorruption,
        Self::V2,
        Self::RebindPort,
        Self::RebindAddr,
        Self::Connectionmigration,
    ];

    /// Name in reports and on the command line, that of the interop runner where it has the case.
    pub fn name(self) -> String {
        match self {
            Self::RebindPort => "rebind-port".into(),
            Self::RebindAddr => "rebind-addr".into(),
            case => format!("{case:?}").to_lowercase(),
        }
    }

    /// A case ends within this time, or it has failed.
    pub fn time_limit(self) -> StdDuration {
        match self {
            Self::Handshakeloss | Self::Handshakecorruption => StdDuration::from_secs(240),
            _ => StdDuration::from_secs(90),
        }
    }

    /// Arguments of the client. `client` is who it is: with ECN tiderace is the one who sends.
    pub fn client_arguments(self, client: Peer) -> Vec<String> {
        let (get, put, streams, rest): (_, _, _, &[&str]) = match self {
            Self::Get | Self::RebindPort | Self::RebindAddr | Self::Blackhole => (FILE, 0, 1, &[]),
            Self::Connectionmigration => (FILE, 0, 1, &["--migrate"]),
            Self::Put => (0, FILE, 1, &[]),
            Self::Streams => (20_000, 20_000, 100, &[]),
            Self::Handshake | Self::Longrtt => (1_000, 0, 1, &[]),
            Self::Amplificationlimit => (5_000, 0, 1, &[]),
            Self::Transfer | Self::Transferloss | Self::Transfercorruption => (SMALL_FILE, 0, 1, &[]),
            Self::Ecn if client == Peer::Tiderace => (0, FILE, 1, &[]),
            Self::Ecn => (FILE, 0, 1, &[]),
            Self::Chacha20 => (SMALL_FILE, 100_000, 1, &["--chacha20"]),
            Self::Multiplexing => (32, 0, 1_000, &[]),
            Self::Retry => (10_000, 10_000, 1, &[]),
            Self::Resumption => (5_000, 0, 1, &["--resume", "--connections=2"]),
            Self::Zerortt => (5_000, 0, 1, &["--early", "--resume", "--connections=2"]),
            Self::Keyupdate => (FILE, 100_000, 1, &["--key-update"]),
            Self::Handshakeloss | Self::Handshakecorruption => (1_000, 0, 1, &["--connections=10"]),
            Self::V2 => (SMALL_FILE, 100_000, 1, &["--v2"]),
        };
        debug_assert_eq!(HANDSHAKES, 10);
        let mut arguments = vec![format!("--get={get}"), format!("--put={put}"), format!("--streams={streams}")];
        arguments.extend(rest.iter().map(|&text| text.to_owned()));
        arguments
    }

    /// Arguments of the server.
    pub fn server_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Retry => &["--retry"],
            Self::Resumption | Self::Zerortt => &["--early"],
            _ => &[],
        }
    }

    /// Returns whether the server has a chain of more than [`LARGE_CHAIN`] bytes.
    pub fn has_large_chain(self) -> bool {
        matches!(self, Self::Amplificationlimit | Self::Resumption)
    }

    /// Rebinding by the NAT on the path.
    pub fn rebind(self) -> Option<Rebind> {
        match self {
            Self::RebindPort => Some(Rebind::Port),
            Self::RebindAddr => Some(Rebind::Address),
            _ => None,
        }
    }

    /// Loss and damage beside those of the path.
    pub fn spoil(self) -> Option<Spoil> {
        match self {
            Self::Handshakeloss => Some(Spoil::Drop),
            Self::Handshakecorruption => Some(Spoil::Damage),
            _ => None,
        }
    }

    /// The path, the same in both directions; `None`: loopback.
    pub fn link(self) -> Option<LinkConfig> {
        Some(match self {
            Self::Transfer | Self::Amplificationlimit | Self::Handshakeloss | Self::Handshakecorruption => link(|_| {}),
            // Zerortt: stacks whose driver is a task of its own send the ClientHello before the application has written, and
            // what is written after the server's answer is no early data. On a busy machine the writer needs this long.
            Self::Longrtt | Self::Zerortt => link(|link| link.delay = Duration::from_millis(750)),
            Self::Blackhole => link(|link| {
                // As in the runner: five seconds alive, two dead. The link's time begins with the first packet, and 10 MiB at
                // this rate take longer than the first five seconds.
                let [at, lasts, every] = [5_000, 2_000, 7_000].map(Duration::from_millis);
                link.outages = vec![Outage { at, lasts, every: Some(every), packets: netem::Fate::default() }];
            }),
            Self::Transferloss => link(|link| link.loss = Loss::Iid { p: share(2.0) }),
            Self::Transfercorruption => link(|link| link.corrupt = share(2.0)),
            _ => return None,
        })
    }

    /// Reason why the two cannot do this together, if so.
    pub fn lacks(self, client: Peer, server: Peer) -> Option<&'static str> {
        match (self, client, server) {
            (Self::Chacha20, Peer::QuicGo, _) => Some("Go chooses the suite of TLS 1.3 by itself"),
            (Self::Chacha20, Peer::S2n, _) => Some("s2n-quic's policies do not have this suite alone"),
            (Self::Resumption | Self::Zerortt, Peer::S2n, _) | (Self::Resumption | Self::Zerortt, _, Peer::S2n) => {
                Some("s2n-quic has no resumption in its stable interface")
            }
            (Self::Keyupdate, Peer::S2n, _) => Some("s2n-quic's clients cannot be told to update keys"),
            (Self::V2, Peer::S2n, _) | (Self::V2, _, Peer::S2n) => Some("s2n-quic does not speak version 2"),
            (Self::Connectionmigration, Peer::S2n, _) => Some("s2n-quic's clients do not migrate"),
            (Self::Chacha20, Peer::Quiche, _) => Some("BoringSSL chooses the suite of TLS 1.3 by itself"),
            (Self::Keyupdate, Peer::Quiche, _) => Some("quiche cannot start a key update"),
            (Self::V2, Peer::Quiche, _) | (Self::V2, _, Peer::Quiche) => Some("quiche does not speak version 2"),
            (Self::Ecn, Peer::Quiche, _) | (Self::Ecn, _, Peer::Quiche) => Some("quiche does not read marks"),
            (Self::V2, Peer::Quinn, _) | (Self::V2, _, Peer::Quinn) => Some("quinn does not speak version 2"),
            (Self::Connectionmigration, Peer::Aioquic, _) => Some("aioquic's clients do not migrate"),
            (Self::Ecn, Peer::Aioquic, _) | (Self::Ecn, _, Peer::Aioquic) => {
                Some("aioquic does not read the marks of its sockets")
            }
            _ => None,
        }
    }

    /// Checks that the subject of the case has really happened.
    ///
    /// # Errors
    /// With what is missing.
    pub fn evidence(self, cell: &Cell) -> Result<()> {
        let seen = &cell.seen;
        match self {
            Self::Retry => ensure!(seen.retries > 0, "no Retry packet was seen on the wire"),
            Self::Keyupdate => {
                let told: Vec<_> = cell.key_updates.iter().flatten().collect();
                ensure!(told.iter().all(|count| **count > 0), "no key update took place: {:?}", cell.key_updates);
            }
            Self::Zerortt => ensure!(seen.early > 0, "no 0-RTT packet was seen on the wire"),
            Self::Resumption => {
                let bytes = seen.handshake_bytes_down;
                let chain = LARGE_CHAIN..LARGE_CHAIN * 2;
                ensure!(chain.contains(&bytes), "two handshakes with {bytes} bytes: not one chain");
            }
            Self::V2 => ensure!(seen.second_version.iter().all(|&n| n > 0), "no version 2: {:?}", seen.second_version),
            Self::Amplificationlimit => {
                ensure!(
                    seen.amplification <= 3.0,
                    "{} times the bytes before the address was proven",
                    seen.amplification
                );
                ensure!(seen.unproven > 1 && seen.handshake_bytes_down > LARGE_CHAIN, "the limit was not met");
            }
            Self::RebindPort | Self::RebindAddr => ensure!(seen.rebinds == 1, "the NAT had nothing to change"),
            Self::Connectionmigration => ensure!(seen.clients > 1, "the client sent from one address"),
            Self::Ecn => {
                let confirmed = cell.ecn_confirmed.iter().flatten().any(|&count| count > 0);
                ensure!(confirmed, "no acknowledgement counted the sender's marks: {:?}", cell.ecn_confirmed);
            }
            Self::Blackhole => ensure!(cell.link_outage > 0, "the link was never dead"),
            Self::Transferloss => ensure!(cell.link_dropped > 0, "the link lost nothing"),
            Self::Transfercorruption => ensure!(cell.link_corrupted > 0, "the link corrupted nothing"),
            Self::Handshakeloss | Self::Handshakecorruption => ensure!(seen.spoiled > 0, "no packet was spoiled"),
            _ => {}
        }
        Ok(())
    }
}
