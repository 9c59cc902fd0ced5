//! Key ring: secrets with which servers accept each other's tickets and tokens.
//!
//! A ring is a list of secrets, each with a number and a period of validity. HKDF derives from each secret, with one label per purpose, the
//! keys of session tickets, Retry tokens, NEW_TOKEN tokens, stateless resets and encrypted connection IDs. Sealed data names the number of
//! its secret. The newest secret seals; all valid secrets open. So a ring is rotated without losing anything: add a secret on all machines,
//! and remove the old one when everything that it sealed has expired.

mod strike;
mod text;

use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf, hmac,
};
use units::Instant;
use wire::{ConnectionId, ResetToken};

pub use self::{
    strike::{MemoryRegister, Strike, StrikeId, StrikeRegister},
    text::{LineFault, RingError},
};

/// Secrets of a ring at a time. More would only be old ones, each of which a stateless reset has to try.
pub const MAX_KEYS: usize = 8;
/// Bytes of a key's number in front of the data that it sealed.
const ID_LEN: usize = 4;

/// Purpose of a key of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Session tickets of TLS.
    Tickets,
    /// Session tickets of TLS over TCP, for programs that serve both: a ticket of one is none of the other.
    TcpTickets,
    /// Tokens in Retry packets.
    Retry,
    /// Tokens in NEW_TOKEN frames.
    NewToken,
    /// Stateless reset tokens.
    Reset,
    /// Encryption of connection IDs.
    ConnectionIds,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Tickets => b"session ticket",
            Self::TcpTickets => b"session ticket tcp",
            Self::Retry => b"retry token",
            Self::NewToken => b"address token",
            Self::Reset => b"stateless reset",
            Self::ConnectionIds => b"connection id",
        }
    }
}

/// One secret of a ring. Times are seconds since 1970-01-01T00:00:00Z.
#[derive(Clone, PartialEq, Eq)]
pub struct RingKey {
    /// Number of the key, which is sent with all data that it seals. Unique in a ring.
    pub id: u32,
    /// The secret.
    pub secret: [u8; 32],
    /// Time from which the key seals. It opens before, too: the clocks of two machines differ.
    pub from: Option<u64>,
    /// From here on it neither seals nor opens.
    pub until: Option<u64>,
}

impl RingKey {
    /// A key that always holds.
    pub fn new(id: u32, secret: [u8; 32]) -> Self {
        Self { id, secret, from: None, until: None }
    }

    fn is_over(&self, now: u64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl std::fmt::Debug for RingKey {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, from, until, .. } = self;
        f.debug_struct("RingKey").field("id", id).field("from", from).field("until", until).finish_non_exhaustive()
    }
}

/// Error of sealed content that could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The ring has no such key, or its time has ended.
    #[error("the ring has no key {0}, or its time is over")]
    UnknownKey(u32),
    /// Not sealed with this key for this purpose.
    #[error("it was not sealed with a key of the ring")]
    Forged,
}

/// A key with everything that follows from it.
struct Derived {
    key: RingKey,
    prk: hkdf::Prk,
    tickets: LessSafeKey,
    tcp_tickets: LessSafeKey,
    retry: LessSafeKey,
    new_token: LessSafeKey,
    reset: hmac::Key,
}

impl Derived {
    fn new(key: RingKey) -> Self {
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, b"tiderace key ring").extract(&key.secret);
        let seal = |purpose| {
            let key = UnboundKey::new(&AES_256_GCM, &expand::<32>(&prk, purpose));
            LessSafeKey::new(key.expect("the key has the right length"))
        };
        let reset = hmac::Key::new(hmac::HMAC_SHA256, &expand::<32>(&prk, Purpose::Reset));
        let [tickets, tcp_tickets, retry, new_token] =
            [Purpose::Tickets, Purpose::TcpTickets, Purpose::Retry, Purpose::NewToken].map(seal);
        Self { key, prk, tickets, tcp_tickets, retry, new_token, reset }
    }

    fn aead(&self, purpose: Purpose) -> &LessSafeKey {
        match purpose {
            Purpose::Retry => &self.retry,
            Purpose::NewToken => &self.new_token,
            Purpose::TcpTickets => &self.tcp_tickets,
            Purpose::Tickets | Purpose::Reset | Purpose::ConnectionIds => &self.tickets,
        }
    }
}

