//! Tokens by which a server recognizes an address or a connection: Retry tokens, NEW_TOKEN tokens, stateless reset tokens (RFC 9000 §8.1,
//! §10.3). Their keys come from the [`KeyRing`].
//!
//! ```text
//! a token: kind (1 byte), number of the key (4), nonce (12), sealed content, tag (16)
//! ```

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::Waker,
};

use rand_core::RngCore;
use units::{Duration, Instant};
use wire::{ConnectionId, Reader, ResetToken};

use crate::ring::{KeyRing, OpenError, Purpose, Strike, StrikeRegister, second};

/// Time for which a Retry token is good: a round trip and the client's patience.
const RETRY_LIFETIME: Duration = Duration::from_secs(15);
/// Time for which a token from NEW_TOKEN is good.
const NEW_TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
/// Bytes of a token from NEW_TOKEN: kind, number of the key, nonce, time, address, tag.
const USUAL_LEN: usize = 1 + 4 + NONCE_LEN + 8 + 16 + TAG_LEN;
// RFC 9000 §8.1.1 MUST-1: a token tells how it was provided. Tokens of other implementations are not likely to begin
// so.
const RETRY: u8 = 0xd1;
const NEW: u8 = 0xd2;

/// Verdict on the token of an Initial packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The client answered a Retry; its first Initial was addressed to `original_dcid`.
    Retry { original_dcid: ConnectionId },
    /// The client was connected before, from this address.
    Returning,
    /// Retry token of this server that is not valid for this packet. The client will not accept another Retry.
    BadRetry,
    /// Invalid token: the client is treated as one without a token.
    Useless(Useless),
}

/// Reason why a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Useless {
    /// Not issued by this server.
    Foreign,
    /// The ring does not have its key any more.
    UnknownKey,
    /// Too old.
    Expired,
    /// Given to another address.
    Elsewhere,
    /// Used before.
    Used,
    /// Prior use cannot be decided: the register is full, or its answer is not there yet.
    Unjudged,
}

/// Maker and checker of tokens. Processes that share the ring accept each other's tokens.
pub(crate) struct Tokens {
    ring: KeyRing,
    used: Arc<dyn StrikeRegister>,
}

impl Tokens {
    pub(crate) fn new(ring: KeyRing, used: Arc<dyn StrikeRegister>) -> Self {
        Self { ring, used }
    }

    /// The reset token for one of our connection IDs: the same after a restart (RFC 9000 §10.3.2).
    pub(crate) fn reset_token(&self, now: Instant, id: &ConnectionId) -> ResetToken {
        // RFC 9000 §10.3.2 MUST-1: reset tokens cannot be guessed
        // RFC 9000 §10.3.2 MUST NOT-3: each ID has a reset token of its own
        self.ring.reset_token(second(now), id)
    }

    /// Every reset token that the ID may have had, the most likely first.
    pub(crate) fn reset_tokens(&self, now: Instant, id: &ConnectionId) -> Vec<ResetToken> {
        self.ring.reset_tokens(second(now), id)
    }

    pub(crate) fn retry(
        &self,
        random: &mut impl RngCore,
        now: Instant,
        version: u32,
        remote: SocketAddr,
        original_dcid: &ConnectionId,
        retry_scid: &ConnectionId,
    ) -> Vec<u8> {
        self.seal(random, now, version, Purpose::Retry, |content| {
            content.extend_from_slice(&now.as_nanos().to_be_bytes());
            // RFC 9000 §8.1.4 SHOULD-1: a Retry token is bound to the address and port, and to the ID that the client has
            // to use.
            content.extend_from_slice(&address(remote.ip()));
            content.extend_from_slice(&remote.port().to_be_bytes());
            for id in [retry_scid, original_dcid] {
                content.push(id.as_slice().len() as u8);
                content.extend_from_slice(id.as_slice());
            }
        })
    }

    pub(crate) fn new_token(
        &self,
        random: &mut impl RngCore,
        now: Instant,
        version: u32,
        remote: SocketAddr,
    ) -> Vec<u8> {
        self.seal(random, now, version, Purpose::NewToken, |content| {
            content.extend_from_slice(&now.as_nanos().to_be_bytes());
            // RFC 9000 §8.1.4 MUST-3: the address is in it. The port changes between connections, so it is not.
            content.extend_from_slice(&address(remote.ip()));
        })
    }

