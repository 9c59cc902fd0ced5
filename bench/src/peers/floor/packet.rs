//! A packet of the floor: a QUIC short header, sealed payload, tag, and header protection, with a fixed key. Or the same with a payload that is
//! authenticated and not encrypted.

use anyhow::{Result, anyhow, ensure};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey, quic};

use crate::stack::Settings;

/// First byte, connection ID of eight bytes.
const PN_OFFSET: usize = 9;
const PN_LEN: usize = 4;
const HEADER: usize = PN_OFFSET + PN_LEN;
const TAG: usize = 16;
/// RFC 9001 §5.4.2: the sample starts where a packet number of four bytes would end.
const SAMPLE: usize = PN_OFFSET + 4;
const FIRST_BYTE: u8 = 0x43;
const CONNECTION_ID: [u8; 8] = *b"tiderace";
/// RFC 9001 §5.4.1: the bits of a short header's first byte that are masked.
const PROTECTED_BITS: u8 = 0x1f;

/// A full packet, in bytes.
pub const PACKET: usize = Settings::UDP_PAYLOAD as usize;
/// Bytes of a packet beside its payload.
pub const OVERHEAD: usize = HEADER + TAG;
/// Payload of a full packet, in bytes.
pub const PAYLOAD: usize = PACKET - OVERHEAD;

/// Protection of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// AES-128-GCM, as QUIC has it.
    Sealed,
    /// A tag of AES-128-GCM over header and payload (GMAC), and no encryption.
    Integrity,
}

/// The keys of one direction.
pub struct Keys {
    protection: Protection,
    payload: LessSafeKey,
    header: quic::HeaderProtectionKey,
    iv: [u8; 12],
}

impl Keys {
    /// The same keys on both sides; nothing here is secret.
    pub fn fixed(protection: Protection) -> Self {
        let payload = UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("sixteen bytes");
        let header = quic::HeaderProtectionKey::new(&quic::AES_128, &[9; 16]).expect("sixteen bytes");
        Self { protection, payload: LessSafeKey::new(payload), header, iv: [3; 12] }
    }

    /// RFC 9001 §5.3: the packet number, exclusive-or the initialisation vector.
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Writes a packet into `packet`; returns its length.
    pub fn seal(&self, packet: &mut [u8], number: u64, payload: &[u8]) -> Result<usize> {
        let end = HEADER + payload.len();
        packet[0] = FIRST_BYTE;
        packet[1..PN_OFFSET].copy_from_slice(&CONNECTION_ID);
        packet[PN_OFFSET..HEADER].copy_from_slice(&number.to_be_bytes()[4..]);
        packet[HEADER..end].copy_from_slice(payload);
        let encrypted_from = if self.protection == Protection::Sealed { HEADER } else { end };
        let (clear, body) = packet[..end + TAG].split_at_mut(encrypted_from);
        let (text, tag) = body.split_at_mut(end - encrypted_from);
        let sealed = self.payload.seal_in_place_separate_tag(self.nonce(number), Aad::from(&clear), text);
        tag.copy_from_slice(sealed.map_err(|_| anyhow!("cannot seal"))?.as_ref());
        self.mask(packet)?;
        Ok(end + TAG)
    }

    /// Opens a packet in place; `expected` is the number it should have. Returns its number and its payload.
    pub fn open<'a>(&self, packet: &'a mut [u8], expected: u64) -> Result<(u64, &'a [u8])> {
        ensure!(packet.len() >= SAMPLE + TAG, "a packet of {} bytes", packet.len());
        self.mask(packet)?;
        let header = &packet[..HEADER];
        ensure!(header[1..PN_OFFSET] == CONNECTION_ID, "a packet of another connection");
        let low = u32::from_be_bytes(header[PN_OFFSET..].try_into().expect("four bytes"));
        let number = (expected & !0xffff_ffff) | u64::from(low);
        let end = packet.len() - TAG;
        let encrypted_from = if self.protection == Protection::Sealed { HEADER } else { end };
        let (clear, body) = packet.split_at_mut(encrypted_from);
        let opened = self.payload.open_in_place(self.nonce(number), Aad::from(&clear), body);
        opened.map_err(|_| anyhow!("packet {number} does not authenticate"))?;
        Ok((number, &packet[HEADER..end]))
    }

    /// Applies or removes header protection: both are the same exclusive-or, as the number's length is fixed.
    fn mask(&self, packet: &mut [u8]) -> Result<()> {
        let sample = &packet[SAMPLE..SAMPLE + 16];
        let mask = self.header.new_mask(sample).map_err(|_| anyhow!("cannot mask"))?;
        packet[0] ^= mask[0] & PROTECTED_BITS;
        for (byte, mask) in packet[PN_OFFSET..HEADER].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_what_it_sealed() {
        for protection in [Protection::Sealed, Protection::Integrity] {
            opens(protection);
        }
    }

    fn opens(protection: Protection) {
        let keys = Keys::fixed(protection);
        let mut packet = [0; PACKET];
        for (number, len) in [(0, 20), (1, PAYLOAD), (0xffff_ffff, 100), (0x1_0000_0000, PAYLOAD)] {
            let payload = vec![5; len];
            let size = keys.seal(&mut packet, number, &payload).unwrap();
            assert_eq!(size, len + HEADER + TAG);
            let is_clear = packet[..size].windows(16).any(|window| window == [5; 16]);
            assert_eq!(is_clear, protection == Protection::Integrity);
            assert_eq!(keys.open(&mut packet[..size], number).unwrap(), (number, &payload[..]));
        }
    }

    #[test]
    fn refuses_what_was_changed() {
        for protection in [Protection::Sealed, Protection::Integrity] {
            let keys = Keys::fixed(protection);
            let mut packet = [0; PACKET];
            for at in [0, 3, PN_OFFSET, HEADER, PACKET - 1] {
                keys.seal(&mut packet, 77, &[5; PAYLOAD]).unwrap();
                packet[at] ^= 1;
                assert!(keys.open(&mut packet, 77).is_err(), "{protection:?}, byte {at}");
            }
            assert!(keys.open(&mut [0; 20], 0).is_err());
        }
    }
}
