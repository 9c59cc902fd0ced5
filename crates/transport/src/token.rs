//! What a server hands to an address so that it can recognise it later: Retry tokens, NEW_TOKEN tokens, stateless reset
//! tokens (RFC 9000 §8.1, §10.3).

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf, hmac,
};
use rand_core::RngCore;
use units::{Duration, Instant};
use wire::{ConnectionId, Reader, ResetToken};

/// How long a Retry token is good: a round trip and the client's patience.
const RETRY_LIFETIME: Duration = Duration::from_secs(15);
/// How long a token from NEW_TOKEN is good.
const NEW_TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const NONCE_LEN: usize = 12;
const RETRY: u8 = 1;
const NEW: u8 = 2;

/// What a valid token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValidToken {
    /// The client answered a Retry; its first Initial was addressed to `original_dcid`.
    Retry { original_dcid: ConnectionId },
    /// The client was here before, from this address.
    Returning,
}

/// Makes and checks tokens. Several processes that share the key accept each other's.
pub(crate) struct Tokens {
    seal: LessSafeKey,
    reset: hmac::Key,
}

impl Tokens {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        struct Len32;
        impl hkdf::KeyType for Len32 {
            fn len(&self) -> usize {
                32
            }
        }
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, b"tiderace endpoint").extract(secret);
        let derive = |label: &[u8]| {
            let mut key = [0; 32];
            prk.expand(&[label], Len32).and_then(|okm| okm.fill(&mut key)).expect("32 bytes fit in HKDF's output");
            key
        };
        let seal = UnboundKey::new(&AES_256_GCM, &derive(b"address token")).expect("the key has the right length");
        Self { seal: LessSafeKey::new(seal), reset: hmac::Key::new(hmac::HMAC_SHA256, &derive(b"stateless reset")) }
    }

    /// The reset token for one of our connection IDs: the same after a restart (RFC 9000 §10.3.2).
    pub(crate) fn reset_token(&self, id: &ConnectionId) -> ResetToken {
        // RFC 9000 §10.3.2 MUST-1: reset tokens cannot be guessed
        // RFC 9000 §10.3.2 MUST NOT-3: each ID has a reset token of its own
        let tag = hmac::sign(&self.reset, id.as_slice());
        ResetToken(tag.as_ref()[..16].try_into().expect("HMAC-SHA256 has 32 bytes"))
    }

    pub(crate) fn retry(
        &self,
        random: &mut impl RngCore,
        now: Instant,
        remote: SocketAddr,
        original_dcid: &ConnectionId,
        retry_scid: &ConnectionId,
    ) -> Vec<u8> {
        let mut content = vec![RETRY];
        content.extend_from_slice(&now.as_nanos().to_be_bytes());
        content.push(original_dcid.as_slice().len() as u8);
        content.extend_from_slice(original_dcid.as_slice());
        // RFC 9000 §8.1.4: a Retry token is bound to the address and port, and to the ID that the client has to use.
        let mut bound = address(remote.ip());
        bound.extend_from_slice(&remote.port().to_be_bytes());
        bound.extend_from_slice(retry_scid.as_slice());
        self.seal(random, content, &bound)
    }

    pub(crate) fn new_token(&self, random: &mut impl RngCore, now: Instant, remote: SocketAddr) -> Vec<u8> {
        let mut content = vec![NEW];
        content.extend_from_slice(&now.as_nanos().to_be_bytes());
        // The port changes between connections, so only the address is bound.
        self.seal(random, content, &address(remote.ip()))
    }

    fn seal(&self, random: &mut impl RngCore, mut content: Vec<u8>, bound: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        random.fill_bytes(&mut nonce);
        self.seal
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound), &mut content)
            .expect("sealing does not fail for short messages");
        let mut token = nonce.to_vec();
        token.append(&mut content);
        token
    }

    /// Reads a token that a client presents in an Initial packet addressed to `dcid`.
    pub(crate) fn check(
        &self,
        now: Instant,
        remote: SocketAddr,
        dcid: &ConnectionId,
        token: &[u8],
    ) -> Option<ValidToken> {
        let mut bound = address(remote.ip());
        if let Some(content) = self.open(token, &bound) {
            let mut reader = Reader::new(&content);
            let fresh = reader.u8().ok()? == NEW && age(&mut reader, now)? <= NEW_TOKEN_LIFETIME;
            return fresh.then_some(ValidToken::Returning);
        }
        bound.extend_from_slice(&remote.port().to_be_bytes());
        bound.extend_from_slice(dcid.as_slice());
        let content = self.open(token, &bound)?;
        let mut reader = Reader::new(&content);
        if reader.u8().ok()? != RETRY || age(&mut reader, now)? > RETRY_LIFETIME {
            return None;
        }
        let len = reader.u8().ok()?;
        let original_dcid = ConnectionId::new(reader.bytes(len.into()).ok()?)?;
        Some(ValidToken::Retry { original_dcid })
    }

    fn open(&self, token: &[u8], bound: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = token.split_at_checked(NONCE_LEN)?;
        let mut content = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let len = self.seal.open_in_place(nonce, Aad::from(bound), &mut content).ok()?.len();
        content.truncate(len);
        Some(content)
    }
}

fn age(reader: &mut Reader<'_>, now: Instant) -> Option<Duration> {
    let issued = u64::from_be_bytes(reader.bytes(8).ok()?.try_into().ok()?);
    Some(now.saturating_since(Instant::from_nanos(issued)))
}

fn address(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use units::Seed;

    use super::*;

    fn id(n: u8) -> ConnectionId {
        ConnectionId::new(&[n; 8]).unwrap()
    }

    #[test]
    fn a_retry_token_is_good_for_one_address_one_id_and_a_short_time() {
        let tokens = Tokens::new(&[7; 32]);
        let mut random = Seed::from_number(1).stream("token");
        let now = Instant::from_millis(1_000);
        let remote: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let token = tokens.retry(&mut random, now, remote, &id(1), &id(2));
        let valid = Some(ValidToken::Retry { original_dcid: id(1) });
        assert_eq!(tokens.check(now, remote, &id(2), &token), valid);
        assert_eq!(tokens.check(now + RETRY_LIFETIME, remote, &id(2), &token), valid);
        assert_eq!(tokens.check(now + RETRY_LIFETIME * 2, remote, &id(2), &token), None);
        assert_eq!(tokens.check(now, "192.0.2.1:444".parse().unwrap(), &id(2), &token), None);
        assert_eq!(tokens.check(now, remote, &id(3), &token), None);
        assert_eq!(Tokens::new(&[8; 32]).check(now, remote, &id(2), &token), None);
        for bit in 0..token.len() * 8 {
            let mut forged = token.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(tokens.check(now, remote, &id(2), &forged), None);
        }
    }

    #[test]
    fn a_returning_client_may_come_from_another_port() {
        let tokens = Tokens::new(&[7; 32]);
        let mut random = Seed::from_number(1).stream("token");
        let now = Instant::from_millis(1_000);
        let token = tokens.new_token(&mut random, now, "192.0.2.1:443".parse().unwrap());
        let check = |from: &str| tokens.check(now, from.parse().unwrap(), &id(9), &token);
        assert_eq!(check("192.0.2.1:9"), Some(ValidToken::Returning));
        assert_eq!(check("192.0.2.2:443"), None);
    }
}