    // RFC 9000 §8.1.3 MUST-2, MUST NOT-2, RFC 9000 §8.1.4 MUST-1, MUST-2: every token is unique, which the nonce sees
    // to, and what it says is encrypted.
    fn seal(
        &self,
        random: &mut impl RngCore,
        now: Instant,
        version: u32,
        purpose: Purpose,
        content: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        random.fill_bytes(&mut nonce);
        let mut token = Vec::with_capacity(USUAL_LEN);
        token.push(if purpose == Purpose::Retry { RETRY } else { NEW });
        // RFC 9369 §5 MUST-1: a token is bound to the version of the connection that it came with.
        self.ring.seal(purpose, second(now), nonce, &version.to_be_bytes(), &mut token, content);
        token
    }

    /// Reads a token that a client presents in an Initial packet of this version, addressed to `dcid`.
    pub(crate) fn check(
        &self,
        now: Instant,
        version: u32,
        remote: SocketAddr,
        dcid: &ConnectionId,
        token: &[u8],
    ) -> Token {
        let (purpose, sealed) = match token.split_first() {
            Some((&RETRY, sealed)) => (Purpose::Retry, sealed),
            Some((&NEW, sealed)) => (Purpose::NewToken, sealed),
            _ => return Token::Useless(Useless::Foreign),
        };
        let content = match self.ring.open(purpose, second(now), &version.to_be_bytes(), sealed) {
            Ok(content) => content,
            Err(OpenError::UnknownKey(_)) => return Token::Useless(Useless::UnknownKey),
            Err(OpenError::Forged) => return Token::Useless(Useless::Foreign),
        };
        let mut reader = Reader::new(&content);
        if purpose == Purpose::Retry {
            return read_retry(&mut reader, now, remote, dcid).unwrap_or(Token::BadRetry);
        }
        let useful = match read_returning(&mut reader, now, remote) {
            Ok(expires) => self.first_use(now, token, expires),
            Err(useless) => Err(useless),
        };
        useful.map_or_else(Token::Useless, |()| Token::Returning)
    }

    // RFC 9000 §8.1.4 SHOULD NOT-1, MUST-5, RFC 9000 §21.3 SHOULD-1: such a token is not accepted several times.
    // Where that cannot be told, it is as none.
    fn first_use(&self, now: Instant, token: &[u8], expires: Instant) -> Result<(), Useless> {
        let tag = token.last_chunk::<TAG_LEN>().ok_or(Useless::Foreign)?;
        match self.used.strike(tag, second(now), second(expires) + 1, Waker::noop()) {
            Strike::First => Ok(()),
            Strike::Again => Err(Useless::Used),
            Strike::Full | Strike::Pending => Err(Useless::Unjudged),
        }
    }
}

/// A Retry token that we have made. `None` when it is not good for this packet.
fn read_retry(reader: &mut Reader<'_>, now: Instant, remote: SocketAddr, dcid: &ConnectionId) -> Option<Token> {
    // RFC 9000 §8.1.4 SHOULD-2, RFC 9000 §8.1.3 SHOULD-1: it is good for a short time only.
    let fresh = now.saturating_since(issued(reader)?) <= RETRY_LIFETIME;
    let here = reader.bytes(16).ok()? == address(remote.ip()) && reader.u16().ok()? == remote.port();
    let (retry_scid, original_dcid) = (id(reader)?, id(reader)?);
    (fresh && here && retry_scid == *dcid).then_some(Token::Retry { original_dcid })
}

/// A token from NEW_TOKEN: until when it is good.
fn read_returning(reader: &mut Reader<'_>, now: Instant, remote: SocketAddr) -> Result<Instant, Useless> {
    let expires = issued(reader).ok_or(Useless::Foreign)? + NEW_TOKEN_LIFETIME;
    if expires < now {
        return Err(Useless::Expired);
    }
    match reader.bytes(16) {
        Ok(ip) if ip == address(remote.ip()) => Ok(expires),
        _ => Err(Useless::Elsewhere),
    }
}

fn issued(reader: &mut Reader<'_>) -> Option<Instant> {
    Some(Instant::from_nanos(u64::from_be_bytes(reader.bytes(8).ok()?.try_into().ok()?)))
}

