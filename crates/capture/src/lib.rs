//! Files of captured packets: pcapng with IP packets (LINKTYPE_RAW), made from UDP payloads, and their keys. Wireshark decrypts such a
//! file without further files.
//!
//! [`Packets`] writes to any output; [`PacketFile`] is a file that several threads write.

mod file;

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use etherparse::PacketBuilder;
use pcap_file::{
    DataLink, Endianness, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::EnhancedPacketBlock,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            unknown::UnknownBlock,
        },
    },
};

/// Block type of a Decryption Secrets Block.
const SECRETS_BLOCK: u32 = 0x0000_000a;
/// Secrets type for a TLS key log.
const TLS_KEY_LOG: u32 = 0x544c_534b;
/// Addresses that routers have seen on the way are not known here.
const HOPS: u8 = 64;

/// A UDP payload between two addresses.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Time since 1970.
    pub at: Duration,
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// The two bits of ECN (RFC 3168 §5).
    pub ecn: u8,
    /// Payload of the UDP datagram.
    pub payload: &'a [u8],
}

/// Writes packets and keys.
pub struct Packets<W: Write>(PcapNgWriter<W>);

impl<W: Write> std::fmt::Debug for Packets<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packets").finish_non_exhaustive()
    }
}

pub use file::PacketFile;

/// Line of a TLS key log (NSS format), with its end.
pub fn key_line(label: &str, client_random: &[u8], secret: &[u8]) -> String {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    format!("{label} {} {}\n", hex(client_random), hex(secret))
}

fn to_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl<W: Write> Packets<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn begin(out: W) -> io::Result<Self> {
        let mut writer = PcapNgWriter::with_endianness(out, Endianness::Little).map_err(to_io)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: 0,
            // Nanoseconds, which is what the crate writes.
            options: vec![InterfaceDescriptionOption::IfTsResol(9)],
        };
        writer.write_pcapng_block(interface).map_err(to_io)?;
        Ok(Self(writer))
    }

    /// Writes lines of a TLS key log. Packets that they open follow.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn keys(&mut self, lines: &str) -> io::Result<()> {
        let mut value = Vec::with_capacity(lines.len() + 12);
        let length = u32::try_from(lines.len()).map_err(io::Error::other)?;
        // In the byte order of the section.
        value.extend_from_slice(&TLS_KEY_LOG.to_le_bytes());
        value.extend_from_slice(&length.to_le_bytes());
        value.extend_from_slice(lines.as_bytes());
        value.resize(value.len().next_multiple_of(4), 0);
        let block = UnknownBlock { type_: SECRETS_BLOCK, length: 0, value: Cow::Owned(value) };
        self.0.write_pcapng_block(block).map_err(to_io).map(drop)
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// When the output cannot be written, or the payload does not fit an IP packet.
    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let data = ip_packet(packet)?;
        let original_len = u32::try_from(data.len()).map_err(io::Error::other)?;
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: packet.at,
            original_len,
            data: Cow::Owned(data),
            options: Vec::new(),
        };
        self.0.write_pcapng_block(block).map_err(to_io).map(drop)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

fn ip_packet(packet: &Packet<'_>) -> io::Result<Vec<u8>> {
    let mut data = Vec::with_capacity(packet.payload.len() + 48);
    let (from, to) = (packet.from.ip().to_canonical(), packet.to.ip().to_canonical());
    let step = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), HOPS),
        _ => PacketBuilder::ipv6(v6(from), v6(to), HOPS),
    };
    let udp = step.udp(packet.from.port(), packet.to.port());
    udp.write(&mut data, packet.payload).map_err(io::Error::other)?;
    mark(&mut data, packet.ecn);
    Ok(data)
}

fn v6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => Ipv6Addr::octets(&ip),
    }
}

/// Sets the bits of ECN in a header that has none set, and corrects its checksum where there is one (RFC 1624).
fn mark(data: &mut [u8], ecn: u8) {
    let ecn = ecn & 3;
    if data[0] >> 4 == 6 {
        data[1] |= ecn << 4;
        return;
    }
    data[1] |= ecn;
    let sum = u32::from(!u16::from_be_bytes([data[10], data[11]])) + u32::from(ecn);
    let sum = !((sum & 0xffff) as u16 + (sum >> 16) as u16);
    data[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use etherparse::SlicedPacket;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[test]
    fn key_lines_are_those_of_a_key_log() {
        assert_eq!(key_line("CLIENT_RANDOM", &[0, 0xab], &[0x10]), "CLIENT_RANDOM 00ab 10\n");
    }

    #[test]
    fn packets_and_keys_can_be_read_again() {
        let mut file = Vec::new();
        let mut packets = Packets::begin(&mut file).unwrap();
        packets.keys("CLIENT_RANDOM 00 11\n").unwrap();
        let payload = [7_u8; 33];
        for (from, to, ecn) in [("192.0.2.1:5", "198.51.100.2:443", 2), ("[2001:db8::1]:5", "[2001:db8::2]:443", 3)] {
            let packet = Packet {
                at: Duration::new(1_700_000_000, 123_456_789),
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                ecn,
                payload: &payload,
            };
            packets.packet(&packet).unwrap();
        }
        packets.flush().unwrap();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            found.push(match block.unwrap() {
                Block::InterfaceDescription(interface) => format!("{:?}", interface.linktype),
                Block::Unknown(block) => {
                    assert_eq!(&block.value[..8], [0x4b, 0x53, 0x4c, 0x54, 20, 0, 0, 0]);
                    format!("{}", block.type_)
                }
                Block::EnhancedPacket(packet) => {
                    assert_eq!(packet.timestamp, Duration::new(1_700_000_000, 123_456_789));
                    let sliced = SlicedPacket::from_ip(&packet.data).unwrap();
                    let etherparse::TransportSlice::Udp(udp) = sliced.transport.unwrap() else { panic!("no UDP") };
                    assert_eq!((udp.payload(), udp.destination_port()), (&payload[..], 443));
                    match sliced.net.unwrap() {
                        etherparse::NetSlice::Ipv4(ip) => {
                            let header = ip.header().to_header();
                            assert_eq!(header.calc_header_checksum(), header.header_checksum);
                            format!("IPv4 {}", header.ecn.value())
                        }
                        etherparse::NetSlice::Ipv6(ip) => format!("IPv6 {}", ip.header().traffic_class() & 3),
                        other => panic!("{other:?}"),
                    }
                }
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(found, ["RAW", "10", "IPv4 2", "IPv6 3"]);
    }
}
