//! The tag that binds a Retry packet to the Initial packet it answers (RFC 9001 §5.8).

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;

use super::{Forged, Labels};

/// Bytes of the tag at the end of a Retry packet.
pub const RETRY_TAG_LEN: usize = 16;

/// The tag for `retry`, a Retry packet without its tag, that answers an Initial packet sent to `original_dcid`.
// RFC 9001 §5.8: AES-128-GCM with a fixed key and nonce over nothing; the associated data is the original Destination
// Connection ID with its length before it, followed by the Retry packet.
pub fn retry_tag(labels: &Labels, original_dcid: &[u8], retry: &[u8]) -> [u8; RETRY_TAG_LEN] {
    let mut pseudo_packet = Vec::with_capacity(1 + original_dcid.len() + retry.len());
    pseudo_packet.push(original_dcid.len() as u8);
    pseudo_packet.extend_from_slice(original_dcid);
    pseudo_packet.extend_from_slice(retry);
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &labels.retry_key).expect("a key of 16 bytes"));
    let nonce = Nonce::assume_unique_for_key(labels.retry_nonce);
    let mut tag = [0; RETRY_TAG_LEN];
    key.seal_in_place_scatter(nonce, Aad::from(&pseudo_packet), &mut [], &[], &mut tag)
        .expect("nothing is not too long to seal");
    tag
}

/// Checks the tag at the end of `packet`, a whole Retry packet.
pub fn verify_retry_tag(labels: &Labels, original_dcid: &[u8], packet: &[u8]) -> Result<(), Forged> {
    let (retry, tag) = packet.split_last_chunk::<RETRY_TAG_LEN>().ok_or(Forged)?;
    verify_slices_are_equal(&retry_tag(labels, original_dcid, retry), tag).map_err(|_| Forged)
}
