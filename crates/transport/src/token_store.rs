//! Tokens that a client keeps for later connections to the same server (RFC 9000 §8.1.3).

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

/// Tokens kept for one server: each serves one connection, and clients open several at once.
const TOKENS_PER_SERVER: usize = 4;
/// A longer token is not worth its place in every Initial packet, in bytes.
const LONGEST: usize = 512;

/// For whom a token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOwner<'a> {
    /// Requested server name.
    pub server_name: &'a str,
    /// The version of QUIC that the connection ended up with.
    // RFC 9369 §5 MUST NOT-1: tickets and tokens do not pass from one version to the other
    pub version: u32,
}

/// Store of servers' tokens until a connection to the same server needs one.
pub trait TokenStore: Send + Sync {
    /// Keeps a token.
    fn put(&self, owner: TokenOwner<'_>, token: &[u8]);

    /// Gives a token away; it is not given again.
    // RFC 9000 §8.1.3 SHOULD NOT-1: a NEW_TOKEN token is used for one connection
    fn take(&self, owner: TokenOwner<'_>) -> Option<Vec<u8>>;
}

/// Tokens in memory: the latest four of each server, of the servers met last.
pub struct MemoryTokens {
    /// The server met last stands last.
    servers: Mutex<VecDeque<Server>>,
    most: usize,
}

struct Server {
    name: String,
    version: u32,
    tokens: VecDeque<Vec<u8>>,
}

impl MemoryTokens {
    /// Creates a store for this number of servers.
    pub fn new(servers: usize) -> Self {
        Self { servers: Mutex::new(VecDeque::new()), most: servers }
    }

    /// Takes the entry of a server out.
    fn remove(servers: &mut VecDeque<Server>, owner: TokenOwner<'_>) -> Option<Server> {
        let is = |server: &Server| server.version == owner.version && server.name == owner.server_name;
        let place = servers.iter().position(is)?;
        servers.remove(place)
    }
}

impl Default for MemoryTokens {
    /// For 256 servers.
    fn default() -> Self {
        Self::new(256)
    }
}

impl TokenStore for MemoryTokens {
    fn put(&self, owner: TokenOwner<'_>, token: &[u8]) {
        if token.len() > LONGEST || self.most == 0 {
            return;
        }
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let TokenOwner { server_name, version } = owner;
        let mut server = Self::remove(&mut servers, owner).unwrap_or_else(|| Server {
            name: server_name.to_owned(),
            version,
            tokens: VecDeque::new(),
        });
        if server.tokens.len() == TOKENS_PER_SERVER {
            server.tokens.pop_front();
        }
        server.tokens.push_back(token.to_vec());
        if servers.len() == self.most {
            servers.pop_front();
        }
        servers.push_back(server);
    }

    fn take(&self, owner: TokenOwner<'_>) -> Option<Vec<u8>> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut server = Self::remove(&mut servers, owner)?;
        // The latest is good for the longest time.
        let token = server.tokens.pop_back();
        if !server.tokens.is_empty() {
            servers.push_back(server);
        }
        token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(server_name: &str) -> TokenOwner<'_> {
        TokenOwner { server_name, version: 1 }
    }

    // RFC 9000 §8.1.3 SHOULD NOT-1, MUST NOT-3; RFC 9369 §5 MUST NOT-1
    #[test]
    fn a_token_is_given_once_and_for_its_server() {
        let store = MemoryTokens::default();
        store.put(owner("one.test"), b"first");
        store.put(owner("one.test"), b"second");
        assert_eq!(store.take(owner("two.test")), None);
        assert_eq!(store.take(TokenOwner { version: 2, ..owner("one.test") }), None);
        assert_eq!(store.take(owner("one.test")).as_deref(), Some(&b"second"[..]));
        assert_eq!(store.take(owner("one.test")).as_deref(), Some(&b"first"[..]));
        assert_eq!(store.take(owner("one.test")), None);
    }

    #[test]
    fn memory_is_bounded() {
        let store = MemoryTokens::new(3);
        store.put(owner("huge.test"), &[0; LONGEST + 1]);
        assert_eq!(store.take(owner("huge.test")), None);
        for n in 0..1_000_u32 {
            store.put(owner(&format!("{}.test", n % 7)), &n.to_be_bytes());
        }
        let servers = store.servers.lock().unwrap();
        assert_eq!(servers.len(), 3);
        assert!(servers.iter().all(|server| server.tokens.len() <= TOKENS_PER_SERVER));
    }
}
