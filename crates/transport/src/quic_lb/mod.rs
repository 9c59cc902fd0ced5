//! Connection IDs that name a server to a load balancer: QUIC-LB (draft-ietf-quic-load-balancers, state of draft-22).
//!
//! An ID begins with an octet whose first three bits name a [configuration](QuicLb). The rest, the *plaintext block*, is the server ID and
//! a nonce, in the clear or encrypted as a whole. All functions are pure: they draw no random numbers, and a configuration reads an ID in
//! the same way everywhere.

mod cipher;
mod server_id;
#[cfg(test)]
mod tests;

use wire::ConnectionId;

use self::cipher::Cipher;
pub use self::server_id::{ServerId, ServerIdError};

/// Config rotation bits that no configuration has: the ID cannot be routed (§3.2).
pub const UNROUTABLE: u8 = 0b111;
/// Most bytes of server ID and nonce together: version 1 of QUIC limits connection IDs to 20 bytes.
pub const MAX_BLOCK: usize = ConnectionId::MAX_LEN - 1;
/// Fewest bytes of a nonce (§5.3).
pub const MIN_NONCE: usize = 4;
/// Least length of an unroutable ID (§3.2).
pub const MIN_UNROUTABLE: usize = 8;
/// Bits of the first octet behind the config rotation bits.
const LOW_BITS: u8 = 0x1f;

/// Parameters of a configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QuicLbParameters {
    /// Config rotation bits, 0 to 6.
    pub config_id: u8,
    /// Bytes of a server ID, 1 to 15.
    pub server_id_len: usize,
    /// Bytes of a nonce, 4 to 18.
    pub nonce_len: usize,
    /// Key of AES-128; `None` leaves server ID and nonce in the clear.
    pub key: Option<[u8; 16]>,
    /// Set if the first octet encodes the number of bytes that follow it.
    pub encodes_len: bool,
}

impl std::fmt::Debug for QuicLbParameters {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuicLbParameters")
            .field("config_id", &self.config_id)
            .field("server_id_len", &self.server_id_len)
            .field("nonce_len", &self.nonce_len)
            .field("is_encrypted", &self.key.is_some())
            .field("encodes_len", &self.encodes_len)
            .finish()
    }
}

/// Parameters that the draft forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuicLbError {
    /// Config rotation bits that name no configuration.
    #[error("config ID {0} is not possible; expected 0 to 6\nhint: 7 marks connection IDs that cannot be routed")]
    ConfigId(u8),
    /// Server ID without a byte, or with too many.
    #[error("a server ID of {0} bytes is not possible; expected 1 to 15\nhint: 2 bytes are enough for 65,536 machines")]
    ServerIdLen(usize),
    /// Nonce that is too short.
    #[error("a nonce of {0} bytes is not possible; expected at least 4\nhint: no two connection IDs have the same")]
    NonceLen(usize),
    /// More bytes than a connection ID has.
    #[error(
        "server ID and nonce have {0} bytes together; expected at most 19\nhint: 16 bytes need a single pass of the cipher"
    )]
    TooLong(usize),
}

/// A configuration: encodes and decodes connection IDs.
pub struct QuicLb {
    config_id: u8,
    server_id_len: usize,
    nonce_len: usize,
    encodes_len: bool,
    cipher: Option<Cipher>,
}

impl std::fmt::Debug for QuicLb {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuicLb")
            .field("config_id", &self.config_id)
            .field("server_id_len", &self.server_id_len)
            .field("nonce_len", &self.nonce_len)
            .finish_non_exhaustive()
    }
}

/// Content of a connection ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    block: [u8; MAX_BLOCK],
    server_id_len: usize,
    len: usize,
}

impl Decoded {
    /// Server that issued the ID.
    pub fn server_id(&self) -> ServerId {
        ServerId::of(&self.block[..self.server_id_len])
    }

    /// Nonce, in which the server may encode data.
    pub fn nonce(&self) -> &[u8] {
        &self.block[self.server_id_len..self.len]
    }
}

/// Config rotation bits of a connection ID; `None` for an empty one.
pub fn config_id(id: &[u8]) -> Option<u8> {
    id.first().map(|first| first >> 5)
}