fn expand<const N: usize>(prk: &hkdf::Prk, purpose: Purpose) -> [u8; N] {
    struct Len(usize);
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut key = [0; N];
    prk.expand(&[purpose.label()], Len(N)).and_then(|okm| okm.fill(&mut key)).expect("HKDF gives so many bytes");
    key
}

/// Key ring. Clones are the same ring: a change of one changes all.
#[derive(Clone)]
pub struct KeyRing(Arc<RwLock<Arc<Vec<Derived>>>>);

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.derived().iter().map(|d| &d.key)).finish()
    }
}

impl KeyRing {
    /// A ring of one secret that always holds, with the number 0.
    pub fn single(secret: [u8; 32]) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(vec![Derived::new(RingKey::new(0, secret))]))))
    }

    /// A ring of these keys.
    ///
    /// # Errors
    /// When there are none or more than [`MAX_KEYS`], or two have the same number.
    pub fn new(keys: Vec<RingKey>) -> Result<Self, RingError> {
        Ok(Self(Arc::new(RwLock::new(Arc::new(derive(keys)?)))))
    }

    /// Replaces the keys of the ring, in all of its clones.
    ///
    /// # Errors
    /// As [`KeyRing::new`]; the ring is unchanged then.
    pub fn replace(&self, keys: Vec<RingKey>) -> Result<(), RingError> {
        let derived = Arc::new(derive(keys)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = derived;
        Ok(())
    }

    /// Adds a key that seals from `now` on (Unix seconds). The others open for `overlap` seconds more; expired ones are removed.
    ///
    /// # Errors
    /// When a key has this number already, or there are too many.
    pub fn rotate(&self, id: u32, secret: [u8; 32], now: u64, overlap: u64) -> Result<(), RingError> {
        let mut keys = self.keys();
        keys.retain(|key| !key.is_over(now));
        for key in &mut keys {
            let end = now.saturating_add(overlap);
            key.until = Some(key.until.map_or(end, |until| until.min(end)));
        }
        keys.push(RingKey { id, secret, from: Some(now), until: None });
        self.replace(keys)
    }

    /// The keys, in their order.
    pub fn keys(&self) -> Vec<RingKey> {
        self.derived().iter().map(|d| d.key.clone()).collect()
    }

    fn derived(&self) -> Arc<Vec<Derived>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Seals what `content` appends, for a purpose: `out` gets the number of the key, nonce, ciphertext, tag. `bound` is not in it, and has
    /// to be the same when it is opened. The nonce has to be random.
    pub fn seal(
        &self,
        purpose: Purpose,
        now: u64,
        nonce: [u8; NONCE_LEN],
        bound: &[u8],
        out: &mut Vec<u8>,
        content: impl FnOnce(&mut Vec<u8>),
    ) {
        let ring = self.derived();
        let derived = newest(&ring, now);
        out.extend_from_slice(&derived.key.id.to_be_bytes());
        out.extend_from_slice(&nonce);
        let start = out.len();
        content(out);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = derived
            .aead(purpose)
            .seal_in_place_separate_tag(nonce, Aad::from(bound), &mut out[start..])
            .expect("sealing does not fail for short messages");
        out.extend_from_slice(tag.as_ref());
    }

    /// Opens what a ring with the same key has sealed.
    ///
    /// # Errors
    /// When the key is not in the ring or its time has ended, or when this key has not sealed it for this purpose.
    pub fn open(&self, purpose: Purpose, now: u64, bound: &[u8], sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (id, rest) = sealed.split_first_chunk::<ID_LEN>().ok_or(OpenError::Forged)?;
        let id = u32::from_be_bytes(*id);
        let (nonce, content) = rest.split_first_chunk::<NONCE_LEN>().ok_or(OpenError::Forged)?;
        let ring = self.derived();
        let derived =
            ring.iter().find(|d| d.key.id == id).filter(|d| !d.key.is_over(now)).ok_or(OpenError::UnknownKey(id))?;
        let mut content = content.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = derived.aead(purpose).open_in_place(nonce, Aad::from(bound), &mut content);
        let len = opened.map_err(|_| OpenError::Forged)?.len();
        content.truncate(len);
        Ok(content)
    }

    /// Time for which content that is sealed now can be opened, in seconds; `None` when the key has no end.
    pub(crate) fn seals_for(&self, now: u64) -> Option<u64> {
        newest(&self.derived(), now).key.until.map(|until| until.saturating_sub(now))
    }

    /// The reset token that the newest key gives to one of our connection IDs (RFC 9000 §10.3.2).
    pub(crate) fn reset_token(&self, now: u64, id: &ConnectionId) -> ResetToken {
        reset_token(newest(&self.derived(), now), id)
    }

    /// The reset tokens that a connection ID may have had, the newest first: the connection may have begun before the ring
    /// was rotated.
    pub(crate) fn reset_tokens(&self, now: u64, id: &ConnectionId) -> Vec<ResetToken> {
        let ring = self.derived();
        let first = newest(&ring, now);
        let others = ring.iter().rev().filter(|d| d.key.id != first.key.id && !d.key.is_over(now));
        std::iter::once(first).chain(others).map(|d| reset_token(d, id)).collect()
    }

    /// The key with which connection IDs are encrypted, and the number of its secret: of the newest secret that holds at
    /// `now` (Unix seconds) or, when `id` is given, of that one.
    pub fn connection_id_key(&self, now: u64, id: Option<u32>) -> Option<(u32, [u8; 16])> {
        let ring = self.derived();
        let derived = match id {
            None => newest(&ring, now),
            Some(id) => ring.iter().find(|d| d.key.id == id && !d.key.is_over(now))?,
        };
        Some((derived.key.id, expand(&derived.prk, Purpose::ConnectionIds)))
    }
}

