//! Applies and removes header protection in place (RFC 9001 §5.4).

use wire::bits;

use crate::crypto::{HeaderKey, SAMPLE_LEN};

/// Bits of the first byte that are protected.
// RFC 9001 §5.4.1: the low four bits of a long header, the low five of a short one.
#[inline]
fn protected_bits(first: u8) -> u8 {
    if first & bits::LONG_FORM == 0 { 0x1f } else { 0x0f }
}

/// The four bytes that a packet number may take, and the mask for as many of them as it takes.
#[inline]
fn packet_number_mask(mask: &[u8; 5], pn_len: usize) -> u32 {
    let [_, rest @ ..] = *mask;
    u32::from_be_bytes(rest) & u32::MAX << (32 - 8 * pn_len)
}

/// Place of the sample.
// RFC 9001 §5.4.2: it starts four bytes after the start of the packet number, whatever the number's real length is.
#[inline]
fn split(packet: &mut [u8], pn_offset: usize) -> Option<(&mut [u8; 4], &[u8; SAMPLE_LEN])> {
    let (number, rest) = packet.get_mut(pn_offset..)?.split_first_chunk_mut::<4>()?;
    Some((number, rest.first_chunk()?))
}

/// Protects the header of a sealed packet; the length of the packet number is in the first byte.
///
/// # Panics
/// If the packet ends before the sample does: payload and packet number together need at least four bytes.
#[inline]
pub(super) fn protect(key: &HeaderKey, packet: &mut [u8], pn_offset: usize) {
    let pn_len = usize::from(packet[0] & bits::PN_LEN) + 1;
    let (number, sample) = split(packet, pn_offset).expect("packet number and payload have at least four bytes");
    let mask = key.mask(sample);
    *number = (u32::from_be_bytes(*number) ^ packet_number_mask(&mask, pn_len)).to_be_bytes();
    packet[0] ^= mask[0] & protected_bits(packet[0]);
}

/// Removes the protection; returns the length of the packet number and its truncated value. `None` when the packet is
/// too short, in which case it is unchanged.
#[inline]
pub(super) fn unprotect(key: &HeaderKey, packet: &mut [u8], pn_offset: usize) -> Option<(usize, u64)> {
    // RFC 9001 §5.4.2 MUST-1: packets too short for the sample are dropped
    let (number, sample) = split(packet, pn_offset)?;
    let mask = key.mask(sample);
    let masked = u32::from_be_bytes(*number);
    let first = packet[0] ^ mask[0] & protected_bits(packet[0]);
    let pn_len = usize::from(first & bits::PN_LEN) + 1;
    let clear = masked ^ packet_number_mask(&mask, pn_len);
    packet[0] = first;
    packet[pn_offset..pn_offset + 4].copy_from_slice(&clear.to_be_bytes());
    Some((pn_len, u64::from(clear >> (32 - 8 * pn_len))))
}
