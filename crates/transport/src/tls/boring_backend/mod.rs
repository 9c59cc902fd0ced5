//! The backend on BoringSSL, for what rustls cannot do: tickets of a client that can be written to a file and used by another
//! process, and a server whose private key is elsewhere and answers later.
//!
//! A feature, `boringssl`, off by default: BoringSSL is built from source with cmake, a C++ compiler and libclang. The secrets
//! go to the transport as with rustls, and packets are protected by the same code. A server's tickets are sealed, opened and
//! guarded against replays by the same [`Tickets`](super::rustls_backend::Tickets), but a session is in the words of the
//! library that made it: with a ring in common, each backend refuses the tickets of the other and makes a full handshake.
//!
//! Not here, and with rustls: certificates of clients, a choice of cipher suites (BoringSSL orders those of TLS 1.3 by
//! itself), a choice of certificates by name (put [`choose`](super::choose) in front), a key log.

mod config;
mod key;
mod library;
mod session;
mod signer;
mod state;
#[cfg(test)]
mod tests;
mod ticket;

pub use config::{BoringClient, BoringServer, ClientBuilder, ServerBuilder};
pub use signer::{Signature, Signer};
