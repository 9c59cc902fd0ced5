//! Blocks of a pcapng file, read by definition (draft-ietf-opsawg-pcapng).

use std::path::Path;

/// Types of blocks that matter here.
const SECRETS: u32 = 10;
const PACKET: u32 = 6;

/// Labels of the TLS secrets before the first packet, and the number of packets.
pub(crate) fn read(path: &Path) -> (Vec<String>, usize) {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(number(0), 0x0a0d_0d0a, "a section header begins the file");
    let (mut at, mut labels, mut packets) = (0, Vec::new(), 0);
    while at < bytes.len() {
        let (kind, length) = (number(at), number(at + 4) as usize);
        assert_eq!(number(at + length - 4) as usize, length, "a block ends with its length");
        if kind == SECRETS && packets == 0 {
            let text = &bytes[at + 16..at + 16 + number(at + 12) as usize];
            let lines = std::str::from_utf8(text).unwrap().lines();
            labels.extend(lines.map(|line| line.split(' ').next().unwrap().to_owned()));
        }
        packets += usize::from(kind == PACKET);
        at += length;
    }
    (labels, packets)
}

/// Every label of a key log with all keys of a connection over QUIC.
pub(crate) const ALL: [&str; 4] = [
    "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    "SERVER_HANDSHAKE_TRAFFIC_SECRET",
    "CLIENT_TRAFFIC_SECRET_0",
    "SERVER_TRAFFIC_SECRET_0",
];