/// An ID of a server without a configuration: random bytes behind the reserved config rotation bits and the length, which is
/// mandatory here (§3.2). `None` when the bytes are too few or too many.
pub fn unroutable(random: &[u8]) -> Option<ConnectionId> {
    if random.len() + 1 < MIN_UNROUTABLE || random.len() > MAX_BLOCK {
        return None;
    }
    let mut bytes = [0; ConnectionId::MAX_LEN];
    bytes[0] = UNROUTABLE << 5 | u8::try_from(random.len()).ok()?;
    bytes[1..=random.len()].copy_from_slice(random);
    ConnectionId::new(&bytes[..=random.len()])
}

impl QuicLb {
    /// A configuration with these parameters.
    ///
    /// # Errors
    /// When the draft forbids them.
    pub fn new(parameters: &QuicLbParameters) -> Result<Self, QuicLbError> {
        let QuicLbParameters { config_id, server_id_len, nonce_len, key, encodes_len } = *parameters;
        // §3.1: the reserved identifier is in no configuration
        if config_id >= UNROUTABLE {
            return Err(QuicLbError::ConfigId(config_id));
        }
        // §5.3: at least one octet of server ID, four of nonce, and no more than nineteen together
        if !(1..=MAX_BLOCK - MIN_NONCE).contains(&server_id_len) {
            return Err(QuicLbError::ServerIdLen(server_id_len));
        }
        if nonce_len < MIN_NONCE {
            return Err(QuicLbError::NonceLen(nonce_len));
        }
        let len = server_id_len.saturating_add(nonce_len);
        if len > MAX_BLOCK {
            return Err(QuicLbError::TooLong(len));
        }
        Ok(Self { config_id, server_id_len, nonce_len, encodes_len, cipher: key.map(|key| Cipher::new(&key)) })
    }

    /// Config rotation bits.
    pub fn config_id(&self) -> u8 {
        self.config_id
    }

    /// Bytes of a server ID.
    pub fn server_id_len(&self) -> usize {
        self.server_id_len
    }

    /// Bytes of a nonce.
    pub fn nonce_len(&self) -> usize {
        self.nonce_len
    }

    /// Bytes of a connection ID.
    pub fn id_len(&self) -> usize {
        1 + self.block_len()
    }

    /// Returns whether observers cannot read the server ID.
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    fn block_len(&self) -> usize {
        self.server_id_len + self.nonce_len
    }

    /// Encodes an ID. `low` are the five last bits of the first octet where they are not its length; they should look random.
    /// `None` when server ID or nonce has another length.
    pub fn encode(&self, server_id: &ServerId, nonce: &[u8], low: u8) -> Option<ConnectionId> {
        if server_id.as_slice().len() != self.server_id_len || nonce.len() != self.nonce_len {
            return None;
        }
        let len = self.block_len();
        let mut bytes = [0; ConnectionId::MAX_LEN];
        let low = if self.encodes_len { u8::try_from(len).ok()? } else { low & LOW_BITS };
        bytes[0] = self.config_id << 5 | low;
        bytes[1..=self.server_id_len].copy_from_slice(server_id.as_slice());
        bytes[1 + self.server_id_len..=len].copy_from_slice(nonce);
        if let Some(cipher) = &self.cipher {
            cipher.encrypt(&mut bytes[1..=len]);
        }
        ConnectionId::new(&bytes[..=len])
    }

    /// Decodes an ID, or the packet from its first byte on: bytes behind the block are ignored, because a server may append further bytes.
    /// `None` if the ID is of another configuration, too short, or its encoded length is wrong.
    pub fn decode(&self, id: &[u8]) -> Option<Decoded> {
        let mut block = self.block_of(id)?;
        let len = self.block_len();
        if let Some(cipher) = &self.cipher {
            cipher.decrypt(&mut block[..len]);
        }
        Some(Decoded { block, server_id_len: self.server_id_len, len })
    }

    /// Decodes the server ID alone, which takes one pass less where the server ID is no longer than the nonce.
    pub fn server_id(&self, id: &[u8]) -> Option<ServerId> {
        let mut block = self.block_of(id)?;
        let len = self.block_len();
        if let Some(cipher) = &self.cipher {
            cipher.decrypt_front(&mut block[..len], self.server_id_len);
        }
        Some(ServerId::of(&block[..self.server_id_len]))
    }

    fn block_of(&self, id: &[u8]) -> Option<[u8; MAX_BLOCK]> {
        let (&first, rest) = id.split_first()?;
        let len = self.block_len();
        if first >> 5 != self.config_id || (self.encodes_len && usize::from(first & LOW_BITS) != len) {
            return None;
        }
        let mut block = [0; MAX_BLOCK];
        block[..len].copy_from_slice(rest.get(..len)?);
        Some(block)
    }
}