/// The second that an instant of the endpoint's clock lies in.
pub(crate) fn second(now: Instant) -> u64 {
    now.as_nanos() / 1_000_000_000
}

fn reset_token(derived: &Derived, id: &ConnectionId) -> ResetToken {
    let tag = hmac::sign(&derived.reset, id.as_slice());
    ResetToken(tag.as_ref()[..16].try_into().expect("HMAC-SHA256 has 32 bytes"))
}

/// Key that seals: of the valid ones, the one that began last. A ring whose keys have all expired, or are not valid yet, seals with its
/// last one, because serving with an old key is better than not serving.
fn newest(ring: &[Derived], now: u64) -> &Derived {
    let holds = |d: &&Derived| d.key.from.is_none_or(|from| from <= now) && !d.key.is_over(now);
    ring.iter().filter(holds).max_by_key(|d| d.key.from).unwrap_or_else(|| ring.last().expect("a ring is never empty"))
}

fn derive(keys: Vec<RingKey>) -> Result<Vec<Derived>, RingError> {
    if keys.is_empty() {
        return Err(RingError::Empty);
    }
    if keys.len() > MAX_KEYS {
        return Err(RingError::TooMany(keys.len()));
    }
    for (place, key) in keys.iter().enumerate() {
        if keys[..place].iter().any(|other| other.id == key.id) {
            return Err(RingError::Twice(key.id));
        }
        if let (Some(from), Some(until)) = (key.from, key.until)
            && until <= from
        {
            return Err(RingError::Never(key.id));
        }
    }
    Ok(keys.into_iter().map(Derived::new).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u32, from: u64, until: u64) -> RingKey {
        RingKey { id, secret: [id as u8; 32], from: Some(from), until: Some(until) }
    }

    fn seal(ring: &KeyRing, now: u64) -> Vec<u8> {
        let mut sealed = Vec::new();
        ring.seal(Purpose::Tickets, now, [9; 12], b"bound", &mut sealed, |out| out.extend_from_slice(b"content"));
        sealed
    }

    fn open(ring: &KeyRing, now: u64, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        ring.open(Purpose::Tickets, now, b"bound", sealed)
    }

    #[test]
    fn the_newest_key_seals_and_all_that_hold_open() {
        let both = KeyRing::new(vec![key(1, 0, 200), key(2, 100, 300)]).unwrap();
        let old = KeyRing::new(vec![key(1, 0, 200)]).unwrap();
        let early = seal(&both, 50);
        assert_eq!(open(&old, 50, &early).unwrap(), b"content", "a machine that does not have the new key yet");
        let late = seal(&both, 100);
        assert_eq!(open(&old, 100, &late), Err(OpenError::UnknownKey(2)));
        assert_eq!(open(&both, 199, &early).unwrap(), b"content", "overlap");
        assert_eq!(open(&both, 200, &early), Err(OpenError::UnknownKey(1)));
        assert_eq!(open(&both, 90, &late).unwrap(), b"content", "sealed by a machine whose clock is ahead");
        assert_eq!(open(&both, 300, &late), Err(OpenError::UnknownKey(2)));
        assert_eq!(both.seals_for(150), Some(150));
    }

    #[test]
    fn purposes_and_secrets_do_not_open_each_others_work() {
        let ring = KeyRing::single([1; 32]);
        let sealed = seal(&ring, 0);
        for purpose in [Purpose::Retry, Purpose::NewToken, Purpose::TcpTickets] {
            assert_eq!(ring.open(purpose, 0, b"bound", &sealed), Err(OpenError::Forged));
        }
        assert_eq!(ring.open(Purpose::Tickets, 0, b"other", &sealed), Err(OpenError::Forged));
        assert_eq!(open(&KeyRing::single([2; 32]), 0, &sealed), Err(OpenError::Forged));
        for bit in 32..sealed.len() * 8 {
            let mut forged = sealed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&ring, 0, &forged), Err(OpenError::Forged));
        }
        for len in 0..sealed.len() {
            assert!(open(&ring, 0, &sealed[..len]).is_err());
        }
    }

    #[test]
    fn a_rotation_reaches_all_clones_and_forgets_in_the_end() {
        let ring = KeyRing::single([1; 32]);
        let clone = ring.clone();
        let sealed = seal(&ring, 10);
        let id = ConnectionId::new(&[5; 8]).unwrap();
        let token = ring.reset_token(10, &id);
        clone.rotate(1, [2; 32], 100, 60).unwrap();
        assert_eq!(clone.rotate(1, [2; 32], 100, 60), Err(RingError::Twice(1)));
        assert_eq!(open(&ring, 159, &sealed).unwrap(), b"content");
        assert!(open(&ring, 160, &sealed).is_err());
        assert_ne!(ring.reset_token(100, &id).0, token.0);
        assert_eq!(ring.reset_tokens(100, &id).len(), 2);
        assert_eq!(ring.reset_tokens(100, &id)[1].0, token.0, "an old connection is still told");
        clone.rotate(2, [3; 32], 200, 60).unwrap();
        assert_eq!(ring.keys().iter().map(|key| key.id).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_ring_without_a_key_for_this_time_goes_on_with_its_last() {
        let ring = KeyRing::new(vec![key(1, 100, 200)]).unwrap();
        assert_eq!(open(&ring, 50, &seal(&ring, 50)).unwrap(), b"content");
        let late = seal(&ring, 500);
        assert_eq!(open(&ring, 500, &late), Err(OpenError::UnknownKey(1)), "and opens nothing any more");
    }

    #[test]
    fn keys_for_connection_ids_follow_the_ring() {
        let ring = KeyRing::new(vec![key(1, 0, 200), key(2, 100, 300)]).unwrap();
        let (id, one) = ring.connection_id_key(50, None).unwrap();
        assert_eq!(id, 1);
        assert_eq!(ring.connection_id_key(150, Some(1)), Some((1, one)));
        assert_ne!(ring.connection_id_key(150, None).unwrap().1, one);
        assert_eq!(ring.connection_id_key(250, Some(1)), None);
    }

    #[test]
    fn rings_that_make_no_sense_are_refused() {
        assert_eq!(KeyRing::new(vec![]).unwrap_err(), RingError::Empty);
        assert_eq!(KeyRing::new(vec![key(1, 0, 9), key(1, 0, 9)]).unwrap_err(), RingError::Twice(1));
        assert_eq!(KeyRing::new(vec![key(1, 9, 9)]).unwrap_err(), RingError::Never(1));
        let many = (0..9).map(|id| key(id, 0, 9)).collect();
        assert_eq!(KeyRing::new(many).unwrap_err(), RingError::TooMany(9));
    }
}