fn id(reader: &mut Reader<'_>) -> Option<ConnectionId> {
    let len = reader.u8().ok()?;
    ConnectionId::new(reader.bytes(len.into()).ok()?)
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use units::Seed;

    use wire::version::{V1, V2};

    use super::*;
    use crate::ring::{MemoryRegister, RingKey};

    fn id(n: u8) -> ConnectionId {
        ConnectionId::new(&[n; 8]).unwrap()
    }

    fn tokens(ring: &KeyRing) -> Tokens {
        Tokens::new(ring.clone(), Arc::new(MemoryRegister::default()))
    }

    // RFC 9000 §8.1.1 MUST-1; RFC 9000 §8.1.4 MUST-1, MUST-2, SHOULD-1, SHOULD-2
    #[test]
    fn a_retry_token_is_good_for_one_address_one_id_and_a_short_time() {
        let tokens = tokens(&KeyRing::single([7; 32]));
        let mut random = Seed::from_number(1).stream("token");
        let now = Instant::from_millis(1_000);
        let remote: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let token = tokens.retry(&mut random, now, V1, remote, &id(1), &id(2));
        let valid = Token::Retry { original_dcid: id(1) };
        assert_eq!(tokens.check(now, V1, remote, &id(2), &token), valid);
        assert_eq!(tokens.check(now + RETRY_LIFETIME, V1, remote, &id(2), &token), valid);
        assert_eq!(tokens.check(now + RETRY_LIFETIME * 2, V1, remote, &id(2), &token), Token::BadRetry);
        assert_eq!(tokens.check(now, V1, "192.0.2.1:444".parse().unwrap(), &id(2), &token), Token::BadRetry);
        assert_eq!(tokens.check(now, V1, remote, &id(3), &token), Token::BadRetry);
        assert_eq!(tokens.check(now, V2, remote, &id(2), &token), Token::Useless(Useless::Foreign));
        let others = self::tokens(&KeyRing::single([8; 32]));
        assert_eq!(others.check(now, V1, remote, &id(2), &token), Token::Useless(Useless::Foreign));
        for bit in 0..token.len() * 8 {
            let mut forged = token.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let verdict = tokens.check(now, V1, remote, &id(2), &forged);
            assert!(matches!(verdict, Token::Useless(Useless::Foreign | Useless::UnknownKey)), "{bit}: {verdict:?}");
        }
    }

    // RFC 9000 §8.1.4 MUST-3; RFC 9369 §5 MUST-1
    // RFC 9000 §8.1.4 MUST-5, SHOULD NOT-1; RFC 9000 §8.1.3 SHOULD-1; RFC 9000 §21.3 SHOULD-1
    #[test]
    fn a_returning_client_may_come_from_another_port_once() {
        let tokens = tokens(&KeyRing::single([7; 32]));
        let mut random = Seed::from_number(1).stream("token");
        let now = Instant::from_millis(1_000);
        let token = tokens.new_token(&mut random, now, V1, "192.0.2.1:443".parse().unwrap());
        let check = |at: Instant, from: &str| tokens.check(at, V1, from.parse().unwrap(), &id(9), &token);
        assert_eq!(check(now, "192.0.2.2:443"), Token::Useless(Useless::Elsewhere));
        let late = now + NEW_TOKEN_LIFETIME + Duration::from_secs(1);
        assert_eq!(check(late, "192.0.2.1:9"), Token::Useless(Useless::Expired));
        let other_version = tokens.check(now, V2, "192.0.2.1:9".parse().unwrap(), &id(9), &token);
        assert_eq!(other_version, Token::Useless(Useless::Foreign));
        assert_eq!(check(now, "192.0.2.1:9"), Token::Returning);
        assert_eq!(check(now, "192.0.2.1:9"), Token::Useless(Useless::Used));
    }

    #[test]
    fn tokens_outlive_a_rotation_by_its_overlap() {
        let key = |id: u32| RingKey { until: Some(100), ..RingKey::new(id, [id as u8; 32]) };
        let ring = KeyRing::new(vec![key(1)]).unwrap();
        let tokens = tokens(&ring);
        let mut random = Seed::from_number(1).stream("token");
        let remote: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let now = Instant::from_millis(1_000);
        let two = [0; 2].map(|_| tokens.new_token(&mut random, now, V1, remote));
        ring.rotate(2, [2; 32], 1, 10).unwrap();
        let check =
            |secs: u64, token: &[u8]| tokens.check(Instant::from_millis(secs * 1_000), V1, remote, &id(9), token);
        assert_eq!(check(10, &two[0]), Token::Returning);
        assert_eq!(check(11, &two[1]), Token::Useless(Useless::UnknownKey));
    }
}
